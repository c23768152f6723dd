/*
 * subxact.h
 *		Work whose error leaves the transaction whole.
 */
#ifndef RECONCILE_SUBXACT_H
#define RECONCILE_SUBXACT_H

/*
 * Runs work(arg) in a subtransaction.  NULL, or the error with which it was
 * rolled back, in the caller's memory context.
 */
extern ErrorData *subxact_run(void (*work) (void *arg), void *arg);

/* The same; where work(arg) is false what it did is undone, too, the locks on rows with it.  *done: it was true. */
extern ErrorData *subxact_try(bool (*work) (void *arg), void *arg, bool *done);

#endif							/* RECONCILE_SUBXACT_H */

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

#endif							/* RECONCILE_SUBXACT_H */

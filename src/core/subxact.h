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

/*
 * The same as a turn: no lock in it is waited for longer than so long, 0: than the
 * session has it.  False: work(arg) was, or a lock did not come.  Other errors are thrown.
 */
extern bool subxact_turn(bool (*work) (void *arg), void *arg, int wait_ms);

#endif							/* RECONCILE_SUBXACT_H */

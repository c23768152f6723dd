/*
 * dead.h
 *		How many entities of a loop are dead, kept without a scan.
 */
#ifndef RECONCILE_DEAD_H
#define RECONCILE_DEAD_H

#include "core/ident.h"

/*
 * Set by the engine when it is preloaded.  Called when a transaction that
 * changed who is dead has committed, once for each loop, while it still holds
 * its lock on the count; it must not throw.
 */
extern void (*dead_changed_hook) (const char *loop_name, int64 change);

/*
 * Counts the dead of each loop that has any, so that every change is either in
 * the count or told to the hook after this transaction.  False: a change is in
 * flight; try again later.  "found" is called with the lock held.
 */
extern bool dead_count(void (*begin) (void), void (*found) (const char *loop_name, int64 n));

/* Registers the transaction callbacks; once, from _PG_init(). */
extern void dead_init(void);

#endif							/* RECONCILE_DEAD_H */

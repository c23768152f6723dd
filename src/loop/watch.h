/*
 * watch.h
 *		Watched tables: statement triggers that mark what a change touched.
 */
#ifndef RECONCILE_WATCH_H
#define RECONCILE_WATCH_H

/*
 * Drops the triggers of a loop, on whatever table they are; rights are the
 * caller's business.  Takes AccessExclusiveLock on those tables.
 */
extern void watch_drop_all(const char *loop_name);

#endif							/* RECONCILE_WATCH_H */

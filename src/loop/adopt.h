/*
 * adopt.h
 *		Loops that come to another home: a promotion, a restore, a clone.
 *
 * A loop names the home (core/home.h) where its entities were last looked at.
 * In another cluster, database or extension it is paused until resume_loop() or
 * resume_all(), as the original may still run; after a promotion it runs.  In
 * either case it is owed a resync, since what was done in a lost past is not
 * known here.
 */
#ifndef RECONCILE_ADOPT_H
#define RECONCILE_ADOPT_H

#include "loop/loop.h"

/* Sets the incarnation room's hook; once, from _PG_init(). */
extern void adopt_init(void);

/*
 * Makes this the loop's home, and marks what its resync marks: '' where it has a
 * lister or a ticker, else all that it remembers.  Nothing happens where it is
 * at home.  Locks the loop's row.
 */
extern void loop_adopt(const LoopRules *rules);

#endif							/* RECONCILE_ADOPT_H */

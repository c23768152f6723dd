/*
 * marks.h
 *		Who makes work for the loops of placement tells them.
 */
#ifndef RECONCILE_PLACEMENT_MARKS_H
#define RECONCILE_PLACEMENT_MARKS_H

#include "datatype/timestamp.h"

/* The sweeps, by the names of their entities. */
#define SWEEP_PENDING		"pending"
#define SWEEP_HOST_TARGETS	"host_targets"
#define SWEEP_DEADLINES		"deadlines"
#define SWEEP_OFFERS		"offers"

/*
 * session_mark() is in session.h: it tells the sweeps of commands, too.  This is for a
 * sweep, which knows them: false, without effect, where there is no loop.
 */
extern bool session_mark_many(int n, const int64 *numbers);

/* The same of those that have an open command; of the others nobody asks anything. */
extern void session_mark_working(int n, const int64 *numbers);

/*
 * There is a row for the sweep, by this transaction: it looks again from when this
 * commits, if it has ceased to.
 */
extern void sweep_mark(const char *sweep);

/* All of them look, when this commits. */
extern void sweep_mark_all(void);

/*
 * Nobody who makes rows for the sweep is about to commit one that it did not see, or
 * will before this transaction is over.  Never waits; false: somebody may be.
 */
extern bool sweep_try_alone(const char *sweep);

/* The sweep ceases to look (it is alone then), or looks again by itself. */
extern void sweep_set_asleep(const char *sweep, bool asleep);

#endif							/* RECONCILE_PLACEMENT_MARKS_H */

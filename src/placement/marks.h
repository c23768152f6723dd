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
#define SWEEP_OLD_OFFERS	"old_offers"

/* session_mark() is in session.h; this is of many.  False, without effect, where there is no loop. */
extern bool session_mark_many(int n, const int64 *numbers);

/* The same of those that have an open command; of the others nobody asks anything. */
extern void session_mark_working(int n, const int64 *numbers);

/*
 * There is a row for the sweep, by this transaction, that is due then: the sweep looks
 * when this commits, unless it does in time.
 */
extern void sweep_mark(const char *sweep, TimestampTz due_at);

/* All of them look, when this commits. */
extern void sweep_mark_all(void);

/*
 * Nobody who makes rows for the sweep is about to commit one that it did not see, or
 * will before this transaction is over.  Never waits; false: somebody may be.
 */
extern bool sweep_try_alone(const char *sweep);

/* The sweep looks by itself then (it is alone, or that is soon); DT_NOEND: when somebody makes a row. */
extern void sweep_set_wake(const char *sweep, TimestampTz at);

#endif							/* RECONCILE_PLACEMENT_MARKS_H */

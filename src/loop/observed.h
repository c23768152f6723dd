/*
 * observed.h
 *		What became of runs, for who counts them.
 *
 * A run is told when its transaction has committed: a success that was rolled
 * back is none.
 */
#ifndef RECONCILE_OBSERVED_H
#define RECONCILE_OBSERVED_H

#include "datatype/timestamp.h"

#include "loop/decide.h"

typedef struct RunObserved
{
	const char *loop_name;
	const char *entity_id;
	TimestampTz ready_at;		/* when it came due; 0 = not known */
	TimestampTz started_at;
	TimestampTz ended_at;
	RunResult	result;
	int			sqlstate;		/* of a failure */
	int			attempt;
	int64		epoch;
	int			pid;
} RunObserved;

/* Set by the engine when it is preloaded: a run is over; one began (1) or is no longer in flight (-1). */
extern void (*run_observed_hook) (const RunObserved *run);
extern void (*run_in_flight_hook) (const char *loop_name, int change);

/* Gets ready for a run_observed_hook() at commit, where nothing may fail. */
extern void (*run_expected_hook) (void);

/* Tells it if this transaction, and this subtransaction, commits. */
extern void observed_at_commit(const RunObserved *run);

#endif							/* RECONCILE_OBSERVED_H */

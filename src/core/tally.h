/*
 * tally.h
 *		Events that the lower rooms count, where something counts them.
 *
 * An event has happened when it is told, whatever becomes of its transaction:
 * a write that was refused was refused.
 */
#ifndef RECONCILE_TALLY_H
#define RECONCILE_TALLY_H

#include "datatype/timestamp.h"

typedef enum Tally
{
	TALLY_FENCE_REJECTED,		/* a write at a stale epoch was refused */
	TALLY_SELF_SUPPRESSED,		/* a run's own write did not trigger its entity */
	TALLY_BAD_VALUE,			/* a watched statement had a value that is no entity id */
	TALLIES
} Tally;

/* Set by the engine when it is preloaded; must not throw. */
extern void (*tally_hook) (const char *reconciler_id, Tally what);

static inline void
tally(const char *reconciler_id, Tally what)
{
	if (tally_hook != NULL)
		tally_hook(reconciler_id, what);
}

/*
 * May the event be logged now?  One line a minute for each id: in the whole
 * server where the engine is preloaded, else in this session.
 */
extern bool tally_log_due(const char *reconciler_id, Tally what);

/* Set by the engine when it is preloaded; must not throw. */
extern bool (*tally_log_hook) (const char *reconciler_id, Tally what, TimestampTz now);

#define TALLY_LOG_EVERY_US	INT64CONST(60000000)

#endif							/* RECONCILE_TALLY_H */

/*
 * tally.h
 *		Events that the lower rooms count, where something counts them.
 *
 * An event has happened when it is told, whatever becomes of its transaction:
 * a write that was refused was refused.
 */
#ifndef RECONCILE_TALLY_H
#define RECONCILE_TALLY_H

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

#endif							/* RECONCILE_TALLY_H */

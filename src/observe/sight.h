/*
 * sight.h
 *		What the caller may see of each reconciler id, gathered from the tables
 *		and from shared memory.
 */
#ifndef RECONCILE_SIGHT_H
#define RECONCILE_SIGHT_H

#include "engine/engine.h"
#include "loop/loop.h"

typedef struct Seen
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	bool		is_loop;		/* else a lease without a loop */
	/* of a loop */
	bool		enabled;
	bool		paused;
	bool		foreign;		/* so paused, as it came with a restore or a clone */
	bool		leased;
	bool		outside;		/* without a reconciler: for outside workers */
	/* of its lease, if there was ever a term */
	bool		has_term;
	int64		epoch;
	TimestampTz expires_at;
	/* from shared memory */
	StatsSample stats;
	bool		current;		/* its gauges are those of the dispatcher that runs now */
} Seen;

/*
 * The reconciler ids that the caller may observe, ordered, palloc'd: all loops,
 * and leases without one, of which there may be any number, as far as
 * SEEN_LEASES.  Reads no table that grows with the work.
 */
#define SEEN_LEASES	1000
#define COMMAND_OVERDUE_S	60	/* that commands may wait for a sweep */
#define COMMANDS_MAX	1000	/* that are counted */
#define PLACEMENT_OVERDUE_S 60	/* that an offer may wait for its end, or a session for room */
#define PLACEMENT_MAX	1000	/* of each that are counted */

extern int	sight_read(Seen **seen);

/* Does somebody lead it now?  A loop without a lease leads itself while it may run. */
extern bool sight_leads(const Seen *seen, TimestampTz now);

/* The number of dead entities; from the table where nobody counts them. */
extern int64 sight_dead(const Seen *seen);

#endif							/* RECONCILE_SIGHT_H */

/*
 * sweep.h
 *		Sweeps: a page of rows at a time, and the next one goes on behind it.
 *
 * Each pass is of one shard.  Whose turn it is has moved on before the work begins, so
 * that a shard that cannot be swept holds up no other.  A pass begins at the head of
 * its view with a bound; where its budget of pages is spent, the place that it came to
 * and that bound are kept for the next pass of the shard, and rows that cannot be
 * settled hold up none that come after.
 */
#ifndef RECONCILE_SWEEP_H
#define RECONCILE_SWEEP_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#define SWEEP_POSITION_MAX	4
#define SWEEP_FAILURE_LENGTH	6

typedef struct SweepPass
{
	const char *sweep;
	int			shard;
	int			page_limit;
	int			max_pages;

	/* where the next page begins: behind the row with this instant and these texts */
	TimestampTz bound;			/* of the pass, from its beginning */
	TimestampTz at;
	char	   *position[SWEEP_POSITION_MAX];
	int			npositions;

	/* what became of it */
	int			pages;
	int64		rows;
	bool		resumed;		/* it went on where an earlier one had stopped */
	bool		truncated;		/* the next one goes on where it stopped */
	char		failure[SWEEP_FAILURE_LENGTH];	/* SQLSTATE with which a page failed; '' = none */
	MemoryContext context;		/* lives as long as the pass */
} SweepPass;

/*
 * The shard whose turn it is, of so many; its turn is over with this.  False: another
 * sweep of this name is at it.  Until this transaction is over none is.
 */
extern bool sweep_turn(const char *sweep, int shards, int *shard);

/* A page: moves the place behind the last row of it, and returns how many it had. */
typedef int (*SweepPage) (SweepPass *pass, void *arg);

/*
 * Reads pages to the end of the view or of the budget.  The fields above "pages" are
 * set, "bound" and "npositions" for a pass that begins anew.  Each page is a
 * subtransaction: of one that fails the work is undone, and its "counts" are as before
 * it; the next pass begins with it.
 */
extern void sweep_run(SweepPass *pass, SweepPage page, void *arg, void *counts, Size counts_size);

/* The place behind a row, in the pass' own memory. */
extern void sweep_move(SweepPass *pass, TimestampTz at, const char *const *position);

/* The place as the arguments of a plan: the instant, and the texts. */
extern void sweep_place_values(const SweepPass *pass, Datum *values);

/* Beginning and end of each sweep as an SQL function: 25006, 0A000, 42501. */
extern void sweep_require(const char *function);

/* A failure as a column. */
extern Datum sweep_failure(const SweepPass *pass, bool *isnull);

/*
 * Of a row that could not be settled, each is in a subtransaction of its own, the
 * SQLSTATE is logged and the pass goes on; an interrupt is raised again.
 */
extern void sweep_row_failed(const char *what, ErrorData *error);

/* ----------------------------------------------------------------
 * The sweeps, as the loop runs them
 * ----------------------------------------------------------------
 */

typedef struct PendingSwept
{
	int64		sessions;		/* that need a host */
	int64		owned;			/* of those: they are where they may stay */
	int64		marked;			/* of those: to be placed by the loop */
	int64		failed;			/* of those: nobody can tell */
} PendingSwept;

typedef struct DeadlinesSwept
{
	int64		due;			/* past their deadlines, and nobody's */
	int64		rejected;		/* of those */
	int64		deferred;		/* of those: somebody works on their session */
	int64		contended;		/* of those: locked, or settled meanwhile */
	int64		failed;			/* of those */
	int64		unexpired;
	int64		applying;		/* never ended by time */
	int64		claim_live;		/* their host's, whatever the deadline */
} DeadlinesSwept;

typedef struct TargetsSwept
{
	int64		withdrawn;
	int64		still_live;
	int64		contended;		/* changed, or being changed */
	int64		failed;
} TargetsSwept;

typedef struct OffersSwept
{
	int64		expired;
	int64		contended;
	int64		failed;
	int64		deleted;		/* decided long ago */
} OffersSwept;

/* False: another one is at it.  Each fills pass and counts. */
extern bool sweep_pending(SweepPass *pass, PendingSwept *swept);
extern bool sweep_deadlines(SweepPass *pass, DeadlinesSwept *swept);
extern bool sweep_host_targets(SweepPass *pass, TargetsSwept *swept);
extern bool sweep_offers(SweepPass *pass, OffersSwept *swept);

#endif							/* RECONCILE_SWEEP_H */

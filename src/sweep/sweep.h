/*
 * sweep.h
 *		Sweeps: a page of rows at a time, and the next one goes on behind it.
 *
 * A pass is of one shard.  It begins at the head of its view with a bound; where its
 * pages are spent, the place that it came to and that bound are kept for the next pass
 * of the shard, so that rows that cannot be settled hold up none that come after.  Whose
 * turn it is comes from a sequence, which no rollback sets back: a shard that cannot be
 * swept holds up no other.
 *
 * A call of an SQL function goes round the shards until its pages are spent.  A run of
 * the loop reads one page, so that it holds few rows and for a short time, and the next
 * one follows at once until the round is over.
 */
#ifndef RECONCILE_SWEEP_H
#define RECONCILE_SWEEP_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#include "placement/settings.h"

#define SWEEP_POSITION_MAX	4
#define SWEEP_FAILURE_LENGTH	6

typedef struct SweepPass
{
	int			shard;
	const PlacementSettings *settings;

	/* where the next page begins: behind the row with this instant and these texts */
	TimestampTz bound;			/* of the pass, from its beginning */
	TimestampTz at;
	char	   *position[SWEEP_POSITION_MAX];

	/* what became of it */
	int			pages;
	int64		rows;
	bool		resumed;		/* it went on where an earlier one had stopped */
	bool		truncated;		/* the next one goes on where it stopped */
	char		failure[SWEEP_FAILURE_LENGTH];	/* SQLSTATE with which a page failed; '' = none */
	int64		failed;			/* rows */
	TimestampTz again_at;		/* when a row that it met is worth another look; DT_NOEND = none is */
	void	   *counts;			/* of the sweep's own */
	void	   *seen;			/* likewise: what it remembers of its rows */
	MemoryContext context;		/* lives as long as the pass */
} SweepPass;

typedef struct Sweep
{
	const char *name;
	bool		sharded;		/* of each shard, by turns of the sequence sweep_turn_NAME; else as a whole */
	int			npositions;		/* texts of a place */
	Size		counts_size;
	const char *row;			/* what a row is, in the log */

	/* Of a pass that begins. */
	TimestampTz (*bound) (const SweepPass *pass);
	/* The page behind the pass' place, which it moves behind the last row; how many. */
	int			(*read_page) (SweepPass *pass, void **page);
	/* What is done with a row of it; its error undoes it, and what it counted, alone. */
	void		(*settle) (SweepPass *pass, void *page, int i);
	/* What is done when all are; NULL: nothing. */
	void		(*end_page) (SweepPass *pass, void *page);
	/* The instant of the first row of the view that is later than "after", whatever its shard; DT_NOEND: there is none. */
	TimestampTz (*first_due) (TimestampTz after);
} Sweep;

/* The place behind a row, in the pass' own memory. */
extern void sweep_move(const Sweep *sweep, SweepPass *pass, TimestampTz at, const char *const *position);

/* A row of the pass is worth another look then. */
extern void sweep_again(SweepPass *pass, TimestampTz at);

/* The same, after the interval: it could not be settled now. */
extern void sweep_again_soon(SweepPass *pass);

/* A pass of a shard, into *pass; how many of the pages it has used up: to find that there is nothing costs none. */
extern int	sweep_pass(const Sweep *sweep, int shard, const PlacementSettings *settings, int max_pages, SweepPass *pass);

/* What a pass has to tell, as a row of an SQL function. */
typedef void (*SweepReport) (const SweepPass *pass, void *arg);

/* As an SQL function does it; false: another sweep of this name is at it, until its transaction is over. */
extern bool sweep_call(const Sweep *sweep, SweepReport report, void *arg);

/* As a run of the loop does it: a page, of whichever shard has one. */
typedef enum SweepRun
{
	SWEEP_BUSY,					/* another one is at it */
	SWEEP_MORE,					/* the round is not over */
	SWEEP_ENDED
} SweepRun;

typedef struct SweepRound
{
	int64		took_us;		/* by its runs: what lies between them, as an outage, is no time of it */
	TimestampTz bound;			/* the earliest of its passes */
	TimestampTz again_at;		/* likewise */
} SweepRound;

extern SweepRun sweep_run(const Sweep *sweep, SweepRound *round);

/* ----------------------------------------------------------------
 * The sweeps
 * ----------------------------------------------------------------
 */

extern const Sweep pending_sweep;
extern const Sweep deadlines_sweep;
extern const Sweep host_targets_sweep;
extern const Sweep offers_sweep;
extern const Sweep old_offers_sweep;

/* A page of open commands, for the two sweeps of those. */
struct DueCommand;
extern int	sweep_due_page(const Sweep *sweep, SweepPass *pass, struct DueCommand **commands);

/* The beginning of each as an SQL function: 25006, 0A000, 42501. */
extern void sweep_require(const char *function);

/* The failure of a pass as a column. */
extern Datum sweep_failure(const SweepPass *pass, bool *isnull);

#endif							/* RECONCILE_SWEEP_H */

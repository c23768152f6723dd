/*
 * sweep.c
 *		Pages and passes of the sweeps, and the places where they go on.
 *
 * The rows of placement_cursor are written by the transaction of the sweep: one that is
 * rolled back has done nothing.  They are advice: who finds none begins at the head.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "core/testpoint.h"
#include "sweep/sweep.h"

enum
{
	PLAN_LOAD,
	PLAN_SAVE,
	PLAN_DROP
};

#define OF_SHARD \
	" WHERE c.sweep OPERATOR(pg_catalog.=) $1 AND c.shard OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_LOAD] = {
		"SELECT c.bound, c.at, c.position FROM reconcile.placement_cursor c" OF_SHARD, 2, {TEXTOID, INT4OID}
	},
	[PLAN_SAVE] = {
		"INSERT INTO reconcile.placement_cursor (sweep, shard, bound, at, position) VALUES ($1, $2, $3, $4, $5)"
		" ON CONFLICT (sweep, shard) DO UPDATE SET bound = EXCLUDED.bound, at = EXCLUDED.at, position = EXCLUDED.position",
		5, {TEXTOID, INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTARRAYOID}
	},
	[PLAN_DROP] = {
		"DELETE FROM reconcile.placement_cursor c" OF_SHARD, 2, {TEXTOID, INT4OID}
	}
};

/* ----------------------------------------------------------------
 * Places
 * ----------------------------------------------------------------
 */

void
sweep_move(const Sweep *sweep, SweepPass *pass, TimestampTz at, const char *const *position)
{
	pass->at = at;
	for (int i = 0; i < sweep->npositions; i++)
		pass->position[i] = MemoryContextStrdup(pass->context, position[i]);
}

/* False: there is none, or one of another shape, which nobody can go on from. */
static bool
load_place(const Sweep *sweep, SweepPass *pass)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(sweep->name);
	values[1] = Int32GetDatum(pass->shard);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_LOAD], values, NULL) > 0;
	if (found)
	{
		const char *position[SWEEP_POSITION_MAX];
		Datum	   *elements;
		bool	   *nulls;
		int			n;

		deconstruct_array(DatumGetArrayTypeP(sql_value(0, 3, NULL)), TEXTOID, -1, false, TYPALIGN_INT,
						  &elements, &nulls, &n);
		found = n == sweep->npositions;
		for (int i = 0; i < n && found; i++)
		{
			found = !nulls[i];
			position[i] = found ? TextDatumGetCString(elements[i]) : NULL;
		}
		if (found)
		{
			pass->bound = DatumGetTimestampTz(sql_value(0, 1, NULL));
			sweep_move(sweep, pass, DatumGetTimestampTz(sql_value(0, 2, NULL)), position);
		}
	}
	sql_end(&scope);
	return found;
}

static void
save_place(const Sweep *sweep, const SweepPass *pass)
{
	Datum		values[5];
	Datum		position[SWEEP_POSITION_MAX];

	values[0] = CStringGetTextDatum(sweep->name);
	values[1] = Int32GetDatum(pass->shard);
	values[2] = TimestampTzGetDatum(pass->bound);
	values[3] = TimestampTzGetDatum(pass->at);
	for (int i = 0; i < sweep->npositions; i++)
		position[i] = CStringGetTextDatum(pass->position[i]);
	values[4] = PointerGetDatum(construct_array(position, sweep->npositions, TEXTOID, -1, false, TYPALIGN_INT));
	(void) sql_do(&plans[PLAN_SAVE], values, NULL);
}

static void
drop_place(const Sweep *sweep, const SweepPass *pass)
{
	Datum		values[2] = {CStringGetTextDatum(sweep->name), Int32GetDatum(pass->shard)};

	(void) sql_do(&plans[PLAN_DROP], values, NULL);
}

void
sweep_again(SweepPass *pass, TimestampTz at)
{
	pass->again_at = Min(pass->again_at, at);
}

void
sweep_again_soon(SweepPass *pass)
{
	sweep_again(pass, clock_add_ms(clock_now(), pass->settings->interval_ms));
}

/* ----------------------------------------------------------------
 * Pages
 * ----------------------------------------------------------------
 */

typedef struct PageRun
{
	const Sweep *sweep;
	SweepPass  *pass;
	void	   *page;
	int			rows;
	int			row;			/* that is being settled */
} PageRun;

static void
read_page(void *arg)
{
	PageRun    *run = arg;

	run->rows = run->sweep->read_page(run->pass, &run->page);
}

static void
settle_row(void *arg)
{
	PageRun    *run = arg;

	run->sweep->settle(run->pass, run->page, run->row);
}

static void
reraise_interrupt(ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		ReThrowError(error);
}

/* A page that cannot be read is told, and the next pass begins with it. */
static bool
try_read(PageRun *run)
{
	SweepPass  *pass = run->pass;
	SweepPass	before = *pass;
	ErrorData  *error = subxact_run(read_page, run);

	if (error == NULL)
		return true;
	reraise_interrupt(error);
	*pass = before;
	strlcpy(pass->failure, unpack_sql_state(error->sqlerrcode), sizeof(pass->failure));
	sweep_again_soon(pass);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("a page of the sweep \"%s\" of shard %d failed: SQLSTATE %s", run->sweep->name, pass->shard, pass->failure),
			 errhidestmt(true), errhidecontext(true)));
	return false;
}

/* What cannot be settled is told, and left. */
static void
try_settle(PageRun *run, void *counts_before)
{
	SweepPass  *pass = run->pass;
	TimestampTz again_at = pass->again_at;
	ErrorData  *error;

	memcpy(counts_before, pass->counts, run->sweep->counts_size);
	error = subxact_run(settle_row, run);
	if (error == NULL)
		return;
	reraise_interrupt(error);
	memcpy(pass->counts, counts_before, run->sweep->counts_size);
	pass->again_at = again_at;
	pass->failed++;
	sweep_again_soon(pass);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("%s could not be settled: SQLSTATE %s", run->sweep->row, unpack_sql_state(error->sqlerrcode)),
			 errhidestmt(true), errhidecontext(true)));
}

/*
 * A subtransaction for each row, none around them: with that of a page the default
 * page would be one more than a snapshot knows without looking it up.  False: no page
 * follows, as this was the last, or it failed.
 */
static bool
sweep_page(const Sweep *sweep, SweepPass *pass)
{
	PageRun		run = {sweep, pass};
	void	   *counts_before = palloc0(sweep->counts_size);

	if (!try_read(&run))
		return false;
	TEST_POINT("sweep-page-read");
	for (run.row = 0; run.row < run.rows; run.row++)
	{
		CHECK_FOR_INTERRUPTS();
		try_settle(&run, counts_before);
	}
	if (sweep->end_page != NULL)
		sweep->end_page(pass, run.page);
	pass->pages++;
	pass->rows += run.rows;
	return run.rows == pass->settings->page_limit;
}

/* ----------------------------------------------------------------
 * Passes
 * ----------------------------------------------------------------
 */

int
sweep_pass(const Sweep *sweep, int shard, const PlacementSettings *settings, int max_pages, SweepPass *pass)
{
	static const char *const head[SWEEP_POSITION_MAX] = {"", "", "", ""};
	MemoryContext outer = CurrentMemoryContext;
	MemoryContext context = AllocSetContextCreate(outer, "reconcile sweep", ALLOCSET_DEFAULT_SIZES);
	bool		more = true;

	memset(pass, 0, sizeof(*pass));
	pass->context = outer;
	pass->shard = shard;
	pass->settings = settings;
	pass->again_at = DT_NOEND;
	pass->counts = palloc0(sweep->counts_size);
	pass->resumed = load_place(sweep, pass);
	if (!pass->resumed)
	{
		sweep_move(sweep, pass, DT_NOBEGIN, head);
		pass->bound = sweep->bound(pass);
	}

	MemoryContextSwitchTo(context);
	while (more && pass->pages < max_pages)
	{
		more = sweep_page(sweep, pass);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);

	pass->truncated = more || pass->failure[0] != '\0';
	if (pass->truncated)
		save_place(sweep, pass);
	else if (pass->resumed)
		drop_place(sweep, pass);
	/* to find that there is nothing costs nothing */
	return pass->rows > 0 || pass->truncated ? Max(pass->pages, 1) : 0;
}

/* ----------------------------------------------------------------
 * SQL functions
 * ----------------------------------------------------------------
 */

void
sweep_require(const char *function)
{
	require_writable(function);
	require_read_committed(function);
	access_require(CAP_OPERATE, PLACEMENT_SWEEPS_LOOP);
}

Datum
sweep_failure(const SweepPass *pass, bool *isnull)
{
	*isnull = pass->failure[0] == '\0';
	return *isnull ? (Datum) 0 : CStringGetTextDatum(pass->failure);
}

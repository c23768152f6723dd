/*
 * sweep.c
 *		Turns, places and passes of the sweeps.
 *
 * The rows of placement_cursor are written by the transaction of the sweep: one that is
 * rolled back has done nothing.  They are advice: who finds none begins at the head.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "placement/settings.h"
#include "sweep/sweep.h"

enum
{
	PLAN_TURN,
	PLAN_NEXT,
	PLAN_DROP_VANISHED,
	PLAN_LOAD,
	PLAN_SAVE,
	PLAN_DROP
};

#define OF_SWEEP	" WHERE c.sweep OPERATOR(pg_catalog.=) $1"
#define OF_SHARD	OF_SWEEP " AND c.shard OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_TURN] = {
		"SELECT c.next FROM reconcile.placement_cursor c" OF_SWEEP " AND c.shard OPERATOR(pg_catalog.=) -1",
		1, {TEXTOID}
	},
	[PLAN_NEXT] = {
		"INSERT INTO reconcile.placement_cursor (sweep, shard, next) VALUES ($1, -1, $2)"
		" ON CONFLICT (sweep, shard) DO UPDATE SET next = EXCLUDED.next",
		2, {TEXTOID, INT4OID}
	},
	[PLAN_DROP_VANISHED] = {
		"DELETE FROM reconcile.placement_cursor c" OF_SWEEP " AND c.shard OPERATOR(pg_catalog.>=) $2",
		2, {TEXTOID, INT4OID}
	},
	[PLAN_LOAD] = {
		"SELECT c.bound, c.at, c.position FROM reconcile.placement_cursor c" OF_SHARD " AND c.bound IS NOT NULL",
		2, {TEXTOID, INT4OID}
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
 * Turns
 * ----------------------------------------------------------------
 */

/* A lock of its own, as the row may not be there yet. */
static bool
try_lock_turn(const char *sweep)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_SWEEP, "turn", sweep);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

bool
sweep_turn(const char *sweep, int shards, int *shard)
{
	SqlScope	scope;
	Datum		values[2];

	if (!try_lock_turn(sweep))
		return false;
	*shard = 0;
	values[0] = CStringGetTextDatum(sweep);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_TURN], values, NULL) > 0)
		*shard = DatumGetInt32(sql_value(0, 1, NULL));
	if (*shard >= shards)
		*shard = 0;
	values[1] = Int32GetDatum((*shard + 1) % shards);
	(void) sql_run_latest(&plans[PLAN_NEXT], values, NULL);
	/* a shard that comes back begins at its head */
	values[1] = Int32GetDatum(shards);
	(void) sql_run_latest(&plans[PLAN_DROP_VANISHED], values, NULL);
	sql_end(&scope);
	return true;
}

/* ----------------------------------------------------------------
 * Places
 * ----------------------------------------------------------------
 */

void
sweep_move(SweepPass *pass, TimestampTz at, const char *const *position)
{
	pass->at = at;
	for (int i = 0; i < pass->npositions; i++)
		pass->position[i] = MemoryContextStrdup(pass->context, position[i]);
}

void
sweep_place_values(const SweepPass *pass, Datum *values)
{
	values[0] = TimestampTzGetDatum(pass->at);
	for (int i = 0; i < pass->npositions; i++)
		values[i + 1] = CStringGetTextDatum(pass->position[i]);
}

/* False: there is none, or one of another shape, which nobody can go on from. */
static bool
load_place(SweepPass *pass)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(pass->sweep);
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
		found = n == pass->npositions;
		for (int i = 0; i < n && found; i++)
		{
			found = !nulls[i];
			position[i] = found ? TextDatumGetCString(elements[i]) : NULL;
		}
		if (found)
		{
			pass->bound = DatumGetTimestampTz(sql_value(0, 1, NULL));
			sweep_move(pass, DatumGetTimestampTz(sql_value(0, 2, NULL)), position);
		}
	}
	sql_end(&scope);
	return found;
}

static void
save_place(const SweepPass *pass)
{
	SqlScope	scope;
	Datum		values[5];
	Datum		position[SWEEP_POSITION_MAX];

	values[0] = CStringGetTextDatum(pass->sweep);
	values[1] = Int32GetDatum(pass->shard);
	values[2] = TimestampTzGetDatum(pass->bound);
	values[3] = TimestampTzGetDatum(pass->at);
	for (int i = 0; i < pass->npositions; i++)
		position[i] = CStringGetTextDatum(pass->position[i]);
	values[4] = PointerGetDatum(construct_array(position, pass->npositions, TEXTOID, -1, false, TYPALIGN_INT));
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_SAVE], values, NULL);
	sql_end(&scope);
}

static void
drop_place(const SweepPass *pass)
{
	SqlScope	scope;
	Datum		values[2];

	values[0] = CStringGetTextDatum(pass->sweep);
	values[1] = Int32GetDatum(pass->shard);
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_DROP], values, NULL);
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * Passes
 * ----------------------------------------------------------------
 */

typedef struct PageRun
{
	SweepPass  *pass;
	SweepPage	page;
	void	   *arg;
	int			rows;
} PageRun;

static void
run_page(void *arg)
{
	PageRun    *run = arg;

	run->rows = run->page(run->pass, run->arg);
}

static void
reraise_interrupt(ErrorData *error)
{
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		ReThrowError(error);
}

void
sweep_row_failed(const char *what, ErrorData *error)
{
	reraise_interrupt(error);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("%s could not be settled: SQLSTATE %s", what, unpack_sql_state(error->sqlerrcode)),
			 errhidestmt(true), errhidecontext(true)));
}

/* True: it is done, or failed, and no page follows. */
static bool
is_last_page(SweepPass *pass, PageRun *run, void *counts, void *counts_before, Size counts_size)
{
	SweepPass	before = *pass;
	ErrorData  *error;

	memcpy(counts_before, counts, counts_size);
	error = subxact_run(run_page, run);
	if (error == NULL)
	{
		pass->pages++;
		pass->rows += run->rows;
		return run->rows < pass->page_limit;
	}
	reraise_interrupt(error);
	*pass = before;
	memcpy(counts, counts_before, counts_size);
	pass->truncated = true;
	strlcpy(pass->failure, unpack_sql_state(error->sqlerrcode), sizeof(pass->failure));
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("a page of the sweep \"%s\" of shard %d failed: SQLSTATE %s", pass->sweep, pass->shard, pass->failure),
			 errhidestmt(true), errhidecontext(true)));
	return true;
}

void
sweep_run(SweepPass *pass, SweepPage page, void *arg, void *counts, Size counts_size)
{
	static const char *const head[SWEEP_POSITION_MAX] = {"", "", "", ""};
	PageRun		run = {pass, page, arg};
	void	   *counts_before = palloc(counts_size);
	MemoryContext outer;
	MemoryContext context;
	bool		last = false;

	pass->context = CurrentMemoryContext;
	pass->pages = 0;
	pass->rows = 0;
	pass->truncated = false;
	pass->failure[0] = '\0';
	pass->resumed = load_place(pass);
	if (!pass->resumed)
		sweep_move(pass, DT_NOBEGIN, head);

	context = AllocSetContextCreate(CurrentMemoryContext, "reconcile sweep", ALLOCSET_DEFAULT_SIZES);
	outer = MemoryContextSwitchTo(context);
	while (!last && pass->pages < pass->max_pages)
	{
		CHECK_FOR_INTERRUPTS();
		last = is_last_page(pass, &run, counts, counts_before, counts_size);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);

	pass->truncated |= !last;
	if (pass->truncated)
		save_place(pass);
	else if (pass->resumed)
		drop_place(pass);
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

/*
 * sweep_round.c
 *		Whose turn it is: the calls of the sweeps' SQL functions, and the runs of their loop.
 *
 * Turns are numbers of a sequence, and the shard of one is its remainder by the number
 * of shards.  A turn that was taken and is not the last that a sweep committed was one
 * that failed.  The shards of those wait for the next round of the loop; a function
 * takes one page a call until it has been round, or a shard that fails again and again
 * would undo with itself what the same call does in others.  After a crash, which takes
 * the row, nothing is known of turns before.
 *
 * Lock: the sweep's own, tried, until the transaction is over: one of a name at a time.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "portability/instr_time.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/install.h"
#include "core/plan.h"
#include "sweep/sweep.h"

enum
{
	PLAN_TURN,
	PLAN_LOAD,
	PLAN_SAVE,
	PLAN_DROP_VANISHED
};

static SqlPlan plans[] = {
	[PLAN_TURN] = {
		"SELECT pg_catalog.nextval(('reconcile.sweep_turn_' OPERATOR(pg_catalog.||) $1)::pg_catalog.regclass)",
		1, {TEXTOID}
	},
	[PLAN_LOAD] = {
		"SELECT c.turn, c.careful, c.ended, c.took_us, c.bound, c.again_at FROM reconcile.placement_cursor c"
		" WHERE c.sweep OPERATOR(pg_catalog.=) $1 AND c.shard OPERATOR(pg_catalog.=) -1",
		1, {TEXTOID}
	},
	[PLAN_SAVE] = {
		"INSERT INTO reconcile.placement_cursor AS c (sweep, shard, turn, careful, ended, took_us, bound, again_at)"
		" VALUES ($1, -1, $2, $3, $4, $5, $6, $7)"
		" ON CONFLICT (sweep, shard) DO UPDATE SET turn = EXCLUDED.turn, careful = EXCLUDED.careful, ended = EXCLUDED.ended,"
		" took_us = EXCLUDED.took_us, bound = EXCLUDED.bound, again_at = EXCLUDED.again_at",
		7, {TEXTOID, INT8OID, INT4OID, INT4ARRAYOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	[PLAN_DROP_VANISHED] = {
		"DELETE FROM reconcile.placement_cursor c"
		" WHERE c.sweep OPERATOR(pg_catalog.=) $1 AND c.shard OPERATOR(pg_catalog.>=) $2",
		2, {TEXTOID, INT4OID}
	}
};

typedef struct Turns
{
	const Sweep *sweep;
	int			shards;
	bool	   *ended;			/* by shard: it has none any more */
	int64		turn;			/* the last; -1 = there was none, as far as is known */
	bool		lost;			/* some were taken after it, and are not committed */
	bool		passes_over;	/* their shards have ended */
	int			careful;
	bool		in_round;		/* of the loop */
	SweepRound	round;
	bool	   *ended_in_round;
} Turns;

/* ----------------------------------------------------------------
 * The sweep's row
 * ----------------------------------------------------------------
 */

/* With the shards that have ended in the round; of those that are no more, nothing. */
static void
read_row(Turns *turns)
{
	Datum	   *elements;
	bool		isnull;
	Datum		value;
	int			n;

	value = sql_value(0, 1, &isnull);
	if (!isnull)
		turns->turn = DatumGetInt64(value);
	turns->careful = DatumGetInt32(sql_value(0, 2, NULL));
	value = sql_value(0, 4, &isnull);
	turns->in_round = !isnull;
	if (!turns->in_round)
		return;
	turns->round.took_us = DatumGetInt64(value);
	turns->round.bound = DatumGetTimestampTz(sql_value(0, 5, NULL));
	turns->round.again_at = DatumGetTimestampTz(sql_value(0, 6, NULL));
	deconstruct_array(DatumGetArrayTypeP(sql_value(0, 3, NULL)), INT4OID, sizeof(int32), true, TYPALIGN_INT,
					  &elements, NULL, &n);
	for (int i = 0; i < n; i++)
	{
		if (DatumGetInt32(elements[i]) < turns->shards)
			turns->ended_in_round[DatumGetInt32(elements[i])] = true;
	}
}

static void
save_row(const Turns *turns)
{
	Datum	   *ended = palloc(sizeof(Datum) * turns->shards);
	int			n = 0;
	Datum		values[7];
	char		nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', ' '};

	for (int i = 0; i < turns->shards && turns->in_round; i++)
	{
		if (turns->ended_in_round[i])
			ended[n++] = Int32GetDatum(i);
	}
	values[0] = CStringGetTextDatum(turns->sweep->name);
	values[1] = Int64GetDatum(turns->turn);
	nulls[1] = turns->turn < 0 ? 'n' : ' ';
	values[2] = Int32GetDatum(turns->careful);
	values[3] = PointerGetDatum(construct_array(ended, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	values[4] = Int64GetDatum(turns->round.took_us);
	nulls[4] = nulls[5] = turns->in_round ? ' ' : 'n';
	values[5] = TimestampTzGetDatum(turns->round.bound);
	values[6] = TimestampTzGetDatum(turns->round.again_at);
	(void) sql_do(&plans[PLAN_SAVE], values, nulls);
}

/* False: another sweep of this name is at it.  A lock of its own, as the row may not be there yet. */
static bool
begin_turns(const Sweep *sweep, Turns *turns)
{
	SqlScope	scope;
	Datum		values[2];

	if (!lock_take(LOCK_KIND_SWEEP, "turn", sweep->name, ExclusiveLock, false))
		return false;
	memset(turns, 0, sizeof(*turns));
	turns->sweep = sweep;
	turns->shards = sweep->sharded ? placement_shards() : 1;
	turns->ended = palloc0(sizeof(bool) * turns->shards);
	turns->ended_in_round = palloc0(sizeof(bool) * turns->shards);
	turns->turn = -1;
	turns->round.again_at = DT_NOEND;
	values[0] = CStringGetTextDatum(sweep->name);
	values[1] = Int32GetDatum(turns->shards);
	sql_begin(&scope);
	/* a shard that comes back begins at its head */
	(void) sql_run_latest(&plans[PLAN_DROP_VANISHED], values, NULL);
	if (sql_run_latest(&plans[PLAN_LOAD], values, NULL) > 0)
		read_row(turns);
	sql_end(&scope);
	return true;
}

/* ----------------------------------------------------------------
 * Turns
 * ----------------------------------------------------------------
 */

/* Those between the last and this one. */
static void
lose_turns(Turns *turns, int64 turn)
{
	turns->lost = true;
	if (!turns->passes_over)
		return;
	for (int64 lost = Max(turns->turn + 1, turn - turns->shards + 1); lost < turn; lost++)
		turns->ended[lost % turns->shards] = true;
}

/* The next shard that has not ended; -1: all have. */
static int
next_shard(Turns *turns)
{
	Datum		name = CStringGetTextDatum(turns->sweep->name);

	if (!turns->sweep->sharded)
		return turns->ended[0] ? -1 : 0;
	for (int i = 0; i < turns->shards; i++)
	{
		int64		turn = DatumGetInt64(sql_ask(&plans[PLAN_TURN], &name));

		if (turns->turn >= 0 && turn > turns->turn + 1)
			lose_turns(turns, turn);
		turns->turn = turn;
		if (!turns->ended[turn % turns->shards])
			return (int) (turn % turns->shards);
	}
	return -1;
}

bool
sweep_call(const Sweep *sweep, SweepReport report, void *arg)
{
	PlacementSettings settings;
	Turns		turns;
	int			left;
	int			shard;

	if (!begin_turns(sweep, &turns))
		return false;
	placement_settings(&settings);
	left = settings.max_pages;
	while (left > 0 && (shard = next_shard(&turns)) >= 0)
	{
		SweepPass	pass;

		if (turns.lost)
			turns.careful = turns.shards;
		turns.lost = false;
		if (turns.careful > 0)
			left = 1;
		left -= sweep_pass(sweep, shard, &settings, left, &pass);
		report(&pass, arg);
		turns.ended[shard] = true;
		turns.careful = Max(turns.careful - 1, 0);
	}
	save_row(&turns);
	return true;
}

/* ----------------------------------------------------------------
 * Rounds of the loop
 * ----------------------------------------------------------------
 */

static void
begin_round(Turns *turns)
{
	turns->in_round = true;
	turns->round.took_us = 0;
	turns->round.bound = DT_NOEND;
	turns->round.again_at = DT_NOEND;
}

static bool
has_more(const Turns *turns)
{
	for (int shard = 0; shard < turns->shards; shard++)
	{
		if (!turns->ended[shard])
			return true;
	}
	return false;
}

SweepRun
sweep_run(const Sweep *sweep, SweepRound *round)
{
	PlacementSettings settings;
	Turns		turns;
	int			left = 1;
	int			shard;
	instr_time	began;
	instr_time	over;

	INSTR_TIME_SET_CURRENT(began);
	if (!begin_turns(sweep, &turns))
		return SWEEP_BUSY;
	placement_settings(&settings);
	turns.ended = turns.ended_in_round;
	turns.passes_over = true;
	if (!turns.in_round)
		begin_round(&turns);
	while (left > 0 && (shard = next_shard(&turns)) >= 0)
	{
		SweepPass	pass;

		left -= sweep_pass(sweep, shard, &settings, 1, &pass);
		turns.ended[shard] = !pass.truncated || pass.failure[0] != '\0';
		turns.round.bound = Min(turns.round.bound, pass.bound);
		turns.round.again_at = Min(turns.round.again_at, pass.again_at);
	}
	if (turns.lost)
		turns.round.again_at = Min(turns.round.again_at, clock_add_ms(clock_now(), settings.interval_ms));
	INSTR_TIME_SET_CURRENT(over);
	INSTR_TIME_SUBTRACT(over, began);
	turns.round.took_us += (int64) INSTR_TIME_GET_MICROSEC(over);
	*round = turns.round;
	turns.in_round = has_more(&turns);
	save_row(&turns);
	return turns.in_round ? SWEEP_MORE : SWEEP_ENDED;
}

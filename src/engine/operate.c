/*
 * operate.c
 *		drain_loop(), wait_idle(), cancel_run(): what an operator asks of runs.
 *
 * Both procedures look, commit, and wait: between two looks they hold neither a
 * snapshot nor a lock.  A run is seen in shared memory if an executor has it
 * (runs.h), and by a lock if a session has it or is making a claim
 * (run_of_session()); either is there before it is read whether the loop is paused.
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/plan.h"
#include "engine/runs.h"
#include "loop/claim.h"
#include "loop/loop.h"
#include "loop/run.h"

#define LOOK_MS		250			/* at the latest; nobody tells of a run in a session */

enum
{
	PLAN_ANY_CLAIM,
	PLAN_ANY_DUE
};

static SqlPlan plans[] = {
	/* as entity_claim_live() has it */
	[PLAN_ANY_CLAIM] = {
		"SELECT 1 FROM reconcile.entity e WHERE e.loop_name OPERATOR(pg_catalog.=) $1"
		" AND e.claim_epoch IS NOT NULL AND e.claim_expires_at OPERATOR(pg_catalog.>) $2"
		" AND ($3 IS FALSE OR EXISTS (SELECT FROM reconcile.standing_lease t"
		" WHERE t.reconciler_id OPERATOR(pg_catalog.=) $1 AND t.epoch OPERATOR(pg_catalog.=) e.claim_lease_epoch"
		" AND t.expires_at OPERATOR(pg_catalog.>) $2))"
		" LIMIT 1",
		3, {TEXTOID, TIMESTAMPTZOID, BOOLOID}
	},
	/*
	 * What is dead is due for a fresh trigger only, and after a crash for none;
	 * the deadline of a claim that was reported asks for nothing.
	 */
	[PLAN_ANY_DUE] = {
		"SELECT 1 FROM reconcile.mark m WHERE m.loop_name OPERATOR(pg_catalog.=) $1"
		" AND m.due_at OPERATOR(pg_catalog.<=) $2"
		" AND NOT EXISTS (SELECT FROM reconcile.entity e WHERE e.loop_name OPERATOR(pg_catalog.=) m.loop_name"
		" AND e.entity_id OPERATOR(pg_catalog.=) m.entity_id AND e.died_of IS NOT NULL"
		" AND (e.died_of OPERATOR(pg_catalog.=) 'crash' OR m.kind OPERATOR(pg_catalog.<>) 't'))"
		" AND (m.kind OPERATOR(pg_catalog.<>) 'c' OR EXISTS (SELECT FROM reconcile.entity e"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) m.loop_name AND e.entity_id OPERATOR(pg_catalog.=) m.entity_id"
		" AND e.claim_epoch OPERATOR(pg_catalog.=) m.number))"
		" LIMIT 1",
		2, {TEXTOID, TIMESTAMPTZOID}
	}
};

static bool
any(int plan, const LoopRules *rules)
{
	Datum		values[3];

	values[0] = CStringGetTextDatum(rules->loop_name);
	values[1] = TimestampTzGetDatum(clock_now());
	values[2] = BoolGetDatum(rules->lease_ttl_ms > 0);
	return sql_do(&plans[plan], values, NULL) > 0;
}

static bool
is_running(const LoopRules *rules)
{
	return runs_find(rules->loop_name, NULL, NULL) != 0 || run_of_session(rules->loop_name, NULL) != 0;
}

/* One look; *done is the answer if it returns true. */
typedef bool (*Look) (const LoopRules *rules, bool *done);

static bool
look_drained(const LoopRules *rules, bool *done)
{
	/* somebody resumed it: there is no last run to wait for */
	if (!rules->paused)
	{
		*done = false;
		return true;
	}
	*done = !is_running(rules) && !any(PLAN_ANY_CLAIM, rules);
	return *done;
}

static bool
look_idle(const LoopRules *rules, bool *done)
{
	/* what shared memory knows costs little; what ran meanwhile has left a mark, or runs now */
	*done = !is_running(rules) && !any(PLAN_ANY_CLAIM, rules) && !any(PLAN_ANY_DUE, rules) && !is_running(rules);
	return *done;
}

/* Looks until the answer is there or the time is over; false then. */
static bool
wait_for(const char *loop_name, int64 timeout_ms, Look look)
{
	TimestampTz until = clock_add_ms(clock_now(), timeout_ms);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "reconcile look", ALLOCSET_SMALL_SIZES);
	MemoryContext outer = MemoryContextSwitchTo(context);
	bool		done = false;

	runs_wait_begin();
	for (;;)
	{
		LoopRules	rules;
		int64		left_us;

		MemoryContextReset(context);
		loop_require(loop_name, &rules);
		if (look(&rules, &done))
			break;
		SPI_commit();
		left_us = until - clock_now();
		if (left_us <= 0)
			break;
		runs_wait((long) Min((left_us + 999) / 1000, LOOK_MS));
	}
	runs_wait_end();
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);
	return done;
}

/* The arguments of both: loop, timeout, and what is returned.  "pause": the loop first. */
static Datum
operate(FunctionCallInfo fcinfo, const char *procedure, bool pause, Look look)
{
	char	   *loop_name;
	int64		timeout_ms;
	LoopRules	rules;
	TupleDesc	desc;
	Datum		value;
	bool		isnull = false;

	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	timeout_ms = duration_arg(fcinfo, 1, "timeout", true);
	access_require(pause ? CAP_OPERATE : CAP_OBSERVE, loop_name);
	loop_require(loop_name, &rules);
	require_non_atomic(fcinfo, procedure);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	if (pause)
		loop_pause(loop_name);
	SPI_commit();
	value = BoolGetDatum(wait_for(rules.loop_name, timeout_ms, look));
	SPI_finish();

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), &value, &isnull));
}

PG_FUNCTION_INFO_V1(reconcile_drain_loop);
Datum
reconcile_drain_loop(PG_FUNCTION_ARGS)
{
	require_writable("drain_loop");
	return operate(fcinfo, "drain_loop", true, look_drained);
}

PG_FUNCTION_INFO_V1(reconcile_wait_idle);
Datum
reconcile_wait_idle(PG_FUNCTION_ARGS)
{
	require_primary("wait_idle");
	return operate(fcinfo, "wait_idle", false, look_idle);
}

/*
 * Of a worker: SIGINT to the executor, and the dispatcher gives the entity back,
 * uncounted, not for a second.  One that strikes the run after it costs that a
 * repetition.  Of an outside worker: the claim is ended.
 */
PG_FUNCTION_INFO_V1(reconcile_cancel_run);
Datum
reconcile_cancel_run(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;
	LoopRules	rules;
	int			pid;

	require_writable("cancel_run");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);
	pid = runs_find(loop_name, entity_id, NULL);
	if (pid > 0)
		PG_RETURN_BOOL(kill(pid, SIGINT) == 0);
	PG_RETURN_BOOL(claim_take_back(&rules, entity_id));
}

/*
 * manage.c
 *		What users do with loops: trigger, pause, resume; and what a reconciler function
 *		may ask and say.
 *
 * Triggers only append (mark.h), so they take no lock that another trigger
 * holds.  Everything here tells the engine at commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/plan.h"
#include "core/wake.h"
#include "lease/incarnation.h"
#include "loop/adopt.h"
#include "loop/entity.h"
#include "loop/idset.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/run.h"

#define ENQUEUE_MANY_MAX	1000000

enum
{
	PLAN_PAUSE
};

static SqlPlan plans[] = {
	[PLAN_PAUSE] = {
		"UPDATE reconcile.loop SET paused = $2"
		" WHERE loop_name OPERATOR(pg_catalog.=) $1 AND paused OPERATOR(pg_catalog.<>) $2",
		2, {TEXTOID, BOOLOID}
	}
};

/* Runs a plan on (loop, second argument); did it change a row? */
static bool
change(int plan, const char *loop_name, Datum second)
{
	Datum		values[2];

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = second;
	return sql_do(&plans[plan], values, NULL) > 0;
}

/* ----------------------------------------------------------------
 * Pause and resume
 * ----------------------------------------------------------------
 */

/* incarnation_settle() comes first, where it is foreign. */
static void
resume(const LoopRules *rules)
{
	if (change(PLAN_PAUSE, rules->loop_name, BoolGetDatum(false)))
		wake_reload();
	loop_adopt(rules);
}

static void
set_paused(FunctionCallInfo fcinfo, const char *function, bool paused)
{
	char	   *loop_name;
	LoopRules	rules;

	require_writable(function);
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);
	if (paused)
	{
		if (change(PLAN_PAUSE, loop_name, BoolGetDatum(true)))
			wake_reload();
	}
	else
		loop_resume(&rules);
}

void
loop_resume(const LoopRules *rules)
{
	if (rules->foreign)
		incarnation_settle();
	resume(rules);
}

void
loop_pause(const char *loop_name)
{
	(void) change(PLAN_PAUSE, loop_name, BoolGetDatum(true));
	/* also where it was paused: who did that may not have told the engine yet */
	wake_reload();
}

PG_FUNCTION_INFO_V1(reconcile_pause_loop);
Datum
reconcile_pause_loop(PG_FUNCTION_ARGS)
{
	set_paused(fcinfo, "pause_loop", true);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_resume_loop);
Datum
reconcile_resume_loop(PG_FUNCTION_ARGS)
{
	set_paused(fcinfo, "resume_loop", false);
	PG_RETURN_VOID();
}

/* Those that the caller may operate; 42501 if there are others and he may operate none. */
PG_FUNCTION_INFO_V1(reconcile_resume_all);
Datum
reconcile_resume_all(PG_FUNCTION_ARGS)
{
	LoopRules  *loops;
	int			n;
	bool		refused = false;
	bool		any = false;
	bool		foreign = false;
	bool	   *allowed;

	require_writable("resume_all");
	n = loop_read_all(InvalidOid, &loops);
	allowed = palloc(sizeof(bool) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		allowed[i] = access_allowed(CAP_OPERATE, loops[i].loop_name);
		refused |= !allowed[i] && loops[i].paused;
		any |= allowed[i];
		foreign |= allowed[i] && loops[i].foreign;
	}
	/* before the row of any loop is locked */
	if (foreign)
		incarnation_settle();
	for (int i = 0; i < n; i++)
	{
		if (allowed[i])
			resume(&loops[i]);
	}
	if (refused && !any)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to resume loops"),
				 errdetail("Loops are paused, and you may operate none."),
				 errhint("Ask an administrator for reconcile.grant_access(role, 'operate').")));
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * Triggers
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_enqueue);
Datum
reconcile_enqueue(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;
	int64		delay_ms;

	require_writable("enqueue");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	delay_ms = duration_arg(fcinfo, 2, "delay", true);
	loop_require_trigger(loop_name);
	mark_insert(loop_name, entity_id, MARK_TRIGGER, clock_add_ms(clock_now(), delay_ms), true, NULL);
	PG_RETURN_VOID();
}

/* The distinct entity ids of a text[] argument. */
static void
entity_ids_arg(FunctionCallInfo fcinfo, int n, const char *arg, IdSet *set)
{
	Datum	   *elements;
	int			count = array_arg(fcinfo, n, arg, TEXTOID, ENQUEUE_MANY_MAX, &elements);

	idset_init(set, count);
	for (int i = 0; i < count; i++)
	{
		char	   *id = TextDatumGetCString(elements[i]);

		entity_id_check(id, arg);
		idset_add(set, id);
		pfree(id);
	}
}

PG_FUNCTION_INFO_V1(reconcile_enqueue_many);
Datum
reconcile_enqueue_many(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	IdSet		set;
	int64		delay_ms;
	int64		spread_ms;
	TimestampTz *due_at = NULL;

	require_writable("enqueue_many");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	entity_ids_arg(fcinfo, 1, "entity_ids", &set);
	delay_ms = duration_arg(fcinfo, 2, "delay", true);
	spread_ms = duration_arg(fcinfo, 3, "spread", true);
	loop_require_trigger(loop_name);

	if (delay_ms > 0 || spread_ms > 0)
	{
		TimestampTz first = clock_add_ms(clock_now(), delay_ms);

		due_at = palloc(sizeof(TimestampTz) * Max(set.n, 1));
		for (int i = 0; i < set.n; i++)
			due_at[i] = clock_add_ms(first, (int64) (pg_prng_double(&pg_global_prng_state) * spread_ms));
	}
	if (set.n > 0)
		mark_insert_many(loop_name, set.n, set.ids, MARK_TRIGGER, due_at);
	PG_RETURN_INT64(set.n);
}

/* ----------------------------------------------------------------
 * Rows that come past our functions
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_rows_changed);
Datum
reconcile_rows_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("rows_changed() was not called by a trigger")));
	wake_reload();
	/* our own functions write marks past triggers, so these came by SQL */
	if (RelationGetRelid(((TriggerData *) fcinfo->context)->tg_relation) != install_get()->lock_class)
		wake_rescan();
	else
		access_changed();
	return PointerGetDatum(NULL);
}

/* ----------------------------------------------------------------
 * For reconciler functions
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_permanent_error);
Datum
reconcile_permanent_error(PG_FUNCTION_ARGS)
{
	char	   *message = text_arg(fcinfo, 0, "message");

	ereport(ERROR,
			(errcode(ERRCODE_PERMANENT_FAILURE),
			 errmsg("%s", message)));
}

PG_FUNCTION_INFO_V1(reconcile_current_run);
Datum
reconcile_current_run(PG_FUNCTION_ARGS)
{
	const LoopRun *run = run_current();
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[5];
	bool		nulls[5] = {0};

	InitMaterializedSRF(fcinfo, 0);
	if (run == NULL)
		return (Datum) 0;
	values[0] = CStringGetTextDatum(run->rules->loop_name);
	values[1] = CStringGetTextDatum(run->entity_id);
	values[2] = Int64GetDatum(run->epoch);
	values[3] = Int32GetDatum(run->attempt);
	values[4] = TimestampTzGetDatum(run->deadline);
	nulls[4] = run->deadline == 0;
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

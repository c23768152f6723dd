/*
 * manage.c
 *		What users do with loops and their entities: trigger, pause, revive, forget;
 *		and what a reconciler function may ask and say.
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
#define REVIVE_ALL_MAX		1000000

enum
{
	PLAN_PAUSE,
	PLAN_REVIVE,
	PLAN_REVIVE_ALL
};

static SqlPlan plans[] = {
	[PLAN_PAUSE] = {
		"UPDATE reconcile.loop SET paused = $2"
		" WHERE loop_name OPERATOR(pg_catalog.=) $1 AND paused OPERATOR(pg_catalog.<>) $2",
		2, {TEXTOID, BOOLOID}
	},
	[PLAN_REVIVE] = {
		"DELETE FROM reconcile.entity WHERE loop_name OPERATOR(pg_catalog.=) $1"
		" AND entity_id OPERATOR(pg_catalog.=) $2 AND died_of IS NOT NULL"
		" RETURNING died_of OPERATOR(pg_catalog.=) 'crash'",
		2, {TEXTOID, TEXTOID}
	},
	/* who is locked is being revived, forgotten or run at this moment */
	[PLAN_REVIVE_ALL] = {
		"WITH oldest AS MATERIALIZED ("
		"SELECT e.entity_id FROM reconcile.entity e"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.died_of IS NOT NULL"
		" AND ($2 IS NULL OR e.last_sqlstate OPERATOR(pg_catalog.=) $2)"
		" ORDER BY e.last_failed_at, e.entity_id LIMIT $3 FOR UPDATE SKIP LOCKED)"
		" DELETE FROM reconcile.entity e USING oldest o"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.=) o.entity_id"
		" RETURNING e.entity_id, e.died_of OPERATOR(pg_catalog.=) 'crash'",
		3, {TEXTOID, TEXTOID, INT4OID}
	}
};

/* Runs a plan on (loop, second argument); did it change a row? */
static bool
change(int plan, const char *loop_name, Datum second)
{
	SqlScope	scope;
	Datum		values[2];
	bool		changed;

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = second;
	sql_begin(&scope);
	changed = sql_run_latest(&plans[plan], values, NULL) > 0;
	sql_end(&scope);
	return changed;
}

/* ----------------------------------------------------------------
 * Pause and resume
 * ----------------------------------------------------------------
 */

/* A loop that came with a restore or a clone is at home from here on; incarnation_settle() comes first. */
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
	{
		if (rules.foreign)
			incarnation_settle();
		resume(&rules);
	}
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
 * Single entities
 * ----------------------------------------------------------------
 */

/* The triggers that one which died of crashes has kept are known to the tables alone. */
static bool
revive_one(const char *loop_name, const char *entity_id)
{
	SqlScope	scope;
	Datum		values[2];
	bool		revived;

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = CStringGetTextDatum(entity_id);
	sql_begin(&scope);
	revived = sql_run_latest(&plans[PLAN_REVIVE], values, NULL) > 0;
	if (revived && DatumGetBool(sql_value(0, 1, NULL)))
		wake_rescan();
	sql_end(&scope);
	return revived;
}

PG_FUNCTION_INFO_V1(reconcile_revive);
Datum
reconcile_revive(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;
	LoopRules	rules;

	require_writable("revive");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);
	if (!revive_one(loop_name, entity_id))
		PG_RETURN_BOOL(false);
	mark_insert(loop_name, entity_id, MARK_TRIGGER, clock_now(), true, NULL);
	PG_RETURN_BOOL(true);
}

/* An SQLSTATE; NULL if the argument is. */
static char *
sqlstate_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	char	   *value;

	if (PG_ARGISNULL(n))
		return NULL;
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (strlen(value) != 5 || strspn(value, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		arg_invalid(arg, "is not an SQLSTATE", "It is five digits or upper-case letters; NULL takes all.");
	return value;
}

PG_FUNCTION_INFO_V1(reconcile_revive_all);
Datum
reconcile_revive_all(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *last_sqlstate;
	LoopRules	rules;
	SqlScope	scope;
	Datum		values[3];
	char		nulls[3] = {' ', ' ', ' '};
	const char **ids;
	int			n;
	bool		crashed = false;

	require_writable("revive_all");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	last_sqlstate = sqlstate_arg(fcinfo, 1, "last_sqlstate");
	if (PG_ARGISNULL(2))
		arg_null("max_items");
	if (PG_GETARG_INT32(2) < 1 || PG_GETARG_INT32(2) > REVIVE_ALL_MAX)
		arg_invalid("max_items", "is out of range",
					psprintf("It is 1 to %d; call again for the rest.", REVIVE_ALL_MAX));
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = last_sqlstate != NULL ? CStringGetTextDatum(last_sqlstate) : (Datum) 0;
	nulls[1] = last_sqlstate != NULL ? ' ' : 'n';
	values[2] = PG_GETARG_DATUM(2);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_REVIVE_ALL], values, nulls);
	ids = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		ids[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 1, NULL)));
		crashed |= DatumGetBool(sql_value(i, 2, NULL));
	}
	sql_end(&scope);
	if (crashed)
		wake_rescan();
	mark_insert_many(loop_name, n, ids, MARK_TRIGGER, NULL);
	PG_RETURN_INT64(n);
}

typedef struct Deleting
{
	const char *loop_name;
	const char *entity_id;		/* NULL: all of the loop */
	int			deleted;
	int			missed;			/* gone since the snapshot */
} Deleting;

static void
delete_visited(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Deleting   *deleting = arg;

	if (strcmp(loop_name, deleting->loop_name) != 0 ||
		(deleting->entity_id != NULL && strcmp(entity_id, deleting->entity_id) != 0))
		return;
	if (mark_delete(loop_name, entity_id, ref, 1) > 0)
	{
		deleting->deleted++;
		if (deleting->entity_id != NULL)
			wake_gone(ref->segment, ref->block, ref->offset);
	}
	else
		deleting->missed++;
}

/*
 * A mark that is gone when we come to it was answered, or moved to another
 * segment where our snapshot does not see it: then look again.
 */
int
loop_delete_marks(const char *loop_name, const char *entity_id)
{
	Deleting	deleting = {0};

	deleting.loop_name = loop_name;
	deleting.entity_id = entity_id;
	do
	{
		Snapshot	snapshot;

		/* what this transaction deleted before must not be met again */
		CommandCounterIncrement();
		deleting.missed = 0;
		snapshot = RegisterSnapshot(GetLatestSnapshot());
		mark_scan_all(snapshot, delete_visited, &deleting);
		UnregisterSnapshot(snapshot);
	} while (deleting.missed > 0);
	return deleting.deleted;
}

PG_FUNCTION_INFO_V1(reconcile_forget);
Datum
reconcile_forget(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;
	LoopRules	rules;
	bool		remembered;
	int			deleted;
	LOCKTAG		tag;

	require_writable("forget");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);

	/* a mark that we delete must not stand for one that commits after we looked */
	lock_tag(&tag, LOCK_KIND_FORGET, loop_name, entity_id);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	remembered = entity_forget(loop_name, entity_id);
	deleted = loop_delete_marks(loop_name, entity_id);
	/* a claim may have committed while we waited for its marks */
	remembered |= entity_forget(loop_name, entity_id);
	PG_RETURN_BOOL(remembered || deleted > 0);
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

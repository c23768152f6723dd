/*
 * revive.c
 *		What operators do with entities: revive those that are dead, and forget.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/wake.h"
#include "loop/entity.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/revive.h"

#define REVIVE_ALL_MAX		1000000

enum
{
	PLAN_REVIVE,
	PLAN_REVIVE_ALL,
	PLAN_PURGE,
	PLAN_CRASHED,
	PLAN_TRY_CRASHED
};

static SqlPlan plans[] = {
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
	},
	[PLAN_PURGE] = {
		"WITH dead AS MATERIALIZED ("
		"SELECT e.entity_id FROM reconcile.entity e"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.died_of IS NOT NULL"
		" AND e.died_of OPERATOR(pg_catalog.<>) 'crash' FOR UPDATE SKIP LOCKED)"
		" DELETE FROM reconcile.entity e USING dead d"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.=) d.entity_id",
		1, {TEXTOID}
	},
	[PLAN_CRASHED] = {
		"SELECT e.entity_id FROM reconcile.entity e"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.died_of OPERATOR(pg_catalog.=) 'crash'",
		1, {TEXTOID}
	},
	[PLAN_TRY_CRASHED] = {
		"SELECT FROM reconcile.entity e WHERE e.loop_name OPERATOR(pg_catalog.=) $1"
		" AND e.entity_id OPERATOR(pg_catalog.=) $2 AND e.died_of OPERATOR(pg_catalog.=) 'crash' FOR UPDATE SKIP LOCKED",
		2, {TEXTOID, TEXTOID}
	}
};

bool
loop_revive(const char *loop_name, const char *entity_id)
{
	SqlScope	scope;
	Datum		values[2];
	bool		revived;

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = CStringGetTextDatum(entity_id);
	sql_begin(&scope);
	revived = sql_run_latest(&plans[PLAN_REVIVE], values, NULL) > 0;
	/* the triggers that one which died of crashes has kept are known to the tables alone */
	if (revived && DatumGetBool(sql_value(0, 1, NULL)))
		wake_rescan();
	sql_end(&scope);
	if (revived)
		mark_insert(loop_name, entity_id, MARK_TRIGGER, clock_now(), true, NULL);
	return revived;
}

/* An entity of a loop that is there, and that the caller may operate. */
static void
entity_args(FunctionCallInfo fcinfo, const char *function, char **loop_name, char **entity_id)
{
	LoopRules	rules;

	require_writable(function);
	*loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	*entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	access_require(CAP_OPERATE, *loop_name);
	loop_require(*loop_name, &rules);
}

PG_FUNCTION_INFO_V1(reconcile_revive);
Datum
reconcile_revive(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;

	entity_args(fcinfo, "revive", &loop_name, &entity_id);
	PG_RETURN_BOOL(loop_revive(loop_name, entity_id));
}

/* An SQLSTATE; NULL if the argument is. */
static char *
sqlstate_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	char	   *value;

	if (PG_ARGISNULL(n))
		return NULL;
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (!sqlstate_valid(value))
		arg_invalid(arg, "is not an SQLSTATE", "It is five digits or upper-case letters; NULL takes all.");
	return value;
}

int64
loop_revive_all(const char *loop_name, const char *last_sqlstate, int max)
{
	SqlScope	scope;
	Datum		values[3];
	char		nulls[3] = {' ', ' ', ' '};
	const char **ids;
	int			n;
	bool		crashed = false;

	values[0] = CStringGetTextDatum(loop_name);
	values[1] = last_sqlstate != NULL ? CStringGetTextDatum(last_sqlstate) : (Datum) 0;
	nulls[1] = last_sqlstate != NULL ? ' ' : 'n';
	values[2] = Int32GetDatum(max);
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
	return n;
}

PG_FUNCTION_INFO_V1(reconcile_revive_all);
Datum
reconcile_revive_all(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *last_sqlstate;
	int			max_items;
	LoopRules	rules;

	require_writable("revive_all");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	last_sqlstate = sqlstate_arg(fcinfo, 1, "last_sqlstate");
	max_items = max_items_arg(fcinfo, 2, REVIVE_ALL_MAX, "It is 1 to 1000000; call again for the rest.");
	access_require(CAP_OPERATE, loop_name);
	loop_require(loop_name, &rules);
	PG_RETURN_INT64(loop_revive_all(loop_name, last_sqlstate, max_items));
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

/* A mark that is deleted then does not stand for one that commits after we looked. */
void
loop_enter_forget(const char *loop_name, const char *entity_id)
{
	(void) lock_take(LOCK_KIND_FORGET, loop_name, entity_id, ExclusiveLock, true);
}

bool
loop_forget(const char *loop_name, const char *entity_id)
{
	bool		remembered;
	int			deleted;

	loop_enter_forget(loop_name, entity_id);
	remembered = entity_forget(loop_name, entity_id);
	deleted = loop_delete_marks(loop_name, entity_id);
	/* a claim may have committed while we waited for its marks */
	remembered |= entity_forget(loop_name, entity_id);
	return remembered || deleted > 0;
}

/* Forgets one that died of crashes, and whose triggers are still there; false: somebody else is at it. */
static bool
try_forget_crashed(const char *loop_name, const char *entity_id)
{
	Datum		values[2];

	if (!lock_take(LOCK_KIND_FORGET, loop_name, entity_id, ExclusiveLock, false))
		return false;
	values[0] = CStringGetTextDatum(loop_name);
	values[1] = CStringGetTextDatum(entity_id);
	return sql_do(&plans[PLAN_TRY_CRASHED], values, NULL) > 0 && loop_forget(loop_name, entity_id);
}

int64
loop_purge_dead(const char *loop_name)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(loop_name);
	List	   *crashed = NIL;
	ListCell   *cell;
	int64		purged;
	uint64		n;

	sql_begin(&scope);
	purged = sql_run_latest(&plans[PLAN_PURGE], &value, NULL);
	n = sql_run_latest(&plans[PLAN_CRASHED], &value, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		MemoryContext inner = MemoryContextSwitchTo(scope.outer);

		crashed = lappend(crashed, TextDatumGetCString(sql_value(i, 1, NULL)));
		MemoryContextSwitchTo(inner);
	}
	sql_end(&scope);
	foreach(cell, crashed)
		purged += try_forget_crashed(loop_name, lfirst(cell));
	return purged;
}

PG_FUNCTION_INFO_V1(reconcile_forget);
Datum
reconcile_forget(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_id;

	entity_args(fcinfo, "forget", &loop_name, &entity_id);
	PG_RETURN_BOOL(loop_forget(loop_name, entity_id));
}

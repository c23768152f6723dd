/*
 * watch_ddl.c
 *		The event trigger that follows what users do to watched tables.
 *
 *		- a partition that is made or attached gets the triggers of the watched
 *		  tables that it is part of;
 *		- one that is detached loses them;
 *		- a column that is renamed is watched under its new name;
 *		- a table that is watched by itself, and comes under a parent that is not
 *		  (or the other way round), is worth a warning.
 *
 * It never fails the user's command: it runs in a subtransaction whose error
 * becomes a warning, and waits for no lock.  What it left undone is listed by
 * watch_problems().  Of all other DDL it looks at the parse tree and nothing
 * else.
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "commands/event_trigger.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/subxact.h"
#include "core/table.h"
#include "core/tree_ddl.h"
#include "loop/watch.h"

/* ----------------------------------------------------------------
 * Bringing one table up to date
 * ----------------------------------------------------------------
 */

/* Has the command itself locked the table, or nobody else?  If not, it is left as it is. */
static bool
lock_at_once(Oid relation)
{
	if (ConditionalLockRelationOid(relation, AccessExclusiveLock))
		return true;
	ereport(WARNING,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("the watch triggers of \"%s\" could not be changed, as it is in use", get_rel_name(relation)),
			 errhint("Call reconcile.watch() or reconcile.unwatch() again for the watched table.")));
	return false;
}

static void
warn_of_parent(const char *loop_name, Oid relation)
{
	ereport(WARNING,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("loop \"%s\" watches \"%s\", but not the table that it is now part of",
					loop_name, get_rel_name(relation)),
			 errdetail("It sees the statements that name this table, and no others."),
			 errhint("Call reconcile.watch() for the partitioned table, and reconcile.unwatch() for this one.")));
}

/* The table is to have these watches of tables that it is part of. */
static void
follow_table(Oid relation, List *specs)
{
	List	   *triggers = watch_triggers(relation);
	List	   *seen = NIL;
	ListCell   *cell;

	foreach(cell, triggers)
	{
		WatchTrigger *trigger = lfirst(cell);
		char	   *loop_name = trigger->spec.loop_name;

		if (watch_spec_of(specs, loop_name) != NULL || watch_spec_of(seen, loop_name) != NULL)
			continue;
		seen = lappend(seen, &trigger->spec);
		if (trigger->part)
		{
			if (lock_at_once(relation))
				(void) watch_remove(relation, loop_name);
		}
		else if (has_superclass(relation))
			warn_of_parent(loop_name, relation);
	}

	if (specs != NIL && get_rel_relkind(relation) == RELKIND_FOREIGN_TABLE)
	{
		ereport(WARNING,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is a foreign table, and part of a watched table", get_rel_name(relation)),
				 errdetail("Changes of its rows are not seen, and fail in a statement that names the watched table."),
				 errhint("Detach it, or call reconcile.unwatch() for the watched table.")));
		return;
	}
	foreach(cell, specs)
	{
		const WatchSpec *spec = lfirst(cell);

		if (watch_is_whole(relation, triggers, spec, true) || !lock_at_once(relation))
			continue;
		(void) watch_remove(relation, spec->loop_name);
		watch_put(relation, spec, true);
	}
}

/*
 * The watches of all tables that this one is part of: one in the middle of a tree
 * may have been watched before it became a partition.  The root's come last, and
 * so take the place of another of the same loop.
 */
static List *
specs_above(Oid relation)
{
	List	   *specs = NIL;
	ListCell   *cell;

	if (!get_rel_relispartition(relation))
		return NIL;
	foreach(cell, get_partition_ancestors(relation))
		specs = list_concat(specs, watch_specs(lfirst_oid(cell)));
	return specs;
}

/* A table that was made, attached, detached, or made to inherit; with all that is below it. */
static void
follow(Oid relation)
{
	ListCell   *cell;

	foreach(cell, find_all_inheritors(relation, NoLock, NULL))
		follow_table(lfirst_oid(cell), specs_above(lfirst_oid(cell)));
}

/* ----------------------------------------------------------------
 * Which commands
 * ----------------------------------------------------------------
 */

/* The table that others inherit from, in the old way, is watched: it does not see theirs. */
static void
follow_parent(Oid parent)
{
	ListCell   *cell;

	foreach(cell, watch_specs(parent))
		ereport(WARNING,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("loop \"%s\" watches \"%s\", but not the tables that inherit from it",
						((WatchSpec *) lfirst(cell))->loop_name, get_rel_name(parent)),
				 errdetail("It sees the statements that name \"%s\", and no others.", get_rel_name(parent))));
}

/* Watches the column under its new name; false: the watch has nothing to do with it. */
static bool
rename_column(WatchSpec *spec, const char *from, const char *to)
{
	bool		changed = false;
	ListCell   *cell;

	if (strcmp(spec->entity_column, from) == 0)
	{
		spec->entity_column = pstrdup(to);
		changed = true;
	}
	foreach(cell, spec->columns)
	{
		if (strcmp(strVal(lfirst(cell)), from) != 0)
			continue;
		lfirst(cell) = makeString(pstrdup(to));
		changed = true;
	}
	return changed;
}

static void
follow_rename(Oid relation, const char *from, const char *to)
{
	List	   *seen = NIL;
	ListCell   *cell;

	foreach(cell, watch_triggers(relation))
	{
		WatchTrigger *trigger = lfirst(cell);

		if (watch_spec_of(seen, trigger->spec.loop_name) != NULL)
			continue;
		seen = lappend(seen, &trigger->spec);
		if (!rename_column(&trigger->spec, from, to) || !lock_at_once(relation))
			continue;
		(void) watch_remove(relation, trigger->spec.loop_name);
		watch_put(relation, &trigger->spec, trigger->part);
	}
}

static void
follow_statement(void *arg)
{
	static const TreeFollower follower = {follow, follow_parent, follow_rename};

	tree_ddl_follow(arg, &follower);
}

/* In a subtransaction, whose error becomes a warning; only a cancel is raised. */
static void
follow_safely(Node *statement)
{
	ErrorData  *error = subxact_run(follow_statement, statement);

	if (error == NULL)
		return;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED)
		ReThrowError(error);
	ereport(WARNING,
			(errcode(error->sqlerrcode),
			 errmsg("the watch triggers could not be brought up to date: %s", error->message),
			 errhint("Call reconcile.watch() again for the watched table.")));
	FreeErrorData(error);
}

PG_FUNCTION_INFO_V1(reconcile_watch_ddl);
Datum
reconcile_watch_ddl(PG_FUNCTION_ARGS)
{
	Node	   *statement;

	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function reconcile.watch_ddl() can only be called as an event trigger")));
	statement = ((EventTriggerData *) fcinfo->context)->parsetree;
	/* while our own script runs there is nothing to watch for yet */
	if (tree_ddl_concerns(statement) && install_find() != NULL)
		follow_safely(statement);
	return PointerGetDatum(NULL);
}

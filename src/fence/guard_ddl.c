/*
 * guard_ddl.c
 *		The event trigger that follows what users do to guarded tables.
 *
 *		- a partition that is made or attached gets the guard of its root;
 *		- one that is detached loses it;
 *		- a column that is renamed is guarded under its new name;
 *		- tables that come to inherit, in the old way, are worth a warning.
 *
 * A partition that cannot be guarded is no partition of a guarded table: the
 * command fails.  All locks that this needs the command has.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/event_trigger.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/tree_ddl.h"
#include "fence/guard.h"

/* The table is part of a guarded tree. */
static void
follow_part(Oid relation, const GuardSpec *spec)
{
	Relation	rel;

	if (guard_is_whole(relation, spec, true))
		return;
	rel = relation_open(relation, NoLock);
	if (rel->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
		table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, &guard_use, "a foreign table",
					 "It cannot be part of a guarded table: its rows can be changed past the guard.");
	guard_require_none(relation);
	guard_require_table(rel, spec);
	relation_close(rel, NoLock);
	(void) guard_remove(relation);
	guard_put(relation, spec, true);
}

/* The table is part of no guarded tree: a trigger that it had as such has nothing to say any more. */
static void
follow_alone(Oid relation)
{
	ListCell   *cell;

	foreach(cell, guard_triggers(relation))
	{
		GuardTrigger *trigger = lfirst(cell);

		if (trigger->part && ConditionalLockRelationOid(relation, AccessExclusiveLock))
			trigger_drop(trigger->trigger);
	}
}

/* A guard may have been attached to any table of the tree: what moved takes its own along. */
static void
follow(Oid relation)
{
	ListCell   *cell;

	foreach(cell, find_all_inheritors(relation, NoLock, NULL))
	{
		Oid			table = lfirst_oid(cell);
		Oid			above = guard_above(table);

		if (OidIsValid(above))
			follow_part(table, guard_spec(above));
		else
			follow_alone(table);
	}
}

static void
follow_parent(Oid parent)
{
	const GuardSpec *spec = guard_spec(parent);

	if (spec != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("table \"%s\" is guarded by lease \"%s\", but not the tables that inherit from it",
						get_rel_name(parent), spec->reconciler_id),
				 errhint("Each of them can be guarded by a call of reconcile.attach_fence() before it inherits.")));
}

/* The name under which the column is guarded from now on. */
static char *
renamed(char *column, const char *from, const char *to, bool *changed)
{
	if (strcmp(column, from) != 0)
		return column;
	*changed = true;
	return pstrdup(to);
}

static void
follow_rename(Oid relation, const char *from, const char *to)
{
	ListCell   *cell;

	foreach(cell, guard_triggers(relation))
	{
		GuardTrigger *trigger = lfirst(cell);
		GuardSpec  *spec = &trigger->spec;
		bool		changed = false;
		ListCell   *column;

		spec->entity_column = renamed(spec->entity_column, from, to, &changed);
		spec->epoch_column = renamed(spec->epoch_column, from, to, &changed);
		foreach(column, spec->columns)
			lfirst(column) = makeString(renamed(strVal(lfirst(column)), from, to, &changed));
		if (changed)
		{
			(void) guard_remove(relation);
			guard_put(relation, spec, trigger->part);
		}
		/* all of a table say the same */
		break;
	}
}

PG_FUNCTION_INFO_V1(reconcile_fence_ddl);
Datum
reconcile_fence_ddl(PG_FUNCTION_ARGS)
{
	static const TreeFollower follower = {follow, follow_parent, follow_rename};
	Node	   *statement;

	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function reconcile.fence_ddl() can only be called as an event trigger")));
	statement = ((EventTriggerData *) fcinfo->context)->parsetree;
	/* while our own script runs there is nothing to guard yet */
	if (tree_ddl_concerns(statement) && install_find() != NULL)
		tree_ddl_follow(statement, &follower);
	return PointerGetDatum(NULL);
}

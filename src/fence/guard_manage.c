/*
 * guard_manage.c
 *		attach_fence() and detach_fence().
 *
 * Locks: the named table first, then its partitions, as a command on the table
 * takes them.  ShareRowExclusiveLock waits for whoever has written the table, and
 * he commits before the guard does: no unguarded write comes after it.  A guard
 * that is there and whole is found by AccessShareLock, so that a migration which
 * runs again holds up nobody.  One that is mended is locked in AccessExclusiveLock,
 * as DROP TRIGGER does, from the start.
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/access.h"
#include "core/errors.h"
#include "core/ident.h"
#include "fence/guard.h"

static char *
name_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	if (PG_ARGISNULL(n))
		arg_null(arg);
	return pstrdup(NameStr(*PG_GETARG_NAME(n)));
}

/* Is the guard there, and whole?  42710 where another one is. */
static bool
is_there(Oid root, List *tables, const GuardSpec *spec)
{
	const GuardSpec *present = guard_spec(root);
	ListCell   *cell;

	if (present == NULL)
		return false;
	if (!guard_spec_equal(present, spec))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("table \"%s\" is already guarded, by lease \"%s\" and with other arguments",
						get_rel_name(root), present->reconciler_id),
				 errhint("Call reconcile.detach_fence() first, in the same transaction.")));
	foreach(cell, tables)
	{
		if (!guard_is_whole(lfirst_oid(cell), spec, lfirst_oid(cell) != root))
			return false;
	}
	return true;
}

static int
remove_all(List *tables)
{
	int			removed = 0;
	ListCell   *cell;

	foreach(cell, tables)
		removed += guard_remove(lfirst_oid(cell));
	return removed;
}

PG_FUNCTION_INFO_V1(reconcile_attach_fence);
Datum
reconcile_attach_fence(PG_FUNCTION_ARGS)
{
	Oid			relation;
	GuardSpec	spec;
	LOCKMODE	mode = ShareRowExclusiveLock;
	List	   *tables;
	ListCell   *cell;
	Relation	rel;

	require_writable("attach_fence");
	relation = table_arg(fcinfo, 0, "relation");
	spec.reconciler_id = reconciler_id_arg(fcinfo, 1, "reconciler_id");
	spec.entity_column = name_arg(fcinfo, 2, "entity_column");
	spec.epoch_column = name_arg(fcinfo, 3, "epoch_column");
	spec.columns = table_columns_arg(fcinfo, 4);
	access_require(CAP_DEFINE, spec.reconciler_id);

	if (guard_spec(relation) != NULL)
	{
		tables = table_lock_tree(relation, AccessShareLock);
		if (is_there(relation, tables, &spec))
			PG_RETURN_VOID();
		/* two that mend it must not wait for one another */
		foreach(cell, tables)
			UnlockRelationOid(lfirst_oid(cell), AccessShareLock);
		mode = AccessExclusiveLock;
	}

	tables = table_lock_tree(relation, mode);
	if (is_there(relation, tables, &spec))
		PG_RETURN_VOID();
	rel = relation_open(relation, NoLock);
	table_require_ordinary(rel, tables, &guard_use);
	relation_close(rel, NoLock);
	foreach(cell, tables)
	{
		if (lfirst_oid(cell) != relation)
			guard_require_none(lfirst_oid(cell));
		rel = relation_open(lfirst_oid(cell), NoLock);
		guard_require_table(rel, &spec);
		relation_close(rel, NoLock);
	}

	/* what is left of one that is not whole */
	remove_all(tables);
	foreach(cell, tables)
		guard_put(lfirst_oid(cell), &spec, lfirst_oid(cell) != relation);
	PG_RETURN_VOID();
}

/* 42501 without the right on what guards the table, 42809 where that is one that it is part of. */
static void
require_detachable(Oid relation)
{
	Oid			owner = guard_owner(relation);

	if (!OidIsValid(owner))
		return;
	access_require(CAP_DEFINE, guard_spec(owner)->reconciler_id);
	guard_require_own(relation, "end");
}

PG_FUNCTION_INFO_V1(reconcile_detach_fence);
Datum
reconcile_detach_fence(PG_FUNCTION_ARGS)
{
	Oid			relation;
	List	   *tables;

	require_writable("detach_fence");
	relation = table_arg(fcinfo, 0, "relation");

	/* before the lock too, so that no stranger holds up a table */
	require_detachable(relation);
	tables = table_lock_tree(relation, AccessExclusiveLock);
	require_detachable(relation);
	if (remove_all(tables) == 0)
		guard_raise_none(relation);
	PG_RETURN_VOID();
}

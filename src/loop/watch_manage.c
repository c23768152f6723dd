/*
 * watch_manage.c
 *		watch() and unwatch().
 *
 * Locks: the named table first, then its partitions, as a command on the table
 * takes them.  ShareRowExclusiveLock, as CREATE TRIGGER; AccessExclusiveLock, as
 * DROP TRIGGER, from the start where triggers are there to be dropped.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/catalog.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/compat.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"
#include "loop/loop.h"
#include "loop/watch.h"

/* Virtual generated columns (18 and later) have no value in a transition table. */
#define GENERATED_VIRTUAL	'v'

static void
require_table_owner(Oid relation)
{
	if (!compat_class_owned(relation, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", get_rel_name(relation))));
}

/* 42809: never; 0A000: not yet. */
static void
refuse_table(Relation rel, int sqlstate, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("cannot watch \"%s\": it is %s", RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

static const char *
root_hint(Oid partition)
{
	Oid			root = watch_root(partition);

	if (!OidIsValid(root))
		return "It is being detached: end that by ALTER TABLE ... DETACH PARTITION ... FINALIZE.";
	return psprintf("Name the table that it is part of, \"%s\": all its partitions are watched with it.",
					get_rel_name(root));
}

static void
require_watchable(Relation rel)
{
	const char *ordinary = "Only ordinary and partitioned tables can be watched.";

	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			break;
		case RELKIND_VIEW:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a view", ordinary);
			break;
		case RELKIND_MATVIEW:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a materialized view", ordinary);
			break;
		case RELKIND_FOREIGN_TABLE:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a foreign table", ordinary);
			break;
		default:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "not a table", ordinary);
	}
	if (IsSystemRelation(rel) || RelationGetNamespace(rel) == install_get()->schema)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a system table", ordinary);
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a temporary table",
					 "A run in another session could not see its rows.");
	if (rel->rd_rel->relispartition)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a partition", root_hint(RelationGetRelid(rel)));
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		return;

	/* a statement on the one fires no trigger of the other */
	if (has_superclass(RelationGetRelid(rel)) ||
		find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL)
		refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "in an inheritance tree",
					 "Tables that inherit or are inherited from cannot be watched yet.");
}

/* The server collects no rows of a foreign partition for a trigger: it fails the statement. */
static void
require_no_foreign_partition(Relation root, List *tables)
{
	ListCell   *cell;

	foreach(cell, tables)
	{
		if (get_rel_relkind(lfirst_oid(cell)) == RELKIND_FOREIGN_TABLE)
			refuse_table(root, ERRCODE_WRONG_OBJECT_TYPE,
						 psprintf("partitioned, and its partition \"%s\" is a foreign table", get_rel_name(lfirst_oid(cell))),
						 "Changes of foreign tables cannot be seen.");
	}
}

static void
require_column(Relation rel, const char *column, const char *arg)
{
	AttrNumber	number = get_attnum(RelationGetRelid(rel), column);

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it.", arg)));
	if (number < 0)
		arg_invalid(arg, "is a system column", "Name a column of the table's own.");
	if (TupleDescAttr(RelationGetDescr(rel), number - 1)->attgenerated == GENERATED_VIRTUAL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("column \"%s\" of relation \"%s\" is a virtual generated column",
						column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it. Triggers do not see its value.", arg),
				 errhint("Make it STORED, or name the columns that it is computed from.")));
}

/* The names in the argument "columns" as String nodes; NIL if it is NULL. */
static List *
columns_arg(FunctionCallInfo fcinfo, int n)
{
	Datum	   *elements;
	int			count;
	List	   *names = NIL;

	if (PG_ARGISNULL(n))
		return NIL;
	count = array_arg(fcinfo, n, "columns", NAMEOID, MaxHeapAttributeNumber, &elements);
	if (count == 0)
		arg_invalid("columns", "must not be empty", "NULL means that a change of any column counts.");
	for (int i = 0; i < count; i++)
		names = lappend(names, makeString(pstrdup(NameStr(*DatumGetName(elements[i])))));
	return names;
}

/* Locks the table that the argument names, and its partitions; the caller owns it. */
static List *
lock_tables(Oid relation, LOCKMODE mode)
{
	/* before the lock too, so that no stranger holds up a table */
	if (get_rel_name(relation) != NULL)
		require_table_owner(relation);
	LockRelationOid(relation, mode);
	if (get_rel_name(relation) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	require_table_owner(relation);
	if (get_rel_relkind(relation) != RELKIND_PARTITIONED_TABLE)
		return list_make1_oid(relation);
	return find_all_inheritors(relation, mode, NULL);
}

/* Drops the loop's triggers on the tables, and says how many. */
static int
remove_all(List *tables, const char *loop_name)
{
	int			removed = 0;
	ListCell   *cell;

	foreach(cell, tables)
		removed += watch_remove(lfirst_oid(cell), loop_name);
	return removed;
}

PG_FUNCTION_INFO_V1(reconcile_watch);
Datum
reconcile_watch(PG_FUNCTION_ARGS)
{
	WatchSpec	spec;
	Oid			relation;
	List	   *tables;
	ListCell   *cell;
	Relation	rel;
	bool		replaces;

	require_writable("watch");
	spec.loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if (PG_ARGISNULL(1))
		arg_null("relation");
	relation = PG_GETARG_OID(1);
	if (PG_ARGISNULL(2))
		arg_null("entity_column");
	spec.entity_column = pstrdup(NameStr(*PG_GETARG_NAME(2)));
	spec.columns = columns_arg(fcinfo, 3);
	access_require(CAP_DEFINE, spec.loop_name);
	loop_hold(spec.loop_name);

	replaces = watch_spec_of(watch_specs(relation), spec.loop_name) != NULL;
	tables = lock_tables(relation, replaces ? AccessExclusiveLock : ShareRowExclusiveLock);
	rel = relation_open(relation, NoLock);
	require_watchable(rel);
	require_no_foreign_partition(rel, tables);
	require_column(rel, spec.entity_column, "entity_column");
	foreach(cell, spec.columns)
		require_column(rel, strVal(lfirst(cell)), "columns");
	relation_close(rel, NoLock);

	remove_all(tables, spec.loop_name);
	foreach(cell, tables)
		watch_put(lfirst_oid(cell), &spec, lfirst_oid(cell) != relation);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_unwatch);
Datum
reconcile_unwatch(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	Oid			relation;
	List	   *tables;
	LoopRules	rules;

	require_writable("unwatch");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if (PG_ARGISNULL(1))
		arg_null("relation");
	relation = PG_GETARG_OID(1);
	access_require(CAP_DEFINE, loop_name);
	loop_require(loop_name, &rules);

	tables = lock_tables(relation, AccessExclusiveLock);
	if (get_rel_relispartition(relation) && OidIsValid(watch_root(relation)) &&
		watch_spec_of(watch_specs(watch_root(relation)), loop_name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot end the watch of \"%s\" alone: it is a partition", get_rel_name(relation)),
				 errhint("%s", root_hint(relation))));
	if (remove_all(tables, loop_name) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("loop \"%s\" does not watch \"%s\"", loop_name, get_rel_name(relation))));
	PG_RETURN_VOID();
}

/*
 * watch_manage.c
 *		watch() and unwatch().
 *
 * Locks: the named table first, then its partitions, as a command on the table
 * takes them.  ShareRowExclusiveLock, as CREATE TRIGGER; AccessExclusiveLock, as
 * DROP TRIGGER, from the start where triggers are there to be dropped.
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/access.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/table.h"
#include "loop/loop.h"
#include "loop/watch.h"

/* Virtual generated columns (18 and later) have no value in a transition table. */
#define GENERATED_VIRTUAL	'v'

static const TableUse watching = {"watch", "watched", "A run in another session could not see its rows."};

static void
require_column(Relation rel, const char *column, const char *arg)
{
	AttrNumber	number = table_column(rel, column, arg);

	if (TupleDescAttr(RelationGetDescr(rel), number - 1)->attgenerated == GENERATED_VIRTUAL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("column \"%s\" of relation \"%s\" is a virtual generated column",
						column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it. Triggers do not see its value.", arg),
				 errhint("Make it STORED, or name the columns that it is computed from.")));
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
	relation = table_arg(fcinfo, 1, "relation");
	if (PG_ARGISNULL(2))
		arg_null("entity_column");
	spec.entity_column = pstrdup(NameStr(*PG_GETARG_NAME(2)));
	spec.columns = table_columns_arg(fcinfo, 3);
	access_require(CAP_DEFINE, spec.loop_name);
	loop_hold(spec.loop_name);

	replaces = watch_spec_of(watch_specs(relation), spec.loop_name) != NULL;
	tables = table_lock_tree(relation, replaces ? AccessExclusiveLock : ShareRowExclusiveLock);
	rel = relation_open(relation, NoLock);
	table_require_ordinary(rel, tables, &watching);
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
	relation = table_arg(fcinfo, 1, "relation");
	access_require(CAP_DEFINE, loop_name);
	loop_require(loop_name, &rules);

	tables = table_lock_tree(relation, AccessExclusiveLock);
	if (get_rel_relispartition(relation) && OidIsValid(table_root(relation)) &&
		watch_spec_of(watch_specs(table_root(relation)), loop_name) != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot end the watch of \"%s\" alone: it is a partition", get_rel_name(relation)),
				 errhint("%s", table_root_hint(relation, &watching))));
	if (remove_all(tables, loop_name) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("loop \"%s\" does not watch \"%s\"", loop_name, get_rel_name(relation))));
	PG_RETURN_VOID();
}

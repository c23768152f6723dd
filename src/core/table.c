/*
 * table.c
 *		Users' tables that a function of ours puts triggers on: what it asks of them.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/catalog.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/arrays.h"
#include "core/compat.h"
#include "core/errors.h"
#include "core/install.h"
#include "core/table.h"

Oid
table_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	if (PG_ARGISNULL(n))
		arg_null(arg);
	return PG_GETARG_OID(n);
}

void
table_require_owner(Oid relation)
{
	if (!compat_class_owned(relation, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", get_rel_name(relation))));
}

List *
table_lock_tree(Oid relation, LOCKMODE mode)
{
	/* before the lock too, so that no stranger holds up a table */
	if (get_rel_name(relation) != NULL)
		table_require_owner(relation);
	LockRelationOid(relation, mode);
	if (get_rel_name(relation) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	table_require_owner(relation);
	if (get_rel_relkind(relation) != RELKIND_PARTITIONED_TABLE)
		return list_make1_oid(relation);
	return find_all_inheritors(relation, mode, NULL);
}

void
table_refuse(Relation rel, int sqlstate, const TableUse *use, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("cannot %s \"%s\": it is %s", use->verb, RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

bool
table_has_rows(Oid relation)
{
	return get_rel_relkind(relation) != RELKIND_PARTITIONED_TABLE;
}

Oid
table_root(Oid partition)
{
	List	   *ancestors = get_partition_ancestors(partition);

	return ancestors != NIL ? llast_oid(ancestors) : InvalidOid;
}

const char *
table_root_hint(Oid partition, const TableUse *use)
{
	Oid			root = table_root(partition);

	if (!OidIsValid(root))
		return "It is being detached: end that by ALTER TABLE ... DETACH PARTITION ... FINALIZE.";
	return psprintf("Name the table that it is part of, \"%s\": all its partitions are %s with it.",
					get_rel_name(root), use->participle);
}

void
table_require_ordinary(Relation rel, List *tables, const TableUse *use)
{
	Oid			relation = RelationGetRelid(rel);
	const char *ordinary = psprintf("Only ordinary and partitioned tables can be %s.", use->participle);
	ListCell   *cell;

	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			break;
		case RELKIND_VIEW:
			table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a view", ordinary);
			break;
		case RELKIND_MATVIEW:
			table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a materialized view", ordinary);
			break;
		case RELKIND_FOREIGN_TABLE:
			table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a foreign table", ordinary);
			break;
		default:
			table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "not a table", ordinary);
	}
	if (IsSystemRelation(rel) || RelationGetNamespace(rel) == install_get()->schema)
		table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a system table", ordinary);
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a temporary table", use->temporary);
	if (rel->rd_rel->relispartition)
		table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use, "a partition", table_root_hint(relation, use));

	/* a statement on the one fires no statement trigger of the other, and rows are guarded where they are */
	if (rel->rd_rel->relkind == RELKIND_RELATION &&
		(has_superclass(relation) || find_inheritance_children(relation, NoLock) != NIL))
		table_refuse(rel, ERRCODE_FEATURE_NOT_SUPPORTED, use, "in an inheritance tree",
					 psprintf("Tables that inherit or are inherited from cannot be %s yet.", use->participle));

	foreach(cell, tables)
	{
		if (get_rel_relkind(lfirst_oid(cell)) == RELKIND_FOREIGN_TABLE)
			table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, use,
						 psprintf("partitioned, and its partition \"%s\" is a foreign table", get_rel_name(lfirst_oid(cell))),
						 "Changes of foreign tables cannot be seen.");
	}
}

AttrNumber
table_column(Relation rel, const char *column, const char *arg)
{
	AttrNumber	number = get_attnum(RelationGetRelid(rel), column);

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it.", arg)));
	if (number < 0)
		arg_invalid(arg, "is a system column", "Name a column of the table's own.");
	return number;
}

List *
table_columns_arg(FunctionCallInfo fcinfo, int n)
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

/*
 * table.h
 *		Users' tables that a function of ours puts triggers on: what it asks of them.
 */
#ifndef RECONCILE_TABLE_H
#define RECONCILE_TABLE_H

#include "fmgr.h"
#include "nodes/pg_list.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* What is to be done with a table, for the messages. */
typedef struct TableUse
{
	const char *verb;			/* "watch" */
	const char *participle;		/* "watched" */
	const char *temporary;		/* why a temporary table is refused */
} TableUse;

/* A regclass argument: 22004 for NULL. */
extern Oid	table_arg(FunctionCallInfo fcinfo, int n, const char *arg);

/* 42501 unless the current role owns the table. */
extern void table_require_owner(Oid relation);

/*
 * Locks a table, which the caller owns, and then its partitions from the root
 * down, each before it is looked at for partitions of its own; returns them all,
 * the table first.  42P01, 42501.
 */
extern List *table_lock_tree(Oid relation, LOCKMODE mode);

/*
 * 42809 unless it is an ordinary or partitioned table, of the user's own, and no
 * partition; or one of "tables", its partitions, is a foreign table.  0A000 where
 * it inherits or is inherited from in the old way.
 */
extern void table_require_ordinary(Relation rel, List *tables, const TableUse *use);

/* The refusal of such a check: "cannot VERB ...: it is WHAT". */
extern void table_refuse(Relation rel, int sqlstate, const TableUse *use, const char *what, const char *hint);

/* The number of a column that an argument names; 42703, or 22023 for a system column. */
extern AttrNumber table_column(Relation rel, const char *column, const char *arg);

/* The names in an argument "columns" as String nodes; NIL if it is NULL. */
extern List *table_columns_arg(FunctionCallInfo fcinfo, int n);

/* Has it rows of its own?  A partitioned table has none, and row triggers of ours stand where rows are. */
extern bool table_has_rows(Oid relation);

/* The root of the tree that a partition is in; InvalidOid where its detaching was begun and not finished. */
extern Oid	table_root(Oid partition);

/* Why a partition cannot be named, as a hint. */
extern const char *table_root_hint(Oid partition, const TableUse *use);

#endif							/* RECONCILE_TABLE_H */

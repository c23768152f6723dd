/*
 * tree_ddl.c
 *		What a statement did to partition trees, and to the names of columns.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "nodes/parsenodes.h"
#include "utils/lsyscache.h"

#include "core/tree_ddl.h"

static void
moved_by_name(const RangeVar *name, const TreeFollower *follower)
{
	Oid			relation = RangeVarGetRelid(name, NoLock, true);

	if (OidIsValid(relation))
		follower->moved(relation);
}

static void
inherited_by_name(const RangeVar *name, const TreeFollower *follower)
{
	Oid			parent = RangeVarGetRelid(name, NoLock, true);

	if (OidIsValid(parent) && get_rel_relkind(parent) != RELKIND_PARTITIONED_TABLE)
		follower->inherited(parent);
}

static void
follow_create(const CreateStmt *statement, const TreeFollower *follower)
{
	Oid			namespace = RangeVarGetCreationNamespace(statement->relation);
	Oid			relation = get_relname_relid(statement->relation->relname, namespace);
	ListCell   *cell;

	if (!OidIsValid(relation))
		return;
	follower->moved(relation);
	foreach(cell, statement->inhRelations)
		inherited_by_name(lfirst(cell), follower);
}

static void
follow_alter(const AlterTableStmt *statement, const TreeFollower *follower)
{
	ListCell   *cell;

	foreach(cell, statement->cmds)
	{
		AlterTableCmd *command = lfirst(cell);

		switch (command->subtype)
		{
			case AT_AttachPartition:
			case AT_DetachPartition:
			case AT_DetachPartitionFinalize:
				moved_by_name(((PartitionCmd *) command->def)->name, follower);
				break;
			case AT_AddInherit:
				moved_by_name(statement->relation, follower);
				inherited_by_name((RangeVar *) command->def, follower);
				break;
			default:
				break;
		}
	}
}

static void
follow_rename(const RenameStmt *statement, const TreeFollower *follower)
{
	Oid			named = RangeVarGetRelid(statement->relation, NoLock, true);
	ListCell   *cell;

	if (!OidIsValid(named))
		return;
	foreach(cell, find_all_inheritors(named, NoLock, NULL))
	{
		Oid			relation = lfirst_oid(cell);

		/* the name may mean another table by now, whose columns are as they were */
		if (get_attnum(relation, statement->subname) == InvalidAttrNumber &&
			get_attnum(relation, statement->newname) != InvalidAttrNumber)
			follower->renamed(relation, statement->subname, statement->newname);
	}
}

bool
tree_ddl_concerns(Node *statement)
{
	ListCell   *cell;

	switch (nodeTag(statement))
	{
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
			return ((CreateStmt *) statement)->inhRelations != NIL;
		case T_CreateSchemaStmt:
			foreach(cell, ((CreateSchemaStmt *) statement)->schemaElts)
			{
				if (tree_ddl_concerns(lfirst(cell)))
					return true;
			}
			return false;
		case T_AlterTableStmt:
			foreach(cell, ((AlterTableStmt *) statement)->cmds)
			{
				switch (((AlterTableCmd *) lfirst(cell))->subtype)
				{
					case AT_AttachPartition:
					case AT_DetachPartition:
					case AT_DetachPartitionFinalize:
					case AT_AddInherit:
						return true;
					default:
						break;
				}
			}
			return false;
		case T_RenameStmt:
			return ((RenameStmt *) statement)->renameType == OBJECT_COLUMN &&
				((RenameStmt *) statement)->relation != NULL;
		default:
			return false;
	}
}

void
tree_ddl_follow(Node *statement, const TreeFollower *follower)
{
	ListCell   *cell;

	switch (nodeTag(statement))
	{
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
			follow_create((CreateStmt *) statement, follower);
			break;
		case T_CreateSchemaStmt:
			foreach(cell, ((CreateSchemaStmt *) statement)->schemaElts)
				tree_ddl_follow(lfirst(cell), follower);
			break;
		case T_AlterTableStmt:
			follow_alter((AlterTableStmt *) statement, follower);
			break;
		case T_RenameStmt:
			follow_rename((RenameStmt *) statement, follower);
			break;
		default:
			break;
	}
}

/*
 * ddl.c
 *		DDL that our processes would stand in the way of.
 *
 * Before a command that needs a database for itself (DROP DATABASE, CREATE
 * DATABASE … TEMPLATE, RENAME, SET TABLESPACE) or our extension gone, its
 * processes are asked to leave: runs in flight are cancelled, uncounted.  They
 * stay away until the command, or its transaction, is over.  The wait is
 * bounded, and can be cancelled; if they do not leave the command goes on and
 * says itself what is in its way.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_authid.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/syscache.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/install.h"
#include "core/wake.h"
#include "engine/engine.h"
#include "engine/shmem.h"

#define LEAVE_LOOK_MS		10
#define LEAVE_PATIENCE_MS	3000

static ProcessUtility_hook_type next_process_utility = NULL;
static object_access_hook_type next_object_access = NULL;

/* What this transaction keeps us out of, until it ends. */
typedef enum Blocking
{
	BLOCKING_NOT,
	BLOCKING_FOR_A_WHILE,		/* we come back, whatever becomes of the command */
	BLOCKING_TO_DROP			/* we come back if it aborts */
} Blocking;

static Blocking blocking[ENGINE_DATABASES];
static int	blocking_level[ENGINE_DATABASES];	/* nesting level of the command */
static bool blocking_any = false;

/* ----------------------------------------------------------------
 * Blocking a database
 * ----------------------------------------------------------------
 */

static bool
is_empty(int index)
{
	EngineDatabase *db = &engine->databases[index];
	bool		empty = db->pid == 0 && db->state != DATABASE_STARTING;

	for (int i = 0; empty && i < engine->nslots; i++)
		empty = engine_slot(i)->state == EXEC_FREE || engine_slot(i)->database_index != index;
	return empty;
}

/* Asks our processes to leave the database, and waits until they have. */
static void
block_database(Oid database, bool drop)
{
	TimestampTz patience = clock_add_ms(clock_now(), LEAVE_PATIENCE_MS);
	int			index;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	index = engine_find_database(database);
	if (index >= 0)
	{
		engine->databases[index].blocked_by = MyProcPid;
		engine->databases[index].leave = true;
		blocking[index] = drop ? BLOCKING_TO_DROP : BLOCKING_FOR_A_WHILE;
		blocking_level[index] = GetCurrentTransactionNestLevel();
		blocking_any = true;
	}
	LWLockRelease(&engine->lock);
	if (index < 0)
		return;

	engine_wake_dispatcher(index);
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		if (slot->state != EXEC_FREE && slot->database_index == index)
			engine_set_latch(slot->procno, slot->pid);
	}
	while (!is_empty(index) && clock_now() < patience)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LEAVE_LOOK_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Lets our processes back in where they are wanted: what this nesting level, or one within it, blocked. */
static void
unblock(int level, bool committed)
{
	bool		left = false;

	if (!blocking_any)
		return;
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		if (blocking[i] != BLOCKING_NOT && blocking_level[i] < level)
		{
			left = true;
			continue;
		}
		if (blocking[i] != BLOCKING_NOT && db->blocked_by == MyProcPid)
		{
			db->blocked_by = 0;
			db->leave = false;
			/* a dispatcher that comes in vain leaves at once */
			if (!committed || blocking[i] == BLOCKING_FOR_A_WHILE)
				db->wanted_again = true;
		}
		blocking[i] = BLOCKING_NOT;
	}
	blocking_any = left;
	LWLockRelease(&engine->lock);
	engine_wake_launcher();
}

static void
ddl_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		unblock(0, event == XACT_EVENT_COMMIT);
}

/* A command that is rolled back to a savepoint keeps nobody out. */
static void
ddl_subxact_callback(SubXactEvent event, SubTransactionId subid,
					 SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
		unblock(level, false);
	else if (event == SUBXACT_EVENT_COMMIT_SUB && blocking_any)
	{
		for (int i = 0; i < ENGINE_DATABASES; i++)
			blocking_level[i] = Min(blocking_level[i], level - 1);
	}
}

/* ----------------------------------------------------------------
 * Which commands
 * ----------------------------------------------------------------
 */

/* The database's oid if the caller may do to it what he asks for, else InvalidOid: the command will refuse. */
static Oid
owned_database(const char *name)
{
	Oid			database = get_database_oid(name, true);

	return OidIsValid(database) && compat_database_owned(database, GetUserId()) ? database : InvalidOid;
}

/* The server has such a function, but not all of its minor releases export it. */
static bool
may_create_database(void)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	bool		may = superuser();

	if (HeapTupleIsValid(tuple))
	{
		may |= ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
		ReleaseSysCache(tuple);
	}
	return may;
}

static const char *
template_of(const CreatedbStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, "template") == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

static bool
sets_tablespace(const AlterDatabaseStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->options)
	{
		if (strcmp(lfirst_node(DefElem, cell)->defname, "tablespace") == 0)
			return true;
	}
	return false;
}

/* Does the statement drop our extension, by its name or with its schema? */
static bool
drops_extension(const DropStmt *statement)
{
	ListCell   *cell;

	if (statement->removeType != OBJECT_EXTENSION && statement->removeType != OBJECT_SCHEMA)
		return false;
	foreach(cell, statement->objects)
	{
		if (strcmp(strVal(lfirst(cell)), "reconcile") == 0)
		{
			Oid			extension = get_extension_oid("reconcile", true);

			return OidIsValid(extension) && compat_extension_owned(extension, GetUserId());
		}
	}
	return false;
}

/* The database to block before the statement; InvalidOid: none. */
static Oid
database_to_block(Node *statement)
{
	const char *name = NULL;

	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return owned_database(((DropdbStmt *) statement)->dbname);
		case T_CreatedbStmt:
			name = template_of((CreatedbStmt *) statement);
			/* one that the caller may not copy is refused by the command */
			return name != NULL && may_create_database() ?
				get_database_oid(name, true) : InvalidOid;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return owned_database(((RenameStmt *) statement)->subname);
			return InvalidOid;
		case T_AlterDatabaseStmt:
			return sets_tablespace((AlterDatabaseStmt *) statement) ?
				owned_database(((AlterDatabaseStmt *) statement)->dbname) : InvalidOid;
		case T_DropStmt:
			return drops_extension((DropStmt *) statement) ? MyDatabaseId : InvalidOid;
		default:
			return InvalidOid;
	}
}

static bool
finishes_prepared(Node *statement)
{
	return IsA(statement, TransactionStmt) &&
		((TransactionStmt *) statement)->kind == TRANS_STMT_COMMIT_PREPARED;
}

/*
 * COMMIT PREPARED runs no callback of the transaction that it commits, which may
 * have made marks or loops: tells the dispatcher, or has one started if there is
 * a loop.
 */
static void
tell_of_prepared(void)
{
	LoopRules  *rules;

	if (install_find() == NULL)
		return;
	wake_rescan();
	if (loop_read_all(InvalidOid, &rules) > 0)
		wake_reload();
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	Oid			database = InvalidOid;
	bool		finishing = finishes_prepared(statement);

	if (IsTransactionState() && engine != NULL)
		database = database_to_block(statement);
	if (OidIsValid(database))
		block_database(database, IsA(statement, DropdbStmt) || IsA(statement, DropStmt));

	if (next_process_utility)
		next_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (finishing)
		tell_of_prepared();
}

/*
 * Our extension is dropped, by whatever command: the dispatcher is to look
 * whether it still has an install to serve.
 */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (next_object_access)
		next_object_access(access, classId, objectId, subId, arg);
	if (access == OAT_DROP && classId == ExtensionRelationId &&
		get_extension_oid("reconcile", true) == objectId)
		wake_reload();
}

void
ddl_init(void)
{
	next_object_access = object_access_hook;
	object_access_hook = object_access;
	next_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = process_utility;
	RegisterXactCallback(ddl_xact_callback, NULL);
	RegisterSubXactCallback(ddl_subxact_callback, NULL);
}

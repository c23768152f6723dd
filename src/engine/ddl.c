/*
 * ddl.c
 *		DDL that our processes would stand in the way of, or have to know of.
 *
 * Before a command that needs a database for itself (DROP DATABASE, CREATE
 * DATABASE … TEMPLATE, RENAME, SET TABLESPACE) or our extension gone or changed,
 * its processes are asked to leave: runs in flight are cancelled, uncounted.
 * They stay away until the command, or its transaction, is over.  The wait is
 * bounded, and can be cancelled; if they do not leave the command goes on and
 * says itself what is in its way.
 *
 * The launcher is told of a new database, and of one whose properties changed;
 * the dispatcher of a segment that was rewritten, whose marks have other places.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
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
typedef struct Block
{
	int			level;			/* nesting level of the command; 0 = none */
	bool		again;			/* somebody is to look there when it is over */
} Block;

static Block blocks[ENGINE_DATABASES];
static bool blocking_any = false;

/* Told to the launcher at commit. */
static Oid	database_created = InvalidOid;
static bool databases_altered = false;

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

/*
 * Index of the database's entry with this session as one of those that block it,
 * or -1.  One is made where none is, so that nobody is started meanwhile.
 */
static int
enter_block(Oid database)
{
	int			index;
	bool		made = false;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	index = engine_find_database(database);
	if (index < 0 && (index = engine_make_database(database)) >= 0)
	{
		engine->databases[index].state = DATABASE_EXITED;
		engine->databases[index].done = made = true;
	}
	if (index >= 0 && engine_block(index))
	{
		int			level = GetCurrentTransactionNestLevel();

		/* what an outer level blocks stays blocked when this one is rolled back */
		blocks[index].level = blocks[index].level > 0 ? Min(blocks[index].level, level) : level;
		/* what becomes of an extension is looked at; a database that nobody had looked at is left alone */
		blocks[index].again |= !made || database == MyDatabaseId;
		blocking_any = true;
	}
	else
		index = -1;
	LWLockRelease(&engine->lock);
	return index;
}

/* Asks our processes to leave the database, and waits until they have. */
static void
block_database(Oid database)
{
	TimestampTz patience = clock_add_ms(clock_now(), LEAVE_PATIENCE_MS);
	int			index = enter_block(database);

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

/* Lets our processes back in: where this nesting level, or one within it, kept them out. */
static void
unblock(int level)
{
	bool		left = false;

	if (!blocking_any)
		return;
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (blocks[i].level == 0)
			continue;
		if (blocks[i].level < level)
		{
			left = true;
			continue;
		}
		engine_unblock(i, MyProcPid);
		/* a dispatcher that comes in vain leaves at once */
		engine->databases[i].wanted_again |= blocks[i].again;
		memset(&blocks[i], 0, sizeof(blocks[i]));
	}
	blocking_any = left;
	LWLockRelease(&engine->lock);
	engine_wake_launcher();
}

/* Tells the launcher what it is to look at. */
static void
tell_launcher(void)
{
	if (!OidIsValid(database_created) && !databases_altered)
		return;
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (OidIsValid(database_created))
		(void) engine_make_database(database_created);
	engine->databases_altered |= databases_altered;
	LWLockRelease(&engine->lock);
	engine_wake_launcher();
}

static void
ddl_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			/* nobody could let our processes back in when it ends */
			if (blocking_any)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has dropped or updated extension \"reconcile\""),
						 errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
			tell_launcher();
			/* FALLTHROUGH */
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			unblock(0);
			database_created = InvalidOid;
			databases_altered = false;
			break;
		default:
			break;
	}
}

/* A command that is rolled back to a savepoint keeps nobody out. */
static void
ddl_subxact_callback(SubXactEvent event, SubTransactionId subid,
					 SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
		unblock(level);
	else if (event == SUBXACT_EVENT_COMMIT_SUB && blocking_any)
	{
		for (int i = 0; i < ENGINE_DATABASES; i++)
			blocks[i].level = Min(blocks[i].level, level - 1);
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

/* Is our extension here, and the caller's? */
static bool
owns_extension(void)
{
	Oid			extension = get_extension_oid("reconcile", true);

	return OidIsValid(extension) && compat_extension_owned(extension, GetUserId());
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
			return owns_extension();
	}
	return false;
}

/* Does it drop our extension because that belongs to one of the roles? */
static bool
drops_owned_extension(const DropOwnedStmt *statement)
{
	const Install *install = install_find();
	ListCell   *cell;

	if (install == NULL || !has_privs_of_role(GetUserId(), install->owner))
		return false;
	foreach(cell, statement->roles)
	{
		if (get_rolespec_oid(lfirst_node(RoleSpec, cell), true) == install->owner)
			return true;
	}
	return false;
}

static bool
updates_extension(const AlterExtensionStmt *statement)
{
	return strcmp(statement->extname, "reconcile") == 0 && owns_extension();
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
		case T_DropOwnedStmt:
			return drops_owned_extension((DropOwnedStmt *) statement) ? MyDatabaseId : InvalidOid;
		case T_AlterExtensionStmt:
			return updates_extension((AlterExtensionStmt *) statement) ? MyDatabaseId : InvalidOid;
		default:
			return InvalidOid;
	}
}

static bool
commits_prepared(Node *statement)
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

/* A database that may have loops, or whose connections may be allowed or not by now. */
static void
note_database(Node *statement)
{
	if (IsA(statement, CreatedbStmt))
		database_created = get_database_oid(((CreatedbStmt *) statement)->dbname, true);
	else if (IsA(statement, AlterDatabaseStmt))
		databases_altered = true;
}

static void
process_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
				ProcessUtilityContext context, ParamListInfo params,
				QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	Oid			database = InvalidOid;
	bool		committing = commits_prepared(statement);

	if (IsTransactionState() && engine != NULL)
		database = database_to_block(statement);
	if (OidIsValid(database))
		block_database(database);

	if (next_process_utility)
		next_process_utility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);

	if (committing)
		tell_of_prepared();
	else if (engine != NULL)
		note_database(statement);
}

/* Is it one of our segments, of which something was altered? */
static bool
is_segment(Oid relation)
{
	const Install *install = install_find();

	for (int i = 0; install != NULL && i < MARK_SEGMENTS; i++)
	{
		if (install->segment[i] == relation)
			return true;
	}
	return false;
}

/*
 * Whatever command it is.  Our extension is dropped, or gets another version: the
 * dispatcher is to look whether there is an install that it can serve.  A segment
 * is rewritten (VACUUM FULL, CLUSTER, ALTER TABLE): its marks are elsewhere.
 */
static void
object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (next_object_access)
		next_object_access(access, classId, objectId, subId, arg);
	if (access != OAT_DROP && access != OAT_POST_ALTER)
		return;
	if (classId == ExtensionRelationId && get_extension_oid("reconcile", true) == objectId)
	{
		wake_reload();
		if (access == OAT_POST_ALTER)
			install_changed();
	}
	else if (classId == RelationRelationId && access == OAT_POST_ALTER && is_segment(objectId))
		wake_rescan();
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

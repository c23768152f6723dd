/*
 * launcher.c
 *		The launcher: starts dispatchers, and decides about restarts.
 *
 * Static, one in the server, connected to the shared catalogues only.  At start
 * it sends a dispatcher to each database in turn, which leaves at once where
 * there is no loop; later a database is wanted when a loop is committed there, or
 * it is made with one.  Where there are not worker processes enough for all
 * databases and an executor, dispatchers take turns.  It sleeps unless something
 * is to be started.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/guc.h"
#include "core/testpoint.h"
#include "engine/engine.h"
#include "engine/process.h"
#include "engine/shmem.h"

#define START_DEADLINE_MS	10000	/* from registration to attachment */
#define BACKOFF_MIN_MS		1000
#define BACKOFF_MAX_MS		60000
#define HEALTHY_MS			60000	/* a life that resets the backoff */
#define BLOCK_CHECK_MS		1000	/* is the session whose DDL blocks us still there? */
#define TURN_MS				10000	/* a dispatcher serves that long before others get its process */
#define REFUSALS_MAX		3		/* before a dispatcher makes room for an executor */
#define REFUSAL_MS			10000	/* after it an executor that is still wanted has asked again */
#define SHORT_MS			60000	/* processes count as short that long after somebody was refused one */
#define PACE_MS				2000	/* while they are: a dispatcher has an executor before the next one starts */

extern PGDLLEXPORT void reconcile_launcher_main(Datum main_arg);

/* Databases still to be looked at after the launcher's start. */
static Oid *probes;
static int	nprobes;

/* Worker processes are short until then. */
static TimestampTz short_until = 0;
static TimestampTz dispatcher_started_at = 0;	/* the last one */
static TimestampTz room_made_at = 0;	/* for an executor */

static void
launcher_detach(int code, Datum arg)
{
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (engine->launcher_pid == MyProcPid)
		engine->launcher_pid = 0;
	LWLockRelease(&engine->lock);
}

static void
launcher_attach(void)
{
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	engine->launcher_pid = MyProcPid;
	engine->launcher_procno = compat_my_procno();
	LWLockRelease(&engine->lock);
	before_shmem_exit(launcher_detach, (Datum) 0);
}

/* Is the database named in reconcile.databases, or is that empty? */
static bool
is_listed(const char *name)
{
	List	   *names;
	ListCell   *cell;

	if (guc_databases == NULL || guc_databases[0] == '\0')
		return true;
	if (!SplitGUCList(pstrdup(guc_databases), ',', &names))
		return false;
	foreach(cell, names)
	{
		if (strcmp((const char *) lfirst(cell), name) == 0)
			return true;
	}
	return false;
}

static bool
is_connectable(Form_pg_database form)
{
	/* one that DROP DATABASE has left half dropped cannot be connected to either */
	return form->datallowconn && !form->datistemplate &&
		form->datconnlimit != COMPAT_DATABASE_INVALID && is_listed(NameStr(form->datname));
}

/* Lists the databases to probe; in a transaction. */
static void
list_databases(void *arg)
{
	MemoryContext keep = TopMemoryContext;
	Relation	rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple	tuple;
	int			capacity = 64;

	if (probes != NULL)
		pfree(probes);
	probes = MemoryContextAlloc(keep, sizeof(Oid) * capacity);
	nprobes = 0;
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (!is_connectable(form))
			continue;
		if (nprobes == capacity)
		{
			capacity *= 2;
			probes = repalloc(probes, sizeof(Oid) * capacity);
		}
		probes[nprobes++] = form->oid;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
}

typedef struct DatabaseCheck
{
	Oid			database;
	bool		connectable;
} DatabaseCheck;

/*
 * Is the database (still) there, and may we connect?  By a scan: whoever changed
 * it tells us of it before he tells the caches, and an index may need a catalogue
 * that a process without a database cannot read.
 */
static void
check_database(void *arg)
{
	DatabaseCheck *check = arg;
	Relation	rel = table_open(DatabaseRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple	tuple;

	check->connectable = false;
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->oid == check->database)
			check->connectable = is_connectable(form);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	TEST_POINT("launcher-before-commit");
}

static int64
backoff_ms(int failures)
{
	return decide_backoff(BACKOFF_MIN_MS, BACKOFF_MAX_MS, failures - 1);
}

/* ----------------------------------------------------------------
 * Where worker processes are short
 * ----------------------------------------------------------------
 */

/* Were executors refused a process, lately and again and again? */
static bool
executors_refused(TimestampTz now)
{
	return engine->refusals >= REFUSALS_MAX && now < clock_add_ms(engine->executor_refused_at, REFUSAL_MS);
}

/* Is an entry to get a dispatcher now?  Under engine->lock. */
static bool
is_waiting(const EngineDatabase *db, TimestampTz now)
{
	return db->state == DATABASE_WANTED && engine_blocker(db) == 0 && db->start_after <= now;
}

/*
 * May a dispatcher be started for the entry?  Where processes are short that of
 * the database that was served longest ago, and none that would take an
 * executor's.  Under engine->lock.
 */
static bool
is_its_turn(int index, TimestampTz now)
{
	bool		for_executor = executors_refused(now);

	if (now >= short_until)
		return true;
	if (now < clock_add_ms(dispatcher_started_at, PACE_MS) ||
		now < clock_add_ms(engine->dispatcher_refused_at, BACKOFF_MIN_MS))
		return false;
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		if (for_executor && db->state == DATABASE_RUNNING)
			return false;
		if (is_waiting(db, now) && db->started_at < engine->databases[index].started_at)
			return false;
	}
	return true;
}

/* Executors in the server, or in the database of an entry; *one becomes one that takes jobs. */
static int
count_executors(int index, ExecSlot **one)
{
	int			n = 0;

	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		if (slot->state == EXEC_FREE || (index >= 0 && slot->database_index != index))
			continue;
		n++;
		if (one != NULL && slot->state == EXEC_ATTACHED && !slot->leave)
			*one = slot;
	}
	return n;
}

/* One of many executors leaves after its run. */
static void
retire_executor(void)
{
	ExecSlot   *victim = NULL;
	int			most = 0;

	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		ExecSlot   *one = NULL;
		int			n = engine->databases[i].state == DATABASE_RUNNING ? count_executors(i, &one) : 0;

		if (one != NULL && n > most)
		{
			most = n;
			victim = one;
		}
	}
	if (victim == NULL)
		return;
	SpinLockAcquire(&victim->mutex);
	victim->leave = true;
	SpinLockRelease(&victim->mutex);
	engine_set_latch(victim->procno, victim->pid);
}

/* The dispatcher that has served longest leaves when its runs are over; false: its turn is not over. */
static bool
retire_dispatcher(TimestampTz now, int64 turn_ms)
{
	int			longest = -1;

	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		if (db->state == DATABASE_RUNNING &&
			(longest < 0 || db->started_at < engine->databases[longest].started_at))
			longest = i;
	}
	if (longest < 0 || now < clock_add_ms(engine->databases[longest].started_at, turn_ms))
		return false;
	engine->databases[longest].retire = true;
	engine_wake_dispatcher(longest);
	return true;
}

/*
 * Has somebody make room: for a dispatcher that waits one of many executors, or
 * else a dispatcher whose turn is over; for an executor where there is none a
 * dispatcher that is not the only one.
 */
static void
make_room(TimestampTz now, int64 *wait_ms)
{
	int			running = 0;
	bool		waiting = false;
	bool		leaving = false;

	if (engine->dispatcher_refused_at == 0 && !executors_refused(now))
		return;
	short_until = clock_add_ms(now, SHORT_MS);
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		waiting |= is_waiting(db, now);
		leaving |= db->state == DATABASE_RUNNING && (db->leave || db->retire);
		running += db->state == DATABASE_RUNNING;
	}
	for (int i = 0; i < engine->nslots; i++)
		leaving |= engine_slot(i)->state == EXEC_ATTACHED && engine_slot(i)->leave;
	if (!waiting)
		engine->dispatcher_refused_at = 0;
	if (leaving)
		;
	else if (executors_refused(now) && count_executors(-1, NULL) == 0)
	{
		if (running > 1 && now >= clock_add_ms(room_made_at, REFUSAL_MS) && retire_dispatcher(now, 0))
			room_made_at = now;
	}
	else if (waiting && count_executors(-1, NULL) > 1)
		retire_executor();
	else if (waiting)
		(void) retire_dispatcher(now, TURN_MS);
	LWLockRelease(&engine->lock);
	*wait_ms = Min(*wait_ms, BACKOFF_MIN_MS);
}

/* ----------------------------------------------------------------
 * The databases
 * ----------------------------------------------------------------
 */

/* Lets us back in where a session that kept us out has vanished. */
static void
tend_blockers(int index, int64 *wait_ms)
{
	EngineDatabase *db = &engine->databases[index];

	for (int i = 0; i < ENGINE_BLOCKERS; i++)
	{
		int			pid = db->blockers[i];

		if (pid == 0)
			continue;
		if (BackendPidGetProc(pid) == NULL)
		{
			engine_unblock(index, pid);
			db->wanted_again = true;
		}
		else
			*wait_ms = Min(*wait_ms, BLOCK_CHECK_MS);
	}
}

/*
 * Brings one entry forward; what is to be done is decided under the lock, and
 * done without it.  *wait_ms becomes when to look again, at the latest.
 */
static void
tend_database(int index, int64 *wait_ms)
{
	EngineDatabase *db = &engine->databases[index];
	TimestampTz now = clock_now();
	DatabaseCheck check = {InvalidOid};
	TimestampTz served_at = 0;
	bool		start = false;
	bool		checked;
	uint32		generation = 0;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	tend_blockers(index, wait_ms);
	if (db->state == DATABASE_STARTING && now >= clock_add_ms(db->started_at, START_DEADLINE_MS))
		db->state = DATABASE_EXITED;
	if (db->state == DATABASE_STARTING)
		*wait_ms = Min(*wait_ms, START_DEADLINE_MS);
	if (db->state == DATABASE_EXITED)
	{
		if (db->done && !db->wanted_again)
		{
			/* kept while a DDL command has it blocked: the command frees it */
			if (engine_blocker(db) == 0)
				db->state = DATABASE_FREE;
		}
		else
		{
			if (db->done || now >= clock_add_ms(db->started_at, HEALTHY_MS))
				db->failures = 0;
			if (db->done)
				db->start_after = db->retire ? clock_add_ms(now, TURN_MS) : 0;
			else
			{
				db->failures++;
				pg_atomic_fetch_add_u64(&engine->restarts, 1);
				/* the first one is started again at once: it may have been asked to leave */
				db->start_after = db->failures > 1 ? clock_add_ms(now, backoff_ms(db->failures - 1)) : 0;
			}
			db->state = DATABASE_WANTED;
			db->done = false;
			db->retire = false;
			db->wanted_again = false;
		}
	}
	if (db->state == DATABASE_WANTED && engine_blocker(db) == 0)
	{
		if (db->start_after > now)
			*wait_ms = Min(*wait_ms, (db->start_after - now) / 1000 + 1);
		else if (is_its_turn(index, now))
		{
			start = true;
			check.database = db->database;
		}
		else
			*wait_ms = Min(*wait_ms, BACKOFF_MIN_MS);
	}
	LWLockRelease(&engine->lock);
	if (!start)
		return;
	TEST_POINT("launcher-after-outcome");

	checked = process_transaction(check_database, &check);
	TEST_POINT("launcher-after-commit");
	if (!checked || !check.connectable)
	{
		if (checked)
			stats_forget_database(check.database);
		LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
		if (db->state == DATABASE_WANTED && db->database == check.database)
		{
			if (checked)
				db->state = DATABASE_FREE;
			else
				db->start_after = clock_add_ms(now, BACKOFF_MIN_MS);
		}
		LWLockRelease(&engine->lock);
		if (!checked)
			*wait_ms = Min(*wait_ms, BACKOFF_MIN_MS);
		return;
	}

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	start = db->state == DATABASE_WANTED && db->database == check.database && engine_blocker(db) == 0;
	if (start)
	{
		served_at = db->started_at;
		db->state = DATABASE_STARTING;
		db->started_at = now;
		db->leave = db->retire = false;
		generation = ++db->generation;
	}
	LWLockRelease(&engine->lock);
	if (!start)
		return;

	TEST_POINT("launcher-before-intent");
	if (process_register("reconcile dispatcher", "reconcile_dispatcher_main", check.database, index, generation))
	{
		engine->dispatcher_refused_at = 0;
		dispatcher_started_at = now;
		TEST_POINT("launcher-after-intent");
		return;
	}
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (db->state == DATABASE_STARTING && db->generation == generation)
	{
		db->state = DATABASE_WANTED;
		db->started_at = served_at;
	}
	engine->dispatcher_refused_at = now;
	LWLockRelease(&engine->lock);
	short_until = clock_add_ms(now, SHORT_MS);
	engine_warn_no_worker("a dispatcher");
	*wait_ms = Min(*wait_ms, BACKOFF_MIN_MS);
}

/* Makes an entry for the next database to probe, one at a time. */
static void
next_probe(void)
{
	bool		starting = false;
	int			index;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	for (int i = 0; i < ENGINE_DATABASES; i++)
		starting |= engine->databases[i].state == DATABASE_STARTING;
	if (!starting && (index = engine_make_database(probes[nprobes - 1])) >= 0)
	{
		EngineDatabase *db = &engine->databases[index];

		/* one that leaves, perhaps as its database was not listed a moment ago, comes back */
		if (db->state != DATABASE_RUNNING || db->leave)
			db->wanted_again = true;
		nprobes--;
	}
	LWLockRelease(&engine->lock);
}

/* After a change of reconcile.databases, or of databases: who serves one that is not to be served leaves it. */
static void
leave_unlisted(void)
{
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];
		DatabaseCheck check = {db->database};

		if (db->state != DATABASE_RUNNING || !process_transaction(check_database, &check) || check.connectable)
			continue;
		LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
		if (db->state == DATABASE_RUNNING && db->database == check.database)
			db->leave = true;
		LWLockRelease(&engine->lock);
		engine_wake_dispatcher(i);
	}
}

void
reconcile_launcher_main(Datum main_arg)
{
	bool		list_owed = true;

	process_setup();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	launcher_attach();
	pgstat_report_activity(STATE_IDLE, NULL);

	for (;;)
	{
		int64		wait_ms = PG_INT32_MAX;

		list_owed |= process_interrupts();
		if (process_leaving())
			proc_exit(1);		/* 0 would unregister us for good */
		if (engine->databases_altered)
		{
			engine->databases_altered = false;
			list_owed = true;
		}
		if (list_owed && process_transaction(list_databases, NULL))
		{
			list_owed = false;
			leave_unlisted();
		}
		if (list_owed)
			wait_ms = BACKOFF_MIN_MS;

		TEST_POINT("launcher-before-outcome");
		if (nprobes > 0)
			next_probe();
		for (int i = 0; i < ENGINE_DATABASES; i++)
		{
			if (engine->databases[i].state != DATABASE_FREE)
				tend_database(i, &wait_ms);
		}
		make_room(clock_now(), &wait_ms);
		process_wait(wait_ms == PG_INT32_MAX ? -1 : (long) wait_ms, "ReconcileLauncher");
	}
}

void
launcher_register(void)
{
	BackgroundWorker worker;

	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "reconcile");
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "reconcile_launcher_main");
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "reconcile launcher");
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "reconcile launcher");
	RegisterBackgroundWorker(&worker);
}

/*
 * shmem.c
 *		Makes the engine's shared memory and finds things in it.
 */
#include "postgres.h"

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/guc.h"
#include "engine/crash.h"
#include "engine/lend.h"
#include "engine/engine.h"
#include "engine/shmem.h"

Engine	   *engine = NULL;

static shmem_request_hook_type next_shmem_request = NULL;
static shmem_startup_hook_type next_shmem_startup = NULL;

static Size
slots_offset(void)
{
	return MAXALIGN(sizeof(Engine));
}

static Size
rings_offset(void)
{
	return slots_offset() + MAXALIGN(mul_size(guc_max_workers, sizeof(ExecSlot)));
}

static Size
engine_size(void)
{
	return add_size(rings_offset(),
					mul_size(mul_size(ENGINE_DATABASES, guc_ring_size), sizeof(WakeMark)));
}

static void
shmem_request(void)
{
	if (next_shmem_request)
		next_shmem_request();
	RequestAddinShmemSpace(engine_size());
	RequestAddinShmemSpace(lend_shmem_size());
	RequestNamedLWLockTranche("reconcile", 1 + ENGINE_DATABASES);
}

/* Was the last life of the server not ended by a clean shutdown? */
static bool
last_life_crashed(void)
{
	bool		crc_ok;
	ControlFileData *control = get_controlfile(DataDir, &crc_ok);
	bool		clean = crc_ok && control->state == DB_SHUTDOWNED;

	pfree(control);
	return !clean;
}

static void
shmem_startup(void)
{
	bool		found;

	if (next_shmem_startup)
		next_shmem_startup();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	engine = ShmemInitStruct("reconcile engine", engine_size(), &found);
	if (!found)
	{
		int			tranche = GetNamedLWLockTranche("reconcile")->lock.tranche;

		memset(engine, 0, rings_offset());
		LWLockInitialize(&engine->lock, tranche);
		ConditionVariableInit(&engine->lease_changed);
		stats_init(&engine->stats, tranche);
		command_stats_init(&engine->commands);
		ConditionVariableInit(&engine->run_ended);
		engine->started_at = clock_now();
		engine->crashed = last_life_crashed();
		engine->nslots = guc_max_workers;
		pg_atomic_init_u64(&engine->restarts, crash_start(engine->nslots, engine->crashed));
		engine->ring_size = guc_ring_size;
		for (int i = 0; i < ENGINE_DATABASES; i++)
		{
			EngineDatabase *db = &engine->databases[i];

			LWLockInitialize(&db->ring_lock, tranche);
			pg_atomic_init_u32(&db->segment, 0);
			pg_atomic_init_u64(&db->looks_asked, 0);
			pg_atomic_init_u64(&db->looks_done, 0);
			ConditionVariableInit(&db->looked);
		}
		for (int i = 0; i < engine->nslots; i++)
			SpinLockInit(&engine_slot(i)->mutex);
	}
	lend_shmem_attach();
	LWLockRelease(AddinShmemInitLock);
}

void
shmem_init(void)
{
	next_shmem_request = shmem_request_hook;
	shmem_request_hook = shmem_request;
	next_shmem_startup = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

bool
engine_present(void)
{
	return engine != NULL;
}

ExecSlot *
engine_slot(int index)
{
	return (ExecSlot *) ((char *) engine + slots_offset()) + index;
}

WakeMark *
engine_ring(int database_index)
{
	return (WakeMark *) ((char *) engine + rings_offset()) + (Size) database_index * engine->ring_size;
}

int
engine_find_database(Oid database)
{
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (engine->databases[i].state != DATABASE_FREE && engine->databases[i].database == database)
			return i;
	}
	return -1;
}

int
engine_make_database(Oid database)
{
	int			index = engine_find_database(database);

	for (int i = 0; index < 0 && i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		if (db->state != DATABASE_FREE)
			continue;
		db->database = database;
		db->state = DATABASE_WANTED;
		db->pid = 0;
		db->done = false;
		db->wanted_again = false;
		db->failures = 0;
		db->start_after = 0;
		memset(db->blockers, 0, sizeof(db->blockers));
		db->leave = db->retire = false;
		db->started_at = 0;
		db->slot_wanted = false;
		pg_atomic_write_u32(&db->segment, 0);
		index = i;
	}
	return index;
}

bool
engine_block(int index)
{
	EngineDatabase *db = &engine->databases[index];
	int		   *place = NULL;

	for (int i = 0; i < ENGINE_BLOCKERS; i++)
	{
		if (db->blockers[i] == MyProcPid)
			place = &db->blockers[i];
		else if (db->blockers[i] == 0 && place == NULL)
			place = &db->blockers[i];
	}
	if (place == NULL)
		return false;
	*place = MyProcPid;
	db->leave = true;
	return true;
}

void
engine_unblock(int index, int pid)
{
	EngineDatabase *db = &engine->databases[index];

	for (int i = 0; i < ENGINE_BLOCKERS; i++)
	{
		if (db->blockers[i] == pid)
			db->blockers[i] = 0;
	}
	if (engine_blocker(db) == 0)
		db->leave = false;
}

int
engine_blocker(const EngineDatabase *db)
{
	for (int i = 0; i < ENGINE_BLOCKERS; i++)
	{
		if (db->blockers[i] != 0)
			return db->blockers[i];
	}
	return 0;
}

int
engine_my_database(void)
{
	static int	cached = -1;

	if (engine == NULL || !OidIsValid(MyDatabaseId))
		return -1;
	if (cached < 0 || engine->databases[cached].database != MyDatabaseId ||
		engine->databases[cached].state == DATABASE_FREE)
		cached = engine_find_database(MyDatabaseId);
	return cached;
}

void
engine_set_latch(int procno, int pid)
{
	/* a recycled PGPROC gets at worst a spurious wake-up */
	if (pid != 0)
		SetLatch(&ProcGlobal->allProcs[procno].procLatch);
}

void
engine_wake_launcher(void)
{
	engine_set_latch(engine->launcher_procno, engine->launcher_pid);
}

void
engine_wake_dispatcher(int database_index)
{
	EngineDatabase *db = &engine->databases[database_index];

	engine_set_latch(db->procno, db->pid);
}

void
engine_warn_no_worker(const char *what)
{
	TimestampTz now = clock_now();
	bool		warn;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	warn = engine->warned_at == 0 || now >= clock_add_ms(engine->warned_at, 60000);
	if (warn)
		engine->warned_at = now;
	LWLockRelease(&engine->lock);
	if (warn)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("reconcile could not start %s: no background worker slot is free", what),
				 errhint("Raise max_worker_processes (now %d). Work goes on by itself once a slot is free.",
						 max_worker_processes)));
}

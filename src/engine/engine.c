/*
 * engine.c
 *		Ties the engine to the server and to the rooms below; shows its processes.
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/duration.h"
#include "core/wake.h"
#include "engine/crash.h"
#include "engine/engine.h"
#include "engine/lend.h"
#include "engine/runlog.h"
#include "engine/shmem.h"
#include "engine/wakeup.h"
#include "lease/lease.h"
#include "loop/dead.h"
#include "loop/mark.h"
#include "loop/run.h"

/* When this life of the server began, if the one before it ended in a crash; else 0. */
static TimestampTz
started_after_crash(void)
{
	return engine != NULL && engine->crashed ? engine->started_at : 0;
}

/* Waits for a lease to change; 0 ms ends the waiting.  The first call only begins it. */
static void
wait_for_lease(long ms)
{
	static uint32 event = 0;

	if (event == 0)
		event = compat_wait_event("ReconcileLeaseWait");
	if (ms == 0)
		ConditionVariableCancelSleep();
	else
		(void) ConditionVariableTimedSleep(&engine->lease_changed, ms, event);
}

static void
observe_run(const RunObserved *run)
{
	stats_run(run);
	runlog_add(run);
}

void
engine_init(void)
{
	shmem_init();
	lend_init();
	launcher_register();
	ddl_init();
	crash_init();
	wake_hook = wakeup_send;
	mark_current_segment_hook = wakeup_current_segment;
	lease_started_at_hook = started_after_crash;
	lease_wait_hook = wait_for_lease;
	run_observed_hook = observe_run;
	run_calls_hook = crash_note;
	run_expected_hook = runlog_expect;
	run_in_flight_hook = stats_in_flight;
	dead_changed_hook = stats_dead_changed;
	command_counted_hook = stats_command;
	tally_hook = stats_tally;
	tally_log_hook = stats_log_due;
}

/* ----------------------------------------------------------------
 * Sight
 * ----------------------------------------------------------------
 */

static void
slot_facts(EngineFacts *facts)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);
		bool		up;
		bool		busy = false;

		SpinLockAcquire(&slot->mutex);
		up = slot->state != EXEC_FREE && slot->pid != 0;
		for (int j = 0; j < EXEC_JOBS; j++)
			busy |= slot->jobs[j].state == JOB_RUNNING;
		SpinLockRelease(&slot->mutex);
		if (!up)
			continue;
		facts->processes++;
		if (busy)
			facts->slots_busy++;
		else
			facts->slots_idle++;
	}
}

static void
database_facts(EngineFacts *facts)
{
	int			index = engine_my_database();
	EngineDatabase *db;

	if (index < 0)
		return;
	db = &engine->databases[index];
	facts->known = true;
	facts->dispatching = db->state == DATABASE_RUNNING;
	facts->failures = db->failures;
	facts->blocked_by = engine_blocker(db);
	facts->slot_wanted = db->slot_wanted;
	facts->rotating_since = db->rotating_since;
	LWLockAcquire(&db->ring_lock, LW_SHARED);
	facts->messages = db->head - db->tail;
	facts->overflows = db->overflows;
	facts->overflowed_at = db->overflowed_at;
	LWLockRelease(&db->ring_lock);
}

bool
engine_facts(EngineFacts *facts)
{
	memset(facts, 0, sizeof(*facts));
	if (engine == NULL)
		return false;
	facts->slots = engine->nslots;
	facts->restarts = pg_atomic_read_u64(&engine->restarts);
	facts->uncounted = pg_atomic_read_u64(&engine->stats.dropped);
	facts->processes = engine->launcher_pid != 0;
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (engine->databases[i].state != DATABASE_FREE && engine->databases[i].pid != 0)
		{
			facts->processes++;
			facts->databases++;
		}
	}
	slot_facts(facts);
	database_facts(facts);
	return true;
}

bool
engine_is_current(const LoopGauges *gauges)
{
	int			index = engine_my_database();

	return index >= 0 && engine->databases[index].state == DATABASE_RUNNING &&
		gauges->dispatcher == engine->databases[index].generation;
}

/* Runs in flight in this database that the caller may observe, from shared memory; none without preload. */
PG_FUNCTION_INFO_V1(reconcile_running);
Datum
reconcile_running(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			nslots = engine != NULL ? engine->nslots : 0;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		for (int j = 0; j < EXEC_JOBS; j++)
		{
			ExecJob    *job = &slot->jobs[j];
			char		loop_name[RECONCILER_ID_MAX + 1];
			char		entity_id[ENTITY_ID_MAX + 1];
			TimestampTz started_at = 0;
			int			pid = 0;
			Datum		values[4];
			bool		nulls[4] = {false};

			SpinLockAcquire(&slot->mutex);
			if (slot->state != EXEC_FREE && slot->database == MyDatabaseId && job->state == JOB_RUNNING)
			{
				memcpy(loop_name, job->rules.loop_name, sizeof(loop_name));
				memcpy(entity_id, job->entity_id, sizeof(entity_id));
				started_at = job->started_at;
				pid = slot->pid;
			}
			SpinLockRelease(&slot->mutex);
			if (pid == 0 || !access_allowed(CAP_OBSERVE, loop_name))
				continue;
			values[0] = CStringGetTextDatum(loop_name);
			values[1] = CStringGetTextDatum(entity_id);
			values[2] = TimestampTzGetDatum(started_at);
			values[3] = Int32GetDatum(pid);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

static void
put_worker(ReturnSetInfo *rsinfo, const char *kind, int pid, Oid database, Oid role,
		   const char *state, const char *loop_name, TimestampTz since)
{
	Datum		values[7];
	bool		nulls[7] = {false};

	values[0] = Int32GetDatum(pid);
	values[1] = CStringGetTextDatum(kind);
	values[2] = ObjectIdGetDatum(database);
	nulls[2] = !OidIsValid(database);
	values[3] = ObjectIdGetDatum(role);
	nulls[3] = !OidIsValid(role);
	values[4] = CStringGetTextDatum(state);
	values[5] = loop_name != NULL ? CStringGetTextDatum(loop_name) : (Datum) 0;
	nulls[5] = loop_name == NULL;
	values[6] = TimestampTzGetDatum(since);
	nulls[6] = since == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_executor(ReturnSetInfo *rsinfo, ExecSlot *slot)
{
	char		loop_name[RECONCILER_ID_MAX + 1] = "";
	ExecState	state;
	TimestampTz since;
	Oid			database;
	Oid			role;
	int			pid;

	SpinLockAcquire(&slot->mutex);
	state = slot->state;
	pid = slot->pid;
	database = slot->database;
	role = slot->role;
	since = slot->last_done_at > slot->registered_at ? slot->last_done_at : slot->registered_at;
	for (int j = 0; j < EXEC_JOBS; j++)
	{
		if (slot->jobs[j].state == JOB_RUNNING)
		{
			memcpy(loop_name, slot->jobs[j].rules.loop_name, sizeof(loop_name));
			since = slot->jobs[j].started_at;
		}
	}
	SpinLockRelease(&slot->mutex);
	if (state == EXEC_FREE || pid == 0)
		return;
	put_worker(rsinfo, "executor", pid, database, role,
			   state == EXEC_STARTING ? "starting" : state != EXEC_ATTACHED ? "leaving" :
			   loop_name[0] != '\0' ? "running" : "idle",
			   loop_name[0] != '\0' && database == MyDatabaseId &&
			   access_allowed(CAP_OBSERVE, loop_name) ? loop_name : NULL, since);
}

/* Our processes in the whole server, with the loop that the caller may observe; none without preload. */
PG_FUNCTION_INFO_V1(reconcile_worker_list);
Datum
reconcile_worker_list(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	if (engine == NULL)
		return (Datum) 0;
	if (engine->launcher_pid != 0)
		put_worker(rsinfo, "launcher", engine->launcher_pid, InvalidOid, InvalidOid, "running", NULL,
				   engine->started_at);
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		EngineDatabase *db = &engine->databases[i];

		if (db->state != DATABASE_FREE && db->pid != 0)
			put_worker(rsinfo, "dispatcher", db->pid, db->database, InvalidOid,
					   db->state == DATABASE_RUNNING ? "running" : "starting", NULL, db->started_at);
	}
	for (int i = 0; i < engine->nslots; i++)
		put_executor(rsinfo, engine_slot(i));
	return (Datum) 0;
}

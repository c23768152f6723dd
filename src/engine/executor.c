/*
 * executor.c
 *		An executor: connected as a role, it runs that role's loops.
 *
 * It takes one job at a time from its slot, runs it in one transaction, reports
 * and waits for the next.  User code runs here and nowhere else in the engine;
 * between runs the session is made as new.  It leaves when idle for long, when
 * asked to, and after its run when its dispatcher is gone.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/guc.h"
#include "core/testpoint.h"
#include "engine/crash.h"
#include "engine/engine.h"
#include "engine/process.h"
#include "engine/shmem.h"

extern PGDLLEXPORT void reconcile_executor_main(Datum main_arg);

static ExecSlot *slot;
static MemoryContext run_context;

/* A SIGINT came: a 57014 that follows may be meant for us. */
static volatile sig_atomic_t interrupted = false;

static void
interrupt_handler(SIGNAL_ARGS)
{
	interrupted = true;
	StatementCancelHandler(postgres_signal_arg);
}

/* ----------------------------------------------------------------
 * Slot
 * ----------------------------------------------------------------
 */

/* Does the dispatcher that started us still run? */
static bool
dispatcher_alive(void)
{
	EngineDatabase *db = &engine->databases[slot->database_index];

	return db->database == slot->database && db->state == DATABASE_RUNNING &&
		db->generation == slot->dispatcher;
}

static void
executor_detach(int code, Datum arg)
{
	bool		orphan;

	/* otherwise user code has ended the process in its own way, maybe with a status that ends the server */
	if (code == 0 || code == 1)
		crash_clear();

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	orphan = !dispatcher_alive();
	SpinLockAcquire(&slot->mutex);
	slot->pid = 0;
	/* nobody is left to free the slot of an executor without a dispatcher */
	slot->state = orphan ? EXEC_FREE : EXEC_EXITED;
	SpinLockRelease(&slot->mutex);
	LWLockRelease(&engine->lock);

	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (i == slot->database_index || engine->databases[i].slot_wanted)
			engine_wake_dispatcher(i);
	}
}

/* Takes over the slot that our dispatcher made for us; false: it gave up on us. */
static bool
executor_attach(int index, uint32 generation)
{
	bool		attached = false;

	slot = engine_slot(index);
	SpinLockAcquire(&slot->mutex);
	if (slot->state == EXEC_STARTING && slot->generation == generation)
	{
		slot->pid = MyProcPid;
		slot->procno = compat_my_procno();
		attached = true;
	}
	SpinLockRelease(&slot->mutex);
	if (attached)
	{
		crash_attach(index);
		before_shmem_exit(executor_detach, (Datum) 0);
	}
	return attached;
}

/* ----------------------------------------------------------------
 * Session
 * ----------------------------------------------------------------
 */

/* Nothing that one run set is seen by the next: as DISCARD ALL would do it. */
static void
session_reset(void *arg)
{
	PortalHashTableDeleteAll();
	SetPGVariable("session_authorization", NIL, false);
	ResetAllOptions();
	DropAllPreparedStatements();
	Async_UnlistenAll();
	LockReleaseAll(USER_LOCKMETHOD, true);
	ResetSequenceCaches();
	ResetTempTableNamespace();
}

/* ----------------------------------------------------------------
 * A job
 * ----------------------------------------------------------------
 */

/* A 57014 that is not the run's own timeout and was not raised by user code. */
static bool
is_outside_cancel(const ErrorData *error, bool begun)
{
	return error->sqlerrcode == ERRCODE_QUERY_CANCELED && interrupted && !(begun && run_timed_out());
}

/* A failure to be booked. */
typedef struct Failure
{
	LoopRun    *run;
	ErrorData  *error;
	bool		booked;			/* false: somebody else runs the entity by now */
} Failure;

static void
book_failure(void *arg)
{
	Failure    *failure = arg;

	failure->booked = run_lock(failure->run->rules->loop_name, failure->run->entity_id);
	if (failure->booked)
		run_book_failure(failure->run, failure->error);
	TEST_POINT("executor-before-booking");
}

/*
 * Runs the entity in one transaction, under its run lock.  NULL, or the error
 * with which it was aborted.
 */
static ErrorData *
run_in_transaction(LoopRun *run, volatile bool *locked)
{
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		*locked = run_lock(run->rules->loop_name, run->entity_id);
		if (*locked)
			run_execute(run);
		PopActiveSnapshot();
		if (*locked && (run->outcome == RUN_DONE || run->outcome == RUN_DROPPED))
		{
			TEST_POINT("executor-before-commit");
			CommitTransactionCommand();
			TEST_POINT("executor-after-commit");
		}
		else
			AbortCurrentTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(run_context);
		error = CopyErrorData();
		HOLD_INTERRUPTS();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(run_context);
	return error;
}

/* All that has committed before, asynchronously too. */
static void
make_durable(void *arg)
{
	(void) GetCurrentTransactionId();
	ForceSyncCommit();
}

static void
job_run(ExecJob *job)
{
	LoopRun		run;
	ErrorData  *error;
	volatile bool locked = false;

	job_prepare_run(job, &run);
	job->outcome = JOB_FINISHED;

	if (job->keep_marks)
		(void) process_transaction(make_durable, NULL);
	error = run_in_transaction(&run, &locked);
	if (error == NULL && !locked)
		job->outcome = JOB_BUSY;
	else if (error != NULL)
	{
		if (is_outside_cancel(error, locked))
			job->outcome = JOB_CANCELLED;
		else
		{
			Failure		failure = {&run, error};

			if (!process_transaction(book_failure, &failure))
				job->outcome = JOB_UNBOOKED;
			else if (!failure.booked)
				job->outcome = JOB_BUSY;
			TEST_POINT("executor-after-booking");
		}
	}

	job->run_outcome = run.outcome;
	job->result = run.result;
	job->sqlstate = run.sqlstate;
	job->attempt = run.attempt;
	job->claimed_until = run.claimed_until;
	job->has_look = run.has_look;
	job->look = run.look;
}

/* Our dispatcher died while we ran: its successor may have missed our next look. */
static void
tell_successor(void)
{
	Wake		wake = {0};

	wake.rescan = true;
	if (wake_hook != NULL)
		wake_hook(&wake, false);
}

static void
job_execute(ExecJob *job)
{
	char		activity[RECONCILER_ID_MAX + ENTITY_ID_MAX + 32];

	process_busy(true);
	snprintf(activity, sizeof(activity), "reconcile %s: %s", job->rules.loop_name, job->entity_id);
	debug_query_string = activity;
	pgstat_report_activity(STATE_RUNNING, activity);

	job_run(job);
	crash_clear();

	debug_query_string = NULL;
	pgstat_report_activity(STATE_IDLE, NULL);

	TEST_POINT("executor-before-outcome");
	job->ended_at = clock_now();
	/* a dispatcher that is gone by now does not count it */
	if (job->outcome == JOB_FINISHED && job->run_outcome == RUN_DONE && !dispatcher_alive())
		job_observe(job);
	SpinLockAcquire(&slot->mutex);
	job->state = JOB_DONE;
	slot->last_done_at = job->ended_at;
	SpinLockRelease(&slot->mutex);
	ConditionVariableBroadcast(&engine->run_ended);
	if (dispatcher_alive())
		engine_wake_dispatcher(slot->database_index);
	else
		tell_successor();
	TEST_POINT("executor-after-outcome");

	MemoryContextReset(run_context);
	QueryCancelPending = false;
	/* a session that cannot be made as new serves nobody any more */
	if (!process_transaction(session_reset, NULL))
		proc_exit(0);
	process_busy(false);
}

/*
 * The next job, marked as running, or NULL.  None begins while a change of the
 * loops has committed that our dispatcher has not read: it takes the jobs back
 * then.  So a loop that was paused begins no run, from that commit on.  (Where
 * the dispatcher is gone the change is told to nobody.)
 */
static ExecJob *
job_next(void)
{
	ExecJob    *next = NULL;
	TimestampTz now = clock_now();

	SpinLockAcquire(&slot->mutex);
	for (int i = 0; i < EXEC_JOBS; i++)
	{
		ExecJob    *job = &slot->jobs[i];

		if (job->state == JOB_ASSIGNED && (next == NULL || job->run < next->run))
			next = job;
	}
	if (engine->databases[slot->database_index].stale || !dispatcher_alive())
		next = NULL;
	if (next != NULL)
	{
		next->state = JOB_RUNNING;
		next->started_at = now;
		next->pid = MyProcPid;
	}
	SpinLockRelease(&slot->mutex);
	return next;
}

/* Leaves, unless a job came in meanwhile. */
static bool
may_leave(void)
{
	bool		leave = true;

	SpinLockAcquire(&slot->mutex);
	for (int i = 0; i < EXEC_JOBS; i++)
		leave &= slot->jobs[i].state != JOB_ASSIGNED;
	if (leave)
		slot->state = EXEC_LEAVING;
	SpinLockRelease(&slot->mutex);
	return leave;
}

void
reconcile_executor_main(Datum main_arg)
{
	TimestampTz idle_since;
	TimestampTz stats_at = DT_NOEND;	/* when what is still to be reported is reported */

	process_setup();
	pqsignal(SIGINT, interrupt_handler);
	if (!executor_attach(DatumGetInt32(main_arg), process_generation()))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(slot->database, slot->role, COMPAT_WORKER_CONNECT_FLAGS);
	process_settings();
	run_context = AllocSetContextCreate(TopMemoryContext, "reconcile run", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(run_context);

	SpinLockAcquire(&slot->mutex);
	slot->state = EXEC_ATTACHED;
	slot->attached = true;
	SpinLockRelease(&slot->mutex);
	engine_wake_dispatcher(slot->database_index);

	pgstat_report_activity(STATE_IDLE, NULL);
	idle_since = clock_now();
	for (;;)
	{
		TimestampTz idle_until;
		ExecJob    *job;

		process_interrupts();
		idle_until = clock_add_ms(idle_since, guc_worker_idle_timeout * INT64CONST(1000));
		if (process_leaving())
			proc_exit(0);
		if (slot->leave || !dispatcher_alive())
		{
			/* what was assigned and not begun goes back to the dispatcher when we exit */
			proc_exit(0);
		}
		/* from here on a SIGINT is for the next run; one that came late for the last costs it a repetition */
		interrupted = false;
		TEST_POINT("executor-before-intent");
		job = job_next();
		if (job != NULL)
		{
			long		stats_ms;

			TEST_POINT("executor-after-intent");
			job_execute(job);
			stats_ms = pgstat_report_stat(false);
			idle_since = clock_now();
			stats_at = stats_ms > 0 ? clock_add_ms(idle_since, stats_ms) : DT_NOEND;
			continue;
		}
		if (clock_now() >= idle_until)
		{
			if (may_leave())
				proc_exit(0);
			/* there is a job, perhaps one that may not begin yet */
			idle_since = clock_now();
			continue;
		}
		if (clock_now() >= stats_at)
		{
			/* by force, or it may ask for another time for ever */
			(void) pgstat_report_stat(true);
			stats_at = DT_NOEND;
		}
		process_wait((Min(idle_until, stats_at) - clock_now()) / 1000 + 1, "ReconcileExecutor");
	}
}

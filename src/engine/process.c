/*
 * process.c
 *		What our background processes share.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/procsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/compat.h"
#include "engine/crash.h"
#include "engine/process.h"

static volatile sig_atomic_t busy = false;

static void
terminate_handler(SIGNAL_ARGS)
{
	if (busy)
		die(postgres_signal_arg);
	else
	{
		int			save_errno = errno;

		ShutdownRequestPending = true;
		SetLatch(MyLatch);
		errno = save_errno;
	}
}

void
process_setup(void)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, terminate_handler);
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGQUIT, crash_quit_handler);
	BackgroundWorkerUnblockSignals();
}

void
process_settings(void)
{
	static const char *const fixed[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		/* triggers of ours, and of users, are to fire */
		{"session_replication_role", "origin"},
		{"role", "none"},
	};

	for (int i = 0; i < lengthof(fixed); i++)
		SetConfigOption(fixed[i][0], fixed[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	if (COMPAT_HAS_TRANSACTION_TIMEOUT)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
}

void
process_busy(bool now_busy)
{
	busy = now_busy;
}

bool
process_leaving(void)
{
	return ShutdownRequestPending;
}

bool
process_interrupts(void)
{
	/* nobody cancels an idle process; a cancel that came late is void */
	QueryCancelPending = false;
	CHECK_FOR_INTERRUPTS();
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

void
process_wait(long timeout_ms, const char *wait_event)
{
	static uint32 event = 0;

	if (event == 0)
		event = compat_wait_event(wait_event);
	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | (timeout_ms >= 0 ? WL_TIMEOUT : 0),
					 timeout_ms, event);
	ResetLatch(MyLatch);
}

bool
process_transaction(void (*work) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	bool		was_busy = busy;
	volatile bool done = false;

	busy = true;
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		work(arg);
		PopActiveSnapshot();
		CommitTransactionCommand();
		done = true;
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	busy = was_busy;
	return done;
}

void
job_prepare_run(const ExecJob *job, LoopRun *run)
{
	memset(run, 0, sizeof(*run));
	run->rules = &job->rules;
	run->entity_id = job->entity_id;
	run->marks = job->marks;
	run->nmarks = job->nmarks;
	run->holder_id = job->holder_id;
	run->epoch = job->epoch;
	run->outcome = RUN_DROPPED;
}

void
job_observe(const ExecJob *job)
{
	RunObserved observed = {
		.loop_name = job->rules.loop_name,
		.entity_id = job->entity_id,
		.ready_at = job->ready_at,
		.started_at = job->started_at,
		.ended_at = job->ended_at,
		.result = job->result,
		.sqlstate = job->sqlstate,
		.attempt = job->attempt,
		.epoch = job->epoch,
		.pid = job->pid
	};

	run_expected_hook();
	run_observed_hook(&observed);
}

bool
process_register(const char *type, const char *function, Oid database,
				 int index, uint32 generation)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, sizeof(worker.bgw_library_name), "reconcile");
	snprintf(worker.bgw_function_name, sizeof(worker.bgw_function_name), "%s", function);
	snprintf(worker.bgw_type, sizeof(worker.bgw_type), "%s", type);
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "%s for database %u", type, database);
	worker.bgw_main_arg = Int32GetDatum(index);
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &generation, sizeof(generation));
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}

uint32
process_generation(void)
{
	uint32		generation;

	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
	return generation;
}

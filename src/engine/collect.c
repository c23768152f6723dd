/*
 * collect.c
 *		Jobs: what the dispatcher takes in from its executors.
 *
 * A run that ended has an outcome, which says when its entity is due again.  One
 * whose executor is gone has none: that is booked here, as nobody else will.
 */
#include "postgres.h"

#include <signal.h>

#include "core/duration.h"
#include "core/errors.h"
#include "core/testpoint.h"
#include "engine/dispatcher.h"
#include "engine/jobs.h"
#include "engine/process.h"

#define START_DEADLINE_MS	10000	/* from registration to attachment */
#define RETRY_MIN_MS		1000	/* after a loop's function could not be called, or its failure not be booked */
#define RETRY_MAX_MS		60000
#define BUSY_LOOK_MS		50		/* somebody else runs the entity */
#define CANCEL_PATIENCE_MS	5000	/* from SIGINT to SIGTERM */
#define LEAVE_PATIENCE_MS	1000	/* the same, while a command waits for us to leave */
#define VANISHED_LOOK_MS	200		/* a shutdown ends us too within that time */

static void
loop_suspend(DispatchLoop *loop, TimestampTz now)
{
	loop->suspend_ms = loop->suspend_ms == 0 ? RETRY_MIN_MS : Min(loop->suspend_ms * 2, RETRY_MAX_MS);
	loop->suspended_until = clock_add_ms(now, loop->suspend_ms);
	if (loop->suspend_logged_at != 0 && now < clock_add_ms(loop->suspend_logged_at, RETRY_MAX_MS))
		return;
	loop->suspend_logged_at = now;
	ereport(LOG,
			(errmsg("loop \"%s\" is suspended: its function \"%s\" is gone, or its owner may not call it",
					loop->rules.loop_name, loop->rules.reconciler),
			 errhint("Define the function again, or change the loop with reconcile.alter_loop().")));
}

/* Without its lister a loop goes on, and lists nothing. */
static void
lister_gone(JobTrack *track, TimestampTz now)
{
	DispatchLoop *loop = track->loop;

	due_return(dispatcher->due, track->entity, clock_add_ms(now, RETRY_MAX_MS), now);
	ereport(LOG,
			(errmsg("loop \"%s\" cannot resync: its lister \"%s\" is gone, or its owner may not call it",
					loop->rules.loop_name, loop->rules.lister),
			 errhint("Define the function again, or change the loop with reconcile.alter_loop().")));
}

static void
finished(JobTrack *track, ExecJob *job, TimestampTz now)
{
	DispatchLoop *loop = track->loop;

	switch (job->run_outcome)
	{
		case RUN_DONE:
			loop->suspend_ms = 0;
			loop->suspend_logged_at = 0;
			loop->run_us = (loop->run_us * 7 + (now - job->started_at)) / 8;
			job_observe(job);
			suspects_ran(loop->rules.loop_name, track->entity->entity_id);
			due_answered(dispatcher->due, track->entity, job->has_look ? &job->look : NULL, now);
			break;
		case RUN_DROPPED:
			due_answered(dispatcher->due, track->entity, NULL, now);
			break;
		case RUN_NOT_LEADER:
			due_return(dispatcher->due, track->entity, 0, now);
			/* unless we were granted a newer term since */
			if (loop->leading && loop->epoch == job->epoch)
				terms_end(loop, now);
			break;
		case RUN_CLAIMED:
			due_return(dispatcher->due, track->entity,
					   job->claimed_until != 0 ? job->claimed_until : clock_add_ms(now, BUSY_LOOK_MS), now);
			break;
		case RUN_NO_FUNCTION:
			if (loop_is_resync(&job->rules, job->entity_id))
			{
				lister_gone(track, now);
				break;
			}
			due_return(dispatcher->due, track->entity, 0, now);
			if (loop->suspended_until <= now)
				loop_suspend(loop, now);
			break;
	}
}

static void
job_taken_in(JobTrack *track, ExecJob *job, TimestampTz now)
{
	TEST_POINT("dispatcher-before-outcome");
	switch (job->outcome)
	{
		case JOB_FINISHED:
			finished(track, job, now);
			break;
		case JOB_BUSY:
			due_return(dispatcher->due, track->entity, clock_add_ms(now, BUSY_LOOK_MS), now);
			break;
		case JOB_CANCELLED:
			/* by somebody else, maybe by the run itself: not at once, or it could spin */
			due_return(dispatcher->due, track->entity,
					   track->cancelled_at != 0 ? 0 : clock_add_ms(now, RETRY_MIN_MS), now);
			break;
		case JOB_UNBOOKED:
			due_return(dispatcher->due, track->entity, clock_add_ms(now, RETRY_MIN_MS), now);
			break;
	}
	job->state = JOB_EMPTY;
	track->entity = NULL;
	TEST_POINT("dispatcher-after-outcome");
}

/* An executor went away in the middle of a run: nobody else will count that. */
typedef struct Vanished
{
	ExecJob    *job;
	LoopRun		run;
} Vanished;

static void
book_vanished(void *arg)
{
	Vanished   *vanished = arg;
	ErrorData	error = {0};

	/* somebody else who runs it already will find the marks */
	if (!dispatcher_book_lock(vanished->job->rules.loop_name, vanished->job->entity_id))
		return;
	error.sqlerrcode = ERRCODE_ADMIN_SHUTDOWN;
	error.message = "the process that ran it was terminated";
	vanished->run.loss = LOSS_PROCESS;
	if (vanished->job->rules.timeout_ms > 0 &&
		clock_now() >= clock_add_ms(vanished->job->started_at, vanished->job->rules.timeout_ms))
	{
		error.sqlerrcode = ERRCODE_QUERY_CANCELED;
		error.message = "the run was terminated after its timeout";
		vanished->run.loss = LOSS_NONE;
	}
	run_book_failure(&vanished->run, &error);
	TEST_POINT("dispatcher-before-loss");
}

/*
 * False: look again later.  A server that shuts down ends executors a moment
 * before us, and counts nothing.
 */
static bool
job_vanished(JobTrack *track, ExecJob *job, TimestampTz now)
{
	Vanished	vanished = {job};

	if (track->cancelled_at == 0)
	{
		TimestampTz look_at;

		if (track->vanished_at == 0)
			track->vanished_at = now;
		look_at = clock_add_ms(track->vanished_at, VANISHED_LOOK_MS);
		if (now < look_at)
		{
			dispatcher_wake_at(look_at);
			return false;
		}
		job_prepare_run(job, &vanished.run);
		if (process_transaction(book_vanished, &vanished) && vanished.run.outcome == RUN_DONE)
		{
			TEST_POINT("dispatcher-after-loss");
			job->ended_at = now;
			job->result = vanished.run.result;
			job->sqlstate = vanished.run.sqlstate;
			job->attempt = vanished.run.attempt;
			job_observe(job);
			suspects_ran(job->rules.loop_name, job->entity_id);
		}
		pg_atomic_fetch_add_u64(&engine->restarts, 1);
	}
	/* it may have committed before it went: only the segments know */
	dispatcher->rescan_owed = true;
	dispatcher_wake_at(now);
	due_return(dispatcher->due, track->entity, 0, now);
	job->state = JOB_EMPTY;
	track->entity = NULL;
	ConditionVariableBroadcast(&engine->run_ended);
	return true;
}

/* Takes in what the slot has, and frees it if its process is gone. */
static void
slot_collect(int i, TimestampTz now)
{
	ExecSlot   *slot = engine_slot(i);
	bool		gone;
	bool		settled = true;
	JobState	states[EXEC_JOBS];

	SpinLockAcquire(&slot->mutex);
	gone = slot->state == EXEC_EXITED ||
		(slot->state == EXEC_STARTING && slot->pid == 0 &&
		 now >= clock_add_ms(slot->registered_at, START_DEADLINE_MS));
	if (gone)
		slot->state = EXEC_EXITED;	/* one that is late does not attach */
	for (int j = 0; j < EXEC_JOBS; j++)
		states[j] = slot->jobs[j].state;
	SpinLockRelease(&slot->mutex);

	for (int j = 0; j < EXEC_JOBS; j++)
	{
		JobTrack   *track = &job_tracks[i][j];
		ExecJob    *job = &slot->jobs[j];

		if (track->entity == NULL)
			continue;
		if (states[j] == JOB_DONE)
			job_taken_in(track, job, now);
		else if (gone && states[j] == JOB_RUNNING)
			settled &= job_vanished(track, job, now);
		else if (gone)
		{
			due_return(dispatcher->due, track->entity, 0, now);
			track->entity = NULL;
		}
		else if (track->cancelled_at != 0)
		{
			TimestampTz patience = clock_add_ms(track->cancelled_at,
												track->cancel_reason == CANCEL_LEAVE ?
												LEAVE_PATIENCE_MS : CANCEL_PATIENCE_MS);

			if (now >= patience && slot->pid != 0)
			{
				kill(slot->pid, SIGTERM);
				track->cancelled_at = now;
			}
			dispatcher_wake_at(patience);
		}
	}

	if (gone && settled)
		pool_free(i, now);
	else if (slot->state == EXEC_STARTING)
		dispatcher_wake_at(clock_add_ms(slot->registered_at, START_DEADLINE_MS));
}

void
collect_jobs(void)
{
	TimestampTz now = clock_now();

	for (int i = 0; i < engine->nslots; i++)
	{
		if (pool_is_mine(engine_slot(i)))
			slot_collect(i, now);
	}
}

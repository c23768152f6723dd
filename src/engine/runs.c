/*
 * runs.c
 *		Looks at the slots for the runs of a loop; waits for runs to end.
 *
 * Without preload there are none, and waiting is looking again.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"

#include "core/compat.h"
#include "engine/runs.h"
#include "engine/shmem.h"

int
runs_find(const char *loop_name, const char *entity_id, TimestampTz *since)
{
	int			nslots = engine != NULL ? engine->nslots : 0;
	int			pid = 0;

	for (int i = 0; i < nslots && pid == 0; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		SpinLockAcquire(&slot->mutex);
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			ExecJob    *job = &slot->jobs[j];

			if (slot->state == EXEC_FREE || slot->database != MyDatabaseId || job->state != JOB_RUNNING ||
				strcmp(job->rules.loop_name, loop_name) != 0 ||
				(entity_id != NULL && strcmp(job->entity_id, entity_id) != 0))
				continue;
			/* one that is gone is still to be booked */
			pid = slot->pid != 0 ? slot->pid : -1;
			if (since != NULL)
				*since = job->started_at;
		}
		SpinLockRelease(&slot->mutex);
	}
	return pid;
}

void
runs_room(const char *loop_name, Oid owner, RunsRoom *room)
{
	int			index;

	memset(room, 0, sizeof(*room));
	if (engine == NULL)
		return;
	room->preloaded = true;
	room->slots = engine->nslots;
	LWLockAcquire(&engine->lock, LW_SHARED);
	index = engine_find_database(MyDatabaseId);
	room->dispatched = index >= 0 && engine->databases[index].state == DATABASE_RUNNING;
	LWLockRelease(&engine->lock);

	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);
		int			jobs = 0;
		int			ours = 0;

		SpinLockAcquire(&slot->mutex);
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			ExecJob    *job = &slot->jobs[j];

			if (job->state != JOB_ASSIGNED && job->state != JOB_RUNNING)
				continue;
			jobs++;
			ours += slot->database == MyDatabaseId && strcmp(job->rules.loop_name, loop_name) == 0;
		}
		if (slot->state == EXEC_FREE)
			room->idle = true;
		else
		{
			room->executors += ours > 0;
			room->idle |= jobs == 0 && slot->database == MyDatabaseId && slot->role == owner &&
				slot->state != EXEC_LEAVING && slot->state != EXEC_EXITED;
		}
		SpinLockRelease(&slot->mutex);
	}
}

/* ----------------------------------------------------------------
 * Waiting
 * ----------------------------------------------------------------
 */

void
runs_wait_begin(void)
{
	if (engine != NULL)
		ConditionVariablePrepareToSleep(&engine->run_ended);
}

void
runs_wait(long ms)
{
	static uint32 event = 0;

	if (event == 0)
		event = compat_wait_event("ReconcileRunWait");
	if (engine != NULL)
	{
		(void) ConditionVariableTimedSleep(&engine->run_ended, ms, event);
		return;
	}
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

void
runs_wait_end(void)
{
	if (engine != NULL)
		ConditionVariableCancelSleep();
}

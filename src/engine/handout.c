/*
 * handout.c
 *		Jobs: what the dispatcher gives out, and takes back before it has begun.
 *
 * An executor serves one role.  A loop may have jobs at as many executors as
 * its concurrency says; when all of those are busy with short runs, each may be
 * given one more of the same loop, so that it need not wait for us in between.
 * Loops of one role get equal shares of its executors, and take turns where
 * there are more loops than executors.
 */
#include "postgres.h"

#include <signal.h>

#include "core/duration.h"
#include "core/testpoint.h"
#include "engine/dispatcher.h"
#include "engine/jobs.h"

#define SHORT_RUN_US		10000	/* runs below may be queued behind one another */

JobTrack	(*job_tracks)[EXEC_JOBS];

void
handout_init(void)
{
	job_tracks = MemoryContextAllocZero(dispatcher->context, sizeof(*job_tracks) * engine->nslots);

	/* what an earlier dispatcher's executors have begun they finish; then they leave */
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		SpinLockAcquire(&slot->mutex);
		if (slot->state != EXEC_FREE && slot->database_index == dispatcher->index &&
			slot->dispatcher != dispatcher->generation)
		{
			slot->leave = true;
			if (slot->state == EXEC_EXITED)
				slot->state = EXEC_FREE;
		}
		SpinLockRelease(&slot->mutex);
		engine_set_latch(slot->procno, slot->pid);
	}
}

static int
jobs_at(int i)
{
	int			n = 0;

	for (int j = 0; j < EXEC_JOBS; j++)
		n += job_tracks[i][j].entity != NULL;
	return n;
}

/* ----------------------------------------------------------------
 * Cancelling
 * ----------------------------------------------------------------
 */

/* Takes a job back that was not begun; false: it was. */
static bool
job_recall(int i, int j, TimestampTz now)
{
	ExecSlot   *slot = engine_slot(i);
	bool		recalled = false;

	SpinLockAcquire(&slot->mutex);
	if (slot->jobs[j].state == JOB_ASSIGNED)
	{
		slot->jobs[j].state = JOB_EMPTY;
		recalled = true;
	}
	SpinLockRelease(&slot->mutex);
	if (recalled)
	{
		due_return(dispatcher->due, job_tracks[i][j].entity, 0, now);
		job_tracks[i][j].entity = NULL;
	}
	return recalled;
}

void
handout_recall(const DispatchLoop *loop)
{
	TimestampTz now = clock_now();

	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			if (job_tracks[i][j].entity != NULL && job_tracks[i][j].loop == loop)
				(void) job_recall(i, j, now);
		}
	}
}

/* SIGINT, if the job is running.  One that strikes the next run costs it a repetition. */
static void
cancel_running(ExecSlot *slot, int j)
{
	int			pid = 0;

	SpinLockAcquire(&slot->mutex);
	if (slot->jobs[j].state == JOB_RUNNING)
		pid = slot->pid;
	SpinLockRelease(&slot->mutex);
	if (pid != 0)
		kill(pid, SIGINT);
}

void
handout_cancel(const DispatchLoop *loop, CancelReason reason)
{
	TimestampTz now = clock_now();

	for (int i = 0; i < engine->nslots; i++)
	{
		if (!pool_is_mine(engine_slot(i)))
			continue;
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			JobTrack   *track = &job_tracks[i][j];

			if (track->entity == NULL || (loop != NULL && track->loop != loop) || track->cancelled_at != 0)
				continue;
			if (job_recall(i, j, now))
				continue;
			track->cancelled_at = now;
			track->cancel_reason = reason;
			cancel_running(engine_slot(i), j);
		}
	}
}

void
handout_cancel_orphans(const char *loop_name)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		if (slot->state == EXEC_FREE || slot->database_index != dispatcher->index ||
			slot->dispatcher == dispatcher->generation)
			continue;
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			if (strcmp(slot->jobs[j].rules.loop_name, loop_name) == 0)
				cancel_running(slot, j);
		}
	}
}

bool
handout_leave(void)
{
	bool		none = true;

	handout_cancel(NULL, CANCEL_LEAVE);
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);
		bool		here;

		SpinLockAcquire(&slot->mutex);
		here = slot->state != EXEC_FREE && slot->database_index == dispatcher->index;
		if (here)
			slot->leave = true;
		SpinLockRelease(&slot->mutex);
		if (here)
		{
			none = false;
			engine_set_latch(slot->procno, slot->pid);
		}
	}
	return none;
}

bool
handout_retire(void)
{
	TimestampTz now = clock_now();
	bool		none = true;

	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
			none &= job_tracks[i][j].entity == NULL || job_recall(i, j, now);
	}
	return none;
}

bool
handout_has_jobs(const DispatchLoop *loop)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			if (job_tracks[i][j].entity != NULL && job_tracks[i][j].loop == loop)
				return true;
		}
	}
	return false;
}

int
handout_pid(const DueEntity *entity)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			if (job_tracks[i][j].entity == entity)
				return engine_slot(i)->pid;
		}
	}
	return 0;
}

/* ----------------------------------------------------------------
 * Giving out
 * ----------------------------------------------------------------
 */

static void
count_executors(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &dispatcher->loops)
		dlist_container(DispatchLoop, link, iter.cur)->executors = 0;
	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			/* jobs of one slot are of one loop: counted once */
			if (job_tracks[i][j].entity != NULL)
			{
				job_tracks[i][j].loop->executors++;
				break;
			}
		}
	}
}

/*
 * The entity that an executor would run next, or NULL.  In a loop for outside
 * workers that is the resync alone, if the loop has a lister.
 */
static DueEntity *
next_entity(const DispatchLoop *loop)
{
	DueEntity  *entity = NULL;

	if (loop->due->nready == 0)
		return NULL;
	if (loop->rules.reconciler[0] != '\0')
		entity = due_first(loop->due);
	else if (loop->rules.lister[0] != '\0')
	{
		entity = due_find(dispatcher->due, loop->due, "");
		if (entity != NULL && entity->state != DUE_READY)
			entity = NULL;
	}
	return suspects_choose(loop, entity);
}

void
handout_count_unbegun(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		loop->unbegun = 0;
		loop->unbegun_since = 0;
	}
	for (int i = 0; i < engine->nslots; i++)
	{
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			DispatchLoop *loop = job_tracks[i][j].loop;
			const ExecJob *job = &engine_slot(i)->jobs[j];

			if (job_tracks[i][j].entity == NULL || job->state != JOB_ASSIGNED)
				continue;
			loop->unbegun++;
			if (loop->unbegun_since == 0 || job->ready_at < loop->unbegun_since)
				loop->unbegun_since = job->ready_at;
		}
	}
}

static void
job_assign(int i, int j, DispatchLoop *loop, TimestampTz now)
{
	ExecSlot   *slot = engine_slot(i);
	ExecJob    *job = &slot->jobs[j];
	JobTrack   *track = &job_tracks[i][j];
	MarkRef    *list;

	TEST_POINT("dispatcher-before-intent");
	track->entity = next_entity(loop);
	due_take(dispatcher->due, track->entity, now, DUE_LIST_MAX, &list, &job->nmarks);
	track->loop = loop;
	track->cancelled_at = track->vanished_at = 0;
	memcpy(job->marks, list, sizeof(MarkRef) * job->nmarks);
	pfree(list);
	job->rules = loop->rules;
	strlcpy(job->holder_id, dispatcher->holder_id, sizeof(job->holder_id));
	job->epoch = loop->leading ? loop->epoch : 0;
	strlcpy(job->entity_id, track->entity->entity_id, sizeof(job->entity_id));
	job->ready_at = track->entity->due_at;
	job->keep_marks = suspects_keep_marks(loop, track->entity->entity_id, now);
	job->has_look = false;

	SpinLockAcquire(&slot->mutex);
	job->run = ++slot->next_run;
	job->state = JOB_ASSIGNED;
	SpinLockRelease(&slot->mutex);
	engine_set_latch(slot->procno, slot->pid);
	TEST_POINT("dispatcher-after-intent");
}

/* An executor of the role with nothing to do, or -1. */
static int
find_idle(Oid role)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		if (pool_takes_jobs(slot) && slot->role == role && jobs_at(i) == 0)
			return i;
	}
	return -1;
}

static bool
loop_wants_executor(const DispatchLoop *loop, TimestampTz now)
{
	return loop->executors < loop->rules.concurrency && next_entity(loop) != NULL &&
		dispatcher_loop_runs(loop, now);
}

/*
 * Of the loops that want an executor, and of the role (InvalidOid: of any) the one
 * that has the fewest, and among those the one that was served longest ago.
 */
static DispatchLoop *
neediest_loop(Oid role, bool idle, TimestampTz now)
{
	DispatchLoop *neediest = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if ((neediest == NULL || loop->executors < neediest->executors) &&
			(role == InvalidOid || loop->rules.owner == role) &&
			loop_wants_executor(loop, now) && (!idle || find_idle(loop->rules.owner) >= 0))
			neediest = loop;
	}
	return neediest;
}

static void
assign_to_idle(TimestampTz now)
{
	DispatchLoop *loop;

	while ((loop = neediest_loop(InvalidOid, true, now)) != NULL)
	{
		job_assign(find_idle(loop->rules.owner), 0, loop, now);
		loop->executors++;
		/* now it was served last */
		dlist_delete(&loop->link);
		dlist_push_tail(&dispatcher->loops, &loop->link);
	}
}

/*
 * Gives busy executors of loops with short runs one more.  Where another loop has
 * less than its share of the executors, the next that ends its run is for that.
 */
static void
assign_ahead(TimestampTz now)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);
		DispatchLoop *loop;
		DispatchLoop *other;
		int			used;

		if (!pool_takes_jobs(slot) || jobs_at(i) != 1)
			continue;
		used = job_tracks[i][0].entity != NULL ? 0 : 1;
		loop = job_tracks[i][used].loop;
		if (next_entity(loop) == NULL || loop->run_us >= SHORT_RUN_US ||
			loop->executors < loop->rules.concurrency || !dispatcher_loop_runs(loop, now) ||
			job_tracks[i][used].cancelled_at != 0)
			continue;
		other = neediest_loop(slot->role, false, now);
		if (other == NULL || (other->executors > 0 && other->executors + 1 >= loop->executors))
			job_assign(i, 1 - used, loop, now);
	}
}

/* What comes due while a job waits to be begun is answered by it: one run, not two. */
static void
job_extend(int i, int j, TimestampTz now)
{
	ExecSlot   *slot = engine_slot(i);
	ExecJob    *job = &slot->jobs[j];
	MarkRef    *refs;
	int			n = due_more(job_tracks[i][j].entity, now, DUE_LIST_MAX - job->nmarks, &refs);
	bool		extended = false;

	if (n == 0)
		return;
	SpinLockAcquire(&slot->mutex);
	if (job->state == JOB_ASSIGNED)
	{
		memcpy(&job->marks[job->nmarks], refs, sizeof(MarkRef) * n);
		job->nmarks += n;
		extended = true;
	}
	SpinLockRelease(&slot->mutex);
	if (extended)
		due_take_more(job_tracks[i][j].entity, refs, n);
	pfree(refs);
}

/*
 * Looks after jobs that are not begun: takes back what waits behind a run when
 * its loop stands still or an executor is idle, and brings the others up to date.
 */
static void
tend_waiting(TimestampTz now)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		if (jobs_at(i) < 1 || !pool_is_mine(engine_slot(i)))
			continue;
		for (int j = 0; j < EXEC_JOBS; j++)
		{
			DispatchLoop *loop = job_tracks[i][j].loop;

			if (job_tracks[i][j].entity == NULL || engine_slot(i)->jobs[j].state != JOB_ASSIGNED)
				continue;
			if (!dispatcher_loop_runs(loop, now) ||
				(jobs_at(i) > 1 && loop->due->nready == 0 &&
				 loop->executors < loop->rules.concurrency && find_idle(loop->rules.owner) >= 0))
				(void) job_recall(i, j, now);
			else
				job_extend(i, j, now);
		}
	}
}

/* ----------------------------------------------------------------
 * Executors
 * ----------------------------------------------------------------
 */

static void
start_executors(TimestampTz now)
{
	dlist_iter	iter;

	pool_turn_begins();
	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);
		int64		wanted;

		if (loop->due->nready > 0 && loop->suspended_until > now)
			dispatcher_wake_at(loop->suspended_until);
		if (!loop_wants_executor(loop, now))
			continue;
		wanted = loop->rules.reconciler[0] != '\0' ? loop->due->nready : 1;
		wanted = Min(wanted, loop->rules.concurrency - loop->executors) - pool_starting(loop->rules.owner);
		while (wanted-- > 0 && pool_start(loop->rules.owner, now))
			;
	}
	pool_turn_ends();
}

void
handout_assign(void)
{
	TimestampTz now = clock_now();

	count_executors();
	suspects_tend(now);
	tend_waiting(now);
	assign_to_idle(now);
	assign_ahead(now);
	start_executors(now);
}

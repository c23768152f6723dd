/*
 * lend_answer.c
 *		Lending, the dispatcher's side.
 */
#include "postgres.h"

#include "core/duration.h"
#include "engine/dispatcher.h"
#include "engine/lend_shmem.h"

#define IN_FLIGHT_LOOK_MS	1000	/* when a worker should ask again, while nothing else waits */

/* What is lent by us. */
typedef struct LentTrack
{
	DueEntity  *entity;
	DispatchLoop *loop;
	int			lent;
} LentTrack;

static LentTrack *tracks;
static int	ntracks = 0;
static int	tracks_size = 0;
static uint32 ended_seen;
static bool orphans;			/* of an earlier dispatcher, some are still out */
static uint64 asked[LEND_REQUESTS]; /* number of the question that we saw, 0 = none */

static uint32
ended(void)
{
	return pg_atomic_read_u32(&lend_shared->ended[dispatcher->index]);
}

static void
free_lent(int index)
{
	pg_atomic_write_u32(&lend_shared->lent[index].state, LENT_FREE);
	SpinLockAcquire(&lend_shared->mutex);
	lend_shared->free[lend_shared->nfree++] = index;
	SpinLockRelease(&lend_shared->mutex);
}

/* -1: too many are out. */
static int
take_lent(void)
{
	int			index = -1;

	SpinLockAcquire(&lend_shared->mutex);
	if (lend_shared->nfree > 0)
		index = lend_shared->free[--lend_shared->nfree];
	SpinLockRelease(&lend_shared->mutex);
	if (index >= 0)
	{
		lend_shared->lent[index].database_index = dispatcher->index;
		lend_shared->lent[index].dispatcher = dispatcher->generation;
		pg_write_barrier();
		pg_atomic_write_u32(&lend_shared->lent[index].state, LENT_OUT);
	}
	return index;
}

/* What a dead dispatcher lent is freed by us when it comes back. */
static void
collect_orphans(void)
{
	orphans = false;
	for (int i = 0; i < LEND_LENT; i++)
	{
		Lent	   *lent = &lend_shared->lent[i];
		uint32		state = pg_atomic_read_u32(&lent->state);

		if (state == LENT_FREE || lent->database_index != dispatcher->index ||
			lent->dispatcher == dispatcher->generation)
			continue;
		if (state == LENT_OUT)
			orphans = true;
		else
			free_lent(i);
	}
}

/* The answer is whole: hands it over, unless nobody wants it any more. */
static void
hand_over(LendRequest *request)
{
	bool		abandoned;

	SpinLockAcquire(&request->mutex);
	abandoned = request->abandoned;
	if (!abandoned)
		request->state = REQUEST_ANSWERED;
	SpinLockRelease(&request->mutex);
	if (!abandoned)
	{
		engine_set_latch(request->procno, request->pid);
		return;
	}
	lend_end_answer(request);
	SpinLockAcquire(&request->mutex);
	request->state = REQUEST_FREE;
	SpinLockRelease(&request->mutex);
	ConditionVariableSignal(&lend_shared->request_free);
}

void
lend_dispatcher_init(void)
{
	/* an earlier one may have died over an answer */
	for (int i = 0; i < LEND_REQUESTS; i++)
	{
		LendRequest *request = &lend_shared->requests[i];

		if (request->state == REQUEST_FILLING && request->database == dispatcher->db->database)
			hand_over(request);
	}
	ended_seen = ended();
	pg_read_barrier();
	collect_orphans();
}

void
lend_collect(void)
{
	TimestampTz now = clock_now();
	uint32		seen;
	int			kept = 0;

	for (int i = 0; i < LEND_REQUESTS; i++)
	{
		LendRequest *request = &lend_shared->requests[i];

		asked[i] = 0;
		if (request->state != REQUEST_ASKED || request->database != dispatcher->db->database)
			continue;
		SpinLockAcquire(&request->mutex);
		if (request->state == REQUEST_ASKED && request->database == dispatcher->db->database)
			asked[i] = request->number;
		SpinLockRelease(&request->mutex);
	}

	/* after the questions: what who asks gave back before is found */
	seen = ended();
	if (seen == ended_seen)
		return;
	ended_seen = seen;
	pg_read_barrier();
	for (int i = 0; i < ntracks; i++)
	{
		Lent	   *lent = &lend_shared->lent[tracks[i].lent];
		uint32		state = pg_atomic_read_u32(&lent->state);

		pg_read_barrier();
		if (state == LENT_OUT)
		{
			tracks[kept++] = tracks[i];
			continue;
		}
		if (state == LENT_ANSWERED)
			due_answered(dispatcher->due, tracks[i].entity, NULL, now);
		else
			due_return(dispatcher->due, tracks[i].entity, lent->until, now);
		free_lent(tracks[i].lent);
	}
	ntracks = kept;
	if (orphans)
		collect_orphans();
}

bool
lend_has(const struct DispatchLoop *loop)
{
	for (int i = 0; i < ntracks; i++)
	{
		if (tracks[i].loop == loop)
			return true;
	}
	return false;
}

/* ----------------------------------------------------------------
 * Answering
 * ----------------------------------------------------------------
 */

static DueEntity *
first_for_workers(const DispatchLoop *loop)
{
	DueEntity  *entity = due_first(loop->due);

	/* the resync of a loop with a lister is not theirs */
	if (entity != NULL && loop_is_resync(&loop->rules, entity->entity_id))
		entity = due_after(entity);
	return entity;
}

static void
note_track(DispatchLoop *loop, DueEntity *entity, int lent)
{
	if (ntracks == tracks_size)
	{
		tracks_size = Max(256, tracks_size * 2);
		tracks = tracks == NULL ? MemoryContextAlloc(dispatcher->context, sizeof(LentTrack) * tracks_size) :
			repalloc(tracks, sizeof(LentTrack) * tracks_size);
	}
	tracks[ntracks].loop = loop;
	tracks[ntracks].entity = entity;
	tracks[ntracks++].lent = lent;
}

/* Lends one; false: nothing more is ready, or there is no room. */
static bool
lend_one(LendRequest *request, DispatchLoop *loop, TimestampTz now)
{
	DueEntity  *entity = first_for_workers(loop);
	LendItem   *item = (LendItem *) ((char *) request->reply + request->used);
	MarkRef    *list;
	Size		size;
	int			nmarks;
	int			lent;

	if (entity == NULL)
		return false;
	size = MAXALIGN(offsetof(LendItem, marks) + sizeof(MarkRef) * Min(entity->nmarks, DUE_LIST_MAX) +
					strlen(entity->entity_id) + 1);
	if (request->used + size > LEND_REPLY || (lent = take_lent()) < 0)
		return false;

	due_take(dispatcher->due, entity, now, DUE_LIST_MAX, &list, &nmarks);
	item->lent = lent;
	item->size = (int) size;
	item->nmarks = nmarks;
	memcpy(item->marks, list, sizeof(MarkRef) * nmarks);
	memcpy(&item->marks[nmarks], entity->entity_id, strlen(entity->entity_id) + 1);
	pfree(list);
	note_track(loop, entity, lent);
	request->n++;
	request->used += size;
	return true;
}

static void
fill_answer(LendRequest *request, TimestampTz now)
{
	DispatchLoop *loop = dispatcher_find_loop(request->loop_name);

	request->n = 0;
	request->used = 0;
	request->next_due = DT_NOEND;
	if (loop == NULL || !loop->rules.enabled || loop->rules.paused)
		return;
	while (request->n < request->wanted && lend_one(request, loop, now))
		;
	request->next_due = first_for_workers(loop) != NULL ? DT_NOBEGIN : due_loop_next(loop->due);
	/* what is in flight may come back */
	if (loop->due->nrunning > 0)
		request->next_due = Min(request->next_due, clock_add_ms(now, IN_FLIGHT_LOOK_MS));
}

void
lend_answer(bool caught_up)
{
	TimestampTz now = clock_now();

	/* otherwise the next turn sees them again */
	for (int i = 0; caught_up && i < LEND_REQUESTS; i++)
	{
		LendRequest *request = &lend_shared->requests[i];
		bool		still;

		if (asked[i] == 0)
			continue;
		SpinLockAcquire(&request->mutex);
		still = request->state == REQUEST_ASKED && request->number == asked[i] &&
			request->database == dispatcher->db->database;
		if (still)
			request->state = REQUEST_FILLING;
		SpinLockRelease(&request->mutex);
		if (!still)
			continue;
		fill_answer(request, now);
		hand_over(request);
	}
}

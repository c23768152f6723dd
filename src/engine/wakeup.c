/*
 * wakeup.c
 *		From a committed transaction to its database's dispatcher.
 *
 * Called at commit, when the rows are visible to others: a message is a hint to
 * look at them.  If the ring is full the dispatcher is told to read everything.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "core/duration.h"
#include "core/testpoint.h"
#include "engine/shmem.h"
#include "engine/wakeup.h"

static void
push(EngineDatabase *db, WakeMark *ring, const WakeMark *mark)
{
	if (db->head - db->tail >= (uint64) engine->ring_size)
	{
		db->rescan = true;
		db->overflows++;
		db->overflowed_at = clock_now();
		return;
	}
	ring[db->head % engine->ring_size] = *mark;
	db->head++;
}

static void
push_list(EngineDatabase *db, WakeMark *ring, const WakeList *list, bool gone)
{
	for (int i = 0; i < list->n; i++)
		push(db, ring, &list->marks[i]);
	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		WakeMark	range;

		if (!list->ranged[i])
			continue;
		range.gone = gone;
		range.segment = i;
		range.offset = InvalidOffsetNumber;
		range.block = list->first_block[i];
		range.last_block = list->last_block[i];
		push(db, ring, &range);
	}
}

/* A loop came up where no dispatcher is: the launcher is to start one. */
static void
want_dispatcher(void)
{
	int			index;
	bool		wake = false;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	index = engine_make_database(MyDatabaseId);
	if (index >= 0)
	{
		EngineDatabase *db = &engine->databases[index];

		if (db->state != DATABASE_RUNNING)
		{
			db->wanted_again = true;
			db->start_after = 0;
			wake = true;
		}
	}
	LWLockRelease(&engine->lock);
	if (wake)
		engine_wake_launcher();
}

void
wakeup_send(const Wake *wake, bool prepared)
{
	int			index = engine_my_database();
	EngineDatabase *db;
	WakeMark   *ring;

	if (wake->leases && !prepared)
		ConditionVariableBroadcast(&engine->lease_changed);
	if (index < 0 || engine->databases[index].state != DATABASE_RUNNING)
	{
		/* whoever starts there reads all marks: only a changed loop is news */
		if (wake->reload && !prepared)
			want_dispatcher();
		return;
	}

	db = &engine->databases[index];
	ring = engine_ring(index);
	TEST_POINT("session-before-outcome");
	LWLockAcquire(&db->ring_lock, LW_EXCLUSIVE);
	if (db->database != MyDatabaseId)
		;						/* it left, and the entry is another's by now */
	else if (prepared)
		db->prepared = true;
	else
	{
		push_list(db, ring, &wake->made, false);
		push_list(db, ring, &wake->gone, true);
		db->reload |= wake->reload;
		db->stale |= wake->reload;
		db->leases |= wake->leases;
		db->terms |= wake->terms;
		db->rescan |= wake->rescan;
	}
	LWLockRelease(&db->ring_lock);
	engine_wake_dispatcher(index);

	/* it may have left between our look and our message */
	if (wake->reload && !prepared && (db->database != MyDatabaseId || db->state != DATABASE_RUNNING))
		want_dispatcher();
}

int
wakeup_current_segment(void)
{
	int			index = engine_my_database();

	return index >= 0 ? (int) pg_atomic_read_u32(&engine->databases[index].segment) : 0;
}

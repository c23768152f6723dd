/*
 * publish.c
 *		What the dispatcher shows of its database, and whom it tells of work.
 *
 * At the end of a turn the counts of each loop go to shared memory, where they
 * changed.  Whoever wants them as of now asks for a look and waits for the end
 * of a turn that began after that.
 */
#include "postgres.h"

#include "commands/async.h"
#include "miscadmin.h"
#include "storage/condition_variable.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/guc.h"
#include "engine/dispatcher.h"
#include "engine/engine.h"
#include "engine/process.h"
#include "engine/runlog.h"
#include "loop/dead.h"

#define RECOUNT_MIN_MS		100		/* somebody was changing who is dead */
#define RECOUNT_MAX_MS		5000
#define NOTIFY_RETRY_MS		1000
#define LOOK_TIMEOUT_MS		1000	/* a dispatcher that is that busy shows what it last did */
#define NOTIFY_CHANNEL		"reconcile"

static uint64 asked = 0;		/* looks that the turn in progress answers */
static TimestampTz recount_at = 0;
static int64 recount_ms = 0;
static TimestampTz notify_at = 0;	/* after one failed */

/* ----------------------------------------------------------------
 * Counts
 * ----------------------------------------------------------------
 */

void
publish_turn_begins(void)
{
	asked = pg_atomic_read_u64(&dispatcher->db->looks_asked);
	/* what it shows is read after it was asked for */
	pg_memory_barrier();
}

static LoopGauges
gauges_of(const DispatchLoop *loop)
{
	DueEntity  *oldest = due_first(loop->due);
	LoopGauges	gauges;

	/* compared by its bytes */
	memset(&gauges, 0, sizeof(gauges));
	gauges.dispatcher = dispatcher->generation;
	gauges.ready = loop->due->nready + loop->unbegun;
	gauges.claimed = loop->due->nclaimed;
	gauges.running = loop->due->nrunning - loop->unbegun + gauges.claimed;
	gauges.retrying = loop->due->nretrying;
	gauges.waiting = loop->due->nwaiting - gauges.retrying - gauges.claimed;
	gauges.oldest_due_at = loop->unbegun_since;
	if (oldest != NULL && (loop->unbegun == 0 || oldest->due_at < loop->unbegun_since))
		gauges.oldest_due_at = oldest->due_at;
	gauges.suspended_until = loop->suspended_until;
	return gauges;
}

static void
publish_loop(DispatchLoop *loop)
{
	LoopGauges	gauges = gauges_of(loop);

	if (memcmp(&gauges, &loop->published, sizeof(gauges)) != 0)
	{
		stats_gauges(loop->rules.loop_name, &gauges);
		loop->published = gauges;
	}
	if (loop->due->coalesced > loop->skipped_told)
	{
		stats_skipped(loop->rules.loop_name, loop->due->coalesced - loop->skipped_told);
		loop->skipped_told = loop->due->coalesced;
	}
}

static void
publish_loops(void)
{
	dlist_iter	iter;

	handout_count_unbegun();
	dlist_foreach(iter, &dispatcher->loops)
		publish_loop(dlist_container(DispatchLoop, link, iter.cur));
	dispatcher->db->complete = !dispatcher->reload_owed && !dispatcher->rescan_owed;
}

static void
answer_looks(void)
{
	EngineDatabase *db = dispatcher->db;

	/* what is left in the ring is for the next turn, which answers the look then */
	if (!dispatcher->ring_emptied || pg_atomic_read_u64(&db->looks_done) == asked)
		return;
	pg_memory_barrier();
	pg_atomic_write_u64(&db->looks_done, asked);
	ConditionVariableBroadcast(&db->looked);
}

static void
recount(void *arg)
{
	*(bool *) arg = dead_count(stats_dead_begin, stats_dead_found);
}

/* Counts the dead, where that is owed, as soon as nobody is changing who is. */
static void
tend_dead(TimestampTz now)
{
	bool		counted = false;

	if (!dispatcher->recount_owed)
		return;
	if (now >= recount_at)
	{
		if (process_transaction(recount, &counted) && counted)
		{
			dispatcher->recount_owed = false;
			recount_ms = 0;
			return;
		}
		recount_ms = recount_ms == 0 ? RECOUNT_MIN_MS : Min(recount_ms * 2, RECOUNT_MAX_MS);
		recount_at = clock_add_ms(now, recount_ms);
	}
	dispatcher_wake_at(recount_at);
}

/* ----------------------------------------------------------------
 * NOTIFY
 * ----------------------------------------------------------------
 */

/* Work for outside workers came due, and nobody was told of it. */
static bool
is_news(const DispatchLoop *loop)
{
	return loop->due->arrivals != loop->arrivals_told && loop->rules.reconciler[0] == '\0' &&
		loop->rules.enabled && !loop->rules.paused;
}

static void
notify(void *arg)
{
	dlist_iter	iter;

	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (is_news(loop))
			Async_Notify(NOTIFY_CHANNEL, loop->rules.loop_name);
	}
}

/* One transaction, with one message for each loop. */
static void
tell_outside_workers(TimestampTz now)
{
	bool		news = false;
	dlist_iter	iter;

	if (!guc_notify)
		return;
	dlist_foreach(iter, &dispatcher->loops)
		news |= is_news(dlist_container(DispatchLoop, link, iter.cur));
	if (!news)
		return;
	if (now < notify_at || !process_transaction(notify, NULL))
	{
		notify_at = Max(notify_at, clock_add_ms(now, NOTIFY_RETRY_MS));
		dispatcher_wake_at(notify_at);
		return;
	}
	notify_at = 0;
	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		loop->arrivals_told = loop->due->arrivals;
	}
}

/* ----------------------------------------------------------------
 * For the dispatcher, and for readers
 * ----------------------------------------------------------------
 */

void
publish_turn_ends(TimestampTz now)
{
	publish_loops();
	/* a loop that is new has its slot now */
	tend_dead(now);
	tell_outside_workers(now);
	answer_looks();
}

static void
open_runlog(void *arg)
{
	runlog_open(dispatcher->index);
}

void
publish_open(void)
{
	/* without it the runs are not kept, and all else goes on */
	(void) process_transaction(open_runlog, NULL);
}

bool
engine_look(void)
{
	static uint32 event = 0;
	int			index = engine_my_database();
	EngineDatabase *db;
	TimestampTz give_up = clock_add_ms(clock_now(), LOOK_TIMEOUT_MS);
	uint64		mine;

	if (index < 0)
		return false;
	db = &engine->databases[index];
	if (db->database != MyDatabaseId || db->state != DATABASE_RUNNING)
		return false;
	if (event == 0)
		event = compat_wait_event("ReconcileLook");
	mine = pg_atomic_add_fetch_u64(&db->looks_asked, 1);
	engine_wake_dispatcher(index);
	while (pg_atomic_read_u64(&db->looks_done) < mine && db->state == DATABASE_RUNNING &&
		   clock_now() < give_up)
		(void) ConditionVariableTimedSleep(&db->looked, LOOK_TIMEOUT_MS, event);
	ConditionVariableCancelSleep();
	return db->database == MyDatabaseId && db->state == DATABASE_RUNNING && db->complete;
}

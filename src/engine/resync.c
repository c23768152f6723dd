/*
 * resync.c
 *		The tickers of loops with "resync_every".
 *
 * A tick marks the empty id.  The first is due as soon as the loop runs: at the
 * dispatcher's start, at the take-over of its lease, when it is made; then one
 * in every interval.  Of ticks that fall together, and of those that come while
 * one waits to be answered, nothing remains but one.
 */
#include "postgres.h"

#include "access/xact.h"

#include "core/duration.h"
#include "engine/dispatcher.h"
#include "engine/process.h"

#define RETRY_MS	1000

typedef struct Ticks
{
	int			n;
	DispatchLoop **loops;
	MarkRef    *refs;
} Ticks;

static void
mark_ticks(void *arg)
{
	Ticks	   *ticks = arg;

	for (int i = 0; i < ticks->n; i++)
		mark_insert(ticks->loops[i]->rules.loop_name, "", MARK_RESYNC, clock_now(), false, &ticks->refs[i]);
	/* a lister that crashes the server is known by its mark, and ticks again in the next life */
	ForceSyncCommit();
}

/* Is a tick due?  Otherwise notes when. */
static bool
ticks_now(DispatchLoop *loop, TimestampTz now)
{
	const LoopRules *rules = &loop->rules;
	DueEntity  *entity;

	if (rules->resync_every_ms < 0 || !rules->enabled || (loop_leads(rules) && !loop->leading))
	{
		loop->resync_at = 0;
		return false;
	}
	if (rules->paused)
		return false;
	/* the interval may have become shorter */
	loop->resync_at = Min(loop->resync_at, clock_add_ms(now, rules->resync_every_ms));
	if (loop->resync_at > now)
	{
		dispatcher_wake_at(loop->resync_at);
		return false;
	}
	entity = due_find(dispatcher->due, loop->due, "");
	if (entity == NULL || !due_asked(entity, now))
		return true;
	loop->resync_at = clock_add_ms(now, rules->resync_every_ms);
	dispatcher_wake_at(loop->resync_at);
	return false;
}

void
resync_tend(TimestampTz now)
{
	Ticks		ticks = {0};
	int64		every_ms;
	bool		marked;
	int			count = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &dispatcher->loops)
		count++;
	ticks.loops = palloc(sizeof(DispatchLoop *) * Max(count, 1));
	ticks.refs = palloc(sizeof(MarkRef) * Max(count, 1));
	dlist_foreach(iter, &dispatcher->loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (ticks_now(loop, now))
			ticks.loops[ticks.n++] = loop;
	}
	if (ticks.n == 0)
		return;

	marked = process_transaction(mark_ticks, &ticks);
	for (int i = 0; i < ticks.n; i++)
	{
		DispatchLoop *loop = ticks.loops[i];

		every_ms = marked ? loop->rules.resync_every_ms : RETRY_MS;
		loop->resync_at = clock_add_ms(now, every_ms);
		dispatcher_wake_at(loop->resync_at);
		if (marked)
			due_add(dispatcher->due, loop->due, "", &ticks.refs[i], now);
	}
}

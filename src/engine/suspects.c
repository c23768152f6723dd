/*
 * suspects.c
 *		Runs that took the server down: booked when it is back, and run alone.
 *
 * What crash.c suspects in our database is booked before the marks are read for
 * the first time, so none of it is given out uncounted.  Each is known by the
 * number of a mark: once that is answered or booked nothing is found, so a crash
 * between the booking and the clearing of the cell counts nothing twice.  Nor is
 * anything found of a mark that had committed asynchronously: it is lost.  What
 * comes again, as a look that a lost run has left, would crash for ever uncounted;
 * so the runs of that loop, for a while, and those of suspects first make their marks
 * durable.
 *
 * An entity whose last run took the server down runs again with nothing beside
 * it: should it do it once more, nobody else loses his work, and should its memory
 * or the kernel's choice have hit the wrong process, the right one is found.  That
 * costs others their time, so it is bounded: executors drain for 5 s at most, all
 * of it takes 10 s at most, and what it took others have before the next one.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/builtins.h"

#include "core/duration.h"
#include "core/plan.h"
#include "engine/crash.h"
#include "engine/dispatcher.h"
#include "engine/process.h"

#define RETRY_MS			1000	/* after a booking failed: its loop waits meanwhile */
#define DRAIN_MS			5000
#define ALONE_MS			10000
#define DRAIN_LOOK_MS		20
#define KEEP_MARKS_MS		600000	/* what is due in the new life has run by then */

/* ----------------------------------------------------------------
 * Booking
 * ----------------------------------------------------------------
 */

typedef struct Booking
{
	CrashNote	note;
	const LoopRules *rules;
	LoopRun		run;
	bool		busy;			/* somebody runs it at this moment */
	bool		booked;			/* false: it was answered, or is booked already */
} Booking;

static void
book(void *arg)
{
	Booking    *booking = arg;

	booking->busy = !dispatcher_book_lock(booking->rules->loop_name, booking->note.entity_id);
	if (booking->busy)
		return;
	booking->run.rules = booking->rules;
	booking->run.entity_id = booking->note.entity_id;
	booking->booked = run_book_crash(&booking->run, booking->note.mark);
	/* the note is cleared after it: it may not be lost in the next crash */
	ForceSyncCommit();
}

static void
observe(const Booking *booking, TimestampTz now)
{
	RunObserved observed = {
		.loop_name = booking->rules->loop_name,
		.entity_id = booking->note.entity_id,
		.started_at = booking->note.started_at,
		.ended_at = now,
		.result = booking->run.result,
		.sqlstate = booking->run.sqlstate,
		.attempt = booking->run.attempt,
		.pid = booking->note.pid
	};

	run_expected_hook();
	run_observed_hook(&observed);
}

/* Books a suspect, and settles it; false: look again later. */
static bool
settle(int n, const CrashNote *note, TimestampTz now)
{
	DispatchLoop *loop = dispatcher_find_loop(note->loop_name);
	Booking		booking = {*note};

	if (loop != NULL)
	{
		booking.rules = &loop->rules;
		if (!process_transaction(book, &booking) || booking.busy)
		{
			loop->uncounted_until = clock_add_ms(now, RETRY_MS);
			return false;
		}
		if (booking.booked)
			observe(&booking, now);
		else
			loop->keep_marks_until = clock_add_ms(now, KEEP_MARKS_MS);
		dispatcher->rescan_owed = true;
	}
	crash_settled(n);
	return true;
}

/* ----------------------------------------------------------------
 * Those that run alone
 * ----------------------------------------------------------------
 */

typedef struct Suspect
{
	dlist_node	link;
	bool		waived;			/* it had its time alone */
	char		loop_name[RECONCILER_ID_MAX + 1];
	char		entity_id[ENTITY_ID_MAX + 1];
} Suspect;

typedef enum Hold
{
	HOLD_NONE,
	HOLD_OTHERS,				/* a suspect of another database is or will be alone */
	HOLD_DRAINING,				/* ours waits for what still runs */
	HOLD_ALONE					/* ours runs, or is to be run now */
} Hold;

static dlist_head suspects = DLIST_STATIC_INIT(suspects);
static Suspect *mine = NULL;	/* for which we hold all others up */
static Hold hold = HOLD_NONE;

static Suspect *
find_suspect(const char *loop_name, const char *entity_id)
{
	dlist_iter	iter;

	dlist_foreach(iter, &suspects)
	{
		Suspect    *suspect = dlist_container(Suspect, link, iter.cur);

		if (strcmp(suspect->entity_id, entity_id) == 0 && strcmp(suspect->loop_name, loop_name) == 0)
			return suspect;
	}
	return NULL;
}

static void
load(void *arg)
{
	static SqlPlan plan = {
		"SELECT e.loop_name, e.entity_id FROM reconcile.entity e"
		" WHERE e.crashes OPERATOR(pg_catalog.>) 0 AND e.died_of IS NULL"
		" AND e.last_sqlstate OPERATOR(pg_catalog.=) '57P02'", 0, {0}
	};
	SqlScope	scope;
	uint64		rows;

	sql_begin(&scope);
	rows = sql_run_latest(&plan, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		const char *loop_name = TextDatumGetCString(sql_value(i, 1, NULL));
		const char *entity_id = TextDatumGetCString(sql_value(i, 2, NULL));
		Suspect    *suspect;

		if (find_suspect(loop_name, entity_id) != NULL)
			continue;
		suspect = MemoryContextAllocZero(dispatcher->context, sizeof(Suspect));
		strlcpy(suspect->loop_name, loop_name, sizeof(suspect->loop_name));
		strlcpy(suspect->entity_id, entity_id, sizeof(suspect->entity_id));
		dlist_push_tail(&suspects, &suspect->link);
	}
	sql_end(&scope);
}

/* Asks that nothing else be given out in the server; false: not now. */
static bool
hold_others(TimestampTz now)
{
	bool		taken;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	taken = (engine->alone == 0 || now >= engine->alone_until) && now >= engine->alone_again;
	if (taken)
	{
		engine->alone = dispatcher->index + 1;
		engine->alone_since = now;
		engine->alone_until = clock_add_ms(now, ALONE_MS);
	}
	LWLockRelease(&engine->lock);
	return taken;
}

static void
release_others(TimestampTz now)
{
	mine = NULL;
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (engine->alone == dispatcher->index + 1)
	{
		engine->alone = 0;
		engine->alone_again = now + (now - engine->alone_since);
	}
	LWLockRelease(&engine->lock);
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (i != dispatcher->index && engine->databases[i].state == DATABASE_RUNNING)
			engine_wake_dispatcher(i);
	}
}

/* Has any executor of the server something to do? */
static bool
is_anybody_busy(void)
{
	for (int i = 0; i < engine->nslots; i++)
	{
		const ExecSlot *slot = engine_slot(i);

		for (int j = 0; slot->state != EXEC_FREE && j < EXEC_JOBS; j++)
		{
			if (slot->jobs[j].state == JOB_ASSIGNED || slot->jobs[j].state == JOB_RUNNING)
				return true;
		}
	}
	return false;
}

/* Is there a function for it?  In a loop for outside workers it is theirs. */
static bool
runs_here(const Suspect *suspect, const LoopRules *rules)
{
	return suspect->entity_id[0] == '\0' ? rules->lister[0] != '\0' : rules->reconciler[0] != '\0';
}

/* The suspect's entity, if it could be given out now, or is in flight. */
static DueEntity *
live_entity(const Suspect *suspect, TimestampTz now)
{
	DispatchLoop *loop = dispatcher_find_loop(suspect->loop_name);
	DueEntity  *entity = loop != NULL ? due_find(dispatcher->due, loop->due, suspect->entity_id) : NULL;

	if (entity == NULL || entity->state == DUE_WAITING || !runs_here(suspect, &loop->rules) ||
		(entity->state == DUE_READY && !dispatcher_loop_runs(loop, now)))
		return NULL;
	return entity;
}

/* Brings the suspect that holds others up forward. */
static void
tend_mine(TimestampTz now)
{
	if (live_entity(mine, now) == NULL)
		release_others(now);
	else if (now >= engine->alone_until)
	{
		mine->waived = true;
		release_others(now);
	}
	else if (hold == HOLD_DRAINING)
	{
		TimestampTz patience = clock_add_ms(engine->alone_since, DRAIN_MS);

		if (!is_anybody_busy() || now >= patience)
			hold = HOLD_ALONE;
		else
			dispatcher_wake_at(clock_add_ms(now, DRAIN_LOOK_MS));
	}
}

/* Not now: others of its loop are not to wait behind it. */
static void
put_off(DueEntity *entity, TimestampTz until, TimestampTz now)
{
	MarkRef    *list;
	int			n;

	due_take(dispatcher->due, entity, now, DUE_LIST_MAX, &list, &n);
	pfree(list);
	due_return(dispatcher->due, entity, until, now);
}

/* ----------------------------------------------------------------
 * For the dispatcher
 * ----------------------------------------------------------------
 */

void
suspects_book(TimestampTz now)
{
	static bool settled = false;
	static TimestampTz retry_at = 0;
	CrashNote	note;

	/* the first turn finds all: they are made when the server starts */
	if (settled)
		return;
	if (now >= retry_at)
	{
		settled = true;
		for (int n = crash_suspect(0, dispatcher->db->database, &note); n >= 0;
			 n = crash_suspect(n + 1, dispatcher->db->database, &note))
			settled &= settle(n, &note, now);
		settled &= process_transaction(load, NULL);
		retry_at = clock_add_ms(now, RETRY_MS);
	}
	if (!settled)
		dispatcher_wake_at(retry_at);
}

void
suspects_ran(const char *loop_name, const char *entity_id)
{
	Suspect    *suspect = find_suspect(loop_name, entity_id);

	if (suspect == NULL)
		return;
	if (suspect == mine)
		release_others(clock_now());
	dlist_delete(&suspect->link);
	pfree(suspect);
}

bool
suspects_keep_marks(const DispatchLoop *loop, const char *entity_id, TimestampTz now)
{
	return now < loop->keep_marks_until || find_suspect(loop->rules.loop_name, entity_id) != NULL;
}

void
suspects_tend(TimestampTz now)
{
	dlist_iter	iter;

	if (mine != NULL)
		tend_mine(now);
	if (mine != NULL)
	{
		dispatcher_wake_at(engine->alone_until);
		return;
	}
	hold = HOLD_NONE;
	/* our own is that of a dispatcher before us */
	if (engine->alone != 0 && now < engine->alone_until)
	{
		hold = HOLD_OTHERS;
		dispatcher_wake_at(engine->alone_until);
	}
	dlist_foreach(iter, &suspects)
	{
		Suspect    *suspect = dlist_container(Suspect, link, iter.cur);
		DueEntity  *entity = live_entity(suspect, now);

		if (suspect->waived || entity == NULL || entity->state != DUE_READY)
			continue;
		if (mine == NULL && hold_others(now))
		{
			mine = suspect;
			hold = HOLD_DRAINING;
			tend_mine(now);
			dispatcher_wake_at(engine->alone_until);
		}
		else
			put_off(entity, Max(engine->alone_until, engine->alone_again), now);
	}
}

DueEntity *
suspects_choose(const DispatchLoop *loop, DueEntity *entity)
{
	if (hold == HOLD_NONE)
		return entity;
	if (hold != HOLD_ALONE || mine == NULL || strcmp(mine->loop_name, loop->rules.loop_name) != 0)
		return NULL;
	entity = due_find(dispatcher->due, loop->due, mine->entity_id);
	return entity != NULL && entity->state == DUE_READY ? entity : NULL;
}

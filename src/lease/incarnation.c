/*
 * incarnation.c
 *		Reading, settling and changing the incarnation.
 *
 * Grants hold LOCK_KIND_INCARNATION in share mode until they commit, a change
 * holds it exclusively: so what a change reads of leases is all that was granted
 * before it, and each later grant sees its floor.  Renewals need no such lock, as
 * a change that voids live terms takes their rows; but those of sessions, which are
 * many and in use by hosts that may hang: they are void by the floor, and whoever
 * renews one at this moment has renewed nothing.  Who accepts a session is granted
 * its lease, so a change does wait for a host that hangs with that, and whoever asks
 * for a grant meanwhile finds the lock taken.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "core/wake.h"
#include "fence/fence.h"
#include "lease/incarnation.h"
#include "lease/lease_row.h"

/* Ordinary epochs are below it for two centuries; an outside order may have led one id above. */
#define ORDINARY_EPOCHS		(INT64CONST(1) << 53)

#define EPOCHS_PER_SECOND	(INT64CONST(1) << 20)
#define KEPT				1000	/* rows */

void		(*incarnation_bumped_hook) (void) = NULL;

enum
{
	PLAN_LAST,
	PLAN_PAST,
	PLAN_HIGHEST,
	PLAN_LOCK_ALL,
	PLAN_END_LIVE,
	PLAN_END_OVER,
	PLAN_INSERT,
	PLAN_TRIM,
	PLAN_LOSE
};

static SqlPlan plans[] = {
	[PLAN_LAST] = {
		"SELECT incarnation, home, timeline, epoch_floor, since, reason FROM reconcile.incarnation"
		" ORDER BY incarnation DESC, home OPERATOR(pg_catalog.=) $1 DESC LIMIT 1",
		1, {TEXTOID}
	},
	/* is anything here older than the first grant? */
	[PLAN_PAST] = {
		"SELECT EXISTS (SELECT FROM reconcile.lease) OR EXISTS (SELECT FROM reconcile.lease_term)"
		" OR EXISTS (SELECT FROM reconcile.loop WHERE home OPERATOR(pg_catalog.<>) $1)"
		" OR EXISTS (SELECT FROM reconcile.desired_state)",
		1, {TEXTOID}
	},
	[PLAN_HIGHEST] = {
		"SELECT GREATEST("
		"(SELECT pg_catalog.max(epoch) FROM reconcile.lease WHERE epoch OPERATOR(pg_catalog.<) $1),"
		"(SELECT pg_catalog.max(epoch) FROM reconcile.lease_term WHERE epoch OPERATOR(pg_catalog.<) $1),"
		" 0)",
		1, {INT8OID}
	},
	/* in the order of who renews many */
	[PLAN_LOCK_ALL] = {
		"SELECT FROM reconcile.lease WHERE " LEASE_NAMED " ORDER BY reconciler_id FOR NO KEY UPDATE", 0, {0}
	},
	[PLAN_END_LIVE] = {
		"WITH ended AS (UPDATE reconcile.lease SET expires_at = $1, touched_at = $1"
		" WHERE expires_at OPERATOR(pg_catalog.>) $1 AND " LEASE_NAMED " RETURNING reconciler_id, epoch)"
		" UPDATE reconcile.lease_term t SET ended_at = $1, end_reason = 'incarnation' FROM ended e"
		" WHERE t.reconciler_id OPERATOR(pg_catalog.=) e.reconciler_id"
		" AND t.epoch OPERATOR(pg_catalog.=) e.epoch AND t.ended_at IS NULL",
		1, {TIMESTAMPTZOID}
	},
	[PLAN_END_OVER] = {
		"UPDATE reconcile.lease_term t SET ended_at = l.expires_at, end_reason = 'expired'"
		" FROM (SELECT reconciler_id, epoch, expires_at FROM reconcile.lease WHERE " LEASE_NAMED ") l"
		" WHERE t.ended_at IS NULL AND l.reconciler_id OPERATOR(pg_catalog.=) t.reconciler_id"
		" AND l.epoch OPERATOR(pg_catalog.=) t.epoch AND l.expires_at OPERATOR(pg_catalog.<=) $1",
		1, {TIMESTAMPTZOID}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.incarnation (incarnation, home, timeline, epoch_floor, since, reason)"
		" VALUES ($1, $2, $3, $4, $5, $6)",
		6, {INT8OID, TEXTOID, INT4OID, INT8OID, TIMESTAMPTZOID, TEXTOID}
	},
	[PLAN_TRIM] = {
		"DELETE FROM reconcile.incarnation WHERE incarnation OPERATOR(pg_catalog.<=) $1"
		" AND incarnation OPERATOR(pg_catalog.>) 0",
		1, {INT8OID}
	},
	[PLAN_LOSE] = {
		"UPDATE reconcile.lease SET timeline = 0 WHERE epoch OPERATOR(pg_catalog.>=) $1", 1, {INT8OID}
	}
};

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

/* With a snapshot, or the newest where it is NULL. */
static uint64
run_at(int plan, Datum *values, Snapshot snapshot)
{
	return snapshot == NULL ? sql_run_latest(&plans[plan], values, NULL) :
		sql_run_snapshot(&plans[plan], values, NULL, snapshot);
}

/* The last one that was stored.  Without any row, one that is nowhere. */
static void
read_last_at(Incarnation *last, Snapshot snapshot)
{
	SqlScope	scope;
	Datum		value;

	memset(last, 0, sizeof(*last));
	last->reason = "";
	sql_begin(&scope);
	value = CStringGetTextDatum(home_here()->place);
	if (run_at(PLAN_LAST, &value, snapshot) > 0)
	{
		last->number = DatumGetInt64(sql_value(0, 1, NULL));
		text_to_cstring_buffer(DatumGetTextPP(sql_value(0, 2, NULL)), last->place, sizeof(last->place));
		last->timeline = DatumGetInt32(sql_value(0, 3, NULL));
		last->floor = DatumGetInt64(sql_value(0, 4, NULL));
		last->since = DatumGetTimestampTz(sql_value(0, 5, NULL));
		last->reason = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 6, NULL)));
	}
	sql_end(&scope);
}

static void
read_last(Incarnation *last)
{
	read_last_at(last, NULL);
}

static bool
has_past(void)
{
	Datum		value = CStringGetTextDatum(home_here()->place);

	return DatumGetBool(sql_ask(&plans[PLAN_PAST], &value));
}

static int64
highest_epoch(void)
{
	Datum		value = Int64GetDatum(ORDINARY_EPOCHS);

	return DatumGetInt64(sql_ask(&plans[PLAN_HIGHEST], &value));
}

/* Unix time as an epoch: 2^20 for each second. */
static int64
epoch_of_clock(TimestampTz at)
{
	int64		us = at + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;

	return us / USECS_PER_SEC * EPOCHS_PER_SECOND +
		us % USECS_PER_SEC * EPOCHS_PER_SECOND / USECS_PER_SEC;
}

/* Above all that may have been granted in a past that is not known here. */
static int64
floor_after(const Incarnation *last, TimestampTz now)
{
	return Max(Max(last->floor, highest_epoch()) + LOST_EPOCHS, epoch_of_clock(now));
}

/* What is different now; NULL: the last one stored is this one. */
static const char *
difference(const Incarnation *last)
{
	const char *const places[] = {last->place, home_here()->place};
	uint64		system[2] = {0};
	Oid			database[2] = {0};
	Oid			extension[2] = {0};

	switch (home_compare(last->place, last->timeline))
	{
		case HOME_SAME:
			return NULL;
		case HOME_TIMELINE:
			return "the timeline changed";
		case HOME_FOREIGN:
			break;
	}
	for (int i = 0; i < 2; i++)
		(void) sscanf(places[i], UINT64_FORMAT "/%u/%u", &system[i], &database[i], &extension[i]);
	return system[0] != system[1] ? "the system identifier changed" :
		database[0] != database[1] ? "the database changed" : "the extension was created anew";
}

/* Which incarnation follows "last" on this server?  False: none, it goes on. */
static bool
next_incarnation(const Incarnation *last, TimestampTz now, Incarnation *next)
{
	const char *reason = difference(last);

	if (reason == NULL && last->number > 0)
		return false;
	next->number = last->number + 1;
	strlcpy(next->place, home_here()->place, sizeof(next->place));
	next->timeline = home_here()->timeline;
	next->since = now;
	next->reason = reason;
	/* a first life counts from 1: nobody outside knows an epoch of an earlier one */
	if (reason == NULL && !has_past())
	{
		next->reason = "first grant";
		next->floor = 0;
		return true;
	}
	if (reason == NULL)
		next->reason = "rows of another incarnation were restored";
	next->floor = floor_after(last, now);
	return true;
}

void
incarnation_read_at(Incarnation *now, Snapshot snapshot)
{
	Incarnation last;

	read_last_at(&last, snapshot);
	if (!next_incarnation(&last, clock_now(), now))
		*now = last;
	else
		now->since = 0;
}

void
incarnation_read(Incarnation *now)
{
	incarnation_read_at(now, NULL);
}

/* ----------------------------------------------------------------
 * Changing
 * ----------------------------------------------------------------
 */

/* With the lock exclusively: ends what was granted, but to sessions, and stores the new one. */
static void
begin_incarnation(const Incarnation *next)
{
	SqlScope	scope;
	Datum		values[6];
	Datum		at = TimestampTzGetDatum(next->since);

	sql_begin(&scope);
	/* a term whose deadline has passed was not ended by this */
	sql_run_latest(&plans[PLAN_END_OVER], &at, NULL);
	sql_run_latest(&plans[PLAN_END_LIVE], &at, NULL);

	values[0] = Int64GetDatum(next->number);
	values[1] = CStringGetTextDatum(next->place);
	values[2] = Int32GetDatum(next->timeline);
	values[3] = Int64GetDatum(next->floor);
	values[4] = at;
	values[5] = CStringGetTextDatum(next->reason);
	sql_run_latest(&plans[PLAN_INSERT], values, NULL);
	values[0] = Int64GetDatum(next->number - KEPT);
	sql_run_latest(&plans[PLAN_TRIM], values, NULL);
	sql_end(&scope);

	/* a floor that a crash forgets would be passed twice */
	ForceSyncCommit();
	fence_note_grant();
	if (next->floor == 0)
		return;
	wake_leases();
	wake_terms();
	ereport(LOG,
			(errmsg("incarnation " INT64_FORMAT " begins: %s", next->number, next->reason),
			 errdetail("Epochs are granted above " INT64_FORMAT "; what was granted before is void.", next->floor),
			 errhidestmt(true), errhidecontext(true)));
}

static void
incarnation_tag(LOCKTAG *tag)
{
	lock_tag(tag, LOCK_KIND_INCARNATION, "", "");
}

/* Did the last incarnation_enter() share the lock? */
static bool shared = false;

void
incarnation_leave(void)
{
	LOCKTAG		tag;

	/* one that has begun in this transaction stays */
	if (!shared)
		return;
	incarnation_tag(&tag);
	LockRelease(&tag, ShareLock, false);
	shared = false;
}

bool
incarnation_enter(int64 *floor)
{
	LOCKTAG		tag;
	Incarnation last;
	Incarnation next;

	shared = false;
	incarnation_tag(&tag);
	/* looked at first: were each to share it while it looks, nobody might ever get it alone */
	read_last(&last);
	if (next_incarnation(&last, clock_now(), &next))
	{
		if (LockAcquire(&tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
			return false;
		TEST_POINT("incarnation-locked");
		read_last(&last);
		if (next_incarnation(&last, clock_now(), &next))
		{
			begin_incarnation(&next);
			last = next;
		}
		else
		{
			/* another session was first */
			(void) LockAcquire(&tag, ShareLock, false, true);
			LockRelease(&tag, ExclusiveLock, false);
			shared = true;
		}
	}
	else
	{
		if (LockAcquire(&tag, ShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
			return false;
		read_last(&last);
		if (next_incarnation(&last, clock_now(), &next))
		{
			LockRelease(&tag, ShareLock, false);
			return false;
		}
		shared = true;
	}
	*floor = last.floor;
	return true;
}

int64
incarnation_settle(void)
{
	LOCKTAG		tag;
	Incarnation last;
	Incarnation next;

	read_last(&last);
	if (!next_incarnation(&last, clock_now(), &next))
		return last.floor;
	if (next.floor == 0)
		return 0;
	incarnation_tag(&tag);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	read_last(&last);
	if (!next_incarnation(&last, clock_now(), &next))
		return last.floor;
	begin_incarnation(&next);
	return next.floor;
}

int64
incarnation_hold(void)
{
	LOCKTAG		tag;
	Incarnation last;
	Incarnation next;
	bool		exclusive = false;

	incarnation_tag(&tag);
	read_last(&last);
	if (next_incarnation(&last, clock_now(), &next))
	{
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
		exclusive = true;
		read_last(&last);
		if (next_incarnation(&last, clock_now(), &next))
		{
			begin_incarnation(&next);
			return next.floor;
		}
	}
	(void) LockAcquire(&tag, ShareLock, false, false);
	if (exclusive)
		LockRelease(&tag, ExclusiveLock, false);
	read_last(&last);
	return last.floor;
}

/* Waits for renewals and releases, but of sessions: one that has not committed may make a term live that looks over. */
static void
lock_terms(void)
{
	sql_do(&plans[PLAN_LOCK_ALL], NULL, NULL);
}

/* Terms that the floor is not above are lost as those of another home are: no timeline is 0. */
static void
lose_high_terms(void)
{
	Datum		value = Int64GetDatum(ORDINARY_EPOCHS);

	sql_do(&plans[PLAN_LOSE], &value, NULL);
}

int64
incarnation_bump(const char *reason)
{
	LOCKTAG		tag;
	Incarnation last;
	Incarnation next;

	incarnation_tag(&tag);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	lock_terms();
	read_last(&last);
	memset(&next, 0, sizeof(next));
	next.number = last.number + 1;
	strlcpy(next.place, home_here()->place, sizeof(next.place));
	next.timeline = home_here()->timeline;
	next.since = clock_now();
	next.floor = floor_after(&last, next.since);
	next.reason = reason;
	begin_incarnation(&next);
	lose_high_terms();
	if (incarnation_bumped_hook != NULL)
		incarnation_bumped_hook();
	return next.floor;
}

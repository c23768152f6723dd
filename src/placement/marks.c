/*
 * marks.c
 *		Marks of the loops "placement" and "placement_sweeps".
 *
 * A sweep looks again when the first of its rows is due, or not at all.  Who makes a row
 * shares a lock on the sweep until he is at his end, and then reads when it will look; a
 * sweep puts that off only while it has that lock alone, by the rows that it sees then.
 * So none is due that nobody looks at.  Who has the lock alone waits for nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "storage/lock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/install.h"
#include "core/plan.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "placement/marks.h"
#include "placement/session.h"
#include "placement/settings.h"

enum
{
	PLAN_WAKE_AT,
	PLAN_SET_WAKE,
	PLAN_WORKING
};

static SqlPlan plans[] = {
	[PLAN_WAKE_AT] = {
		"SELECT c.wake_at FROM reconcile.placement_cursor c WHERE c.sweep OPERATOR(pg_catalog.=) $1"
		" AND c.shard OPERATOR(pg_catalog.=) -1",
		1, {TEXTOID}
	},
	[PLAN_SET_WAKE] = {
		"INSERT INTO reconcile.placement_cursor AS c (sweep, shard, wake_at) VALUES ($1, -1, $2)"
		" ON CONFLICT (sweep, shard) DO UPDATE SET wake_at = EXCLUDED.wake_at"
		" WHERE c.wake_at OPERATOR(pg_catalog.<>) EXCLUDED.wake_at",
		2, {TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_WORKING] = {
		"SELECT s.number FROM reconcile.session s WHERE s.number OPERATOR(pg_catalog.=) ANY ($1)"
		" AND EXISTS (SELECT FROM reconcile.session_command c WHERE c.tenant_id OPERATOR(pg_catalog.=) s.tenant_id"
		" AND c.session_id OPERATOR(pg_catalog.=) s.session_id"
		" AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}'))",
		1, {INT8ARRAYOID}
	}
};

static bool
has_loop(const char *loop_name)
{
	Oid			owner;

	return loop_find_owner(loop_name, &owner);
}

static void
mark(const char *loop_name, const char *entity_id, TimestampTz due_at)
{
	mark_insert(loop_name, entity_id, MARK_TRIGGER, due_at, true, NULL);
}

/* When the sweep looks by itself; DT_NOEND: not at all, as far as is known, as after a crash. */
static TimestampTz
wake_at(const char *sweep)
{
	Datum		value = CStringGetTextDatum(sweep);

	return sql_instant(&plans[PLAN_WAKE_AT], &value, DT_NOEND);
}

void
sweep_mark(const char *sweep, TimestampTz due_at)
{
	LOCKTAG		tag;

	if (!has_loop(PLACEMENT_SWEEPS_LOOP))
		return;
	lock_tag(&tag, LOCK_KIND_SWEEP, "", sweep);
	(void) LockAcquire(&tag, ShareLock, false, false);
	if (due_at < wake_at(sweep))
		mark(PLACEMENT_SWEEPS_LOOP, sweep, clock_now());
}

void
sweep_mark_all(void)
{
	static const char *const sweeps[] = {SWEEP_PENDING, SWEEP_HOST_TARGETS, SWEEP_DEADLINES, SWEEP_OFFERS, SWEEP_OLD_OFFERS};

	mark_insert_many(PLACEMENT_SWEEPS_LOOP, lengthof(sweeps), sweeps, MARK_TRIGGER, NULL);
}

bool
sweep_try_alone(const char *sweep)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_SWEEP, "", sweep);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
sweep_set_wake(const char *sweep, TimestampTz at)
{
	Datum		values[2] = {CStringGetTextDatum(sweep), TimestampTzGetDatum(at)};

	(void) sql_do(&plans[PLAN_SET_WAKE], values, NULL);
}

void
session_mark(int64 number, TimestampTz due_at)
{
	if (has_loop(PLACEMENT_LOOP))
		mark(PLACEMENT_LOOP, psprintf(INT64_FORMAT, number), due_at);
}

bool
session_mark_many(int n, const int64 *numbers)
{
	const char **entity_ids = palloc(sizeof(char *) * Max(n, 1));

	if (!has_loop(PLACEMENT_LOOP))
		return false;
	for (int i = 0; i < n; i++)
		entity_ids[i] = psprintf(INT64_FORMAT, numbers[i]);
	mark_insert_many(PLACEMENT_LOOP, n, entity_ids, MARK_TRIGGER, NULL);
	return true;
}

void
session_mark_working(int n, const int64 *numbers)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));
	int64	   *working;
	int			nworking;
	SqlScope	scope;
	Datum		value;

	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		elements[i] = Int64GetDatum(numbers[i]);
	value = PointerGetDatum(construct_array(elements, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	sql_begin(&scope);
	nworking = (int) sql_run_latest(&plans[PLAN_WORKING], &value, NULL);
	working = MemoryContextAlloc(scope.outer, sizeof(int64) * Max(nworking, 1));
	for (int i = 0; i < nworking; i++)
		working[i] = DatumGetInt64(sql_value(i, 1, NULL));
	sql_end(&scope);
	if (nworking > 0)
		(void) session_mark_many(nworking, working);
}

/*
 * marks.c
 *		Marks of the loops "placement" and "placement_sweeps".
 *
 * A sweep whose rows are all gone looks no more until somebody makes one.  Who makes a
 * row shares a lock on the sweep until he is at his end, and then reads whether it is
 * asleep; a sweep falls asleep only while it has that lock alone and sees no row.  So
 * none is made that nobody looks at.  Who has the lock alone waits for nothing.
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
	PLAN_AWAKE,
	PLAN_SET_ASLEEP,
	PLAN_WORKING
};

static SqlPlan plans[] = {
	[PLAN_AWAKE] = {
		"SELECT 1 FROM reconcile.placement_cursor c WHERE c.sweep OPERATOR(pg_catalog.=) $1"
		" AND c.shard OPERATOR(pg_catalog.=) -1 AND NOT c.asleep",
		1, {TEXTOID}
	},
	[PLAN_SET_ASLEEP] = {
		"INSERT INTO reconcile.placement_cursor AS c (sweep, shard, asleep) VALUES ($1, -1, $2)"
		" ON CONFLICT (sweep, shard) DO UPDATE SET asleep = EXCLUDED.asleep"
		" WHERE c.asleep OPERATOR(pg_catalog.<>) EXCLUDED.asleep",
		2, {TEXTOID, BOOLOID}
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

/* One that is not known, as after a crash, is taken to be asleep. */
static bool
is_awake(const char *sweep)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(sweep);
	bool		awake;

	sql_begin(&scope);
	awake = sql_run_latest(&plans[PLAN_AWAKE], &value, NULL) > 0;
	sql_end(&scope);
	return awake;
}

void
sweep_mark(const char *sweep)
{
	LOCKTAG		tag;

	if (!has_loop(PLACEMENT_SWEEPS_LOOP))
		return;
	lock_tag(&tag, LOCK_KIND_SWEEP, "", sweep);
	(void) LockAcquire(&tag, ShareLock, false, false);
	if (!is_awake(sweep))
		mark(PLACEMENT_SWEEPS_LOOP, sweep, clock_now());
}

void
sweep_mark_all(void)
{
	static const char *const sweeps[] = {SWEEP_PENDING, SWEEP_HOST_TARGETS, SWEEP_DEADLINES, SWEEP_OFFERS};

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
sweep_set_asleep(const char *sweep, bool asleep)
{
	SqlScope	scope;
	Datum		values[2];

	values[0] = CStringGetTextDatum(sweep);
	values[1] = BoolGetDatum(asleep);
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_SET_ASLEEP], values, NULL);
	sql_end(&scope);
}

void
session_mark(int64 number, TimestampTz due_at)
{
	if (has_loop(PLACEMENT_LOOP))
		mark(PLACEMENT_LOOP, psprintf(INT64_FORMAT, number), due_at);
	sweep_mark(SWEEP_PENDING);
	sweep_mark(SWEEP_DEADLINES);
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

/*
 * room.c
 *		The room that is left on what a host offers: taken, given back, and told to who waits.
 *
 * What is left is what a host says it has, less what was placed on it since: each offer
 * takes one, until it ends or the host says that its number takes account of it.  An
 * offer that counts is marked so; both change only while the row of the target is locked,
 * and the rows of offers are locked last of all.
 *
 * Of two target rows none is waited for while another is held, but in the order of their
 * keys (heartbeat.c): so an offer that ends beside others keeps its place where the row
 * is busy, and the host's next word takes it back.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "placement/host.h"
#include "placement/marks.h"
#include "placement/room.h"

#define MARKS_MAX		1000	/* sessions that are told of room at once */
#define TURN_MAX_MS		200		/* that a placement waits for the row of a target */

enum
{
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_RESERVE,
	PLAN_OFFER,
	PLAN_UNCOUNT,
	PLAN_UNRESERVE,
	PLAN_WAITING
};

static SqlPlan plans[] = {
	[PLAN_LOCK] = {
		"SELECT t.host_generation, t.revision, t.capacity, t.reserved, t.accepting, t.expires_at, t.seen_offer"
		" FROM reconcile.host_target t WHERE " OF_HOST " FOR NO KEY UPDATE",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT t.host_generation, t.revision, t.capacity, t.reserved, t.accepting, t.expires_at, t.seen_offer"
		" FROM reconcile.host_target t WHERE " OF_HOST " FOR NO KEY UPDATE SKIP LOCKED",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_RESERVE] = {
		"UPDATE reconcile.host_target t SET reserved = t.reserved OPERATOR(pg_catalog.+) 1 WHERE " OF_HOST
		" AND t.host_generation OPERATOR(pg_catalog.=) $5 AND t.accepting AND t.expires_at OPERATOR(pg_catalog.>) $6"
		" AND (t.capacity OPERATOR(pg_catalog.-) t.reserved) OPERATOR(pg_catalog.>) 0"
		" AND EXISTS (SELECT FROM reconcile.host h WHERE h.host_id OPERATOR(pg_catalog.=) t.host_id)",
		6, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_OFFER] = {
		"SELECT o.agent_id, o.runtime_compatibility_id, o.placement, o.host_id FROM reconcile.session_offer o"
		" WHERE o.offer_id OPERATOR(pg_catalog.=) $1 AND o.counted",
		1, {INT8OID}
	},
	[PLAN_UNCOUNT] = {
		"UPDATE reconcile.session_offer o SET counted = false WHERE o.offer_id OPERATOR(pg_catalog.=) $1 AND o.counted",
		1, {INT8OID}
	},
	[PLAN_UNRESERVE] = {
		"UPDATE reconcile.host_target t SET reserved = t.reserved OPERATOR(pg_catalog.-) 1 WHERE " OF_HOST
		" AND t.reserved OPERATOR(pg_catalog.>) 0",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_WAITING] = {
		"SELECT s.number FROM reconcile.session_search t"
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) t.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) t.session_id WHERE " OF_TARGET " LIMIT $4",
		4, {TEXTOID, TEXTOID, TEXTOID, INT4OID}
	}
};

bool
target_lock(Datum *values, bool wait, LockedTarget *locked)
{
	bool		isnull;
	Datum		expires_at;

	if (sql_run_latest(&plans[wait ? PLAN_LOCK : PLAN_TRY_LOCK], values, NULL) == 0)
		return false;
	locked->host_generation = DatumGetInt64(sql_value(0, 1, NULL));
	locked->revision = DatumGetInt64(sql_value(0, 2, NULL));
	locked->reserved = DatumGetInt32(sql_value(0, 4, NULL));
	locked->left = DatumGetInt32(sql_value(0, 3, NULL)) - locked->reserved;
	locked->accepting = DatumGetBool(sql_value(0, 5, NULL));
	expires_at = sql_value(0, 6, &isnull);
	locked->expires_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(expires_at);
	locked->seen_offer = DatumGetInt64(sql_value(0, 7, NULL));
	return true;
}

typedef struct Reservation
{
	Datum		values[6];
	bool		reserved;
} Reservation;

static void
reserve(void *arg)
{
	Reservation *reservation = arg;
	SqlScope	scope;

	sql_begin(&scope);
	reservation->reserved = sql_run_latest(&plans[PLAN_RESERVE], reservation->values, NULL) > 0;
	sql_end(&scope);
}

/* The same behind whoever has the row; a host that hangs with it holds up no others. */
static void
reserve_in_turn(void *arg)
{
	int			nest = NewGUCNestLevel();

	if (LockTimeout == 0 || LockTimeout > TURN_MAX_MS)
		(void) set_config_option("lock_timeout", psprintf("%d", TURN_MAX_MS), PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	reserve(arg);
	AtEOXact_GUC(true, nest);
}

static bool
is_busy(Datum *values)
{
	SqlScope	scope;
	LockedTarget row;
	bool		busy;

	sql_begin(&scope);
	busy = !target_lock(values, false, &row);
	sql_end(&scope);
	return busy;
}

bool
host_reserve(const HostTarget *target, TimestampTz now)
{
	Reservation reservation = {.reserved = false};
	ErrorData  *error;

	target_key_values(&target->key, reservation.values);
	reservation.values[3] = CStringGetTextDatum(target->host_id);
	reservation.values[4] = Int64GetDatum(target->host_generation);
	reservation.values[5] = TimestampTzGetDatum(now);
	if (!is_busy(reservation.values))
		reserve(&reservation);
	else
	{
		error = subxact_run(reserve_in_turn, &reservation);
		if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
	}
	return reservation.reserved;
}

void
host_unreserve(int64 offer_id, bool wait)
{
	SqlScope	scope;
	Datum		values[4];
	Datum		offer = Int64GetDatum(offer_id);
	TargetKey	key;
	LockedTarget row;
	bool		filled = false;

	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_OFFER], &offer, NULL) > 0)
	{
		key.agent_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 1, NULL)));
		key.runtime_compatibility_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 2, NULL)));
		key.placement = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 3, NULL)));
		target_key_values(&key, values);
		values[3] = PointerGetDatum(DatumGetTextPCopy(sql_value(0, 4, NULL)));
		/* the host may have told meanwhile that it takes account of it */
		if (target_lock(values, wait, &row) &&
			sql_run_latest(&plans[PLAN_UNCOUNT], &offer, NULL) > 0)
		{
			sql_run_latest(&plans[PLAN_UNRESERVE], values, NULL);
			filled = row.left == 0 && row.accepting && row.expires_at > clock_now();
		}
	}
	sql_end(&scope);
	if (filled)
		host_room(&key, 1);
}

void
host_room(const TargetKey *key, int room)
{
	SqlScope	scope;
	Datum		values[4];
	int64	   *numbers;
	int			n;
	TimestampTz now = clock_now();

	target_key_values(key, values);
	/* the pending sweep comes to whoever is left out */
	values[3] = Int32GetDatum(Min(room, MARKS_MAX));
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_WAITING], values, NULL);
	numbers = MemoryContextAlloc(scope.outer, sizeof(int64) * Max(n, 1));
	for (int i = 0; i < n; i++)
		numbers[i] = DatumGetInt64(sql_value(i, 1, NULL));
	sql_end(&scope);
	for (int i = 0; i < n; i++)
		session_mark(numbers[i], now);
}

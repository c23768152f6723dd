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
 *
 * Who brings room marks those who wait for it.  He shares a lock on the target from
 * before he reads who waits until his end; who has begun to wait looks again, later each
 * time, until he has found nobody with it: then all room that did not see him wait is
 * there to be seen.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "placement/host.h"
#include "placement/marks.h"
#include "placement/room.h"

#define MARKS_MAX		1000	/* sessions that are told of room at once */
#define WAITING_EXAMINED	"4000"	/* for whom room is read under the lock of its target */
#define MARKS_SPARE		4		/* one that does not take it, whatever it may be, keeps it from no other */
#define ROOM_LOCKS		16		/* for all targets: a host speaks of a thousand in one transaction */

enum
{
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_RESERVE,
	PLAN_OFFER,
	PLAN_UNCOUNT,
	PLAN_UNRESERVE,
	PLAN_WAITING,
	PLAN_READY,
	PLAN_THERE,
	PLAN_WITH_ROOM,
	PLAN_ASKED_OF
};

static SqlPlan plans[] = {
	[PLAN_LOCK] = {
		"SELECT t.host_generation, t.revision, t.capacity, t.reserved, t.accepting, t.expires_at, t.seen_offer,"
		" COALESCE(t.isolation_class OPERATOR(pg_catalog.=) 'cross_tenant_isolated', false), t.capabilities FROM reconcile.host_target t WHERE " OF_HOST " FOR NO KEY UPDATE",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT t.host_generation, t.revision, t.capacity, t.reserved, t.accepting, t.expires_at, t.seen_offer,"
		" COALESCE(t.isolation_class OPERATOR(pg_catalog.=) 'cross_tenant_isolated', false), t.capabilities FROM reconcile.host_target t WHERE " OF_HOST " FOR NO KEY UPDATE SKIP LOCKED",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_RESERVE] = {
		"UPDATE reconcile.host_target t SET reserved = t.reserved OPERATOR(pg_catalog.+) 1 WHERE " OF_HOST
		" AND t.host_generation OPERATOR(pg_catalog.=) $5 AND " HOST_ACTS("t"),
		5, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID}
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
	/*
	 * The longest first; not those that this host cannot have, or that are not to ask it
	 * again yet.  LIMIT 1 and OFFSET 0 keep the planner from reading a table as a whole.
	 */
	[PLAN_WAITING] = {
		"SELECT s.number FROM (SELECT t.tenant_id, t.session_id, t.requires, t.look_at, t.round, t.waits_since"
		" FROM reconcile.session_search t WHERE " OF_TARGET " ORDER BY t.waits_since LIMIT " WAITING_EXAMINED ") w,"
		" LATERAL (SELECT e.number FROM reconcile.session e WHERE e.tenant_id OPERATOR(pg_catalog.=) w.tenant_id"
		" AND e.session_id OPERATOR(pg_catalog.=) w.session_id LIMIT 1) s"
		" WHERE w.requires OPERATOR(pg_catalog.<@) (SELECT h.capabilities FROM reconcile.host_target h"
		" WHERE h.agent_id OPERATOR(pg_catalog.=) $1 AND h.runtime_compatibility_id OPERATOR(pg_catalog.=) $2"
		" AND h.placement OPERATOR(pg_catalog.=) $3 AND h.host_id OPERATOR(pg_catalog.=) $4"
		" AND h.isolation_class OPERATOR(pg_catalog.=) 'cross_tenant_isolated')"
		" AND (w.look_at OPERATOR(pg_catalog.<=) $5 OR NOT EXISTS (SELECT FROM reconcile.session_offer o"
		" WHERE o.tenant_id OPERATOR(pg_catalog.=) w.tenant_id AND o.session_id OPERATOR(pg_catalog.=) w.session_id"
		" AND o.round OPERATOR(pg_catalog.=) w.round AND o.host_id OPERATOR(pg_catalog.=) $4 OFFSET 0))"
		" ORDER BY w.waits_since LIMIT $6",
		6, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	/* of the session whose workload the host is, which may have been ready before it spoke */
	[PLAN_READY] = {
		"SELECT s.number FROM reconcile.session_workload t"
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) t.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) t.session_id"
		" AND s.desired_generation OPERATOR(pg_catalog.=) t.generation"
		" WHERE t.host_id OPERATOR(pg_catalog.=) $4 AND t.state OPERATOR(pg_catalog.=) 'ready'"
		" AND s.agent_id OPERATOR(pg_catalog.=) $1 AND s.runtime_compatibility_id OPERATOR(pg_catalog.=) $2"
		" AND s.placement OPERATOR(pg_catalog.=) $3 LIMIT $6",
		6, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_THERE] = {
		"SELECT FROM reconcile.host_target t WHERE " OF_HOST " AND t.expires_at IS NOT NULL AND " HOST_ACTS("t"),
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_WITH_ROOM] = {
		"SELECT t.agent_id, t.runtime_compatibility_id, t.placement, t.capacity OPERATOR(pg_catalog.-) t.reserved"
		" FROM reconcile.host_target t WHERE t.host_id OPERATOR(pg_catalog.=) $1 AND t.accepting"
		" AND t.expires_at OPERATOR(pg_catalog.>) $2 AND (t.capacity OPERATOR(pg_catalog.-) t.reserved) OPERATOR(pg_catalog.>) 0"
		" ORDER BY t.agent_id, t.runtime_compatibility_id, t.placement",
		2, {TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_ASKED_OF] = {
		"SELECT s.number FROM reconcile.session_offer t"
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) t.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) t.session_id"
		" WHERE t.host_id OPERATOR(pg_catalog.=) $4 AND t.state OPERATOR(pg_catalog.=) 'offered'"
		" AND ($1 IS NULL OR (" OF_TARGET "))",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
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
	locked->isolated = DatumGetBool(sql_value(0, 8, NULL));
	locked->capabilities = PointerGetDatum(PG_DETOAST_DATUM_COPY(sql_value(0, 9, NULL)));
	return true;
}

bool
target_has_room(const LockedTarget *locked, TimestampTz now)
{
	return locked->accepting && locked->expires_at > now && locked->left > 0;
}

/* ----------------------------------------------------------------
 * Taking it
 * ----------------------------------------------------------------
 */

typedef struct Reservation
{
	const HostTarget *target;
	Datum		values[5];
	int			wait_ms;		/* 0: who is placing on it is not waited for */
	HostReserved outcome;
	TimestampTz now;			/* after the row is locked */
} Reservation;

/* Is it still what it was chosen for?  The host of a workload is chosen for neither. */
static bool
is_as_ranked(const HostTarget *target, const LockedTarget *row)
{
	if (target->isolation_class == NULL)
		return true;
	return row->isolated == (strcmp(target->isolation_class, "cross_tenant_isolated") == 0) &&
		datumIsEqual(row->capabilities, capabilities_datum(target->capabilities, target->ncapabilities, "capabilities"),
					 false, -1);
}

/* In a subtransaction, whose end frees the row where nothing was reserved. */
static bool
reserve(void *arg)
{
	Reservation *reservation = arg;
	LockedTarget row;
	SqlScope	scope;

	sql_begin(&scope);
	if (target_lock(reservation->values, reservation->wait_ms > 0, &row))
	{
		reservation->now = clock_now();
		if (is_as_ranked(reservation->target, &row))
			reservation->outcome = target_has_room(&row, reservation->now) &&
				sql_run_latest(&plans[PLAN_RESERVE], reservation->values, NULL) > 0 ? HOST_RESERVED : HOST_FULL;
	}
	else if (reservation->wait_ms > 0)
		reservation->outcome = HOST_FULL;	/* there is none */
	sql_end(&scope);
	return reservation->outcome == HOST_RESERVED;
}

HostReserved
host_reserve(const HostTarget *target, int wait_ms, TimestampTz *now)
{
	Reservation reservation = {.target = target, .wait_ms = wait_ms, .outcome = HOST_BUSY, .now = *now};

	target_key_values(&target->key, reservation.values);
	reservation.values[3] = CStringGetTextDatum(target->host_id);
	reservation.values[4] = Int64GetDatum(target->host_generation);
	(void) subxact_turn(reserve, &reservation, wait_ms);
	*now = Max(*now, reservation.now);
	return reservation.outcome;
}

bool
host_is_there(const TargetKey *key, const char *host_id)
{
	Datum		values[4];

	target_key_values(key, values);
	values[3] = CStringGetTextDatum(host_id);
	return sql_do(&plans[PLAN_THERE], values, NULL) > 0;
}

/* ----------------------------------------------------------------
 * Giving it back
 * ----------------------------------------------------------------
 */

void
host_unreserve(int64 offer_id)
{
	SqlScope	scope;
	Datum		values[4];
	Datum		offer = Int64GetDatum(offer_id);
	TargetKey	key;
	char	   *host_id = NULL;
	LockedTarget row;
	bool		is_room = false;

	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_OFFER], &offer, NULL) > 0)
	{
		key.agent_id = sql_text(0, 1, scope.outer);
		key.runtime_compatibility_id = sql_text(0, 2, scope.outer);
		key.placement = sql_text(0, 3, scope.outer);
		host_id = sql_text(0, 4, scope.outer);
		target_key_values(&key, values);
		values[3] = CStringGetTextDatum(host_id);
		/* the host may have told meanwhile that it takes account of it */
		if (target_lock(values, false, &row) &&
			sql_run_latest(&plans[PLAN_UNCOUNT], &offer, NULL) > 0)
		{
			sql_run_latest(&plans[PLAN_UNRESERVE], values, NULL);
			row.left++;
			is_room = target_has_room(&row, clock_now());
		}
	}
	sql_end(&scope);
	if (is_room)
		host_room(&key, host_id, 1);
}

/* ----------------------------------------------------------------
 * Telling of it
 * ----------------------------------------------------------------
 */

static void
room_tag(LOCKTAG *tag, const TargetKey *key)
{
	uint32		hash = hash_bytes((const unsigned char *) key->agent_id, (int) strlen(key->agent_id));

	hash = hash_combine(hash, hash_bytes((const unsigned char *) key->runtime_compatibility_id,
										 (int) strlen(key->runtime_compatibility_id)));
	lock_tag(tag, LOCK_KIND_SWEEP, "room", psprintf("%u", hash % ROOM_LOCKS));
}

/* Sessions that a plan finds are looked at, when this commits. */
static void
mark_found(SqlPlan *plan, Datum *values, const char *nulls)
{
	SqlScope	scope;
	int64	   *numbers;
	int			n;

	sql_begin(&scope);
	n = (int) sql_run_latest(plan, values, nulls);
	numbers = MemoryContextAlloc(scope.outer, sizeof(int64) * Max(n, 1));
	for (int i = 0; i < n; i++)
		numbers[i] = DatumGetInt64(sql_value(i, 1, NULL));
	sql_end(&scope);
	if (n > 0)
		(void) session_mark_many(n, numbers);
}

void
host_room(const TargetKey *key, const char *host_id, int room)
{
	Datum		values[6];
	LOCKTAG		tag;

	/* who asks whether somebody has it waits for nothing */
	room_tag(&tag, key);
	(void) LockAcquire(&tag, ShareLock, false, false);
	target_key_values(key, values);
	values[3] = CStringGetTextDatum(host_id);
	values[4] = TimestampTzGetDatum(clock_now());
	/* the pending sweep comes to whoever is left out */
	values[5] = Int32GetDatum(Min(room + MARKS_SPARE, MARKS_MAX));
	mark_found(&plans[strcmp(key->placement, "dedicated") == 0 ? PLAN_READY : PLAN_WAITING], values, NULL);
}

bool
host_room_is_known(const TargetKey *key)
{
	LOCKTAG		tag;

	room_tag(&tag, key);
	/* in conflict with who brings room, and not with others who ask */
	if (LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	(void) LockRelease(&tag, RowExclusiveLock, false);
	return true;
}

void
host_appears(const char *host_id)
{
	SqlScope	scope;
	Datum		values[2];
	TargetKey  *keys;
	int		   *room;
	int			n;

	values[0] = CStringGetTextDatum(host_id);
	values[1] = TimestampTzGetDatum(clock_now());
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_WITH_ROOM], values, NULL);
	keys = MemoryContextAlloc(scope.outer, sizeof(TargetKey) * Max(n, 1));
	room = MemoryContextAlloc(scope.outer, sizeof(int) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		keys[i].agent_id = sql_text(i, 1, scope.outer);
		keys[i].runtime_compatibility_id = sql_text(i, 2, scope.outer);
		keys[i].placement = sql_text(i, 3, scope.outer);
		room[i] = DatumGetInt32(sql_value(i, 4, NULL));
	}
	sql_end(&scope);
	for (int i = 0; i < n; i++)
		host_room(&keys[i], host_id, room[i]);
}

void
host_leaves(const char *host_id, const TargetKey *key)
{
	Datum		values[4] = {0};

	if (key != NULL)
		target_key_values(key, values);
	values[3] = CStringGetTextDatum(host_id);
	mark_found(&plans[PLAN_ASKED_OF], values, key == NULL ? "nnn " : NULL);
}

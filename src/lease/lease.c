/*
 * lease.c
 *		Grants, renewals and releases of leases.
 *
 * Locks, all of them conditional in a grant, so that an attempt never waits:
 *
 *		lease lock, GRANT_MODE		one transaction grants (or refreshes) an id
 *		fence lock, exclusively		no fenced transaction of the old term is left
 *		the id's row				no renewal or release of it is uncommitted
 *		incarnation					it does not change before the grant commits
 *
 * A renewal or release takes the lease lock in HOLDER_MODE only until it has
 * the row: the row's lock stands for the rest, so that one transaction may renew
 * thousands of leases without filling the lock table.  Who has the row of a term
 * that is over is found by its xmax, and ended past the grace.
 *
 * Whoever holds the lease lock in GRANT_MODE and the row is alone in changing
 * it: what he then reads with the newest snapshot stays true until he commits.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/guc.h"
#include "core/home.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/wake.h"
#include "fence/fence.h"
#include "lease/incarnation.h"
#include "lease/lease.h"
#include "lease/lease_row.h"

/*
 * Two grants conflict, a grant and a renewal conflict, two renewals do not; and
 * RowExclusiveLock conflicts with the renewals alone.
 */
#define GRANT_MODE			ShareUpdateExclusiveLock
#define HOLDER_MODE			ShareLock
#define AGAINST_HOLDER		RowExclusiveLock

#define HISTORY_TERMS		1000
#define HISTORY_DAYS		90
#define SESSION_TERMS		10	/* of a session's lease, however old they are */

TimestampTz (*lease_started_at_hook) (void) = NULL;
void		(*lease_wait_hook) (long ms) = NULL;

/* ----------------------------------------------------------------
 * The decision
 * ----------------------------------------------------------------
 */

typedef enum Match
{
	ANY,
	NO,
	YES
} Match;

/* First match wins. */
static const struct
{
	Match		exists;
	Match		lost;
	Match		mine;
	Match		live;
	Match		successor;		/* a dispatcher asks for its dead predecessor's lease */
	Match		guarded;		/* over by its row, but a crash may have lost a renewal */
	LeaseStep	step;
	const char *ended;
}			rules[] = {
	/* 1: an id that was never granted begins above all that was seen of it */
	{NO, ANY, ANY, ANY, ANY, ANY, LEASE_GRANT, NULL},
	/* 2: so does one whose last term is of another incarnation */
	{YES, YES, ANY, ANY, ANY, ANY, LEASE_GRANT, "incarnation"},
	/* 3: the holder asks again: the same term, longer */
	{YES, NO, YES, YES, ANY, ANY, LEASE_REFRESH, NULL},
	/* 4: his own term is over (released or expired): a gap, so a new term */
	{YES, NO, YES, NO, ANY, ANY, LEASE_GRANT, "expired"},
	/* 5: a dead dispatcher's term is not waited out */
	{YES, NO, NO, YES, YES, ANY, LEASE_GRANT, "forced"},
	/* 6: another's live term stands */
	{YES, NO, NO, YES, NO, ANY, LEASE_REFUSE, NULL},
	/* 7: as it does when its holder may have been told of a later deadline */
	{YES, NO, NO, NO, NO, YES, LEASE_REFUSE, NULL},
	/* 8: over, whoever had it */
	{YES, NO, NO, NO, ANY, ANY, LEASE_GRANT, "expired"}
};

static bool
matches(Match wanted, bool fact)
{
	return wanted == ANY || (wanted == YES) == fact;
}

LeaseDecision
lease_decide(const LeaseFacts *facts)
{
	const Lease *row = facts->row;
	bool		exists = row != NULL;
	bool		mine = exists && strcmp(row->holder_id, facts->caller) == 0;
	bool		live = exists && facts->now < row->expires_at;
	bool		successor = exists && row->engine && facts->engine && !mine;
	bool		guarded = exists && facts->now < facts->deadline;
	LeaseDecision decision = {0};

	for (int i = 0; i < lengthof(rules); i++)
	{
		if (!matches(rules[i].exists, exists) ||
			!matches(rules[i].lost, exists && row->lost) ||
			!matches(rules[i].mine, mine) ||
			!matches(rules[i].live, live) ||
			!matches(rules[i].successor, successor) ||
			!matches(rules[i].guarded, guarded))
			continue;
		decision.rule = i + 1;
		decision.step = rules[i].step;
		decision.ended = rules[i].ended;
		return decision;
	}
	elog(ERROR, "no rule for this lease");
}

int64
lease_next_epoch(int64 known, bool lost, int64 floor)
{
	int64		room = lost ? LOST_EPOCHS : 0;

	if (known >= PG_INT64_MAX - room)
		return 0;
	return Max(known + room, floor) + 1;
}

TimestampTz
lease_deadline(const Lease *lease)
{
	TimestampTz started = lease_started_at_hook != NULL ? lease_started_at_hook() : PgStartTime;
	TimestampTz ttl_us;

	if (started == 0 || lease->engine || lease->touched_at >= started ||
		lease->expires_at <= lease->touched_at)
		return lease->expires_at;
	ttl_us = Max(lease->ttl_ms * INT64CONST(1000), lease->expires_at - lease->touched_at);
	return Max(lease->expires_at, started + ttl_us);
}

/* ----------------------------------------------------------------
 * SQL
 * ----------------------------------------------------------------
 */

#define LEASE_COLUMNS \
	"holder_id, epoch, acquired_at, expires_at, touched_at, ttl_ms, renewals, engine, home, timeline, " LEASE_VOID

/* A grant meets no row of a term that is over locked, nor one of a lost term when it begins an incarnation. */
#define LOCK_TERM \
	"SELECT " LEASE_COLUMNS " FROM reconcile.lease" \
	" WHERE reconciler_id OPERATOR(pg_catalog.=) $1" \
	" AND ($2 IS NULL OR holder_id OPERATOR(pg_catalog.=) $2)" \
	" AND epoch OPERATOR(pg_catalog.=) $3 AND expires_at OPERATOR(pg_catalog.>) $6" \
	" AND home OPERATOR(pg_catalog.=) $4 AND timeline OPERATOR(pg_catalog.=) $5 AND NOT " LEASE_VOID \
	" FOR NO KEY UPDATE"
#define LOCK_TERM_ARGS	{TEXTOID, TEXTOID, INT8OID, TEXTOID, INT4OID, TIMESTAMPTZOID}

enum
{
	PLAN_READ,
	PLAN_TRY_LOCK,
	PLAN_TRY_LOCK_TERM,
	PLAN_LOCK_TERM,
	PLAN_KNOWN,
	PLAN_GRANT,
	PLAN_REFRESH,
	PLAN_RENEW,
	PLAN_RELEASE,
	PLAN_TERM_BEGIN,
	PLAN_TERM_END,
	PLAN_TERM_TRIM
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		/* the newest version first, as for an entity: see entity.c */
		"SELECT " LEASE_COLUMNS " FROM reconcile.lease"
		" WHERE reconciler_id OPERATOR(pg_catalog.>=) $1 AND reconciler_id OPERATOR(pg_catalog.<=) $1"
		" ORDER BY reconciler_id DESC LIMIT 1",
		1, {TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT " LEASE_COLUMNS " FROM reconcile.lease"
		" WHERE reconciler_id OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE SKIP LOCKED",
		1, {TEXTOID}
	},
	[PLAN_TRY_LOCK_TERM] = {LOCK_TERM " SKIP LOCKED", 6, LOCK_TERM_ARGS},
	[PLAN_LOCK_TERM] = {LOCK_TERM, 6, LOCK_TERM_ARGS},
	[PLAN_KNOWN] = {
		"SELECT GREATEST("
		"(SELECT pg_catalog.max(last_epoch) FROM reconcile.resource WHERE reconciler_id OPERATOR(pg_catalog.=) $1),"
		"(SELECT pg_catalog.max(epoch) FROM reconcile.lease_term WHERE reconciler_id OPERATOR(pg_catalog.=) $1),"
		" 0)",
		1, {TEXTOID}
	},
	[PLAN_GRANT] = {
		"INSERT INTO reconcile.lease (reconciler_id, holder_id, epoch, acquired_at, expires_at, touched_at, ttl_ms, renewals, engine, home, timeline)"
		" VALUES ($1, $2, $3, $4, $5, $4, $6, 0, $7, $8, $9)"
		" ON CONFLICT (reconciler_id) DO UPDATE SET holder_id = $2, epoch = $3, acquired_at = $4,"
		" expires_at = $5, touched_at = $4, ttl_ms = $6, renewals = 0, engine = $7, home = $8, timeline = $9",
		9, {TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, BOOLOID, TEXTOID, INT4OID}
	},
	[PLAN_REFRESH] = {
		"UPDATE reconcile.lease SET acquired_at = $2, expires_at = $3, touched_at = $2, ttl_ms = $4, engine = $5"
		" WHERE reconciler_id OPERATOR(pg_catalog.=) $1",
		5, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, BOOLOID}
	},
	[PLAN_RENEW] = {
		"UPDATE reconcile.lease SET expires_at = $2, touched_at = $3, renewals = renewals OPERATOR(pg_catalog.+) 1"
		" WHERE reconciler_id OPERATOR(pg_catalog.=) $1",
		3, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	[PLAN_RELEASE] = {
		"UPDATE reconcile.lease SET expires_at = $2, touched_at = $2"
		" WHERE reconciler_id OPERATOR(pg_catalog.=) $1",
		2, {TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_TERM_BEGIN] = {
		"INSERT INTO reconcile.lease_term (reconciler_id, epoch, holder_id, acquired_at)"
		" VALUES ($1, $2, $3, $4)",
		4, {TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_TERM_END] = {
		"UPDATE reconcile.lease_term SET ended_at = $3, end_reason = $4, forced_by = $5, forced_reason = $6"
		" WHERE reconciler_id OPERATOR(pg_catalog.=) $1 AND epoch OPERATOR(pg_catalog.=) $2"
		" AND ended_at IS NULL",
		6, {TEXTOID, INT8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID}
	},
	/* epochs may have gaps, so the terms are counted */
	[PLAN_TERM_TRIM] = {
		"DELETE FROM reconcile.lease_term WHERE reconciler_id OPERATOR(pg_catalog.=) $1"
		" AND epoch OPERATOR(pg_catalog.<) (SELECT t.epoch FROM reconcile.lease_term t"
		" WHERE t.reconciler_id OPERATOR(pg_catalog.=) $1 ORDER BY t.epoch DESC"
		" OFFSET $3 LIMIT 1)"
		" AND ended_at OPERATOR(pg_catalog.<) $2",
		3, {TEXTOID, TIMESTAMPTZOID, INT8OID}
	}
};

/* The row that the last plan returned. */
static bool
fetch_lease(uint64 rows, const char *reconciler_id, Lease *lease)
{
	memset(lease, 0, sizeof(*lease));
	strlcpy(lease->reconciler_id, reconciler_id, sizeof(lease->reconciler_id));
	if (rows == 0)
		return false;
	text_to_cstring_buffer(DatumGetTextPP(sql_value(0, 1, NULL)),
						   lease->holder_id, sizeof(lease->holder_id));
	lease->epoch = DatumGetInt64(sql_value(0, 2, NULL));
	lease->acquired_at = DatumGetTimestampTz(sql_value(0, 3, NULL));
	lease->expires_at = DatumGetTimestampTz(sql_value(0, 4, NULL));
	lease->touched_at = DatumGetTimestampTz(sql_value(0, 5, NULL));
	lease->ttl_ms = DatumGetInt64(sql_value(0, 6, NULL));
	lease->renewals = DatumGetInt64(sql_value(0, 7, NULL));
	lease->engine = DatumGetBool(sql_value(0, 8, NULL));
	lease->lost = home_compare(TextDatumGetCString(sql_value(0, 9, NULL)),
							   DatumGetInt32(sql_value(0, 10, NULL))) != HOME_SAME ||
		DatumGetBool(sql_value(0, 11, NULL));
	lease->stored_end = lease->expires_at;
	/* another's deadlines, by another's clock: for whoever compares times it is long over */
	if (lease->lost)
		lease->expires_at = lease->touched_at = DT_NOBEGIN;
	return true;
}

bool
lease_read(const char *reconciler_id, Lease *lease)
{
	SqlScope	scope;
	Datum		value;
	bool		found;

	sql_begin(&scope);
	value = CStringGetTextDatum(reconciler_id);
	found = fetch_lease(sql_run_latest(&plans[PLAN_READ], &value, NULL), reconciler_id, lease);
	sql_end(&scope);
	return found;
}

/*
 * The same, and the row is ours until this transaction ends.  *locked is false
 * where another one has it: then the row as it was committed is read.
 */
static bool
try_lock_lease(const char *reconciler_id, Lease *lease, bool *locked)
{
	SqlScope	scope;
	Datum		value;

	sql_begin(&scope);
	value = CStringGetTextDatum(reconciler_id);
	*locked = fetch_lease(sql_run_latest(&plans[PLAN_TRY_LOCK], &value, NULL), reconciler_id, lease);
	sql_end(&scope);
	return *locked || lease_read(reconciler_id, lease);
}

/*
 * The other (sub)transaction in progress that has the id's row, by the row's xmax.
 * A multixact is nobody's: a session that hangs with one is only waited for.
 */
static TransactionId
row_writer(const char *reconciler_id)
{
	Relation	rel = table_open(get_relname_relid("lease", install_get()->schema), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TransactionId writer = InvalidTransactionId;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!rel->rd_indexvalid)
		list_free(RelationGetIndexList(rel));
	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
						   F_TEXTEQ, CStringGetTextDatum(reconciler_id));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex), snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && !(tuple->t_data->t_infomask & (HEAP_XMAX_INVALID | HEAP_XMAX_IS_MULTI)))
		writer = HeapTupleHeaderGetRawXmax(tuple->t_data);
	systable_endscan(scan);
	if (!TransactionIdIsValid(writer) || !TransactionIdIsInProgress(writer) ||
		TransactionIdIsCurrentTransactionId(writer))
		writer = InvalidTransactionId;
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return writer;
}

/*
 * Ends the session that has an uncommitted renewal or release of the id.  Who
 * does not hold the lease lock himself names it: it may be held by a grant,
 * which has the row too and is no lapsed term's; but not while a renewal waits
 * with it for the row.  Asked in this order, as a grant may begin in between.
 */
static void
terminate_writer(const char *reconciler_id, const LOCKTAG *lease_lock)
{
	TransactionId writer = row_writer(reconciler_id);
	LOCKTAG		tag;

	if (!TransactionIdIsValid(writer))
		return;
	if (lease_lock != NULL &&
		!VirtualTransactionIdIsValid(*GetLockConflicts(lease_lock, AGAINST_HOLDER, NULL)))
		return;
	SET_LOCKTAG_TRANSACTION(tag, SubTransGetTopmostTransaction(writer));
	fence_terminate(&tag, ShareLock, reconciler_id);
}

/* Highest epoch that history and resources remember of an id; 0: none. */
static int64
read_known(const char *reconciler_id)
{
	Datum		value = CStringGetTextDatum(reconciler_id);

	return DatumGetInt64(sql_ask(&plans[PLAN_KNOWN], &value));
}

/*
 * Within sql_begin(): the term's history gets its end, if it has none yet.  "by"
 * and "why" are of who forced it, else NULL.
 */
static void
end_term(const Lease *lease, TimestampTz at, const char *end_reason, const char *by, const char *why)
{
	Datum		values[6];
	char		nulls[] = "      ";

	values[0] = CStringGetTextDatum(lease->reconciler_id);
	values[1] = Int64GetDatum(lease->epoch);
	values[2] = TimestampTzGetDatum(at);
	values[3] = CStringGetTextDatum(end_reason);
	values[4] = by != NULL ? CStringGetTextDatum(by) : (Datum) 0;
	values[5] = why != NULL ? CStringGetTextDatum(why) : (Datum) 0;
	if (by == NULL)
		nulls[4] = 'n';
	if (why == NULL)
		nulls[5] = 'n';
	sql_run_latest(&plans[PLAN_TERM_END], values, nulls);
}

/* Such a name is no user's: there are as many as there are sessions, and nobody waits for one. */
static bool
is_of_session(const char *reconciler_id)
{
	return strchr(reconciler_id, ':') != NULL;
}

static void
write_grant(const Lease *lease, const Lease *before, const char *ended)
{
	bool		session = is_of_session(lease->reconciler_id);
	SqlScope	scope;
	Datum		values[9];

	sql_begin(&scope);
	if (ended != NULL)
		end_term(before,
				 strcmp(ended, "expired") == 0 ? before->expires_at : lease->acquired_at,
				 ended, NULL, NULL);

	/* a second grant of an epoch is a unique violation here */
	values[0] = CStringGetTextDatum(lease->reconciler_id);
	values[1] = Int64GetDatum(lease->epoch);
	values[2] = CStringGetTextDatum(lease->holder_id);
	values[3] = TimestampTzGetDatum(lease->acquired_at);
	sql_run_latest(&plans[PLAN_TERM_BEGIN], values, NULL);

	values[1] = CStringGetTextDatum(lease->holder_id);
	values[2] = Int64GetDatum(lease->epoch);
	values[3] = TimestampTzGetDatum(lease->acquired_at);
	values[4] = TimestampTzGetDatum(lease->expires_at);
	values[5] = Int64GetDatum(lease->ttl_ms);
	values[6] = BoolGetDatum(lease->engine);
	values[7] = CStringGetTextDatum(home_here()->place);
	values[8] = Int32GetDatum(home_here()->timeline);
	sql_run_latest(&plans[PLAN_GRANT], values, NULL);

	if (lease->epoch > (session ? SESSION_TERMS : HISTORY_TERMS))
	{
		values[1] = TimestampTzGetDatum(session ? DT_NOEND : lease->acquired_at - HISTORY_DAYS * USECS_PER_DAY);
		values[2] = Int64GetDatum((session ? SESSION_TERMS : HISTORY_TERMS) - 1);
		sql_run_latest(&plans[PLAN_TERM_TRIM], values, NULL);
	}
	sql_end(&scope);
}

static void
write_refresh(const Lease *lease)
{
	SqlScope	scope;
	Datum		values[5];

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(lease->reconciler_id);
	values[1] = TimestampTzGetDatum(lease->acquired_at);
	values[2] = TimestampTzGetDatum(lease->expires_at);
	values[3] = Int64GetDatum(lease->ttl_ms);
	values[4] = BoolGetDatum(lease->engine);
	sql_run_latest(&plans[PLAN_REFRESH], values, NULL);
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * Grants
 * ----------------------------------------------------------------
 */

void
lease_keep_deadline(int64 old_ttl_ms, int64 ttl_ms)
{
	if (ttl_ms > old_ttl_ms || lease_started_at_hook == NULL)
		ForceSyncCommit();
}

static LeaseDecision
decide(const char *reconciler_id, const char *holder_id, bool engine, bool exists,
	   const Lease *row, TimestampTz *now)
{
	LeaseFacts	facts;

	facts.now = *now = clock_now();
	facts.row = exists ? row : NULL;
	facts.deadline = exists ? lease_deadline(row) : 0;
	facts.caller = holder_id;
	facts.engine = engine;
	return lease_decide(&facts);
}

/* Has the term been over for so long that who still hangs on it is ended? */
static bool
past_grace(bool exists, const Lease *row)
{
	/* nothing of a lost term is in flight: who holds its fence is just being refused */
	return exists && !row->lost && guc_fence_grace >= 0 &&
		clock_now() > clock_add_ms(lease_deadline(row), guc_fence_grace);
}

LeaseOutcome
lease_try_acquire(const char *reconciler_id, const char *holder_id, int64 ttl_ms,
				  bool engine, Lease *lease)
{
	LOCKTAG		tag;
	Lease		before;
	LeaseDecision decision;
	TimestampTz now;
	bool		exists;
	bool		locked;
	bool		fenced = false;
	bool		entered = false;	/* the incarnation */
	bool		row_busy = false;	/* an open transaction has renewed or released it */
	int64		known = 0;
	int64		floor = 0;
	LeaseOutcome outcome = LEASE_BUSY;

	/* it would take its own share lock for nobody's, and mint over its own writes */
	if (fence_used(reconciler_id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot acquire lease \"%s\" in a transaction that has used its fence",
						reconciler_id),
				 errhint("Acquire it first, in a transaction of its own.")));

	/* a live leader is not disturbed: no lock is asked for while its term stands */
	exists = lease_read(reconciler_id, lease);
	decision = decide(reconciler_id, holder_id, engine, exists, lease, &now);
	if (decision.step == LEASE_REFUSE)
		return LEASE_HELD;

	lock_tag(&tag, LOCK_KIND_LEASE, "", reconciler_id);
	if (LockAcquire(&tag, GRANT_MODE, false, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		if (past_grace(exists, lease))
			terminate_writer(reconciler_id, &tag);
		return LEASE_BUSY;
	}

	if (decision.step == LEASE_GRANT)
	{
		fenced = fence_lock_exclusive(reconciler_id);
		/* before the row is touched: who begins an incarnation writes the rows of others */
		if (!fenced)
			outcome = LEASE_DRAINING;
		else if (!(entered = incarnation_enter(&floor)))
			outcome = LEASE_SETTLING;
	}
	if (entered || decision.step == LEASE_REFRESH)
	{
		/* nobody else changes the row from here on */
		exists = try_lock_lease(reconciler_id, &before, &locked);
		decision = decide(reconciler_id, holder_id, engine, exists, &before, &now);
		*lease = before;
		if (decision.step == LEASE_REFUSE)
			outcome = LEASE_HELD;
		else if (exists && !locked)
			row_busy = true;
		else if (decision.step == LEASE_GRANT && !fenced && !(fenced = fence_lock_exclusive(reconciler_id)))
			outcome = LEASE_DRAINING;	/* it ran out under our eyes */
		else if (decision.step == LEASE_REFRESH || entered || (entered = incarnation_enter(&floor)))
			outcome = LEASE_GRANTED;
		else
			outcome = LEASE_SETTLING;
	}

	if (outcome != LEASE_GRANTED)
	{
		if (outcome == LEASE_DRAINING && past_grace(exists, lease))
			fence_terminate_holders(reconciler_id);
		else if (row_busy && past_grace(exists, lease))
			terminate_writer(reconciler_id, NULL);
		if (entered)
			incarnation_leave();
		if (fenced)
			fence_unlock_exclusive(reconciler_id);
		LockRelease(&tag, GRANT_MODE, false);
		return outcome;
	}

	strlcpy(lease->holder_id, holder_id, sizeof(lease->holder_id));
	if (decision.step == LEASE_GRANT)
	{
		/* the incarnation may have begun since, and ended the term before */
		now = clock_now();
		known = exists ? before.epoch : 0;
		if (!exists || before.lost)
			known = Max(known, read_known(reconciler_id));
		/* what resources alone have seen may have been followed by a first grant that is lost */
		lease->epoch = lease_next_epoch(known, before.lost || (!exists && floor > 0), floor);
	}
	/* who may write without a lease may name the highest number */
	if (lease->epoch == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("lease \"%s\" has no epoch left", reconciler_id),
				 errdetail("Its resources have seen the highest there is."),
				 errhint("Use another reconciler id.")));

	lease->acquired_at = lease->touched_at = now;
	lease->expires_at = clock_add_ms(now, ttl_ms);
	lease->ttl_ms = ttl_ms;
	lease->engine = engine;
	lease->lost = false;
	if (decision.step == LEASE_REFRESH)
	{
		write_refresh(lease);
		lease_keep_deadline(before.ttl_ms, ttl_ms);
	}
	else
	{
		lease->renewals = 0;
		write_grant(lease, &before, decision.ended);

		/* an epoch that a crash forgets would be minted twice */
		ForceSyncCommit();
	}
	fence_note_grant();
	if (!is_of_session(reconciler_id))
		wake_leases();
	return LEASE_GRANTED;
}

/* ----------------------------------------------------------------
 * The holder's own changes
 * ----------------------------------------------------------------
 */

static bool
is_live_term(const Lease *lease, const char *holder_id, int64 epoch, TimestampTz now)
{
	return lease->epoch == epoch && (holder_id == NULL || strcmp(lease->holder_id, holder_id) == 0) &&
		now < lease->expires_at;
}

/* The row of (id, holder, epoch), any holder's if that is NULL, locked by one of the plans. */
static bool
lock_term(int plan, const char *reconciler_id, const char *holder_id, int64 epoch, Lease *lease)
{
	SqlScope	scope;
	Datum		values[6];
	char		nulls[] = "      ";
	bool		found;

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(reconciler_id);
	values[1] = holder_id != NULL ? CStringGetTextDatum(holder_id) : (Datum) 0;
	values[2] = Int64GetDatum(epoch);
	values[3] = CStringGetTextDatum(home_here()->place);
	values[4] = Int32GetDatum(home_here()->timeline);
	values[5] = TimestampTzGetDatum(clock_now());
	if (holder_id == NULL)
		nulls[1] = 'n';
	found = fetch_lease(sql_run_latest(&plans[plan], values, nulls), reconciler_id, lease);
	sql_end(&scope);
	return found;
}

/*
 * Locks the row of (id, holder, epoch), any holder's if that is NULL, if it is
 * the live term; the clock is read after the lock.  Does not wait for somebody
 * who is taking it over.
 */
static bool
lock_live_term(const char *reconciler_id, const char *holder_id, int64 epoch,
			   Lease *lease, TimestampTz *now)
{
	LOCKTAG		tag;
	TransactionId writer;
	bool		locked = false;
	bool		found;

	lock_tag(&tag, LOCK_KIND_LEASE, "", reconciler_id);
	if (!compat_lock_held(&tag, GRANT_MODE))
	{
		if (LockAcquire(&tag, HOLDER_MODE, false, true) == LOCKACQUIRE_NOT_AVAIL)
		{
			if (!lease_read(reconciler_id, lease) ||
				!is_live_term(lease, holder_id, epoch, clock_now()))
				return false;
			LockAcquire(&tag, HOLDER_MODE, false, false);
		}
		locked = true;
	}

	/*
	 * Whoever waits for another's change does so without the row: should the term be
	 * over then, he would have it until he is told so, and be ended for that.
	 */
	while (!(found = lock_term(PLAN_TRY_LOCK_TERM, reconciler_id, holder_id, epoch, lease)) &&
		   TransactionIdIsValid(writer = row_writer(reconciler_id)))
		XactLockTableWait(writer, NULL, NULL, XLTW_None);
	/* it is over, or somebody has the row who is not to be named */
	if (!found)
		found = lock_term(PLAN_LOCK_TERM, reconciler_id, holder_id, epoch, lease);

	/* a grant that comes from here on meets the row's lock */
	if (locked)
		LockRelease(&tag, HOLDER_MODE, false);
	*now = clock_now();
	return found && is_live_term(lease, holder_id, epoch, *now);
}

bool
lease_renew(const char *reconciler_id, const char *holder_id, int64 epoch, int64 ttl_ms,
			Lease *lease)
{
	SqlScope	scope;
	Datum		values[3];
	TimestampTz now;

	if (!lock_live_term(reconciler_id, holder_id, epoch, lease, &now))
		return false;
	lease->expires_at = clock_add_ms(now, ttl_ms > 0 ? ttl_ms : lease->ttl_ms);
	lease->touched_at = now;
	lease->renewals++;

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(reconciler_id);
	values[1] = TimestampTzGetDatum(lease->expires_at);
	values[2] = TimestampTzGetDatum(now);
	sql_run_latest(&plans[PLAN_RENEW], values, NULL);
	sql_end(&scope);
	lease_keep_deadline(lease->ttl_ms, ttl_ms);
	fence_note_grant();
	return true;
}

/* Ends the live term of (id, holder, epoch), any holder's if that is NULL. */
static bool
end_live_term(const char *reconciler_id, const char *holder_id, int64 epoch,
			  const char *end_reason, const char *by, const char *why)
{
	SqlScope	scope;
	Datum		values[2];
	TimestampTz now;
	Lease		lease;

	if (!lock_live_term(reconciler_id, holder_id, epoch, &lease, &now))
		return false;

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(reconciler_id);
	values[1] = TimestampTzGetDatum(now);
	sql_run_latest(&plans[PLAN_RELEASE], values, NULL);
	end_term(&lease, now, end_reason, by, why);
	sql_end(&scope);
	fence_note_grant();
	if (!is_of_session(reconciler_id))
		wake_leases();
	return true;
}

bool
lease_release(const char *reconciler_id, const char *holder_id, int64 epoch)
{
	return end_live_term(reconciler_id, holder_id, epoch, "released", NULL, NULL);
}

bool
lease_force_release(const char *reconciler_id, int64 epoch, const char *by, const char *why)
{
	if (!end_live_term(reconciler_id, NULL, epoch, "forced", by, why))
		return false;
	wake_terms();
	/* who was told that it is over must not find the term alive after a crash */
	ForceSyncCommit();
	return true;
}

void
lease_raise_lost(const char *reconciler_id, int64 epoch)
{
	Lease		lease;
	bool		exists = lease_read(reconciler_id, &lease);
	bool		live = exists && clock_now() < lease.expires_at;

	ereport(ERROR,
			(errcode(ERRCODE_LEASE_LOST),
			 exists && lease.epoch > epoch ?
			 errmsg("epoch " INT64_FORMAT " of lease \"%s\" is lost: epoch " INT64_FORMAT " has been granted",
					epoch, reconciler_id, lease.epoch) :
			 errmsg("epoch " INT64_FORMAT " of lease \"%s\" is lost", epoch, reconciler_id),
			 exists && lease.lost ?
			 errdetail("It was granted before a promotion, a restore or a clone: nothing of that time is live.") :
			 live ?
			 errdetail("The live epoch is " INT64_FORMAT ".", lease.epoch) :
			 errdetail("No epoch of it is live."),
			 errhint("Stop what this term was doing, then acquire the lease again.")));
}

char *
lease_mint_holder(void)
{
	uint8		bits[16];
	char		digits[2 * sizeof(bits) + 1];

	if (!pg_strong_random(bits, sizeof(bits)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a holder id")));
	digits[hex_encode((const char *) bits, sizeof(bits), digits)] = '\0';
	return psprintf("minted/%s", digits);
}

/*
 * lease_many.c
 *		Renewals of many leases by two statements.
 *
 * The rows are locked in the caller's order, without waiting for any, in a
 * subtransaction; where one is busy all are given back, and each is renewed by
 * itself: so whoever waits has only rows that come before it.  Who is to wait for
 * nobody leaves the busy ones as they are.  A row that is locked keeps grants away
 * as a renewal's does (lease.c), so no other lock is needed.  All of them count
 * from one moment, after the last lock.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/home.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "fence/fence.h"
#include "lease/lease.h"
#include "lease/lease_row.h"

enum
{
	PLAN_LOCK,
	PLAN_LOCK_FREE,
	PLAN_STANDING,
	PLAN_RENEW
};

/* The terms of three arrays that are live here. */
#define LIVE_TERMS \
	"SELECT k.n::pg_catalog.int4, l.expires_at, l.ttl_ms" \
	" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3)) WITH ORDINALITY" \
	" k (id, holder, term, n) JOIN reconcile.lease l ON l.reconciler_id OPERATOR(pg_catalog.=) k.id" \
	" WHERE l.holder_id OPERATOR(pg_catalog.=) k.holder AND l.epoch OPERATOR(pg_catalog.=) k.term" \
	" AND l.home OPERATOR(pg_catalog.=) $4 AND l.timeline OPERATOR(pg_catalog.=) $5" \
	" AND l.expires_at OPERATOR(pg_catalog.>) $6 AND NOT " LEASE_VOID
#define LIVE_TERMS_TYPES	6, {TEXTARRAYOID, TEXTARRAYOID, INT8ARRAYOID, TEXTOID, INT4OID, TIMESTAMPTZOID}

static SqlPlan plans[] = {
	[PLAN_LOCK] = {LIVE_TERMS " ORDER BY k.n FOR NO KEY UPDATE OF l NOWAIT", LIVE_TERMS_TYPES},
	[PLAN_LOCK_FREE] = {LIVE_TERMS " FOR NO KEY UPDATE OF l SKIP LOCKED", LIVE_TERMS_TYPES},
	[PLAN_STANDING] = {LIVE_TERMS, LIVE_TERMS_TYPES},
	[PLAN_RENEW] = {
		"UPDATE reconcile.lease l SET expires_at = k.until, touched_at = $3,"
		" renewals = l.renewals OPERATOR(pg_catalog.+) 1"
		" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) k (id, until)"
		" WHERE l.reconciler_id OPERATOR(pg_catalog.=) k.id",
		3, {TEXTARRAYOID, TIMESTAMPTZARRAYOID, TIMESTAMPTZOID}
	}
};

typedef struct Batch
{
	LeaseRenewal *renewals;
	int64		ttl_ms;
	SqlPlan    *lock;
	Datum		arrays[3];		/* ids, holders, epochs */
	Datum		ids;			/* of those that are renewed */
	Datum		deadlines;
	TimestampTz now;
	int64		shortest_ms;	/* of the ttls that their rows know */
	int			renewed;
} Batch;

static Datum
texts_of(Datum *elements, int n)
{
	return PointerGetDatum(construct_array(elements, n, TEXTOID, -1, false, TYPALIGN_INT));
}

/* Of those that the last plan has locked, the ones that are live by a clock that is read now. */
static void
take_locked(Batch *batch, uint64 rows, MemoryContext context)
{
	Datum	   *ids = palloc(sizeof(Datum) * Max(rows, 1));
	Datum	   *deadlines = palloc(sizeof(Datum) * Max(rows, 1));
	TimestampTz now = clock_now();

	batch->now = now;
	batch->shortest_ms = PG_INT64_MAX;
	for (uint64 i = 0; i < rows; i++)
	{
		LeaseRenewal *renewal = &batch->renewals[DatumGetInt32(sql_value(i, 1, NULL)) - 1];
		int64		ttl_ms = DatumGetInt64(sql_value(i, 3, NULL));

		if (now >= DatumGetTimestampTz(sql_value(i, 2, NULL)))
			continue;
		renewal->renewed = true;
		renewal->expires_at = clock_add_ms(now, batch->ttl_ms > 0 ? batch->ttl_ms : ttl_ms);
		batch->shortest_ms = Min(batch->shortest_ms, ttl_ms);
		ids[batch->renewed] = CStringGetTextDatum(renewal->reconciler_id);
		deadlines[batch->renewed++] = TimestampTzGetDatum(renewal->expires_at);
	}
	context = MemoryContextSwitchTo(context);
	batch->ids = texts_of(ids, batch->renewed);
	batch->deadlines = PointerGetDatum(construct_array(deadlines, batch->renewed, TIMESTAMPTZOID, sizeof(TimestampTz),
													   FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	MemoryContextSwitchTo(context);
}

/* Of LIVE_TERMS. */
static void
live_terms_values(const Batch *batch, Datum values[6])
{
	memcpy(values, batch->arrays, sizeof(batch->arrays));
	values[3] = CStringGetTextDatum(home_here()->place);
	values[4] = Int32GetDatum(home_here()->timeline);
	values[5] = TimestampTzGetDatum(clock_now());
}

/* Locked and written by the same subtransaction: of two, each row would have a multixact. */
static void
renew_all(void *arg)
{
	Batch	   *batch = arg;
	SqlScope	scope;
	Datum		values[6];

	live_terms_values(batch, values);
	sql_begin(&scope);
	take_locked(batch, sql_run_latest(batch->lock, values, NULL), scope.outer);
	sql_end(&scope);
	if (batch->renewed == 0)
		return;
	values[0] = batch->ids;
	values[1] = batch->deadlines;
	values[2] = TimestampTzGetDatum(batch->now);
	sql_do(&plans[PLAN_RENEW], values, NULL);
}

/* In their order, waiting for each. */
static void
renew_one_by_one(LeaseRenewal *renewals, int n, int64 ttl_ms)
{
	for (int i = 0; i < n; i++)
	{
		LeaseRenewal *renewal = &renewals[i];
		Lease		lease;

		CHECK_FOR_INTERRUPTS();
		renewal->renewed = lease_renew(renewal->reconciler_id, renewal->holder_id, renewal->epoch, ttl_ms, &lease);
		renewal->expires_at = lease.expires_at;
	}
}

static void
make_batch(Batch *batch, LeaseRenewal *renewals, int n, int64 ttl_ms, SqlPlan *lock)
{
	Datum	   *columns[3];

	memset(batch, 0, sizeof(*batch));
	batch->renewals = renewals;
	batch->ttl_ms = ttl_ms;
	batch->lock = lock;
	for (int c = 0; c < lengthof(columns); c++)
		columns[c] = palloc(sizeof(Datum) * n);
	for (int i = 0; i < n; i++)
	{
		columns[0][i] = CStringGetTextDatum(renewals[i].reconciler_id);
		columns[1][i] = CStringGetTextDatum(renewals[i].holder_id);
		columns[2][i] = Int64GetDatum(renewals[i].epoch);
	}
	batch->arrays[0] = texts_of(columns[0], n);
	batch->arrays[1] = texts_of(columns[1], n);
	batch->arrays[2] = PointerGetDatum(construct_array(columns[2], n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
													   TYPALIGN_DOUBLE));
}

static void
note_renewed(const Batch *batch)
{
	if (batch->renewed == 0)
		return;
	lease_keep_deadline(batch->shortest_ms, batch->ttl_ms);
	fence_note_grant();
}

void
lease_renew_many(LeaseRenewal *renewals, int n, int64 ttl_ms)
{
	Batch		batch;
	ErrorData  *error;

	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		renewals[i].renewed = false;
	make_batch(&batch, renewals, n, ttl_ms, &plans[PLAN_LOCK]);
	error = subxact_run(renew_all, &batch);
	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	if (error != NULL)
		renew_one_by_one(renewals, n, ttl_ms);
	else
		note_renewed(&batch);
}

void
lease_renew_free(LeaseRenewal *renewals, int n, int64 ttl_ms)
{
	Batch		batch;

	if (n == 0)
		return;
	for (int i = 0; i < n; i++)
		renewals[i].renewed = false;
	make_batch(&batch, renewals, n, ttl_ms, &plans[PLAN_LOCK_FREE]);
	renew_all(&batch);
	note_renewed(&batch);
}

void
lease_stand_many(LeaseRenewal *renewals, int n)
{
	Batch		batch;
	Datum		values[6];
	SqlScope	scope;
	uint64		rows;

	if (n == 0)
		return;
	make_batch(&batch, renewals, n, 0, NULL);
	live_terms_values(&batch, values);
	sql_begin(&scope);
	rows = sql_run_latest(&plans[PLAN_STANDING], values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		LeaseRenewal *renewal = &renewals[DatumGetInt32(sql_value(i, 1, NULL)) - 1];

		if (renewal->renewed)
			continue;
		renewal->stands = true;
		renewal->expires_at = DatumGetTimestampTz(sql_value(i, 2, NULL));
	}
	sql_end(&scope);
}

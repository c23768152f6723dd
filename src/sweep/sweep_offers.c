/*
 * sweep_offers.c
 *		Ends offers that no host answered, and deletes those that were decided long ago.
 *
 * The run of the loop that made an offer looks when it lapses; this is for an offer that
 * nobody looks at any more.  The session is marked, so that another host is asked.
 *
 * Locks: the session, without waiting, then the offer and the target that it reserved.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "placement/marks.h"
#include "placement/offer.h"
#include "sweep/sweep.h"

#define KEPT_MS		(INT64CONST(24) * 3600 * 1000)

enum
{
	PLAN_PAGE,
	PLAN_FIRST,
	PLAN_OLD_PAGE,
	PLAN_DELETE
};

static SqlPlan plans[] = {
	[PLAN_PAGE] = {
		"SELECT o.expires_at, o.offer_id, o.tenant_id, o.session_id FROM reconcile.session_offer o"
		" WHERE o.state OPERATOR(pg_catalog.=) 'offered' AND o.expires_at OPERATOR(pg_catalog.<=) $1"
		" AND ROW(o.expires_at, o.offer_id) OPERATOR(pg_catalog.>) ROW($2, $3)"
		" ORDER BY o.expires_at, o.offer_id LIMIT $4",
		4, {TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT4OID}
	},
	[PLAN_FIRST] = {
		"SELECT o.expires_at FROM reconcile.session_offer o WHERE o.state OPERATOR(pg_catalog.=) 'offered'"
		" AND o.expires_at OPERATOR(pg_catalog.>) $1 ORDER BY o.expires_at LIMIT 1",
		1, {TIMESTAMPTZOID}
	},
	/* by their ids, which are in the order of their making but for those made at once */
	[PLAN_OLD_PAGE] = {
		"SELECT o.made_at, o.offer_id, o.state OPERATOR(pg_catalog.<>) 'offered' AND NOT o.counted"
		" FROM reconcile.session_offer o WHERE o.offer_id OPERATOR(pg_catalog.>) $1 ORDER BY o.offer_id LIMIT $2",
		2, {INT8OID, INT4OID}
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.session_offer o WHERE o.offer_id OPERATOR(pg_catalog.=) $1"
		" AND o.state OPERATOR(pg_catalog.<>) 'offered' AND NOT o.counted",
		1, {INT8OID}
	}
};

typedef struct OffersSwept
{
	int64		expired;
	int64		contended;
	int64		deleted;		/* decided long ago */
} OffersSwept;

typedef struct DueOffer
{
	TimestampTz at;
	int64		offer_id;
	SessionKey	session;
	bool		decided;
} DueOffer;

/* A place is the offer's id as text; the head is before all of them. */
static int64
place_offer_id(const SweepPass *pass)
{
	return strtoll(pass->position[0], NULL, 10);
}

static void
move_behind(const Sweep *sweep, SweepPass *pass, const DueOffer *offer)
{
	const char *position[1] = {psprintf(INT64_FORMAT, offer->offer_id)};

	sweep_move(sweep, pass, offer->at, position);
}

/* ----------------------------------------------------------------
 * Those that lapsed
 * ----------------------------------------------------------------
 */

static TimestampTz
offers_bound(const SweepPass *pass)
{
	return clock_now();
}

static int
offers_read_page(SweepPass *pass, void **page)
{
	SqlScope	scope;
	Datum		values[4];
	DueOffer   *offers;
	int			n;

	values[0] = TimestampTzGetDatum(pass->bound);
	values[1] = TimestampTzGetDatum(pass->at);
	values[2] = Int64GetDatum(place_offer_id(pass));
	values[3] = Int32GetDatum(pass->settings->page_limit);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_PAGE], values, NULL);
	offers = MemoryContextAllocZero(scope.outer, sizeof(DueOffer) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		offers[i].at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		offers[i].offer_id = DatumGetInt64(sql_value(i, 2, NULL));
		offers[i].session.tenant_id = sql_text(i, 3, scope.outer);
		offers[i].session.session_id = sql_text(i, 4, scope.outer);
	}
	sql_end(&scope);
	if (n > 0)
		move_behind(&offers_sweep, pass, &offers[n - 1]);
	*page = offers;
	return n;
}

static bool
end_lapsed(const DueOffer *due)
{
	Session		session;
	Offer		offer;
	TimestampTz now;
	bool		busy;

	if (!session_try_lock(&due->session, &session, &busy))
		return false;
	now = clock_now();
	if (!offer_read_open(&session.key, &offer) || offer.offer_id != due->offer_id || now < offer.expires_at)
		return false;
	offer_end(&offer, "expired", NULL, now);
	session_mark(session.number, now);
	return true;
}

static void
offers_settle(SweepPass *pass, void *page, int i)
{
	OffersSwept *swept = pass->counts;

	if (end_lapsed((DueOffer *) page + i))
		swept->expired++;
	else
	{
		swept->contended++;
		sweep_again_soon(pass);
	}
}

static TimestampTz
offers_first_due(TimestampTz after)
{
	Datum		value = TimestampTzGetDatum(after);

	return sql_instant(&plans[PLAN_FIRST], &value, DT_NOEND);
}

const Sweep offers_sweep = {
	.name = SWEEP_OFFERS,
	.npositions = 1,
	.counts_size = sizeof(OffersSwept),
	.row = "an offer",
	.bound = offers_bound,
	.read_page = offers_read_page,
	.settle = offers_settle,
	.first_due = offers_first_due
};

/* ----------------------------------------------------------------
 * Those that were decided long ago
 * ----------------------------------------------------------------
 */

static TimestampTz
old_offers_bound(const SweepPass *pass)
{
	return clock_add_ms(clock_now(), -KEPT_MS);
}

/* The first that is young ends the view. */
static int
old_offers_read_page(SweepPass *pass, void **page)
{
	SqlScope	scope;
	Datum		values[2];
	DueOffer   *offers;
	int			n;
	int			old = 0;

	values[0] = Int64GetDatum(place_offer_id(pass));
	values[1] = Int32GetDatum(pass->settings->page_limit);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_OLD_PAGE], values, NULL);
	offers = MemoryContextAllocZero(scope.outer, sizeof(DueOffer) * Max(n, 1));
	for (; old < n; old++)
	{
		offers[old].at = DatumGetTimestampTz(sql_value(old, 1, NULL));
		offers[old].offer_id = DatumGetInt64(sql_value(old, 2, NULL));
		offers[old].decided = DatumGetBool(sql_value(old, 3, NULL));
		if (offers[old].at > pass->bound)
			break;
	}
	sql_end(&scope);
	if (old > 0)
		move_behind(&old_offers_sweep, pass, &offers[old - 1]);
	*page = offers;
	return old;
}

/* What a target's room still counts stays. */
static void
old_offers_settle(SweepPass *pass, void *page, int i)
{
	OffersSwept *swept = pass->counts;
	const DueOffer *offer = (DueOffer *) page + i;
	Datum		value = Int64GetDatum(offer->offer_id);

	if (offer->decided)
		swept->deleted += (int64) sql_do(&plans[PLAN_DELETE], &value, NULL);
}

/* No hurry: the loop's resync comes by. */
static TimestampTz
old_offers_first_due(TimestampTz after)
{
	return DT_NOEND;
}

const Sweep old_offers_sweep = {
	.name = SWEEP_OLD_OFFERS,
	.npositions = 1,
	.counts_size = sizeof(OffersSwept),
	.row = "an old offer",
	.bound = old_offers_bound,
	.read_page = old_offers_read_page,
	.settle = old_offers_settle,
	.first_due = old_offers_first_due
};

/* ----------------------------------------------------------------
 * sweep_offers()
 * ----------------------------------------------------------------
 */

static void
keep(const SweepPass *pass, void *arg)
{
	*(SweepPass *) arg = *pass;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_offers);
Datum
reconcile_sweep_offers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SweepPass	pass;
	SweepPass	old;
	const OffersSwept *swept;
	Datum		values[9];
	bool		nulls[9] = {false};

	sweep_require("sweep_offers");
	InitMaterializedSRF(fcinfo, 0);
	if (!sweep_call(&offers_sweep, keep, &pass))
		return (Datum) 0;
	swept = pass.counts;
	values[0] = Int32GetDatum(pass.pages);
	values[1] = Int64GetDatum(pass.rows);
	values[2] = Int64GetDatum(swept->expired);
	values[3] = Int64GetDatum(swept->contended);
	values[4] = Int64GetDatum(pass.failed);
	values[5] = Int64GetDatum(sweep_call(&old_offers_sweep, keep, &old) ? ((OffersSwept *) old.counts)->deleted : 0);
	values[6] = BoolGetDatum(pass.truncated);
	values[7] = BoolGetDatum(pass.resumed);
	values[8] = sweep_failure(&pass, &nulls[8]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

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
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "placement/marks.h"
#include "placement/offer.h"
#include "placement/settings.h"
#include "sweep/sweep.h"

#define SWEEP_OLD_OFFERS	"old_offers"
#define KEPT_MS				(INT64CONST(24) * 3600 * 1000)

enum
{
	PLAN_PAGE,
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
move_behind(SweepPass *pass, const DueOffer *offer)
{
	const char *position[1] = {psprintf(INT64_FORMAT, offer->offer_id)};

	sweep_move(pass, offer->at, position);
}

/* ----------------------------------------------------------------
 * Those that lapsed
 * ----------------------------------------------------------------
 */

typedef struct Ending
{
	OffersSwept *swept;
	const DueOffer *due;
} Ending;

static int
read_page(const SweepPass *pass, DueOffer **offers)
{
	SqlScope	scope;
	Datum		values[4];
	uint64		n;

	values[0] = TimestampTzGetDatum(pass->bound);
	values[1] = TimestampTzGetDatum(pass->at);
	values[2] = Int64GetDatum(place_offer_id(pass));
	values[3] = Int32GetDatum(pass->page_limit);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_PAGE], values, NULL);
	*offers = MemoryContextAlloc(scope.outer, sizeof(DueOffer) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		DueOffer   *offer = &(*offers)[i];

		offer->at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		offer->offer_id = DatumGetInt64(sql_value(i, 2, NULL));
		offer->session.tenant_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 3, NULL)));
		offer->session.session_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 4, NULL)));
	}
	sql_end(&scope);
	return (int) n;
}

static void
end_lapsed(void *arg)
{
	Ending	   *ending = arg;
	Session		session;
	Offer		offer;
	TimestampTz now;
	bool		busy;

	if (!session_try_lock(&ending->due->session, &session, &busy))
	{
		ending->swept->contended++;
		return;
	}
	now = clock_now();
	if (!offer_read_open(&session.key, &offer) || offer.offer_id != ending->due->offer_id || now < offer.expires_at)
	{
		ending->swept->contended++;
		return;
	}
	offer_end(&offer, "expired", NULL, now);
	session_mark(session.number, now);
	ending->swept->expired++;
}

/* What cannot be ended is told, and left. */
static void
end_one(Ending *ending)
{
	OffersSwept before = *ending->swept;
	ErrorData  *error = subxact_run(end_lapsed, ending);

	if (error == NULL)
		return;
	*ending->swept = before;
	ending->swept->failed++;
	sweep_row_failed("an offer", error);
}

static int
offers_page(SweepPass *pass, void *arg)
{
	Ending		ending = {arg};
	DueOffer   *offers;
	int			n = read_page(pass, &offers);

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		ending.due = &offers[i];
		end_one(&ending);
	}
	if (n > 0)
		move_behind(pass, &offers[n - 1]);
	return n;
}

/* ----------------------------------------------------------------
 * Those that were decided long ago
 * ----------------------------------------------------------------
 */

static int
read_old_page(const SweepPass *pass, DueOffer **offers)
{
	SqlScope	scope;
	Datum		values[2];
	uint64		n;

	values[0] = Int64GetDatum(place_offer_id(pass));
	values[1] = Int32GetDatum(pass->page_limit);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_OLD_PAGE], values, NULL);
	*offers = MemoryContextAlloc(scope.outer, sizeof(DueOffer) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		(*offers)[i].at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		(*offers)[i].offer_id = DatumGetInt64(sql_value(i, 2, NULL));
		(*offers)[i].decided = DatumGetBool(sql_value(i, 3, NULL));
	}
	sql_end(&scope);
	return (int) n;
}

static bool
delete_offer(int64 offer_id)
{
	SqlScope	scope;
	Datum		value = Int64GetDatum(offer_id);
	bool		deleted;

	sql_begin(&scope);
	deleted = sql_run_latest(&plans[PLAN_DELETE], &value, NULL) > 0;
	sql_end(&scope);
	return deleted;
}

/* What a target's room still counts stays; the first that is young ends the view. */
static int
old_offers_page(SweepPass *pass, void *arg)
{
	OffersSwept *swept = arg;
	DueOffer   *offers;
	int			n = read_old_page(pass, &offers);

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (offers[i].at > pass->bound)
			return i;
		if (offers[i].decided && delete_offer(offers[i].offer_id))
			swept->deleted++;
	}
	if (n > 0)
		move_behind(pass, &offers[n - 1]);
	return n;
}

static void
delete_old(const PlacementSettings *settings, OffersSwept *swept)
{
	SweepPass	pass = {
		.sweep = SWEEP_OLD_OFFERS,
		.page_limit = settings->page_limit,
		.max_pages = settings->max_pages,
		.bound = clock_add_ms(clock_now(), -KEPT_MS),
		.npositions = 1
	};

	sweep_run(&pass, old_offers_page, swept, swept, sizeof(*swept));
}

bool
sweep_offers(SweepPass *pass, OffersSwept *swept)
{
	PlacementSettings settings;

	pass->sweep = SWEEP_OFFERS;
	if (!sweep_turn(pass->sweep, 1, &pass->shard))
		return false;
	placement_settings(&settings);
	pass->page_limit = settings.page_limit;
	pass->max_pages = settings.max_pages;
	pass->bound = clock_now();
	pass->npositions = 1;
	sweep_run(pass, offers_page, swept, swept, sizeof(*swept));
	delete_old(&settings, swept);
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_offers);
Datum
reconcile_sweep_offers(PG_FUNCTION_ARGS)
{
	SweepPass	pass = {0};
	OffersSwept swept = {0};
	Datum		values[9] = {0};
	bool		nulls[9] = {false};

	sweep_require("sweep_offers");
	(void) sweep_offers(&pass, &swept);
	values[0] = Int32GetDatum(pass.pages);
	values[1] = Int64GetDatum(pass.rows);
	values[2] = Int64GetDatum(swept.expired);
	values[3] = Int64GetDatum(swept.contended);
	values[4] = Int64GetDatum(swept.failed);
	values[5] = Int64GetDatum(swept.deleted);
	values[6] = BoolGetDatum(pass.truncated);
	values[7] = BoolGetDatum(pass.resumed);
	values[8] = sweep_failure(&pass, &nulls[8]);
	return return_one_row(fcinfo, values, nulls);
}

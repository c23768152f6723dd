/*
 * offer.c
 *		Offers to hosts: made, fetched, accepted, refused, ended.
 *
 * The session's row is the lock on its offer.  An acceptance takes the session's lease,
 * writes where the session is and ends the offer in one transaction, so that nobody ever
 * finds one without the others; what it returns counts from its COMMIT, which it makes
 * durable.  In the order of locks: session, lease, registration, target, offer.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "lease/lease.h"
#include "placement/field.h"
#include "placement/offer.h"
#include "placement/settings.h"

#define SOON_MS		500			/* for what is in the way of a lease, and about to end */

#define OFFER_COLUMNS \
	"o.offer_id, o.tenant_id, o.session_id, o.agent_id, o.runtime_compatibility_id, o.placement, o.host_id," \
	" o.host_generation, o.desired_generation, o.mode, o.round, o.made_at, o.expires_at, o.state, o.code, o.token," \
	" o.epoch, o.counted"

/* For each host those that are open, by their index: decided ones are many more. */
#define FETCH_FROM \
	"SELECT f.offer_id, h.host_id, f.host_generation, f.tenant_id, f.session_id, f.agent_id, f.runtime_compatibility_id," \
	" f.placement, f.mode, f.desired_generation, f.workload_version, f.workload, f.binding, f.made_at, f.expires_at FROM "
#define FETCH_OFFERS \
	" CROSS JOIN LATERAL (SELECT o.offer_id, o.host_generation, o.tenant_id, o.session_id, o.agent_id," \
	" o.runtime_compatibility_id, o.placement, o.mode, o.desired_generation, s.workload_version, s.workload, s.binding," \
	" o.made_at, o.expires_at FROM reconcile.session_offer o" \
	" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) o.tenant_id" \
	" AND s.session_id OPERATOR(pg_catalog.=) o.session_id" \
	" WHERE o.host_id OPERATOR(pg_catalog.=) h.host_id AND o.state OPERATOR(pg_catalog.=) 'offered'" \
	" AND o.expires_at OPERATOR(pg_catalog.>) $2 AND s.desired_generation OPERATOR(pg_catalog.=) o.desired_generation" \
	" ORDER BY o.offer_id LIMIT $3) f ORDER BY f.offer_id LIMIT $3"

enum
{
	PLAN_READ,
	PLAN_READ_OPEN,
	PLAN_MAKE,
	PLAN_END,
	PLAN_ACCEPT,
	PLAN_ASKED,
	PLAN_FETCH_OWN,
	PLAN_FETCH
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT " OFFER_COLUMNS " FROM reconcile.session_offer o WHERE o.offer_id OPERATOR(pg_catalog.=) $1",
		1, {INT8OID}
	},
	[PLAN_READ_OPEN] = {
		"SELECT " OFFER_COLUMNS " FROM reconcile.session_offer o WHERE o.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND o.session_id OPERATOR(pg_catalog.=) $2 AND o.state OPERATOR(pg_catalog.=) 'offered'",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_MAKE] = {
		"INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id,"
		" host_generation, desired_generation, mode, round, made_at, expires_at, state, counted)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'offered', true) RETURNING offer_id",
		12, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TEXTOID, INT8OID, TIMESTAMPTZOID,
			TIMESTAMPTZOID}
	},
	[PLAN_END] = {
		"UPDATE reconcile.session_offer SET state = $2, code = $3, decided_at = $4"
		" WHERE offer_id OPERATOR(pg_catalog.=) $1 AND state OPERATOR(pg_catalog.=) 'offered'",
		4, {INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_ACCEPT] = {
		"UPDATE reconcile.session_offer SET state = 'accepted', token = $2, epoch = $3, decided_at = $4"
		" WHERE offer_id OPERATOR(pg_catalog.=) $1 AND state OPERATOR(pg_catalog.=) 'offered'",
		4, {INT8OID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_ASKED] = {
		"SELECT o.host_id, o.state, o.code, o.round FROM reconcile.session_offer o WHERE o.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND o.session_id OPERATOR(pg_catalog.=) $2 AND o.round OPERATOR(pg_catalog.>=) $3"
		" AND o.round OPERATOR(pg_catalog.<=) $4 ORDER BY o.offer_id",
		4, {TEXTOID, TEXTOID, INT8OID, INT8OID}
	},
	[PLAN_FETCH_OWN] = {
		FETCH_FROM "(SELECT h.host_id FROM reconcile.host h WHERE h.role_name OPERATOR(pg_catalog.=)"
		" (SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid OPERATOR(pg_catalog.=) $1)"
		" AND h.role::pg_catalog.oid OPERATOR(pg_catalog.=) $1) h" FETCH_OFFERS,
		3, {OIDOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_FETCH] = {
		FETCH_FROM "(SELECT h.host_id FROM reconcile.host h"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) h.role AND r.rolname OPERATOR(pg_catalog.=) h.role_name"
		" WHERE pg_catalog.pg_has_role($1, r.oid, 'USAGE')) h" FETCH_OFFERS,
		3, {OIDOID, TIMESTAMPTZOID, INT4OID}
	}
};

/* ----------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------
 */

static void
offer_from_row(const SqlScope *scope, Offer *offer)
{
	bool		isnull;
	Datum		epoch;

	offer->offer_id = DatumGetInt64(sql_value(0, 1, NULL));
	offer->session.tenant_id = sql_text(0, 2, scope->outer);
	offer->session.session_id = sql_text(0, 3, scope->outer);
	offer->target.agent_id = sql_text(0, 4, scope->outer);
	offer->target.runtime_compatibility_id = sql_text(0, 5, scope->outer);
	offer->target.placement = sql_text(0, 6, scope->outer);
	offer->host_id = sql_text(0, 7, scope->outer);
	offer->host_generation = DatumGetInt64(sql_value(0, 8, NULL));
	offer->desired_generation = DatumGetInt64(sql_value(0, 9, NULL));
	offer->mode = sql_text(0, 10, scope->outer);
	offer->round = DatumGetInt64(sql_value(0, 11, NULL));
	offer->made_at = DatumGetTimestampTz(sql_value(0, 12, NULL));
	offer->expires_at = DatumGetTimestampTz(sql_value(0, 13, NULL));
	offer->state = sql_text(0, 14, scope->outer);
	offer->code = sql_text(0, 15, scope->outer);
	offer->token = sql_text(0, 16, scope->outer);
	epoch = sql_value(0, 17, &isnull);
	offer->epoch = isnull ? 0 : DatumGetInt64(epoch);
	offer->counted = DatumGetBool(sql_value(0, 18, NULL));
}

static bool
offer_read(int64 offer_id, Offer *offer)
{
	SqlScope	scope;
	Datum		value = Int64GetDatum(offer_id);
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], &value, NULL) > 0;
	if (found)
		offer_from_row(&scope, offer);
	sql_end(&scope);
	return found;
}

bool
offer_read_open(const SessionKey *key, Offer *offer)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ_OPEN], values, NULL) > 0;
	if (found)
		offer_from_row(&scope, offer);
	sql_end(&scope);
	return found;
}

int
offer_asked(const SessionKey *key, int64 first, int64 last, Asked **asked)
{
	SqlScope	scope;
	Datum		values[4];
	int			n;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(first);
	values[3] = Int64GetDatum(last);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_ASKED], values, NULL);
	*asked = MemoryContextAlloc(scope.outer, sizeof(Asked) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		(*asked)[i].host_id = sql_text(i, 1, scope.outer);
		(*asked)[i].state = sql_text(i, 2, scope.outer);
		(*asked)[i].code = sql_text(i, 3, scope.outer);
		(*asked)[i].round = DatumGetInt64(sql_value(i, 4, NULL));
	}
	sql_end(&scope);
	return n;
}

/* ----------------------------------------------------------------
 * Making and ending
 * ----------------------------------------------------------------
 */

int64
offer_make(const Session *session, const HostTarget *target, int64 round, int64 ttl_ms, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[12];
	int64		offer_id;

	values[0] = CStringGetTextDatum(session->key.tenant_id);
	values[1] = CStringGetTextDatum(session->key.session_id);
	values[2] = CStringGetTextDatum(target->key.agent_id);
	values[3] = CStringGetTextDatum(target->key.runtime_compatibility_id);
	values[4] = CStringGetTextDatum(target->key.placement);
	values[5] = CStringGetTextDatum(target->host_id);
	values[6] = Int64GetDatum(target->host_generation);
	values[7] = Int64GetDatum(session->generation);
	values[8] = CStringGetTextDatum(session_mode(session));
	values[9] = Int64GetDatum(round);
	values[10] = TimestampTzGetDatum(now);
	values[11] = TimestampTzGetDatum(clock_add_ms(now, ttl_ms));
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_MAKE], values, NULL);
	offer_id = DatumGetInt64(sql_value(0, 1, NULL));
	sql_end(&scope);
	return offer_id;
}

void
offer_end(const Offer *offer, const char *state, const char *code, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[4];
	char		nulls[4] = {' ', ' ', code == NULL ? 'n' : ' ', ' '};

	host_unreserve(offer->offer_id);
	TEST_POINT("offer-unreserved");
	values[0] = Int64GetDatum(offer->offer_id);
	values[1] = CStringGetTextDatum(state);
	values[2] = code == NULL ? (Datum) 0 : CStringGetTextDatum(code);
	values[3] = TimestampTzGetDatum(now);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_END], values, nulls);
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * Fetching
 * ----------------------------------------------------------------
 */

/* May the role act for hosts of another one?  Most may not, and there may be thousands of hosts. */
static bool
acts_for_others(Oid role)
{
	CatCList   *memberships;
	bool		member;

	if (superuser_arg(role))
		return true;
	memberships = SearchSysCacheList1(AUTHMEMMEMROLE, ObjectIdGetDatum(role));
	member = memberships->n_members > 0;
	ReleaseSysCacheList(memberships);
	return member;
}

PG_FUNCTION_INFO_V1(reconcile_fetch_offers);
Datum
reconcile_fetch_offers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SqlScope	scope;
	Datum		values[3];
	TimestampTz now = clock_now();
	int			plan;
	int			max;
	uint64		n;

	max = page_field(fcinfo, 0);
	InitMaterializedSRF(fcinfo, 0);

	plan = acts_for_others(GetUserId()) ? PLAN_FETCH : PLAN_FETCH_OWN;
	values[0] = ObjectIdGetDatum(GetUserId());
	values[1] = TimestampTzGetDatum(now);
	values[2] = Int32GetDatum(max);
	sql_begin(&scope);
	n = sql_run_latest(&plans[plan], values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		Datum		columns[17];
		bool		nulls[17];

		for (int c = 0; c < 15; c++)
			columns[c] = sql_value(i, c + 1, &nulls[c]);
		for (int c = 11; c <= 12; c++)
		{
			if (!nulls[c])
				columns[c] = PointerGetDatum(PG_DETOAST_DATUM(columns[c]));
		}
		columns[16] = IntervalPGetDatum(duration_interval((DatumGetTimestampTz(columns[14]) - now) / 1000));
		columns[15] = columns[14];
		columns[14] = columns[13];
		columns[13] = CStringGetTextDatum(session_attach_key(TextDatumGetCString(columns[3]), TextDatumGetCString(columns[4]),
															 TextDatumGetCString(columns[5]), TextDatumGetCString(columns[6]),
															 TextDatumGetCString(columns[8]), DatumGetInt64(columns[9])));
		nulls[13] = nulls[14] = nulls[15] = nulls[16] = false;
		tuplestore_putvalues(result->setResult, result->setDesc, columns, nulls);
	}
	sql_end(&scope);
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * Accepting
 * ----------------------------------------------------------------
 */

/* An answer of a host, to an offer that is his. */
typedef struct Answer
{
	Offer		offer;
	Session		session;
	TimestampTz now;			/* read after the lock */
} Answer;

/* Locks the session of an offer to a host of the caller's; false: there is no such offer. */
static bool
answer_begin(int64 offer_id, Answer *answer)
{
	/* what is not there and what is not the caller's look alike, and nobody locks what is not his */
	if (!offer_read(offer_id, &answer->offer) || !host_is_mine(answer->offer.host_id) ||
		!session_lock(&answer->offer.session, &answer->session) || !offer_read(offer_id, &answer->offer) ||
		!host_is_mine(answer->offer.host_id))
		return false;
	answer->now = clock_now();
	return true;
}

typedef struct Acceptance
{
	const char *outcome;
	int64		epoch;			/* 0: none */
	TimestampTz until;			/* of the lease, if there is one */
} Acceptance;

/* The offer was accepted: is it the same host that asks again, and does it still have the session? */
static void
accept_again(const Answer *answer, const char *token, Acceptance *acceptance)
{
	Registration registration;

	if (strcmp(answer->offer.token, token) != 0)
		acceptance->outcome = "taken";
	else if (registration_read(&answer->session.key, &registration) &&
			 registration_holder(&answer->session, &registration, answer->offer.epoch, token, answer->now) == HOLDER_LIVE)
	{
		acceptance->outcome = "repeated";
		acceptance->epoch = answer->offer.epoch;
		acceptance->until = registration.expires_at;
	}
	else
		acceptance->outcome = "expired";
}

/* The session is the host's from the COMMIT on. */
static void
attach(const Answer *answer, int64 host_generation, const char *endpoint, const char *token, const Lease *lease)
{
	const Offer *offer = &answer->offer;
	SqlScope	scope;
	Datum		values[4];
	Registration registration = {
		.lease_epoch = lease->epoch,
		.observed_at = lease->acquired_at,
		.expires_at = lease->expires_at,
		.host_id = offer->host_id,
		.host_generation = host_generation,
		.agent_id = unconstify(char *, offer->target.agent_id),
		.runtime_compatibility_id = unconstify(char *, offer->target.runtime_compatibility_id),
		.placement = unconstify(char *, offer->target.placement),
		.endpoint = unconstify(char *, endpoint),
		.residency = "attaching",
		.accepting = false,
		.offer_id = offer->offer_id,
		.token = unconstify(char *, token)
	};

	registration_write(&offer->session, &registration);
	TEST_POINT("accept-before-offer");
	values[0] = Int64GetDatum(offer->offer_id);
	values[1] = CStringGetTextDatum(token);
	values[2] = Int64GetDatum(lease->epoch);
	values[3] = TimestampTzGetDatum(answer->now);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_ACCEPT], values, NULL) == 0)
		elog(ERROR, "offer " INT64_FORMAT " changed though its session is locked", offer->offer_id);
	sql_end(&scope);
	/* should the host die before its first heartbeat, somebody looks */
	session_mark(answer->session.number, lease->expires_at);
}

/*
 * The lease of a session that is locked.  So nobody else is about to get it but a
 * transaction that has ended and not given back all of its locks, or one that begins an
 * incarnation for all leases: they are over soon, and then it is asked again.
 */
static LeaseOutcome
acquire(const char *lease_id, const char *holder_id, int64 ttl_ms, Lease *lease)
{
	static uint32 wait_event = 0;
	TimestampTz asked_at = clock_now();
	LeaseOutcome outcome;

	if (wait_event == 0)
		wait_event = compat_wait_event("ReconcileLeaseWait");
	while ((outcome = lease_try_acquire(lease_id, holder_id, ttl_ms, false, lease)) != LEASE_GRANTED &&
		   outcome != LEASE_HELD && clock_now() < clock_add_ms(asked_at, SOON_MS))
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, SOON_MS / 50, wait_event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return outcome;
}

/* If the session's lease is free. */
static void
take(const Answer *answer, int64 host_generation, const char *endpoint, const char *token, Acceptance *acceptance)
{
	char		lease_id[SESSION_LEASE_MAX];
	char		holder_id[OFFER_HOLDER_MAX];
	PlacementSettings settings;
	Lease		lease;

	placement_settings(&settings);
	acceptance->outcome = "lease_busy";
	acceptance->until = Max(session_held_until(&answer->session, settings.session_ttl_ms, true), answer->now);
	if (clock_now() < acceptance->until)
		return;
	session_lease_id(answer->session.number, lease_id);
	offer_holder_id(answer->offer.offer_id, holder_id);
	if (acquire(lease_id, holder_id, settings.session_ttl_ms, &lease) != LEASE_GRANTED)
		return;
	attach(answer, host_generation, endpoint, token, &lease);
	acceptance->outcome = "accepted";
	acceptance->epoch = lease.epoch;
	acceptance->until = lease.expires_at;
}

static void
accept(const Answer *answer, int64 host_generation, const char *token, Acceptance *acceptance)
{
	const Offer *offer = &answer->offer;
	char	   *endpoint;

	if (strcmp(offer->state, "accepted") == 0)
	{
		accept_again(answer, token, acceptance);
		return;
	}
	if (strcmp(offer->state, "offered") != 0)
		acceptance->outcome = offer->state;
	else if (answer->now >= offer->expires_at)
		acceptance->outcome = "expired";
	else if (host_generation != target_generation(&offer->target, offer->host_id, &endpoint))
		acceptance->outcome = "generation";
	/* who takes back what it offers takes it from its sessions too */
	else if (endpoint == NULL)
		acceptance->outcome = "withdrawn";
	/* a runtime or a placement changes with the generation alone */
	else if (offer->desired_generation != answer->session.generation)
		acceptance->outcome = "stale_offer";
	else
		take(answer, host_generation, endpoint, token, acceptance);
}

PG_FUNCTION_INFO_V1(reconcile_accept_offer);
Datum
reconcile_accept_offer(PG_FUNCTION_ARGS)
{
	int64		offer_id;
	int64		host_generation;
	char	   *token;
	Answer		answer;
	Acceptance	acceptance = {.outcome = "not_found"};
	Datum		values[3] = {0};
	bool		nulls[3] = {false, true, true};

	require_writable("accept_offer");
	require_read_committed("accept_offer");
	offer_id = number_field(fcinfo, 0, "offer_id", 1, PG_INT64_MAX, "It is that of an offer that was fetched.");
	host_generation = number_field(fcinfo, 1, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	token = identity_field(fcinfo, 2, "token");
	if (answer_begin(offer_id, &answer))
		accept(&answer, host_generation, token, &acceptance);

	values[0] = CStringGetTextDatum(acceptance.outcome);
	nulls[1] = acceptance.epoch == 0;
	values[1] = Int64GetDatum(acceptance.epoch);
	nulls[2] = acceptance.until == 0;
	if (!nulls[2])
		values[2] = IntervalPGetDatum(duration_interval(Max(acceptance.until - clock_now(), 0) / 1000));
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * Refusing
 * ----------------------------------------------------------------
 */

static const char *const codes[] = {
	"epoch_mismatch", "runtime_mismatch", "no_capacity", "not_admitting", "releasing", "runtime_unavailable"
};

static const char *
refuse(const Answer *answer, const char *code)
{
	const Offer *offer = &answer->offer;

	if (strcmp(offer->state, "refused") == 0)
	{
		bool		same = offer->code == NULL ? code == NULL : code != NULL && strcmp(offer->code, code) == 0;

		return same ? "repeated" : "conflict";
	}
	if (strcmp(offer->state, "offered") != 0)
		return offer->state;
	if (answer->now >= offer->expires_at)
		return "expired";
	offer_end(offer, "refused", code, answer->now);
	/* the next candidate may be asked at once */
	session_mark(answer->session.number, answer->now);
	return "refused";
}

PG_FUNCTION_INFO_V1(reconcile_refuse_offer);
Datum
reconcile_refuse_offer(PG_FUNCTION_ARGS)
{
	int64		offer_id;
	const char *code = NULL;
	Answer		answer;

	require_writable("refuse_offer");
	require_read_committed("refuse_offer");
	offer_id = number_field(fcinfo, 0, "offer_id", 1, PG_INT64_MAX, "It is that of an offer that was fetched.");
	if (!PG_ARGISNULL(1))
		code = codes[word_field(fcinfo, 1, "code", codes, lengthof(codes),
								"It is epoch_mismatch, runtime_mismatch, no_capacity, not_admitting, releasing, "
								"runtime_unavailable, or NULL.")];
	PG_RETURN_DATUM(CStringGetTextDatum(answer_begin(offer_id, &answer) ? refuse(&answer, code) : "not_found"));
}

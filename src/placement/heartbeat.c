/*
 * heartbeat.c
 *		All that a host has to say, in one call: what it offers, and which sessions it has.
 *
 * Whatever else is busy, the sessions of a host go on: of its registrations, and their
 * leases, those that somebody has are left for the next time, and hold as long as they
 * did; a target waits for its turn, and is left, too, where that does not come.  No row of
 * a session is locked, so nobody who decides about one waits for a heartbeat.  A session
 * that cannot be renewed is no error: the host is told to stop it.
 *
 * What follows from a clock is told last: how long the leases hold, and that one is over
 * by then.  Whoever turns out to be of an earlier generation after a turn, or no host any
 * more, has written nothing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "lease/lease.h"
#include "placement/field.h"
#include "placement/host.h"
#include "placement/marks.h"
#include "placement/members.h"
#include "placement/settings.h"

#define SESSIONS_MAX	10000
#define TARGETS_MAX		1000

#define OF_KEY \
	"r.tenant_id OPERATOR(pg_catalog.=) k.tenant_id AND r.session_id OPERATOR(pg_catalog.=) k.session_id"

enum
{
	PLAN_LOCK,
	PLAN_FACTS,
	PLAN_RENEW,
	PLAN_DRAINS
};

static SqlPlan plans[] = {
	/* of those that it has: nobody takes one away until the end */
	[PLAN_LOCK] = {
		"SELECT k.n::pg_catalog.int4, s.number, r.offer_id,"
		" COALESCE(r.residency OPERATOR(pg_catalog.=) 'resident' AND r.accepting, false)"
		" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4))"
		" WITH ORDINALITY k (tenant_id, session_id, epoch, token, n)"
		" JOIN reconcile.session_registration r ON " OF_KEY
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) r.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) r.session_id"
		" WHERE r.host_id OPERATOR(pg_catalog.=) $5 AND r.host_generation OPERATOR(pg_catalog.<=) $6"
		" AND r.lease_epoch OPERATOR(pg_catalog.=) k.epoch AND r.token OPERATOR(pg_catalog.=) k.token"
		" FOR NO KEY UPDATE OF r SKIP LOCKED",
		6, {TEXTARRAYOID, TEXTARRAYOID, INT8ARRAYOID, TEXTARRAYOID, TEXTOID, INT8OID}
	},
	[PLAN_FACTS] = {
		"SELECT k.n::pg_catalog.int4, s.number, r.lease_epoch, r.host_id, r.host_generation, r.offer_id, r.token"
		" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY k (tenant_id, session_id, n)"
		" JOIN reconcile.session_registration r ON " OF_KEY
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) r.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) r.session_id",
		2, {TEXTARRAYOID, TEXTARRAYOID}
	},
	/* of those that are locked, and whose leases were renewed */
	[PLAN_RENEW] = {
		"UPDATE reconcile.session_registration r SET observed_at = $6, expires_at = k.expires_at, residency = k.residency,"
		" accepting = k.accepting, host_generation = $7"
		" FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4),"
		" pg_catalog.unnest($5)) k (tenant_id, session_id, expires_at, residency, accepting)"
		" WHERE " OF_KEY,
		7, {TEXTARRAYOID, TEXTARRAYOID, TIMESTAMPTZARRAYOID, TEXTARRAYOID, BOOLARRAYOID, TIMESTAMPTZOID, INT8OID}
	},
	[PLAN_DRAINS] = {
		"SELECT r.tenant_id, r.session_id, r.lease_epoch FROM reconcile.session_workload w"
		" JOIN reconcile.session_registration r ON r.tenant_id OPERATOR(pg_catalog.=) w.tenant_id"
		" AND r.session_id OPERATOR(pg_catalog.=) w.session_id"
		" WHERE w.drain_host_id OPERATOR(pg_catalog.=) $1 AND w.drain_generation OPERATOR(pg_catalog.=) $2"
		" AND w.decided IS NULL AND r.host_id OPERATOR(pg_catalog.=) w.drain_host_id"
		" AND r.host_generation OPERATOR(pg_catalog.=) w.drain_generation"
		" ORDER BY r.tenant_id, r.session_id",
		2, {TEXTOID, INT8OID}
	}
};

/* A session that the host says it has. */
typedef struct Beat
{
	char	   *tenant_id;
	char	   *session_id;
	int64		epoch;
	char	   *token;
	char	   *residency;
	bool		accepting;
	/* as it is here; number 0: nobody ever had it */
	int64		number;
	int64		lease_epoch;
	int64		offer_id;
	bool		was_owner;		/* resident, and accepting */
	bool		locked;			/* its registration */
	const char *stop;			/* why the host is to stop it; NULL: it goes on */
	TimestampTz expires_at;
} Beat;

typedef struct Heartbeat
{
	char	   *host_id;
	int64		host_generation;
	int64		ttl_ms;			/* of what it offers */
	Advertisement *targets;
	int			ntargets;
	Beat	   *beats;
	int			nbeats;
	int64		seen_offer;
	/* what the host is told of itself */
	const char *outcome;
	int64		generation;		/* the highest that has spoken; 0: not told */
} Heartbeat;

/* ----------------------------------------------------------------
 * Arguments
 * ----------------------------------------------------------------
 */

static int
compare_targets(const void *a, const void *b)
{
	const TargetKey *x = &((const Advertisement *) a)->key;
	const TargetKey *y = &((const Advertisement *) b)->key;
	int			order = strcmp(x->agent_id, y->agent_id);

	if (order == 0)
		order = strcmp(x->runtime_compatibility_id, y->runtime_compatibility_id);
	return order != 0 ? order : strcmp(x->placement, y->placement);
}

/* Sorted by their keys. */
static void
targets_arg(FunctionCallInfo fcinfo, int n, Heartbeat *heartbeat)
{
	JsonbIterator *iterator = members_array(PG_ARGISNULL(n) ? NULL : PG_GETARG_JSONB_P(n), "targets", TARGETS_MAX,
											&heartbeat->ntargets);

	heartbeat->targets = palloc0(sizeof(Advertisement) * Max(heartbeat->ntargets, 1));
	for (int i = 0; i < heartbeat->ntargets; i++)
	{
		Advertisement *target = &heartbeat->targets[i];
		Members		members;
		int64		capacity;
		char	  **capabilities;
		int			ncapabilities;

		members_next(&iterator, "targets", i, &members);
		target->key.agent_id = members_need_text(&members, "agent_id");
		target->key.runtime_compatibility_id = members_need_text(&members, "runtime_compatibility_id");
		target->key.placement = members_need_text(&members, "placement");
		target->endpoint = members_need_text(&members, "endpoint");
		target->isolation_class = members_need_text(&members, "isolation_class");
		target->accepting = members_bool(&members, "accepting", true);
		/* what is not said, and what is no int, is out of range */
		capacity = members_int(&members, "available_capacity", -1);
		target->capacity = capacity < -1 || capacity > CAPACITY_MAX ? -1 : (int) capacity;
		target->ttl_ms = heartbeat->ttl_ms;
		ncapabilities = members_texts(&members, "capabilities", CAPABILITIES_MAX, &capabilities);
		members_end(&members);
		target_check(target, members_path(&members, ""));
		target->capabilities = capabilities_datum(capabilities, ncapabilities, members_path(&members, "capabilities"));
	}
	qsort(heartbeat->targets, heartbeat->ntargets, sizeof(Advertisement), compare_targets);
	for (int i = 1; i < heartbeat->ntargets; i++)
	{
		if (compare_targets(&heartbeat->targets[i - 1], &heartbeat->targets[i]) == 0)
			field_invalid("targets", "names a target twice", NULL);
	}
}

static void
sessions_arg(FunctionCallInfo fcinfo, int n, Heartbeat *heartbeat)
{
	JsonbIterator *iterator = members_array(PG_ARGISNULL(n) ? NULL : PG_GETARG_JSONB_P(n), "sessions", SESSIONS_MAX,
											&heartbeat->nbeats);

	heartbeat->beats = palloc0(sizeof(Beat) * Max(heartbeat->nbeats, 1));
	for (int i = 0; i < heartbeat->nbeats; i++)
	{
		Beat	   *beat = &heartbeat->beats[i];
		Members		members;

		members_next(&iterator, "sessions", i, &members);
		beat->tenant_id = members_need_text(&members, "tenant_id");
		beat->session_id = members_need_text(&members, "session_id");
		beat->epoch = members_int(&members, "epoch", 0);
		beat->token = members_need_text(&members, "token");
		beat->residency = members_text(&members, "residency");
		if (beat->residency == NULL)
			beat->residency = "resident";
		else if (strcmp(beat->residency, "attaching") != 0 && strcmp(beat->residency, "resident") != 0 &&
				 strcmp(beat->residency, "releasing") != 0)
			field_invalid(members_path(&members, "residency"), "is not one of its values",
						  "It is attaching, resident or releasing.");
		beat->accepting = members_bool(&members, "accepting", strcmp(beat->residency, "resident") == 0);
		if (beat->epoch < 1)
			field_invalid(members_path(&members, "epoch"), "is out of range", "It is that of the acceptance.");
		members_end(&members);
	}
}

/* ----------------------------------------------------------------
 * Sessions
 * ----------------------------------------------------------------
 */

static Datum
array_of(Datum *elements, int n, Oid type, int16 length, bool by_value, char align)
{
	return PointerGetDatum(construct_array(elements, n, type, length, by_value, align));
}

static Datum
texts_of(Datum *elements, int n)
{
	return array_of(elements, n, TEXTOID, -1, false, TYPALIGN_INT);
}

/* Why the host is to stop a session, by what is registered of it; NULL: it has it. */
static const char *
reason_to_stop(const Heartbeat *heartbeat, const Beat *beat, const char *host_id, int64 host_generation,
			   const char *token)
{
	bool		same = beat->epoch == beat->lease_epoch && strcmp(beat->token, token) == 0;

	if (host_id == NULL)
		return same ? "released" : "not_found";
	if (strcmp(host_id, heartbeat->host_id) != 0)
		return "not_found";
	if (beat->epoch != beat->lease_epoch)
		return "epoch";
	if (!same)
		return "not_found";
	return heartbeat->host_generation < host_generation ? "generation" : NULL;
}

/* Locks the registrations of those that the host has, but those that are busy. */
static void
lock_registrations(Heartbeat *heartbeat)
{
	int			n = heartbeat->nbeats;
	Datum	   *columns[4];
	Datum		values[6];
	uint64		rows;
	SqlScope	scope;

	for (int c = 0; c < lengthof(columns); c++)
		columns[c] = palloc(sizeof(Datum) * n);
	for (int i = 0; i < n; i++)
	{
		columns[0][i] = CStringGetTextDatum(heartbeat->beats[i].tenant_id);
		columns[1][i] = CStringGetTextDatum(heartbeat->beats[i].session_id);
		columns[2][i] = Int64GetDatum(heartbeat->beats[i].epoch);
		columns[3][i] = CStringGetTextDatum(heartbeat->beats[i].token);
	}
	values[0] = texts_of(columns[0], n);
	values[1] = texts_of(columns[1], n);
	values[2] = array_of(columns[2], n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	values[3] = texts_of(columns[3], n);
	values[4] = CStringGetTextDatum(heartbeat->host_id);
	values[5] = Int64GetDatum(heartbeat->host_generation);
	sql_begin(&scope);
	rows = sql_run_latest(&plans[PLAN_LOCK], values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		Beat	   *beat = &heartbeat->beats[DatumGetInt32(sql_value(i, 1, NULL)) - 1];

		beat->locked = true;
		beat->number = DatumGetInt64(sql_value(i, 2, NULL));
		beat->offer_id = DatumGetInt64(sql_value(i, 3, NULL));
		beat->was_owner = DatumGetBool(sql_value(i, 4, NULL));
	}
	sql_end(&scope);
}

/* What is registered of those that are not locked: not the host's, or busy. */
static void
read_facts(Heartbeat *heartbeat)
{
	Beat	  **beats = palloc(sizeof(Beat *) * heartbeat->nbeats);
	Datum	   *tenants = palloc(sizeof(Datum) * heartbeat->nbeats);
	Datum	   *sessions = palloc(sizeof(Datum) * heartbeat->nbeats);
	int			n = 0;
	Datum		values[2];
	uint64		rows;
	SqlScope	scope;

	for (int i = 0; i < heartbeat->nbeats; i++)
	{
		Beat	   *beat = &heartbeat->beats[i];

		if (beat->locked)
			continue;
		beat->stop = "not_found";
		tenants[n] = CStringGetTextDatum(beat->tenant_id);
		sessions[n] = CStringGetTextDatum(beat->session_id);
		beats[n++] = beat;
	}
	if (n == 0)
		return;
	values[0] = texts_of(tenants, n);
	values[1] = texts_of(sessions, n);
	sql_begin(&scope);
	rows = sql_run_latest(&plans[PLAN_FACTS], values, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		Beat	   *beat = beats[DatumGetInt32(sql_value(i, 1, NULL)) - 1];
		bool		released;
		Datum		host_id = sql_value(i, 4, &released);
		bool		isnull;
		Datum		generation = sql_value(i, 5, &isnull);

		beat->number = DatumGetInt64(sql_value(i, 2, NULL));
		beat->lease_epoch = DatumGetInt64(sql_value(i, 3, NULL));
		beat->offer_id = DatumGetInt64(sql_value(i, 6, NULL));
		beat->stop = reason_to_stop(heartbeat, beat, released ? NULL : TextDatumGetCString(host_id),
									released ? 0 : DatumGetInt64(generation), TextDatumGetCString(sql_value(i, 7, NULL)));
	}
	sql_end(&scope);
}

static int
compare_numbers(const void *a, const void *b)
{
	const Beat *x = *(Beat *const *) a;
	const Beat *y = *(Beat *const *) b;

	return x->number < y->number ? -1 : x->number > y->number;
}

static void
name_lease(const Beat *beat, LeaseRenewal *renewal)
{
	char	   *lease_id = palloc(SESSION_LEASE_MAX);
	char	   *holder_id = palloc(OFFER_HOLDER_MAX);

	session_lease_id(beat->number, lease_id);
	offer_holder_id(beat->offer_id, holder_id);
	renewal->reconciler_id = lease_id;
	renewal->holder_id = holder_id;
	renewal->epoch = beat->epoch;
}

/* Those that the host has, none twice. */
static Beat **
held(Heartbeat *heartbeat, int *n)
{
	Beat	  **beats = palloc(sizeof(Beat *) * heartbeat->nbeats);

	*n = 0;
	for (int i = 0; i < heartbeat->nbeats; i++)
	{
		if (heartbeat->beats[i].stop == NULL)
			beats[(*n)++] = &heartbeat->beats[i];
	}
	qsort(beats, *n, sizeof(Beat *), compare_numbers);
	for (int i = 1; i < *n; i++)
	{
		if (beats[i]->number == beats[i - 1]->number)
			field_invalid("sessions", "names a session twice", NULL);
	}
	return beats;
}

/* The leases of those whose registrations are locked; returns the ones that were renewed. */
static Beat **
renew_leases(Beat **beats, int nbeats, int64 ttl_ms, int *n)
{
	Beat	  **renewed = palloc(sizeof(Beat *) * Max(nbeats, 1));
	LeaseRenewal *renewals = palloc0(sizeof(LeaseRenewal) * Max(nbeats, 1));
	int			locked = 0;

	for (int i = 0; i < nbeats; i++)
	{
		if (!beats[i]->locked)
			continue;
		name_lease(beats[i], &renewals[locked]);
		renewed[locked++] = beats[i];
	}
	lease_renew_free(renewals, locked, ttl_ms);
	*n = 0;
	for (int i = 0; i < locked; i++)
	{
		if (!renewals[i].renewed)
			continue;
		renewed[i]->expires_at = renewals[i].expires_at;
		renewed[(*n)++] = renewed[i];
	}
	return renewed;
}

/* Those that were not renewed: what is busy goes on to the end that it had, the others are over. */
static void
leave_busy(Beat **beats, int nbeats)
{
	Beat	  **left = palloc(sizeof(Beat *) * Max(nbeats, 1));
	LeaseRenewal *leases = palloc0(sizeof(LeaseRenewal) * Max(nbeats, 1));
	int			n = 0;

	for (int i = 0; i < nbeats; i++)
	{
		if (beats[i]->expires_at != 0)
			continue;
		name_lease(beats[i], &leases[n]);
		left[n++] = beats[i];
	}
	lease_stand_many(leases, n);
	for (int i = 0; i < n; i++)
	{
		if (leases[i].stands)
			left[i]->expires_at = leases[i].expires_at;
		else
			left[i]->stop = "expired";
	}
}

static void
write_registrations(const Heartbeat *heartbeat, Beat **renewed, int n)
{
	Datum	   *columns[5];
	Datum		values[7];

	for (int c = 0; c < lengthof(columns); c++)
		columns[c] = palloc(sizeof(Datum) * n);
	for (int i = 0; i < n; i++)
	{
		columns[0][i] = CStringGetTextDatum(renewed[i]->tenant_id);
		columns[1][i] = CStringGetTextDatum(renewed[i]->session_id);
		columns[2][i] = TimestampTzGetDatum(renewed[i]->expires_at);
		columns[3][i] = CStringGetTextDatum(renewed[i]->residency);
		columns[4][i] = BoolGetDatum(renewed[i]->accepting);
	}
	values[0] = texts_of(columns[0], n);
	values[1] = texts_of(columns[1], n);
	values[2] = array_of(columns[2], n, TIMESTAMPTZOID, sizeof(TimestampTz), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
	values[3] = texts_of(columns[3], n);
	values[4] = array_of(columns[4], n, BOOLOID, sizeof(bool), true, TYPALIGN_CHAR);
	values[5] = TimestampTzGetDatum(clock_now());
	values[6] = Int64GetDatum(heartbeat->host_generation);
	sql_do(&plans[PLAN_RENEW], values, NULL);
}

/* Those that are to leave where they are: whoever waits for one is told that it is busy, and for how long. */
static void
mark_leaving(Beat **renewed, int n)
{
	int64	   *numbers = palloc(sizeof(int64) * n);
	int			leaving = 0;

	for (int i = 0; i < n; i++)
	{
		const Beat *b = renewed[i];

		if (b->was_owner && !(b->accepting && strcmp(b->residency, "resident") == 0))
			numbers[leaving++] = b->number;
	}
	session_mark_working(leaving, numbers);
}

/* Renews what it may; returns the offers by which came what the host has, a bigint[]. */
static Datum
renew_sessions(Heartbeat *heartbeat, int64 ttl_ms)
{
	Beat	  **beats;
	Beat	  **renewed;
	Datum	   *offers;
	int			nbeats;
	int			n;

	if (heartbeat->nbeats == 0)
		return (Datum) 0;
	lock_registrations(heartbeat);
	read_facts(heartbeat);
	beats = held(heartbeat, &nbeats);
	renewed = renew_leases(beats, nbeats, ttl_ms, &n);
	leave_busy(beats, nbeats);
	if (n > 0)
	{
		TEST_POINT("heartbeat-renewed");
		write_registrations(heartbeat, renewed, n);
		mark_leaving(renewed, n);
	}
	offers = palloc(sizeof(Datum) * Max(nbeats, 1));
	n = 0;
	for (int i = 0; i < nbeats; i++)
	{
		if (beats[i]->stop == NULL)
			offers[n++] = Int64GetDatum(beats[i]->offer_id);
	}
	return n == 0 ? (Datum) 0 : array_of(offers, n, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);
}

/* ----------------------------------------------------------------
 * Answers
 * ----------------------------------------------------------------
 */

/* tenant_id NULL: of the host itself; number 0: not told. */
static void
answer(ReturnSetInfo *result, const char *outcome, const char *tenant_id, const char *session_id, int64 epoch,
	   int64 generation, int64 remaining_ms)
{
	Datum		values[6];
	bool		nulls[6] = {false};

	values[0] = CStringGetTextDatum(outcome);
	values[1] = text_or_null(tenant_id, &nulls[1]);
	values[2] = text_or_null(session_id, &nulls[2]);
	values[3] = Int64GetDatum(epoch);
	nulls[3] = epoch == 0;
	values[4] = Int64GetDatum(generation);
	nulls[4] = generation == 0;
	nulls[5] = remaining_ms == 0;
	values[5] = nulls[5] ? (Datum) 0 : IntervalPGetDatum(duration_interval(remaining_ms));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Sessions that the host is to let go, as their controller has asked. */
static void
answer_drains(ReturnSetInfo *result, const Heartbeat *heartbeat)
{
	Datum		values[2];
	SqlScope	scope;
	uint64		n;

	values[0] = CStringGetTextDatum(heartbeat->host_id);
	values[1] = Int64GetDatum(heartbeat->host_generation);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_DRAINS], values, NULL);
	for (uint64 i = 0; i < n; i++)
		answer(result, "drain", TextDatumGetCString(sql_value(i, 1, NULL)), TextDatumGetCString(sql_value(i, 2, NULL)),
			   DatumGetInt64(sql_value(i, 3, NULL)), 0, 0);
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * From the call to its answer
 * ----------------------------------------------------------------
 */

/* Has the host that calls nothing to say any more?  Then heartbeat->outcome says why. */
static bool
is_past(Heartbeat *heartbeat)
{
	heartbeat->generation = 0;
	if (!host_is_mine(heartbeat->host_id))
		heartbeat->outcome = "not_found";
	else
	{
		/* another process is this host by now: this one has nothing to keep either */
		heartbeat->generation = host_highest_generation(heartbeat->host_id);
		if (heartbeat->generation > heartbeat->host_generation)
			heartbeat->outcome = "generation";
	}
	return heartbeat->outcome != NULL;
}

/* An error takes back what was written: heartbeat->outcome says why, and it is told to nobody. */
compat_noreturn static void take_back(void);

static void
take_back(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg_internal("the host has nothing to say any more")));
}

/* Where others have what the host offers there it is left. */
static void
publish(Heartbeat *heartbeat, const Advertisement *target, const SeenOffers *seen, TimestampTz turns_until)
{
	TargetWord word = {
		.host_id = heartbeat->host_id,
		.advertisement = target,
		.seen = seen,
		.generation = heartbeat->host_generation
	};

	if (!target_publish_soon(&word, (int) Min(Max((turns_until - clock_now()) / 1000, 0), HOST_TURN_MS)))
		return;
	if (word.outcome == TARGET_GENERATION)
	{
		heartbeat->outcome = "generation";
		heartbeat->generation = word.generation;
		take_back();
	}
}

static void
speak(void *arg)
{
	Heartbeat  *heartbeat = arg;
	SeenOffers	seen = {.up_to = heartbeat->seen_offer};
	PlacementSettings settings;
	TimestampTz turns_until;

	placement_settings(&settings);
	seen.listed = renew_sessions(heartbeat, settings.session_ttl_ms);
	turns_until = clock_add_ms(clock_now(), TURNS_MAX_MS);
	for (int i = 0; i < heartbeat->ntargets; i++)
		publish(heartbeat, &heartbeat->targets[i], &seen, turns_until);
	/* there may have been turns */
	if (is_past(heartbeat))
		take_back();
	heartbeat->outcome = "renewed";
	heartbeat->generation = heartbeat->host_generation;
}

/* How long all that go on hold, 0 for none; what is over by now is to stop. */
static int64
remaining_ms(Heartbeat *heartbeat)
{
	TimestampTz now = clock_now();
	TimestampTz earliest = DT_NOEND;

	for (int i = 0; i < heartbeat->nbeats; i++)
	{
		Beat	   *beat = &heartbeat->beats[i];

		if (beat->stop != NULL)
			continue;
		/* what is left below 1 ms is told as nothing */
		if (beat->expires_at < now + 1000)
			beat->stop = "expired";
		else
			earliest = Min(earliest, beat->expires_at);
	}
	return earliest == DT_NOEND ? 0 : (earliest - now) / 1000;
}

static void
beat(ReturnSetInfo *result, Heartbeat *heartbeat)
{
	int64		remaining;

	if (!is_past(heartbeat))
	{
		ErrorData  *error = subxact_run(speak, heartbeat);

		if (error != NULL && heartbeat->outcome == NULL)
			ReThrowError(error);
	}
	if (strcmp(heartbeat->outcome, "renewed") != 0)
	{
		answer(result, heartbeat->outcome, NULL, NULL, 0, heartbeat->generation, 0);
		return;
	}
	remaining = remaining_ms(heartbeat);
	answer(result, "renewed", NULL, NULL, 0, heartbeat->generation, remaining);
	for (int i = 0; i < heartbeat->nbeats; i++)
	{
		const Beat *b = &heartbeat->beats[i];

		if (b->stop != NULL)
			answer(result, b->stop, b->tenant_id, b->session_id, strcmp(b->stop, "epoch") == 0 ? b->lease_epoch : 0, 0, 0);
	}
	answer_drains(result, heartbeat);
}

PG_FUNCTION_INFO_V1(reconcile_heartbeat_host);
Datum
reconcile_heartbeat_host(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Heartbeat	heartbeat = {0};

	require_writable("heartbeat_host");
	require_read_committed("heartbeat_host");
	heartbeat.host_id = identity_field(fcinfo, 0, "host_id");
	heartbeat.host_generation = number_field(fcinfo, 1, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	heartbeat.ttl_ms = interval_field(fcinfo, 4, "ttl", false, TARGET_TTL_MAX_MS, "It is more than 0 and at most 15 minutes.");
	targets_arg(fcinfo, 2, &heartbeat);
	sessions_arg(fcinfo, 3, &heartbeat);
	if (!PG_ARGISNULL(5))
		heartbeat.seen_offer = number_field(fcinfo, 5, "seen_offer", 0, PG_INT64_MAX, "It is at least 0.");

	InitMaterializedSRF(fcinfo, 0);
	beat(result, &heartbeat);
	return (Datum) 0;
}

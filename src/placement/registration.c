/*
 * registration.c
 *		Where sessions are: one row for each that a host ever had.
 *
 * It is written by whoever has the lease of the session, or its row, locked: so its epoch
 * and the lease's are of one grant.  What is released keeps its epoch, and the token of
 * who had it; released is told before any clock is asked.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "lease/lease.h"
#include "placement/holder.h"
#include "placement/host.h"

enum
{
	PLAN_READ,
	PLAN_WRITE
};

#define OF_SESSION "tenant_id OPERATOR(pg_catalog.=) $1 AND session_id OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT lease_epoch, observed_at, expires_at, host_id, host_generation, agent_id, runtime_compatibility_id,"
		" placement, endpoint, residency, accepting, offer_id, token FROM reconcile.session_registration"
		" WHERE " OF_SESSION,
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_registration AS r (tenant_id, session_id, lease_epoch, observed_at, expires_at,"
		" host_id, host_generation, agent_id, runtime_compatibility_id, placement, endpoint, residency, accepting,"
		" offer_id, token) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
		" ON CONFLICT (tenant_id, session_id) DO UPDATE SET lease_epoch = $3, observed_at = $4, expires_at = $5,"
		" host_id = $6, host_generation = $7, agent_id = $8, runtime_compatibility_id = $9, placement = $10,"
		" endpoint = $11, residency = $12, accepting = $13, offer_id = $14, token = $15",
		15, {TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, TEXTOID,
			TEXTOID, TEXTOID, BOOLOID, INT8OID, TEXTOID}
	}
};

bool
registration_read(const SessionKey *key, Registration *registration)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	memset(registration, 0, sizeof(*registration));
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
	{
		registration->lease_epoch = DatumGetInt64(sql_value(0, 1, NULL));
		registration->observed_at = DatumGetTimestampTz(sql_value(0, 2, NULL));
		registration->expires_at = DatumGetTimestampTz(sql_value(0, 3, NULL));
		registration->host_id = sql_text(0, 4, scope.outer);
		registration->offer_id = DatumGetInt64(sql_value(0, 12, NULL));
		registration->token = sql_text(0, 13, scope.outer);
	}
	if (registration->host_id != NULL)
	{
		registration->host_generation = DatumGetInt64(sql_value(0, 5, NULL));
		registration->agent_id = sql_text(0, 6, scope.outer);
		registration->runtime_compatibility_id = sql_text(0, 7, scope.outer);
		registration->placement = sql_text(0, 8, scope.outer);
		registration->endpoint = sql_text(0, 9, scope.outer);
		registration->residency = sql_text(0, 10, scope.outer);
		registration->accepting = DatumGetBool(sql_value(0, 11, NULL));
	}
	sql_end(&scope);
	return found;
}

void
registration_write(const SessionKey *key, const Registration *registration)
{
	SqlScope	scope;
	Datum		values[15];
	char		nulls[15] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(registration->lease_epoch);
	values[3] = TimestampTzGetDatum(registration->observed_at);
	values[4] = TimestampTzGetDatum(registration->expires_at);
	if (registration->host_id == NULL)
		memset(&nulls[5], 'n', 8);
	else
	{
		values[5] = CStringGetTextDatum(registration->host_id);
		values[6] = Int64GetDatum(registration->host_generation);
		values[7] = CStringGetTextDatum(registration->agent_id);
		values[8] = CStringGetTextDatum(registration->runtime_compatibility_id);
		values[9] = CStringGetTextDatum(registration->placement);
		values[10] = CStringGetTextDatum(registration->endpoint);
		values[11] = CStringGetTextDatum(registration->residency);
		values[12] = BoolGetDatum(registration->accepting);
	}
	values[13] = Int64GetDatum(registration->offer_id);
	values[14] = CStringGetTextDatum(registration->token);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE], values, nulls);
	sql_end(&scope);
}

void
offer_holder_id(int64 offer_id, char id[OFFER_HOLDER_MAX])
{
	snprintf(id, OFFER_HOLDER_MAX, "offer:" INT64_FORMAT, offer_id);
}

bool
registration_is_live(const Session *session, const Registration *registration, TimestampTz now)
{
	char		lease_id[SESSION_LEASE_MAX];
	char		holder_id[OFFER_HOLDER_MAX];
	Lease		lease;

	if (registration->host_id == NULL || now >= registration->expires_at)
		return false;
	/* an operator, or another incarnation, may have ended the lease before its time */
	session_lease_id(session->number, lease_id);
	offer_holder_id(registration->offer_id, holder_id);
	return lease_read(lease_id, &lease) && lease.epoch == registration->lease_epoch &&
		strcmp(lease.holder_id, holder_id) == 0 && now < lease.expires_at;
}

Holder
registration_holder(const Session *session, const Registration *registration, int64 epoch,
					const char *token, TimestampTz now)
{
	if (registration->lease_epoch == 0)
		return HOLDER_NONE;
	if (epoch != registration->lease_epoch)
		return HOLDER_EPOCH;
	if (strcmp(token, registration->token) != 0)
		return HOLDER_NONE;
	if (registration->host_id == NULL)
		return HOLDER_RELEASED;
	return registration_is_live(session, registration, now) ? HOLDER_LIVE : HOLDER_EXPIRED;
}

/* ----------------------------------------------------------------
 * Letting go
 * ----------------------------------------------------------------
 */

/* False: its lease was over, or somebody else has ended it. */
static bool
release_lease(const Session *session, const Registration *registration)
{
	char		lease_id[SESSION_LEASE_MAX];
	char		holder_id[OFFER_HOLDER_MAX];

	session_lease_id(session->number, lease_id);
	offer_holder_id(registration->offer_id, holder_id);
	return lease_release(lease_id, holder_id, registration->lease_epoch);
}

static void
release(const Session *session, Registration *registration, TimestampTz now)
{
	/* one that is over already is free as it is */
	(void) release_lease(session, registration);
	TEST_POINT("release-freed");
	registration->host_id = NULL;
	registration->observed_at = registration->expires_at = now;
	registration_write(&session->key, registration);
	/* a host that lets many go has the leases of some by now, and waits for no target */
	host_unreserve(registration->offer_id);
	session_mark(session->number, now);
}

/* Is it, or was it, the caller's?  Of what is let go the token alone tells. */
static bool
may_release(const SessionKey *key, const HolderProof *proof, Registration *registration)
{
	if (!registration_read(key, registration))
		return false;
	if (registration->host_id == NULL && registration->lease_epoch == proof->epoch &&
		strcmp(proof->token, registration->token) == 0)
		return true;
	return (registration->host_id != NULL && host_is_mine(registration->host_id)) || holder_is_known(key, proof);
}

PG_FUNCTION_INFO_V1(reconcile_release_session);
Datum
reconcile_release_session(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	Session		session;
	Registration registration;
	HolderProof proof;
	const char *outcome = "not_found";
	Datum		values[2] = {0};
	bool		nulls[2] = {false, true};

	require_writable("release_session");
	require_read_committed("release_session");
	session_key_args(fcinfo, &key);
	holder_proof_args(fcinfo, 2, &proof);

	/* nobody locks what is not his */
	if (may_release(&key, &proof, &registration) && session_lock(&key, &session) &&
		may_release(&key, &proof, &registration))
	{
		TimestampTz now = clock_now();

		switch (registration_holder(&session, &registration, proof.epoch, proof.token, now))
		{
			case HOLDER_NONE:
				break;
			case HOLDER_EPOCH:
				outcome = "epoch";
				break;
			case HOLDER_RELEASED:
				/* who decided that its workload goes has left the lease to its holder */
				outcome = release_lease(&session, &registration) ? "released" : "already";
				if (strcmp(outcome, "released") == 0)
					session_mark(session.number, now);
				break;
			case HOLDER_LIVE:
			case HOLDER_EXPIRED:
				release(&session, &registration, now);
				outcome = "released";
				break;
		}
	}
	values[0] = CStringGetTextDatum(outcome);
	if (strcmp(outcome, "not_found") != 0)
	{
		values[1] = Int64GetDatum(registration.lease_epoch);
		nulls[1] = false;
	}
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * Who has it
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_owner_of);
Datum
reconcile_owner_of(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	Session		session;
	Registration registration;
	TimestampTz now;
	const char *outcome;
	Datum		values[15] = {0};
	bool		nulls[15];

	session_key_args(fcinfo, &key);
	memset(nulls, true, sizeof(nulls));
	nulls[0] = false;
	if (!registration_read(&key, &registration) || !session_read(&key, &session) ||
		(!access_allowed(CAP_PLACE, "") && (registration.host_id == NULL || !host_is_mine(registration.host_id))))
	{
		values[0] = CStringGetTextDatum("not_found");
		return return_one_row(fcinfo, values, nulls);
	}

	/* after the reads, so that what is over is told so */
	now = clock_now();
	outcome = registration.host_id == NULL ? "released" :
		registration_is_live(&session, &registration, now) ? "live" : "expired";
	values[0] = CStringGetTextDatum(outcome);
	values[1] = Int64GetDatum(registration.lease_epoch);
	values[10] = TimestampTzGetDatum(registration.observed_at);
	values[11] = TimestampTzGetDatum(registration.expires_at);
	values[13] = CStringGetTextDatum(key.tenant_id);
	values[14] = CStringGetTextDatum(key.session_id);
	nulls[1] = nulls[10] = nulls[11] = nulls[13] = nulls[14] = false;
	/* the epoch of what is over still fences; its route leads nowhere */
	if (strcmp(outcome, "live") == 0)
	{
		values[2] = CStringGetTextDatum(registration.host_id);
		values[3] = Int64GetDatum(registration.host_generation);
		values[4] = CStringGetTextDatum(registration.agent_id);
		values[5] = CStringGetTextDatum(registration.runtime_compatibility_id);
		values[6] = CStringGetTextDatum(registration.placement);
		values[7] = CStringGetTextDatum(registration.endpoint);
		values[8] = CStringGetTextDatum(registration.residency);
		values[9] = BoolGetDatum(registration.accepting);
		values[12] = IntervalPGetDatum(duration_interval((registration.expires_at - now) / 1000));
		memset(nulls, false, sizeof(nulls));
	}
	return return_one_row(fcinfo, values, nulls);
}

/*
 * session_lease.c
 *		The lease of a session, as others than its holder see it.
 *
 * A host acts outside of this database, and keeps to what it was told.  So the end of
 * an incarnation, by which all leases are void, is no end for who was told before: a
 * session that somebody may have had then is nobody's until that time has passed too,
 * by the lease as it is stored, and by the longest that may have been granted last and
 * is not known here.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "lease/incarnation.h"
#include "lease/lease.h"
#include "placement/field.h"
#include "placement/host.h"

#define SOON_MS	1000			/* until an incarnation that is being begun is there */

/* The incarnation, begun if it is not yet, where that may be: nobody else would, while nothing is granted. */
static void
read_begun(Incarnation *now, bool may_begin)
{
	int64		floor;

	incarnation_read(now);
	if (now->floor == 0 || now->since != 0 || !may_begin)
		return;
	if (incarnation_enter(&floor))
		incarnation_leave();
	incarnation_read(now);
}

TimestampTz
session_held_until(const Session *session, int64 session_ttl_ms, bool may_begin)
{
	char		id[SESSION_LEASE_MAX];
	Lease		lease;
	bool		found;
	Incarnation now;
	TimestampTz until;

	session_lease_id(session->number, id);
	found = lease_read(id, &lease);
	if (found && !lease.lost)
		return lease_deadline(&lease);
	read_begun(&now, may_begin);
	/* of a first life nothing is lost */
	if (now.floor == 0)
		return DT_NOBEGIN;
	if (now.since == 0)
		return clock_add_ms(clock_now(), SOON_MS);
	if (!found && session->created_at >= now.since)
		return DT_NOBEGIN;
	until = clock_add_ms(now.since, session_ttl_ms);
	if (found)
	{
		until = Max(until, clock_add_ms(now.since, lease.ttl_ms));
		/* by another's clock, which may be wrong by more than any lease lasts */
		until = Max(until, Min(lease.stored_end, clock_add_ms(now.since, SESSION_TTL_MAX_MS)));
	}
	return until;
}

/* ----------------------------------------------------------------
 * By force
 * ----------------------------------------------------------------
 */

enum
{
	PLAN_NOT_SEEN
};

static SqlPlan plans[] = {
	/* what its host was asked to let go it did not let go itself */
	[PLAN_NOT_SEEN] = {
		"UPDATE reconcile.session_workload SET drain_epoch = 0 WHERE tenant_id OPERATOR(pg_catalog.=) $1"
		" AND session_id OPERATOR(pg_catalog.=) $2 AND drain_epoch OPERATOR(pg_catalog.=) $3 AND decided IS NULL"
		" AND COALESCE(drain_answer, '') OPERATOR(pg_catalog.<>) 'drained'",
		3, {TEXTOID, TEXTOID, INT8OID}
	}
};

static void
forget_drained(const Session *session, int64 epoch)
{
	Datum		values[3];

	values[0] = CStringGetTextDatum(session->key.tenant_id);
	values[1] = CStringGetTextDatum(session->key.session_id);
	values[2] = Int64GetDatum(epoch);
	sql_do(&plans[PLAN_NOT_SEEN], values, NULL);
}

/* False: nobody had it, nor its lease. */
static bool
end_session(const Session *session, Registration *registration, const char *reason)
{
	char		id[SESSION_LEASE_MAX];
	TimestampTz now = clock_now();
	bool		ended;

	session_lease_id(session->number, id);
	ended = lease_force_release(id, registration->lease_epoch, GetUserNameFromId(GetUserId(), false), reason);
	if (registration->host_id != NULL)
	{
		registration->host_id = NULL;
		registration->observed_at = registration->expires_at = now;
		registration_write(&session->key, registration);
		forget_drained(session, registration->lease_epoch);
		host_unreserve(registration->offer_id);
		ended = true;
	}
	if (!ended)
		return false;
	session_mark(session->number, now);
	ForceSyncCommit();
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_force_release_session);
Datum
reconcile_force_release_session(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	Session		session;
	Registration registration;
	int64		epoch;
	char	   *reason;
	const char *outcome = "not_found";
	Datum		values[2] = {0};
	bool		nulls[2] = {false, true};

	require_writable("force_release_session");
	require_read_committed("force_release_session");
	session_key_args(fcinfo, &key);
	epoch = number_field(fcinfo, 2, "seen_epoch", 1, PG_INT64_MAX, "It is the epoch that reconcile.owner_of() tells.");
	reason = reason_arg(fcinfo, 3);
	access_require_all(CAP_OPERATE);

	if (session_lock(&key, &session) && registration_read(&key, &registration))
	{
		access_require_all(CAP_OPERATE);
		nulls[1] = false;
		values[1] = Int64GetDatum(registration.lease_epoch);
		if (epoch != registration.lease_epoch)
			outcome = "epoch";
		else
			outcome = end_session(&session, &registration, reason) ? "released" : "already";
	}
	values[0] = CStringGetTextDatum(outcome);
	return return_one_row(fcinfo, values, nulls);
}

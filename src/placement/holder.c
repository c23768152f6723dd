/*
 * holder.c
 *		The host that has a session.
 *
 * An epoch is granted with the acceptance of an offer, whose token the host chose, so a
 * number alone makes nobody the holder.  Whether he still is, is said by the registration
 * and its lease: a session that is registered nowhere is his no more, though its lease
 * goes on.  One who was is known as long as his offer is kept, so that he learns what
 * became of the session.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"

#include "core/plan.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/holder.h"
#include "placement/host.h"

enum
{
	PLAN_HOST
};

static SqlPlan plans[] = {
	/* its offers are asked for where the registration does not tell, and there may be many that nobody accepted */
	[PLAN_HOST] = {
		"SELECT h.host_id FROM (SELECT r.host_id FROM reconcile.session_registration r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) $1 AND r.session_id OPERATOR(pg_catalog.=) $2"
		" AND r.host_id IS NOT NULL AND r.lease_epoch OPERATOR(pg_catalog.=) $3"
		" AND r.token OPERATOR(pg_catalog.=) $4"
		" UNION ALL SELECT o.host_id FROM reconcile.session_offer o"
		" WHERE o.tenant_id OPERATOR(pg_catalog.=) $1 AND o.session_id OPERATOR(pg_catalog.=) $2"
		" AND o.state OPERATOR(pg_catalog.=) 'accepted' AND o.epoch OPERATOR(pg_catalog.=) $3"
		" AND o.token OPERATOR(pg_catalog.=) $4) h LIMIT 1",
		4, {TEXTOID, TEXTOID, INT8OID, TEXTOID}
	}
};

void
holder_proof_args(FunctionCallInfo fcinfo, int n, HolderProof *proof)
{
	proof->epoch = number_field(fcinfo, n, "epoch", 1, PG_INT64_MAX, "It is the epoch of the session's lease, 1 or more.");
	proof->token = identity_field(fcinfo, n + 1, "token");
}

bool
holder_is_known(const SessionKey *key, const HolderProof *proof)
{
	SqlScope	scope;
	Datum		values[4];
	char	   *host_id = NULL;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(proof->epoch);
	values[3] = CStringGetTextDatum(proof->token);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_HOST], values, NULL) > 0)
		host_id = sql_text(0, 1, scope.outer);
	sql_end(&scope);
	return host_id != NULL && host_is_mine(host_id);
}

bool
holder_is_live(const Session *session, const HolderProof *proof, TimestampTz now)
{
	Registration registration;

	return registration_read(&session->key, &registration) &&
		registration_holder(session, &registration, proof->epoch, proof->token, now) == HOLDER_LIVE;
}

/*
 * claim.c
 *		Claims: who works on a session for a while.
 *
 * A claim spares others the work; nothing is allowed by it, and nothing else reads it
 * but to leave a session alone.  Whoever takes one, or lets it go, has the row of its
 * session locked, so no two get it; sweep_claims(), which ends what nobody works under any
 * more, has that of the claim alone.  The holder is who shows the token: two loops may share a name, and
 * neither must end what the other one is doing.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/command.h"
#include "journal/envelope.h"
#include "placement/claim.h"
#include "placement/field.h"
#include "placement/settings.h"

#define CLAIM_TTL_MAX_MS	(5 * 60 * 1000)

enum
{
	PLAN_READ,
	PLAN_WRITE,
	PLAN_END
};

#define OF_CLAIM \
	" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT c.holder_id, c.claim_token, c.claimed_at, c.expires_at FROM reconcile.session_claim c" OF_CLAIM,
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_claim (tenant_id, session_id, holder_id, claim_token, role_name, claimed_at, expires_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant_id, session_id) DO UPDATE"
		" SET holder_id = $3, claim_token = $4, role_name = $5, claimed_at = $6, expires_at = $7",
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, NAMEOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	/* equal times are how a claim that was let go is told from one that ran out */
	[PLAN_END] = {
		"UPDATE reconcile.session_claim c SET claimed_at = $3, expires_at = $3" OF_CLAIM,
		3, {TEXTOID, TEXTOID, TIMESTAMPTZOID}
	}
};

/* False: there never was one. */
static bool
claim_read(const SessionKey *key, SessionClaim *claim)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
	{
		claim->holder_id = sql_text(0, 1, scope.outer);
		claim->claim_token = sql_text(0, 2, scope.outer);
		claim->claimed_at = DatumGetTimestampTz(sql_value(0, 3, NULL));
		claim->expires_at = DatumGetTimestampTz(sql_value(0, 4, NULL));
	}
	sql_end(&scope);
	return found;
}

static bool
is_live(const SessionClaim *claim, TimestampTz now)
{
	return now < claim->expires_at;
}

/* A name alone is nobody's. */
static bool
is_of(const SessionClaim *claim, const char *holder_id, const char *token)
{
	return token != NULL && strcmp(claim->claim_token, token) == 0 && strcmp(claim->holder_id, holder_id) == 0;
}

bool
claim_read_live(const SessionKey *key, TimestampTz now, SessionClaim *claim)
{
	return claim_read(key, claim) && is_live(claim, now);
}

/* ----------------------------------------------------------------
 * acquire_claim()
 * ----------------------------------------------------------------
 */

typedef enum AcquireOutcome
{
	ACQUIRE_ACQUIRED,
	ACQUIRE_EXTENDED,			/* by its holder: the same claim, longer or shorter */
	ACQUIRE_TAKEN_OVER,			/* the one before is over */
	ACQUIRE_HELD,
	ACQUIRE_NOT_FOUND			/* there is no such session */
} AcquireOutcome;

static const char *const acquire_names[] = {
	[ACQUIRE_ACQUIRED] = "acquired",
	[ACQUIRE_EXTENDED] = "extended",
	[ACQUIRE_TAKEN_OVER] = "taken_over",
	[ACQUIRE_HELD] = "held",
	[ACQUIRE_NOT_FOUND] = "not_found"
};

/* "found": there is a claim, live or not. */
static AcquireOutcome
decide_acquire(bool found, const SessionClaim *claim, const char *holder_id, const char *token, TimestampTz now)
{
	if (!found)
		return ACQUIRE_ACQUIRED;
	if (!is_live(claim, now))
		return ACQUIRE_TAKEN_OVER;
	return is_of(claim, holder_id, token) ? ACQUIRE_EXTENDED : ACQUIRE_HELD;
}

static void
write_claim(const SessionKey *key, const SessionClaim *claim)
{
	SqlScope	scope;
	Datum		values[7];

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = CStringGetTextDatum(claim->holder_id);
	values[3] = CStringGetTextDatum(claim->claim_token);
	values[4] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	values[5] = TimestampTzGetDatum(claim->claimed_at);
	values[6] = TimestampTzGetDatum(claim->expires_at);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE], values, NULL);
	sql_end(&scope);
}

/* What stands after it is in *claim, where there is a session. */
static AcquireOutcome
acquire(const SessionKey *key, const char *holder_id, const char *token, int64 ttl_ms, SessionClaim *claim, TimestampTz *now)
{
	Session		session;
	AcquireOutcome outcome;

	if (!session_lock(key, &session))
		return ACQUIRE_NOT_FOUND;
	*now = clock_now();
	outcome = decide_acquire(claim_read(key, claim), claim, holder_id, token, *now);
	if (outcome == ACQUIRE_HELD)
		return outcome;
	claim->holder_id = pstrdup(holder_id);
	if (outcome != ACQUIRE_EXTENDED)
		claim->claim_token = command_mint_id(*now);
	claim->claimed_at = *now;
	claim->expires_at = clock_add_ms(*now, ttl_ms);
	write_claim(key, claim);
	return outcome;
}

static int64
default_ttl_ms(void)
{
	PlacementSettings settings;

	placement_settings(&settings);
	return settings.claim_ttl_ms;
}

PG_FUNCTION_INFO_V1(reconcile_acquire_claim);
Datum
reconcile_acquire_claim(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	char	   *holder_id;
	int64		ttl_ms;
	char	   *token;
	SessionClaim claim = {0};
	TimestampTz now;
	AcquireOutcome outcome;
	Datum		values[5];
	bool		nulls[5] = {false};

	require_writable("acquire_claim");
	require_read_committed("acquire_claim");
	session_key_args(fcinfo, &key);
	holder_id = identity_field(fcinfo, 2, "holder_id");
	ttl_ms = PG_ARGISNULL(3) ? default_ttl_ms() :
		interval_field(fcinfo, 3, "ttl", false, CLAIM_TTL_MAX_MS, "It is more than 0 and at most 5 minutes.");
	token = optional_field(fcinfo, 4, "claim_token");
	access_require_all(CAP_PLACE);

	outcome = acquire(&key, holder_id, token, ttl_ms, &claim, &now);
	values[0] = CStringGetTextDatum(acquire_names[outcome]);
	/* another's token is told to nobody */
	nulls[1] = outcome == ACQUIRE_HELD || outcome == ACQUIRE_NOT_FOUND;
	values[1] = nulls[1] ? (Datum) 0 : CStringGetTextDatum(claim.claim_token);
	nulls[2] = nulls[3] = nulls[4] = outcome == ACQUIRE_NOT_FOUND;
	if (outcome != ACQUIRE_NOT_FOUND)
	{
		values[2] = TimestampTzGetDatum(claim.expires_at);
		values[3] = remaining_datum(claim.expires_at, now);
		values[4] = CStringGetTextDatum(claim.holder_id);
	}
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * release_claim()
 * ----------------------------------------------------------------
 */

typedef enum ReleaseOutcome
{
	RELEASE_RELEASED,			/* by this call, or it was over before */
	RELEASE_HELD,
	RELEASE_LAPSED,
	RELEASE_NOT_FOUND
} ReleaseOutcome;

static const char *const release_names[] = {
	[RELEASE_RELEASED] = "released",
	[RELEASE_HELD] = "held",
	[RELEASE_LAPSED] = "lapsed",
	[RELEASE_NOT_FOUND] = "not_found"
};

static ReleaseOutcome
decide_release(bool found, const SessionClaim *claim, const char *holder_id, const char *token, TimestampTz now)
{
	if (!found)
		return RELEASE_NOT_FOUND;
	if (is_of(claim, holder_id, token))
		return RELEASE_RELEASED;
	return is_live(claim, now) ? RELEASE_HELD : RELEASE_LAPSED;
}

static void
end_claim(const SessionKey *key, SessionClaim *claim, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[3];

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = TimestampTzGetDatum(now);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_END], values, NULL);
	sql_end(&scope);
	claim->expires_at = now;
}

PG_FUNCTION_INFO_V1(reconcile_release_claim);
Datum
reconcile_release_claim(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	char	   *holder_id;
	char	   *token;
	Session		session;
	SessionClaim claim;
	TimestampTz now = 0;
	ReleaseOutcome outcome = RELEASE_NOT_FOUND;
	Datum		values[3];
	bool		nulls[3] = {false};

	require_writable("release_claim");
	require_read_committed("release_claim");
	session_key_args(fcinfo, &key);
	holder_id = identity_field(fcinfo, 2, "holder_id");
	token = identity_field(fcinfo, 3, "claim_token");
	access_require_all(CAP_PLACE);

	if (session_lock(&key, &session))
	{
		now = clock_now();
		outcome = decide_release(claim_read(&key, &claim), &claim, holder_id, token, now);
		/* one that overran its time is over as it is */
		if (outcome == RELEASE_RELEASED && is_live(&claim, now))
		{
			end_claim(&key, &claim, now);
			/* who left it alone may go on */
			session_mark(session.number, now);
		}
	}
	values[0] = CStringGetTextDatum(release_names[outcome]);
	nulls[1] = nulls[2] = outcome == RELEASE_NOT_FOUND;
	if (outcome != RELEASE_NOT_FOUND)
	{
		values[1] = TimestampTzGetDatum(claim.expires_at);
		values[2] = remaining_datum(claim.expires_at, now);
	}
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * get_claim()
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_get_claim);
Datum
reconcile_get_claim(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	SessionClaim claim;
	TimestampTz now;
	bool		found;
	bool		live;
	Datum		values[5];
	bool		nulls[5] = {false};

	session_key_args(fcinfo, &key);
	access_require_all(CAP_PLACE);
	found = claim_read(&key, &claim);
	now = clock_now();
	live = found && is_live(&claim, now);
	values[0] = CStringGetTextDatum(live ? "live" : found ? "lapsed" : "not_found");
	nulls[1] = !found;
	values[1] = found ? TimestampTzGetDatum(claim.expires_at) : (Datum) 0;
	/* of one that is over nothing else is told: it is nobody's */
	nulls[2] = nulls[3] = nulls[4] = !live;
	if (live)
	{
		values[2] = remaining_datum(claim.expires_at, now);
		values[3] = CStringGetTextDatum(claim.holder_id);
		values[4] = TimestampTzGetDatum(claim.claimed_at);
	}
	return return_one_row(fcinfo, values, nulls);
}

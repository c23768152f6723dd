/*
 * place_look.c
 *		What is known of a session that is to be placed.
 *
 * Each fact is read with the newest snapshot, and the clock after the session's row:
 * where that is locked all of them hold together, but for what hosts may change without
 * it, a target and the end of a lease.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/async.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/guc.h"
#include "core/plan.h"
#include "journal/digest.h"
#include "placement/place.h"

#define KIND_RESTORE	"restore"

enum
{
	PLAN_WORK,
	PLAN_REQUIRES
};

#define OPEN_COMMANDS \
	" FROM reconcile.session_command c WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2"
#define LIVE	"c.apply_deadline OPERATOR(pg_catalog.>) $3"

static SqlPlan plans[] = {
	/* one that is being applied needs its host, whatever its deadline */
	[PLAN_WORK] = {
		"SELECT COALESCE(pg_catalog.bool_or(c.state OPERATOR(pg_catalog.=) 'applying' OR " LIVE "), false),"
		" COALESCE(pg_catalog.bool_or(c.state OPERATOR(pg_catalog.=) 'pending' AND " LIVE "), false),"
		" COALESCE(pg_catalog.bool_or(c.state OPERATOR(pg_catalog.=) 'pending' AND " LIVE
		" AND c.kind OPERATOR(pg_catalog.=) '" KIND_RESTORE "'), false),"
		" COALESCE(pg_catalog.bool_or(pg_catalog.cardinality(c.requires) OPERATOR(pg_catalog.>) 0), false)"
		OPEN_COMMANDS " AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}')",
		3, {TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_REQUIRES] = {
		"SELECT DISTINCT r.capability FROM (SELECT pg_catalog.unnest(c.requires) AS capability"
		OPEN_COMMANDS " AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed}') AND " LIVE ") r ORDER BY r.capability",
		3, {TEXTOID, TEXTOID, TIMESTAMPTZOID}
	}
};

static void
read_work(const SessionKey *key, TimestampTz now, PlaceWork *work)
{
	SqlScope	scope;
	Datum		values[3];
	bool		requires;

	memset(work, 0, sizeof(*work));
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = TimestampTzGetDatum(now);
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_WORK], values, NULL);
	work->needs_host = DatumGetBool(sql_value(0, 1, NULL));
	work->wakes = DatumGetBool(sql_value(0, 2, NULL));
	work->restores = DatumGetBool(sql_value(0, 3, NULL));
	requires = DatumGetBool(sql_value(0, 4, NULL));
	if (requires)
	{
		work->nrequires = (int) sql_run_latest(&plans[PLAN_REQUIRES], values, NULL);
		work->requires = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(work->nrequires, 1));
		for (int i = 0; i < work->nrequires; i++)
			work->requires[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 1, NULL)));
	}
	sql_end(&scope);
}

/* A term is over when others may take it, which is later than its holder may act. */
static void
read_lease(PlaceLook *look)
{
	look->leased_until = session_held_until(&look->session, look->settings.session_ttl_ms, !look->told);
	look->leased = look->now < look->leased_until;
}

/* Those of rounds before this one, and those of this one. */
static void
sort_asked(PlaceLook *look, Asked *asked, int n)
{
	int64		round = look->search.round;
	int			first = 0;

	look->elsewhere = palloc(sizeof(char *) * Max(n, 1));
	look->nelsewhere = 0;
	while (first < n && asked[first].round < round)
	{
		if (asked[first].code != NULL && strcmp(asked[first].code, "epoch_mismatch") == 0)
			look->elsewhere[look->nelsewhere++] = asked[first].host_id;
		first++;
	}
	look->asked = asked + first;
	look->nasked = n - first;
}

static bool
any_in_state(const PlaceLook *look, const char *state)
{
	for (int i = 0; i < look->nasked; i++)
	{
		if (strcmp(look->asked[i].state, state) == 0)
			return true;
	}
	return false;
}

static void
read_search(PlaceLook *look)
{
	Search	   *search = &look->search;
	Asked	   *asked;
	bool		accepted;
	bool		rested;
	int			n;

	search_read(&look->session.key, search);
	n = offer_asked(&look->session.key, search->round - search->mismatches, search->round, &asked);
	sort_asked(look, asked, n);
	accepted = any_in_state(look, "accepted");
	rested = look->nasked > 0 && search->look_at != DT_NOBEGIN && look->now >= search->look_at;
	look->round_over = accepted || rested || any_in_state(look, "withdrawn");
	if (!look->round_over)
		return;
	look->nasked = look->nelsewhere = 0;
	search->mismatches = 0;
	search->look_at = DT_NOBEGIN;
	if (!rested)
		search->refusals = 0;
	if (accepted)
		search->wanted = false;
}

void
place_look_owner(PlaceLook *look)
{
	look->registered = registration_read(&look->session.key, &look->registration) &&
		registration_is_live(&look->session, &look->registration, look->now);
}

void
place_look(PlaceLook *look, const char *claim_token)
{
	const SessionKey *key = &look->session.key;

	look->now = clock_now();
	placement_settings(&look->settings);
	read_work(key, look->now, &look->work);
	place_look_owner(look);
	look->claimed = claim_read_live(key, look->now, &look->claim) &&
		(claim_token == NULL || strcmp(look->claim.claim_token, claim_token) != 0);
	look->offered = offer_read_open(key, &look->offer);
	look->answerable = look->offered && host_is_there(&look->offer.target, look->offer.host_id);
	read_lease(look);
	look->controlled = workload_is_controlled(look->now);
	read_search(look);
}

TargetKey
place_target(const PlaceLook *look)
{
	const Session *session = &look->session;
	TargetKey	key = {session->agent_id, session->desired.runtime_compatibility_id, session->desired.placement};

	return key;
}

int
place_candidates(const PlaceLook *look, RankPlace *after, HostTarget **targets)
{
	TargetKey	key = place_target(look);
	int			n;

	/* no target is without a runtime */
	if (key.runtime_compatibility_id == NULL)
		return 0;
	n = host_candidates(&key, after->host_id != NULL ? after : NULL, look->settings.candidate_limit, targets);
	if (n > 0)
	{
		const HostTarget *last = &(*targets)[n - 1];

		after->capacity = last->capacity - last->reserved;
		after->host_id = last->host_id;
	}
	return n;
}

/*
 * The channel is of the host alone, by the SHA-256 of its id, and the notification says
 * nothing: it is a hint to look, and those of one transaction are one.
 */
void
place_notify_host(const char *host_id)
{
	Digest	   *digest;
	uint8		hash[DIGEST_BYTES];
	char		channel[] = "reconcile_00000000000000000000000000000000";

	if (!guc_notify)
		return;
	digest = digest_open();
	digest_raw(digest, host_id, strlen(host_id));
	digest_end(digest, hash);
	(void) hex_encode((const char *) hash, 16, channel + strlen("reconcile_"));
	Async_Notify(channel, "");
}

/*
 * explain_placement.c
 *		explain_placement(): what place_session() would do now, and why.
 *
 * The same look and the same rules, without a lock and without a write: so it may be
 * asked on a standby, and what it says may be over when it is read.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "placement/place.h"
#include "placement/workload_row.h"

#define HOSTS_TOLD	1000

enum
{
	PLAN_HOSTS,
	PLAN_LACKS
};

static SqlPlan plans[] = {
	/* those of its target as they rank, then the others of its agent */
	[PLAN_HOSTS] = {
		"SELECT t.runtime_compatibility_id, t.placement, t.host_id, t.isolation_class, t.accepting, t.capacity, t.reserved,"
		" t.expires_at, t.capabilities, " HOST_ACTS("t") " FROM reconcile.host_target t"
		" WHERE t.agent_id OPERATOR(pg_catalog.=) $1"
		" ORDER BY t.runtime_compatibility_id OPERATOR(pg_catalog.=) $2 AND t.placement OPERATOR(pg_catalog.=) $3 DESC,"
		" t.accepting AND t.expires_at IS NOT NULL DESC, t.capacity OPERATOR(pg_catalog.-) t.reserved DESC,"
		" t.host_id DESC, t.runtime_compatibility_id, t.placement LIMIT $4",
		4, {TEXTOID, TEXTOID, TEXTOID, INT4OID}
	},
	/* of what commands require */
	[PLAN_LACKS] = {
		"SELECT r.capability FROM pg_catalog.unnest($5) r (capability) WHERE NOT EXISTS ("
		"SELECT FROM reconcile.host_target t WHERE t.agent_id OPERATOR(pg_catalog.=) $1"
		" AND t.runtime_compatibility_id OPERATOR(pg_catalog.=) $2 AND t.placement OPERATOR(pg_catalog.=) $3"
		" AND t.host_id OPERATOR(pg_catalog.=) $4 AND r.capability OPERATOR(pg_catalog.=) ANY (t.capabilities))",
		5, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTARRAYOID}
	}
};

typedef struct Telling
{
	ReturnSetInfo *result;
	const PlaceLook *look;
} Telling;

static void
tell(const Telling *telling, const char *step, const char *host_id, const char *verdict, const char *why)
{
	Datum		values[4];
	bool		nulls[4] = {false};

	values[0] = CStringGetTextDatum(step);
	values[1] = text_or_null(host_id, &nulls[1]);
	values[2] = CStringGetTextDatum(verdict);
	values[3] = text_or_null(why, &nulls[3]);
	tuplestore_putvalues(telling->result->setResult, telling->result->setDesc, values, nulls);
}

static const char *
until(TimestampTz at)
{
	return psprintf("until %s", timestamptz_to_str(at));
}

static void
tell_session(const Telling *telling)
{
	const PlaceLook *look = telling->look;
	StringInfoData why;

	initStringInfo(&why);
	appendStringInfo(&why, "generation " INT64_FORMAT "; %s", look->session.generation,
					 look->work.needs_host ? "a command of it needs a host" : "no command of it needs a host");
	/* of all its commands together: a host that cannot do one of them gets none */
	for (int i = 0; i < look->work.nrequires; i++)
		appendStringInfo(&why, "%s %s", i == 0 ? "; they require" : ",", look->work.requires[i]);
	tell(telling, "session", NULL, look->session.desired.placement, why.data);
}

/* Why the owner is not one that it may stay with. */
static const char *
owner_problem(const PlaceLook *look, const PlaceSession *session, const PlaceOwner *owner)
{
	if (strcmp(owner->agent_id, session->agent_id) != 0)
		return "it is of another agent";
	if (session->runtime_compatibility_id == NULL ||
		strcmp(owner->runtime_compatibility_id, session->runtime_compatibility_id) != 0)
		return "it is of another runtime";
	if (strcmp(owner->placement, session->placement) != 0)
		return "it is of another placement";
	if (place_owner_is_earlier(look))
		return psprintf("it is the workload of generation " INT64_FORMAT, look->registration.host_generation);
	if (strcmp(owner->residency, "resident") != 0)
		return psprintf("it is %s", owner->residency);
	if (!owner->accepting)
		return "it is not accepting";
	return NULL;
}

/* A capability that a command requires and the owner does not say it has, or NULL: it keeps the session all the same. */
static const char *
owner_lacks(const PlaceLook *look)
{
	const Registration *registration = &look->registration;
	TargetKey	key = {registration->agent_id, registration->runtime_compatibility_id, registration->placement};
	Datum	   *required = palloc(sizeof(Datum) * Max(look->work.nrequires, 1));
	const char *lacks = NULL;
	SqlScope	scope;
	Datum		values[5];

	for (int i = 0; i < look->work.nrequires; i++)
		required[i] = CStringGetTextDatum(look->work.requires[i]);
	target_key_values(&key, values);
	values[3] = CStringGetTextDatum(registration->host_id);
	values[4] = PointerGetDatum(construct_array(required, look->work.nrequires, TEXTOID, -1, false, TYPALIGN_INT));
	sql_begin(&scope);
	if (sql_run(&plans[PLAN_LACKS], values, NULL) > 0)
		lacks = sql_text(0, 1, scope.outer);
	sql_end(&scope);
	return lacks;
}

static void
tell_owner(const Telling *telling)
{
	const PlaceLook *look = telling->look;
	const Registration *registration = &look->registration;
	PlaceSession session;
	PlaceOwner	owner;
	const char *problem;
	const char *lacks;

	if (registration->lease_epoch == 0)
		tell(telling, "owner", NULL, "none", "it was never anywhere");
	else if (registration->host_id == NULL)
		tell(telling, "owner", NULL, "none", psprintf("it was released at epoch " INT64_FORMAT, registration->lease_epoch));
	else if (!place_owner_facts(look, &owner))
		tell(telling, "owner", registration->host_id, "expired",
			 psprintf("epoch " INT64_FORMAT, registration->lease_epoch));
	else
	{
		place_session_facts(look, &session);
		problem = owner_problem(look, &session, &owner);
		lacks = owner_lacks(look);
		if (problem != NULL)
			tell(telling, "owner", registration->host_id, "not_reusable", problem);
		else
			tell(telling, "owner", registration->host_id, "reusable",
				 lacks == NULL ? until(registration->expires_at) :
				 psprintf("%s; a command requires %s, which it lacks", until(registration->expires_at), lacks));
	}
}

static void
tell_claim(const Telling *telling)
{
	const PlaceLook *look = telling->look;

	if (look->claimed)
		tell(telling, "claim", NULL, "held", psprintf("by \"%s\" %s", look->claim.holder_id, until(look->claim.expires_at)));
	else
		tell(telling, "claim", NULL, "none", NULL);
}

static void
tell_offer(const Telling *telling)
{
	const PlaceLook *look = telling->look;

	if (!look->offered)
		tell(telling, "offer", NULL, "none", NULL);
	else if (place_offer_stands(look))
		tell(telling, "offer", look->offer.host_id, "open", until(look->offer.expires_at));
	else
		tell(telling, "offer", look->offer.host_id, "over",
			 look->offer.expires_at <= look->now ? "it was not answered" :
			 place_offer_is_stale(look) ? "what is wanted has changed" : "its host is gone");
}

static void
tell_lease(const Telling *telling)
{
	const PlaceLook *look = telling->look;

	tell(telling, "lease", NULL, look->leased ? "live" : "free", look->leased ? until(look->leased_until) : NULL);
}

static void
tell_search(const Telling *telling)
{
	const PlaceLook *look = telling->look;
	const char *state = look->now < look->search.look_at ? until(look->search.look_at) :
		look->search.waits_at.agent_id != NULL ? "it waits for room" : NULL;

	tell(telling, "search", NULL, psprintf("round " INT64_FORMAT, look->search.round + look->round_over),
		 look->search.mismatches > 0 ? psprintf("%d ended with an epoch_mismatch%s%s", look->search.mismatches,
												state != NULL ? "; " : "", state != NULL ? state : "") : state);
	for (int i = 0; i < look->nasked; i++)
		tell(telling, "asked", look->asked[i].host_id, look->asked[i].state, look->asked[i].code);
}

static void
tell_workload(const Telling *telling)
{
	const Session *session = &telling->look->session;
	Workload	workload;

	if (workload_read(&session->key, session->generation, &workload))
		tell(telling, "workload", workload.host_id, workload.state, session_workload_name(session, session->generation));
	else
		tell(telling, "workload", NULL, "none", "it was not asked for yet");
}

/* A row of plan_hosts; in the current memory context. */
static void
target_from_row(const PlaceLook *look, int row, HostTarget *target)
{
	bool		isnull;
	Datum		value;
	Datum	   *elements;

	memset(target, 0, sizeof(*target));
	target->key.agent_id = look->session.agent_id;
	target->key.runtime_compatibility_id = TextDatumGetCString(sql_value(row, 1, NULL));
	target->key.placement = TextDatumGetCString(sql_value(row, 2, NULL));
	target->host_id = TextDatumGetCString(sql_value(row, 3, NULL));
	value = sql_value(row, 4, &isnull);
	target->isolation_class = isnull ? NULL : TextDatumGetCString(value);
	target->accepting = DatumGetBool(sql_value(row, 5, NULL));
	target->capacity = DatumGetInt32(sql_value(row, 6, NULL));
	target->reserved = DatumGetInt32(sql_value(row, 7, NULL));
	value = sql_value(row, 8, &isnull);
	target->expires_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
	deconstruct_array(DatumGetArrayTypeP(sql_value(row, 9, NULL)), TEXTOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &target->ncapabilities);
	target->capabilities = palloc(sizeof(char *) * Max(target->ncapabilities, 1));
	for (int i = 0; i < target->ncapabilities; i++)
		target->capabilities[i] = TextDatumGetCString(elements[i]);
}

/* The host that would be asked now; NULL: there is none.  elsewhere: of those that are asked last. */
static const char *
next_host(const PlaceLook *look, bool elsewhere)
{
	RankPlace	after = {0};
	HostTarget *targets;
	int			n;

	while ((n = place_candidates(look, &after, &targets)) > 0)
	{
		for (int i = 0; i < n; i++)
		{
			if (place_said_elsewhere(look, targets[i].host_id) == elsewhere && place_passed_over(look, &targets[i]) == NULL)
				return targets[i].host_id;
		}
	}
	return elsewhere || look->nelsewhere == 0 ? NULL : next_host(look, true);
}

/* chosen: the host that would be asked now; NULL: none is. */
static void
tell_hosts(const Telling *telling, const char *chosen)
{
	const Session *session = &telling->look->session;
	const char *runtime = session->desired.runtime_compatibility_id;
	SqlScope	scope;
	Datum		values[4];
	uint64		n;

	values[0] = CStringGetTextDatum(session->agent_id);
	values[1] = CStringGetTextDatum(runtime != NULL ? runtime : "");
	values[2] = CStringGetTextDatum(session->desired.placement);
	values[3] = Int32GetDatum(HOSTS_TOLD);
	sql_begin(&scope);
	n = sql_run(&plans[PLAN_HOSTS], values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		HostTarget	target;
		const char *why;
		bool		is_chosen;

		target_from_row(telling->look, i, &target);
		why = target.expires_at == DT_NOBEGIN ? "withdrawn" :
			!DatumGetBool(sql_value(i, 10, NULL)) ? "unregistered" : place_passed_over(telling->look, &target);
		is_chosen = why == NULL && chosen != NULL && strcmp(target.host_id, chosen) == 0;
		tell(telling, "host", target.host_id, is_chosen ? "chosen" : why == NULL ? "admissible" : "passed_over",
			 why != NULL ? why : psprintf("%d free", target.capacity - target.reserved));
	}
	sql_end(&scope);
}

PG_FUNCTION_INFO_V1(reconcile_explain_placement);
Datum
reconcile_explain_placement(PG_FUNCTION_ARGS)
{
	PlaceLook	look = {0};
	SessionKey	key;
	Telling		telling = {(ReturnSetInfo *) fcinfo->resultinfo, &look};
	PlaceStep	step;
	const char *chosen = NULL;
	bool		revived = false;
	int			rule;

	session_key_args(fcinfo, &key);
	access_require_all(CAP_PLACE);
	InitMaterializedSRF(fcinfo, 0);
	if (!session_read(&key, &look.session))
		return (Datum) 0;
	look.wanted = look.told = true;
	place_look(&look, NULL);
	step = place_judge(&look, &rule);
	if (step == PLACE_STEP_REVIVE)
	{
		look.session.desired = place_revived(&look.session);
		look.session.generation++;
		revived = true;
		step = place_judge(&look, &rule);
	}
	if (step == PLACE_STEP_SEARCH)
		chosen = next_host(&look, false);
	tell_session(&telling);
	tell_owner(&telling);
	tell_claim(&telling);
	tell_offer(&telling);
	tell_lease(&telling);
	tell_search(&telling);
	if (strcmp(look.session.desired.placement, "pooled") == 0)
		tell_hosts(&telling, chosen);
	else
		tell_workload(&telling);
	if (step == PLACE_STEP_SEARCH && chosen == NULL)
		tell(&telling, "outcome", NULL, place_outcome_name(PLACE_NO_CAPACITY), "no host of the ranking may have it, or has room");
	else if (step == PLACE_STEP_DEDICATED && place_workload_is_elsewhere(&look))
		tell(&telling, "outcome", NULL, place_step_outcome(PLACE_STEP_GIVE_UP), "its workload says that it is elsewhere");
	else
		tell(&telling, "outcome", NULL, place_step_outcome(step),
			 psprintf("%s%s", revived ? "it is wanted back, as it was launched; " : "", place_rule_why(rule)));
	return (Datum) 0;
}

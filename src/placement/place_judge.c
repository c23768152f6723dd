/*
 * place_judge.c
 *		What is to be done about a session: a table of rules, first match wins.
 *
 * Pure.  The owner comes before everything, the claim of somebody else before any
 * write, and what a session's placement asks for after that.
 */
#include "postgres.h"

#include "core/duration.h"
#include "placement/place.h"

/* ----------------------------------------------------------------
 * Facts
 * ----------------------------------------------------------------
 */

void
place_session_facts(const PlaceLook *look, PlaceSession *session)
{
	session->tenant_id = look->session.key.tenant_id;
	session->session_id = look->session.key.session_id;
	session->agent_id = look->session.agent_id;
	session->runtime_compatibility_id = look->session.desired.runtime_compatibility_id;
	session->placement = look->session.desired.placement;
	session->requires = (const char *const *) look->work.requires;
	session->nrequires = look->work.nrequires;
}

bool
place_owner_facts(const PlaceLook *look, PlaceOwner *owner)
{
	const Registration *registration = &look->registration;

	if (!look->registered)
		return false;
	owner->tenant_id = look->session.key.tenant_id;
	owner->session_id = look->session.key.session_id;
	owner->agent_id = registration->agent_id;
	owner->runtime_compatibility_id = registration->runtime_compatibility_id;
	owner->placement = registration->placement;
	owner->residency = registration->residency;
	owner->accepting = registration->accepting;
	owner->expires_at = registration->expires_at;
	return true;
}

static PlaceOutcome
decide(const PlaceLook *look)
{
	PlaceFacts	facts = {.now = look->now};
	PlaceOwner	owner;

	place_session_facts(look, &facts.session);
	if (place_owner_facts(look, &owner))
		facts.owner = &owner;
	return place_decide(&facts).outcome;
}

static bool
is_dedicated(const PlaceLook *look)
{
	return strcmp(look->session.desired.placement, "dedicated") == 0;
}

static bool
is_pooled(const PlaceLook *look)
{
	return strcmp(look->session.desired.placement, "pooled") == 0;
}

bool
place_owner_is_earlier(const PlaceLook *look)
{
	return is_dedicated(look) && look->registration.host_generation != look->session.generation;
}

bool
place_has_owner(const PlaceLook *look)
{
	return decide(look) == PLACE_REUSE_OWNER && !place_owner_is_earlier(look);
}

static bool
is_claimed(const PlaceLook *look)
{
	return look->claimed;
}

static bool
is_released(const PlaceLook *look)
{
	return session_is_released(&look->session);
}

/* A command that waits asks for it back; one that is being applied does not. */
static bool
is_wanted_back(const PlaceLook *look)
{
	return is_released(look) && look->work.restores;
}

static bool
cannot_come_back(const PlaceLook *look)
{
	return is_wanted_back(look) && look->session.launch_version == NULL;
}

SessionDesired
place_revived(const Session *session)
{
	SessionDesired desired = session->desired;

	desired.workload_version = session->launch_version;
	desired.workload = session->launch_workload;
	return desired;
}

static bool
lacks_controller(const PlaceLook *look)
{
	return is_dedicated(look) && !look->controlled;
}

static bool
is_unknown(const PlaceLook *look)
{
	return !is_pooled(look);
}

bool
place_offer_stands(const PlaceLook *look)
{
	return look->offered && look->answerable && look->now < look->offer.expires_at && !place_offer_is_stale(look);
}

bool
place_offer_is_stale(const PlaceLook *look)
{
	/* a runtime or a placement changes with the generation alone */
	return look->offer.desired_generation != look->session.generation;
}

bool
place_has_no_work(const PlaceLook *look)
{
	return !look->wanted && !look->work.needs_host;
}

static bool
is_leased(const PlaceLook *look)
{
	return look->leased;
}

bool
place_is_elsewhere(const PlaceLook *look)
{
	for (int i = 0; i < look->nasked; i++)
	{
		if (look->asked[i].code != NULL && strcmp(look->asked[i].code, "epoch_mismatch") == 0)
			return true;
	}
	return false;
}

bool
place_workload_is_elsewhere(const PlaceLook *look)
{
	return !look->leased && !look->offered && !place_has_no_work(look) && place_is_elsewhere(look);
}

bool
place_said_elsewhere(const PlaceLook *look, const char *host_id)
{
	for (int i = 0; i < look->nelsewhere; i++)
	{
		if (strcmp(look->elsewhere[i], host_id) == 0)
			return true;
	}
	return false;
}

static bool
is_last_round(const PlaceLook *look)
{
	return place_is_elsewhere(look) && look->search.mismatches + 1 >= look->settings.replace_attempts;
}

static bool
is_too_early(const PlaceLook *look)
{
	/* in a round that rests another host may be asked */
	return look->nasked == 0 && look->now < look->search.look_at;
}

static bool
always(const PlaceLook *look)
{
	return true;
}

/* ----------------------------------------------------------------
 * Rules
 * ----------------------------------------------------------------
 */

static const struct
{
	bool		(*matches) (const PlaceLook *look);
	PlaceStep	step;
	const char *why;
}			rules[] = {
	{place_has_owner, PLACE_STEP_REUSE_OWNER, "it is where it may stay"},
	{is_claimed, PLACE_STEP_DEFER, "somebody else works on it"},
	{cannot_come_back, PLACE_STEP_NO_TEMPLATE, "it is wanted back, and nobody said how it was launched"},
	{is_wanted_back, PLACE_STEP_REVIVE, "it is wanted back"},
	{is_released, PLACE_STEP_RELEASED, "its workload was taken away on purpose"},
	{place_offer_stands, PLACE_STEP_WAIT_FOR_ANSWER, "a host was asked, and may still answer"},
	{lacks_controller, PLACE_STEP_NO_CONTROLLER, "nobody makes workloads"},
	{is_dedicated, PLACE_STEP_DEDICATED, "its controller sees to it"},
	{is_unknown, PLACE_STEP_UNDECIDED, "nobody here knows of such a placement"},
	{place_has_no_work, PLACE_STEP_IDLE, "nobody asks for it"},
	{is_leased, PLACE_STEP_LEASE_BUSY, "a host has it that it may not stay with, and would refuse another"},
	{is_last_round, PLACE_STEP_GIVE_UP, "it was elsewhere each time, and nobody says where"},
	{place_is_elsewhere, PLACE_STEP_NEXT_ROUND, "it was elsewhere: once more, after a while"},
	{is_too_early, PLACE_STEP_BACKOFF, "that while is not over"},
	{always, PLACE_STEP_SEARCH, "the next host of the ranking"}
};

PlaceStep
place_judge(const PlaceLook *look, int *rule)
{
	int			i = 0;

	while (!rules[i].matches(look))
		i++;
	*rule = i + 1;
	return rules[i].step;
}

const char *
place_rule_why(int rule)
{
	return rules[rule - 1].why;
}

const char *
place_step_outcome(PlaceStep step)
{
	switch (step)
	{
		case PLACE_STEP_REUSE_OWNER:
			return place_outcome_name(PLACE_REUSE_OWNER);
		case PLACE_STEP_DEFER:
			return "deferred";
		case PLACE_STEP_NO_TEMPLATE:
			return "no_launch_template";
		case PLACE_STEP_REVIVE:
			return "revive";
		case PLACE_STEP_RELEASED:
			return "released";
		case PLACE_STEP_NO_CONTROLLER:
			return "no_controller";
		case PLACE_STEP_DEDICATED:
			return place_outcome_name(PLACE_RECONCILE_DEDICATED);
		case PLACE_STEP_UNDECIDED:
			return place_outcome_name(PLACE_UNDECIDED);
		case PLACE_STEP_WAIT_FOR_ANSWER:
			return "offered";
		case PLACE_STEP_IDLE:
			return "idle";
		case PLACE_STEP_LEASE_BUSY:
			return "lease_busy";
		case PLACE_STEP_GIVE_UP:
			return "registry_stale";
		case PLACE_STEP_NEXT_ROUND:
		case PLACE_STEP_BACKOFF:
			return "backoff";
		case PLACE_STEP_SEARCH:
			return place_outcome_name(PLACE_ATTACH_POOLED);
	}
	return "unrecognized";
}

TimestampTz
place_step_until(const PlaceLook *look, PlaceStep step)
{
	switch (step)
	{
		case PLACE_STEP_DEFER:
			return look->claim.expires_at;
		case PLACE_STEP_WAIT_FOR_ANSWER:
			return look->offer.expires_at;
		case PLACE_STEP_LEASE_BUSY:
			return look->leased_until;
		case PLACE_STEP_NEXT_ROUND:
		case PLACE_STEP_BACKOFF:
			return look->search.look_at;
		case PLACE_STEP_REUSE_OWNER:
			/* it may die without a word */
			if (look->work.needs_host)
				return look->leased ? look->leased_until : look->registration.expires_at;
			break;
		case PLACE_STEP_NO_TEMPLATE:
		case PLACE_STEP_REVIVE:
		case PLACE_STEP_RELEASED:
		case PLACE_STEP_NO_CONTROLLER:
		case PLACE_STEP_DEDICATED:
		case PLACE_STEP_UNDECIDED:
		case PLACE_STEP_IDLE:
		case PLACE_STEP_GIVE_UP:
		case PLACE_STEP_SEARCH:
			break;
	}
	return DT_NOEND;
}

const char *
place_passed_over(const PlaceLook *look, const HostTarget *target)
{
	PlaceSession session;
	PlaceCandidate candidate;

	/* what is over stays in the ranking until a sweep has been there */
	if (target->expires_at == DT_NOBEGIN || target->expires_at <= look->now)
		return "lapsed";
	for (int i = 0; i < look->nasked; i++)
	{
		if (strcmp(look->asked[i].host_id, target->host_id) == 0)
			return "asked";
	}
	place_session_facts(look, &session);
	candidate.agent_id = target->key.agent_id;
	candidate.runtime_compatibility_id = target->key.runtime_compatibility_id;
	candidate.placement = target->key.placement;
	candidate.isolation_class = target->isolation_class;
	candidate.accepting = target->accepting;
	candidate.available_capacity = target->capacity - target->reserved;
	candidate.capabilities = (const char *const *) target->capabilities;
	candidate.ncapabilities = target->ncapabilities;
	return place_refusal(&session, &candidate);
}

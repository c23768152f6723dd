/*
 * decide.c
 *		Where a session belongs: tables of rules, first match wins.
 *
 * Pure: no I/O, no clock, no random source.  What a host's row says of its own expiry
 * is not asked here: who reads candidates leaves out those that are over.
 */
#include "postgres.h"

#include "core/errors.h"
#include "placement/decide.h"

static bool
same(const char *a, const char *b)
{
	return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* ----------------------------------------------------------------
 * Owners
 * ----------------------------------------------------------------
 */

bool
place_is_reusable(const PlaceSession *session, const PlaceOwner *owner, TimestampTz now)
{
	return same(owner->tenant_id, session->tenant_id) &&
		same(owner->session_id, session->session_id) &&
		same(owner->agent_id, session->agent_id) &&
		same(owner->runtime_compatibility_id, session->runtime_compatibility_id) &&
		same(owner->placement, session->placement) &&
		same(owner->residency, "resident") &&
		owner->accepting &&
		now < owner->expires_at;
}

/* ----------------------------------------------------------------
 * Candidates
 * ----------------------------------------------------------------
 */

static bool
other_agent(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return !same(candidate->agent_id, session->agent_id);
}

static bool
other_runtime(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return !same(candidate->runtime_compatibility_id, session->runtime_compatibility_id);
}

static bool
other_placement(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return !same(candidate->placement, session->placement);
}

static bool
not_isolated(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return !same(candidate->isolation_class, "cross_tenant_isolated");
}

static bool
not_accepting(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return !candidate->accepting;
}

static bool
no_capacity(const PlaceSession *session, const PlaceCandidate *candidate)
{
	return candidate->available_capacity <= 0;
}

static bool
has_capability(const PlaceCandidate *candidate, const char *capability)
{
	for (int i = 0; i < candidate->ncapabilities; i++)
	{
		if (strcmp(candidate->capabilities[i], capability) == 0)
			return true;
	}
	return false;
}

static bool
incapable(const PlaceSession *session, const PlaceCandidate *candidate)
{
	for (int i = 0; i < session->nrequires; i++)
	{
		if (!has_capability(candidate, session->requires[i]))
			return true;
	}
	return false;
}

static const struct
{
	bool		(*matches) (const PlaceSession *session, const PlaceCandidate *candidate);
	const char *refusal;
}			refusals[] = {
	/* it runs something else */
	{other_agent, "other_agent"},
	{other_runtime, "other_runtime"},
	{other_placement, "other_placement"},
	/* it is one tenant's alone, and no target says whose */
	{not_isolated, "tenant_exclusive"},
	/* it drains */
	{not_accepting, "not_accepting"},
	/* it is full */
	{no_capacity, "no_capacity"},
	/* it cannot do what a command of the session asks for */
	{incapable, "incapable"}
};

const char *
place_refusal(const PlaceSession *session, const PlaceCandidate *candidate)
{
	for (int i = 0; i < lengthof(refusals); i++)
	{
		if (refusals[i].matches(session, candidate))
			return refusals[i].refusal;
	}
	return NULL;
}

/* The first that is admissible, in the order that was given; -1: none is. */
static int
first_admissible(const PlaceFacts *facts)
{
	for (int i = 0; i < facts->ncandidates; i++)
	{
		if (place_refusal(&facts->session, &facts->candidates[i]) == NULL)
			return i;
	}
	return -1;
}

/* ----------------------------------------------------------------
 * The decision
 * ----------------------------------------------------------------
 */

static bool
has_reusable_owner(const PlaceFacts *facts)
{
	return facts->owner != NULL && place_is_reusable(&facts->session, facts->owner, facts->now);
}

static bool
is_dedicated(const PlaceFacts *facts)
{
	return same(facts->session.placement, "dedicated");
}

static bool
is_pooled(const PlaceFacts *facts)
{
	return same(facts->session.placement, "pooled");
}

static bool
has_seat(const PlaceFacts *facts)
{
	return is_pooled(facts) && first_admissible(facts) >= 0;
}

static bool
always(const PlaceFacts *facts)
{
	return true;
}

static const struct
{
	bool		(*matches) (const PlaceFacts *facts);
	PlaceOutcome outcome;
}			rules[] = {
	/* 1: it stays where it is */
	{has_reusable_owner, PLACE_REUSE_OWNER},
	/* 2: a workload of its own is its controller's, whatever seats there are */
	{is_dedicated, PLACE_RECONCILE_DEDICATED},
	/* 3: the best host that may have it */
	{has_seat, PLACE_ATTACH_POOLED},
	/* 4: there is none now, which is no error */
	{is_pooled, PLACE_NO_CAPACITY},
	/* 5: nobody here knows of such a placement */
	{always, PLACE_UNDECIDED}
};

PlaceDecision
place_decide(const PlaceFacts *facts)
{
	PlaceDecision decision = {.candidate = -1};
	int			i = 0;

	while (!rules[i].matches(facts))
		i++;
	decision.rule = i + 1;
	decision.outcome = rules[i].outcome;
	if (decision.outcome == PLACE_ATTACH_POOLED)
		decision.candidate = first_admissible(facts);
	return decision;
}

const char *
place_outcome_name(PlaceOutcome outcome)
{
	switch (outcome)
	{
		case PLACE_UNDECIDED:
			return "undecided";
		case PLACE_REUSE_OWNER:
			return "reuse_owner";
		case PLACE_ATTACH_POOLED:
			return "attach_pooled";
		case PLACE_RECONCILE_DEDICATED:
			return "reconcile_dedicated";
		case PLACE_NO_CAPACITY:
			return "no_capacity";
	}
	return "unrecognized";
}

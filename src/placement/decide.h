/*
 * decide.h
 *		Where a session belongs: a pure function over captured facts.
 */
#ifndef RECONCILE_PLACEMENT_DECIDE_H
#define RECONCILE_PLACEMENT_DECIDE_H

#include "datatype/timestamp.h"

typedef enum PlaceOutcome
{
	PLACE_UNDECIDED,
	PLACE_REUSE_OWNER,
	PLACE_ATTACH_POOLED,
	PLACE_RECONCILE_DEDICATED,
	PLACE_NO_CAPACITY
} PlaceOutcome;

extern const char *place_outcome_name(PlaceOutcome outcome);

typedef struct PlaceSession
{
	const char *tenant_id;
	const char *session_id;
	const char *agent_id;
	const char *runtime_compatibility_id;	/* NULL: not said */
	const char *placement;
	const char *const *requires;	/* capabilities */
	int			nrequires;
} PlaceSession;

typedef struct PlaceOwner
{
	const char *tenant_id;
	const char *session_id;
	const char *agent_id;
	const char *runtime_compatibility_id;
	const char *placement;
	const char *residency;
	bool		accepting;
	TimestampTz expires_at;
} PlaceOwner;

typedef struct PlaceCandidate
{
	const char *agent_id;
	const char *runtime_compatibility_id;
	const char *placement;
	const char *isolation_class;
	bool		accepting;
	int			available_capacity;
	const char *const *capabilities;
	int			ncapabilities;
} PlaceCandidate;

typedef struct PlaceFacts
{
	PlaceSession session;
	const PlaceOwner *owner;	/* NULL: none was observed */
	const PlaceCandidate *candidates;	/* best first */
	int			ncandidates;
	TimestampTz now;
} PlaceFacts;

typedef struct PlaceDecision
{
	PlaceOutcome outcome;
	int			rule;			/* that decided, from 1 */
	int			candidate;		/* attach_pooled: which; else -1 */
} PlaceDecision;

extern PlaceDecision place_decide(const PlaceFacts *facts);

/* Why a candidate is not admissible, or NULL: a word like no_capacity, for explain_placement(). */
extern const char *place_refusal(const PlaceSession *session, const PlaceCandidate *candidate);

/* Is the owner one that the session may stay with? */
extern bool place_is_reusable(const PlaceSession *session, const PlaceOwner *owner, TimestampTz now);

#endif							/* RECONCILE_PLACEMENT_DECIDE_H */

/*
 * place.h
 *		Placing a session: look, judge, act.
 *
 * What is looked at is captured in a PlaceLook; what follows from it is a pure function;
 * place_session() and the loop "placement" do it, in the transaction that has the
 * session locked, and explain_placement() tells it.
 */
#ifndef RECONCILE_PLACEMENT_PLACE_H
#define RECONCILE_PLACEMENT_PLACE_H

#include "lease/lease.h"
#include "placement/claim.h"
#include "placement/decide.h"
#include "placement/offer.h"
#include "placement/search.h"
#include "placement/settings.h"
#include "placement/workload.h"

/* Commands of a session that are not at their end. */
typedef struct PlaceWork
{
	bool		needs_host;		/* one may still be applied */
	bool		wakes;			/* one waits for its host to take it */
	bool		restores;		/* one of those asks for a released session back */
	char	  **requires;		/* capabilities that its host must have, sorted */
	int			nrequires;
} PlaceWork;

typedef struct PlaceLook
{
	Session		session;
	PlacementSettings settings;
	TimestampTz now;
	PlaceWork	work;
	bool		wanted;			/* it is to be placed, whether a command asks for it or not */
	bool		told;			/* nothing is to be written, not even a new incarnation */

	Registration registration;	/* lease_epoch 0: it was never anywhere */
	bool		registered;		/* it is where that says, now */
	bool		claimed;		/* somebody else works on it */
	SessionClaim claim;
	bool		offered;		/* an offer is open, in "offer" */
	Offer		offer;
	bool		answerable;		/* its host may still answer it, but for its time */
	bool		leased;			/* somebody may act for it until leased_until */
	TimestampTz leased_until;
	bool		controlled;		/* a controller of workloads polls */
	Search		search;
	Asked	   *asked;			/* in the round of the search */
	int			nasked;
	bool		round_over;		/* a host accepted, there is another wish, or it has rested: the next one asks all */
	char	  **elsewhere;		/* who said so in the rounds that ended with an epoch_mismatch: asked last */
	int			nelsewhere;
} PlaceLook;

typedef enum PlaceStep
{
	PLACE_STEP_REUSE_OWNER,
	PLACE_STEP_DEFER,
	PLACE_STEP_NO_TEMPLATE,
	PLACE_STEP_REVIVE,
	PLACE_STEP_RELEASED,
	PLACE_STEP_NO_CONTROLLER,
	PLACE_STEP_DEDICATED,
	PLACE_STEP_UNDECIDED,
	PLACE_STEP_WAIT_FOR_ANSWER,
	PLACE_STEP_IDLE,
	PLACE_STEP_LEASE_BUSY,
	PLACE_STEP_GIVE_UP,
	PLACE_STEP_NEXT_ROUND,
	PLACE_STEP_BACKOFF,
	PLACE_STEP_SEARCH
} PlaceStep;

/*
 * Captures what is known of a session, which is in look->session, with look->wanted and
 * look->told.
 * claim_token: of the caller's own claim; NULL: he has none.
 */
extern void place_look(PlaceLook *look, const char *claim_token);

/* The same of its owner alone, at look->now. */
extern void place_look_owner(PlaceLook *look);

/* Is the session where it may stay? */
extern bool place_has_owner(const PlaceLook *look);

/* Is its host the workload of another generation?  That of a dedicated session is the one of its own. */
extern bool place_owner_is_earlier(const PlaceLook *look);

/* The session as place_decide() wants it, and its owner; false: it has none. */
extern void place_session_facts(const PlaceLook *look, PlaceSession *session);
extern bool place_owner_facts(const PlaceLook *look, PlaceOwner *owner);

/* What follows, and the number of the rule of place_judge() that says so. */
extern PlaceStep place_judge(const PlaceLook *look, int *rule);

/* The sentence of a rule. */
extern const char *place_rule_why(int rule);

/* What is wanted of a session that is wanted back: what it was launched with. */
extern SessionDesired place_revived(const Session *session);

/* What place_session() returns for a step. */
extern const char *place_step_outcome(PlaceStep step);

/* Is the open offer still one that its host may accept? */
extern bool place_offer_stands(const PlaceLook *look);

/* Does nobody ask for a host of it? */
extern bool place_has_no_work(const PlaceLook *look);

/* Did a host of this round say that another one has it? */
extern bool place_is_elsewhere(const PlaceLook *look);

/* Did the host of a dedicated session say so, which would be asked now? */
extern bool place_workload_is_elsewhere(const PlaceLook *look);

/* Did this host say so in one of the rounds before? */
extern bool place_said_elsewhere(const PlaceLook *look, const char *host_id);

/* Is the open offer one of what is wanted no more? */
extern bool place_offer_is_stale(const PlaceLook *look);

/* Its target, which has no runtime where none is wanted; of the session as it is in the look. */
extern TargetKey place_target(const PlaceLook *look);

/* When the step is worth another look by itself; DT_NOEND: never. */
extern TimestampTz place_step_until(const PlaceLook *look, PlaceStep step);

/* Why a host of the ranking is passed over, or NULL. */
extern const char *place_passed_over(const PlaceLook *look, const HostTarget *target);

/* The hosts of its target, best first, page by page; "after" moves.  0: there are no more. */
extern int	place_candidates(const PlaceLook *look, RankPlace *after, HostTarget **targets);

/* Tells a host that there is something for it, where reconcile.notify is on. */
extern void place_notify_host(const char *host_id);

#endif							/* RECONCILE_PLACEMENT_PLACE_H */

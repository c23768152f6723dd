/*
 * claim.h
 *		Claims of outside workers: one attempt at an entity, with a deadline.
 *
 * A claim is made in a transaction of its own and answers the marks that were
 * due, as a run does when it begins.  It is reported in a later one, in which
 * the worker writes as well.  In between the entity's row has it, and one mark,
 * due at its deadline, brings the entity back if nobody reports.
 *
 *		due --claim--> claimed --complete, fail--> next look
 *		                       --deadline--> due, with a failure counted
 *
 * What finds candidates is a hint: claim_try() judges each one under the run
 * lock, which keeps claims and runs apart, and the row's lock, which keeps a
 * claim and its report apart.
 */
#ifndef RECONCILE_CLAIM_H
#define RECONCILE_CLAIM_H

#include "loop/entity.h"

/* An entity that may be claimed, and the marks that the claim would answer. */
typedef struct ClaimCandidate
{
	const char *entity_id;
	MarkRef    *marks;
	int			nmarks;
	int			lent;			/* of the engine: which one; -1 = found in the tables */
} ClaimCandidate;

typedef enum ClaimOutcome
{
	CLAIM_MADE,
	CLAIM_BUSY,					/* somebody else runs it or has it */
	CLAIM_DROPPED				/* nothing asked for it */
} ClaimOutcome;

/* What a worker is given. */
typedef struct Claim
{
	int64		epoch;
	int64		lease_epoch;	/* 0 = the loop has no lease */
	int			attempt;		/* from 1 */
	TimestampTz expires_at;
} Claim;

/*
 * Claims the candidate in this transaction.  "floor" is that of the settled
 * incarnation.  *again_at, for CLAIM_BUSY, is when to look at it again.
 */
extern ClaimOutcome claim_try(const LoopRules *rules, const ClaimCandidate *candidate,
							  const char *holder_id, int64 ttl_ms, int64 lease_epoch,
							  int64 floor, Claim *claim, TimestampTz *again_at);

/*
 * Gets a locked row ready for another attempt when its claim is over.  False:
 * that was the last one that the loop allows, and the entity is dead now.
 * "triggered": a fresh trigger asks for it, which begins anew.
 */
extern bool claim_settle(const LoopRules *rules, const char *entity_id, Entity *entity, bool triggered);

/*
 * The claim that a worker reports on, with its row locked.  False: it is not
 * the one that stands.  RC016 if this transaction made it.  Of a leased loop the
 * transaction is bound to the term.
 */
extern bool claim_hold(const LoopRules *rules, const char *entity_id, int64 epoch, Entity *entity);

/* What a worker reports of a claim that it holds; each ends it. */
extern void claim_complete(const LoopRules *rules, const char *entity_id, const Entity *entity,
						   bool asked, int64 requeue_ms);
extern void claim_fail(const LoopRules *rules, const char *entity_id, const Entity *entity,
					   const char *error, bool permanent, int64 retry_ms);	/* -1: by the loop's backoff */

/* Another deadline; false as for claim_hold(). */
extern bool claim_extend(const LoopRules *rules, const char *entity_id, int64 epoch,
						 int64 ttl_ms, TimestampTz *expires_at);

/*
 * Ends the live claim of an entity, uncounted, whatever its worker does; the
 * entity is due again.  False: there is none.
 */
extern bool claim_take_back(const LoopRules *rules, const char *entity_id);

/*
 * Set by the engine when it is preloaded.  Lends up to "wanted" candidates of
 * the loop to this transaction; they come back at its end, answered if it
 * commits.  With wanted = 0 only *next_due is filled: when the next entity is
 * due, DT_NOBEGIN = now, DT_NOEND = none waits.  -1: no dispatcher answers.
 */
extern int	(*claim_lend_hook) (const char *loop_name, int wanted, ClaimCandidate **candidates,
								TimestampTz *next_due);

/* Gives one back that could not be claimed, not to be lent again before "at". */
extern void (*claim_return_hook) (int lent, TimestampTz at);

#endif							/* RECONCILE_CLAIM_H */

/*
 * claim.c
 *		Making, holding and ending a claim.
 *
 * Locks: run lock (tried), then the entity's row; of a leased loop the fence
 * before both.  A report takes the row's lock only.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "common/pg_prng.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/wake.h"
#include "fence/fence.h"
#include "loop/claim.h"
#include "loop/decide.h"
#include "loop/observed.h"
#include "loop/run.h"

#define BUSY_LOOK_MS	50		/* somebody else has it at this moment */

int			(*claim_lend_hook) (const char *loop_name, int wanted, ClaimCandidate **candidates,
								TimestampTz *next_due) = NULL;
void		(*claim_return_hook) (int lent, TimestampTz at) = NULL;

/* ----------------------------------------------------------------
 * Claims that this transaction made: they are not durable yet
 * ----------------------------------------------------------------
 */

static int64 *made = NULL;		/* epochs, ascending; in TopTransactionContext */
static int	nmade = 0;
static int	made_size = 0;

static void
made_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		made = NULL;
		nmade = made_size = 0;
	}
}

static void
note_made(int64 epoch)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterXactCallback(made_xact_callback, NULL);
		registered = true;
	}
	if (nmade == made_size)
	{
		made_size = Max(64, made_size * 2);
		made = made == NULL ? MemoryContextAlloc(TopTransactionContext, sizeof(int64) * made_size) :
			repalloc(made, sizeof(int64) * made_size);
	}
	made[nmade++] = epoch;
}

static int
compare_epochs(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return (x > y) - (x < y);
}

static bool
made_here(int64 epoch)
{
	return nmade > 0 && bsearch(&epoch, made, nmade, sizeof(int64), compare_epochs) != NULL;
}

/*
 * A server that lost a part of its past gives numbers of the sequence again: so
 * they count from the floor of the incarnation, as epochs of leases do.
 */
static int64
next_epoch(int64 floor)
{
	static SqlPlan plan = {
		"SELECT pg_catalog.nextval('reconcile.claim_epoch'::pg_catalog.regclass)", 0, {0}
	};

	return floor + DatumGetInt64(sql_ask(&plan, NULL));
}

/* ----------------------------------------------------------------
 * Claiming
 * ----------------------------------------------------------------
 */

static void
insert_deadline(const LoopRules *rules, const char *entity_id, EntityClaim *claim)
{
	PushActiveSnapshot(GetLatestSnapshot());
	mark_insert_claim(rules->loop_name, entity_id, claim->epoch, claim->expires_at, &claim->mark);
	PopActiveSnapshot();
}

/* Where it was noted; if it was moved since, it stays until it is due and is dropped then. */
static void
delete_deadline(const LoopRules *rules, const char *entity_id, const EntityClaim *claim)
{
	if (mark_delete(rules->loop_name, entity_id, &claim->mark, 1) > 0)
		wake_gone(claim->mark.segment, claim->mark.block, claim->mark.offset);
}

/* The attempt that a claim was is over. */
static void
observe(const LoopRules *rules, const char *entity_id, const Entity *entity,
		RunResult result, int sqlstate, TimestampTz ended_at)
{
	RunObserved observed = {
		.loop_name = rules->loop_name,
		.entity_id = entity_id,
		.started_at = entity->claim.claimed_at,
		.ended_at = ended_at,
		.result = result,
		.sqlstate = sqlstate,
		.attempt = entity->failures,	/* the claim counted itself */
		.epoch = entity->claim.lease_epoch,
		.pid = MyProcPid
	};

	observed_at_commit(&observed);
}

bool
claim_settle(const LoopRules *rules, const char *entity_id, Entity *entity, bool triggered)
{
	if (!entity->claimed || rules->max_attempts < 0 || entity->failures < rules->max_attempts)
		return true;
	if (triggered)
	{
		entity->failures = 0;
		return true;
	}
	observe(rules, entity_id, entity, RESULT_PERMANENT, ERRCODE_STALE_CLAIM, entity->claim.expires_at);
	entity_failed(rules->loop_name, entity_id, entity, entity->failures, entity->crashes, "attempts",
				  ERRCODE_STALE_CLAIM, "the claim of its worker ran out");
	return false;
}

ClaimOutcome
claim_try(const LoopRules *rules, const ClaimCandidate *candidate, const char *holder_id,
		  int64 ttl_ms, int64 lease_epoch, int64 floor, Claim *claim, TimestampTz *again_at)
{
	const char *loop_name = rules->loop_name;
	const char *entity_id = candidate->entity_id;
	EntityClaim made_claim = {0};
	Entity		entity;
	Entity		before;
	TimestampTz now = clock_now();
	bool		triggered;
	bool		deadlines;

	*again_at = clock_add_ms(now, BUSY_LOOK_MS);
	if (!run_lock(loop_name, entity_id))
		return CLAIM_BUSY;
	if (!mark_any_visible(loop_name, entity_id, candidate->marks, candidate->nmarks, &triggered, &deadlines))
	{
		run_unlock(loop_name, entity_id);
		return CLAIM_DROPPED;
	}
	entity_read(loop_name, entity_id, &entity);
	if (entity.remembered && !entity_lock(loop_name, entity_id, false, &entity))
	{
		run_unlock(loop_name, entity_id);
		return CLAIM_BUSY;
	}
	now = clock_now();
	if (entity.claimed && entity_claim_live(rules, &entity.claim, now))
	{
		*again_at = entity_claim_look_at(&entity.claim, now);
		run_unlock(loop_name, entity_id);
		return CLAIM_BUSY;
	}
	before = entity;
	/* a deadline that is left of a claim which was reported asks for nothing */
	if ((deadlines && !entity.claimed) || !claim_settle(rules, entity_id, &entity, triggered) ||
		(entity.dead && !entity.dead_of_crash && !triggered))
	{
		mark_delete(loop_name, entity_id, candidate->marks, candidate->nmarks);
		return CLAIM_DROPPED;
	}
	if (entity.dead_of_crash)
		return CLAIM_DROPPED;	/* triggers on it are kept for revive() */
	if (mark_delete(loop_name, entity_id, candidate->marks, candidate->nmarks) == 0)
		return CLAIM_DROPPED;
	if (entity.claimed)
	{
		observe(rules, entity_id, &before, RESULT_TRANSIENT, ERRCODE_STALE_CLAIM, before.claim.expires_at);
		delete_deadline(rules, entity_id, &entity.claim);
	}

	claim->attempt = (entity.dead ? 0 : entity.failures) + 1;
	claim->epoch = next_epoch(floor);
	claim->lease_epoch = lease_epoch;
	claim->expires_at = clock_add_ms(now, ttl_ms);
	/* the worker acts on it once it has it, whatever a crash would lose */
	ForceSyncCommit();

	made_claim.epoch = claim->epoch;
	made_claim.lease_epoch = lease_epoch;
	made_claim.expires_at = claim->expires_at;
	strlcpy(made_claim.holder_id, holder_id, sizeof(made_claim.holder_id));
	insert_deadline(rules, entity_id, &made_claim);
	entity_claim(loop_name, entity_id, &entity, claim->attempt, &made_claim);
	note_made(claim->epoch);
	return CLAIM_MADE;
}

/* ----------------------------------------------------------------
 * Holding
 * ----------------------------------------------------------------
 */

bool
claim_hold(const LoopRules *rules, const char *entity_id, int64 epoch, Entity *entity)
{
	if (made_here(epoch))
		ereport(ERROR,
				(errcode(ERRCODE_NOT_YET_DURABLE),
				 errmsg("the claim of entity \"%s\" was made in this transaction", entity_id),
				 errhint("Commit it, do the work, and report in another transaction.")));
	if (rules->lease_ttl_ms > 0)
	{
		/* the fence is locked before the row */
		entity_read(rules->loop_name, entity_id, entity);
		if (!entity->claimed || entity->claim.epoch != epoch ||
			!fence_bind(rules->loop_name, entity->claim.holder_id, entity->claim.lease_epoch, false))
			return false;
	}
	return entity_lock(rules->loop_name, entity_id, true, entity) && entity->claimed &&
		entity->claim.epoch == epoch && clock_now() < entity->claim.expires_at;
}

bool
claim_extend(const LoopRules *rules, const char *entity_id, int64 epoch, int64 ttl_ms, TimestampTz *expires_at)
{
	Entity		entity;
	EntityClaim *claim = &entity.claim;

	if (made_here(epoch) ? !entity_lock(rules->loop_name, entity_id, true, &entity) || !entity.claimed ||
		claim->epoch != epoch : !claim_hold(rules, entity_id, epoch, &entity))
		return false;
	delete_deadline(rules, entity_id, claim);
	claim->expires_at = *expires_at = clock_add_ms(clock_now(), ttl_ms);
	ForceSyncCommit();
	insert_deadline(rules, entity_id, claim);
	entity_extend(rules->loop_name, entity_id, &entity);
	return true;
}

/* ----------------------------------------------------------------
 * Ending
 * ----------------------------------------------------------------
 */

static void
insert_look(const LoopRules *rules, const char *entity_id, MarkKind kind, int64 after_ms)
{
	PushActiveSnapshot(GetLatestSnapshot());
	mark_insert(rules->loop_name, entity_id, kind, clock_add_ms(clock_now(), after_ms), true, NULL);
	PopActiveSnapshot();
}

void
claim_complete(const LoopRules *rules, const char *entity_id, const Entity *entity,
			   bool asked, int64 requeue_ms)
{
	RunFacts	facts = {0};
	RunDecision decision;

	facts.asked = asked;
	facts.asked_ms = requeue_ms;
	decision = decide_run(rules, &facts);
	observe(rules, entity_id, entity, decision.result, 0, clock_now());
	delete_deadline(rules, entity_id, &entity->claim);
	entity_succeeded(rules->loop_name, entity_id, entity);
	if (decision.look)
		insert_look(rules, entity_id, MARK_LOOK, decision.look_ms);
}

void
claim_fail(const LoopRules *rules, const char *entity_id, const Entity *entity,
		   const char *error, bool permanent, int64 retry_ms)
{
	RunFacts	facts = {0};
	RunDecision decision;

	facts.failed = true;
	facts.sqlstate = permanent ? ERRCODE_PERMANENT_FAILURE : ERRCODE_RAISE_EXCEPTION;
	facts.failures = entity->failures - 1;	/* the claim counted this one */
	facts.crashes = entity->crashes;
	facts.random = pg_prng_double(&pg_global_prng_state);
	decision = decide_run(rules, &facts);
	observe(rules, entity_id, entity, decision.result, facts.sqlstate, clock_now());
	delete_deadline(rules, entity_id, &entity->claim);
	entity_failed(rules->loop_name, entity_id, entity, decision.failures, decision.crashes, decision.died_of,
				  facts.sqlstate, error);
	if (decision.look)
		insert_look(rules, entity_id, MARK_BACKOFF, retry_ms >= 0 ? retry_ms : decision.look_ms);
}

bool
claim_take_back(const LoopRules *rules, const char *entity_id)
{
	Entity		entity;

	entity_read(rules->loop_name, entity_id, &entity);
	if (!entity.claimed || !entity_lock(rules->loop_name, entity_id, true, &entity) || !entity.claimed ||
		!entity_claim_live(rules, &entity.claim, clock_now()))
		return false;
	delete_deadline(rules, entity_id, &entity.claim);
	entity_unclaim(rules->loop_name, entity_id, &entity, entity.failures - 1);
	insert_look(rules, entity_id, entity.failures > 1 ? MARK_BACKOFF : MARK_LOOK, 0);
	return true;
}

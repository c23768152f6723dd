/*
 * entity.h
 *		What is remembered of an entity beyond its next look: the rows of
 *		reconcile.entity.
 *
 * Most entities have none, or one in which nothing is.  A claim counts as a failure from when it is made
 * until its worker reports, so one that is lost has been counted.
 */
#ifndef RECONCILE_ENTITY_H
#define RECONCILE_ENTITY_H

#include "datatype/timestamp.h"
#include "storage/itemptr.h"

#include "core/ident.h"
#include "loop/loop.h"
#include "loop/mark.h"

/* An outside worker's claim, as its row has it. */
typedef struct EntityClaim
{
	int64		epoch;
	char		holder_id[HOLDER_ID_MAX + 1];
	TimestampTz claimed_at;
	TimestampTz expires_at;
	int64		lease_epoch;	/* of a leased loop; else 0 */
	MarkRef		mark;			/* of its deadline: number and place; it may have been moved since */
} EntityClaim;

typedef struct Entity
{
	bool		remembered;		/* there is a row; it may be empty */
	ItemPointerData place;		/* of the row, and who wrote it there */
	TransactionId written;
	int			failures;
	int			crashes;		/* runs since the last success that ended their process */
	bool		dead;
	bool		dead_of_crash;
	bool		claimed;		/* there is a claim, live or over */
	EntityClaim claim;
} Entity;

/* With the newest snapshot, without a lock. */
extern void entity_read(const char *loop_name, const char *entity_id, Entity *entity);

/*
 * Reads the row that was read before, locking it.  With wait = false, false when
 * somebody else has locked or deleted it; otherwise false when it is gone.
 */
extern bool entity_lock(const char *loop_name, const char *entity_id, bool wait, Entity *entity);

/* Does the claim stand now, under the loop's current term? */
extern bool entity_claim_live(const LoopRules *rules, const EntityClaim *claim, TimestampTz now);

/*
 * When to look again at what has a live claim: at its deadline, but no later than
 * in a while, as not every end of a claim is heard of (its deadline was moved, or
 * the row is gone from its page).
 */
extern TimestampTz entity_claim_look_at(const EntityClaim *claim, TimestampTz now);

/*
 * What follows writes "entity", as it was read last.  Either this transaction has
 * its row locked, or it has the run lock, and there was no row: then the first two
 * insert one.
 */

/* A failure; it ends a claim.  The message may be NULL, too long, or in any encoding. */
extern void entity_failed(const char *loop_name, const char *entity_id, const Entity *entity, int failures,
						  int crashes, const char *died_of, int sqlstate, const char *message);

/* A claim; "failures" counts it. */
extern void entity_claim(const char *loop_name, const char *entity_id, const Entity *entity, int failures,
						 const EntityClaim *claim);

/* Takes its claim from an entity; with no failures left nothing is remembered. */
extern void entity_unclaim(const char *loop_name, const char *entity_id, const Entity *entity, int failures);

/* The deadline that is in entity->claim now. */
extern void entity_extend(const char *loop_name, const char *entity_id, const Entity *entity);

/* Nothing is to be remembered any more.  The run lock is enough: who deletes it meanwhile means the same. */
extern void entity_succeeded(const char *loop_name, const char *entity_id, const Entity *entity);

/* Deletes what is remembered of an entity, whoever has read it; true if anything was. */
extern bool entity_forget(const char *loop_name, const char *entity_id);

/* Deletes the empty rows of the next few blocks that nobody needs. */
extern void entity_sweep(void);

#endif							/* RECONCILE_ENTITY_H */

/*
 * fence.h
 *		Fenced transactions: nothing of an old term commits after its successor's grant.
 *
 * A fenced transaction holds the fence lock of its reconciler id in share mode
 * until it ends; a grant of the next term takes it exclusively.  The epoch is
 * read after the lock, with the newest snapshot, at any isolation level.
 *
 * ROLLBACK TO drops a lock that was taken after the savepoint, so nothing here
 * remembers "already locked": each fenced statement takes the lock again, which
 * costs a look-up in the backend's own table when it is held.
 */
#ifndef RECONCILE_FENCE_H
#define RECONCILE_FENCE_H

#include "datatype/timestamp.h"
#include "storage/lock.h"
#include "utils/jsonb.h"

#define FENCE_MAX_LEASES	1000	/* that one transaction may take fences of: 53400 */
#define MUTATION_MAX_BYTES	(1024 * 1024)
#define MUTATION_MAX_DEPTH	64

/* Registers the transaction callbacks; once, from _PG_init(). */
extern void fence_init(void);

/* ----------------------------------------------------------------
 * The lock
 * ----------------------------------------------------------------
 */

/*
 * Takes the fence lock of the id in share mode for this transaction.  With
 * wait = false, false when a take-over has it.  53400 past FENCE_MAX_LEASES.
 */
extern bool fence_lock_shared(const char *reconciler_id, bool wait);

/* Gives back what the last fence_lock_shared() took: for who was refused and wrote nothing. */
extern void fence_unlock_shared(const char *reconciler_id);

/*
 * Has this transaction used a fence of the id?  The lock table answers, so a
 * rollback to a savepoint is seen.
 */
extern bool fence_used(const char *reconciler_id);

/*
 * For a take-over: the fence lock exclusively, without waiting and so without
 * ever standing in the queue before a live leader's writers.  false: a fenced
 * transaction is in flight.  53400 past FENCE_MAX_LEASES.
 */
extern bool fence_lock_exclusive(const char *reconciler_id);

/* Gives that back: for a take-over that came to nothing. */
extern void fence_unlock_exclusive(const char *reconciler_id);

/*
 * Ends (SIGTERM) the sessions that hold the fence of the id, but never our own;
 * returns how many were told to.  One that cannot take a signal keeps its lock.
 */
extern int	fence_terminate_holders(const char *reconciler_id);

/* The same for those who hold "tag" in a mode that conflicts with "against". */
extern int	fence_terminate(const LOCKTAG *tag, LOCKMODE against, const char *reconciler_id);

/* Tells fence.c that this transaction granted or changed a lease: it cannot be prepared. */
extern void fence_note_grant(void);

/* ----------------------------------------------------------------
 * Bindings
 * ----------------------------------------------------------------
 */

/*
 * Binds this transaction to (id, holder, epoch): takes the fence lock, waiting
 * for a take-over in progress, and checks that the lease is live and exactly
 * that.  false: it is not; nothing is bound then.  "run": it is the binding of
 * the run of a leased loop, which fenced_epoch(NULL) and fenced_write() prefer.
 *
 * A binding ends with the transaction; a subtransaction's moves to its parent
 * at commit and is undone at abort.
 */
extern bool fence_bind(const char *reconciler_id, const char *holder_id, int64 epoch, bool run);

/* What a transaction is bound to. */
typedef struct FenceBinding
{
	const char *reconciler_id;	/* valid until the next fence_bind() */
	int64		epoch;
} FenceBinding;

typedef enum FenceBound
{
	FENCE_UNBOUND,
	FENCE_BOUND,				/* *binding is it */
	FENCE_AMBIGUOUS				/* several, and none is a run's */
} FenceBound;

/* The binding of the id; NULL = the run's own, or the only one. */
extern FenceBound fence_bound(const char *reconciler_id, FenceBinding *binding);

/* What the bound transaction may do now. */
typedef enum FenceHold
{
	FENCE_HOLD_NONE,			/* nothing is bound */
	FENCE_HOLD_STALE,			/* *granted has been granted since */
	FENCE_HOLD_CURRENT
} FenceHold;

/*
 * Takes the fence lock of the binding again and reads the lease's epoch after
 * it: once for each command, as a binding and its lock come and go together.
 * "granted" is set for FENCE_HOLD_STALE, *epoch unless nothing is bound.
 */
extern FenceHold fence_hold(const char *reconciler_id, int64 *epoch, int64 *granted);

/* ----------------------------------------------------------------
 * The decision of a fenced write
 * ----------------------------------------------------------------
 */

typedef enum FenceVerdict
{
	FENCE_CURRENT,				/* the entity's own highest epoch decides */
	FENCE_STALE,
	FENCE_UNMINTED				/* RC005 */
} FenceVerdict;

/*
 * What the lease says of an epoch of the caller's choice; a pure function.
 * "floor" of the incarnation is asked for where epoch > current: below it an
 * epoch that is not known here is of a past that is lost.
 */
extern FenceVerdict fence_judge(bool leased, int64 current, bool live, int64 epoch, int64 floor);

/*
 * A function of a user's that takes the accepted writes of an id instead of its
 * state.  "call" is not to be called within sql_begin(), and may raise anything.
 */
typedef struct FenceRepository
{
	void		(*call) (const void *arg, const char *entity_id, Jsonb *mutation);
	const void *arg;			/* palloc'd where it was asked for */
} FenceRepository;

/* Has the id one?  Set by the loop room, and cheap where the answer is no. */
extern bool (*fence_repository_hook) (const char *reconciler_id, FenceRepository *repository);

/*
 * 22023, naming "arg", when the mutation is larger than MUTATION_MAX_BYTES or
 * deeper than MUTATION_MAX_DEPTH.
 */
extern void mutation_check(Jsonb *mutation, const char *arg);

#endif							/* RECONCILE_FENCE_H */

/*
 * lease.h
 *		Leases: who leads a reconciler id, and at which epoch.
 *
 * The row of an id outlives its terms; every term is also a row of history,
 * unique on (id, epoch).  A term's row is changed only by its holder (renew,
 * release: guarded by holder and epoch), by an operator who forces its end
 * (guarded by the epoch), or by the grant that follows it, which holds the
 * lease lock alone and the id's fence lock exclusively.
 *
 * A term holds where it was granted (core/home.h): in a copy, and after a
 * promotion, it is over from the first moment.  One of a session holds above
 * the floor of the incarnation alone.
 */
#ifndef RECONCILE_LEASE_H
#define RECONCILE_LEASE_H

#include "datatype/timestamp.h"

#include "core/compat.h"
#include "core/ident.h"

/* A term, as the row says. */
typedef struct Lease
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	char		holder_id[HOLDER_ID_MAX + 1];
	int64		epoch;
	TimestampTz acquired_at;
	TimestampTz expires_at;		/* live while clock_now() < expires_at */
	TimestampTz touched_at;		/* of the last write; = expires_at once released */
	int64		ttl_ms;			/* of the grant, or of its last refresh */
	int64		renewals;
	bool		engine;			/* held by the dispatcher of this database */
	bool		lost;			/* granted elsewhere, or before a promotion: its times say that it is over */
	TimestampTz stored_end;		/* of the row, also where it is lost: by the clock of whoever granted it */
} Lease;

typedef enum LeaseOutcome
{
	LEASE_GRANTED,				/* *lease is the caller's term */
	LEASE_HELD,					/* *lease is another holder's, live */
	LEASE_BUSY,					/* another transaction is granting or changing this id now */
	LEASE_DRAINING,				/* the term is over, a fenced transaction of it is not */
	LEASE_SETTLING				/* another transaction is beginning the incarnation now, for all ids */
} LeaseOutcome;

/* ----------------------------------------------------------------
 * The decision: a pure function over captured facts
 * ----------------------------------------------------------------
 */

typedef enum LeaseStep
{
	LEASE_REFUSE,				/* another holder's term stands */
	LEASE_REFRESH,				/* the caller's own live term: epoch unchanged */
	LEASE_GRANT					/* a new term */
} LeaseStep;

typedef struct LeaseFacts
{
	TimestampTz now;			/* read after the locks */
	const Lease *row;			/* NULL: the id was never granted */
	TimestampTz deadline;		/* lease_deadline() of the row */
	const char *caller;			/* holder id that asks */
	bool		engine;			/* asked by this database's dispatcher */
} LeaseFacts;

typedef struct LeaseDecision
{
	LeaseStep	step;
	const char *ended;			/* why the term before it ended; NULL: there was none */
	int			rule;			/* number of the rule that decided */
} LeaseDecision;

extern LeaseDecision lease_decide(const LeaseFacts *facts);

/*
 * The epoch of a grant: above "known", the highest that is known of the id, above
 * those that may have followed it in a past that is lost, and above the floor of
 * the incarnation.  0: there is none.
 */
extern int64 lease_next_epoch(int64 known, bool lost, int64 floor);

/*
 * When others may take the lease over: its expiry, or later after a crash that
 * may have lost a renewal (loop.md 10.3 #21: what a crash loses must only
 * shorten what the holder believes, never let two lead).
 */
extern TimestampTz lease_deadline(const Lease *lease);

/*
 * Start of this life of the server, for lease_deadline(): set by the engine
 * when it is preloaded.  It returns when shared memory was made, or 0 for a
 * clean start, after which no renewal can be missing and nothing is guarded.
 * NULL: the postmaster's start is taken, whatever kind it was.
 */
extern TimestampTz (*lease_started_at_hook) (void);

/*
 * Waits until a lease of this server may have changed, or for the time: set by
 * the engine when it is preloaded; called in a loop around attempts, and with 0
 * to end it.  NULL: waiting is looking again.
 */
extern void (*lease_wait_hook) (long ms);

/* ----------------------------------------------------------------
 * Doing
 * ----------------------------------------------------------------
 */

/*
 * Reads an id's row with the newest snapshot and without locks.  false: the id
 * was never granted.
 */
extern bool lease_read(const char *reconciler_id, Lease *lease);

/*
 * One attempt to get a term, by the epoch rules of doc/reference.md; never
 * waits.  Past reconcile.fence_grace it ends sessions that still hold the fence
 * of a term that is over, or have an uncommitted renewal of it.  A grant counts
 * from the COMMIT of this transaction, which it makes durable.  55000 if this
 * transaction has used a fence of the id.
 *
 * *lease is filled for LEASE_GRANTED and LEASE_HELD; otherwise it is the term
 * that is over, with epoch 0 where there was none.  What is not granted leaves
 * no lock behind.
 *
 * engine: the caller is this database's dispatcher and has proved (by the
 * install lock) that an earlier dispatcher is dead: a live term with the same
 * flag and another holder is ended with reason "forced" instead of waited for.
 */
extern LeaseOutcome lease_try_acquire(const char *reconciler_id, const char *holder_id,
									  int64 ttl_ms, bool engine, Lease *lease);

/*
 * Extends a live term; ttl_ms 0 = that of the grant.  false: lost (expired,
 * taken over, released).  Waits only for the holder's own other transactions.
 */
extern bool lease_renew(const char *reconciler_id, const char *holder_id, int64 epoch,
						int64 ttl_ms, Lease *lease);

/* One of many that are renewed at once. */
typedef struct LeaseRenewal
{
	const char *reconciler_id;
	const char *holder_id;
	int64		epoch;
	bool		renewed;
	bool		stands;			/* it was not, and is live: lease_stand_many() */
	TimestampTz expires_at;		/* of one that was renewed, or stands */
} LeaseRenewal;

/*
 * The same as lease_renew() of each.  All who renew the same ids pass them in the
 * same order, and none twice; it waits in that order.
 */
extern void lease_renew_many(LeaseRenewal *renewals, int n, int64 ttl_ms);

/* Of those alone whose rows nobody has, in any order: it waits for none. */
extern void lease_renew_free(LeaseRenewal *renewals, int n, int64 ttl_ms);

/* Which of those that were not renewed are live all the same, and until when, as far as is committed. */
extern void lease_stand_many(LeaseRenewal *renewals, int n);

/* Frees a live term for an immediate take-over.  false, without effect: it was not the caller's. */
extern bool lease_release(const char *reconciler_id, const char *holder_id, int64 epoch);

/*
 * Ends a live term of any holder, with reason "forced", and records who did it
 * and why.  false, without effect: "epoch" is not the live one.  Durable at
 * COMMIT; an engine that leads by the term is told.  Fenced transactions of the
 * term are left to the grant that follows it.
 */
extern bool lease_force_release(const char *reconciler_id, int64 epoch, const char *by,
								const char *why);

/*
 * RC002 for a caller that takes (id, epoch) for his live term.  It tells epochs
 * only: the holder after him is none of his business.
 */
compat_noreturn extern void lease_raise_lost(const char *reconciler_id, int64 epoch);

/* A holder id that no other process has; palloc'd. */
extern char *lease_mint_holder(void);

#endif							/* RECONCILE_LEASE_H */

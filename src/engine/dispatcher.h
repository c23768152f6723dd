/*
 * dispatcher.h
 *		The dispatcher's own state, shared by the files that make it up.
 *
 *		dispatcher.c	main loop, messages, loops
 *		terms.c			leases of its loops
 *		resync.c		their tickers
 *		handout.c		jobs that it gives out
 *		collect.c		and takes in
 *		suspects.c		runs that took the server down
 *		lend_answer.c	entities for outside workers
 *		pool.c			executor slots
 *		rotate.c		rotation of the mark segments
 *		publish.c		counts for readers, NOTIFY
 */
#ifndef RECONCILE_DISPATCHER_H
#define RECONCILE_DISPATCHER_H

#include "engine/shmem.h"
#include "lease/lease.h"
#include "loop/due.h"
#include "loop/loop.h"

typedef struct DispatchLoop
{
	dlist_node	link;
	LoopRules	rules;
	DueLoop    *due;
	bool		present;		/* seen by the reload in progress */

	/* lease */
	bool		leading;
	int64		epoch;
	TimestampTz expires_at;
	TimestampTz lease_at;		/* when to renew, or to contend again */
	int64		lease_retry_ms; /* after an error: doubled to its maximum */

	/* the function is gone or may not be called */
	TimestampTz suspended_until;
	int64		suspend_ms;
	TimestampTz suspend_logged_at;	/* 0 = not since its last run */

	TimestampTz uncounted_until;	/* a crash of a run of it could not be booked yet */
	TimestampTz keep_marks_until;	/* one of a run that crashed may be lost: until then runs keep theirs */

	TimestampTz resync_at;		/* the next tick; 0 = as soon as the loop runs */

	int			executors;		/* that have a job of it, as of the last count */
	int64		run_us;			/* moving average of a run */

	int			unbegun;		/* jobs that wait behind a run, as of the last count */
	TimestampTz unbegun_since;	/* when the oldest of them came due; 0 = none */

	/* what others know of it */
	LoopGauges	published;
	int64		skipped_told;
	int64		arrivals_told;
} DispatchLoop;

typedef struct Dispatcher
{
	int			index;			/* of its entry in engine->databases */
	EngineDatabase *db;
	uint32		generation;
	Oid			schema;			/* identity of the install that it serves */
	char		holder_id[HOLDER_ID_MAX + 1];
	DueSet	   *due;
	dlist_head	loops;
	MemoryContext context;		/* what lives as long as it does */
	MemoryContext turn;			/* reset each turn */
	bool		reload_owed;
	bool		rescan_owed;
	bool		ring_emptied;	/* in this turn */
	bool		caught_up;		/* in this turn, with all that was sent before it */
	TimestampTz retry_at;		/* of owed work that failed */
	bool		leases_changed;	/* contend for those that we do not have */
	bool		prepared;		/* look again until no prepared transaction with marks is left */
	TimestampTz prepared_at;	/* when */
	bool		recount_owed;	/* of who is dead */
	int64		marks_seen;		/* since the segments' sizes were last looked at */
	TimestampTz wake_at;		/* the earliest reason to wake up, of this turn */
} Dispatcher;

extern Dispatcher *dispatcher;

/* Notes a time at which to wake up at the latest. */
extern void dispatcher_wake_at(TimestampTz at);

extern DispatchLoop *dispatcher_find_loop(const char *loop_name);

/*
 * In a transaction that books a failure for a run whose process is gone: the run
 * lock, and from here on no long wait, as a user's open transaction must not hold
 * us up.  False: somebody else runs the entity.
 */
extern bool dispatcher_book_lock(const char *loop_name, const char *entity_id);

/* May entities of the loop be run now: by executors, or by outside workers? */
extern bool dispatcher_loop_runs(const DispatchLoop *loop, TimestampTz now);

/* A visitor for mark scans: adds the mark to the due set; in a transaction. */
extern void dispatcher_add_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg);

/* terms.c */
extern void terms_tend(DispatchLoop *loop, TimestampTz now);
extern void terms_end(DispatchLoop *loop, TimestampTz now);	/* lost: stops its runs */
extern void terms_release(DispatchLoop *loop);	/* given back: disabled, dropped, leaving */
extern void terms_kick(DispatchLoop *loop);		/* a lease changed: contend now */
extern void terms_doubt(DispatchLoop *loop);	/* somebody ended a term: is it ours? */

/* resync.c */
extern void resync_tend(TimestampTz now);	/* marks '' where a tick is due */

/* collect.c */
extern void collect_jobs(void);			/* takes in what executors reported */

/* handout.c */
extern void handout_init(void);
extern void handout_assign(void);		/* gives out ready work, starts executors */
extern void handout_recall(const DispatchLoop *loop);	/* takes back what was given out and not begun */
extern void handout_cancel(const DispatchLoop *loop, CancelReason reason);	/* NULL: all */
extern void handout_cancel_orphans(const char *loop_name);	/* runs of an earlier dispatcher */
extern bool handout_leave(void);		/* asks all executors to leave; true when none is left */
extern bool handout_retire(void);		/* takes back what is not begun; true when no run is left */
extern int	handout_pid(const DueEntity *entity);	/* of the executor that was given it; 0 = none */
extern bool handout_has_jobs(const DispatchLoop *loop);
extern void handout_count_unbegun(void);	/* of all loops */

/* suspects.c */
extern void suspects_book(TimestampTz now); /* once the loops are known, before the marks are read */
extern void suspects_tend(TimestampTz now); /* before anything is given out */
extern bool suspects_keep_marks(const DispatchLoop *loop, const char *entity_id, TimestampTz now);	/* before it runs? */
extern void suspects_ran(const char *loop_name, const char *entity_id); /* and the server is still there */

/* What of the loop may be given out now: the entity (may be NULL), or who runs alone. */
extern DueEntity *suspects_choose(const DispatchLoop *loop, DueEntity *entity);

/* pool.c */
extern bool pool_is_mine(const ExecSlot *slot);	/* has an executor of this dispatcher */
extern bool pool_takes_jobs(const ExecSlot *slot);
extern int	pool_starting(Oid role);	/* executors of the role that are about to attach */
extern bool pool_start(Oid role, TimestampTz now);	/* false: none can be started now */
extern void pool_free(int i, TimestampTz now);	/* its executor is gone, and all is taken in */
extern void pool_turn_begins(void);
extern void pool_turn_ends(void);		/* after all calls of pool_start() in a turn */
extern void pool_wake_others(void);		/* dispatchers of other databases that wait for a slot */

/* rotate.c */
extern void rotate_init(void);
extern void rotate_tend(TimestampTz now);

/* publish.c */
extern void publish_open(void);			/* once there is a loop */
extern void publish_turn_begins(void);
extern void publish_turn_ends(TimestampTz now);

#endif							/* RECONCILE_DISPATCHER_H */

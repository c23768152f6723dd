/*
 * shmem.h
 *		The engine's shared memory: values and generations, no pointers.
 *
 * It may be zeroed at any time (a crash restart does): the tables are the
 * truth.  Locks, none held across a wait, an allocation or an ereport:
 *
 *		engine->lock		the tables of databases and slots: who has which
 *		database->ring_lock	the ring and the flags beside it
 *		slot->mutex			state of the slot and of its jobs
 *		stats.lock			which reconciler id has which slot of the counters
 *
 * A dispatcher fills a job while it is JOB_EMPTY and the executor empties it
 * while it is JOB_RUNNING; only the change of state is under the mutex.
 */
#ifndef RECONCILE_SHMEM_H
#define RECONCILE_SHMEM_H

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "core/wake.h"
#include "engine/command_stats.h"
#include "engine/stats.h"
#include "loop/due.h"
#include "loop/run.h"

#define ENGINE_DATABASES	32	/* databases that can have a dispatcher */
#define ENGINE_BLOCKERS	8		/* sessions whose DDL may keep us out of one database at a time */
#define EXEC_JOBS			2	/* the run in progress, and one more of the same loop */

typedef enum DatabaseState
{
	DATABASE_FREE,
	DATABASE_WANTED,			/* the launcher is to start a dispatcher */
	DATABASE_STARTING,			/* registered, not attached yet */
	DATABASE_RUNNING,			/* its dispatcher is attached: the ring is read */
	DATABASE_EXITED				/* its dispatcher is gone; the launcher decides */
} DatabaseState;

typedef struct EngineDatabase
{
	/* under engine->lock */
	Oid			database;
	DatabaseState state;
	uint32		generation;		/* of the dispatcher: rises with each start */
	int			pid;			/* of the dispatcher, 0 = none */
	int			procno;
	bool		done;			/* it found nothing to do here and left */
	bool		wanted_again;	/* a loop came up meanwhile */
	int			failures;		/* exits in a row that nobody asked for */
	TimestampTz started_at;
	TimestampTz start_after;	/* backoff; 0 = at once */
	int			blockers[ENGINE_BLOCKERS];	/* pids of sessions whose DDL keeps us out; 0 = none */
	bool		leave;			/* all our processes are to leave this database */
	bool		retire;			/* so is its dispatcher, when its runs are over, for others to have a turn */
	bool		slot_wanted;	/* it would start an executor if a slot came free */

	pg_atomic_uint32 segment;	/* the current mark segment */

	/* sight */
	uint32		runlog;			/* dsm_handle of its last runs; 0 = none, else kept for ever */
	bool		complete;		/* what its dispatcher last showed was all that there is */
	TimestampTz rotating_since; /* a segment that should be empty is not; 0 = none */
	pg_atomic_uint64 looks_asked;	/* of the dispatcher: to show what is there now */
	pg_atomic_uint64 looks_done;
	ConditionVariable looked;

	/* under ring_lock */
	LWLock		ring_lock;
	bool		reload;			/* loops changed */
	bool		stale;			/* and the dispatcher has not read them yet; executors read it without the lock */
	bool		leases;			/* a lease was released or granted */
	bool		terms;			/* a live term was ended, and not by its holder */
	bool		rescan;			/* read all segments */
	bool		prepared;		/* a prepared transaction has marks */
	uint64		head;			/* next to write */
	uint64		tail;			/* next to read */
	uint64		overflows;
	TimestampTz overflowed_at;
} EngineDatabase;

typedef enum JobState
{
	JOB_EMPTY,
	JOB_ASSIGNED,				/* waits for the executor */
	JOB_RUNNING,
	JOB_DONE					/* waits for the dispatcher */
} JobState;

/* What became of a job. */
typedef enum JobOutcome
{
	JOB_FINISHED,				/* the run says: see run_outcome, result */
	JOB_BUSY,					/* somebody else holds the run lock */
	JOB_CANCELLED,				/* cancelled, uncounted: give it back */
	JOB_UNBOOKED				/* failed, and its bookkeeping failed too */
} JobOutcome;

typedef enum CancelReason
{
	CANCEL_NONE,
	CANCEL_LEASE,				/* the loop's lease is lost */
	CANCEL_LEAVE				/* our processes leave this database */
} CancelReason;

typedef struct ExecJob
{
	JobState	state;
	uint64		run;			/* number, unique in this slot's life */
	LoopRules	rules;
	char		holder_id[HOLDER_ID_MAX + 1];
	int64		epoch;
	char		entity_id[ENTITY_ID_MAX + 1];
	int			nmarks;
	MarkRef		marks[DUE_LIST_MAX];
	TimestampTz ready_at;		/* when it came due */
	bool		keep_marks;		/* to be made durable before it begins */
	TimestampTz started_at;
	/* by the executor */
	int			pid;
	TimestampTz ended_at;
	JobOutcome	outcome;
	RunOutcome	run_outcome;
	RunResult	result;
	int			sqlstate;
	int			attempt;
	TimestampTz claimed_until;	/* RUN_CLAIMED: 0 = not known */
	bool		has_look;
	MarkRef		look;
} ExecJob;

typedef enum ExecState
{
	EXEC_FREE,
	EXEC_STARTING,				/* registered, not attached yet */
	EXEC_ATTACHED,				/* its process takes jobs */
	EXEC_LEAVING,				/* takes no more */
	EXEC_EXITED					/* the process is gone; its dispatcher frees the slot */
} ExecState;

typedef struct ExecSlot
{
	slock_t		mutex;
	ExecState	state;
	uint32		generation;		/* rises with each use */
	Oid			database;
	int			database_index;
	uint32		dispatcher;		/* generation of the dispatcher that it works for */
	Oid			role;
	int			pid;
	int			procno;
	bool		leave;			/* after its run */
	int			promised;		/* to the database of that index + 1, for which it was given up; 0 = to none */
	bool		attached;		/* it got as far as taking jobs */
	TimestampTz registered_at;
	TimestampTz last_done_at;
	uint64		next_run;
	ExecJob		jobs[EXEC_JOBS];
} ExecSlot;

typedef struct Engine
{
	LWLock		lock;
	TimestampTz started_at;		/* of this life: shared memory is made anew after a crash */
	bool		crashed;		/* the life before ended in a crash */
	int			launcher_pid;
	int			launcher_procno;
	int			nslots;
	int			ring_size;
	TimestampTz warned_at;		/* of the last WARNING about worker processes */
	bool		databases_altered;	/* the launcher is to look at all of them */
	int			refusals;		/* executors in a row for which no worker process was to be had */
	TimestampTz executor_refused_at;	/* the last time */
	TimestampTz dispatcher_refused_at;	/* the same for one that is still wanted; 0 = none is */
	ConditionVariable lease_changed;	/* a lease was released or granted somewhere */
	pg_atomic_uint64 restarts;	/* of processes that nobody had asked to leave */
	StatsTable	stats;
	CommandStats commands;
	ConditionVariable run_ended;	/* an executor's run has ended somewhere */

	/* a suspect that runs alone (suspects.c); under lock, but for a hint */
	int			alone;			/* index + 1 of its database; 0 = none */
	TimestampTz alone_since;
	TimestampTz alone_until;	/* it counts no longer then */
	TimestampTz alone_again;	/* when there may be another */

	EngineDatabase databases[ENGINE_DATABASES];
	/* then nslots ExecSlot, then ENGINE_DATABASES rings of ring_size WakeMark */
} Engine;

extern Engine *engine;

extern void shmem_init(void);

extern ExecSlot *engine_slot(int index);
extern WakeMark *engine_ring(int database_index);

/* Index of a database's entry, or -1.  The caller holds engine->lock, or rechecks. */
extern int	engine_find_database(Oid database);

/*
 * Index of a database's entry, made if there is none; -1 when all are taken.
 * The caller holds engine->lock exclusively.
 */
extern int	engine_make_database(Oid database);

/*
 * Notes that this session's DDL keeps us out of a database.  False: as many as
 * there is room for do that already.  The caller holds engine->lock exclusively,
 * as for the next.
 */
extern bool engine_block(int index);

/* The session no longer does; the last one lets us back in. */
extern void engine_unblock(int index, int pid);

/* A session whose DDL keeps us out of a database, or 0. */
extern int	engine_blocker(const EngineDatabase *db);

/* This backend's database: its index if a dispatcher may be there, else -1. */
extern int	engine_my_database(void);

extern void engine_set_latch(int procno, int pid);
extern void engine_wake_launcher(void);
extern void engine_wake_dispatcher(int database_index);

/* One WARNING a minute in the whole server that no worker process could be had. */
extern void engine_warn_no_worker(const char *what);

#endif							/* RECONCILE_SHMEM_H */

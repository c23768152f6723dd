/*
 * engine.h
 *		The processes: launcher, dispatchers, executors.
 */
#ifndef RECONCILE_ENGINE_H
#define RECONCILE_ENGINE_H

#include "engine/stats.h"

/* Shared memory, hooks and the launcher; from _PG_init(), while preloading only. */
extern void engine_init(void);

/* Is the library preloaded, with its shared memory there? */
extern bool engine_present(void);

/*
 * Has this database's dispatcher show what is there now, at most a second from
 * now.  True: what it shows is all that there is, as of this call or, where it
 * was too busy, of a little earlier.  False: there is no dispatcher.
 */
extern bool engine_look(void);

/* The engine as it is now, in the server and in this database. */
typedef struct EngineFacts
{
	/* server */
	int			processes;
	int			slots;			/* of executors */
	int			slots_busy;		/* an executor with a run */
	int			slots_idle;		/* an executor without */
	int			databases;		/* with a dispatcher */
	uint64		restarts;
	uint64		uncounted;		/* see stats.h: dropped */
	/* this database */
	bool		known;			/* it has an entry: there is, or should be, a dispatcher */
	bool		dispatching;	/* there is */
	int			failures;		/* exits in a row that nobody asked for */
	int			blocked_by;		/* pid of a session whose DDL keeps us out */
	bool		slot_wanted;	/* it waits for an executor's slot */
	uint64		messages;		/* in the ring */
	uint64		overflows;
	TimestampTz overflowed_at;	/* the last one; 0 = none */
	TimestampTz rotating_since; /* 0 = no rotation is held up */
} EngineFacts;

/* False, and all zero: the library is not preloaded. */
extern bool engine_facts(EngineFacts *facts);

/* Are a loop's gauges those of the dispatcher that runs now? */
extern bool engine_is_current(const LoopGauges *gauges);

/* Within the room: registers the static launcher. */
extern void launcher_register(void);

/* Within the room: installs the DDL hooks. */
extern void ddl_init(void);

#endif							/* RECONCILE_ENGINE_H */

/*
 * runs.h
 *		What shared memory knows of the runs of a loop in this database.
 */
#ifndef RECONCILE_RUNS_H
#define RECONCILE_RUNS_H

#include "datatype/timestamp.h"

/*
 * The executor that runs the loop, or this entity of it (NULL: any): its pid, and
 * in *since (may be NULL) from when; 0 = none.  A run is one until its failure
 * is booked.
 */
extern int	runs_find(const char *loop_name, const char *entity_id, TimestampTz *since);

typedef struct RunsRoom
{
	bool		preloaded;
	bool		dispatched;		/* this database has a dispatcher */
	int			executors;		/* that have a job of the loop */
	int			slots;			/* reconcile.max_workers */
	bool		idle;			/* an executor of the loop's owner has nothing to do, or a slot is free */
} RunsRoom;

/* Is there room for a run of the loop? */
extern void runs_room(const char *loop_name, Oid owner, RunsRoom *room);

/* Begins waiting for a run to end: what ends from here on ends the wait. */
extern void runs_wait_begin(void);

/* Waits until a run of this server has ended, or for the time; interruptible. */
extern void runs_wait(long ms);
extern void runs_wait_end(void);

#endif							/* RECONCILE_RUNS_H */

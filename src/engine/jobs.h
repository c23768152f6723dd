/*
 * jobs.h
 *		What the dispatcher knows of the jobs that it gave out; between handout.c and
 *		collect.c.
 */
#ifndef RECONCILE_JOBS_H
#define RECONCILE_JOBS_H

#include "engine/dispatcher.h"

/* Of a job, beyond shared memory. */
typedef struct JobTrack
{
	DueEntity  *entity;			/* NULL: no job */
	DispatchLoop *loop;
	TimestampTz cancelled_at;	/* 0 = not */
	CancelReason cancel_reason;
	TimestampTz vanished_at;	/* its executor was seen to be gone; 0 = not */
} JobTrack;

/* One for each job of each slot. */
extern JobTrack (*job_tracks)[EXEC_JOBS];

#endif							/* RECONCILE_JOBS_H */

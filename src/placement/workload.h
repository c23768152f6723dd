/*
 * workload.h
 *		Workloads of dedicated sessions, which a controller elsewhere makes and removes.
 */
#ifndef RECONCILE_WORKLOAD_H
#define RECONCILE_WORKLOAD_H

#include "placement/host.h"

/* A row of session_workload. */
typedef struct Workload
{
	int64		generation;
	char	   *state;			/* absent, pending, ready, exited, terminating */
	TimestampTz reported_at;	/* the row is as it is since then */
	char	   *host_id;		/* NULL: not known yet */
	int64		host_generation;
	char	   *endpoint;
	char	   *drain_host_id;	/* NULL: no host had it */
	int64		drain_generation;
	int64		drain_epoch;	/* at which that host had the session; 0: it had not */
	TimestampTz drain_requested_at; /* DT_NOBEGIN: nobody asked */
	TimestampTz drain_deadline;
	char	   *drain_answer;	/* draining, drained, refused, unsupported; NULL: none */
	char	   *decided;		/* graceful, forced; NULL: it is not */
	char	   *decided_reason;
	int64		decided_epoch;
} Workload;

/* Does a controller poll? */
extern bool workload_is_controlled(TimestampTz now);

/*
 * The workload of the generation that is wanted of a dedicated session, which is locked:
 * it is asked for, if it is not yet.  The controller finds it among its intents.
 */
extern void workload_ensure(const Session *session, Workload *workload);

/* Is it there, with a host of the generation that is wanted? */
extern bool workload_is_ready(const Session *session, const Workload *workload);

/*
 * Offers the session to the host of its workload, which is ready, once that says that it
 * takes it.  Returns the offer, 0 for none; *busy: somebody has the row of its target.
 * *now is after that row is locked.
 */
extern int64 workload_offer(const Session *session, const Workload *workload, int64 round, int64 ttl_ms,
							TimestampTz *now, bool *busy);

#endif							/* RECONCILE_WORKLOAD_H */

/*
 * host.h
 *		Hosts: what they offer, who acts for them, and which sessions they have.
 */
#ifndef RECONCILE_HOST_H
#define RECONCILE_HOST_H

#include "placement/session.h"

#define CAPACITY_MAX		(1 << 20)
#define TARGET_TTL_MAX_MS	(INT64CONST(15) * 60 * 1000)
#define SESSION_TTL_MAX_MS	(INT64CONST(3600) * 1000)

/* What a host may serve: its row in host_target is of (target, host). */
typedef struct TargetKey
{
	const char *agent_id;
	const char *runtime_compatibility_id;
	const char *placement;
} TargetKey;

typedef struct HostTarget
{
	TargetKey	key;
	char	   *host_id;
	int64		host_generation;
	int64		revision;
	TimestampTz observed_at;
	TimestampTz expires_at;		/* DT_NOBEGIN: withdrawn */
	char	   *endpoint;		/* NULL: withdrawn */
	char	   *isolation_class;
	bool		accepting;
	int			capacity;		/* as the host says */
	int			reserved;		/* placed since */
	char	  **capabilities;
	int			ncapabilities;
} HostTarget;

/* Does the current role act for this host?  A host that is not there is nobody's. */
extern bool host_is_mine(const char *host_id);

/* The hosts that the current role acts for; palloc'd, in the order of their ids. */
extern int	host_mine(char ***host_ids);

/* Where a session is. */
typedef struct Registration
{
	int64		lease_epoch;	/* 0: it was never anywhere */
	TimestampTz observed_at;
	TimestampTz expires_at;
	char	   *host_id;		/* NULL: released */
	int64		host_generation;
	char	   *agent_id;
	char	   *runtime_compatibility_id;
	char	   *placement;
	char	   *endpoint;
	char	   *residency;		/* attaching, resident, releasing */
	bool		accepting;
	int64		offer_id;		/* 0: none */
} Registration;

/* With the newest snapshot; false: it was never anywhere. */
extern bool registration_read(const SessionKey *key, Registration *registration);

/*
 * Is the session where it says, now?  Released comes before any clock.  Its lease is
 * the only authority: a lease that is over, or lost, makes it expired.
 */
extern bool registration_is_live(const Session *session, const Registration *registration, TimestampTz now);

/* The candidates of a target, best first, behind "after" (NULL: from the beginning), at most "max". */
typedef struct RankPlace
{
	int			capacity;		/* effective */
	char	   *host_id;
} RankPlace;

extern int	host_candidates(const TargetKey *key, const RankPlace *after, int max, HostTarget **targets);

/*
 * One more is placed on it, if it still has room, is accepting and advertised at this
 * moment; false: it has not.  Waits for who is placing on it.
 */
extern bool host_reserve(const HostTarget *target, TimestampTz now);

#endif							/* RECONCILE_HOST_H */

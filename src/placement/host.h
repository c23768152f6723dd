/*
 * host.h
 *		Hosts: what they offer, who acts for them, and which sessions they have.
 */
#ifndef RECONCILE_HOST_H
#define RECONCILE_HOST_H

#include "placement/session.h"

#define CAPACITY_MAX		(1 << 20)
#define CAPABILITIES_MAX	64
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

/* What a host says of a target. */
typedef struct Advertisement
{
	TargetKey	key;
	const char *endpoint;
	const char *isolation_class;
	bool		accepting;
	int			capacity;
	Datum		capabilities;	/* text[], sorted */
	int64		ttl_ms;
} Advertisement;

/* Which of the sessions that it accepted a host's capacity takes account of. */
typedef struct SeenOffers
{
	int64		up_to;			/* those of these offers, 0: none */
	Datum		listed;			/* and of these, a bigint[] */
} SeenOffers;

/* Does the current role act for this host?  A host that is not there is nobody's. */
extern bool host_is_mine(const char *host_id);

/* The arguments agent_id, runtime_compatibility_id and placement, from "first" on. */
extern void target_key_args(FunctionCallInfo fcinfo, int first, TargetKey *key);

/* The same as the first values of a plan. */
extern void target_key_values(const TargetKey *key, Datum *values);

/* 22023 unless what a host says of a target may be; "prefix" stands before the fields' names. */
extern void target_check(const Advertisement *advertisement, const char *prefix);

/* The same for an endpoint, and for names of capabilities, which it returns as text[], sorted. */
extern void endpoint_check(const char *endpoint, const char *field);
extern Datum capabilities_datum(char **names, int n, const char *field);

typedef enum Published
{
	TARGET_PUBLISHED,
	TARGET_GENERATION,			/* a later generation of it has spoken */
	TARGET_NOT_FOUND			/* the host is not the caller's any more */
} Published;

/* What a host says of a target is what it offers from now on. */
typedef struct TargetWord
{
	const char *host_id;
	const Advertisement *advertisement;
	const SeenOffers *seen;
	int64		generation;		/* of who speaks; then, the last that has spoken */
	Published	outcome;		/* nothing is written but by the first */
	int64		revision;
	TimestampTz expires_at;
} TargetWord;

/* Waits for who is placing on it. */
extern void target_publish(TargetWord *word);

/* The same, waiting for wait_ms, 0: not at all.  False, without effect: somebody has its row. */
extern bool target_publish_soon(TargetWord *word, int wait_ms);

/* The generation of a host that last spoke of a target, 0 for none; its endpoint, NULL where it is withdrawn. */
extern int64 target_generation(const TargetKey *key, const char *host_id, char **endpoint);

/* The highest generation of a host that has spoken of any target, 0 for none. */
extern int64 host_highest_generation(const char *host_id);

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
	int64		offer_id;
	char	   *token;			/* of who accepted; stays when it is released */
} Registration;

/* With the newest snapshot; false: it was never anywhere. */
extern bool registration_read(const SessionKey *key, Registration *registration);

/*
 * Is the session where it says, now?  Released comes before any clock.  Its lease is
 * the only authority: a lease that is over, or lost, makes it expired.
 */
extern bool registration_is_live(const Session *session, const Registration *registration, TimestampTz now);

/*
 * Until when somebody may take a session for his: whoever has its lease, or had it in an
 * incarnation that is over, as he acts outside and was told nothing.  DT_NOBEGIN: nobody.
 * With the row of the session locked nobody gets it meanwhile.  may_begin: a new
 * incarnation, which all grants wait for until the transaction ends.
 */
extern TimestampTz session_held_until(const Session *session, int64 session_ttl_ms, bool may_begin);

/* What somebody who says that he has a session turns out to be. */
typedef enum Holder
{
	HOLDER_LIVE,				/* he has it */
	HOLDER_NONE,				/* nobody ever had it, or not with this token */
	HOLDER_EPOCH,				/* his epoch is not the last one */
	HOLDER_RELEASED,			/* it was his, and he let it go */
	HOLDER_EXPIRED				/* it was his, and his lease is over */
} Holder;

/* Who shows an epoch and its token; in this order, so that a stale holder learns of his epoch. */
extern Holder registration_holder(const Session *session, const Registration *registration, int64 epoch,
								  const char *token, TimestampTz now);

/* Writes that a host has a session, or, with host_id NULL, that nobody has it any more. */
extern void registration_write(const SessionKey *key, const Registration *registration);

/* "offer:<offer_id>": the holder of the lease of a session that came by it. */
#define OFFER_HOLDER_MAX	32
extern void offer_holder_id(int64 offer_id, char id[OFFER_HOLDER_MAX]);

/*
 * The candidates of a target, best first, behind "after" (NULL: from the beginning), at
 * most "max".  Those that are over (expires_at) are among them, for the caller to pass
 * over: so no page reads more rows than it has.
 */
typedef struct RankPlace
{
	int			capacity;		/* effective */
	char	   *host_id;
} RankPlace;

extern int	host_candidates(const TargetKey *key, const RankPlace *after, int max, HostTarget **targets);

/* Of a row "t" with host_id, in plans: does a role act for the host, as host_is_mine() would have it? */
#define HOST_ACTS(t) \
	"EXISTS (SELECT FROM reconcile.host h JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) h.role" \
	" AND r.rolname OPERATOR(pg_catalog.=) h.role_name WHERE h.host_id OPERATOR(pg_catalog.=) " t ".host_id)"

#define HOST_TURN_MS	200		/* that is a fair turn for who places on a host at the same time */
#define TURNS_MAX_MS	1000	/* of all turns at hosts that one call waits for */

typedef enum HostReserved
{
	HOST_RESERVED,
	HOST_FULL,					/* it has no room, or does not take any more */
	HOST_BUSY					/* somebody has its row, or has changed it: it may be so or so */
} HostReserved;

/*
 * One more is placed on it, if it still has room, is accepting and advertised when its
 * row is locked, which is told in *now.  Waits for who is placing on it for wait_ms, 0:
 * not at all; its host may hang with it.
 */
extern HostReserved host_reserve(const HostTarget *target, int wait_ms, TimestampTz *now);

/* May the host still answer an offer of this target?  Not once it has withdrawn that, or nobody acts for it. */
extern bool host_is_there(const TargetKey *key, const char *host_id);

/*
 * What an offer has reserved of a target, if it still does, is free again.  It stays
 * where the row of the target is busy: its host's next word frees it.
 */
extern void host_unreserve(int64 offer_id);

/* There is room for so many more on a host: sessions that wait for some are looked at. */
extern void host_room(const TargetKey *key, const char *host_id, int room);

/*
 * Is nobody about to commit room that who waits at the target since an earlier
 * transaction was not told of?  To be asked before the ranking is read.
 */
extern bool host_room_is_known(const TargetKey *key);

/* A role acts for the host by now: what it offers already is room. */
extern void host_appears(const char *host_id);

/* The host answers no offer of a target any more, NULL: of none.  Its sessions are its own while their leases hold. */
extern void host_leaves(const char *host_id, const TargetKey *key);

#endif							/* RECONCILE_HOST_H */

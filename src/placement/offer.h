/*
 * offer.h
 *		Offers: how a session comes to a host that nobody here can call.
 *
 *		offered --accept--> accepted
 *		   |--refuse--> refused       (a code, or none)
 *		   |--withdraw--> withdrawn   (what is wanted has changed)
 *		   +--expire--> expired       (nobody answered)
 *
 * Whoever changes one has the row of its session locked.  One that is not offered any
 * more never becomes accepted, so the next candidate may be asked at once.
 */
#ifndef RECONCILE_OFFER_H
#define RECONCILE_OFFER_H

#include "placement/host.h"

typedef struct Offer
{
	int64		offer_id;
	SessionKey	session;
	TargetKey	target;
	char	   *host_id;
	int64		host_generation;
	int64		desired_generation;
	char	   *mode;			/* create, restore */
	int64		round;
	TimestampTz made_at;
	TimestampTz expires_at;
	char	   *state;			/* offered, accepted, refused, withdrawn, expired */
	char	   *code;			/* of a refusal; NULL: none */
	char	   *token;			/* of an acceptance */
	int64		epoch;
	bool		counted;		/* in the target's reserved */
} Offer;

/* The open offer of a session that is locked; false: there is none. */
extern bool offer_read_open(const SessionKey *key, Offer *offer);

/* Offers it to a host that has been reserved; returns its id. */
extern int64 offer_make(const Session *session, const HostTarget *target, int64 round, int64 ttl_ms, TimestampTz now);

/* Ends an open offer: what was reserved for it is free again.  state: refused, withdrawn, expired. */
extern void offer_end(const Offer *offer, const char *state, const char *code, TimestampTz now);

/* The hosts that were asked in rounds of a session, up to "last", with what they said; palloc'd. */
typedef struct Asked
{
	int64		round;
	char	   *host_id;
	char	   *state;
	char	   *code;
} Asked;

extern int	offer_asked(const SessionKey *key, int64 first, int64 last, Asked **asked);

#endif							/* RECONCILE_OFFER_H */

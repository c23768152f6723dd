/*
 * claim.h
 *		Who works on a session for a while.  It is no fence, and nothing depends on it.
 */
#ifndef RECONCILE_SESSION_CLAIM_H
#define RECONCILE_SESSION_CLAIM_H

#include "placement/session.h"

typedef struct SessionClaim
{
	char	   *holder_id;
	char	   *claim_token;
	TimestampTz claimed_at;
	TimestampTz expires_at;
} SessionClaim;

/* The live claim on a session, with the newest snapshot; false: there is none. */
extern bool claim_read_live(const SessionKey *key, TimestampTz now, SessionClaim *claim);

#endif							/* RECONCILE_SESSION_CLAIM_H */

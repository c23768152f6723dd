/*
 * holder.h
 *		The host that has a session: whoever shows the epoch of its lease, and the token
 *		by which he took it.
 */
#ifndef RECONCILE_PLACEMENT_HOLDER_H
#define RECONCILE_PLACEMENT_HOLDER_H

#include "placement/session.h"

typedef struct HolderProof
{
	int64		epoch;
	char	   *token;
} HolderProof;

/* The arguments epoch and token, the n-th and the next. */
extern void holder_proof_args(FunctionCallInfo fcinfo, int n, HolderProof *proof);

/*
 * Was the session given, at this epoch and with this token, to a host that the current
 * role acts for?  Then it may be told how it stands now; else it is not there for him.
 * Who has waited since asks again.
 */
extern bool holder_is_known(const SessionKey *key, const HolderProof *proof);

/* Is it registered as his still, and is his lease live?  With the row of the session locked nobody gets it meanwhile. */
extern bool holder_is_live(const Session *session, const HolderProof *proof, TimestampTz now);

#endif							/* RECONCILE_PLACEMENT_HOLDER_H */

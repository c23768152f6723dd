/*
 * lease_row.h
 *		What statements on rows of leases share, within this room.
 */
#ifndef RECONCILE_LEASE_ROW_H
#define RECONCILE_LEASE_ROW_H

#include "lease/lease.h"

/* Of a session, "session:<number>": no user's name has a colon. */
#define LEASE_OF_SESSION "pg_catalog.strpos(reconciler_id, ':') OPERATOR(pg_catalog.>) 0"
#define LEASE_NAMED "pg_catalog.strpos(reconciler_id, ':') OPERATOR(pg_catalog.=) 0"

/*
 * Sessions have too many for a change of incarnation to write to: theirs are void by
 * its floor, as they stand.
 */
#define LEASE_VOID \
	"(" LEASE_OF_SESSION " AND epoch OPERATOR(pg_catalog.<=) COALESCE((SELECT i.epoch_floor" \
	" FROM reconcile.incarnation i ORDER BY i.incarnation DESC, i.epoch_floor DESC LIMIT 1), 0))"

/*
 * Makes a later deadline durable where a crash could take it back: afterwards
 * lease_deadline() would know the shorter ttl only, and without the engine it
 * knows of no crash.
 */
extern void lease_keep_deadline(int64 old_ttl_ms, int64 ttl_ms);

#endif							/* RECONCILE_LEASE_ROW_H */

/*
 * room.h
 *		The row of what a host offers, while it is locked: shared by who publishes it and who takes of it.
 */
#ifndef RECONCILE_ROOM_H
#define RECONCILE_ROOM_H

#include "placement/host.h"

/* The row "t" of a target's key, and of a host's, as target_key_values() and the host's id have it. */
#define OF_TARGET \
	"t.agent_id OPERATOR(pg_catalog.=) $1 AND t.runtime_compatibility_id OPERATOR(pg_catalog.=) $2" \
	" AND t.placement OPERATOR(pg_catalog.=) $3"
#define OF_HOST OF_TARGET " AND t.host_id OPERATOR(pg_catalog.=) $4"

/* A row of host_target that is locked. */
typedef struct LockedTarget
{
	int64		host_generation;
	int64		revision;
	int			left;
	int			reserved;
	bool		accepting;
	TimestampTz expires_at;		/* DT_NOBEGIN: withdrawn */
	int64		seen_offer;
	bool		isolated;		/* from tenants of each other */
	Datum		capabilities;	/* text[], sorted; it lives as long as the scope */
} LockedTarget;

/* Does it take one more, now? */
extern bool target_has_room(const LockedTarget *locked, TimestampTz now);

/*
 * Within sql_begin(): locks the row of OF_HOST's four values.  False: there is none, or,
 * without "wait", another has it.
 */
extern bool target_lock(Datum *values, bool wait, LockedTarget *locked);

#endif							/* RECONCILE_ROOM_H */

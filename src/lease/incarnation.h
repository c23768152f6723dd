/*
 * incarnation.h
 *		Lives of this database: what was granted in one is void in the next.
 *
 * An incarnation is a row that its first grant, or desired state, writes: where it
 * is (home.h), and a floor that each of its epochs is above.  That the running
 * server is elsewhere is the signal that the past may have been rewritten; it is no
 * source of numbers, since timelines repeat.  Those come from the clock.
 */
#ifndef RECONCILE_INCARNATION_H
#define RECONCILE_INCARNATION_H

#include "datatype/timestamp.h"
#include "utils/snapshot.h"

#include "core/home.h"

/* Room for epochs that were granted in a past that is lost: nobody grants as many. */
#define LOST_EPOCHS		(INT64CONST(1) << 32)

typedef struct Incarnation
{
	int64		number;			/* how many there were; 0: nothing was ever granted */
	char		place[HOME_MAX];
	int32		timeline;
	int64		floor;			/* its epochs are above it */
	TimestampTz since;			/* 0: not settled, nothing was granted in it yet */
	const char *reason;			/* palloc'd */
} Incarnation;

/*
 * The incarnation that this server is in: as it is stored, or as the next grant
 * would store it.  Takes no lock, writes nothing, works on a standby.
 */
extern void incarnation_read(Incarnation *now);

/* The same as a snapshot sees it. */
extern void incarnation_read_at(Incarnation *now, Snapshot snapshot);

/*
 * For a grant that is about to mint: no other incarnation begins before this
 * transaction ends, and where none is stored for this server it is now, durably.
 * *floor: above it the epoch must be.  False, without effect: somebody is
 * changing it at this moment.  Never waits.
 */
extern bool incarnation_enter(int64 *floor);

/* What the last incarnation_enter() took is given back: nothing is granted after all. */
extern void incarnation_leave(void);

/*
 * The same for whoever grants nothing and may wait; the first life of a server
 * is left to its first grant.  Returns the floor.
 */
extern int64 incarnation_settle(void);

/*
 * The floor of the incarnation, which does not change before this transaction ends:
 * of what is written under it nothing commits after what is written under a higher
 * one.  It is begun where none is stored for this server.  May wait for a change, so
 * it comes before any row or other lock.
 */
extern int64 incarnation_hold(void);

/*
 * Voids all that was granted, as if the server had changed; returns the floor.
 * Waits for grants and renewals that have not committed.
 */
extern int64 incarnation_bump(const char *reason);

/* Called in the transaction of a bump: set by the loop room. */
extern void (*incarnation_bumped_hook) (void);

#endif							/* RECONCILE_INCARNATION_H */

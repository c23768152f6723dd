/*
 * search.h
 *		How far the search for a host of a session has come.
 *
 * A round asks each host once at most.  It ends when a host has the session, when none
 * is left, or when one says that somebody else has it (epoch_mismatch); rounds count up
 * for good, so that no answer of one is taken for one of the next.
 */
#ifndef RECONCILE_PLACEMENT_SEARCH_H
#define RECONCILE_PLACEMENT_SEARCH_H

#include "placement/host.h"

#define SEARCH_BACKOFF_MAX_MS	5000

typedef struct Search
{
	int64		round;			/* hosts that were asked in it are not asked again */
	int			mismatches;		/* rounds that ended with an epoch_mismatch, one after the other */
	TimestampTz look_at;		/* the next round begins not before; DT_NOBEGIN: now */
	bool		waiting;		/* none had room: who brings some marks the session */
} Search;

/* With the newest snapshot; of a session that was never searched for it is round 1. */
extern void search_read(const SessionKey *key, Search *search);

/* Of a session that is locked.  "target" is the one that it waits at; NULL: it does not. */
extern void search_write(const SessionKey *key, Search *search, const TargetKey *target);

/* The next round, after "mismatches" of them. */
extern void search_next_round(const SessionKey *key, Search *search, int mismatches, TimestampTz look_at,
							  const TargetKey *target);

/* ms before another round after so many mismatches (from 1): base, doubled for each, at most 5 s. */
extern int64 search_backoff(int64 base_ms, int mismatches);

/* Of that, half to all: "random" is 0 to 1. */
extern int64 search_jitter(int64 ms, double random);

#endif							/* RECONCILE_PLACEMENT_SEARCH_H */

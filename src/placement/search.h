/*
 * search.h
 *		How far the search for a host of a session has come.
 *
 * A round asks each host once at most.  It ends when a host has the session, or when one
 * says that somebody else has it (epoch_mismatch).  Where none is left to ask the round
 * rests: the same are asked again in the next one, after a while; another host may come
 * before.  Rounds count up for good, so that no answer of one is taken for one of the next.
 */
#ifndef RECONCILE_PLACEMENT_SEARCH_H
#define RECONCILE_PLACEMENT_SEARCH_H

#include "placement/host.h"

#define MISMATCH_BACKOFF_MAX_MS	5000
#define REFUSAL_BACKOFF_MAX_MS	60000	/* each round leaves a row for each host */

typedef struct Search
{
	int64		round;			/* hosts that were asked in it are not asked again */
	int			mismatches;		/* rounds that ended with an epoch_mismatch, one after the other */
	int			refusals;		/* rounds in which nobody took it, one after the other */
	TimestampTz look_at;		/* the next round begins not before; DT_NOBEGIN: now */
	bool		wanted;			/* somebody has placed it by hand, and it is not placed yet */
	TargetKey	waits_at;		/* none there had room: who brings some marks the session; agent_id NULL: it does not wait */
	TimestampTz waits_since;
	char	  **requires;		/* of who waits: capabilities, sorted */
	int			nrequires;
	const char *outcome;		/* of the last look at the session; NULL: there was none */
	TimestampTz outcome_at;		/* since when it is so */
	bool		changed;		/* since it was read */
} Search;

/* With the newest snapshot; of a session that was never searched for it is round 1. */
extern void search_read(const SessionKey *key, Search *search);

/* Writes it, if it has changed; of a session that is locked. */
extern void search_save(const SessionKey *key, Search *search);

/* The next round, after so many mismatches, or after one in which nobody took it. */
extern void search_next_round(Search *search, int mismatches, TimestampTz look_at);

/* What it has come to is over. */
extern void search_end(Search *search);

/* It waits at a target, or NULL: at none.  False: it did so before, and asks for the same. */
extern bool search_wait(Search *search, const TargetKey *target, char **requires, int nrequires, TimestampTz now);

extern bool search_waits_at(const Search *search, const TargetKey *target);

/* What a look came to. */
extern void search_note(Search *search, const char *outcome, TimestampTz now);

/* ms before another round after so many of them (from 1): base, doubled for each, at most max. */
extern int64 search_backoff(int64 base_ms, int64 max_ms, int rounds);

/* Of that, half to all: "random" is 0 to 1. */
extern int64 search_jitter(int64 ms, double random);

#endif							/* RECONCILE_PLACEMENT_SEARCH_H */

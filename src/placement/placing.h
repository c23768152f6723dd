/*
 * placing.h
 *		A placement in progress: what place.c, place_search.c and place_desired.c share.
 */
#ifndef RECONCILE_PLACEMENT_PLACING_H
#define RECONCILE_PLACEMENT_PLACING_H

#include "utils/jsonb.h"

#include "placement/place.h"

/* What cannot be told now is looked at again so soon. */
#define PLACE_SOON_MS	1000

typedef struct Placing
{
	PlaceLook	look;
	const char *claim_token;
	const char *outcome;
	int			rule;			/* of place_judge() */
	const char *host_id;		/* NULL: none */
	int64		host_generation;
	int64		lease_epoch;	/* of the owner */
	int64		offer_id;		/* 0: none */
	int			desired_writes;
	int			replacements;	/* other rounds that an epoch_mismatch led to */
	TimestampTz until;			/* another look is due; DT_NOEND: none by itself */
} Placing;

/* The argument "desired" of place_session(). */
extern void place_desired_from_json(Jsonb *json, SessionDesired *desired);

/* An open offer that nobody is to accept any more; the row of its target is not waited for. */
extern void place_end_offer(PlaceLook *look);

/* There is no search: what it has left behind is over. */
extern void place_end_search(PlaceLook *look);

/* The next host of the ranking is asked, or the session waits for room. */
extern void place_search(Placing *placing);

/* Where it is, nobody says: once more, later each time. */
extern void place_next_round(PlaceLook *look);

/* The host in its workload is asked, once that is ready, and once in a round. */
extern void place_ask_workload(Placing *placing, const Workload *workload);

#endif							/* RECONCILE_PLACEMENT_PLACING_H */

/*
 * settings.h
 *		How sessions are placed: the row of reconcile.placement_setting, or what holds without it.
 */
#ifndef RECONCILE_PLACEMENT_SETTINGS_H
#define RECONCILE_PLACEMENT_SETTINGS_H

#define PLACEMENT_LOOP			"placement"	/* its entities are the numbers of sessions */
#define PLACEMENT_SWEEPS_LOOP	"placement_sweeps"	/* its entities are the names of sweeps */

typedef struct PlacementSettings
{
	int			control_shards;
	int64		claim_ttl_ms;	/* of a claim that is given none */
	int			candidate_limit;	/* hosts in one look at the ranking */
	int			replace_attempts;	/* searches that end with an epoch_mismatch, one after the other */
	int64		replace_backoff_ms; /* before the second; doubled for each, at most 5 s */
	int64		offer_ttl_ms;
	int64		session_ttl_ms; /* of a session's lease, from its acceptance or heartbeat */
	int64		horizon_ms;		/* to the deadline of a command that is given none */
	int64		interval_ms;	/* from the end of a round of a sweep to the next, at the least */
	int			page_limit;		/* rows in a page of a sweep */
	int			max_pages;		/* pages in a call of a sweep's function */
} PlacementSettings;

/* With the newest snapshot. */
extern void placement_settings(PlacementSettings *settings);

/* The number of control shards; from its first use on it does not change any more. */
extern int	placement_shards(void);

/* The shard of a session: 0 to shards - 1. */
extern int	placement_shard_of(const char *tenant_id, const char *session_id, int shards);

#endif							/* RECONCILE_PLACEMENT_SETTINGS_H */

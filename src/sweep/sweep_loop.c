/*
 * sweep_loop.c
 *		The runs of the loop "placement_sweeps": its entities are the sweeps.
 *
 * A run reads a page, and the next one follows at once until the round is over.  Then
 * the sweep looks again when the first row of its view is due, but not before the
 * interval, and a time as long as the runs of the round took, are over.  Whoever makes a row that is due
 * before that marks it (placement/marks.c): while nothing is due, nothing runs.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/ident.h"
#include "placement/marks.h"
#include "sweep/sweep.h"

static const Sweep *const sweeps[] = {&pending_sweep, &host_targets_sweep, &deadlines_sweep, &offers_sweep, &old_offers_sweep};

static const Sweep *
find_sweep(const char *name)
{
	for (int i = 0; i < lengthof(sweeps); i++)
	{
		if (strcmp(name, sweeps[i]->name) == 0)
			return sweeps[i];
	}
	return NULL;
}

/* When the sweep looks again after a round; DT_NOEND: when somebody makes a row. */
static TimestampTz
next_look(const Sweep *sweep, const SweepRound *round, const PlacementSettings *settings, TimestampTz now)
{
	TimestampTz soonest = Max(clock_add_ms(now, settings->interval_ms), now + round->took_us);
	TimestampTz due = Min(round->again_at, sweep->first_due(round->bound));

	if (due <= soonest || !sweep_try_alone(sweep->name))
		return soonest;
	/* seen again once nobody can be making a row: what was there before is not all */
	due = Min(due, sweep->first_due(round->bound));
	return Max(due, soonest);
}

PG_FUNCTION_INFO_V1(reconcile_sweep_entity);
Datum
reconcile_sweep_entity(PG_FUNCTION_ARGS)
{
	char	   *entity_id;
	const Sweep *sweep;
	PlacementSettings settings;
	SweepRound	round;
	SweepRun	run;
	TimestampTz now;
	TimestampTz wake_at;

	entity_id = entity_id_arg(fcinfo, 0, "entity_id");
	sweep_require("sweep_entity");
	sweep = find_sweep(entity_id);
	if (sweep == NULL)
		PG_RETURN_NULL();
	placement_settings(&settings);
	run = sweep_run(sweep, &round);
	if (run == SWEEP_BUSY)
		PG_RETURN_INTERVAL_P(duration_interval(settings.interval_ms));
	now = clock_now();
	wake_at = run == SWEEP_MORE ? now : next_look(sweep, &round, &settings, now);
	sweep_set_wake(sweep->name, wake_at);
	if (wake_at == DT_NOEND)
		PG_RETURN_NULL();
	/* 0 would be no look at all */
	PG_RETURN_INTERVAL_P(duration_interval(Min((wake_at - now) / 1000 + 1, DURATION_MAX_MS)));
}

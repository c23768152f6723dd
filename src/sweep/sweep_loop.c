/*
 * sweep_loop.c
 *		The runs of the loop "placement_sweeps": its entities are the sweeps.
 *
 * A sweep that has rows in its view looks again after the interval.  One that has none
 * falls asleep, until somebody makes one (placement/marks.c): it costs nothing then.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/ident.h"
#include "core/plan.h"
#include "placement/marks.h"
#include "placement/settings.h"
#include "sweep/sweep.h"

/* Decided offers are deleted a day later: no hurry. */
#define OLD_OFFERS_MS	(INT64CONST(3600) * 1000)

enum
{
	PLAN_ANY_COMMAND,
	PLAN_ANY_TARGET,
	PLAN_ANY_OPEN_OFFER,
	PLAN_ANY_OFFER
};

static SqlPlan plans[] = {
	[PLAN_ANY_COMMAND] = {
		"SELECT 1 FROM reconcile.session_command c"
		" WHERE c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}') LIMIT 1",
		0, {0}
	},
	[PLAN_ANY_TARGET] = {
		"SELECT 1 FROM reconcile.host_target t WHERE t.expires_at IS NOT NULL LIMIT 1", 0, {0}
	},
	[PLAN_ANY_OPEN_OFFER] = {
		"SELECT 1 FROM reconcile.session_offer o WHERE o.state OPERATOR(pg_catalog.=) 'offered' LIMIT 1", 0, {0}
	},
	[PLAN_ANY_OFFER] = {
		"SELECT 1 FROM reconcile.session_offer o LIMIT 1", 0, {0}
	}
};

static bool
run_pending(void)
{
	SweepPass	pass = {0};
	PendingSwept swept = {0};

	return sweep_pending(&pass, &swept);
}

static bool
run_deadlines(void)
{
	SweepPass	pass = {0};
	DeadlinesSwept swept = {0};

	return sweep_deadlines(&pass, &swept);
}

static bool
run_host_targets(void)
{
	SweepPass	pass = {0};
	TargetsSwept swept = {0};

	return sweep_host_targets(&pass, &swept);
}

static bool
run_offers(void)
{
	SweepPass	pass = {0};
	OffersSwept swept = {0};

	return sweep_offers(&pass, &swept);
}

static const struct
{
	const char *name;
	bool		(*run) (void);	/* false: another one is at it */
	int			view;			/* plan of what it has to look at */
	int			left;			/* plan of what it looks at now and then; -1 = nothing */
}			sweeps[] = {
	{SWEEP_PENDING, run_pending, PLAN_ANY_COMMAND, -1},
	{SWEEP_HOST_TARGETS, run_host_targets, PLAN_ANY_TARGET, -1},
	{SWEEP_DEADLINES, run_deadlines, PLAN_ANY_COMMAND, -1},
	{SWEEP_OFFERS, run_offers, PLAN_ANY_OPEN_OFFER, PLAN_ANY_OFFER}
};

static bool
is_any(int plan)
{
	SqlScope	scope;
	bool		any;

	sql_begin(&scope);
	any = sql_run_latest(&plans[plan], NULL, NULL) > 0;
	sql_end(&scope);
	return any;
}

/* ms to the next look; 0: there is none until somebody makes a row. */
static int64
next_look(int i)
{
	PlacementSettings settings;
	bool		asleep;

	/* seen again once nobody can be making one: what was there before is not all */
	asleep = !is_any(sweeps[i].view) && sweep_try_alone(sweeps[i].name) && !is_any(sweeps[i].view);
	sweep_set_asleep(sweeps[i].name, asleep);
	placement_settings(&settings);
	if (!asleep)
		return settings.interval_ms;
	return sweeps[i].left >= 0 && is_any(sweeps[i].left) ? OLD_OFFERS_MS : 0;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_entity);
Datum
reconcile_sweep_entity(PG_FUNCTION_ARGS)
{
	char	   *entity_id;
	int64		ms = 0;

	entity_id = entity_id_arg(fcinfo, 0, "entity_id");
	sweep_require("sweep_entity");
	for (int i = 0; i < lengthof(sweeps); i++)
	{
		PlacementSettings settings;

		if (strcmp(entity_id, sweeps[i].name) != 0)
			continue;
		placement_settings(&settings);
		ms = sweeps[i].run() ? next_look(i) : settings.interval_ms;
	}
	if (ms == 0)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(duration_interval(ms));
}

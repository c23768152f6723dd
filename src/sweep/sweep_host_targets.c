/*
 * sweep_host_targets.c
 *		Withdraws what hosts have ceased to offer.
 *
 * A host that dies says nothing: its row leaves the ranking by this alone.  A row that
 * was written since its page was read, or is being written, is its host's heartbeat:
 * it is left.  The host's generation stays.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "placement/marks.h"
#include "placement/settings.h"
#include "sweep/sweep.h"

enum
{
	PLAN_PAGE,
	PLAN_LOCK,
	PLAN_WITHDRAW
};

#define OF_TARGET \
	" WHERE t.host_id OPERATOR(pg_catalog.=) $1 AND t.agent_id OPERATOR(pg_catalog.=) $2" \
	" AND t.runtime_compatibility_id OPERATOR(pg_catalog.=) $3 AND t.placement OPERATOR(pg_catalog.=) $4"

static SqlPlan plans[] = {
	[PLAN_PAGE] = {
		"SELECT t.expires_at, t.host_id, t.agent_id, t.runtime_compatibility_id, t.placement, t.revision"
		" FROM reconcile.host_target t"
		" WHERE t.expires_at IS NOT NULL AND t.expires_at OPERATOR(pg_catalog.<=) $1"
		" AND ROW(t.expires_at, t.host_id, t.agent_id, t.runtime_compatibility_id, t.placement)"
		" OPERATOR(pg_catalog.>) ROW($2, $3, $4, $5, $6)"
		" ORDER BY t.expires_at, t.host_id, t.agent_id, t.runtime_compatibility_id, t.placement LIMIT $7",
		7, {TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_LOCK] = {
		"SELECT t.revision FROM reconcile.host_target t" OF_TARGET " FOR NO KEY UPDATE SKIP LOCKED",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_WITHDRAW] = {
		"UPDATE reconcile.host_target t SET expires_at = NULL, endpoint = NULL, isolation_class = NULL, accepting = false,"
		" observed_at = $5, revision = t.revision OPERATOR(pg_catalog.+) 1" OF_TARGET,
		5, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
	}
};

typedef struct DueTarget
{
	TimestampTz expires_at;
	const char *position[4];	/* host, agent, runtime, placement */
	int64		revision;
} DueTarget;

static int
read_page(const SweepPass *pass, DueTarget **targets)
{
	SqlScope	scope;
	Datum		values[7];
	uint64		n;

	values[0] = TimestampTzGetDatum(pass->bound);
	sweep_place_values(pass, &values[1]);
	values[6] = Int32GetDatum(pass->page_limit);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_PAGE], values, NULL);
	*targets = MemoryContextAlloc(scope.outer, sizeof(DueTarget) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		DueTarget  *target = &(*targets)[i];

		target->expires_at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		for (int k = 0; k < lengthof(target->position); k++)
			target->position[k] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, k + 2, NULL)));
		target->revision = DatumGetInt64(sql_value(i, 6, NULL));
	}
	sql_end(&scope);
	return (int) n;
}

/* False: its host is writing it, or has. */
static bool
withdraw(const DueTarget *target, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[5];
	bool		same;

	for (int k = 0; k < lengthof(target->position); k++)
		values[k] = CStringGetTextDatum(target->position[k]);
	values[4] = TimestampTzGetDatum(now);
	sql_begin(&scope);
	same = sql_run_latest(&plans[PLAN_LOCK], values, NULL) > 0 &&
		DatumGetInt64(sql_value(0, 1, NULL)) == target->revision;
	if (same)
		(void) sql_run_latest(&plans[PLAN_WITHDRAW], values, NULL);
	sql_end(&scope);
	return same;
}

typedef struct Withdrawal
{
	TargetsSwept *swept;
	const DueTarget *target;
} Withdrawal;

static void
look_at(void *arg)
{
	Withdrawal *withdrawal = arg;
	TimestampTz now = clock_now();

	if (now < withdrawal->target->expires_at)
		withdrawal->swept->still_live++;
	else if (withdraw(withdrawal->target, now))
		withdrawal->swept->withdrawn++;
	else
		withdrawal->swept->contended++;
}

static int
targets_page(SweepPass *pass, void *arg)
{
	Withdrawal	withdrawal = {arg};
	DueTarget  *targets;
	int			n = read_page(pass, &targets);

	for (int i = 0; i < n; i++)
	{
		ErrorData  *error;

		CHECK_FOR_INTERRUPTS();
		withdrawal.target = &targets[i];
		error = subxact_run(look_at, &withdrawal);
		if (error != NULL)
		{
			withdrawal.swept->failed++;
			sweep_row_failed("a host's target", error);
		}
	}
	if (n > 0)
		sweep_move(pass, targets[n - 1].expires_at, targets[n - 1].position);
	return n;
}

bool
sweep_host_targets(SweepPass *pass, TargetsSwept *swept)
{
	PlacementSettings settings;

	pass->sweep = SWEEP_HOST_TARGETS;
	if (!sweep_turn(pass->sweep, 1, &pass->shard))
		return false;
	placement_settings(&settings);
	pass->page_limit = settings.page_limit;
	pass->max_pages = settings.max_pages;
	pass->bound = clock_now();
	pass->npositions = 4;
	sweep_run(pass, targets_page, swept, swept, sizeof(*swept));
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_host_targets);
Datum
reconcile_sweep_host_targets(PG_FUNCTION_ARGS)
{
	SweepPass	pass = {0};
	TargetsSwept swept = {0};
	Datum		values[9] = {0};
	bool		nulls[9] = {false};

	sweep_require("sweep_host_targets");
	(void) sweep_host_targets(&pass, &swept);
	values[0] = Int32GetDatum(pass.pages);
	values[1] = Int64GetDatum(pass.rows);
	values[2] = Int64GetDatum(swept.withdrawn);
	values[3] = Int64GetDatum(swept.still_live);
	values[4] = Int64GetDatum(swept.contended);
	values[5] = Int64GetDatum(swept.failed);
	values[6] = BoolGetDatum(pass.pages > 0 && !pass.truncated);
	values[7] = BoolGetDatum(pass.resumed);
	values[8] = sweep_failure(&pass, &nulls[8]);
	return return_one_row(fcinfo, values, nulls);
}

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
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "placement/marks.h"
#include "sweep/sweep.h"

enum
{
	PLAN_PAGE,
	PLAN_LOCK,
	PLAN_WITHDRAW,
	PLAN_FIRST
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
	},
	[PLAN_FIRST] = {
		"SELECT t.expires_at FROM reconcile.host_target t"
		" WHERE t.expires_at IS NOT NULL AND t.expires_at OPERATOR(pg_catalog.>) $1 ORDER BY t.expires_at LIMIT 1",
		1, {TIMESTAMPTZOID}
	}
};

typedef struct TargetsSwept
{
	int64		withdrawn;
	int64		still_live;
	int64		contended;		/* changed, or being changed */
} TargetsSwept;

typedef struct DueTarget
{
	TimestampTz expires_at;
	const char *position[4];	/* host, agent, runtime, placement */
	int64		revision;
} DueTarget;

static TimestampTz
targets_bound(const SweepPass *pass)
{
	return clock_now();
}

static int
targets_read_page(SweepPass *pass, void **page)
{
	SqlScope	scope;
	Datum		values[7];
	DueTarget  *targets;
	int			n;

	values[0] = TimestampTzGetDatum(pass->bound);
	values[1] = TimestampTzGetDatum(pass->at);
	for (int k = 0; k < 4; k++)
		values[k + 2] = CStringGetTextDatum(pass->position[k]);
	values[6] = Int32GetDatum(pass->settings->page_limit);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_PAGE], values, NULL);
	targets = MemoryContextAlloc(scope.outer, sizeof(DueTarget) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		targets[i].expires_at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		for (int k = 0; k < 4; k++)
			targets[i].position[k] = sql_text(i, k + 2, scope.outer);
		targets[i].revision = DatumGetInt64(sql_value(i, 6, NULL));
	}
	sql_end(&scope);
	if (n > 0)
		sweep_move(&host_targets_sweep, pass, targets[n - 1].expires_at, targets[n - 1].position);
	*page = targets;
	return n;
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

static void
targets_settle(SweepPass *pass, void *page, int i)
{
	TargetsSwept *swept = pass->counts;
	const DueTarget *target = (DueTarget *) page + i;
	TimestampTz now = clock_now();

	if (now < target->expires_at)
	{
		swept->still_live++;
		sweep_again(pass, target->expires_at);
	}
	else if (withdraw(target, now))
		swept->withdrawn++;
	else
	{
		swept->contended++;
		sweep_again_soon(pass);
	}
}

static TimestampTz
targets_first_due(TimestampTz after)
{
	Datum		value = TimestampTzGetDatum(after);

	return sql_instant(&plans[PLAN_FIRST], &value, DT_NOEND);
}

const Sweep host_targets_sweep = {
	.name = SWEEP_HOST_TARGETS,
	.npositions = 4,
	.counts_size = sizeof(TargetsSwept),
	.row = "a host's target",
	.bound = targets_bound,
	.read_page = targets_read_page,
	.settle = targets_settle,
	.first_due = targets_first_due
};

static void
report(const SweepPass *pass, void *arg)
{
	ReturnSetInfo *result = arg;
	const TargetsSwept *swept = pass->counts;
	Datum		values[9];
	bool		nulls[9] = {false};

	values[0] = Int32GetDatum(pass->pages);
	values[1] = Int64GetDatum(pass->rows);
	values[2] = Int64GetDatum(swept->withdrawn);
	values[3] = Int64GetDatum(swept->still_live);
	values[4] = Int64GetDatum(swept->contended);
	values[5] = Int64GetDatum(pass->failed);
	values[6] = BoolGetDatum(!pass->truncated);
	values[7] = BoolGetDatum(pass->resumed);
	values[8] = sweep_failure(pass, &nulls[8]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_sweep_host_targets);
Datum
reconcile_sweep_host_targets(PG_FUNCTION_ARGS)
{
	sweep_require("sweep_host_targets");
	InitMaterializedSRF(fcinfo, 0);
	(void) sweep_call(&host_targets_sweep, report, fcinfo->resultinfo);
	return (Datum) 0;
}

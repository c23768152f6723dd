/*
 * sight.c
 *		What the caller may see of each reconciler id; and the functions behind
 *		the views "loops" and "runs".
 *
 * Nothing here scans a table that grows with the work: the counts come from the
 * dispatcher, which is asked for a look first.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/plan.h"
#include "engine/runlog.h"
#include "observe/sight.h"

static SqlPlan plan_seen = {
	"SELECT l.loop_name, true, l.enabled, l.paused, l.lease_ttl_ms IS NOT NULL, l.reconciler IS NULL,"
	" t.epoch, t.expires_at, l.home OPERATOR(pg_catalog.<>) h.home"
	" FROM reconcile.here() h CROSS JOIN reconcile.loop l"
	" LEFT JOIN reconcile.standing_lease t ON t.reconciler_id OPERATOR(pg_catalog.=) l.loop_name"
	" UNION ALL "
	"(SELECT t.reconciler_id, false, false, false, true, false, t.epoch, t.expires_at, false FROM reconcile.standing_lease t"
	" WHERE NOT EXISTS (SELECT FROM reconcile.loop l WHERE l.loop_name OPERATOR(pg_catalog.=) t.reconciler_id)"
	/* who may not observe all: only those that he may count for the limit */
	" AND ($2 OR t.reconciler_id OPERATOR(pg_catalog.=) ANY (SELECT g.scope FROM reconcile.access_grant g"
	" WHERE g.capability OPERATOR(pg_catalog.=) 'observe' AND pg_catalog.pg_has_role($3, g.role::pg_catalog.oid, 'USAGE')))"
	" ORDER BY t.reconciler_id LIMIT $1)"
	" ORDER BY 1", 3, {INT8OID, BOOLOID, OIDOID}
};

static SqlPlan plan_dead = {
	"SELECT pg_catalog.count(*) FROM reconcile.entity e"
	" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.died_of IS NOT NULL", 1, {TEXTOID}
};

static void
seen_from_row(int row, Seen *seen)
{
	bool		isnull;
	Datum		epoch;

	memset(seen, 0, sizeof(*seen));
	text_to_cstring_buffer(DatumGetTextPP(sql_value(row, 1, NULL)), seen->reconciler_id, sizeof(seen->reconciler_id));
	seen->is_loop = DatumGetBool(sql_value(row, 2, NULL));
	seen->enabled = DatumGetBool(sql_value(row, 3, NULL));
	seen->foreign = DatumGetBool(sql_value(row, 9, NULL));
	seen->paused = seen->foreign || DatumGetBool(sql_value(row, 4, NULL));
	seen->leased = DatumGetBool(sql_value(row, 5, NULL));
	seen->outside = DatumGetBool(sql_value(row, 6, NULL));
	epoch = sql_value(row, 7, &isnull);
	seen->has_term = !isnull;
	if (!isnull)
	{
		seen->epoch = DatumGetInt64(epoch);
		seen->expires_at = DatumGetTimestampTz(sql_value(row, 8, NULL));
	}
}

int
sight_read(Seen **seen)
{
	SqlScope	scope;
	Datum		values[3];
	uint64		rows;
	Seen	   *all;
	int			n = 0;
	bool		complete = engine_look();

	values[0] = Int64GetDatum(SEEN_LEASES);
	values[1] = BoolGetDatum(access_allowed(CAP_OBSERVE, ""));
	values[2] = ObjectIdGetDatum(GetUserId());
	sql_begin(&scope);
	rows = sql_run(&plan_seen, values, NULL);
	all = MemoryContextAlloc(scope.outer, sizeof(Seen) * Max(rows, 1));
	for (uint64 i = 0; i < rows; i++)
		seen_from_row(i, &all[i]);
	sql_end(&scope);

	for (uint64 i = 0; i < rows; i++)
	{
		if (!access_allowed(CAP_OBSERVE, all[i].reconciler_id))
			continue;
		all[n] = all[i];
		stats_read(all[n].reconciler_id, &all[n].stats);
		all[n].current = complete && engine_is_current(&all[n].stats.gauges);
		n++;
	}
	*seen = all;
	return n;
}

bool
sight_leads(const Seen *seen, TimestampTz now)
{
	if (seen->leased)
		return seen->has_term && now < seen->expires_at;
	return seen->enabled && !seen->paused;
}

int64
sight_dead(const Seen *seen)
{
	SqlScope	scope;
	Datum		name;
	int64		n;

	if (seen->stats.dead >= 0)
		return seen->stats.dead;
	name = CStringGetTextDatum(seen->reconciler_id);
	sql_begin(&scope);
	sql_run(&plan_dead, &name, NULL);
	n = DatumGetInt64(sql_value(0, 1, NULL));
	sql_end(&scope);
	return n;
}

/* ----------------------------------------------------------------
 * For the views
 * ----------------------------------------------------------------
 */

/* Counts of the loops whose dispatcher runs; of the others no row. */
PG_FUNCTION_INFO_V1(reconcile_loop_counts);
Datum
reconcile_loop_counts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Seen	   *seen;
	int			n = sight_read(&seen);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		const LoopGauges *gauges = &seen[i].stats.gauges;
		Datum		values[7];
		bool		nulls[7] = {false};

		if (!seen[i].is_loop || !seen[i].current)
			continue;
		values[0] = CStringGetTextDatum(seen[i].reconciler_id);
		values[1] = Int64GetDatum(gauges->ready);
		values[2] = Int64GetDatum(gauges->running);
		values[3] = Int64GetDatum(gauges->waiting);
		values[4] = Int64GetDatum(gauges->retrying);
		values[5] = Int64GetDatum(sight_dead(&seen[i]));
		values[6] = TimestampTzGetDatum(gauges->oldest_due_at);
		nulls[6] = gauges->oldest_due_at == 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

static const char *
result_name(RunResult result)
{
	switch (result)
	{
		case RESULT_SUCCESS:
			return "success";
		case RESULT_TRANSIENT:
			return "transient";
		case RESULT_PERMANENT:
			return "permanent";
	}
	return "unknown";
}

/* Where runs go, and what is known of the caller's rights. */
typedef struct RunSink
{
	ReturnSetInfo *rsinfo;
	char		loop_name[RECONCILER_ID_MAX + 1];
	bool		allowed;
} RunSink;

static void
put_run(const RunEntry *entry, void *arg)
{
	RunSink    *sink = arg;
	ReturnSetInfo *rsinfo = sink->rsinfo;
	Datum		values[10];
	bool		nulls[10] = {false};

	/* of one loop there are mostly many in a row */
	if (strcmp(sink->loop_name, entry->loop_name) != 0)
	{
		strlcpy(sink->loop_name, entry->loop_name, sizeof(sink->loop_name));
		sink->allowed = access_allowed(CAP_OBSERVE, entry->loop_name);
	}
	if (!sink->allowed)
		return;
	values[0] = CStringGetTextDatum(entry->loop_name);
	values[1] = CStringGetTextDatum(entry->entity_id);
	values[2] = TimestampTzGetDatum(entry->started_at);
	nulls[3] = entry->queue_us < 0;
	values[3] = Float8GetDatum(entry->queue_us / 1000.0);
	values[4] = Float8GetDatum(entry->run_us / 1000.0);
	values[5] = CStringGetTextDatum(result_name(entry->result));
	nulls[6] = entry->sqlstate == 0;
	values[6] = nulls[6] ? (Datum) 0 : CStringGetTextDatum(unpack_sql_state(entry->sqlstate));
	values[7] = Int32GetDatum(entry->attempt);
	values[8] = Int64GetDatum(entry->epoch);
	values[9] = Int32GetDatum(entry->pid);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_recent_runs);
Datum
reconcile_recent_runs(PG_FUNCTION_ARGS)
{
	RunSink		sink = {(ReturnSetInfo *) fcinfo->resultinfo};

	InitMaterializedSRF(fcinfo, 0);
	runlog_read(put_run, &sink);
	return (Datum) 0;
}

/*
 * placement_sight.c
 *		What health and metrics tell of placement.
 *
 * Each count reads a partial index, and no more of it than it may count.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/timestamp.h"

#include "core/plan.h"
#include "placement/placement_sight.h"

enum
{
	PLAN_WAITING,
	PLAN_OVERDUE
};

static SqlPlan plans[] = {
	/* the row of a search outlives the commands that asked for it */
	[PLAN_WAITING] = {
		"SELECT FROM (SELECT s.tenant_id, s.session_id, s.waits_since FROM reconcile.session_search s"
		" WHERE s.agent_id IS NOT NULL LIMIT $2) w WHERE w.waits_since OPERATOR(pg_catalog.<=) $1"
		" AND EXISTS (SELECT FROM reconcile.session_command c WHERE c.tenant_id OPERATOR(pg_catalog.=) w.tenant_id"
		" AND c.session_id OPERATOR(pg_catalog.=) w.session_id"
		" AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}'))",
		2, {TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_OVERDUE] = {
		"SELECT FROM reconcile.session_offer o WHERE o.state OPERATOR(pg_catalog.=) 'offered'"
		" AND o.expires_at OPERATOR(pg_catalog.<=) $1 LIMIT $2",
		2, {TIMESTAMPTZOID, INT4OID}
	}
};

static int64
count(SqlPlan *plan, TimestampTz before, int max)
{
	SqlScope	scope;
	Datum		values[2];
	int64		n;

	values[0] = TimestampTzGetDatum(before);
	values[1] = Int32GetDatum(max + 1);
	sql_begin(&scope);
	n = sql_run(plan, values, NULL);
	sql_end(&scope);
	return n;
}

int64
placement_waiting(TimestampTz before, int max)
{
	return count(&plans[PLAN_WAITING], before, max);
}

int64
placement_offers_overdue(TimestampTz before, int max)
{
	return count(&plans[PLAN_OVERDUE], before, max);
}

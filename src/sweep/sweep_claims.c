/*
 * sweep_claims.c
 *		sweep_claims(): a replica that was restarted gives its claims back.
 *
 * It has no tokens any more, so its name and its role stand for them; called by that
 * replica alone, it takes nothing from another.  What lapsed is left as it is.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/marks.h"
#include "sweep/sweep.h"

#define ITEMS_MAX	10000

enum
{
	PLAN_COUNT,
	PLAN_RELEASE
};

#define OF_HOLDER	" FROM reconcile.session_claim c WHERE c.holder_id OPERATOR(pg_catalog.=) $1"
#define LIVE		"c.expires_at OPERATOR(pg_catalog.>) $3"
#define MINE		"c.role_name OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	/* live ones of its name: how many, and how many of another role */
	[PLAN_COUNT] = {
		"SELECT pg_catalog.count(*) FILTER (WHERE " MINE "), pg_catalog.count(*) FILTER (WHERE NOT " MINE ")"
		OF_HOLDER " AND " LIVE,
		3, {TEXTOID, NAMEOID, TIMESTAMPTZOID}
	},
	/* who is changing one knows better than we do */
	[PLAN_RELEASE] = {
		"WITH o AS MATERIALIZED (SELECT c.tenant_id, c.session_id" OF_HOLDER " AND " MINE " AND " LIVE
		" ORDER BY c.tenant_id, c.session_id LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED)"
		" UPDATE reconcile.session_claim u SET claimed_at = $3, expires_at = $3 FROM o"
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) o.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) o.session_id"
		" WHERE u.tenant_id OPERATOR(pg_catalog.=) o.tenant_id AND u.session_id OPERATOR(pg_catalog.=) o.session_id"
		" RETURNING s.number",
		4, {TEXTOID, NAMEOID, TIMESTAMPTZOID, INT4OID}
	}
};

PG_FUNCTION_INFO_V1(reconcile_sweep_claims);
Datum
reconcile_sweep_claims(PG_FUNCTION_ARGS)
{
	char	   *holder_id;
	SqlScope	scope;
	Datum		values[4];
	Datum		result[3];
	bool		nulls[3] = {false};
	int64		mine;
	int64		held;
	int			released;
	int64	   *numbers;

	require_writable("sweep_claims");
	require_read_committed("sweep_claims");
	holder_id = identity_field(fcinfo, 0, "holder_id");
	values[3] = Int32GetDatum(max_items_arg(fcinfo, 1, ITEMS_MAX, "It is 1 to 10,000."));
	access_require_all(CAP_PLACE);

	values[0] = CStringGetTextDatum(holder_id);
	values[1] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	values[2] = TimestampTzGetDatum(clock_now());
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_COUNT], values, NULL);
	mine = DatumGetInt64(sql_value(0, 1, NULL));
	held = DatumGetInt64(sql_value(0, 2, NULL));
	released = (int) sql_run_latest(&plans[PLAN_RELEASE], values, NULL);
	numbers = MemoryContextAlloc(scope.outer, sizeof(int64) * Max(released, 1));
	for (int i = 0; i < released; i++)
		numbers[i] = DatumGetInt64(sql_value(i, 1, NULL));
	sql_end(&scope);
	/* who left them alone may go on */
	(void) session_mark_many(released, numbers);

	result[0] = Int64GetDatum(released);
	result[1] = Int64GetDatum(held);
	result[2] = BoolGetDatum(mine > released);
	return return_one_row(fcinfo, result, nulls);
}

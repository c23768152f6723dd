/*
 * desired_read.c
 *		Desired states as workers read them, and what they report of them.
 *
 * A change has a place: the floor of the incarnation, the transaction that made it,
 * a number.  A list shows a change of this incarnation only when every transaction
 * before its own is over, so that no later commit can be before what a reader has
 * seen; those of earlier incarnations are all over (incarnation_hold()).  Which
 * incarnation this is, and what is over, is read with one snapshot.
 *
 * A position is such a place and the life in which it was read.  Who comes with one
 * of another life may have seen changes that are lost, after which a target is again
 * as it was at an earlier place: he is shown all of them once more.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "journal/actions.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/desired.h"
#include "journal/envelope.h"
#include "lease/incarnation.h"

#define ITEMS_MAX	10000

enum
{
	PLAN_ONE,
	PLAN_SINCE,
	PLAN_REVISION,
	PLAN_REPORT
};

#define STATE_COLUMNS "d.target_kind, d.target_name, d.state, d.revision, d.command_id"

static SqlPlan plans[] = {
	[PLAN_ONE] = {
		"SELECT " STATE_COLUMNS ", d.requested_at, d.changed_at FROM reconcile.desired_state d"
		" WHERE d.tenant_id OPERATOR(pg_catalog.=) $1 AND d.target_kind OPERATOR(pg_catalog.=) $2"
		" AND d.target_name OPERATOR(pg_catalog.=) $3 AND d.state IS NOT NULL",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_SINCE] = {
		"SELECT " STATE_COLUMNS ", d.changed_at, d.change_floor, d.change_xid, d.change_number"
		" FROM reconcile.desired_state d WHERE d.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND ROW(d.change_floor, d.change_xid, d.change_number) OPERATOR(pg_catalog.>) ROW($2, $3, $4)"
		" AND (d.change_floor OPERATOR(pg_catalog.<) $5 OR d.change_xid OPERATOR(pg_catalog.<)"
		" pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()))"
		" AND " GRANT_COVERS("d", "$6", "$7", "$8")
		" ORDER BY d.change_floor, d.change_xid, d.change_number LIMIT $9",
		9, {TEXTOID, INT8OID, XID8OID, INT8OID, INT8OID, TEXTARRAYOID, TEXTARRAYOID, BOOLARRAYOID, INT4OID}
	},
	[PLAN_REVISION] = {
		"SELECT d.revision FROM reconcile.desired_state d"
		" WHERE d.tenant_id OPERATOR(pg_catalog.=) $1 AND d.target_kind OPERATOR(pg_catalog.=) $2"
		" AND d.target_name OPERATOR(pg_catalog.=) $3 AND d.revision OPERATOR(pg_catalog.>) 0",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	/* an older report that comes late changes nothing */
	[PLAN_REPORT] = {
		"INSERT INTO reconcile.observed_state AS o (tenant_id, target_kind, target_name, worker_id, revision, state,"
		" reported_at) VALUES ($1, $2, $3, $4, $5, $6, $7)"
		" ON CONFLICT (tenant_id, target_kind, target_name, worker_id) DO UPDATE"
		" SET revision = EXCLUDED.revision, state = EXCLUDED.state, reported_at = EXCLUDED.reported_at"
		" WHERE o.revision OPERATOR(pg_catalog.<=) EXCLUDED.revision",
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID}
	}
};

/* ----------------------------------------------------------------
 * Positions
 * ----------------------------------------------------------------
 */

typedef struct Position
{
	int64		life;			/* in which it was read */
	int64		floor;
	uint64		xid;
	int64		number;
} Position;

/* The floor of the incarnation; while it has not begun that still changes with the clock. */
static int64
life_of(const Incarnation *now)
{
	if (now->since != 0 || now->floor == 0)
		return now->floor;
	return -(now->number << 32 | now->timeline);
}

static char *
position_text(const Position *position)
{
	return psprintf(INT64_FORMAT "." INT64_FORMAT "." UINT64_FORMAT "." INT64_FORMAT,
					position->life, position->floor, position->xid, position->number);
}

static void
position_arg(FunctionCallInfo fcinfo, int n, Position *position)
{
	char	   *value;

	memset(position, 0, sizeof(*position));
	if (PG_ARGISNULL(n))
		return;
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (sscanf(value, INT64_FORMAT "." INT64_FORMAT "." UINT64_FORMAT "." INT64_FORMAT,
			   &position->life, &position->floor, &position->xid, &position->number) != 4 ||
		position->floor < 0 || position->number < 0 || strcmp(value, position_text(position)) != 0)
		field_invalid("after", "is not a position", "It is the position of a row that was returned before, or NULL for all.");
}

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

static bool
may_view(const char *tenant_id, const char *target_kind, const char *target_name)
{
	AccessRequest request = {tenant_id, PERMISSION_VIEW, target_kind, target_name, NULL};

	return command_allowed(&request);
}

static bool
may_view_tenant(const char *tenant_id)
{
	return command_allowed_somewhere(tenant_id, PERMISSION_VIEW);
}

PG_FUNCTION_INFO_V1(reconcile_desired_state_of);
Datum
reconcile_desired_state_of(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *tenant_id = identity_field(fcinfo, 0, "tenant_id");
	char	   *target_kind = identity_field(fcinfo, 1, "target_kind");
	char	   *target_name = identity_field(fcinfo, 2, "target_name");
	SqlScope	scope;
	Datum		values[3];
	Datum		row[8];
	bool		nulls[8] = {false};

	InitMaterializedSRF(fcinfo, 0);
	/* what is not there and what is not the caller's look alike */
	if (!may_view(tenant_id, target_kind, target_name))
		return (Datum) 0;
	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(target_kind);
	values[2] = CStringGetTextDatum(target_name);
	sql_begin(&scope);
	if (sql_run(&plans[PLAN_ONE], values, NULL) > 0)
	{
		row[0] = values[0];
		for (int i = 1; i <= 7; i++)
			row[i] = sql_value(0, i, &nulls[i]);
		tuplestore_putvalues(result->setResult, result->setDesc, row, nulls);
	}
	sql_end(&scope);
	return (Datum) 0;
}

/*
 * The changes behind "after" that the caller may see, at most "wanted".  What he may not
 * see is no reason to read page after page, so the plan leaves it out.
 */
PG_FUNCTION_INFO_V1(reconcile_desired_states_since);
Datum
reconcile_desired_states_since(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *tenant_id = identity_field(fcinfo, 0, "tenant_id");
	Position	after;
	Incarnation now;
	Snapshot	snapshot;
	SqlScope	scope;
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	uint64		n;

	position_arg(fcinfo, 1, &after);
	if (PG_ARGISNULL(2))
		field_null("max_items");
	if (PG_GETARG_INT32(2) < 1 || PG_GETARG_INT32(2) > ITEMS_MAX)
		field_invalid("max_items", "is out of range", "It is 1 to 10,000.");
	InitMaterializedSRF(fcinfo, 0);
	if (!may_view_tenant(tenant_id))
		return (Datum) 0;

	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	incarnation_read_at(&now, snapshot);
	if (after.life != life_of(&now))
		after = (Position) {0};
	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = Int64GetDatum(after.floor);
	values[2] = FullTransactionIdGetDatum(FullTransactionIdFromU64(after.xid));
	values[3] = Int64GetDatum(after.number);
	values[4] = Int64GetDatum(now.floor);
	nulls[5] = nulls[6] = nulls[7] =
		command_grant_arrays(tenant_id, PERMISSION_VIEW, &values[5], &values[6], &values[7]) ? ' ' : 'n';
	values[8] = PG_GETARG_DATUM(2);
	sql_begin(&scope);
	n = sql_run_snapshot(&plans[PLAN_SINCE], values, nulls, snapshot);
	for (uint64 i = 0; i < n; i++)
	{
		Position	position;
		Datum		row[7];
		bool		row_nulls[7] = {false};

		position.life = life_of(&now);
		position.floor = DatumGetInt64(sql_value(i, 7, NULL));
		position.xid = U64FromFullTransactionId(DatumGetFullTransactionId(sql_value(i, 8, NULL)));
		position.number = DatumGetInt64(sql_value(i, 9, NULL));
		row[0] = CStringGetTextDatum(position_text(&position));
		for (int j = 1; j <= 6; j++)
			row[j] = sql_value(i, j, &row_nulls[j]);
		tuplestore_putvalues(result->setResult, result->setDesc, row, row_nulls);
	}
	sql_end(&scope);
	UnregisterSnapshot(snapshot);
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * What workers report
 * ----------------------------------------------------------------
 */

static int64
revision_of(const char *tenant_id, const char *target_kind, const char *target_name)
{
	SqlScope	scope;
	Datum		values[3];
	int64		revision = 0;

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(target_kind);
	values[2] = CStringGetTextDatum(target_name);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_REVISION], values, NULL) > 0)
		revision = DatumGetInt64(sql_value(0, 1, NULL));
	sql_end(&scope);
	return revision;
}

PG_FUNCTION_INFO_V1(reconcile_report_observed);
Datum
reconcile_report_observed(PG_FUNCTION_ARGS)
{
	AccessRequest request = {.permission = PERMISSION_REPORT};
	char	   *worker_id;
	char	   *state;
	int64		revision;
	int64		desired;
	Datum		values[7];

	require_writable("report_observed");
	require_read_committed("report_observed");
	request.tenant_id = identity_field(fcinfo, 0, "tenant_id");
	worker_id = identity_field(fcinfo, 1, "worker_id");
	request.target_kind = identity_field(fcinfo, 2, "target_kind");
	request.target_name = identity_field(fcinfo, 3, "target_name");
	if (PG_ARGISNULL(4))
		field_null("revision");
	revision = PG_GETARG_INT64(4);
	if (revision < 1)
		field_invalid("revision", "must be more than 0", "It is that of the desired state that was applied.");
	if (PG_ARGISNULL(5))
		field_null("state");
	state = text_to_cstring(PG_GETARG_TEXT_PP(5));
	if (!desired_state_valid(state))
		field_invalid("state", "is not a state", "It is active, paused, draining or terminating.");

	/* what is not there and what is not the caller's look alike */
	if (!command_allowed(&request))
	{
		command_audit_denied(request.tenant_id, NULL, "report");
		PG_RETURN_DATUM(CStringGetTextDatum("unknown_target"));
	}
	desired = revision_of(request.tenant_id, request.target_kind, request.target_name);
	if (desired == 0)
		PG_RETURN_DATUM(CStringGetTextDatum("unknown_target"));
	if (revision > desired)
		PG_RETURN_DATUM(CStringGetTextDatum("ahead"));
	values[0] = CStringGetTextDatum(request.tenant_id);
	values[1] = CStringGetTextDatum(request.target_kind);
	values[2] = CStringGetTextDatum(request.target_name);
	values[3] = CStringGetTextDatum(worker_id);
	values[4] = Int64GetDatum(revision);
	values[5] = CStringGetTextDatum(state);
	values[6] = TimestampTzGetDatum(clock_now());
	PG_RETURN_DATUM(CStringGetTextDatum(sql_do(&plans[PLAN_REPORT], values, NULL) > 0 ? "stored" : "older"));
}

/* ----------------------------------------------------------------
 * Scopes that overlap
 * ----------------------------------------------------------------
 */

/* The one that binds most counts; of equal ones the one that is nearest to the worker. */
static const char *const by_strength[] = {"terminating", "draining", "paused", "active"};

static int
strength(const char *state)
{
	int			i = 0;

	while (i < lengthof(by_strength) && strcmp(by_strength[i], state) != 0)
		i++;
	return i;
}

PG_FUNCTION_INFO_V1(reconcile_effective_state);
Datum
reconcile_effective_state(PG_FUNCTION_ARGS)
{
	static const char *const kinds[] = {"worker", "worker_group", "queue"};
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *tenant_id = identity_field(fcinfo, 0, "tenant_id");
	SqlScope	scope;
	Datum		values[5];
	bool		nulls[5] = {false};
	Datum		best[4];
	int			best_strength = lengthof(by_strength);
	bool		named = false;
	Snapshot	snapshot;

	InitMaterializedSRF(fcinfo, 0);
	snapshot = RegisterSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < lengthof(kinds); i++)
	{
		char	   *name;

		if (PG_ARGISNULL(i + 1))
			continue;
		name = identity_field(fcinfo, i + 1, kinds[i]);
		named = true;
		if (!may_view(tenant_id, kinds[i], name))
			continue;
		values[0] = CStringGetTextDatum(tenant_id);
		values[1] = CStringGetTextDatum(kinds[i]);
		values[2] = CStringGetTextDatum(name);
		sql_begin(&scope);
		if (sql_run_snapshot(&plans[PLAN_ONE], values, NULL, snapshot) > 0)
		{
			char	   *state = TextDatumGetCString(sql_value(0, 3, NULL));

			if (strength(state) < best_strength)
			{
				MemoryContext inner = MemoryContextSwitchTo(scope.outer);

				best_strength = strength(state);
				best[0] = CStringGetTextDatum(state);
				best[1] = CStringGetTextDatum(kinds[i]);
				best[2] = CStringGetTextDatum(name);
				best[3] = sql_value(0, 4, NULL);
				MemoryContextSwitchTo(inner);
			}
		}
		sql_end(&scope);
	}
	UnregisterSnapshot(snapshot);
	if (!named)
		field_null("worker");
	if (best_strength < lengthof(by_strength))
		tuplestore_putvalues(result->setResult, result->setDesc, best, nulls);
	return (Datum) 0;
}

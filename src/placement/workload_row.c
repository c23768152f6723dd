/*
 * workload_row.c
 *		Rows of session_workload.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "placement/workload_row.h"

enum
{
	PLAN_READ,
	PLAN_WRITE,
	PLAN_TERMINATED
};

#define OF_SESSION "tenant_id OPERATOR(pg_catalog.=) $1 AND session_id OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT state, host_id, host_generation, endpoint, drain_host_id, drain_generation, drain_epoch,"
		" drain_requested_at, drain_deadline, drain_answer, decided, decided_reason, decided_epoch, reported_at"
		" FROM reconcile.session_workload WHERE " OF_SESSION " AND generation OPERATOR(pg_catalog.=) $3",
		3, {TEXTOID, TEXTOID, INT8OID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_workload (tenant_id, session_id, generation, name, state, host_id, host_generation,"
		" endpoint, reported_at, drain_host_id, drain_generation, drain_epoch, drain_requested_at, drain_deadline,"
		" drain_answer, decided, decided_reason, decided_epoch)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
		" ON CONFLICT (tenant_id, session_id, generation) DO UPDATE SET state = $5, host_id = $6, host_generation = $7,"
		" endpoint = $8, reported_at = $9, drain_host_id = $10, drain_generation = $11, drain_epoch = $12,"
		" drain_requested_at = $13, drain_deadline = $14, drain_answer = $15, decided = $16, decided_reason = $17,"
		" decided_epoch = $18",
		18, {TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID, TEXTOID, INT8OID,
			INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT8OID}
	},
	[PLAN_TERMINATED] = {
		"SELECT generation FROM reconcile.session_termination WHERE " OF_SESSION, 2, {TEXTOID, TEXTOID}
	}
};

static int64
number_out(int column, int64 missing)
{
	bool		isnull;
	Datum		value = sql_value(0, column, &isnull);

	return isnull ? missing : DatumGetInt64(value);
}

bool
workload_read(const SessionKey *key, int64 generation, Workload *workload)
{
	SqlScope	scope;
	Datum		values[3];
	bool		found;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(generation);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
	{
		workload->generation = generation;
		workload->state = sql_text(0, 1, scope.outer);
		workload->host_id = sql_text(0, 2, scope.outer);
		workload->host_generation = number_out(3, 0);
		workload->endpoint = sql_text(0, 4, scope.outer);
		workload->drain_host_id = sql_text(0, 5, scope.outer);
		workload->drain_generation = number_out(6, 0);
		workload->drain_epoch = number_out(7, 0);
		workload->drain_requested_at = number_out(8, DT_NOBEGIN);
		workload->drain_deadline = number_out(9, DT_NOBEGIN);
		workload->drain_answer = sql_text(0, 10, scope.outer);
		workload->decided = sql_text(0, 11, scope.outer);
		workload->decided_reason = sql_text(0, 12, scope.outer);
		workload->decided_epoch = number_out(13, 0);
		workload->reported_at = number_out(14, 0);
	}
	sql_end(&scope);
	return found;
}

static void
put_text(const char *value, int n, Datum *values, char *nulls)
{
	nulls[n] = value == NULL ? 'n' : ' ';
	values[n] = value == NULL ? (Datum) 0 : CStringGetTextDatum(value);
}

static void
put_number(int64 value, bool isnull, int n, Datum *values, char *nulls)
{
	nulls[n] = isnull ? 'n' : ' ';
	values[n] = Int64GetDatum(value);
}

void
workload_write(const Session *session, const Workload *workload)
{
	SqlScope	scope;
	Datum		values[18];
	char		nulls[18];
	bool		undrained = workload->drain_requested_at == DT_NOBEGIN;

	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(session->key.tenant_id);
	values[1] = CStringGetTextDatum(session->key.session_id);
	values[2] = Int64GetDatum(workload->generation);
	values[3] = CStringGetTextDatum(session_workload_name(session, workload->generation));
	values[4] = CStringGetTextDatum(workload->state);
	put_text(workload->host_id, 5, values, nulls);
	put_number(workload->host_generation, workload->host_id == NULL, 6, values, nulls);
	put_text(workload->endpoint, 7, values, nulls);
	values[8] = TimestampTzGetDatum(clock_now());
	put_text(workload->drain_host_id, 9, values, nulls);
	put_number(workload->drain_generation, workload->drain_host_id == NULL, 10, values, nulls);
	values[11] = Int64GetDatum(workload->drain_epoch);
	put_number(workload->drain_requested_at, undrained, 12, values, nulls);
	put_number(workload->drain_deadline, undrained, 13, values, nulls);
	put_text(workload->drain_answer, 14, values, nulls);
	put_text(workload->decided, 15, values, nulls);
	put_text(workload->decided_reason, 16, values, nulls);
	put_number(workload->decided_epoch, workload->decided == NULL, 17, values, nulls);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE], values, nulls);
	sql_end(&scope);
}

int64
workload_terminated(const SessionKey *key)
{
	SqlScope	scope;
	Datum		values[2];
	int64		generation = 0;

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_TERMINATED], values, NULL) > 0)
		generation = DatumGetInt64(sql_value(0, 1, NULL));
	sql_end(&scope);
	return generation;
}

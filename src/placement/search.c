/*
 * search.c
 *		The row of a search: who writes it has its session locked.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/plan.h"
#include "loop/decide.h"
#include "placement/search.h"

enum
{
	PLAN_READ,
	PLAN_WRITE
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT s.round, s.replacements, s.look_at, s.agent_id IS NOT NULL FROM reconcile.session_search s"
		" WHERE s.tenant_id OPERATOR(pg_catalog.=) $1 AND s.session_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_search (tenant_id, session_id, round, replacements, look_at,"
		" agent_id, runtime_compatibility_id, placement) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
		" ON CONFLICT (tenant_id, session_id) DO UPDATE SET round = EXCLUDED.round,"
		" replacements = EXCLUDED.replacements, look_at = EXCLUDED.look_at, agent_id = EXCLUDED.agent_id,"
		" runtime_compatibility_id = EXCLUDED.runtime_compatibility_id, placement = EXCLUDED.placement",
		8, {TEXTOID, TEXTOID, INT8OID, INT4OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID}
	}
};

void
search_read(const SessionKey *key, Search *search)
{
	SqlScope	scope;
	Datum		values[2];

	search->round = 1;
	search->mismatches = 0;
	search->look_at = DT_NOBEGIN;
	search->waiting = false;
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_READ], values, NULL) > 0)
	{
		bool		isnull;
		Datum		value;

		search->round = DatumGetInt64(sql_value(0, 1, NULL));
		search->mismatches = DatumGetInt32(sql_value(0, 2, NULL));
		value = sql_value(0, 3, &isnull);
		search->look_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
		search->waiting = DatumGetBool(sql_value(0, 4, NULL));
	}
	sql_end(&scope);
}

void
search_write(const SessionKey *key, Search *search, const TargetKey *target)
{
	SqlScope	scope;
	Datum		values[8] = {0};
	char		nulls[8] = {' ', ' ', ' ', ' ', ' ', 'n', 'n', 'n'};

	search->waiting = target != NULL;
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(search->round);
	values[3] = Int32GetDatum(search->mismatches);
	values[4] = TimestampTzGetDatum(search->look_at);
	nulls[4] = search->look_at == DT_NOBEGIN ? 'n' : ' ';
	if (target != NULL)
	{
		values[5] = CStringGetTextDatum(target->agent_id);
		values[6] = CStringGetTextDatum(target->runtime_compatibility_id);
		values[7] = CStringGetTextDatum(target->placement);
		nulls[5] = nulls[6] = nulls[7] = ' ';
	}
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_WRITE], values, nulls);
	sql_end(&scope);
}

void
search_next_round(const SessionKey *key, Search *search, int mismatches, TimestampTz look_at, const TargetKey *target)
{
	search->round++;
	search->mismatches = mismatches;
	search->look_at = look_at;
	search_write(key, search, target);
}

int64
search_backoff(int64 base_ms, int mismatches)
{
	return decide_backoff(base_ms, SEARCH_BACKOFF_MAX_MS, mismatches - 1);
}

int64
search_jitter(int64 ms, double random)
{
	return Max(ms / 2 + (int64) ((ms - ms / 2) * random), 1);
}

/*
 * search.c
 *		The row of a search: who writes it has its session locked.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
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
		"SELECT s.round, s.replacements, s.refusals, s.look_at, s.wanted, s.agent_id, s.runtime_compatibility_id,"
		" s.placement, s.waits_since, s.requires, s.outcome, s.outcome_at FROM reconcile.session_search s"
		" WHERE s.tenant_id OPERATOR(pg_catalog.=) $1 AND s.session_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_search (tenant_id, session_id, round, replacements, refusals, look_at, wanted,"
		" agent_id, runtime_compatibility_id, placement, waits_since, requires, outcome, outcome_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
		" ON CONFLICT (tenant_id, session_id) DO UPDATE SET round = EXCLUDED.round,"
		" replacements = EXCLUDED.replacements, refusals = EXCLUDED.refusals, look_at = EXCLUDED.look_at,"
		" wanted = EXCLUDED.wanted, agent_id = EXCLUDED.agent_id,"
		" runtime_compatibility_id = EXCLUDED.runtime_compatibility_id, placement = EXCLUDED.placement,"
		" waits_since = EXCLUDED.waits_since, requires = EXCLUDED.requires, outcome = EXCLUDED.outcome,"
		" outcome_at = EXCLUDED.outcome_at",
		14, {TEXTOID, TEXTOID, INT8OID, INT4OID, INT4OID, TIMESTAMPTZOID, BOOLOID, TEXTOID, TEXTOID, TEXTOID,
			TIMESTAMPTZOID, TEXTARRAYOID, TEXTOID, TIMESTAMPTZOID}
	}
};

static TimestampTz
time_or_none(int column)
{
	bool		isnull;
	Datum		value = sql_value(0, column, &isnull);

	return isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
}

void
search_read(const SessionKey *key, Search *search)
{
	SqlScope	scope;
	Datum		values[2];

	memset(search, 0, sizeof(*search));
	search->round = 1;
	search->look_at = search->waits_since = search->outcome_at = DT_NOBEGIN;
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_READ], values, NULL) > 0)
	{
		Datum	   *elements;

		search->round = DatumGetInt64(sql_value(0, 1, NULL));
		search->mismatches = DatumGetInt32(sql_value(0, 2, NULL));
		search->refusals = DatumGetInt32(sql_value(0, 3, NULL));
		search->look_at = time_or_none(4);
		search->wanted = DatumGetBool(sql_value(0, 5, NULL));
		search->waits_at.agent_id = sql_text(0, 6, scope.outer);
		search->waits_at.runtime_compatibility_id = sql_text(0, 7, scope.outer);
		search->waits_at.placement = sql_text(0, 8, scope.outer);
		search->waits_since = time_or_none(9);
		search->outcome = sql_text(0, 11, scope.outer);
		search->outcome_at = time_or_none(12);
		deconstruct_array(DatumGetArrayTypeP(sql_value(0, 10, NULL)), TEXTOID, -1, false, TYPALIGN_INT,
						  &elements, NULL, &search->nrequires);
		search->requires = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(search->nrequires, 1));
		for (int i = 0; i < search->nrequires; i++)
			search->requires[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(elements[i]));
	}
	sql_end(&scope);
}

static Datum
texts(char **names, int n)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));

	for (int i = 0; i < n; i++)
		elements[i] = CStringGetTextDatum(names[i]);
	return PointerGetDatum(construct_array(elements, n, TEXTOID, -1, false, TYPALIGN_INT));
}

void
search_save(const SessionKey *key, Search *search)
{
	bool		waits = search->waits_at.agent_id != NULL;
	Datum		values[14] = {0};
	char		nulls[14];

	if (!search->changed)
		return;
	search->changed = false;
	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(search->round);
	values[3] = Int32GetDatum(search->mismatches);
	values[4] = Int32GetDatum(search->refusals);
	values[5] = TimestampTzGetDatum(search->look_at);
	nulls[5] = search->look_at == DT_NOBEGIN ? 'n' : ' ';
	values[6] = BoolGetDatum(search->wanted);
	if (waits)
	{
		target_key_values(&search->waits_at, &values[7]);
		values[10] = TimestampTzGetDatum(search->waits_since);
	}
	else
		memset(&nulls[7], 'n', 4);
	values[11] = texts(search->requires, waits ? search->nrequires : 0);
	if (search->outcome != NULL)
	{
		values[12] = CStringGetTextDatum(search->outcome);
		values[13] = TimestampTzGetDatum(search->outcome_at);
	}
	else
		memset(&nulls[12], 'n', 2);
	(void) sql_do(&plans[PLAN_WRITE], values, nulls);
}

void
search_next_round(Search *search, int mismatches, TimestampTz look_at)
{
	search->round++;
	search->mismatches = mismatches;
	search->look_at = look_at;
	search->changed = true;
}

void
search_end(Search *search)
{
	search_next_round(search, 0, DT_NOBEGIN);
	search->refusals = 0;
	search->wanted = false;
	search->waits_at.agent_id = NULL;
}

bool
search_waits_at(const Search *search, const TargetKey *target)
{
	return search->waits_at.agent_id != NULL && strcmp(search->waits_at.agent_id, target->agent_id) == 0 &&
		strcmp(search->waits_at.runtime_compatibility_id, target->runtime_compatibility_id) == 0 &&
		strcmp(search->waits_at.placement, target->placement) == 0;
}

static bool
same_names(char **a, int na, char **b, int nb)
{
	if (na != nb)
		return false;
	for (int i = 0; i < na; i++)
	{
		if (strcmp(a[i], b[i]) != 0)
			return false;
	}
	return true;
}

bool
search_wait(Search *search, const TargetKey *target, char **requires, int nrequires, TimestampTz now)
{
	if (target == NULL ? search->waits_at.agent_id == NULL :
		search_waits_at(search, target) && same_names(search->requires, search->nrequires, requires, nrequires))
		return false;
	if (target == NULL)
		search->waits_at.agent_id = NULL;
	else
	{
		search->waits_at = *target;
		search->waits_since = now;
		search->requires = requires;
		search->nrequires = nrequires;
	}
	search->changed = true;
	return true;
}

void
search_note(Search *search, const char *outcome, TimestampTz now)
{
	if (search->outcome != NULL && strcmp(search->outcome, outcome) == 0)
		return;
	search->outcome = outcome;
	search->outcome_at = now;
	search->changed = true;
}

int64
search_backoff(int64 base_ms, int64 max_ms, int rounds)
{
	return decide_backoff(base_ms, max_ms, rounds - 1);
}

int64
search_jitter(int64 ms, double random)
{
	return Max(ms / 2 + (int64) ((ms - ms / 2) * random), 1);
}

/*
 * plan.c
 *		Saved plans of our own SQL, and the identity they run under.
 */
#include "postgres.h"

#include "access/xact.h"
#include "jit/jit.h"
#include "miscadmin.h"
#include "optimizer/cost.h"
#include "optimizer/plancat.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"

#define LARGE_TUPLES	100000
#define LARGE_PAGES		2000

static get_relation_info_hook_type next_hook = NULL;
static bool planning = false;	/* a statement of ours */

/*
 * While a table is small all indexes that begin with the same column cost the same,
 * and a plan that has taken the wrong one reads a tenant as a whole when it is large.
 */
static void
plan_for_large(PlannerInfo *root, Oid relation, bool inhparent, RelOptInfo *rel)
{
	ListCell   *cell;

	if (next_hook != NULL)
		next_hook(root, relation, inhparent, rel);
	if (!planning || inhparent)
		return;
	rel->tuples = Max(rel->tuples, LARGE_TUPLES);
	rel->pages = Max(rel->pages, LARGE_PAGES);
	foreach(cell, rel->indexlist)
	{
		IndexOptInfo *index = lfirst(cell);

		index->tuples = Max(index->tuples, LARGE_TUPLES);
		index->pages = Max(index->pages, LARGE_PAGES / 4);
	}
}

void
plan_init(void)
{
	next_hook = get_relation_info_hook;
	get_relation_info_hook = plan_for_large;
}

void
sql_begin(SqlScope *scope)
{
	scope->outer = CurrentMemoryContext;
	GetUserIdAndSecContext(&scope->userid, &scope->context);
	SPI_connect();
	SetUserIdAndSecContext(install_get()->owner,
						   scope->context | SECURITY_LOCAL_USERID_CHANGE);
}

void
sql_end(SqlScope *scope)
{
	SetUserIdAndSecContext(scope->userid, scope->context);
	SPI_finish();
}

static void
sql_prepare(SqlPlan *plan)
{
	Oid			schema = install_get()->schema;

	if (plan->plan != NULL && plan->schema == schema)
		return;
	if (plan->plan != NULL)
	{
		SPI_freeplan(plan->plan);
		plan->plan = NULL;
	}
	plan->plan = SPI_prepare(plan->text, plan->nargs, plan->types);
	if (plan->plan == NULL || SPI_keepplan(plan->plan) != 0)
		elog(ERROR, "could not prepare \"%s\": %s", plan->text, SPI_result_code_string(SPI_result));
	plan->schema = schema;
}

static uint64
sql_execute(SqlPlan *plan, Datum *values, const char *nulls, Snapshot snapshot)
{
	volatile int code = 0;
	bool		outer = planning;
	bool		seqscan = enable_seqscan;
	bool		jit = jit_enabled;

	sql_prepare(plan);

	/*
	 * Whatever has an index is read by it: a plan that was made while a table was
	 * small would scan what an old snapshot keeps in it later.  A table without
	 * one is scanned all the same, at a cost that would have the plan compiled,
	 * for a second and more.
	 */
	planning = true;
	enable_seqscan = false;
	jit_enabled = false;
	PG_TRY();
	{
		code = SPI_execute_snapshot(plan->plan, values, nulls, snapshot, InvalidSnapshot, false, true, 0);
	}
	PG_FINALLY();
	{
		planning = outer;
		enable_seqscan = seqscan;
		jit_enabled = jit;
	}
	PG_END_TRY();
	if (code < 0)
		elog(ERROR, "could not run \"%s\": %s", plan->text, SPI_result_code_string(code));
	return SPI_processed;
}

uint64
sql_run(SqlPlan *plan, Datum *values, const char *nulls)
{
	return sql_execute(plan, values, nulls, InvalidSnapshot);
}

uint64
sql_run_latest(SqlPlan *plan, Datum *values, const char *nulls)
{
	uint64		rows;

	CommandCounterIncrement();
	PushActiveSnapshot(GetLatestSnapshot());
	rows = sql_execute(plan, values, nulls, GetActiveSnapshot());
	PopActiveSnapshot();
	return rows;
}

uint64
sql_run_snapshot(SqlPlan *plan, Datum *values, const char *nulls, Snapshot snapshot)
{
	return sql_execute(plan, values, nulls, snapshot);
}

uint64
sql_do(SqlPlan *plan, Datum *values, const char *nulls)
{
	SqlScope	scope;
	uint64		rows;

	sql_begin(&scope);
	rows = sql_run_latest(plan, values, nulls);
	sql_end(&scope);
	return rows;
}

Datum
sql_ask(SqlPlan *plan, Datum *values)
{
	SqlScope	scope;
	Datum		value;

	sql_begin(&scope);
	sql_run_latest(plan, values, NULL);
	value = sql_value(0, 1, NULL);
	sql_end(&scope);
	return value;
}

TimestampTz
sql_instant(SqlPlan *plan, Datum *values, TimestampTz none)
{
	SqlScope	scope;
	bool		isnull = true;
	Datum		value = (Datum) 0;

	sql_begin(&scope);
	if (sql_run_latest(plan, values, NULL) > 0)
		value = sql_value(0, 1, &isnull);
	sql_end(&scope);
	return isnull ? none : DatumGetTimestampTz(value);
}

Datum
sql_value(int row, int column, bool *isnull)
{
	bool		null;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column, &null);

	if (isnull != NULL)
		*isnull = null;
	else if (null)
		elog(ERROR, "unexpected null in column %d", column);
	return value;
}

char *
sql_text(int row, int column, MemoryContext context)
{
	bool		isnull;
	Datum		value = sql_value(row, column, &isnull);

	return isnull ? NULL : MemoryContextStrdup(context, TextDatumGetCString(value));
}

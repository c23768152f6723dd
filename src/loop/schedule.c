/*
 * schedule.c
 *		schedule_loops(): jobs of pg_cron that call run_loop().
 *
 * For servers where pg_cron is there and we cannot be preloaded.  One job for
 * each loop with a function, in the name of its owner, each minute.  Our SQL
 * calls pg_cron's functions, so it first asks whether those of that name are
 * the extension's.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"
#include "loop/schedule.h"

#define OUR_JOBS \
	" FROM cron.job j WHERE j.database::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.current_database()::pg_catalog.text" \
	" AND pg_catalog.left(j.jobname::pg_catalog.text, 11) OPERATOR(pg_catalog.=) 'reconcile: '"

enum
{
	PLAN_IS_PG_CRON,
	PLAN_SCHEDULE,
	PLAN_UNSCHEDULE_STALE,
	PLAN_UNSCHEDULE
};

static SqlPlan plans[] = {
	[PLAN_IS_PG_CRON] = {
		"SELECT 1 FROM pg_catalog.pg_extension x JOIN pg_catalog.pg_depend d"
		" ON d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
		" AND d.refobjid OPERATOR(pg_catalog.=) x.oid"
		" AND d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass"
		" AND d.deptype OPERATOR(pg_catalog.=) 'e'"
		" WHERE x.extname OPERATOR(pg_catalog.=) 'pg_cron' AND d.objid OPERATOR(pg_catalog.=)"
		" pg_catalog.to_regprocedure('cron.schedule_in_database(text,text,text,text,text,boolean)')::pg_catalog.oid",
		0, {0}
	},
	/* the same name and user: pg_cron replaces the job */
	[PLAN_SCHEDULE] = {
		"SELECT cron.schedule_in_database(pg_catalog.concat('reconcile: ', l.loop_name), '* * * * *',"
		" pg_catalog.format('CALL reconcile.run_loop(%L)', l.loop_name),"
		" pg_catalog.current_database()::pg_catalog.text, r.rolname::pg_catalog.text, true)"
		" FROM reconcile.loop l JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) l.owner::pg_catalog.oid"
		" WHERE l.reconciler IS NOT NULL OR l.lister IS NOT NULL",
		0, {0}
	},
	[PLAN_UNSCHEDULE_STALE] = {
		"SELECT cron.unschedule(j.jobid)" OUR_JOBS
		" AND NOT EXISTS (SELECT FROM reconcile.loop l"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) l.owner::pg_catalog.oid"
		" WHERE j.jobname::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.concat('reconcile: ', l.loop_name)"
		" AND j.username::pg_catalog.text OPERATOR(pg_catalog.=) r.rolname::pg_catalog.text"
		" AND (l.reconciler IS NOT NULL OR l.lister IS NOT NULL))",
		0, {0}
	},
	[PLAN_UNSCHEDULE] = {
		"SELECT cron.unschedule(j.jobid)" OUR_JOBS
		" AND ($1 IS NULL OR j.jobname::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.concat('reconcile: ', $1))",
		1, {TEXTOID}
	}
};

/* Is pg_cron's library in this server?  A setting of it alone is a placeholder. */
static bool
is_loaded(void)
{
	return GetConfigOption("cron.database_name", true, false) != NULL &&
		(GetConfigOptionFlags("cron.database_name", true) & GUC_CUSTOM_PLACEHOLDER) == 0;
}

void
schedule_require_administrator(const char *function)
{
	if (!superuser() && GetUserId() != install_get()->owner)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for %s()", function),
				 errdetail("The jobs are those of the loops' owners."),
				 errhint("Only a superuser or the owner of the schema \"reconcile\" may.")));
}

void
schedule_require_pg_cron(void)
{
	if (!is_loaded())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("pg_cron is not loaded"),
				 errhint("Set shared_preload_libraries = 'pg_cron' and restart.")));
	if (sql_run_latest(&plans[PLAN_IS_PG_CRON], NULL, NULL) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"pg_cron\", 1.4 or later, is not in this database"),
				 errhint("Run CREATE EXTENSION pg_cron here; the one database that can have it is that of cron.database_name, now \"%s\".",
						 GetConfigOption("cron.database_name", true, false))));
}

static int
unschedule(const char *loop_name)
{
	Datum		value = loop_name != NULL ? CStringGetTextDatum(loop_name) : (Datum) 0;

	return (int) sql_run_latest(&plans[PLAN_UNSCHEDULE], &value, loop_name != NULL ? " " : "n");
}

PG_FUNCTION_INFO_V1(reconcile_schedule_loops);
Datum
reconcile_schedule_loops(PG_FUNCTION_ARGS)
{
	SqlScope	scope;
	int			n;

	require_writable("schedule_loops");
	schedule_require_administrator("schedule_loops");
	sql_begin(&scope);
	schedule_require_pg_cron();
	(void) sql_run_latest(&plans[PLAN_UNSCHEDULE_STALE], NULL, NULL);
	n = (int) sql_run_latest(&plans[PLAN_SCHEDULE], NULL, NULL);
	sql_end(&scope);
	PG_RETURN_INT32(n);
}

PG_FUNCTION_INFO_V1(reconcile_unschedule_loops);
Datum
reconcile_unschedule_loops(PG_FUNCTION_ARGS)
{
	SqlScope	scope;
	int			n;

	require_writable("unschedule_loops");
	schedule_require_administrator("unschedule_loops");
	sql_begin(&scope);
	schedule_require_pg_cron();
	n = unschedule(NULL);
	sql_end(&scope);
	PG_RETURN_INT32(n);
}

void
schedule_drop(const char *loop_name)
{
	SqlScope	scope;

	if (!is_loaded())
		return;
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_IS_PG_CRON], NULL, NULL) > 0)
		(void) unschedule(loop_name);
	sql_end(&scope);
}

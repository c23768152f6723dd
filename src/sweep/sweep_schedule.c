/*
 * sweep_schedule.c
 *		schedule_sweeps(): the sweeps as jobs of pg_cron.
 *
 * They run in the name of the owner of the loop "placement_sweeps", which is paused
 * meanwhile.  Who resumes it has both, which is harmless: of one sweep only one is at
 * work at a time.  pg_cron before 1.5 knows no seconds: it calls each minute.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "core/errors.h"
#include "core/plan.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "placement/marks.h"
#include "placement/settings.h"

#define JOB_NAMES	"reconcile sweep: "

enum
{
	PLAN_VERSION,
	PLAN_SCHEDULE,
	PLAN_UNSCHEDULE
};

static SqlPlan plans[] = {
	[PLAN_VERSION] = {
		"SELECT x.extversion FROM pg_catalog.pg_extension x WHERE x.extname OPERATOR(pg_catalog.=) 'pg_cron'", 0, {0}
	},
	/* the same name and user: pg_cron replaces the job */
	[PLAN_SCHEDULE] = {
		"SELECT cron.schedule_in_database('" JOB_NAMES "' OPERATOR(pg_catalog.||) $1, $2,"
		" 'SELECT reconcile.sweep_' OPERATOR(pg_catalog.||) $1 OPERATOR(pg_catalog.||) '()',"
		" pg_catalog.current_database()::pg_catalog.text, $3, true)",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_UNSCHEDULE] = {
		"SELECT cron.unschedule(j.jobid) FROM cron.job j"
		" WHERE j.database::pg_catalog.text OPERATOR(pg_catalog.=) pg_catalog.current_database()::pg_catalog.text"
		" AND pg_catalog.starts_with(j.jobname::pg_catalog.text, '" JOB_NAMES "')"
		" AND ($1 IS NULL OR j.username::pg_catalog.text OPERATOR(pg_catalog.<>) $1)",
		1, {TEXTOID}
	}
};

static const char *const sweeps[] = {SWEEP_PENDING, SWEEP_HOST_TARGETS, SWEEP_DEADLINES, SWEEP_OFFERS};

/* Within sql_begin(). */
static bool
knows_seconds(void)
{
	int			major = 0;
	int			minor = 0;

	if (sql_run_latest(&plans[PLAN_VERSION], NULL, NULL) > 0)
		(void) sscanf(TextDatumGetCString(sql_value(0, 1, NULL)), "%d.%d", &major, &minor);
	return major > 1 || (major == 1 && minor >= 5);
}

/* The interval of the sweeps, as near as pg_cron can: it takes 1 to 59 seconds. */
static const char *
job_schedule(void)
{
	PlacementSettings settings;
	int64		seconds;

	placement_settings(&settings);
	seconds = (settings.interval_ms + 999) / 1000;
	return seconds < 60 && knows_seconds() ? psprintf("%d seconds", (int) seconds) : "* * * * *";
}

/* Those of another owner than "but"; NULL: all. */
static int
unschedule(const char *but)
{
	Datum		value = but != NULL ? CStringGetTextDatum(but) : (Datum) 0;

	return (int) sql_run_latest(&plans[PLAN_UNSCHEDULE], &value, but != NULL ? " " : "n");
}

PG_FUNCTION_INFO_V1(reconcile_schedule_sweeps);
Datum
reconcile_schedule_sweeps(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	SqlScope	scope;
	char	   *owner;
	Datum		values[3];

	require_writable("schedule_sweeps");
	schedule_require_administrator("schedule_sweeps");
	if (!loop_read(PLACEMENT_SWEEPS_LOOP, &rules))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no loop \"%s\"", PLACEMENT_SWEEPS_LOOP),
				 errdetail("The jobs are its owner's."),
				 errhint("Make it with reconcile.set_placement('{}').")));
	owner = GetUserNameFromId(rules.owner, false);
	sql_begin(&scope);
	schedule_require_pg_cron();
	(void) unschedule(owner);
	values[1] = CStringGetTextDatum(job_schedule());
	values[2] = CStringGetTextDatum(owner);
	for (int i = 0; i < lengthof(sweeps); i++)
	{
		values[0] = CStringGetTextDatum(sweeps[i]);
		(void) sql_run_latest(&plans[PLAN_SCHEDULE], values, NULL);
	}
	sql_end(&scope);
	loop_pause(PLACEMENT_SWEEPS_LOOP);
	PG_RETURN_INT32(lengthof(sweeps));
}

PG_FUNCTION_INFO_V1(reconcile_unschedule_sweeps);
Datum
reconcile_unschedule_sweeps(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	SqlScope	scope;
	int			n;

	require_writable("unschedule_sweeps");
	schedule_require_administrator("unschedule_sweeps");
	sql_begin(&scope);
	schedule_require_pg_cron();
	n = unschedule(NULL);
	sql_end(&scope);
	if (n > 0 && loop_read(PLACEMENT_SWEEPS_LOOP, &rules))
	{
		loop_resume(&rules);
		sweep_mark_all();
	}
	PG_RETURN_INT32(n);
}

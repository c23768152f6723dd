/*
 * adopt.c
 *		Gives loops the home where they are.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/home.h"
#include "core/plan.h"
#include "core/wake.h"
#include "lease/incarnation.h"
#include "loop/adopt.h"
#include "loop/idset.h"
#include "loop/mark.h"
#include "loop/remember.h"

/* A resync revives nobody, and a claim that stands is waited for. */
static void
mark_resync(const LoopRules *rules)
{
	PushActiveSnapshot(GetLatestSnapshot());
	if (rules->lister[0] != '\0' || rules->resync_every_ms >= 0)
		mark_insert(rules->loop_name, "", MARK_RESYNC, clock_now(), true, NULL);
	else
	{
		IdSet		ids;

		idset_init(&ids, 0);
		loop_remembered(rules->loop_name, &ids);
		if (ids.n > 0)
			mark_insert_many(rules->loop_name, ids.n, ids.ids, MARK_RESYNC, NULL);
	}
	PopActiveSnapshot();
}

void
loop_adopt(const LoopRules *rules)
{
	static SqlPlan plan = {
		"UPDATE reconcile.loop SET home = $2, timeline = $3 WHERE loop_name OPERATOR(pg_catalog.=) $1"
		" AND (home OPERATOR(pg_catalog.<>) $2 OR timeline OPERATOR(pg_catalog.<>) $3)",
		3, {TEXTOID, TEXTOID, INT4OID}
	};
	SqlScope	scope;
	Datum		values[3];
	bool		adopted;

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(rules->loop_name);
	values[1] = CStringGetTextDatum(home_here()->place);
	values[2] = Int32GetDatum(home_here()->timeline);
	adopted = sql_run_latest(&plan, values, NULL) > 0;
	sql_end(&scope);
	if (!adopted)
		return;
	mark_resync(rules);
	wake_reload();
}

/* What was done in the past that a bump gives up is not known either. */
static void
resync_all(void)
{
	LoopRules  *loops;
	int			n = loop_read_all(InvalidOid, &loops);

	for (int i = 0; i < n; i++)
	{
		if (!loops[i].foreign)
			mark_resync(&loops[i]);
	}
}

void
adopt_init(void)
{
	incarnation_bumped_hook = resync_all;
}

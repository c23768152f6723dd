/*
 * health.c
 *		The view "health": can the extension do its work here?
 *
 * Each check gives one row when all is well, and one for each finding when it is
 * not, with what to do.  A check reads shared memory, catalogues and tables that
 * have a row for each loop, lease or prepared transaction: never one that grows
 * with the work.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/duration.h"
#include "core/guc.h"
#include "core/install.h"
#include "core/plan.h"
#include "fence/fence.h"
#include "journal/lifecycle.h"
#include "lease/incarnation.h"
#include "loop/mark.h"
#include "observe/sight.h"
#include "placement/placement_sight.h"

#define OVERDUE_WARN_S		60
#define OVERDUE_CRIT_S		600
#define LEADERLESS_WARN_S	5		/* past the end of the last term */
#define ROTATION_WARN_S		300
#define OVERFLOW_RECENT_S	600
#define PREPARED_WARN_S		60
#define CRASHED_MAX			1000	/* entities that are looked at */
#define CRASHED_NAMED		3		/* of a loop */

typedef struct Health
{
	ReturnSetInfo *rsinfo;
	const char *check;			/* in progress */
	int			findings;		/* of it */
	bool		untold;			/* it is not for the caller: nothing is said, "ok" neither */
	bool		preloaded;
	bool		standby;
	EngineFacts facts;
	Seen	   *seen;
	int			nseen;
	int			nloops;			/* of those */
	TimestampTz now;
} Health;

typedef struct Check
{
	const char *name;
	void		(*run) (Health *health);
	const char *ok;				/* what is said when it found nothing */
} Check;

static void
put(Health *health, const char *status, const char *detail, const char *hint)
{
	Datum		values[4];
	bool		nulls[4] = {false};

	values[0] = CStringGetTextDatum(health->check);
	values[1] = CStringGetTextDatum(status);
	values[2] = CStringGetTextDatum(detail);
	nulls[3] = hint == NULL;
	values[3] = hint != NULL ? CStringGetTextDatum(hint) : (Datum) 0;
	tuplestore_putvalues(health->rsinfo->setResult, health->rsinfo->setDesc, values, nulls);
}

static void
warn(Health *health, char *detail, const char *hint)
{
	health->findings++;
	put(health, "warn", detail, hint);
}

static void
crit(Health *health, char *detail, const char *hint)
{
	health->findings++;
	put(health, "crit", detail, hint);
}

static int64
seconds_since(const Health *health, TimestampTz then)
{
	return Max(health->now - then, 0) / 1000000;
}

#define for_each_loop(health, s) \
	for (const Seen *s = (health)->seen; s < (health)->seen + (health)->nseen; s++) \
		if (s->is_loop)

/* ----------------------------------------------------------------
 * The engine
 * ----------------------------------------------------------------
 */

static void
check_preload(Health *health)
{
	if (!health->preloaded)
		warn(health, pstrdup("the library is not preloaded: no worker runs the loops, and nothing is counted"),
			 "Add shared_preload_libraries = 'reconcile' to postgresql.conf and restart the server, or call reconcile.run_loop() now and then.");
}

static void
check_version(Health *health)
{
	char	   *version = install_unserved();

	if (version != NULL)
		crit(health, psprintf(INSTALL_UNSERVED_MSG, RECONCILE_VERSION, version), INSTALL_UNSERVED_HINT);
}

static void
check_dispatcher(Health *health)
{
	const EngineFacts *facts = &health->facts;

	if (!health->preloaded || health->nloops == 0 || facts->dispatching)
		return;
	if (health->standby)
		warn(health, pstrdup("this is a standby: nothing runs here until it is promoted"), NULL);
	else if (facts->blocked_by != 0)
		warn(health, psprintf("process %d keeps the workers out of this database for a command", facts->blocked_by), NULL);
	else if (facts->failures > 0)
		crit(health, psprintf("no dispatcher runs for this database; %d have failed in a row", facts->failures),
			 "Look for its errors in the server log.");
	else if (facts->known)
		warn(health, pstrdup("the dispatcher of this database is about to start"), NULL);
	else
		crit(health, pstrdup("no dispatcher runs for this database"),
			 "If reconcile.databases is set, it must name this database; there is room for 32 databases, and max_worker_processes must allow for one more.");
}

static void
check_workers(Health *health)
{
	const EngineFacts *facts = &health->facts;

	if (facts->slot_wanted && facts->slots_busy + facts->slots_idle >= facts->slots)
		warn(health, psprintf("all %d executors of the server are taken, and this database waits for one", facts->slots),
			 "Raise reconcile.max_workers, or make the runs shorter.");
}

static void
check_settings(Health *health)
{
	const EngineFacts *facts = &health->facts;
	int			needed = 1 + Max(facts->databases, 1) + facts->slots;

	if (health->preloaded && max_worker_processes < needed)
		warn(health, psprintf("max_worker_processes is %d; the launcher, %d dispatchers and %d executors need %d, and other workers need theirs",
							  max_worker_processes, Max(facts->databases, 1), facts->slots, needed),
			 "Raise max_worker_processes, or lower reconcile.max_workers.");
}

static void
check_ring(Health *health)
{
	const EngineFacts *facts = &health->facts;

	if (facts->overflowed_at != 0 && seconds_since(health, facts->overflowed_at) < OVERFLOW_RECENT_S)
		warn(health, psprintf("the ring of this database has overflowed, " INT64_FORMAT " s ago the last time (" UINT64_FORMAT " messages so far): all marks were read from the tables",
							  seconds_since(health, facts->overflowed_at), facts->overflows),
			 "Nothing is lost. If it goes on, raise reconcile.ring_size.");
}

static void
check_statistics(Health *health)
{
	if (health->facts.uncounted > 0)
		warn(health, psprintf(UINT64_FORMAT " events were not counted: the server has more than %d loops and leases",
							  health->facts.uncounted, STATS_SLOTS),
			 "Metrics are incomplete; the work itself is not affected.");
}

/* ----------------------------------------------------------------
 * Loops
 * ----------------------------------------------------------------
 */

static const char *
function_trouble(const LoopRules *rules, FunctionKind which)
{
	const char *signature = loop_function(rules, which);
	Oid			function;

	if (signature[0] == '\0')
		return NULL;
	function = function_resolve(which, signature);
	if (!OidIsValid(function))
		return psprintf("its function %s is gone, or has another type by now", signature);
	switch (function_problem(function, rules->owner))
	{
		case FUNCTION_OK:
			break;
		case FUNCTION_GONE:
			return psprintf("its function %s is gone", signature);
		case FUNCTION_NO_EXECUTE:
			return psprintf("its owner may not execute %s", signature);
		case FUNCTION_FOREIGN:
			return psprintf("its function %s belongs to neither its owner nor a superuser", signature);
	}
	return NULL;
}

static void
check_loops(Health *health)
{
	for_each_loop(health, seen)
	{
		LoopRules	rules;
		const char *trouble;

		if (!seen->enabled || !loop_read(seen->reconciler_id, &rules))
			continue;
		trouble = loop_owner_problem(rules.owner);
		if (trouble == NULL)
			trouble = function_trouble(&rules, FUNCTION_RECONCILER);
		if (trouble == NULL)
			trouble = function_trouble(&rules, FUNCTION_LISTER);
		if (trouble != NULL)
			crit(health, psprintf("loop \"%s\" cannot run: %s", seen->reconciler_id, trouble),
				 "Put that right, or change the loop with reconcile.alter_loop().");
		else if (seen->current && seen->stats.gauges.suspended_until > health->now)
			warn(health, psprintf("loop \"%s\" is suspended after its function could not be called", seen->reconciler_id),
				 "It is tried again within a minute; reconcile.alter_loop() has it tried at once.");
	}
}

static void
check_leaders(Health *health)
{
	for_each_loop(health, seen)
	{
		if (!health->preloaded || health->standby || !seen->leased || seen->outside || !seen->enabled ||
			seen->foreign || sight_leads(seen, health->now))
			continue;
		/* a term has just ended, or the loop was just made */
		if (seen->has_term && seconds_since(health, seen->expires_at) < LEADERLESS_WARN_S)
			continue;
		if (seen->has_term)
			crit(health, psprintf("nobody has held the lease of loop \"%s\" for " INT64_FORMAT " s",
								  seen->reconciler_id, seconds_since(health, seen->expires_at)),
				 "Nothing of it runs. Look for errors of the dispatcher in the server log, and at the check \"fences\".");
		else
			warn(health, psprintf("the lease of loop \"%s\" was never granted", seen->reconciler_id),
				 "Nothing of it runs. Look for errors of the dispatcher in the server log.");
	}
}

static void
check_overdue(Health *health)
{
	for_each_loop(health, seen)
	{
		int64		age;
		char	   *detail;

		if (!seen->current || !seen->enabled || seen->paused || seen->stats.gauges.oldest_due_at == 0)
			continue;
		age = seconds_since(health, seen->stats.gauges.oldest_due_at);
		if (age < OVERDUE_WARN_S)
			continue;
		detail = psprintf("an entity of loop \"%s\" has been due for " INT64_FORMAT " s, and " INT64_FORMAT " are ready",
						  seen->reconciler_id, age, seen->stats.gauges.ready);
		(age < OVERDUE_CRIT_S ? warn : crit) (health, detail,
											  "More workers, a higher concurrency, or shorter runs; see also the other checks, and reconcile.runs.");
	}
}

static void
check_dead(Health *health)
{
	for_each_loop(health, seen)
	{
		int64		dead = sight_dead(seen);

		if (dead > 0)
			warn(health, psprintf(INT64_FORMAT " entities of loop \"%s\" are dead", dead, seen->reconciler_id),
				 "See reconcile.dead_letters; reconcile.revive() or a fresh trigger runs one again.");
	}
}

/* Is it among the loops that the caller may observe? */
static bool
may_see(const Health *health, const char *loop_name)
{
	for_each_loop(health, seen)
	{
		if (strcmp(seen->reconciler_id, loop_name) == 0)
			return true;
	}
	return false;
}

/* Those of one loop, and whether its resync is among them. */
static void
tell_crashed(Health *health, const char *loop_name, int n, const char *ids, bool resync)
{
	LoopRules	rules;

	if (!may_see(health, loop_name))
		return;
	warn(health, psprintf("%d entities of loop \"%s\" are parked, as their runs ended their process or crashed the server: %s%s",
						  n, loop_name, ids, n > CRASHED_NAMED ? ", ..." : ""),
		 "Look at their last_error and at the server log, put the function right, and call reconcile.revive(): nothing else runs them again.");
	if (resync && loop_read(loop_name, &rules) && loop_is_resync(&rules, ""))
		crit(health, psprintf("loop \"%s\" lists nothing any more: its lister ended its process or crashed the server", loop_name),
			 psprintf("Put %s right, and call reconcile.revive('%s', '').", rules.lister, loop_name));
}

static void
check_crashes(Health *health)
{
	static SqlPlan plan = {
		"SELECT e.loop_name, e.entity_id FROM reconcile.entity e"
		" WHERE e.crashes OPERATOR(pg_catalog.>) 0 AND e.died_of OPERATOR(pg_catalog.=) 'crash'"
		" ORDER BY e.loop_name, e.entity_id LIMIT $1", 1, {INT8OID}
	};
	SqlScope	scope;
	Datum		most = Int64GetDatum(CRASHED_MAX);
	uint64		rows;
	char	   *loop_name = NULL;
	StringInfoData ids;
	int			n = 0;
	bool		resync = false;

	initStringInfo(&ids);
	sql_begin(&scope);
	rows = sql_run(&plan, &most, NULL);
	for (uint64 i = 0; i <= rows; i++)
	{
		char	   *next = i < rows ? TextDatumGetCString(sql_value(i, 1, NULL)) : NULL;
		char	   *id = i < rows ? TextDatumGetCString(sql_value(i, 2, NULL)) : NULL;

		if (loop_name != NULL && (next == NULL || strcmp(next, loop_name) != 0))
		{
			tell_crashed(health, loop_name, n, ids.data, resync);
			resetStringInfo(&ids);
			n = 0;
			resync = false;
		}
		loop_name = next;
		if (id == NULL)
			break;
		if (n++ < CRASHED_NAMED)
			appendStringInfo(&ids, "%s\"%s\"", n > 1 ? ", " : "", id);
		resync |= id[0] == '\0';
	}
	sql_end(&scope);
}

/* Since the server started: who looks hours later is to see it still. */
static void
check_values(Health *health)
{
	for_each_loop(health, seen)
	{
		uint64		bad = seen->stats.tallies[TALLY_BAD_VALUE];

		if (bad > 0)
			warn(health, psprintf(UINT64_FORMAT " statements on tables that loop \"%s\" watches had a value that is no entity id, since the server started",
								  bad, seen->reconciler_id),
				 "An entity id is at most 512 bytes: see the server log. Each such statement marked the empty id instead.");
	}
}

/* A problem without a loop concerns all watches. */
static void
check_watches(Health *health)
{
	static SqlPlan plan = {
		"SELECT p.loop_name, p.relation, p.problem FROM reconcile.watch_problems() p", 0, {0}
	};
	SqlScope	scope;
	uint64		rows;

	sql_begin(&scope);
	rows = sql_run(&plan, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		char	   *loop_name = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		char	   *relation = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);
		char	   *problem = SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 3);

		if (loop_name != NULL && !may_see(health, loop_name))
			continue;
		warn(health, loop_name == NULL ? problem : psprintf("loop \"%s\" on table %s: %s", loop_name, relation, problem),
			 "A change there may trigger nothing: reconcile.watch() makes its triggers anew.");
	}
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * Guarded tables
 * ----------------------------------------------------------------
 */

static char *
copied_value(MemoryContext context, int row, int column)
{
	char	   *value = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column);

	return value != NULL ? MemoryContextStrdup(context, value) : NULL;
}

/* Of an id that was never a loop's or a lease's, too: the right is asked for as the caller. */
static void
check_guards(Health *health)
{
	static SqlPlan plan = {
		"SELECT p.reconciler_id, p.relation, p.problem FROM reconcile.fence_problems() p", 0, {0}
	};
	SqlScope	scope;
	uint64		rows;
	struct Problem
	{
		char	   *reconciler_id;
		char	   *relation;
		char	   *problem;
	}		   *found;

	sql_begin(&scope);
	rows = sql_run(&plan, NULL, NULL);
	found = MemoryContextAlloc(scope.outer, sizeof(*found) * Max(rows, 1));
	for (uint64 i = 0; i < rows; i++)
	{
		found[i].reconciler_id = copied_value(scope.outer, i, 1);
		found[i].relation = copied_value(scope.outer, i, 2);
		found[i].problem = copied_value(scope.outer, i, 3);
	}
	sql_end(&scope);

	for (struct Problem *p = found; p < found + rows; p++)
	{
		if (p->reconciler_id != NULL && !access_allowed(CAP_OBSERVE, p->reconciler_id))
			continue;
		crit(health, p->reconciler_id == NULL ? p->problem :
			 psprintf("lease \"%s\" guards table %s: %s", p->reconciler_id, p->relation, p->problem),
			 "A stale leader may write there, or nobody can: reconcile.attach_fence(), with the arguments that it had, makes the triggers anew.");
	}
}

/* ----------------------------------------------------------------
 * Leases
 * ----------------------------------------------------------------
 */

/* What came from elsewhere, and what was granted in a past that may be lost. */
static void
check_incarnation(Health *health)
{
	Incarnation now;
	int			foreign = 0;

	for_each_loop(health, seen)
		foreign += seen->foreign;
	if (foreign > 0)
		warn(health, psprintf("%d loops came here with a restore, a clone or a subscription, and are paused", foreign),
			 "The original may still run them. When they are to run here, call reconcile.resume_all().");
	incarnation_read(&now);
	if (now.since == 0 && now.floor > 0)
		warn(health, psprintf("%s: all leases that were granted before are void", now.reason),
			 "Nothing needs to be done: the next grant begins another incarnation, whose epochs are higher.");
}

/* Who still uses a term that is over, longer than he may. */
static void
check_fences(Health *health)
{
	for (const Seen *seen = health->seen; seen < health->seen + health->nseen; seen++)
	{
		LOCKTAG		tag;
		VirtualTransactionId *holder;
		int64		overtime_ms;

		if (!seen->has_term || health->now < seen->expires_at)
			continue;
		overtime_ms = (health->now - seen->expires_at) / 1000;
		lock_tag(&tag, LOCK_KIND_FENCE, "", seen->reconciler_id);
		for (holder = GetLockConflicts(&tag, ExclusiveLock, NULL); VirtualTransactionIdIsValid(*holder); holder++)
		{
			int			pid = compat_vxid_pid(holder);

			if (pid == 0 || pid == MyProcPid)
				continue;
			if (guc_fence_grace >= 0 && overtime_ms > guc_fence_grace + 5000)
				crit(health, psprintf("process %d uses the term of lease \"%s\" that ended " INT64_FORMAT " s ago, and does not end",
									  pid, seen->reconciler_id, overtime_ms / 1000),
					 "Nobody is granted the lease before it is gone. It takes no signal: look at it with the means of the operating system.");
			else
				warn(health, psprintf("process %d still uses the term of lease \"%s\", which ended " INT64_FORMAT " s ago",
									  pid, seen->reconciler_id, overtime_ms / 1000),
					 "The next term begins when its transaction ends; after reconcile.fence_grace its session is ended.");
		}
	}
}

/* ----------------------------------------------------------------
 * Commands
 * ----------------------------------------------------------------
 */

static char *
count_text(int64 n)
{
	return n > COMMANDS_MAX ? psprintf("more than %d", COMMANDS_MAX) : psprintf(INT64_FORMAT, n);
}

/* Of those that are unknown and not resolved; as command_overdue(). */
static int64
count_unknown(void)
{
	static SqlPlan plan = {
		"SELECT FROM reconcile.command c WHERE c.status OPERATOR(pg_catalog.=) 'unknown'"
		" AND NOT EXISTS (SELECT FROM reconcile.command_resolution r WHERE r.tenant_id OPERATOR(pg_catalog.=) c.tenant_id"
		" AND r.command_id OPERATOR(pg_catalog.=) c.command_id) LIMIT $1", 1, {INT4OID}
	};
	SqlScope	scope;
	Datum		max = Int32GetDatum(COMMANDS_MAX + 1);
	int64		n;

	sql_begin(&scope);
	n = sql_run(&plan, &max, NULL);
	sql_end(&scope);
	return n;
}

/* Of all tenants together: for who may observe all. */
static void
check_commands(Health *health)
{
	int64		n;

	if (!access_allowed(CAP_OBSERVE, ""))
	{
		health->untold = true;
		return;
	}
	n = command_overdue(clock_add_ms(health->now, -COMMAND_OVERDUE_S * INT64CONST(1000)), COMMANDS_MAX);
	if (n > 0)
		warn(health, psprintf("the time of %s commands has been over for a minute, and nothing has settled them", count_text(n)),
			 "Call reconcile.sweep_commands() every few seconds, by pg_cron or a loop; if it is called, look in the server log for what it could not settle.");
	n = count_unknown();
	if (n > 0)
		warn(health, psprintf("the outcome of %s commands is unknown, and nobody has resolved them", count_text(n)),
			 "See reconcile.commands WHERE effective_status = 'unknown'; look at their targets, and call reconcile.resolve_command().");
}

/* The same of placement. */
static void
check_placement(Health *health)
{
	TimestampTz before = clock_add_ms(health->now, -PLACEMENT_OVERDUE_S * INT64CONST(1000));
	int64		n;

	if (!access_allowed(CAP_OBSERVE, ""))
	{
		health->untold = true;
		return;
	}
	n = placement_waiting(before, PLACEMENT_MAX);
	if (n > 0)
		warn(health, psprintf("no host has had room for %s sessions for a minute", count_text(n)),
			 "See reconcile.sessions WHERE placement_outcome = 'no_capacity', and reconcile.explain_placement() of one of them.");
	n = placement_offers_overdue(before, PLACEMENT_MAX);
	if (n > 0)
		warn(health, psprintf("the time of %s offers has been over for a minute, and nothing has ended them", count_text(n)),
			 "Have the loops \"placement\" and \"placement_sweeps\" run, or the sweeps called by pg_cron.");
}

/* ----------------------------------------------------------------
 * Marks
 * ----------------------------------------------------------------
 */

static void
check_prepared(Health *health)
{
	static SqlPlan plan = {
		"SELECT DISTINCT p.gid, p.prepared FROM pg_catalog.pg_locks l"
		" JOIN pg_catalog.pg_prepared_xacts p ON p.transaction OPERATOR(pg_catalog.=) ("
		" SELECT t.transactionid FROM pg_catalog.pg_locks t WHERE t.virtualtransaction OPERATOR(pg_catalog.=) l.virtualtransaction"
		" AND t.pid IS NULL AND t.locktype OPERATOR(pg_catalog.=) 'transactionid' LIMIT 1)"
		" WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'relation'"
		" AND p.database OPERATOR(pg_catalog.=) pg_catalog.current_database()"
		" AND l.relation OPERATOR(pg_catalog.=) ANY (ARRAY['reconcile.mark_0', 'reconcile.mark_1', 'reconcile.mark_2',"
		" 'reconcile.mark_3', 'reconcile.entity']::pg_catalog.regclass[]::pg_catalog.oid[])", 0, {0}
	};
	SqlScope	scope;
	uint64		rows;

	sql_begin(&scope);
	rows = sql_run(&plan, NULL, NULL);
	for (uint64 i = 0; i < rows; i++)
	{
		char	   *gid = TextDatumGetCString(sql_value(i, 1, NULL));
		int64		age = seconds_since(health, DatumGetTimestampTz(sql_value(i, 2, NULL)));

		if (age >= PREPARED_WARN_S)
			warn(health, psprintf("the prepared transaction \"%s\" has held marks for " INT64_FORMAT " s", gid, age),
				 "What it enqueued waits for it, and all marks are read every 5 s until it is gone: COMMIT PREPARED or ROLLBACK PREPARED.");
	}
	sql_end(&scope);
}

static void
check_segments(Health *health)
{
	static SqlPlan plan = {
		"SELECT pg_catalog.string_agg(DISTINCT l.pid::pg_catalog.text, ', ') FROM pg_catalog.pg_locks l"
		" WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.granted"
		" AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()"
		" AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database d"
		" WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())"
		" AND l.relation OPERATOR(pg_catalog.=) ANY (ARRAY['reconcile.mark_0', 'reconcile.mark_1', 'reconcile.mark_2',"
		" 'reconcile.mark_3']::pg_catalog.regclass[]::pg_catalog.oid[])", 0, {0}
	};
	SqlScope	scope;
	Datum		pids;
	bool		none;
	int64		age;

	if (health->facts.rotating_since == 0)
		return;
	age = seconds_since(health, health->facts.rotating_since);
	if (age < ROTATION_WARN_S)
		return;
	sql_begin(&scope);
	sql_run(&plan, NULL, NULL);
	pids = sql_value(0, 1, &none);
	warn(health, psprintf("a segment of marks has waited " INT64_FORMAT " s to be emptied; processes that use the segments now: %s",
						  age, none ? "none" : TextDatumGetCString(pids)),
		 "The segments grow until it is. An open transaction that uses them, such as a backup's or a prepared one, holds it up.");
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * All
 * ----------------------------------------------------------------
 */

static const Check checks[] = {
	{"preload", check_preload, "the library is preloaded"},
	{"version", check_version, "the library serves the extension's version"},
	{"dispatcher", check_dispatcher, "the dispatcher runs, or there is no work for one"},
	{"workers", check_workers, "no loop of this database waits for a worker's slot"},
	{"settings", check_settings, "the server has room for all worker processes"},
	{"ring", check_ring, "no overflow in the last ten minutes"},
	{"statistics", check_statistics, "all events are counted"},
	{"loops", check_loops, "functions and owners of all loops are there"},
	{"leaders", check_leaders, "every loop with a lease has a leader"},
	{"overdue", check_overdue, "nothing has been due for a minute"},
	{"dead", check_dead, "no entity is dead"},
	{"crashes", check_crashes, "no entity is parked for crashes"},
	{"values", check_values, "all values of watched columns were entity ids"},
	{"watches", check_watches, "all watched tables have their triggers"},
	{"guards", check_guards, "all guarded tables have their triggers"},
	{"incarnation", check_incarnation, "loops and leases are of this server"},
	{"fences", check_fences, "nobody uses a term that is over"},
	{"commands", check_commands, "no command is overdue, and none is unknown"},
	{"placement", check_placement, "no session waits for room, and no offer is overdue"},
	{"prepared", check_prepared, "no prepared transaction has held marks for a minute"},
	{"segments", check_segments, "no segment of marks is held up"}
};

PG_FUNCTION_INFO_V1(reconcile_health_checks);
Datum
reconcile_health_checks(PG_FUNCTION_ARGS)
{
	Health		health = {0};

	InitMaterializedSRF(fcinfo, 0);
	health.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	health.standby = RecoveryInProgress();
	health.preloaded = engine_facts(&health.facts);
	health.now = clock_now();
	/* with tables that we may not know nothing else can be said */
	if (install_find() == NULL)
	{
		health.check = "version";
		check_version(&health);
		return (Datum) 0;
	}
	health.nseen = sight_read(&health.seen);
	for_each_loop(&health, seen)
		health.nloops++;
	for (int i = 0; i < lengthof(checks); i++)
	{
		health.check = checks[i].name;
		health.findings = 0;
		health.untold = false;
		checks[i].run(&health);
		if (health.findings == 0 && !health.untold)
			put(&health, "ok", checks[i].ok, NULL);
	}
	return (Datum) 0;
}

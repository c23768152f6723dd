/*
 * run_loop.c
 *		run_loop(): runs what is due in the caller's session.
 *
 * The same runs as an executor's, one transaction each, where no worker may run
 * or beside workers: the run lock keeps them apart.  It runs only loops that the
 * caller owns and never switches identity, so deferred triggers fire as whoever
 * the session is.  Each transaction is READ COMMITTED and read-write, and has
 * the search path that a new session of the role would have, as an executor's.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/snapmgr.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "core/wake.h"
#include "lease/lease.h"
#include "loop/adopt.h"
#include "loop/compact.h"
#include "loop/due.h"
#include "loop/entity.h"
#include "loop/observed.h"
#include "loop/run.h"

/* One call. */
typedef struct Session
{
	DueSet	   *due;
	LoopRules  *loops;
	int			nloops;
	TimestampTz now;			/* of the start: what comes due later waits for the next call */
	int64		left;			/* runs still allowed */

	/* of the loop in progress */
	char	   *holder_id;
	bool		resynced;		/* of the loop in progress: its lister was called */
	const LoopRules *leased;	/* NULL: no lease held */
	int64		epoch;
	TimestampTz renew_at;
} Session;

static void
transaction_settings(void)
{
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
	(void) set_config_option("search_path", NULL, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

static void
next_transaction(void)
{
	SPI_commit();
	transaction_settings();
}

static void
add_due_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Session    *session = arg;

	for (int i = 0; i < session->nloops; i++)
	{
		if (strcmp(session->loops[i].loop_name, loop_name) == 0)
		{
			due_add(session->due, due_loop(session->due, loop_name), entity_id, ref, session->now);
			return;
		}
	}
}

/* Marks the loops whose ticker is due: with an engine that is its dispatcher's. */
static void
tick(Session *session)
{
	static SqlPlan plan = {
		"UPDATE reconcile.loop SET ticked_at = $2 WHERE loop_name OPERATOR(pg_catalog.=) $1"
		" AND (ticked_at IS NULL OR ticked_at OPERATOR(pg_catalog.<=) $3)",
		3, {TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	};

	if (wake_hook != NULL)
		return;
	for (int i = 0; i < session->nloops; i++)
	{
		const LoopRules *rules = &session->loops[i];
		Datum		values[3];
		TimestampTz now = clock_now();

		if (rules->resync_every_ms < 0 || !rules->enabled || rules->paused)
			continue;
		values[0] = CStringGetTextDatum(rules->loop_name);
		values[1] = TimestampTzGetDatum(now);
		values[2] = TimestampTzGetDatum(clock_add_ms(now, -rules->resync_every_ms));
		if (sql_do(&plan, values, NULL) > 0)
		{
			PushActiveSnapshot(GetTransactionSnapshot());
			mark_insert(rules->loop_name, "", MARK_RESYNC, now, false, NULL);
			PopActiveSnapshot();
		}
	}
	next_transaction();
}

/* As the dispatcher does it, in case there is none. */
static void
adopt(Session *session)
{
	for (int i = 0; i < session->nloops; i++)
	{
		if (!session->loops[i].resync_owed)
			continue;
		loop_adopt(&session->loops[i]);
		next_transaction();
	}
}

static void
find_due(Session *session)
{
	PushActiveSnapshot(GetTransactionSnapshot());
	session->now = clock_now();
	mark_scan_all(GetActiveSnapshot(), add_due_mark, session);
	PopActiveSnapshot();
	next_transaction();
}

/* ----------------------------------------------------------------
 * Lease
 * ----------------------------------------------------------------
 */

static bool
lead(Session *session, const LoopRules *rules)
{
	Lease		lease;
	TimestampTz asked_at = clock_now();
	bool		granted;

	granted = lease_try_acquire(rules->loop_name, session->holder_id, rules->lease_ttl_ms,
								false, &lease) == LEASE_GRANTED;
	next_transaction();
	if (granted)
	{
		session->leased = rules;
		session->epoch = lease.epoch;
		session->renew_at = clock_add_ms(asked_at, rules->lease_ttl_ms / 3);
	}
	return granted;
}

/* Before a run: is the term still ours?  Renews it when a third of it is over. */
static bool
still_leads(Session *session)
{
	const LoopRules *rules = session->leased;
	Lease		lease;
	TimestampTz asked_at = clock_now();
	bool		renewed;

	if (rules == NULL || asked_at < session->renew_at)
		return true;
	renewed = lease_renew(rules->loop_name, session->holder_id, session->epoch, 0, &lease);
	next_transaction();
	session->renew_at = clock_add_ms(asked_at, rules->lease_ttl_ms / 3);
	return renewed;
}

static void
give_back(Session *session)
{
	if (session->leased == NULL)
		return;
	(void) lease_release(session->leased->loop_name, session->holder_id, session->epoch);
	session->leased = NULL;
	next_transaction();
}

/* ----------------------------------------------------------------
 * Runs
 * ----------------------------------------------------------------
 */

/*
 * Commits the run.  What fails at commit (a deferred constraint) has rolled it
 * back, and is booked as its failure.
 */
static void
commit_run(LoopRun *run)
{
	MemoryContext context = CurrentMemoryContext;
	ErrorData  *volatile error = NULL;

	PG_TRY();
	{
		next_transaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	if (error == NULL)
		return;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED && !run_timed_out())
		ReThrowError(error);
	transaction_settings();
	if (run_lock(run->rules->loop_name, run->entity_id))
		run_book_failure(run, error);
	else
		run->outcome = RUN_DROPPED;
	FreeErrorData(error);
	next_transaction();
}

static void
observe(const LoopRun *run, TimestampTz ready_at, TimestampTz started_at)
{
	RunObserved observed = {
		.loop_name = run->rules->loop_name,
		.entity_id = run->entity_id,
		.ready_at = ready_at,
		.started_at = started_at,
		.ended_at = clock_now(),
		.result = run->result,
		.sqlstate = run->sqlstate,
		.attempt = run->attempt,
		.epoch = run->epoch,
		.pid = MyProcPid
	};

	if (run_observed_hook == NULL)
		return;
	run_expected_hook();
	run_observed_hook(&observed);
}

/* May the caller run the loop, as its row says now? */
static bool
is_runnable(const LoopRules *rules)
{
	return rules->enabled && !rules->paused && rules->owner == GetUserId() &&
		(rules->reconciler[0] != '\0' || rules->lister[0] != '\0');
}

/* A resync goes first, once: what it marks is run too. */
static DueEntity *
next_entity(Session *session, DueLoop *loop, const LoopRules *rules)
{
	DueEntity  *resync = NULL;

	if (rules->lister[0] != '\0' && !session->resynced)
		resync = due_find(session->due, loop, "");
	if (resync != NULL && resync->state == DUE_READY)
		return resync;
	return rules->reconciler[0] != '\0' ? due_first(loop) : NULL;
}

/*
 * Runs the loop's oldest due entity, with the options that the loop has now.
 * False: none is left, or the loop cannot go on.
 */
static bool
run_next(Session *session, DueLoop *loop)
{
	LoopRun		run = {0};
	LoopRules	rules;
	MarkRef    *marks;
	int			nmarks;
	DueEntity  *entity;
	bool		resync;

	if (session->left <= 0 || !still_leads(session))
		return false;
	/* first this, then the loop's row: who has paused it since sees us */
	run_show(loop->loop_name);
	if (!loop_read(loop->loop_name, &rules) || !is_runnable(&rules) ||
		loop_leads(&rules) != (session->leased != NULL))
		return false;
	entity = next_entity(session, loop, &rules);
	if (entity == NULL)
		return false;
	due_take(session->due, entity, session->now, PG_INT32_MAX, &marks, &nmarks);

	resync = loop_is_resync(&rules, entity->entity_id);
	run.rules = &rules;
	run.entity_id = entity->entity_id;
	run.marks = marks;
	run.nmarks = nmarks;
	run.holder_id = session->holder_id;
	run.epoch = session->leased != NULL ? session->epoch : 0;
	run.in_session = true;
	TEST_POINT("runner-before-intent");
	/* one that runs elsewhere at this moment is not ours to wait for */
	if (run_lock(rules.loop_name, entity->entity_id))
	{
		TimestampTz started_at = clock_now();

		TEST_POINT("runner-after-intent");
		run_execute(&run);
		TEST_POINT("runner-before-commit");
		commit_run(&run);
		TEST_POINT("runner-after-commit");
		if (run.outcome == RUN_DONE)
		{
			session->left--;
			observe(&run, entity->due_at, started_at);
		}
		if (resync)
		{
			session->resynced = true;
			if (run.outcome == RUN_DONE && run.result == RESULT_SUCCESS)
				find_due(session);
		}
	}
	due_answered(session->due, entity, NULL, session->now);
	pfree(marks);

	if (run.outcome == RUN_NO_FUNCTION)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("loop \"%s\" cannot run: its function \"%s\" is gone, or its owner may not call it",
						rules.loop_name, resync ? rules.lister : rules.reconciler),
				 errhint("Define the function again, or change the loop with reconcile.alter_loop().")));
	return (run.outcome != RUN_NO_FUNCTION || resync) && run.outcome != RUN_NOT_LEADER;
}

static void
run_one_loop(Session *session, const LoopRules *rules)
{
	DueLoop    *loop = due_loop(session->due, rules->loop_name);

	if (!is_runnable(rules) || loop->nready == 0)
		return;
	if (loop_leads(rules) && !lead(session, rules))
		return;
	session->resynced = false;
	while (run_next(session, loop))
		CHECK_FOR_INTERRUPTS();
	/* nothing of this loop is in progress any more, whatever comes next */
	next_transaction();
	give_back(session);
}

/* After an error: nothing of ours may outlive the call. */
static void
clean_up(Session *session)
{
	if (session->leased == NULL)
		return;
	PG_TRY();
	{
		SPI_rollback();
		transaction_settings();
		give_back(session);
	}
	PG_CATCH();
	{
		/* what broke the call keeps us from that too: the lease runs out by itself */
		FlushErrorState();
	}
	PG_END_TRY();
}

PG_FUNCTION_INFO_V1(reconcile_run_loop);
Datum
reconcile_run_loop(PG_FUNCTION_ARGS)
{
	Session		session = {0};
	MemoryContext context;
	LoopRules	rules;

	require_primary("run_loop");
	session.left = PG_INT64_MAX;
	if (!PG_ARGISNULL(1))
	{
		session.left = PG_GETARG_INT32(1);
		if (session.left <= 0)
			arg_invalid("max_items", "must be more than zero", "NULL runs all that is due.");
	}
	if (!PG_ARGISNULL(0))
	{
		loop_require(reconciler_id_arg(fcinfo, 0, "loop_name"), &rules);
		run_require_owner(&rules);
	}
	require_non_atomic(fcinfo, "run_loop");

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	context = AllocSetContextCreate(PortalContext, "reconcile run_loop", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	session.due = due_create(context);
	session.holder_id = lease_mint_holder();
	next_transaction();
	if (PG_ARGISNULL(0))
		session.nloops = loop_read_all(GetUserId(), &session.loops);
	else
	{
		session.loops = &rules;
		session.nloops = 1;
	}
	next_transaction();

	PG_TRY();
	{
		adopt(&session);
		tick(&session);
		find_due(&session);
		for (int i = 0; i < session.nloops; i++)
			run_one_loop(&session, &session.loops[i]);
		if (wake_hook == NULL)
		{
			/* no engine, so nobody else keeps our tables small */
			compact_move();
			next_transaction();
			compact_truncate();
			next_transaction();
			entity_sweep();
			next_transaction();
		}
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		clean_up(&session);
		ReThrowError(error);
	}
	PG_END_TRY();

	SPI_finish();
	MemoryContextDelete(context);
	PG_RETURN_VOID();
}

/*
 * run.c
 *		The run of one entity.
 *
 * Order: run lock (the caller's) -> marks -> entity -> fence -> the function ->
 * marks deleted, next look inserted, entity.  All of it is one transaction: the
 * run's effects, its acknowledgement and its next look commit together.
 *
 * A run answers the list of marks it was given and no other.  If none of them
 * is there at the end, somebody forgot the entity meanwhile: the run finishes
 * and remembers nothing.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/subxact.h"
#include "fence/fence.h"
#include "loop/claim.h"
#include "loop/entity.h"
#include "loop/lister.h"
#include "loop/observed.h"
#include "loop/run.h"

#define TERMINATE_AFTER_MS	5000	/* from SIGINT at the timeout to SIGTERM */

/*
 * The run in progress.  After an error its struct is gone with the frame that
 * had it, so what ends the run does not look into it.
 */
static LoopRun *current = NULL;
static bool timed = false;		/* it has a deadline */
static char in_flight[RECONCILER_ID_MAX + 1] = "";	/* the loop that was told of it */

void		(*run_calls_hook) (const LoopRun *run) = NULL;

/* ----------------------------------------------------------------
 * Run lock
 * ----------------------------------------------------------------
 */

bool
run_lock(const char *loop_name, const char *entity_id)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_RUN, loop_name, entity_id);
	/* a session may not run it within its own run of it either */
	if (compat_lock_held(&tag, ExclusiveLock))
		return false;
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

void
run_unlock(const char *loop_name, const char *entity_id)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_RUN, loop_name, entity_id);
	(void) LockRelease(&tag, ExclusiveLock, false);
}

bool
run_exclude(const char *loop_name, const char *entity_id)
{
	return lock_take(LOCK_KIND_RUN, loop_name, entity_id, ExclusiveLock, false);
}

void
run_show(const char *loop_name)
{
	(void) lock_take(LOCK_KIND_RUNNING, "", loop_name, ShareLock, true);
}

static bool
holds(const LOCKTAG *tag, int pid)
{
	VirtualTransactionId *holder = GetLockConflicts(tag, ExclusiveLock, NULL);

	for (; VirtualTransactionIdIsValid(*holder); holder++)
	{
		if (compat_vxid_pid(holder) == pid)
			return true;
	}
	return false;
}

bool
run_held_by(const char *loop_name, const char *entity_id, int pid)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_RUN, loop_name, entity_id);
	/* a prepared transaction that holds it has no process, like one that is gone */
	return pid != 0 && holds(&tag, pid);
}

int
run_of_session(const char *loop_name, const char *entity_id)
{
	VirtualTransactionId *holder;
	LOCKTAG		shown;
	LOCKTAG		run;

	lock_tag(&shown, LOCK_KIND_RUNNING, "", loop_name);
	if (entity_id != NULL)
		lock_tag(&run, LOCK_KIND_RUN, loop_name, entity_id);
	for (holder = GetLockConflicts(&shown, ExclusiveLock, NULL); VirtualTransactionIdIsValid(*holder); holder++)
	{
		int			pid = compat_vxid_pid(holder);

		/* without a process it is prepared, or has just gone */
		if (entity_id == NULL || holds(&run, pid))
			return pid != 0 ? pid : -1;
	}
	return 0;
}

/* ----------------------------------------------------------------
 * Context and timeout
 * ----------------------------------------------------------------
 */

static TimeoutId cancel_timeout = MAX_TIMEOUTS;
static TimeoutId terminate_timeout;
static volatile sig_atomic_t timed_out = false;

static void
cancel_handler(void)
{
	timed_out = true;
	kill(MyProcPid, SIGINT);
}

static void
terminate_handler(void)
{
	/* a session is its user's: he may be cancelled again, not ended */
	kill(MyProcPid, MyBackendType == B_BG_WORKER ? SIGTERM : SIGINT);
}

static void
tell_in_flight(const char *loop_name)
{
	if (run_in_flight_hook == NULL)
		return;
	if (in_flight[0] != '\0')
		run_in_flight_hook(in_flight, -1);
	strlcpy(in_flight, loop_name, sizeof(in_flight));
	if (in_flight[0] != '\0')
		run_in_flight_hook(in_flight, 1);
}

static void
run_over(void)
{
	if (current == NULL)
		return;
	tell_in_flight("");
	if (timed)
	{
		timed = false;
		disable_timeout(cancel_timeout, false);
		disable_timeout(terminate_timeout, false);
		/* it struck when the work was already done: nothing of it may hit what comes next */
		if (timed_out)
			QueryCancelPending = false;
	}
	current = NULL;
}

/*
 * In a caller's session the run must not get at what the session may beyond its
 * current role: SET ROLE and the like are refused.  An abort undoes it by itself.
 */
static bool confined = false;
static int	guc_level = 0;		/* what the run sets is undone with it; 0: none */

static void
confine(void)
{
	Oid			userid;
	int			context;

	GetUserIdAndSecContext(&userid, &context);
	/* it is there already where it is the caller's, or that of an earlier run of this transaction */
	confined |= (context & SECURITY_LOCAL_USERID_CHANGE) == 0;
	SetUserIdAndSecContext(userid, context | SECURITY_LOCAL_USERID_CHANGE);
	guc_level = NewGUCNestLevel();
}

static void
undo_settings(void)
{
	if (guc_level > 0)
		AtEOXact_GUC(false, guc_level);
	guc_level = 0;
}

static void
unconfine(void)
{
	Oid			userid;
	int			context;

	undo_settings();
	if (!confined)
		return;
	confined = false;
	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(userid, context & ~SECURITY_LOCAL_USERID_CHANGE);
}

/* The context ends with the transaction: deferred triggers still belong to the run. */
static void
run_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE)
		unconfine();
	else if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
	{
		confined = false;
		guc_level = 0;
		run_over();
	}
}

static void
run_begin(LoopRun *run)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterXactCallback(run_xact_callback, NULL);
		cancel_timeout = RegisterTimeout(USER_TIMEOUT, cancel_handler);
		terminate_timeout = RegisterTimeout(USER_TIMEOUT, terminate_handler);
		registered = true;
	}
	timed_out = false;
	run->deadline = 0;
	current = run;
	tell_in_flight(run->rules->loop_name);
	if (run->in_session)
		confine();
	if (run->rules->timeout_ms > 0)
	{
		run->deadline = clock_add_ms(clock_now(), run->rules->timeout_ms);
		timed = true;
		enable_timeout_at(cancel_timeout, run->deadline);
		enable_timeout_at(terminate_timeout, clock_add_ms(run->deadline, TERMINATE_AFTER_MS));
	}
}

const LoopRun *
run_current(void)
{
	return current;
}

bool
run_timed_out(void)
{
	return timed_out;
}

/* ----------------------------------------------------------------
 * The run
 * ----------------------------------------------------------------
 */

static void
call_reconciler(const LoopRun *run, Oid function, RunFacts *facts)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	flinfo;
	Datum		result;
	int64		ms;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 1, DEFAULT_COLLATION_OID, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(run->entity_id);
	fcinfo->args[0].isnull = false;

	PushActiveSnapshot(GetTransactionSnapshot());
	result = FunctionCallInvoke(fcinfo);
	PopActiveSnapshot();

	facts->asked = false;
	if (fcinfo->isnull || get_func_rettype(function) != INTERVALOID)
		return;
	switch (duration_check(DatumGetIntervalP(result), &ms))
	{
		case DURATION_OK:
			facts->asked = true;
			facts->asked_ms = ms;
			break;
		case DURATION_ZERO:
		case DURATION_NEGATIVE:
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("the reconciler of loop \"%s\" returned no legal duration", run->rules->loop_name),
					 errhint("It returns NULL, 0, or 1 ms to 366 days without months.")));
	}
}

void
run_require_owner(const LoopRules *rules)
{
	if (rules->owner != GetUserId())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of loop \"%s\" to run it", rules->loop_name),
				 errhint("Its functions run as the session's user: connect as the owner.")));
}

static void
call_function(const LoopRun *run, Oid function, RunFacts *facts)
{
	if (loop_is_resync(run->rules, run->entity_id))
		lister_run(run->rules);
	else
		call_reconciler(run, function, facts);
}

static void
insert_look(LoopRun *run, const RunDecision *decision, MarkKind kind)
{
	if (!decision->look)
		return;
	/* the heap wants one, and not every caller has one */
	PushActiveSnapshot(GetLatestSnapshot());
	mark_insert(run->rules->loop_name, run->entity_id, kind,
				clock_add_ms(clock_now(), decision->look_ms), run->in_session, &run->look);
	PopActiveSnapshot();
	run->has_look = true;
}

RunDecision
run_decide(const LoopRun *run, const RunFacts *facts)
{
	LoopRules	rules;
	RunDecision decision;

	if (!loop_is_resync(run->rules, run->entity_id))
		return decide_run(run->rules, facts);
	rules = *run->rules;
	/* nobody else would notice that an entity was never listed again */
	rules.max_attempts = -1;
	decision = decide_run(&rules, facts);
	/* after a resync the next tick looks again */
	decision.look &= facts->failed;
	return decision;
}

/* The function returned: acknowledge, and write the next look. */
static void
book_success(LoopRun *run, const Entity *entity, RunFacts *facts)
{
	RunDecision decision = run_decide(run, facts);

	run->result = decision.result;
	if (mark_delete(run->rules->loop_name, run->entity_id, run->marks, run->nmarks) == 0)
		return;
	insert_look(run, &decision, MARK_LOOK);
	entity_succeeded(run->rules->loop_name, run->entity_id, entity);
}

/*
 * Is this transaction under the run's term?  Where the run failed in it, it is;
 * one that only books the failure binds it now.
 */
static bool
bound_to_term(const LoopRun *run)
{
	FenceBinding binding;

	if (!loop_leads(run->rules))
		return true;
	if (fence_bound(run->rules->loop_name, &binding) == FENCE_BOUND && binding.epoch == run->epoch)
		return true;
	return fence_bind(run->rules->loop_name, run->holder_id, run->epoch, true);
}

void
run_book_failure(LoopRun *run, const ErrorData *error)
{
	Entity		entity;
	RunFacts	facts = {0};
	RunDecision decision;

	run->has_look = false;
	run->outcome = RUN_NOT_LEADER;
	/* the next leader runs it anew; but what took the server down has ended the term, too */
	if (run->loss != LOSS_SERVER && !bound_to_term(run))
		return;
	/* an operator may be deleting the row */
	(void) entity_lock(run->rules->loop_name, run->entity_id, true, &entity);

	/* the run began anew where the last of the claims was lost: see claim_over() */
	(void) claim_settle(run->rules, run->entity_id, &entity, true);

	facts.failed = true;
	facts.sqlstate = error->sqlerrcode;
	facts.failures = entity.dead ? 0 : entity.failures;
	facts.crashed = run->loss != LOSS_NONE;
	facts.crashes = entity.dead ? 0 : entity.crashes;
	facts.random = pg_prng_double(&pg_global_prng_state);
	decision = run_decide(run, &facts);

	run->outcome = RUN_DONE;
	run->result = decision.result;
	run->sqlstate = error->sqlerrcode;
	run->attempt = facts.failures + 1;
	if (mark_delete(run->rules->loop_name, run->entity_id, run->marks,
					run->nmarks - (decision.died_of != NULL ? run->nkept : 0)) == 0)
		return;
	insert_look(run, &decision, MARK_BACKOFF);
	entity_failed(run->rules->loop_name, run->entity_id, &entity, decision.failures, decision.crashes, decision.died_of,
				  error->sqlerrcode, error->message);

	ereport(LOG,
			(errmsg("run of loop \"%s\", entity \"%s\" failed: SQLSTATE %s, %d in a row%s",
					run->rules->loop_name, run->entity_id, unpack_sql_state(error->sqlerrcode),
					decision.failures, decision.died_of ? "; it is dead now" : ""),
			 errhidestmt(true), errhidecontext(true)));
}

typedef struct Call
{
	LoopRun    *run;
	Oid			function;
	RunFacts   *facts;
} Call;

static void
do_call(void *arg)
{
	Call	   *call = arg;

	call_function(call->run, call->function, call->facts);
}

/*
 * In a session: the function in a subtransaction, so that its error leaves our
 * transaction whole.  NULL, or that error.
 */
static ErrorData *
call_in_subtransaction(LoopRun *run, Oid function, RunFacts *facts)
{
	Call		call = {run, function, facts};
	ErrorData  *error = subxact_run(do_call, &call);

	if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED && !timed_out)
		ReThrowError(error);
	return error;
}

ErrorData *
run_once(LoopRun *run, Oid function, RunFacts *facts)
{
	ErrorData  *volatile error = NULL;
	bool		was_confined = confined;

	run->in_session = true;
	PG_TRY();
	{
		run_begin(run);
		/* as in a new session of the role, and undone with the rest */
		(void) set_config_option("search_path", NULL, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
		error = call_in_subtransaction(run, function, facts);
		/* the commit may still run what the function left: deferred triggers, cursors WITH HOLD */
		undo_settings();
	}
	PG_CATCH();
	{
		/* the abort gives back what confine() took */
		confined = was_confined;
		guc_level = 0;
		run_over();
		PG_RE_THROW();
	}
	PG_END_TRY();
	run_over();
	return error;
}

/*
 * There is an outside worker's claim.  False if the run is none: the claim
 * stands, somebody is just ending it, or the entity died of it.
 */
static bool
claim_over(LoopRun *run, Entity *entity, bool triggered)
{
	const LoopRules *rules = run->rules;
	TimestampTz now;

	run->outcome = RUN_CLAIMED;
	run->claimed_until = 0;
	if (!entity_lock(rules->loop_name, run->entity_id, false, entity))
		return false;
	now = clock_now();
	if (entity->claimed && entity_claim_live(rules, &entity->claim, now))
	{
		run->claimed_until = entity_claim_look_at(&entity->claim, now);
		return false;
	}
	run->outcome = RUN_DROPPED;
	if (!claim_settle(rules, run->entity_id, entity, triggered))
	{
		mark_delete(rules->loop_name, run->entity_id, run->marks, run->nmarks);
		return false;
	}
	return true;
}

void
run_execute(LoopRun *run)
{
	const LoopRules *rules = run->rules;
	RunFacts	facts = {0};
	Entity		entity;
	bool		triggered;
	bool		deadlines;
	FunctionKind which;
	Oid			function;

	run->has_look = false;
	run->sqlstate = 0;
	run->outcome = RUN_DROPPED;
	run_begin(run);

	if (!mark_any_visible(rules->loop_name, run->entity_id, run->marks, run->nmarks, &triggered, &deadlines))
		return;
	entity_read(rules->loop_name, run->entity_id, &entity);
	if (entity.claimed && !claim_over(run, &entity, triggered))
		return;
	if (deadlines && !entity.claimed)
	{
		/* what is left of a claim that was reported asks for nothing */
		mark_delete(rules->loop_name, run->entity_id, run->marks, run->nmarks);
		return;
	}
	if (entity.dead && (entity.dead_of_crash || !triggered))
	{
		/* a look or a resync revives nobody; triggers on one that died of crashes are kept */
		if (!triggered)
			mark_delete(rules->loop_name, run->entity_id, run->marks, run->nmarks);
		return;
	}
	facts.failures = entity.dead ? 0 : entity.failures;
	run->attempt = facts.failures + 1;

	which = loop_is_resync(run->rules, run->entity_id) ? FUNCTION_LISTER : FUNCTION_RECONCILER;
	function = function_resolve(which, loop_function(rules, which));
	if (!OidIsValid(function) || function_problem(function, rules->owner) != FUNCTION_OK)
	{
		run->outcome = RUN_NO_FUNCTION;
		return;
	}
	if (loop_leads(rules) && !fence_bind(rules->loop_name, run->holder_id, run->epoch, true))
	{
		run->outcome = RUN_NOT_LEADER;
		return;
	}

	run->outcome = RUN_DONE;
	if (run_calls_hook != NULL)
		run_calls_hook(run);
	if (!run->in_session)
		call_function(run, function, &facts);
	else
	{
		ErrorData  *error = call_in_subtransaction(run, function, &facts);

		if (error != NULL)
		{
			run_book_failure(run, error);
			FreeErrorData(error);
			return;
		}
	}
	book_success(run, &entity, &facts);
}

/*
 * explain.c
 *		explain(): why does this entity not run now?
 *
 * The facts are captured first; then a list of questions, the nearest cause
 * first, is asked in order, and the first that has an answer gives it: what the
 * entity itself is about, then its loop, then the server.  Reads one entity's
 * row and the marks, locks nothing, and works on a standby.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/duration.h"
#include "core/ident.h"
#include "core/plan.h"
#include "engine/runs.h"
#include "lease/lease.h"
#include "loop/entity.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/run.h"

typedef struct Facts
{
	const char *entity_id;
	LoopRules	rules;
	TimestampTz now;
	FunctionKind which;			/* that its run would call */

	int			executor;		/* pid that runs it; 0 = none, -1 = it is gone */
	TimestampTz running_since;
	int			session;		/* pid that runs it in run_loop() or run_entity(); 0 = none, -1 = a prepared transaction */

	Entity		entity;
	bool		claim_live;
	char		last_sqlstate[8];	/* of its last failure; its text is not for every observer */

	int64		nmarks;
	TimestampTz due_at;			/* of the earliest mark */
	char		kind;			/* and its kind */
	bool		triggered;

	Lease		lease;
	bool		leased;			/* there was ever one */
	RunsRoom	room;
} Facts;

typedef struct Answer
{
	const char *state;
	const char *reason;
	TimestampTz until;			/* 0 = not known */
	const char *detail;
	const char *hint;			/* NULL = none */
} Answer;

/* ----------------------------------------------------------------
 * Facts
 * ----------------------------------------------------------------
 */

static void
take_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Facts	   *facts = arg;

	if (strcmp(loop_name, facts->rules.loop_name) != 0 || strcmp(entity_id, facts->entity_id) != 0)
		return;
	/* the deadline of a claim that was reported asks for nothing */
	if (ref->kind == MARK_CLAIM && !(facts->entity.claimed && facts->entity.claim.epoch == ref->number))
		return;
	if (facts->nmarks++ == 0 || ref->due_at < facts->due_at)
	{
		facts->due_at = ref->due_at;
		facts->kind = ref->kind;
	}
	facts->triggered |= ref->kind == MARK_TRIGGER;
}

static void
read_entity(Facts *facts)
{
	static SqlPlan plan = {
		"SELECT e.last_sqlstate FROM reconcile.entity e"
		" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.=) $2"
		" AND e.last_sqlstate IS NOT NULL",
		2, {TEXTOID, TEXTOID}
	};
	SqlScope	scope;
	Datum		values[2];

	entity_read(facts->rules.loop_name, facts->entity_id, &facts->entity);
	facts->claim_live = facts->entity.claimed && entity_claim_live(&facts->rules, &facts->entity.claim, facts->now);
	strlcpy(facts->last_sqlstate, "unknown", sizeof(facts->last_sqlstate));
	values[0] = CStringGetTextDatum(facts->rules.loop_name);
	values[1] = CStringGetTextDatum(facts->entity_id);
	sql_begin(&scope);
	if (sql_run_latest(&plan, values, NULL) > 0)
		strlcpy(facts->last_sqlstate, TextDatumGetCString(sql_value(0, 1, NULL)), sizeof(facts->last_sqlstate));
	sql_end(&scope);
}

static void
capture(Facts *facts)
{
	const LoopRules *rules = &facts->rules;
	Snapshot	snapshot;

	facts->which = loop_is_resync(rules, facts->entity_id) ? FUNCTION_LISTER : FUNCTION_RECONCILER;
	facts->executor = runs_find(rules->loop_name, facts->entity_id, &facts->running_since);
	facts->session = facts->executor == 0 ? run_of_session(rules->loop_name, facts->entity_id) : 0;
	facts->now = clock_now();
	read_entity(facts);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	mark_scan_all(snapshot, take_mark, facts);
	UnregisterSnapshot(snapshot);
	facts->leased = loop_leads(rules) && lease_read(rules->loop_name, &facts->lease);
	runs_room(rules->loop_name, rules->owner, &facts->room);
}

/* ----------------------------------------------------------------
 * Questions about the entity
 * ----------------------------------------------------------------
 */

static bool
is_running(const Facts *facts, Answer *answer)
{
	if (facts->executor == 0 && facts->session == 0)
		return false;
	answer->state = answer->reason = "running";
	if (facts->session < 0)
	{
		answer->detail = "A prepared transaction has run or claimed it.";
		answer->hint = "COMMIT PREPARED or ROLLBACK PREPARED decides about that.";
		return true;
	}
	if (facts->session > 0)
	{
		answer->detail = psprintf("Session %d runs it.", facts->session);
		answer->hint = psprintf("SELECT pg_cancel_backend(%d) cancels that call.", facts->session);
		return true;
	}
	if (facts->rules.timeout_ms > 0)
		answer->until = clock_add_ms(facts->running_since, facts->rules.timeout_ms);
	if (facts->executor < 0)
		answer->detail = "The process that ran it is gone; what follows is being decided.";
	else
	{
		answer->detail = psprintf("Executor %d has run it since %s.", facts->executor,
								  timestamptz_to_str(facts->running_since));
		answer->hint = "reconcile.cancel_run() cancels it.";
	}
	return true;
}

static bool
is_claimed(const Facts *facts, Answer *answer)
{
	if (!facts->claim_live)
		return false;
	answer->state = "running";
	answer->reason = "claimed";
	answer->until = facts->entity.claim.expires_at;
	answer->detail = psprintf("Worker \"%s\" has claimed it.", facts->entity.claim.holder_id);
	answer->hint = "It is due again when the claim runs out, or reconcile.cancel_run() takes it back.";
	return true;
}

static bool
is_dead(const Facts *facts, Answer *answer)
{
	const Entity *entity = &facts->entity;

	/* a fresh trigger revives it, unless it died of crashes */
	if (!entity->dead || (facts->triggered && !entity->dead_of_crash))
		return false;
	answer->state = answer->reason = "dead";
	if (entity->dead_of_crash)
	{
		answer->detail = psprintf("It died of runs that ended their process, or the server: failure %d in a row, SQLSTATE %s.",
								  entity->failures, facts->last_sqlstate);
		answer->hint = "Only reconcile.revive() makes it due.";
	}
	else
	{
		answer->detail = psprintf("It died of failure %d in a row, SQLSTATE %s.",
								  entity->failures, facts->last_sqlstate);
		answer->hint = "reconcile.revive() or a fresh trigger makes it due.";
	}
	return true;
}

static bool
is_idle(const Facts *facts, Answer *answer)
{
	if (facts->nmarks > 0)
		return false;
	answer->state = answer->reason = "idle";
	answer->detail = "Nothing asks for a run of it.";
	answer->hint = "reconcile.enqueue() triggers it.";
	return true;
}

static bool
is_backoff(const Facts *facts, Answer *answer)
{
	if (facts->due_at <= facts->now || facts->kind != MARK_BACKOFF)
		return false;
	answer->state = "retrying";
	answer->reason = "backoff";
	answer->until = facts->due_at;
	answer->detail = psprintf("It waits after failure %d in a row, SQLSTATE %s.", facts->entity.failures,
							  facts->last_sqlstate);
	answer->hint = "reconcile.enqueue() makes it due at once.";
	return true;
}

static bool
is_delayed(const Facts *facts, Answer *answer)
{
	if (facts->due_at <= facts->now)
		return false;
	answer->state = facts->entity.failures > 0 ? "retrying" : "waiting";
	answer->reason = "delayed";
	answer->until = facts->due_at;
	answer->detail = facts->kind == MARK_TRIGGER ? "A trigger with a delay asks for it." :
		facts->kind == MARK_CLAIM ? "The deadline of a claim that has ended brings it back." :
		"Its last run asked for another look.";
	answer->hint = "reconcile.enqueue() makes it due at once.";
	return true;
}

/* ----------------------------------------------------------------
 * About its loop
 * ----------------------------------------------------------------
 */

static bool
is_disabled(const Facts *facts, Answer *answer)
{
	if (facts->rules.enabled)
		return false;
	answer->reason = "disabled";
	answer->detail = "It is due, and its loop is disabled.";
	answer->hint = "reconcile.alter_loop() with {\"enabled\": true} enables it.";
	return true;
}

static bool
is_paused(const Facts *facts, Answer *answer)
{
	if (!facts->rules.paused)
		return false;
	answer->reason = "paused";
	if (facts->rules.foreign)
	{
		answer->detail = "It is due, and its loop came here with a restore, a clone or a subscription: the original may still run it.";
		answer->hint = "When it is to run here, reconcile.resume_all() resumes it.";
		return true;
	}
	answer->detail = "It is due, and its loop is paused.";
	answer->hint = "reconcile.resume_loop() resumes it.";
	return true;
}

static bool
is_for_outside_workers(const Facts *facts, Answer *answer)
{
	if (loop_function(&facts->rules, facts->which)[0] != '\0')
		return false;
	answer->reason = "due";
	answer->detail = "It is due, and its loop is for outside workers.";
	answer->hint = "It waits for one of them to claim it.";
	return true;
}

/* What keeps an executor from connecting as the role, or NULL. */
static const char *
owner_problem(Oid owner)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(owner));
	const char *problem = NULL;

	if (!HeapTupleIsValid(tuple))
		return "is gone";
	if (COMPAT_OWNER_NEEDS_LOGIN && !((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin)
		problem = "cannot log in";
	ReleaseSysCache(tuple);
	if (problem == NULL && !compat_database_connect_ok(MyDatabaseId, owner))
		problem = "cannot connect to this database";
	return problem;
}

static bool
is_owner_gone(const Facts *facts, Answer *answer)
{
	const char *problem = owner_problem(facts->rules.owner);

	if (problem == NULL)
		return false;
	answer->reason = "owner_gone";
	answer->detail = psprintf("It is due, and its loop's owner %s.", problem);
	answer->hint = "Let the owner connect, or give the loop another one with reconcile.alter_loop().";
	return true;
}

static bool
is_function_gone(const Facts *facts, Answer *answer)
{
	const char *signature = loop_function(&facts->rules, facts->which);
	Oid			function = function_resolve(facts->which, signature);
	FunctionProblem problem = OidIsValid(function) ?
		function_problem(function, facts->rules.owner) : FUNCTION_GONE;

	if (problem == FUNCTION_OK)
		return false;
	answer->reason = "function_gone";
	answer->detail = psprintf(problem == FUNCTION_GONE ? "It is due, and the function %s is not there." :
							  problem == FUNCTION_NO_EXECUTE ?
							  "It is due, and the loop's owner may not execute the function %s." :
							  "It is due, and the function %s belongs to neither the loop's owner nor a superuser.",
							  signature);
	answer->hint = "Define the function again, or change the loop with reconcile.alter_loop().";
	return true;
}

/* ----------------------------------------------------------------
 * About the server
 * ----------------------------------------------------------------
 */

static bool
has_no_worker(const Facts *facts, Answer *answer)
{
	if (RecoveryInProgress())
	{
		answer->detail = "It is due, and this server is a standby.";
		answer->hint = "Loops run on the primary server.";
	}
	else if (!facts->room.preloaded)
	{
		answer->detail = "It is due, and no worker runs where the library is not preloaded.";
		answer->hint = "Set shared_preload_libraries = 'reconcile' and restart, or CALL reconcile.run_loop() as the loop's owner.";
	}
	else if (!facts->room.dispatched)
	{
		answer->detail = "It is due, and no dispatcher serves this database.";
		answer->hint = "Look at reconcile.databases, max_worker_processes and the server log.";
	}
	else
		return false;
	answer->reason = "no_worker";
	return true;
}

static bool
has_no_lease(const Facts *facts, Answer *answer)
{
	bool		live = facts->leased && facts->now < facts->lease.expires_at;

	if (!loop_leads(&facts->rules) || (live && facts->lease.engine))
		return false;
	answer->reason = "no_lease";
	if (live)
	{
		answer->until = facts->lease.expires_at;
		answer->detail = psprintf("It is due, and \"%s\" holds the lease of its loop, epoch " INT64_FORMAT ".",
								  facts->lease.holder_id, facts->lease.epoch);
		answer->hint = "Our workers take the lease when it is released or runs out.";
	}
	else
	{
		answer->detail = "It is due, and nobody holds the lease of its loop at this moment.";
		answer->hint = "Our workers ask for it again; if that lasts, a fenced transaction of the last term may be open.";
	}
	return true;
}

static bool
has_no_slot(const Facts *facts, Answer *answer)
{
	if (facts->room.executors >= facts->rules.concurrency)
	{
		answer->detail = psprintf("It is due, and its loop has as many runs as its concurrency allows (%d).",
								  facts->room.executors);
		answer->hint = "Raise \"concurrency\" with reconcile.alter_loop().";
	}
	else if (!facts->room.idle)
	{
		answer->detail = psprintf("It is due, and all %d executors of the server are taken.", facts->room.slots);
		answer->hint = "Raise reconcile.max_workers.";
	}
	else
		return false;
	answer->reason = "slots_full";
	return true;
}

static bool
is_due(const Facts *facts, Answer *answer)
{
	answer->reason = "due";
	answer->detail = psprintf("It is due since %s, and about to run.", timestamptz_to_str(facts->due_at));
	return true;
}

static bool (*const questions[]) (const Facts *facts, Answer *answer) = {
	is_running, is_claimed, is_dead, is_idle, is_backoff, is_delayed,
	is_disabled, is_paused, is_for_outside_workers, is_owner_gone, is_function_gone,
	has_no_worker, has_no_lease, has_no_slot, is_due
};

PG_FUNCTION_INFO_V1(reconcile_explain);
Datum
reconcile_explain(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Facts		facts = {0};
	Answer		answer = {.state = "ready"};
	char	   *loop_name;
	Datum		values[5];
	bool		nulls[5] = {false};
	int			i = 0;

	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	facts.entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	access_require(CAP_OBSERVE, loop_name);
	loop_require(loop_name, &facts.rules);
	InitMaterializedSRF(fcinfo, 0);
	capture(&facts);
	/* the last one always answers */
	while (!questions[i] (&facts, &answer))
		i++;

	values[0] = CStringGetTextDatum(answer.state);
	values[1] = CStringGetTextDatum(answer.reason);
	values[2] = TimestampTzGetDatum(answer.until);
	nulls[2] = answer.until == 0;
	values[3] = CStringGetTextDatum(answer.detail);
	values[4] = answer.hint != NULL ? CStringGetTextDatum(answer.hint) : (Datum) 0;
	nulls[4] = answer.hint == NULL;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

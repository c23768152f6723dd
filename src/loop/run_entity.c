/*
 * run_entity.c
 *		run_entity(): one run in the caller's transaction, for tests and debugging.
 *
 * The function is called as run_loop() would call it, and what follows is
 * decided by the same rules, but nothing is remembered: no mark is consumed, no
 * failure booked, no look written.  What the function wrote is the caller's to
 * commit; what a failed one wrote is undone.
 *
 * Locks: the run lock, until the caller's transaction ends, as what the run
 * wrote is seen by nobody before.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "fence/fence.h"
#include "loop/entity.h"
#include "loop/run.h"

static const char *const result_name[] = {
	[RESULT_SUCCESS] = "success",
	[RESULT_TRANSIENT] = "transient",
	[RESULT_PERMANENT] = "permanent"
};

static Oid
function_of(const LoopRun *run)
{
	FunctionKind which = loop_is_resync(run->rules, run->entity_id) ? FUNCTION_LISTER : FUNCTION_RECONCILER;
	const char *signature = loop_function(run->rules, which);
	Oid			function;

	if (signature[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("loop \"%s\" has no reconciler", run->rules->loop_name),
				 errhint("Its entities are for outside workers.")));
	function = function_resolve(which, signature);
	if (!OidIsValid(function) || function_problem(function, run->rules->owner) != FUNCTION_OK)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("loop \"%s\" cannot run: its function \"%s\" is gone, or its owner may not call it",
						run->rules->loop_name, signature),
				 errhint("Define the function again, or change the loop with reconcile.alter_loop().")));
	return function;
}

/* Nobody else runs it until this transaction ends. */
static void
lock_entity(const LoopRules *rules, const char *entity_id, Entity *entity)
{
	run_show(rules->loop_name);
	if (run_exclude(rules->loop_name, entity_id))
	{
		entity_read(rules->loop_name, entity_id, entity);
		if (!entity->claimed || !entity_claim_live(rules, &entity->claim, clock_now()))
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("entity \"%s\" of loop \"%s\" is being run now", entity_id, rules->loop_name),
			 errhint("Try again when that run, or the claim of an outside worker, is over.")));
}

/* The error's text, if it is text in this database's encoding. */
static Datum
message_datum(const ErrorData *error)
{
	const char *message = error->message != NULL ? error->message : "";
	int			length = strlen(message);

	if (!pg_verify_mbstr(GetDatabaseEncoding(), message, length, true))
		length = 0;
	return PointerGetDatum(cstring_to_text_with_len(message, length));
}

PG_FUNCTION_INFO_V1(reconcile_run_entity);
Datum
reconcile_run_entity(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LoopRules	rules;
	LoopRun		run = {0};
	RunFacts	facts = {0};
	RunDecision decision;
	Entity		entity;
	FenceBinding binding;
	Oid			function;
	ErrorData  *error;
	Datum		values[4] = {0};
	bool		nulls[4] = {false, true, true, true};

	require_writable("run_entity");
	loop_require(reconciler_id_arg(fcinfo, 0, "loop_name"), &rules);
	run.rules = &rules;
	run.entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	run_require_owner(&rules);
	if (run_current() != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("run_entity() cannot be called in a run"),
				 errhint("Trigger the other entity with reconcile.enqueue().")));
	function = function_of(&run);
	InitMaterializedSRF(fcinfo, 0);

	lock_entity(&rules, run.entity_id, &entity);
	facts.failures = entity.dead ? 0 : entity.failures;
	run.attempt = facts.failures + 1;
	if (fence_bound(rules.loop_name, &binding) == FENCE_BOUND)
		run.epoch = binding.epoch;
	error = run_once(&run, function, &facts);

	facts.failed = error != NULL;
	facts.sqlstate = error != NULL ? error->sqlerrcode : 0;
	facts.random = pg_prng_double(&pg_global_prng_state);
	decision = run_decide(&run, &facts);

	values[0] = CStringGetTextDatum(result_name[decision.result]);
	if (decision.look)
		values[1] = IntervalPGetDatum(duration_interval(decision.look_ms));
	nulls[1] = !decision.look;
	if (error != NULL)
	{
		values[2] = CStringGetTextDatum(unpack_sql_state(error->sqlerrcode));
		values[3] = message_datum(error);
		nulls[2] = nulls[3] = false;
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

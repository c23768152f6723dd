/*
 * session_command.c
 *		The steps of a command for a session: claim, attempt, outcome, rejection.
 *
 * Each locks the row of the session, reads the command with the newest snapshot, and
 * then the clock.  A begun attempt, its outcome and a rejection are on disk before anybody
 * is told of them, whatever synchronous_commit says: who is told acts on it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/holder.h"
#include "placement/session_command.h"

#define CLAIM_TTL_MAX_MS	(60 * 60 * 1000)

enum
{
	PLAN_READ,
	PLAN_CLAIM,
	PLAN_BEGIN,
	PLAN_SETTLE,
	PLAN_REJECT
};

#define OF_COMMAND \
	" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2" \
	" AND c.command_id OPERATOR(pg_catalog.=) $3"

#define UPDATE_COMMAND "UPDATE reconcile.session_command c SET revision = $4, "

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT c.accepted_order, c.revision, c.state, c.apply_deadline, c.claim_epoch, c.claim_expires_at,"
		" c.attempt_id, c.attempt_epoch FROM reconcile.session_command c" OF_COMMAND,
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_CLAIM] = {
		UPDATE_COMMAND "state = 'claimed', claim_epoch = $5, claim_expires_at = $6" OF_COMMAND,
		6, {TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_BEGIN] = {
		UPDATE_COMMAND "state = 'applying', attempt_epoch = $5, attempt_id = $6, attempt_started_at = $7" OF_COMMAND,
		7, {TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_SETTLE] = {
		UPDATE_COMMAND "state = $5, outcome = $6, outcome_epoch = $7, event_id = $8, event_seq = $9, settled_at = $10"
		OF_COMMAND,
		10, {TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, INT8OID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_REJECT] = {
		UPDATE_COMMAND "state = 'rejected', settled_at = $5" OF_COMMAND,
		5, {TEXTOID, TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	}
};

static const char *const outcome_names[] = {
	[STEP_REPEATED] = "repeated",
	[STEP_CONFLICT] = "conflict",
	[STEP_TERMINAL] = "terminal",
	[STEP_STATE] = "state",
	[STEP_EPOCH] = "epoch",
	[STEP_LEASE_LOST] = "lease_lost",
	[STEP_CLAIM_LOST] = "claim_lost",
	[STEP_DEADLINE] = "deadline",
	[STEP_CLAIM_HELD] = "claim_held",
	[STEP_EVIDENCE] = "evidence",
	[STEP_NOT_FOUND] = "not_found"
};

static const char *const settle_names[] = {
	[SETTLE_APPLIED] = "applied",
	[SETTLE_NO_OP] = "no_op",
	[SETTLE_NOT_APPLIED] = "not_applied"
};

/* ----------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------
 */

static void
command_values(const SessionKey *key, const char *command_id, Datum *values)
{
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = CStringGetTextDatum(command_id);
}

static SessionCommandState
state_of(const char *name)
{
	for (int i = SESSION_COMMAND_PENDING; i <= SESSION_COMMAND_REJECTED; i++)
	{
		if (strcmp(name, session_command_state_name(i)) == 0)
			return i;
	}
	elog(ERROR, "unknown state \"%s\" of a command", name);
}

bool
session_command_read(const SessionKey *key, const char *command_id, SessionCommand *command)
{
	SqlScope	scope;
	Datum		values[3];
	bool		found;

	memset(command, 0, sizeof(*command));
	command_values(key, command_id, values);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
	{
		bool		isnull;
		Datum		value;

		command->accepted_order = DatumGetInt64(sql_value(0, 1, NULL));
		command->revision = DatumGetInt64(sql_value(0, 2, NULL));
		command->state = state_of(TextDatumGetCString(sql_value(0, 3, NULL)));
		command->apply_deadline = DatumGetTimestampTz(sql_value(0, 4, NULL));
		value = sql_value(0, 5, &isnull);
		if (!isnull)
		{
			command->claim_epoch = DatumGetInt64(value);
			command->claim_expires_at = DatumGetTimestampTz(sql_value(0, 6, NULL));
		}
		value = sql_value(0, 7, &isnull);
		if (!isnull)
		{
			command->attempt_id = sql_text(0, 7, scope.outer);
			command->attempt_epoch = DatumGetInt64(sql_value(0, 8, NULL));
		}
	}
	sql_end(&scope);
	return found;
}

/* A change of a command that was decided; values from the fifth on are its own. */
static void
write_step(SqlPlan *plan, const SessionKey *key, const char *command_id, SessionCommand *command,
		   Datum *values, const char *nulls)
{
	SqlScope	scope;

	command_values(key, command_id, values);
	values[3] = Int64GetDatum(++command->revision);
	sql_begin(&scope);
	sql_run_latest(plan, values, nulls);
	TEST_POINT("session-command-written");
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * A step from its call to its answer
 * ----------------------------------------------------------------
 */

typedef struct Step
{
	SessionKey	key;
	char	   *command_id;
	HolderProof proof;			/* epoch 0: a reconciler's */
	SessionCommand command;
	StepFacts	facts;
	bool		found;
} Step;

#define REVISION_HINT "It is the revision of the command as it was seen, 1 or more."

/* tenant_id, session_id and command_id, epoch and token, expected_revision; "reconciler": the two may be NULL. */
static void
step_args(FunctionCallInfo fcinfo, Step *step, const char *function, bool reconciler)
{
	require_writable(function);
	require_read_committed(function);
	memset(step, 0, sizeof(*step));
	session_key_args(fcinfo, &step->key);
	step->command_id = identity_field(fcinfo, 2, "command_id");
	if (!(reconciler && PG_ARGISNULL(3) && PG_ARGISNULL(4)))
		holder_proof_args(fcinfo, 3, &step->proof);
	step->facts.expected_revision = number_field(fcinfo, 5, "expected_revision", 1, PG_INT64_MAX, REVISION_HINT);
}

/* Locks what the step is about, and looks at it; false: it is not there, or not the caller's. */
static bool
step_begin(Step *step)
{
	Session		session;

	if (step->proof.epoch > 0 && !holder_is_known(&step->key, &step->proof))
		return false;
	if (!session_lock(&step->key, &session) ||
		(step->proof.epoch > 0 && !holder_is_known(&step->key, &step->proof)) ||
		!session_command_read(&step->key, step->command_id, &step->command))
		return false;
	step->found = true;
	step->facts.command = &step->command;
	step->facts.epoch = step->proof.epoch;
	step->facts.now = clock_now();
	step->facts.live = step->proof.epoch > 0 && holder_is_live(&session, &step->proof, step->facts.now);
	return true;
}

/* "done" is what the step is called when it was taken. */
static Datum
step_answer(FunctionCallInfo fcinfo, const Step *step, const StepDecision *decision, const char *done)
{
	const SessionCommand *command = &step->command;
	Datum		values[7];
	bool		nulls[7] = {false};

	values[0] = CStringGetTextDatum(decision->outcome == STEP_DONE ? done : outcome_names[decision->outcome]);
	nulls[1] = nulls[2] = !step->found;
	values[1] = Int64GetDatum(command->revision);
	values[2] = step->found ? CStringGetTextDatum(session_command_state_name(command->state)) : (Datum) 0;
	nulls[3] = nulls[4] = nulls[5] = command->claim_epoch == 0;
	values[3] = Int64GetDatum(command->claim_epoch);
	values[4] = TimestampTzGetDatum(command->claim_expires_at);
	values[5] = remaining_datum(command->claim_expires_at, step->facts.now);
	values[6] = text_or_null(decision->field, &nulls[6]);
	return return_one_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_claim_session_command);
Datum
reconcile_claim_session_command(PG_FUNCTION_ARGS)
{
	Step		step;
	StepDecision decision = {STEP_NOT_FOUND, NULL};
	int64		ttl_ms;
	TimestampTz repeats;

	step_args(fcinfo, &step, "claim_session_command", false);
	ttl_ms = interval_field(fcinfo, 6, "ttl", false, CLAIM_TTL_MAX_MS, "It is more than 0 and at most 1 hour.");
	repeats = PG_ARGISNULL(7) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(7);
	if (step_begin(&step))
		decision = decide_command_claim(&step.facts, repeats);
	if (decision.outcome == STEP_DONE)
	{
		Datum		values[6];

		step.command.state = SESSION_COMMAND_CLAIMED;
		step.command.claim_epoch = step.proof.epoch;
		step.command.claim_expires_at = clock_add_ms(step.facts.now, ttl_ms);
		values[4] = Int64GetDatum(step.command.claim_epoch);
		values[5] = TimestampTzGetDatum(step.command.claim_expires_at);
		write_step(&plans[PLAN_CLAIM], &step.key, step.command_id, &step.command, values, NULL);
	}
	return step_answer(fcinfo, &step, &decision, "claimed");
}

PG_FUNCTION_INFO_V1(reconcile_begin_attempt);
Datum
reconcile_begin_attempt(PG_FUNCTION_ARGS)
{
	Step		step;
	StepDecision decision = {STEP_NOT_FOUND, NULL};
	char	   *attempt_id;

	step_args(fcinfo, &step, "begin_attempt", false);
	attempt_id = identity_field(fcinfo, 6, "attempt_id");
	if (step_begin(&step))
		decision = decide_command_begin(&step.facts);
	if (decision.outcome == STEP_DONE)
	{
		Datum		values[7];

		step.command.state = SESSION_COMMAND_APPLYING;
		values[4] = Int64GetDatum(step.proof.epoch);
		values[5] = CStringGetTextDatum(attempt_id);
		values[6] = TimestampTzGetDatum(step.facts.now);
		write_step(&plans[PLAN_BEGIN], &step.key, step.command_id, &step.command, values, NULL);
		ForceSyncCommit();
	}
	return step_answer(fcinfo, &step, &decision, "begun");
}

static void
write_outcome(Step *step, const Evidence *evidence, const char *event_id)
{
	Datum		values[10];
	char		nulls[10];

	memset(nulls, ' ', sizeof(nulls));
	step->command.state = evidence->kind == SETTLE_NOT_APPLIED ? SESSION_COMMAND_REJECTED : SESSION_COMMAND_APPLIED;
	values[4] = CStringGetTextDatum(session_command_state_name(step->command.state));
	values[5] = CStringGetTextDatum(settle_names[evidence->kind]);
	values[6] = Int64GetDatum(step->proof.epoch);
	nulls[7] = nulls[8] = event_id == NULL ? 'n' : ' ';
	values[7] = event_id == NULL ? (Datum) 0 : CStringGetTextDatum(event_id);
	values[8] = Int64GetDatum(evidence->event_seq);
	values[9] = TimestampTzGetDatum(step->facts.now);
	write_step(&plans[PLAN_SETTLE], &step->key, step->command_id, &step->command, values, nulls);
	ForceSyncCommit();
}

PG_FUNCTION_INFO_V1(reconcile_settle_attempt);
Datum
reconcile_settle_attempt(PG_FUNCTION_ARGS)
{
	Step		step;
	StepDecision decision = {STEP_NOT_FOUND, NULL};
	Evidence	evidence = {0};
	char	   *event_id;

	step_args(fcinfo, &step, "settle_attempt", false);
	evidence.attempt_id = identity_field(fcinfo, 6, "attempt_id");
	evidence.kind = word_field(fcinfo, 7, "result", settle_names, lengthof(settle_names),
							   "It is applied, no_op or not_applied.");
	event_id = optional_field(fcinfo, 8, "event_id");
	evidence.has_event_id = event_id != NULL;
	evidence.has_event_seq = !PG_ARGISNULL(9);
	evidence.event_seq = PG_ARGISNULL(9) ? 0 : PG_GETARG_INT64(9);
	if (step_begin(&step))
		decision = decide_command_settle(&step.facts, &evidence);
	if (decision.outcome == STEP_DONE)
		write_outcome(&step, &evidence, event_id);
	return step_answer(fcinfo, &step, &decision, "settled");
}

PG_FUNCTION_INFO_V1(reconcile_reject_session_command);
Datum
reconcile_reject_session_command(PG_FUNCTION_ARGS)
{
	Step		step;
	StepDecision decision = {STEP_NOT_FOUND, NULL};

	step_args(fcinfo, &step, "reject_session_command", true);
	if (step.proof.epoch == 0)
		access_require_all(CAP_PLACE);
	if (step_begin(&step))
		decision = decide_command_reject(&step.facts);
	if (decision.outcome == STEP_DONE)
	{
		Datum		values[5];

		step.command.state = SESSION_COMMAND_REJECTED;
		values[4] = TimestampTzGetDatum(step.facts.now);
		write_step(&plans[PLAN_REJECT], &step.key, step.command_id, &step.command, values, NULL);
		ForceSyncCommit();
	}
	return step_answer(fcinfo, &step, &decision, "rejected");
}

/*
 * lifecycle.c
 *		What becomes of commands whose effect is elsewhere.
 *
 *		pending --claim--> dispatched --acknowledge--> acknowledged
 *		   |                   |                            |
 *		   | cancel, expire    +---- complete, lapse -------+
 *		   v                   v
 *		canceled            succeeded, failed, unsupported, timed_out, partial, unknown
 *
 * Whoever reports in the transaction that claimed is refused: his claim is not durable
 * yet.  A claim that lapses ends in "unknown": nobody can tell whether it took effect,
 * and it is never given out again.  The incarnation is held first, where a state may
 * change, then the row of the command is locked, then the desired state of its target.
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
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/count.h"
#include "journal/desired.h"
#include "journal/lifecycle.h"
#include "journal/resolution.h"

enum
{
	PLAN_ACKNOWLEDGE,
	PLAN_END
};

static SqlPlan plans[] = {
	[PLAN_ACKNOWLEDGE] = {
		"UPDATE reconcile.command SET status = 'acknowledged', acknowledged_at = $3, worker_id = $4, protocol = $5"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND command_id OPERATOR(pg_catalog.=) $2",
		5, {TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID, TEXTOID}
	},
	[PLAN_END] = {
		"UPDATE reconcile.command SET status = $3, failure = $4, completed_at = $5, worker_id = $6, protocol = $7,"
		" capability_available = $8, worker_completed_at = $9"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND command_id OPERATOR(pg_catalog.=) $2",
		9, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, BOOLOID, TIMESTAMPTZOID}
	}
};

/* ----------------------------------------------------------------
 * Ends
 * ----------------------------------------------------------------
 */

Jsonb *
command_worker_jsonb(const Command *command)
{
	JsonbBuild	build;

	if (command->worker_id == NULL && command->capability_available < 0 &&
		command->worker_completed_at == DT_NOBEGIN)
		return NULL;
	jsonb_begin(&build);
	if (command->worker_id != NULL)
	{
		jsonb_add_text(&build, "worker_id", command->worker_id);
		jsonb_add_text(&build, "protocol", command->protocol);
	}
	if (command->capability_available >= 0)
		jsonb_add_bool(&build, "capability_available", command->capability_available == 1);
	if (command->worker_completed_at != DT_NOBEGIN)
		jsonb_add_time(&build, "worker_completed_at", command->worker_completed_at);
	return jsonb_end(&build);
}

bool
command_end(const Command *command, const char *reason, int64 floor, bool wait)
{
	const char *status = command_status_name(command->status);
	TimestampTz now = clock_now();
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	if (command->status == COMMAND_CANCELED &&
		!desired_withdraw(command->tenant_id, command->command_id, floor, wait))
		return false;
	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->command_id);
	values[2] = CStringGetTextDatum(status);
	nulls[3] = command->failure == NULL ? 'n' : ' ';
	values[3] = command->failure == NULL ? (Datum) 0 : CStringGetTextDatum(command->failure);
	values[4] = TimestampTzGetDatum(now);
	nulls[5] = nulls[6] = command->worker_id == NULL ? 'n' : ' ';
	values[5] = command->worker_id == NULL ? (Datum) 0 : CStringGetTextDatum(command->worker_id);
	values[6] = command->worker_id == NULL ? (Datum) 0 : CStringGetTextDatum(command->protocol);
	nulls[7] = command->capability_available < 0 ? 'n' : ' ';
	values[7] = BoolGetDatum(command->capability_available == 1);
	nulls[8] = command->worker_completed_at == DT_NOBEGIN ? 'n' : ' ';
	values[8] = TimestampTzGetDatum(command->worker_completed_at);
	sql_do(&plans[PLAN_END], values, nulls);
	TEST_POINT("command-before-audit");
	command_audit(command, status, reason, command_worker_jsonb(command), now);
	command_count(command->action, status);
	return true;
}

/* ----------------------------------------------------------------
 * Reports of the claimant
 * ----------------------------------------------------------------
 */

typedef struct Report
{
	char	   *tenant_id;
	char	   *command_id;
	char	   *token;
	Command		command;
	const char *outcome;		/* of what is over without a change */
} Report;

/* worker_id and protocol: both or neither. */
static void
worker_args(FunctionCallInfo fcinfo, int worker, int protocol, char **worker_id, char **version)
{
	*worker_id = PG_ARGISNULL(worker) ? NULL : identity_field(fcinfo, worker, "worker_id");
	*version = PG_ARGISNULL(protocol) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(protocol));
	if ((*worker_id == NULL) != (*version == NULL))
		field_invalid(*version == NULL ? "protocol" : "worker_id", "must be given",
					  "A worker says which protocol it speaks: both, or neither.");
	if (*version != NULL && !protocol_valid(*version))
		field_invalid("protocol", "is not a version", "It is major.minor, 1 to 65535 and 0 to 65535.");
}

static bool
same_text(const char *a, const char *b)
{
	return a == NULL ? b == NULL : b != NULL && strcmp(a, b) == 0;
}

static bool
has_token(const Command *command, const char *token)
{
	return command->claim_token != NULL && strcmp(command->claim_token, token) == 0;
}

/*
 * Locks the command that the token is of; false: report->outcome says why it is not
 * to be changed.  RC016 where this transaction is the one that claimed it.
 */
static bool
report_begin(FunctionCallInfo fcinfo, Report *report, const char *function, const char *step)
{
	uint64		rights;

	require_writable(function);
	require_read_committed(function);
	report->tenant_id = identity_field(fcinfo, 0, "tenant_id");
	report->command_id = identity_field(fcinfo, 1, "command_id");
	report->token = identity_field(fcinfo, 2, "claim_token");
	rights = access_generation();
	/* what is not there and what is not the caller's look alike, and nobody locks what is not his */
	if (!command_read(report->tenant_id, report->command_id, &report->command) ||
		!command_may_dispatch(&report->command))
	{
		report->outcome = "not_found";
		command_audit_denied(report->tenant_id, report->command_id, step);
		return false;
	}
	if (!has_token(&report->command, report->token) ||
		!command_lock(report->tenant_id, report->command_id, &report->command) ||
		!has_token(&report->command, report->token))
		report->outcome = "stale_token";
	/* what was granted may have been taken back while it waited */
	else if (access_generation() != rights && !command_may_dispatch(&report->command))
		report->outcome = "not_found";
	if (report->outcome != NULL)
	{
		command_audit_denied(report->tenant_id, report->command_id, step);
		return false;
	}
	if (FullTransactionIdEquals(report->command.claim_xid, GetTopFullTransactionId()))
		ereport(ERROR,
				(errcode(ERRCODE_NOT_YET_DURABLE),
				 errmsg("command \"%s\" was claimed in this transaction", report->command_id),
				 errdetail("Were it to abort, the command would be given out again, though it may have taken effect."),
				 errhint("COMMIT the claim first, act, and report in another transaction.")));
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_acknowledge_command);
Datum
reconcile_acknowledge_command(PG_FUNCTION_ARGS)
{
	Report		report = {0};
	Command    *command = &report.command;
	char	   *worker_id;
	char	   *protocol;
	Datum		values[5];
	char		nulls[5] = {' ', ' ', ' ', ' ', ' '};
	TimestampTz now;

	worker_args(fcinfo, 3, 4, &worker_id, &protocol);
	if (!report_begin(fcinfo, &report, "acknowledge_command", "acknowledge"))
		PG_RETURN_DATUM(CStringGetTextDatum(report.outcome));
	if (command->status == COMMAND_ACKNOWLEDGED)
	{
		bool		same = same_text(command->worker_id, worker_id) && same_text(command->protocol, protocol);

		PG_RETURN_DATUM(CStringGetTextDatum(same ? "repeated" : "conflict"));
	}
	if (!command_step_legal(command->status, STEP_ACKNOWLEDGE))
		PG_RETURN_DATUM(CStringGetTextDatum("terminal"));

	now = clock_now();
	values[0] = CStringGetTextDatum(report.tenant_id);
	values[1] = CStringGetTextDatum(report.command_id);
	values[2] = TimestampTzGetDatum(now);
	nulls[3] = nulls[4] = worker_id == NULL ? 'n' : ' ';
	values[3] = worker_id == NULL ? (Datum) 0 : CStringGetTextDatum(worker_id);
	values[4] = worker_id == NULL ? (Datum) 0 : CStringGetTextDatum(protocol);
	sql_do(&plans[PLAN_ACKNOWLEDGE], values, nulls);
	TEST_POINT("command-before-audit");
	command->worker_id = worker_id;
	command->protocol = protocol;
	command_audit(command, "acknowledged", NULL, command_worker_jsonb(command), now);
	command_count(command->action, "acknowledged");
	PG_RETURN_DATUM(CStringGetTextDatum("acknowledged"));
}

/* The end that the worker reports, in report->command. */
static void
outcome_args(FunctionCallInfo fcinfo, Command *outcome)
{
	char	   *status;

	memset(outcome, 0, sizeof(*outcome));
	if (PG_ARGISNULL(3))
		field_null("status");
	status = text_to_cstring(PG_GETARG_TEXT_PP(3));
	if (!command_status_find(status, &outcome->status) || !command_is_terminal(outcome->status) ||
		outcome->status == COMMAND_CANCELED)
		field_invalid("status", "is not one that a worker reports",
					  "It is succeeded, failed, unsupported, timed_out, partial or unknown.");
	if (!PG_ARGISNULL(4))
		outcome->failure = text_to_cstring(PG_GETARG_TEXT_PP(4));
	if (outcome->status == COMMAND_SUCCEEDED && outcome->failure != NULL)
		field_invalid("failure", "must not be given", "What has succeeded has no failure.");
	if (outcome->status != COMMAND_SUCCEEDED && outcome->failure == NULL)
		field_invalid("failure", "must be given", "It says why, as a code like target_mismatch.");
	/* what is no code may be a secret, and is stored nowhere */
	if (outcome->failure != NULL && !failure_code_valid(outcome->failure))
		outcome->failure = pstrdup(FAILURE_INVALID_RESULT);
	worker_args(fcinfo, 5, 6, &outcome->worker_id, &outcome->protocol);
	outcome->capability_available = PG_ARGISNULL(7) ? -1 : PG_GETARG_BOOL(7);
	/* whatever its clock says: nothing depends on it */
	outcome->worker_completed_at = PG_ARGISNULL(8) ? DT_NOBEGIN : PG_GETARG_TIMESTAMPTZ(8);
	if (!PG_ARGISNULL(8) && TIMESTAMP_NOT_FINITE(outcome->worker_completed_at))
		field_invalid("worker_completed_at", "must be finite", "It is when the worker was done, as it says; NULL is nothing.");
}

/* A worker that is not named is the one that is known. */
static bool
is_same_end(const Command *stored, const Command *outcome)
{
	return stored->status == outcome->status && same_text(stored->failure, outcome->failure) &&
		(outcome->worker_id == NULL || same_text(stored->worker_id, outcome->worker_id)) &&
		(outcome->protocol == NULL || same_text(stored->protocol, outcome->protocol)) &&
		stored->capability_available == outcome->capability_available &&
		stored->worker_completed_at == outcome->worker_completed_at;
}

PG_FUNCTION_INFO_V1(reconcile_complete_command);
Datum
reconcile_complete_command(PG_FUNCTION_ARGS)
{
	Report		report = {0};
	Command    *command = &report.command;
	Command		outcome;

	outcome_args(fcinfo, &outcome);
	if (!report_begin(fcinfo, &report, "complete_command", "complete"))
		PG_RETURN_DATUM(CStringGetTextDatum(report.outcome));
	if (command_is_terminal(command->status) && is_same_end(command, &outcome))
		PG_RETURN_DATUM(CStringGetTextDatum("repeated"));
	if (!command_step_legal(command->status, STEP_COMPLETE))
	{
		/* his claim had lapsed: what he knows is kept beside it */
		if (command->status == COMMAND_UNKNOWN)
			resolution_late_report(command, &outcome);
		PG_RETURN_DATUM(CStringGetTextDatum("terminal"));
	}

	command->status = outcome.status;
	command->failure = outcome.failure;
	if (outcome.worker_id != NULL)
	{
		command->worker_id = outcome.worker_id;
		command->protocol = outcome.protocol;
	}
	command->capability_available = outcome.capability_available;
	command->worker_completed_at = outcome.worker_completed_at;
	(void) command_end(command, NULL, 0, true);
	PG_RETURN_DATUM(CStringGetTextDatum("completed"));
}

/* ----------------------------------------------------------------
 * Who gave it
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_cancel_command);
Datum
reconcile_cancel_command(PG_FUNCTION_ARGS)
{
	char	   *tenant_id;
	char	   *command_id;
	char	   *reason;
	Command		command;
	int64		floor = 0;
	uint64		rights;

	require_writable("cancel_command");
	require_read_committed("cancel_command");
	tenant_id = identity_field(fcinfo, 0, "tenant_id");
	command_id = identity_field(fcinfo, 1, "command_id");
	reason = command_reason_field(fcinfo, 2, "reason");
	rights = access_generation();
	if (!command_read(tenant_id, command_id, &command) || !command_may(&command, command.action))
	{
		command_audit_denied(tenant_id, command_id, "cancel");
		PG_RETURN_DATUM(CStringGetTextDatum("not_found"));
	}
	if (command.desired_revision >= 0)
		floor = desired_enter();
	/* what was granted may have been taken back while it waited */
	if (!command_lock(tenant_id, command_id, &command) ||
		(access_generation() != rights && !command_may(&command, command.action)))
	{
		command_audit_denied(tenant_id, command_id, "cancel");
		PG_RETURN_DATUM(CStringGetTextDatum("not_found"));
	}
	if (command_is_terminal(command.status))
		PG_RETURN_DATUM(CStringGetTextDatum("terminal"));
	if (!command_step_legal(command.status, STEP_CANCEL))
		PG_RETURN_DATUM(CStringGetTextDatum("too_late"));

	command.status = COMMAND_CANCELED;
	command.failure = pstrdup(FAILURE_CANCELED);
	(void) command_end(&command, reason, floor, true);
	PG_RETURN_DATUM(CStringGetTextDatum("canceled"));
}

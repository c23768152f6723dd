/*
 * explain_command.c
 *		explain_command(): where does a command stand, why, and what can be done?
 *
 * The facts are captured first; then questions are asked in order, and the first that
 * has an answer gives it.  Locks nothing, and works on a standby.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/authorize.h"
#include "journal/command.h"

enum
{
	PLAN_FACTS,
	PLAN_DISPATCHERS
};

static SqlPlan plans[] = {
	[PLAN_FACTS] = {
		"SELECT c.mode, c.claimant, c.dispatched_at, c.completed_at, r.verdict, r.source, r.role_name, r.reason"
		" FROM reconcile.command c LEFT JOIN LATERAL (SELECT * FROM reconcile.command_resolution r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) c.tenant_id AND r.command_id OPERATOR(pg_catalog.=) c.command_id"
		" ORDER BY r.source OPERATOR(pg_catalog.=) 'operator' DESC, r.number DESC LIMIT 1) r ON true"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	/* somebody may claim it; who may anything is not asked for */
	[PLAN_DISPATCHERS] = {
		"SELECT FROM reconcile.command_grant g"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) g.role AND r.rolname OPERATOR(pg_catalog.=) g.role_name"
		" WHERE g.tenant_id OPERATOR(pg_catalog.=) $1 AND g.permission OPERATOR(pg_catalog.=) 'dispatch'"
		" AND g.effect OPERATOR(pg_catalog.=) 'allow'"
		" AND (g.target_kind OPERATOR(pg_catalog.=) '' OR g.target_kind OPERATOR(pg_catalog.=) $2)"
		" AND (g.target_name OPERATOR(pg_catalog.=) '' OR g.target_name OPERATOR(pg_catalog.=) $3) LIMIT 1",
		3, {TEXTOID, TEXTOID, TEXTOID}
	}
};

typedef struct Facts
{
	Command		command;
	TimestampTz now;
	char	   *claimant;
	TimestampTz dispatched_at;
	TimestampTz completed_at;
	char	   *verdict;		/* of the resolution that counts; NULL = none */
	char	   *source;
	char	   *resolver;
	char	   *resolution_reason;
	bool		dispatchers;	/* somebody was granted to claim it */
} Facts;

typedef struct Answer
{
	const char *reason;
	TimestampTz until;			/* 0 = not known */
	const char *detail;
	const char *hint;			/* NULL = none */
} Answer;

/* ----------------------------------------------------------------
 * Facts
 * ----------------------------------------------------------------
 */

static TimestampTz
time_of(int column)
{
	bool		isnull;
	Datum		value = sql_value(0, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

static void
capture(Facts *facts)
{
	const Command *command = &facts->command;
	SqlScope	scope;
	Datum		values[3];

	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->command_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_FACTS], values, NULL) > 0)
	{
		bool		isnull;
		Datum		resolver;

		facts->claimant = sql_text(0, 2, scope.outer);
		facts->dispatched_at = time_of(3);
		facts->completed_at = time_of(4);
		facts->verdict = sql_text(0, 5, scope.outer);
		facts->source = sql_text(0, 6, scope.outer);
		resolver = sql_value(0, 7, &isnull);
		if (!isnull)
			facts->resolver = MemoryContextStrdup(scope.outer, NameStr(*DatumGetName(resolver)));
		facts->resolution_reason = sql_text(0, 8, scope.outer);
	}
	values[1] = CStringGetTextDatum(command->target_kind);
	values[2] = CStringGetTextDatum(command->target_name);
	facts->dispatchers = sql_run_latest(&plans[PLAN_DISPATCHERS], values, NULL) > 0;
	sql_end(&scope);
	facts->now = clock_now();
}

/* ----------------------------------------------------------------
 * Questions
 * ----------------------------------------------------------------
 */

static bool
is_overdue(const Facts *facts, Answer *answer)
{
	if (facts->command.status != COMMAND_PENDING || facts->now < facts->command.deadline)
		return false;
	answer->reason = "overdue";
	answer->detail = psprintf("Nobody claimed it by its deadline, %s, and nobody can any more.",
							  timestamptz_to_str(facts->command.deadline));
	answer->hint = "The next reconcile.sweep_commands() makes it canceled.";
	return true;
}

static bool
has_no_dispatcher(const Facts *facts, Answer *answer)
{
	if (facts->command.status != COMMAND_PENDING || facts->dispatchers)
		return false;
	answer->reason = "no_dispatcher";
	answer->until = facts->command.deadline;
	answer->detail = "It waits to be claimed, and no role was granted to claim it.";
	answer->hint = psprintf("reconcile.grant_command() with the permission \"%s\" gives one.", PERMISSION_DISPATCH);
	return true;
}

static bool
is_pending(const Facts *facts, Answer *answer)
{
	if (facts->command.status != COMMAND_PENDING)
		return false;
	answer->reason = "waiting_for_claim";
	answer->until = facts->command.deadline;
	answer->detail = "It waits for somebody who claims it.";
	answer->hint = "reconcile.claim_commands() claims it, and reconcile.cancel_command() takes it back.";
	return true;
}

static bool
is_lapsed(const Facts *facts, Answer *answer)
{
	if (command_is_terminal(facts->command.status) || facts->now < facts->command.claim_expires_at)
		return false;
	answer->reason = "claim_lapsed";
	answer->detail = psprintf("\"%s\" claimed it at %s and has not reported, and its claim is over.",
							  facts->claimant, timestamptz_to_str(facts->dispatched_at));
	answer->hint = "Its report still counts before the next reconcile.sweep_commands(), which makes it unknown.";
	return true;
}

static bool
is_claimed(const Facts *facts, Answer *answer)
{
	if (command_is_terminal(facts->command.status))
		return false;
	answer->reason = "claimed";
	answer->until = facts->command.claim_expires_at;
	answer->detail = psprintf("\"%s\" claimed it at %s and has %s.", facts->claimant,
							  timestamptz_to_str(facts->dispatched_at),
							  facts->command.status == COMMAND_ACKNOWLEDGED ? "acknowledged it" : "not reported yet");
	answer->hint = "It cannot be canceled any more: it may be taking effect.";
	return true;
}

static bool
is_resolved(const Facts *facts, Answer *answer)
{
	if (facts->command.status != COMMAND_UNKNOWN || facts->verdict == NULL)
		return false;
	answer->reason = "resolved";
	answer->detail = strcmp(facts->source, "operator") == 0 ?
		psprintf("Its outcome was unknown; \"%s\" resolved it as %s: %s", facts->resolver, facts->verdict, facts->resolution_reason) :
		psprintf("Its outcome was unknown; its worker reported %s after that.", facts->verdict);
	return true;
}

static bool
is_unknown(const Facts *facts, Answer *answer)
{
	if (facts->command.status != COMMAND_UNKNOWN)
		return false;
	answer->reason = "unknown";
	answer->detail = psprintf("It was given out and may have taken effect or not: %s.", facts->command.failure);
	answer->hint = "Look at its target, and call reconcile.resolve_command(). It is never given out again; whoever wants it done gives another command.";
	return true;
}

static bool
is_over(const Facts *facts, Answer *answer)
{
	answer->reason = facts->command.failure != NULL ? facts->command.failure : "done";
	answer->detail = psprintf("It is %s since %s.", command_status_name(facts->command.status),
							  timestamptz_to_str(facts->completed_at));
	return true;
}

static bool (*const questions[]) (const Facts *facts, Answer *answer) = {
	is_overdue, has_no_dispatcher, is_pending, is_lapsed, is_claimed, is_resolved, is_unknown, is_over
};

PG_FUNCTION_INFO_V1(reconcile_explain_command);
Datum
reconcile_explain_command(PG_FUNCTION_ARGS)
{
	char	   *tenant_id = identity_field(fcinfo, 0, "tenant_id");
	char	   *command_id = identity_field(fcinfo, 1, "command_id");
	AccessRequest request = {.permission = PERMISSION_VIEW};
	Facts		facts = {0};
	Answer		answer = {0};
	Datum		values[5];
	bool		nulls[5] = {false};
	int			i = 0;

	request.tenant_id = tenant_id;
	if (command_read(tenant_id, command_id, &facts.command))
	{
		request.target_kind = facts.command.target_kind;
		request.target_name = facts.command.target_name;
	}
	/* what is not there and what is not the caller's look alike: no row */
	if (request.target_kind == NULL || !command_allowed(&request))
	{
		InitMaterializedSRF(fcinfo, 0);
		return (Datum) 0;
	}
	capture(&facts);
	/* the last one always answers */
	while (!questions[i] (&facts, &answer))
		i++;
	values[0] = CStringGetTextDatum(command_status_name(facts.command.status));
	values[1] = CStringGetTextDatum(answer.reason);
	values[2] = TimestampTzGetDatum(answer.until);
	nulls[2] = answer.until == 0;
	values[3] = CStringGetTextDatum(answer.detail);
	values[4] = text_or_null(answer.hint, &nulls[4]);
	return return_one_row(fcinfo, values, nulls);
}

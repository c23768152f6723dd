/*
 * resolution.c
 *		What becomes known of commands whose outcome is unknown: an operator's verdict, and
 *		reports of workers that come after their claim.
 *
 * The command's own row stays as it is: that it was unknown is true for ever.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/count.h"
#include "journal/lifecycle.h"
#include "journal/resolution.h"

#define EVIDENCE_MAX	65536	/* bytes */

enum
{
	PLAN_LAST,
	PLAN_ADD
};

static SqlPlan plans[] = {
	[PLAN_LAST] = {
		"SELECT r.number, r.verdict, r.failure, r.evidence, r.source OPERATOR(pg_catalog.=) $3,"
		" (SELECT pg_catalog.max(a.number) FROM reconcile.command_resolution a"
		" WHERE a.tenant_id OPERATOR(pg_catalog.=) $1 AND a.command_id OPERATOR(pg_catalog.=) $2)"
		" FROM reconcile.command_resolution r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) $1 AND r.command_id OPERATOR(pg_catalog.=) $2"
		" ORDER BY r.source OPERATOR(pg_catalog.=) $3 DESC, r.number DESC LIMIT 1",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_ADD] = {
		"INSERT INTO reconcile.command_resolution (tenant_id, command_id, number, source, verdict, failure, evidence,"
		" reason, role_name, resolved_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		10, {TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, TEXTOID, NAMEOID, TIMESTAMPTZOID}
	}
};

typedef struct Resolution
{
	const char *source;			/* operator, worker */
	const char *verdict;
	const char *failure;		/* NULL: none */
	Jsonb	   *evidence;
	const char *reason;
} Resolution;

static bool
same_jsonb(Jsonb *a, Jsonb *b)
{
	return compareJsonbContainers(&a->root, &b->root) == 0;
}

static Jsonb *
resolution_jsonb(int number, const char *verdict, const Jsonb *evidence)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_int(&build, "number", number);
	jsonb_add_text(&build, "verdict", verdict);
	jsonb_add(&build, "evidence", evidence);
	return jsonb_end(&build);
}

/* Adds it, unless the last one of its source says the same; with the command's row locked. */
static bool
add(const Command *command, const Resolution *resolution, const char *event)
{
	TimestampTz now = clock_now();
	SqlScope	scope;
	Datum		values[10];
	char		nulls[10] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	int			number = 1;
	bool		repeated = false;

	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->command_id);
	values[2] = CStringGetTextDatum(resolution->source);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_LAST], values, NULL) > 0)
	{
		bool		isnull;
		Datum		failure = sql_value(0, 3, &isnull);

		number = DatumGetInt32(sql_value(0, 6, NULL)) + 1;
		repeated = strcmp(TextDatumGetCString(sql_value(0, 2, NULL)), resolution->verdict) == 0 &&
			(isnull ? resolution->failure == NULL :
			 resolution->failure != NULL && strcmp(TextDatumGetCString(failure), resolution->failure) == 0) &&
			DatumGetBool(sql_value(0, 5, NULL)) &&
			same_jsonb(DatumGetJsonbP(sql_value(0, 4, NULL)), resolution->evidence);
	}
	if (!repeated)
	{
		values[2] = Int32GetDatum(number);
		values[3] = CStringGetTextDatum(resolution->source);
		values[4] = CStringGetTextDatum(resolution->verdict);
		nulls[5] = resolution->failure == NULL ? 'n' : ' ';
		values[5] = resolution->failure == NULL ? (Datum) 0 : CStringGetTextDatum(resolution->failure);
		values[6] = JsonbPGetDatum(resolution->evidence);
		values[7] = CStringGetTextDatum(resolution->reason);
		values[8] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(scope.userid, false)));
		values[9] = TimestampTzGetDatum(now);
		sql_run_latest(&plans[PLAN_ADD], values, nulls);
	}
	sql_end(&scope);
	if (!repeated)
	{
		Command		said = *command;

		said.failure = unconstify(char *, resolution->failure);
		command_audit(&said, event, resolution->reason, resolution_jsonb(number, resolution->verdict, resolution->evidence), now);
		command_count(command->action, event);
	}
	return !repeated;
}

/* What the worker said of itself; {} for nothing. */
static Jsonb *
worker_evidence(const Command *outcome)
{
	Jsonb	   *evidence = command_worker_jsonb(outcome);
	JsonbBuild	build;

	if (evidence != NULL)
		return evidence;
	jsonb_begin(&build);
	return jsonb_end(&build);
}

void
resolution_late_report(const Command *command, const Command *outcome)
{
	Resolution	resolution = {
		.source = "worker",
		.verdict = command_status_name(outcome->status),
		.failure = outcome->failure,
		.evidence = worker_evidence(outcome),
		.reason = "reported after its outcome was unknown"
	};

	/* that is known already */
	if (outcome->status == COMMAND_UNKNOWN)
		return;

	(void) add(command, &resolution, "reported_late");
}

PG_FUNCTION_INFO_V1(reconcile_resolve_command);
Datum
reconcile_resolve_command(PG_FUNCTION_ARGS)
{
	static const char *const verdicts[] = {"succeeded", "failed", "partial", "not_executed"};
	char	   *tenant_id;
	char	   *command_id;
	char	   *verdict;
	bool		known = false;
	Resolution	resolution = {.source = "operator"};
	Command		command;
	uint64		rights;

	require_writable("resolve_command");
	require_read_committed("resolve_command");
	tenant_id = identity_field(fcinfo, 0, "tenant_id");
	command_id = identity_field(fcinfo, 1, "command_id");
	if (PG_ARGISNULL(2))
		field_null("verdict");
	verdict = text_to_cstring(PG_GETARG_TEXT_PP(2));
	for (int i = 0; i < lengthof(verdicts); i++)
		known |= strcmp(verdicts[i], verdict) == 0;
	if (!known)
		field_invalid("verdict", "is not a verdict", "It is succeeded, failed, partial or not_executed.");
	if (PG_ARGISNULL(3))
		field_null("evidence");
	resolution.evidence = PG_GETARG_JSONB_P(3);
	if (!JB_ROOT_IS_OBJECT(resolution.evidence) || JB_ROOT_COUNT(resolution.evidence) == 0)
		field_invalid("evidence", "must be an object that is not empty", "It says how the verdict is known.");
	if (VARSIZE(resolution.evidence) > EVIDENCE_MAX)
		field_invalid("evidence", "is too long", "It is at most 64 kB.");
	resolution.reason = command_reason_field(fcinfo, 4, "reason");
	resolution.verdict = verdict;

	rights = access_generation();
	/* what was granted may have been taken back while it waited for the row */
	if (!command_read(tenant_id, command_id, &command) || !command_may(&command, PERMISSION_RESOLVE) ||
		!command_lock(tenant_id, command_id, &command) ||
		(access_generation() != rights && !command_may(&command, PERMISSION_RESOLVE)))
	{
		command_audit_denied(tenant_id, command_id, "resolve");
		PG_RETURN_DATUM(CStringGetTextDatum("not_found"));
	}
	if (command.status != COMMAND_UNKNOWN)
		PG_RETURN_DATUM(CStringGetTextDatum("not_unknown"));
	PG_RETURN_DATUM(CStringGetTextDatum(add(&command, &resolution, "resolved") ? "resolved" : "repeated"));
}

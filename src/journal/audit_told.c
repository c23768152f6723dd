/*
 * audit_told.c
 *		Are commands and resolutions as the events of their steps have them?
 *
 * Both ways: what is there has its events, and what the events tell is there.  What
 * is missing may have been pruned: from the oldest event on, and of what is finished
 * alone.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "core/plan.h"
#include "journal/audit_chain.h"
#include "journal/audit_verify.h"
#include "journal/command.h"
#include "journal/lifecycle.h"

enum
{
	PLAN_COMMANDS,
	PLAN_RESOLUTIONS,
	PLAN_UNRESOLVED,
	PLAN_MISSING
};

#define ENDS "'{succeeded,failed,unsupported,timed_out,partial,unknown,canceled}'::pg_catalog.text[]"

#define OF_COMMAND \
	"x.tenant_id OPERATOR(pg_catalog.=) c.tenant_id AND x.command_id OPERATOR(pg_catalog.=) c.command_id"

#define OF_RESOLUTION \
	"e.tenant_id OPERATOR(pg_catalog.=) r.tenant_id AND e.command_id OPERATOR(pg_catalog.=) r.command_id" \
	" AND ((r.source OPERATOR(pg_catalog.=) 'operator' AND e.event OPERATOR(pg_catalog.=) 'resolved')" \
	" OR (r.source OPERATOR(pg_catalog.=) 'worker' AND e.event OPERATOR(pg_catalog.=) 'reported_late'))"

static SqlPlan plans[] = {
	/* each with the event of its admission and that of its end, and whether the others fit */
	[PLAN_COMMANDS] = {
		"SELECT " COMMAND_COLUMNS ", c.completed_at, c.accepted_at, c.mode, c.confirmed, c.capability, c.requested_at,"
		" c.role_name, a.sequence, a.happened_at, a.role_name, a.fingerprint, a.action, a.target_kind, a.target_name,"
		" a.actor, a.authentication_method, a.options, a.reason, a.idempotency_key, a.detail,"
		" e.sequence, e.happened_at, e.failure, e.detail, k.detail,"
		/* what is made pending again would be given out again */
		" (c.completed_at IS NOT NULL OR c.status OPERATOR(pg_catalog.=) CASE WHEN c.acknowledged_at IS NOT NULL"
		"  THEN 'acknowledged' WHEN c.dispatched_at IS NOT NULL THEN 'dispatched' ELSE 'pending' END)"
		" AND pg_catalog.num_nonnulls(c.dispatched_at, c.claimant, c.claim_token, c.claim_expires_at, c.claim_xid)"
		"  OPERATOR(pg_catalog.=) CASE WHEN c.dispatched_at IS NULL THEN 0 ELSE 5 END"
		" AND (a.sequence IS NOT NULL OR (c.completed_at IS NOT NULL AND c.accepted_at OPERATOR(pg_catalog.<=) h.pruned_through))"
		" AND (c.completed_at IS NULL OR e.sequence IS NOT NULL"
		"  OR (a.sequence IS NULL AND c.completed_at OPERATOR(pg_catalog.<=) h.pruned_through))"
		" AND (c.dispatched_at IS NULL OR c.dispatched_at OPERATOR(pg_catalog.<=) h.pruned_through"
		"  OR EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND x.event OPERATOR(pg_catalog.=) 'dispatched'))"
		" AND (c.acknowledged_at IS NULL OR c.acknowledged_at OPERATOR(pg_catalog.<=) h.pruned_through"
		"  OR EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND x.event OPERATOR(pg_catalog.=) 'acknowledged'))"
		" AND NOT EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND ("
		"  (x.event OPERATOR(pg_catalog.=) 'dispatched' AND (c.dispatched_at IS NULL"
		"   OR x.happened_at OPERATOR(pg_catalog.<>) c.dispatched_at"
		"   OR (x.detail OPERATOR(pg_catalog.->>) 'claimant') IS DISTINCT FROM c.claimant))"
		"  OR (x.event OPERATOR(pg_catalog.=) 'acknowledged' AND (c.acknowledged_at IS NULL"
		"   OR x.happened_at OPERATOR(pg_catalog.<>) c.acknowledged_at))"
		"  OR (x.event OPERATOR(pg_catalog.=) ANY (" ENDS ") AND x.event OPERATOR(pg_catalog.<>) c.status)))"
		" AND NOT EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND
		"  AND x.event OPERATOR(pg_catalog.=) ANY ('{accepted,dispatched,acknowledged}'::pg_catalog.text[] OPERATOR(pg_catalog.||) " ENDS ")"
		"  GROUP BY x.event HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1)"
		" FROM reconcile.command c LEFT JOIN reconcile.audit_head h ON h.tenant_id OPERATOR(pg_catalog.=) c.tenant_id"
		" LEFT JOIN LATERAL (SELECT x.* FROM reconcile.audit_event x WHERE " OF_COMMAND
		"  AND x.event OPERATOR(pg_catalog.=) 'accepted' ORDER BY x.sequence LIMIT 1) a ON true"
		" LEFT JOIN LATERAL (SELECT x.* FROM reconcile.audit_event x WHERE " OF_COMMAND
		"  AND x.event OPERATOR(pg_catalog.=) c.status AND c.completed_at IS NOT NULL ORDER BY x.sequence LIMIT 1) e ON true"
		" LEFT JOIN LATERAL (SELECT x.* FROM reconcile.audit_event x WHERE " OF_COMMAND
		"  AND x.event OPERATOR(pg_catalog.=) 'acknowledged' ORDER BY x.sequence LIMIT 1) k ON true"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.>) $2"
		" ORDER BY c.command_id LIMIT $3",
		3, {TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_RESOLUTIONS] = {
		"SELECT r.command_id FROM reconcile.command_resolution r WHERE r.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND NOT EXISTS (SELECT FROM reconcile.audit_event e WHERE " OF_RESOLUTION
		"  AND e.happened_at OPERATOR(pg_catalog.=) r.resolved_at AND e.reason OPERATOR(pg_catalog.=) r.reason"
		"  AND e.role_name OPERATOR(pg_catalog.=) r.role_name"
		"  AND (e.failure OPERATOR(pg_catalog.=) r.failure OR (e.failure IS NULL AND r.failure IS NULL))"
		"  AND e.detail OPERATOR(pg_catalog.=) pg_catalog.jsonb_build_object('number', r.number, 'verdict', r.verdict,"
		"   'evidence', r.evidence))"
		" AND NOT (EXISTS (SELECT FROM reconcile.audit_head h WHERE h.tenant_id OPERATOR(pg_catalog.=) r.tenant_id"
		"  AND r.resolved_at OPERATOR(pg_catalog.<=) h.pruned_through)"
		"  AND NOT EXISTS (SELECT FROM reconcile.audit_event e WHERE " OF_RESOLUTION
		"   AND (e.detail OPERATOR(pg_catalog.->) 'number') OPERATOR(pg_catalog.=) pg_catalog.to_jsonb(r.number)))"
		" ORDER BY r.command_id LIMIT 1",
		1, {TEXTOID}
	},
	/* what was resolved without its resolution */
	[PLAN_UNRESOLVED] = {
		"SELECT e.command_id FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND e.event OPERATOR(pg_catalog.=) ANY ('{resolved,reported_late}')"
		" AND NOT EXISTS (SELECT FROM reconcile.command_resolution r WHERE " OF_RESOLUTION
		"  AND (e.detail OPERATOR(pg_catalog.->) 'number') OPERATOR(pg_catalog.=) pg_catalog.to_jsonb(r.number))"
		" ORDER BY e.sequence LIMIT 1",
		1, {TEXTOID}
	},
	/* a step without its command */
	[PLAN_MISSING] = {
		"SELECT e.command_id FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND e.command_id IS NOT NULL"
		" AND NOT EXISTS (SELECT FROM reconcile.command c WHERE c.tenant_id OPERATOR(pg_catalog.=) e.tenant_id"
		"  AND c.command_id OPERATOR(pg_catalog.=) e.command_id)"
		" ORDER BY e.sequence LIMIT 1",
		1, {TEXTOID}
	}
};

static bool
is_text(int row, int column, const char *value)
{
	bool		isnull;
	Datum		datum = sql_value(row, column, &isnull);

	return isnull ? value == NULL : value != NULL && strcmp(TextDatumGetCString(datum), value) == 0;
}

static bool
is_jsonb(int row, int column, const Jsonb *value)
{
	bool		isnull;
	Datum		datum = sql_value(row, column, &isnull);

	if (isnull || value == NULL)
		return isnull && value == NULL;
	return compareJsonbContainers(&DatumGetJsonbP(datum)->root, unconstify(JsonbContainer *, &value->root)) == 0;
}

/* Columns of PLAN_COMMANDS behind those of the command. */
enum
{
	COL_COMPLETED_AT = COMMAND_NCOLUMNS + 1,
	COL_ACCEPTED_AT,
	COL_MODE,
	COL_CONFIRMED,
	COL_CAPABILITY,
	COL_REQUESTED_AT,
	COL_ROLE_NAME,
	/* of the event of its admission */
	COL_A_SEQUENCE,
	COL_A_HAPPENED_AT,
	COL_A_ROLE_NAME,
	COL_A_FINGERPRINT,
	COL_A_ACTION,
	COL_A_TARGET_KIND,
	COL_A_TARGET_NAME,
	COL_A_ACTOR,
	COL_A_AUTHENTICATION_METHOD,
	COL_A_OPTIONS,
	COL_A_REASON,
	COL_A_IDEMPOTENCY_KEY,
	COL_A_DETAIL,
	/* of that of its end */
	COL_E_SEQUENCE,
	COL_E_HAPPENED_AT,
	COL_E_FAILURE,
	COL_E_DETAIL,
	/* of that of its acknowledgement */
	COL_K_DETAIL,
	/* do the others fit? */
	COL_FITS
};

static bool
is_there(int n, int column)
{
	bool		isnull;

	(void) sql_value(n, column, &isnull);
	return !isnull;
}

static bool
is_fingerprint(int n, int column, const uint8 *expected)
{
	bool		isnull;
	Datum		value = sql_value(n, column, &isnull);
	uint8		fingerprint[DIGEST_BYTES];

	return !isnull && audit_hash_copy(value, fingerprint) && memcmp(fingerprint, expected, DIGEST_BYTES) == 0;
}

/* Is what was commanded what is told of its admission? */
static bool
is_as_accepted(int n, const Command *command)
{
	char	   *mode = TextDatumGetCString(sql_value(n, COL_MODE, NULL));
	char	   *capability = TextDatumGetCString(sql_value(n, COL_CAPABILITY, NULL));
	bool		unsaid;
	Datum		requested_at = sql_value(n, COL_REQUESTED_AT, &unsaid);
	CommandTerms terms = {
		.mode = mode,
		.confirmed = DatumGetBool(sql_value(n, COL_CONFIRMED, NULL)),
		.capability = capability,
		.requested_at = unsaid ? DT_NOBEGIN : DatumGetTimestampTz(requested_at),
		.deadline = command->deadline,
		.desired_revision = command->desired_revision
	};

	return DatumGetTimestampTz(sql_value(n, COL_A_HAPPENED_AT, NULL)) == DatumGetTimestampTz(sql_value(n, COL_ACCEPTED_AT, NULL)) &&
		namestrcmp(DatumGetName(sql_value(n, COL_A_ROLE_NAME, NULL)), NameStr(*DatumGetName(sql_value(n, COL_ROLE_NAME, NULL)))) == 0 &&
		is_fingerprint(n, COL_A_FINGERPRINT, command->fingerprint) &&
		is_text(n, COL_A_ACTION, command->action) &&
		is_text(n, COL_A_TARGET_KIND, command->target_kind) &&
		is_text(n, COL_A_TARGET_NAME, command->target_name) &&
		is_text(n, COL_A_ACTOR, command->actor) &&
		is_text(n, COL_A_AUTHENTICATION_METHOD, command->authentication_method) &&
		is_jsonb(n, COL_A_OPTIONS, command->options) &&
		is_text(n, COL_A_REASON, command->reason) &&
		is_text(n, COL_A_IDEMPOTENCY_KEY, command->idempotency_key) &&
		is_jsonb(n, COL_A_DETAIL, command_terms_jsonb(&terms));
}

/* Is what became of it what is told of its end? */
static bool
is_as_ended(int n, const Command *command)
{
	bool		local = strcmp(TextDatumGetCString(sql_value(n, COL_MODE, NULL)), "local") == 0;

	return DatumGetTimestampTz(sql_value(n, COL_E_HAPPENED_AT, NULL)) == DatumGetTimestampTz(sql_value(n, COL_COMPLETED_AT, NULL)) &&
		is_text(n, COL_E_FAILURE, command->failure) &&
		/* of a local action the event has something of its own */
		(local ? command_worker_jsonb(command) == NULL : is_jsonb(n, COL_E_DETAIL, command_worker_jsonb(command)));
}

/* Until its end it has what its acknowledgement said of the worker, if there was one. */
static bool
is_as_acknowledged(int n, const Command *command)
{
	return is_jsonb(n, COL_K_DETAIL, command_worker_jsonb(command));
}

/* The command in row n, beside what is told of it. */
static bool
is_as_told(int n, const Command *command)
{
	bool		unsaid;
	Datum		fits = sql_value(n, COL_FITS, &unsaid);

	/* where nothing was pruned the condition may be NULL */
	return !unsaid && DatumGetBool(fits) &&
		(!is_there(n, COL_A_SEQUENCE) || is_as_accepted(n, command)) &&
		(is_there(n, COL_COMPLETED_AT) || is_as_acknowledged(n, command)) &&
		(!is_there(n, COL_E_SEQUENCE) || is_as_ended(n, command));
}

static void
verify_commands(Verify *verify)
{
	char	   *after = "";
	Datum		values[3];
	uint64		n;

	values[0] = CStringGetTextDatum(verify->tenant_id);
	do
	{
		SqlScope	scope;
		MemoryContext row_context;

		CHECK_FOR_INTERRUPTS();
		values[1] = CStringGetTextDatum(after);
		values[2] = Int32GetDatum(AUDIT_VERIFY_PAGE);
		sql_begin(&scope);
		n = sql_run_snapshot(&plans[PLAN_COMMANDS], values, NULL, verify->snapshot);
		row_context = AllocSetContextCreate(CurrentMemoryContext, "reconcile command", ALLOCSET_DEFAULT_SIZES);
		for (uint64 i = 0; i < n; i++)
		{
			MemoryContext context = MemoryContextSwitchTo(row_context);
			Command		command;

			command_from_row(i, row_context, &command);
			if (i == n - 1)
				after = MemoryContextStrdup(scope.outer, command.command_id);
			if (!is_as_told(i, &command))
				verify_found(verify, "command_changed", 0,
					  MemoryContextStrdup(scope.outer,
										  psprintf("Command \"%s\" is not as its events have it.", command.command_id)));
			MemoryContextSwitchTo(context);
			MemoryContextReset(row_context);
		}
		sql_end(&scope);
	} while (n == AUDIT_VERIFY_PAGE && verify->outcome == NULL);
}

static void
verify_one(Verify *verify, int plan, const char *outcome, const char *problem)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(verify->tenant_id);

	sql_begin(&scope);
	if (sql_run_snapshot(&plans[plan], &value, NULL, verify->snapshot) > 0)
		verify_found(verify, outcome, 0,
			  MemoryContextStrdup(scope.outer, psprintf(problem, TextDatumGetCString(sql_value(0, 1, NULL)))));
	sql_end(&scope);
}

void
verify_told(Verify *verify)
{
	verify_commands(verify);
	verify_one(verify, PLAN_RESOLUTIONS, "resolution_changed", "A resolution of command \"%s\" is not as its event has it.");
	verify_one(verify, PLAN_UNRESOLVED, "resolution_changed", "A resolution of command \"%s\" is gone.");
	verify_one(verify, PLAN_MISSING, "command_missing", "Command \"%s\" was accepted, and is gone.");
}

/*
 * audit_verify.c
 *		Is the audit of a tenant what was written, from its beginning to its end?
 *
 * Three questions, in one snapshot.  The chain: each event after the anchor has its
 * place and the hash that follows from the one before.  Its end: it is where the head
 * says, and has what an exported head says, so that a tail that was cut is missed.
 * What it tells of: each command that is over, and each resolution, is as its event
 * has it, so that a row is found that was changed past its trigger.
 *
 * Who can write all of the tables can make a chain that is whole.  Only a head that
 * was kept elsewhere tells.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/audit.h"
#include "journal/audit_chain.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/lifecycle.h"
#include "journal/resolution.h"

#define PAGE	1000

enum
{
	PLAN_HEAD,
	PLAN_EVENTS,
	PLAN_BEYOND,
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
	[PLAN_HEAD] = {
		"SELECT h.sequence, h.hash, h.anchor_sequence, h.anchor_hash FROM reconcile.audit_head h"
		" WHERE h.tenant_id OPERATOR(pg_catalog.=) $1",
		1, {TEXTOID}
	},
	[PLAN_EVENTS] = {
		"SELECT " AUDIT_COLUMNS ", hash FROM reconcile.audit_event"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND sequence OPERATOR(pg_catalog.>) $2 ORDER BY sequence LIMIT $3",
		3, {TEXTOID, INT8OID, INT4OID}
	},
	/* at or below the anchor nothing is left */
	[PLAN_BEYOND] = {
		"SELECT e.sequence FROM reconcile.audit_event e"
		" WHERE e.tenant_id OPERATOR(pg_catalog.=) $1 AND e.sequence OPERATOR(pg_catalog.<=) $2"
		" ORDER BY e.sequence LIMIT 1",
		2, {TEXTOID, INT8OID}
	},
	/*
	 * Each with the event of its admission and that of its end, and whether the
	 * others fit.  What is missing may have been pruned: from the oldest on, and of
	 * what is finished alone.
	 */
	[PLAN_COMMANDS] = {
		"SELECT " COMMAND_COLUMNS ", c.completed_at, c.accepted_at, c.mode, c.confirmed, c.capability, c.requested_at,"
		" c.role_name, a.sequence, a.happened_at, a.role_name, a.fingerprint, a.action, a.target_kind, a.target_name,"
		" a.actor, a.authentication_method, a.options, a.reason, a.idempotency_key, a.detail,"
		" e.sequence, e.happened_at, e.failure, e.detail,"
		" (a.sequence IS NOT NULL OR (c.completed_at IS NOT NULL AND c.accepted_at OPERATOR(pg_catalog.<=) h.pruned_through))"
		" AND (c.completed_at IS NULL OR e.sequence IS NOT NULL"
		"  OR (a.sequence IS NULL AND c.completed_at OPERATOR(pg_catalog.<=) h.pruned_through))"
		" AND (c.dispatched_at IS NULL OR c.dispatched_at OPERATOR(pg_catalog.<=) h.pruned_through"
		"  OR EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND x.event OPERATOR(pg_catalog.=) 'dispatched'))"
		" AND (c.acknowledged_at IS NULL OR c.acknowledged_at OPERATOR(pg_catalog.<=) h.pruned_through"
		"  OR EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND x.event OPERATOR(pg_catalog.=) 'acknowledged'))"
		" AND NOT EXISTS (SELECT FROM reconcile.audit_event x WHERE " OF_COMMAND " AND ("
		"  (x.event OPERATOR(pg_catalog.=) 'dispatched' AND (c.dispatched_at IS NULL"
		"   OR x.happened_at OPERATOR(pg_catalog.<>) c.dispatched_at"
		"   OR (x.detail OPERATOR(pg_catalog.->>) 'claimant') OPERATOR(pg_catalog.<>) c.claimant))"
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

typedef struct Verify
{
	const char *tenant_id;
	Snapshot	snapshot;
	/* the head as it is stored */
	int64		sequence;
	uint8		hash[DIGEST_BYTES];
	int64		anchor;
	uint8		anchor_hash[DIGEST_BYTES];
	/* the head that the caller has kept; 0 = none */
	int64		kept_sequence;
	uint8		kept_hash[DIGEST_BYTES];
	bool		kept_met;
	/* the answer */
	const char *outcome;		/* NULL: nothing is wrong so far */
	const char *detail;
	int64		bad_sequence;	/* 0 = of none */
	int64		events;
} Verify;

static void
found(Verify *verify, const char *outcome, int64 sequence, const char *detail)
{
	if (verify->outcome != NULL)
		return;
	verify->outcome = outcome;
	verify->bad_sequence = sequence;
	verify->detail = detail;
}

/* ----------------------------------------------------------------
 * The chain
 * ----------------------------------------------------------------
 */

static void
read_head(Verify *verify)
{
	static const uint8 nothing[DIGEST_BYTES] = {0};
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(verify->tenant_id);

	memcpy(verify->hash, nothing, DIGEST_BYTES);
	memcpy(verify->anchor_hash, nothing, DIGEST_BYTES);
	sql_begin(&scope);
	if (sql_run_snapshot(&plans[PLAN_HEAD], &value, NULL, verify->snapshot) > 0)
	{
		verify->sequence = DatumGetInt64(sql_value(0, 1, NULL));
		(void) audit_hash_copy(sql_value(0, 2, NULL), verify->hash);
		verify->anchor = DatumGetInt64(sql_value(0, 3, NULL));
		(void) audit_hash_copy(sql_value(0, 4, NULL), verify->anchor_hash);
	}
	sql_end(&scope);
}

static void
meet_kept(Verify *verify, int64 sequence, const uint8 *hash)
{
	/* 0 is of a tenant of which there was nothing yet */
	if (sequence == 0 || sequence != verify->kept_sequence)
		return;
	verify->kept_met = true;
	if (memcmp(hash, verify->kept_hash, DIGEST_BYTES) != 0)
		found(verify, "forked", sequence, "The event has another hash than the head that was kept.");
}

/* One event; false: what follows cannot be judged any more. */
static bool
verify_event(Verify *verify, const AuditRow *row, int64 *sequence, uint8 *hash)
{
	uint8		expected[DIGEST_BYTES];

	if (row->sequence != *sequence + 1)
	{
		found(verify, "gap", *sequence + 1, "The event is gone.");
		return false;
	}
	if (row->hash_version != AUDIT_HASH_VERSION)
	{
		found(verify, "unknown_version", row->sequence, "The version of its hash is none that this library knows.");
		return false;
	}
	audit_row_hash(row, hash, expected);
	if (memcmp(expected, row->hash, DIGEST_BYTES) != 0)
	{
		found(verify, "changed", row->sequence, "The event, or one before it, is not what was written.");
		return false;
	}
	*sequence = row->sequence;
	memcpy(hash, row->hash, DIGEST_BYTES);
	verify->events++;
	meet_kept(verify, *sequence, hash);
	return true;
}

static void
verify_chain(Verify *verify)
{
	int64		sequence = verify->anchor;
	uint8		hash[DIGEST_BYTES];
	Datum		values[3];
	uint64		n;
	bool		whole = true;

	memcpy(hash, verify->anchor_hash, DIGEST_BYTES);
	meet_kept(verify, sequence, hash);
	values[0] = CStringGetTextDatum(verify->tenant_id);
	do
	{
		SqlScope	scope;

		CHECK_FOR_INTERRUPTS();
		values[1] = Int64GetDatum(sequence);
		values[2] = Int32GetDatum(PAGE);
		sql_begin(&scope);
		n = sql_run_snapshot(&plans[PLAN_EVENTS], values, NULL, verify->snapshot);
		for (uint64 i = 0; i < n && whole; i++)
		{
			AuditRow	row;

			audit_row_read(i, &row);
			whole = verify_event(verify, &row, &sequence, hash);
		}
		sql_end(&scope);
	} while (whole && n == PAGE);

	if (whole && (sequence != verify->sequence || memcmp(hash, verify->hash, DIGEST_BYTES) != 0))
		found(verify, sequence < verify->sequence ? "cut" : "wrong_head", sequence + 1,
			  "The chain does not end where its head says.");
	if (whole && verify->kept_sequence > sequence)
		found(verify, "cut", verify->kept_sequence, "The chain ends before the head that was kept.");
}

static void
verify_beginning(Verify *verify)
{
	SqlScope	scope;
	Datum		values[2];

	values[0] = CStringGetTextDatum(verify->tenant_id);
	values[1] = Int64GetDatum(verify->anchor);
	sql_begin(&scope);
	if (sql_run_snapshot(&plans[PLAN_BEYOND], values, NULL, verify->snapshot) > 0)
		found(verify, "wrong_head", DatumGetInt64(sql_value(0, 1, NULL)), "The event is from before the beginning of the chain.");
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * What it tells of
 * ----------------------------------------------------------------
 */

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

/* The command in row n, beside what is told of it. */
static bool
is_as_told(int n, const Command *command)
{
	bool		unsaid;
	Datum		fits = sql_value(n, COL_FITS, &unsaid);

	/* where nothing was pruned the condition may be NULL */
	return !unsaid && DatumGetBool(fits) &&
		(!is_there(n, COL_A_SEQUENCE) || is_as_accepted(n, command)) &&
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

		CHECK_FOR_INTERRUPTS();
		values[1] = CStringGetTextDatum(after);
		values[2] = Int32GetDatum(PAGE);
		sql_begin(&scope);
		n = sql_run_snapshot(&plans[PLAN_COMMANDS], values, NULL, verify->snapshot);
		for (uint64 i = 0; i < n; i++)
		{
			Command		command;

			command_from_row(i, CurrentMemoryContext, &command);
			if (i == n - 1)
				after = MemoryContextStrdup(scope.outer, command.command_id);
			if (!is_as_told(i, &command))
				found(verify, "command_changed", 0,
					  MemoryContextStrdup(scope.outer,
										  psprintf("Command \"%s\" is not as its events have it.", command.command_id)));
		}
		sql_end(&scope);
	} while (n == PAGE && verify->outcome == NULL);
}

static void
verify_one(Verify *verify, int plan, const char *outcome, const char *problem)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(verify->tenant_id);

	sql_begin(&scope);
	if (sql_run_snapshot(&plans[plan], &value, NULL, verify->snapshot) > 0)
		found(verify, outcome, 0,
			  MemoryContextStrdup(scope.outer, psprintf(problem, TextDatumGetCString(sql_value(0, 1, NULL)))));
	sql_end(&scope);
}

/* ----------------------------------------------------------------
 * audit_verify()
 * ----------------------------------------------------------------
 */

static void
kept_args(FunctionCallInfo fcinfo, Verify *verify)
{
	if (PG_ARGISNULL(1) != PG_ARGISNULL(2))
		arg_invalid(PG_ARGISNULL(1) ? "head_sequence" : "head_hash", "must be given",
					"A head that was kept has both, or give neither.");
	if (PG_ARGISNULL(1))
		return;
	verify->kept_sequence = PG_GETARG_INT64(1);
	if (verify->kept_sequence < 0)
		arg_invalid("head_sequence", "must not be negative", "It is the head_sequence that was returned before.");
	if (!audit_hash_copy(PG_GETARG_DATUM(2), verify->kept_hash))
		arg_invalid("head_hash", "is no hash", "It is the head_hash that was returned before: 32 bytes.");
}

PG_FUNCTION_INFO_V1(reconcile_audit_verify);
Datum
reconcile_audit_verify(PG_FUNCTION_ARGS)
{
	Verify		verify = {0};
	char	   *tenant_id = identity_field(fcinfo, 0, "tenant_id");
	/* what it answers is of the tenant as a whole */
	AccessRequest request = {tenant_id, PERMISSION_AUDIT_VIEW, "", "", NULL};
	Datum		values[6];
	bool		nulls[6] = {false};

	verify.tenant_id = tenant_id;
	kept_args(fcinfo, &verify);
	if (!command_allowed(&request))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the audit of tenant \"%s\"", tenant_id),
				 errhint("It takes the permission \"%s\" for all of the tenant: see reconcile.grant_command().", PERMISSION_AUDIT_VIEW)));
	verify.snapshot = RegisterSnapshot(GetLatestSnapshot());
	read_head(&verify);
	verify_beginning(&verify);
	verify_chain(&verify);
	if (verify.outcome == NULL)
	{
		verify_commands(&verify);
		verify_one(&verify, PLAN_RESOLUTIONS, "resolution_changed", "A resolution of command \"%s\" is not as its event has it.");
		verify_one(&verify, PLAN_UNRESOLVED, "resolution_changed", "A resolution of command \"%s\" is gone.");
		verify_one(&verify, PLAN_MISSING, "command_missing", "Command \"%s\" was accepted, and is gone.");
	}
	UnregisterSnapshot(verify.snapshot);
	if (verify.kept_sequence > 0 && !verify.kept_met)
		found(&verify, "pruned", verify.kept_sequence, "The head that was kept is older than what is left: it cannot be compared.");

	values[0] = CStringGetTextDatum(verify.outcome != NULL ? verify.outcome : "ok");
	values[1] = Int64GetDatum(verify.events);
	values[2] = Int64GetDatum(verify.sequence);
	values[3] = PointerGetDatum(audit_hash_datum(verify.hash));
	nulls[4] = verify.bad_sequence == 0;
	values[4] = Int64GetDatum(verify.bad_sequence);
	values[5] = text_or_null(verify.detail, &nulls[5]);
	return return_one_row(fcinfo, values, nulls);
}

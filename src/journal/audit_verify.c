/*
 * audit_verify.c
 *		Is the audit of a tenant what was written, from its beginning to its end?
 *
 * Three questions, in one snapshot.  The chain: each event after the anchor has its
 * place and the hash that follows from the one before.  Its end: it is where the head
 * says, and has what an exported head says, so that a tail that was cut is missed.
 * What it tells of (audit_told.c): each command and each resolution is as its events
 * have it, so that a row is found that was changed past its trigger.
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
#include "journal/audit_verify.h"
#include "journal/authorize.h"
#include "journal/envelope.h"

enum
{
	PLAN_HEAD,
	PLAN_EVENTS,
	PLAN_BEYOND
};

static SqlPlan plans[] = {
	[PLAN_HEAD] = {
		"SELECT h.sequence, h.hash, h.anchor_sequence, h.anchor_hash, h.pruned_through FROM reconcile.audit_head h"
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
	}
};

void
verify_found(Verify *verify, const char *outcome, int64 sequence, const char *detail)
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

	verify->anchor.pruned_through = DT_NOBEGIN;
	memcpy(verify->hash, nothing, DIGEST_BYTES);
	memcpy(verify->anchor.hash, nothing, DIGEST_BYTES);
	sql_begin(&scope);
	if (sql_run_snapshot(&plans[PLAN_HEAD], &value, NULL, verify->snapshot) > 0)
	{
		bool		never;
		Datum		pruned_through;

		verify->sequence = DatumGetInt64(sql_value(0, 1, NULL));
		(void) audit_hash_copy(sql_value(0, 2, NULL), verify->hash);
		verify->anchor.sequence = DatumGetInt64(sql_value(0, 3, NULL));
		(void) audit_hash_copy(sql_value(0, 4, NULL), verify->anchor.hash);
		pruned_through = sql_value(0, 5, &never);
		if (!never)
			verify->anchor.pruned_through = DatumGetTimestampTz(pruned_through);
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
		verify_found(verify, "forked", sequence, "The event has another hash than the head that was kept.");
}

/* A pruning that moved the anchor says where to. */
static void
note_pruned(Verify *verify, const AuditRow *row)
{
	MemoryContext context;

	if (strcmp(row->event, "pruned") != 0 || row->detail == NULL || !JB_ROOT_IS_OBJECT(row->detail) ||
		options_member(row->detail, NULL, "anchor") == NULL)
		return;
	context = MemoryContextSwitchTo(verify->context);
	verify->pruned = (Jsonb *) PG_DETOAST_DATUM_COPY(JsonbPGetDatum(row->detail));
	MemoryContextSwitchTo(context);
}

/* One event; false: what follows cannot be judged any more. */
static bool
verify_event(Verify *verify, const AuditRow *row, int64 *sequence, uint8 *hash)
{
	uint8		expected[DIGEST_BYTES];

	if (row->sequence != *sequence + 1)
	{
		verify_found(verify, "gap", *sequence + 1, "The event is gone.");
		return false;
	}
	if (row->hash_version != AUDIT_HASH_VERSION)
	{
		verify_found(verify, "unknown_version", row->sequence, "The version of its hash is none that this library knows.");
		return false;
	}
	audit_row_hash(row, hash, expected);
	if (memcmp(expected, row->hash, DIGEST_BYTES) != 0)
	{
		verify_found(verify, "changed", row->sequence, "The event, or one before it, is not what was written.");
		return false;
	}
	*sequence = row->sequence;
	memcpy(hash, row->hash, DIGEST_BYTES);
	verify->events++;
	note_pruned(verify, row);
	meet_kept(verify, *sequence, hash);
	return true;
}

static void
verify_chain(Verify *verify)
{
	int64		sequence = verify->anchor.sequence;
	uint8		hash[DIGEST_BYTES];
	Datum		values[3];
	uint64		n;
	bool		whole = true;

	memcpy(hash, verify->anchor.hash, DIGEST_BYTES);
	meet_kept(verify, sequence, hash);
	values[0] = CStringGetTextDatum(verify->tenant_id);
	do
	{
		SqlScope	scope;
		MemoryContext row_context;

		CHECK_FOR_INTERRUPTS();
		values[1] = Int64GetDatum(sequence);
		values[2] = Int32GetDatum(AUDIT_VERIFY_PAGE);
		sql_begin(&scope);
		n = sql_run_snapshot(&plans[PLAN_EVENTS], values, NULL, verify->snapshot);
		/* options may be long, and there are many of them */
		row_context = AllocSetContextCreate(CurrentMemoryContext, "reconcile event", ALLOCSET_DEFAULT_SIZES);
		for (uint64 i = 0; i < n && whole; i++)
		{
			MemoryContext context = MemoryContextSwitchTo(row_context);
			AuditRow	row;

			audit_row_read(i, &row);
			whole = verify_event(verify, &row, &sequence, hash);
			MemoryContextSwitchTo(context);
			MemoryContextReset(row_context);
		}
		sql_end(&scope);
	} while (whole && n == AUDIT_VERIFY_PAGE);

	if (whole && (sequence != verify->sequence || memcmp(hash, verify->hash, DIGEST_BYTES) != 0))
		verify_found(verify, sequence < verify->sequence ? "cut" : "wrong_head", sequence + 1,
			  "The chain does not end where its head says.");
	if (whole && verify->kept_sequence > sequence)
		verify_found(verify, "cut", verify->kept_sequence, "The chain ends before the head that was kept.");
}

/* Does what the last pruning says fit the anchor?  Else the oldest events are gone in another way. */
static bool
is_anchor_as_told(const Verify *verify)
{
	JsonbValue *told;

	if (verify->pruned == NULL || verify->anchor.sequence == 0 || TIMESTAMP_NOT_FINITE(verify->anchor.pruned_through))
		return verify->pruned == NULL && verify->anchor.sequence == 0 && verify->anchor.pruned_through == DT_NOBEGIN;
	told = options_member(verify->pruned, NULL, "anchor");
	return told->type == jbvBinary &&
		compareJsonbContainers(told->val.binary.data, &audit_anchor_jsonb(&verify->anchor)->root) == 0;
}

static void
verify_beginning(Verify *verify)
{
	SqlScope	scope;
	Datum		values[2];

	values[0] = CStringGetTextDatum(verify->tenant_id);
	values[1] = Int64GetDatum(verify->anchor.sequence);
	sql_begin(&scope);
	if (sql_run_snapshot(&plans[PLAN_BEYOND], values, NULL, verify->snapshot) > 0)
		verify_found(verify, "wrong_head", DatumGetInt64(sql_value(0, 1, NULL)), "The event is from before the beginning of the chain.");
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
	verify.context = CurrentMemoryContext;
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
	if (!is_anchor_as_told(&verify))
		verify_found(&verify, "wrong_head", 0, "The chain does not begin where the last pruning says.");
	if (verify.outcome == NULL)
		verify_told(&verify);
	UnregisterSnapshot(verify.snapshot);
	if (verify.kept_sequence > 0 && !verify.kept_met)
		verify_found(&verify, "pruned", verify.kept_sequence, "The head that was kept is older than what is left: it cannot be compared.");

	/* of what this transaction has done the events come at its end */
	if (verify.outcome != NULL && audit_noted(tenant_id))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the audit of tenant \"%s\" cannot be verified in this transaction", tenant_id),
				 errdetail("It has events of the tenant that get their places in the chain when it commits."),
				 errhint("Verify in a transaction of its own.")));

	values[0] = CStringGetTextDatum(verify.outcome != NULL ? verify.outcome : "ok");
	values[1] = Int64GetDatum(verify.events);
	values[2] = Int64GetDatum(verify.sequence);
	values[3] = PointerGetDatum(audit_hash_datum(verify.hash));
	nulls[4] = verify.bad_sequence == 0;
	values[4] = Int64GetDatum(verify.bad_sequence);
	values[5] = text_or_null(verify.detail, &nulls[5]);
	return return_one_row(fcinfo, values, nulls);
}

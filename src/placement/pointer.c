/*
 * pointer.c
 *		Pointers: the objects that a session stands on, one for each role.
 *
 * One is written by the holder of the session's lease, under its epoch and a sequence of
 * his.  Neither mark ever falls, also when the pointer is cleared: whoever comes late is
 * refused, by the epoch first.  Nothing but session_mode() reads one.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/holder.h"

#define TARGET_MAX	1024		/* bytes */

enum
{
	PLAN_READ,
	PLAN_WRITE
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT p.lease_epoch, p.sequence, p.target, p.updated_at FROM reconcile.session_pointer p"
		" WHERE p.tenant_id OPERATOR(pg_catalog.=) $1 AND p.session_id OPERATOR(pg_catalog.=) $2"
		" AND p.role OPERATOR(pg_catalog.=) $3",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_pointer (tenant_id, session_id, role, lease_epoch, sequence, target, updated_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant_id, session_id, role) DO UPDATE"
		" SET lease_epoch = $4, sequence = $5, target = $6, updated_at = $7",
		7, {TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TEXTOID, TIMESTAMPTZOID}
	}
};

typedef struct SessionPointer
{
	int64		epoch;			/* 0: it was never set */
	int64		sequence;
	char	   *target;			/* NULL: cleared */
	TimestampTz updated_at;
} SessionPointer;

typedef enum PointerOutcome
{
	POINTER_WRITTEN,
	POINTER_CLEARED,
	POINTER_EPOCH,				/* a later holder has written it */
	POINTER_LEASE_LOST,			/* the caller has the session no more */
	POINTER_SEQUENCE,			/* a later write of it has come before */
	POINTER_NOT_FOUND
} PointerOutcome;

static const char *const outcome_names[] = {
	[POINTER_WRITTEN] = "written",
	[POINTER_CLEARED] = "cleared",
	[POINTER_EPOCH] = "epoch",
	[POINTER_LEASE_LOST] = "lease_lost",
	[POINTER_SEQUENCE] = "sequence",
	[POINTER_NOT_FOUND] = "not_found"
};

static const char *
role_field(FunctionCallInfo fcinfo, int n)
{
	static const char *const roles[] = {"workspace_checkpoint", "runtime_checkpoint", "active_continuation"};

	return roles[word_field(fcinfo, n, "role", roles, lengthof(roles),
							"It is workspace_checkpoint, runtime_checkpoint or active_continuation.")];
}

static char *
target_field(FunctionCallInfo fcinfo, int n)
{
	static const char *const hint = "It is 1 to 1,024 bytes, not only of spaces; reconcile.clear_pointer() takes it away.";
	char	   *target;

	if (PG_ARGISNULL(n))
		field_null("target");
	target = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (text_is_blank(target))
		field_invalid("target", "must not be blank", hint);
	if (strlen(target) > TARGET_MAX)
		field_invalid("target", "is too long", hint);
	return target;
}

static void
pointer_values(const SessionKey *key, const char *role, Datum *values)
{
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = CStringGetTextDatum(role);
}

static void
pointer_read(const SessionKey *key, const char *role, SessionPointer *pointer)
{
	SqlScope	scope;
	Datum		values[3];

	memset(pointer, 0, sizeof(*pointer));
	pointer_values(key, role, values);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_READ], values, NULL) > 0)
	{
		bool		isnull;
		Datum		target = sql_value(0, 3, &isnull);

		pointer->epoch = DatumGetInt64(sql_value(0, 1, NULL));
		pointer->sequence = DatumGetInt64(sql_value(0, 2, NULL));
		if (!isnull)
			pointer->target = MemoryContextStrdup(scope.outer, TextDatumGetCString(target));
		pointer->updated_at = DatumGetTimestampTz(sql_value(0, 4, NULL));
	}
	sql_end(&scope);
}

static void
pointer_write(const SessionKey *key, const char *role, const SessionPointer *pointer)
{
	SqlScope	scope;
	Datum		values[7];
	char		nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', ' '};

	pointer_values(key, role, values);
	values[3] = Int64GetDatum(pointer->epoch);
	values[4] = Int64GetDatum(pointer->sequence);
	nulls[5] = pointer->target == NULL ? 'n' : ' ';
	values[5] = pointer->target == NULL ? (Datum) 0 : CStringGetTextDatum(pointer->target);
	values[6] = TimestampTzGetDatum(pointer->updated_at);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE], values, nulls);
	sql_end(&scope);
}

/* What it comes to is in *pointer, as it stands afterwards. */
static PointerOutcome
set_pointer(const SessionKey *key, const char *role, const HolderProof *proof, int64 sequence, char *target,
			SessionPointer *pointer)
{
	Session		session;
	TimestampTz now;

	if (!holder_is_known(key, proof) || !session_lock(key, &session) || !holder_is_known(key, proof))
		return POINTER_NOT_FOUND;
	pointer_read(key, role, pointer);
	now = clock_now();
	if (proof->epoch < pointer->epoch)
		return POINTER_EPOCH;
	if (!holder_is_live(&session, proof, now))
		return POINTER_LEASE_LOST;
	if (pointer->epoch > 0 && sequence < pointer->sequence)
		return POINTER_SEQUENCE;
	pointer->epoch = proof->epoch;
	pointer->sequence = sequence;
	pointer->target = target;
	pointer->updated_at = now;
	pointer_write(key, role, pointer);
	return POINTER_WRITTEN;
}

static PointerOutcome
clear_pointer(const SessionKey *key, const char *role, const HolderProof *proof, SessionPointer *pointer)
{
	Session		session;
	TimestampTz now;

	if (!holder_is_known(key, proof) || !session_lock(key, &session) || !holder_is_known(key, proof))
		return POINTER_NOT_FOUND;
	pointer_read(key, role, pointer);
	now = clock_now();
	if (pointer->epoch == 0)
		return POINTER_NOT_FOUND;
	if (proof->epoch < pointer->epoch)
		return POINTER_EPOCH;
	if (!holder_is_live(&session, proof, now))
		return POINTER_LEASE_LOST;
	if (pointer->target == NULL && pointer->epoch == proof->epoch)
		return POINTER_CLEARED;
	pointer->epoch = proof->epoch;
	pointer->target = NULL;
	pointer->updated_at = now;
	pointer_write(key, role, pointer);
	return POINTER_CLEARED;
}

static Datum
answer(FunctionCallInfo fcinfo, PointerOutcome outcome, const SessionPointer *pointer)
{
	Datum		values[4];
	bool		nulls[4] = {false};

	values[0] = CStringGetTextDatum(outcome_names[outcome]);
	nulls[1] = nulls[2] = nulls[3] = pointer->epoch == 0;
	values[1] = Int64GetDatum(pointer->epoch);
	values[2] = Int64GetDatum(pointer->sequence);
	values[3] = TimestampTzGetDatum(pointer->updated_at);
	return return_one_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_set_pointer);
Datum
reconcile_set_pointer(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	const char *role;
	HolderProof proof;
	int64		sequence;
	char	   *target;
	SessionPointer pointer = {0};

	require_writable("set_pointer");
	require_read_committed("set_pointer");
	session_key_args(fcinfo, &key);
	role = role_field(fcinfo, 2);
	holder_proof_args(fcinfo, 3, &proof);
	sequence = number_field(fcinfo, 5, "sequence", 0, PG_INT64_MAX, "It is 0 or more, and never falls.");
	target = target_field(fcinfo, 6);
	return answer(fcinfo, set_pointer(&key, role, &proof, sequence, target, &pointer), &pointer);
}

PG_FUNCTION_INFO_V1(reconcile_clear_pointer);
Datum
reconcile_clear_pointer(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	const char *role;
	HolderProof proof;
	SessionPointer pointer = {0};

	require_writable("clear_pointer");
	require_read_committed("clear_pointer");
	session_key_args(fcinfo, &key);
	role = role_field(fcinfo, 2);
	holder_proof_args(fcinfo, 3, &proof);
	return answer(fcinfo, clear_pointer(&key, role, &proof, &pointer), &pointer);
}

PG_FUNCTION_INFO_V1(reconcile_get_pointer);
Datum
reconcile_get_pointer(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	const char *role;
	SessionPointer pointer = {0};
	Datum		values[5];
	bool		nulls[5] = {false};

	session_key_args(fcinfo, &key);
	role = role_field(fcinfo, 2);
	if (session_may_see(&key))
		pointer_read(&key, role, &pointer);
	values[0] = CStringGetTextDatum(pointer.epoch == 0 ? "not_found" : pointer.target == NULL ? "cleared" : "set");
	nulls[1] = nulls[2] = nulls[4] = pointer.epoch == 0;
	values[1] = Int64GetDatum(pointer.epoch);
	values[2] = Int64GetDatum(pointer.sequence);
	values[3] = text_or_null(pointer.target, &nulls[3]);
	values[4] = TimestampTzGetDatum(pointer.updated_at);
	return return_one_row(fcinfo, values, nulls);
}

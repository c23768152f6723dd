/*
 * session_inbox.c
 *		Commands for sessions as they come in, and as the host of a session reads them: in
 *		the order of their admission.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/command.h"
#include "journal/digest.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/host.h"
#include "placement/marks.h"
#include "placement/session_command.h"
#include "placement/settings.h"

#define REQUIRES_MAX		64
#define REFERENCE_MAX		1024	/* bytes */

/* Of session_commands(): as PLAN_LIST has them, and behind them what remains of the two deadlines. */
#define LIST_COLUMNS		22
#define LIST_DEADLINE		10
#define LIST_CLAIM_END		14

enum
{
	PLAN_FIND,
	PLAN_ORDER,
	PLAN_INSERT,
	PLAN_LIST
};

static SqlPlan plans[] = {
	[PLAN_FIND] = {
		"SELECT c.accepted_order, c.runtime_command_id, c.state, c.revision, c.apply_deadline,"
		" c.kind OPERATOR(pg_catalog.=) $4, c.payload_digest OPERATOR(pg_catalog.=) $5,"
		" c.payload_size OPERATOR(pg_catalog.=) $6, c.requires OPERATOR(pg_catalog.=) $7"
		" FROM reconcile.session_command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2"
		" AND c.command_id OPERATOR(pg_catalog.=) $3",
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, INT8OID, TEXTARRAYOID}
	},
	[PLAN_ORDER] = {
		"SELECT c.accepted_order OPERATOR(pg_catalog.+) 1 FROM reconcile.session_command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2"
		" ORDER BY c.accepted_order DESC LIMIT 1",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, kind, payload_digest, payload_size,"
		" requires, payload, payload_reference, runtime_command_id, shard, accepted_order, revision, accepted_at,"
		" apply_deadline, state) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 1, $13, $14, 'pending')",
		14, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, INT8OID, TEXTARRAYOID, BYTEAOID, TEXTOID, TEXTOID, INT4OID,
			 INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	},
	[PLAN_LIST] = {
		"SELECT c.accepted_order, c.command_id, c.runtime_command_id, c.kind, c.payload, c.payload_reference,"
		" c.payload_digest, c.payload_size, c.requires, c.accepted_at, c.apply_deadline, c.state, c.revision,"
		" c.claim_epoch, c.claim_expires_at, c.attempt_id, c.attempt_epoch, c.outcome, c.outcome_epoch, c.event_id,"
		" c.event_seq, c.settled_at FROM reconcile.session_command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2"
		" AND c.accepted_order OPERATOR(pg_catalog.>) $3 ORDER BY c.accepted_order LIMIT $4",
		4, {TEXTOID, TEXTOID, INT8OID, INT4OID}
	}
};

/* ----------------------------------------------------------------
 * admit_session_command()
 * ----------------------------------------------------------------
 */

typedef struct Admission
{
	SessionKey	key;
	char	   *command_id;
	char	   *kind;
	bytea	   *payload;		/* NULL: it is elsewhere */
	char	   *payload_reference;
	bytea	   *payload_digest;
	int64		payload_size;
	Datum		requires;		/* text[], sorted, none twice */
	int64		apply_in_ms;
	char	   *runtime_command_id;
	/* what is stored in the end */
	int64		accepted_order;
	int64		revision;
	char	   *state;
	TimestampTz apply_deadline;
} Admission;

/* What is there already has the first of these that differs; NULL: it is the same command. */
static const char *const identity_members[] = {"kind", "payload_digest", "payload_size", "requires"};

static Datum
requires_field(FunctionCallInfo fcinfo, int n)
{
	Datum	   *elements;
	int			count = array_arg(fcinfo, n, "requires", TEXTOID, REQUIRES_MAX, &elements);
	char	  **names = palloc(sizeof(char *) * Max(count, 1));

	for (int i = 0; i < count; i++)
		names[i] = TextDatumGetCString(elements[i]);
	return capabilities_datum(names, count, "requires");
}

static bytea *
digest_of(const bytea *payload)
{
	Digest	   *digest = digest_open();
	bytea	   *result = palloc(VARHDRSZ + DIGEST_BYTES);

	digest_raw(digest, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload));
	digest_end(digest, (uint8 *) VARDATA(result));
	SET_VARSIZE(result, VARHDRSZ + DIGEST_BYTES);
	return result;
}

/* Within the row, or a reference to where it is, with what it must turn out to be. */
static void
payload_args(FunctionCallInfo fcinfo, Admission *admission)
{
	static const char *const hint = "A payload is given itself, or as a reference with its digest and size.";
	bool		inlined = !PG_ARGISNULL(4);

	if (inlined != PG_ARGISNULL(5))
		field_invalid(inlined ? "payload_reference" : "payload", inlined ? "must not be given" : "must be given", hint);
	for (int n = 8; n < 10; n++)
	{
		if (inlined != PG_ARGISNULL(n))
			field_invalid(n == 8 ? "payload_digest" : "payload_size",
						  inlined ? "must not be given" : "must be given", hint);
	}
	if (inlined)
	{
		admission->payload = PG_GETARG_BYTEA_PP(4);
		admission->payload_size = VARSIZE_ANY_EXHDR(admission->payload);
		if (admission->payload_size > COMMAND_PAYLOAD_MAX)
			field_invalid("payload", "is too long", "It is at most 64 kB; what is longer is kept elsewhere, and referred to.");
		admission->payload_digest = digest_of(admission->payload);
		return;
	}
	admission->payload_reference = text_to_cstring(PG_GETARG_TEXT_PP(5));
	if (admission->payload_reference[0] == '\0' || strlen(admission->payload_reference) > REFERENCE_MAX)
		field_invalid("payload_reference", "is not a reference", "It is 1 to 1,024 bytes.");
	admission->payload_digest = PG_GETARG_BYTEA_PP(8);
	if (VARSIZE_ANY_EXHDR(admission->payload_digest) != DIGEST_BYTES)
		field_invalid("payload_digest", "is not a digest", "It is the SHA-256 of the payload, 32 bytes.");
	admission->payload_size = number_field(fcinfo, 9, "payload_size", 0, PG_INT64_MAX, "It is the bytes of the payload.");
}

static int64
default_apply_in_ms(void)
{
	PlacementSettings settings;

	placement_settings(&settings);
	return settings.horizon_ms;
}

static void
admission_args(FunctionCallInfo fcinfo, Admission *admission)
{
	session_key_args(fcinfo, &admission->key);
	admission->command_id = identity_field(fcinfo, 2, "command_id");
	admission->kind = identity_field(fcinfo, 3, "kind");
	payload_args(fcinfo, admission);
	if (PG_ARGISNULL(6))
		admission->apply_in_ms = default_apply_in_ms();
	else
		admission->apply_in_ms = interval_field(fcinfo, 6, "apply_deadline_in", false, DURATION_MAX_MS,
												"It is more than 0 and at most 366 days, or NULL for the horizon of set_placement.");
	admission->requires = requires_field(fcinfo, 7);
	admission->runtime_command_id = optional_field(fcinfo, 10, "runtime_command_id");
}

static void
identity_values(const Admission *admission, Datum *values)
{
	values[0] = CStringGetTextDatum(admission->key.tenant_id);
	values[1] = CStringGetTextDatum(admission->key.session_id);
	values[2] = CStringGetTextDatum(admission->command_id);
	values[3] = CStringGetTextDatum(admission->kind);
	values[4] = PointerGetDatum(admission->payload_digest);
	values[5] = Int64GetDatum(admission->payload_size);
	values[6] = admission->requires;
}

/* False: there is none of this id.  Else *differs is the member by which it is another command, or NULL. */
static bool
find_stored(Admission *admission, const char **differs)
{
	SqlScope	scope;
	Datum		values[7];
	bool		found;

	*differs = NULL;
	identity_values(admission, values);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_FIND], values, NULL) > 0;
	if (found)
	{
		for (int i = lengthof(identity_members) - 1; i >= 0; i--)
		{
			if (!DatumGetBool(sql_value(0, 6 + i, NULL)))
				*differs = identity_members[i];
		}
		admission->accepted_order = DatumGetInt64(sql_value(0, 1, NULL));
		admission->runtime_command_id = sql_text(0, 2, scope.outer);
		admission->state = sql_text(0, 3, scope.outer);
		admission->revision = DatumGetInt64(sql_value(0, 4, NULL));
		admission->apply_deadline = DatumGetTimestampTz(sql_value(0, 5, NULL));
	}
	sql_end(&scope);
	return found;
}

static void
insert_command(Admission *admission, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[14];
	char		nulls[14];
	int			shard = placement_shard_of(admission->key.tenant_id, admission->key.session_id, placement_shards());

	memset(nulls, ' ', sizeof(nulls));
	identity_values(admission, values);
	sql_begin(&scope);
	/* behind the last one: none is ever removed, and the session is locked */
	admission->accepted_order = sql_run_latest(&plans[PLAN_ORDER], values, NULL) == 0 ? 1 :
		DatumGetInt64(sql_value(0, 1, NULL));
	nulls[7] = admission->payload == NULL ? 'n' : ' ';
	values[7] = PointerGetDatum(admission->payload);
	nulls[8] = admission->payload_reference == NULL ? 'n' : ' ';
	values[8] = admission->payload_reference == NULL ? (Datum) 0 : CStringGetTextDatum(admission->payload_reference);
	values[9] = CStringGetTextDatum(admission->runtime_command_id);
	values[10] = Int32GetDatum(shard);
	values[11] = Int64GetDatum(admission->accepted_order);
	values[12] = TimestampTzGetDatum(now);
	values[13] = TimestampTzGetDatum(admission->apply_deadline);
	sql_run_latest(&plans[PLAN_INSERT], values, nulls);
	sql_end(&scope);
}

/* What is stored in the end is in *admission, unless it is another command. */
static const char *
admit(Admission *admission, const char **differs)
{
	Session		session;
	TimestampTz now;

	if (!session_lock(&admission->key, &session))
		return "not_found";
	if (find_stored(admission, differs))
		return *differs != NULL ? "command_mismatch" : "exists";
	now = clock_now();
	admission->revision = 1;
	admission->state = pstrdup(session_command_state_name(SESSION_COMMAND_PENDING));
	admission->apply_deadline = clock_add_ms(now, admission->apply_in_ms);
	if (admission->runtime_command_id == NULL)
		admission->runtime_command_id = command_mint_id(now);
	insert_command(admission, now);
	session_mark(session.number, now);
	/* it is for the pending sweep as long as it is open: one that looks at all will see it */
	sweep_mark(SWEEP_PENDING, admission->apply_deadline);
	sweep_mark(SWEEP_DEADLINES, admission->apply_deadline);
	return "admitted";
}

PG_FUNCTION_INFO_V1(reconcile_admit_session_command);
Datum
reconcile_admit_session_command(PG_FUNCTION_ARGS)
{
	Admission	admission = {0};
	const char *differs = NULL;
	const char *outcome;
	bool		known;
	Datum		values[8];
	bool		nulls[8] = {false};

	require_writable("admit_session_command");
	require_read_committed("admit_session_command");
	admission_args(fcinfo, &admission);
	access_require_all(CAP_PLACE);

	outcome = admit(&admission, &differs);
	known = admission.accepted_order > 0 && differs == NULL;
	values[0] = CStringGetTextDatum(outcome);
	nulls[1] = nulls[4] = nulls[5] = nulls[6] = !known;
	values[1] = Int64GetDatum(admission.accepted_order);
	/* whoever admits it again goes on with the id that was first */
	values[2] = text_or_null(known ? admission.runtime_command_id : NULL, &nulls[2]);
	values[3] = text_or_null(known ? admission.state : NULL, &nulls[3]);
	values[4] = Int64GetDatum(admission.revision);
	values[5] = TimestampTzGetDatum(admission.apply_deadline);
	values[6] = remaining_datum(admission.apply_deadline, clock_now());
	values[7] = text_or_null(differs, &nulls[7]);
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * session_commands()
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_session_commands);
Datum
reconcile_session_commands(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SessionKey	key;
	int64		after;
	int			max;
	SqlScope	scope;
	Datum		values[LIST_COLUMNS + 2];
	bool		nulls[LIST_COLUMNS + 2];
	TimestampTz now;
	uint64		n;

	session_key_args(fcinfo, &key);
	after = number_field(fcinfo, 2, "after_order", 0, PG_INT64_MAX,
						 "It is the accepted_order of the last command that was read, or 0 for all.");
	max = page_field(fcinfo, 3);
	InitMaterializedSRF(fcinfo, 0);
	if (!session_may_see(&key))
		return (Datum) 0;
	values[0] = CStringGetTextDatum(key.tenant_id);
	values[1] = CStringGetTextDatum(key.session_id);
	values[2] = Int64GetDatum(after);
	values[3] = Int32GetDatum(max);
	sql_begin(&scope);
	n = sql_run(&plans[PLAN_LIST], values, NULL);
	now = clock_now();
	for (uint64 i = 0; i < n; i++)
	{
		for (int c = 0; c < LIST_COLUMNS; c++)
			values[c] = sql_value(i, c + 1, &nulls[c]);
		nulls[LIST_COLUMNS] = nulls[LIST_DEADLINE];
		values[LIST_COLUMNS] = remaining_datum(DatumGetTimestampTz(values[LIST_DEADLINE]), now);
		nulls[LIST_COLUMNS + 1] = nulls[LIST_CLAIM_END];
		values[LIST_COLUMNS + 1] = nulls[LIST_CLAIM_END] ? (Datum) 0 :
			remaining_datum(DatumGetTimestampTz(values[LIST_CLAIM_END]), now);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	sql_end(&scope);
	return (Datum) 0;
}

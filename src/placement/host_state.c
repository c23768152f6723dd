/*
 * host_state.c
 *		update_host_state(): what the host of a session says of it.
 *
 * Each report replaces the one before it as a whole.  It changes nothing that is
 * wanted of the session, nor its revision: a factory meets no conflict because a host
 * has spoken.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/holder.h"

#define GATES_MAX			16
#define GATES_BYTES_MAX		16384
#define REFERENCE_MAX		1024	/* bytes */

enum
{
	PLAN_WRITE
};

static SqlPlan plans[] = {
	[PLAN_WRITE] = {
		"INSERT INTO reconcile.session_observed (tenant_id, session_id, revision, lease_epoch, state, residency,"
		" journal_seq, last_event_id, checkpoint_seq, checkpoint_reference, checkpoint_captured_at, open_gates,"
		" last_active_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"
		" ON CONFLICT (tenant_id, session_id) DO UPDATE SET revision = $3, lease_epoch = $4, state = $5,"
		" residency = $6, journal_seq = $7, last_event_id = $8, checkpoint_seq = $9, checkpoint_reference = $10,"
		" checkpoint_captured_at = $11, open_gates = $12, last_active_at = $13",
		13, {TEXTOID, TEXTOID, INT8OID, INT8OID, TEXTOID, TEXTOID, INT8OID, TEXTOID, INT8OID, TEXTOID,
			 TIMESTAMPTZOID, JSONBOID, TIMESTAMPTZOID}
	}
};

typedef struct HostState
{
	HolderProof proof;
	char	   *state;
	char	   *residency;
	int64		journal_seq;
	char	   *last_event_id;	/* NULL: none */
	int64		checkpoint_seq; /* 0: there is no checkpoint */
	char	   *checkpoint_reference;
	TimestampTz checkpoint_captured_at;
	Jsonb	   *open_gates;		/* an array */
	int64		active_ago_ms;
} HostState;

typedef enum HostStateOutcome
{
	HOST_STATE_WRITTEN,
	HOST_STATE_EPOCH,			/* a later holder has written */
	HOST_STATE_LEASE_LOST,		/* the caller has the session no more */
	HOST_STATE_SEQUENCE,		/* the journal went further before */
	HOST_STATE_NOT_FOUND
} HostStateOutcome;

static const char *const outcome_names[] = {
	[HOST_STATE_WRITTEN] = "written",
	[HOST_STATE_EPOCH] = "epoch",
	[HOST_STATE_LEASE_LOST] = "lease_lost",
	[HOST_STATE_SEQUENCE] = "sequence",
	[HOST_STATE_NOT_FOUND] = "not_found"
};

/* ----------------------------------------------------------------
 * Arguments
 * ----------------------------------------------------------------
 */

/* A summary of the checkpoint, all of it or nothing. */
static void
checkpoint_args(FunctionCallInfo fcinfo, int n, HostState *said)
{
	static const char *const hint = "A checkpoint has a sequence, a reference and a time: all of them, or none.";

	if (PG_ARGISNULL(n) != PG_ARGISNULL(n + 1))
		field_invalid(PG_ARGISNULL(n) ? "checkpoint_seq" : "checkpoint_reference", "must be given", hint);
	if (PG_ARGISNULL(n) != PG_ARGISNULL(n + 2))
		field_invalid(PG_ARGISNULL(n) ? "checkpoint_seq" : "checkpoint_captured_at", "must be given", hint);
	if (PG_ARGISNULL(n))
		return;
	said->checkpoint_seq = number_field(fcinfo, n, "checkpoint_seq", 1, PG_INT64_MAX, "It is 1 or more.");
	said->checkpoint_reference = text_to_cstring(PG_GETARG_TEXT_PP(n + 1));
	if (said->checkpoint_reference[0] == '\0' || strlen(said->checkpoint_reference) > REFERENCE_MAX)
		field_invalid("checkpoint_reference", "is not a reference", "It is 1 to 1,024 bytes.");
	said->checkpoint_captured_at = PG_GETARG_TIMESTAMPTZ(n + 2);
	if (TIMESTAMP_NOT_FINITE(said->checkpoint_captured_at))
		field_invalid("checkpoint_captured_at", "must be finite", "It is when the checkpoint was taken, as the host says.");
}

typedef struct Gate
{
	char	   *id;
	int64		opened_seq;
} Gate;

static const char *const gates_hint =
"They are at most 16 objects with a gate_id and an opened_seq, sorted by opened_seq and gate_id, no gate twice, and at most 16 kB.";

static bool
whole_number(Numeric value, int64 *number)
{
	char	   *text = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value)));
	char	   *end;

	errno = 0;
	*number = strtoi64(text, &end, 10);
	return errno == 0 && *end == '\0' && *number >= 0;
}

static void
gate_value(JsonbValue *object, Gate *gate)
{
	JsonbValue	room;
	JsonbValue *value;

	if (object->type != jbvBinary || !JsonContainerIsObject(object->val.binary.data))
		field_invalid("open_gates", "has something that is no gate", gates_hint);
	value = getKeyJsonValueFromContainer(object->val.binary.data, "gate_id", strlen("gate_id"), &room);
	if (value == NULL || value->type != jbvString)
		field_invalid("open_gates", "has a gate without gate_id", gates_hint);
	gate->id = pnstrdup(value->val.string.val, value->val.string.len);
	identity_check(gate->id, "open_gates.gate_id");
	value = getKeyJsonValueFromContainer(object->val.binary.data, "opened_seq", strlen("opened_seq"), &room);
	if (value == NULL || value->type != jbvNumeric || !whole_number(value->val.numeric, &gate->opened_seq))
		field_invalid("open_gates", "has a gate without opened_seq", gates_hint);
}

static Jsonb *
gates_field(FunctionCallInfo fcinfo, int n)
{
	Jsonb	   *gates;
	Gate		seen[GATES_MAX];
	int			count;

	if (PG_ARGISNULL(n))
		field_null("open_gates");
	gates = PG_GETARG_JSONB_P(n);
	if (!JB_ROOT_IS_ARRAY(gates) || JB_ROOT_IS_SCALAR(gates))
		field_invalid("open_gates", "must be an array", gates_hint);
	count = JB_ROOT_COUNT(gates);
	if (count > GATES_MAX || VARSIZE(gates) > GATES_BYTES_MAX)
		field_invalid("open_gates", "are too many", gates_hint);
	for (int i = 0; i < count; i++)
	{
		gate_value(getIthJsonbValueFromContainer(&gates->root, i), &seen[i]);
		for (int j = 0; j < i; j++)
		{
			if (strcmp(seen[i].id, seen[j].id) == 0)
				field_invalid("open_gates", "has a gate twice", gates_hint);
		}
		if (i > 0 && (seen[i].opened_seq < seen[i - 1].opened_seq ||
					  (seen[i].opened_seq == seen[i - 1].opened_seq && strcmp(seen[i].id, seen[i - 1].id) < 0)))
			field_invalid("open_gates", "are not sorted", gates_hint);
	}
	return gates;
}

static void
host_state_args(FunctionCallInfo fcinfo, HostState *said)
{
	holder_proof_args(fcinfo, 2, &said->proof);
	said->state = identity_field(fcinfo, 4, "state");
	said->residency = identity_field(fcinfo, 5, "residency");
	said->journal_seq = number_field(fcinfo, 6, "journal_seq", 0, PG_INT64_MAX, "It is 0 or more, and never falls.");
	said->last_event_id = optional_field(fcinfo, 7, "last_event_id");
	checkpoint_args(fcinfo, 8, said);
	said->open_gates = gates_field(fcinfo, 11);
	said->active_ago_ms = interval_field(fcinfo, 12, "active_ago", true, DURATION_MAX_MS,
										 "It is how long ago the session was last active: 0 to 366 days.");
}

/* ----------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------
 */

static void
write_state(const Session *session, const HostState *said, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[13];
	char		nulls[13];
	bool		checkpoint = said->checkpoint_seq > 0;

	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(session->key.tenant_id);
	values[1] = CStringGetTextDatum(session->key.session_id);
	values[2] = Int64GetDatum(session->observed_revision + 1);
	values[3] = Int64GetDatum(said->proof.epoch);
	values[4] = CStringGetTextDatum(said->state);
	values[5] = CStringGetTextDatum(said->residency);
	values[6] = Int64GetDatum(said->journal_seq);
	nulls[7] = said->last_event_id == NULL ? 'n' : ' ';
	values[7] = said->last_event_id == NULL ? (Datum) 0 : CStringGetTextDatum(said->last_event_id);
	nulls[8] = nulls[9] = nulls[10] = checkpoint ? ' ' : 'n';
	values[8] = Int64GetDatum(said->checkpoint_seq);
	values[9] = checkpoint ? CStringGetTextDatum(said->checkpoint_reference) : (Datum) 0;
	values[10] = TimestampTzGetDatum(said->checkpoint_captured_at);
	values[11] = JsonbPGetDatum(said->open_gates);
	values[12] = TimestampTzGetDatum(clock_add_ms(now, -said->active_ago_ms));
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE], values, nulls);
	sql_end(&scope);
}

/* How the session stands afterwards is in *session. */
static HostStateOutcome
update_state(const SessionKey *key, const HostState *said, Session *session)
{
	TimestampTz now;

	if (!holder_is_known(key, &said->proof) || !session_lock(key, session) || !holder_is_known(key, &said->proof))
		return HOST_STATE_NOT_FOUND;
	now = clock_now();
	if (said->proof.epoch < session->observed_epoch)
		return HOST_STATE_EPOCH;
	if (!holder_is_live(session, &said->proof, now))
		return HOST_STATE_LEASE_LOST;
	if (said->journal_seq < session->journal_seq)
		return HOST_STATE_SEQUENCE;
	write_state(session, said, now);
	session->observed_revision++;
	session->observed_epoch = said->proof.epoch;
	session->journal_seq = said->journal_seq;
	return HOST_STATE_WRITTEN;
}

PG_FUNCTION_INFO_V1(reconcile_update_host_state);
Datum
reconcile_update_host_state(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	HostState	said = {0};
	Session		session = {0};
	HostStateOutcome outcome;
	Datum		values[4];
	bool		nulls[4] = {false};

	require_writable("update_host_state");
	require_read_committed("update_host_state");
	session_key_args(fcinfo, &key);
	host_state_args(fcinfo, &said);

	outcome = update_state(&key, &said, &session);
	values[0] = CStringGetTextDatum(outcome_names[outcome]);
	nulls[1] = nulls[2] = nulls[3] = outcome == HOST_STATE_NOT_FOUND;
	values[1] = Int64GetDatum(session.observed_revision);
	values[2] = Int64GetDatum(session.observed_epoch);
	values[3] = Int64GetDatum(session.journal_seq);
	return return_one_row(fcinfo, values, nulls);
}

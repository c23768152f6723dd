/*
 * session_sql.c
 *		Sessions as their factories call them: made, read, and wanted otherwise.
 *
 * Nothing here names an epoch: who wants something of a session cannot spell that he
 * has it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/host.h"
#include "placement/session.h"

enum
{
	PLAN_INSERT,
	PLAN_SHOW
};

static SqlPlan plans[] = {
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.session (tenant_id, session_id, agent_id, placement, runtime_compatibility_id,"
		" workload_version, workload, desired_key, launch_version, launch_workload, binding, desired_generation,"
		" revision, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $6, $7, $9, 1, 1, $10)"
		" ON CONFLICT (tenant_id, session_id) DO NOTHING",
		10, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, TEXTOID, JSONBOID, TIMESTAMPTZOID}
	},
	/* by its number: the view has its names in another collation than the index */
	[PLAN_SHOW] = {
		"SELECT v.* FROM reconcile.sessions v WHERE v.number OPERATOR(pg_catalog.=) $1", 1, {INT8OID}
	}
};

/* ----------------------------------------------------------------
 * create_session()
 * ----------------------------------------------------------------
 */

/* What a session is bound to outside: four texts, or NULL for nothing. */
static Jsonb *
binding_field(FunctionCallInfo fcinfo, int n)
{
	static const char *const members[] = {"storage_binding_id", "binding_version", "runtime_session_id", "protocol_mode"};
	static const char *const hint = "It has the texts storage_binding_id, binding_version, runtime_session_id and protocol_mode, and nothing else.";
	Jsonb	   *binding;

	if (PG_ARGISNULL(n))
		return NULL;
	binding = PG_GETARG_JSONB_P(n);
	if (!JB_ROOT_IS_OBJECT(binding) || JB_ROOT_COUNT(binding) != lengthof(members))
		field_invalid("binding", "is not a binding", hint);
	for (int i = 0; i < lengthof(members); i++)
	{
		JsonbValue	room;
		JsonbValue *value = getKeyJsonValueFromContainer(&binding->root, members[i], strlen(members[i]), &room);

		if (value == NULL || value->type != jbvString)
			field_invalid("binding", "is not a binding", hint);
		identity_check(pnstrdup(value->val.string.val, value->val.string.len), psprintf("binding.%s", members[i]));
		/* the protocol before it had no attempts, and is not spoken here */
		if (i == 3 && (value->val.string.len != strlen("disposition") ||
					   memcmp(value->val.string.val, "disposition", strlen("disposition")) != 0))
			field_invalid("binding.protocol_mode", "is not one of its values", "It is disposition.");
	}
	return binding;
}

/* False: one of that name is there already. */
static bool
insert_session(const SessionKey *key, const char *agent_id, const SessionDesired *desired,
			   const char *idempotency_key, Jsonb *binding)
{
	SqlScope	scope;
	Datum		values[10];
	char		nulls[10];
	bool		created;

	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = CStringGetTextDatum(agent_id);
	values[3] = CStringGetTextDatum(desired->placement);
	nulls[4] = desired->runtime_compatibility_id == NULL ? 'n' : ' ';
	values[4] = nulls[4] == 'n' ? (Datum) 0 : CStringGetTextDatum(desired->runtime_compatibility_id);
	nulls[5] = nulls[6] = desired->workload == NULL ? 'n' : ' ';
	values[5] = nulls[5] == 'n' ? (Datum) 0 : CStringGetTextDatum(desired->workload_version);
	values[6] = PointerGetDatum(desired->workload);
	values[7] = CStringGetTextDatum(idempotency_key);
	nulls[8] = binding == NULL ? 'n' : ' ';
	values[8] = binding == NULL ? (Datum) 0 : JsonbPGetDatum(binding);
	values[9] = TimestampTzGetDatum(clock_now());
	sql_begin(&scope);
	created = sql_run_latest(&plans[PLAN_INSERT], values, nulls) > 0;
	sql_end(&scope);
	return created;
}

PG_FUNCTION_INFO_V1(reconcile_create_session);
Datum
reconcile_create_session(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	char	   *agent_id;
	char	   *idempotency_key;
	SessionDesired desired;
	Jsonb	   *binding;
	Session		session;
	bool		created;
	Datum		values[4];
	bool		nulls[4] = {false};

	require_writable("create_session");
	require_read_committed("create_session");
	session_key_args(fcinfo, &key);
	agent_id = identity_field(fcinfo, 2, "agent_id");
	idempotency_key = identity_field(fcinfo, 4, "idempotency_key");
	session_desired_args(fcinfo, 3, 5, &desired);
	binding = binding_field(fcinfo, 8);
	access_require_all(CAP_PLACE);

	/* looked for first: a repetition takes no number */
	created = !session_read(&key, &session) &&
		insert_session(&key, agent_id, &desired, idempotency_key, binding);
	if (!session_read(&key, &session))
		elog(ERROR, "session \"%s\" is gone", key.session_id);
	values[0] = CStringGetTextDatum(created ? "created" : "exists");
	values[1] = Int64GetDatum(session.revision);
	values[2] = Int64GetDatum(session.generation);
	values[3] = BoolGetDatum(created);
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * update_desired_state()
 * ----------------------------------------------------------------
 */

typedef enum UpdateOutcome
{
	UPDATE_APPLIED,
	UPDATE_REPLAYED,			/* the key is that of what is wanted already */
	UPDATE_CONFLICT,			/* the caller has seen another revision */
	UPDATE_SEQUENCE,			/* no generation is left */
	UPDATE_NOT_FOUND
} UpdateOutcome;

static const char *const update_names[] = {
	[UPDATE_APPLIED] = "applied",
	[UPDATE_REPLAYED] = "replayed",
	[UPDATE_CONFLICT] = "conflict",
	[UPDATE_SEQUENCE] = "sequence",
	[UPDATE_NOT_FOUND] = "not_found"
};

/* The key comes before the revision: who retries knows an old one. */
static UpdateOutcome
update_desired(Session *session, const char *idempotency_key, int64 expected_revision, const SessionDesired *desired)
{
	if (strcmp(session->desired_key, idempotency_key) == 0)
		return UPDATE_REPLAYED;
	if (expected_revision != session->revision)
		return UPDATE_CONFLICT;
	if (session_replace_desired(session, desired, idempotency_key) == DESIRED_WRITE_EXHAUSTED)
		return UPDATE_SEQUENCE;
	session_mark(session->number, clock_now());
	return UPDATE_APPLIED;
}

PG_FUNCTION_INFO_V1(reconcile_update_desired_state);
Datum
reconcile_update_desired_state(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	char	   *idempotency_key;
	SessionDesired desired;
	Session		session;
	UpdateOutcome outcome = UPDATE_NOT_FOUND;
	Datum		values[3];
	bool		nulls[3] = {false};

	require_writable("update_desired_state");
	require_read_committed("update_desired_state");
	session_key_args(fcinfo, &key);
	idempotency_key = identity_field(fcinfo, 2, "idempotency_key");
	if (PG_ARGISNULL(3))
		field_null("expected_revision");
	session_desired_args(fcinfo, 4, 5, &desired);
	access_require_all(CAP_PLACE);

	if (session_lock(&key, &session))
		outcome = update_desired(&session, idempotency_key, PG_GETARG_INT64(3), &desired);
	values[0] = CStringGetTextDatum(update_names[outcome]);
	nulls[1] = nulls[2] = outcome == UPDATE_NOT_FOUND;
	values[1] = nulls[1] ? (Datum) 0 : Int64GetDatum(session.revision);
	values[2] = nulls[2] ? (Datum) 0 : Int64GetDatum(session.generation);
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

/* As the view has it: who lost a session sees no more of it. */
bool
session_may_see(const SessionKey *key)
{
	Registration registration;
	Session		session;

	if (access_allowed(CAP_PLACE, ""))
		return true;
	return registration_read(key, &registration) && registration.host_id != NULL &&
		host_is_mine(registration.host_id) && session_read(key, &session) &&
		registration_is_live(&session, &registration, clock_now());
}

PG_FUNCTION_INFO_V1(reconcile_get_session);
Datum
reconcile_get_session(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SessionKey	key;
	Session		session;
	SqlScope	scope;
	Datum		value;
	uint64		n;

	session_key_args(fcinfo, &key);
	InitMaterializedSRF(fcinfo, 0);
	if (!session_may_see(&key) || !session_read(&key, &session))
		return (Datum) 0;
	value = Int64GetDatum(session.number);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_SHOW], &value, NULL);
	for (uint64 i = 0; i < n; i++)
		tuplestore_puttuple(result->setResult, SPI_tuptable->vals[i]);
	sql_end(&scope);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_placement_intent);
Datum
reconcile_placement_intent(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	SessionKey	key;
	Session		session;
	Datum		values[8];
	bool		nulls[8] = {false};

	session_key_args(fcinfo, &key);
	access_require_all(CAP_PLACE);
	InitMaterializedSRF(fcinfo, 0);
	if (!session_read(&key, &session))
		return (Datum) 0;
	values[0] = CStringGetTextDatum(session.key.tenant_id);
	values[1] = CStringGetTextDatum(session.key.session_id);
	values[2] = CStringGetTextDatum(session.agent_id);
	values[3] = text_or_null(session.desired.runtime_compatibility_id, &nulls[3]);
	values[4] = CStringGetTextDatum(session.desired.placement);
	values[5] = text_or_null(session.desired.workload_version, &nulls[5]);
	nulls[6] = session.desired.workload == NULL;
	values[6] = PointerGetDatum(session.desired.workload);
	values[7] = Int64GetDatum(session.generation);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * session.c
 *		Sessions: their rows, read and locked, and what is wanted of them.
 *
 * The row of a session is the lock on everything of it.  What its hosts say of it is
 * in another row, which is read after that lock and written under it, so that both
 * are of one moment.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "core/plan.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/session.h"

enum
{
	PLAN_READ,
	PLAN_READ_NUMBER,
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_DESIRE,
	PLAN_POINTER_SET
};

#define SESSION_SELECT \
	"SELECT s.tenant_id, s.session_id, s.number, s.agent_id, s.placement, s.runtime_compatibility_id," \
	" s.workload_version, s.workload, s.desired_key, s.desired_generation, s.revision, s.launch_version," \
	" s.launch_workload, s.created_at, o.revision, o.lease_epoch, o.journal_seq, o.checkpoint_seq" \
	" FROM reconcile.session s LEFT JOIN reconcile.session_observed o" \
	" ON o.tenant_id OPERATOR(pg_catalog.=) s.tenant_id AND o.session_id OPERATOR(pg_catalog.=) s.session_id"

#define OF_SESSION \
	" WHERE s.tenant_id OPERATOR(pg_catalog.=) $1 AND s.session_id OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_READ] = {SESSION_SELECT OF_SESSION, 2, {TEXTOID, TEXTOID}},
	[PLAN_READ_NUMBER] = {SESSION_SELECT " WHERE s.number OPERATOR(pg_catalog.=) $1", 1, {INT8OID}},
	[PLAN_LOCK] = {
		"SELECT 1 FROM reconcile.session s" OF_SESSION " FOR NO KEY UPDATE", 2, {TEXTOID, TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT 1 FROM reconcile.session s" OF_SESSION " FOR NO KEY UPDATE SKIP LOCKED", 2, {TEXTOID, TEXTOID}
	},
	[PLAN_DESIRE] = {
		"UPDATE reconcile.session s SET placement = $3, runtime_compatibility_id = $4, workload_version = $5,"
		" workload = $6, desired_key = $7, desired_generation = $8, revision = $9" OF_SESSION,
		9, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, BYTEAOID, TEXTOID, INT8OID, INT8OID}
	},
	[PLAN_POINTER_SET] = {
		"SELECT 1 FROM reconcile.session_pointer s" OF_SESSION " AND s.target IS NOT NULL LIMIT 1",
		2, {TEXTOID, TEXTOID}
	}
};

/* ----------------------------------------------------------------
 * Arguments
 * ----------------------------------------------------------------
 */

void
session_key_args(FunctionCallInfo fcinfo, SessionKey *key)
{
	key->tenant_id = identity_field(fcinfo, 0, "tenant_id");
	key->session_id = identity_field(fcinfo, 1, "session_id");
}

void
session_desired_args(FunctionCallInfo fcinfo, int placement, int runtime, SessionDesired *desired)
{
	static const char *const placements[] = {"pooled", "dedicated"};
	bytea	   *workload = PG_ARGISNULL(runtime + 2) ? NULL : PG_GETARG_BYTEA_PP(runtime + 2);

	desired->placement = pstrdup(placements[word_field(fcinfo, placement, "placement", placements, lengthof(placements),
													   "It is pooled or dedicated.")]);
	desired->runtime_compatibility_id = optional_field(fcinfo, runtime, "runtime_compatibility_id");
	desired->workload_version = optional_field(fcinfo, runtime + 1, "workload_version");
	/* without a byte there is none */
	desired->workload = workload != NULL && VARSIZE_ANY_EXHDR(workload) > 0 ? workload : NULL;
	if (desired->workload != NULL && desired->workload_version == NULL)
		field_invalid("workload_version", "must be given", "A workload has a version: both, or neither.");
	if (desired->workload == NULL && desired->workload_version != NULL)
		field_invalid("workload", "must be given", "A version is of a workload: both, or neither.");
	if (desired->workload != NULL && VARSIZE_ANY_EXHDR(workload) > WORKLOAD_MAX)
		field_invalid("workload", "is too long", "It is at most 16 kB.");
}

/* ----------------------------------------------------------------
 * Reading and locking
 * ----------------------------------------------------------------
 */

static bytea *
copy_bytea(MemoryContext context, int column)
{
	bool		isnull;
	Datum		value = sql_value(0, column, &isnull);
	bytea	   *result;

	if (isnull)
		return NULL;
	context = MemoryContextSwitchTo(context);
	result = DatumGetByteaPCopy(value);
	MemoryContextSwitchTo(context);
	return result;
}

static int64
int_or_zero(int column)
{
	bool		isnull;
	Datum		value = sql_value(0, column, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

/* Within sql_begin(): the row that SESSION_SELECT returned. */
static void
fetch(MemoryContext context, Session *session)
{
	session->key.tenant_id = sql_text(0, 1, context);
	session->key.session_id = sql_text(0, 2, context);
	session->number = DatumGetInt64(sql_value(0, 3, NULL));
	session->agent_id = sql_text(0, 4, context);
	session->desired.placement = sql_text(0, 5, context);
	session->desired.runtime_compatibility_id = sql_text(0, 6, context);
	session->desired.workload_version = sql_text(0, 7, context);
	session->desired.workload = copy_bytea(context, 8);
	session->desired_key = sql_text(0, 9, context);
	session->generation = DatumGetInt64(sql_value(0, 10, NULL));
	session->revision = DatumGetInt64(sql_value(0, 11, NULL));
	session->launch_version = sql_text(0, 12, context);
	session->launch_workload = copy_bytea(context, 13);
	session->created_at = DatumGetTimestampTz(sql_value(0, 14, NULL));
	session->observed_revision = int_or_zero(15);
	session->observed_epoch = int_or_zero(16);
	session->journal_seq = int_or_zero(17);
	session->checkpoint_seq = int_or_zero(18);
}

static void
key_values(const SessionKey *key, Datum *values)
{
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
}

bool
session_read(const SessionKey *key, Session *session)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	key_values(key, values);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
		fetch(scope.outer, session);
	sql_end(&scope);
	return found;
}

bool
session_read_number(int64 number, Session *session)
{
	SqlScope	scope;
	Datum		value = Int64GetDatum(number);
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ_NUMBER], &value, NULL) > 0;
	if (found)
		fetch(scope.outer, session);
	sql_end(&scope);
	return found;
}

static bool
finds(SqlPlan *plan, const SessionKey *key)
{
	SqlScope	scope;
	Datum		values[2];
	bool		locked;

	key_values(key, values);
	sql_begin(&scope);
	locked = sql_run_latest(plan, values, NULL) > 0;
	sql_end(&scope);
	return locked;
}

bool
session_lock(const SessionKey *key, Session *session)
{
	return finds(&plans[PLAN_LOCK], key) && session_read(key, session);
}

bool
session_try_lock(const SessionKey *key, Session *session, bool *busy)
{
	bool		locked = finds(&plans[PLAN_TRY_LOCK], key);
	bool		found = session_read(key, session);

	*busy = found && !locked;
	return found && locked;
}

/* ----------------------------------------------------------------
 * What follows from the row
 * ----------------------------------------------------------------
 */

void
session_lease_id(int64 number, char id[SESSION_LEASE_MAX])
{
	snprintf(id, SESSION_LEASE_MAX, "session:" INT64_FORMAT, number);
}

bool
session_is_released(const Session *session)
{
	return strcmp(session->desired.placement, "dedicated") == 0 && session->generation > 1 &&
		session->desired.workload == NULL;
}

const char *
session_mode(const Session *session)
{
	bool		left = session->journal_seq > 0 || session->checkpoint_seq > 0 ||
		finds(&plans[PLAN_POINTER_SET], &session->key);

	return left ? "restore" : "create";
}

/* ----------------------------------------------------------------
 * What is wanted
 * ----------------------------------------------------------------
 */

static bool
same_bytes(const bytea *a, const bytea *b)
{
	if (a == NULL || b == NULL)
		return a == b;
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

bool
session_desired_equal(const SessionDesired *a, const SessionDesired *b)
{
	return strcmp(a->placement, b->placement) == 0 &&
		same_text(a->runtime_compatibility_id, b->runtime_compatibility_id) &&
		same_text(a->workload_version, b->workload_version) &&
		same_bytes(a->workload, b->workload);
}

DesiredWrite
session_replace_desired(Session *session, const SessionDesired *desired, const char *key)
{
	SqlScope	scope;
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	if (session->generation == PG_INT64_MAX || session->revision == PG_INT64_MAX)
		return DESIRED_WRITE_EXHAUSTED;
	key_values(&session->key, values);
	values[2] = CStringGetTextDatum(desired->placement);
	nulls[3] = desired->runtime_compatibility_id == NULL ? 'n' : ' ';
	values[3] = nulls[3] == 'n' ? (Datum) 0 : CStringGetTextDatum(desired->runtime_compatibility_id);
	nulls[4] = nulls[5] = desired->workload == NULL ? 'n' : ' ';
	values[4] = nulls[4] == 'n' ? (Datum) 0 : CStringGetTextDatum(desired->workload_version);
	values[5] = PointerGetDatum(desired->workload);
	values[6] = CStringGetTextDatum(key);
	values[7] = Int64GetDatum(session->generation + 1);
	values[8] = Int64GetDatum(session->revision + 1);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_DESIRE], values, nulls);
	sql_end(&scope);
	session->desired = *desired;
	session->desired_key = pstrdup(key);
	session->generation++;
	session->revision++;
	return DESIRED_WRITE_APPLIED;
}

DesiredWrite
session_desire(Session *session, const SessionDesired *desired, const char *key)
{
	if (session_desired_equal(&session->desired, desired))
		return DESIRED_WRITE_UNCHANGED;
	return session_replace_desired(session, desired, key);
}

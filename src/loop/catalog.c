/*
 * catalog.c
 *		Loops: making, changing, dropping and reading them.
 *
 * The options of create_loop() and the keys of alter_loop() are one table;
 * either source fills the same LoopRules, which one function checks and one
 * writes.  What may have changed since the loop was made (its owner's rights,
 * its function) is checked only where the call sets it: a loop whose function
 * is gone can still be paused, altered and dropped.
 *
 * Locks: the loop's row, in alter_loop(), drop_loop() and watch(), before anything else.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/home.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/wake.h"
#include "loop/loop.h"
#include "loop/schedule.h"
#include "loop/watch.h"

#define CONCURRENCY_MAX	1024

#define LOOP_COLUMNS \
	"loop_name, owner, reconciler, default_requeue_ms, backoff_base_ms, backoff_max_ms, backoff_jitter," \
	" timeout_ms, lease_ttl_ms, renew_every_ms, max_attempts, concurrency, enabled, paused," \
	" lister, repository, resync_every_ms, home, timeline"

enum
{
	PLAN_READ,
	PLAN_READ_ALL,
	PLAN_LOCK,
	PLAN_HOLD,
	PLAN_INSERT,
	PLAN_UPDATE,
	PLAN_DELETE,
	PLAN_DELETE_ENTITIES
};

#define WRITE_TYPES \
	{TEXTOID, OIDOID, TEXTOID, INT8OID, INT8OID, INT8OID, FLOAT8OID, \
		INT8OID, INT8OID, INT8OID, INT4OID, INT4OID, BOOLOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, INT8OID}
#define WRITE_ARGS	17

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT " LOOP_COLUMNS " FROM reconcile.loop WHERE loop_name OPERATOR(pg_catalog.=) $1",
		1, {TEXTOID}
	},
	[PLAN_READ_ALL] = {
		"SELECT " LOOP_COLUMNS " FROM reconcile.loop"
		" WHERE $1 OPERATOR(pg_catalog.=) 0::pg_catalog.oid"
		" OR owner::pg_catalog.oid OPERATOR(pg_catalog.=) $1"
		" ORDER BY loop_name",
		1, {OIDOID}
	},
	[PLAN_LOCK] = {
		"SELECT " LOOP_COLUMNS " FROM reconcile.loop WHERE loop_name OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE",
		1, {TEXTOID}
	},
	[PLAN_HOLD] = {
		"SELECT " LOOP_COLUMNS " FROM reconcile.loop WHERE loop_name OPERATOR(pg_catalog.=) $1 FOR KEY SHARE",
		1, {TEXTOID}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.loop (loop_name, owner, reconciler, default_requeue_ms, backoff_base_ms,"
		" backoff_max_ms, backoff_jitter, timeout_ms, lease_ttl_ms, renew_every_ms, max_attempts,"
		" concurrency, enabled, created_at, lister, repository, resync_every_ms, home, timeline)"
		" SELECT $1, $2::pg_catalog.regrole, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,"
		" h.home, h.timeline FROM reconcile.here() h"
		" ON CONFLICT (loop_name) DO NOTHING",
		WRITE_ARGS, WRITE_TYPES
	},
	[PLAN_UPDATE] = {
		"UPDATE reconcile.loop SET owner = $2::pg_catalog.regrole, reconciler = $3, default_requeue_ms = $4,"
		" backoff_base_ms = $5, backoff_max_ms = $6, backoff_jitter = $7, timeout_ms = $8,"
		" lease_ttl_ms = $9, renew_every_ms = $10, max_attempts = $11, concurrency = $12, enabled = $13,"
		" lister = $15, repository = $16, resync_every_ms = $17"
		" WHERE loop_name OPERATOR(pg_catalog.=) $1 AND $14 IS NOT NULL",
		WRITE_ARGS, WRITE_TYPES
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.loop WHERE loop_name OPERATOR(pg_catalog.=) $1", 1, {TEXTOID}
	},
	[PLAN_DELETE_ENTITIES] = {
		"DELETE FROM reconcile.entity WHERE loop_name OPERATOR(pg_catalog.=) $1", 1, {TEXTOID}
	}
};

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

compat_noreturn static void undefined_loop(const char *loop_name);

static void
undefined_loop(const char *loop_name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("loop \"%s\" does not exist", loop_name),
			 errhint("Make it with reconcile.create_loop().")));
}

static int64
optional_int64(int row, int column)
{
	bool		isnull;
	Datum		value = sql_value(row, column, &isnull);

	return isnull ? -1 : DatumGetInt64(value);
}

static void
function_from_row(int row, int column, LoopRules *rules, FunctionKind which)
{
	bool		isnull;
	Datum		value = sql_value(row, column, &isnull);

	if (!isnull)
		strlcpy(loop_function(rules, which), TextDatumGetCString(value), SIGNATURE_MAX);
}

static void
rules_from_row(int row, LoopRules *rules)
{
	bool		isnull;
	Datum		value;

	memset(rules, 0, sizeof(*rules));
	strlcpy(rules->loop_name, TextDatumGetCString(sql_value(row, 1, NULL)), sizeof(rules->loop_name));
	rules->owner = DatumGetObjectId(sql_value(row, 2, NULL));
	function_from_row(row, 3, rules, FUNCTION_RECONCILER);
	rules->default_requeue_ms = optional_int64(row, 4);
	rules->backoff_base_ms = DatumGetInt64(sql_value(row, 5, NULL));
	rules->backoff_max_ms = DatumGetInt64(sql_value(row, 6, NULL));
	rules->backoff_jitter = DatumGetFloat8(sql_value(row, 7, NULL));
	rules->timeout_ms = optional_int64(row, 8);
	rules->lease_ttl_ms = optional_int64(row, 9);
	rules->renew_every_ms = optional_int64(row, 10);
	value = sql_value(row, 11, &isnull);
	rules->max_attempts = isnull ? -1 : DatumGetInt32(value);
	rules->concurrency = DatumGetInt32(sql_value(row, 12, NULL));
	rules->enabled = DatumGetBool(sql_value(row, 13, NULL));
	rules->paused = DatumGetBool(sql_value(row, 14, NULL));
	function_from_row(row, 15, rules, FUNCTION_LISTER);
	function_from_row(row, 16, rules, FUNCTION_REPOSITORY);
	rules->resync_every_ms = optional_int64(row, 17);
	switch (home_compare(TextDatumGetCString(sql_value(row, 18, NULL)), DatumGetInt32(sql_value(row, 19, NULL))))
	{
		case HOME_SAME:
			break;
		case HOME_TIMELINE:
			rules->resync_owed = true;
			break;
		case HOME_FOREIGN:
			rules->foreign = rules->paused = true;
			break;
	}
}

static bool
read_one(int plan, const char *loop_name, LoopRules *rules)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(loop_name);
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[plan], &value, NULL) > 0;
	if (found)
		rules_from_row(0, rules);
	sql_end(&scope);
	return found;
}

bool
loop_read(const char *loop_name, LoopRules *rules)
{
	return read_one(PLAN_READ, loop_name, rules);
}

void
loop_require(const char *loop_name, LoopRules *rules)
{
	if (!loop_read(loop_name, rules))
		undefined_loop(loop_name);
}

bool
loop_read_held(const char *loop_name, LoopRules *rules)
{
	return read_one(PLAN_HOLD, loop_name, rules);
}

void
loop_hold(const char *loop_name)
{
	LoopRules	rules;

	if (!loop_read_held(loop_name, &rules))
		undefined_loop(loop_name);
}

int
loop_read_all(Oid owner, LoopRules **rules)
{
	SqlScope	scope;
	Datum		value = ObjectIdGetDatum(owner);
	int			n;

	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_READ_ALL], &value, NULL);
	*rules = MemoryContextAlloc(scope.outer, sizeof(LoopRules) * Max(n, 1));
	for (int i = 0; i < n; i++)
		rules_from_row(i, &(*rules)[i]);
	sql_end(&scope);
	return n;
}

/* Places in the table. */
#define ATT_OWNER		2
#define ATT_REPOSITORY	5

/*
 * By the primary key, without SPI: enqueue(), the watch trigger and fenced
 * writes ask for each statement of a user.
 */
static bool
probe(const char *loop_name, Oid *owner, bool *repository)
{
	Relation	rel = table_open(install_get()->lock_class, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (rel->rd_indexvalid == false)
		list_free(RelationGetIndexList(rel));
	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
						   F_TEXTEQ, CStringGetTextDatum(loop_name));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex), snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		*owner = DatumGetObjectId(heap_getattr(tuple, ATT_OWNER, RelationGetDescr(rel), &isnull));
		*repository = !heap_attisnull(tuple, ATT_REPOSITORY, RelationGetDescr(rel));
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

bool
loop_find_owner(const char *loop_name, Oid *owner)
{
	bool		repository;

	return probe(loop_name, owner, &repository);
}

bool
loop_has_repository(const char *loop_name)
{
	Oid			owner;
	bool		repository;

	return probe(loop_name, &owner, &repository) && repository;
}

void
loop_require_trigger(const char *loop_name)
{
	Oid			owner;
	bool		found = loop_find_owner(loop_name, &owner);

	if (!found || !has_privs_of_role(GetUserId(), owner))
		access_require(CAP_TRIGGER, loop_name);
	if (!found)
		undefined_loop(loop_name);
}

/* ----------------------------------------------------------------
 * Options
 * ----------------------------------------------------------------
 */

typedef enum OptionType
{
	OPTION_TEXT,
	OPTION_NAME,
	OPTION_DURATION,
	OPTION_INTEGER,
	OPTION_FRACTION,
	OPTION_BOOLEAN
} OptionType;

/* In the order of create_loop()'s arguments, which begin after loop_name. */
typedef enum OptionId
{
	OPT_RECONCILER,
	OPT_LISTER,
	OPT_RESYNC_EVERY,
	OPT_DEFAULT_REQUEUE,
	OPT_CONCURRENCY,
	OPT_BACKOFF_BASE,
	OPT_BACKOFF_MAX,
	OPT_BACKOFF_JITTER,
	OPT_MAX_ATTEMPTS,
	OPT_TIMEOUT,
	OPT_LEASE_TTL,
	OPT_RENEW_EVERY,
	OPT_REPOSITORY,
	OPT_OWNER,
	OPT_ENABLED
} OptionId;

#define OPTIONS		(OPT_ENABLED + 1)

static const struct
{
	const char *name;
	OptionType	type;
	bool		nullable;
	size_t		offset;			/* of a duration in LoopRules */
}			options[OPTIONS] = {
	[OPT_RECONCILER] = {"reconciler", OPTION_TEXT, true, 0},
	[OPT_LISTER] = {"lister", OPTION_TEXT, true, 0},
	[OPT_RESYNC_EVERY] = {"resync_every", OPTION_DURATION, true, offsetof(LoopRules, resync_every_ms)},
	[OPT_DEFAULT_REQUEUE] = {"default_requeue", OPTION_DURATION, true, offsetof(LoopRules, default_requeue_ms)},
	[OPT_CONCURRENCY] = {"concurrency", OPTION_INTEGER, false, 0},
	[OPT_BACKOFF_BASE] = {"backoff_base", OPTION_DURATION, false, offsetof(LoopRules, backoff_base_ms)},
	[OPT_BACKOFF_MAX] = {"backoff_max", OPTION_DURATION, false, offsetof(LoopRules, backoff_max_ms)},
	[OPT_BACKOFF_JITTER] = {"backoff_jitter", OPTION_FRACTION, false, 0},
	[OPT_MAX_ATTEMPTS] = {"max_attempts", OPTION_INTEGER, true, 0},
	[OPT_TIMEOUT] = {"timeout", OPTION_DURATION, true, offsetof(LoopRules, timeout_ms)},
	[OPT_LEASE_TTL] = {"lease_ttl", OPTION_DURATION, true, offsetof(LoopRules, lease_ttl_ms)},
	[OPT_RENEW_EVERY] = {"renew_every", OPTION_DURATION, true, offsetof(LoopRules, renew_every_ms)},
	[OPT_REPOSITORY] = {"repository", OPTION_TEXT, true, 0},
	[OPT_OWNER] = {"owner", OPTION_NAME, true, 0},
	[OPT_ENABLED] = {"enabled", OPTION_BOOLEAN, false, 0}
};

/* What a call says of one option, whichever function it called. */
typedef struct OptionValue
{
	bool		given;
	bool		isnull;
	const char *text;			/* OPTION_TEXT, OPTION_NAME */
	const Interval *interval;
	int32		integer;
	double		fraction;
	bool		boolean;
} OptionValue;

/* Sets what is a plain value; the owner and the functions come after, in that order. */
static void
set_option(LoopRules *rules, OptionId id, const OptionValue *value)
{
	if (value->isnull && !options[id].nullable)
		arg_null(options[id].name);

	switch (id)
	{
		case OPT_CONCURRENCY:
			if (value->integer < 1 || value->integer > CONCURRENCY_MAX)
				arg_invalid("concurrency", "is out of range",
							psprintf("It is 1 to %d.", CONCURRENCY_MAX));
			rules->concurrency = value->integer;
			break;
		case OPT_MAX_ATTEMPTS:
			if (!value->isnull && value->integer < 1)
				arg_invalid("max_attempts", "is out of range", "It is 1 or more; NULL means without limit.");
			rules->max_attempts = value->isnull ? -1 : value->integer;
			break;
		case OPT_BACKOFF_JITTER:
			/* written so that NaN is refused */
			if (!(value->fraction >= 0 && value->fraction <= 1))
				arg_invalid("backoff_jitter", "is out of range", "It is 0 to 1.");
			rules->backoff_jitter = value->fraction;
			break;
		case OPT_ENABLED:
			rules->enabled = value->boolean;
			break;
		case OPT_RESYNC_EVERY:
		case OPT_DEFAULT_REQUEUE:
		case OPT_BACKOFF_BASE:
		case OPT_BACKOFF_MAX:
		case OPT_TIMEOUT:
		case OPT_LEASE_TTL:
		case OPT_RENEW_EVERY:
			*(int64 *) ((char *) rules + options[id].offset) =
				value->isnull ? -1 : duration_value(value->interval, options[id].name, false);
			break;
		case OPT_RECONCILER:
		case OPT_LISTER:
		case OPT_REPOSITORY:
		case OPT_OWNER:
			break;
	}
}

static void
require_set_role(Oid owner)
{
	if (!compat_member_can_set_role(GetUserId(), owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be able to SET ROLE \"%s\"", GetUserNameFromId(owner, false)),
				 errdetail("The functions of a loop run as its owner.")));
}

static bool
can_login(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	bool		can = HeapTupleIsValid(tuple) && ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return can;
}

/* An executor connects as the owner. */
static void
require_connect(Oid owner)
{
	if (COMPAT_OWNER_NEEDS_LOGIN && !can_login(owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("role \"%s\" cannot log in", GetUserNameFromId(owner, false)),
				 errdetail("The functions of a loop run in a connection of its owner."),
				 errhint("Run ALTER ROLE ... LOGIN, or name another \"owner\".")));
	if (!compat_database_connect_ok(MyDatabaseId, owner))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("role \"%s\" cannot connect to this database", GetUserNameFromId(owner, false)),
				 errdetail("The functions of a loop run in a connection of its owner."),
				 errhint("Run GRANT CONNECT ON DATABASE ... TO ..., or name another \"owner\".")));
}

static const OptionId function_options[LOOP_FUNCTIONS] = {
	[FUNCTION_RECONCILER] = OPT_RECONCILER,
	[FUNCTION_LISTER] = OPT_LISTER,
	[FUNCTION_REPOSITORY] = OPT_REPOSITORY
};

/* Owner and functions: who chooses the function chooses what runs as the owner. */
static void
set_owner_and_functions(LoopRules *rules, const OptionValue *values)
{
	bool		owner_given = values[OPT_OWNER].given;
	bool		any = owner_given;

	for (int i = 0; i < LOOP_FUNCTIONS; i++)
		any |= values[function_options[i]].given;
	if (!any)
		return;
	if (owner_given)
		rules->owner = values[OPT_OWNER].isnull ? GetUserId() : get_role_oid(values[OPT_OWNER].text, false);
	require_set_role(rules->owner);

	any = false;
	for (int i = 0; i < LOOP_FUNCTIONS; i++)
	{
		const OptionValue *value = &values[function_options[i]];
		char	   *signature = loop_function(rules, (FunctionKind) i);

		if (value->given && value->isnull)
			signature[0] = '\0';
		else if (value->given)
			loop_set_function(rules, (FunctionKind) i, value->text);
		else if (owner_given && signature[0] != '\0')
			loop_set_function(rules, (FunctionKind) i, pstrdup(signature));
		/* a repository is called in the session of whoever writes */
		any |= signature[0] != '\0' && i != FUNCTION_REPOSITORY;
	}
	if (any)
		require_connect(rules->owner);
}

/* Fills *rules from what was given, and checks the whole. */
static void
set_options(LoopRules *rules, const OptionValue *values)
{
	bool		repository;

	for (int id = 0; id < OPTIONS; id++)
	{
		if (values[id].given)
			set_option(rules, (OptionId) id, &values[id]);
	}

	if (rules->backoff_base_ms > rules->backoff_max_ms)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"backoff_base\" must not be more than \"backoff_max\""),
				 errdetail("They are " INT64_FORMAT " ms and " INT64_FORMAT " ms.",
						   rules->backoff_base_ms, rules->backoff_max_ms)));
	if (rules->renew_every_ms >= 0 && rules->lease_ttl_ms < 0)
		arg_invalid("renew_every", "needs \"lease_ttl\"", "A loop without a lease renews nothing.");
	if (rules->renew_every_ms > rules->lease_ttl_ms / 2 && rules->lease_ttl_ms >= 0)
		arg_invalid("renew_every", "is more than half of \"lease_ttl\"",
					"Leave time for a second attempt: it is at most lease_ttl / 2.");
	repository = values[OPT_REPOSITORY].given ? !values[OPT_REPOSITORY].isnull : rules->repository[0] != '\0';
	if (repository && rules->lease_ttl_ms < 0)
		arg_invalid("repository", "needs \"lease_ttl\"", "A repository takes the writes that the lease's epoch fences.");
	set_owner_and_functions(rules, values);
}

/* Runs an INSERT or UPDATE of the loop; false: it did nothing. */
static bool
write_loop(int plan, const LoopRules *rules)
{
	Datum		values[WRITE_ARGS];
	char		nulls[WRITE_ARGS + 1];

	memset(nulls, ' ', WRITE_ARGS);
	nulls[WRITE_ARGS] = '\0';
	values[0] = CStringGetTextDatum(rules->loop_name);
	values[1] = ObjectIdGetDatum(rules->owner);
	values[2] = CStringGetTextDatum(rules->reconciler);
	values[14] = CStringGetTextDatum(rules->lister);
	values[15] = CStringGetTextDatum(rules->repository);
	values[16] = Int64GetDatum(rules->resync_every_ms);
	if (rules->reconciler[0] == '\0')
		nulls[2] = 'n';
	if (rules->lister[0] == '\0')
		nulls[14] = 'n';
	if (rules->repository[0] == '\0')
		nulls[15] = 'n';
	if (rules->resync_every_ms < 0)
		nulls[16] = 'n';
	values[3] = Int64GetDatum(rules->default_requeue_ms);
	values[4] = Int64GetDatum(rules->backoff_base_ms);
	values[5] = Int64GetDatum(rules->backoff_max_ms);
	values[6] = Float8GetDatum(rules->backoff_jitter);
	values[7] = Int64GetDatum(rules->timeout_ms);
	values[8] = Int64GetDatum(rules->lease_ttl_ms);
	values[9] = Int64GetDatum(rules->renew_every_ms);
	values[10] = Int32GetDatum(rules->max_attempts);
	values[11] = Int32GetDatum(rules->concurrency);
	values[12] = BoolGetDatum(rules->enabled);
	values[13] = TimestampTzGetDatum(clock_now());
	if (rules->default_requeue_ms < 0)
		nulls[3] = 'n';
	if (rules->timeout_ms < 0)
		nulls[7] = 'n';
	if (rules->lease_ttl_ms < 0)
		nulls[8] = 'n';
	if (rules->renew_every_ms < 0)
		nulls[9] = 'n';
	if (rules->max_attempts < 0)
		nulls[10] = 'n';

	return sql_do(&plans[plan], values, nulls) > 0;
}

/* ----------------------------------------------------------------
 * SQL functions
 * ----------------------------------------------------------------
 */

static void
option_from_argument(FunctionCallInfo fcinfo, OptionId id, OptionValue *value)
{
	int			n = id + 1;

	value->given = true;
	value->isnull = PG_ARGISNULL(n);
	if (value->isnull)
		return;
	switch (options[id].type)
	{
		case OPTION_TEXT:
			value->text = text_to_cstring(PG_GETARG_TEXT_PP(n));
			break;
		case OPTION_NAME:
			value->text = NameStr(*PG_GETARG_NAME(n));
			break;
		case OPTION_DURATION:
			value->interval = PG_GETARG_INTERVAL_P(n);
			break;
		case OPTION_INTEGER:
			value->integer = PG_GETARG_INT32(n);
			break;
		case OPTION_FRACTION:
			value->fraction = PG_GETARG_FLOAT8(n);
			break;
		case OPTION_BOOLEAN:
			value->boolean = PG_GETARG_BOOL(n);
			break;
	}
}

PG_FUNCTION_INFO_V1(reconcile_create_loop);
Datum
reconcile_create_loop(PG_FUNCTION_ARGS)
{
	LoopRules	rules = {0};
	OptionValue values[OPTIONS] = {0};
	char	   *loop_name;
	char	   *if_exists;

	require_writable("create_loop");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if_exists = text_arg(fcinfo, OPTIONS + 1, "if_exists");
	if (strcmp(if_exists, "error") != 0 && strcmp(if_exists, "keep") != 0 && strcmp(if_exists, "replace") != 0)
		arg_invalid("if_exists", "is not one of its values", "It is error, keep or replace.");
	access_require(CAP_DEFINE, loop_name);

	strlcpy(rules.loop_name, loop_name, sizeof(rules.loop_name));
	for (int id = 0; id < OPTIONS; id++)
		option_from_argument(fcinfo, (OptionId) id, &values[id]);
	set_options(&rules, values);

	if (!write_loop(PLAN_INSERT, &rules))
	{
		if (strcmp(if_exists, "error") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("loop \"%s\" already exists", loop_name),
					 errhint("Pass if_exists => 'keep' or 'replace', or use reconcile.alter_loop().")));
		if (strcmp(if_exists, "keep") == 0)
		{
			ereport(NOTICE,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("loop \"%s\" already exists, kept as it is", loop_name)));
			PG_RETURN_VOID();
		}
		if (!write_loop(PLAN_UPDATE, &rules))
			undefined_loop(loop_name);	/* dropped in between */
	}
	access_grant_owner(rules.owner);
	access_changed();
	wake_reload();
	PG_RETURN_VOID();
}

static void
wrong_type(const char *key, const char *expected)
{
	arg_invalid(key, "has a value of another JSON type", expected);
}

static void
option_from_json(const JsonbValue *json, OptionId id, OptionValue *value)
{
	const char *key = options[id].name;

	value->given = true;
	value->isnull = json->type == jbvNull;
	if (value->isnull)
		return;
	switch (options[id].type)
	{
		case OPTION_TEXT:
		case OPTION_NAME:
		case OPTION_DURATION:
			if (json->type != jbvString)
				wrong_type(key, options[id].type == OPTION_DURATION ?
						   "It is null or a string like \"30 s\"." : "It is null or a string.");
			value->text = pnstrdup(json->val.string.val, json->val.string.len);
			if (options[id].type == OPTION_DURATION)
				value->interval = duration_parse(value->text, key);
			break;
		case OPTION_INTEGER:
			{
				char	   *digits;
				char	   *end;
				long		number;

				if (json->type != jbvNumeric)
					wrong_type(key, "It is an integer.");
				digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(json->val.numeric)));
				errno = 0;
				number = strtol(digits, &end, 10);
				if (*end != '\0')
					wrong_type(key, "It is an integer.");
				if (errno != 0 || number < PG_INT32_MIN || number > PG_INT32_MAX)
					arg_invalid(key, "is out of range", "It is an integer of 32 bits.");
				value->integer = (int32) number;
				break;
			}
		case OPTION_FRACTION:
			if (json->type != jbvNumeric)
				wrong_type(key, "It is a number.");
			value->fraction = DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
																 NumericGetDatum(json->val.numeric)));
			break;
		case OPTION_BOOLEAN:
			if (json->type != jbvBool)
				wrong_type(key, "It is true or false.");
			value->boolean = json->val.boolean;
			break;
	}
}

static void
options_from_json(Jsonb *changes, OptionValue *values)
{
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	json;

	if (!JB_ROOT_IS_OBJECT(changes))
		arg_invalid("changes", "must be a JSON object", "Its keys are options of reconcile.create_loop().");
	iterator = JsonbIteratorInit(&changes->root);
	while ((token = JsonbIteratorNext(&iterator, &json, true)) != WJB_DONE)
	{
		char	   *key;
		int			id;

		if (token != WJB_KEY)
			continue;
		key = pnstrdup(json.val.string.val, json.val.string.len);
		for (id = 0; id < OPTIONS; id++)
		{
			if (strcmp(key, options[id].name) == 0)
				break;
		}
		if (id == OPTIONS)
			arg_invalid("changes", psprintf("has the unknown key \"%s\"", key),
						"Its keys are the arguments of reconcile.create_loop(), but for loop_name and if_exists.");
		token = JsonbIteratorNext(&iterator, &json, true);
		Assert(token == WJB_VALUE);
		option_from_json(&json, (OptionId) id, &values[id]);
	}
}

PG_FUNCTION_INFO_V1(reconcile_alter_loop);
Datum
reconcile_alter_loop(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	OptionValue values[OPTIONS] = {0};
	char	   *loop_name;

	require_writable("alter_loop");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if (PG_ARGISNULL(1))
		arg_null("changes");
	access_require(CAP_DEFINE, loop_name);
	if (!read_one(PLAN_LOCK, loop_name, &rules))
		undefined_loop(loop_name);
	options_from_json(PG_GETARG_JSONB_P(1), values);
	set_options(&rules, values);
	write_loop(PLAN_UPDATE, &rules);
	if (values[OPT_OWNER].given)
		access_grant_owner(rules.owner);
	access_changed();
	wake_reload();
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_drop_loop);
Datum
reconcile_drop_loop(PG_FUNCTION_ARGS)
{
	SqlScope	scope;
	char	   *loop_name;
	Datum		value;

	require_writable("drop_loop");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	access_require(CAP_DEFINE, loop_name);

	value = CStringGetTextDatum(loop_name);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_DELETE], &value, NULL) == 0)
		undefined_loop(loop_name);
	sql_end(&scope);

	/* a run that has written to a watched table keeps us out of it, and must not wait for us at its end */
	watch_drop_all(loop_name);
	sql_do(&plans[PLAN_DELETE_ENTITIES], &value, NULL);
	loop_delete_marks(loop_name, NULL);
	/* a claim may have committed while we waited for its marks */
	sql_do(&plans[PLAN_DELETE_ENTITIES], &value, NULL);
	schedule_drop(loop_name);
	access_changed();
	wake_reload();
	/* one of the same name may be made before anybody looks: it has none of these marks */
	wake_rescan();
	PG_RETURN_VOID();
}

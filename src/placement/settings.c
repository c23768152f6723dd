/*
 * settings.c
 *		How sessions are placed.
 *
 * Without a row the defaults hold.  The first row fixes the number of control shards:
 * commands carry theirs.  The loops are made where they are not there, owned by who
 * calls set_placement(); without them everything works by hand.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "loop/loop.h"
#include "placement/marks.h"
#include "placement/settings.h"

#define SETTING_COLUMNS \
	"s.control_shards, s.claim_ttl_ms, s.candidate_limit, s.replace_attempts, s.replace_backoff_ms, s.offer_ttl_ms," \
	" s.session_ttl_ms, s.horizon_ms, s.interval_ms, s.page_limit, s.max_pages"

enum
{
	PLAN_READ,
	PLAN_LOCK,
	PLAN_INSERT,
	PLAN_UPDATE,
	PLAN_MAKE_LOOP,
	PLAN_MAKE_SWEEPS
};

#define SETTINGS	11
#define WRITE_TYPES \
	{INT4OID, INT8OID, INT4OID, INT4OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT4OID, INT4OID}

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT " SETTING_COLUMNS " FROM reconcile.placement_setting s", 0, {0}
	},
	[PLAN_LOCK] = {
		"SELECT " SETTING_COLUMNS " FROM reconcile.placement_setting s FOR NO KEY UPDATE", 0, {0}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.placement_setting (singleton, control_shards, claim_ttl_ms, candidate_limit,"
		" replace_attempts, replace_backoff_ms, offer_ttl_ms, session_ttl_ms, horizon_ms, interval_ms, page_limit, max_pages)"
		" VALUES (true, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING",
		SETTINGS, WRITE_TYPES
	},
	[PLAN_UPDATE] = {
		"UPDATE reconcile.placement_setting SET claim_ttl_ms = $2, candidate_limit = $3, replace_attempts = $4,"
		" replace_backoff_ms = $5, offer_ttl_ms = $6, session_ttl_ms = $7, horizon_ms = $8, interval_ms = $9,"
		" page_limit = $10, max_pages = $11 WHERE control_shards OPERATOR(pg_catalog.=) $1",
		SETTINGS, WRITE_TYPES
	},
	/* each run is a transaction of its own: one session that fails holds up no other */
	[PLAN_MAKE_LOOP] = {
		"SELECT reconcile.create_loop('" PLACEMENT_LOOP "', reconciler => 'reconcile.place_entity', default_requeue => NULL,"
		" concurrency => 8, backoff_base => '1 s', backoff_max => '1 min', backoff_jitter => 0.5, timeout => '1 min',"
		" owner => $1)",
		1, {NAMEOID}
	},
	[PLAN_MAKE_SWEEPS] = {
		"SELECT reconcile.create_loop('" PLACEMENT_SWEEPS_LOOP "', reconciler => 'reconcile.sweep_entity',"
		" lister => 'reconcile.sweep_names', resync_every => '1 h', default_requeue => NULL, concurrency => 2,"
		" backoff_base => '1 s', backoff_max => '1 min', backoff_jitter => 0.5, timeout => '5 min', owner => $1)",
		1, {NAMEOID}
	}
};

static const PlacementSettings defaults = {
	.control_shards = 16,
	.claim_ttl_ms = 30 * 1000,
	.candidate_limit = 256,
	.replace_attempts = 3,
	.replace_backoff_ms = 200,
	.offer_ttl_ms = 10 * 1000,
	.session_ttl_ms = 60 * 1000,
	.horizon_ms = 5 * 60 * 1000,
	.interval_ms = 5 * 1000,
	.page_limit = 64,
	.max_pages = 32
};

/* In the order of the columns. */
static const struct
{
	const char *name;
	size_t		offset;
	bool		duration;
	int64		max;			/* from 1; ms of a duration */
	const char *hint;
}			settings_table[SETTINGS] = {
	{"control_shards", offsetof(PlacementSettings, control_shards), false, 4096, "It is 1 to 4,096."},
	{"claim_ttl", offsetof(PlacementSettings, claim_ttl_ms), true, 300000, "It is 1 ms to 5 minutes."},
	{"candidate_limit", offsetof(PlacementSettings, candidate_limit), false, 1000, "It is 1 to 1,000."},
	{"replace_attempts", offsetof(PlacementSettings, replace_attempts), false, 10, "It is 1 to 10."},
	{"replace_backoff", offsetof(PlacementSettings, replace_backoff_ms), true, 5000, "It is 1 ms to 5 s."},
	{"offer_ttl", offsetof(PlacementSettings, offer_ttl_ms), true, 300000, "It is 1 ms to 5 minutes."},
	{"session_ttl", offsetof(PlacementSettings, session_ttl_ms), true, 3600000, "It is 1 ms to 1 hour."},
	{"horizon", offsetof(PlacementSettings, horizon_ms), true, DURATION_MAX_MS, "It is 1 ms to 366 days."},
	{"interval", offsetof(PlacementSettings, interval_ms), true, DURATION_MAX_MS, "It is 1 ms to 366 days."},
	{"page_limit", offsetof(PlacementSettings, page_limit), false, 1000, "It is 1 to 1,000."},
	{"max_pages", offsetof(PlacementSettings, max_pages), false, 1024, "It is 1 to 1,024."}
};

#define SETTING_CONTROL_SHARDS	0

static int64
get_setting(const PlacementSettings *settings, int id)
{
	const void *field = (const char *) settings + settings_table[id].offset;

	return settings_table[id].duration ? *(const int64 *) field : *(const int *) field;
}

static void
put_setting(PlacementSettings *settings, int id, int64 value)
{
	void	   *field = (char *) settings + settings_table[id].offset;

	if (settings_table[id].duration)
		*(int64 *) field = value;
	else
		*(int *) field = (int) value;
}

/* ----------------------------------------------------------------
 * The row
 * ----------------------------------------------------------------
 */

/* False: there is no row, and *settings is as before. */
static bool
read_row(int plan, PlacementSettings *settings)
{
	SqlScope	scope;
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[plan], NULL, NULL) > 0;
	for (int id = 0; found && id < SETTINGS; id++)
	{
		Datum		value = sql_value(0, id + 1, NULL);

		put_setting(settings, id, settings_table[id].duration ? DatumGetInt64(value) : DatumGetInt32(value));
	}
	sql_end(&scope);
	return found;
}

static bool
write_row(int plan, const PlacementSettings *settings)
{
	SqlScope	scope;
	Datum		values[SETTINGS];
	bool		written;

	for (int id = 0; id < SETTINGS; id++)
	{
		int64		value = get_setting(settings, id);

		values[id] = settings_table[id].duration ? Int64GetDatum(value) : Int32GetDatum((int32) value);
	}
	sql_begin(&scope);
	written = sql_run_latest(&plans[plan], values, NULL) > 0;
	sql_end(&scope);
	return written;
}

void
placement_settings(PlacementSettings *settings)
{
	*settings = defaults;
	(void) read_row(PLAN_READ, settings);
}

/* The row, made if it is not there; with the lock that "plan" takes. */
static void
require_row(int plan, PlacementSettings *settings)
{
	if (read_row(plan, settings))
		return;
	/* waits for who is making it */
	(void) write_row(PLAN_INSERT, settings);
	if (!read_row(plan, settings))
		elog(ERROR, "reconcile.placement_setting has lost its row");
}

int
placement_shards(void)
{
	PlacementSettings settings = defaults;

	require_row(PLAN_READ, &settings);
	return settings.control_shards;
}

PG_FUNCTION_INFO_V1(reconcile_control_shards);
Datum
reconcile_control_shards(PG_FUNCTION_ARGS)
{
	require_writable("control_shards");
	require_read_committed("control_shards");
	access_require_all(CAP_PLACE);
	PG_RETURN_INT32(placement_shards());
}

/* ----------------------------------------------------------------
 * set_placement()
 * ----------------------------------------------------------------
 */

static int64
duration_from_json(const JsonbValue *json, int id)
{
	const char *name = settings_table[id].name;

	if (json->type != jbvString)
		arg_invalid(name, "has a value of another JSON type", "It is null or a string like \"30 s\".");
	return duration_value(duration_parse(pnstrdup(json->val.string.val, json->val.string.len), name), name, false);
}

static int64
setting_from_json(const JsonbValue *json, int id)
{
	const char *name = settings_table[id].name;
	int64		value;

	if (json->type == jbvNull)
		return get_setting(&defaults, id);
	if (settings_table[id].duration)
		value = duration_from_json(json, id);
	else
	{
		bool		error = false;

		if (json->type != jbvNumeric)
			arg_invalid(name, "has a value of another JSON type", "It is null or an integer.");
		value = numeric_int4_opt_error(json->val.numeric, &error);
		if (error)
			value = 0;
	}
	if (value < 1 || value > settings_table[id].max)
		arg_invalid(name, "is out of range", settings_table[id].hint);
	return value;
}

static int
find_setting(const char *name)
{
	for (int id = 0; id < SETTINGS; id++)
	{
		if (strcmp(name, settings_table[id].name) == 0)
			return id;
	}
	arg_invalid("changes", psprintf("has the unknown key \"%s\"", name),
				"It is control_shards, claim_ttl, candidate_limit, replace_attempts, replace_backoff, offer_ttl, session_ttl, horizon, interval, page_limit or max_pages.");
}

static void
apply_changes(Jsonb *changes, PlacementSettings *settings)
{
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	json;

	if (!JB_ROOT_IS_OBJECT(changes))
		arg_invalid("changes", "must be a JSON object", "Its keys are the settings of placement.");
	iterator = JsonbIteratorInit(&changes->root);
	while ((token = JsonbIteratorNext(&iterator, &json, true)) != WJB_DONE)
	{
		int			id;

		if (token != WJB_KEY)
			continue;
		id = find_setting(pnstrdup(json.val.string.val, json.val.string.len));
		token = JsonbIteratorNext(&iterator, &json, true);
		Assert(token == WJB_VALUE);
		put_setting(settings, id, setting_from_json(&json, id));
	}
}

/* A claim outlives a sweep's interval, and a command outlives a claim. */
static void
check_order(const PlacementSettings *settings)
{
	if (settings->interval_ms >= settings->claim_ttl_ms)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"interval\" must be less than \"claim_ttl\""),
				 errdetail("They are " INT64_FORMAT " ms and " INT64_FORMAT " ms.",
						   settings->interval_ms, settings->claim_ttl_ms)));
	if (settings->claim_ttl_ms >= settings->horizon_ms)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"claim_ttl\" must be less than \"horizon\""),
				 errdetail("They are " INT64_FORMAT " ms and " INT64_FORMAT " ms.",
						   settings->claim_ttl_ms, settings->horizon_ms)));
}

/* True: the loop was not there, and is the caller's now. */
static bool
make_loop(int plan, const char *loop_name)
{
	LoopRules	rules;
	SqlScope	scope;
	Datum		owner;

	if (loop_read(loop_name, &rules))
		return false;
	access_require(CAP_DEFINE, loop_name);
	owner = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	sql_begin(&scope);
	(void) sql_run_latest(&plans[plan], &owner, NULL);
	sql_end(&scope);
	return true;
}

static Jsonb *
settings_jsonb(const PlacementSettings *settings)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	for (int id = 0; id < SETTINGS; id++)
	{
		int64		value = get_setting(settings, id);

		if (settings_table[id].duration)
			jsonb_add_text(&build, settings_table[id].name, psprintf(INT64_FORMAT " ms", value));
		else
			jsonb_add_int(&build, settings_table[id].name, value);
	}
	return jsonb_end(&build);
}

PG_FUNCTION_INFO_V1(reconcile_set_placement);
Datum
reconcile_set_placement(PG_FUNCTION_ARGS)
{
	PlacementSettings settings = defaults;
	PlacementSettings changed;

	require_writable("set_placement");
	require_read_committed("set_placement");
	if (PG_ARGISNULL(0))
		arg_null("changes");
	access_require_all(CAP_OPERATE);
	/* first what is wrong whatever is stored: the first row is made of nothing that is refused */
	apply_changes(PG_GETARG_JSONB_P(0), &settings);
	if (!read_row(PLAN_LOCK, &settings))
	{
		check_order(&settings);
		require_row(PLAN_LOCK, &settings);
	}
	changed = settings;
	apply_changes(PG_GETARG_JSONB_P(0), &changed);
	if (changed.control_shards != settings.control_shards)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("control_shards cannot change"),
				 errdetail("It is %d: it was fixed at its first use, and commands carry their shards.",
						   settings.control_shards)));
	check_order(&changed);
	(void) write_row(PLAN_UPDATE, &changed);
	(void) make_loop(PLAN_MAKE_LOOP, PLACEMENT_LOOP);
	if (make_loop(PLAN_MAKE_SWEEPS, PLACEMENT_SWEEPS_LOOP))
		sweep_mark_all();
	PG_RETURN_DATUM(JsonbPGetDatum(settings_jsonb(&changed)));
}

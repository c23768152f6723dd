/*
 * actions.c
 *		What can be commanded: the ten actions that are built in, and those that an
 *		application registers.
 *
 * All are rows of reconcile.command_action, one for each kind of target; the
 * install script writes those of the table below there.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/confined.h"
#include "core/errors.h"
#include "core/function.h"
#include "core/ident.h"
#include "core/plan.h"
#include "journal/actions.h"
#include "journal/authorize.h"
#include "journal/envelope.h"

#define KINDS_MAX	8

typedef struct Builtin
{
	const char *action;
	const char *target_kinds[4];
	bool		confirm;
	const char *desired_state;
} Builtin;

static const Builtin builtins[] = {
	{"pause", {"queue", "worker_group"}, false, "paused"},
	{"resume", {"queue", "worker_group"}, false, "active"},
	{"drain", {"worker", "worker_group"}, false, "draining"},
	{"terminate", {"worker", "worker_group"}, false, "terminating"},
	{"retry", {"failure", "dead_letter"}, false, NULL},
	{"bulk_retry", {"failure", "dead_letter"}, true, NULL},
	{"delete", {"failure", "dead_letter"}, false, NULL},
	{"purge", {"queue", "failure", "dead_letter"}, true, NULL},
	{"replay", {"failure", "dead_letter"}, true, NULL},
	{"scale", {"workload"}, false, NULL}
};

/* A queue is a loop, and its dead letters are its dead entities: they are here. */
static const char *const local_kinds[] = {"queue", "dead_letter"};

static const char *const desired_states[] = {"active", "paused", "draining", "terminating"};

static const char *const mode_names[] = {
	[MODE_LOCAL] = "local",
	[MODE_EXTERNAL] = "external",
	[MODE_UNAVAILABLE] = "unavailable"
};

enum
{
	PLAN_READ,
	PLAN_ACTION_KNOWN,
	PLAN_KIND_KNOWN,
	PLAN_REGISTER
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT a.mode, a.dispatcher, a.owner_name, a.confirm, a.desired_state, a.builtin"
		" FROM reconcile.command_action a"
		" WHERE a.action OPERATOR(pg_catalog.=) $1 AND a.target_kind OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_ACTION_KNOWN] = {
		"SELECT FROM reconcile.command_action a WHERE a.action OPERATOR(pg_catalog.=) $1 LIMIT 1", 1, {TEXTOID}
	},
	[PLAN_KIND_KNOWN] = {
		"SELECT FROM reconcile.command_action a WHERE a.target_kind OPERATOR(pg_catalog.=) $1 LIMIT 1", 1, {TEXTOID}
	},
	[PLAN_REGISTER] = {
		"INSERT INTO reconcile.command_action AS a"
		" (action, target_kind, mode, dispatcher, owner_name, confirm, desired_state)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7)"
		" ON CONFLICT (action, target_kind) DO UPDATE SET mode = EXCLUDED.mode, dispatcher = EXCLUDED.dispatcher,"
		" owner_name = EXCLUDED.owner_name, confirm = EXCLUDED.confirm, desired_state = EXCLUDED.desired_state"
		" WHERE NOT a.builtin",
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, NAMEOID, BOOLOID, TEXTOID}
	}
};

/* ----------------------------------------------------------------
 * The built-in ones
 * ----------------------------------------------------------------
 */

static const Builtin *
find_builtin(const char *action)
{
	for (int i = 0; i < lengthof(builtins); i++)
	{
		if (strcmp(builtins[i].action, action) == 0)
			return &builtins[i];
	}
	return NULL;
}

bool
is_builtin_action(const char *action)
{
	return find_builtin(action) != NULL;
}

const char *
builtin_desired_state(const char *action)
{
	const Builtin *builtin = find_builtin(action);

	return builtin != NULL ? builtin->desired_state : NULL;
}

static bool
is_one_of(const char *value, const char *const *list, int n)
{
	for (int i = 0; i < n && list[i] != NULL; i++)
	{
		if (strcmp(list[i], value) == 0)
			return true;
	}
	return false;
}

bool
builtin_applies(const char *action, const char *target_kind)
{
	const Builtin *builtin = find_builtin(action);

	return builtin != NULL && is_one_of(target_kind, builtin->target_kinds, lengthof(builtin->target_kinds));
}

static bool
is_builtin_kind(const char *target_kind)
{
	for (int i = 0; i < lengthof(builtins); i++)
	{
		if (is_one_of(target_kind, builtins[i].target_kinds, lengthof(builtins[i].target_kinds)))
			return true;
	}
	return false;
}

bool
desired_state_valid(const char *state)
{
	return is_one_of(state, desired_states, lengthof(desired_states));
}

const char *
command_mode_name(CommandMode mode)
{
	return mode_names[mode];
}

/* For the install script. */
PG_FUNCTION_INFO_V1(reconcile_builtin_actions);
Datum
reconcile_builtin_actions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < lengthof(builtins); i++)
	{
		const Builtin *builtin = &builtins[i];

		for (int j = 0; j < lengthof(builtin->target_kinds) && builtin->target_kinds[j] != NULL; j++)
		{
			const char *kind = builtin->target_kinds[j];
			bool		local = is_one_of(kind, local_kinds, lengthof(local_kinds));
			Datum		values[5];
			bool		nulls[5] = {false};

			values[0] = CStringGetTextDatum(builtin->action);
			values[1] = CStringGetTextDatum(kind);
			values[2] = CStringGetTextDatum(mode_names[local ? MODE_LOCAL : MODE_EXTERNAL]);
			values[3] = BoolGetDatum(builtin->confirm);
			nulls[4] = builtin->desired_state == NULL;
			if (!nulls[4])
				values[4] = CStringGetTextDatum(builtin->desired_state);
			tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------
 */

static CommandMode
mode_of(const char *name)
{
	for (int i = 0; i < lengthof(mode_names); i++)
	{
		if (strcmp(mode_names[i], name) == 0)
			return (CommandMode) i;
	}
	elog(ERROR, "unknown mode \"%s\"", name);
}

static bool
is_there(int plan, const char *name)
{
	Datum		value = CStringGetTextDatum(name);

	return sql_do(&plans[plan], &value, NULL) > 0;
}

bool
action_known(const char *action)
{
	return find_builtin(action) != NULL || is_there(PLAN_ACTION_KNOWN, action);
}

bool
target_kind_known(const char *target_kind)
{
	return is_builtin_kind(target_kind) || is_there(PLAN_KIND_KNOWN, target_kind);
}

void
action_require(const char *action, const char *target_kind, ActionRules *rules)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	memset(rules, 0, sizeof(*rules));
	values[0] = CStringGetTextDatum(action);
	values[1] = CStringGetTextDatum(target_kind);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_READ], values, NULL) > 0;
	if (found)
	{
		bool		isnull;
		Datum		value;

		rules->mode = mode_of(TextDatumGetCString(sql_value(0, 1, NULL)));
		value = sql_value(0, 2, &isnull);
		if (!isnull)
			strlcpy(rules->dispatcher, TextDatumGetCString(value), sizeof(rules->dispatcher));
		value = sql_value(0, 3, &isnull);
		if (!isnull)
			namestrcpy(&rules->owner, NameStr(*DatumGetName(value)));
		rules->confirm = DatumGetBool(sql_value(0, 4, NULL));
		value = sql_value(0, 5, &isnull);
		if (!isnull)
			rules->desired_state = MemoryContextStrdup(scope.outer, TextDatumGetCString(value));
		rules->builtin = DatumGetBool(sql_value(0, 6, NULL));
	}
	sql_end(&scope);
	if (!found)
		field_invalid("target_kind", "is not one that the action applies to",
					  psprintf("reconcile.command_action has the kinds that \"%s\" applies to.", action));
}

/* A name as actions and kinds of targets have it. */
static void
name_check(const char *value, const char *arg)
{
	if (!reconciler_id_valid(value))
		arg_invalid(arg, "is not a name",
					"It is 1 to 48 bytes: a lower-case letter or underscore, then lower-case letters, digits and underscores.");
}

PG_FUNCTION_INFO_V1(reconcile_register_action);
Datum
reconcile_register_action(PG_FUNCTION_ARGS)
{
	char	   *action;
	Datum	   *kinds;
	int			nkinds;
	char	   *mode;
	Datum		values[7];
	char		nulls[7] = {' ', ' ', ' ', ' ', ' ', ' ', ' '};
	SqlScope	scope;

	require_writable("register_action");
	action = text_arg(fcinfo, 0, "action");
	name_check(action, "action");
	nkinds = array_arg(fcinfo, 1, "target_kinds", TEXTOID, KINDS_MAX, &kinds);
	if (nkinds == 0)
		arg_invalid("target_kinds", "must not be empty", "They are what the action applies to: queue, worker, or kinds of your own.");
	for (int i = 0; i < nkinds; i++)
		name_check(TextDatumGetCString(kinds[i]), "target_kinds");
	mode = text_arg(fcinfo, 2, "mode");
	if (!is_one_of(mode, mode_names, lengthof(mode_names)))
		arg_invalid("mode", "is not a mode", "It is local, external or unavailable.");
	if (PG_ARGISNULL(3) != (mode_of(mode) != MODE_LOCAL))
		arg_invalid("dispatcher", PG_ARGISNULL(3) ? "must be given" : "must not be given",
					"It is the function of a local action; nobody calls one of another.");
	if (PG_ARGISNULL(4))
		arg_null("confirm");
	if (!PG_ARGISNULL(5) && !desired_state_valid(text_to_cstring(PG_GETARG_TEXT_PP(5))))
		arg_invalid("desired_state", "is not a desired state", "It is active, paused, draining or terminating.");
	access_require_all(CAP_DEFINE);
	if (is_builtin_action(action))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("action \"%s\" is built in", action),
				 errhint("Give yours another name.")));
	/* who may do that might do this, too */
	if (permission_is_ours(action))
		arg_invalid("action", "is the name of a permission", "Give it another name.");

	values[0] = CStringGetTextDatum(action);
	values[2] = CStringGetTextDatum(mode);
	nulls[3] = nulls[4] = PG_ARGISNULL(3) ? 'n' : ' ';
	if (!PG_ARGISNULL(3))
	{
		values[3] = CStringGetTextDatum(function_name_signature(FUNCTION_DISPATCHER,
																text_to_cstring(PG_GETARG_TEXT_PP(3)),
																GetUserId(), "action"));
		values[4] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	}
	values[5] = PG_GETARG_DATUM(4);
	nulls[6] = PG_ARGISNULL(5) ? 'n' : ' ';
	values[6] = PG_ARGISNULL(5) ? (Datum) 0 : PG_GETARG_DATUM(5);
	sql_begin(&scope);
	for (int i = 0; i < nkinds; i++)
	{
		values[1] = kinds[i];
		sql_run_latest(&plans[PLAN_REGISTER], values, nulls);
	}
	sql_end(&scope);
	ereport(LOG,
			(errmsg("action \"%s\" is registered: %s", action, mode),
			 errhidestmt(true), errhidecontext(true)));
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * Dispatchers
 * ----------------------------------------------------------------
 */

/* What it answers: {"status": "succeeded"}, or failed with the failure. */
static char *
failure_of(const char *action, Datum answer, bool isnull)
{
	Jsonb	   *jsonb = isnull ? NULL : DatumGetJsonbP(answer);
	char	   *status = jsonb != NULL && JB_ROOT_IS_OBJECT(jsonb) ? options_text(jsonb, NULL, "status") : NULL;
	char	   *failure;

	if (status != NULL && strcmp(status, "succeeded") == 0)
		return NULL;
	if (status == NULL || strcmp(status, "failed") != 0)
		return pstrdup("invalid_dispatch_result");
	failure = options_text(jsonb, NULL, "failure");
	return failure != NULL && failure_code_valid(failure) ? failure : pstrdup("invalid_dispatch_result");
}

char *
action_dispatch(const char *action, const ActionRules *rules, Jsonb *command)
{
	Oid			function = function_resolve(FUNCTION_DISPATCHER, rules->dispatcher);
	Oid			owner = get_role_oid(NameStr(rules->owner), true);
	Datum		args[] = {JsonbPGetDatum(command)};
	Datum		answer;
	bool		isnull;

	if (!OidIsValid(function) || !OidIsValid(owner) || function_problem(function, owner) != FUNCTION_OK)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("action \"%s\" cannot call its dispatcher %s", action, rules->dispatcher),
				 errdetail("It or the role that registered it is gone, or that role may not execute it."),
				 errhint("Define it again, or register the action anew.")));
	answer = confined_call(owner, function, lengthof(args), args, &isnull);
	return failure_of(action, answer, isnull);
}

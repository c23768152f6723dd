/*
 * authorizer.c
 *		A function of the application that has to agree to what grants allow.
 *
 * It runs as the role that set it.  Whatever goes wrong with it is a no.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "core/access.h"
#include "core/confined.h"
#include "core/errors.h"
#include "core/function.h"
#include "core/ident.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "journal/authorize.h"

enum
{
	PLAN_AUTHORIZER,
	PLAN_SET_AUTHORIZER,
	PLAN_DROP_AUTHORIZER
};

static SqlPlan plans[] = {
	[PLAN_AUTHORIZER] = {
		"SELECT a.signature, a.owner_name FROM reconcile.command_authorizer a", 0, {0}
	},
	[PLAN_SET_AUTHORIZER] = {
		"INSERT INTO reconcile.command_authorizer AS a (singleton, signature, owner_name) VALUES (true, $1, $2)"
		" ON CONFLICT (singleton) DO UPDATE SET signature = EXCLUDED.signature, owner_name = EXCLUDED.owner_name",
		2, {TEXTOID, NAMEOID}
	},
	[PLAN_DROP_AUTHORIZER] = {
		"DELETE FROM reconcile.command_authorizer", 0, {0}
	}
};

typedef struct Question
{
	const AccessRequest *request;
	char	   *signature;
	char	   *owner_name;
	bool		agreed;
} Question;

static void
ask(void *arg)
{
	Question   *question = arg;
	const AccessRequest *request = question->request;
	Oid			function = function_resolve(FUNCTION_AUTHORIZER, question->signature);
	Oid			owner = get_role_oid(question->owner_name, true);
	JsonbBuild	build;
	Datum		answer;
	bool		isnull;

	if (!OidIsValid(function) || !OidIsValid(owner) || function_problem(function, owner) != FUNCTION_OK)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("the authorizer %s is gone, or the role that set it may not execute it", question->signature)));
	jsonb_begin(&build);
	jsonb_add_text(&build, "role", GetUserNameFromId(GetUserId(), false));
	jsonb_add_text(&build, "actor", request->actor);
	jsonb_add_text(&build, "tenant_id", request->tenant_id);
	jsonb_add_text(&build, "permission", request->permission);
	jsonb_add_text(&build, "target_kind", request->target_kind);
	jsonb_add_text(&build, "target_name", request->target_name);
	answer = JsonbPGetDatum(jsonb_end(&build));
	answer = confined_call(owner, function, 1, &answer, &isnull);
	question->agreed = !isnull && DatumGetBool(answer);
}

static bool
find_authorizer(Question *question)
{
	SqlScope	scope;
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_AUTHORIZER], NULL, NULL) > 0;
	if (found)
	{
		question->signature = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 1, NULL)));
		question->owner_name = MemoryContextStrdup(scope.outer, NameStr(*DatumGetName(sql_value(0, 2, NULL))));
	}
	sql_end(&scope);
	return found;
}

/* An error of it is a no, and is logged; but not that the statement was cancelled. */
bool
authorizer_agrees(const AccessRequest *request)
{
	Question	question = {request};
	ErrorData  *error;

	if (!find_authorizer(&question))
		return true;
	error = subxact_run(ask, &question);
	if (error == NULL)
		return question.agreed;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		ReThrowError(error);
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("the authorizer %s has failed: SQLSTATE %s; the command is denied",
					question.signature, unpack_sql_state(error->sqlerrcode)),
			 errhidestmt(true), errhidecontext(true)));
	return false;
}

PG_FUNCTION_INFO_V1(reconcile_set_authorizer);
Datum
reconcile_set_authorizer(PG_FUNCTION_ARGS)
{
	Datum		values[2];
	bool		set = !PG_ARGISNULL(0);

	require_writable("set_authorizer");
	access_require_administrator();
	if (set)
	{
		values[0] = CStringGetTextDatum(function_name_signature(FUNCTION_AUTHORIZER, text_arg(fcinfo, 0, "authorizer"),
																GetUserId(), "authorizer"));
		values[1] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	}
	sql_do(&plans[set ? PLAN_SET_AUTHORIZER : PLAN_DROP_AUTHORIZER], values, NULL);
	ereport(LOG,
			(errmsg("the authorizer of commands is %s", set ? TextDatumGetCString(values[0]) : "gone"),
			 errhidestmt(true), errhidecontext(true)));
	PG_RETURN_VOID();
}

/*
 * confined.c
 *		Calls of users' functions as their owner, in a session of somebody else.
 */
#include "postgres.h"

#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

#include "core/confined.h"
#include "core/plan.h"

#define ARGS_MAX	4

static SqlPlan path_plan = {
	/* in the order in which a new session lets them count */
	"SELECT pg_catalog.substr(c, 13) FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c"
	" WHERE (s.setdatabase OPERATOR(pg_catalog.=) $1 OR s.setdatabase OPERATOR(pg_catalog.=) 0::pg_catalog.oid)"
	" AND (s.setrole OPERATOR(pg_catalog.=) $2 OR s.setrole OPERATOR(pg_catalog.=) 0::pg_catalog.oid)"
	" AND pg_catalog.starts_with(c, 'search_path=')"
	" ORDER BY s.setrole OPERATOR(pg_catalog.=) 0::pg_catalog.oid,"
	" s.setdatabase OPERATOR(pg_catalog.=) 0::pg_catalog.oid LIMIT 1",
	2, {OIDOID, OIDOID}
};

static bool
names_temp(const char *path)
{
	List	   *schemas;
	ListCell   *cell;

	(void) SplitIdentifierString(pstrdup(path), ',', &schemas);
	foreach(cell, schemas)
	{
		if (strcmp(lfirst(cell), "pg_temp") == 0)
			return true;
	}
	return false;
}

/*
 * The search path that a session of the owner begins with, as far as roles and
 * databases set it: that of this session, or its default, is the writer's
 * choice.  His temporary tables come last.
 */
static const char *
owner_path(Oid owner)
{
	SqlScope	scope;
	Datum		values[2];
	char	   *path = NULL;

	values[0] = ObjectIdGetDatum(MyDatabaseId);
	values[1] = ObjectIdGetDatum(owner);
	sql_begin(&scope);
	if (sql_run_latest(&path_plan, values, NULL) > 0)
	{
		char	   *set = TextDatumGetCString(sql_value(0, 1, NULL));

		path = MemoryContextStrdup(scope.outer, set);
	}
	sql_end(&scope);
	if (path == NULL)
		path = "\"$user\", public";
	if (names_temp(path))
		return path;
	return path[0] != '\0' ? psprintf("%s, pg_temp", path) : "pg_temp";
}

/* An error gives identity and settings back through (sub)transaction abort. */
Datum
confined_call(Oid owner, Oid function, int nargs, const Datum *args, bool *isnull)
{
	LOCAL_FCINFO(fcinfo, ARGS_MAX);
	FmgrInfo	flinfo;
	const char *path = owner_path(owner);
	Datum		result;
	Oid			userid;
	int			context;
	int			confined;
	int			guc_level;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, nargs, DEFAULT_COLLATION_OID, NULL, NULL);
	for (int i = 0; i < nargs; i++)
	{
		fcinfo->args[i].value = args[i];
		fcinfo->args[i].isnull = false;
	}

	GetUserIdAndSecContext(&userid, &context);
	confined = context | SECURITY_LOCAL_USERID_CHANGE;
	/* what it left for COMMIT, a deferred trigger or a held cursor, would run as the session */
	if (GetAuthenticatedUserId() != owner)
		confined |= SECURITY_RESTRICTED_OPERATION;
	SetUserIdAndSecContext(owner, confined);
	guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", path, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	result = FunctionCallInvoke(fcinfo);
	PopActiveSnapshot();
	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(userid, context);
	*isnull = fcinfo->isnull;
	return result;
}

/*
 * repository.c
 *		The function of a loop that takes its fenced writes.
 *
 * It runs in the session of whoever writes, as the loop's owner: with a search
 * path of the owner's, and no way back to the roles of the session.  What it
 * sets is undone when it returns; an error of it is the writer's.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"
#include "fence/fence.h"
#include "loop/loop.h"
#include "loop/repository.h"

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

/* ----------------------------------------------------------------
 * Which ids have one
 *
 * Kept until a loop changes, which invalidates the table of grants in all
 * sessions (access_changed); for ids of most fenced writes there is none.
 * ----------------------------------------------------------------
 */

typedef struct Known
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];	/* '' = nothing is known */
	bool		has;
} Known;

#define KNOWN_SLOTS		64

static Known known[KNOWN_SLOTS];
static Oid	known_for = InvalidOid; /* table of grants of the install */
static uint64 known_changes = 0;

static void
forget_known(void)
{
	memset(known, 0, sizeof(known));
	known_changes++;
}

static void
table_changed(Datum arg, Oid relid)
{
	if (relid == known_for || !OidIsValid(relid))
		forget_known();
}

static bool
has_repository(const char *reconciler_id)
{
	static bool registered = false;
	const Install *install = install_get();
	Known	   *slot;
	uint64		changes;
	bool		has;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
		registered = true;
	}
	if (known_for != install->access_grant)
	{
		known_for = install->access_grant;
		forget_known();
	}
	slot = &known[ident_hash("", reconciler_id) % KNOWN_SLOTS];
	if (strcmp(slot->reconciler_id, reconciler_id) == 0)
		return slot->has;

	changes = known_changes;
	has = loop_has_repository(reconciler_id);
	/* a change that came meanwhile may be newer than the answer */
	if (changes == known_changes)
	{
		strlcpy(slot->reconciler_id, reconciler_id, sizeof(slot->reconciler_id));
		slot->has = has;
	}
	return has;
}

/* ----------------------------------------------------------------
 * The call
 * ----------------------------------------------------------------
 */

/* Calls in progress, the innermost first. */
typedef struct Call
{
	const LoopRules *rules;
	const char *entity_id;
	struct Call *outer;
} Call;

static Call *calls = NULL;

/* The function as it is now; it may have been dropped, or made by another, since. */
static Oid
find_function(const LoopRules *rules)
{
	Oid			function = loop_resolve_function(LOOP_REPOSITORY, rules->repository);
	LoopFunctionProblem problem = LOOP_FUNCTION_GONE;

	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(rules->owner)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the owner of loop \"%s\" does not exist", rules->loop_name),
				 errhint("Give it another by reconcile.alter_loop().")));
	if (OidIsValid(function))
		problem = loop_function_problem(function, rules->owner);
	switch (problem)
	{
		case LOOP_FUNCTION_OK:
			break;
		case LOOP_FUNCTION_GONE:
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_FUNCTION),
					 errmsg("function %s does not exist", rules->repository),
					 errdetail("It is the repository of loop \"%s\".", rules->loop_name)));
			break;
		case LOOP_FUNCTION_NO_EXECUTE:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for function %s", rules->repository),
					 errdetail("It is the repository of loop \"%s\", whose owner may not execute it.", rules->loop_name)));
			break;
		case LOOP_FUNCTION_FOREIGN:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("function %s belongs to another role", rules->repository),
					 errdetail("It is the repository of loop \"%s\", and its owner could run anything as the loop's.", rules->loop_name)));
			break;
	}
	return function;
}

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
static void
call_as_owner(const LoopRules *rules, Oid function, const char *entity_id, Jsonb *mutation)
{
	LOCAL_FCINFO(fcinfo, 2);
	FmgrInfo	flinfo;
	const char *path = owner_path(rules->owner);
	Oid			userid;
	int			context;
	int			confined;
	int			guc_level;

	fmgr_info(function, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 2, DEFAULT_COLLATION_OID, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(entity_id);
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = JsonbPGetDatum(mutation);
	fcinfo->args[1].isnull = false;

	GetUserIdAndSecContext(&userid, &context);
	confined = context | SECURITY_LOCAL_USERID_CHANGE;
	/* what it left for COMMIT, a deferred trigger or a held cursor, would run as the session */
	if (GetAuthenticatedUserId() != rules->owner)
		confined |= SECURITY_RESTRICTED_OPERATION;
	SetUserIdAndSecContext(rules->owner, confined);
	guc_level = NewGUCNestLevel();
	(void) set_config_option("search_path", path, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	PushActiveSnapshot(GetTransactionSnapshot());
	(void) FunctionCallInvoke(fcinfo);
	PopActiveSnapshot();
	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(userid, context);
}

static void
repository_call(const void *arg, const char *entity_id, Jsonb *mutation)
{
	const LoopRules *rules = arg;
	Call		call = {rules, entity_id, calls};

	for (Call *outer = calls; outer != NULL; outer = outer->outer)
	{
		if (strcmp(outer->rules->loop_name, rules->loop_name) == 0 && strcmp(outer->entity_id, entity_id) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the repository of loop \"%s\" wrote the entity that it was called for", rules->loop_name),
					 errhint("%s has to keep the mutation elsewhere than by a fenced write.", rules->repository)));
	}

	calls = &call;
	PG_TRY();
	{
		call_as_owner(rules, find_function(rules), entity_id, mutation);
	}
	PG_FINALLY();
	{
		calls = call.outer;
	}
	PG_END_TRY();
}

static bool
repository_find(const char *reconciler_id, FenceRepository *repository)
{
	LoopRules  *rules;

	if (!has_repository(reconciler_id))
		return false;
	rules = palloc(sizeof(LoopRules));
	if (!loop_read(reconciler_id, rules) || rules->repository[0] == '\0')
		return false;
	repository->call = repository_call;
	repository->arg = rules;
	return true;
}

void
repository_init(void)
{
	fence_repository_hook = repository_find;
}

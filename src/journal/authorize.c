/*
 * authorize.c
 *		Grants for tenants, and the function that an application may put beside them.
 *
 * The tenant is an argument, and what counts is whether the calling role has a
 * grant for it: no setting of the session says anything.  A role's grants are
 * read together and kept until roles or grants change.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "core/access.h"
#include "core/confined.h"
#include "core/errors.h"
#include "core/function.h"
#include "core/ident.h"
#include "core/install.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/subxact.h"
#include "journal/actions.h"
#include "journal/authorize.h"
#include "journal/envelope.h"

/* Beyond the names of actions. */
static const char *const permissions[] = {
	PERMISSION_VIEW, PERMISSION_AUDIT_VIEW, PERMISSION_DISPATCH, PERMISSION_RESOLVE, PERMISSION_REPORT,
	PERMISSION_RETENTION, "record_list", "record_inspect", "payload_view", "diagnostics_view"
};

enum
{
	PLAN_GRANTS,
	PLAN_KNOWN,
	PLAN_GRANT,
	PLAN_REVOKE,
	PLAN_AUTHORIZER,
	PLAN_SET_AUTHORIZER,
	PLAN_DROP_AUTHORIZER
};

static SqlPlan plans[] = {
	/* in the order in which they are searched */
	[PLAN_GRANTS] = {
		"SELECT g.tenant_id, g.permission, g.target_kind, g.target_name, g.effect OPERATOR(pg_catalog.=) 'allow'"
		" FROM reconcile.command_grant g"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) g.role AND r.rolname OPERATOR(pg_catalog.=) g.role_name"
		" WHERE pg_catalog.pg_has_role($1, r.oid, 'USAGE')"
		" ORDER BY g.tenant_id, g.permission",
		1, {OIDOID}
	},
	[PLAN_KNOWN] = {
		"SELECT FROM reconcile.command_grant g WHERE g.tenant_id OPERATOR(pg_catalog.=) $1 LIMIT 1", 1, {TEXTOID}
	},
	[PLAN_GRANT] = {
		"INSERT INTO reconcile.command_grant AS g"
		" (role, role_name, tenant_id, permission, target_kind, target_name, effect)"
		" VALUES ($1::pg_catalog.regrole, $2, $3, $4, $5, $6, $7)"
		" ON CONFLICT (tenant_id, permission, target_kind, target_name, role_name)"
		" DO UPDATE SET role = EXCLUDED.role, effect = EXCLUDED.effect",
		7, {OIDOID, NAMEOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_REVOKE] = {
		"DELETE FROM reconcile.command_grant g WHERE g.role_name OPERATOR(pg_catalog.=) $2"
		" AND g.tenant_id OPERATOR(pg_catalog.=) $3 AND g.permission OPERATOR(pg_catalog.=) $4"
		" AND g.target_kind OPERATOR(pg_catalog.=) $5 AND g.target_name OPERATOR(pg_catalog.=) $6",
		6, {OIDOID, NAMEOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_AUTHORIZER] = {
		"SELECT a.signature, a.owner::pg_catalog.oid FROM reconcile.command_authorizer a", 0, {0}
	},
	[PLAN_SET_AUTHORIZER] = {
		"INSERT INTO reconcile.command_authorizer AS a (singleton, signature, owner)"
		" VALUES (true, $1, $2::pg_catalog.regrole)"
		" ON CONFLICT (singleton) DO UPDATE SET signature = EXCLUDED.signature, owner = EXCLUDED.owner",
		2, {TEXTOID, OIDOID}
	},
	[PLAN_DROP_AUTHORIZER] = {
		"DELETE FROM reconcile.command_authorizer", 0, {0}
	}
};

/* ----------------------------------------------------------------
 * The grants of the current role
 * ----------------------------------------------------------------
 */

typedef struct Grant
{
	char	   *tenant_id;
	char	   *permission;
	char	   *target_kind;	/* '' = any */
	char	   *target_name;	/* '' = any */
	bool		allow;
} Grant;

static struct
{
	MemoryContext context;		/* of the rows; NULL = nothing is kept */
	Oid			role;
	Oid			schema;
	uint64		generation;		/* of access_generation() */
	Grant	   *grants;
	int			n;
}			kept;

/* Who needs no grant. */
static bool
may_anything(void)
{
	return superuser() || GetUserId() == install_get()->owner;
}

static void
read_grants(void)
{
	SqlScope	scope;
	Datum		value = ObjectIdGetDatum(GetUserId());
	MemoryContext context;
	Grant	   *grants;
	uint64		generation = access_generation();
	uint64		n;

	if (kept.context != NULL && kept.role == GetUserId() && kept.schema == install_get()->schema &&
		kept.generation == generation)
		return;
	if (kept.context != NULL)
		MemoryContextDelete(kept.context);
	kept.context = NULL;

	context = AllocSetContextCreate(CurrentMemoryContext, "reconcile grants", ALLOCSET_SMALL_SIZES);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_GRANTS], &value, NULL);
	MemoryContextSwitchTo(context);
	grants = palloc(sizeof(Grant) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		grants[i].tenant_id = TextDatumGetCString(sql_value(i, 1, NULL));
		grants[i].permission = TextDatumGetCString(sql_value(i, 2, NULL));
		grants[i].target_kind = TextDatumGetCString(sql_value(i, 3, NULL));
		grants[i].target_name = TextDatumGetCString(sql_value(i, 4, NULL));
		grants[i].allow = DatumGetBool(sql_value(i, 5, NULL));
	}
	MemoryContextSwitchTo(scope.outer);
	sql_end(&scope);

	MemoryContextSetParent(context, TopMemoryContext);
	kept.context = context;
	kept.role = GetUserId();
	kept.schema = install_get()->schema;
	/* what changed while they were read is read again */
	kept.generation = generation;
	kept.grants = grants;
	kept.n = n;
}

/* The first grant that is not before (tenant, permission). */
static int
find_grants(const char *tenant_id, const char *permission)
{
	int			low = 0;
	int			high = kept.n;

	while (low < high)
	{
		int			middle = (low + high) / 2;
		int			order = strcmp(kept.grants[middle].tenant_id, tenant_id);

		if (order == 0)
			order = strcmp(kept.grants[middle].permission, permission);
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool
is_of(const Grant *grant, const char *tenant_id, const char *permission)
{
	return strcmp(grant->tenant_id, tenant_id) == 0 && strcmp(grant->permission, permission) == 0;
}

static bool
covers(const Grant *grant, const char *target_kind, const char *target_name)
{
	return (grant->target_kind[0] == '\0' || strcmp(grant->target_kind, target_kind) == 0) &&
		(grant->target_name[0] == '\0' || strcmp(grant->target_name, target_name) == 0);
}

static bool
granted(const char *tenant_id, const char *permission, const char *target_kind, const char *target_name, bool by_name)
{
	bool		allowed = false;

	if (may_anything())
		return true;
	read_grants();
	for (int i = find_grants(tenant_id, permission); i < kept.n && is_of(&kept.grants[i], tenant_id, permission); i++)
	{
		const Grant *grant = &kept.grants[i];

		if (!covers(grant, target_kind, target_name))
			continue;
		if (!grant->allow)
			return false;
		allowed |= !by_name || grant->target_name[0] != '\0';
	}
	return allowed;
}

bool
command_granted(const char *tenant_id, const char *permission, const char *target_kind, const char *target_name)
{
	return granted(tenant_id, permission, target_kind, target_name, false);
}

bool
command_granted_by_name(const char *tenant_id, const char *permission, const char *target_kind, const char *target_name)
{
	return granted(tenant_id, permission, target_kind, target_name, true);
}

bool
command_granted_somewhere(const char *tenant_id, const char *permission)
{
	if (may_anything())
		return true;
	read_grants();
	for (int i = find_grants(tenant_id, permission); i < kept.n && is_of(&kept.grants[i], tenant_id, permission); i++)
	{
		if (kept.grants[i].allow)
			return true;
	}
	return false;
}

char **
command_tenants(const char *permission, int *n)
{
	char	  **tenants;

	*n = 0;
	if (may_anything())
		return NULL;
	read_grants();
	tenants = palloc(sizeof(char *) * Max(kept.n, 1));
	for (int i = 0; i < kept.n; i++)
	{
		const Grant *grant = &kept.grants[i];

		if (grant->allow && strcmp(grant->permission, permission) == 0 &&
			(*n == 0 || strcmp(tenants[*n - 1], grant->tenant_id) != 0))
			tenants[(*n)++] = pstrdup(grant->tenant_id);
	}
	return tenants;
}

bool
command_grant_arrays(const char *tenant_id, const char *permission, Datum *kinds, Datum *names, Datum *allows)
{
	int			first;
	int			n = 0;

	if (may_anything())
		return false;
	read_grants();
	first = find_grants(tenant_id, permission);
	while (first + n < kept.n && is_of(&kept.grants[first + n], tenant_id, permission))
		n++;
	{
		Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));

		for (int i = 0; i < n; i++)
			elements[i] = CStringGetTextDatum(kept.grants[first + i].target_kind);
		*kinds = PointerGetDatum(construct_array(elements, n, TEXTOID, -1, false, TYPALIGN_INT));
		for (int i = 0; i < n; i++)
			elements[i] = CStringGetTextDatum(kept.grants[first + i].target_name);
		*names = PointerGetDatum(construct_array(elements, n, TEXTOID, -1, false, TYPALIGN_INT));
		for (int i = 0; i < n; i++)
			elements[i] = BoolGetDatum(kept.grants[first + i].allow);
		*allows = PointerGetDatum(construct_array(elements, n, BOOLOID, 1, true, TYPALIGN_CHAR));
	}
	return true;
}

bool
command_tenant_known(const char *tenant_id)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(tenant_id);
	bool		known;

	sql_begin(&scope);
	known = sql_run_latest(&plans[PLAN_KNOWN], &value, NULL) > 0;
	sql_end(&scope);
	return known;
}

/* ----------------------------------------------------------------
 * The authorizer
 * ----------------------------------------------------------------
 */

typedef struct Question
{
	const AccessRequest *request;
	char	   *signature;
	Oid			owner;
	bool		agreed;
} Question;

static void
ask(void *arg)
{
	Question   *question = arg;
	const AccessRequest *request = question->request;
	Oid			function = function_resolve(FUNCTION_AUTHORIZER, question->signature);
	JsonbBuild	build;
	Datum		answer;
	bool		isnull;

	if (!OidIsValid(function) || function_problem(function, question->owner) != FUNCTION_OK)
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
	answer = confined_call(question->owner, function, 1, &answer, &isnull);
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
		question->owner = DatumGetObjectId(sql_value(0, 2, NULL));
	}
	sql_end(&scope);
	return found;
}

/* An error of it is a no, and is logged; but not that the statement was cancelled. */
static bool
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

bool
command_allowed(const AccessRequest *request)
{
	if (may_anything())
		return true;
	return command_granted(request->tenant_id, request->permission, request->target_kind, request->target_name) &&
		authorizer_agrees(request);
}

PG_FUNCTION_INFO_V1(reconcile_set_authorizer);
Datum
reconcile_set_authorizer(PG_FUNCTION_ARGS)
{
	SqlScope	scope;
	Datum		values[2];
	bool		set = !PG_ARGISNULL(0);

	require_writable("set_authorizer");
	access_require_administrator();
	if (set)
	{
		values[0] = CStringGetTextDatum(function_name_signature(FUNCTION_AUTHORIZER, text_arg(fcinfo, 0, "authorizer"),
																GetUserId(), "authorizer"));
		values[1] = ObjectIdGetDatum(GetUserId());
	}
	sql_begin(&scope);
	sql_run_latest(&plans[set ? PLAN_SET_AUTHORIZER : PLAN_DROP_AUTHORIZER], values, NULL);
	sql_end(&scope);
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * Grants
 * ----------------------------------------------------------------
 */

static void
permission_check(const char *permission)
{
	for (int i = 0; i < lengthof(permissions); i++)
	{
		if (strcmp(permissions[i], permission) == 0)
			return;
	}
	if (!action_known(permission))
		arg_invalid("permission", "is not a permission",
					"It is the name of an action, or view, audit_view, dispatch, resolve, report, retention_configure, record_list, record_inspect, payload_view or diagnostics_view.");
}

static void
change_grant(FunctionCallInfo fcinfo, bool grant)
{
	SqlScope	scope;
	Datum		values[7];
	char	   *effect = NULL;
	Oid			role;

	require_writable(grant ? "grant_command" : "revoke_command");
	if (PG_ARGISNULL(0))
		arg_null("role");
	values[1] = PG_GETARG_DATUM(0);
	values[2] = CStringGetTextDatum(identity_field(fcinfo, 1, "tenant_id"));
	values[3] = PG_ARGISNULL(2) ? (Datum) 0 : PG_GETARG_DATUM(2);
	permission_check(text_arg(fcinfo, 2, "permission"));
	values[4] = CStringGetTextDatum(PG_ARGISNULL(3) ? "" : identity_field(fcinfo, 3, "target_kind"));
	values[5] = CStringGetTextDatum(PG_ARGISNULL(4) ? "" : identity_field(fcinfo, 4, "target_name"));
	if (grant)
	{
		effect = text_arg(fcinfo, 5, "effect");
		if (strcmp(effect, "allow") != 0 && strcmp(effect, "deny") != 0)
			arg_invalid("effect", "is not an effect", "It is allow or deny.");
		values[6] = CStringGetTextDatum(effect);
	}
	access_require_administrator();
	role = get_role_oid(NameStr(*PG_GETARG_NAME(0)), false);
	values[0] = ObjectIdGetDatum(role);

	sql_begin(&scope);
	sql_run_latest(&plans[grant ? PLAN_GRANT : PLAN_REVOKE], values, NULL);
	sql_end(&scope);
	if (grant)
		access_grant_functions(role, CAP_COMMAND);
	access_changed();
}

PG_FUNCTION_INFO_V1(reconcile_grant_command);
Datum
reconcile_grant_command(PG_FUNCTION_ARGS)
{
	change_grant(fcinfo, true);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_revoke_command);
Datum
reconcile_revoke_command(PG_FUNCTION_ARGS)
{
	change_grant(fcinfo, false);
	PG_RETURN_VOID();
}

/* For the policies of the tables: may a row of this target be read? */
PG_FUNCTION_INFO_V1(reconcile_may_read_command);
Datum
reconcile_may_read_command(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(command_granted(TextDatumGetCString(PG_GETARG_DATUM(0)), TextDatumGetCString(PG_GETARG_DATUM(1)),
								   TextDatumGetCString(PG_GETARG_DATUM(2)), TextDatumGetCString(PG_GETARG_DATUM(3))));
}

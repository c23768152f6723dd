/*
 * authorize.c
 *		May the current role do this for that tenant?
 *
 * The tenant is an argument, and what counts is whether the calling role has a
 * grant for it: no setting of the session says anything.  A role's grants are
 * read together and kept until roles or grants change.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "core/access.h"
#include "core/install.h"
#include "core/plan.h"
#include "journal/authorize.h"

enum
{
	PLAN_GRANTS,
	PLAN_KNOWN
};

static SqlPlan plans[] = {
	/* in the order in which they are searched */
	[PLAN_GRANTS] = {
		"SELECT g.tenant_id, g.permission, g.target_kind, g.target_name, true"
		" FROM reconcile.command_grant g"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) g.role AND r.rolname OPERATOR(pg_catalog.=) g.role_name"
		" WHERE g.effect OPERATOR(pg_catalog.=) 'allow' AND pg_catalog.pg_has_role($1, r.oid, 'USAGE')"
		" UNION ALL "
		/* a denial stays with a role that is renamed, or steps into another */
		"SELECT g.tenant_id, g.permission, g.target_kind, g.target_name, false"
		" FROM reconcile.command_grant g"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) g.role OR r.rolname OPERATOR(pg_catalog.=) g.role_name"
		" WHERE g.effect OPERATOR(pg_catalog.=) 'deny'"
		" AND (pg_catalog.pg_has_role($1, r.oid, 'MEMBER') OR pg_catalog.pg_has_role($2, r.oid, 'MEMBER'))"
		" ORDER BY 1, 2",
		2, {OIDOID, OIDOID}
	},
	[PLAN_KNOWN] = {
		"SELECT EXISTS (SELECT FROM reconcile.command_grant g WHERE g.tenant_id OPERATOR(pg_catalog.=) $1)"
		" OR EXISTS (SELECT FROM reconcile.audit_head h WHERE h.tenant_id OPERATOR(pg_catalog.=) $1)",
		1, {TEXTOID}
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
	Oid			session;		/* whose denials count as well */
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

/* The role of the session, unless it is a superuser, who is a member of every role. */
static Oid
session_role(void)
{
	return superuser_arg(GetSessionUserId()) ? GetUserId() : GetSessionUserId();
}

static void
read_grants(void)
{
	SqlScope	scope;
	Datum		values[2] = {ObjectIdGetDatum(GetUserId()), ObjectIdGetDatum(session_role())};
	MemoryContext context;
	Grant	   *grants;
	uint64		generation = access_generation();
	uint64		n;

	if (kept.context != NULL && kept.role == GetUserId() && kept.session == session_role() && kept.schema == install_get()->schema &&
		kept.generation == generation)
		return;
	if (kept.context != NULL)
		MemoryContextDelete(kept.context);
	kept.context = NULL;

	context = AllocSetContextCreate(CurrentMemoryContext, "reconcile grants", ALLOCSET_SMALL_SIZES);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_GRANTS], values, NULL);
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
	kept.session = session_role();
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

		/* whom a part is denied the tenant as a whole is denied */
		if (!grant->allow && (target_kind[0] == '\0' || covers(grant, target_kind, target_name)))
			return false;
		if (!grant->allow || !covers(grant, target_kind, target_name))
			continue;
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
	Datum		value = CStringGetTextDatum(tenant_id);

	return DatumGetBool(sql_ask(&plans[PLAN_KNOWN], &value));
}

bool
command_tenant_granted(const char *tenant_id)
{
	if (may_anything())
		return true;
	read_grants();
	for (int i = find_grants(tenant_id, ""); i < kept.n && strcmp(kept.grants[i].tenant_id, tenant_id) == 0; i++)
	{
		if (kept.grants[i].allow)
			return true;
	}
	return false;
}

bool
command_allowed_somewhere(const char *tenant_id, const char *permission)
{
	AccessRequest request = {tenant_id, permission, NULL, NULL, NULL};

	if (may_anything())
		return true;
	return command_granted_somewhere(tenant_id, permission) && authorizer_agrees(&request);
}

bool
command_allowed(const AccessRequest *request)
{
	if (may_anything())
		return true;
	return command_granted(request->tenant_id, request->permission, request->target_kind, request->target_name) &&
		authorizer_agrees(request);
}

/* For the policies of the tables: may a row of this target be read? */
PG_FUNCTION_INFO_V1(reconcile_may_read_command);
Datum
reconcile_may_read_command(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(command_granted(TextDatumGetCString(PG_GETARG_DATUM(0)), TextDatumGetCString(PG_GETARG_DATUM(1)),
								   TextDatumGetCString(PG_GETARG_DATUM(2)), TextDatumGetCString(PG_GETARG_DATUM(3))));
}

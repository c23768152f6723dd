/*
 * access.c
 *		Capabilities: grants, and the check that each function makes.
 *
 * A grant keeps its role as oid and as name and counts only while both match,
 * so neither a new role of an old name nor a reused oid inherits it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/syscache.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"
#include "core/plan.h"

static const char *const capability_name[] = {
	[CAP_OBSERVE] = "observe",
	[CAP_TRIGGER] = "trigger",
	[CAP_LEASE] = "lease",
	[CAP_FENCE] = "fence",
	[CAP_WORK] = "work",
	[CAP_COMMAND] = "command",
	[CAP_PLACE] = "place",
	[CAP_OPERATE] = "operate",
	[CAP_DEFINE] = "define"
};

enum
{
	PLAN_ALLOWED,
	PLAN_GRANT,
	PLAN_REVOKE
};

static SqlPlan plans[] = {
	[PLAN_ALLOWED] = {
		"SELECT 1 FROM reconcile.loop l"
		" WHERE l.loop_name OPERATOR(pg_catalog.=) $2 AND pg_catalog.pg_has_role($3, l.owner, 'USAGE')"
		" UNION ALL "
		"SELECT 1 FROM reconcile.access_grant g"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) g.role AND r.rolname OPERATOR(pg_catalog.=) g.role_name"
		" WHERE g.capability OPERATOR(pg_catalog.=) $1"
		" AND (g.scope OPERATOR(pg_catalog.=) '' OR g.scope OPERATOR(pg_catalog.=) $2)"
		" AND pg_catalog.pg_has_role($3, r.oid, 'USAGE')",
		3, {TEXTOID, TEXTOID, OIDOID}
	},
	[PLAN_GRANT] = {
		"INSERT INTO reconcile.access_grant AS g (role, role_name, capability, scope)"
		" VALUES ($1::pg_catalog.regrole, $2, $3, $4)"
		" ON CONFLICT (role_name, capability, scope) DO UPDATE SET role = EXCLUDED.role",
		4, {OIDOID, NAMEOID, TEXTOID, TEXTOID}
	},
	[PLAN_REVOKE] = {
		"DELETE FROM reconcile.access_grant g"
		" WHERE g.role_name OPERATOR(pg_catalog.=) $1 AND g.capability OPERATOR(pg_catalog.=) $2"
		" AND g.scope OPERATOR(pg_catalog.=) $3",
		3, {NAMEOID, TEXTOID, TEXTOID}
	}
};

/* ----------------------------------------------------------------
 * What was allowed lately
 *
 * Kept until a grant or a loop changes, which sends an invalidation of the table
 * of grants with it, or any role does.  A refusal is not kept.
 * ----------------------------------------------------------------
 */

typedef struct Allowed
{
	Oid			caller;
	Capability	capability;
	char		reconciler_id[RECONCILER_ID_MAX + 1];
} Allowed;

#define ALLOWED_KEPT	16

static Allowed kept[ALLOWED_KEPT];
static int	kept_next = 0;
static uint64 kept_changes = 0; /* how often what is kept was dropped */
static Oid	kept_for = InvalidOid;	/* table of grants of the install that they were asked in */

static void
drop_kept(void)
{
	memset(kept, 0, sizeof(kept));
	kept_changes++;
}

static void
table_changed(Datum arg, Oid relid)
{
	/* InvalidOid: anything may have changed */
	if (relid == kept_for || !OidIsValid(relid))
		drop_kept();
}

static void
role_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	drop_kept();
}

void
access_changed(void)
{
	CacheInvalidateRelcacheByRelid(install_get()->access_grant);
}

static bool
is_kept(Oid caller, Capability capability, const char *reconciler_id)
{
	for (int i = 0; i < ALLOWED_KEPT; i++)
	{
		if (kept[i].caller == caller && kept[i].capability == capability &&
			strcmp(kept[i].reconciler_id, reconciler_id) == 0)
			return true;
	}
	return false;
}

static void
keep(Oid caller, Capability capability, const char *reconciler_id)
{
	Allowed    *allowed = &kept[kept_next++ % ALLOWED_KEPT];

	allowed->caller = caller;
	allowed->capability = capability;
	strlcpy(allowed->reconciler_id, reconciler_id, sizeof(allowed->reconciler_id));
}

/* Empties what is kept if it is of another install; registers for changes. */
static void
keep_begin(void)
{
	static bool registered = false;

	/* what was taken back counts in a transaction that has begun, too */
	AcceptInvalidationMessages();
	if (!registered)
	{
		CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHOID, role_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, role_changed, (Datum) 0);
		registered = true;
	}
	if (kept_for != install_get()->access_grant)
	{
		kept_for = install_get()->access_grant;
		drop_kept();
	}
}

uint64
access_generation(void)
{
	keep_begin();
	return kept_changes;
}

bool
access_allowed(Capability capability, const char *reconciler_id)
{
	Datum		values[3];
	bool		allowed;
	uint64		changes;
	Oid			caller = GetUserId();

	if (superuser_arg(caller) || caller == install_get()->owner)
		return true;
	keep_begin();
	if (is_kept(caller, capability, reconciler_id))
		return true;

	values[0] = CStringGetTextDatum(capability_name[capability]);
	values[1] = CStringGetTextDatum(reconciler_id);
	values[2] = ObjectIdGetDatum(caller);
	changes = kept_changes;
	allowed = sql_do(&plans[PLAN_ALLOWED], values, NULL) > 0;
	/* a change that came meanwhile may be newer than the answer */
	if (allowed && changes == kept_changes)
		keep(caller, capability, reconciler_id);
	return allowed;
}

void
access_require(Capability capability, const char *reconciler_id)
{
	if (!access_allowed(capability, reconciler_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for reconciler \"%s\"", reconciler_id),
				 errdetail("It needs the capability \"%s\".", capability_name[capability]),
				 errhint("Ask an administrator for reconcile.grant_access(role, '%s').",
						 capability_name[capability])));
}

void
access_require_all(Capability capability)
{
	if (!access_allowed(capability, ""))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for all reconcilers"),
				 errdetail("It needs the capability \"%s\" on all reconciler ids.", capability_name[capability]),
				 errhint("Ask an administrator for reconcile.grant_access(role, '%s').",
						 capability_name[capability])));
}

/* ----------------------------------------------------------------
 * Grants
 * ----------------------------------------------------------------
 */

static Capability
capability_arg(FunctionCallInfo fcinfo, int n)
{
	char	   *name = text_arg(fcinfo, n, "capability");

	for (int i = 0; i < lengthof(capability_name); i++)
	{
		if (strcmp(name, capability_name[i]) == 0)
			return (Capability) i;
	}
	arg_invalid("capability", "is not a capability",
				"It is observe, trigger, lease, fence, work, command, place, operate or define.");
}

/*
 * GRANTs what a plan says is missing, as "EXECUTE ON ROUTINE ...": it is given
 * values[0] and the role.  A GRANT fails if another one changes the same object
 * meanwhile, so they go one after the other; who misses nothing waits for nobody.
 */
static void
grant_missing(SqlPlan *missing, Datum *values, Oid role)
{
	uint64		rows;
	SPITupleTable *table;
	Oid			userid;
	int			context;
	int			nest;

	values[1] = ObjectIdGetDatum(role);
	if (sql_run_latest(missing, values, NULL) == 0)
		return;
	if (SPI_execute("LOCK TABLE reconcile.access_grant IN SHARE ROW EXCLUSIVE MODE", false, 0) < 0)
		elog(ERROR, "could not lock reconcile.access_grant");
	rows = sql_run_latest(missing, values, NULL);
	table = SPI_tuptable;

	/* GRANT is a command: event triggers fire, as us, and must not find the caller's objects */
	nest = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(userid, context | SECURITY_RESTRICTED_OPERATION);
	for (uint64 i = 0; i < rows; i++)
	{
		char	   *privilege = SPI_getvalue(table->vals[i], table->tupdesc, 1);
		char	   *command = psprintf("GRANT %s TO %s", privilege, quote_identifier(GetUserNameFromId(role, false)));

		if (SPI_execute(command, false, 0) < 0)
			elog(ERROR, "could not run \"%s\"", command);
	}
	SetUserIdAndSecContext(userid, context);
	AtEOXact_GUC(true, nest);
}

/* EXECUTE on the functions of a capability that the role was not yet granted itself. */
static void
grant_execute(Oid role, const char *capability)
{
	static SqlPlan missing = {
		"SELECT 'EXECUTE ON ROUTINE ' OPERATOR(pg_catalog.||) f FROM reconcile.capability_functions($1) f"
		" JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) f::pg_catalog.regprocedure::pg_catalog.oid"
		" WHERE NOT EXISTS (SELECT FROM pg_catalog.aclexplode(p.proacl) a"
		" WHERE a.grantee OPERATOR(pg_catalog.=) $2 AND a.privilege_type OPERATOR(pg_catalog.=) 'EXECUTE')",
		2, {TEXTOID, OIDOID}
	};
	Datum		values[2] = {CStringGetTextDatum(capability)};

	grant_missing(&missing, values, role);
}

void
access_grant_functions(Oid role, Capability capability)
{
	SqlScope	scope;

	if (superuser_arg(role))
		return;
	sql_begin(&scope);
	grant_execute(role, capability_name[capability]);
	sql_end(&scope);
}

void
access_grant_journal(Oid role, const char *permission)
{
	static SqlPlan missing = {
		"SELECT 'SELECT' OPERATOR(pg_catalog.||) f.columns OPERATOR(pg_catalog.||) ' ON ' OPERATOR(pg_catalog.||) f.relation"
		" FROM reconcile.journal_relations($1) f"
		" JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.relation::pg_catalog.regclass"
		/* of its own: those of a group go with the membership */
		" WHERE NOT EXISTS (SELECT FROM pg_catalog.aclexplode(c.relacl) a"
		"  WHERE a.grantee OPERATOR(pg_catalog.=) $2 AND a.privilege_type OPERATOR(pg_catalog.=) 'SELECT')"
		" AND (f.columns OPERATOR(pg_catalog.=) '' OR (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute t"
		"  WHERE t.attrelid OPERATOR(pg_catalog.=) c.oid AND EXISTS (SELECT FROM pg_catalog.aclexplode(t.attacl) a"
		"   WHERE a.grantee OPERATOR(pg_catalog.=) $2 AND a.privilege_type OPERATOR(pg_catalog.=) 'SELECT'))"
		"  OPERATOR(pg_catalog.<) pg_catalog.cardinality(pg_catalog.string_to_array(f.columns, ',')))",
		2, {TEXTOID, OIDOID}
	};
	SqlScope	scope;
	Datum		values[2];

	if (superuser_arg(role))
		return;
	values[0] = CStringGetTextDatum(permission);
	sql_begin(&scope);
	grant_missing(&missing, values, role);
	sql_end(&scope);
}

void
access_grant_owner(Oid role)
{
	access_grant_functions(role, CAP_DEFINE);
}

void
access_require_administrator(void)
{
	if (!superuser() && GetUserId() != install_get()->owner)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to grant access"),
				 errhint("Only a superuser or the owner of the schema \"reconcile\" may.")));
}

static void
change_access(FunctionCallInfo fcinfo, bool grant)
{
	SqlScope	scope;
	Datum		values[4];
	Oid			role;
	Capability	capability;
	char	   *reconciler_id = pstrdup("");

	require_primary(grant ? "grant_access" : "revoke_access");
	if (PG_ARGISNULL(0))
		arg_null("role");
	capability = capability_arg(fcinfo, 1);
	if (!PG_ARGISNULL(2))
		reconciler_id = reconciler_id_arg(fcinfo, 2, "scope");
	access_require_administrator();
	role = get_role_oid(NameStr(*PG_GETARG_NAME(0)), false);

	sql_begin(&scope);
	if (grant)
	{
		values[0] = ObjectIdGetDatum(role);
		values[1] = PG_GETARG_DATUM(0);
		values[2] = CStringGetTextDatum(capability_name[capability]);
		values[3] = CStringGetTextDatum(reconciler_id);
		sql_run(&plans[PLAN_GRANT], values, NULL);
		grant_execute(role, capability_name[capability]);
	}
	else
	{
		/* EXECUTE stays: without a grant the check in the function refuses */
		values[0] = PG_GETARG_DATUM(0);
		values[1] = CStringGetTextDatum(capability_name[capability]);
		values[2] = CStringGetTextDatum(reconciler_id);
		sql_run(&plans[PLAN_REVOKE], values, NULL);
	}
	sql_end(&scope);
}

PG_FUNCTION_INFO_V1(reconcile_grant_access);
Datum
reconcile_grant_access(PG_FUNCTION_ARGS)
{
	change_access(fcinfo, true);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_revoke_access);
Datum
reconcile_revoke_access(PG_FUNCTION_ARGS)
{
	change_access(fcinfo, false);
	PG_RETURN_VOID();
}

/* Of the tables of grants, whoever writes them. */
PG_FUNCTION_INFO_V1(reconcile_grants_changed);
Datum
reconcile_grants_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("grants_changed() was not called by a trigger")));
	access_changed();
	return PointerGetDatum(NULL);
}

/* For the views, which show a row to whom this is true. */
PG_FUNCTION_INFO_V1(reconcile_may_observe);
Datum
reconcile_may_observe(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id = text_arg(fcinfo, 0, "reconciler_id");

	PG_RETURN_BOOL(access_allowed(CAP_OBSERVE, reconciler_id));
}

/* Error texts are for the owner of a loop and for "operate". */
PG_FUNCTION_INFO_V1(reconcile_may_see_errors);
Datum
reconcile_may_see_errors(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id = text_arg(fcinfo, 0, "reconciler_id");

	PG_RETURN_BOOL(access_allowed(CAP_OPERATE, reconciler_id));
}

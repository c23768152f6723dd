/*
 * grant.c
 *		grant_command() and revoke_command(): what roles may do for tenants.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/actions.h"
#include "journal/audit.h"
#include "journal/authorize.h"
#include "journal/envelope.h"

/* Beyond the names of actions. */
static const char *const permissions[] = {
	PERMISSION_VIEW, PERMISSION_AUDIT_VIEW, PERMISSION_DISPATCH, PERMISSION_RESOLVE, PERMISSION_REPORT,
	PERMISSION_RETENTION, "record_list", "record_inspect", "payload_view", "diagnostics_view"
};

enum
{
	PLAN_GRANT,
	PLAN_REVOKE
};

static SqlPlan plans[] = {
	[PLAN_GRANT] = {
		"INSERT INTO reconcile.command_grant AS g"
		" (role, role_name, tenant_id, permission, target_kind, target_name, effect)"
		" VALUES ($7::pg_catalog.regrole, $1, $2, $3, $4, $5, $6)"
		" ON CONFLICT (tenant_id, permission, target_kind, target_name, role_name, effect)"
		" DO UPDATE SET role = EXCLUDED.role",
		7, {NAMEOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, OIDOID}
	},
	[PLAN_REVOKE] = {
		"DELETE FROM reconcile.command_grant g WHERE g.role_name OPERATOR(pg_catalog.=) $1"
		" AND g.tenant_id OPERATOR(pg_catalog.=) $2 AND g.permission OPERATOR(pg_catalog.=) $3"
		" AND g.target_kind OPERATOR(pg_catalog.=) $4 AND g.target_name OPERATOR(pg_catalog.=) $5",
		5, {NAMEOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	}
};

bool
permission_is_ours(const char *name)
{
	for (int i = 0; i < lengthof(permissions); i++)
	{
		if (strcmp(permissions[i], name) == 0)
			return true;
	}
	return false;
}

/* What is changed, as arguments. */
typedef struct Change
{
	Name		role;
	char	   *tenant_id;
	char	   *permission;
	char	   *target_kind;	/* '' = any */
	char	   *target_name;	/* '' = any */
} Change;

static void
change_args(FunctionCallInfo fcinfo, Change *change)
{
	if (PG_ARGISNULL(0))
		arg_null("role");
	change->role = PG_GETARG_NAME(0);
	change->tenant_id = identity_field(fcinfo, 1, "tenant_id");
	change->permission = text_arg(fcinfo, 2, "permission");
	if (!permission_is_ours(change->permission) && !action_known(change->permission))
		arg_invalid("permission", "is not a permission",
					"It is the name of an action, or view, audit_view, dispatch, resolve, report, retention_configure, record_list, record_inspect, payload_view or diagnostics_view.");
	change->target_kind = PG_ARGISNULL(3) ? pstrdup("") : identity_field(fcinfo, 3, "target_kind");
	change->target_name = PG_ARGISNULL(4) ? pstrdup("") : identity_field(fcinfo, 4, "target_name");
}

static void
change_values(const Change *change, Datum *values)
{
	values[0] = NameGetDatum(change->role);
	values[1] = CStringGetTextDatum(change->tenant_id);
	values[2] = CStringGetTextDatum(change->permission);
	values[3] = CStringGetTextDatum(change->target_kind);
	values[4] = CStringGetTextDatum(change->target_name);
}

/* The tenant's audit has it, too: who could do what. */
static void
change_note(const Change *change, const char *name, const char *effect)
{
	AuditEvent	event = {.tenant_id = change->tenant_id, .event = name, .at = clock_now()};
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_text(&build, "role", NameStr(*change->role));
	jsonb_add_text(&build, "permission", change->permission);
	if (change->target_kind[0] != '\0')
		jsonb_add_text(&build, "target_kind", change->target_kind);
	if (change->target_name[0] != '\0')
		jsonb_add_text(&build, "target_name", change->target_name);
	if (effect != NULL)
		jsonb_add_text(&build, "effect", effect);
	event.detail = jsonb_end(&build);
	audit_note(&event);
}

PG_FUNCTION_INFO_V1(reconcile_grant_command);
Datum
reconcile_grant_command(PG_FUNCTION_ARGS)
{
	Change		change;
	char	   *effect;
	bool		allow;
	Oid			role;
	Datum		values[7];

	require_writable("grant_command");
	change_args(fcinfo, &change);
	effect = text_arg(fcinfo, 5, "effect");
	allow = strcmp(effect, "allow") == 0;
	if (!allow && strcmp(effect, "deny") != 0)
		arg_invalid("effect", "is not an effect", "It is allow or deny.");
	access_require_administrator();
	role = get_role_oid(NameStr(*change.role), false);

	change_values(&change, values);
	values[5] = CStringGetTextDatum(effect);
	values[6] = ObjectIdGetDatum(role);
	sql_do(&plans[PLAN_GRANT], values, NULL);
	if (allow)
		access_grant_functions(role, CAP_COMMAND);
	if (allow)
		access_grant_journal(role, change.permission);
	change_note(&change, "granted", effect);
	PG_RETURN_VOID();
}

/* Of a role that is gone, too. */
PG_FUNCTION_INFO_V1(reconcile_revoke_command);
Datum
reconcile_revoke_command(PG_FUNCTION_ARGS)
{
	Change		change;
	Datum		values[5];

	require_writable("revoke_command");
	change_args(fcinfo, &change);
	access_require_administrator();
	change_values(&change, values);
	if (sql_do(&plans[PLAN_REVOKE], values, NULL) > 0)
		change_note(&change, "revoked", NULL);
	PG_RETURN_VOID();
}

/*
 * host.c
 *		Hosts: which role acts for which.
 *
 * A binding keeps its role as oid and as name and counts only while both match, as a
 * grant does: so neither a new role of an old name nor a reused oid inherits it.  What a
 * host has said counts for nobody once it is not registered any more.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/plan.h"
#include "journal/envelope.h"
#include "placement/host.h"

enum
{
	PLAN_MINE,
	PLAN_ALL_MINE,
	PLAN_LOCK,
	PLAN_REGISTER,
	PLAN_BIND,
	PLAN_UNREGISTER
};

static SqlPlan plans[] = {
	[PLAN_MINE] = {
		"SELECT FROM reconcile.host h"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) h.role AND r.rolname OPERATOR(pg_catalog.=) h.role_name"
		" WHERE h.host_id OPERATOR(pg_catalog.=) $1 AND pg_catalog.pg_has_role($2, r.oid, 'USAGE')",
		2, {TEXTOID, OIDOID}
	},
	[PLAN_ALL_MINE] = {
		"SELECT COALESCE(pg_catalog.array_agg(h.host_id), '{}') FROM reconcile.host h"
		" JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) h.role AND r.rolname OPERATOR(pg_catalog.=) h.role_name"
		" WHERE pg_catalog.pg_has_role($1, r.oid, 'USAGE')",
		1, {OIDOID}
	},
	[PLAN_LOCK] = {
		"SELECT h.role::pg_catalog.oid, h.role_name FROM reconcile.host h"
		" WHERE h.host_id OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE",
		1, {TEXTOID}
	},
	[PLAN_REGISTER] = {
		"INSERT INTO reconcile.host (host_id, role, role_name, registered_at)"
		" VALUES ($1, $2::pg_catalog.regrole, $3, $4) ON CONFLICT DO NOTHING",
		4, {TEXTOID, OIDOID, NAMEOID, TIMESTAMPTZOID}
	},
	[PLAN_BIND] = {
		"UPDATE reconcile.host SET role = $2::pg_catalog.regrole, role_name = $3, registered_at = $4"
		" WHERE host_id OPERATOR(pg_catalog.=) $1",
		4, {TEXTOID, OIDOID, NAMEOID, TIMESTAMPTZOID}
	},
	[PLAN_UNREGISTER] = {
		"DELETE FROM reconcile.host WHERE host_id OPERATOR(pg_catalog.=) $1", 1, {TEXTOID}
	}
};

bool
host_is_mine(const char *host_id)
{
	SqlScope	scope;
	Datum		values[2];
	bool		mine;

	values[0] = CStringGetTextDatum(host_id);
	values[1] = ObjectIdGetDatum(GetUserId());
	sql_begin(&scope);
	mine = sql_run_latest(&plans[PLAN_MINE], values, NULL) > 0;
	sql_end(&scope);
	return mine;
}

/* Within sql_begin(): is the host bound to this role already?  Locks its row, if it is there. */
static bool
lock_host(Datum *values, bool *bound)
{
	bool		found = sql_run_latest(&plans[PLAN_LOCK], values, NULL) > 0;

	*bound = found && DatumGetObjectId(sql_value(0, 1, NULL)) == DatumGetObjectId(values[1]) &&
		strcmp(NameStr(*DatumGetName(sql_value(0, 2, NULL))), NameStr(*DatumGetName(values[2]))) == 0;
	return found;
}

PG_FUNCTION_INFO_V1(reconcile_register_host);
Datum
reconcile_register_host(PG_FUNCTION_ARGS)
{
	char	   *host_id;
	const char *outcome;
	Oid			role;
	SqlScope	scope;
	Datum		values[4];
	bool		bound;

	require_writable("register_host");
	require_read_committed("register_host");
	host_id = identity_field(fcinfo, 0, "host_id");
	if (PG_ARGISNULL(1))
		field_null("role");
	access_require_all(CAP_OPERATE);
	role = get_role_oid(NameStr(*PG_GETARG_NAME(1)), false);

	values[0] = CStringGetTextDatum(host_id);
	values[1] = ObjectIdGetDatum(role);
	values[2] = PG_GETARG_DATUM(1);
	values[3] = TimestampTzGetDatum(clock_now());
	sql_begin(&scope);
	if (!lock_host(values, &bound) && sql_run_latest(&plans[PLAN_REGISTER], values, NULL) > 0)
		outcome = "registered";
	else if (lock_host(values, &bound) && bound)
		outcome = "unchanged";
	else
	{
		sql_run_latest(&plans[PLAN_BIND], values, NULL);
		outcome = "rebound";
	}
	sql_end(&scope);
	if (strcmp(outcome, "unchanged") != 0)
		host_appears(host_id);
	/* each function asks for more than EXECUTE: of this role, that it is the host's */
	access_grant_functions(role, CAP_PLACE);
	PG_RETURN_DATUM(CStringGetTextDatum(outcome));
}

PG_FUNCTION_INFO_V1(reconcile_unregister_host);
Datum
reconcile_unregister_host(PG_FUNCTION_ARGS)
{
	char	   *host_id;
	bool		found;
	SqlScope	scope;
	Datum		value;

	require_writable("unregister_host");
	require_read_committed("unregister_host");
	host_id = identity_field(fcinfo, 0, "host_id");
	access_require_all(CAP_OPERATE);
	value = CStringGetTextDatum(host_id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_UNREGISTER], &value, NULL) > 0;
	sql_end(&scope);
	if (found)
		host_leaves(host_id, NULL);
	PG_RETURN_DATUM(CStringGetTextDatum(found ? "unregistered" : "not_found"));
}

/* For the views: who places sees all hosts and sessions, */
PG_FUNCTION_INFO_V1(reconcile_may_place);
Datum
reconcile_may_place(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(access_allowed(CAP_PLACE, ""));
}

/* and others what is of their hosts, which are asked for once. */
PG_FUNCTION_INFO_V1(reconcile_my_hosts);
Datum
reconcile_my_hosts(PG_FUNCTION_ARGS)
{
	SqlScope	scope;
	Datum		role = ObjectIdGetDatum(GetUserId());
	Datum		hosts;
	MemoryContext context;

	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_ALL_MINE], &role, NULL);
	context = MemoryContextSwitchTo(scope.outer);
	hosts = PointerGetDatum(DatumGetArrayTypePCopy(sql_value(0, 1, NULL)));
	MemoryContextSwitchTo(context);
	sql_end(&scope);
	PG_RETURN_DATUM(hosts);
}

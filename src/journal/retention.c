/*
 * retention.c
 *		Commands and events that are old enough are deleted, by the policy of their tenant.
 *
 * Events go first, from the beginning of the chain, and stop at the first that is to
 * stay: one that is too young, or of a command that is unfinished, or unknown and not
 * resolved.  Then commands go whose events are gone and that no desired state comes
 * from; their keys stay behind, so that none is executed a second time.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/audit.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/envelope.h"
#include "journal/keep.h"

#define KEEP_MIN_MS		INT64CONST(3600000)
#define KEEP_MAX_DAYS	3660
#define ITEMS_MAX		10000
#define COMMANDS_MAX	1000	/* each is a lock until COMMIT */

enum
{
	PLAN_POLICY,
	PLAN_SET_POLICY,
	PLAN_DROP_POLICY,
	PLAN_OLD,
	PLAN_BURY,
	PLAN_DELETE_RESOLUTIONS,
	PLAN_DELETE,
	PLAN_DELETE_KEYS
};

static SqlPlan plans[] = {
	[PLAN_POLICY] = {
		"SELECT p.keep, p.keep_keys, p.legal_hold FROM reconcile.command_retention p"
		" WHERE p.tenant_id OPERATOR(pg_catalog.=) $1 FOR SHARE",
		1, {TEXTOID}
	},
	[PLAN_SET_POLICY] = {
		"INSERT INTO reconcile.command_retention AS p (tenant_id, keep, keep_keys, legal_hold) VALUES ($1, $2, $3, $4)"
		" ON CONFLICT (tenant_id) DO UPDATE SET keep = EXCLUDED.keep, keep_keys = EXCLUDED.keep_keys,"
		" legal_hold = EXCLUDED.legal_hold",
		4, {TEXTOID, INTERVALOID, INTERVALOID, BOOLOID}
	},
	[PLAN_DROP_POLICY] = {
		"DELETE FROM reconcile.command_retention p WHERE p.tenant_id OPERATOR(pg_catalog.=) $1", 1, {TEXTOID}
	},
	/* the event of its admission is gone, so it is no younger than those that are */
	[PLAN_OLD] = {
		"SELECT c.idempotency_key, c.command_id FROM reconcile.command c"
		" WHERE c.tenant_id COLLATE pg_catalog.\"default\" OPERATOR(pg_catalog.=) $1"
		" AND c.accepted_at OPERATOR(pg_catalog.<=) $4 AND c.accepted_at OPERATOR(pg_catalog.<) $2"
		" AND c.completed_at OPERATOR(pg_catalog.<) $2"
		" AND NOT EXISTS (SELECT FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) c.tenant_id"
		" AND e.command_id OPERATOR(pg_catalog.=) c.command_id)"
		" AND NOT EXISTS (SELECT FROM reconcile.desired_state d WHERE d.tenant_id OPERATOR(pg_catalog.=) c.tenant_id"
		" AND d.target_kind OPERATOR(pg_catalog.=) c.target_kind AND d.target_name OPERATOR(pg_catalog.=) c.target_name"
		" AND d.command_id OPERATOR(pg_catalog.=) c.command_id)"
		" AND NOT EXISTS (SELECT FROM reconcile.desired_intent i WHERE i.tenant_id OPERATOR(pg_catalog.=) c.tenant_id"
		" AND i.command_id OPERATOR(pg_catalog.=) c.command_id)"
		" ORDER BY c.accepted_at LIMIT $3 FOR UPDATE OF c SKIP LOCKED",
		4, {TEXTOID, TIMESTAMPTZOID, INT4OID, TIMESTAMPTZOID}
	},
	[PLAN_BURY] = {
		"INSERT INTO reconcile.command_tombstone (tenant_id, idempotency_key, command_id, fingerprint, fingerprint_version,"
		" status, failure, desired_revision, completed_at, pruned_at)"
		" SELECT c.tenant_id, c.idempotency_key, c.command_id, c.fingerprint, c.fingerprint_version, c.status, c.failure,"
		" c.desired_revision, c.completed_at, $3 FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.idempotency_key OPERATOR(pg_catalog.=) $2",
		3, {TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_DELETE_RESOLUTIONS] = {
		"DELETE FROM reconcile.command_resolution r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) $1 AND r.command_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.idempotency_key OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_DELETE_KEYS] = {
		"DELETE FROM reconcile.command_tombstone t WHERE t.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND t.idempotency_key OPERATOR(pg_catalog.=) ANY (ARRAY("
		"SELECT o.idempotency_key FROM reconcile.command_tombstone o WHERE o.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND o.pruned_at OPERATOR(pg_catalog.<) $2 ORDER BY o.pruned_at LIMIT $3))",
		3, {TEXTOID, TIMESTAMPTZOID, INT4OID}
	}
};

typedef struct Policy
{
	int64		keep_ms;
	int64		keep_keys_ms;	/* -1 = for ever */
	bool		legal_hold;
} Policy;

typedef struct Pruned
{
	const char *outcome;
	int64		events;
	int64		commands;
	int64		keys;
	bool		more;
	AuditAnchor anchor;
} Pruned;

/* ----------------------------------------------------------------
 * Policies
 * ----------------------------------------------------------------
 */

/* -1: it has months, or is infinite or negative. */
static int64
interval_ms(const Interval *interval)
{
	if (interval->month != 0 || interval->day < 0 || interval->time < 0 || interval->day > KEEP_MAX_DAYS ||
		interval->time > KEEP_MAX_DAYS * USECS_PER_DAY)
		return -1;
	return interval->day * INT64CONST(86400000) + interval->time / 1000;
}

/* Under a lock: a hold that is being set comes before, or after. */
static bool
read_policy(const char *tenant_id, Policy *policy)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(tenant_id);
	bool		found;

	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_POLICY], &value, NULL) > 0;
	if (found)
	{
		bool		isnull;
		Datum		keep_keys;

		policy->keep_ms = interval_ms(DatumGetIntervalP(sql_value(0, 1, NULL)));
		keep_keys = sql_value(0, 2, &isnull);
		policy->keep_keys_ms = isnull ? -1 : interval_ms(DatumGetIntervalP(keep_keys));
		policy->legal_hold = DatumGetBool(sql_value(0, 3, NULL));
	}
	sql_end(&scope);
	return found;
}

/* May the role say, for the whole of the tenant, how long things are kept? */
static bool
may_retain(const char *tenant_id)
{
	AccessRequest request = {tenant_id, PERMISSION_RETENTION, "", "", NULL};

	return command_allowed(&request);
}

static void
check_keep(const Interval *interval, const char *arg)
{
	int64		ms = interval_ms(interval);

	if (ms < KEEP_MIN_MS || ms > KEEP_MAX_DAYS * INT64CONST(86400000))
		arg_invalid(arg, "is out of range", "It is one hour to 3,660 days, without months and years.");
}

/* keep NULL: there is none any more. */
static void
note_policy(const char *tenant_id, const Interval *keep, bool legal_hold, const Interval *keep_keys)
{
	AuditEvent	event = {.tenant_id = tenant_id, .event = "retention_set", .at = clock_now()};
	JsonbBuild	build;

	jsonb_begin(&build);
	if (keep != NULL)
		jsonb_add_int(&build, "keep_ms", interval_ms(keep));
	jsonb_add_bool(&build, "legal_hold", legal_hold);
	if (keep_keys != NULL)
		jsonb_add_int(&build, "keep_keys_ms", interval_ms(keep_keys));
	event.detail = jsonb_end(&build);
	audit_note(&event);
}

PG_FUNCTION_INFO_V1(reconcile_set_command_retention);
Datum
reconcile_set_command_retention(PG_FUNCTION_ARGS)
{
	char	   *tenant_id;
	Datum		values[4];
	char		nulls[4] = {' ', ' ', ' ', ' '};
	bool		drop = PG_ARGISNULL(1);

	require_writable("set_command_retention");
	tenant_id = identity_field(fcinfo, 0, "tenant_id");
	if (!drop)
		check_keep(PG_GETARG_INTERVAL_P(1), "keep");
	if (PG_ARGISNULL(2))
		arg_null("legal_hold");
	if (drop && PG_GETARG_BOOL(2))
		arg_invalid("legal_hold", "must not be given without a policy", "Pass keep as well: it counts when the hold is over.");
	if (!PG_ARGISNULL(3))
		check_keep(PG_GETARG_INTERVAL_P(3), "keep_keys");
	if (!may_retain(tenant_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the retention of tenant \"%s\"", tenant_id),
				 errhint("It takes the permission \"%s\" for all of the tenant: see reconcile.grant_command().", PERMISSION_RETENTION)));
	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = drop ? (Datum) 0 : PG_GETARG_DATUM(1);
	values[2] = PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3);
	nulls[2] = PG_ARGISNULL(3) ? 'n' : ' ';
	values[3] = PG_GETARG_DATUM(2);
	sql_do(&plans[drop ? PLAN_DROP_POLICY : PLAN_SET_POLICY], values, nulls);
	note_policy(tenant_id, drop ? NULL : PG_GETARG_INTERVAL_P(1), PG_GETARG_BOOL(2),
				PG_ARGISNULL(3) ? NULL : PG_GETARG_INTERVAL_P(3));
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * Pruning
 * ----------------------------------------------------------------
 */

/* One command, under the lock on its key: nobody is admitting it at this moment. */
static void
bury(const char *tenant_id, const char *idempotency_key, const char *command_id, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[3];

	values[0] = CStringGetTextDatum(tenant_id);
	sql_begin(&scope);
	values[1] = CStringGetTextDatum(idempotency_key);
	values[2] = TimestampTzGetDatum(now);
	sql_run_latest(&plans[PLAN_BURY], values, NULL);
	values[1] = CStringGetTextDatum(command_id);
	sql_run_latest(&plans[PLAN_DELETE_RESOLUTIONS], values, NULL);
	values[1] = CStringGetTextDatum(idempotency_key);
	sql_run_latest(&plans[PLAN_DELETE], values, NULL);
	sql_end(&scope);
}

static void
prune_commands(const char *tenant_id, TimestampTz before, int max, TimestampTz now, Pruned *pruned)
{
	SqlScope	scope;
	Datum		values[4];
	char	  **keys;
	char	  **ids;
	int			n;

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = TimestampTzGetDatum(before);
	values[2] = Int32GetDatum(max);
	values[3] = TimestampTzGetDatum(pruned->anchor.pruned_through);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_OLD], values, NULL);
	keys = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(n, 1));
	ids = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		keys[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 1, NULL)));
		ids[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 2, NULL)));
	}
	sql_end(&scope);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		/* somebody is using it, and may go on for as long as he likes */
		if (!command_try_lock_key(tenant_id, keys[i]))
			continue;
		bury(tenant_id, keys[i], ids[i], now);
		pruned->commands++;
	}
	pruned->more |= n == max;
}

static void
prune_keys(const char *tenant_id, TimestampTz before, int max, Pruned *pruned)
{
	Datum		values[3];

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = TimestampTzGetDatum(before);
	values[2] = Int32GetDatum(max);
	pruned->keys = sql_do(&plans[PLAN_DELETE_KEYS], values, NULL);
	pruned->more |= pruned->keys == max;
}

static void
prune(const char *tenant_id, int max, Pruned *pruned)
{
	Policy		policy;
	TimestampTz now = clock_now();
	TimestampTz before;

	if (!may_retain(tenant_id))
	{
		pruned->outcome = "denied";
		command_audit_denied(tenant_id, NULL, "prune");
	}
	/* one that was written by hand, and cannot be followed, is none */
	else if (!read_policy(tenant_id, &policy) || policy.keep_ms < 0)
		pruned->outcome = "no_policy";
	else if (policy.legal_hold)
		pruned->outcome = "legal_hold";
	else
	{
		before = clock_add_ms(now, -policy.keep_ms);
		pruned->outcome = "pruned";
		keep_open();
		PG_TRY();
		{
			pruned->events = audit_prune(tenant_id, before, max, &pruned->anchor);
			if (pruned->events < 0)
			{
				pruned->outcome = "broken_chain";
				pruned->events = 0;
			}
			else
			{
				pruned->more = pruned->events == max;
				prune_commands(tenant_id, before, Min(max, COMMANDS_MAX), now, pruned);
				if (policy.keep_keys_ms >= 0)
					prune_keys(tenant_id, clock_add_ms(now, -policy.keep_keys_ms), max, pruned);
			}
		}
		PG_FINALLY();
		{
			keep_close();
		}
		PG_END_TRY();
	}
}

static void
note_pruned(const char *tenant_id, const Pruned *pruned)
{
	AuditEvent	event = {.tenant_id = tenant_id, .event = "pruned", .at = clock_now()};
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_int(&build, "events", pruned->events);
	jsonb_add_int(&build, "commands", pruned->commands);
	jsonb_add_int(&build, "keys", pruned->keys);
	if (pruned->events > 0)
	{
		jsonb_add(&build, "anchor", audit_anchor_jsonb(&pruned->anchor));
		event.anchor = &pruned->anchor;
	}
	event.detail = jsonb_end(&build);
	audit_note(&event);
}

PG_FUNCTION_INFO_V1(reconcile_prune_commands);
Datum
reconcile_prune_commands(PG_FUNCTION_ARGS)
{
	char	   *tenant_id;
	int			max_items;
	Pruned		pruned = {0};
	Datum		values[5];
	bool		nulls[5] = {false};

	require_writable("prune_commands");
	require_read_committed("prune_commands");
	tenant_id = identity_field(fcinfo, 0, "tenant_id");
	max_items = max_items_arg(fcinfo, 1, ITEMS_MAX, "It is 1 to 10,000.");
	prune(tenant_id, max_items, &pruned);
	if (pruned.events + pruned.commands + pruned.keys > 0)
		note_pruned(tenant_id, &pruned);
	values[0] = CStringGetTextDatum(pruned.outcome);
	values[1] = Int64GetDatum(pruned.events);
	values[2] = Int64GetDatum(pruned.commands);
	values[3] = Int64GetDatum(pruned.keys);
	values[4] = BoolGetDatum(pruned.more);
	return return_one_row(fcinfo, values, nulls);
}

/*
 * dispatch.c
 *		Commands are claimed by whoever carries them out.
 *
 * The claim is the durable boundary: only after its COMMIT may the claimant act, and
 * from then on nobody else gets the command, whatever becomes of him.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/count.h"
#include "journal/desired.h"
#include "journal/lifecycle.h"

#define CLAIM_MAX		1000	/* each is a lock until COMMIT */
#define ACTIONS_MAX		100

enum
{
	PLAN_TENANTS,
	PLAN_CANDIDATES,
	PLAN_CLAIM
};

static SqlPlan plans[] = {
	/* who may do anything serves all */
	[PLAN_TENANTS] = {
		"WITH RECURSIVE t (tenant_id) AS ("
		"(SELECT c.tenant_id FROM reconcile.command c WHERE c.status OPERATOR(pg_catalog.=) 'pending'"
		" ORDER BY c.tenant_id LIMIT 1)"
		" UNION ALL "
		"SELECT (SELECT c.tenant_id FROM reconcile.command c WHERE c.status OPERATOR(pg_catalog.=) 'pending'"
		" AND c.tenant_id OPERATOR(pg_catalog.>) t.tenant_id ORDER BY c.tenant_id LIMIT 1)"
		" FROM t WHERE t.tenant_id IS NOT NULL)"
		" SELECT tenant_id FROM t WHERE tenant_id IS NOT NULL",
		0, {0}
	},
	/* what the role was not granted must not stand before what it was */
	[PLAN_CANDIDATES] = {
		"SELECT " COMMAND_COLUMNS ", c.accepted_at FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.status OPERATOR(pg_catalog.=) 'pending'"
		" AND ROW(c.accepted_at, c.command_id) OPERATOR(pg_catalog.>) ROW($2, $3)"
		" AND c.deadline OPERATOR(pg_catalog.>) $4"
		" AND ($5 IS NULL OR c.action OPERATOR(pg_catalog.=) ANY ($5))"
		" AND " GRANT_COVERS("c", "$6", "$7", "$8")
		" ORDER BY c.accepted_at, c.command_id LIMIT $9 FOR NO KEY UPDATE OF c SKIP LOCKED",
		9, {TEXTOID, TIMESTAMPTZOID, TEXTOID, TIMESTAMPTZOID, TEXTARRAYOID, TEXTARRAYOID, TEXTARRAYOID, BOOLARRAYOID, INT4OID}
	},
	[PLAN_CLAIM] = {
		"UPDATE reconcile.command SET status = 'dispatched', claimant = $3, claim_token = $4, claim_expires_at = $5,"
		" claim_xid = pg_catalog.pg_current_xact_id(), dispatched_at = $6"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND command_id OPERATOR(pg_catalog.=) $2",
		6, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID}
	}
};

typedef struct Claiming
{
	const char *claimant;
	Datum		actions;		/* of text[]; 0 = all */
	int64		ttl_ms;
	int			wanted;			/* still */
	ReturnSetInfo *result;
} Claiming;

static Jsonb *
claimant_jsonb(const char *claimant)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_text(&build, "claimant", claimant);
	return jsonb_end(&build);
}

static void
claim_one(Claiming *claiming, const Command *command, TimestampTz now)
{
	char	   *token = command_mint_id(now);
	Datum		values[9];
	bool		nulls[9] = {false};
	Datum		columns[6];

	columns[0] = CStringGetTextDatum(command->tenant_id);
	columns[1] = CStringGetTextDatum(command->command_id);
	columns[2] = CStringGetTextDatum(claiming->claimant);
	columns[3] = CStringGetTextDatum(token);
	columns[4] = TimestampTzGetDatum(clock_add_ms(now, claiming->ttl_ms));
	columns[5] = TimestampTzGetDatum(now);
	sql_do(&plans[PLAN_CLAIM], columns, NULL);
	TEST_POINT("command-before-audit");
	desired_settle(command->tenant_id, command->command_id);
	command_audit(command, "dispatched", NULL, claimant_jsonb(claiming->claimant), now);
	command_count(command->action, "dispatched");

	values[0] = columns[0];
	values[1] = columns[1];
	values[2] = columns[3];
	values[3] = CStringGetTextDatum(command->action);
	values[4] = CStringGetTextDatum(command->target_kind);
	values[5] = CStringGetTextDatum(command->target_name);
	values[6] = JsonbPGetDatum(command->options);
	values[7] = TimestampTzGetDatum(command->deadline);
	values[8] = IntervalPGetDatum(duration_interval((command->deadline - now) / 1000));
	tuplestore_putvalues(claiming->result->setResult, claiming->result->setDesc, values, nulls);
	claiming->wanted--;
}

/* All that have something pending. */
static char **
all_tenants(int *n)
{
	SqlScope	scope;
	char	  **tenants;

	sql_begin(&scope);
	*n = (int) sql_run_latest(&plans[PLAN_TENANTS], NULL, NULL);
	tenants = MemoryContextAlloc(scope.outer, sizeof(char *) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
		tenants[i] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 1, NULL)));
	sql_end(&scope);
	return tenants;
}

bool
command_may(const Command *command, const char *permission)
{
	AccessRequest request = {command->tenant_id, permission, command->target_kind, command->target_name, NULL};

	return command_allowed(&request);
}

bool
command_may_dispatch(const Command *command)
{
	return command_may(command, PERMISSION_DISPATCH);
}

typedef struct Pending
{
	TimestampTz accepted_at;	/* of the last one that was read */
	char	   *command_id;
	Command    *commands;
	int			n;
} Pending;

/* What is behind the page, in the order of admission; locked by then, and nobody waits. */
static void
read_page(const Claiming *claiming, const char *tenant_id, Pending *page)
{
	SqlScope	scope;
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = TimestampTzGetDatum(page->accepted_at);
	values[2] = CStringGetTextDatum(page->command_id);
	values[3] = TimestampTzGetDatum(clock_now());
	values[4] = claiming->actions;
	nulls[4] = claiming->actions == (Datum) 0 ? 'n' : ' ';
	nulls[5] = nulls[6] = nulls[7] =
		command_grant_arrays(tenant_id, PERMISSION_DISPATCH, &values[5], &values[6], &values[7]) ? ' ' : 'n';
	values[8] = Int32GetDatum(claiming->wanted);
	sql_begin(&scope);
	page->n = (int) sql_run_latest(&plans[PLAN_CANDIDATES], values, nulls);
	page->commands = MemoryContextAlloc(scope.outer, sizeof(Command) * Max(page->n, 1));
	for (int i = 0; i < page->n; i++)
	{
		command_from_row(i, scope.outer, &page->commands[i]);
		page->accepted_at = DatumGetTimestampTz(sql_value(i, COMMAND_NCOLUMNS + 1, NULL));
		page->command_id = page->commands[i].command_id;
	}
	sql_end(&scope);
}

static void
claim_of_tenant(Claiming *claiming, const char *tenant_id)
{
	Pending		page = {DT_NOBEGIN, ""};

	/* an authorizer may refuse what grants allow: then there is another page */
	do
	{
		int			wanted = claiming->wanted;

		read_page(claiming, tenant_id, &page);
		for (int i = 0; i < page.n; i++)
		{
			const Command *command = &page.commands[i];
			TimestampTz now;

			CHECK_FOR_INTERRUPTS();
			if (!command_may_dispatch(command))
				continue;
			/* an authorizer may have taken its time */
			now = clock_now();
			if (command->deadline > now)
				claim_one(claiming, command, now);
		}
		if (page.n < wanted)
			break;
	} while (claiming->wanted > 0);
}

PG_FUNCTION_INFO_V1(reconcile_claim_commands);
Datum
reconcile_claim_commands(PG_FUNCTION_ARGS)
{
	Claiming	claiming = {0};
	char	  **tenants;
	int			n;
	int			first;

	require_writable("claim_commands");
	require_read_committed("claim_commands");
	claiming.claimant = holder_id_arg(fcinfo, 0, "claimant");
	if (!PG_ARGISNULL(1))
	{
		Datum	   *actions;

		if (array_arg(fcinfo, 1, "actions", TEXTOID, ACTIONS_MAX, &actions) == 0)
			arg_invalid("actions", "must not be empty", "NULL takes all.");
		claiming.actions = PG_GETARG_DATUM(1);
	}
	claiming.wanted = max_items_arg(fcinfo, 2, CLAIM_MAX, "It is 1 to 1,000.");
	claiming.ttl_ms = duration_arg(fcinfo, 3, "ttl", false);
	claiming.result = (ReturnSetInfo *) fcinfo->resultinfo;
	InitMaterializedSRF(fcinfo, 0);

	tenants = command_tenants(PERMISSION_DISPATCH, &n);
	if (tenants == NULL)
		tenants = all_tenants(&n);
	/* tenants take turns: with one that always has more than is asked for the others come to nothing */
	first = n > 1 ? (int) (pg_prng_uint64_range(&pg_global_prng_state, 0, n - 1)) : 0;
	for (int i = 0; i < n && claiming.wanted > 0; i++)
		claim_of_tenant(&claiming, tenants[(first + i) % n]);
	return (Datum) 0;
}

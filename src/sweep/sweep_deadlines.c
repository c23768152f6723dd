/*
 * sweep_deadlines.c
 *		Rejects commands that nobody took by their deadlines.
 *
 * What was taken is its host's while his claim is live, and an attempt is never ended
 * by time: only who holds the session, or held it after, can say what became of it.  A
 * session that somebody works on, or has locked, is left to the next pass.
 *
 * Locks: the session, without waiting, then the command.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "placement/claim.h"
#include "placement/marks.h"
#include "placement/session.h"
#include "placement/settings.h"
#include "sweep/sweep.h"

enum
{
	PLAN_PAGE,
	PLAN_LOCK,
	PLAN_REJECT
};

#define DEADLINE_COLUMNS	"c.apply_deadline, c.state, c.attempt_id IS NOT NULL, c.claim_expires_at"
#define OF_COMMAND \
	" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2" \
	" AND c.command_id OPERATOR(pg_catalog.=) $3"

static SqlPlan plans[] = {
	[PLAN_PAGE] = {
		"SELECT " DEADLINE_COLUMNS ", c.tenant_id, c.session_id, c.command_id FROM reconcile.session_command c"
		" WHERE c.shard OPERATOR(pg_catalog.=) $1 AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}')"
		" AND c.apply_deadline OPERATOR(pg_catalog.<=) $2"
		" AND ROW(c.apply_deadline, c.tenant_id, c.session_id, c.command_id) OPERATOR(pg_catalog.>) ROW($3, $4, $5, $6)"
		" ORDER BY c.apply_deadline, c.tenant_id, c.session_id, c.command_id LIMIT $7",
		7, {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_LOCK] = {
		"SELECT " DEADLINE_COLUMNS " FROM reconcile.session_command c" OF_COMMAND " FOR NO KEY UPDATE SKIP LOCKED",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	/* what it was claimed by stays beside it */
	[PLAN_REJECT] = {
		"UPDATE reconcile.session_command c SET state = 'rejected', settled_at = $4, revision = revision OPERATOR(pg_catalog.+) 1"
		OF_COMMAND,
		4, {TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
	}
};

/* ----------------------------------------------------------------
 * The decision: a table of rules, first match wins
 * ----------------------------------------------------------------
 */

typedef struct Deadline
{
	TimestampTz apply_deadline;
	char	   *state;
	bool		attempted;
	TimestampTz claim_expires_at;	/* DT_NOBEGIN: it was not claimed */
} Deadline;

typedef enum Disposition
{
	DISPOSITION_TERMINAL,
	DISPOSITION_APPLYING,
	DISPOSITION_CLAIM_LIVE,
	DISPOSITION_UNEXPIRED,
	DISPOSITION_SETTLEABLE
} Disposition;

static bool
is_terminal(const Deadline *deadline, TimestampTz now)
{
	return strcmp(deadline->state, "applied") == 0 || strcmp(deadline->state, "rejected") == 0;
}

static bool
is_applying(const Deadline *deadline, TimestampTz now)
{
	return strcmp(deadline->state, "applying") == 0 || deadline->attempted;
}

static bool
has_live_claim(const Deadline *deadline, TimestampTz now)
{
	return now < deadline->claim_expires_at;
}

static bool
is_unexpired(const Deadline *deadline, TimestampTz now)
{
	return now < deadline->apply_deadline;
}

static bool
always(const Deadline *deadline, TimestampTz now)
{
	return true;
}

static const struct
{
	bool		(*matches) (const Deadline *deadline, TimestampTz now);
	Disposition disposition;
}			rules[] = {
	/* it is at its end */
	{is_terminal, DISPOSITION_TERMINAL},
	/* it may have taken effect */
	{is_applying, DISPOSITION_APPLYING},
	/* it may at any moment */
	{has_live_claim, DISPOSITION_CLAIM_LIVE},
	/* its time is not over */
	{is_unexpired, DISPOSITION_UNEXPIRED},
	/* nobody has it, and nobody may take it any more */
	{always, DISPOSITION_SETTLEABLE}
};

static Disposition
dispose(const Deadline *deadline, TimestampTz now)
{
	int			i = 0;

	while (!rules[i].matches(deadline, now))
		i++;
	return rules[i].disposition;
}

/* ----------------------------------------------------------------
 * Doing
 * ----------------------------------------------------------------
 */

typedef struct DueCommand
{
	Deadline	deadline;
	const char *position[3];	/* tenant, session, command */
} DueCommand;

typedef struct Settling
{
	DeadlinesSwept *swept;
	const DueCommand *command;
} Settling;

static void
deadline_from_row(int row, MemoryContext context, Deadline *deadline)
{
	bool		isnull;
	Datum		value;

	deadline->apply_deadline = DatumGetTimestampTz(sql_value(row, 1, NULL));
	deadline->state = MemoryContextStrdup(context, TextDatumGetCString(sql_value(row, 2, NULL)));
	deadline->attempted = DatumGetBool(sql_value(row, 3, NULL));
	value = sql_value(row, 4, &isnull);
	deadline->claim_expires_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
}

static int
read_page(const SweepPass *pass, DueCommand **commands)
{
	SqlScope	scope;
	Datum		values[7];
	uint64		n;

	values[0] = Int32GetDatum(pass->shard);
	values[1] = TimestampTzGetDatum(pass->bound);
	sweep_place_values(pass, &values[2]);
	values[6] = Int32GetDatum(pass->page_limit);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_PAGE], values, NULL);
	*commands = MemoryContextAlloc(scope.outer, sizeof(DueCommand) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		DueCommand *command = &(*commands)[i];

		deadline_from_row(i, scope.outer, &command->deadline);
		for (int k = 0; k < lengthof(command->position); k++)
			command->position[k] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, k + 5, NULL)));
	}
	sql_end(&scope);
	return (int) n;
}

static void
command_values(const DueCommand *command, Datum *values)
{
	for (int k = 0; k < lengthof(command->position); k++)
		values[k] = CStringGetTextDatum(command->position[k]);
}

/* False: somebody has it, though its session is locked. */
static bool
lock_command(const DueCommand *command, Deadline *deadline)
{
	SqlScope	scope;
	Datum		values[3];
	bool		locked;

	command_values(command, values);
	sql_begin(&scope);
	locked = sql_run_latest(&plans[PLAN_LOCK], values, NULL) > 0;
	if (locked)
		deadline_from_row(0, scope.outer, deadline);
	sql_end(&scope);
	return locked;
}

static void
reject(const DueCommand *command, TimestampTz now)
{
	SqlScope	scope;
	Datum		values[4];

	command_values(command, values);
	values[3] = TimestampTzGetDatum(now);
	sql_begin(&scope);
	(void) sql_run_latest(&plans[PLAN_REJECT], values, NULL);
	sql_end(&scope);
}

static void
settle(void *arg)
{
	Settling   *settling = arg;
	const DueCommand *command = settling->command;
	SessionKey	key = {unconstify(char *, command->position[0]), unconstify(char *, command->position[1])};
	Session		session;
	SessionClaim claim;
	Deadline	deadline;
	TimestampTz now;
	bool		busy;

	if (!session_try_lock(&key, &session, &busy))
	{
		settling->swept->contended++;
		return;
	}
	now = clock_now();
	if (claim_read_live(&key, now, &claim))
		settling->swept->deferred++;
	else if (!lock_command(command, &deadline) || dispose(&deadline, now) != DISPOSITION_SETTLEABLE)
		settling->swept->contended++;
	else
	{
		reject(command, now);
		settling->swept->rejected++;
	}
}

/* What cannot be settled is told, and left. */
static void
settle_one(Settling *settling)
{
	DeadlinesSwept before = *settling->swept;
	ErrorData  *error = subxact_run(settle, settling);

	if (error == NULL)
		return;
	*settling->swept = before;
	settling->swept->failed++;
	sweep_row_failed("a command of a session", error);
}

static int
deadlines_page(SweepPass *pass, void *arg)
{
	Settling   *settling = arg;
	DeadlinesSwept *swept = settling->swept;
	DueCommand *commands;
	int			n = read_page(pass, &commands);

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		switch (dispose(&commands[i].deadline, clock_now()))
		{
			case DISPOSITION_TERMINAL:
				break;
			case DISPOSITION_APPLYING:
				swept->applying++;
				break;
			case DISPOSITION_CLAIM_LIVE:
				swept->claim_live++;
				break;
			case DISPOSITION_UNEXPIRED:
				swept->unexpired++;
				break;
			case DISPOSITION_SETTLEABLE:
				swept->due++;
				settling->command = &commands[i];
				settle_one(settling);
				break;
		}
	}
	if (n > 0)
		sweep_move(pass, commands[n - 1].deadline.apply_deadline, commands[n - 1].position);
	return n;
}

bool
sweep_deadlines(SweepPass *pass, DeadlinesSwept *swept)
{
	PlacementSettings settings;
	Settling	settling = {swept};

	pass->sweep = SWEEP_DEADLINES;
	if (!sweep_turn(pass->sweep, placement_shards(), &pass->shard))
		return false;
	placement_settings(&settings);
	pass->page_limit = settings.page_limit;
	pass->max_pages = settings.max_pages;
	pass->bound = clock_now();
	pass->npositions = 3;
	sweep_run(pass, deadlines_page, &settling, swept, sizeof(*swept));
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_deadlines);
Datum
reconcile_sweep_deadlines(PG_FUNCTION_ARGS)
{
	SweepPass	pass = {0};
	DeadlinesSwept swept = {0};
	Datum		values[14] = {0};
	bool		nulls[14] = {false};

	sweep_require("sweep_deadlines");
	nulls[0] = !sweep_deadlines(&pass, &swept);
	values[0] = Int32GetDatum(pass.shard);
	values[1] = Int32GetDatum(pass.pages);
	values[2] = Int64GetDatum(pass.rows);
	values[3] = Int64GetDatum(swept.due);
	values[4] = Int64GetDatum(swept.rejected);
	values[5] = Int64GetDatum(swept.deferred);
	values[6] = Int64GetDatum(swept.contended);
	values[7] = Int64GetDatum(swept.failed);
	values[8] = Int64GetDatum(swept.unexpired);
	values[9] = Int64GetDatum(swept.applying);
	values[10] = Int64GetDatum(swept.claim_live);
	values[11] = BoolGetDatum(pass.truncated);
	values[12] = BoolGetDatum(pass.resumed);
	values[13] = sweep_failure(&pass, &nulls[13]);
	return return_one_row(fcinfo, values, nulls);
}

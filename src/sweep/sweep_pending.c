/*
 * sweep_pending.c
 *		Finds the sessions that need a host.
 *
 * Whoever admits a command marks its session; this is for what happens without anybody
 * saying so: a host that dies, a mark that nobody made.  It looks as far ahead as the
 * horizon, which is the deadline that commands are given, so that it sees all that were
 * admitted before it began.  A session that needs a host and is not where it may stay
 * is marked in the loop "placement", whose runs are transactions of their own.
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
#include "loop/idset.h"
#include "placement/marks.h"
#include "placement/place.h"
#include "sweep/sweep.h"

static SqlPlan plan_page = {
	"SELECT c.apply_deadline, c.tenant_id, c.session_id, c.command_id, c.state FROM reconcile.session_command c"
	" WHERE c.shard OPERATOR(pg_catalog.=) $1 AND c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}')"
	" AND c.apply_deadline OPERATOR(pg_catalog.<=) $2"
	" AND ROW(c.apply_deadline, c.tenant_id, c.session_id, c.command_id) OPERATOR(pg_catalog.>) ROW($3, $4, $5, $6)"
	" ORDER BY c.apply_deadline, c.tenant_id, c.session_id, c.command_id LIMIT $7",
	7, {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT4OID}
};

typedef struct OpenCommand
{
	TimestampTz apply_deadline;
	const char *position[3];	/* tenant, session, command */
	char	   *state;
} OpenCommand;

typedef struct Pending
{
	PendingSwept *swept;
	TimestampTz now;
	IdSet		seen;			/* sessions that this pass has looked at */
	const OpenCommand *command; /* that is looked at */
	int64	   *numbers;		/* of sessions to be marked */
	int			nnumbers;
} Pending;

/* One that is being applied needs its host whatever the time; others while they may be applied. */
static bool
needs_host(const OpenCommand *command, TimestampTz now)
{
	return strcmp(command->state, "applying") == 0 || now < command->apply_deadline;
}

static int
read_page(const SweepPass *pass, OpenCommand **commands)
{
	SqlScope	scope;
	Datum		values[7];
	uint64		n;

	values[0] = Int32GetDatum(pass->shard);
	values[1] = TimestampTzGetDatum(pass->bound);
	sweep_place_values(pass, &values[2]);
	values[6] = Int32GetDatum(pass->page_limit);
	sql_begin(&scope);
	n = sql_run_latest(&plan_page, values, NULL);
	*commands = MemoryContextAlloc(scope.outer, sizeof(OpenCommand) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		OpenCommand *command = &(*commands)[i];

		command->apply_deadline = DatumGetTimestampTz(sql_value(i, 1, NULL));
		for (int k = 0; k < lengthof(command->position); k++)
			command->position[k] = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, k + 2, NULL)));
		command->state = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 5, NULL)));
	}
	sql_end(&scope);
	return (int) n;
}

/* The first time in this pass? */
static bool
is_new(Pending *pending, const char *tenant_id, const char *session_id)
{
	int			n = pending->seen.n;

	idset_add(&pending->seen, psprintf("%zu:%s%s", strlen(tenant_id), tenant_id, session_id));
	return pending->seen.n > n;
}

/* Of one that is where it may stay, the host is told; others are to be marked. */
static void
look_at(void *arg)
{
	Pending    *pending = arg;
	const OpenCommand *command = pending->command;
	PlaceLook	look = {.now = pending->now};

	look.session.key.tenant_id = unconstify(char *, command->position[0]);
	look.session.key.session_id = unconstify(char *, command->position[1]);
	if (!session_read(&look.session.key, &look.session))
		return;
	pending->swept->sessions++;
	place_look_owner(&look);
	if (!place_has_owner(&look))
	{
		pending->numbers[pending->nnumbers++] = look.session.number;
		return;
	}
	pending->swept->owned++;
	if (strcmp(command->state, "pending") == 0)
		place_notify_host(look.registration.host_id);
}

static void
look_at_one(Pending *pending)
{
	ErrorData  *error = subxact_run(look_at, pending);

	if (error == NULL)
		return;
	pending->swept->failed++;
	sweep_row_failed("a session", error);
}

static int
pending_page(SweepPass *pass, void *arg)
{
	Pending    *pending = arg;
	OpenCommand *commands;
	int			n = read_page(pass, &commands);

	pending->numbers = palloc(sizeof(int64) * Max(n, 1));
	pending->nnumbers = 0;
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		pending->command = &commands[i];
		if (needs_host(&commands[i], pending->now) && is_new(pending, commands[i].position[0], commands[i].position[1]))
			look_at_one(pending);
	}
	if (session_mark_many(pending->nnumbers, pending->numbers))
		pending->swept->marked += pending->nnumbers;
	if (n > 0)
		sweep_move(pass, commands[n - 1].apply_deadline, commands[n - 1].position);
	return n;
}

bool
sweep_pending(SweepPass *pass, PendingSwept *swept)
{
	PlacementSettings settings;
	Pending		pending = {.swept = swept};

	pass->sweep = SWEEP_PENDING;
	if (!sweep_turn(pass->sweep, placement_shards(), &pass->shard))
		return false;
	placement_settings(&settings);
	pending.now = clock_now();
	idset_init(&pending.seen, 0);
	pass->page_limit = settings.page_limit;
	pass->max_pages = settings.max_pages;
	pass->bound = clock_add_ms(pending.now, settings.horizon_ms);
	pass->npositions = 3;
	sweep_run(pass, pending_page, &pending, swept, sizeof(*swept));
	return true;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_pending);
Datum
reconcile_sweep_pending(PG_FUNCTION_ARGS)
{
	SweepPass	pass = {0};
	PendingSwept swept = {0};
	Datum		values[10] = {0};
	bool		nulls[10] = {false};

	sweep_require("sweep_pending");
	nulls[0] = !sweep_pending(&pass, &swept);
	values[0] = Int32GetDatum(pass.shard);
	values[1] = Int32GetDatum(pass.pages);
	values[2] = Int64GetDatum(pass.rows);
	values[3] = Int64GetDatum(swept.sessions);
	values[4] = Int64GetDatum(swept.owned);
	values[5] = Int64GetDatum(swept.marked);
	values[6] = Int64GetDatum(swept.failed);
	values[7] = BoolGetDatum(pass.truncated);
	values[8] = BoolGetDatum(pass.resumed);
	values[9] = sweep_failure(&pass, &nulls[9]);
	return return_one_row(fcinfo, values, nulls);
}

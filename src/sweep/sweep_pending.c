/*
 * sweep_pending.c
 *		Finds the sessions that need a host.
 *
 * Whoever admits a command marks its session; this is for what happens without anybody
 * saying so: a host that dies, a mark that nobody made.  Its view is all open commands,
 * whatever their deadlines, up to the last that there is when the pass begins: those
 * that are admitted while it goes on do not keep it from its end.  A session that needs
 * a host and is not where it may stay is marked in the loop "placement", whose runs are
 * transactions of their own.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "loop/idset.h"
#include "placement/marks.h"
#include "placement/place.h"
#include "placement/session_due.h"
#include "sweep/sweep.h"

static SqlPlan plan_any = {
	"SELECT 1 FROM reconcile.session_command c"
	" WHERE c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}') LIMIT 1",
	0, {0}
};

typedef struct PendingSwept
{
	int64		sessions;		/* that need a host */
	int64		owned;			/* of those: they are where they may stay */
	int64		marked;			/* of those: to be placed by the loop */
} PendingSwept;

typedef struct PendingPage
{
	DueCommand *commands;
	TimestampTz now;
	int64	   *numbers;		/* of sessions to be marked */
	int			nnumbers;
} PendingPage;

static TimestampTz
pending_bound(const SweepPass *pass)
{
	return session_due_last(pass->shard);
}

static int
pending_read_page(SweepPass *pass, void **result)
{
	PendingPage *page = palloc0(sizeof(PendingPage));
	int			n = sweep_due_page(&pending_sweep, pass, &page->commands);

	page->now = clock_now();
	page->numbers = palloc(sizeof(int64) * Max(n, 1));
	*result = page;
	return n;
}

/* One that is being applied needs its host whatever the time; others while they may be applied. */
static bool
needs_host(const DueCommand *command, TimestampTz now)
{
	return strcmp(command->state, "applying") == 0 || now < command->apply_deadline;
}

/* The first time in this pass? */
static bool
is_new(SweepPass *pass, const DueCommand *command)
{
	IdSet	   *seen = pass->seen;
	int			n;

	if (seen == NULL)
	{
		MemoryContext outer = MemoryContextSwitchTo(pass->context);

		pass->seen = seen = palloc(sizeof(IdSet));
		idset_init(seen, 0);
		MemoryContextSwitchTo(outer);
	}
	n = seen->n;
	idset_add(seen, psprintf("%zu:%s%s", strlen(command->tenant_id), command->tenant_id, command->session_id));
	return seen->n > n;
}

/* Of one that is where it may stay, the host is told; others are to be marked. */
static void
pending_settle(SweepPass *pass, void *arg, int i)
{
	PendingPage *page = arg;
	PendingSwept *swept = pass->counts;
	const DueCommand *command = &page->commands[i];
	PlaceLook	look = {.now = page->now};

	if (!needs_host(command, page->now) || !is_new(pass, command))
		return;
	look.session.key.tenant_id = command->tenant_id;
	look.session.key.session_id = command->session_id;
	if (!session_read(&look.session.key, &look.session))
		return;
	swept->sessions++;
	place_look_owner(&look);
	if (!place_has_owner(&look))
	{
		page->numbers[page->nnumbers++] = look.session.number;
		return;
	}
	swept->owned++;
	if (strcmp(command->state, "pending") == 0)
		place_notify_host(look.registration.host_id);
}

static void
pending_end_page(SweepPass *pass, void *arg)
{
	PendingPage *page = arg;

	if (session_mark_many(page->nnumbers, page->numbers))
		((PendingSwept *) pass->counts)->marked += page->nnumbers;
}

/* While there is one, it looks: what it is for nobody says. */
static TimestampTz
pending_first_due(TimestampTz after)
{
	return sql_do(&plan_any, NULL, NULL) > 0 ? DT_NOBEGIN : DT_NOEND;
}

const Sweep pending_sweep = {
	.name = SWEEP_PENDING,
	.sharded = true,
	.npositions = 3,
	.counts_size = sizeof(PendingSwept),
	.row = "a session",
	.bound = pending_bound,
	.read_page = pending_read_page,
	.settle = pending_settle,
	.end_page = pending_end_page,
	.first_due = pending_first_due
};

static void
report(const SweepPass *pass, void *arg)
{
	ReturnSetInfo *result = arg;
	const PendingSwept *swept = pass->counts;
	Datum		values[10];
	bool		nulls[10] = {false};

	values[0] = Int32GetDatum(pass->shard);
	values[1] = Int32GetDatum(pass->pages);
	values[2] = Int64GetDatum(pass->rows);
	values[3] = Int64GetDatum(swept->sessions + pass->failed);
	values[4] = Int64GetDatum(swept->owned);
	values[5] = Int64GetDatum(swept->marked);
	values[6] = Int64GetDatum(pass->failed);
	values[7] = BoolGetDatum(pass->truncated);
	values[8] = BoolGetDatum(pass->resumed);
	values[9] = sweep_failure(pass, &nulls[9]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_sweep_pending);
Datum
reconcile_sweep_pending(PG_FUNCTION_ARGS)
{
	sweep_require("sweep_pending");
	InitMaterializedSRF(fcinfo, 0);
	(void) sweep_call(&pending_sweep, report, fcinfo->resultinfo);
	return (Datum) 0;
}

/*
 * sweep_deadlines.c
 *		Rejects commands that nobody took by their deadlines.
 *
 * What was taken is its host's while his claim is live, and an attempt is never ended
 * by time: only who holds the session, or held it after, can say what became of it.  A
 * session that somebody works on, or has locked, is left to a later pass, and so is a
 * command that has another revision than the page.
 *
 * Locks: the session, without waiting, then the command.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "placement/claim.h"
#include "placement/marks.h"
#include "placement/session.h"
#include "placement/session_due.h"
#include "sweep/sweep.h"

enum
{
	PLAN_LOCK,
	PLAN_REJECT
};

#define OF_COMMAND \
	" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.session_id OPERATOR(pg_catalog.=) $2" \
	" AND c.command_id OPERATOR(pg_catalog.=) $3"

static SqlPlan plans[] = {
	[PLAN_LOCK] = {
		"SELECT 1 FROM reconcile.session_command c" OF_COMMAND " AND c.revision OPERATOR(pg_catalog.=) $4"
		" FOR NO KEY UPDATE SKIP LOCKED",
		4, {TEXTOID, TEXTOID, TEXTOID, INT8OID}
	},
	/* what it was claimed by stays beside it */
	[PLAN_REJECT] = {
		"UPDATE reconcile.session_command c SET state = 'rejected', settled_at = $4, revision = revision OPERATOR(pg_catalog.+) 1"
		OF_COMMAND,
		4, {TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
	}
};

typedef struct DeadlinesSwept
{
	int64		due;			/* past their deadlines, and nobody's */
	int64		rejected;		/* of those */
	int64		deferred;		/* of those: somebody works on their session */
	int64		contended;		/* of those: locked, or not as they were any more */
	int64		unexpired;
	int64		applying;		/* never ended by time */
	int64		claim_live;		/* their host's, whatever the deadline */
} DeadlinesSwept;

/* ----------------------------------------------------------------
 * The decision: a table of rules, first match wins
 * ----------------------------------------------------------------
 */

typedef enum Disposition
{
	DISPOSITION_TERMINAL,
	DISPOSITION_APPLYING,
	DISPOSITION_CLAIM_LIVE,
	DISPOSITION_UNEXPIRED,
	DISPOSITION_SETTLEABLE
} Disposition;

static bool
is_terminal(const DueCommand *command, TimestampTz now)
{
	return strcmp(command->state, "applied") == 0 || strcmp(command->state, "rejected") == 0;
}

static bool
is_applying(const DueCommand *command, TimestampTz now)
{
	return strcmp(command->state, "applying") == 0 || command->attempt_id != NULL;
}

static bool
has_live_claim(const DueCommand *command, TimestampTz now)
{
	return now < command->claim_expires_at;
}

static bool
is_unexpired(const DueCommand *command, TimestampTz now)
{
	return now < command->apply_deadline;
}

static bool
always(const DueCommand *command, TimestampTz now)
{
	return true;
}

static const struct
{
	bool		(*matches) (const DueCommand *command, TimestampTz now);
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
dispose(const DueCommand *command, TimestampTz now)
{
	int			i = 0;

	while (!rules[i].matches(command, now))
		i++;
	return rules[i].disposition;
}

/* ----------------------------------------------------------------
 * Doing
 * ----------------------------------------------------------------
 */

static TimestampTz
deadlines_bound(const SweepPass *pass)
{
	return clock_now();
}

static int
deadlines_read_page(SweepPass *pass, void **page)
{
	return sweep_due_page(&deadlines_sweep, pass, (DueCommand **) page);
}

static void
command_values(const DueCommand *command, Datum *values)
{
	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->session_id);
	values[2] = CStringGetTextDatum(command->command_id);
}

/* False: somebody has it, though its session is locked, or has written it since the page. */
static bool
lock_command(const DueCommand *command)
{
	Datum		values[4];

	command_values(command, values);
	values[3] = Int64GetDatum(command->revision);
	return sql_do(&plans[PLAN_LOCK], values, NULL) > 0;
}

static void
reject(const DueCommand *command, TimestampTz now)
{
	Datum		values[4];

	command_values(command, values);
	values[3] = TimestampTzGetDatum(now);
	(void) sql_do(&plans[PLAN_REJECT], values, NULL);
	/* nobody who reads that it was not done may find it open again after a crash */
	ForceSyncCommit();
}

static void
settle_due(SweepPass *pass, const DueCommand *command)
{
	DeadlinesSwept *swept = pass->counts;
	SessionKey	key = {command->tenant_id, command->session_id};
	Session		session;
	SessionClaim claim;
	TimestampTz now;
	bool		locked;
	bool		busy;

	swept->due++;
	locked = session_try_lock(&key, &session, &busy);
	now = clock_now();
	if (locked && claim_read_live(&key, now, &claim))
		swept->deferred++;
	else if (locked && lock_command(command))
	{
		reject(command, now);
		/* it may wait for room that it wants no more */
		session_mark(session.number, now);
		TEST_POINT("deadline-rejected");
		swept->rejected++;
		return;
	}
	else
		swept->contended++;
	sweep_again_soon(pass);
}

static void
deadlines_settle(SweepPass *pass, void *page, int i)
{
	DeadlinesSwept *swept = pass->counts;
	const DueCommand *command = (DueCommand *) page + i;

	switch (dispose(command, clock_now()))
	{
		case DISPOSITION_TERMINAL:
			break;
		case DISPOSITION_APPLYING:
			swept->applying++;
			break;
		case DISPOSITION_CLAIM_LIVE:
			swept->claim_live++;
			sweep_again(pass, command->claim_expires_at);
			break;
		case DISPOSITION_UNEXPIRED:
			swept->unexpired++;
			break;
		case DISPOSITION_SETTLEABLE:
			settle_due(pass, command);
			break;
	}
}

static TimestampTz
deadlines_first_due(TimestampTz after)
{
	return session_due_first(placement_shards(), after);
}

const Sweep deadlines_sweep = {
	.name = SWEEP_DEADLINES,
	.sharded = true,
	.npositions = 3,
	.counts_size = sizeof(DeadlinesSwept),
	.row = "a command of a session",
	.bound = deadlines_bound,
	.read_page = deadlines_read_page,
	.settle = deadlines_settle,
	.first_due = deadlines_first_due
};

static void
report(const SweepPass *pass, void *arg)
{
	ReturnSetInfo *result = arg;
	const DeadlinesSwept *swept = pass->counts;
	Datum		values[14];
	bool		nulls[14] = {false};

	values[0] = Int32GetDatum(pass->shard);
	values[1] = Int32GetDatum(pass->pages);
	values[2] = Int64GetDatum(pass->rows);
	values[3] = Int64GetDatum(swept->due + pass->failed);
	values[4] = Int64GetDatum(swept->rejected);
	values[5] = Int64GetDatum(swept->deferred);
	values[6] = Int64GetDatum(swept->contended);
	values[7] = Int64GetDatum(pass->failed);
	values[8] = Int64GetDatum(swept->unexpired);
	values[9] = Int64GetDatum(swept->applying);
	values[10] = Int64GetDatum(swept->claim_live);
	values[11] = BoolGetDatum(pass->truncated);
	values[12] = BoolGetDatum(pass->resumed);
	values[13] = sweep_failure(pass, &nulls[13]);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_sweep_deadlines);
Datum
reconcile_sweep_deadlines(PG_FUNCTION_ARGS)
{
	sweep_require("sweep_deadlines");
	InitMaterializedSRF(fcinfo, 0);
	(void) sweep_call(&deadlines_sweep, report, fcinfo->resultinfo);
	return (Datum) 0;
}

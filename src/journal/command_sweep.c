/*
 * command_sweep.c
 *		Settles commands whose time is over: those that nobody claimed, and those whose
 *		claimant did not answer.
 *
 * A sweep looks at so many rows at most, in the order of their deadlines, and the next
 * one goes on behind them, around the end to the beginning: rows that are locked, or
 * that cannot be settled, hold up none that come after.  It waits for nobody, but at its
 * COMMIT for the ends of its tenants' chains, as all do; and it looks at no row twice.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "journal/audit.h"
#include "journal/command.h"
#include "journal/desired.h"
#include "journal/lifecycle.h"

#define ITEMS_MAX	10000

enum
{
	PLAN_CURSOR,
	PLAN_MAKE_CURSOR,
	PLAN_SET_CURSOR,
	PLAN_DUE,
	PLAN_OVERDUE,
	PLAN_LOCK
};

static SqlPlan plans[] = {
	[PLAN_CURSOR] = {
		"SELECT s.at, s.tenant_id, s.command_id FROM reconcile.command_sweep_cursor s", 0, {0}
	},
	[PLAN_MAKE_CURSOR] = {
		"INSERT INTO reconcile.command_sweep_cursor (singleton) VALUES (true)", 0, {0}
	},
	[PLAN_SET_CURSOR] = {
		"UPDATE reconcile.command_sweep_cursor SET at = $1, tenant_id = $2, command_id = $3",
		3, {TIMESTAMPTZOID, TEXTOID, TEXTOID}
	},
	[PLAN_DUE] = {
		"SELECT o.at, o.tenant_id, o.command_id FROM ("
		"(SELECT c.deadline AS at, c.tenant_id, c.command_id FROM reconcile.command c"
		" WHERE c.status OPERATOR(pg_catalog.=) 'pending' AND c.deadline OPERATOR(pg_catalog.<=) $1"
		" AND ROW(c.deadline, c.tenant_id, c.command_id) OPERATOR(pg_catalog.>) ROW($2, $3, $4)"
		" ORDER BY c.deadline, c.tenant_id, c.command_id LIMIT $5)"
		" UNION ALL "
		"(SELECT c.claim_expires_at, c.tenant_id, c.command_id FROM reconcile.command c"
		" WHERE c.status OPERATOR(pg_catalog.=) ANY ('{dispatched,acknowledged}')"
		" AND c.claim_expires_at OPERATOR(pg_catalog.<=) $1"
		" AND ROW(c.claim_expires_at, c.tenant_id, c.command_id) OPERATOR(pg_catalog.>) ROW($2, $3, $4)"
		" ORDER BY c.claim_expires_at, c.tenant_id, c.command_id LIMIT $5)"
		") o ORDER BY o.at, o.tenant_id, o.command_id LIMIT $5",
		5, {TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_OVERDUE] = {
		"SELECT FROM (SELECT FROM reconcile.command c WHERE c.status OPERATOR(pg_catalog.=) 'pending'"
		" AND c.deadline OPERATOR(pg_catalog.<) $1 UNION ALL SELECT FROM reconcile.command c"
		" WHERE c.status OPERATOR(pg_catalog.=) ANY ('{dispatched,acknowledged}')"
		" AND c.claim_expires_at OPERATOR(pg_catalog.<) $1) o LIMIT $2",
		2, {TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_LOCK] = {
		"SELECT " COMMAND_COLUMNS " FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.=) $2"
		" FOR NO KEY UPDATE SKIP LOCKED",
		2, {TEXTOID, TEXTOID}
	}
};

typedef struct Place
{
	TimestampTz at;
	char	   *tenant_id;
	char	   *command_id;
} Place;

typedef struct Sweep
{
	int64		canceled;
	int64		lapsed;
	int64		skipped;		/* locked, or settled by somebody else meanwhile */
	int64		failed;
	bool		more;			/* it stopped at its budget, and the next one has something to do */
} Sweep;

/* False: another sweep has it.  Not by its row, which whoever makes it would have to wait for. */
static bool
lock_cursor(Place *cursor)
{
	SqlScope	scope;

	if (!lock_take(LOCK_KIND_SWEEP, "", "", ExclusiveLock, false))
		return false;
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_CURSOR], NULL, NULL) == 0)
	{
		sql_run_latest(&plans[PLAN_MAKE_CURSOR], NULL, NULL);
		*cursor = (Place) {DT_NOBEGIN, "", ""};
	}
	else
	{
		cursor->at = DatumGetTimestampTz(sql_value(0, 1, NULL));
		cursor->tenant_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 2, NULL)));
		cursor->command_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(0, 3, NULL)));
	}
	sql_end(&scope);
	return true;
}

static void
place_values(const Place *place, Datum *values)
{
	values[0] = TimestampTzGetDatum(place->at);
	values[1] = CStringGetTextDatum(place->tenant_id);
	values[2] = CStringGetTextDatum(place->command_id);
}

static void
set_cursor(const Place *place)
{
	Datum		values[3];

	place_values(place, values);
	sql_do(&plans[PLAN_SET_CURSOR], values, NULL);
}

static int
read_due(const Place *after, TimestampTz now, int max, Place **places)
{
	SqlScope	scope;
	Datum		values[5];
	uint64		n;

	values[0] = TimestampTzGetDatum(now);
	place_values(after, &values[1]);
	values[4] = Int32GetDatum(max);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_DUE], values, NULL);
	*places = MemoryContextAlloc(scope.outer, sizeof(Place) * Max(n, 1));
	for (uint64 i = 0; i < n; i++)
	{
		(*places)[i].at = DatumGetTimestampTz(sql_value(i, 1, NULL));
		(*places)[i].tenant_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 2, NULL)));
		(*places)[i].command_id = MemoryContextStrdup(scope.outer, TextDatumGetCString(sql_value(i, 3, NULL)));
	}
	sql_end(&scope);
	return (int) n;
}

typedef struct Settling
{
	const Place *place;
	TimestampTz now;
	bool		entered;		/* desired states can be changed */
	int64		floor;			/* of desired_try_enter() */
	Sweep	   *sweep;
} Settling;

static bool
lock_unless_busy(const Place *place, Command *command)
{
	SqlScope	scope;
	Datum		values[2];
	bool		locked;

	values[0] = CStringGetTextDatum(place->tenant_id);
	values[1] = CStringGetTextDatum(place->command_id);
	sql_begin(&scope);
	locked = sql_run_latest(&plans[PLAN_LOCK], values, NULL) > 0;
	if (locked)
		command_from_row(0, scope.outer, command);
	sql_end(&scope);
	return locked;
}

/* Its end, if its time is over: the count that it is of, or NULL. */
static int64 *
end_of(Command *command, TimestampTz now, Sweep *sweep)
{
	if (command_step_legal(command->status, STEP_EXPIRE) && command->deadline <= now)
	{
		command->status = COMMAND_CANCELED;
		command->failure = FAILURE_DEADLINE_EXCEEDED;
		return &sweep->canceled;
	}
	if (command_step_legal(command->status, STEP_LAPSE) && command->claim_expires_at <= now)
	{
		command->status = COMMAND_UNKNOWN;
		command->failure = FAILURE_OUTCOME_UNKNOWN;
		return &sweep->lapsed;
	}
	return NULL;
}

static void
settle(void *arg)
{
	Settling   *settling = arg;
	Command		command;
	int64	   *count = NULL;

	/* found now, and not at COMMIT, where it would be an error of all the sweep */
	audit_check(settling->place->tenant_id);
	if (lock_unless_busy(settling->place, &command))
		count = end_of(&command, settling->now, settling->sweep);
	/* its desired state cannot be withdrawn at this moment */
	if (count != NULL && command.status == COMMAND_CANCELED && command.desired_revision >= 0 && !settling->entered)
		count = NULL;
	if (count != NULL && command_end(&command, NULL, settling->floor, false))
		(*count)++;
	else
		settling->sweep->skipped++;
}

/* What cannot be settled is told, and left. */
static void
settle_one(Settling *settling)
{
	Sweep		before = *settling->sweep;
	ErrorData  *error = subxact_run(settle, settling);

	if (error == NULL)
		return;
	if (error->sqlerrcode == ERRCODE_QUERY_CANCELED || error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		ReThrowError(error);
	*settling->sweep = before;
	settling->sweep->failed++;
	ereport(LOG,
			(errcode(error->sqlerrcode),
			 errmsg("command \"%s\" could not be settled: SQLSTATE %s",
					settling->place->command_id, unpack_sql_state(error->sqlerrcode)),
			 errhidestmt(true), errhidecontext(true)));
}

static int
compare_places(const Place *a, const Place *b)
{
	int			order = a->at < b->at ? -1 : a->at > b->at ? 1 : strcmp(a->tenant_id, b->tenant_id);

	return order != 0 ? order : strcmp(a->command_id, b->command_id);
}

/*
 * At most "max" rows behind the place, up to "last" if that is not NULL.  The place
 * moves with them; returns how many there were.
 */
static int
sweep_from(Place *place, const Place *last, int max, Settling *settling)
{
	Place	   *places;
	int			n = read_due(place, settling->now, max, &places);
	MemoryContext context;
	MemoryContext outer;
	int			i;

	/* before any row is locked */
	if (n > 0)
		settling->entered = desired_try_enter(&settling->floor);
	context = AllocSetContextCreate(CurrentMemoryContext, "reconcile sweep", ALLOCSET_DEFAULT_SIZES);
	outer = MemoryContextSwitchTo(context);
	for (i = 0; i < n && (last == NULL || compare_places(&places[i], last) <= 0); i++)
	{
		CHECK_FOR_INTERRUPTS();
		settling->place = &places[i];
		settle_one(settling);
		*place = places[i];
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(outer);
	MemoryContextDelete(context);
	return i;
}

static void
sweep_commands(int max, Sweep *sweep)
{
	Settling	settling = {.now = clock_now(), .sweep = sweep};
	Place		start;
	Place		place;
	int			n;

	/* another sweep is at it */
	if (!lock_cursor(&start))
		return;
	place = start;
	n = sweep_from(&place, NULL, max, &settling);
	sweep->more = n == max;
	if (n < max && start.at != DT_NOBEGIN)
	{
		place = (Place) {DT_NOBEGIN, "", ""};
		n += sweep_from(&place, &start, max - n, &settling);
		/* what cannot be settled is no reason to call again at once */
		sweep->more = n == max && sweep->canceled + sweep->lapsed > 0;
	}
	if (compare_places(&place, &start) != 0)
		set_cursor(&place);
}

int64
command_overdue(TimestampTz before, int max)
{
	SqlScope	scope;
	Datum		values[2];
	int64		n;

	values[0] = TimestampTzGetDatum(before);
	values[1] = Int32GetDatum(max + 1);
	sql_begin(&scope);
	n = sql_run(&plans[PLAN_OVERDUE], values, NULL);
	sql_end(&scope);
	return n;
}

PG_FUNCTION_INFO_V1(reconcile_sweep_commands);
Datum
reconcile_sweep_commands(PG_FUNCTION_ARGS)
{
	Sweep		sweep = {0};
	int			max_items;
	Datum		values[5];
	bool		nulls[5] = {false};

	require_writable("sweep_commands");
	require_read_committed("sweep_commands");
	max_items = max_items_arg(fcinfo, 0, ITEMS_MAX, "It is 1 to 10,000.");
	access_require_all(CAP_OPERATE);
	sweep_commands(max_items, &sweep);
	values[0] = Int64GetDatum(sweep.canceled);
	values[1] = Int64GetDatum(sweep.lapsed);
	values[2] = Int64GetDatum(sweep.skipped);
	values[3] = Int64GetDatum(sweep.failed);
	values[4] = BoolGetDatum(sweep.more);
	return return_one_row(fcinfo, values, nulls);
}

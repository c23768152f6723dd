/*
 * desired.c
 *		The desired states of targets, and the commands that they come from.
 *
 * A target's state is that of the last command for it that stands.  Who changes it
 * holds its row; a change gets a position that no reader has passed (see
 * desired_read.c).
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/desired.h"
#include "lease/incarnation.h"

enum
{
	PLAN_MAKE,
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_WRITE,
	PLAN_TOP,
	PLAN_INTEND,
	PLAN_TRIM,
	PLAN_FINAL,
	PLAN_FIND,
	PLAN_TAKE_OUT
};

#define OF_TARGET \
	"tenant_id OPERATOR(pg_catalog.=) $1 AND target_kind OPERATOR(pg_catalog.=) $2" \
	" AND target_name OPERATOR(pg_catalog.=) $3"

static SqlPlan plans[] = {
	[PLAN_MAKE] = {
		"INSERT INTO reconcile.desired_state (tenant_id, target_kind, target_name, revision, changed_at,"
		" change_floor, change_xid, change_number)"
		" VALUES ($1, $2, $3, 0, $4, 0, '0', 0) ON CONFLICT DO NOTHING",
		4, {TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_LOCK] = {
		"SELECT state, revision, command_id FROM reconcile.desired_state WHERE " OF_TARGET " FOR NO KEY UPDATE",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT state, revision, command_id FROM reconcile.desired_state WHERE " OF_TARGET
		" FOR NO KEY UPDATE SKIP LOCKED",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_WRITE] = {
		"UPDATE reconcile.desired_state SET state = $4, revision = $5, command_id = $6, requested_at = $7,"
		" changed_at = $8, change_floor = $9, change_xid = pg_catalog.pg_current_xact_id(),"
		" change_number = $10 WHERE " OF_TARGET,
		10, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID}
	},
	[PLAN_TOP] = {
		"SELECT number, command_id, state, requested_at FROM reconcile.desired_intent WHERE " OF_TARGET
		" ORDER BY number DESC LIMIT 1",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_INTEND] = {
		"INSERT INTO reconcile.desired_intent (tenant_id, target_kind, target_name, number, command_id, state,"
		" requested_at, final) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		8, {TEXTOID, TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, BOOLOID}
	},
	/*
	 * Below one that is final nothing comes up any more.  What a claim is making
	 * final at this moment is left, as a claim leaves what is being deleted here: it
	 * only stays longer than it must.
	 */
	[PLAN_TRIM] = {
		"WITH below AS MATERIALIZED (SELECT number AS n FROM reconcile.desired_intent WHERE " OF_TARGET
		" AND number OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(number) FROM reconcile.desired_intent"
		" WHERE " OF_TARGET " AND final) FOR UPDATE SKIP LOCKED)"
		" DELETE FROM reconcile.desired_intent USING below WHERE " OF_TARGET " AND number OPERATOR(pg_catalog.=) below.n",
		3, {TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_FINAL] = {
		"WITH mine AS MATERIALIZED (SELECT command_id AS c FROM reconcile.desired_intent"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND command_id OPERATOR(pg_catalog.=) $2 AND NOT final"
		" FOR UPDATE SKIP LOCKED)"
		" UPDATE reconcile.desired_intent SET final = true FROM mine WHERE tenant_id OPERATOR(pg_catalog.=) $1"
		" AND command_id OPERATOR(pg_catalog.=) mine.c",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_FIND] = {
		"SELECT target_kind, target_name FROM reconcile.desired_intent WHERE tenant_id OPERATOR(pg_catalog.=) $1"
		" AND command_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_TAKE_OUT] = {
		"DELETE FROM reconcile.desired_intent WHERE tenant_id OPERATOR(pg_catalog.=) $1"
		" AND command_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	}
};

static void
target_values(const DesiredTarget *target, Datum *values)
{
	values[0] = CStringGetTextDatum(target->tenant_id);
	values[1] = CStringGetTextDatum(target->target_kind);
	values[2] = CStringGetTextDatum(target->target_name);
}

void
desired_raise_exhausted(const DesiredTarget *target)
{
	ereport(ERROR,
			(errcode(ERRCODE_REVISION_EXHAUSTED),
			 errmsg("the desired state of %s \"%s\" has no revision left", target->target_kind, target->target_name),
			 errdetail("It is at the highest there is."),
			 errhint("Give the target another name.")));
}

int64
desired_enter(void)
{
	return incarnation_hold();
}

bool
desired_try_enter(int64 *floor)
{
	return incarnation_enter(floor);
}

/* The row that a plan has locked. */
static void
read_locked(const SqlScope *scope, DesiredState *now)
{
	now->state = sql_text(0, 1, scope->outer);
	now->revision = DatumGetInt64(sql_value(0, 2, NULL));
	now->command_id = sql_text(0, 3, scope->outer);
}

void
desired_lock(const DesiredTarget *target, DesiredState *now)
{
	SqlScope	scope;
	Datum		values[4];

	target_values(target, values);
	values[3] = TimestampTzGetDatum(clock_now());
	sql_begin(&scope);
	/* two that are the first meet at this row */
	if (sql_run_latest(&plans[PLAN_LOCK], values, NULL) == 0)
	{
		sql_run_latest(&plans[PLAN_MAKE], values, NULL);
		if (sql_run_latest(&plans[PLAN_LOCK], values, NULL) == 0)
			elog(ERROR, "could not lock the desired state of %s \"%s\"", target->target_kind, target->target_name);
	}
	read_locked(&scope, now);
	sql_end(&scope);
}

/* The same of a row that is there, unless somebody else has it. */
static bool
try_lock(const DesiredTarget *target, DesiredState *now)
{
	SqlScope	scope;
	Datum		values[3];
	bool		locked;

	target_values(target, values);
	sql_begin(&scope);
	locked = sql_run_latest(&plans[PLAN_TRY_LOCK], values, NULL) > 0;
	if (locked)
		read_locked(&scope, now);
	sql_end(&scope);
	return locked;
}

/* Within sql_begin(), with the row locked. */
static void
write_state(const DesiredTarget *target, const char *state, int64 revision, const char *command_id,
			TimestampTz requested_at, int64 floor)
{
	Datum		values[10];
	char		nulls[10] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	target_values(target, values);
	nulls[3] = nulls[5] = state == NULL ? 'n' : ' ';
	values[3] = state == NULL ? (Datum) 0 : CStringGetTextDatum(state);
	values[4] = Int64GetDatum(revision);
	values[5] = state == NULL ? (Datum) 0 : CStringGetTextDatum(command_id);
	nulls[6] = requested_at == DT_NOBEGIN ? 'n' : ' ';
	values[6] = TimestampTzGetDatum(requested_at);
	values[7] = TimestampTzGetDatum(clock_now());
	values[8] = Int64GetDatum(floor);
	/* each is a command of its own, so no two of a transaction have one number */
	CommandCounterIncrement();
	values[9] = Int64GetDatum(GetCurrentCommandId(true));
	sql_run_latest(&plans[PLAN_WRITE], values, nulls);
}

int64
desired_intend(const DesiredTarget *target, const DesiredState *now, const char *state, int64 revision,
			   const char *command_id, TimestampTz requested_at, bool final, int64 floor)
{
	SqlScope	scope;
	Datum		values[8];
	char		nulls[8] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	bool		same = now->state != NULL && strcmp(now->state, state) == 0;

	target_values(target, values);
	sql_begin(&scope);
	values[3] = Int64GetDatum(sql_run_latest(&plans[PLAN_TOP], values, NULL) == 0 ? 1 :
							  DatumGetInt64(sql_value(0, 1, NULL)) + 1);
	values[4] = CStringGetTextDatum(command_id);
	values[5] = CStringGetTextDatum(state);
	nulls[6] = requested_at == DT_NOBEGIN ? 'n' : ' ';
	values[6] = TimestampTzGetDatum(requested_at);
	values[7] = BoolGetDatum(final);
	sql_run_latest(&plans[PLAN_INTEND], values, nulls);
	sql_run_latest(&plans[PLAN_TRIM], values, NULL);
	/* what is so already gets no revision: nobody has to do anything */
	if (!same)
		write_state(target, state, revision, command_id, requested_at, floor);
	sql_end(&scope);
	return same ? now->revision : revision;
}

void
desired_settle(const char *tenant_id, const char *command_id)
{
	Datum		values[2];

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(command_id);
	sql_do(&plans[PLAN_FINAL], values, NULL);
}

/* The target of a command's intent; false: it has none. */
static bool
find_target(const char *tenant_id, const char *command_id, DesiredTarget *target)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(command_id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_FIND], values, NULL) > 0;
	if (found)
	{
		target->tenant_id = tenant_id;
		target->target_kind = sql_text(0, 1, scope.outer);
		target->target_name = sql_text(0, 2, scope.outer);
	}
	sql_end(&scope);
	return found;
}

bool
desired_withdraw(const char *tenant_id, const char *command_id, int64 floor, bool wait)
{
	DesiredTarget target;
	DesiredState now;
	SqlScope	scope;
	Datum		values[3];
	char	   *state = NULL;
	char	   *by = NULL;
	TimestampTz requested_at = DT_NOBEGIN;
	bool		same;

	if (!find_target(tenant_id, command_id, &target))
		return true;
	if (wait)
		desired_lock(&target, &now);
	else if (!try_lock(&target, &now))
		return false;
	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(command_id);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_TAKE_OUT], values, NULL);
	target_values(&target, values);
	if (sql_run_latest(&plans[PLAN_TOP], values, NULL) > 0)
	{
		bool		isnull;
		Datum		value = sql_value(0, 4, &isnull);

		by = sql_text(0, 2, scope.outer);
		state = sql_text(0, 3, scope.outer);
		if (!isnull)
			requested_at = DatumGetTimestampTz(value);
	}
	sql_end(&scope);

	same = now.state == NULL ? state == NULL : state != NULL && strcmp(now.state, state) == 0;
	if (same && (by == NULL || strcmp(now.command_id, by) == 0))
		return true;
	if (!same && now.revision == PG_INT64_MAX)
		desired_raise_exhausted(&target);
	sql_begin(&scope);
	write_state(&target, state, same ? now.revision : now.revision + 1, by, requested_at, floor);
	sql_end(&scope);
	return true;
}

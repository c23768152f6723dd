/*
 * session_due.c
 *		Open commands of a shard, in the order of their deadlines: for the sweeps, and for
 *		due_session_commands().
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/session_due.h"
#include "placement/settings.h"

enum
{
	PLAN_PAGE,
	PLAN_FIRST,
	PLAN_LAST
};

#define OPEN	"c.state OPERATOR(pg_catalog.=) ANY ('{pending,claimed,applying}')"

static SqlPlan plans[] = {
	[PLAN_PAGE] = {
		"SELECT c.apply_deadline, c.tenant_id, c.session_id, c.command_id, c.state, c.revision, c.claim_epoch,"
		" c.claim_expires_at, c.attempt_id FROM reconcile.session_command c"
		" WHERE c.shard OPERATOR(pg_catalog.=) $1 AND " OPEN
		" AND c.apply_deadline OPERATOR(pg_catalog.<=) $2"
		" AND ROW(c.apply_deadline, c.tenant_id, c.session_id, c.command_id) OPERATOR(pg_catalog.>) ROW($3, $4, $5, $6)"
		" ORDER BY c.apply_deadline, c.tenant_id, c.session_id, c.command_id LIMIT $7",
		7, {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_FIRST] = {
		"SELECT pg_catalog.min(f.apply_deadline) FROM pg_catalog.generate_series(0, $1 OPERATOR(pg_catalog.-) 1) s (shard),"
		" LATERAL (SELECT c.apply_deadline FROM reconcile.session_command c"
		" WHERE c.shard OPERATOR(pg_catalog.=) s.shard AND " OPEN " AND c.apply_deadline OPERATOR(pg_catalog.>) $2"
		" ORDER BY c.apply_deadline LIMIT 1) f",
		2, {INT4OID, TIMESTAMPTZOID}
	},
	[PLAN_LAST] = {
		"SELECT c.apply_deadline FROM reconcile.session_command c"
		" WHERE c.shard OPERATOR(pg_catalog.=) $1 AND " OPEN " ORDER BY c.apply_deadline DESC LIMIT 1",
		1, {INT4OID}
	}
};

/* ----------------------------------------------------------------
 * Pages
 * ----------------------------------------------------------------
 */

static void
command_from_row(int row, MemoryContext context, DueCommand *command)
{
	bool		isnull;
	Datum		value;

	command->apply_deadline = DatumGetTimestampTz(sql_value(row, 1, NULL));
	command->tenant_id = sql_text(row, 2, context);
	command->session_id = sql_text(row, 3, context);
	command->command_id = sql_text(row, 4, context);
	command->state = sql_text(row, 5, context);
	command->revision = DatumGetInt64(sql_value(row, 6, NULL));
	value = sql_value(row, 7, &isnull);
	command->claim_epoch = isnull ? 0 : DatumGetInt64(value);
	value = sql_value(row, 8, &isnull);
	command->claim_expires_at = isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
	command->attempt_id = sql_text(row, 9, context);
}

int
session_due_page(int shard, TimestampTz bound, const DueCommand *after, int limit, DueCommand **commands)
{
	SqlScope	scope;
	Datum		values[7];
	int			n;

	values[0] = Int32GetDatum(shard);
	values[1] = TimestampTzGetDatum(bound);
	values[2] = TimestampTzGetDatum(after->apply_deadline);
	values[3] = CStringGetTextDatum(after->tenant_id);
	values[4] = CStringGetTextDatum(after->session_id);
	values[5] = CStringGetTextDatum(after->command_id);
	values[6] = Int32GetDatum(limit);
	sql_begin(&scope);
	n = (int) sql_run(&plans[PLAN_PAGE], values, NULL);
	*commands = MemoryContextAlloc(scope.outer, sizeof(DueCommand) * Max(n, 1));
	for (int i = 0; i < n; i++)
		command_from_row(i, scope.outer, &(*commands)[i]);
	sql_end(&scope);
	return n;
}

void
session_due_head(DueCommand *head)
{
	memset(head, 0, sizeof(*head));
	head->apply_deadline = DT_NOBEGIN;
	head->tenant_id = head->session_id = head->command_id = "";
}

/* Of the first row of a plan. */
TimestampTz
session_due_first(int shards, TimestampTz after)
{
	Datum		values[2] = {Int32GetDatum(shards), TimestampTzGetDatum(after)};

	return sql_instant(&plans[PLAN_FIRST], values, DT_NOEND);
}

TimestampTz
session_due_last(int shard)
{
	Datum		value = Int32GetDatum(shard);

	return sql_instant(&plans[PLAN_LAST], &value, DT_NOBEGIN);
}

/* ----------------------------------------------------------------
 * due_session_commands()
 * ----------------------------------------------------------------
 */

/* Where a list of what is due in a shard has come to; the bound is that of its beginning. */
typedef struct DuePosition
{
	int			shard;
	TimestampTz bound;
	DueCommand	last;
} DuePosition;

static char *
hex_text(const char *text)
{
	char	   *digits = palloc(2 * strlen(text) + 1);

	digits[hex_encode(text, strlen(text), digits)] = '\0';
	return digits;
}

static char *
position_text(const DuePosition *position)
{
	return psprintf("%d." INT64_FORMAT "." INT64_FORMAT ".%s.%s.%s", position->shard, position->bound,
					position->last.apply_deadline, hex_text(position->last.tenant_id),
					hex_text(position->last.session_id), hex_text(position->last.command_id));
}

/* NULL: those are not digits in pairs. */
static char *
unhex_text(const char *digits)
{
	size_t		length = strlen(digits);
	char	   *text;

	if (length == 0 || length % 2 != 0 || strspn(digits, "0123456789abcdef") != length)
		return NULL;
	text = palloc(length / 2 + 1);
	text[hex_decode(digits, length, text)] = '\0';
	return text;
}

static bool
parse_position(char *value, DuePosition *position)
{
	char	   *parts[6];
	char	   *rest = value;
	char	   *part;
	int			n = 0;

	while ((part = strsep(&rest, ".")) != NULL)
	{
		if (n == lengthof(parts))
			return false;
		parts[n++] = part;
	}
	if (n != lengthof(parts))
		return false;
	position->shard = (int) strtoi64(parts[0], NULL, 10);
	position->bound = strtoi64(parts[1], NULL, 10);
	position->last.apply_deadline = strtoi64(parts[2], NULL, 10);
	position->last.tenant_id = unhex_text(parts[3]);
	position->last.session_id = unhex_text(parts[4]);
	position->last.command_id = unhex_text(parts[5]);
	return position->last.tenant_id != NULL && position->last.session_id != NULL && position->last.command_id != NULL;
}

static void
position_field(FunctionCallInfo fcinfo, int n, int shard, DuePosition *position)
{
	static const char *const hint = "It is the position of a row of the same shard that was returned before.";
	char	   *value = text_to_cstring(PG_GETARG_TEXT_PP(n));

	/* whatever is read another way than it was written was never given out */
	if (!parse_position(pstrdup(value), position) || strcmp(value, position_text(position)) != 0)
		field_invalid("after", "is not a position", hint);
	if (position->shard != shard)
		field_invalid("after", "is of another shard", hint);
}

PG_FUNCTION_INFO_V1(reconcile_due_session_commands);
Datum
reconcile_due_session_commands(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	DuePosition position = {0};
	PlacementSettings settings;
	DueCommand *commands;
	TimestampTz now;
	int			max;
	int			n;

	session_due_head(&position.last);
	if (PG_ARGISNULL(0))
		field_null("shard");
	position.shard = PG_GETARG_INT32(0);
	if (PG_ARGISNULL(1) == PG_ARGISNULL(2))
		field_invalid("within", PG_ARGISNULL(1) ? "must be given" : "must not be given",
					  "A list begins with an interval from now, and goes on after a position: one of them.");
	max = page_field(fcinfo, 3);
	access_require_all(CAP_PLACE);
	/* where there is no command yet, their number is not fixed by a look */
	placement_settings(&settings);
	if (position.shard < 0 || position.shard >= settings.control_shards)
		field_invalid("shard", "is out of range", "It is from 0 on, below reconcile.control_shards().");
	if (PG_ARGISNULL(1))
		position_field(fcinfo, 2, position.shard, &position);
	else
		position.bound = clock_add_ms(clock_now(), interval_field(fcinfo, 1, "within", true, DURATION_MAX_MS,
																  "It is 0 to 366 days."));

	InitMaterializedSRF(fcinfo, 0);
	n = session_due_page(position.shard, position.bound, &position.last, max, &commands);
	now = clock_now();
	for (int i = 0; i < n; i++)
	{
		const DueCommand *command = &commands[i];
		Datum		values[12];
		bool		nulls[12] = {false};

		position.last = *command;
		values[0] = CStringGetTextDatum(position_text(&position));
		values[1] = CStringGetTextDatum(command->tenant_id);
		values[2] = CStringGetTextDatum(command->session_id);
		values[3] = CStringGetTextDatum(command->command_id);
		values[4] = CStringGetTextDatum(command->state);
		values[5] = TimestampTzGetDatum(command->apply_deadline);
		values[6] = Int64GetDatum(command->revision);
		nulls[7] = nulls[8] = nulls[11] = command->claim_epoch == 0;
		values[7] = Int64GetDatum(command->claim_epoch);
		values[8] = TimestampTzGetDatum(command->claim_expires_at);
		values[9] = text_or_null(command->attempt_id, &nulls[9]);
		values[10] = remaining_datum(command->apply_deadline, now);
		values[11] = nulls[11] ? (Datum) 0 : remaining_datum(command->claim_expires_at, now);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * command.c
 *		The rows of reconcile.command: read, locked, minted, audited.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/install.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/audit_chain.h"
#include "journal/authorize.h"
#include "journal/command.h"

enum
{
	PLAN_BY_KEY,
	PLAN_BY_ID,
	PLAN_ID_USED,
	PLAN_LOCK
};

static SqlPlan plans[] = {
	[PLAN_BY_KEY] = {
		"SELECT " COMMAND_COLUMNS " FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.idempotency_key OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_BY_ID] = {
		"SELECT " COMMAND_COLUMNS " FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_ID_USED] = {
		"SELECT EXISTS (SELECT FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.=) $2)"
		" OR EXISTS (SELECT FROM reconcile.command_tombstone t"
		" WHERE t.tenant_id OPERATOR(pg_catalog.=) $1 AND t.command_id OPERATOR(pg_catalog.=) $2)",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_LOCK] = {
		"SELECT " COMMAND_COLUMNS " FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) $1 AND c.command_id OPERATOR(pg_catalog.=) $2 FOR NO KEY UPDATE",
		2, {TEXTOID, TEXTOID}
	}
};

bool
command_try_lock_key(const char *tenant_id, const char *idempotency_key)
{
	return lock_take(LOCK_KIND_COMMAND, tenant_id, idempotency_key, ExclusiveLock, false);
}

bool
command_lock_key(const char *tenant_id, const char *idempotency_key)
{
	if (command_try_lock_key(tenant_id, idempotency_key))
		return false;
	return lock_take(LOCK_KIND_COMMAND, tenant_id, idempotency_key, ExclusiveLock, true);
}

void
command_lock_id(const char *tenant_id, const char *command_id)
{
	/* no key has such a character */
	(void) command_lock_key(tenant_id, psprintf("\001%s", command_id));
}

static TimestampTz
get_time(int n, int column)
{
	bool		isnull;
	Datum		value = sql_value(n, column, &isnull);

	return isnull ? DT_NOBEGIN : DatumGetTimestampTz(value);
}

void
command_from_row(int n, MemoryContext context, Command *command)
{
	bool		isnull;
	Datum		value;
	Jsonb	   *options;
	char	   *status;
	int			column = 0;

	command->tenant_id = sql_text(n, ++column, context);
	command->idempotency_key = sql_text(n, ++column, context);
	command->command_id = sql_text(n, ++column, context);
	(void) audit_hash_copy(sql_value(n, ++column, NULL), command->fingerprint);
	command->action = sql_text(n, ++column, context);
	command->target_kind = sql_text(n, ++column, context);
	command->target_name = sql_text(n, ++column, context);
	command->reason = sql_text(n, ++column, context);
	options = DatumGetJsonbP(sql_value(n, ++column, NULL));
	command->options = MemoryContextAlloc(context, VARSIZE(options));
	memcpy(command->options, options, VARSIZE(options));
	command->actor = sql_text(n, ++column, context);
	command->authentication_method = sql_text(n, ++column, context);
	command->deadline = get_time(n, ++column);
	status = TextDatumGetCString(sql_value(n, ++column, NULL));
	if (!command_status_find(status, &command->status))
		elog(ERROR, "unknown status \"%s\"", status);
	command->failure = sql_text(n, ++column, context);
	value = sql_value(n, ++column, &isnull);
	command->desired_revision = isnull ? -1 : DatumGetInt64(value);
	command->claim_token = sql_text(n, ++column, context);
	command->claim_expires_at = get_time(n, ++column);
	value = sql_value(n, ++column, &isnull);
	command->claim_xid = isnull ? InvalidFullTransactionId : DatumGetFullTransactionId(value);
	command->worker_id = sql_text(n, ++column, context);
	command->protocol = sql_text(n, ++column, context);
	value = sql_value(n, ++column, &isnull);
	command->capability_available = isnull ? -1 : DatumGetBool(value);
	command->worker_completed_at = get_time(n, ++column);
}

static bool
read_one(int plan, const char *tenant_id, const char *id, Command *command)
{
	SqlScope	scope;
	Datum		values[2];
	bool		found;

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(id);
	sql_begin(&scope);
	found = sql_run_latest(&plans[plan], values, NULL) > 0;
	if (found)
		command_from_row(0, scope.outer, command);
	sql_end(&scope);
	return found;
}

bool
command_id_is_used(const char *tenant_id, const char *command_id)
{
	Datum		values[2];

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = CStringGetTextDatum(command_id);
	return DatumGetBool(sql_ask(&plans[PLAN_ID_USED], values));
}

bool
command_read_by_key(const char *tenant_id, const char *idempotency_key, Command *command)
{
	return read_one(PLAN_BY_KEY, tenant_id, idempotency_key, command);
}

bool
command_read(const char *tenant_id, const char *command_id, Command *command)
{
	return read_one(PLAN_BY_ID, tenant_id, command_id, command);
}

bool
command_lock(const char *tenant_id, const char *command_id, Command *command)
{
	return read_one(PLAN_LOCK, tenant_id, command_id, command);
}

Jsonb *
command_terms_jsonb(const CommandTerms *terms)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_text(&build, "mode", terms->mode);
	jsonb_add_bool(&build, "confirmed", terms->confirmed);
	jsonb_add_text(&build, "capability", terms->capability);
	if (terms->requested_at != DT_NOBEGIN)
		jsonb_add_time(&build, "requested_at", terms->requested_at);
	jsonb_add_time(&build, "deadline", terms->deadline);
	if (terms->desired_revision >= 0)
		jsonb_add_int(&build, "desired_revision", terms->desired_revision);
	return jsonb_end(&build);
}

/* Options are noted once: by their fingerprint it is known which they were. */
static void
audit(const Command *command, const char *event, const char *reason, const Jsonb *options, const Jsonb *detail,
	  TimestampTz at)
{
	AuditEvent	noted = {
		.tenant_id = command->tenant_id,
		.event = event,
		.at = at,
		.command_id = command->command_id,
		.idempotency_key = command->idempotency_key,
		.actor = command->actor,
		.authentication_method = command->authentication_method,
		.action = command->action,
		.target_kind = command->target_kind,
		.target_name = command->target_name,
		.reason = reason,
		.options = options,
		.fingerprint = command->fingerprint,
		.failure = command->failure,
		.detail = detail
	};

	audit_note(&noted);
}

void
command_audit_envelope(const Command *command, const char *event, const Jsonb *detail, TimestampTz at)
{
	audit(command, event, command->reason, command->options, detail, at);
}

void
command_audit(const Command *command, const char *event, const char *reason, const Jsonb *detail, TimestampTz at)
{
	audit(command, event, reason, NULL, detail, at);
}

void
command_audit_denied(const char *tenant_id, const char *command_id, const char *step)
{
	AuditEvent	noted = {.tenant_id = tenant_id, .event = "denied", .at = clock_now()};
	JsonbBuild	build;

	if (!command_tenant_known(tenant_id))
	{
		audit_pass_over();
		return;
	}
	jsonb_begin(&build);
	jsonb_add_text(&build, "step", step);
	/* who may do nothing for the tenant writes no text of his into its audit */
	if (command_id != NULL && command_tenant_granted(tenant_id))
		jsonb_add_text(&build, "command_id", command_id);
	noted.detail = jsonb_end(&build);
	audit_note(&noted);
}

/*
 * 48 bits of the time in ms and 80 of chance, in the 32 digits of Crockford: 26 of
 * them, of which the first is of 3 bits.
 */
char *
command_mint_id(TimestampTz at)
{
	static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";
	uint64		ms = (at + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY) / 1000;
	uint8		bytes[16];
	char	   *id = palloc(27);

	for (int i = 0; i < 6; i++)
		bytes[i] = ms >> (8 * (5 - i));
	if (!pg_strong_random(&bytes[6], 10))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	for (int i = 0; i < 26; i++)
	{
		/* the bits of digit i are 5 * i - 2 and those after it */
		int			value = 0;

		for (int bit = 5 * i - 2; bit < 5 * i + 3; bit++)
			value = value << 1 | (bit < 0 ? 0 : bytes[bit / 8] >> (7 - bit % 8) & 1);
		id[i] = digits[value];
	}
	id[26] = '\0';
	return id;
}

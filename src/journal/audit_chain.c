/*
 * audit_chain.c
 *		The rows of reconcile.audit_event, and how each is hashed with the one before.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/plan.h"
#include "journal/audit.h"
#include "journal/audit_chain.h"

bytea *
audit_hash_datum(const uint8 *hash)
{
	bytea	   *value = palloc(VARHDRSZ + DIGEST_BYTES);

	SET_VARSIZE(value, VARHDRSZ + DIGEST_BYTES);
	memcpy(VARDATA(value), hash, DIGEST_BYTES);
	return value;
}

bool
audit_hash_copy(Datum value, uint8 *hash)
{
	bytea	   *bytes = DatumGetByteaPP(value);

	if (VARSIZE_ANY_EXHDR(bytes) != DIGEST_BYTES)
		return false;
	memcpy(hash, VARDATA_ANY(bytes), DIGEST_BYTES);
	return true;
}

static void
set_text(const char *text, Datum *value, char *null)
{
	*null = text == NULL ? 'n' : ' ';
	*value = text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
}

static void
set_jsonb(const Jsonb *jsonb, Datum *value, char *null)
{
	*null = jsonb == NULL ? 'n' : ' ';
	*value = PointerGetDatum(jsonb);
}

int
audit_row_values(const AuditRow *row, Datum *values, char *nulls)
{
	int			n = 0;

	memset(nulls, ' ', AUDIT_NCOLUMNS);
	values[n++] = CStringGetTextDatum(row->tenant_id);
	values[n++] = Int64GetDatum(row->sequence);
	values[n++] = CStringGetTextDatum(row->event);
	values[n++] = TimestampTzGetDatum(row->happened_at);
	set_text(row->command_id, &values[n], &nulls[n]);
	n++;
	set_text(row->idempotency_key, &values[n], &nulls[n]);
	n++;
	set_text(row->actor, &values[n], &nulls[n]);
	n++;
	values[n++] = DirectFunctionCall1(namein, CStringGetDatum(row->role_name));
	values[n++] = DirectFunctionCall1(namein, CStringGetDatum(row->session_role));
	set_text(row->authentication_method, &values[n], &nulls[n]);
	n++;
	set_text(row->action, &values[n], &nulls[n]);
	n++;
	set_text(row->target_kind, &values[n], &nulls[n]);
	n++;
	set_text(row->target_name, &values[n], &nulls[n]);
	n++;
	set_text(row->reason, &values[n], &nulls[n]);
	n++;
	set_jsonb(row->options, &values[n], &nulls[n]);
	n++;
	nulls[n] = row->fingerprint == NULL ? 'n' : ' ';
	values[n++] = row->fingerprint == NULL ? (Datum) 0 : PointerGetDatum(audit_hash_datum(row->fingerprint));
	set_text(row->failure, &values[n], &nulls[n]);
	n++;
	set_jsonb(row->detail, &values[n], &nulls[n]);
	n++;
	values[n++] = CStringGetTextDatum(row->home);
	values[n++] = Int16GetDatum(row->hash_version);
	return n;
}

static Jsonb *
get_jsonb(int n, int column)
{
	bool		isnull;
	Datum		value = sql_value(n, column, &isnull);

	return isnull ? NULL : DatumGetJsonbP(value);
}

void
audit_row_read(int n, AuditRow *row)
{
	bool		isnull;
	Datum		value;
	int			column = 0;

	row->tenant_id = sql_text(n, ++column, CurrentMemoryContext);
	row->sequence = DatumGetInt64(sql_value(n, ++column, NULL));
	row->event = sql_text(n, ++column, CurrentMemoryContext);
	row->happened_at = DatumGetTimestampTz(sql_value(n, ++column, NULL));
	row->command_id = sql_text(n, ++column, CurrentMemoryContext);
	row->idempotency_key = sql_text(n, ++column, CurrentMemoryContext);
	row->actor = sql_text(n, ++column, CurrentMemoryContext);
	row->role_name = pstrdup(NameStr(*DatumGetName(sql_value(n, ++column, NULL))));
	row->session_role = pstrdup(NameStr(*DatumGetName(sql_value(n, ++column, NULL))));
	row->authentication_method = sql_text(n, ++column, CurrentMemoryContext);
	row->action = sql_text(n, ++column, CurrentMemoryContext);
	row->target_kind = sql_text(n, ++column, CurrentMemoryContext);
	row->target_name = sql_text(n, ++column, CurrentMemoryContext);
	row->reason = sql_text(n, ++column, CurrentMemoryContext);
	row->options = get_jsonb(n, ++column);
	value = sql_value(n, ++column, &isnull);
	row->fingerprint = NULL;
	if (!isnull)
	{
		row->fingerprint = palloc0(DIGEST_BYTES);
		(void) audit_hash_copy(value, row->fingerprint);
	}
	row->failure = sql_text(n, ++column, CurrentMemoryContext);
	row->detail = get_jsonb(n, ++column);
	row->home = sql_text(n, ++column, CurrentMemoryContext);
	row->hash_version = DatumGetInt16(sql_value(n, ++column, NULL));
	if (!audit_hash_copy(sql_value(n, ++column, NULL), row->hash))
		memset(row->hash, 0, DIGEST_BYTES);
}

static void
add_jsonb(Digest *digest, Jsonb *jsonb)
{
	digest_text(digest, jsonb == NULL ? NULL : JsonbToCString(NULL, &jsonb->root, VARSIZE(jsonb)));
}

void
audit_row_hash(const AuditRow *row, const uint8 *before, uint8 *hash)
{
	Digest	   *digest = digest_begin("reconcile/audit", row->hash_version);

	digest_bytes(digest, before, DIGEST_BYTES);
	digest_text(digest, row->tenant_id);
	digest_int(digest, row->sequence);
	digest_text(digest, row->event);
	digest_int(digest, row->happened_at);
	digest_text(digest, row->command_id);
	digest_text(digest, row->idempotency_key);
	digest_text(digest, row->actor);
	digest_text(digest, row->role_name);
	digest_text(digest, row->session_role);
	digest_text(digest, row->authentication_method);
	digest_text(digest, row->action);
	digest_text(digest, row->target_kind);
	digest_text(digest, row->target_name);
	digest_text(digest, row->reason);
	add_jsonb(digest, row->options);
	if (row->fingerprint != NULL)
		digest_bytes(digest, row->fingerprint, DIGEST_BYTES);
	else
		digest_text(digest, NULL);
	digest_text(digest, row->failure);
	add_jsonb(digest, row->detail);
	digest_text(digest, row->home);
	digest_end(digest, hash);
}

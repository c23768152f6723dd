/*
 * ranking.c
 *		The hosts of a target, those with most room first.
 *
 * The order is that of an index, ties by the id descending, and a page reads no more rows
 * than it has: so those that are over are in it, until a sweep takes them out.  A host that
 * is not registered, or whose role is gone, is in none: nobody would answer.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/digest.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/host.h"

#define LEFT	"t.capacity OPERATOR(pg_catalog.-) t.reserved"

/* That it is registered is no join, before which the page would be sorted. */
static SqlPlan plan_rank = {
	"SELECT t.host_id, t.host_generation, t.revision, t.observed_at, t.expires_at, t.endpoint, t.isolation_class,"
	" t.accepting, t.capacity, t.reserved, t.capabilities FROM reconcile.host_target t"
	" WHERE t.agent_id OPERATOR(pg_catalog.=) $1 AND t.runtime_compatibility_id OPERATOR(pg_catalog.=) $2"
	" AND t.placement OPERATOR(pg_catalog.=) $3 AND t.accepting AND t.expires_at IS NOT NULL"
	" AND ROW(" LEFT ", t.host_id) OPERATOR(pg_catalog.<) ROW($4, $5)"
	" AND (SELECT " HOST_ACTS("t") ")"
	" ORDER BY (" LEFT ") DESC, t.host_id DESC LIMIT $6",
	6, {TEXTOID, TEXTOID, TEXTOID, INT4OID, TEXTOID, INT4OID}
};

/* A row of it, copied to the context. */
static void
target_from_row(int row, MemoryContext context, const TargetKey *key, HostTarget *target)
{
	Datum	   *capabilities;
	int			n;

	target->key = *key;
	target->host_id = MemoryContextStrdup(context, TextDatumGetCString(sql_value(row, 1, NULL)));
	target->host_generation = DatumGetInt64(sql_value(row, 2, NULL));
	target->revision = DatumGetInt64(sql_value(row, 3, NULL));
	target->observed_at = DatumGetTimestampTz(sql_value(row, 4, NULL));
	target->expires_at = DatumGetTimestampTz(sql_value(row, 5, NULL));
	target->endpoint = MemoryContextStrdup(context, TextDatumGetCString(sql_value(row, 6, NULL)));
	target->isolation_class = MemoryContextStrdup(context, TextDatumGetCString(sql_value(row, 7, NULL)));
	target->accepting = DatumGetBool(sql_value(row, 8, NULL));
	target->capacity = DatumGetInt32(sql_value(row, 9, NULL));
	target->reserved = DatumGetInt32(sql_value(row, 10, NULL));
	deconstruct_array(DatumGetArrayTypeP(sql_value(row, 11, NULL)), TEXTOID, -1, false, TYPALIGN_INT,
					  &capabilities, NULL, &n);
	target->capabilities = MemoryContextAlloc(context, sizeof(char *) * Max(n, 1));
	target->ncapabilities = n;
	for (int i = 0; i < n; i++)
		target->capabilities[i] = MemoryContextStrdup(context, TextDatumGetCString(capabilities[i]));
}

int
host_candidates(const TargetKey *key, const RankPlace *after, int max, HostTarget **targets)
{
	SqlScope	scope;
	Datum		values[6];
	int			n;

	target_key_values(key, values);
	/* nothing ranks above it */
	values[3] = Int32GetDatum(after == NULL ? PG_INT32_MAX : after->capacity);
	values[4] = CStringGetTextDatum(after == NULL ? "" : after->host_id);
	values[5] = Int32GetDatum(max);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plan_rank, values, NULL);
	*targets = MemoryContextAlloc(scope.outer, sizeof(HostTarget) * Max(n, 1));
	for (int i = 0; i < n; i++)
		target_from_row(i, scope.outer, key, &(*targets)[i]);
	sql_end(&scope);
	return n;
}

/* ----------------------------------------------------------------
 * Pages of it, for others
 * ----------------------------------------------------------------
 */

/* By it a position is known to be of this target. */
static char *
target_mark(const TargetKey *key)
{
	Digest	   *digest = digest_begin("host-position", 1);
	uint8		bytes[DIGEST_BYTES];
	char	   *mark = palloc0(17);

	digest_text(digest, key->agent_id);
	digest_text(digest, key->runtime_compatibility_id);
	digest_text(digest, key->placement);
	digest_end(digest, bytes);
	hex_encode((const char *) bytes, 8, mark);
	return mark;
}

/* mark "/" capacity "/" host_id; false: it is no position of this target. */
static bool
position_read(char *value, const TargetKey *key, RankPlace *place)
{
	const char *mark = target_mark(key);
	size_t		length = strlen(mark);
	char	   *end;
	long		capacity;

	if (strncmp(value, mark, length) != 0 || value[length] != '/')
		return false;
	errno = 0;
	capacity = strtol(value + length + 1, &end, 10);
	place->capacity = (int) capacity;
	place->host_id = end + 1;
	return errno == 0 && *end == '/' && end[1] != '\0' && capacity >= PG_INT32_MIN && capacity <= PG_INT32_MAX;
}

PG_FUNCTION_INFO_V1(reconcile_compatible_hosts);
Datum
reconcile_compatible_hosts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	TargetKey	key;
	RankPlace	after;
	HostTarget *targets;
	TimestampTz now;
	const char *mark;
	int			max;
	int			n;

	target_key_args(fcinfo, 0, &key);
	max = page_field(fcinfo, 3);
	if (!PG_ARGISNULL(4) && !position_read(text_to_cstring(PG_GETARG_TEXT_PP(4)), &key, &after))
		field_invalid("after", "is not a position in this target's ranking",
					  "It is the position of a row of the last page.");
	access_require_all(CAP_PLACE);

	n = host_candidates(&key, PG_ARGISNULL(4) ? NULL : &after, max, &targets);
	now = clock_now();
	mark = target_mark(&key);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		HostTarget *target = &targets[i];
		int			left = target->capacity - target->reserved;
		bool		live = now < target->expires_at;
		Datum		values[17] = {0};
		bool		nulls[17] = {false};

		values[0] = CStringGetTextDatum(live ? "live" : "lapsed");
		values[1] = CStringGetTextDatum(target->host_id);
		values[2] = Int64GetDatum(target->host_generation);
		values[3] = CStringGetTextDatum(key.agent_id);
		values[4] = CStringGetTextDatum(key.runtime_compatibility_id);
		values[5] = CStringGetTextDatum(key.placement);
		values[6] = CStringGetTextDatum(target->endpoint);
		values[7] = CStringGetTextDatum(target->isolation_class);
		values[8] = BoolGetDatum(target->accepting);
		values[9] = Int32GetDatum(Max(left, 0));
		values[10] = Int32GetDatum(target->capacity);
		values[11] = capabilities_datum(target->capabilities, target->ncapabilities, "capabilities");
		values[12] = TimestampTzGetDatum(target->observed_at);
		values[13] = TimestampTzGetDatum(target->expires_at);
		values[14] = IntervalPGetDatum(duration_interval(Max(target->expires_at - now, 0) / 1000));
		values[15] = CStringGetTextDatum(psprintf("%s/%d/%s", mark, left, target->host_id));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

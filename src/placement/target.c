/*
 * target.c
 *		What hosts offer: a row for each host and target, as the host says it.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/timestamp.h"

#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/host.h"
#include "placement/marks.h"
#include "placement/room.h"

#define OFFER_OF_HOST \
	"o.agent_id OPERATOR(pg_catalog.=) $1 AND o.runtime_compatibility_id OPERATOR(pg_catalog.=) $2" \
	" AND o.placement OPERATOR(pg_catalog.=) $3 AND o.host_id OPERATOR(pg_catalog.=) $4"

enum
{
	PLAN_MAKE,
	PLAN_GENERATION,
	PLAN_HIGHEST_GENERATION,
	PLAN_FORGET_OFFERS,
	PLAN_COUNT_OFFERS,
	PLAN_PUBLISH,
	PLAN_WITHDRAW
};

static SqlPlan plans[] = {
	/* withdrawn until it is published, in this transaction */
	[PLAN_MAKE] = {
		"INSERT INTO reconcile.host_target (agent_id, runtime_compatibility_id, placement, host_id, host_generation,"
		" revision, observed_at, accepting, capacity, reserved) VALUES ($1, $2, $3, $4, $5, 1, $6, false, 0, 0)"
		" ON CONFLICT DO NOTHING",
		6, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_GENERATION] = {
		"SELECT t.host_generation, t.endpoint FROM reconcile.host_target t WHERE " OF_HOST,
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_HIGHEST_GENERATION] = {
		"SELECT COALESCE(pg_catalog.max(t.host_generation), 0) FROM reconcile.host_target t"
		" WHERE t.host_id OPERATOR(pg_catalog.=) $1",
		1, {TEXTOID}
	},
	/* those that the host takes account of, that ended, or whose session it has not any more */
	[PLAN_FORGET_OFFERS] = {
		"UPDATE reconcile.session_offer o SET counted = false WHERE " OFFER_OF_HOST " AND o.counted"
		" AND o.state OPERATOR(pg_catalog.<>) 'offered'"
		" AND (o.state OPERATOR(pg_catalog.<>) 'accepted' OR o.offer_id OPERATOR(pg_catalog.<=) $5"
		" OR o.offer_id OPERATOR(pg_catalog.=) ANY ($6) OR NOT EXISTS (SELECT FROM reconcile.session_registration r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) o.tenant_id AND r.session_id OPERATOR(pg_catalog.=) o.session_id"
		" AND r.offer_id OPERATOR(pg_catalog.=) o.offer_id AND r.host_id IS NOT NULL"
		" AND r.expires_at OPERATOR(pg_catalog.>) $7))",
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8ARRAYOID, TIMESTAMPTZOID}
	},
	[PLAN_COUNT_OFFERS] = {
		"SELECT pg_catalog.count(*)::pg_catalog.int4 FROM reconcile.session_offer o WHERE " OFFER_OF_HOST " AND o.counted",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_PUBLISH] = {
		"UPDATE reconcile.host_target t SET host_generation = $5, revision = $6, observed_at = $7, endpoint = $8,"
		" isolation_class = $9, accepting = $10, capacity = $11, reserved = $12, seen_offer = $13, capabilities = $14,"
		" expires_at = $15 WHERE " OF_HOST,
		15, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, BOOLOID, INT4OID,
			INT4OID, INT8OID, TEXTARRAYOID, TIMESTAMPTZOID}
	},
	[PLAN_WITHDRAW] = {
		"UPDATE reconcile.host_target t SET host_generation = $5, revision = $6, observed_at = $7, endpoint = NULL,"
		" isolation_class = NULL, accepting = false, capacity = 0, capabilities = '{}', expires_at = NULL"
		" WHERE " OF_HOST,
		7, {TEXTOID, TEXTOID, TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID}
	}
};

static const char *const placements[] = {"pooled", "dedicated"};

#define PLACEMENT_HINT	"It is pooled or dedicated."

void
target_key_values(const TargetKey *key, Datum *values)
{
	values[0] = CStringGetTextDatum(key->agent_id);
	values[1] = CStringGetTextDatum(key->runtime_compatibility_id);
	values[2] = CStringGetTextDatum(key->placement);
}

/* ----------------------------------------------------------------
 * Checks
 * ----------------------------------------------------------------
 */

/* ws:// or wss://, a host, perhaps a port and a path: nothing that could carry a secret. */
static bool
endpoint_is_bare(const char *endpoint)
{
	const char *host = strncmp(endpoint, "ws://", 5) == 0 ? endpoint + 5 :
		strncmp(endpoint, "wss://", 6) == 0 ? endpoint + 6 : NULL;

	return host != NULL && host[0] != '\0' && strchr("/:", host[0]) == NULL && strpbrk(host, "@?#\\ ") == NULL;
}

void
endpoint_check(const char *endpoint, const char *field)
{
	identity_check(endpoint, field);
	if (!endpoint_is_bare(endpoint))
		field_invalid(field, "is not a bare ws or wss URL",
					  "It has a host, and no user, password, query or fragment: wss://host:port/path.");
}

void
target_check(const Advertisement *advertisement, const char *prefix)
{
	const TargetKey *key = &advertisement->key;
#define FIELD(name) psprintf("%s" name, prefix)

	identity_check(key->agent_id, FIELD("agent_id"));
	identity_check(key->runtime_compatibility_id, FIELD("runtime_compatibility_id"));
	if (strcmp(key->placement, "pooled") != 0 && strcmp(key->placement, "dedicated") != 0)
		field_invalid(FIELD("placement"), "is not one of its values", PLACEMENT_HINT);
	endpoint_check(advertisement->endpoint, FIELD("endpoint"));
	if (strcmp(advertisement->isolation_class, "cross_tenant_isolated") != 0 &&
		strcmp(advertisement->isolation_class, "tenant_exclusive") != 0)
		field_invalid(FIELD("isolation_class"), "is not one of its values",
					  "It is cross_tenant_isolated or tenant_exclusive.");
	if (advertisement->capacity < 0 || advertisement->capacity > CAPACITY_MAX)
		field_invalid(FIELD("available_capacity"), "is out of range", "It is 0 to 1,048,576.");
	if (strcmp(key->placement, "dedicated") == 0 && advertisement->capacity > 1)
		field_invalid(FIELD("available_capacity"), "is out of range", "A dedicated host has room for one session.");
#undef FIELD
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *) a, *(char *const *) b);
}

Datum
capabilities_datum(char **names, int n, const char *field)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(n, 1));
	int			distinct = 0;

	for (int i = 0; i < n; i++)
		identity_check(names[i], field);
	qsort(names, n, sizeof(char *), compare_names);
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
			elements[distinct++] = CStringGetTextDatum(names[i]);
	}
	return PointerGetDatum(construct_array(elements, distinct, TEXTOID, -1, false, TYPALIGN_INT));
}

/* ----------------------------------------------------------------
 * Publishing
 * ----------------------------------------------------------------
 */

/*
 * For how many who found none there is what it offers room?  Those that were told of what
 * it offered before need not have looked yet.
 */
static int
new_room(const LockedTarget *before, const Advertisement *said, int64 generation, int reserved, TimestampTz now)
{
	if (!said->accepting || said->capacity <= reserved)
		return 0;
	if (!target_has_room(before, now) || before->host_generation < generation ||
		before->isolated != (strcmp(said->isolation_class, "cross_tenant_isolated") == 0) ||
		!datumIsEqual(before->capabilities, said->capabilities, false, -1))
		return said->capacity - reserved;
	return Max(said->capacity - reserved - before->left, 0);
}

/* The row of what a host offers, made where there is none; it may be waited for. */
static void
lock_or_make(TargetWord *word, Datum *values, LockedTarget *row)
{
	if (target_lock(values, true, row))
		return;
	values[4] = Int64GetDatum(word->generation);
	values[5] = TimestampTzGetDatum(clock_now());
	sql_run_latest(&plans[PLAN_MAKE], values, NULL);
	if (!target_lock(values, true, row))
		elog(ERROR, "could not lock what host \"%s\" offers", word->host_id);
	/* one that was made here is at its first revision when it is published */
	if (row->expires_at == DT_NOBEGIN && row->revision == 1 && row->host_generation == word->generation)
		row->revision = 0;
}

/* The row is locked: "before". */
static void
write_word(TargetWord *word, LockedTarget *before)
{
	const Advertisement *said = word->advertisement;
	const SeenOffers *seen = word->seen;
	SqlScope	scope;
	Datum		values[15];
	char		nulls[15] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	TimestampTz now = clock_now();
	int			reserved;
	int			room;

	word->revision = before->revision;
	word->outcome = TARGET_GENERATION;
	if (word->generation < before->host_generation)
	{
		word->generation = before->host_generation;
		return;
	}

	sql_begin(&scope);
	target_key_values(&said->key, values);
	values[3] = CStringGetTextDatum(word->host_id);
	values[4] = Int64GetDatum(seen->up_to);
	values[5] = seen->listed;
	nulls[5] = seen->listed == (Datum) 0 ? 'n' : ' ';
	values[6] = TimestampTzGetDatum(now);
	sql_run_latest(&plans[PLAN_FORGET_OFFERS], values, nulls);
	nulls[5] = ' ';
	sql_run_latest(&plans[PLAN_COUNT_OFFERS], values, NULL);
	reserved = DatumGetInt32(sql_value(0, 1, NULL));

	word->outcome = TARGET_PUBLISHED;
	word->revision++;
	word->expires_at = clock_add_ms(now, said->ttl_ms);
	values[4] = Int64GetDatum(word->generation);
	values[5] = Int64GetDatum(word->revision);
	values[6] = TimestampTzGetDatum(now);
	values[7] = CStringGetTextDatum(said->endpoint);
	values[8] = CStringGetTextDatum(said->isolation_class);
	values[9] = BoolGetDatum(said->accepting);
	values[10] = Int32GetDatum(said->capacity);
	values[11] = Int32GetDatum(reserved);
	values[12] = Int64GetDatum(Max(before->seen_offer, seen->up_to));
	values[13] = said->capabilities;
	values[14] = TimestampTzGetDatum(word->expires_at);
	sql_run_latest(&plans[PLAN_PUBLISH], values, NULL);
	room = new_room(before, said, word->generation, reserved, now);
	sql_end(&scope);

	sweep_mark(SWEEP_HOST_TARGETS, word->expires_at);
	if (room > 0)
		host_room(&said->key, word->host_id, room);
}

/* False: the row is not there, or somebody has it, and is not to be waited for. */
static bool
publish(TargetWord *word, bool wait)
{
	SqlScope	scope;
	Datum		values[6];
	LockedTarget before;
	bool		locked = true;

	target_key_values(&word->advertisement->key, values);
	values[3] = CStringGetTextDatum(word->host_id);
	sql_begin(&scope);
	if (wait)
		lock_or_make(word, values, &before);
	else
		locked = target_lock(values, false, &before);
	if (locked)
	{
		MemoryContext context = MemoryContextSwitchTo(scope.outer);

		before.capabilities = datumCopy(before.capabilities, false, -1);
		MemoryContextSwitchTo(context);
	}
	sql_end(&scope);
	if (!locked)
		return false;
	/* whose the host is may have changed in that time */
	if (wait && !host_is_mine(word->host_id))
		word->outcome = TARGET_NOT_FOUND;
	else
		write_word(word, &before);
	return true;
}

void
target_publish(TargetWord *word)
{
	(void) publish(word, true);
}

static bool
take_turn(void *arg)
{
	return publish(arg, true);
}

bool
target_publish_soon(TargetWord *word, int wait_ms)
{
	/* of a thousand targets none needs a subtransaction but those that are busy, or new */
	return publish(word, false) || subxact_turn(take_turn, word, Max(wait_ms, 1));
}

int64
target_generation(const TargetKey *key, const char *host_id, char **endpoint)
{
	SqlScope	scope;
	Datum		values[4];
	int64		generation = 0;

	*endpoint = NULL;
	target_key_values(key, values);
	values[3] = CStringGetTextDatum(host_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_GENERATION], values, NULL) > 0)
	{
		bool		isnull;
		Datum		value = sql_value(0, 2, &isnull);

		generation = DatumGetInt64(sql_value(0, 1, NULL));
		if (!isnull)
			*endpoint = MemoryContextStrdup(scope.outer, TextDatumGetCString(value));
	}
	sql_end(&scope);
	return generation;
}

int64
host_highest_generation(const char *host_id)
{
	Datum		value = CStringGetTextDatum(host_id);

	return DatumGetInt64(sql_ask(&plans[PLAN_HIGHEST_GENERATION], &value));
}

void
target_key_args(FunctionCallInfo fcinfo, int first, TargetKey *key)
{
	key->agent_id = identity_field(fcinfo, first, "agent_id");
	key->runtime_compatibility_id = identity_field(fcinfo, first + 1, "runtime_compatibility_id");
	key->placement = placements[word_field(fcinfo, first + 2, "placement", placements, lengthof(placements), PLACEMENT_HINT)];
}

enum
{
	ARG_HOST_ID,
	ARG_HOST_GENERATION,
	ARG_AGENT_ID,
	ARG_RUNTIME,
	ARG_PLACEMENT,
	ARG_ENDPOINT,
	ARG_ISOLATION_CLASS,
	ARG_ACCEPTING,
	ARG_AVAILABLE_CAPACITY,
	ARG_TTL,
	ARG_CAPABILITIES,
	ARG_SEEN_OFFER
};

static void
advertisement_args(FunctionCallInfo fcinfo, Advertisement *advertisement)
{
	Datum	   *capabilities;
	bool	   *nulls;
	char	  **names;
	int			n;

	target_key_args(fcinfo, ARG_AGENT_ID, &advertisement->key);
	advertisement->endpoint = identity_field(fcinfo, ARG_ENDPOINT, "endpoint");
	advertisement->isolation_class = identity_field(fcinfo, ARG_ISOLATION_CLASS, "isolation_class");
	if (PG_ARGISNULL(ARG_ACCEPTING))
		field_null("accepting");
	advertisement->accepting = PG_GETARG_BOOL(ARG_ACCEPTING);
	if (PG_ARGISNULL(ARG_AVAILABLE_CAPACITY))
		field_null("available_capacity");
	advertisement->capacity = PG_GETARG_INT32(ARG_AVAILABLE_CAPACITY);
	target_check(advertisement, "");
	advertisement->ttl_ms = interval_field(fcinfo, ARG_TTL, "ttl", false, TARGET_TTL_MAX_MS,
										   "It is more than 0 and at most 15 minutes.");
	if (PG_ARGISNULL(ARG_CAPABILITIES))
		field_null("capabilities");
	n = array_nulls_arg(fcinfo, ARG_CAPABILITIES, "capabilities", TEXTOID, CAPABILITIES_MAX, &capabilities, &nulls);
	names = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		if (nulls[i])
			field_null("capabilities");
		names[i] = TextDatumGetCString(capabilities[i]);
	}
	advertisement->capabilities = capabilities_datum(names, n, "capabilities");
}

PG_FUNCTION_INFO_V1(reconcile_publish_host_target);
Datum
reconcile_publish_host_target(PG_FUNCTION_ARGS)
{
	Advertisement advertisement;
	SeenOffers	seen = {0};
	TargetWord word = {.advertisement = &advertisement, .seen = &seen};
	Datum		values[5] = {0};
	bool		nulls[5] = {false, true, true, true, true};

	require_writable("publish_host_target");
	require_read_committed("publish_host_target");
	word.host_id = identity_field(fcinfo, ARG_HOST_ID, "host_id");
	word.generation = number_field(fcinfo, ARG_HOST_GENERATION, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	advertisement_args(fcinfo, &advertisement);
	if (!PG_ARGISNULL(ARG_SEEN_OFFER))
		seen.up_to = number_field(fcinfo, ARG_SEEN_OFFER, "seen_offer", 0, PG_INT64_MAX, "It is at least 0.");

	/* nobody locks what is not his */
	word.outcome = TARGET_NOT_FOUND;
	if (host_is_mine(word.host_id))
		target_publish(&word);
	if (word.outcome == TARGET_NOT_FOUND)
		values[0] = CStringGetTextDatum("not_found");
	else
	{
		bool		published = word.outcome == TARGET_PUBLISHED;

		values[0] = CStringGetTextDatum(published ? "published" : "generation");
		values[1] = Int64GetDatum(word.generation);
		values[2] = Int64GetDatum(word.revision);
		values[3] = TimestampTzGetDatum(word.expires_at);
		nulls[1] = nulls[2] = false;
		nulls[3] = nulls[4] = !published;
		if (published)
			values[4] = IntervalPGetDatum(duration_interval(Max(word.expires_at - clock_now(), 0) / 1000));
	}
	return return_one_row(fcinfo, values, nulls);
}

/* drained, already, generation, not_found; the row as it is then. */
static const char *
drain(const char *host_id, const TargetKey *key, int64 generation, LockedTarget *row)
{
	SqlScope	scope;
	Datum		values[7];
	bool		found;

	target_key_values(key, values);
	values[3] = CStringGetTextDatum(host_id);
	sql_begin(&scope);
	found = target_lock(values, true, row);
	sql_end(&scope);
	/* whose the host is may have changed in that time */
	if (!found || !host_is_mine(host_id))
		return "not_found";
	if (generation < row->host_generation)
		return "generation";
	if (row->expires_at == DT_NOBEGIN && generation == row->host_generation)
		return "already";
	row->host_generation = generation;
	row->revision++;
	values[4] = Int64GetDatum(row->host_generation);
	values[5] = Int64GetDatum(row->revision);
	values[6] = TimestampTzGetDatum(clock_now());
	sql_do(&plans[PLAN_WITHDRAW], values, NULL);
	host_leaves(host_id, key);
	return "drained";
}

PG_FUNCTION_INFO_V1(reconcile_drain_host_target);
Datum
reconcile_drain_host_target(PG_FUNCTION_ARGS)
{
	char	   *host_id;
	int64		generation;
	TargetKey	key;
	LockedTarget row;
	const char *outcome = "not_found";
	Datum		values[3] = {0};
	bool		nulls[3] = {false, true, true};

	require_writable("drain_host_target");
	require_read_committed("drain_host_target");
	host_id = identity_field(fcinfo, 0, "host_id");
	generation = number_field(fcinfo, 1, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	target_key_args(fcinfo, 2, &key);

	if (host_is_mine(host_id))
		outcome = drain(host_id, &key, generation, &row);
	values[0] = CStringGetTextDatum(outcome);
	if (strcmp(outcome, "not_found") != 0)
	{
		values[1] = Int64GetDatum(row.host_generation);
		values[2] = Int64GetDatum(row.revision);
		nulls[1] = nulls[2] = false;
	}
	return return_one_row(fcinfo, values, nulls);
}

/*
 * identity.c
 *		Names that are functions of what they name, and the shards of sessions.
 *
 * Each is of a SHA-256 over fields that are framed by their lengths, so that no two
 * lists of fields are alike; how a length is written differs, as it does in the
 * programs that the names are shared with.
 */
#include "postgres.h"

#include "port/pg_bswap.h"
#include "utils/builtins.h"

#include "journal/digest.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/session.h"
#include "placement/settings.h"

#define WORKLOAD_PREFIX			"lrw-"
#define WORKLOAD_DIGEST_BYTES	28
#define PLACEMENT_PREFIX		"placement-"
#define REVIVE_PREFIX			"revive-"
#define ATTACH_DOMAIN			"placement-attach/v1"
#define SHARD_DOMAIN			"looprig/sessionstore/shard/v1"

static char *
hex_name(const char *prefix, const uint8 *bytes, int n)
{
	char	   *digits = palloc(2 * n + 1);

	digits[hex_encode((const char *) bytes, n, digits)] = '\0';
	return psprintf("%s%s", prefix, digits);
}

/* ----------------------------------------------------------------
 * Workloads: lengths of 8 bytes, the highest first
 * ----------------------------------------------------------------
 */

static void
add_framed8(Digest *digest, const char *field)
{
	digest_text(digest, field != NULL ? field : "");
}

static char *
workload_name(const SessionKey *key, const char *agent_id, const char *runtime, int64 generation)
{
	Digest	   *digest = digest_open();
	uint8		result[DIGEST_BYTES];

	add_framed8(digest, key->tenant_id);
	add_framed8(digest, key->session_id);
	add_framed8(digest, agent_id);
	add_framed8(digest, runtime);
	digest_int(digest, generation);
	digest_end(digest, result);
	return hex_name(WORKLOAD_PREFIX, result, WORKLOAD_DIGEST_BYTES);
}

char *
session_workload_name(const Session *session, int64 generation)
{
	return workload_name(&session->key, session->agent_id, session->desired.runtime_compatibility_id, generation);
}

/* ----------------------------------------------------------------
 * Wishes and attachments: lengths in decimal, with a zero byte behind
 * ----------------------------------------------------------------
 */

static void
add_decimal_bytes(Digest *digest, const void *bytes, size_t length)
{
	char		digits[24];
	int			n = snprintf(digits, sizeof(digits), "%zu", length);

	digest_raw(digest, digits, n + 1);
	digest_raw(digest, bytes, length);
}

static void
add_decimal(Digest *digest, const char *field)
{
	add_decimal_bytes(digest, field != NULL ? field : "", field != NULL ? strlen(field) : 0);
}

/* What is not said is the same as what is empty, in both of them. */
static Digest *
begin_wish(const SessionKey *key, const SessionDesired *desired)
{
	Digest	   *digest = digest_open();
	const bytea *workload = desired->workload;

	add_decimal(digest, key->tenant_id);
	add_decimal(digest, key->session_id);
	add_decimal(digest, desired->placement);
	add_decimal(digest, desired->runtime_compatibility_id);
	add_decimal(digest, desired->workload_version);
	if (workload != NULL)
		add_decimal_bytes(digest, VARDATA_ANY(workload), VARSIZE_ANY_EXHDR(workload));
	else
		add_decimal(digest, NULL);
	return digest;
}

char *
session_desired_key(const SessionKey *key, const SessionDesired *desired)
{
	Digest	   *digest = begin_wish(key, desired);
	uint8		result[DIGEST_BYTES];

	digest_end(digest, result);
	return hex_name(PLACEMENT_PREFIX, result, DIGEST_BYTES);
}

char *
session_revive_key(const SessionKey *key, const SessionDesired *desired, int64 generation)
{
	Digest	   *digest = begin_wish(key, desired);
	uint8		result[DIGEST_BYTES];

	add_decimal(digest, psprintf(INT64_FORMAT, generation));
	digest_end(digest, result);
	return hex_name(REVIVE_PREFIX, result, DIGEST_BYTES);
}

char *
session_attach_key(const char *tenant_id, const char *session_id, const char *agent_id,
				   const char *runtime_compatibility_id, const char *mode, int64 generation)
{
	Digest	   *digest = digest_open();
	uint8		result[DIGEST_BYTES];

	add_decimal(digest, ATTACH_DOMAIN);
	add_decimal(digest, tenant_id);
	add_decimal(digest, session_id);
	add_decimal(digest, agent_id);
	add_decimal(digest, runtime_compatibility_id);
	add_decimal(digest, mode);
	add_decimal(digest, psprintf(INT64_FORMAT, generation));
	digest_end(digest, result);
	return hex_name("", result, DIGEST_BYTES);
}

/* ----------------------------------------------------------------
 * Shards: lengths of 4 bytes, the highest first
 * ----------------------------------------------------------------
 */

static void
add_framed4(Digest *digest, const char *field)
{
	uint32		length = pg_hton32((uint32) strlen(field));

	digest_raw(digest, &length, sizeof(length));
	digest_raw(digest, field, strlen(field));
}

int
placement_shard_of(const char *tenant_id, const char *session_id, int shards)
{
	Digest	   *digest = digest_open();
	uint8		result[DIGEST_BYTES];
	uint64		first;

	add_framed4(digest, SHARD_DOMAIN);
	add_framed4(digest, tenant_id);
	add_framed4(digest, session_id);
	digest_end(digest, result);
	memcpy(&first, result, sizeof(first));
	return (int) (pg_ntoh64(first) % (uint64) shards);
}

/* ----------------------------------------------------------------
 * As SQL calls them
 * ----------------------------------------------------------------
 */

#define GENERATION_HINT "It is that of a desired state, 1 or more."

PG_FUNCTION_INFO_V1(reconcile_workload_identity);
Datum
reconcile_workload_identity(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	char	   *agent_id;
	char	   *runtime;
	int64		generation;

	session_key_args(fcinfo, &key);
	agent_id = identity_field(fcinfo, 2, "agent_id");
	runtime = optional_field(fcinfo, 3, "runtime_compatibility_id");
	generation = number_field(fcinfo, 4, "generation", 1, PG_INT64_MAX, GENERATION_HINT);
	PG_RETURN_TEXT_P(cstring_to_text(workload_name(&key, agent_id, runtime, generation)));
}

PG_FUNCTION_INFO_V1(reconcile_placement_key);
Datum
reconcile_placement_key(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	SessionDesired desired;

	session_key_args(fcinfo, &key);
	session_desired_args(fcinfo, 2, 3, &desired);
	PG_RETURN_TEXT_P(cstring_to_text(session_desired_key(&key, &desired)));
}

PG_FUNCTION_INFO_V1(reconcile_revive_key);
Datum
reconcile_revive_key(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	SessionDesired desired;
	int64		generation;

	session_key_args(fcinfo, &key);
	session_desired_args(fcinfo, 2, 3, &desired);
	generation = number_field(fcinfo, 6, "generation", 1, PG_INT64_MAX, GENERATION_HINT);
	PG_RETURN_TEXT_P(cstring_to_text(session_revive_key(&key, &desired, generation)));
}

PG_FUNCTION_INFO_V1(reconcile_control_shard_of);
Datum
reconcile_control_shard_of(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	int64		shards;

	session_key_args(fcinfo, &key);
	if (PG_ARGISNULL(2))
		field_null("shards");
	shards = PG_GETARG_INT32(2);
	if (shards < 1 || shards > 4096)
		field_invalid("shards", "is out of range", "It is 1 to 4,096, as reconcile.control_shards() tells.");
	PG_RETURN_INT32(placement_shard_of(key.tenant_id, key.session_id, (int) shards));
}

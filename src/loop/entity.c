/*
 * entity.c
 *		The rows of reconcile.entity.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "core/duration.h"
#include "core/plan.h"
#include "lease/lease.h"
#include "loop/entity.h"

#define ERROR_TEXT_MAX		4096	/* bytes kept of an error's message */

#define CLAIMED_LOOK_MS		10000	/* at most, between two looks at an entity with a live claim */

#define ENTITY_COLUMNS \
	"e.failures, e.died_of, e.claim_epoch, e.claim_holder, e.claim_expires_at, e.claim_lease_epoch, e.claim_mark, e.claimed_at, e.crashes"
#define ENTITY_KEY \
	" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.=) $2"

/*
 * The same row, found from its newest version on.  Beside an old snapshot all that
 * it ever was is still in the index, mostly in the order of age: an index scan
 * backwards finds the row before it comes by the rest.  (An equality would be no
 * reason for an order.)
 */
#define ENTITY_NEWEST \
	" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.>=) $2" \
	" AND e.entity_id OPERATOR(pg_catalog.<=) $2 ORDER BY e.entity_id DESC LIMIT 1"
#define ENTITY_PLACE \
	" WHERE e.ctid OPERATOR(pg_catalog.=) (SELECT e.ctid FROM reconcile.entity e" ENTITY_NEWEST ")"

#define NO_CLAIM \
	" claim_epoch = NULL, claim_holder = NULL, claimed_at = NULL, claim_expires_at = NULL," \
	" claim_lease_epoch = NULL, claim_mark = NULL"

enum
{
	PLAN_READ,
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_FAILED_AGAIN,
	PLAN_FAILED,
	PLAN_CLAIM,
	PLAN_UNCLAIM,
	PLAN_EXTEND,
	PLAN_DELETE
};

static SqlPlan plans[] = {
	[PLAN_READ] = {
		"SELECT " ENTITY_COLUMNS " FROM reconcile.entity e" ENTITY_NEWEST, 2, {TEXTOID, TEXTOID}
	},
	[PLAN_LOCK] = {
		"SELECT " ENTITY_COLUMNS " FROM reconcile.entity e" ENTITY_NEWEST " FOR UPDATE", 2, {TEXTOID, TEXTOID}
	},
	[PLAN_TRY_LOCK] = {
		"SELECT " ENTITY_COLUMNS " FROM reconcile.entity e" ENTITY_NEWEST " FOR UPDATE SKIP LOCKED",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_FAILED_AGAIN] = {
		"UPDATE reconcile.entity AS e SET failures = $3, died_of = $4, last_sqlstate = $5, last_error = $6, last_failed_at = $7,"
		" crashes = $8," NO_CLAIM ENTITY_PLACE,
		8, {TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_FAILED] = {
		"INSERT INTO reconcile.entity AS e (loop_name, entity_id, failures, died_of, last_sqlstate, last_error, last_failed_at, crashes)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
		" ON CONFLICT (loop_name, entity_id) DO UPDATE SET failures = EXCLUDED.failures, died_of = EXCLUDED.died_of,"
		" last_sqlstate = EXCLUDED.last_sqlstate, last_error = EXCLUDED.last_error, last_failed_at = EXCLUDED.last_failed_at,"
		" crashes = EXCLUDED.crashes," NO_CLAIM,
		8, {TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_CLAIM] = {
		"INSERT INTO reconcile.entity AS e (loop_name, entity_id, failures, claim_epoch, claim_holder, claimed_at,"
		" claim_expires_at, claim_lease_epoch, claim_mark)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
		" ON CONFLICT (loop_name, entity_id) DO UPDATE SET failures = EXCLUDED.failures, died_of = NULL,"
		" claim_epoch = EXCLUDED.claim_epoch, claim_holder = EXCLUDED.claim_holder, claimed_at = EXCLUDED.claimed_at,"
		" claim_expires_at = EXCLUDED.claim_expires_at, claim_lease_epoch = EXCLUDED.claim_lease_epoch,"
		" claim_mark = EXCLUDED.claim_mark",
		9, {TEXTOID, TEXTOID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID}
	},
	[PLAN_UNCLAIM] = {
		"UPDATE reconcile.entity AS e SET failures = $3," NO_CLAIM ENTITY_KEY, 3, {TEXTOID, TEXTOID, INT4OID}
	},
	[PLAN_EXTEND] = {
		"UPDATE reconcile.entity AS e SET claim_expires_at = $3, claim_mark = $4" ENTITY_KEY,
		4, {TEXTOID, TEXTOID, TIMESTAMPTZOID, INT8OID}
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.entity e" ENTITY_KEY, 2, {TEXTOID, TEXTOID}
	}
};

/* A mark's place in one number, and back. */
static int64
place_pack(const MarkRef *mark)
{
	return ((int64) mark->segment << 48) | ((int64) mark->block << 16) | mark->offset;
}

static void
place_unpack(int64 place, MarkRef *mark)
{
	mark->segment = (uint8) (place >> 48);
	mark->block = (BlockNumber) (place >> 16);
	mark->offset = (OffsetNumber) (place & 0xffff);
}

static void
entity_key(const char *loop_name, const char *entity_id, Datum *values)
{
	values[0] = CStringGetTextDatum(loop_name);
	values[1] = CStringGetTextDatum(entity_id);
}

static void
claim_from_row(EntityClaim *claim)
{
	bool		isnull;
	Datum		value;

	claim->epoch = DatumGetInt64(sql_value(0, 3, NULL));
	strlcpy(claim->holder_id, TextDatumGetCString(sql_value(0, 4, NULL)), sizeof(claim->holder_id));
	claim->expires_at = DatumGetTimestampTz(sql_value(0, 5, NULL));
	value = sql_value(0, 6, &isnull);
	claim->lease_epoch = isnull ? 0 : DatumGetInt64(value);
	claim->claimed_at = DatumGetTimestampTz(sql_value(0, 8, NULL));
	claim->mark.number = claim->epoch;
	claim->mark.kind = MARK_CLAIM;
	place_unpack(DatumGetInt64(sql_value(0, 7, NULL)), &claim->mark);
}

static bool
read_by(int plan, const char *loop_name, const char *entity_id, Entity *entity)
{
	SqlScope	scope;
	Datum		values[2];

	memset(entity, 0, sizeof(*entity));
	entity_key(loop_name, entity_id, values);
	sql_begin(&scope);
	if (sql_run_latest(&plans[plan], values, NULL) > 0)
	{
		bool		isnull;
		Datum		died_of = sql_value(0, 2, &isnull);

		entity->remembered = true;
		entity->failures = DatumGetInt32(sql_value(0, 1, NULL));
		entity->crashes = DatumGetInt32(sql_value(0, 9, NULL));
		entity->dead = !isnull;
		entity->dead_of_crash = !isnull && strcmp(TextDatumGetCString(died_of), "crash") == 0;
		(void) sql_value(0, 3, &isnull);
		entity->claimed = !isnull;
		if (entity->claimed)
			claim_from_row(&entity->claim);
	}
	sql_end(&scope);
	return entity->remembered;
}

void
entity_read(const char *loop_name, const char *entity_id, Entity *entity)
{
	(void) read_by(PLAN_READ, loop_name, entity_id, entity);
}

bool
entity_lock(const char *loop_name, const char *entity_id, bool wait, Entity *entity)
{
	return read_by(wait ? PLAN_LOCK : PLAN_TRY_LOCK, loop_name, entity_id, entity);
}

bool
entity_claim_live(const LoopRules *rules, const EntityClaim *claim, TimestampTz now)
{
	Lease		lease;

	if (now >= claim->expires_at)
		return false;
	if (rules->lease_ttl_ms <= 0)
		return true;
	return lease_read(rules->loop_name, &lease) && lease.epoch == claim->lease_epoch &&
		now < lease.expires_at;
}

TimestampTz
entity_claim_look_at(const EntityClaim *claim, TimestampTz now)
{
	return Min(claim->expires_at, clock_add_ms(now, CLAIMED_LOOK_MS));
}

void
entity_failed(const char *loop_name, const char *entity_id, int failures, int crashes,
			  const char *died_of, int sqlstate, const char *message)
{
	SqlScope	scope;
	Datum		values[8];
	char		nulls[8] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	const char *kept = message != NULL ? message : "";
	int			length = pg_mbcliplen(kept, strlen(kept), ERROR_TEXT_MAX);

	entity_key(loop_name, entity_id, values);
	values[2] = Int32GetDatum(failures);
	values[3] = died_of ? CStringGetTextDatum(died_of) : (Datum) 0;
	nulls[3] = died_of ? ' ' : 'n';
	values[4] = CStringGetTextDatum(unpack_sql_state(sqlstate));
	/* an error that came from outside may be in any encoding */
	values[5] = PointerGetDatum(cstring_to_text_with_len(kept,
														 pg_verify_mbstr(GetDatabaseEncoding(), kept, length, true) ? length : 0));
	values[6] = TimestampTzGetDatum(clock_now());
	values[7] = Int32GetDatum(crashes);
	sql_begin(&scope);
	/* most have a row; that there is none is for the unique index to say, which looks at every version */
	if (sql_run_latest(&plans[PLAN_FAILED_AGAIN], values, nulls) == 0)
		sql_run_latest(&plans[PLAN_FAILED], values, nulls);
	sql_end(&scope);
}

void
entity_claim(const char *loop_name, const char *entity_id, int failures, const EntityClaim *claim)
{
	SqlScope	scope;
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	entity_key(loop_name, entity_id, values);
	values[2] = Int32GetDatum(failures);
	values[3] = Int64GetDatum(claim->epoch);
	values[4] = CStringGetTextDatum(claim->holder_id);
	values[5] = TimestampTzGetDatum(clock_now());
	values[6] = TimestampTzGetDatum(claim->expires_at);
	values[7] = Int64GetDatum(claim->lease_epoch);
	nulls[7] = claim->lease_epoch > 0 ? ' ' : 'n';
	values[8] = Int64GetDatum(place_pack(&claim->mark));
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_CLAIM], values, nulls);
	sql_end(&scope);
}

void
entity_unclaim(const char *loop_name, const char *entity_id, int failures)
{
	SqlScope	scope;
	Datum		values[3];

	if (failures == 0)
	{
		(void) entity_delete(loop_name, entity_id);
		return;
	}
	entity_key(loop_name, entity_id, values);
	values[2] = Int32GetDatum(failures);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_UNCLAIM], values, NULL);
	sql_end(&scope);
}

void
entity_extend(const char *loop_name, const char *entity_id, const EntityClaim *claim)
{
	SqlScope	scope;
	Datum		values[4];

	entity_key(loop_name, entity_id, values);
	values[2] = TimestampTzGetDatum(claim->expires_at);
	values[3] = Int64GetDatum(place_pack(&claim->mark));
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_EXTEND], values, NULL);
	sql_end(&scope);
}

bool
entity_delete(const char *loop_name, const char *entity_id)
{
	SqlScope	scope;
	Datum		values[2];
	bool		remembered;

	entity_key(loop_name, entity_id, values);
	sql_begin(&scope);
	remembered = sql_run_latest(&plans[PLAN_DELETE], values, NULL) > 0;
	sql_end(&scope);
	return remembered;
}

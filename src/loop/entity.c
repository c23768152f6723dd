/*
 * entity.c
 *		The rows of reconcile.entity.
 *
 * Beside an old snapshot all that a row ever was stays, and so do its entries in
 * the index.  That must cost those who come later nothing:
 *
 * - a row is found from its newest version on, and written by its place;
 * - the index is not unique: a unique one looks at all entries of a key before it
 *   takes another.  A row is inserted under the run lock alone, by who has
 *   looked for it under that lock and found none;
 * - where nobody has anything to remember any more the row is deleted only if
 *   nobody can see what it was before; otherwise it stays, empty.  So a row comes
 *   and goes at most once beside one snapshot, and a look that finds none passes
 *   by what is left of one.
 *
 * Empty rows go with a later success, or by entity_sweep().
 */
#include "postgres.h"

#include "access/table.h"
#include "access/transam.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "mb/pg_wchar.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/install.h"
#include "core/plan.h"
#include "lease/lease.h"
#include "loop/entity.h"

#define ERROR_TEXT_MAX		4096	/* bytes kept of an error's message */

#define SWEEP_BLOCKS		64		/* what 2,000 runs leave, and more */

#define CLAIMED_LOOK_MS		10000	/* at most, between two looks at an entity with a live claim */

#define ENTITY_COLUMNS \
	"e.failures, e.died_of, e.claim_epoch, e.claim_holder, e.claim_expires_at, e.claim_lease_epoch, e.claim_mark, e.claimed_at, e.crashes, e.ctid, e.xmin"
#define ENTITY_KEY \
	" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.=) $2"

/*
 * The same row, found from its newest version on: the entries of a key are in the
 * order of their places, so mostly of their age.  (An equality would be no reason
 * for an order.)
 */
#define ENTITY_NEWEST \
	" WHERE e.loop_name OPERATOR(pg_catalog.=) $1 AND e.entity_id OPERATOR(pg_catalog.>=) $2" \
	" AND e.entity_id OPERATOR(pg_catalog.<=) $2 ORDER BY e.entity_id DESC LIMIT 1"
/* And by its place, which is another's if it is gone. */
#define ENTITY_PLACE	ENTITY_KEY " AND e.ctid OPERATOR(pg_catalog.=) $3"

#define NO_CLAIM \
	" claim_epoch = NULL, claim_holder = NULL, claimed_at = NULL, claim_expires_at = NULL," \
	" claim_lease_epoch = NULL, claim_mark = NULL"

enum
{
	PLAN_READ,
	PLAN_LOCK,
	PLAN_TRY_LOCK,
	PLAN_INSERT_FAILED,
	PLAN_FAILED,
	PLAN_INSERT_CLAIM,
	PLAN_CLAIM,
	PLAN_UNCLAIM,
	PLAN_EXTEND,
	PLAN_EMPTY,
	PLAN_DELETE,
	PLAN_FORGET,
	PLAN_SWEEP
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
	[PLAN_INSERT_FAILED] = {
		"INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of, last_sqlstate, last_error, last_failed_at, crashes)"
		" VALUES ($1, $2, $4, $5, $6, $7, $8, $9)",
		9, {TEXTOID, TEXTOID, TIDOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_FAILED] = {
		"UPDATE reconcile.entity AS e SET failures = $4, died_of = $5, last_sqlstate = $6, last_error = $7, last_failed_at = $8,"
		" crashes = $9," NO_CLAIM ENTITY_PLACE,
		9, {TEXTOID, TEXTOID, TIDOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID}
	},
	[PLAN_INSERT_CLAIM] = {
		"INSERT INTO reconcile.entity (loop_name, entity_id, failures, claim_epoch, claim_holder, claimed_at,"
		" claim_expires_at, claim_lease_epoch, claim_mark)"
		" VALUES ($1, $2, $4, $5, $6, $7, $8, $9, $10)",
		10, {TEXTOID, TEXTOID, TIDOID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID}
	},
	[PLAN_CLAIM] = {
		"UPDATE reconcile.entity AS e SET failures = $4, died_of = NULL, claim_epoch = $5, claim_holder = $6, claimed_at = $7,"
		" claim_expires_at = $8, claim_lease_epoch = $9, claim_mark = $10" ENTITY_PLACE,
		10, {TEXTOID, TEXTOID, TIDOID, INT4OID, INT8OID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID}
	},
	[PLAN_UNCLAIM] = {
		"UPDATE reconcile.entity AS e SET failures = $4," NO_CLAIM ENTITY_PLACE, 4, {TEXTOID, TEXTOID, TIDOID, INT4OID}
	},
	[PLAN_EXTEND] = {
		"UPDATE reconcile.entity AS e SET claim_expires_at = $4, claim_mark = $5" ENTITY_PLACE,
		5, {TEXTOID, TEXTOID, TIDOID, TIMESTAMPTZOID, INT8OID}
	},
	[PLAN_EMPTY] = {
		"UPDATE reconcile.entity AS e SET failures = 0, died_of = NULL, last_sqlstate = NULL, last_error = NULL, last_failed_at = NULL,"
		" crashes = 0," NO_CLAIM ENTITY_PLACE,
		3, {TEXTOID, TEXTOID, TIDOID}
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.entity e" ENTITY_PLACE, 3, {TEXTOID, TEXTOID, TIDOID}
	},
	[PLAN_FORGET] = {
		"WITH gone AS (DELETE FROM reconcile.entity e" ENTITY_KEY " RETURNING e.failures)"
		" SELECT 1 FROM gone g WHERE g.failures OPERATOR(pg_catalog.<>) 0 LIMIT 1", 2, {TEXTOID, TEXTOID}
	},
	[PLAN_SWEEP] = {
		"DELETE FROM reconcile.entity e WHERE e.ctid OPERATOR(pg_catalog.=) ANY (ARRAY("
		"SELECT s.ctid FROM reconcile.entity s"
		" WHERE s.ctid OPERATOR(pg_catalog.>=) $1 AND s.ctid OPERATOR(pg_catalog.<) $2"
		" AND s.failures OPERATOR(pg_catalog.=) 0 AND s.died_of IS NULL AND s.claim_epoch IS NULL"
		" AND pg_catalog.age(s.xmin) OPERATOR(pg_catalog.>) pg_catalog.age($3) FOR UPDATE SKIP LOCKED))",
		3, {TIDOID, TIDOID, XIDOID}
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
		entity->place = *(ItemPointer) DatumGetPointer(sql_value(0, 10, NULL));
		entity->written = DatumGetTransactionId(sql_value(0, 11, NULL));
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

/* ----------------------------------------------------------------
 * Writing
 * ----------------------------------------------------------------
 */

/* Arguments 1 to 3 of what writes; the others follow. */
static void
write_by(int plan, const char *loop_name, const char *entity_id, const Entity *entity, Datum *values, const char *nulls)
{
	entity_key(loop_name, entity_id, values);
	values[2] = PointerGetDatum(&entity->place);
	sql_do(&plans[plan], values, nulls);
}

void
entity_failed(const char *loop_name, const char *entity_id, const Entity *entity, int failures, int crashes,
			  const char *died_of, int sqlstate, const char *message)
{
	Datum		values[9];
	char		nulls[9] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	const char *kept = message != NULL ? message : "";
	int			length = pg_mbcliplen(kept, strlen(kept), ERROR_TEXT_MAX);

	values[3] = Int32GetDatum(failures);
	values[4] = died_of ? CStringGetTextDatum(died_of) : (Datum) 0;
	nulls[4] = died_of ? ' ' : 'n';
	values[5] = CStringGetTextDatum(unpack_sql_state(sqlstate));
	/* an error that came from outside may be in any encoding */
	values[6] = PointerGetDatum(cstring_to_text_with_len(kept,
														 pg_verify_mbstr(GetDatabaseEncoding(), kept, length, true) ? length : 0));
	values[7] = TimestampTzGetDatum(clock_now());
	values[8] = Int32GetDatum(crashes);
	write_by(entity->remembered ? PLAN_FAILED : PLAN_INSERT_FAILED, loop_name, entity_id, entity, values, nulls);
}

void
entity_claim(const char *loop_name, const char *entity_id, const Entity *entity, int failures, const EntityClaim *claim)
{
	Datum		values[10];
	char		nulls[10] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};

	values[3] = Int32GetDatum(failures);
	values[4] = Int64GetDatum(claim->epoch);
	values[5] = CStringGetTextDatum(claim->holder_id);
	values[6] = TimestampTzGetDatum(clock_now());
	values[7] = TimestampTzGetDatum(claim->expires_at);
	values[8] = Int64GetDatum(claim->lease_epoch);
	nulls[8] = claim->lease_epoch > 0 ? ' ' : 'n';
	values[9] = Int64GetDatum(place_pack(&claim->mark));
	write_by(entity->remembered ? PLAN_CLAIM : PLAN_INSERT_CLAIM, loop_name, entity_id, entity, values, nulls);
}

void
entity_unclaim(const char *loop_name, const char *entity_id, const Entity *entity, int failures)
{
	Datum		values[4];

	if (failures == 0)
	{
		entity_succeeded(loop_name, entity_id, entity);
		return;
	}
	values[3] = Int32GetDatum(failures);
	write_by(PLAN_UNCLAIM, loop_name, entity_id, entity, values, NULL);
}

void
entity_extend(const char *loop_name, const char *entity_id, const Entity *entity)
{
	Datum		values[5];

	values[3] = TimestampTzGetDatum(entity->claim.expires_at);
	values[4] = Int64GetDatum(place_pack(&entity->claim.mark));
	write_by(PLAN_EXTEND, loop_name, entity_id, entity, values, NULL);
}

/* What was written before this is seen by all, and what it replaced by nobody. */
static TransactionId
horizon(void)
{
	Relation	rel = table_open(get_relname_relid("entity", install_get()->schema), AccessShareLock);
	TransactionId oldest = GetOldestNonRemovableTransactionId(rel);

	table_close(rel, AccessShareLock);
	return oldest;
}

static bool
is_empty(const Entity *entity)
{
	return entity->failures == 0 && entity->crashes == 0 && !entity->dead && !entity->claimed;
}

void
entity_succeeded(const char *loop_name, const char *entity_id, const Entity *entity)
{
	Datum		values[3];

	if (!entity->remembered)
		return;
	if (TransactionIdPrecedes(entity->written, horizon()))
		write_by(PLAN_DELETE, loop_name, entity_id, entity, values, NULL);
	else if (!is_empty(entity))
		write_by(PLAN_EMPTY, loop_name, entity_id, entity, values, NULL);
}

bool
entity_forget(const char *loop_name, const char *entity_id)
{
	Datum		values[2];

	entity_key(loop_name, entity_id, values);
	return sql_do(&plans[PLAN_FORGET], values, NULL) > 0;
}

void
entity_sweep(void)
{
	static BlockNumber next = 0;
	Relation	rel = table_open(get_relname_relid("entity", install_get()->schema), RowExclusiveLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);
	ItemPointerData first;
	ItemPointerData last;
	Datum		values[3];

	if (blocks == 0)
	{
		table_close(rel, NoLock);
		return;
	}
	if (next >= blocks)
		next = 0;
	ItemPointerSet(&first, next, 0);
	next = Min(next + SWEEP_BLOCKS, blocks);
	ItemPointerSet(&last, next, 0);
	values[0] = PointerGetDatum(&first);
	values[1] = PointerGetDatum(&last);
	values[2] = TransactionIdGetDatum(GetOldestNonRemovableTransactionId(rel));
	table_close(rel, NoLock);
	sql_do(&plans[PLAN_SWEEP], values, NULL);
}

/* ----------------------------------------------------------------
 * Rows that come past our functions
 * ----------------------------------------------------------------
 */

/* Columns of reconcile.entity, as in loop.sql. */
#define COLUMN_LOOP_NAME	1
#define COLUMN_ENTITY_ID	2

PG_FUNCTION_INFO_V1(reconcile_entity_once);
Datum
reconcile_entity_once(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	TupleDesc	desc;
	char	   *loop_name;
	char	   *entity_id;
	bool		isnull[2];
	Datum		key[2];
	Entity		entity;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("entity_once() was not called by a trigger for each row")));
	desc = RelationGetDescr(data->tg_relation);
	key[0] = heap_getattr(data->tg_trigtuple, COLUMN_LOOP_NAME, desc, &isnull[0]);
	key[1] = heap_getattr(data->tg_trigtuple, COLUMN_ENTITY_ID, desc, &isnull[1]);
	if (isnull[0] || isnull[1])
		return PointerGetDatum(data->tg_trigtuple);	/* NOT NULL refuses it */
	loop_name = TextDatumGetCString(key[0]);
	entity_id = TextDatumGetCString(key[1]);
	entity_read(loop_name, entity_id, &entity);
	if (entity.remembered)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("entity \"%s\" of loop \"%s\" has a row already", entity_id, loop_name),
				 errhint("Restore into a database where the extension was just created.")));
	return PointerGetDatum(data->tg_trigtuple);
}

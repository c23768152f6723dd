/*
 * guard_override.c
 *		override_fence(): an operator writes a guarded table without an epoch.
 *
 * What is lifted is state of this backend, about the current transaction, as
 * bindings are: entries know the nesting level that made them, go to the parent
 * at a subtransaction's commit, and are gone at its abort.  So do the counts of
 * rows.  The record is a row that is inserted by the call, and gets its number of
 * rows just before the transaction commits: so it commits with what was written,
 * or not at all, and costs nothing for each row.
 *
 * No fence lock is taken: it is no write of a term, and holds up no take-over.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "core/access.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"
#include "core/nested.h"
#include "core/plan.h"
#include "fence/guard.h"
#include "lease/lease.h"

#define KEPT_RECORDS	1000	/* of a reconciler id, */
#define KEPT_DAYS		90		/* or so long, whichever is more */

enum
{
	PLAN_RECORD,
	PLAN_COUNT,
	PLAN_TRIM
};

static SqlPlan plans[] = {
	[PLAN_RECORD] = {
		"INSERT INTO reconcile.fence_override (id, relation, reconciler_id, overridden_by, reason, at, rows, truncated)"
		" VALUES (pg_catalog.gen_random_uuid(), $1, $2, $3, $4, pg_catalog.clock_timestamp(), 0, false) RETURNING id",
		4, {TEXTOID, TEXTOID, TEXTOID, TEXTOID}
	},
	[PLAN_COUNT] = {
		"UPDATE reconcile.fence_override SET rows = $2, truncated = $3 WHERE id OPERATOR(pg_catalog.=) $1",
		3, {UUIDOID, INT8OID, BOOLOID}
	},
	[PLAN_TRIM] = {
		"DELETE FROM reconcile.fence_override WHERE reconciler_id OPERATOR(pg_catalog.=) $1"
		" AND at OPERATOR(pg_catalog.<) (SELECT o.at FROM reconcile.fence_override o"
		" WHERE o.reconciler_id OPERATOR(pg_catalog.=) $1 ORDER BY o.at DESC OFFSET $2 LIMIT 1)"
		" AND at OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(days => $3))",
		3, {TEXTOID, INT8OID, INT4OID}
	}
};

struct Override
{
	Nested		nested;
	Oid			relation;		/* that the guard was attached to */
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	Oid			schema;			/* install that has the record */
	pg_uuid_t	record;
	int64		epoch;
};

/* What was written under an override, in one nesting level. */
typedef struct Written
{
	Nested		nested;
	Override   *override;
	int64		rows;
	bool		truncated;
} Written;

static Nested *overrides = NULL;
static Nested *written = NULL;

bool
override_any(void)
{
	return overrides != NULL;
}

Override *
override_find(Oid owner, const char *reconciler_id)
{
	for (Nested *it = overrides; it != NULL; it = it->earlier)
	{
		Override   *override = (Override *) it;

		if (override->relation == owner && strcmp(override->reconciler_id, reconciler_id) == 0)
			return override;
	}
	return NULL;
}

int64
override_epoch(const Override *override)
{
	return override->epoch;
}

/* The count of the current nesting level. */
static Written *
written_here(Override *override)
{
	int			level = GetCurrentTransactionNestLevel();
	Written    *entry;

	for (Nested *it = written; it != NULL && it->level == level; it = it->earlier)
	{
		entry = (Written *) it;
		if (entry->override == override)
			return entry;
	}
	entry = nested_add(&written, sizeof(Written));
	entry->override = override;
	return entry;
}

void
override_wrote_row(Override *override)
{
	written_here(override)->rows++;
}

void
override_truncated(Override *override)
{
	written_here(override)->truncated = true;
}

/* ----------------------------------------------------------------
 * The end of a (sub)transaction
 * ----------------------------------------------------------------
 */

static void
record_count(const Override *override)
{
	const Install *install = install_find();
	int64		rows = 0;
	bool		truncated = false;
	SqlScope	scope;
	Datum		values[3];

	/* the extension was dropped, or made anew, by this transaction */
	if (install == NULL || install->schema != override->schema)
		return;
	for (const Nested *it = written; it != NULL; it = it->earlier)
	{
		const Written *entry = (const Written *) it;

		if (entry->override != override)
			continue;
		rows += entry->rows;
		truncated |= entry->truncated;
	}
	if (rows == 0 && !truncated)
		return;

	sql_begin(&scope);
	values[0] = UUIDPGetDatum(&override->record);
	values[1] = Int64GetDatum(rows);
	values[2] = BoolGetDatum(truncated);
	if (sql_run(&plans[PLAN_COUNT], values, NULL) != 1)
		elog(ERROR, "the record of override_fence() is missing");
	sql_end(&scope);
}

static void
override_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			if (overrides == NULL)
				break;
			PushActiveSnapshot(GetTransactionSnapshot());
			for (const Nested *it = overrides; it != NULL; it = it->earlier)
				record_count((const Override *) it);
			PopActiveSnapshot();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			overrides = NULL;
			written = NULL;
			break;
		default:
			break;
	}
}

/* What an ending level and its parent wrote under the same override is one entry again. */
static void
written_to_parent(int level)
{
	Nested	  **link = &written;

	while (*link != NULL && (*link)->level >= level)
	{
		Written    *entry = (Written *) *link;
		Nested	   *same = (*link)->earlier;

		while (same != NULL && same->level >= level - 1 && ((Written *) same)->override != entry->override)
			same = same->earlier;
		if (same != NULL && same->level >= level - 1)
		{
			((Written *) same)->rows += entry->rows;
			((Written *) same)->truncated |= entry->truncated;
			*link = entry->nested.earlier;
			pfree(entry);
		}
		else
			link = &entry->nested.earlier;
	}
}

static void
override_subxact_callback(SubXactEvent event, SubTransactionId subid,
						  SubTransactionId parent, void *arg)
{
	if (overrides == NULL)
		return;
	if (event == SUBXACT_EVENT_COMMIT_SUB)
		written_to_parent(GetCurrentTransactionNestLevel());
	nested_end_subxact(&written, event);
	nested_end_subxact(&overrides, event);
}

void
guard_init(void)
{
	RegisterXactCallback(override_xact_callback, NULL);
	RegisterSubXactCallback(override_subxact_callback, NULL);
}

/* ----------------------------------------------------------------
 * The call
 * ----------------------------------------------------------------
 */

static pg_uuid_t
insert_record(Oid relation, const char *reconciler_id, const char *reason)
{
	SqlScope	scope;
	Datum		values[4];
	pg_uuid_t	id;
	char	   *role = GetUserNameFromId(GetUserId(), false);

	sql_begin(&scope);
	values[0] = CStringGetTextDatum(reconciler_id);
	values[1] = Int64GetDatum(KEPT_RECORDS - 1);
	values[2] = Int32GetDatum(KEPT_DAYS);
	sql_run(&plans[PLAN_TRIM], values, NULL);
	values[0] = CStringGetTextDatum(quote_qualified_identifier(get_namespace_name(get_rel_namespace(relation)),
															   get_rel_name(relation)));
	values[1] = CStringGetTextDatum(reconciler_id);
	values[2] = CStringGetTextDatum(role);
	values[3] = CStringGetTextDatum(reason);
	sql_run(&plans[PLAN_RECORD], values, NULL);
	id = *DatumGetUUIDP(sql_value(0, 1, NULL));
	sql_end(&scope);
	return id;
}

PG_FUNCTION_INFO_V1(reconcile_override_fence);
Datum
reconcile_override_fence(PG_FUNCTION_ARGS)
{
	Oid			relation;
	char	   *reason;
	const GuardSpec *spec;
	Lease		lease;
	pg_uuid_t	record;
	int64		epoch;
	Override   *override;

	require_writable("override_fence");
	relation = table_arg(fcinfo, 0, "relation");
	reason = reason_arg(fcinfo, 1);
	if (get_rel_name(relation) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	spec = guard_spec(relation);
	guard_require_own(relation, "override");
	if (spec == NULL)
		guard_raise_none(relation);
	access_require(CAP_OPERATE, spec->reconciler_id);

	record = insert_record(relation, spec->reconciler_id, reason);
	epoch = lease_read(spec->reconciler_id, &lease) ? lease.epoch : 0;
	override = nested_add(&overrides, sizeof(Override));
	override->relation = relation;
	strlcpy(override->reconciler_id, spec->reconciler_id, sizeof(override->reconciler_id));
	override->schema = install_get()->schema;
	override->record = record;
	override->epoch = epoch;
	PG_RETURN_VOID();
}

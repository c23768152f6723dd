/*
 * audit_prune.c
 *		Cuts what is old from the beginning of a tenant's chain.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/install.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/audit.h"
#include "journal/audit_chain.h"

enum
{
	PLAN_HEADLESS,
	PLAN_ANCHOR,
	PLAN_OLDEST,
	PLAN_DELETE
};

static SqlPlan plans[] = {
	/* what has no head, though there was something to note */
	[PLAN_HEADLESS] = {
		"SELECT FROM (SELECT) one"
		" WHERE NOT EXISTS (SELECT FROM reconcile.audit_head h WHERE h.tenant_id OPERATOR(pg_catalog.=) $1)"
		" AND (EXISTS (SELECT FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1)"
		" OR EXISTS (SELECT FROM reconcile.command c WHERE c.tenant_id OPERATOR(pg_catalog.=) $1))",
		1, {TEXTOID}
	},
	[PLAN_ANCHOR] = {
		"SELECT h.anchor_sequence, h.anchor_hash, h.pruned_through FROM reconcile.audit_head h"
		" WHERE h.tenant_id OPERATOR(pg_catalog.=) $1",
		1, {TEXTOID}
	},
	/* and is it of a command that somebody may still have to settle? */
	[PLAN_OLDEST] = {
		"SELECT " AUDIT_COLUMNS ", hash, EXISTS (SELECT FROM reconcile.command c"
		" WHERE c.tenant_id OPERATOR(pg_catalog.=) audit_event.tenant_id"
		" AND c.command_id OPERATOR(pg_catalog.=) audit_event.command_id"
		" AND (c.completed_at IS NULL OR (c.status OPERATOR(pg_catalog.=) 'unknown'"
		" AND NOT EXISTS (SELECT FROM reconcile.command_resolution r"
		" WHERE r.tenant_id OPERATOR(pg_catalog.=) c.tenant_id AND r.command_id OPERATOR(pg_catalog.=) c.command_id))))"
		" FROM reconcile.audit_event"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1 AND sequence OPERATOR(pg_catalog.>) $2 ORDER BY sequence LIMIT $3",
		3, {TEXTOID, INT8OID, INT4OID}
	},
	[PLAN_DELETE] = {
		"DELETE FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND e.sequence OPERATOR(pg_catalog.<=) $2",
		2, {TEXTOID, INT8OID}
	}
};

#define PAGE			200		/* events that are read together: each may have 64 kB of options */
#define STANDS_COLUMN	(AUDIT_NCOLUMNS + 2)	/* of PLAN_OLDEST: behind the event and its hash */

Jsonb *
audit_anchor_jsonb(const AuditAnchor *anchor)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_int(&build, "sequence", anchor->sequence);
	jsonb_add_time(&build, "pruned_through", anchor->pruned_through);
	return jsonb_end(&build);
}

/* Where the chain begins now; false: it has lost its head. */
static bool
read_anchor(const char *tenant_id, AuditAnchor *anchor)
{
	SqlScope	scope;
	Datum		value = CStringGetTextDatum(tenant_id);
	bool		headless;

	memset(anchor, 0, sizeof(*anchor));
	anchor->pruned_through = DT_NOBEGIN;
	if (audit_noted_anchor(tenant_id, anchor))
		return true;
	sql_begin(&scope);
	headless = sql_run_latest(&plans[PLAN_HEADLESS], &value, NULL) > 0;
	if (!headless && sql_run_latest(&plans[PLAN_ANCHOR], &value, NULL) > 0)
	{
		bool		never;
		Datum		pruned_through;

		anchor->sequence = DatumGetInt64(sql_value(0, 1, NULL));
		(void) audit_hash_copy(sql_value(0, 2, NULL), anchor->hash);
		pruned_through = sql_value(0, 3, &never);
		if (!never)
			anchor->pruned_through = DatumGetTimestampTz(pruned_through);
	}
	sql_end(&scope);
	return !headless;
}

typedef enum Oldest
{
	OLDEST_GOES,
	OLDEST_STAYS,
	OLDEST_BROKEN				/* what is deleted cannot be verified any more, and it is not what was written */
} Oldest;

/* The event in row n; the anchor moves behind it if it goes. */
static Oldest
judge(uint64 n, TimestampTz before, AuditAnchor *anchor)
{
	AuditRow	row;
	uint8		expected[DIGEST_BYTES];

	audit_row_read(n, &row);
	if (row.happened_at >= before || DatumGetBool(sql_value(n, STANDS_COLUMN, NULL)))
		return OLDEST_STAYS;
	if (row.sequence != anchor->sequence + 1 || row.hash_version != AUDIT_HASH_VERSION)
		return OLDEST_BROKEN;
	audit_row_hash(&row, anchor->hash, expected);
	if (memcmp(expected, row.hash, DIGEST_BYTES) != 0)
		return OLDEST_BROKEN;
	anchor->sequence = row.sequence;
	anchor->pruned_through = Max(anchor->pruned_through, row.happened_at);
	memcpy(anchor->hash, row.hash, DIGEST_BYTES);
	return OLDEST_GOES;
}

/* A page of the oldest; the number of those that go is added to *goes. */
static Oldest
judge_page(const char *tenant_id, TimestampTz before, int max, AuditAnchor *anchor, int64 *goes)
{
	SqlScope	scope;
	Datum		values[3];
	uint64		n;
	Oldest		oldest = OLDEST_GOES;

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = Int64GetDatum(anchor->sequence);
	values[2] = Int32GetDatum(max);
	sql_begin(&scope);
	n = sql_run_latest(&plans[PLAN_OLDEST], values, NULL);
	for (uint64 i = 0; i < n && oldest == OLDEST_GOES; i++)
	{
		oldest = judge(i, before, anchor);
		*goes += oldest == OLDEST_GOES;
	}
	sql_end(&scope);
	return oldest == OLDEST_GOES && n < max ? OLDEST_STAYS : oldest;
}

int64
audit_prune(const char *tenant_id, TimestampTz before, int max, AuditAnchor *anchor)
{
	Datum		values[2];
	int64		pruned = 0;
	Oldest		oldest = OLDEST_GOES;

	/* nobody else prunes the tenant before this is over */
	(void) lock_take(LOCK_KIND_PRUNE, "", tenant_id, ExclusiveLock, true);
	if (!read_anchor(tenant_id, anchor))
		return -1;
	while (oldest == OLDEST_GOES && pruned < max)
	{
		CHECK_FOR_INTERRUPTS();
		oldest = judge_page(tenant_id, before, Min(max - pruned, PAGE), anchor, &pruned);
	}
	if (oldest == OLDEST_BROKEN)
		return -1;
	if (pruned > 0)
	{
		values[0] = CStringGetTextDatum(tenant_id);
		values[1] = Int64GetDatum(anchor->sequence);
		sql_do(&plans[PLAN_DELETE], values, NULL);
	}
	return pruned;
}

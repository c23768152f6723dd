/*
 * audit_prune.c
 *		Cuts what is old from the beginning of a tenant's chain.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/audit.h"
#include "journal/audit_chain.h"

enum
{
	PLAN_HEADLESS,
	PLAN_ANCHOR,
	PLAN_OLDEST,
	PLAN_DELETE,
	PLAN_SET_ANCHOR
};

static SqlPlan plans[] = {
	/* what has no head, though there was something to note */
	[PLAN_HEADLESS] = {
		"SELECT EXISTS (SELECT FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1)"
		" OR EXISTS (SELECT FROM reconcile.command c WHERE c.tenant_id OPERATOR(pg_catalog.=) $1)",
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
	},
	[PLAN_SET_ANCHOR] = {
		"UPDATE reconcile.audit_head SET anchor_sequence = $2, anchor_hash = $3,"
		" pruned_through = $4 WHERE tenant_id OPERATOR(pg_catalog.=) $1",
		4, {TEXTOID, INT8OID, BYTEAOID, TIMESTAMPTZOID}
	}
};

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

int64
audit_prune(const char *tenant_id, TimestampTz before, int max, AuditAnchor *anchor)
{
	SqlScope	scope;
	Datum		values[4];
	uint8		hash[DIGEST_BYTES];
	int64		pruned = 0;
	uint64		n = 0;

	anchor->sequence = 0;
	anchor->pruned_through = DT_NOBEGIN;
	/* nobody adds to it, or prunes, before this is over */
	audit_lock(tenant_id);
	values[0] = CStringGetTextDatum(tenant_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_ANCHOR], values, NULL) > 0)
	{
		bool		never;
		Datum		pruned_through;

		anchor->sequence = DatumGetInt64(sql_value(0, 1, NULL));
		(void) audit_hash_copy(sql_value(0, 2, NULL), hash);
		pruned_through = sql_value(0, 3, &never);
		if (!never)
			anchor->pruned_through = DatumGetTimestampTz(pruned_through);
		values[1] = Int64GetDatum(anchor->sequence);
		values[2] = Int32GetDatum(max);
		n = sql_run_latest(&plans[PLAN_OLDEST], values, NULL);
	}
	else
	{
		sql_run_latest(&plans[PLAN_HEADLESS], values, NULL);
		if (DatumGetBool(sql_value(0, 1, NULL)))
			pruned = -1;
	}
	for (uint64 i = 0; i < n; i++)
	{
		AuditRow	row;
		uint8		expected[DIGEST_BYTES];

		audit_row_read(i, &row);
		if (row.happened_at >= before || DatumGetBool(sql_value(i, STANDS_COLUMN, NULL)))
			break;
		/* what is deleted cannot be verified any more */
		if (row.sequence == anchor->sequence + 1 && row.hash_version == AUDIT_HASH_VERSION)
			audit_row_hash(&row, hash, expected);
		if (row.sequence != anchor->sequence + 1 || row.hash_version != AUDIT_HASH_VERSION ||
			memcmp(expected, row.hash, DIGEST_BYTES) != 0)
		{
			pruned = -1;
			break;
		}
		anchor->sequence = row.sequence;
		anchor->pruned_through = Max(anchor->pruned_through, row.happened_at);
		memcpy(hash, row.hash, DIGEST_BYTES);
		pruned++;
	}
	if (pruned > 0)
	{
		values[1] = Int64GetDatum(anchor->sequence);
		sql_run_latest(&plans[PLAN_DELETE], values, NULL);
		values[2] = PointerGetDatum(audit_hash_datum(hash));
		values[3] = TimestampTzGetDatum(anchor->pruned_through);
		sql_run_latest(&plans[PLAN_SET_ANCHOR], values, NULL);
	}
	sql_end(&scope);
	return pruned;
}

/*
 * remember.c
 *		Which entities a loop knows of: its marks, and its rows in reconcile.entity.
 *
 * Read without SPI: it is asked in triggers of users' statements, which must
 * not find the command counter moved.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_collation.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "core/install.h"
#include "loop/mark.h"
#include "loop/remember.h"

typedef void (*ValueVisitor) (Datum value, bool isnull, void *arg);

/* Visits a column in each row of a loop, in a table of ours whose primary key begins with the loop. */
static void
visit_rows(const char *table, const char *column, const char *loop_name, Snapshot snapshot,
		   ValueVisitor visit, void *arg)
{
	Relation	rel = table_open(get_relname_relid(table, install_get()->schema), AccessShareLock);
	AttrNumber	number = get_attnum(RelationGetRelid(rel), column);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (rel->rd_indexvalid == false)
		list_free(RelationGetIndexList(rel));
	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
						   F_TEXTEQ, CStringGetTextDatum(loop_name));
	scan = systable_beginscan(rel, rel->rd_pkindex, OidIsValid(rel->rd_pkindex), snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Datum		value = heap_getattr(tuple, number, RelationGetDescr(rel), &isnull);

		visit(value, isnull, arg);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static void
note_not_null(Datum value, bool isnull, void *arg)
{
	*(bool *) arg = !isnull;
}

bool
loop_has_lister(const char *loop_name)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		has = false;

	visit_rows("loop", "lister", loop_name, snapshot, note_not_null, &has);
	UnregisterSnapshot(snapshot);
	return has;
}

typedef struct Remembering
{
	const char *loop_name;
	IdSet	   *ids;
} Remembering;

static void
add_marked(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Remembering *remembering = arg;

	if (strcmp(loop_name, remembering->loop_name) == 0)
		idset_add(remembering->ids, entity_id);
}

static void
add_entity(Datum value, bool isnull, void *arg)
{
	char	   *id = TextDatumGetCString(value);

	idset_add(((Remembering *) arg)->ids, id);
	pfree(id);
}

void
loop_remembered(const char *loop_name, IdSet *ids)
{
	Remembering remembering = {loop_name, ids};
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* one snapshot: revive() makes a mark of a row */
	mark_scan_all(snapshot, add_marked, &remembering);
	visit_rows("entity", "entity_id", loop_name, snapshot, add_entity, &remembering);
	UnregisterSnapshot(snapshot);
}

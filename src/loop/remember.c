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

typedef void (*RowVisitor) (Relation rel, HeapTuple tuple, void *arg);

static Datum
column(Relation rel, HeapTuple tuple, const char *name, bool *isnull)
{
	return heap_getattr(tuple, get_attnum(RelationGetRelid(rel), name), RelationGetDescr(rel), isnull);
}

/* Visits each row of a loop in a table of ours, by an index that begins with the loop. */
static void
visit_rows(const char *table, const char *index, const char *loop_name, Snapshot snapshot,
		   RowVisitor visit, void *arg)
{
	Oid			schema = install_get()->schema;
	Relation	rel = table_open(get_relname_relid(table, schema), AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid, C_COLLATION_OID,
						   F_TEXTEQ, CStringGetTextDatum(loop_name));
	scan = systable_beginscan(rel, get_relname_relid(index, schema), true, snapshot, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		visit(rel, tuple, arg);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

static void
note_lister(Relation rel, HeapTuple tuple, void *arg)
{
	bool		isnull;

	(void) column(rel, tuple, "lister", &isnull);
	*(bool *) arg = !isnull;
}

bool
loop_has_lister(const char *loop_name)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		has = false;

	visit_rows("loop", "loop_pkey", loop_name, snapshot, note_lister, &has);
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
add_entity(Relation rel, HeapTuple tuple, void *arg)
{
	bool		isnull;
	char	   *id;

	/* an empty row says nothing */
	if (DatumGetInt32(column(rel, tuple, "failures", &isnull)) == 0)
		return;
	id = TextDatumGetCString(column(rel, tuple, "entity_id", &isnull));
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
	visit_rows("entity", "entity_key", loop_name, snapshot, add_entity, &remembering);
	UnregisterSnapshot(snapshot);
}

/*
 * mark.c
 *		The mark segments: insert, delete by TID, scan, empty.
 *
 * A segment has no index, no row trigger and no constraint, so rows are inserted
 * and deleted through the table access method itself.  That goes past rights as
 * well: each caller has checked his own.
 *
 * Locks: producers and deleters take RowExclusiveLock on a segment, scans
 * AccessShareLock.  Whoever empties one takes AccessExclusiveLock, only if he
 * gets it at once and only for as long as it takes; a producer who meets him
 * uses another segment.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "catalog/pg_control.h"
#include "catalog/storage.h"
#include "common/pg_prng.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/ident.h"
#include "core/testpoint.h"
#include "core/wake.h"
#include "loop/mark.h"

/* Columns of a segment, as in mark.sql. */
enum
{
	MARK_NUMBER,
	MARK_DUE_AT,
	MARK_MADE_AT,
	MARK_KIND,
	MARK_LOOP_NAME,
	MARK_ENTITY_ID,
	MARK_COLUMNS
};

#define MARK_BATCH	1000		/* rows handed to the heap at once */

int			(*mark_current_segment_hook) (void) = NULL;
uint64		mark_deletions = 0;

static Relation
segment_open(int segment, LOCKMODE mode)
{
	return table_open(install_get()->segment[segment], mode);
}

/*
 * The segment to insert into: the current one, or the next that nobody is
 * emptying at this moment.
 */
static Relation
segment_open_for_insert(int *segment)
{
	int			current = mark_current_segment_hook != NULL ? mark_current_segment_hook() : 0;

	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		*segment = (current + i) % MARK_SEGMENTS;
		if (ConditionalLockRelationOid(install_get()->segment[*segment], RowExclusiveLock))
			return segment_open(*segment, NoLock);
	}
	*segment = current;
	return segment_open(current, RowExclusiveLock);
}

static void
slot_fill(TupleTableSlot *slot, MarkRef *ref, Datum loop_name, const char *entity_id)
{
	ExecClearTuple(slot);
	memset(slot->tts_isnull, 0, sizeof(bool) * MARK_COLUMNS);
	slot->tts_values[MARK_NUMBER] = Int64GetDatum(ref->number);
	slot->tts_values[MARK_DUE_AT] = TimestampTzGetDatum(ref->due_at);
	slot->tts_values[MARK_MADE_AT] = TimestampTzGetDatum(ref->made_at);
	slot->tts_values[MARK_KIND] = CharGetDatum(ref->kind);
	slot->tts_values[MARK_LOOP_NAME] = loop_name;
	slot->tts_values[MARK_ENTITY_ID] = CStringGetTextDatum(entity_id);
	ExecStoreVirtualTuple(slot);
}

static void
ref_locate(MarkRef *ref, int segment, const ItemPointerData *tid)
{
	ref->segment = segment;
	ref->block = ItemPointerGetBlockNumber(tid);
	ref->offset = ItemPointerGetOffsetNumber(tid);
}

static void
ref_init(MarkRef *ref, MarkKind kind, TimestampTz due_at, TimestampTz made_at)
{
	ref->number = (int64) pg_prng_uint64(&pg_global_prng_state);
	ref->kind = (char) kind;
	ref->due_at = due_at;
	ref->made_at = made_at;
}

/* Inserts what the reference says into an open segment, and fills in where. */
static void
insert_one(Relation rel, int segment, const char *loop_name, const char *entity_id, MarkRef *mark)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	slot_fill(slot, mark, CStringGetTextDatum(loop_name), entity_id);
	simple_table_tuple_insert(rel, slot);
	ref_locate(mark, segment, &slot->tts_tid);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);	/* the lock stays until the transaction ends */
}

/* Inserts in the segment that is current. */
static void
insert_and_wake(const char *loop_name, const char *entity_id, MarkRef *mark, bool wake)
{
	int			segment;
	Relation	rel = segment_open_for_insert(&segment);
	ItemPointerData tid;

	TEST_POINT("session-before-intent");
	insert_one(rel, segment, loop_name, entity_id, mark);
	if (wake)
	{
		ItemPointerSet(&tid, mark->block, mark->offset);
		wake_mark(mark->segment, &tid);
	}
	TEST_POINT("session-after-intent");
}

void
mark_insert(const char *loop_name, const char *entity_id, MarkKind kind,
			TimestampTz due_at, bool wake, MarkRef *ref)
{
	MarkRef		mark;

	ref_init(&mark, kind, due_at, clock_now());
	insert_and_wake(loop_name, entity_id, &mark, wake);
	if (ref != NULL)
		*ref = mark;
}

void
mark_insert_claim(const char *loop_name, const char *entity_id, int64 epoch,
				  TimestampTz due_at, MarkRef *ref)
{
	ref_init(ref, MARK_CLAIM, due_at, clock_now());
	ref->number = epoch;
	insert_and_wake(loop_name, entity_id, ref, true);
}

void
mark_copy(const char *loop_name, const char *entity_id, const MarkRef *from, int segment, MarkRef *to)
{
	*to = *from;
	insert_one(segment_open(segment, RowExclusiveLock), segment, loop_name, entity_id, to);
}

Size
mark_size(const char *loop_name, const char *entity_id)
{
	/* number, due_at, made_at, kind, and the texts, each with one byte at least */
	return sizeof(ItemIdData) + MAXALIGN(SizeofHeapTupleHeader) +
		MAXALIGN(3 * sizeof(int64) + 1 + 2 + strlen(loop_name) + strlen(entity_id));
}

void
mark_insert_many(const char *loop_name, int n, const char *const *entity_ids,
				 MarkKind kind, const TimestampTz *due_at)
{
	int			segment;
	Relation	rel;
	BulkInsertState bulk;
	TupleTableSlot **slots;
	int			nslots = Min(n, MARK_BATCH);
	Datum		loop_datum;
	MemoryContext batch;
	TimestampTz now = clock_now();

	if (n == 0)
		return;
	rel = segment_open_for_insert(&segment);
	bulk = GetBulkInsertState();
	loop_datum = CStringGetTextDatum(loop_name);
	slots = palloc(sizeof(TupleTableSlot *) * nslots);
	for (int i = 0; i < nslots; i++)
		slots[i] = table_slot_create(rel, NULL);
	batch = AllocSetContextCreate(CurrentMemoryContext, "reconcile marks", ALLOCSET_DEFAULT_SIZES);

	for (int done = 0; done < n;)
	{
		int			count = Min(n - done, nslots);
		MemoryContext outer = MemoryContextSwitchTo(batch);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++)
		{
			MarkRef		mark;

			ref_init(&mark, kind, due_at != NULL ? due_at[done + i] : now, now);
			slot_fill(slots[i], &mark, loop_datum, entity_ids[done + i]);
		}
		table_multi_insert(rel, slots, count, GetCurrentCommandId(true), 0, bulk);
		for (int i = 0; i < count; i++)
			wake_mark(segment, &slots[i]->tts_tid);
		MemoryContextSwitchTo(outer);
		for (int i = 0; i < count; i++)
			ExecClearTuple(slots[i]);
		MemoryContextReset(batch);
		done += count;
	}

	MemoryContextDelete(batch);
	for (int i = 0; i < nslots; i++)
		ExecDropSingleTupleTableSlot(slots[i]);
	FreeBulkInsertState(bulk);
	table_finish_bulk_insert(rel, 0);
	table_close(rel, NoLock);
}

/* ----------------------------------------------------------------
 * By TID
 * ----------------------------------------------------------------
 */

static bool
text_equals(Datum value, const char *string)
{
	text	   *t = DatumGetTextPP(value);
	size_t		length = strlen(string);

	return VARSIZE_ANY_EXHDR(t) == length && memcmp(VARDATA_ANY(t), string, length) == 0;
}

/*
 * Loads the mark at a TID into the slot, if the snapshot sees it and the block
 * exists: a segment may have been emptied since.
 */
static bool
fetch(Relation rel, BlockNumber nblocks, BlockNumber block, OffsetNumber offset,
	  Snapshot snapshot, TupleTableSlot *slot)
{
	ItemPointerData tid;

	if (block >= nblocks)
		return false;
	ItemPointerSet(&tid, block, offset);
	if (!table_tuple_fetch_row_version(rel, &tid, snapshot, slot))
		return false;
	slot_getallattrs(slot);
	return true;
}

static bool
slot_is(TupleTableSlot *slot, const char *loop_name, const char *entity_id, const MarkRef *ref)
{
	return DatumGetInt64(slot->tts_values[MARK_NUMBER]) == ref->number &&
		text_equals(slot->tts_values[MARK_ENTITY_ID], entity_id) &&
		text_equals(slot->tts_values[MARK_LOOP_NAME], loop_name);
}

bool
mark_visible(const char *loop_name, const char *entity_id, const MarkRef *ref, Snapshot snapshot)
{
	Relation	rel = segment_open(ref->segment, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	bool		visible;

	visible = fetch(rel, RelationGetNumberOfBlocks(rel), ref->block, ref->offset, snapshot, slot) &&
		slot_is(slot, loop_name, entity_id, ref);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
	return visible;
}

bool
mark_any_visible(const char *loop_name, const char *entity_id, const MarkRef *refs, int n,
				 bool *triggered, bool *deadlines)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		any = false;

	*triggered = false;
	*deadlines = true;
	for (int i = 0; i < n && !*triggered; i++)
	{
		bool		deadline = refs[i].kind == MARK_CLAIM;

		/* one more of the kind says nothing new */
		if (any && (deadline || (!*deadlines && refs[i].kind != MARK_TRIGGER)))
			continue;
		if (mark_visible(loop_name, entity_id, &refs[i], snapshot))
		{
			any = true;
			*triggered = refs[i].kind == MARK_TRIGGER;
			*deadlines &= deadline;
		}
	}
	UnregisterSnapshot(snapshot);
	return any;
}

static int
delete_marks(const char *loop_name, const char *entity_id, const MarkRef *refs, int n, bool wait)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	int			deleted = 0;

	for (int segment = 0; segment < MARK_SEGMENTS; segment++)
	{
		Relation	rel = NULL;
		TupleTableSlot *slot = NULL;
		BlockNumber nblocks = 0;

		for (int i = 0; i < n; i++)
		{
			TM_FailureData failure;

			if (refs[i].segment != segment)
				continue;
			if (rel == NULL)
			{
				rel = segment_open(segment, RowExclusiveLock);
				slot = table_slot_create(rel, NULL);
				nblocks = RelationGetNumberOfBlocks(rel);
			}
			if (!fetch(rel, nblocks, refs[i].block, refs[i].offset, snapshot, slot) ||
				!slot_is(slot, loop_name, entity_id, &refs[i]))
				continue;
			/* somebody else may have deleted it meanwhile: then it is answered */
			if (table_tuple_delete(rel, &slot->tts_tid, GetCurrentCommandId(true), snapshot,
								   InvalidSnapshot, wait, &failure, false) == TM_Ok)
			{
				deleted++;
				mark_deletions++;
			}
		}
		if (rel != NULL)
		{
			ExecDropSingleTupleTableSlot(slot);
			table_close(rel, NoLock);
		}
	}
	UnregisterSnapshot(snapshot);
	return deleted;
}

int
mark_delete(const char *loop_name, const char *entity_id, const MarkRef *refs, int n)
{
	return delete_marks(loop_name, entity_id, refs, n, true);
}

int
mark_try_delete(const char *loop_name, const char *entity_id, const MarkRef *refs, int n)
{
	return delete_marks(loop_name, entity_id, refs, n, false);
}

/* ----------------------------------------------------------------
 * Scans
 * ----------------------------------------------------------------
 */

static void
visit_slot(int segment, TupleTableSlot *slot, MarkVisitor visit, void *arg)
{
	MarkRef		ref;
	char		loop_name[RECONCILER_ID_MAX + 1];
	char		entity_id[ENTITY_ID_MAX + 1];

	text_to_cstring_buffer(DatumGetTextPP(slot->tts_values[MARK_LOOP_NAME]), loop_name, sizeof(loop_name));
	text_to_cstring_buffer(DatumGetTextPP(slot->tts_values[MARK_ENTITY_ID]), entity_id, sizeof(entity_id));
	ref.number = DatumGetInt64(slot->tts_values[MARK_NUMBER]);
	ref.due_at = DatumGetTimestampTz(slot->tts_values[MARK_DUE_AT]);
	ref.made_at = DatumGetTimestampTz(slot->tts_values[MARK_MADE_AT]);
	ref.kind = DatumGetChar(slot->tts_values[MARK_KIND]);
	ref_locate(&ref, segment, &slot->tts_tid);
	visit(loop_name, entity_id, &ref, arg);
}

/* Was the row inserted by this transaction? */
static bool
is_own(TupleTableSlot *slot)
{
	bool		isnull;

	return TransactionIdIsCurrentTransactionId(DatumGetTransactionId(
																	 slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull)));
}

static void
scan_blocks(int segment, BlockNumber first, BlockNumber last, Snapshot snapshot, bool own,
			MarkVisitor visit, void *arg)
{
	Relation	rel = segment_open(segment, AccessShareLock);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	if (first < nblocks)
	{
		TableScanDesc scan;
		TupleTableSlot *slot = table_slot_create(rel, NULL);

		scan = table_beginscan_strat(rel, snapshot, 0, NULL, true, false);
		if (last == InvalidBlockNumber || last >= nblocks)
			last = nblocks - 1;
		heap_setscanlimits(scan, first, last - first + 1);
		while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		{
			CHECK_FOR_INTERRUPTS();
			if (own && !is_own(slot))
				continue;
			slot_getallattrs(slot);
			visit_slot(segment, slot, visit, arg);
		}
		table_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);
	}
	table_close(rel, AccessShareLock);
}

void
mark_scan(int segment, BlockNumber first, BlockNumber last, Snapshot snapshot,
		  MarkVisitor visit, void *arg)
{
	scan_blocks(segment, first, last, snapshot, false, visit, arg);
}

void
mark_scan_all(Snapshot snapshot, MarkVisitor visit, void *arg)
{
	for (int segment = 0; segment < MARK_SEGMENTS; segment++)
		mark_scan(segment, 0, InvalidBlockNumber, snapshot, visit, arg);
}

static void
visit_one(int segment, BlockNumber block, OffsetNumber offset, Snapshot snapshot, bool own,
		  MarkVisitor visit, void *arg)
{
	Relation	rel = segment_open(segment, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	if (fetch(rel, RelationGetNumberOfBlocks(rel), block, offset, snapshot, slot) &&
		(!own || is_own(slot)))
		visit_slot(segment, slot, visit, arg);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, AccessShareLock);
}

void
mark_visit_one(int segment, BlockNumber block, OffsetNumber offset, Snapshot snapshot,
			   MarkVisitor visit, void *arg)
{
	visit_one(segment, block, offset, snapshot, false, visit, arg);
}

typedef struct OwnMarks
{
	const char *loop_name;
	bool		(*matches) (const char *entity_id, void *arg);
	void	   *arg;
} OwnMarks;

static void
delete_own(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	OwnMarks   *own = arg;

	if (ref->kind == MARK_TRIGGER && strcmp(loop_name, own->loop_name) == 0 &&
		own->matches(entity_id, own->arg))
		(void) mark_delete(loop_name, entity_id, ref, 1);
}

void
mark_delete_own(const char *loop_name, bool (*matches) (const char *entity_id, void *arg), void *arg)
{
	const WakeList *made = &wake_pending()->made;
	OwnMarks	own = {loop_name, matches, arg};
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* where one was rolled back, another's may be by now */
	for (int i = 0; i < made->n; i++)
		visit_one(made->marks[i].segment, made->marks[i].block, made->marks[i].offset, snapshot, true,
				  delete_own, &own);
	for (int segment = 0; segment < MARK_SEGMENTS; segment++)
	{
		if (made->ranged[segment])
			scan_blocks(segment, made->first_block[segment], made->last_block[segment], snapshot, true,
						delete_own, &own);
	}
	UnregisterSnapshot(snapshot);
}

BlockNumber
mark_segment_blocks(int segment)
{
	Relation	rel = segment_open(segment, AccessShareLock);
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);

	table_close(rel, AccessShareLock);
	return nblocks;
}

/* ----------------------------------------------------------------
 * Emptying
 * ----------------------------------------------------------------
 */

/*
 * Makes durable all that has been written so far.  The truncation takes effect
 * on disk at once: a deletion that committed asynchronously and was lost in a
 * crash would otherwise take its mark with it.
 */
static void
flush_wal(void)
{
	char		nothing = 0;

	XLogBeginInsert();
	XLogRegisterData(&nothing, 1);
	XLogFlush(XLogInsert(RM_XLOG_ID, XLOG_NOOP));
}

static void
count_one(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	(*(int64 *) arg)++;
}

bool
mark_segment_truncate(int segment)
{
	Oid			relid = install_get()->segment[segment];
	Relation	rel;
	int64		left = 0;

	/* never wait for it: whoever waited behind us would wait too */
	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	rel = table_open(relid, NoLock);
	if (RelationGetNumberOfBlocks(rel) > 0)
	{
		/* a mark that committed before we had the lock is seen only by a snapshot taken after it */
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		mark_scan(segment, 0, InvalidBlockNumber, snapshot, count_one, &left);
		UnregisterSnapshot(snapshot);
		if (left == 0)
		{
			flush_wal();
			RelationTruncate(rel, 0);
		}
	}
	/* held to the end: what commits the truncation also lets producers in */
	table_close(rel, NoLock);
	return left == 0;
}

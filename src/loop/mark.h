/*
 * mark.h
 *		Marks: why an entity is to be looked at, append only, in segments.
 *
 * A mark says that (loop, entity) is to be run at or after due_at.  Marks are
 * inserted and deleted by TID, never updated, and no segment has an index, so
 * producers never wait for one another and a held snapshot costs nothing.  TIDs
 * are reused: whoever follows one compares loop, entity and number.
 */
#ifndef RECONCILE_MARK_H
#define RECONCILE_MARK_H

#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/off.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "core/install.h"

typedef enum MarkKind
{
	MARK_TRIGGER = 't',			/* enqueue, watch, revive: due_at may be later (delay) */
	MARK_LOOK = 'l',			/* the next look that a run asked for */
	MARK_BACKOFF = 'b',			/* the next look after a failure */
	MARK_RESYNC = 'r',			/* by a resync: does not revive the dead */
	MARK_CLAIM = 'c'			/* the deadline of an outside worker's claim; number = the claim's epoch */
} MarkKind;

static inline bool
mark_is_look(char kind)
{
	return kind == MARK_LOOK || kind == MARK_BACKOFF;
}

/* Where a mark is and what it says; a plain value, fit for shared memory. */
typedef struct MarkRef
{
	int64		number;			/* random, but for claims: tells a mark from a later one at its TID */
	TimestampTz due_at;
	TimestampTz made_at;
	BlockNumber block;
	OffsetNumber offset;
	uint8		segment;
	char		kind;			/* MarkKind */
} MarkRef;

/* The segment that producers should use now; set by the engine, read without a lock. */
extern int	(*mark_current_segment_hook) (void);

/*
 * Inserts one mark, in the current segment or the next that is not being
 * truncated; takes no lock that another producer holds.  *ref may be NULL.
 * "wake" tells the engine at commit.
 */
extern void mark_insert(const char *loop_name, const char *entity_id, MarkKind kind,
						TimestampTz due_at, bool wake, MarkRef *ref);

/* The mark of a claim's deadline, whose number is the claim's epoch; wakes. */
extern void mark_insert_claim(const char *loop_name, const char *entity_id, int64 epoch,
							  TimestampTz due_at, MarkRef *ref);

/* The same for many, with one insert; due_at[i] may be NULL for "all now". */
extern void mark_insert_many(const char *loop_name, int n, const char *const *entity_ids,
							 MarkKind kind, const TimestampTz *due_at);

/* Inserts the same mark anew in another segment: for a move, which deletes the old one. */
extern void mark_copy(const char *loop_name, const char *entity_id, const MarkRef *from,
					  int segment, MarkRef *to);

/* The room that a mark takes in its segment, in bytes. */
extern Size mark_size(const char *loop_name, const char *entity_id);

/* Is the mark still there, by this snapshot? */
extern bool mark_visible(const char *loop_name, const char *entity_id, const MarkRef *ref, Snapshot snapshot);

/* Is one of them still there; is one that is a trigger, or are they deadlines of claims alone? */
extern bool mark_any_visible(const char *loop_name, const char *entity_id, const MarkRef *refs, int n,
							 bool *triggered, bool *deadlines);

/*
 * Deletes the triggers of the loop that this transaction itself made, where
 * matches() holds for the entity.
 */
extern void mark_delete_own(const char *loop_name, bool (*matches) (const char *entity_id, void *arg), void *arg);

/*
 * Deletes the marks that are still there and belong to (loop, entity); returns
 * how many it deleted.  May wait for a concurrent deleter's transaction.
 */
extern int	mark_delete(const char *loop_name, const char *entity_id, const MarkRef *refs, int n);

/* The same, but for those that an open transaction is deleting: never waits. */
extern int	mark_try_delete(const char *loop_name, const char *entity_id, const MarkRef *refs, int n);

/* Marks that this backend has deleted: while it stays the same, a mark that was made is there. */
extern uint64 mark_deletions;

/* Called for each visible mark of a scan; loop_name and entity_id live until it returns. */
typedef void (*MarkVisitor) (const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg);

/* Visits the marks of one segment, in blocks first .. last (InvalidBlockNumber: to its end). */
extern void mark_scan(int segment, BlockNumber first, BlockNumber last, Snapshot snapshot,
					  MarkVisitor visit, void *arg);

/* Visits one mark by TID, if it is there. */
extern void mark_visit_one(int segment, BlockNumber block, OffsetNumber offset, Snapshot snapshot,
						   MarkVisitor visit, void *arg);

/* All segments. */
extern void mark_scan_all(Snapshot snapshot, MarkVisitor visit, void *arg);

/* Blocks of a segment now. */
extern BlockNumber mark_segment_blocks(int segment);

/*
 * Empties a segment, if no mark is in it and nobody uses it; never waits.
 * True if it has no blocks now.
 */
extern bool mark_segment_truncate(int segment);

#endif							/* RECONCILE_MARK_H */

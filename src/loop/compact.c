/*
 * compact.c
 *		Keeps the mark segments small where no dispatcher rotates them.
 *
 * Producers without a dispatcher write the first segment that is free for them,
 * and run_loop() deletes what it answers, so dead rows pile up.  When a segment
 * has grown by them, what is alive in it moves; then it is emptied.  A run in
 * another session whose marks move under it finds them gone, remembers nothing,
 * and the moved marks cause one more run.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "loop/compact.h"
#include "loop/mark.h"

#define COMPACT_BLOCKS	512		/* size from which a segment is worth the work, if half of it is dead */

static void
count_bytes(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	*(uint64 *) arg += mark_size(loop_name, entity_id);
}

static bool
is_worth_the_work(int segment, BlockNumber blocks)
{
	uint64		bytes = 0;

	if (blocks < COMPACT_BLOCKS)
		return false;
	mark_scan(segment, 0, InvalidBlockNumber, GetActiveSnapshot(), count_bytes, &bytes);
	return bytes / BLCKSZ <= blocks / 2;
}

static void
move_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	MarkRef		moved;

	if (mark_delete(loop_name, entity_id, ref, 1) > 0)
		mark_copy(loop_name, entity_id, ref, *(int *) arg, &moved);
}

static int
smallest_segment(const BlockNumber *blocks)
{
	int			smallest = 0;

	for (int i = 1; i < MARK_SEGMENTS; i++)
	{
		if (blocks[i] < blocks[smallest])
			smallest = i;
	}
	return smallest;
}

void
compact_move(void)
{
	BlockNumber blocks[MARK_SEGMENTS];
	int			target;

	for (int i = 0; i < MARK_SEGMENTS; i++)
		blocks[i] = mark_segment_blocks(i);
	target = smallest_segment(blocks);
	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		if (i == target)
			continue;
		PushActiveSnapshot(GetTransactionSnapshot());
		if (is_worth_the_work(i, blocks[i]))
			mark_scan(i, 0, InvalidBlockNumber, GetActiveSnapshot(), move_mark, &target);
		PopActiveSnapshot();
	}
}

void
compact_truncate(void)
{
	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		if (mark_segment_blocks(i) >= COMPACT_BLOCKS)
			(void) mark_segment_truncate(i);
	}
}

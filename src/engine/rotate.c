/*
 * rotate.c
 *		Rotation of the mark segments: none grows for ever.
 *
 * When the current segment is large, producers are pointed at an empty one.
 * What is left in the old one and cannot be answered soon is moved to the
 * current one, a few at a time; then the old one is emptied, if at that moment
 * nobody uses it.  Every reader reads all segments, so the pointer is a hint.
 *
 * After as many marks it also takes away what runs have left in reconcile.entity.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "engine/dispatcher.h"
#include "engine/process.h"
#include "loop/entity.h"

#define ROTATE_BLOCKS		512 /* size from which a segment is left */
#define LOOK_AFTER_MARKS	2000	/* marks taken in between two looks at the size */
#define MOVE_BLOCKS			32	/* blocks of an old segment moved in one transaction */
#define SOON_MS				5000	/* what is due by then is left to its run */
#define RETRY_MIN_MS		200
#define RETRY_MAX_MS		60000

static bool draining[MARK_SEGMENTS];	/* has blocks, and is not the current one */
static BlockNumber next_block[MARK_SEGMENTS];	/* where moving goes on */
static TimestampTz retry_at = 0;
static int64 retry_ms = 0;
/*
 * What was moved to the current segment.  It would be moved again with it, so a
 * segment is left only when as much has come in since: however many marks wait,
 * a new one costs at most one move.
 */
static uint64 moved_bytes = 0;

typedef struct Sizes
{
	BlockNumber blocks[MARK_SEGMENTS];
} Sizes;

static void
look_at_sizes(void *arg)
{
	Sizes	   *sizes = arg;

	for (int i = 0; i < MARK_SEGMENTS; i++)
		sizes->blocks[i] = mark_segment_blocks(i);
}

static void
sweep(void *arg)
{
	entity_sweep();
}

static int
current(void)
{
	return (int) pg_atomic_read_u32(&dispatcher->db->segment);
}

void
rotate_init(void)
{
	/* the first turn looks at the sizes, whatever was taken in */
	dispatcher->marks_seen = LOOK_AFTER_MARKS;
}

/* ----------------------------------------------------------------
 * Moving
 * ----------------------------------------------------------------
 */

typedef struct Move
{
	int			segment;
	TimestampTz now;
	int			left;			/* marks that stay: in flight, or due soon */
} Move;

static void
move_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Move	   *move = arg;
	DispatchLoop *loop = dispatcher_find_loop(loop_name);
	DueEntity  *entity;
	MarkRef		moved;

	if (loop == NULL)
	{
		Oid			owner;

		/* of a loop that was dropped, or that we have not heard of */
		if (loop_find_owner(loop_name, &owner))
		{
			dispatcher->reload_owed = true;
			dispatcher_wake_at(move->now);
			move->left++;
			return;
		}
		(void) mark_try_delete(loop_name, entity_id, ref, 1);
		return;
	}
	entity = due_find(dispatcher->due, loop->due, entity_id);
	if (entity != NULL && entity->state == DUE_RUNNING)
	{
		move->left++;
		return;
	}
	/* what only outside workers answer may wait for long */
	if (loop->rules.reconciler[0] != '\0' && dispatcher_loop_runs(loop, move->now) && ref->due_at < clock_add_ms(move->now, SOON_MS) && entity != NULL)
	{
		move->left++;
		return;
	}
	if (mark_try_delete(loop_name, entity_id, ref, 1) == 0)
		return;
	mark_copy(loop_name, entity_id, ref, current(), &moved);
	moved_bytes += mark_size(loop_name, entity_id);
	/* the message that tells of it may still be in the ring, and will find nothing there */
	if (entity == NULL || !due_moved(entity, ref, &moved))
		due_add(dispatcher->due, loop->due, entity_id, &moved, move->now);
}

static void
move_blocks(void *arg)
{
	Move	   *move = arg;
	BlockNumber first = next_block[move->segment];

	mark_scan(move->segment, first, first + MOVE_BLOCKS - 1, GetActiveSnapshot(), move_mark, move);
}

static void
truncate_segment(void *arg)
{
	Move	   *move = arg;

	move->left = mark_segment_truncate(move->segment) ? 0 : 1;
}

/* Moves a step; true if the segment is empty now. */
static bool
drain(int segment, BlockNumber blocks, TimestampTz now)
{
	Move		move = {segment, now, 0};

	if (next_block[segment] < blocks)
	{
		if (!process_transaction(move_blocks, &move))
		{
			/* places that were noted as moved are not: read them again */
			dispatcher->rescan_owed = true;
			dispatcher_wake_at(clock_add_ms(now, RETRY_MAX_MS));
			return false;
		}
		next_block[segment] += MOVE_BLOCKS;
		if (next_block[segment] < blocks)
		{
			dispatcher_wake_at(now);	/* more at the next turn, after the work */
			retry_ms = 0;
			return false;
		}
	}
	next_block[segment] = 0;	/* once more from the start, if it is not empty */
	return process_transaction(truncate_segment, &move) && move.left == 0;
}

static bool
is_to_be_left(BlockNumber blocks)
{
	return blocks >= ROTATE_BLOCKS && blocks / 2 >= moved_bytes / BLCKSZ;
}

void
rotate_tend(TimestampTz now)
{
	Sizes		sizes;
	bool		waiting = false;
	int			segment = current();

	if (dispatcher->marks_seen < LOOK_AFTER_MARKS && (retry_at == 0 || now < retry_at))
	{
		if (retry_at != 0)
			dispatcher_wake_at(retry_at);
		return;
	}
	if (dispatcher->marks_seen >= LOOK_AFTER_MARKS)
		(void) process_transaction(sweep, NULL);	/* what is left comes by again */
	dispatcher->marks_seen = 0;
	if (!process_transaction(look_at_sizes, &sizes))
		return;

	for (int i = 1; i < MARK_SEGMENTS && is_to_be_left(sizes.blocks[segment]); i++)
	{
		int			next = (segment + i) % MARK_SEGMENTS;

		if (sizes.blocks[next] == 0)
		{
			pg_atomic_write_u32(&dispatcher->db->segment, next);
			segment = next;
			moved_bytes = 0;
		}
	}
	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		draining[i] = i != segment && sizes.blocks[i] > 0;
		if (draining[i] && !drain(i, sizes.blocks[i], now))
			waiting = true;
	}

	if (!waiting)
	{
		dispatcher->db->rotating_since = 0;
		retry_at = 0;
		retry_ms = 0;
		return;
	}
	if (dispatcher->db->rotating_since == 0)
		dispatcher->db->rotating_since = now;
	retry_ms = retry_ms == 0 ? RETRY_MIN_MS : Min(retry_ms * 2, RETRY_MAX_MS);
	retry_at = clock_add_ms(now, retry_ms);
	dispatcher_wake_at(retry_at);
}

/*
 * wake.c
 *		Collects what a transaction wrote and hands it to the engine at commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/itemptr.h"

#include "core/wake.h"

void		(*wake_hook) (const Wake *wake, bool prepared) = NULL;

static Wake pending;
static bool pending_any = false;

void
wake_mark(int segment, ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(tid);

	if (pending.nmarks < WAKE_MARKS)
	{
		WakeMark   *mark = &pending.marks[pending.nmarks++];

		mark->segment = segment;
		mark->block = mark->last_block = block;
		mark->offset = ItemPointerGetOffsetNumber(tid);
	}
	else if (!pending.ranged[segment])
	{
		pending.ranged[segment] = true;
		pending.first_block[segment] = pending.last_block[segment] = block;
	}
	else
	{
		pending.first_block[segment] = Min(pending.first_block[segment], block);
		pending.last_block[segment] = Max(pending.last_block[segment], block);
	}
	pending_any = true;
}

void
wake_gone(int segment, BlockNumber block, OffsetNumber offset)
{
	WakeMark   *mark;

	if (pending.ngone == WAKE_GONE)
		return;
	mark = &pending.gone[pending.ngone++];
	mark->segment = segment;
	mark->block = mark->last_block = block;
	mark->offset = offset;
	mark->gone = true;
	pending_any = true;
}

const Wake *
wake_pending(void)
{
	return &pending;
}

void
wake_reload(void)
{
	pending.reload = true;
	pending_any = true;
}

void
wake_leases(void)
{
	pending.leases = true;
	pending_any = true;
}

void
wake_terms(void)
{
	pending.terms = true;
	pending_any = true;
}

void
wake_rescan(void)
{
	pending.rescan = true;
	pending_any = true;
}

static void
wake_xact_callback(XactEvent event, void *arg)
{
	if (!pending_any)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			if (wake_hook != NULL)
				wake_hook(&pending, event == XACT_EVENT_PREPARE);
			break;
		case XACT_EVENT_ABORT:
			break;
		default:
			return;				/* not over yet */
	}
	memset(&pending, 0, sizeof(pending));
	pending_any = false;
}

void
wake_init(void)
{
	RegisterXactCallback(wake_xact_callback, NULL);
}

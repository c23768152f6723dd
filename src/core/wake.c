/*
 * wake.c
 *		Collects what a transaction wrote and hands it to the engine at commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/itemptr.h"

#include "core/testpoint.h"
#include "core/wake.h"

void		(*wake_hook) (const Wake *wake, bool prepared) = NULL;

static Wake pending;
static bool pending_any = false;

static void
note(WakeList *list, bool gone, int segment, BlockNumber block, OffsetNumber offset)
{
	if (list->n < WAKE_MARKS)
	{
		WakeMark   *mark = &list->marks[list->n++];

		mark->segment = segment;
		mark->block = mark->last_block = block;
		mark->offset = offset;
		mark->gone = gone;
	}
	else if (!list->ranged[segment])
	{
		list->ranged[segment] = true;
		list->first_block[segment] = list->last_block[segment] = block;
	}
	else
	{
		list->first_block[segment] = Min(list->first_block[segment], block);
		list->last_block[segment] = Max(list->last_block[segment], block);
	}
	pending_any = true;
}

void
wake_mark(int segment, ItemPointer tid)
{
	note(&pending.made, false, segment, ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid));
}

void
wake_gone(int segment, BlockNumber block, OffsetNumber offset)
{
	note(&pending.gone, true, segment, block, offset);
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
		case XACT_EVENT_PRE_COMMIT:
			TEST_POINT("session-before-commit");
			return;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
			TEST_POINT("session-after-commit");
			if (wake_hook != NULL)
				wake_hook(&pending, event == XACT_EVENT_PREPARE);
			TEST_POINT("session-after-outcome");
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

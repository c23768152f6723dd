/*
 * count.c
 *		What a transaction does to commands, kept until it commits.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "journal/count.h"

const char *const count_actions[COUNT_ACTIONS] = {
	"pause", "resume", "drain", "terminate", "retry", "bulk_retry", "delete", "purge", "replay", "scale", "other"
};

/* Answers of accept_command(), then what becomes of a command, then what is found out of it. */
const char *const count_outcomes[COUNT_OUTCOMES] = {
	"accepted", "replayed", "conflict", "denied", "stale_revision", "illegal_transition", "key_spent",
	"dispatched", "acknowledged", "succeeded", "failed", "unsupported", "timed_out", "partial", "unknown", "canceled",
	"resolved", "reported_late"
};

typedef struct Count
{
	int			level;			/* of the subtransaction that told it */
	int			action;
	int			outcome;
} Count;

void		(*command_counted_hook) (int action, int outcome) = NULL;

static Count *counts = NULL;	/* in TopMemoryContext */
static int	ncounts = 0;
static int	counts_allocated = 0;

static int
place_in(const char *name, const char *const *names, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (strcmp(names[i], name) == 0)
			return i;
	}
	return n;
}

void
command_count(const char *action, const char *outcome)
{
	int			place = place_in(outcome, count_outcomes, COUNT_OUTCOMES);

	if (command_counted_hook == NULL || place == COUNT_OUTCOMES)
		return;
	if (ncounts == counts_allocated)
	{
		int			size = counts_allocated > 0 ? 2 * counts_allocated : 16;

		if (counts == NULL)
			counts = MemoryContextAlloc(TopMemoryContext, size * sizeof(Count));
		else
			counts = repalloc(counts, size * sizeof(Count));
		counts_allocated = size;
	}
	counts[ncounts].level = GetCurrentTransactionNestLevel();
	counts[ncounts].action = Min(place_in(action, count_actions, COUNT_ACTIONS), COUNT_ACTIONS - 1);
	counts[ncounts++].outcome = place;
}

static void
count_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			for (int i = 0; i < ncounts; i++)
				command_counted_hook(counts[i].action, counts[i].outcome);
			break;
		case XACT_EVENT_PREPARE:	/* it may yet abort: what it counted is told by nobody */
		case XACT_EVENT_ABORT:
			break;
		default:
			return;
	}
	ncounts = 0;
}

static void
count_subxact_callback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (int i = ncounts - 1; i >= 0 && counts[i].level >= level; i--)
			counts[i].level = level - 1;
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (ncounts > 0 && counts[ncounts - 1].level >= level)
			ncounts--;
	}
}

void
count_init(void)
{
	RegisterXactCallback(count_xact_callback, NULL);
	RegisterSubXactCallback(count_subxact_callback, NULL);
}

/*
 * count.c
 *		What a transaction does to commands, kept until it commits.
 */
#include "postgres.h"

#include "core/nested.h"
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
	Nested		nested;
	int			action;
	int			outcome;
} Count;

void		(*command_counted_hook) (int action, int outcome) = NULL;

static Nested *counts = NULL;

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
	Count	   *count;

	if (command_counted_hook == NULL || place == COUNT_OUTCOMES)
		return;
	count = nested_add(&counts, sizeof(Count));
	count->action = Min(place_in(action, count_actions, COUNT_ACTIONS), COUNT_ACTIONS - 1);
	count->outcome = place;
}

static void
count_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			for (const Nested *it = counts; it != NULL; it = it->earlier)
				command_counted_hook(((const Count *) it)->action, ((const Count *) it)->outcome);
			break;
		case XACT_EVENT_PREPARE:	/* it may yet abort: what it counted is told by nobody */
		case XACT_EVENT_ABORT:
			break;
		default:
			return;
	}
	counts = NULL;
}

static void
count_subxact_callback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	nested_end_subxact(&counts, event);
}

void
count_init(void)
{
	RegisterXactCallback(count_xact_callback, NULL);
	RegisterSubXactCallback(count_subxact_callback, NULL);
}

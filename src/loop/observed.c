/*
 * observed.c
 *		Tells of the runs that a transaction ends, once it has committed.
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "loop/observed.h"

typedef struct Pending
{
	struct Pending *next;
	int			level;
	RunObserved run;
} Pending;

void		(*run_observed_hook) (const RunObserved *run) = NULL;
void		(*run_in_flight_hook) (const char *loop_name, int change) = NULL;
void		(*run_expected_hook) (void) = NULL;

static Pending *pending = NULL; /* in TopTransactionContext, the latest first */

static void
observed_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	for (Pending *it = pending; it != NULL && event == XACT_EVENT_COMMIT; it = it->next)
		run_observed_hook(&it->run);
	pending = NULL;
}

static void
observed_subxact_callback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (Pending *it = pending; it != NULL && it->level >= level; it = it->next)
			it->level = level - 1;
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (pending != NULL && pending->level >= level)
			pending = pending->next;
	}
}

void
observed_at_commit(const RunObserved *run)
{
	static bool registered = false;
	MemoryContext outer;
	Pending    *added;

	if (run_observed_hook == NULL)
		return;
	if (!registered)
	{
		RegisterXactCallback(observed_xact_callback, NULL);
		RegisterSubXactCallback(observed_subxact_callback, NULL);
		registered = true;
	}
	run_expected_hook();
	outer = MemoryContextSwitchTo(TopTransactionContext);
	added = palloc(sizeof(Pending));
	added->run = *run;
	added->run.loop_name = pstrdup(run->loop_name);
	added->run.entity_id = pstrdup(run->entity_id);
	added->level = GetCurrentTransactionNestLevel();
	added->next = pending;
	pending = added;
	MemoryContextSwitchTo(outer);
}

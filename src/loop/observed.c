/*
 * observed.c
 *		Tells of the runs that a transaction ends, once it has committed.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "core/nested.h"
#include "loop/observed.h"

typedef struct Pending
{
	Nested		nested;
	RunObserved run;
} Pending;

void		(*run_observed_hook) (const RunObserved *run) = NULL;
void		(*run_in_flight_hook) (const char *loop_name, int change) = NULL;
void		(*run_expected_hook) (void) = NULL;

static Nested *pending = NULL;

static void
observed_xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE)
		return;
	for (const Nested *it = pending; it != NULL && event == XACT_EVENT_COMMIT; it = it->earlier)
		run_observed_hook(&((const Pending *) it)->run);
	pending = NULL;
}

static void
observed_subxact_callback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	nested_end_subxact(&pending, event);
}

void
observed_at_commit(const RunObserved *run)
{
	static bool registered = false;
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
	added = nested_add(&pending, sizeof(Pending));
	added->run = *run;
	added->run.loop_name = MemoryContextStrdup(TopTransactionContext, run->loop_name);
	added->run.entity_id = MemoryContextStrdup(TopTransactionContext, run->entity_id);
}

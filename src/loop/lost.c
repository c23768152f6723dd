/*
 * lost.c
 *		Books a run that took the server down with it.
 *
 * Nobody has its list any more, so the list is every mark that is there now and
 * that a run may answer.  Some of those may have come after the run began: a
 * look after the backoff stands for them, and an entity that dies keeps them.
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/errors.h"
#include "loop/due.h"
#include "loop/run.h"

typedef struct Collected
{
	const LoopRun *run;
	TimestampTz now;
	int64		mark;			/* number of the one that the run is known by */
	bool		found;
	MarkRef    *refs;
	int			n;
	int			size;
} Collected;

static void
collect(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Collected  *collected = arg;

	if (strcmp(entity_id, collected->run->entity_id) != 0 ||
		strcmp(loop_name, collected->run->rules->loop_name) != 0)
		return;
	collected->found |= ref->number == collected->mark;
	if (ref->kind == MARK_CLAIM || (ref->due_at > collected->now && !mark_is_look(ref->kind)))
		return;
	if (collected->n == collected->size)
	{
		collected->size *= 2;
		collected->refs = repalloc_huge(collected->refs, sizeof(MarkRef) * collected->size);
	}
	collected->refs[collected->n++] = *ref;
}

bool
run_book_crash(LoopRun *run, int64 mark)
{
	Collected	collected = {run, clock_now(), mark};
	ErrorData	error = {0};
	Snapshot	snapshot;
	int			nlisted = 0;

	collected.size = DUE_LIST_MAX;
	collected.refs = palloc(sizeof(MarkRef) * collected.size);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	mark_scan_all(snapshot, collect, &collected);
	UnregisterSnapshot(snapshot);
	if (!collected.found)
		return false;

	/* what was surely in its list goes first */
	for (int i = 0; i < collected.n; i++)
	{
		MarkRef		ref = collected.refs[i];

		if (ref.number != mark && ref.kind == MARK_TRIGGER)
			continue;
		collected.refs[i] = collected.refs[nlisted];
		collected.refs[nlisted++] = ref;
	}
	run->marks = collected.refs;
	run->nmarks = collected.n;
	run->nkept = collected.n - nlisted;
	run->loss = LOSS_SERVER;
	error.sqlerrcode = ERRCODE_CRASH_SHUTDOWN;
	error.message = "the server crashed while it ran";
	run_book_failure(run, &error);
	return true;
}

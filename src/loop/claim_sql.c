/*
 * claim_sql.c
 *		SQL functions of outside workers.
 *
 * Batches lock the rows in the order of their ids, whatever the order of the
 * arguments, so that two of them never wait for each other.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "fence/fence.h"
#include "lease/incarnation.h"
#include "lease/lease.h"
#include "loop/claim.h"
#include "loop/due.h"
#include "loop/run.h"

#define CLAIM_MAX	1000			/* each holds a lock until COMMIT */
#define ITEMS_MAX	10000

/* The loop that a worker calls for. */
static void
loop_for_work(FunctionCallInfo fcinfo, const char *function, LoopRules *rules)
{
	char	   *loop_name;

	require_writable(function);
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	access_require(CAP_WORK, loop_name);
	loop_require(loop_name, rules);
}

static bool
gives_work(const LoopRules *rules)
{
	return rules->enabled && !rules->paused;
}

/* ----------------------------------------------------------------
 * Without a dispatcher: a scan of all marks
 * ----------------------------------------------------------------
 */

typedef struct Search
{
	const LoopRules *rules;
	DueSet	   *due;
	DueLoop    *loop;
	TimestampTz now;
} Search;

static void
add_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Search	   *search = arg;

	if (strcmp(loop_name, search->rules->loop_name) == 0 && !loop_is_resync(search->rules, entity_id))
		due_add(search->due, search->loop, entity_id, ref, search->now);
}

static void
search_tables(Search *search, const LoopRules *rules)
{
	Snapshot	snapshot;

	search->rules = rules;
	search->now = clock_now();
	search->due = due_create(CurrentMemoryContext);
	search->loop = due_loop(search->due, rules->loop_name);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	mark_scan_all(snapshot, add_mark, search);
	UnregisterSnapshot(snapshot);
}

/* ----------------------------------------------------------------
 * claim_work()
 * ----------------------------------------------------------------
 */

typedef struct Claiming
{
	const LoopRules *rules;
	const char *holder_id;
	int64		ttl_ms;
	int64		lease_epoch;
	int64		floor;			/* of claims' epochs */
	int			wanted;			/* still */
	ReturnSetInfo *result;
} Claiming;

static void
claim_candidate(Claiming *claiming, const ClaimCandidate *candidate)
{
	Claim		claim;
	TimestampTz again_at;
	Datum		values[6];
	bool		nulls[6] = {false};

	switch (claim_try(claiming->rules, candidate, claiming->holder_id, claiming->ttl_ms,
					  claiming->lease_epoch, claiming->floor, &claim, &again_at))
	{
		case CLAIM_BUSY:
			if (candidate->lent >= 0)
				claim_return_hook(candidate->lent, again_at);
			return;
		case CLAIM_DROPPED:
			return;
		case CLAIM_MADE:
			break;
	}
	values[0] = CStringGetTextDatum(candidate->entity_id);
	values[1] = Int64GetDatum(claim.epoch);
	values[2] = Int64GetDatum(claim.lease_epoch);
	nulls[2] = claim.lease_epoch == 0;
	values[3] = Int32GetDatum(claim.attempt);
	values[4] = TimestampTzGetDatum(claim.expires_at);
	values[5] = IntervalPGetDatum(duration_interval((claim.expires_at - clock_now()) / 1000));
	tuplestore_putvalues(claiming->result->setResult, claiming->result->setDesc, values, nulls);
	claiming->wanted--;
}

/* False: no dispatcher answers. */
static bool
claim_lent(Claiming *claiming)
{
	if (claim_lend_hook == NULL)
		return false;
	while (claiming->wanted > 0)
	{
		ClaimCandidate *candidates;
		TimestampTz next_due;
		int			n = claim_lend_hook(claiming->rules->loop_name, claiming->wanted, &candidates, &next_due);

		if (n < 0)
			return false;
		if (n == 0)
			break;
		for (int i = 0; i < n; i++)
			claim_candidate(claiming, &candidates[i]);
	}
	return true;
}

static void
claim_found(Claiming *claiming)
{
	Search		search;
	DueEntity  *entity;

	search_tables(&search, claiming->rules);
	while (claiming->wanted > 0 && (entity = due_first(search.loop)) != NULL)
	{
		ClaimCandidate candidate;

		CHECK_FOR_INTERRUPTS();
		candidate.entity_id = entity->entity_id;
		candidate.lent = -1;
		due_take(search.due, entity, search.now, PG_INT32_MAX, &candidate.marks, &candidate.nmarks);
		claim_candidate(claiming, &candidate);
		pfree(candidate.marks);
		due_answered(search.due, entity, NULL, search.now);
	}
	due_destroy(search.due);
}

/* The term of the loop's lease that the worker must hold; the transaction is bound to it. */
static int64
require_term(const LoopRules *rules, const char *holder_id)
{
	Lease		lease = {{0}};

	if (!lease_read(rules->loop_name, &lease) || strcmp(lease.holder_id, holder_id) != 0 ||
		!fence_bind(rules->loop_name, holder_id, lease.epoch, false))
		ereport(ERROR,
				(errcode(ERRCODE_LEASE_LOST),
				 errmsg("\"%s\" does not hold the lease \"%s\"", holder_id, rules->loop_name),
				 errhint("Only the holder of the loop's lease may claim its work: see reconcile.acquire_lease().")));
	return lease.epoch;
}

PG_FUNCTION_INFO_V1(reconcile_claim_work);
Datum
reconcile_claim_work(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	Claiming	claiming = {0};
	bool		gives;

	loop_for_work(fcinfo, "claim_work", &rules);
	claiming.rules = &rules;
	claiming.holder_id = holder_id_arg(fcinfo, 1, "holder_id");
	claiming.wanted = max_items_arg(fcinfo, 2, CLAIM_MAX, "It is 1 to 1000.");
	claiming.ttl_ms = duration_arg(fcinfo, 3, "ttl", false);
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("claim_work() does not work above READ COMMITTED"),
				 errdetail("What is read in the transaction would be older than the claim."),
				 errhint("Begin the transaction with ISOLATION LEVEL READ COMMITTED.")));

	InitMaterializedSRF(fcinfo, 0);
	claiming.result = (ReturnSetInfo *) fcinfo->resultinfo;
	/* may wait, so nothing is locked yet; a loop of another home writes nothing here */
	gives = gives_work(&rules);
	if (gives)
		claiming.floor = incarnation_settle();
	/* first this, then the loop's row: who has paused it since sees us */
	run_show(rules.loop_name);
	loop_require(rules.loop_name, &rules);
	if (rules.lease_ttl_ms > 0)
		claiming.lease_epoch = require_term(&rules, claiming.holder_id);
	if (gives && gives_work(&rules) && !claim_lent(&claiming))
		claim_found(&claiming);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_next_due);
Datum
reconcile_next_due(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	ClaimCandidate *none;
	TimestampTz next_due;
	TimestampTz now;

	loop_for_work(fcinfo, "next_due", &rules);
	if (!gives_work(&rules))
		PG_RETURN_NULL();
	if (claim_lend_hook == NULL || claim_lend_hook(rules.loop_name, 0, &none, &next_due) < 0)
	{
		Search		search;

		search_tables(&search, &rules);
		next_due = search.loop->nready > 0 ? DT_NOBEGIN : due_loop_next(search.loop);
		due_destroy(search.due);
	}
	now = clock_now();
	if (next_due == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(duration_interval(next_due <= now ? 0 : (next_due - now + 999) / 1000));
}

/* ----------------------------------------------------------------
 * Reports
 * ----------------------------------------------------------------
 */

compat_noreturn static void stale_claim(const char *loop_name, const char *entity_id, int64 epoch);

static void
stale_claim(const char *loop_name, const char *entity_id, int64 epoch)
{
	ereport(ERROR,
			(errcode(ERRCODE_STALE_CLAIM),
			 errmsg("the claim of entity \"%s\" in loop \"%s\" does not stand", entity_id, loop_name),
			 errdetail("Claim " INT64_FORMAT " ran out, was reported already, or the entity was claimed again.", epoch),
			 errhint("Give up this attempt: somebody else may be at work.")));
}

static int64
epoch_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	if (PG_ARGISNULL(n))
		arg_null(arg);
	return PG_GETARG_INT64(n);
}

/* One reported claim, and where its answer goes. */
typedef struct Report
{
	const char *entity_id;
	int64		epoch;
	int64		requeue_ms;		/* -1 = not asked for */
	bool		held;
	TimestampTz expires_at;
} Report;

typedef struct Reports
{
	int			n;
	Report	   *items;			/* as given */
	Report	  **ordered;		/* by id: the order of their locks */
} Reports;

static bool
is_reported(const char *entity_id, void *arg)
{
	Reports	   *items = arg;
	int			low = 0;
	int			high = items->n - 1;

	while (low <= high)
	{
		int			middle = (low + high) / 2;
		int			order = strcmp(entity_id, items->ordered[middle]->entity_id);

		if (order == 0)
			return true;
		if (order < 0)
			high = middle - 1;
		else
			low = middle + 1;
	}
	return false;
}

/* What the worker itself wrote does not ask for another look. */
static void
drop_own_marks(const LoopRules *rules, const char *entity_id)
{
	Report		item = {entity_id};
	Report	   *ordered = &item;
	Reports		items = {1, &item, &ordered};

	mark_delete_own(rules->loop_name, is_reported, &items);
}

PG_FUNCTION_INFO_V1(reconcile_complete_work);
Datum
reconcile_complete_work(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	Entity		entity;
	char	   *entity_id;
	int64		epoch;
	int64		requeue_ms = 0;

	loop_for_work(fcinfo, "complete_work", &rules);
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	epoch = epoch_arg(fcinfo, 2, "claim_epoch");
	if (!PG_ARGISNULL(3))
		requeue_ms = duration_arg(fcinfo, 3, "requeue_after", true);
	if (!claim_hold(&rules, entity_id, epoch, &entity))
		stale_claim(rules.loop_name, entity_id, epoch);
	drop_own_marks(&rules, entity_id);
	claim_complete(&rules, entity_id, &entity, requeue_ms > 0, requeue_ms);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_fail_work);
Datum
reconcile_fail_work(PG_FUNCTION_ARGS)
{
	LoopRules	rules;
	Entity		entity;
	char	   *entity_id;
	char	   *error;
	int64		epoch;
	int64		retry_ms = -1;

	loop_for_work(fcinfo, "fail_work", &rules);
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	epoch = epoch_arg(fcinfo, 2, "claim_epoch");
	error = text_arg(fcinfo, 3, "error");
	if (PG_ARGISNULL(4))
		arg_null("permanent");
	if (!PG_ARGISNULL(5))
		retry_ms = duration_arg(fcinfo, 5, "retry_after", true);
	if (PG_GETARG_BOOL(4) && retry_ms >= 0)
		arg_invalid("retry_after", "comes with a permanent error", "A permanent error is not tried again: pass NULL.");
	if (!claim_hold(&rules, entity_id, epoch, &entity))
		stale_claim(rules.loop_name, entity_id, epoch);
	drop_own_marks(&rules, entity_id);
	claim_fail(&rules, entity_id, &entity, error, PG_GETARG_BOOL(4), retry_ms);
	PG_RETURN_VOID();
}

static int
compare_items(const void *a, const void *b)
{
	const Report *x = *(Report *const *) a;
	const Report *y = *(Report *const *) b;
	int			order = strcmp(x->entity_id, y->entity_id);

	/* one that is named twice is reported in the order given */
	return order != 0 ? order : (x > y) - (x < y);
}

/* Arguments 1 and 2: entity_ids and claim_epochs. */
static void
items_arg(FunctionCallInfo fcinfo, Reports *items)
{
	Datum	   *ids;
	Datum	   *epochs;

	items->n = array_arg(fcinfo, 1, "entity_ids", TEXTOID, ITEMS_MAX, &ids);
	array_lengths_check("claim_epochs", array_arg(fcinfo, 2, "claim_epochs", INT8OID, ITEMS_MAX, &epochs),
						"entity_ids", items->n);
	items->items = palloc0(sizeof(Report) * Max(items->n, 1));
	items->ordered = palloc(sizeof(Report *) * Max(items->n, 1));
	for (int i = 0; i < items->n; i++)
	{
		Report	   *item = &items->items[i];

		item->entity_id = TextDatumGetCString(ids[i]);
		entity_id_check(item->entity_id, "entity_ids");
		item->epoch = DatumGetInt64(epochs[i]);
		item->requeue_ms = -1;
		items->ordered[i] = item;
	}
	qsort(items->ordered, items->n, sizeof(Report *), compare_items);
}

PG_FUNCTION_INFO_V1(reconcile_complete_works);
Datum
reconcile_complete_works(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	LoopRules	rules;
	Reports		items;
	Reports		held = {0};
	Entity		entity;

	loop_for_work(fcinfo, "complete_works", &rules);
	items_arg(fcinfo, &items);
	if (!PG_ARGISNULL(3))
	{
		Datum	   *requeues;
		bool	   *nulls;

		array_lengths_check("requeue_after", array_nulls_arg(fcinfo, 3, "requeue_after", INTERVALOID, ITEMS_MAX, &requeues, &nulls),
							"entity_ids", items.n);
		for (int i = 0; i < items.n; i++)
		{
			if (!nulls[i])
				items.items[i].requeue_ms = duration_value(DatumGetIntervalP(requeues[i]), "requeue_after", true);
		}
	}
	InitMaterializedSRF(fcinfo, 0);

	held.ordered = palloc(sizeof(Report *) * Max(items.n, 1));
	for (int i = 0; i < items.n; i++)
	{
		Report	   *item = items.ordered[i];

		CHECK_FOR_INTERRUPTS();
		item->held = claim_hold(&rules, item->entity_id, item->epoch, &entity);
		if (!item->held)
			continue;
		held.ordered[held.n++] = item;
		claim_complete(&rules, item->entity_id, &entity, item->requeue_ms > 0, item->requeue_ms);
	}
	/* the looks that were just made are no triggers, and stay */
	if (held.n > 0)
		mark_delete_own(rules.loop_name, is_reported, &held);

	for (int i = 0; i < items.n; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = Int32GetDatum(i + 1);
		values[1] = CStringGetTextDatum(items.items[i].entity_id);
		values[2] = BoolGetDatum(items.items[i].held);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_extend_work);
Datum
reconcile_extend_work(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	LoopRules	rules;
	Reports		items;
	int64		ttl_ms;

	loop_for_work(fcinfo, "extend_work", &rules);
	items_arg(fcinfo, &items);
	ttl_ms = duration_arg(fcinfo, 3, "ttl", false);
	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < items.n; i++)
	{
		Report	   *item = items.ordered[i];

		CHECK_FOR_INTERRUPTS();
		item->held = claim_extend(&rules, item->entity_id, item->epoch, ttl_ms, &item->expires_at);
	}
	for (int i = 0; i < items.n; i++)
	{
		Report	   *item = &items.items[i];
		Datum		values[4];
		bool		nulls[4] = {false};

		values[0] = Int32GetDatum(i + 1);
		values[1] = CStringGetTextDatum(item->entity_id);
		values[2] = BoolGetDatum(item->held);
		nulls[3] = !item->held;
		if (item->held)
			values[3] = IntervalPGetDatum(duration_interval((item->expires_at - clock_now()) / 1000));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * fence_sql.c
 *		Fenced writes as SQL calls them, and the built-in repository behind them.
 *
 * In this order: the fence lock in share mode, the lease by the newest
 * snapshot, the entity's row, and the loop's repository function if it has one.
 * Under the lock the epoch cannot change before we commit, so the order of
 * epochs that the row sees is the order of terms.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/plan.h"
#include "core/tally.h"
#include "fence/fence.h"
#include "lease/incarnation.h"
#include "lease/lease.h"

#define WRITES_MAX	10000		/* in one call */

enum
{
	PLAN_UPDATE,
	PLAN_RECORD,
	PLAN_SEEN,
	PLAN_ANY,
	PLAN_UPSERT,
	PLAN_RECORD_FIRST
};

/* What a write makes of a row that is there, as the compare-and-swap allows. */
#define RECORD \
	" SET last_epoch = $3, revision = r.revision OPERATOR(pg_catalog.+) 1," \
	" updated_at = pg_catalog.clock_timestamp()"
#define MERGE \
	", state = reconcile.json_merge_patch(r.state, $4)"

static SqlPlan plans[] = {
	/* the hot one: what a plain compare-and-swap would do */
	[PLAN_UPDATE] = {
		"UPDATE reconcile.resource r" RECORD MERGE
		" WHERE r.reconciler_id OPERATOR(pg_catalog.=) $1 AND r.entity_id OPERATOR(pg_catalog.=) $2"
		" AND r.last_epoch OPERATOR(pg_catalog.<=) $3",
		4, {TEXTOID, TEXTOID, INT8OID, JSONBOID}
	},
	[PLAN_RECORD] = {
		"UPDATE reconcile.resource r" RECORD
		" WHERE r.reconciler_id OPERATOR(pg_catalog.=) $1 AND r.entity_id OPERATOR(pg_catalog.=) $2"
		" AND r.last_epoch OPERATOR(pg_catalog.<=) $3",
		3, {TEXTOID, TEXTOID, INT8OID}
	},
	[PLAN_SEEN] = {
		"SELECT r.last_epoch FROM reconcile.resource r"
		" WHERE r.reconciler_id OPERATOR(pg_catalog.=) $1 AND r.entity_id OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_ANY] = {
		"SELECT 1 FROM reconcile.resource r WHERE r.reconciler_id OPERATOR(pg_catalog.=) $1 LIMIT 1", 1, {TEXTOID}
	},
	[PLAN_UPSERT] = {
		"INSERT INTO reconcile.resource AS r (reconciler_id, entity_id, last_epoch, revision, state, updated_at)"
		" VALUES ($1, $2, $3, 1, reconcile.json_merge_patch(NULL, $4), pg_catalog.clock_timestamp())"
		" ON CONFLICT (reconciler_id, entity_id) DO UPDATE" RECORD MERGE
		" WHERE r.last_epoch OPERATOR(pg_catalog.<=) $3",
		4, {TEXTOID, TEXTOID, INT8OID, JSONBOID}
	},
	[PLAN_RECORD_FIRST] = {
		"INSERT INTO reconcile.resource AS r (reconciler_id, entity_id, last_epoch, revision, state, updated_at)"
		" VALUES ($1, $2, $3, 1, '{}', pg_catalog.clock_timestamp())"
		" ON CONFLICT (reconciler_id, entity_id) DO UPDATE" RECORD
		" WHERE r.last_epoch OPERATOR(pg_catalog.<=) $3",
		3, {TEXTOID, TEXTOID, INT8OID}
	}
};

bool		(*fence_repository_hook) (const char *reconciler_id, FenceRepository *repository) = NULL;

/*
 * Within sql_begin(), with the fence lock held: the compare-and-swap on the
 * entity's row, which with a repository keeps its state.  false: the entity has
 * seen the higher epoch *seen.
 */
static bool
swap(const char *reconciler_id, const char *entity_id, int64 epoch, Jsonb *mutation,
	 bool repository, int64 *seen)
{
	Datum		values[4];

	values[0] = CStringGetTextDatum(reconciler_id);
	values[1] = CStringGetTextDatum(entity_id);
	values[2] = Int64GetDatum(epoch);
	values[3] = JsonbPGetDatum(mutation);
	if (sql_run(&plans[repository ? PLAN_RECORD : PLAN_UPDATE], values, NULL) > 0)
		return true;
	for (;;)
	{
		if (sql_run_latest(&plans[PLAN_SEEN], values, NULL) > 0)
		{
			*seen = DatumGetInt64(sql_value(0, 1, NULL));
			if (*seen > epoch)
				return false;
		}
		/* nothing there, or somebody has just inserted it */
		if (sql_run(&plans[repository ? PLAN_RECORD_FIRST : PLAN_UPSERT], values, NULL) > 0)
			return true;
	}
}

/* One write, and the call of the repository if there is one. */
static bool
write_through(const char *reconciler_id, const FenceRepository *repository, const char *entity_id,
			  int64 epoch, Jsonb *mutation, int64 *seen)
{
	SqlScope	scope;
	bool		applied;

	sql_begin(&scope);
	applied = swap(reconciler_id, entity_id, epoch, mutation, repository != NULL, seen);
	sql_end(&scope);
	if (applied && repository != NULL)
		repository->call(repository->arg, entity_id, mutation);
	return applied;
}

static bool
resource_apply(const char *reconciler_id, const char *entity_id, int64 epoch,
			   Jsonb *mutation, int64 *seen)
{
	FenceRepository repository;
	bool		has = fence_repository_hook(reconciler_id, &repository);

	return write_through(reconciler_id, has ? &repository : NULL, entity_id, epoch, mutation, seen);
}

static int64
floor_now(void)
{
	Incarnation now;

	incarnation_read(&now);
	return now.floor;
}

static bool
has_resources(const char *reconciler_id)
{
	Datum		value = CStringGetTextDatum(reconciler_id);

	return sql_do(&plans[PLAN_ANY], &value, NULL) > 0;
}

/*
 * Of an id that is not known to have a lease.  One that was ever written has an
 * order from elsewhere; for any other an epoch at or below the floor may be that
 * of a first grant which is lost.
 */
static bool
is_of_lost_past(const char *reconciler_id, int64 epoch)
{
	return epoch > 0 && !has_resources(reconciler_id) && epoch <= floor_now();
}

/*
 * Takes the fence lock, and asks the lease about an epoch of the caller's
 * choice: may it write, if the entity lets it?  RC005 where it was never granted.
 */
static bool
epoch_is_current(const char *reconciler_id, int64 epoch)
{
	Lease		lease;
	bool		leased;
	int64		floor;

	fence_lock_shared(reconciler_id, true);
	leased = lease_read(reconciler_id, &lease);
	if (!leased && is_of_lost_past(reconciler_id, epoch))
		return false;
	floor = leased && epoch > lease.epoch ? floor_now() : 0;
	switch (fence_judge(leased, lease.epoch, clock_now() < lease.expires_at, epoch, floor))
	{
		case FENCE_CURRENT:
			return true;
		case FENCE_STALE:
			break;
		case FENCE_UNMINTED:
			ereport(ERROR,
					(errcode(ERRCODE_UNMINTED_EPOCH),
					 errmsg("epoch " INT64_FORMAT " of \"%s\" was never granted", epoch, reconciler_id),
					 errdetail("The last one granted is " INT64_FORMAT ".", lease.epoch),
					 errhint("Pass the epoch of the lease's token.")));
			break;
	}
	return false;
}

static Jsonb *
mutation_arg(FunctionCallInfo fcinfo, int n)
{
	Jsonb	   *mutation;

	if (PG_ARGISNULL(n))
		arg_null("mutation");
	mutation = PG_GETARG_JSONB_P(n);
	mutation_check(mutation, "mutation");
	return mutation;
}

static int64
epoch_arg(FunctionCallInfo fcinfo, int n, const char *hint)
{
	int64		epoch;

	if (PG_ARGISNULL(n))
		arg_null("epoch");
	epoch = PG_GETARG_INT64(n);
	if (epoch < 0)
		arg_invalid("epoch", "must not be negative", hint);
	return epoch;
}

PG_FUNCTION_INFO_V1(reconcile_apply_fenced);
Datum
reconcile_apply_fenced(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *entity_id;
	int64		epoch;
	int64		seen;
	Jsonb	   *mutation;
	bool		applied;

	require_primary("apply_fenced");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	entity_id = entity_id_arg(fcinfo, 1, "entity_id");
	epoch = epoch_arg(fcinfo, 2, "It is the epoch of a lease's token, or 0 without a lease.");
	mutation = mutation_arg(fcinfo, 3);
	access_require(CAP_FENCE, reconciler_id);

	applied = epoch_is_current(reconciler_id, epoch) &&
		resource_apply(reconciler_id, entity_id, epoch, mutation, &seen);

	/* who wrote nothing must not hold up a take-over */
	if (!applied)
	{
		fence_unlock_shared(reconciler_id);
		tally(reconciler_id, TALLY_FENCE_REJECTED);
	}
	PG_RETURN_BOOL(applied);
}

/* An element of the arrays of apply_fenced_many(). */
typedef struct Write
{
	char	   *entity_id;
	Jsonb	   *mutation;
	bool		accepted;
} Write;

/* By entity, in which order the rows are locked, then by place in the call. */
static int
compare_writes(const void *a, const void *b)
{
	const Write *x = *(Write *const *) a;
	const Write *y = *(Write *const *) b;
	int			order = strcmp(x->entity_id, y->entity_id);

	if (order != 0)
		return order;
	return x < y ? -1 : x > y;
}

static Write *
writes_arg(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *ids;
	Datum	   *mutations;
	Write	   *writes;

	*n = array_arg(fcinfo, 1, "entity_ids", TEXTOID, WRITES_MAX, &ids);
	array_lengths_check("mutations", array_arg(fcinfo, 3, "mutations", JSONBOID, WRITES_MAX, &mutations),
						"entity_ids", *n);
	writes = palloc0(sizeof(Write) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		writes[i].entity_id = TextDatumGetCString(ids[i]);
		entity_id_check(writes[i].entity_id, "entity_ids");
		writes[i].mutation = DatumGetJsonbP(mutations[i]);
		mutation_check(writes[i].mutation, "mutations");
	}
	return writes;
}

/* Was any of them accepted? */
static bool
apply_sorted(const char *reconciler_id, Write **sorted, int n, int64 epoch)
{
	FenceRepository repository;
	SqlScope	scope;
	int64		seen;
	bool		any = false;

	if (fence_repository_hook(reconciler_id, &repository))
	{
		for (int i = 0; i < n; i++)
		{
			sorted[i]->accepted = write_through(reconciler_id, &repository, sorted[i]->entity_id, epoch,
												sorted[i]->mutation, &seen);
			any |= sorted[i]->accepted;
		}
		return any;
	}
	sql_begin(&scope);
	for (int i = 0; i < n; i++)
	{
		sorted[i]->accepted = swap(reconciler_id, sorted[i]->entity_id, epoch, sorted[i]->mutation, false, &seen);
		any |= sorted[i]->accepted;
	}
	sql_end(&scope);
	return any;
}

PG_FUNCTION_INFO_V1(reconcile_apply_fenced_many);
Datum
reconcile_apply_fenced_many(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *reconciler_id;
	int64		epoch;
	Write	   *writes;
	Write	  **sorted;
	int			n;
	bool		applied = false;

	require_primary("apply_fenced_many");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	writes = writes_arg(fcinfo, &n);
	epoch = epoch_arg(fcinfo, 2, "It is the epoch of a lease's token, or 0 without a lease.");
	access_require(CAP_FENCE, reconciler_id);

	sorted = palloc(sizeof(Write *) * Max(n, 1));
	for (int i = 0; i < n; i++)
		sorted[i] = &writes[i];
	qsort(sorted, n, sizeof(Write *), compare_writes);

	if (epoch_is_current(reconciler_id, epoch))
		applied = apply_sorted(reconciler_id, sorted, n, epoch);
	if (!applied)
		fence_unlock_shared(reconciler_id);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {0};

		if (!writes[i].accepted)
			tally(reconciler_id, TALLY_FENCE_REJECTED);
		values[0] = Int32GetDatum(i + 1);
		values[1] = CStringGetTextDatum(writes[i].entity_id);
		values[2] = BoolGetDatum(writes[i].accepted);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_bind_lease);
Datum
reconcile_bind_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *holder_id;
	int64		epoch;

	require_primary("bind_lease");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	holder_id = holder_id_arg(fcinfo, 1, "holder_id");
	epoch = epoch_arg(fcinfo, 2, "It is the epoch of the lease's token.");
	access_require(CAP_LEASE, reconciler_id);

	if (!fence_bind(reconciler_id, holder_id, epoch, false))
		lease_raise_lost(reconciler_id, epoch);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_fenced_epoch);
Datum
reconcile_fenced_epoch(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id = NULL;
	FenceBinding binding;

	if (!PG_ARGISNULL(0))
		reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	switch (fence_bound(reconciler_id, &binding))
	{
		case FENCE_UNBOUND:
			PG_RETURN_NULL();
		case FENCE_AMBIGUOUS:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("several leases are bound in this transaction"),
					 errhint("Name one: fenced_epoch(reconciler_id).")));
			break;
		case FENCE_BOUND:
			break;
	}
	PG_RETURN_INT64(binding.epoch);
}

PG_FUNCTION_INFO_V1(reconcile_fenced_write);
Datum
reconcile_fenced_write(PG_FUNCTION_ARGS)
{
	char	   *entity_id;
	int64		seen;
	Jsonb	   *mutation;
	int64		granted = 0;
	FenceBinding binding;

	require_primary("fenced_write");
	entity_id = entity_id_arg(fcinfo, 0, "entity_id");
	mutation = mutation_arg(fcinfo, 1);
	switch (fence_bound(NULL, &binding))
	{
		case FENCE_UNBOUND:
			ereport(ERROR,
					(errcode(ERRCODE_FENCE_UNBOUND),
					 errmsg("no lease is bound in this transaction"),
					 errhint("Call bind_lease() first, in this transaction, or write from the run of a leased loop.")));
			break;
		case FENCE_AMBIGUOUS:
			ereport(ERROR,
					(errcode(ERRCODE_FENCE_UNBOUND),
					 errmsg("several leases are bound in this transaction"),
					 errhint("Bind one, or call apply_fenced() with the reconciler id.")));
			break;
		case FENCE_BOUND:
			break;
	}

	if (fence_hold(binding.reconciler_id, &binding.epoch, &granted) != FENCE_HOLD_CURRENT)
	{
		tally(binding.reconciler_id, TALLY_FENCE_REJECTED);
		ereport(ERROR,
				(errcode(ERRCODE_STALE_EPOCH),
				 errmsg("epoch " INT64_FORMAT " of \"%s\" is stale: epoch " INT64_FORMAT " has been granted",
						binding.epoch, binding.reconciler_id, granted)));
	}
	if (!resource_apply(binding.reconciler_id, entity_id, binding.epoch, mutation, &seen))
	{
		tally(binding.reconciler_id, TALLY_FENCE_REJECTED);
		ereport(ERROR,
				(errcode(ERRCODE_STALE_EPOCH),
				 errmsg("epoch " INT64_FORMAT " of \"%s\" is stale: the entity has seen epoch " INT64_FORMAT,
						binding.epoch, binding.reconciler_id, seen)));
	}
	PG_RETURN_VOID();
}

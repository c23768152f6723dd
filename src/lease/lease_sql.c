/*
 * lease_sql.c
 *		Leases as SQL calls them: check the arguments, call lease.c, shape the answer.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/arrays.h"
#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "lease/lease.h"

#define WAIT_MAX_MS		(60 * 1000)
#define RENEW_MAX		10000	/* leases in one call */
#define LOOK_AGAIN_MS	250		/* at another's live lease */
#define LOOK_SOON_MS	20		/* at a grant or a fenced transaction that is about to end */
#define SETTLE_MS		1000	/* for an incarnation that another transaction begins */

/* lease_token */
static Datum
token_datum(FunctionCallInfo fcinfo, const Lease *lease)
{
	TupleDesc	desc;
	Datum		values[5];
	bool		nulls[5] = {0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = CStringGetTextDatum(lease->reconciler_id);
	values[1] = CStringGetTextDatum(lease->holder_id);
	values[2] = Int64GetDatum(lease->epoch);
	values[3] = TimestampTzGetDatum(lease->acquired_at);
	values[4] = TimestampTzGetDatum(lease->expires_at);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

static int64
epoch_arg(FunctionCallInfo fcinfo, int n)
{
	int64		epoch;

	if (PG_ARGISNULL(n))
		arg_null("epoch");
	epoch = PG_GETARG_INT64(n);
	if (epoch < 0)
		arg_invalid("epoch", "must not be negative", "It is the epoch of the lease's token.");
	return epoch;
}

compat_noreturn static void raise_held(LeaseOutcome outcome, const Lease *lease);

static void
raise_held(LeaseOutcome outcome, const Lease *lease)
{
	const char *hint = NULL;

	if (outcome == LEASE_DRAINING)
		hint = "It is draining: a fenced transaction of the term before has not ended. Try again.";
	else if (outcome == LEASE_BUSY)
		hint = "Another transaction is granting or changing it. Try again.";
	else if (outcome == LEASE_SETTLING)
		hint = "A transaction that begins a new incarnation, for all leases, has not ended. Try again.";
	else
	{
		int64		left_ms = (lease_deadline(lease) - clock_now() + 999) / 1000;

		hint = psprintf("It can be taken over in " INT64_FORMAT " ms unless it is renewed.",
						Max(left_ms, 0));
	}
	ereport(ERROR,
			(errcode(ERRCODE_LEASE_HELD),
			 errmsg("lease \"%s\" is held", lease->reconciler_id),
			 lease->epoch > 0 && outcome != LEASE_HELD ?
			 errdetail("The term before is of \"%s\", at epoch " INT64_FORMAT ".", lease->holder_id, lease->epoch) :
			 lease->epoch > 0 ?
			 errdetail("Its holder is \"%s\", at epoch " INT64_FORMAT ".", lease->holder_id, lease->epoch) :
			 errdetail("It has no committed holder yet."),
			 errhint("%s", hint)));
}

/* Waits between two attempts: until a lease changes, where somebody can tell. */
static void
pause_ms(int64 ms, bool until_change)
{
	static uint32 wait_event = 0;

	if (until_change && lease_wait_hook != NULL)
	{
		lease_wait_hook((long) Max(ms, 1));
		return;
	}
	if (wait_event == 0)
		wait_event = compat_wait_event("ReconcileLeaseWait");
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) Max(ms, 1), wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* The arguments that both forms of acquire have. */
static void
acquire_args(FunctionCallInfo fcinfo, char **reconciler_id, char **holder_id, int64 *ttl_ms)
{
	*reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	*holder_id = PG_ARGISNULL(1) ? lease_mint_holder() : holder_id_arg(fcinfo, 1, "holder_id");
	*ttl_ms = duration_arg(fcinfo, 2, "ttl", false);
}

PG_FUNCTION_INFO_V1(reconcile_try_acquire_lease);
Datum
reconcile_try_acquire_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *holder_id;
	int64		ttl_ms;
	Lease		lease;

	require_primary("try_acquire_lease");
	acquire_args(fcinfo, &reconciler_id, &holder_id, &ttl_ms);
	access_require(CAP_LEASE, reconciler_id);

	if (lease_try_acquire(reconciler_id, holder_id, ttl_ms, false, &lease) != LEASE_GRANTED)
		PG_RETURN_NULL();
	return token_datum(fcinfo, &lease);
}

PG_FUNCTION_INFO_V1(reconcile_acquire_lease);
Datum
reconcile_acquire_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *holder_id;
	int64		ttl_ms;
	int64		wait_ms;
	TimestampTz asked_at;
	Lease		lease;

	require_primary("acquire_lease");
	acquire_args(fcinfo, &reconciler_id, &holder_id, &ttl_ms);
	wait_ms = duration_arg(fcinfo, 3, "wait", true);
	if (wait_ms > WAIT_MAX_MS)
		arg_invalid("wait", "is too long",
					"It is at most 1 minute, as a waiting statement holds back vacuum; to wait longer, call again.");
	access_require(CAP_LEASE, reconciler_id);
	if (wait_ms > 0 && IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("acquire_lease() cannot wait above READ COMMITTED"),
				 errhint("Pass wait => '0 s', or begin the transaction with ISOLATION LEVEL READ COMMITTED.")));

	asked_at = clock_now();
	for (;;)
	{
		LeaseOutcome outcome = lease_try_acquire(reconciler_id, holder_id, ttl_ms, false, &lease);
		TimestampTz now = clock_now();
		/* who asks for what nobody has is not refused for what concerns all leases */
		TimestampTz give_up = clock_add_ms(asked_at, outcome == LEASE_SETTLING ? Max(wait_ms, SETTLE_MS) : wait_ms);
		TimestampTz next;

		if (lease_wait_hook != NULL && (outcome == LEASE_GRANTED || now >= give_up))
			lease_wait_hook(0);
		if (outcome == LEASE_GRANTED)
			return token_datum(fcinfo, &lease);
		if (now >= give_up)
			raise_held(outcome, &lease);

		if (outcome != LEASE_HELD)
			next = clock_add_ms(now, LOOK_SOON_MS);
		else if (lease_wait_hook != NULL)
			next = lease_deadline(&lease);
		else
			next = Min(clock_add_ms(now, LOOK_AGAIN_MS), lease_deadline(&lease));
		next = Min(next, give_up);
		pause_ms((next - now + 999) / 1000, outcome == LEASE_HELD);
	}
}

PG_FUNCTION_INFO_V1(reconcile_renew_lease);
Datum
reconcile_renew_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *holder_id;
	int64		epoch;
	int64		ttl_ms = 0;
	Lease		lease;

	require_primary("renew_lease");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	holder_id = holder_id_arg(fcinfo, 1, "holder_id");
	epoch = epoch_arg(fcinfo, 2);
	if (!PG_ARGISNULL(3))
		ttl_ms = duration_arg(fcinfo, 3, "ttl", false);
	access_require(CAP_LEASE, reconciler_id);

	if (!lease_renew(reconciler_id, holder_id, epoch, ttl_ms, &lease))
		lease_raise_lost(reconciler_id, epoch);
	return token_datum(fcinfo, &lease);
}

PG_FUNCTION_INFO_V1(reconcile_release_lease);
Datum
reconcile_release_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	char	   *holder_id;
	int64		epoch;

	require_primary("release_lease");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	holder_id = holder_id_arg(fcinfo, 1, "holder_id");
	epoch = epoch_arg(fcinfo, 2);
	access_require(CAP_LEASE, reconciler_id);
	PG_RETURN_BOOL(lease_release(reconciler_id, holder_id, epoch));
}

/* ----------------------------------------------------------------
 * Many at once
 * ----------------------------------------------------------------
 */

/* In this order the rows are locked, whatever the order of the call. */
static int
compare_terms(const void *a, const void *b)
{
	const LeaseRenewal *x = *(LeaseRenewal *const *) a;
	const LeaseRenewal *y = *(LeaseRenewal *const *) b;
	int			order = strcmp(x->reconciler_id, y->reconciler_id);

	if (order != 0)
		return order;
	return x->epoch < y->epoch ? -1 : x->epoch > y->epoch;
}

/* Checks all of the arrays and rights before anything is changed. */
static LeaseRenewal *
renewals_arg(FunctionCallInfo fcinfo, int *n)
{
	Datum	   *ids;
	Datum	   *epochs;
	LeaseRenewal *renewals;

	*n = array_arg(fcinfo, 1, "reconciler_ids", TEXTOID, RENEW_MAX, &ids);
	array_lengths_check("epochs", array_arg(fcinfo, 2, "epochs", INT8OID, RENEW_MAX, &epochs),
						"reconciler_ids", *n);
	renewals = palloc0(sizeof(LeaseRenewal) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		renewals[i].reconciler_id = TextDatumGetCString(ids[i]);
		renewals[i].epoch = DatumGetInt64(epochs[i]);
		reconciler_id_check(renewals[i].reconciler_id, "reconciler_ids");
		if (renewals[i].epoch < 0)
			arg_invalid("epochs", "must not be negative", "They are the epochs of the leases' tokens.");
	}
	return renewals;
}

PG_FUNCTION_INFO_V1(reconcile_renew_leases);
Datum
reconcile_renew_leases(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *holder_id;
	LeaseRenewal *renewals;
	LeaseRenewal **sorted;
	LeaseRenewal *terms;
	int			nterms = 0;
	int			n;
	int64		ttl_ms = 0;

	require_primary("renew_leases");
	holder_id = holder_id_arg(fcinfo, 0, "holder_id");
	renewals = renewals_arg(fcinfo, &n);
	if (!PG_ARGISNULL(3))
		ttl_ms = duration_arg(fcinfo, 3, "ttl", false);

	sorted = palloc(sizeof(LeaseRenewal *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		renewals[i].holder_id = holder_id;
		sorted[i] = &renewals[i];
	}
	qsort(sorted, n, sizeof(LeaseRenewal *), compare_terms);
	/* the same term twice is one renewal */
	terms = palloc(sizeof(LeaseRenewal) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || strcmp(sorted[i]->reconciler_id, sorted[i - 1]->reconciler_id) != 0)
			access_require(CAP_LEASE, sorted[i]->reconciler_id);
		if (i == 0 || compare_terms(&sorted[i - 1], &sorted[i]) != 0)
			terms[nterms++] = *sorted[i];
	}
	lease_renew_many(terms, nterms, ttl_ms);
	for (int i = 0, t = 0; i < n; i++)
	{
		if (i > 0 && compare_terms(&sorted[i - 1], &sorted[i]) != 0)
			t++;
		sorted[i]->renewed = terms[t].renewed;
		sorted[i]->expires_at = terms[t].expires_at;
	}

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		Datum		values[4];
		bool		nulls[4] = {0};

		values[0] = Int32GetDatum(i + 1);
		values[1] = CStringGetTextDatum(renewals[i].reconciler_id);
		values[2] = BoolGetDatum(renewals[i].renewed);
		values[3] = TimestampTzGetDatum(renewals[i].expires_at);
		nulls[3] = !renewals[i].renewed;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * An operator's change
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_force_release_lease);
Datum
reconcile_force_release_lease(PG_FUNCTION_ARGS)
{
	char	   *reconciler_id;
	int64		epoch;
	char	   *reason;

	require_primary("force_release_lease");
	reconciler_id = reconciler_id_arg(fcinfo, 0, "reconciler_id");
	if (PG_ARGISNULL(1))
		arg_null("seen_epoch");
	epoch = PG_GETARG_INT64(1);
	if (epoch < 0)
		arg_invalid("seen_epoch", "must not be negative", "It is the epoch that the view leases shows.");
	reason = reason_arg(fcinfo, 2);
	access_require(CAP_OPERATE, reconciler_id);
	PG_RETURN_BOOL(lease_force_release(reconciler_id, epoch, GetUserNameFromId(GetUserId(), false), reason));
}

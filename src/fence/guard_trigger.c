/*
 * guard_trigger.c
 *		What the triggers of a guarded table do.
 *
 * A row is judged before it is written, and stamped with the bound epoch; and
 * again afterwards, when no other trigger can change it any more.  Both use the
 * same decision.  They run as whoever writes, who needs no right of ours: what
 * he may do came with the binding.
 *
 * Cost: the lease is asked once for each command (fence_hold()), columns are
 * looked up once for each query, and a row that has the stamp already is not
 * copied.
 *
 * The server has locked an old row before its trigger is called, and gives the
 * newest version of it; the fence lock is held since the binding.  So nothing is
 * waited for here.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "core/errors.h"
#include "core/tally.h"
#include "fence/fence.h"
#include "fence/guard.h"

/* A guard as a query needs it, kept by the function's call information. */
typedef struct Guard
{
	char	   *reconciler_id;
	AttrNumber	epoch_column;
	int			ncolumns;		/* that are guarded, with entity and epoch; 0: all are */
	AttrNumber *columns;
	Oid			owner;			/* that it was attached to; looked up when it is needed */
} Guard;

/* ----------------------------------------------------------------
 * The decision: a pure function over captured facts
 * ----------------------------------------------------------------
 */

typedef struct GuardFacts
{
	bool		guarded;		/* something guarded is written */
	bool		lifted;			/* by an operator, for this transaction */
	FenceHold	hold;			/* what this transaction is bound to */
	int64		epoch;			/* of the binding */
	int64		granted;		/* since, if that is stale */
	int64		row_epoch;		/* of the row that is there; 0: none is */
} GuardFacts;

typedef enum GuardVerdict
{
	GUARD_PASS,					/* it is no business of the guard's */
	GUARD_LIFTED,				/* written without an epoch */
	GUARD_UNBOUND,				/* RC006 */
	GUARD_TERM_OVER,			/* RC003 */
	GUARD_ROW_AHEAD,			/* RC003 */
	GUARD_STAMP					/* written, with the epoch of the binding */
} GuardVerdict;

static GuardVerdict
guard_judge(const GuardFacts *facts)
{
	if (!facts->guarded)
		return GUARD_PASS;
	if (facts->lifted)
		return GUARD_LIFTED;
	if (facts->hold == FENCE_HOLD_NONE)
		return GUARD_UNBOUND;
	if (facts->hold == FENCE_HOLD_STALE)
		return GUARD_TERM_OVER;
	if (facts->row_epoch > facts->epoch)
		return GUARD_ROW_AHEAD;
	return GUARD_STAMP;
}

/* ----------------------------------------------------------------
 * Facts
 * ----------------------------------------------------------------
 */

/* The number of a column of the table, by the name that the trigger has. */
static AttrNumber
column_number(const TriggerData *data, const char *name)
{
	TupleDesc	desc = RelationGetDescr(data->tg_relation);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
			return i + 1;
	}
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("column \"%s\" of guarded table \"%s\" is not there any more",
					name, RelationGetRelationName(data->tg_relation)),
			 errhint("Call reconcile.detach_fence(), and reconcile.attach_fence() with the columns that are there.")));
}

static Guard *
make_guard(FmgrInfo *flinfo, const TriggerData *data)
{
	const Trigger *trigger = data->tg_trigger;
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	int			ncolumns = trigger->tgnargs - GUARD_ARG_COLUMNS;
	MemoryContext outer = MemoryContextSwitchTo(flinfo->fn_mcxt);
	Guard	   *guard = palloc0(sizeof(Guard));

	guard->reconciler_id = pstrdup(trigger->tgargs[GUARD_ARG_ID]);
	guard->epoch_column = column_number(data, trigger->tgargs[GUARD_ARG_EPOCH_COLUMN]);
	if (TupleDescAttr(desc, guard->epoch_column - 1)->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("column \"%s\" of guarded table \"%s\" is not \"bigint\" any more",
						trigger->tgargs[GUARD_ARG_EPOCH_COLUMN], RelationGetRelationName(data->tg_relation)),
				 errhint("It was when reconcile.attach_fence() was called.")));
	if (ncolumns > 0)
	{
		guard->columns = palloc(sizeof(AttrNumber) * (ncolumns + 2));
		/* what most often changes comes first */
		for (int i = 0; i < ncolumns; i++)
			guard->columns[i] = column_number(data, trigger->tgargs[GUARD_ARG_COLUMNS + i]);
		guard->columns[ncolumns] = guard->epoch_column;
		guard->columns[ncolumns + 1] = column_number(data, trigger->tgargs[GUARD_ARG_ENTITY_COLUMN]);
		guard->ncolumns = ncolumns + 2;
	}
	MemoryContextSwitchTo(outer);
	flinfo->fn_extra = guard;
	return guard;
}

/* Are two values the same by their bytes?  A long one that was not written has the same place. */
static bool
same_value(Datum a, Datum b, const FormData_pg_attribute *attribute)
{
	if (attribute->attlen == -1 &&
		VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(a)) && VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(b)) &&
		memcmp(DatumGetPointer(a), DatumGetPointer(b), VARSIZE_EXTERNAL(DatumGetPointer(a))) == 0)
		return true;
	return datum_image_eq(a, b, attribute->attbyval, attribute->attlen);
}

/* Did an UPDATE change a column that is guarded? */
static bool
changes_guarded(const Guard *guard, TupleTableSlot *old, TupleTableSlot *new)
{
	if (guard->ncolumns == 0)
		return true;
	for (int i = 0; i < guard->ncolumns; i++)
	{
		AttrNumber	column = guard->columns[i];
		bool		old_null;
		bool		new_null;
		Datum		old_value = slot_getattr(old, column, &old_null);
		Datum		new_value = slot_getattr(new, column, &new_null);

		if (old_null != new_null ||
			(!old_null && !same_value(old_value, new_value, TupleDescAttr(old->tts_tupleDescriptor, column - 1))))
			return true;
	}
	return false;
}

/* The stamp of a row; 0 where the column was made nullable, and is NULL. */
static int64
stamp_of(const Guard *guard, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, guard->epoch_column, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

/* What has lifted the guard for this transaction; NULL: nothing. */
static Override *
lifted_by(Guard *guard, Relation rel)
{
	if (!override_any())
		return NULL;
	if (!OidIsValid(guard->owner))
		guard->owner = guard_owner(RelationGetRelid(rel));
	return override_find(guard->owner, guard->reconciler_id);
}

/* "old" and "new" are the row before and after, as far as there is one. */
static GuardVerdict
judge_row(Guard *guard, Relation rel, TupleTableSlot *old, TupleTableSlot *new,
		  GuardFacts *facts, Override **override)
{
	facts->guarded = old == NULL || new == NULL || changes_guarded(guard, old, new);
	if (facts->guarded)
	{
		*override = lifted_by(guard, rel);
		facts->lifted = *override != NULL;
		if (!facts->lifted)
			facts->hold = fence_hold(guard->reconciler_id, &facts->epoch, &facts->granted);
		facts->row_epoch = old != NULL ? stamp_of(guard, old) : 0;
	}
	return guard_judge(facts);
}

/* ----------------------------------------------------------------
 * Refusals
 * ----------------------------------------------------------------
 */

static void
count_refusal(const char *reconciler_id, Relation rel)
{
	tally(reconciler_id, TALLY_FENCE_REJECTED);
	if (tally_log_due(reconciler_id, TALLY_FENCE_REJECTED))
		ereport(LOG,
				(errmsg("refused a write to table \"%s\", which lease \"%s\" guards",
						RelationGetRelationName(rel), reconciler_id),
				 errdetail("It came from role \"%s\". For this lease no other is logged for a minute; all are counted.",
						   GetUserNameFromId(GetSessionUserId(), true))));
}

static void
refuse(const char *reconciler_id, Relation rel, GuardVerdict verdict, const GuardFacts *facts)
{
	const char *table = RelationGetRelationName(rel);

	count_refusal(reconciler_id, rel);
	if (verdict == GUARD_UNBOUND)
		ereport(ERROR,
				(errcode(ERRCODE_FENCE_UNBOUND),
				 errmsg("table \"%s\" is guarded: lease \"%s\" is not bound in this transaction", table, reconciler_id),
				 errhint("Call bind_lease() first, in this transaction, or write from the run of a leased loop.")));
	else if (verdict == GUARD_TERM_OVER)
		ereport(ERROR,
				(errcode(ERRCODE_STALE_EPOCH),
				 errmsg("epoch " INT64_FORMAT " of \"%s\" is stale: epoch " INT64_FORMAT " has been granted",
						facts->epoch, reconciler_id, facts->granted)));
	else
		ereport(ERROR,
				(errcode(ERRCODE_STALE_EPOCH),
				 errmsg("epoch " INT64_FORMAT " of \"%s\" is stale: the row of \"%s\" has seen epoch " INT64_FORMAT,
						facts->epoch, reconciler_id, table, facts->row_epoch)));
}

/* ----------------------------------------------------------------
 * Before a row is written
 * ----------------------------------------------------------------
 */

static HeapTuple
stamped(const Guard *guard, Relation rel, HeapTuple tuple, TupleTableSlot *slot, int64 epoch)
{
	int			column = guard->epoch_column;
	Datum		value = Int64GetDatum(epoch);
	bool		isnull;
	Datum		present = slot_getattr(slot, column, &isnull);

	if (!isnull && DatumGetInt64(present) == epoch)
		return tuple;
	isnull = false;
	return heap_modify_tuple_by_cols(tuple, RelationGetDescr(rel), 1, &column, &value, &isnull);
}

static HeapTuple
before_row(Guard *guard, const TriggerData *data)
{
	bool		insert = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	bool		update = TRIGGER_FIRED_BY_UPDATE(data->tg_event);
	TupleTableSlot *old = insert ? NULL : data->tg_trigslot;
	TupleTableSlot *new = insert ? data->tg_trigslot : update ? data->tg_newslot : NULL;
	HeapTuple	tuple = update ? data->tg_newtuple : data->tg_trigtuple;
	Override   *override = NULL;
	GuardFacts	facts = {0};
	GuardVerdict verdict = judge_row(guard, data->tg_relation, old, new, &facts, &override);

	switch (verdict)
	{
		case GUARD_PASS:
			return tuple;
		case GUARD_LIFTED:
			if (new == NULL)
			{
				override_wrote_row(override);
				return tuple;
			}
			return stamped(guard, data->tg_relation, tuple, new, insert ? override_epoch(override) : facts.row_epoch);
		case GUARD_STAMP:
			return new == NULL ? tuple : stamped(guard, data->tg_relation, tuple, new, facts.epoch);
		case GUARD_UNBOUND:
			/* it may become the UPDATE of an upsert, and touch nothing that is guarded: the check is to say */
			if (insert && guard->ncolumns > 0)
				return stamped(guard, data->tg_relation, tuple, new, 0);
			break;
		default:
			break;
	}
	refuse(guard->reconciler_id, data->tg_relation, verdict, &facts);
	return NULL;
}

/* ----------------------------------------------------------------
 * After it
 * ----------------------------------------------------------------
 */

static void
after_row(Guard *guard, const TriggerData *data)
{
	bool		insert = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	TupleTableSlot *old = insert ? NULL : data->tg_trigslot;
	TupleTableSlot *new = insert ? data->tg_trigslot : data->tg_newslot;
	Override   *override = NULL;
	GuardFacts	facts = {0};
	int64		due = 0;
	GuardVerdict verdict = judge_row(guard, data->tg_relation, old, new, &facts, &override);

	switch (verdict)
	{
		case GUARD_PASS:
			return;
		case GUARD_LIFTED:
			override_wrote_row(override);
			due = insert ? override_epoch(override) : facts.row_epoch;
			break;
		case GUARD_STAMP:
			due = facts.epoch;
			break;
		default:
			refuse(guard->reconciler_id, data->tg_relation, verdict, &facts);
	}
	if (stamp_of(guard, new) != due)
	{
		count_refusal(guard->reconciler_id, data->tg_relation);
		ereport(ERROR,
				(errcode(ERRCODE_STALE_EPOCH),
				 errmsg("a trigger of table \"%s\" has changed the stamp of the guard from epoch " INT64_FORMAT " to " INT64_FORMAT,
						RelationGetRelationName(data->tg_relation), due, stamp_of(guard, new)),
				 errhint("Triggers must leave the epoch column of a guarded table alone.")));
	}
}

/* ----------------------------------------------------------------
 * TRUNCATE
 * ----------------------------------------------------------------
 */

/* That the bound epoch is the current one says that it is not below that of any row. */
static void
before_truncate(const TriggerData *data)
{
	const Trigger *trigger = data->tg_trigger;
	Relation	rel = data->tg_relation;
	Guard		guard = {0};
	GuardFacts	facts = {.guarded = true};
	Override   *override;
	GuardVerdict verdict;

	guard.reconciler_id = trigger->tgargs[GUARD_ARG_ID];
	override = lifted_by(&guard, rel);
	facts.lifted = override != NULL;
	if (!facts.lifted)
		facts.hold = fence_hold(guard.reconciler_id, &facts.epoch, &facts.granted);
	verdict = guard_judge(&facts);
	if (verdict == GUARD_LIFTED)
		override_truncated(override);
	else if (verdict != GUARD_STAMP)
		refuse(guard.reconciler_id, rel, verdict, &facts);
}

/* ----------------------------------------------------------------
 * The trigger
 * ----------------------------------------------------------------
 */

/* Was the trigger that fires made by attach_fence()? */
static bool
is_ours(const TriggerData *data)
{
	if (data->tg_trigger->tgnargs < GUARD_ARG_COLUMNS)
		return false;
	if (TRIGGER_FIRED_FOR_STATEMENT(data->tg_event))
		return TRIGGER_FIRED_BY_TRUNCATE(data->tg_event);
	return TRIGGER_FIRED_BEFORE(data->tg_event) ||
		(TRIGGER_FIRED_AFTER(data->tg_event) && !TRIGGER_FIRED_BY_DELETE(data->tg_event));
}

PG_FUNCTION_INFO_V1(reconcile_fence_trigger);
Datum
reconcile_fence_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function reconcile.fence_trigger() can only be called as a trigger"),
				 errhint("Call reconcile.attach_fence().")));
	if (guard == NULL && !is_ours(data))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" was not made by reconcile.attach_fence()", data->tg_trigger->tgname)));

	/* a partition that was detached while nobody could take its triggers away */
	if (strcmp(data->tg_trigger->tgargs[GUARD_ARG_PLACE], "part") == 0 && !data->tg_relation->rd_rel->relispartition)
		return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple);

	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
	{
		before_truncate(data);
		return PointerGetDatum(NULL);
	}
	if (guard == NULL)
		guard = make_guard(fcinfo->flinfo, data);
	if (TRIGGER_FIRED_BEFORE(data->tg_event))
		return PointerGetDatum(before_row(guard, data));
	after_row(guard, data);
	return PointerGetDatum(NULL);
}

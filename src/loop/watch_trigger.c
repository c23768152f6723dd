/*
 * watch_trigger.c
 *		What the triggers of a watched table do.
 *
 * A statement trigger reads its transition tables directly and inserts the
 * marks of the statement at once.  A row trigger marks row by row, and each
 * entity once in a transaction.  Both run as whoever changes the table: the
 * right to trigger the loop came with watch(), from the table's owner.  They
 * never fail the statement for what a value is.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "core/duration.h"
#include "core/ident.h"
#include "core/tally.h"
#include "loop/idset.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/remember.h"
#include "loop/run.h"
#include "loop/watch.h"

#define MARKED_MAX	100000		/* entities; then the set begins anew */

/* What one call of the trigger works with. */
typedef struct Watching
{
	const char *loop_name;
	Relation	rel;
	const char *column_name;
	IdSet		ids;			/* to be marked */
	const char *own_entity;		/* of the run that changes the table; NULL: none */
	bool		suppressed;		/* a row was of it */
	int			entity_column;	/* 0: the column is gone */
	FmgrInfo	output;
	int			ncolumns;		/* that matter; 0: all */
	int		   *columns;		/* each 0 if it is gone */
	bool		bad;			/* a value that is no entity id, or no column */
} Watching;

/* ----------------------------------------------------------------
 * What was marked already
 * ----------------------------------------------------------------
 */

/*
 * The marks that the current subtransaction has made, as far as nothing has been
 * deleted since: a second one beside each would say nothing more, as they commit
 * together.
 */
static struct
{
	FullTransactionId xid;		/* the set is of this transaction, and its memory too */
	SubTransactionId subid;
	uint64		deletions;
	IdSet		set;
}			marked;

/* Adds what the key names, and says whether it is new. */
static bool
note_marked(const char *key)
{
	FullTransactionId xid = GetTopFullTransactionId();
	bool		same = FullTransactionIdEquals(marked.xid, xid);
	int			before;

	if (!same || marked.subid != GetCurrentSubTransactionId() ||
		marked.deletions != mark_deletions || marked.set.n >= MARKED_MAX)
	{
		MemoryContext outer;

		if (same)
			MemoryContextDelete(marked.set.context);
		marked.xid = InvalidFullTransactionId;
		outer = MemoryContextSwitchTo(AllocSetContextCreate(TopTransactionContext, "reconcile marked",
															ALLOCSET_DEFAULT_SIZES));
		idset_init(&marked.set, 0);
		MemoryContextSwitchTo(outer);
		marked.xid = xid;
		marked.subid = GetCurrentSubTransactionId();
		marked.deletions = mark_deletions;
	}
	before = marked.set.n;
	idset_add(&marked.set, key);
	return marked.set.n > before;
}

/* ----------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------
 */
static int
find_column(TupleDesc desc, const char *name)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && strcmp(NameStr(attribute->attname), name) == 0)
			return i + 1;
	}
	return 0;
}

/* Adds the entity that the row names. */
static void
add_value(Watching *watching, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		value;
	char	   *id;

	if (watching->entity_column == 0)
	{
		watching->bad = true;
		return;
	}
	value = slot_getattr(slot, watching->entity_column, &isnull);
	if (isnull)
		return;
	id = OutputFunctionCall(&watching->output, value);
	if (!entity_id_valid(id, strlen(id)))
		watching->bad = true;
	else if (watching->own_entity != NULL && strcmp(id, watching->own_entity) == 0)
		watching->suppressed = true;
	else
		idset_add(&watching->ids, id);
}

/*
 * Did a column that matters change?  By its bytes (detoasted): they never call
 * two values equal that a function of the loop could tell apart, as an equality
 * operator may, and they cannot fail.
 */
static bool
matters(Watching *watching, TupleTableSlot *old, TupleTableSlot *new)
{
	if (watching->ncolumns == 0)
		return true;
	for (int i = 0; i < watching->ncolumns; i++)
	{
		int			column = watching->columns[i];
		Form_pg_attribute attribute;
		Datum		old_value;
		Datum		new_value;
		bool		old_null;
		bool		new_null;

		if (column == 0)
			return true;		/* it is gone: miss nothing */
		attribute = TupleDescAttr(old->tts_tupleDescriptor, column - 1);
		old_value = slot_getattr(old, column, &old_null);
		new_value = slot_getattr(new, column, &new_null);
		if (old_null != new_null ||
			(!old_null && !datum_image_eq(old_value, new_value, attribute->attbyval, attribute->attlen)))
			return true;
	}
	return false;
}

/*
 * Reads the transition tables.  Those of an UPDATE are in the same order, but a
 * row that moves to another partition, and is not let in there by a trigger, is
 * missing in the new one: then no two rows can be compared.
 */
static void
read_transitions(Watching *watching, Tuplestorestate *old_table, Tuplestorestate *new_table)
{
	TupleDesc	desc = RelationGetDescr(watching->rel);
	bool		paired = old_table != NULL && new_table != NULL &&
	tuplestore_tuple_count(old_table) == tuplestore_tuple_count(new_table);
	TupleTableSlot *old = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	TupleTableSlot *new = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "reconcile watch row",
													  ALLOCSET_DEFAULT_SIZES);

	if (old_table != NULL)
		tuplestore_rescan(old_table);
	if (new_table != NULL)
		tuplestore_rescan(new_table);
	for (;;)
	{
		bool		any_old = false;
		bool		any_new = false;
		MemoryContext outer;

		CHECK_FOR_INTERRUPTS();
		if (old_table != NULL)
			any_old = tuplestore_gettupleslot(old_table, true, false, old);
		if (new_table != NULL)
			any_new = tuplestore_gettupleslot(new_table, true, false, new);
		if (!any_old && !any_new)
			break;

		/* only now: the slots own what they fetched */
		outer = MemoryContextSwitchTo(row_context);
		if (!paired || matters(watching, old, new))
		{
			if (any_old)
				add_value(watching, old);
			if (any_new)
				add_value(watching, new);
		}
		MemoryContextSwitchTo(outer);
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	ExecDropSingleTupleTableSlot(old);
	ExecDropSingleTupleTableSlot(new);
}

/* A row that is changed where no statement trigger fires. */
static void
read_row(Watching *watching, TriggerData *data)
{
	TupleTableSlot *new = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newslot : NULL;

	if (new != NULL && !matters(watching, data->tg_trigslot, new))
		return;
	add_value(watching, data->tg_trigslot);
	if (new != NULL)
		add_value(watching, new);
}

/* ----------------------------------------------------------------
 * Marking
 * ----------------------------------------------------------------
 */

/* What is marked instead of a value that is no entity id, or of a column that is gone. */
static void
add_instead(Watching *watching)
{
	idset_add(&watching->ids, "");
	tally(watching->loop_name, TALLY_BAD_VALUE);
}

static void
warn_of_bad_value(Watching *watching)
{
	if (watching->entity_column == 0)
		ereport(WARNING,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("loop \"%s\" watches a column of \"%s\" that is no longer there",
						watching->loop_name, RelationGetRelationName(watching->rel)),
				 errdetail("The entity '' was marked instead."),
				 errhint("Call reconcile.watch() with another column than \"%s\", or reconcile.unwatch().",
						 watching->column_name)));
	else
		ereport(WARNING,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a value of column \"%s\" of \"%s\" is no entity id for loop \"%s\"",
						watching->column_name, RelationGetRelationName(watching->rel), watching->loop_name),
				 errdetail("It is longer than %d bytes. The entity '' was marked instead.", ENTITY_ID_MAX)));
}

static void
mark_statement(Watching *watching)
{
	if (watching->bad)
	{
		add_instead(watching);
		warn_of_bad_value(watching);
	}
	if (watching->ids.n > 0)
		mark_insert_many(watching->loop_name, watching->ids.n, watching->ids.ids, MARK_TRIGGER, NULL);
}

/* Each entity once in a transaction, and one warning. */
static void
mark_row(Watching *watching)
{
	if (watching->bad)
		add_instead(watching);
	for (int i = 0; i < watching->ids.n; i++)
	{
		const char *id = watching->ids.ids[i];

		/* no loop's name has a blank in it */
		if (!note_marked(psprintf("%s %s", watching->loop_name, id)))
			continue;
		if (watching->bad && *id == '\0')
			warn_of_bad_value(watching);
		mark_insert(watching->loop_name, id, MARK_TRIGGER, clock_now(), true, NULL);
	}
}

/*
 * The rows that went are not known: '' where the loop can list its entities,
 * else all that it remembers.  TRUNCATE fires on each partition; the command
 * number, which nothing of ours moves, tells that it is still the same one.
 */
static void
mark_truncated(Watching *watching)
{
	IdSet		known;

	if (!note_marked(psprintf("%s\n%u", watching->loop_name, GetCurrentCommandId(true))))
		return;
	idset_init(&known, 0);
	if (loop_has_lister(watching->loop_name))
		idset_add(&known, "");
	else
		loop_remembered(watching->loop_name, &known);
	for (int i = 0; i < known.n; i++)
	{
		if (watching->own_entity == NULL || strcmp(known.ids[i], watching->own_entity) != 0)
			idset_add(&watching->ids, known.ids[i]);
	}
	if (watching->ids.n > 0)
		mark_insert_many(watching->loop_name, watching->ids.n, watching->ids.ids, MARK_TRIGGER, NULL);
}

/* ----------------------------------------------------------------
 * The trigger
 * ----------------------------------------------------------------
 */

static void
find_columns(Watching *watching, const Trigger *trigger)
{
	TupleDesc	desc = RelationGetDescr(watching->rel);

	watching->column_name = trigger->tgargs[WATCH_ARG_ENTITY_COLUMN];
	watching->entity_column = find_column(desc, watching->column_name);
	if (watching->entity_column > 0)
	{
		Oid			output;
		bool		varlena;

		getTypeOutputInfo(TupleDescAttr(desc, watching->entity_column - 1)->atttypid, &output, &varlena);
		fmgr_info(output, &watching->output);
	}
	watching->ncolumns = trigger->tgnargs - WATCH_ARG_COLUMNS;
	watching->columns = palloc(sizeof(int) * Max(watching->ncolumns, 1));
	for (int i = 0; i < watching->ncolumns; i++)
		watching->columns[i] = find_column(desc, trigger->tgargs[WATCH_ARG_COLUMNS + i]);
}

/* Was the trigger that fires made by watch()? */
static bool
is_ours(const TriggerData *data)
{
	if (!TRIGGER_FIRED_AFTER(data->tg_event) || data->tg_trigger->tgnargs < WATCH_ARG_COLUMNS)
		return false;
	return TRIGGER_FIRED_FOR_ROW(data->tg_event) || TRIGGER_FIRED_BY_TRUNCATE(data->tg_event) ||
		data->tg_oldtable != NULL || data->tg_newtable != NULL;
}

PG_FUNCTION_INFO_V1(reconcile_watch_trigger);
Datum
reconcile_watch_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Watching	watching = {0};
	const LoopRun *run = run_current();
	Oid			owner;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function reconcile.watch_trigger() can only be called as a trigger"),
				 errhint("Call reconcile.watch().")));
	if (!is_ours(data))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" was not made by reconcile.watch()", data->tg_trigger->tgname)));

	/* ENABLE TRIGGER ALL, as in a restore of data, makes it fire everywhere */
	if (TRIGGER_FIRED_FOR_ROW(data->tg_event) && SessionReplicationRole != SESSION_REPLICATION_ROLE_REPLICA)
		return PointerGetDatum(NULL);
	/* a partition that was detached while nobody could take its triggers away */
	if (strcmp(data->tg_trigger->tgargs[WATCH_ARG_PLACE], "part") == 0 &&
		!data->tg_relation->rd_rel->relispartition)
		return PointerGetDatum(NULL);

	watching.loop_name = data->tg_trigger->tgargs[WATCH_ARG_LOOP];
	watching.rel = data->tg_relation;
	if (!loop_find_owner(watching.loop_name, &owner))
		return PointerGetDatum(NULL);
	idset_init(&watching.ids, 0);
	if (run != NULL && strcmp(run->rules->loop_name, watching.loop_name) == 0)
		watching.own_entity = run->entity_id;

	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
		mark_truncated(&watching);
	else
	{
		find_columns(&watching, data->tg_trigger);
		if (TRIGGER_FIRED_FOR_ROW(data->tg_event))
		{
			read_row(&watching, data);
			mark_row(&watching);
		}
		else
		{
			read_transitions(&watching, data->tg_oldtable, data->tg_newtable);
			mark_statement(&watching);
		}
		if (watching.suppressed)
			tally(watching.loop_name, TALLY_SELF_SUPPRESSED);
	}
	return PointerGetDatum(NULL);
}

/*
 * guard_catalog.c
 *		The triggers of guarded tables in the catalogue: make, find, drop.
 *
 * The two row triggers stand on each table that has rows of its own, and that
 * for TRUNCATE on every table.  They are not left to the server's cloning: a
 * parallel pg_restore makes a trigger of a partitioned table, which has no data,
 * before the data of its partitions, and would be refused by the clones.  The
 * event trigger in guard_ddl.c guards later partitions.
 *
 * All are ENABLE ALWAYS.  Their names begin with "zz_", as BEFORE ROW triggers
 * fire in the order of their names: the guard is to see what others have made of
 * the row.  What still comes after it is caught by the check.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/partition.h"
#include "catalog/pg_subscription_rel.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "core/errors.h"
#include "fence/guard.h"

#define GUARD_FUNCTION	"fence_trigger"

static const struct
{
	const char *name;			/* as users see it */
	const char *trigger;		/* the trigger's name */
	int16		timing;
	int16		events;
	bool		row;
}			kinds[GUARD_KINDS] = {
	[GUARD_ROW] = {"row", "zz_reconcile_fence_row", TRIGGER_TYPE_BEFORE,
	TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE, true},
	[GUARD_CHECK] = {"check", "zz_reconcile_fence_check", TRIGGER_TYPE_AFTER,
	TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE, true},
	[GUARD_TRUNCATE] = {"truncate", "zz_reconcile_fence_truncate", TRIGGER_TYPE_BEFORE,
	TRIGGER_TYPE_TRUNCATE, false}
};

const TableUse guard_use = {"guard", "guarded", "No other session can write it."};

/* ----------------------------------------------------------------
 * Finding
 * ----------------------------------------------------------------
 */

static GuardKind
kind_of(int16 type)
{
	if (!TRIGGER_FOR_ROW(type))
		return GUARD_TRUNCATE;
	return TRIGGER_FOR_BEFORE(type) ? GUARD_ROW : GUARD_CHECK;
}

/* The trigger as one of ours, palloc'd; NULL if it is none. */
static GuardTrigger *
as_guard(const TableTrigger *found)
{
	GuardTrigger *trigger;

	if (found->nargs < GUARD_ARG_COLUMNS)
		return NULL;
	trigger = palloc0(sizeof(GuardTrigger));
	trigger->trigger = found;
	trigger->kind = kind_of(found->type);
	trigger->part = strcmp(found->args[GUARD_ARG_PLACE], "part") == 0;
	trigger->spec.reconciler_id = found->args[GUARD_ARG_ID];
	trigger->spec.entity_column = found->args[GUARD_ARG_ENTITY_COLUMN];
	trigger->spec.epoch_column = found->args[GUARD_ARG_EPOCH_COLUMN];
	trigger->spec.columns = trigger_names(found, GUARD_ARG_COLUMNS);
	return trigger;
}

List *
guard_triggers(Oid relation)
{
	List	   *triggers = NIL;
	ListCell   *cell;

	foreach(cell, trigger_list(trigger_function(GUARD_FUNCTION), relation))
	{
		GuardTrigger *trigger = as_guard(lfirst(cell));

		if (trigger != NULL)
			triggers = lappend(triggers, trigger);
	}
	return triggers;
}

const GuardSpec *
guard_spec(Oid relation)
{
	ListCell   *cell;

	foreach(cell, guard_triggers(relation))
	{
		GuardTrigger *trigger = lfirst(cell);

		if (!trigger->part)
			return &trigger->spec;
	}
	return NULL;
}

Oid
guard_owner(Oid relation)
{
	return guard_spec(relation) != NULL ? relation : guard_above(relation);
}

Oid
guard_above(Oid relation)
{
	ListCell   *cell;

	if (!get_rel_relispartition(relation))
		return InvalidOid;
	foreach(cell, get_partition_ancestors(relation))
	{
		if (guard_spec(lfirst_oid(cell)) != NULL)
			return lfirst_oid(cell);
	}
	return InvalidOid;
}

void
guard_require_own(Oid relation, const char *verb)
{
	Oid			owner = guard_owner(relation);

	if (OidIsValid(owner) && owner != relation)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot %s the guard of \"%s\" alone: it is a partition", verb, get_rel_name(relation)),
				 errhint("Name the table that it is part of, \"%s\": all its partitions are guarded with it.",
						 get_rel_name(owner))));
}

void
guard_require_none(Oid relation)
{
	const GuardSpec *spec = guard_spec(relation);

	if (spec != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("table \"%s\" already has a guard of its own, by lease \"%s\"",
						get_rel_name(relation), spec->reconciler_id),
				 errhint("Call reconcile.detach_fence() for it first, in the same transaction.")));
}

void
guard_raise_none(Oid relation)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("table \"%s\" is not guarded", get_rel_name(relation)),
			 errhint("reconcile.attach_fence() guards a table.")));
}

bool
guard_spec_equal(const GuardSpec *a, const GuardSpec *b)
{
	return strcmp(a->reconciler_id, b->reconciler_id) == 0 &&
		strcmp(a->entity_column, b->entity_column) == 0 &&
		strcmp(a->epoch_column, b->epoch_column) == 0 &&
		equal(a->columns, b->columns);
}

/* Does a table need the kind? */
static bool
kind_needed(GuardKind kind, Oid relation)
{
	return !kinds[kind].row || table_has_rows(relation);
}

bool
guard_is_whole(Oid relation, const GuardSpec *spec, bool part)
{
	bool		there[GUARD_KINDS] = {0};
	ListCell   *cell;

	foreach(cell, guard_triggers(relation))
	{
		GuardTrigger *trigger = lfirst(cell);

		if (trigger->part != part || trigger->trigger->enabled != TRIGGER_FIRES_ALWAYS ||
			!guard_spec_equal(&trigger->spec, spec))
			return false;
		there[trigger->kind] = true;
	}
	for (int kind = 0; kind < GUARD_KINDS; kind++)
	{
		if (!there[kind] && kind_needed(kind, relation))
			return false;
	}
	return true;
}

/* ----------------------------------------------------------------
 * Making and dropping
 * ----------------------------------------------------------------
 */

void
guard_put(Oid relation, const GuardSpec *spec, bool part)
{
	List	   *args = list_make4(makeString(spec->reconciler_id), makeString(spec->entity_column),
								  makeString(spec->epoch_column), makeString(pstrdup(part ? "part" : "root")));

	args = list_concat(args, spec->columns);
	for (int kind = 0; kind < GUARD_KINDS; kind++)
	{
		CreateTrigStmt *statement;

		if (!kind_needed(kind, relation))
			continue;
		statement = makeNode(CreateTrigStmt);
		statement->trigname = pstrdup(kinds[kind].trigger);
		statement->args = args;
		statement->row = kinds[kind].row;
		statement->timing = kinds[kind].timing;
		statement->events = kinds[kind].events;
		trigger_make(statement, relation, trigger_function(GUARD_FUNCTION), TRIGGER_FIRES_ALWAYS);
	}
	CommandCounterIncrement();
}

int
guard_remove(Oid relation)
{
	int			found = 0;
	ListCell   *cell;

	foreach(cell, guard_triggers(relation))
	{
		found++;
		trigger_drop(((GuardTrigger *) lfirst(cell))->trigger);
	}
	if (found > 0)
		CommandCounterIncrement();
	return found;
}

/* ----------------------------------------------------------------
 * Which tables
 * ----------------------------------------------------------------
 */

static void
refuse_column(Relation rel, const char *column, const char *arg, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("column \"%s\" of relation \"%s\" %s", column, RelationGetRelationName(rel), what),
			 errdetail("The argument \"%s\" names it.", arg),
			 errhint("%s", hint)));
}

/* A column whose value a BEFORE trigger sees: that of a generated one is not made yet. */
static Form_pg_attribute
require_plain(Relation rel, const char *column, const char *arg)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(rel), table_column(rel, column, arg) - 1);

	if (attribute->attgenerated != '\0')
		refuse_column(rel, column, arg, "is a generated column", "Name a plain column.");
	return attribute;
}

static void
require_epoch_column(Relation rel, const char *column)
{
	const char *arg = "epoch_column";
	const char *hint = "The guard writes it: it is a column of its own, \"bigint NOT NULL\", with a default of 0 if you like.";
	Form_pg_attribute attribute = require_plain(rel, column, arg);
	bool		in_expression;

	if (attribute->atttypid != INT8OID || !attribute->attnotnull)
		refuse_column(rel, column, arg, "is not \"bigint NOT NULL\"", hint);
	if (attribute->attidentity != '\0')
		refuse_column(rel, column, arg, "is an identity column", hint);
	/* a trigger cannot move the row */
	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE &&
		has_partition_attrs(rel, bms_make_singleton(attribute->attnum - FirstLowInvalidHeapAttributeNumber), &in_expression))
		refuse_column(rel, column, arg, "is part of the partition key", hint);
}

/* Does a subscription of this database write the table? */
static bool
is_subscribed(Oid relation)
{
	Relation	rel = table_open(SubscriptionRelRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	bool		found;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relation));
	scan = systable_beginscan(rel, SubscriptionRelSrrelidSrsubidIndexId, true, NULL, 1, &key);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

void
guard_require_table(Relation rel, const GuardSpec *spec)
{
	ListCell   *cell;

	(void) require_plain(rel, spec->entity_column, "entity_column");
	require_epoch_column(rel, spec->epoch_column);
	if (strcmp(spec->entity_column, spec->epoch_column) == 0)
		arg_invalid("epoch_column", "is the entity column", "Name two columns.");
	foreach(cell, spec->columns)
	{
		if (strcmp(strVal(lfirst(cell)), spec->epoch_column) == 0)
			arg_invalid("columns", "must not name the epoch column", "It is guarded in any case.");
		(void) require_plain(rel, strVal(lfirst(cell)), "columns");
	}
	if (is_subscribed(RelationGetRelid(rel)))
		table_refuse(rel, ERRCODE_WRONG_OBJECT_TYPE, &guard_use, "the target of a subscription",
					 "What a subscription applies comes without an epoch: guard the table where its rows come from.");
}

/* ----------------------------------------------------------------
 * Showing
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_fence_triggers);
Datum
reconcile_fence_triggers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, guard_triggers(InvalidOid))
	{
		GuardTrigger *trigger = lfirst(cell);
		Datum		values[9];
		bool		nulls[9] = {0};

		values[0] = ObjectIdGetDatum(trigger->trigger->relation);
		values[1] = CStringGetTextDatum(trigger->spec.reconciler_id);
		values[2] = CStringGetTextDatum(kinds[trigger->kind].name);
		values[3] = BoolGetDatum(trigger->part);
		values[4] = DirectFunctionCall1(namein, CStringGetDatum(trigger->spec.entity_column));
		values[5] = DirectFunctionCall1(namein, CStringGetDatum(trigger->spec.epoch_column));
		nulls[6] = trigger->spec.columns == NIL;
		values[6] = nulls[6] ? (Datum) 0 : trigger_name_array(trigger->spec.columns);
		values[7] = DirectFunctionCall1(namein, CStringGetDatum(trigger->trigger->name));
		values[8] = BoolGetDatum(trigger->trigger->enabled == TRIGGER_FIRES_ALWAYS);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

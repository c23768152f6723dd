/*
 * watch.c
 *		Watched tables: three statement triggers that mark what a change touched.
 *
 * The triggers are the only record of a watch: their arguments are the loop, the
 * entity column and, if given, the columns that matter.  So a table that is
 * dropped takes its watch along, and a dump carries it.  They depend on the
 * extension (DROP EXTENSION removes them) and name a function that nobody else
 * may execute, so no user attaches one himself.
 *
 * The trigger reads its transition tables directly and inserts the marks of a
 * statement at once.  It runs as whoever changes the table: the right to trigger
 * the loop came with watch(), from the table's owner.  It never fails the
 * statement for what a value is.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#include "core/access.h"
#include "core/compat.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"
#include "loop/idset.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/run.h"
#include "loop/watch.h"

#define OLD_TABLE_NAME	"reconcile_old"
#define NEW_TABLE_NAME	"reconcile_new"

/* Virtual generated columns (18 and later) have no value in a transition table. */
#define GENERATED_VIRTUAL	'v'

static const struct
{
	const char *suffix;
	int16		event;
	bool		old;
	bool		new;
}			watch_events[] = {
	{"ins", TRIGGER_TYPE_INSERT, false, true},
	{"upd", TRIGGER_TYPE_UPDATE, true, true},
	{"del", TRIGGER_TYPE_DELETE, true, false}
};

static Oid
watch_function(void)
{
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum("watch_trigger"),
										   PointerGetDatum(buildoidvector(NULL, 0)),
										   ObjectIdGetDatum(install_get()->schema));

	if (!OidIsValid(function))
		elog(ERROR, "function reconcile.watch_trigger() is missing");
	return function;
}

/* ----------------------------------------------------------------
 * Making and removing the triggers
 * ----------------------------------------------------------------
 */

static char *
trigger_name(const char *loop_name, int event)
{
	return psprintf("reconcile_%s_%s", loop_name, watch_events[event].suffix);
}

/* Drops a trigger whatever the caller's rights on its table are. */
static void
drop_trigger(Oid trigger)
{
	ObjectAddress address;

	ObjectAddressSet(address, TriggerRelationId, trigger);
	performDeletion(&address, DROP_RESTRICT, 0);
}

/*
 * The triggers that call our function for this loop: on one table, or on all
 * (relation = InvalidOid).  By their dependency on the function, so that no
 * name of theirs matters.
 */
static List *
find_triggers(const char *loop_name, Oid relation)
{
	Oid			function = watch_function();
	Relation	depend = table_open(DependRelationId, AccessShareLock);
	Relation	trigger_rel = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tuple;
	List	   *found = NIL;

	ScanKeyInit(&keys[0], Anum_pg_depend_refclassid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(ProcedureRelationId));
	ScanKeyInit(&keys[1], Anum_pg_depend_refobjid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(function));
	scan = systable_beginscan(depend, DependReferenceIndexId, true, NULL, 2, keys);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_depend link = (Form_pg_depend) GETSTRUCT(tuple);
		ScanKeyData key;
		SysScanDesc trigger_scan;
		HeapTuple	trigger_tuple;

		if (link->classid != TriggerRelationId)
			continue;
		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(link->objid));
		trigger_scan = systable_beginscan(trigger_rel, TriggerOidIndexId, true, NULL, 1, &key);
		trigger_tuple = systable_getnext(trigger_scan);
		if (HeapTupleIsValid(trigger_tuple))
		{
			Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(trigger_tuple);
			bool		isnull;
			Datum		args = heap_getattr(trigger_tuple, Anum_pg_trigger_tgargs,
											RelationGetDescr(trigger_rel), &isnull);

			/* tgargs are NUL-terminated strings, one after the other */
			if (!isnull && form->tgfoid == function && form->tgnargs >= 2 &&
				(!OidIsValid(relation) || form->tgrelid == relation) &&
				strcmp(VARDATA_ANY(DatumGetByteaPP(args)), loop_name) == 0)
				found = lappend_oid(found, form->oid);
		}
		systable_endscan(trigger_scan);
	}
	systable_endscan(scan);
	table_close(trigger_rel, AccessShareLock);
	table_close(depend, AccessShareLock);
	return found;
}

static int
drop_triggers(const char *loop_name, Oid relation)
{
	List	   *triggers = find_triggers(loop_name, relation);
	ListCell   *cell;

	foreach(cell, triggers)
		drop_trigger(lfirst_oid(cell));
	if (triggers != NIL)
		CommandCounterIncrement();
	return list_length(triggers);
}

void
watch_drop_all(const char *loop_name)
{
	drop_triggers(loop_name, InvalidOid);
}

static TriggerTransition *
transition(const char *name, bool is_new)
{
	TriggerTransition *node = makeNode(TriggerTransition);

	node->name = pstrdup(name);
	node->isNew = is_new;
	node->isTable = true;
	return node;
}

static void
create_trigger(Relation rel, const char *loop_name, int event, List *args)
{
	CreateTrigStmt *statement = makeNode(CreateTrigStmt);
	ObjectAddress trigger;
	ObjectAddress extension;
	Oid			userid;
	int			context;

	statement->trigname = trigger_name(loop_name, event);
	statement->relation = makeRangeVar(get_namespace_name(RelationGetNamespace(rel)),
									   pstrdup(RelationGetRelationName(rel)), -1);
	statement->args = args;
	statement->timing = TRIGGER_TYPE_AFTER;
	statement->events = watch_events[event].event;
	if (watch_events[event].old)
		statement->transitionRels = lappend(statement->transitionRels, transition(OLD_TABLE_NAME, false));
	if (watch_events[event].new)
		statement->transitionRels = lappend(statement->transitionRels, transition(NEW_TABLE_NAME, true));

	/* nobody else may execute the function, and so attach it */
	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(install_get()->owner, context | SECURITY_LOCAL_USERID_CHANGE);
	trigger = CreateTrigger(statement, NULL, RelationGetRelid(rel), InvalidOid, InvalidOid, InvalidOid,
							watch_function(), InvalidOid, NULL, false, false);
	SetUserIdAndSecContext(userid, context);

	ObjectAddressSet(extension, ExtensionRelationId,
					 getExtensionOfObject(NamespaceRelationId, install_get()->schema));
	recordDependencyOn(&trigger, &extension, DEPENDENCY_AUTO_EXTENSION);
}

/* ----------------------------------------------------------------
 * watch() and unwatch()
 * ----------------------------------------------------------------
 */

static void
require_table_owner(Oid relation)
{
	if (!compat_class_owned(relation, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", get_rel_name(relation))));
}

/* 42809: never; 0A000: not yet. */
static void
refuse_table(Relation rel, int sqlstate, const char *what, const char *hint)
{
	ereport(ERROR,
			(errcode(sqlstate),
			 errmsg("cannot watch \"%s\": it is %s", RelationGetRelationName(rel), what),
			 errhint("%s", hint)));
}

static void
require_watchable(Relation rel)
{
	const char *ordinary = "Only ordinary tables can be watched.";

	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
			break;
		case RELKIND_PARTITIONED_TABLE:
			refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "a partitioned table",
						 "Partitioned tables cannot be watched yet.");
			break;
		case RELKIND_VIEW:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a view", ordinary);
			break;
		case RELKIND_MATVIEW:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a materialized view", ordinary);
			break;
		case RELKIND_FOREIGN_TABLE:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a foreign table", ordinary);
			break;
		default:
			refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "not a table", ordinary);
	}
	if (IsSystemRelation(rel) || RelationGetNamespace(rel) == install_get()->schema)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a system table", ordinary);
	if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		refuse_table(rel, ERRCODE_WRONG_OBJECT_TYPE, "a temporary table",
					 "A run in another session could not see its rows.");
	if (rel->rd_rel->relispartition)
		refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "a partition", "Partitions cannot be watched yet.");

	/* a statement on the one fires no trigger of the other */
	if (has_superclass(RelationGetRelid(rel)) ||
		find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL)
		refuse_table(rel, ERRCODE_FEATURE_NOT_SUPPORTED, "in an inheritance tree",
					 "Tables that inherit or are inherited from cannot be watched yet.");
}

static void
require_column(Relation rel, const char *column, const char *arg)
{
	AttrNumber	number = get_attnum(RelationGetRelid(rel), column);

	if (number == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it.", arg)));
	if (number < 0)
		arg_invalid(arg, "is a system column", "Name a column of the table's own.");
	if (TupleDescAttr(RelationGetDescr(rel), number - 1)->attgenerated == GENERATED_VIRTUAL)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("column \"%s\" of relation \"%s\" is a virtual generated column",
						column, RelationGetRelationName(rel)),
				 errdetail("The argument \"%s\" names it. Triggers do not see its value.", arg),
				 errhint("Make it STORED, or name the columns that it is computed from.")));
}

/* The names in the argument "columns" as String nodes; NIL if it is NULL. */
static List *
columns_arg(FunctionCallInfo fcinfo, int n)
{
	ArrayType  *array;
	Datum	   *elements;
	bool	   *nulls;
	int			count;
	List	   *names = NIL;

	if (PG_ARGISNULL(n))
		return NIL;
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("argument \"columns\" must be a one-dimensional array")));
	deconstruct_array(array, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR, &elements, &nulls, &count);
	if (count == 0)
		arg_invalid("columns", "must not be empty", "NULL means that a change of any column counts.");
	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"columns\" must not have null elements"),
					 errhint("Element %d is null.", i + 1)));
		names = lappend(names, makeString(pstrdup(NameStr(*DatumGetName(elements[i])))));
	}
	return names;
}

/* Locks and opens the table that the argument names; the caller owns it. */
static Relation
open_table(Oid relation, LOCKMODE mode)
{
	Relation	rel;

	/* before the lock too, so that no stranger holds up a table */
	if (get_rel_name(relation) != NULL)
		require_table_owner(relation);
	rel = try_relation_open(relation, mode);
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relation)));
	require_table_owner(relation);
	return rel;
}

PG_FUNCTION_INFO_V1(reconcile_watch);
Datum
reconcile_watch(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	char	   *entity_column;
	List	   *columns;
	List	   *args;
	ListCell   *cell;
	LoopRules	rules;
	Relation	rel;

	require_writable("watch");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if (PG_ARGISNULL(1))
		arg_null("relation");
	if (PG_ARGISNULL(2))
		arg_null("entity_column");
	entity_column = NameStr(*PG_GETARG_NAME(2));
	columns = columns_arg(fcinfo, 3);
	access_require(CAP_DEFINE, loop_name);
	loop_require(loop_name, &rules);

	rel = open_table(PG_GETARG_OID(1), ShareRowExclusiveLock);
	require_watchable(rel);
	require_column(rel, entity_column, "entity_column");
	foreach(cell, columns)
		require_column(rel, strVal(lfirst(cell)), "columns");

	args = lcons(makeString(loop_name), lcons(makeString(pstrdup(entity_column)), columns));
	drop_triggers(loop_name, RelationGetRelid(rel));
	for (int event = 0; event < lengthof(watch_events); event++)
		create_trigger(rel, loop_name, event, args);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(reconcile_unwatch);
Datum
reconcile_unwatch(PG_FUNCTION_ARGS)
{
	char	   *loop_name;
	LoopRules	rules;
	Relation	rel;

	require_writable("unwatch");
	loop_name = reconciler_id_arg(fcinfo, 0, "loop_name");
	if (PG_ARGISNULL(1))
		arg_null("relation");
	access_require(CAP_DEFINE, loop_name);
	loop_require(loop_name, &rules);

	rel = open_table(PG_GETARG_OID(1), AccessExclusiveLock);
	if (drop_triggers(loop_name, RelationGetRelid(rel)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("loop \"%s\" does not watch \"%s\"", loop_name, RelationGetRelationName(rel))));
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

/* ----------------------------------------------------------------
 * The trigger
 * ----------------------------------------------------------------
 */

/* One statement's work. */
typedef struct Watching
{
	IdSet		ids;
	const char *own_entity;		/* of the run that changes the table; NULL: none */
	int			entity_column;	/* 0: the column is gone */
	FmgrInfo	output;
	int			ncolumns;		/* that matter; 0: all */
	int		   *columns;		/* each 0 if it is gone */
	bool		bad;			/* a value that is no entity id, or no column */
} Watching;

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

static void
mark_value(Watching *watching, TupleTableSlot *slot)
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
	else if (watching->own_entity == NULL || strcmp(id, watching->own_entity) != 0)
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

/* Reads the transition tables; those of an UPDATE are in the same order. */
static void
read_transitions(Watching *watching, TupleDesc desc, Tuplestorestate *old_table, Tuplestorestate *new_table)
{
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
		bool		any = false;
		MemoryContext outer;

		CHECK_FOR_INTERRUPTS();
		if (old_table != NULL)
			any = tuplestore_gettupleslot(old_table, true, false, old);
		if (new_table != NULL)
			any = tuplestore_gettupleslot(new_table, true, false, new);
		if (!any)
			break;

		/* only now: the slots own what they fetched */
		outer = MemoryContextSwitchTo(row_context);
		if (old_table == NULL || new_table == NULL || matters(watching, old, new))
		{
			if (old_table != NULL)
				mark_value(watching, old);
			if (new_table != NULL)
				mark_value(watching, new);
		}
		MemoryContextSwitchTo(outer);
		MemoryContextReset(row_context);
	}
	MemoryContextDelete(row_context);
	ExecDropSingleTupleTableSlot(old);
	ExecDropSingleTupleTableSlot(new);
}

PG_FUNCTION_INFO_V1(reconcile_watch_trigger);
Datum
reconcile_watch_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Watching	watching = {0};
	const LoopRun *run = run_current();
	const char *loop_name;
	TupleDesc	desc;
	Oid			owner;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function reconcile.watch_trigger() can only be called as a trigger"),
				 errhint("Call reconcile.watch().")));
	if (!TRIGGER_FIRED_AFTER(data->tg_event) || !TRIGGER_FIRED_FOR_STATEMENT(data->tg_event) ||
		data->tg_trigger->tgnargs < 2 || (data->tg_oldtable == NULL && data->tg_newtable == NULL))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" was not made by reconcile.watch()", data->tg_trigger->tgname)));

	loop_name = data->tg_trigger->tgargs[0];
	desc = RelationGetDescr(data->tg_relation);
	if (!loop_find_owner(loop_name, &owner))
		return PointerGetDatum(NULL);

	idset_init(&watching.ids, 0);
	if (run != NULL && strcmp(run->rules->loop_name, loop_name) == 0)
		watching.own_entity = run->entity_id;
	watching.entity_column = find_column(desc, data->tg_trigger->tgargs[1]);
	if (watching.entity_column > 0)
	{
		Oid			output;
		bool		varlena;

		getTypeOutputInfo(TupleDescAttr(desc, watching.entity_column - 1)->atttypid, &output, &varlena);
		fmgr_info(output, &watching.output);
	}
	watching.ncolumns = data->tg_trigger->tgnargs - 2;
	watching.columns = palloc(sizeof(int) * Max(watching.ncolumns, 1));
	for (int i = 0; i < watching.ncolumns; i++)
		watching.columns[i] = find_column(desc, data->tg_trigger->tgargs[i + 2]);

	read_transitions(&watching, desc, data->tg_oldtable, data->tg_newtable);

	if (watching.bad)
	{
		if (watching.entity_column == 0)
			ereport(WARNING,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("loop \"%s\" watches a column of \"%s\" that is no longer there",
							loop_name, RelationGetRelationName(data->tg_relation)),
					 errdetail("The entity '' was marked instead."),
					 errhint("Call reconcile.watch() with the column \"%s\"'s new name.",
							 data->tg_trigger->tgargs[1])));
		else
			ereport(WARNING,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("a value of column \"%s\" of \"%s\" is no entity id for loop \"%s\"",
							data->tg_trigger->tgargs[1], RelationGetRelationName(data->tg_relation), loop_name),
					 errdetail("It is longer than %d bytes. The entity '' was marked instead.", ENTITY_ID_MAX)));
		idset_add(&watching.ids, "");
	}
	if (watching.ids.n > 0)
		mark_insert_many(loop_name, watching.ids.n, watching.ids.ids, MARK_TRIGGER, NULL);
	return PointerGetDatum(NULL);
}

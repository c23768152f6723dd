/*
 * watch_catalog.c
 *		The triggers of watched tables in the catalogue: make, find, drop.
 *
 * Each table of a watch has four statement triggers; one that has rows of its
 * own has a row trigger besides, which fires only where session_replication_role
 * is "replica".  All of a partition tree have them alike, whether the watched
 * root or a partition: a statement fires those of the table that it names and
 * no others, so nothing is marked twice.  The row trigger is not left to the
 * server's cloning either: a clone's name could meet one that is there already,
 * and fail an ATTACH.
 *
 * The triggers depend on the extension (DROP EXTENSION removes them) and name a
 * function that nobody else may execute, so no user attaches one himself.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "core/compat.h"
#include "core/install.h"
#include "loop/watch.h"

static const struct
{
	const char *name;			/* as users see it */
	const char *suffix;			/* of the trigger's name */
	int16		events;
	bool		row;
	bool		old;			/* has a transition table of old rows */
	bool		new;
	char		fires;			/* when session_replication_role says what */
}			kinds[WATCH_KINDS] = {
	[WATCH_INSERT] = {"insert", "ins", TRIGGER_TYPE_INSERT, false, false, true, TRIGGER_FIRES_ON_ORIGIN},
	[WATCH_UPDATE] = {"update", "upd", TRIGGER_TYPE_UPDATE, false, true, true, TRIGGER_FIRES_ON_ORIGIN},
	[WATCH_DELETE] = {"delete", "del", TRIGGER_TYPE_DELETE, false, true, false, TRIGGER_FIRES_ON_ORIGIN},
	[WATCH_TRUNCATE] = {"truncate", "tru", TRIGGER_TYPE_TRUNCATE, false, false, false, TRIGGER_FIRES_ALWAYS},
	[WATCH_ROW] = {"row", "row", TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE,
	true, false, false, TRIGGER_FIRES_ON_REPLICA}
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
 * Finding
 * ----------------------------------------------------------------
 */

static WatchKind
kind_of(int16 type)
{
	if (TRIGGER_FOR_ROW(type))
		return WATCH_ROW;
	if (TRIGGER_FOR_TRUNCATE(type))
		return WATCH_TRUNCATE;
	if (TRIGGER_FOR_INSERT(type))
		return WATCH_INSERT;
	return TRIGGER_FOR_DELETE(type) ? WATCH_DELETE : WATCH_UPDATE;
}

/* The trigger as one of ours, palloc'd; NULL if it is none. */
static WatchTrigger *
trigger_from_tuple(HeapTuple tuple, TupleDesc desc, Oid function)
{
	Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);
	WatchTrigger *trigger;
	bool		isnull;
	Datum		args;
	char	   *arg;

	if (form->tgfoid != function || form->tgnargs < WATCH_ARG_COLUMNS)
		return NULL;
	args = heap_getattr(tuple, Anum_pg_trigger_tgargs, desc, &isnull);
	if (isnull)
		return NULL;

	trigger = palloc0(sizeof(WatchTrigger));
	trigger->oid = form->oid;
	trigger->relation = form->tgrelid;
	trigger->name = pstrdup(NameStr(form->tgname));
	trigger->kind = kind_of(form->tgtype);
	trigger->enabled = form->tgenabled;
	/* NUL-terminated strings, one after the other */
	arg = VARDATA_ANY(DatumGetByteaPP(args));
	for (int i = 0; i < form->tgnargs; i++, arg += strlen(arg) + 1)
	{
		if (i == WATCH_ARG_LOOP)
			trigger->spec.loop_name = pstrdup(arg);
		else if (i == WATCH_ARG_ENTITY_COLUMN)
			trigger->spec.entity_column = pstrdup(arg);
		else if (i == WATCH_ARG_PLACE)
			trigger->part = strcmp(arg, "part") == 0;
		else
			trigger->spec.columns = lappend(trigger->spec.columns, makeString(pstrdup(arg)));
	}
	return trigger;
}

/* Adds our triggers that the key finds in an index of pg_trigger. */
static List *
scan_triggers(List *found, Relation rel, Oid index, AttrNumber column, Oid value, Oid function)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, column, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(value));
	scan = systable_beginscan(rel, index, true, NULL, 1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		WatchTrigger *trigger = trigger_from_tuple(tuple, RelationGetDescr(rel), function);

		if (trigger != NULL)
			found = lappend(found, trigger);
	}
	systable_endscan(scan);
	return found;
}

/* All of ours, by their dependency on the function. */
static List *
scan_dependents(Relation rel, Oid function)
{
	Relation	depend = table_open(DependRelationId, AccessShareLock);
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

		if (link->classid == TriggerRelationId)
			found = scan_triggers(found, rel, TriggerOidIndexId, Anum_pg_trigger_oid, link->objid, function);
	}
	systable_endscan(scan);
	table_close(depend, AccessShareLock);
	return found;
}

List *
watch_triggers(Oid relation)
{
	Oid			function = watch_function();
	Relation	rel = table_open(TriggerRelationId, AccessShareLock);
	List	   *found;

	if (OidIsValid(relation))
		found = scan_triggers(NIL, rel, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid, relation, function);
	else
		found = scan_dependents(rel, function);
	table_close(rel, AccessShareLock);
	return found;
}

const WatchSpec *
watch_spec_of(List *specs, const char *loop_name)
{
	ListCell   *cell;

	foreach(cell, specs)
	{
		const WatchSpec *spec = lfirst(cell);

		if (strcmp(spec->loop_name, loop_name) == 0)
			return spec;
	}
	return NULL;
}

List *
watch_specs(Oid relation)
{
	List	   *specs = NIL;
	ListCell   *cell;

	foreach(cell, watch_triggers(relation))
	{
		WatchTrigger *trigger = lfirst(cell);

		if (!trigger->part && watch_spec_of(specs, trigger->spec.loop_name) == NULL)
			specs = lappend(specs, &trigger->spec);
	}
	return specs;
}

Oid
watch_root(Oid partition)
{
	List	   *ancestors = get_partition_ancestors(partition);

	return ancestors != NIL ? llast_oid(ancestors) : InvalidOid;
}

/* Does a table need the kind?  A row trigger stands where rows are. */
static bool
kind_needed(WatchKind kind, Oid relation)
{
	return !kinds[kind].row || get_rel_relkind(relation) != RELKIND_PARTITIONED_TABLE;
}

bool
watch_is_whole(Oid relation, List *triggers, const WatchSpec *spec, bool part)
{
	bool		there[WATCH_KINDS] = {0};
	ListCell   *cell;

	foreach(cell, triggers)
	{
		WatchTrigger *trigger = lfirst(cell);

		if (strcmp(trigger->spec.loop_name, spec->loop_name) != 0)
			continue;
		if (trigger->part != part || !equal(trigger->spec.columns, spec->columns) ||
			strcmp(trigger->spec.entity_column, spec->entity_column) != 0)
			return false;
		there[trigger->kind] = true;
	}
	for (int kind = 0; kind < WATCH_KINDS; kind++)
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
create_trigger(Oid relation, WatchKind kind, const char *loop_name, List *args)
{
	CreateTrigStmt *statement = makeNode(CreateTrigStmt);
	ObjectAddress trigger;
	ObjectAddress extension;
	Oid			userid;
	int			context;

	statement->trigname = psprintf("reconcile_%s_%s", loop_name, kinds[kind].suffix);
	statement->relation = makeRangeVar(get_namespace_name(get_rel_namespace(relation)),
									   get_rel_name(relation), -1);
	statement->args = args;
	statement->row = kinds[kind].row;
	statement->timing = TRIGGER_TYPE_AFTER;
	statement->events = kinds[kind].events;
	if (kinds[kind].old)
		statement->transitionRels = lappend(statement->transitionRels, transition(WATCH_OLD_TABLE, false));
	if (kinds[kind].new)
		statement->transitionRels = lappend(statement->transitionRels, transition(WATCH_NEW_TABLE, true));

	/* nobody else may execute the function, and so attach it */
	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(install_get()->owner, context | SECURITY_LOCAL_USERID_CHANGE);
	trigger = CreateTriggerFiringOn(statement, NULL, relation, InvalidOid, InvalidOid, InvalidOid,
									watch_function(), InvalidOid, NULL, false, false, kinds[kind].fires);
	SetUserIdAndSecContext(userid, context);

	ObjectAddressSet(extension, ExtensionRelationId,
					 getExtensionOfObject(NamespaceRelationId, install_get()->schema));
	recordDependencyOn(&trigger, &extension, DEPENDENCY_AUTO_EXTENSION);
}

void
watch_put(Oid relation, const WatchSpec *spec, bool part)
{
	List	   *args = list_make3(makeString(spec->loop_name), makeString(spec->entity_column),
								  makeString(pstrdup(part ? "part" : "root")));

	args = list_concat(args, spec->columns);
	for (int kind = 0; kind < WATCH_KINDS; kind++)
	{
		if (kind_needed(kind, relation))
			create_trigger(relation, kind, spec->loop_name, args);
	}
	CommandCounterIncrement();
}

static bool
trigger_exists(Oid trigger)
{
	Relation	rel = table_open(TriggerRelationId, AccessShareLock);
	bool		exists = HeapTupleIsValid(get_catalog_object_by_oid(rel, Anum_pg_trigger_oid, trigger));

	table_close(rel, AccessShareLock);
	return exists;
}

/*
 * Drops those of the loop, whatever the caller's rights on their tables are, and
 * says how many there were.  The table is locked before the trigger, as all
 * others do; one that we waited for may have dropped them.
 */
static int
drop_triggers(List *triggers, const char *loop_name)
{
	int			found = 0;
	ListCell   *cell;

	foreach(cell, triggers)
	{
		WatchTrigger *trigger = lfirst(cell);
		ObjectAddress address;

		if (strcmp(trigger->spec.loop_name, loop_name) != 0)
			continue;
		found++;
		LockRelationOid(trigger->relation, AccessExclusiveLock);
		if (!trigger_exists(trigger->oid))
			continue;
		ObjectAddressSet(address, TriggerRelationId, trigger->oid);
		performDeletion(&address, DROP_RESTRICT, 0);
	}
	if (found > 0)
		CommandCounterIncrement();
	return found;
}

int
watch_remove(Oid relation, const char *loop_name)
{
	return drop_triggers(watch_triggers(relation), loop_name);
}

/* Again until there are none: an ATTACH that we waited for may have made more. */
void
watch_drop_all(const char *loop_name)
{
	while (drop_triggers(watch_triggers(InvalidOid), loop_name) > 0)
		;
}

/* ----------------------------------------------------------------
 * Showing
 * ----------------------------------------------------------------
 */

static Datum
column_array(List *columns)
{
	Datum	   *names = palloc(sizeof(Datum) * list_length(columns));
	int			n = 0;
	ListCell   *cell;

	foreach(cell, columns)
		names[n++] = DirectFunctionCall1(namein, CStringGetDatum(strVal(lfirst(cell))));
	return PointerGetDatum(construct_array(names, n, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
}

PG_FUNCTION_INFO_V1(reconcile_watch_triggers);
Datum
reconcile_watch_triggers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *cell;

	InitMaterializedSRF(fcinfo, 0);
	foreach(cell, watch_triggers(InvalidOid))
	{
		WatchTrigger *trigger = lfirst(cell);
		Datum		values[8];
		bool		nulls[8] = {0};

		values[0] = CStringGetTextDatum(trigger->spec.loop_name);
		values[1] = ObjectIdGetDatum(trigger->relation);
		values[2] = CStringGetTextDatum(kinds[trigger->kind].name);
		values[3] = BoolGetDatum(trigger->part);
		values[4] = DirectFunctionCall1(namein, CStringGetDatum(trigger->spec.entity_column));
		nulls[5] = trigger->spec.columns == NIL;
		values[5] = nulls[5] ? (Datum) 0 : column_array(trigger->spec.columns);
		values[6] = DirectFunctionCall1(namein, CStringGetDatum(trigger->name));
		values[7] = BoolGetDatum(trigger->enabled == kinds[trigger->kind].fires);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

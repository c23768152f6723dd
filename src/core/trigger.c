/*
 * trigger.c
 *		Our triggers on users' tables: make, find, drop.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
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
#include "core/trigger.h"

Oid
trigger_function(const char *name)
{
	Oid			function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
										   CStringGetDatum(name),
										   PointerGetDatum(buildoidvector(NULL, 0)),
										   ObjectIdGetDatum(install_get()->schema));

	if (!OidIsValid(function))
		elog(ERROR, "function reconcile.%s() is missing", name);
	return function;
}

/* ----------------------------------------------------------------
 * Finding
 * ----------------------------------------------------------------
 */

static TableTrigger *
from_tuple(HeapTuple tuple, TupleDesc desc)
{
	Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);
	TableTrigger *trigger = palloc0(sizeof(TableTrigger));
	bool		isnull;
	Datum		args = heap_getattr(tuple, Anum_pg_trigger_tgargs, desc, &isnull);
	char	   *arg;

	trigger->oid = form->oid;
	trigger->relation = form->tgrelid;
	trigger->name = pstrdup(NameStr(form->tgname));
	trigger->type = form->tgtype;
	trigger->enabled = form->tgenabled;
	trigger->nargs = isnull ? 0 : form->tgnargs;
	trigger->args = palloc(sizeof(char *) * Max(trigger->nargs, 1));
	/* NUL-terminated strings, one after the other */
	arg = isnull ? NULL : VARDATA_ANY(DatumGetByteaPP(args));
	for (int i = 0; i < trigger->nargs; i++, arg += strlen(arg) + 1)
		trigger->args[i] = pstrdup(arg);
	return trigger;
}

/* Adds the function's triggers that the key finds in an index of pg_trigger. */
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
		if (((Form_pg_trigger) GETSTRUCT(tuple))->tgfoid == function)
			found = lappend(found, from_tuple(tuple, RelationGetDescr(rel)));
	}
	systable_endscan(scan);
	return found;
}

/* All of them, by their dependency on the function. */
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
trigger_list(Oid function, Oid relation)
{
	Relation	rel = table_open(TriggerRelationId, AccessShareLock);
	List	   *found;

	if (OidIsValid(relation))
		found = scan_triggers(NIL, rel, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid, relation, function);
	else
		found = scan_dependents(rel, function);
	table_close(rel, AccessShareLock);
	return found;
}

List *
trigger_names(const TableTrigger *trigger, int first)
{
	List	   *names = NIL;

	for (int i = first; i < trigger->nargs; i++)
		names = lappend(names, makeString(pstrdup(trigger->args[i])));
	return names;
}

Datum
trigger_name_array(List *names)
{
	Datum	   *elements = palloc(sizeof(Datum) * list_length(names));
	int			n = 0;
	ListCell   *cell;

	foreach(cell, names)
		elements[n++] = DirectFunctionCall1(namein, CStringGetDatum(strVal(lfirst(cell))));
	return PointerGetDatum(construct_array(elements, n, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR));
}

/* ----------------------------------------------------------------
 * Making and dropping
 * ----------------------------------------------------------------
 */

void
trigger_make(CreateTrigStmt *statement, Oid relation, Oid function, char fires)
{
	ObjectAddress trigger;
	ObjectAddress extension;
	Oid			userid;
	int			context;

	statement->relation = makeRangeVar(get_namespace_name(get_rel_namespace(relation)),
									   get_rel_name(relation), -1);

	/* nobody else may execute the function, and so attach it */
	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(install_get()->owner, context | SECURITY_LOCAL_USERID_CHANGE);
	trigger = CreateTriggerFiringOn(statement, NULL, relation, InvalidOid, InvalidOid, InvalidOid,
									function, InvalidOid, NULL, false, false, fires);
	SetUserIdAndSecContext(userid, context);

	ObjectAddressSet(extension, ExtensionRelationId, install_get()->extension);
	recordDependencyOn(&trigger, &extension, DEPENDENCY_AUTO_EXTENSION);
}

static bool
trigger_exists(Oid trigger)
{
	Relation	rel = table_open(TriggerRelationId, AccessShareLock);
	bool		exists = HeapTupleIsValid(get_catalog_object_by_oid(rel, Anum_pg_trigger_oid, trigger));

	table_close(rel, AccessShareLock);
	return exists;
}

void
trigger_drop(const TableTrigger *trigger)
{
	ObjectAddress address;

	LockRelationOid(trigger->relation, AccessExclusiveLock);
	if (!trigger_exists(trigger->oid))
		return;
	ObjectAddressSet(address, TriggerRelationId, trigger->oid);
	performDeletion(&address, DROP_RESTRICT, 0);
}

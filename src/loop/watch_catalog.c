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
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "core/table.h"
#include "core/trigger.h"
#include "loop/watch.h"

#define WATCH_FUNCTION	"watch_trigger"

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
as_watch(const TableTrigger *found)
{
	WatchTrigger *trigger;

	if (found->nargs < WATCH_ARG_COLUMNS)
		return NULL;
	trigger = palloc0(sizeof(WatchTrigger));
	trigger->trigger = found;
	trigger->kind = kind_of(found->type);
	trigger->part = strcmp(found->args[WATCH_ARG_PLACE], "part") == 0;
	trigger->spec.loop_name = found->args[WATCH_ARG_LOOP];
	trigger->spec.entity_column = found->args[WATCH_ARG_ENTITY_COLUMN];
	trigger->spec.columns = trigger_names(found, WATCH_ARG_COLUMNS);
	return trigger;
}

List *
watch_triggers(Oid relation)
{
	List	   *triggers = NIL;
	ListCell   *cell;

	foreach(cell, trigger_list(trigger_function(WATCH_FUNCTION), relation))
	{
		WatchTrigger *trigger = as_watch(lfirst(cell));

		if (trigger != NULL)
			triggers = lappend(triggers, trigger);
	}
	return triggers;
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

/* Does a table need the kind? */
static bool
kind_needed(WatchKind kind, Oid relation)
{
	return !kinds[kind].row || table_has_rows(relation);
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

	statement->trigname = psprintf("reconcile_%s_%s", loop_name, kinds[kind].suffix);
	statement->args = args;
	statement->row = kinds[kind].row;
	statement->timing = TRIGGER_TYPE_AFTER;
	statement->events = kinds[kind].events;
	if (kinds[kind].old)
		statement->transitionRels = lappend(statement->transitionRels, transition(WATCH_OLD_TABLE, false));
	if (kinds[kind].new)
		statement->transitionRels = lappend(statement->transitionRels, transition(WATCH_NEW_TABLE, true));
	trigger_make(statement, relation, trigger_function(WATCH_FUNCTION), kinds[kind].fires);
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

/* Drops those of the loop, and says how many there were. */
static int
drop_triggers(List *triggers, const char *loop_name)
{
	int			found = 0;
	ListCell   *cell;

	foreach(cell, triggers)
	{
		WatchTrigger *trigger = lfirst(cell);

		if (strcmp(trigger->spec.loop_name, loop_name) != 0)
			continue;
		found++;
		trigger_drop(trigger->trigger);
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
		values[1] = ObjectIdGetDatum(trigger->trigger->relation);
		values[2] = CStringGetTextDatum(kinds[trigger->kind].name);
		values[3] = BoolGetDatum(trigger->part);
		values[4] = DirectFunctionCall1(namein, CStringGetDatum(trigger->spec.entity_column));
		nulls[5] = trigger->spec.columns == NIL;
		values[5] = nulls[5] ? (Datum) 0 : trigger_name_array(trigger->spec.columns);
		values[6] = DirectFunctionCall1(namein, CStringGetDatum(trigger->trigger->name));
		values[7] = BoolGetDatum(trigger->trigger->enabled == kinds[trigger->kind].fires);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

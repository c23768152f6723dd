/*
 * dead.c
 *		How many entities of a loop are dead, kept without a scan.
 *
 * Row triggers of reconcile.entity fire where a row becomes dead or alive, and
 * for nothing else.  They note the change with the nesting level that made it
 * (an abort of that level drops it), and at commit the sums go to the engine.
 *
 * Whoever changes the number holds the lock on the count in share mode until his
 * transaction is over, which is after he told the engine; who counts takes it
 * exclusively and then takes a snapshot.  So a change is in the count or is told
 * after it, never both and never neither.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "core/errors.h"
#include "core/install.h"
#include "core/nested.h"
#include "core/plan.h"
#include "loop/dead.h"

/* Columns of reconcile.entity, as in loop.sql. */
#define ENTITY_LOOP_NAME	1
#define ENTITY_DIED_OF		4

typedef struct Change
{
	Nested		nested;
	char		loop_name[RECONCILER_ID_MAX + 1];
	int64		n;
} Change;

void		(*dead_changed_hook) (const char *loop_name, int64 change) = NULL;

static Nested *changes = NULL;

static Change *
change_of(const char *loop_name)
{
	int			level = GetCurrentTransactionNestLevel();
	Change	   *change;

	for (Nested *it = changes; it != NULL && it->level == level; it = it->earlier)
	{
		change = (Change *) it;
		if (strcmp(change->loop_name, loop_name) == 0)
			return change;
	}
	change = nested_add(&changes, sizeof(Change));
	strlcpy(change->loop_name, loop_name, sizeof(change->loop_name));
	return change;
}

static void
note(Relation rel, HeapTuple tuple, int64 n)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, ENTITY_LOOP_NAME, RelationGetDescr(rel), &isnull);

	change_of(TextDatumGetCString(value))->n += n;
}

PG_FUNCTION_INFO_V1(reconcile_dead_changed);
Datum
reconcile_dead_changed(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("dead_changed() was not called by a trigger for each row")));
	if (dead_changed_hook == NULL)
		return PointerGetDatum(NULL);

	(void) lock_take(LOCK_KIND_DEAD, "", "", ShareLock, true);
	if (TRIGGER_FIRED_BY_INSERT(data->tg_event))
		note(data->tg_relation, data->tg_trigtuple, 1);
	else if (TRIGGER_FIRED_BY_DELETE(data->tg_event))
		note(data->tg_relation, data->tg_trigtuple, -1);
	else
	{
		bool		isnull;

		/* the trigger's condition says that it was one and is not the other */
		heap_getattr(data->tg_newtuple, ENTITY_DIED_OF, RelationGetDescr(data->tg_relation), &isnull);
		note(data->tg_relation, data->tg_newtuple, isnull ? -1 : 1);
	}
	return PointerGetDatum(NULL);
}

static void
dead_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			for (const Nested *it = changes; it != NULL; it = it->earlier)
			{
				const Change *change = (const Change *) it;

				if (change->n != 0)
					dead_changed_hook(change->loop_name, change->n);
			}
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:	/* COMMIT PREPARED owes a rescan, and so a count */
			break;
		default:
			return;
	}
	changes = NULL;
}

static void
dead_subxact_callback(SubXactEvent event, SubTransactionId subid,
					  SubTransactionId parent, void *arg)
{
	nested_end_subxact(&changes, event);
}

void
dead_init(void)
{
	RegisterXactCallback(dead_xact_callback, NULL);
	RegisterSubXactCallback(dead_subxact_callback, NULL);
}

bool
dead_count(void (*begin) (void), void (*found) (const char *loop_name, int64 n))
{
	static SqlPlan plan = {
		"SELECT e.loop_name, pg_catalog.count(*) FROM reconcile.entity e"
		" WHERE e.died_of IS NOT NULL GROUP BY e.loop_name", 0, {0}
	};
	SqlScope	scope;
	uint64		rows;

	if (!lock_take(LOCK_KIND_DEAD, "", "", ExclusiveLock, false))
		return false;
	sql_begin(&scope);
	rows = sql_run_latest(&plan, NULL, NULL);
	begin();
	for (uint64 i = 0; i < rows; i++)
		found(TextDatumGetCString(sql_value(i, 1, NULL)), DatumGetInt64(sql_value(i, 2, NULL)));
	sql_end(&scope);
	return true;
}

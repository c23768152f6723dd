/*
 * keep_marks.c
 *		The trigger of rows whose marks fence others: nothing in them may fall, or go.
 *
 * It fires for every role and whatever session_replication_role says; who brings what
 * another server has decided, a subscription, is let by.  Its arguments name columns:
 *
 *		name	a bigint that never falls
 *		=name	never changes
 *		!name	never changes once it is not NULL
 *		*		nothing changes
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "replication/logicalworker.h"
#include "utils/datum.h"
#include "utils/rel.h"

#include "core/compat.h"

compat_noreturn static void refuse(Relation rel, const char *column, const char *rule);

static void
refuse(Relation rel, const char *column, const char *rule)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 column == NULL ? errmsg("rows of reconcile.%s %s", RelationGetRelationName(rel), rule) :
			 errmsg("column %s of reconcile.%s %s", column, RelationGetRelationName(rel), rule),
			 errdetail("What refuses the late is kept for good."),
			 errtable(rel)));
}

static void
check_column(const TriggerData *data, char rule, const char *column)
{
	Relation	rel = data->tg_relation;
	TupleDesc	desc = RelationGetDescr(rel);
	int			number = SPI_fnumber(desc, column);
	Form_pg_attribute attribute;
	Datum		before;
	Datum		after;
	bool		before_null;
	bool		after_null;

	if (number <= 0)
		elog(ERROR, "reconcile.%s has no column \"%s\"", RelationGetRelationName(rel), column);
	attribute = TupleDescAttr(desc, number - 1);
	before = heap_getattr(data->tg_trigtuple, number, desc, &before_null);
	after = heap_getattr(data->tg_newtuple, number, desc, &after_null);
	if (rule == '\0')
	{
		if (!before_null && (after_null || DatumGetInt64(after) < DatumGetInt64(before)))
			refuse(rel, column, "never falls");
		return;
	}
	if (rule == '!' && before_null)
		return;
	/* the bytes first: what was not assigned is not read from where it is stored apart */
	if (before_null != after_null ||
		(!before_null && !datumIsEqual(before, after, attribute->attbyval, attribute->attlen) &&
		 !datum_image_eq(before, after, attribute->attbyval, attribute->attlen)))
		refuse(rel, column, "never changes");
}

PG_FUNCTION_INFO_V1(reconcile_keep_marks);
Datum
reconcile_keep_marks(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("keep_marks() was not called by a trigger")));
	if (!TRIGGER_FIRED_BY_UPDATE(data->tg_event))
	{
		if (!IsLogicalWorker())
			refuse(data->tg_relation, NULL, "are never removed");
		return PointerGetDatum(data->tg_trigtuple);
	}
	for (int i = 0; i < data->tg_trigger->tgnargs && !IsLogicalWorker(); i++)
	{
		const char *column = data->tg_trigger->tgargs[i];

		if (*column == '*')
			refuse(data->tg_relation, NULL, "never change once they are settled");
		if (*column == '=' || *column == '!')
			check_column(data, *column, column + 1);
		else
			check_column(data, '\0', column);
	}
	return PointerGetDatum(data->tg_newtuple);
}

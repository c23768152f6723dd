/*
 * keep.c
 *		The triggers of what is over.
 *
 * They fire for every role and whatever session_replication_role says.  Who brings
 * what another server has decided, a subscription, is let by: refused there it would
 * only stand still.
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "replication/logicalworker.h"
#include "utils/rel.h"

#include "journal/keep.h"

static bool open_for_deletes = false;

void
keep_open(void)
{
	open_for_deletes = true;
}

void
keep_close(void)
{
	open_for_deletes = false;
}

PG_FUNCTION_INFO_V1(reconcile_keep_row);
Datum
reconcile_keep_row(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("keep_row() was not called by a trigger")));
	if (!IsLogicalWorker() && !(open_for_deletes && TRIGGER_FIRED_BY_DELETE(data->tg_event)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of %s.%s are kept as they are", "reconcile", RelationGetRelationName(data->tg_relation)),
				 errdetail("What is over does not change, and nothing is deleted by hand."),
				 errhint("reconcile.prune_commands() deletes what is old enough.")));
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple);
}

PG_FUNCTION_INFO_V1(reconcile_skip_row);
Datum
reconcile_skip_row(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("skip_row() was not called by a trigger")));
	return PointerGetDatum(NULL);
}

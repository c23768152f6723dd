/*
 * incarnation_sql.c
 *		Incarnations as SQL calls them.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/errors.h"
#include "core/ident.h"
#include "lease/incarnation.h"

PG_FUNCTION_INFO_V1(reconcile_incarnation);
Datum
reconcile_incarnation(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Incarnation now;
	Datum		values[6];
	bool		nulls[6] = {false};

	InitMaterializedSRF(fcinfo, 0);
	incarnation_read(&now);
	values[0] = Int64GetDatum(now.number);
	values[1] = PointerGetDatum(cstring_to_text_with_len(now.place, strcspn(now.place, "/")));
	values[2] = Int32GetDatum(now.timeline);
	values[3] = Int64GetDatum(now.floor);
	values[4] = TimestampTzGetDatum(now.since);
	nulls[4] = now.since == 0;
	values[5] = CStringGetTextDatum(now.reason);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

PG_FUNCTION_INFO_V1(reconcile_bump_incarnation);
Datum
reconcile_bump_incarnation(PG_FUNCTION_ARGS)
{
	char	   *reason;

	require_writable("bump_incarnation");
	reason = reason_arg(fcinfo, 0);
	/* an empty id is in no scope but that of all */
	if (!access_allowed(CAP_OPERATE, ""))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to begin another incarnation"),
				 errdetail("It voids all leases, and needs the capability \"operate\" on all reconciler ids."),
				 errhint("Ask an administrator for reconcile.grant_access(role, 'operate').")));
	PG_RETURN_INT64(incarnation_bump(reason));
}

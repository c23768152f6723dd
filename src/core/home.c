/*
 * home.c
 *		System identifier, database, extension and timeline of the running server.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "core/home.h"
#include "core/install.h"

/* The timeline of what is written here, or on a standby of what is replayed. */
static TimeLineID
timeline_now(void)
{
	TimeLineID	timeline;

	if (!RecoveryInProgress())
		return GetWALInsertionTimeLine();
	(void) GetXLogReplayRecPtr(&timeline);
	return timeline;
}

const Home *
home_here(void)
{
	static Home here;
	static Oid	written_for = InvalidOid;	/* extension that here.place names */
	const Install *install = install_find();
	/* the install script asks too, before it is through */
	Oid			extension = install != NULL ? install->extension : get_extension_oid("reconcile", true);

	if (written_for != extension || !OidIsValid(extension))
	{
		snprintf(here.place, sizeof(here.place), UINT64_FORMAT "/%u/%u",
				 GetSystemIdentifier(), MyDatabaseId, extension);
		written_for = extension;
	}
	here.timeline = (int32) timeline_now();
	return &here;
}

HomeDifference
home_compare(const char *place, int32 timeline)
{
	const Home *here = home_here();

	if (strcmp(place, here->place) != 0)
		return HOME_FOREIGN;
	return timeline == here->timeline ? HOME_SAME : HOME_TIMELINE;
}

PG_FUNCTION_INFO_V1(reconcile_here);
Datum
reconcile_here(PG_FUNCTION_ARGS)
{
	const Home *here = home_here();
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = CStringGetTextDatum(here->place);
	values[1] = Int32GetDatum(here->timeline);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/*
 * guc.c
 *		Defines the settings.
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "core/guc.h"

char	   *guc_databases;
int			guc_max_workers = 8;
int			guc_ring_size = 16384;
int			guc_worker_idle_timeout = 60;
int			guc_fence_grace = 10000;
bool		guc_notify = false;

void
guc_define(bool preloaded)
{
	DefineCustomIntVariable("reconcile.fence_grace",
							"Time after a lease's deadline before a session that still holds its fence is ended.",
							"-1 never ends a session.",
							&guc_fence_grace, 10000, -1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("reconcile.worker_idle_timeout",
							"Time after which an idle executor leaves.",
							NULL,
							&guc_worker_idle_timeout, 60, 1, INT_MAX / 1000, PGC_SIGHUP, GUC_UNIT_S,
							NULL, NULL, NULL);
	DefineCustomStringVariable("reconcile.databases",
							   "Databases whose loops are run, separated by commas.",
							   "Empty: every database that has the extension and a loop.",
							   &guc_databases, "", PGC_SIGHUP, GUC_LIST_INPUT,
							   NULL, NULL, NULL);
	DefineCustomBoolVariable("reconcile.notify",
							 "Sends a NOTIFY when work for outside workers becomes due.",
							 NULL,
							 &guc_notify, false, PGC_SIGHUP, 0,
							 NULL, NULL, NULL);
	if (preloaded)
	{
		DefineCustomIntVariable("reconcile.max_workers",
								"Executors in the server.",
								NULL,
								&guc_max_workers, 8, 1, 1024, PGC_POSTMASTER, 0,
								NULL, NULL, NULL);
		DefineCustomIntVariable("reconcile.ring_size",
								"Marks that the ring of a database holds.",
								"When it overflows, the dispatcher reads the marks from the tables.",
								&guc_ring_size, 16384, 64, 1 << 20, PGC_POSTMASTER, 0,
								NULL, NULL, NULL);
	}
	MarkGUCPrefixReserved("reconcile");
}

/*
 * testpoint.c
 *		Holds a process at a named place until a test lets it go.
 *
 * For tests alone; the library that is shipped has nothing of it.  The test
 * says what it wants by files in the folder reconcile_testpoints of the data
 * directory, so that it reaches every process, in recovery and through a crash:
 *
 *   NAME          armed: the next process that comes by stops, and no other
 *   NAME.PID      armed for that process alone
 *   NAME.reached  it has stopped, and this is its pid; removed: it goes on
 *
 * Interrupts are not looked at, as in the library that is shipped: a signal that
 * comes meanwhile is answered by the step that follows.
 */
#include "postgres.h"

#ifdef RECONCILE_TESTPOINTS

#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/pmsignal.h"

#include "core/testpoint.h"

#define POLL_US		2000

void
reconcile_test_point(const char *name)
{
	char		armed[MAXPGPATH];
	char		armed_for_us[MAXPGPATH];
	char		reached[MAXPGPATH];
	struct stat st;
	FILE	   *file;

	snprintf(armed, sizeof(armed), "reconcile_testpoints/%s", name);
	snprintf(armed_for_us, sizeof(armed_for_us), "%s.%d", armed, MyProcPid);
	snprintf(reached, sizeof(reached), "%s.reached", armed);
	/* of several that come by one wins */
	if (rename(armed_for_us, reached) != 0 && rename(armed, reached) != 0)
		return;
	file = fopen(reached, "r+");
	if (file == NULL)
		return;
	fprintf(file, "%d\n", MyProcPid);
	fclose(file);
	while (stat(reached, &st) == 0 && PostmasterIsAlive())
		pg_usleep(POLL_US);
}

/*
 * The ends of any transaction.  They are armed for a process, or whoever comes
 * first would stop there.
 */
static void
test_point_xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT)
		TEST_POINT("transaction-before-commit");
	else if (event == XACT_EVENT_COMMIT)
		TEST_POINT("transaction-after-commit");
}

void
test_points_init(void)
{
	RegisterXactCallback(test_point_xact_callback, NULL);
}

#endif							/* RECONCILE_TESTPOINTS */

/*
 * testpoint.c
 *		Holds a process at a named place until a test lets it go.
 *
 * For tests alone; the library that is shipped has nothing of it.  The test
 * says what it wants by files in the folder reconcile_testpoints of the data
 * directory, so that it reaches every process, in recovery and through a crash:
 *
 *   NAME          armed: the next process that comes by stops, and no other
 *   NAME.reached  it has stopped, and this is its pid; removed: it goes on
 *
 * A process that is held answers interrupts where the place allows them, as it
 * would between two of its own steps.
 */
#include "postgres.h"

#ifdef RECONCILE_TESTPOINTS

#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"

#include "core/testpoint.h"

#define POLL_US		2000

static void
note_pid(const char *path)
{
	char		written[MAXPGPATH];
	FILE	   *file;

	/* whole or not at all for whoever looks */
	snprintf(written, sizeof(written), "%s.new", path);
	file = fopen(written, "w");
	if (file == NULL)
		elog(ERROR, "could not write \"%s\": %m", written);
	fprintf(file, "%d\n", MyProcPid);
	fclose(file);
	if (rename(written, path) != 0)
		elog(ERROR, "could not rename \"%s\": %m", written);
}

void
reconcile_test_point(const char *name)
{
	char		armed[MAXPGPATH];
	char		taken[MAXPGPATH];
	char		reached[MAXPGPATH];
	struct stat st;

	snprintf(armed, sizeof(armed), "reconcile_testpoints/%s", name);
	snprintf(taken, sizeof(taken), "%s.%d", armed, MyProcPid);
	snprintf(reached, sizeof(reached), "%s.reached", armed);
	/* of several that come by one wins */
	if (rename(armed, taken) != 0)
		return;
	note_pid(reached);
	(void) unlink(taken);
	while (stat(reached, &st) == 0)
	{
		pg_usleep(POLL_US);
		CHECK_FOR_INTERRUPTS();
	}
}

#endif							/* RECONCILE_TESTPOINTS */

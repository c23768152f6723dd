/*
 * crash.c
 *		For tests alone: a function that ends the process that calls it.
 */
#include "postgres.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "fmgr.h"
#include "utils/builtins.h"

PG_MODULE_MAGIC;

/* Without a look at the depth of the stack, and no tail call either. */
static int
overflow(volatile char *above)
{
	volatile char here[4096];

	here[0] = above[0];
	return overflow(here) + here[0];
}

PG_FUNCTION_INFO_V1(crash);
Datum
crash(PG_FUNCTION_ARGS)
{
	char	   *how = text_to_cstring(PG_GETARG_TEXT_PP(0));

	if (strcmp(how, "segv") == 0)
		raise(SIGSEGV);
	else if (strcmp(how, "abort") == 0)
		abort();
	else if (strcmp(how, "_exit") == 0)
		_exit(1);
	else if (strcmp(how, "exit") == 0)
		exit(1);
	else if (strcmp(how, "exit3") == 0)
		exit(3);
	else if (strcmp(how, "kill") == 0)
		kill(getpid(), SIGKILL);
	else if (strcmp(how, "stack") == 0)
		PG_RETURN_INT32(overflow((volatile char *) how));
	else if (strcmp(how, "fatal") == 0)
		ereport(FATAL, (errmsg("as it was asked to")));
	PG_RETURN_INT32(0);
}

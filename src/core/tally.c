/*
 * tally.c
 *		Where the hooks live by which events are counted, and when one is logged.
 */
#include "postgres.h"

#include "core/duration.h"
#include "core/ident.h"
#include "core/tally.h"

void		(*tally_hook) (const char *reconciler_id, Tally what) = NULL;
bool		(*tally_log_hook) (const char *reconciler_id, Tally what, TimestampTz now) = NULL;

/* Of a session without the engine: the last few that were logged. */
#define LOGGED_KEPT	8

static struct
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	Tally		what;
	TimestampTz at;				/* 0: free */
}			logged[LOGGED_KEPT];

static bool
session_log_due(const char *reconciler_id, Tally what, TimestampTz now)
{
	int			oldest = 0;

	for (int i = 0; i < LOGGED_KEPT; i++)
	{
		if (logged[i].at != 0 && logged[i].what == what && strcmp(logged[i].reconciler_id, reconciler_id) == 0)
		{
			if (now < logged[i].at + TALLY_LOG_EVERY_US)
				return false;
			logged[i].at = now;
			return true;
		}
		if (logged[i].at < logged[oldest].at)
			oldest = i;
	}
	strlcpy(logged[oldest].reconciler_id, reconciler_id, sizeof(logged[oldest].reconciler_id));
	logged[oldest].what = what;
	logged[oldest].at = now;
	return true;
}

bool
tally_log_due(const char *reconciler_id, Tally what)
{
	TimestampTz now = clock_now();

	return tally_log_hook != NULL ? tally_log_hook(reconciler_id, what, now) :
		session_log_due(reconciler_id, what, now);
}

/*
 * duration.h
 *		Durations as milliseconds, and the one clock.
 *
 * A duration is a finite interval without months, at most 366 days, where a
 * day is 24 hours; it is floored to 1 ms, and what is left below 1 ms refused.
 */
#ifndef RECONCILE_DURATION_H
#define RECONCILE_DURATION_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "utils/timestamp.h"

#define DURATION_MAX_MS		(INT64CONST(366) * 24 * 3600 * 1000)

/* What duration_check() found. */
typedef enum DurationProblem
{
	DURATION_OK,
	DURATION_INFINITE,
	DURATION_MONTHS,
	DURATION_NEGATIVE,
	DURATION_ZERO,
	DURATION_TOO_SHORT,
	DURATION_TOO_LONG
} DurationProblem;

/*
 * Milliseconds of an interval, in *ms.  DURATION_ZERO and DURATION_NEGATIVE
 * come with *ms = 0: a caller for whom they mean something goes on.
 */
extern DurationProblem duration_check(const Interval *value, int64 *ms);

/* An argument's milliseconds; 22004, or 22023 naming "arg" with the limits. */
extern int64 duration_arg(FunctionCallInfo fcinfo, int n, const char *arg, bool zero_allowed);
extern int64 duration_value(const Interval *value, const char *arg, bool zero_allowed);

/* The interval that a text says; 22023 naming "arg" where it says none. */
extern const Interval *duration_parse(const char *text, const char *arg);

extern Interval *duration_interval(int64 ms);

/* Every rule about time asks this clock, after the lock that it needs. */
static inline TimestampTz
clock_now(void)
{
	return GetCurrentTimestamp();
}

static inline TimestampTz
clock_add_ms(TimestampTz at, int64 ms)
{
	return at + ms * INT64CONST(1000);
}

#endif							/* RECONCILE_DURATION_H */

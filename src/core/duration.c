/*
 * duration.c
 *		Intervals from SQL to milliseconds and back.
 */
#include "postgres.h"

#include "common/int.h"
#include "utils/builtins.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"

DurationProblem
duration_check(const Interval *value, int64 *ms)
{
	int64		us;

	*ms = 0;
	if (!compat_interval_is_finite(value))
		return DURATION_INFINITE;
	if (value->month != 0)
		return DURATION_MONTHS;
	if (pg_mul_s64_overflow(value->day, USECS_PER_DAY, &us) ||
		pg_add_s64_overflow(us, value->time, &us))
		return (value->day < 0) ? DURATION_NEGATIVE : DURATION_TOO_LONG;
	if (us < 0)
		return DURATION_NEGATIVE;
	if (us == 0)
		return DURATION_ZERO;
	if (us < 1000)
		return DURATION_TOO_SHORT;
	if (us / 1000 > DURATION_MAX_MS)
		return DURATION_TOO_LONG;
	*ms = us / 1000;
	return DURATION_OK;
}

int64
duration_value(const Interval *value, const char *arg, bool zero_allowed)
{
	static const char *const problem[] = {
		[DURATION_INFINITE] = "must be finite",
		[DURATION_MONTHS] = "must not have months or years",
		[DURATION_NEGATIVE] = "must not be negative",
		[DURATION_ZERO] = "must be more than zero",
		[DURATION_TOO_SHORT] = "is below 1 ms",
		[DURATION_TOO_LONG] = "is too long"
	};
	int64		ms;
	DurationProblem found = duration_check(value, &ms);

	if (found == DURATION_OK || (found == DURATION_ZERO && zero_allowed))
		return ms;
	arg_invalid(arg, problem[found],
				zero_allowed ? "It is 0, or 1 ms to 366 days; a day is 24 hours." :
				"It is 1 ms to 366 days; a day is 24 hours.");
}

int64
duration_arg(FunctionCallInfo fcinfo, int n, const char *arg, bool zero_allowed)
{
	if (PG_ARGISNULL(n))
		arg_null(arg);
	return duration_value(PG_GETARG_INTERVAL_P(n), arg, zero_allowed);
}

/* interval_in() has SQLSTATEs of its own; all of them mean a bad value here. */
const Interval *
duration_parse(const char *text, const char *arg)
{
	MemoryContext context = CurrentMemoryContext;
	volatile Datum value = (Datum) 0;

	PG_TRY();
	{
		value = DirectFunctionCall3(interval_in, CStringGetDatum(text), ObjectIdGetDatum(InvalidOid),
									Int32GetDatum(-1));
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* raised again at once: the transaction does not go on */
		arg_invalid(arg, "is no interval", "Write it like '30 s'.");
	}
	PG_END_TRY();
	return DatumGetIntervalP(value);
}

Interval *
duration_interval(int64 ms)
{
	Interval   *result = palloc0(sizeof(Interval));

	result->time = ms * INT64CONST(1000);
	return result;
}

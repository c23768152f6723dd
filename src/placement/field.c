/*
 * field.c
 *		Arguments of the functions on sessions, hosts and their commands, as fields.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "core/duration.h"
#include "journal/envelope.h"
#include "placement/field.h"

#define PAGE_MAX	1000

char *
optional_field(FunctionCallInfo fcinfo, int n, const char *field)
{
	return PG_ARGISNULL(n) ? NULL : identity_field(fcinfo, n, field);
}

int64
number_field(FunctionCallInfo fcinfo, int n, const char *field, int64 min, int64 max, const char *hint)
{
	int64		value;

	if (PG_ARGISNULL(n))
		field_null(field);
	value = PG_GETARG_INT64(n);
	if (value < min || value > max)
		field_invalid(field, "is out of range", hint);
	return value;
}

Datum
remaining_datum(TimestampTz end, TimestampTz now)
{
	return IntervalPGetDatum(duration_interval(Max(end - now, 0) / 1000));
}

bool
same_text(const char *a, const char *b)
{
	return a == NULL ? b == NULL : b != NULL && strcmp(a, b) == 0;
}

int
word_field(FunctionCallInfo fcinfo, int n, const char *field, const char *const *words, int nwords, const char *hint)
{
	char	   *value;

	if (PG_ARGISNULL(n))
		field_null(field);
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	for (int i = 0; i < nwords; i++)
	{
		if (strcmp(value, words[i]) == 0)
			return i;
	}
	field_invalid(field, "is not one of its values", hint);
}

int
page_field(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		field_null("max_items");
	if (PG_GETARG_INT32(n) < 1 || PG_GETARG_INT32(n) > PAGE_MAX)
		field_invalid("max_items", "is out of range", "It is 1 to 1,000.");
	return PG_GETARG_INT32(n);
}

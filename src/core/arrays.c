/*
 * arrays.c
 *		Arguments of functions that do many things at once.
 */
#include "postgres.h"

#include "utils/array.h"
#include "utils/lsyscache.h"

#include "core/arrays.h"
#include "core/errors.h"

int
array_nulls_arg(FunctionCallInfo fcinfo, int n, const char *arg, Oid type, int max,
				Datum **elements, bool **nulls)
{
	ArrayType  *array;
	int			count;
	int16		typlen;
	bool		typbyval;
	char		typalign;

	if (PG_ARGISNULL(n))
		arg_null(arg);
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("argument \"%s\" must be a one-dimensional array", arg),
				 errhint("It has %d dimensions.", ARR_NDIM(array))));
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > max)
		arg_invalid(arg, "has too many elements",
					psprintf("It has at most %d; call again with the rest.", max));
	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	deconstruct_array(array, type, typlen, typbyval, typalign, elements, nulls, &count);
	return count;
}

int
array_arg(FunctionCallInfo fcinfo, int n, const char *arg, Oid type, int max, Datum **elements)
{
	bool	   *nulls;
	int			count = array_nulls_arg(fcinfo, n, arg, type, max, elements, &nulls);

	for (int i = 0; i < count; i++)
	{
		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"%s\" must not have null elements", arg),
					 errhint("Element %d is null.", i + 1)));
	}
	return count;
}

int
max_items_arg(FunctionCallInfo fcinfo, int n, int max, const char *hint)
{
	if (PG_ARGISNULL(n))
		arg_null("max_items");
	if (PG_GETARG_INT32(n) < 1 || PG_GETARG_INT32(n) > max)
		arg_invalid("max_items", "is out of range", hint);
	return PG_GETARG_INT32(n);
}

void
array_lengths_check(const char *arg, int length, const char *other, int other_length)
{
	if (length != other_length)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("arguments \"%s\" and \"%s\" must have as many elements as each other", other, arg),
				 errhint("They have %d and %d.", other_length, length)));
}

/*
 * members.c
 *		Arguments that are arrays of objects: their members, one by one.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "journal/envelope.h"
#include "placement/members.h"

JsonbIterator *
members_array(Jsonb *value, const char *array, int max, int *n)
{
	JsonbIterator *iterator;
	JsonbValue	token;

	*n = 0;
	if (value == NULL)
		return NULL;
	if (!JB_ROOT_IS_ARRAY(value) || JB_ROOT_IS_SCALAR(value))
		field_invalid(array, "must be an array", "It is an array of objects.");
	*n = (int) JB_ROOT_COUNT(value);
	if (*n > max)
		field_invalid(array, "has too many elements", psprintf("It has at most %d.", max));
	iterator = JsonbIteratorInit(&value->root);
	(void) JsonbIteratorNext(&iterator, &token, true);
	return iterator;
}

char *
members_path(const Members *members, const char *name)
{
	return psprintf("%s[%d].%s", members->array, members->index, name);
}

void
members_next(JsonbIterator **iterator, const char *array, int index, Members *members)
{
	JsonbValue	value;

	(void) JsonbIteratorNext(iterator, &value, true);
	if (value.type != jbvBinary || !JsonContainerIsObject(value.val.binary.data))
		field_invalid(psprintf("%s[%d]", array, index), "must be an object", NULL);
	members->object = value.val.binary.data;
	members->array = array;
	members->index = index;
	members->found = 0;
}

static bool
find(Members *members, const char *name, JsonbValue *value)
{
	if (getKeyJsonValueFromContainer(members->object, name, strlen(name), value) == NULL)
		return false;
	members->found++;
	return value->type != jbvNull;
}

char *
members_text(Members *members, const char *name)
{
	JsonbValue	value;

	if (!find(members, name, &value))
		return NULL;
	if (value.type != jbvString)
		field_invalid(members_path(members, name), "must be a string", NULL);
	return pnstrdup(value.val.string.val, value.val.string.len);
}

char *
members_need_text(Members *members, const char *name)
{
	char	   *text = members_text(members, name);

	if (text == NULL)
		field_null(members_path(members, name));
	return text;
}

int64
members_int(Members *members, const char *name, int64 missing)
{
	JsonbValue	value;
	char	   *digits;
	char	   *end;
	int64		number;

	if (!find(members, name, &value))
		return missing;
	/* many languages cannot put a bigint into JSON but as a string */
	if (value.type == jbvString)
		digits = pnstrdup(value.val.string.val, value.val.string.len);
	else if (value.type == jbvNumeric)
		digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value.val.numeric)));
	else
		field_invalid(members_path(members, name), "must be a number", "Its digits may be a string.");
	if (*digits == '\0' || strspn(digits, "-0123456789") != strlen(digits))
		field_invalid(members_path(members, name), "must be a whole number", "It is at most 9223372036854775807.");
	errno = 0;
	number = strtoi64(digits, &end, 10);
	if (errno != 0 || *end != '\0')
		field_invalid(members_path(members, name), "must be a whole number", "It is at most 9223372036854775807.");
	return number;
}

bool
members_bool(Members *members, const char *name, bool missing)
{
	JsonbValue	value;

	if (!find(members, name, &value))
		return missing;
	if (value.type != jbvBool)
		field_invalid(members_path(members, name), "must be true or false", NULL);
	return value.val.boolean;
}

int
members_texts(Members *members, const char *name, int max, char ***texts)
{
	JsonbValue	value;
	JsonbIterator *iterator;
	int			n;

	*texts = NULL;
	if (!find(members, name, &value))
		return 0;
	if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		field_invalid(members_path(members, name), "must be an array", NULL);
	n = (int) JsonContainerSize(value.val.binary.data);
	if (n > max)
		field_invalid(members_path(members, name), "has too many elements", psprintf("It has at most %d.", max));
	*texts = palloc(sizeof(char *) * Max(n, 1));
	iterator = JsonbIteratorInit(value.val.binary.data);
	(void) JsonbIteratorNext(&iterator, &value, true);
	for (int i = 0; i < n; i++)
	{
		(void) JsonbIteratorNext(&iterator, &value, true);
		if (value.type != jbvString)
			field_invalid(members_path(members, name), "must be an array of strings", NULL);
		(*texts)[i] = pnstrdup(value.val.string.val, value.val.string.len);
	}
	return n;
}

void
members_end(Members *members)
{
	if (members->found != (int) JsonContainerSize(members->object))
		field_invalid(psprintf("%s[%d]", members->array, members->index), "has a member that is not known", NULL);
}

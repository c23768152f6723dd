/*
 * jsonb_build.c
 *		Objects of jsonb, made member by member.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/json.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "core/jsonb_build.h"

static void
push_string(JsonbBuild *build, JsonbIteratorToken token, const char *text)
{
	JsonbValue	value;

	value.type = jbvString;
	value.val.string.val = unconstify(char *, text);
	value.val.string.len = strlen(text);
	(void) pushJsonbValue(&build->state, token, &value);
}

void
jsonb_begin(JsonbBuild *build)
{
	build->state = NULL;
	(void) pushJsonbValue(&build->state, WJB_BEGIN_OBJECT, NULL);
}

void
jsonb_add_text(JsonbBuild *build, const char *key, const char *value)
{
	JsonbValue	null;

	push_string(build, WJB_KEY, key);
	if (value != NULL)
	{
		push_string(build, WJB_VALUE, value);
		return;
	}
	null.type = jbvNull;
	(void) pushJsonbValue(&build->state, WJB_VALUE, &null);
}

void
jsonb_add_int(JsonbBuild *build, const char *key, int64 value)
{
	JsonbValue	number;

	push_string(build, WJB_KEY, key);
	number.type = jbvNumeric;
	number.val.numeric = int64_to_numeric(value);
	(void) pushJsonbValue(&build->state, WJB_VALUE, &number);
}

void
jsonb_add_bool(JsonbBuild *build, const char *key, bool value)
{
	JsonbValue	truth;

	push_string(build, WJB_KEY, key);
	truth.type = jbvBool;
	truth.val.boolean = value;
	(void) pushJsonbValue(&build->state, WJB_VALUE, &truth);
}

void
jsonb_add_time(JsonbBuild *build, const char *key, TimestampTz value)
{
	const int	utc = 0;

	jsonb_add_text(build, key, JsonEncodeDateTime(NULL, TimestampTzGetDatum(value), TIMESTAMPTZOID, &utc));
}

void
jsonb_add(JsonbBuild *build, const char *key, const Jsonb *value)
{
	JsonbValue	inner;

	push_string(build, WJB_KEY, key);
	inner.type = jbvBinary;
	inner.val.binary.data = unconstify(JsonbContainer *, &value->root);
	inner.val.binary.len = VARSIZE(value) - VARHDRSZ;
	(void) pushJsonbValue(&build->state, WJB_VALUE, &inner);
}

Jsonb *
jsonb_end(JsonbBuild *build)
{
	return JsonbValueToJsonb(pushJsonbValue(&build->state, WJB_END_OBJECT, NULL));
}

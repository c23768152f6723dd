/*
 * merge_patch.c
 *		RFC 7396 merge patch on jsonb.
 *
 * Written here and not in SQL, since it runs inside every fenced write.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/jsonb.h"

#include "core/errors.h"
#include "fence/fence.h"

static bool
is_object(const JsonbValue *value)
{
	return value->type == jbvBinary && JsonContainerIsObject(value->val.binary.data);
}

/*
 * Pushes the object that "patch", an object, makes of "target"; NULL = nothing,
 * or something that is no object and so is replaced.
 */
static JsonbValue *
merge_object(JsonbParseState **state, JsonbContainer *target, JsonbContainer *patch)
{
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	key;
	JsonbValue	value;
	JsonbValue	found;

	check_stack_depth();
	pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);

	/* members that the target has: kept, changed or removed */
	it = target != NULL ? JsonbIteratorInit(target) : NULL;
	while (it != NULL && (token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		JsonbIteratorNext(&it, &value, true);
		if (getKeyJsonValueFromContainer(patch, key.val.string.val, key.val.string.len, &found) == NULL)
		{
			pushJsonbValue(state, WJB_KEY, &key);
			pushJsonbValue(state, WJB_VALUE, &value);
		}
		else if (found.type != jbvNull)
		{
			pushJsonbValue(state, WJB_KEY, &key);
			if (is_object(&found))
				merge_object(state, is_object(&value) ? value.val.binary.data : NULL,
							 found.val.binary.data);
			else
				pushJsonbValue(state, WJB_VALUE, &found);
		}
	}

	/* members that only the patch has; nulls below them go too */
	it = JsonbIteratorInit(patch);
	while ((token = JsonbIteratorNext(&it, &key, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		JsonbIteratorNext(&it, &value, true);
		if (value.type == jbvNull ||
			(target != NULL &&
			 getKeyJsonValueFromContainer(target, key.val.string.val, key.val.string.len, &found) != NULL))
			continue;
		pushJsonbValue(state, WJB_KEY, &key);
		if (is_object(&value))
			merge_object(state, NULL, value.val.binary.data);
		else
			pushJsonbValue(state, WJB_VALUE, &value);
	}
	return pushJsonbValue(state, WJB_END_OBJECT, NULL);
}

static void
check_depth(Jsonb *mutation, const char *arg)
{
	JsonbIterator *it = JsonbIteratorInit(&mutation->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	int			depth = 0;

	while ((token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		if (token == WJB_BEGIN_ARRAY || token == WJB_BEGIN_OBJECT)
			depth++;
		else if (token == WJB_END_ARRAY || token == WJB_END_OBJECT)
			depth--;
		if (depth > MUTATION_MAX_DEPTH)
			arg_invalid(arg, "is nested too deeply", "It may have 64 levels.");
	}
}

void
mutation_check(Jsonb *mutation, const char *arg)
{
	if (VARSIZE(mutation) > MUTATION_MAX_BYTES)
		arg_invalid(arg, "is too large", "It may have 1 MiB.");
	check_depth(mutation, arg);
}

/* json_merge_patch(state jsonb, mutation jsonb): what the mutation makes of the state. */
PG_FUNCTION_INFO_V1(reconcile_json_merge_patch);
Datum
reconcile_json_merge_patch(PG_FUNCTION_ARGS)
{
	Jsonb	   *target = PG_ARGISNULL(0) ? NULL : PG_GETARG_JSONB_P(0);
	Jsonb	   *patch;
	JsonbValue *merged;
	JsonbParseState *state = NULL;

	if (PG_ARGISNULL(1))
		arg_null("mutation");
	patch = PG_GETARG_JSONB_P(1);
	if (!JB_ROOT_IS_OBJECT(patch))
		PG_RETURN_JSONB_P(patch);
	check_depth(patch, "mutation");
	merged = merge_object(&state,
						  target != NULL && JB_ROOT_IS_OBJECT(target) ? &target->root : NULL,
						  &patch->root);
	PG_RETURN_JSONB_P(JsonbValueToJsonb(merged));
}

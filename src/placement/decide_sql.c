/*
 * decide_sql.c
 *		decide(): the decision as a function of jsonb, which anybody may ask.
 *
 * A member that is not there is one that nobody observed: it equals nothing.  One of
 * another type is the caller's mistake.  An instant carries its offset from UTC, as
 * to_jsonb() writes it: what it means must not depend on the session.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "core/compat.h"
#include "core/errors.h"
#include "core/rows.h"
#include "placement/decide.h"

compat_noreturn static void wrong_member(const char *arg, const char *member, const char *expected);

static void
wrong_member(const char *arg, const char *member, const char *expected)
{
	arg_invalid(arg, psprintf("has a member \"%s\" that is of another type", member),
				psprintf("It is %s, or it is not there.", expected));
}

/* False: it is not there, or null. */
static bool
find_member(JsonbContainer *object, const char *member, JsonbValue *value)
{
	JsonbValue *found = getKeyJsonValueFromContainer(object, member, strlen(member), value);

	return found != NULL && value->type != jbvNull;
}

static const char *
text_member(JsonbContainer *object, const char *arg, const char *member)
{
	JsonbValue	value;

	if (!find_member(object, member, &value))
		return NULL;
	if (value.type != jbvString)
		wrong_member(arg, member, "a string");
	return pnstrdup(value.val.string.val, value.val.string.len);
}

static bool
bool_member(JsonbContainer *object, const char *arg, const char *member)
{
	JsonbValue	value;

	if (!find_member(object, member, &value))
		return false;
	if (value.type != jbvBool)
		wrong_member(arg, member, "true or false");
	return value.val.boolean;
}

static int
int_member(JsonbContainer *object, const char *arg, const char *member)
{
	static const char *const expected = "an integer of 32 bits";
	JsonbValue	value;
	int			number;
	bool		error = false;

	if (!find_member(object, member, &value))
		return 0;
	if (value.type != jbvNumeric)
		wrong_member(arg, member, expected);
	number = numeric_int4_opt_error(value.val.numeric, &error);
	if (error)
		wrong_member(arg, member, expected);
	return number;
}

/* Does it begin with a date, and end with an offset from UTC? */
static bool
is_absolute(const char *text)
{
	const char *time = strchr(text, 'T');

	return time != NULL && text[0] >= '0' && text[0] <= '9' && strpbrk(time, "Z+-") != NULL;
}

static TimestampTz
time_member(JsonbContainer *object, const char *arg, const char *member)
{
	static const char *const expected = "an instant like \"2030-01-01T00:00:00+00:00\"";
	MemoryContext context = CurrentMemoryContext;
	const char *text = text_member(object, arg, member);
	volatile TimestampTz result = DT_NOBEGIN;

	if (text == NULL || strcmp(text, "-infinity") == 0)
		return DT_NOBEGIN;
	if (strcmp(text, "infinity") == 0)
		return DT_NOEND;
	if (!is_absolute(text))
		wrong_member(arg, member, expected);
	PG_TRY();
	{
		result = DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(text),
														 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
	}
	PG_CATCH();
	{
		if (ERRCODE_TO_CATEGORY(geterrcode()) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		/* raised again at once: the transaction does not go on */
		wrong_member(arg, member, expected);
	}
	PG_END_TRY();
	return result;
}

static int
texts_member(JsonbContainer *object, const char *arg, const char *member, const char *const **list)
{
	static const char *const expected = "an array of strings";
	JsonbValue	value;
	const char **texts;
	int			n;

	*list = NULL;
	if (!find_member(object, member, &value))
		return 0;
	if (value.type != jbvBinary || !JsonContainerIsArray(value.val.binary.data))
		wrong_member(arg, member, expected);
	n = JsonContainerSize(value.val.binary.data);
	texts = palloc(sizeof(char *) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *element = getIthJsonbValueFromContainer(value.val.binary.data, i);

		if (element->type != jbvString)
			wrong_member(arg, member, expected);
		texts[i] = pnstrdup(element->val.string.val, element->val.string.len);
	}
	*list = texts;
	return n;
}

static void
session_from_json(JsonbContainer *object, PlaceSession *session)
{
	session->tenant_id = text_member(object, "session", "tenant_id");
	session->session_id = text_member(object, "session", "session_id");
	session->agent_id = text_member(object, "session", "agent_id");
	session->runtime_compatibility_id = text_member(object, "session", "runtime_compatibility_id");
	session->placement = text_member(object, "session", "placement");
	session->nrequires = texts_member(object, "session", "requires", &session->requires);
}

static void
owner_from_json(JsonbContainer *object, PlaceOwner *owner)
{
	owner->tenant_id = text_member(object, "owner", "tenant_id");
	owner->session_id = text_member(object, "owner", "session_id");
	owner->agent_id = text_member(object, "owner", "agent_id");
	owner->runtime_compatibility_id = text_member(object, "owner", "runtime_compatibility_id");
	owner->placement = text_member(object, "owner", "placement");
	owner->residency = text_member(object, "owner", "residency");
	owner->accepting = bool_member(object, "owner", "accepting");
	owner->expires_at = time_member(object, "owner", "expires_at");
}

static void
candidate_from_json(JsonbContainer *object, PlaceCandidate *candidate)
{
	candidate->agent_id = text_member(object, "candidates", "agent_id");
	candidate->runtime_compatibility_id = text_member(object, "candidates", "runtime_compatibility_id");
	candidate->placement = text_member(object, "candidates", "placement");
	candidate->isolation_class = text_member(object, "candidates", "isolation_class");
	candidate->accepting = bool_member(object, "candidates", "accepting");
	candidate->available_capacity = int_member(object, "candidates", "available_capacity");
	candidate->ncapabilities = texts_member(object, "candidates", "capabilities", &candidate->capabilities);
}

static int
candidates_from_json(Jsonb *array, PlaceCandidate **candidates)
{
	int			n;

	if (!JB_ROOT_IS_ARRAY(array) || JB_ROOT_IS_SCALAR(array))
		arg_invalid("candidates", "must be a JSON array", "It is the rows of reconcile.compatible_hosts(), the best first.");
	n = JB_ROOT_COUNT(array);
	*candidates = palloc(sizeof(PlaceCandidate) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		JsonbValue *element = getIthJsonbValueFromContainer(&array->root, i);

		if (element->type != jbvBinary || !JsonContainerIsObject(element->val.binary.data))
			arg_invalid("candidates", "has an element that is no object",
						"Each is a row of reconcile.compatible_hosts().");
		candidate_from_json(element->val.binary.data, &(*candidates)[i]);
	}
	return n;
}

static JsonbContainer *
object_arg(FunctionCallInfo fcinfo, int n, const char *arg)
{
	Jsonb	   *value = PG_GETARG_JSONB_P(n);

	if (!JB_ROOT_IS_OBJECT(value))
		arg_invalid(arg, "must be a JSON object", NULL);
	return &value->root;
}

PG_FUNCTION_INFO_V1(reconcile_decide);
Datum
reconcile_decide(PG_FUNCTION_ARGS)
{
	PlaceFacts	facts = {0};
	PlaceOwner	owner;
	PlaceCandidate *candidates;
	PlaceDecision decision;
	Datum		values[4] = {0};
	bool		nulls[4] = {false};

	if (PG_ARGISNULL(0))
		arg_null("session");
	if (PG_ARGISNULL(3))
		arg_null("at");
	session_from_json(object_arg(fcinfo, 0, "session"), &facts.session);
	if (!PG_ARGISNULL(1))
	{
		owner_from_json(object_arg(fcinfo, 1, "owner"), &owner);
		facts.owner = &owner;
	}
	if (!PG_ARGISNULL(2))
	{
		facts.ncandidates = candidates_from_json(PG_GETARG_JSONB_P(2), &candidates);
		facts.candidates = candidates;
	}
	facts.now = PG_GETARG_TIMESTAMPTZ(3);

	decision = place_decide(&facts);
	values[0] = CStringGetTextDatum(place_outcome_name(decision.outcome));
	values[1] = Int32GetDatum(decision.rule);
	nulls[2] = decision.outcome != PLACE_REUSE_OWNER;
	if (!nulls[2])
		values[2] = PG_GETARG_DATUM(1);
	nulls[3] = decision.candidate < 0;
	if (!nulls[3])
		values[3] = JsonbPGetDatum(JsonbValueToJsonb(getIthJsonbValueFromContainer(&PG_GETARG_JSONB_P(2)->root,
																					  decision.candidate)));
	return return_one_row(fcinfo, values, nulls);
}

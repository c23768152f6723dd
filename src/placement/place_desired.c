/*
 * place_desired.c
 *		What is wanted of a session, as place_session() is told it.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "core/errors.h"
#include "journal/envelope.h"
#include "placement/placing.h"

static char *
desired_member(JsonbContainer *object, const char *member)
{
	JsonbValue	value;
	char	   *text;

	if (getKeyJsonValueFromContainer(object, member, strlen(member), &value) == NULL || value.type == jbvNull)
		return NULL;
	if (value.type != jbvString)
		field_invalid("desired", psprintf("has a member \"%s\" that is no string", member), NULL);
	text = pnstrdup(value.val.string.val, value.val.string.len);
	if (strcmp(member, "workload") != 0)
		identity_check(text, member);
	return text;
}

/* As to_jsonb() writes a bytea, or decode(..., 'hex') would read it. */
static bytea *
workload_from_text(const char *text)
{
	const char *digits = strncmp(text, "\\x", 2) == 0 ? text + 2 : text;
	size_t		length = strlen(digits);
	bytea	   *workload;

	if (length % 2 != 0 || strspn(digits, "0123456789abcdefABCDEF") != length)
		field_invalid("workload", "is not hexadecimal", "In jsonb it is written like \"\\\\x00ff\".");
	if (length / 2 > WORKLOAD_MAX)
		field_invalid("workload", "is too long", "It is at most 16,384 bytes.");
	workload = palloc(VARHDRSZ + length / 2);
	SET_VARSIZE(workload, VARHDRSZ + (int) hex_decode(digits, length, VARDATA(workload)));
	return workload;
}

static void
check_members(Jsonb *object)
{
	static const char *const members[] = {"placement", "runtime_compatibility_id", "workload_version", "workload"};
	JsonbIterator *iterator = JsonbIteratorInit(&object->root);
	JsonbIteratorToken token;
	JsonbValue	json;

	while ((token = JsonbIteratorNext(&iterator, &json, true)) != WJB_DONE)
	{
		bool		known = token != WJB_KEY;

		for (int i = 0; i < lengthof(members) && !known; i++)
			known = json.val.string.len == strlen(members[i]) &&
				memcmp(json.val.string.val, members[i], json.val.string.len) == 0;
		if (!known)
			field_invalid("desired", psprintf("has the unknown member \"%s\"", pnstrdup(json.val.string.val, json.val.string.len)),
						  "It is placement, runtime_compatibility_id, workload_version or workload.");
	}
}

void
place_desired_from_json(Jsonb *json, SessionDesired *desired)
{
	char	   *workload;

	if (!JB_ROOT_IS_OBJECT(json))
		field_invalid("desired", "must be a JSON object", "Its members are placement, runtime_compatibility_id, workload_version and workload.");
	check_members(json);
	desired->placement = desired_member(&json->root, "placement");
	if (desired->placement == NULL)
		field_null("placement");
	if (strcmp(desired->placement, "pooled") != 0 && strcmp(desired->placement, "dedicated") != 0)
		field_invalid("placement", "is no placement", "It is pooled or dedicated.");
	desired->runtime_compatibility_id = desired_member(&json->root, "runtime_compatibility_id");
	desired->workload_version = desired_member(&json->root, "workload_version");
	workload = desired_member(&json->root, "workload");
	/* an empty one is none */
	desired->workload = workload != NULL ? workload_from_text(workload) : NULL;
	if (desired->workload != NULL && VARSIZE(desired->workload) == VARHDRSZ)
		desired->workload = NULL;
	if ((desired->workload == NULL) != (desired->workload_version == NULL))
		field_invalid(desired->workload == NULL ? "workload" : "workload_version", "must be given",
					  "A workload and its version are given together, or neither.");
}

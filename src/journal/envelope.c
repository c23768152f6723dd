/*
 * envelope.c
 *		The checks of a command's envelope, in the order in which fields are refused,
 *		and its fingerprint.
 *
 * Nothing here reads a table.  What an action applies to, and whether it asks for
 * confirmation, is its row's (actions.c).
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "journal/digest.h"
#include "journal/envelope.h"

#define SELECTION_LIMIT_MAX		1000
#define REPLICAS_MAX			10000

/* ----------------------------------------------------------------
 * Fields
 * ----------------------------------------------------------------
 */

void
field_invalid(const char *field, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" %s", field, problem),
			 errdetail_internal("%s", problem),
			 hint != NULL ? errhint("%s", hint) : 0,
			 err_generic_string(PG_DIAG_COLUMN_NAME, field)));
}

void
field_null(const char *field)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("argument \"%s\" must not be null", field),
			 errdetail_internal("must not be null"),
			 errhint("Pass a value for \"%s\".", field),
			 err_generic_string(PG_DIAG_COLUMN_NAME, field)));
}

void
identity_check(const char *value, const char *field)
{
	static const char *const hint = "It is 1 to 256 bytes, not only of spaces.";

	if (text_is_blank(value))
		field_invalid(field, "must not be blank", hint);
	if (strlen(value) > IDENTITY_MAX)
		field_invalid(field, "is too long", hint);
	if (text_has_invisible(value))
		field_invalid(field, "contains a character that cannot be seen",
					  "Control, bidirectional and zero-width characters are refused.");
}

char *
identity_field(FunctionCallInfo fcinfo, int n, const char *field)
{
	char	   *value;

	if (PG_ARGISNULL(n))
		field_null(field);
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	identity_check(value, field);
	return value;
}

/* The same, where NULL means "fallback". */
static char *
optional_identity(FunctionCallInfo fcinfo, int n, const char *field, char *fallback)
{
	return PG_ARGISNULL(n) ? fallback : identity_field(fcinfo, n, field);
}

char *
command_reason_field(FunctionCallInfo fcinfo, int n, const char *field)
{
	static const char *const hint = "It is 1 to 1,024 bytes, not only of spaces.";
	char	   *value;

	if (PG_ARGISNULL(n))
		field_null(field);
	value = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (text_is_blank(value))
		field_invalid(field, "must not be blank", hint);
	if (strlen(value) > COMMAND_REASON_MAX)
		field_invalid(field, "is too long", hint);
	return value;
}

int64
interval_field(FunctionCallInfo fcinfo, int n, const char *field, bool zero, int64 max_ms, const char *hint)
{
	int64		ms;

	if (PG_ARGISNULL(n))
		field_null(field);
	switch (duration_check(PG_GETARG_INTERVAL_P(n), &ms))
	{
		case DURATION_OK:
			break;
		case DURATION_ZERO:
			if (zero)
				return 0;
			field_invalid(field, "must be more than 0", hint);
			break;
		case DURATION_NEGATIVE:
		case DURATION_TOO_SHORT:
			field_invalid(field, zero ? "must not be negative" : "must be more than 0", hint);
			break;
		case DURATION_INFINITE:
		case DURATION_MONTHS:
		case DURATION_TOO_LONG:
			field_invalid(field, "is too long", hint);
			break;
	}
	if (ms > max_ms)
		field_invalid(field, "is too long", hint);
	return ms;
}

static Jsonb *
options_field(FunctionCallInfo fcinfo, int n, const char *field)
{
	Jsonb	   *options;

	if (PG_ARGISNULL(n))
		field_null(field);
	options = PG_GETARG_JSONB_P(n);
	if (!JB_ROOT_IS_OBJECT(options))
		field_invalid(field, "must be an object", "Pass '{}' for none.");
	if (VARSIZE(options) > COMMAND_OPTIONS_MAX)
		field_invalid(field, "are too long", "They are at most 64 kB.");
	return options;
}

enum
{
	ARG_TENANT_ID,
	ARG_IDEMPOTENCY_KEY,
	ARG_ACTION,
	ARG_TARGET_KIND,
	ARG_TARGET_NAME,
	ARG_REASON,
	ARG_OPTIONS,
	ARG_CONFIRMED,
	ARG_DEADLINE_IN,
	ARG_EXPECTED_REVISION,
	ARG_ACTOR,
	ARG_AUTHENTICATION_METHOD,
	ARG_CAPABILITY,
	ARG_REQUESTED_AT,
	ARG_COMMAND_ID
};

void
envelope_sender_args(FunctionCallInfo fcinfo, Envelope *envelope)
{
	envelope->command_id = optional_identity(fcinfo, ARG_COMMAND_ID, "command_id", NULL);
	envelope->idempotency_key = identity_field(fcinfo, ARG_IDEMPOTENCY_KEY, "idempotency_key");
	envelope->tenant_id = identity_field(fcinfo, ARG_TENANT_ID, "tenant_id");
	envelope->actor = optional_identity(fcinfo, ARG_ACTOR, "actor", GetUserNameFromId(GetUserId(), false));
	envelope->authentication_method = identity_field(fcinfo, ARG_AUTHENTICATION_METHOD, "authentication_method");
	envelope->reason = command_reason_field(fcinfo, ARG_REASON, "reason");
	envelope->action = identity_field(fcinfo, ARG_ACTION, "action");
}

void
envelope_target_args(FunctionCallInfo fcinfo, Envelope *envelope)
{
	envelope->capability = optional_identity(fcinfo, ARG_CAPABILITY, "capability", envelope->action);
	envelope->target_kind = identity_field(fcinfo, ARG_TARGET_KIND, "target_kind");
}

void
envelope_name_args(FunctionCallInfo fcinfo, Envelope *envelope)
{
	envelope->target_name = identity_field(fcinfo, ARG_TARGET_NAME, "target_name");
	envelope->requested_at = DT_NOBEGIN;
	if (!PG_ARGISNULL(ARG_REQUESTED_AT))
	{
		envelope->requested_at = PG_GETARG_TIMESTAMPTZ(ARG_REQUESTED_AT);
		if (TIMESTAMP_NOT_FINITE(envelope->requested_at))
			field_invalid("requested_at", "must be finite", "It is when the caller asked, as he says; NULL is nothing.");
	}
	envelope->deadline_ms = interval_field(fcinfo, ARG_DEADLINE_IN, "deadline_in", false, COMMAND_DEADLINE_MAX_MS,
										   "It is more than 0 and at most 5 minutes, from the admission.");
}

void
envelope_option_args(FunctionCallInfo fcinfo, Envelope *envelope)
{
	if (PG_ARGISNULL(ARG_CONFIRMED))
		field_null("confirmed");
	envelope->confirmed = PG_GETARG_BOOL(ARG_CONFIRMED);
	envelope->options = options_field(fcinfo, ARG_OPTIONS, "options");
	envelope->expected_revision = -1;
	if (!PG_ARGISNULL(ARG_EXPECTED_REVISION))
	{
		envelope->expected_revision = PG_GETARG_INT64(ARG_EXPECTED_REVISION);
		if (envelope->expected_revision < 0)
			field_invalid("expected_revision", "must not be negative",
						  "It is the revision of the desired state that the caller has seen, 0 for none.");
	}
}

/* ----------------------------------------------------------------
 * Options
 * ----------------------------------------------------------------
 */

static JsonbValue *
member_of(JsonbContainer *container, const char *key)
{
	return getKeyJsonValueFromContainer(container, key, strlen(key), NULL);
}

JsonbValue *
options_member(const Jsonb *options, const char *group, const char *member)
{
	JsonbContainer *container = unconstify(JsonbContainer *, &options->root);

	if (group != NULL)
	{
		JsonbValue *inner = member_of(container, group);

		if (inner == NULL || inner->type != jbvBinary || !JsonContainerIsObject(inner->val.binary.data))
			return NULL;
		container = inner->val.binary.data;
	}
	return member_of(container, member);
}

char *
options_text(const Jsonb *options, const char *group, const char *member)
{
	JsonbValue *value = options_member(options, group, member);

	return value == NULL || value->type != jbvString ? NULL :
		pnstrdup(value->val.string.val, value->val.string.len);
}

int
options_int(const Jsonb *options, const char *group, const char *member, int missing)
{
	JsonbValue *value = options_member(options, group, member);
	char	   *digits;

	if (value == NULL || value->type != jbvNumeric)
		return missing;
	digits = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
	/* what is no whole number, or a large one, is none */
	if (strspn(digits, "0123456789") != strlen(digits) || strlen(digits) > 9)
		return missing;
	return atoi(digits);
}

bool
failure_code_valid(const char *code)
{
	static const char *const first = "abcdefghijklmnopqrstuvwxyz0123456789";
	size_t		length = strlen(code);

	return length >= 1 && length <= FAILURE_MAX && strchr(first, code[0]) != NULL &&
		strspn(code, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == length;
}

bool
protocol_valid(const char *version)
{
	unsigned int major;
	unsigned int minor;

	return sscanf(version, "%5u.%5u", &major, &minor) == 2 && major >= 1 && major <= 65535 && minor <= 65535 &&
		strcmp(version, psprintf("%u.%u", major, minor)) == 0;
}

typedef enum OptionKind
{
	OPTION_ENTITY,				/* an entity id of a loop */
	OPTION_LIMIT,
	OPTION_SQLSTATE,
	OPTION_DESTINATION,
	OPTION_POLICY,
	OPTION_REPLICAS
} OptionKind;

/* What a built-in action takes; whatever else it is given is refused. */
typedef struct OptionRule
{
	const char *action;
	const char *target_kind;	/* NULL: any */
	const char *group;			/* NULL: it stands by itself */
	const char *member;
	OptionKind	kind;
	bool		required;
} OptionRule;

static const OptionRule option_rules[] = {
	{"retry", "dead_letter", NULL, "entity_id", OPTION_ENTITY, true},
	{"delete", "dead_letter", NULL, "entity_id", OPTION_ENTITY, true},
	{"bulk_retry", NULL, "selection", "limit", OPTION_LIMIT, true},
	{"bulk_retry", NULL, "selection", "sqlstate", OPTION_SQLSTATE, false},
	{"replay", "dead_letter", NULL, "entity_id", OPTION_ENTITY, true},
	{"replay", NULL, "replay", "destination", OPTION_DESTINATION, true},
	{"replay", NULL, "replay", "idempotency_policy", OPTION_POLICY, true},
	{"scale", NULL, "scale", "replicas", OPTION_REPLICAS, true}
};

static bool
rule_applies(const OptionRule *rule, const Envelope *envelope)
{
	return strcmp(rule->action, envelope->action) == 0 &&
		(rule->target_kind == NULL || strcmp(rule->target_kind, envelope->target_kind) == 0);
}

static char *
option_name(const char *group, const char *member)
{
	return group != NULL ? psprintf("options.%s.%s", group, member) : psprintf("options.%s", member);
}

/* Does a rule name this member, of this group (NULL: of none, or as a group)? */
static bool
is_taken(const Envelope *envelope, const char *group, const char *member, bool *is_group)
{
	*is_group = false;
	for (int i = 0; i < lengthof(option_rules); i++)
	{
		const OptionRule *rule = &option_rules[i];

		if (!rule_applies(rule, envelope))
			continue;
		if (group == NULL && rule->group != NULL && strcmp(rule->group, member) == 0)
		{
			*is_group = true;
			return true;
		}
		if ((group == NULL) == (rule->group == NULL) &&
			(group == NULL || strcmp(group, rule->group) == 0) && strcmp(rule->member, member) == 0)
			return true;
	}
	return false;
}

/* Refuses members that no rule names. */
static void
check_members(const Envelope *envelope, JsonbContainer *container, const char *group)
{
	JsonbIterator *iterator = JsonbIteratorInit(container);
	JsonbValue	key;
	JsonbIteratorToken token;

	while ((token = JsonbIteratorNext(&iterator, &key, true)) != WJB_DONE)
	{
		char	   *member;
		bool		is_group;
		JsonbValue	value;

		if (token != WJB_KEY)
			continue;
		member = pnstrdup(key.val.string.val, key.val.string.len);
		(void) JsonbIteratorNext(&iterator, &value, true);
		if (!is_taken(envelope, group, member, &is_group))
			field_invalid(option_name(group, member), "does not apply",
						  psprintf("Action \"%s\" on %s does not take it.", envelope->action, envelope->target_kind));
		if (!is_group)
			continue;
		if (value.type != jbvBinary || !JsonContainerIsObject(value.val.binary.data))
			field_invalid(option_name(NULL, member), "must be an object", NULL);
		check_members(envelope, value.val.binary.data, member);
	}
}

static void
check_option(const OptionRule *rule, const Jsonb *options)
{
	char	   *name = option_name(rule->group, rule->member);
	char	   *text;
	int			number;

	if (options_member(options, rule->group, rule->member) == NULL)
	{
		if (rule->required)
			field_invalid(name, "must be given", NULL);
		return;
	}
	text = options_text(options, rule->group, rule->member);
	number = options_int(options, rule->group, rule->member, -1);
	switch (rule->kind)
	{
		case OPTION_ENTITY:
			if (text == NULL || !entity_id_valid(text, strlen(text)))
				field_invalid(name, "is not an entity id", "An entity id is a text of 0 to 512 bytes.");
			break;
		case OPTION_LIMIT:
			if (number < 1 || number > SELECTION_LIMIT_MAX)
				field_invalid(name, "is out of range", "It is 1 to 1,000.");
			break;
		case OPTION_SQLSTATE:
			if (text == NULL || !sqlstate_valid(text))
				field_invalid(name, "is not an SQLSTATE", "It is five digits or upper-case letters.");
			break;
		case OPTION_DESTINATION:
			if (text == NULL)
				field_invalid(name, "must be a text", NULL);
			identity_check(text, name);
			break;
		case OPTION_POLICY:
			if (text == NULL || (strcmp(text, "reject_duplicate") != 0 && strcmp(text, "replace_duplicate") != 0))
				field_invalid(name, "is not a policy", "It is reject_duplicate or replace_duplicate.");
			break;
		case OPTION_REPLICAS:
			if (number < 0 || number > REPLICAS_MAX)
				field_invalid(name, "is out of range", "It is 0 to 10,000.");
			break;
	}
}

static void
require_confirmed(const Envelope *envelope)
{
	if (!envelope->confirmed)
		field_invalid("confirmed", "must be true", psprintf("Action \"%s\" destroys something, and asks for it.", envelope->action));
}

void
envelope_check_options(const Envelope *envelope, bool builtin, bool confirm)
{
	if (confirm)
		require_confirmed(envelope);
	if (!builtin)
		return;
	check_members(envelope, &envelope->options->root, NULL);
	for (int i = 0; i < lengthof(option_rules); i++)
	{
		if (rule_applies(&option_rules[i], envelope))
			check_option(&option_rules[i], envelope->options);
	}
	if (strcmp(envelope->target_kind, "dead_letter") == 0 &&
		options_member(envelope->options, "replay", "destination") != NULL &&
		strcmp(options_text(envelope->options, "replay", "destination"), envelope->target_name) == 0)
		field_invalid("options.replay.destination", "must be another loop", "Action \"retry\" runs it again where it is.");
	/* nothing would be left of it */
	if (options_int(envelope->options, "scale", "replicas", -1) == 0)
		require_confirmed(envelope);
}

/* ----------------------------------------------------------------
 * Fingerprint
 * ----------------------------------------------------------------
 */

void
envelope_fingerprint(const Envelope *envelope, uint8 fingerprint[DIGEST_BYTES])
{
	Digest	   *digest = digest_begin("reconcile/command", FINGERPRINT_VERSION);

	digest_text(digest, envelope->tenant_id);
	digest_text(digest, envelope->idempotency_key);
	digest_text(digest, envelope->actor);
	digest_text(digest, envelope->authentication_method);
	digest_text(digest, envelope->reason);
	digest_text(digest, envelope->action);
	digest_text(digest, envelope->capability);
	digest_text(digest, envelope->target_kind);
	digest_text(digest, envelope->target_name);
	/* the order of members and the spaces do not count; 1.0 is another text than 1 */
	digest_text(digest, JsonbToCString(NULL, &envelope->options->root, VARSIZE(envelope->options)));
	digest_int(digest, envelope->confirmed);
	digest_int(digest, envelope->deadline_ms);
	digest_int(digest, envelope->expected_revision);
	digest_end(digest, fingerprint);
}

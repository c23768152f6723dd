/*
 * accept.c
 *		Admission: validate, authorise, claim the key, desired state, effect, audit; all
 *		in the caller's transaction.
 *
 * The lock on (tenant, key) comes before anything is read: of many sessions with one
 * key one admits the command, and the others read what it stored.  Before it only the
 * incarnation is held, and after it the row of the target's desired state.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/subxact.h"
#include "core/testpoint.h"
#include "journal/actions.h"
#include "journal/audit_chain.h"
#include "journal/authorize.h"
#include "journal/command.h"
#include "journal/count.h"
#include "journal/desired.h"
#include "journal/local.h"

enum
{
	PLAN_TOMBSTONE,
	PLAN_INSERT
};

static SqlPlan plans[] = {
	[PLAN_TOMBSTONE] = {
		"SELECT t.command_id, t.fingerprint, t.status, t.failure, t.desired_revision FROM reconcile.command_tombstone t"
		" WHERE t.tenant_id OPERATOR(pg_catalog.=) $1 AND t.idempotency_key OPERATOR(pg_catalog.=) $2",
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.command (tenant_id, idempotency_key, command_id, fingerprint, fingerprint_version,"
		" action, target_kind, target_name, mode, reason, options, confirmed, actor, role_name, authentication_method,"
		" capability, requested_at, accepted_at, deadline, status, failure, desired_revision, completed_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)",
		23, {TEXTOID, TEXTOID, TEXTOID, BYTEAOID, INT2OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, BOOLOID,
			 TEXTOID, NAMEOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, INT8OID,
			 TIMESTAMPTZOID}
	}
};

typedef enum AcceptOutcome
{
	ACCEPT_ACCEPTED,
	ACCEPT_REPLAYED,
	ACCEPT_CONFLICT,			/* the key is that of another command */
	ACCEPT_DENIED,
	ACCEPT_STALE_REVISION,		/* the desired state is another than the caller has seen */
	ACCEPT_ILLEGAL_TRANSITION,
	ACCEPT_KEY_SPENT			/* the key is that of another command, which was pruned */
} AcceptOutcome;

static const char *const outcome_names[] = {
	[ACCEPT_ACCEPTED] = "accepted",
	[ACCEPT_REPLAYED] = "replayed",
	[ACCEPT_CONFLICT] = "conflict",
	[ACCEPT_DENIED] = "denied",
	[ACCEPT_STALE_REVISION] = "stale_revision",
	[ACCEPT_ILLEGAL_TRANSITION] = "illegal_transition",
	[ACCEPT_KEY_SPENT] = "key_spent"
};

typedef struct Admission
{
	Envelope	envelope;
	ActionRules rules;
	TimestampTz now;			/* read under all locks: commands of a target are admitted in its order */
	TimestampTz completed_at;	/* of what is at its end on return */
	Command		command;		/* what is stored, or was */
	DesiredTarget target;
	DesiredState desired;
	int64		next_revision;
	int64		floor;			/* of desired_enter() */
	uint64		rights;			/* access_generation() when they were asked */
	Jsonb	   *detail;			/* what else is known of a local effect, for the audit; NULL = nothing */
} Admission;

/* ----------------------------------------------------------------
 * Rights
 * ----------------------------------------------------------------
 */

static bool
may_reach(const Admission *admission, const char *target_kind, const char *target_name)
{
	const Envelope *envelope = &admission->envelope;
	AccessRequest request = {envelope->tenant_id, envelope->action, target_kind, target_name, envelope->actor};

	/* a loop is nobody's in particular: it takes a grant that names it, or the right on it */
	if (admission->rules.builtin && admission->rules.mode == MODE_LOCAL &&
		!command_granted_by_name(envelope->tenant_id, envelope->action, target_kind, target_name) &&
		!access_allowed(CAP_OPERATE, target_name))
		return false;
	return command_allowed(&request);
}

static bool
may_give(const Admission *admission)
{
	const Envelope *envelope = &admission->envelope;
	char	   *destination;

	if (!may_reach(admission, envelope->target_kind, envelope->target_name))
		return false;
	if (!admission->rules.builtin)
		return true;
	destination = options_text(envelope->options, "replay", "destination");
	return destination == NULL || may_reach(admission, "queue", destination);
}

/* The same after a wait, in which what was granted may have been taken back. */
static bool
may_still_give(Admission *admission)
{
	uint64		now = access_generation();

	if (now == admission->rights)
		return true;
	admission->rights = now;
	return may_give(admission);
}

/* ----------------------------------------------------------------
 * What is there already
 * ----------------------------------------------------------------
 */

static bool
is_same(const Admission *admission, const uint8 *fingerprint)
{
	return memcmp(admission->command.fingerprint, fingerprint, DIGEST_BYTES) == 0;
}

/* The answer of a command that was pruned; false: its key was never used. */
static bool
answer_tombstone(Admission *admission, AcceptOutcome *outcome)
{
	Command    *command = &admission->command;
	SqlScope	scope;
	Datum		values[2];
	uint8		fingerprint[DIGEST_BYTES];
	bool		found;

	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->idempotency_key);
	sql_begin(&scope);
	found = sql_run_latest(&plans[PLAN_TOMBSTONE], values, NULL) > 0;
	if (found)
	{
		(void) audit_hash_copy(sql_value(0, 2, NULL), fingerprint);
		*outcome = is_same(admission, fingerprint) ? ACCEPT_REPLAYED : ACCEPT_KEY_SPENT;
	}
	/* of another command nothing is told */
	if (found && *outcome == ACCEPT_REPLAYED)
	{
		bool		isnull;
		Datum		value;

		command->command_id = sql_text(0, 1, scope.outer);
		(void) command_status_find(TextDatumGetCString(sql_value(0, 3, NULL)), &command->status);
		command->failure = sql_text(0, 4, scope.outer);
		value = sql_value(0, 5, &isnull);
		command->desired_revision = isnull ? -1 : DatumGetInt64(value);
	}
	sql_end(&scope);
	return found;
}

/* The answer of a command with this key; false: there is none. */
static bool
answer_stored(Admission *admission, AcceptOutcome *outcome)
{
	Command		stored;

	if (!command_read_by_key(admission->envelope.tenant_id, admission->envelope.idempotency_key, &stored))
		return answer_tombstone(admission, outcome);
	*outcome = is_same(admission, stored.fingerprint) ? ACCEPT_REPLAYED : ACCEPT_CONFLICT;
	if (*outcome == ACCEPT_REPLAYED)
		admission->command = stored;
	return true;
}

/* ----------------------------------------------------------------
 * Desired state
 * ----------------------------------------------------------------
 */

/* Does it change a desired state, if it is admitted? */
static bool
means_state(const Admission *admission)
{
	return admission->rules.desired_state != NULL && admission->rules.mode != MODE_UNAVAILABLE;
}

/* Locks and plans it; false: *outcome says why not. */
static bool
plan_desired(Admission *admission, AcceptOutcome *outcome)
{
	const Envelope *envelope = &admission->envelope;
	DesiredFacts facts;

	admission->target.tenant_id = envelope->tenant_id;
	admission->target.target_kind = envelope->target_kind;
	admission->target.target_name = envelope->target_name;
	desired_lock(&admission->target, &admission->desired);
	if (envelope->expected_revision >= 0 && envelope->expected_revision != admission->desired.revision)
	{
		*outcome = ACCEPT_STALE_REVISION;
		admission->command.desired_revision = admission->desired.revision;
		return false;
	}
	facts.state = admission->desired.state;
	facts.revision = admission->desired.revision;
	facts.wanted = admission->rules.desired_state;
	facts.applies = true;
	switch (desired_decide(&facts, &admission->next_revision))
	{
		case DESIRED_PLANNED:
			return true;
		case DESIRED_EXHAUSTED:
			desired_raise_exhausted(&admission->target);
			break;
		case DESIRED_NOT_A_STATE_ACTION:
		case DESIRED_INVALID_TARGET:
		case DESIRED_ILLEGAL_TRANSITION:
			break;
	}
	*outcome = ACCEPT_ILLEGAL_TRANSITION;
	return false;
}

static void
intend(Admission *admission, bool final)
{
	admission->command.desired_revision =
		desired_intend(&admission->target, &admission->desired, admission->rules.desired_state,
					   admission->next_revision, admission->command.command_id,
					   admission->envelope.requested_at, final, admission->floor);
}

/* ----------------------------------------------------------------
 * Effects
 * ----------------------------------------------------------------
 */

/* What the dispatcher of an application gets to know of the command. */
static Jsonb *
command_jsonb(const Command *command)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_text(&build, "tenant_id", command->tenant_id);
	jsonb_add_text(&build, "command_id", command->command_id);
	jsonb_add_text(&build, "idempotency_key", command->idempotency_key);
	jsonb_add_text(&build, "action", command->action);
	jsonb_add_text(&build, "target_kind", command->target_kind);
	jsonb_add_text(&build, "target_name", command->target_name);
	jsonb_add_text(&build, "actor", command->actor);
	jsonb_add_text(&build, "reason", command->reason);
	jsonb_add(&build, "options", command->options);
	return jsonb_end(&build);
}

compat_noreturn static void roll_back(void);

/* Undoes what the subtransaction did; caught in take_effect(). */
static void
roll_back(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_TRANSACTION_ROLLBACK),
			 errmsg_internal("the command has failed")));
}

/* A dispatcher that gives commands may have given one under the key, or the id, of its own. */
static void
require_still_free(const Command *command)
{
	Command		given;

	if (command_read_by_key(command->tenant_id, command->idempotency_key, &given) ||
		command_id_is_used(command->tenant_id, command->command_id))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("the dispatcher has given a command under the key or the id of its own")));
}

static void
dispatch(void *arg)
{
	Admission  *admission = arg;
	Command    *command = &admission->command;

	/* first: what the dispatcher commands of the same target comes after it */
	if (admission->rules.desired_state != NULL)
		intend(admission, true);
	command->failure = admission->rules.builtin ? local_dispatch(&admission->envelope, &admission->detail) :
		action_dispatch(command->action, &admission->rules, command_jsonb(command));
	if (command->failure != NULL)
		roll_back();
	if (!admission->rules.builtin)
		require_still_free(command);
}

/*
 * Errors that say nothing of the command: they roll the admission back, so that the
 * same key may try again.
 */
static bool
is_passing(int sqlstate)
{
	static const char *const classes[] = {"40", "53", "57", "58", "XX"};

	if (sqlstate == ERRCODE_LOCK_NOT_AVAILABLE || sqlstate == ERRCODE_REVISION_EXHAUSTED)
		return true;
	for (int i = 0; i < lengthof(classes); i++)
	{
		if (strncmp(unpack_sql_state(sqlstate), classes[i], 2) == 0)
			return true;
	}
	return false;
}

/* Its code alone: the text may have anything in it. */
static Jsonb *
error_jsonb(const ErrorData *error)
{
	JsonbBuild	build;

	jsonb_begin(&build);
	jsonb_add_text(&build, "sqlstate", unpack_sql_state(error->sqlerrcode));
	return jsonb_end(&build);
}

/* A local action: with its effect or without, the command is at its end. */
static void
take_effect(Admission *admission)
{
	Command    *command = &admission->command;
	ErrorData  *error = subxact_run(dispatch, admission);

	command->status = COMMAND_SUCCEEDED;
	if (error == NULL)
		return;
	command->status = COMMAND_FAILED;
	command->desired_revision = -1;
	if (command->failure != NULL)
		return;
	if (is_passing(error->sqlerrcode))
		ReThrowError(error);
	command->failure = pstrdup(FAILURE_DISPATCH_FAILED);
	admission->detail = error_jsonb(error);
}

/* ----------------------------------------------------------------
 * Storing
 * ----------------------------------------------------------------
 */

static void
store(const Admission *admission)
{
	const Envelope *envelope = &admission->envelope;
	const Command *command = &admission->command;
	Datum		values[23];
	char		nulls[23];
	bool		terminal = command_is_terminal(command->status);

	memset(nulls, ' ', sizeof(nulls));
	values[0] = CStringGetTextDatum(command->tenant_id);
	values[1] = CStringGetTextDatum(command->idempotency_key);
	values[2] = CStringGetTextDatum(command->command_id);
	values[3] = PointerGetDatum(audit_hash_datum(command->fingerprint));
	values[4] = Int16GetDatum(FINGERPRINT_VERSION);
	values[5] = CStringGetTextDatum(command->action);
	values[6] = CStringGetTextDatum(command->target_kind);
	values[7] = CStringGetTextDatum(command->target_name);
	values[8] = CStringGetTextDatum(command_mode_name(admission->rules.mode));
	values[9] = CStringGetTextDatum(command->reason);
	values[10] = JsonbPGetDatum(command->options);
	values[11] = BoolGetDatum(envelope->confirmed);
	values[12] = CStringGetTextDatum(command->actor);
	values[13] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetUserId(), false)));
	values[14] = CStringGetTextDatum(command->authentication_method);
	values[15] = CStringGetTextDatum(envelope->capability);
	values[16] = TimestampTzGetDatum(envelope->requested_at);
	nulls[16] = envelope->requested_at == DT_NOBEGIN ? 'n' : ' ';
	values[17] = TimestampTzGetDatum(admission->now);
	values[18] = TimestampTzGetDatum(command->deadline);
	values[19] = CStringGetTextDatum(command_status_name(command->status));
	nulls[20] = command->failure == NULL ? 'n' : ' ';
	values[20] = command->failure == NULL ? (Datum) 0 : CStringGetTextDatum(command->failure);
	nulls[21] = command->desired_revision < 0 ? 'n' : ' ';
	values[21] = Int64GetDatum(command->desired_revision);
	nulls[22] = terminal ? ' ' : 'n';
	values[22] = TimestampTzGetDatum(admission->completed_at);
	sql_do(&plans[PLAN_INSERT], values, nulls);
}

static void
audit_stored(const Admission *admission)
{
	const Envelope *envelope = &admission->envelope;
	const Command *command = &admission->command;
	Command		accepted = *command;
	CommandTerms terms = {
		.mode = command_mode_name(admission->rules.mode),
		.confirmed = envelope->confirmed,
		.capability = envelope->capability,
		.requested_at = envelope->requested_at,
		.deadline = command->deadline,
		.desired_revision = command->desired_revision
	};

	accepted.failure = NULL;
	command_audit_envelope(&accepted, "accepted", command_terms_jsonb(&terms), admission->now);
	if (!command_is_terminal(command->status))
		return;
	command_count(command->action, command_status_name(command->status));
	command_audit(command, command_status_name(command->status), NULL, admission->detail, admission->completed_at);
}

static AcceptOutcome
admit(Admission *admission)
{
	Command    *command = &admission->command;
	AcceptOutcome outcome;

	if (admission->envelope.command_id != NULL)
	{
		command_lock_id(command->tenant_id, command->command_id);
		if (command_id_is_used(command->tenant_id, command->command_id))
			field_invalid("command_id", "is that of another command", "Leave it out, and one is made.");
	}
	if (means_state(admission))
	{
		if (!plan_desired(admission, &outcome))
			return outcome;
		if (!may_still_give(admission))
			return ACCEPT_DENIED;
	}
	admission->now = clock_now();
	command->deadline = clock_add_ms(admission->now, admission->envelope.deadline_ms);
	if (command->command_id == NULL)
		command->command_id = command_mint_id(admission->now);

	switch (admission->rules.mode)
	{
		case MODE_LOCAL:
			take_effect(admission);
			break;
		case MODE_EXTERNAL:
			command->status = COMMAND_PENDING;
			if (admission->rules.desired_state != NULL)
				intend(admission, false);
			break;
		case MODE_UNAVAILABLE:
			command->status = COMMAND_FAILED;
			command->failure = pstrdup(FAILURE_DATA_PLANE_UNAVAILABLE);
			break;
	}
	admission->completed_at = clock_now();
	TEST_POINT("command-before-insert");
	store(admission);
	TEST_POINT("command-before-audit");
	audit_stored(admission);
	return ACCEPT_ACCEPTED;
}

/* ----------------------------------------------------------------
 * accept_command()
 * ----------------------------------------------------------------
 */

/* What the command will be, as far as the envelope says. */
static void
begin(Admission *admission)
{
	const Envelope *envelope = &admission->envelope;
	Command    *command = &admission->command;

	command->tenant_id = envelope->tenant_id;
	command->idempotency_key = envelope->idempotency_key;
	command->command_id = envelope->command_id;
	command->action = envelope->action;
	command->target_kind = envelope->target_kind;
	command->target_name = envelope->target_name;
	command->reason = envelope->reason;
	command->options = envelope->options;
	command->actor = envelope->actor;
	command->authentication_method = envelope->authentication_method;
	command->desired_revision = -1;
	envelope_fingerprint(envelope, command->fingerprint);
}

/*
 * A refusal is an event too; not for a tenant that nobody knows, or anybody could fill
 * the journal.  It is of no command, whatever id the caller chose, and who may do
 * nothing for the tenant writes no text of his into its audit.
 */
static void
audit_refused(const Admission *admission, AcceptOutcome outcome)
{
	Command		refused = admission->command;
	JsonbBuild	build;
	Jsonb	   *detail = NULL;

	if (outcome == ACCEPT_DENIED && !command_tenant_known(refused.tenant_id))
	{
		audit_pass_over();
		return;
	}
	refused.command_id = NULL;
	refused.failure = NULL;
	if (!command_tenant_granted(refused.tenant_id))
	{
		refused.idempotency_key = NULL;
		refused.actor = NULL;
		refused.authentication_method = NULL;
		refused.target_name = NULL;
		refused.reason = NULL;
		refused.options = NULL;
	}
	else if (admission->envelope.command_id != NULL)
	{
		jsonb_begin(&build);
		jsonb_add_text(&build, "command_id", admission->envelope.command_id);
		detail = jsonb_end(&build);
	}
	command_audit_envelope(&refused, outcome_names[outcome], detail, clock_now());
}

static Datum
answer(FunctionCallInfo fcinfo, const Admission *admission, AcceptOutcome outcome)
{
	const Command *command = &admission->command;
	bool		known = outcome == ACCEPT_ACCEPTED || outcome == ACCEPT_REPLAYED;
	Datum		values[6];
	bool		nulls[6] = {false};

	values[0] = CStringGetTextDatum(outcome_names[outcome]);
	/* of another command nothing is told */
	values[1] = text_or_null(known ? command->command_id : NULL, &nulls[1]);
	values[2] = text_or_null(known ? command_status_name(command->status) : NULL, &nulls[2]);
	values[3] = BoolGetDatum(outcome == ACCEPT_ACCEPTED);
	values[4] = text_or_null(known ? command->failure : NULL, &nulls[4]);
	nulls[5] = !(known || outcome == ACCEPT_STALE_REVISION) || command->desired_revision < 0;
	values[5] = Int64GetDatum(command->desired_revision);
	command_count(command->action, outcome_names[outcome]);
	return return_one_row(fcinfo, values, nulls);
}

/* What is wrong with it is told in the order of the contract, and nothing is changed. */
static void
read_envelope(FunctionCallInfo fcinfo, Envelope *envelope, ActionRules *rules)
{
	envelope_sender_args(fcinfo, envelope);
	if (!action_known(envelope->action))
		field_invalid("action", "is not an action", "An action of your own is made by reconcile.register_action().");
	envelope_target_args(fcinfo, envelope);
	if (!target_kind_known(envelope->target_kind))
		field_invalid("target_kind", "is not a kind of target", "reconcile.command_action has the kinds of each action.");
	envelope_name_args(fcinfo, envelope);
	action_require(envelope->action, envelope->target_kind, rules);
	envelope_option_args(fcinfo, envelope);
	envelope_check_options(envelope, rules->builtin, rules->confirm);
	if (envelope->expected_revision >= 0 && (rules->desired_state == NULL || rules->mode == MODE_UNAVAILABLE))
		field_invalid("expected_revision", "does not apply",
					  psprintf("Action \"%s\" changes no desired state.", envelope->action));
}

PG_FUNCTION_INFO_V1(reconcile_accept_command);
Datum
reconcile_accept_command(PG_FUNCTION_ARGS)
{
	Admission	admission = {0};
	AcceptOutcome outcome;

	require_writable("accept_command");
	require_read_committed("accept_command");
	read_envelope(fcinfo, &admission.envelope, &admission.rules);
	begin(&admission);

	admission.rights = access_generation();
	if (!may_give(&admission))
		outcome = ACCEPT_DENIED;
	else
	{
		TEST_POINT("command-after-rights");
		if (means_state(&admission))
			admission.floor = desired_enter();
		/* an authorizer may say something else by then, too */
		if (command_lock_key(admission.envelope.tenant_id, admission.envelope.idempotency_key) ? !may_give(&admission) :
			!may_still_give(&admission))
			outcome = ACCEPT_DENIED;
		else if (!answer_stored(&admission, &outcome))
			outcome = admit(&admission);
	}
	if (outcome != ACCEPT_ACCEPTED && outcome != ACCEPT_REPLAYED)
		audit_refused(&admission, outcome);
	return answer(fcinfo, &admission, outcome);
}

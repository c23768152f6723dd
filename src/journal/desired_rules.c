/*
 * desired_rules.c
 *		Which desired state follows which: a table of rules, first match wins.
 *
 * Pure: no I/O, no clock.  Revisions rise by one and end at the highest bigint.
 */
#include "postgres.h"

#include "utils/builtins.h"

#include "core/errors.h"
#include "core/ident.h"
#include "core/rows.h"
#include "journal/actions.h"
#include "journal/desired.h"

typedef struct Rule
{
	bool		(*matches) (const DesiredFacts *facts);
	DesiredOutcome outcome;
} Rule;

static bool
means_none(const DesiredFacts *facts)
{
	return facts->wanted == NULL;
}

static bool
is_misapplied(const DesiredFacts *facts)
{
	return !facts->applies;
}

static bool
is_unknown(const DesiredFacts *facts)
{
	return facts->state != NULL && !desired_state_valid(facts->state);
}

static bool
leaves_terminating(const DesiredFacts *facts)
{
	return facts->state != NULL && strcmp(facts->state, "terminating") == 0 &&
		strcmp(facts->wanted, "terminating") != 0;
}

static bool
is_last(const DesiredFacts *facts)
{
	return facts->revision == PG_INT64_MAX;
}

static bool
always(const DesiredFacts *facts)
{
	return true;
}

static const Rule rule_table[] = {
	/* most actions mean no state */
	{means_none, DESIRED_NOT_A_STATE_ACTION},
	/* a queue is not drained, and a worker not paused */
	{is_misapplied, DESIRED_INVALID_TARGET},
	/* from a state that nobody knows nothing follows */
	{is_unknown, DESIRED_ILLEGAL_TRANSITION},
	/* who has heard that it is to terminate may be gone */
	{leaves_terminating, DESIRED_ILLEGAL_TRANSITION},
	/* revisions do not begin again */
	{is_last, DESIRED_EXHAUSTED},
	/* any other may follow, the same too */
	{always, DESIRED_PLANNED}
};

DesiredOutcome
desired_decide(const DesiredFacts *facts, int64 *revision)
{
	const Rule *rule = rule_table;

	while (!rule->matches(facts))
		rule++;
	if (rule->outcome == DESIRED_PLANNED)
		*revision = facts->revision + 1;
	return rule->outcome;
}

static const char *const outcome_names[] = {
	[DESIRED_PLANNED] = "planned",
	[DESIRED_NOT_A_STATE_ACTION] = "not_a_state_action",
	[DESIRED_INVALID_TARGET] = "invalid_target",
	[DESIRED_ILLEGAL_TRANSITION] = "illegal_transition",
	[DESIRED_EXHAUSTED] = "exhausted"
};

const char *
desired_outcome_name(DesiredOutcome outcome)
{
	return outcome_names[outcome];
}

PG_FUNCTION_INFO_V1(reconcile_next_desired_state);
Datum
reconcile_next_desired_state(PG_FUNCTION_ARGS)
{
	DesiredFacts facts = {0};
	char	   *action;
	char	   *target_kind;
	DesiredOutcome outcome;
	int64		revision;
	Datum		values[3];
	bool		nulls[3] = {false, true, true};

	if (!PG_ARGISNULL(0))
		facts.state = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!PG_ARGISNULL(1))
		facts.revision = PG_GETARG_INT64(1);
	if (facts.revision < 0)
		arg_invalid("current_revision", "must not be negative", "It is 0, or NULL, where there is none yet.");
	if (facts.state != NULL && facts.revision == 0)
		arg_invalid("current_revision", "must be that of current_state", "Revisions count from 1.");
	action = text_arg(fcinfo, 2, "action");
	target_kind = text_arg(fcinfo, 3, "target_kind");
	if (!is_builtin_action(action))
		arg_invalid("action", "is not a built-in action", NULL);
	facts.wanted = builtin_desired_state(action);
	facts.applies = builtin_applies(action, target_kind);

	outcome = desired_decide(&facts, &revision);
	values[0] = CStringGetTextDatum(desired_outcome_name(outcome));
	if (outcome == DESIRED_PLANNED)
	{
		values[1] = CStringGetTextDatum(facts.wanted);
		values[2] = Int64GetDatum(revision);
		nulls[1] = nulls[2] = false;
	}
	return return_one_row(fcinfo, values, nulls);
}

/*
 * session_command_rules.c
 *		Which step of a command is taken, and with what it is refused.
 *
 * The order of the refusals is a promise: where two apply, the first one is told.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "placement/session_command.h"

static const char *const state_names[] = {
	[SESSION_COMMAND_PENDING] = "pending",
	[SESSION_COMMAND_CLAIMED] = "claimed",
	[SESSION_COMMAND_APPLYING] = "applying",
	[SESSION_COMMAND_APPLIED] = "applied",
	[SESSION_COMMAND_REJECTED] = "rejected"
};

const char *
session_command_state_name(SessionCommandState state)
{
	return state_names[state];
}

static StepDecision
outcome(StepOutcome what)
{
	return (StepDecision) {what, NULL};
}

static StepDecision
outcome_of(StepOutcome what, const char *field)
{
	return (StepDecision) {what, field};
}

/* A claim ends by itself, but not while there is an attempt. */
static bool
has_live_claim(const StepFacts *facts)
{
	return facts->command->state == SESSION_COMMAND_CLAIMED && facts->now < facts->command->claim_expires_at;
}

StepDecision
decide_command_claim(const StepFacts *facts, TimestampTz repeats)
{
	const SessionCommand *command = facts->command;
	bool		mine = has_live_claim(facts) && facts->epoch == command->claim_epoch;

	if (facts->expected_revision != command->revision)
		return outcome(STEP_CONFLICT);
	if (session_command_is_terminal(command->state))
		return outcome(STEP_TERMINAL);
	if (command->attempt_id != NULL)
		return outcome(STEP_STATE);
	if (facts->epoch < command->claim_epoch)
		return outcome(STEP_EPOCH);
	if (!facts->live)
		return outcome(STEP_LEASE_LOST);
	if (mine && repeats == command->claim_expires_at)
		return outcome(STEP_REPEATED);
	if (facts->now >= command->apply_deadline)
		return outcome(STEP_DEADLINE);
	/* a claim is not renewed; a later holder of the session takes it over */
	if (mine)
		return outcome(STEP_CLAIM_HELD);
	return outcome(STEP_DONE);
}

StepDecision
decide_command_begin(const StepFacts *facts)
{
	const SessionCommand *command = facts->command;

	if (facts->expected_revision != command->revision)
		return outcome(STEP_CONFLICT);
	if (session_command_is_terminal(command->state))
		return outcome(STEP_TERMINAL);
	if (command->state != SESSION_COMMAND_CLAIMED)
		return outcome(STEP_STATE);
	if (facts->epoch < command->claim_epoch)
		return outcome(STEP_EPOCH);
	if (!facts->live)
		return outcome(STEP_LEASE_LOST);
	if (facts->epoch != command->claim_epoch)
		return outcome_of(STEP_CLAIM_LOST, "epoch");
	/* the deadline is not asked: a live claim has won against it */
	if (!has_live_claim(facts))
		return outcome_of(STEP_CLAIM_LOST, "claim");
	return outcome(STEP_DONE);
}

static const char *
evidence_defect(const StepFacts *facts, const Evidence *evidence)
{
	const SessionCommand *command = facts->command;
	bool		own = facts->epoch == command->attempt_epoch;

	if (strcmp(evidence->attempt_id, command->attempt_id) != 0)
		return "attempt_id";
	/* who made the attempt knows that it had an effect; only who came after him, that it can have none any more */
	if (own != (evidence->kind != SETTLE_NOT_APPLIED))
		return "epoch";
	if (evidence->has_event_id && (evidence->kind != SETTLE_APPLIED || !evidence->has_event_seq))
		return evidence->kind != SETTLE_APPLIED ? "event_id" : "event_seq";
	if (evidence->has_event_seq && (!evidence->has_event_id || evidence->event_seq <= 0))
		return evidence->has_event_id ? "event_seq" : "event_id";
	return NULL;
}

StepDecision
decide_command_settle(const StepFacts *facts, const Evidence *evidence)
{
	const SessionCommand *command = facts->command;
	const char *defect;

	if (facts->expected_revision != command->revision)
		return outcome(STEP_CONFLICT);
	if (session_command_is_terminal(command->state))
		return outcome(STEP_REPEATED);
	if (command->attempt_id == NULL)
		return outcome(STEP_STATE);
	if (facts->epoch < command->attempt_epoch)
		return outcome(STEP_EPOCH);
	if (!facts->live)
		return outcome(STEP_LEASE_LOST);
	defect = evidence_defect(facts, evidence);
	return defect != NULL ? outcome_of(STEP_EVIDENCE, defect) : outcome(STEP_DONE);
}

StepDecision
decide_command_reject(const StepFacts *facts)
{
	const SessionCommand *command = facts->command;
	bool		reconciler = facts->epoch == 0;

	if (facts->expected_revision != command->revision)
		return outcome(STEP_CONFLICT);
	if (command->state == SESSION_COMMAND_REJECTED && command->attempt_id == NULL)
		return outcome(STEP_REPEATED);
	if (session_command_is_terminal(command->state))
		return outcome(STEP_TERMINAL);
	/* once it may have been dispatched, nobody says that it was not */
	if (command->attempt_id != NULL)
		return outcome(STEP_STATE);
	if (!reconciler && facts->epoch < command->claim_epoch)
		return outcome(STEP_EPOCH);
	if (!reconciler && !facts->live)
		return outcome(STEP_LEASE_LOST);
	if (has_live_claim(facts) && facts->epoch != command->claim_epoch)
		return outcome(STEP_CLAIM_HELD);
	return outcome(STEP_DONE);
}

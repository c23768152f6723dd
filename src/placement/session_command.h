/*
 * session_command.h
 *		Commands for sessions: admitted in order, and carried out by who has the session.
 *
 *		pending --claim--> claimed --begin--> applying --settle--> applied, rejected
 *		   +------reject------+--> rejected
 *
 * Who changes one has the row of its session locked.  An attempt is ended by evidence
 * alone, never by a clock: nobody can know otherwise that it had no effect.
 */
#ifndef RECONCILE_SESSION_COMMAND_H
#define RECONCILE_SESSION_COMMAND_H

#include "placement/session.h"

#define COMMAND_PAYLOAD_MAX		65536	/* bytes within the row */

typedef enum SessionCommandState
{
	SESSION_COMMAND_PENDING,
	SESSION_COMMAND_CLAIMED,
	SESSION_COMMAND_APPLYING,
	SESSION_COMMAND_APPLIED,
	SESSION_COMMAND_REJECTED
} SessionCommandState;

extern const char *session_command_state_name(SessionCommandState state);

static inline bool
session_command_is_terminal(SessionCommandState state)
{
	return state == SESSION_COMMAND_APPLIED || state == SESSION_COMMAND_REJECTED;
}

/* How far a command has come. */
typedef struct SessionCommand
{
	int64		accepted_order;
	int64		revision;
	SessionCommandState state;
	TimestampTz apply_deadline;
	int64		claim_epoch;	/* 0: it was never claimed */
	TimestampTz claim_expires_at;
	char	   *attempt_id;		/* NULL: none was begun */
	int64		attempt_epoch;
} SessionCommand;

/* With the newest snapshot; false: there is none. */
extern bool session_command_read(const SessionKey *key, const char *command_id, SessionCommand *command);

/* ----------------------------------------------------------------
 * Steps: decided by a pure function over captured facts
 * ----------------------------------------------------------------
 */

typedef enum StepOutcome
{
	STEP_DONE,
	STEP_REPEATED,				/* it was done before: nothing is written */
	STEP_CONFLICT,				/* the caller has seen another revision */
	STEP_TERMINAL,
	STEP_STATE,					/* it is not that far, or an attempt was begun */
	STEP_EPOCH,					/* a later holder has been at it */
	STEP_LEASE_LOST,			/* the caller has the session no more */
	STEP_CLAIM_LOST,
	STEP_DEADLINE,
	STEP_CLAIM_HELD,
	STEP_EVIDENCE,				/* what is said of the attempt cannot be so */
	STEP_NOT_FOUND
} StepOutcome;

typedef enum SettleKind
{
	SETTLE_APPLIED,
	SETTLE_NO_OP,
	SETTLE_NOT_APPLIED
} SettleKind;

typedef struct StepFacts
{
	const SessionCommand *command;
	int64		expected_revision;
	int64		epoch;			/* of the caller; 0: a reconciler, who has no session */
	bool		live;			/* has the caller the session? */
	TimestampTz now;
} StepFacts;

typedef struct StepDecision
{
	StepOutcome outcome;
	const char *field;			/* of a claim that was lost, or of evidence that is refused */
} StepDecision;

/* "repeats": the end of the claim that this one repeats; DT_NOBEGIN: none. */
extern StepDecision decide_command_claim(const StepFacts *facts, TimestampTz repeats);
extern StepDecision decide_command_begin(const StepFacts *facts);
extern StepDecision decide_command_reject(const StepFacts *facts);

typedef struct Evidence
{
	SettleKind	kind;
	const char *attempt_id;
	bool		has_event_id;
	bool		has_event_seq;
	int64		event_seq;
} Evidence;

extern StepDecision decide_command_settle(const StepFacts *facts, const Evidence *evidence);

#endif							/* RECONCILE_SESSION_COMMAND_H */

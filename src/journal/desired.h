/*
 * desired.h
 *		Desired states: the rules, and the rows.
 */
#ifndef RECONCILE_DESIRED_H
#define RECONCILE_DESIRED_H

#include "datatype/timestamp.h"

#include "core/compat.h"

typedef enum DesiredOutcome
{
	DESIRED_PLANNED,
	DESIRED_NOT_A_STATE_ACTION,
	DESIRED_INVALID_TARGET,
	DESIRED_ILLEGAL_TRANSITION,
	DESIRED_EXHAUSTED
} DesiredOutcome;

/* What is decided from; captured, nothing is read. */
typedef struct DesiredFacts
{
	const char *state;			/* now; NULL = none */
	int64		revision;		/* now; 0 = none yet */
	const char *wanted;			/* that the action means; NULL = it means none */
	bool		applies;		/* the action applies to this kind of target */
} DesiredFacts;

/* In *revision the next one, if it is planned. */
extern DesiredOutcome desired_decide(const DesiredFacts *facts, int64 *revision);

/* planned, not_a_state_action ... */
extern const char *desired_outcome_name(DesiredOutcome outcome);

/* ----------------------------------------------------------------
 * Rows
 * ----------------------------------------------------------------
 */

typedef struct DesiredTarget
{
	const char *tenant_id;
	const char *target_kind;
	const char *target_name;
} DesiredTarget;

typedef struct DesiredState
{
	char	   *state;			/* NULL: no command that stands has said it */
	int64		revision;		/* 0: none ever has */
	char	   *command_id;		/* NULL as state is */
} DesiredState;

/*
 * For who is about to change states, before any row or other lock: the floor of the
 * incarnation that his changes are of, which does not end before this transaction.
 */
extern int64 desired_enter(void);

/* The same; false: the incarnation is changing at this moment. */
extern bool desired_try_enter(int64 *floor);

/* Locks the row of a target until this transaction is over, and reads it; makes it where it is not there. */
extern void desired_lock(const DesiredTarget *target, DesiredState *now);

/*
 * With the row locked: the command means "state"; one that is final cannot be taken
 * back.  Returns the revision, which is "revision" if the state is another than now.
 */
extern int64 desired_intend(const DesiredTarget *target, const DesiredState *now, const char *state, int64 revision,
							const char *command_id, TimestampTz requested_at, bool final, int64 floor);

/* The command, if it meant a state, was claimed: it cannot be taken back any more. */
extern void desired_settle(const char *tenant_id, const char *command_id);

/*
 * The command comes to nothing: the state is what it is without it.  False: it was
 * not to wait, and somebody else is changing the target.  RC014.
 */
extern bool desired_withdraw(const char *tenant_id, const char *command_id, int64 floor, bool wait);

/* RC014: no revision is left. */
compat_noreturn extern void desired_raise_exhausted(const DesiredTarget *target);

#endif							/* RECONCILE_DESIRED_H */

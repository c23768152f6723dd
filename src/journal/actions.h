/*
 * actions.h
 *		What can be commanded: the rows of reconcile.command_action.
 */
#ifndef RECONCILE_ACTIONS_H
#define RECONCILE_ACTIONS_H

#include "utils/jsonb.h"

#include "loop/loop.h"

/* Where a command takes effect. */
typedef enum CommandMode
{
	MODE_LOCAL,					/* here: it has succeeded or failed when it is accepted */
	MODE_EXTERNAL,				/* elsewhere: somebody claims it */
	MODE_UNAVAILABLE			/* nowhere yet: it fails at once */
} CommandMode;

typedef struct ActionRules
{
	CommandMode mode;
	char		dispatcher[SIGNATURE_MAX];	/* of a local action that is not built in */
	NameData	owner;			/* as whom that runs */
	bool		confirm;
	const char *desired_state;	/* NULL: it means none */
	bool		builtin;
} ActionRules;

extern const char *command_mode_name(CommandMode mode);

/* Is there such an action, or an action on such a kind of target? */
extern bool action_known(const char *action);
extern bool target_kind_known(const char *target_kind);

/* The rules of an action on a kind of target; 22023 on field "target_kind" where there are none. */
extern void action_require(const char *action, const char *target_kind, ActionRules *rules);

/* The state that a built-in action means, or NULL; does it apply to that kind?  Reads no table. */
extern const char *builtin_desired_state(const char *action);
extern bool builtin_applies(const char *action, const char *target_kind);
extern bool is_builtin_action(const char *action);

/* One of the four desired states? */
extern bool desired_state_valid(const char *state);

/*
 * Calls the dispatcher of a local action of the application, as its owner.  Returns
 * its failure, or NULL if it has succeeded; an error of it is raised.
 */
extern char *action_dispatch(const char *action, const ActionRules *rules, Jsonb *command);

#endif							/* RECONCILE_ACTIONS_H */

/*
 * lifecycle.h
 *		The ways of a command from its claim to its end.
 */
#ifndef RECONCILE_LIFECYCLE_H
#define RECONCILE_LIFECYCLE_H

#include "journal/command.h"

/* May the current role claim it and report on it? */
extern bool command_may_dispatch(const Command *command);

/* Has the current role a permission on its target? */
extern bool command_may(const Command *command, const char *permission);

/*
 * Writes the end that stands in a locked command: status, failure and what the worker
 * said.  One that is canceled leaves no desired state: "floor" is of desired_enter(),
 * and false, without effect, says that it was not to wait for who changes the target.
 */
extern bool command_end(const Command *command, const char *reason, int64 floor, bool wait);

/*
 * How many commands there are, of all tenants, whose time was over before "before" and
 * that no sweep has settled; more than "max" are not counted further.
 */
extern int64 command_overdue(TimestampTz before, int max);

/* What a worker said of itself, for the audit. */
extern Jsonb *command_worker_jsonb(const Command *command);

#endif							/* RECONCILE_LIFECYCLE_H */

/*
 * lifecycle.h
 *		The ways of a command from its claim to its end.
 */
#ifndef RECONCILE_LIFECYCLE_H
#define RECONCILE_LIFECYCLE_H

#include "journal/command.h"

/* May the current role claim it and report on it? */
extern bool command_may_dispatch(const Command *command);

/*
 * Writes the end that stands in a locked command: status, failure and what the worker
 * said.  One that is canceled leaves no desired state.
 */
extern void command_end(const Command *command, const char *reason);

/* What a worker said of itself, for the audit. */
extern Jsonb *command_worker_jsonb(const Command *command);

#endif							/* RECONCILE_LIFECYCLE_H */

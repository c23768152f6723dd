/*
 * command_rules.c
 *		The states of a command, and what may come in each: a table, nothing else.
 */
#include "postgres.h"

#include "journal/command.h"

static const char *const status_names[] = {
	[COMMAND_PENDING] = "pending",
	[COMMAND_DISPATCHED] = "dispatched",
	[COMMAND_ACKNOWLEDGED] = "acknowledged",
	[COMMAND_SUCCEEDED] = "succeeded",
	[COMMAND_FAILED] = "failed",
	[COMMAND_UNSUPPORTED] = "unsupported",
	[COMMAND_TIMED_OUT] = "timed_out",
	[COMMAND_PARTIAL] = "partial",
	[COMMAND_UNKNOWN] = "unknown",
	[COMMAND_CANCELED] = "canceled"
};

const char *
command_status_name(CommandStatus status)
{
	return status_names[status];
}

bool
command_status_find(const char *name, CommandStatus *status)
{
	for (int i = 0; i < lengthof(status_names); i++)
	{
		if (strcmp(status_names[i], name) == 0)
		{
			*status = (CommandStatus) i;
			return true;
		}
	}
	return false;
}

/* What is not here is not legal; a terminal state takes no step. */
static const struct
{
	CommandStatus status;
	CommandStep step;
}			legal[] = {
	/* nobody has it: it can be taken, or taken back */
	{COMMAND_PENDING, STEP_CLAIM},
	{COMMAND_PENDING, STEP_CANCEL},
	{COMMAND_PENDING, STEP_EXPIRE},
	/* somebody has it: only he knows, and nobody after his claim is over */
	{COMMAND_DISPATCHED, STEP_ACKNOWLEDGE},
	{COMMAND_DISPATCHED, STEP_COMPLETE},
	{COMMAND_DISPATCHED, STEP_LAPSE},
	{COMMAND_ACKNOWLEDGED, STEP_COMPLETE},
	{COMMAND_ACKNOWLEDGED, STEP_LAPSE}
};

bool
command_step_legal(CommandStatus status, CommandStep step)
{
	for (int i = 0; i < lengthof(legal); i++)
	{
		if (legal[i].status == status && legal[i].step == step)
			return true;
	}
	return false;
}

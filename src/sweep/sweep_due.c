/*
 * sweep_due.c
 *		Pages of open commands, and where the next one begins.
 */
#include "postgres.h"

#include "placement/session_due.h"
#include "sweep/sweep.h"

int
sweep_due_page(const Sweep *sweep, SweepPass *pass, DueCommand **commands)
{
	DueCommand	after = {
		.apply_deadline = pass->at,
		.tenant_id = pass->position[0],
		.session_id = pass->position[1],
		.command_id = pass->position[2]
	};
	int			n = session_due_page(pass->shard, pass->bound, &after, pass->settings->page_limit, commands);

	if (n > 0)
	{
		const DueCommand *last = &(*commands)[n - 1];
		const char *position[3] = {last->tenant_id, last->session_id, last->command_id};

		sweep_move(sweep, pass, last->apply_deadline, position);
	}
	return n;
}

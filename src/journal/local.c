/*
 * local.c
 *		The built-in actions on loops: a queue is a loop, and its dead letters are its
 *		dead entities.
 *
 * They take effect in the transaction that admits the command, so there are two
 * outcomes and never a third.  Who may is asked before (accept.c).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "core/duration.h"
#include "core/ident.h"
#include "core/jsonb_build.h"
#include "core/plan.h"
#include "journal/local.h"
#include "loop/entity.h"
#include "loop/loop.h"
#include "loop/mark.h"
#include "loop/revive.h"

#define NO_TARGET			"target_not_found"
#define NO_RECORD			"record_not_found"
#define NO_DESTINATION		"destination_not_found"
#define REPLAY_DUPLICATE	"replay_duplicate"

typedef struct Local
{
	const Envelope *envelope;
	LoopRules	rules;			/* of the target */
	int64		n;				/* how many entities it concerned; -1 = it is not about a number */
} Local;

static char *
entity_option(const Local *local)
{
	return options_text(local->envelope->options, NULL, "entity_id");
}

/* ----------------------------------------------------------------
 * Actions
 * ----------------------------------------------------------------
 */

static const char *
pause_queue(Local *local)
{
	loop_pause(local->rules.loop_name);
	return NULL;
}

static const char *
resume_queue(Local *local)
{
	loop_resume(&local->rules);
	return NULL;
}

static const char *
purge_dead(Local *local)
{
	local->n = loop_purge_dead(local->rules.loop_name);
	return NULL;
}

static const char *
retry_dead(Local *local)
{
	return loop_revive(local->rules.loop_name, entity_option(local)) ? NULL : NO_RECORD;
}

static const char *
bulk_retry_dead(Local *local)
{
	const Jsonb *options = local->envelope->options;

	local->n = loop_revive_all(local->rules.loop_name, options_text(options, "selection", "sqlstate"),
							   options_int(options, "selection", "limit", 0));
	return NULL;
}

/*
 * Its row is locked then: of a revive, a run and a forget of it one comes first.  Who
 * is to forget enters that before, as all who do.
 */
static bool
lock_dead(const char *loop_name, const char *entity_id)
{
	Entity		entity;

	entity_read(loop_name, entity_id, &entity);
	return entity.dead && entity_lock(loop_name, entity_id, true, &entity) && entity.dead;
}

static const char *
delete_dead(Local *local)
{
	char	   *entity_id = entity_option(local);

	loop_enter_forget(local->rules.loop_name, entity_id);
	if (!lock_dead(local->rules.loop_name, entity_id))
		return NO_RECORD;
	(void) loop_forget(local->rules.loop_name, entity_id);
	return NULL;
}

typedef struct Looking
{
	const char *loop_name;
	const char *entity_id;
	bool		found;
} Looking;

static void
look_at(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	Looking    *looking = arg;

	looking->found |= strcmp(loop_name, looking->loop_name) == 0 && strcmp(entity_id, looking->entity_id) == 0;
}

/* Does the loop know the entity: it is dead, fails, is claimed, or something asks for it? */
static bool
is_known(const char *loop_name, const char *entity_id)
{
	Looking		looking = {loop_name, entity_id, false};
	Entity		entity;
	Snapshot	snapshot;

	entity_read(loop_name, entity_id, &entity);
	if (entity.dead || entity.failures > 0 || entity.claimed)
		return true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	mark_scan_all(snapshot, look_at, &looking);
	UnregisterSnapshot(snapshot);
	return looking.found;
}

/* The dead entity stays as it is: it is another loop that looks at one of that id. */
static const char *
replay_dead(Local *local)
{
	char	   *entity_id = entity_option(local);
	char	   *destination = options_text(local->envelope->options, "replay", "destination");
	char	   *policy = options_text(local->envelope->options, "replay", "idempotency_policy");
	bool		replace = strcmp(policy, "replace_duplicate") == 0;
	LoopRules	rules;

	if (!reconciler_id_valid(destination) || !loop_read_held(destination, &rules))
		return NO_DESTINATION;
	if (replace)
	{
		/* one in the other direction does the same */
		bool		first = strcmp(destination, local->rules.loop_name) < 0;

		loop_enter_forget(first ? destination : local->rules.loop_name, entity_id);
		loop_enter_forget(first ? local->rules.loop_name : destination, entity_id);
	}
	if (!lock_dead(local->rules.loop_name, entity_id))
		return NO_RECORD;
	if (replace)
		(void) loop_forget(destination, entity_id);
	else if (is_known(destination, entity_id))
		return REPLAY_DUPLICATE;
	mark_insert(destination, entity_id, MARK_TRIGGER, clock_now(), true, NULL);
	return NULL;
}

static const struct
{
	const char *action;
	const char *target_kind;
	const char *(*run) (Local *local);	/* its failure, or NULL */
}			actions[] = {
	{"pause", "queue", pause_queue},
	{"resume", "queue", resume_queue},
	{"purge", "queue", purge_dead},
	{"retry", "dead_letter", retry_dead},
	{"bulk_retry", "dead_letter", bulk_retry_dead},
	{"delete", "dead_letter", delete_dead},
	{"purge", "dead_letter", purge_dead},
	{"replay", "dead_letter", replay_dead}
};

char *
local_dispatch(const Envelope *envelope, Jsonb **detail)
{
	Local		local = {.envelope = envelope, .n = -1};
	const char *failure = NULL;
	bool		done = false;

	if (!reconciler_id_valid(envelope->target_name) || !loop_read_held(envelope->target_name, &local.rules))
		return pstrdup(NO_TARGET);
	for (int i = 0; i < lengthof(actions) && !done; i++)
	{
		done = strcmp(actions[i].action, envelope->action) == 0 &&
			strcmp(actions[i].target_kind, envelope->target_kind) == 0;
		if (done)
			failure = actions[i].run(&local);
	}
	if (!done)
		elog(ERROR, "action \"%s\" on %s is not local", envelope->action, envelope->target_kind);
	if (local.n >= 0)
	{
		JsonbBuild	build;

		jsonb_begin(&build);
		jsonb_add_int(&build, "count", local.n);
		*detail = jsonb_end(&build);
	}
	return failure != NULL ? pstrdup(failure) : NULL;
}

/*
 * repository.c
 *		The function of a loop that takes its fenced writes.
 *
 * It runs in the session of whoever writes, as the loop's owner (confined.h); an
 * error of it is the writer's.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/syscache.h"

#include "core/confined.h"
#include "core/errors.h"
#include "core/install.h"
#include "fence/fence.h"
#include "loop/loop.h"
#include "loop/repository.h"

/* ----------------------------------------------------------------
 * Which ids have one
 *
 * Kept until a loop changes, which invalidates the table of grants in all
 * sessions (access_changed); for ids of most fenced writes there is none.
 * ----------------------------------------------------------------
 */

typedef struct Known
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];	/* '' = nothing is known */
	bool		has;
} Known;

#define KNOWN_SLOTS		64

static Known known[KNOWN_SLOTS];
static Oid	known_for = InvalidOid; /* table of grants of the install */
static uint64 known_changes = 0;

static void
forget_known(void)
{
	memset(known, 0, sizeof(known));
	known_changes++;
}

static void
table_changed(Datum arg, Oid relid)
{
	if (relid == known_for || !OidIsValid(relid))
		forget_known();
}

static bool
has_repository(const char *reconciler_id)
{
	static bool registered = false;
	const Install *install = install_get();
	Known	   *slot;
	uint64		changes;
	bool		has;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(table_changed, (Datum) 0);
		registered = true;
	}
	if (known_for != install->access_grant)
	{
		known_for = install->access_grant;
		forget_known();
	}
	slot = &known[ident_hash("", reconciler_id) % KNOWN_SLOTS];
	if (strcmp(slot->reconciler_id, reconciler_id) == 0)
		return slot->has;

	changes = known_changes;
	has = loop_has_repository(reconciler_id);
	/* a change that came meanwhile may be newer than the answer */
	if (changes == known_changes)
	{
		strlcpy(slot->reconciler_id, reconciler_id, sizeof(slot->reconciler_id));
		slot->has = has;
	}
	return has;
}

/* ----------------------------------------------------------------
 * The call
 * ----------------------------------------------------------------
 */

/* Calls in progress, the innermost first. */
typedef struct Call
{
	const LoopRules *rules;
	const char *entity_id;
	struct Call *outer;
} Call;

static Call *calls = NULL;

/* The function as it is now; it may have been dropped, or made by another, since. */
static Oid
find_function(const LoopRules *rules)
{
	Oid			function = function_resolve(FUNCTION_REPOSITORY, rules->repository);
	FunctionProblem problem = FUNCTION_GONE;

	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(rules->owner)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("the owner of loop \"%s\" does not exist", rules->loop_name),
				 errhint("Give it another by reconcile.alter_loop().")));
	if (OidIsValid(function))
		problem = function_problem(function, rules->owner);
	switch (problem)
	{
		case FUNCTION_OK:
			break;
		case FUNCTION_GONE:
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_FUNCTION),
					 errmsg("function %s does not exist", rules->repository),
					 errdetail("It is the repository of loop \"%s\".", rules->loop_name)));
			break;
		case FUNCTION_NO_EXECUTE:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for function %s", rules->repository),
					 errdetail("It is the repository of loop \"%s\", whose owner may not execute it.", rules->loop_name)));
			break;
		case FUNCTION_FOREIGN:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("function %s belongs to another role", rules->repository),
					 errdetail("It is the repository of loop \"%s\", and its owner could run anything as the loop's.", rules->loop_name)));
			break;
	}
	return function;
}

static void
repository_call(const void *arg, const char *entity_id, Jsonb *mutation)
{
	const LoopRules *rules = arg;
	Call		call = {rules, entity_id, calls};

	for (Call *outer = calls; outer != NULL; outer = outer->outer)
	{
		if (strcmp(outer->rules->loop_name, rules->loop_name) == 0 && strcmp(outer->entity_id, entity_id) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("the repository of loop \"%s\" wrote the entity that it was called for", rules->loop_name),
					 errhint("%s has to keep the mutation elsewhere than by a fenced write.", rules->repository)));
	}

	calls = &call;
	PG_TRY();
	{
		Datum		args[] = {CStringGetTextDatum(entity_id), JsonbPGetDatum(mutation)};
		bool		isnull;

		(void) confined_call(rules->owner, find_function(rules), lengthof(args), args, &isnull);
	}
	PG_FINALLY();
	{
		calls = call.outer;
	}
	PG_END_TRY();
}

static bool
repository_find(const char *reconciler_id, FenceRepository *repository)
{
	LoopRules  *rules;

	if (!has_repository(reconciler_id))
		return false;
	rules = palloc(sizeof(LoopRules));
	if (!loop_read(reconciler_id, rules) || rules->repository[0] == '\0')
		return false;
	repository->call = repository_call;
	repository->arg = rules;
	return true;
}

void
repository_init(void)
{
	fence_repository_hook = repository_find;
}

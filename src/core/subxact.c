/*
 * subxact.c
 *		Work whose error leaves the transaction whole.
 */
#include "postgres.h"

#include "access/xact.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "core/subxact.h"

ErrorData *
subxact_try(bool (*work) (void *arg), void *arg, bool *done)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData  *volatile error = NULL;
	volatile bool kept = false;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		kept = work(arg);
		if (kept)
			ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		kept = false;
	}
	PG_END_TRY();
	if (!kept)
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	*done = kept;
	return error;
}

typedef struct Always
{
	void		(*work) (void *arg);
	void	   *arg;
} Always;

static bool
do_always(void *arg)
{
	Always	   *always = arg;

	always->work(always->arg);
	return true;
}

ErrorData *
subxact_run(void (*work) (void *arg), void *arg)
{
	Always		always = {work, arg};
	bool		done;

	return subxact_try(do_always, &always, &done);
}

typedef struct Turn
{
	bool		(*work) (void *arg);
	void	   *arg;
	int			wait_ms;
} Turn;

static bool
do_turn(void *arg)
{
	Turn	   *turn = arg;
	int			nest = NewGUCNestLevel();
	bool		kept;

	if (turn->wait_ms > 0 && (LockTimeout == 0 || LockTimeout > turn->wait_ms))
		(void) set_config_option("lock_timeout", psprintf("%d", turn->wait_ms), PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	kept = turn->work(turn->arg);
	AtEOXact_GUC(true, nest);
	return kept;
}

bool
subxact_turn(bool (*work) (void *arg), void *arg, int wait_ms)
{
	Turn		turn = {work, arg, wait_ms};
	bool		done;
	ErrorData  *error = subxact_try(do_turn, &turn, &done);

	if (error != NULL && error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
		ReThrowError(error);
	return done;
}

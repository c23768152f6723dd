/*
 * subxact.c
 *		Work whose error leaves the transaction whole.
 */
#include "postgres.h"

#include "access/xact.h"
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

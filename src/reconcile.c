/*
 * reconcile.c
 *		Module magic, and what is set up when the library is loaded.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "core/compat.h"
#include "core/guc.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "core/wake.h"
#include "engine/engine.h"
#include "fence/fence.h"
#include "fence/guard.h"
#include "journal/audit.h"
#include "journal/count.h"
#include "loop/adopt.h"
#include "loop/dead.h"
#include "loop/repository.h"

COMPAT_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	bool		preloaded = process_shared_preload_libraries_in_progress;

	guc_define(preloaded);
	/* the callback that is registered first is called last */
	TEST_POINTS_INIT();
	plan_init();
	fence_init();
	guard_init();
	repository_init();
	adopt_init();
	dead_init();
	count_init();
	audit_init();
	if (preloaded)
		engine_init();
	/* the callback that is registered last is called first: marks are told of before what else ends */
	wake_init();
}

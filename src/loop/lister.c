/*
 * lister.c
 *		A resync: marks each entity that the loop's lister returns.
 *
 * In pages, so that a lister of millions needs memory for one page of ids.  The
 * empty id means the resync itself and is passed over.
 */
#include "postgres.h"

#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/ident.h"
#include "loop/lister.h"
#include "loop/mark.h"

#define PAGE	10000			/* ids marked at once */

static const char *
listed_id(const LoopRules *rules, uint64 row)
{
	char	   *id = SPI_getvalue(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, 1);

	if (id == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("the lister of loop \"%s\" returned a null", rules->loop_name)));
	if (!entity_id_valid(id, strlen(id)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("the lister of loop \"%s\" returned what is no entity id", rules->loop_name),
				 errdetail("It begins with \"%s\".", pnstrdup(id, pg_mbcliplen(id, strlen(id), 64))),
				 errhint("An entity id is at most %d bytes.", ENTITY_ID_MAX)));
	return id;
}

static void
mark_page(const LoopRules *rules)
{
	const char **ids = palloc(sizeof(char *) * SPI_processed);
	int			n = 0;

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		ids[n] = listed_id(rules, i);
		n += ids[n][0] != '\0';
	}
	mark_insert_many(rules->loop_name, n, ids, MARK_RESYNC, NULL);
}

void
lister_run(const LoopRules *rules)
{
	MemoryContext page;
	MemoryContext old;
	SPIPlanPtr	plan;
	Portal		portal;

	SPI_connect();
	page = AllocSetContextCreate(CurrentMemoryContext, "reconcile lister page", ALLOCSET_DEFAULT_SIZES);
	/* the stored signature is quoted, and names one function */
	plan = SPI_prepare(psprintf("SELECT * FROM %s", rules->lister), 0, NULL);
	if (plan == NULL)
		elog(ERROR, "could not prepare the lister: %s", SPI_result_code_string(SPI_result));
	portal = SPI_cursor_open(NULL, plan, NULL, NULL, false);
	for (;;)
	{
		SPI_cursor_fetch(portal, true, PAGE);
		if (SPI_processed == 0)
			break;
		old = MemoryContextSwitchTo(page);
		PushActiveSnapshot(GetTransactionSnapshot());
		mark_page(rules);
		PopActiveSnapshot();
		MemoryContextSwitchTo(old);
		SPI_freetuptable(SPI_tuptable);
		MemoryContextReset(page);
	}
	SPI_cursor_close(portal);
	SPI_finish();
}

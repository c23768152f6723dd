/*
 * nested.c
 *		What a transaction keeps for its end, by the nesting level that said it.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "core/nested.h"

void *
nested_add(Nested **list, Size size)
{
	Nested	   *entry = MemoryContextAllocZero(TopTransactionContext, size);

	entry->level = GetCurrentTransactionNestLevel();
	entry->earlier = *list;
	*list = entry;
	return entry;
}

void
nested_end_subxact(Nested **list, SubXactEvent event)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		for (Nested *entry = *list; entry != NULL && entry->level >= level; entry = entry->earlier)
			entry->level = level - 1;
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (*list != NULL && (*list)->level >= level)
			*list = (*list)->earlier;
	}
}

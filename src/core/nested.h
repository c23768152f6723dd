/*
 * nested.h
 *		What a transaction keeps for its end, by the nesting level that said it.
 *
 * A subtransaction's entries become its parent's when it commits, and are gone when
 * it aborts.  They are in TopTransactionContext: whoever owns the list empties it
 * when the transaction is over.
 */
#ifndef RECONCILE_NESTED_H
#define RECONCILE_NESTED_H

#include "access/xact.h"

/* First member of each entry.  A list begins with the latest, and levels do not rise along it. */
typedef struct Nested
{
	struct Nested *earlier;
	int			level;
} Nested;

/* An entry of so many bytes, all 0 but its head, at the current level. */
extern void *nested_add(Nested **list, Size size);

/* For a SubXactCallback. */
extern void nested_end_subxact(Nested **list, SubXactEvent event);

#endif							/* RECONCILE_NESTED_H */

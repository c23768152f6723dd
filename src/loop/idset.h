/*
 * idset.h
 *		A set of entity ids in the order of their first appearance.
 *
 * For what marks many entities at once and must mark each of them once.  The
 * set and the ids live in the memory context that was current at idset_init().
 */
#ifndef RECONCILE_IDSET_H
#define RECONCILE_IDSET_H

#include "common/hashfn.h"
#include "utils/memutils.h"

typedef struct IdEntry
{
	const char *id;
	uint32		hash;
	char		status;
} IdEntry;

/* the server's template shadows a variable of its own, in 15 */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow=compatible-local"
#define SH_PREFIX idhash
#define SH_ELEMENT_TYPE IdEntry
#define SH_KEY_TYPE const char *
#define SH_KEY id
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), (int) strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp((a), (b)) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) (a)->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"
#pragma GCC diagnostic pop

typedef struct IdSet
{
	MemoryContext context;
	idhash_hash *hash;
	const char **ids;
	int			n;
	int			space;
} IdSet;

static inline void
idset_init(IdSet *set, int expected)
{
	set->context = CurrentMemoryContext;
	set->hash = idhash_create(set->context, Max(expected, 16), NULL);
	set->n = 0;
	set->space = Max(expected, 16);
	set->ids = palloc(sizeof(char *) * set->space);
}

/* Adds a copy of the id unless it is there. */
static inline void
idset_add(IdSet *set, const char *id)
{
	bool		found;
	IdEntry    *entry = idhash_insert(set->hash, id, &found);

	if (found)
		return;
	entry->id = MemoryContextStrdup(set->context, id);
	if (set->n == set->space)
	{
		set->space *= 2;
		set->ids = repalloc_huge(set->ids, sizeof(char *) * set->space);
	}
	set->ids[set->n++] = entry->id;
}

#endif							/* RECONCILE_IDSET_H */

/*
 * arena.c
 *		Small pieces of memory of nearly any size, without a header.
 */
#include "postgres.h"

#include "loop/arena.h"

#define BLOCK_SIZE		(64 * 1024 - 64)	/* with what the context adds, below a power of two */

void
arena_init(Arena *arena, MemoryContext context)
{
	memset(arena, 0, sizeof(*arena));
	arena->context = context;
}

void *
arena_alloc(Arena *arena, Size size)
{
	void	  **list;
	void	   *piece;

	size = MAXALIGN(size);
	Assert(size > 0 && size <= ARENA_PIECE_MAX);
	list = &arena->unused[size / MAXIMUM_ALIGNOF];
	piece = *list;
	if (piece != NULL)
		*list = *(void **) piece;
	else
	{
		if (arena->end - arena->next < size)
		{
			arena->next = MemoryContextAlloc(arena->context, BLOCK_SIZE);
			arena->end = arena->next + BLOCK_SIZE;
		}
		piece = arena->next;
		arena->next += size;
	}
	memset(piece, 0, size);
	return piece;
}

void
arena_free(Arena *arena, void *piece, Size size)
{
	void	  **list = &arena->unused[MAXALIGN(size) / MAXIMUM_ALIGNOF];

	*(void **) piece = *list;
	*list = piece;
}

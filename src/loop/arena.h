/*
 * arena.h
 *		Small pieces of memory of nearly any size, without a header.
 *
 * For very many that are alike: a memory context rounds each up to a power of
 * two, and puts a header before it.  A piece that is freed serves the next one
 * of its size; memory goes back when the context goes.
 */
#ifndef RECONCILE_ARENA_H
#define RECONCILE_ARENA_H

#define ARENA_PIECE_MAX		1024	/* bytes */

typedef struct Arena
{
	MemoryContext context;
	char	   *next;			/* what is left of the newest block */
	char	   *end;
	void	   *unused[ARENA_PIECE_MAX / MAXIMUM_ALIGNOF + 1]; /* freed ones, by size: a list each */
} Arena;

extern void arena_init(Arena *arena, MemoryContext context);

/* Zeroed, MAXALIGNed; of at most ARENA_PIECE_MAX bytes. */
extern void *arena_alloc(Arena *arena, Size size);

/* size as it was allocated */
extern void arena_free(Arena *arena, void *piece, Size size);

#endif							/* RECONCILE_ARENA_H */

/*
 * compact.h
 *		Keeps the mark segments small where no dispatcher rotates them.
 */
#ifndef RECONCILE_COMPACT_H
#define RECONCILE_COMPACT_H

/*
 * Moves what is left in segments that have grown to another one, in this
 * transaction.  Call compact_truncate() in the next.
 */
extern void compact_move(void);

/* Empties the segments that hold no mark, if nobody uses them. */
extern void compact_truncate(void);

#endif							/* RECONCILE_COMPACT_H */

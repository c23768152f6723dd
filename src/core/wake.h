/*
 * wake.h
 *		What this transaction has to tell the engine when it commits.
 *
 * The tables are the truth and this is a hint: a room notes what it wrote, and
 * at commit (when others can see the rows) the engine, if it is there, gets it.
 * An abort tells nothing; an aborted subtransaction at worst wakes in vain.
 */
#ifndef RECONCILE_WAKE_H
#define RECONCILE_WAKE_H

#include "storage/block.h"
#include "storage/itemptr.h"

#include "core/install.h"

#define WAKE_MARKS	64			/* single marks; more become a range of blocks */

typedef struct WakeMark
{
	BlockNumber block;
	OffsetNumber offset;		/* InvalidOffsetNumber: the whole range block .. last_block */
	uint8		segment;
	bool		gone;			/* it was deleted before it was due */
	BlockNumber last_block;
} WakeMark;

typedef struct WakeList
{
	int			n;
	WakeMark	marks[WAKE_MARKS];
	bool		ranged[MARK_SEGMENTS];	/* there are more than WAKE_MARKS */
	BlockNumber first_block[MARK_SEGMENTS];
	BlockNumber last_block[MARK_SEGMENTS];
} WakeList;

typedef struct Wake
{
	WakeList	made;
	WakeList	gone;
	bool		reload;			/* loops changed */
	bool		leases;			/* a lease was released or granted */
	bool		terms;			/* a live term was ended, and not by its holder */
	bool		rescan;			/* marks changed in a way that nobody listed */
} Wake;

/* A mark was inserted at (segment, tid). */
extern void wake_mark(int segment, ItemPointer tid);

/* The mark there was deleted before its time: it needs no waiting for. */
extern void wake_gone(int segment, BlockNumber block, OffsetNumber offset);

/* What this transaction has noted so far. */
extern const Wake *wake_pending(void);

/* Loops or their states changed. */
extern void wake_reload(void);

/* A lease was released or granted. */
extern void wake_leases(void);

/* A live term was ended, and not by its holder. */
extern void wake_terms(void);

/* Look at all marks again. */
extern void wake_rescan(void);

/*
 * Set by the engine when it is preloaded.  At commit: called once, with
 * interrupts held; it must not throw, allocate or take heavyweight locks.
 * "prepared" tells of a PREPARE TRANSACTION instead.
 */
extern void (*wake_hook) (const Wake *wake, bool prepared);

/* Registers the transaction callback; once, from _PG_init(). */
extern void wake_init(void);

#endif							/* RECONCILE_WAKE_H */

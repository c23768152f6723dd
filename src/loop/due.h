/*
 * due.h
 *		The due set: the marks of each entity, merged, in memory.
 *
 * A cache of the segments: the dispatcher keeps one, run_loop() builds one for
 * a call.  It decides which entity is next and which marks its run answers; it
 * does no I/O and reads no clock.
 *
 *		waiting --due--> ready --due_take--> running --due_answered--> waiting, ready or gone
 *		                                             --due_return----> waiting
 */
#ifndef RECONCILE_DUE_H
#define RECONCILE_DUE_H

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "core/ident.h"
#include "loop/arena.h"
#include "loop/mark.h"

#define DUE_LIST_MAX	64		/* marks of an entity that are kept: the rest is excess */

typedef enum DueState
{
	DUE_WAITING,				/* in the timer heap */
	DUE_READY,					/* in its loop's queue */
	DUE_RUNNING					/* taken */
} DueState;

typedef struct DueMark
{
	MarkRef		ref;
	bool		taken;			/* in the list of the run in flight */
	bool		merged;			/* an earlier one stands for it: goes with the next run */
	bool		excess;			/* being deleted: see due_excess() */
	bool		skipped;		/* counted in the loop's coalesced */
} DueMark;

typedef struct DueLoop
{
	dlist_node	link;			/* in the set's list of loops */
	char		loop_name[RECONCILER_ID_MAX + 1];
	dlist_head	ready;			/* DueEntity, oldest first */
	pairingheap *timers;		/* DueEntity that wait, earliest first */
	int64		nready;
	int64		nwaiting;
	int64		nretrying;		/* of those that wait: after a failure */
	int64		nclaimed;		/* of those that wait: an outside worker has them */
	int64		nrunning;
	int64		coalesced;		/* triggers that came due while their entity ran */
	int64		arrivals;		/* marks that came due, otherwise */
} DueLoop;

typedef struct DueEntity
{
	union
	{
		pairingheap_node heap;	/* waiting */
		dlist_node	queue;		/* ready */
	}			link;
	DueLoop    *loop;
	TimestampTz due_at;			/* when it is to be ready */
	TimestampTz not_before;		/* given back: not sooner than this */
	union
	{
		DueMark		one;
		DueMark    *many;		/* where capacity > 0 */
	}			marks;
	uint32		hash;
	int32		nmarks;
	int32		capacity;		/* of marks.many */
	uint8		state;			/* DueState */
	bool		retrying;		/* it waits because of a failure */
	bool		claimed;		/* an outside worker has it, and until when is among its marks */
	char		entity_id[FLEXIBLE_ARRAY_MEMBER];
} DueEntity;

typedef struct DueSet
{
	MemoryContext context;
	Arena		arena;			/* the entities: there may be millions */
	struct duehash_hash *entities;
	dlist_head	loops;
} DueSet;

extern DueSet *due_create(MemoryContext parent);
extern void due_destroy(DueSet *set);

/* The loop's part of the set; made if it is not there. */
extern DueLoop *due_loop(DueSet *set, const char *loop_name);

/* Forgets a loop and its entities, except those in flight, which go when they end. */
extern void due_forget_loop(DueSet *set, DueLoop *loop);

/*
 * Forgets all marks that are not in flight, before a scan of the segments: those
 * of "limit" entities.  True when that was all.
 */
extern bool due_clear(DueSet *set, int limit);

/* Adds a mark; one that is there already changes nothing.  Returns its entity. */
extern DueEntity *due_add(DueSet *set, DueLoop *loop, const char *entity_id,
						  const MarkRef *ref, TimestampTz now);

/* Moves what is due to the ready queues. */
extern void due_advance(DueSet *set, TimestampTz now);

/* When the next one becomes ready; DT_NOEND: nothing waits. */
extern TimestampTz due_next(DueSet *set);
extern TimestampTz due_loop_next(DueLoop *loop);

/* The loop's oldest ready entity, and the one after it; NULL: none is ready. */
extern DueEntity *due_first(DueLoop *loop);
extern DueEntity *due_after(DueEntity *entity);

/*
 * Takes an entity that is ready, and makes the list of marks that its run
 * answers, palloc'd, of at most max.
 */
extern void due_take(DueSet *set, DueEntity *entity, TimestampTz now, int max, MarkRef **list, int *n);

/* Is a mark of the entity due, and in no run's list? */
extern bool due_asked(DueEntity *entity, TimestampTz now);

/*
 * Marks that came due since the entity was taken, at most max, palloc'd; with
 * due_take_more() they join the list of its run.
 */
extern int	due_more(DueEntity *entity, TimestampTz now, int max, MarkRef **refs);
extern void due_take_more(DueEntity *entity, const MarkRef *refs, int n);

/*
 * Due marks beyond DUE_LIST_MAX, which the ones that stay stand for.  The caller
 * deletes them from the segments and then calls due_drop_excess(), or forgets
 * about it with due_keep_excess().
 */
extern int	due_excess(DueEntity *entity, TimestampTz now, MarkRef **refs);
extern void due_drop_excess(DueEntity *entity);
extern void due_keep_excess(DueEntity *entity);

/* The run answered its list; look (may be NULL) is its next look. */
extern void due_answered(DueSet *set, DueEntity *entity, const MarkRef *look, TimestampTz now);

/* The run was given back: again, not before the given time. */
extern void due_return(DueSet *set, DueEntity *entity, TimestampTz not_before, TimestampTz now);

/* The mark is gone from its segment, and need not be waited for. */
extern void due_gone(DueSet *set, DueEntity *entity, const MarkRef *ref, TimestampTz now);

/* The mark was moved to another place; false: it is not in the set. */
extern bool due_moved(DueEntity *entity, const MarkRef *from, const MarkRef *to);

/* The entity, if it is in the set. */
extern DueEntity *due_find(DueSet *set, DueLoop *loop, const char *entity_id);

#endif							/* RECONCILE_DUE_H */

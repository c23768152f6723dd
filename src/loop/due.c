/*
 * due.c
 *		The due set.
 *
 * Merging: a run answers every mark that is due, every earlier next look, and
 * every delayed trigger that an earlier delayed one stands for.  A delayed
 * trigger is never answered before its time; of several that wait together the
 * earliest stays.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "loop/due.h"

#define FEW_MARKS	4			/* of an entity that has more than one */

typedef struct DueHashEntry
{
	DueEntity  *entity;
	uint32		status;
} DueHashEntry;

#define SH_PREFIX			duehash
#define SH_ELEMENT_TYPE		DueHashEntry
#define SH_KEY_TYPE			DueEntity *
#define SH_KEY				entity
#define SH_HASH_KEY(tb, key)	((key)->hash)
#define SH_EQUAL(tb, a, b)		((a)->loop == (b)->loop && strcmp((a)->entity_id, (b)->entity_id) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a)		((a)->entity->hash)
#define SH_SCOPE			static inline
#define SH_DECLARE
#define SH_DEFINE
/* the template shadows a variable of its own */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow=compatible-local"
#include "lib/simplehash.h"
#pragma GCC diagnostic pop

static int
timer_compare(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	TimestampTz da = pairingheap_const_container(DueEntity, link.heap, a)->due_at;
	TimestampTz db = pairingheap_const_container(DueEntity, link.heap, b)->due_at;

	/* the heap's first is the greatest: here, the earliest */
	return (da < db) ? 1 : (da > db) ? -1 : 0;
}

DueSet *
due_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "reconcile due set", ALLOCSET_DEFAULT_SIZES);
	DueSet	   *set = MemoryContextAllocZero(context, sizeof(DueSet));
	MemoryContext old = MemoryContextSwitchTo(context);

	set->context = context;
	arena_init(&set->arena, context);
	set->entities = duehash_create(context, 256, NULL);
	dlist_init(&set->loops);
	MemoryContextSwitchTo(old);
	return set;
}

void
due_destroy(DueSet *set)
{
	MemoryContextDelete(set->context);
}

DueLoop *
due_loop(DueSet *set, const char *loop_name)
{
	dlist_iter	iter;
	DueLoop    *loop;

	dlist_foreach(iter, &set->loops)
	{
		loop = dlist_container(DueLoop, link, iter.cur);
		if (strcmp(loop->loop_name, loop_name) == 0)
			return loop;
	}
	loop = MemoryContextAllocZero(set->context, sizeof(DueLoop));
	strlcpy(loop->loop_name, loop_name, sizeof(loop->loop_name));
	dlist_init(&loop->ready);
	loop->timers = MemoryContextAllocZero(set->context, sizeof(pairingheap));
	loop->timers->ph_compare = timer_compare;
	dlist_push_tail(&set->loops, &loop->link);
	return loop;
}

/* ----------------------------------------------------------------
 * Entities and their place
 * ----------------------------------------------------------------
 */

static inline DueMark *
marks_of(DueEntity *entity)
{
	return entity->capacity > 0 ? entity->marks.many : &entity->marks.one;
}

/* Takes the entity out of the heap or the queue. */
static void
unplace(DueSet *set, DueEntity *entity)
{
	switch (entity->state)
	{
		case DUE_WAITING:
			pairingheap_remove(entity->loop->timers, &entity->link.heap);
			entity->loop->nwaiting--;
			entity->loop->nretrying -= entity->retrying;
			entity->loop->nclaimed -= entity->claimed;
			break;
		case DUE_READY:
			dlist_delete(&entity->link.queue);
			entity->loop->nready--;
			break;
		case DUE_RUNNING:
			entity->loop->nrunning--;
			break;
	}
}

static inline Size
entity_size(const char *entity_id)
{
	return offsetof(DueEntity, entity_id) + strlen(entity_id) + 1;
}

static void
entity_free(DueSet *set, DueEntity *entity)
{
	duehash_delete(set->entities, entity);
	if (entity->capacity > 0)
		pfree(entity->marks.many);
	arena_free(&set->arena, entity, entity_size(entity->entity_id));
}

/* Puts an entity, which is nowhere now, where its marks say; frees it if it has none. */
static void
place(DueSet *set, DueEntity *entity, TimestampTz now)
{
	DueMark    *marks = marks_of(entity);
	TimestampTz due = DT_NOEND;

	entity->retrying = entity->claimed = false;
	if (entity->nmarks == 0)
	{
		entity_free(set, entity);
		return;
	}
	for (int i = 0; i < entity->nmarks; i++)
	{
		if (!marks[i].merged)
			due = Min(due, marks[i].ref.due_at);
		entity->retrying |= marks[i].ref.kind == MARK_BACKOFF;
		entity->claimed |= marks[i].ref.kind == MARK_CLAIM && marks[i].ref.due_at > now;
	}
	entity->due_at = Max(due, entity->not_before);
	if (entity->due_at <= now)
	{
		entity->state = DUE_READY;
		dlist_push_tail(&entity->loop->ready, &entity->link.queue);
		entity->loop->nready++;
	}
	else
	{
		entity->state = DUE_WAITING;
		pairingheap_add(entity->loop->timers, &entity->link.heap);
		entity->loop->nwaiting++;
		/* a claim's deadline is what it waits for */
		entity->retrying &= !entity->claimed;
		entity->loop->nretrying += entity->retrying;
		entity->loop->nclaimed += entity->claimed;
	}
}

/* A key for the hash table; lives until the next call. */
static DueEntity *
probe_for(DueLoop *loop, const char *entity_id)
{
	static union
	{
		DueEntity	entity;
		char		space[offsetof(DueEntity, entity_id) + ENTITY_ID_MAX + 1];
	}			probe;
	size_t		length = strlen(entity_id);

	probe.entity.loop = loop;
	probe.entity.hash = hash_combine(hash_bytes((const unsigned char *) entity_id, length),
									 murmurhash32((uint32) (uintptr_t) loop));
	memcpy(probe.entity.entity_id, entity_id, length + 1);
	return &probe.entity;
}

DueEntity *
due_find(DueSet *set, DueLoop *loop, const char *entity_id)
{
	DueHashEntry *entry = duehash_lookup(set->entities, probe_for(loop, entity_id));

	return entry != NULL ? entry->entity : NULL;
}

static DueEntity *
entity_find_or_make(DueSet *set, DueLoop *loop, const char *entity_id, bool *made)
{
	DueEntity  *probe = probe_for(loop, entity_id);
	bool		found;
	DueHashEntry *entry = duehash_insert(set->entities, probe, &found);

	*made = !found;
	if (!found)
	{
		entry->entity = arena_alloc(&set->arena, entity_size(entity_id));
		entry->entity->loop = loop;
		entry->entity->hash = probe->hash;
		memcpy(entry->entity->entity_id, entity_id, strlen(entity_id) + 1);
	}
	return entry->entity;
}

static DueMark *
append_mark(DueSet *set, DueEntity *entity)
{
	if (entity->nmarks == 0 && entity->capacity == 0)
	{
		entity->nmarks = 1;
		return &entity->marks.one;
	}
	if (entity->capacity == 0)
	{
		DueMark    *many = MemoryContextAlloc(set->context, sizeof(DueMark) * FEW_MARKS);

		many[0] = entity->marks.one;
		entity->marks.many = many;
		entity->capacity = FEW_MARKS;
	}
	else if (entity->nmarks == entity->capacity)
	{
		entity->capacity *= 2;
		entity->marks.many = repalloc(entity->marks.many, sizeof(DueMark) * entity->capacity);
	}
	return &entity->marks.many[entity->nmarks++];
}

static bool
same_place(const MarkRef *a, const MarkRef *b)
{
	return a->number == b->number && a->block == b->block &&
		a->offset == b->offset && a->segment == b->segment;
}

/* Of the delayed triggers that wait, only the earliest stays for itself. */
static void
merge_delayed(DueEntity *entity, TimestampTz now)
{
	DueMark    *marks = marks_of(entity);
	DueMark    *earliest = NULL;

	for (int i = 0; i < entity->nmarks; i++)
	{
		DueMark    *mark = &marks[i];

		if (mark->taken || mark->merged || mark->ref.due_at <= now ||
			mark_is_look(mark->ref.kind) || mark->ref.kind == MARK_CLAIM)
			continue;
		if (earliest == NULL)
			earliest = mark;
		else if (mark->ref.due_at < earliest->ref.due_at)
		{
			earliest->merged = true;
			earliest = mark;
		}
		else
			mark->merged = true;
	}
}

DueEntity *
due_add(DueSet *set, DueLoop *loop, const char *entity_id, const MarkRef *ref, TimestampTz now)
{
	bool		made;
	DueEntity  *entity = entity_find_or_make(set, loop, entity_id, &made);
	DueMark    *marks = marks_of(entity);
	DueMark    *mark;

	for (int i = 0; i < entity->nmarks; i++)
	{
		if (same_place(&marks[i].ref, ref))
			return entity;
	}
	mark = append_mark(set, entity);
	memset(mark, 0, sizeof(*mark));
	mark->ref = *ref;
	if (entity->nmarks > 1 && ref->due_at > now)
		merge_delayed(entity, now);

	if (!made && ref->due_at <= now && (entity->state == DUE_RUNNING || entity->claimed) &&
		(ref->kind == MARK_TRIGGER || ref->kind == MARK_RESYNC))
	{
		mark->skipped = true;
		loop->coalesced++;
	}
	else if (ref->due_at <= now)
		loop->arrivals++;
	if (made)
		place(set, entity, now);
	else if (entity->state == DUE_WAITING &&
			 (ref->due_at < entity->due_at || mark_is_look(ref->kind) || ref->kind == MARK_CLAIM))
	{
		/* a fresh trigger does not wait for the backoff, but for who has the entity; his look says that he is done */
		if (mark_is_look(ref->kind))
			entity->not_before = 0;
		unplace(set, entity);
		place(set, entity, now);
	}
	return entity;
}

TimestampTz
due_loop_next(DueLoop *loop)
{
	if (pairingheap_is_empty(loop->timers))
		return DT_NOEND;
	return pairingheap_container(DueEntity, link.heap, pairingheap_first(loop->timers))->due_at;
}

TimestampTz
due_next(DueSet *set)
{
	TimestampTz next = DT_NOEND;
	dlist_iter	iter;

	dlist_foreach(iter, &set->loops)
		next = Min(next, due_loop_next(dlist_container(DueLoop, link, iter.cur)));
	return next;
}

void
due_advance(DueSet *set, TimestampTz now)
{
	dlist_iter	iter;

	dlist_foreach(iter, &set->loops)
	{
		DueLoop    *loop = dlist_container(DueLoop, link, iter.cur);

		while (due_loop_next(loop) <= now)
		{
			DueEntity  *entity = pairingheap_container(DueEntity, link.heap, pairingheap_first(loop->timers));

			loop->arrivals++;
			unplace(set, entity);
			place(set, entity, now);
		}
	}
}

/* ----------------------------------------------------------------
 * Runs
 * ----------------------------------------------------------------
 */

static bool
is_answered(const DueMark *mark, TimestampTz now)
{
	return mark->merged || mark_is_look(mark->ref.kind) || mark->ref.due_at <= now;
}

DueEntity *
due_first(DueLoop *loop)
{
	if (dlist_is_empty(&loop->ready))
		return NULL;
	return dlist_container(DueEntity, link.queue, dlist_head_node(&loop->ready));
}

DueEntity *
due_after(DueEntity *entity)
{
	if (!dlist_has_next(&entity->loop->ready, &entity->link.queue))
		return NULL;
	return dlist_container(DueEntity, link.queue, dlist_next_node(&entity->loop->ready, &entity->link.queue));
}

void
due_take(DueSet *set, DueEntity *entity, TimestampTz now, int max, MarkRef **list, int *n)
{
	DueMark    *marks;

	Assert(entity->state == DUE_READY);
	unplace(set, entity);
	entity->state = DUE_RUNNING;
	entity->not_before = 0;
	entity->loop->nrunning++;

	marks = marks_of(entity);
	*list = palloc(sizeof(MarkRef) * entity->nmarks);
	*n = 0;
	for (int i = 0; i < entity->nmarks && *n < max; i++)
	{
		if (is_answered(&marks[i], now) && !marks[i].excess)
		{
			marks[i].taken = true;
			(*list)[(*n)++] = marks[i].ref;
		}
	}
}

bool
due_asked(DueEntity *entity, TimestampTz now)
{
	DueMark    *marks = marks_of(entity);

	for (int i = 0; i < entity->nmarks; i++)
	{
		if (!marks[i].taken && !marks[i].excess && marks[i].ref.due_at <= now)
			return true;
	}
	return false;
}

int
due_more(DueEntity *entity, TimestampTz now, int max, MarkRef **refs)
{
	DueMark    *marks = marks_of(entity);
	int			n = 0;

	*refs = NULL;
	for (int i = 0; i < entity->nmarks && n < max; i++)
	{
		if (marks[i].taken || marks[i].excess || marks[i].ref.due_at > now)
			continue;
		if (*refs == NULL)
			*refs = palloc(sizeof(MarkRef) * entity->nmarks);
		(*refs)[n++] = marks[i].ref;
	}
	return n;
}

void
due_take_more(DueEntity *entity, const MarkRef *refs, int n)
{
	DueMark    *marks = marks_of(entity);

	for (int i = 0; i < entity->nmarks; i++)
	{
		for (int j = 0; j < n; j++)
		{
			if (!same_place(&marks[i].ref, &refs[j]))
				continue;
			marks[i].taken = true;
			/* its run had not begun */
			entity->loop->coalesced -= marks[i].skipped;
			marks[i].skipped = false;
		}
	}
}

int
due_excess(DueEntity *entity, TimestampTz now, MarkRef **refs)
{
	DueMark    *marks = marks_of(entity);
	int			kept[3] = {0, 0, 0};	/* looks and what waits, what is due, triggers that are due */
	int			n = 0;

	if (entity->nmarks <= DUE_LIST_MAX)
		return 0;
	*refs = palloc(sizeof(MarkRef) * entity->nmarks);
	/* the latest stay: a forget() in progress may be deleting the earlier ones */
	for (int i = entity->nmarks - 1; i >= 0; i--)
	{
		/* what is not due yet does not stand for what is, and a trigger alone revives the dead */
		int			class = mark_is_look(marks[i].ref.kind) || marks[i].ref.due_at > now ? 0 :
			marks[i].ref.kind == MARK_TRIGGER ? 2 : 1;

		if (marks[i].taken || !is_answered(&marks[i], now) || ++kept[class] <= DUE_LIST_MAX / 4)
			continue;
		marks[i].excess = true;
		(*refs)[n++] = marks[i].ref;
	}
	return n;
}

/* The first "kept" of its marks stay. */
static void
set_count(DueEntity *entity, int kept)
{
	entity->nmarks = kept;
	if (kept <= 1 && entity->capacity > 0)
	{
		DueMark    *many = entity->marks.many;

		entity->marks.one = many[0];
		entity->capacity = 0;
		pfree(many);
	}
}

/* Removes the marks for which gone() holds. */
static void
remove_marks(DueEntity *entity, bool (*gone) (const DueMark *mark))
{
	DueMark    *marks = marks_of(entity);
	int			kept = 0;

	for (int i = 0; i < entity->nmarks; i++)
	{
		if (!gone(&marks[i]))
			marks[kept++] = marks[i];
	}
	set_count(entity, kept);
}

static bool
is_taken(const DueMark *mark)
{
	return mark->taken;
}

static bool
is_not_taken(const DueMark *mark)
{
	return !mark->taken;
}

static bool
is_excess(const DueMark *mark)
{
	return mark->excess;
}

void
due_drop_excess(DueEntity *entity)
{
	remove_marks(entity, is_excess);
}

void
due_keep_excess(DueEntity *entity)
{
	DueMark    *marks = marks_of(entity);

	for (int i = 0; i < entity->nmarks; i++)
		marks[i].excess = false;
}

void
due_answered(DueSet *set, DueEntity *entity, const MarkRef *look, TimestampTz now)
{
	unplace(set, entity);
	remove_marks(entity, is_taken);
	if (look != NULL)
	{
		DueMark    *mark = append_mark(set, entity);

		memset(mark, 0, sizeof(*mark));
		mark->ref = *look;
	}
	place(set, entity, now);
}

void
due_return(DueSet *set, DueEntity *entity, TimestampTz not_before, TimestampTz now)
{
	DueMark    *marks = marks_of(entity);

	unplace(set, entity);
	for (int i = 0; i < entity->nmarks; i++)
		marks[i].taken = false;
	entity->not_before = not_before;
	place(set, entity, now);
}

void
due_gone(DueSet *set, DueEntity *entity, const MarkRef *ref, TimestampTz now)
{
	DueMark    *marks = marks_of(entity);
	bool		running = entity->state == DUE_RUNNING;
	int			kept = 0;

	if (!running)
		unplace(set, entity);
	for (int i = 0; i < entity->nmarks; i++)
	{
		if (marks[i].taken || !same_place(&marks[i].ref, ref))
			marks[kept++] = marks[i];
	}
	set_count(entity, kept);
	/* whoever had the entity has let go of it */
	entity->not_before = 0;
	if (!running)
		place(set, entity, now);
}

bool
due_moved(DueEntity *entity, const MarkRef *from, const MarkRef *to)
{
	DueMark    *marks = marks_of(entity);
	bool		moved = false;

	for (int i = 0; i < entity->nmarks; i++)
	{
		if (!same_place(&marks[i].ref, from))
			continue;
		marks[i].ref = *to;
		moved = true;
	}
	return moved;
}

/* ----------------------------------------------------------------
 * Whole set
 * ----------------------------------------------------------------
 */

/* Calls visit for each entity of a loop (NULL: of all); visit may free it. */
static void
for_each_entity(DueSet *set, DueLoop *loop, void (*visit) (DueSet *set, DueEntity *entity))
{
	DueEntity **all;
	int64		n = 0;
	duehash_iterator iterator;
	DueHashEntry *entry;

	if (set->entities->members == 0)
		return;
	all = MemoryContextAllocHuge(set->context, sizeof(DueEntity *) * set->entities->members);
	duehash_start_iterate(set->entities, &iterator);
	while ((entry = duehash_iterate(set->entities, &iterator)) != NULL)
	{
		if (loop == NULL || entry->entity->loop == loop)
			all[n++] = entry->entity;
	}
	for (int64 i = 0; i < n; i++)
		visit(set, all[i]);
	pfree(all);
}

/* What is in flight keeps its list, and goes when it ends. */
static void
forget_entity(DueSet *set, DueEntity *entity)
{
	/* those that are found again are counted again */
	for (int i = 0; i < entity->nmarks; i++)
		entity->loop->coalesced -= marks_of(entity)[i].skipped && !marks_of(entity)[i].taken;
	if (entity->state == DUE_RUNNING)
		remove_marks(entity, is_not_taken);
	else
	{
		unplace(set, entity);
		entity_free(set, entity);
	}
}

bool
due_clear(DueSet *set, int limit)
{
	DueEntity **some = MemoryContextAlloc(set->context, sizeof(DueEntity *) * limit);
	int			n = 0;
	duehash_iterator iterator;
	DueHashEntry *entry;

	duehash_start_iterate(set->entities, &iterator);
	while (n < limit && (entry = duehash_iterate(set->entities, &iterator)) != NULL)
	{
		if (entry->entity->state == DUE_RUNNING)
			forget_entity(set, entry->entity);
		else
			some[n++] = entry->entity;
	}
	for (int i = 0; i < n; i++)
		forget_entity(set, some[i]);
	pfree(some);
	return n < limit;
}

void
due_forget_loop(DueSet *set, DueLoop *loop)
{
	for_each_entity(set, loop, forget_entity);
	if (loop->nrunning == 0)
	{
		dlist_delete(&loop->link);
		pfree(loop->timers);
		pfree(loop);
	}
}

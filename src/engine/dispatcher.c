/*
 * dispatcher.c
 *		The dispatcher of one database: main loop, messages, loops.
 *
 * One per database that has the extension and a loop, proved by a session lock
 * on the install.  It keeps the due set, owns the leases of its loops and hands
 * out the work.  It runs no user code, so it can always renew, cancel and
 * answer; its transactions are short, and it has none while it waits.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/install.h"
#include "core/plan.h"
#include "engine/dispatcher.h"
#include "engine/engine.h"
#include "engine/lend.h"
#include "engine/process.h"
#include "loop/adopt.h"

#define RETRY_MS			1000	/* after a transaction of ours failed */
#define PREPARED_LOOK_MS	5000	/* while prepared transactions with marks are there */
#define BOOK_LOCK_TIMEOUT	"500ms"
#define LEAVE_LOOK_MS		20
#define SCAN_BLOCKS			256		/* of a segment, read in one transaction */
#define CLEAR_ENTITIES		50000	/* forgotten at once */
#define MESSAGES_MAX		1024	/* taken from the ring at once */

extern PGDLLEXPORT void reconcile_dispatcher_main(Datum main_arg);

static Dispatcher self;
Dispatcher *dispatcher = &self;

/* The lock on the install that proves that we are its only dispatcher. */
static LOCKTAG install_tag;

void
dispatcher_wake_at(TimestampTz at)
{
	self.wake_at = Min(self.wake_at, at);
}

/* ----------------------------------------------------------------
 * Attachment
 * ----------------------------------------------------------------
 */

static void
dispatcher_detach(int code, Datum arg)
{
	/* no transaction is left whose end would release what the session holds */
	LockReleaseAll(DEFAULT_LOCKMETHOD, true);

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (self.db->generation == self.generation && self.db->pid == MyProcPid)
	{
		self.db->pid = 0;
		self.db->state = DATABASE_EXITED;
		self.db->slot_wanted = false;
	}
	LWLockRelease(&engine->lock);
	engine_wake_launcher();
	/* who waits for a look need not wait longer */
	ConditionVariableBroadcast(&self.db->looked);
	/* what was given up for us is for others */
	pool_wake_others();

	/* idle executors of ours leave when they see us gone */
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		if (slot->database_index == self.index && slot->dispatcher == self.generation)
			engine_set_latch(slot->procno, slot->pid);
	}
}

/* False: the launcher gave up on us. */
static bool
dispatcher_attach(int index, uint32 generation)
{
	bool		attached;

	self.index = index;
	self.db = &engine->databases[index];
	self.generation = generation;
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	attached = self.db->state == DATABASE_STARTING && self.db->generation == generation;
	if (attached)
	{
		self.db->pid = MyProcPid;
		self.db->procno = compat_my_procno();
	}
	LWLockRelease(&engine->lock);
	if (attached)
		before_shmem_exit(dispatcher_detach, (Datum) 0);
	return attached;
}

/*
 * Leaves for good: there is nothing to do here.  False: a loop came up while we
 * were about to.
 */
static bool
dispatcher_done(void)
{
	bool		done;
	bool		forget = false;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	LWLockAcquire(&self.db->ring_lock, LW_EXCLUSIVE);
	done = !self.db->reload || self.db->leave || self.db->retire;
	if (done)
	{
		self.db->done = true;
		self.db->wanted_again |= self.db->retire;
		self.db->state = DATABASE_EXITED;
		forget = !self.db->leave && !self.db->retire;
	}
	LWLockRelease(&self.db->ring_lock);
	LWLockRelease(&engine->lock);
	if (forget)
		stats_forget_database(MyDatabaseId);
	return done;
}

/*
 * From here on marks are sent to our ring.  Only what commits earlier is left
 * to be read: so first this, then a snapshot.
 */
static bool
open_ring(void)
{
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	if (self.db->state != DATABASE_STARTING || self.db->generation != self.generation)
	{
		LWLockRelease(&engine->lock);
		return false;
	}
	LWLockAcquire(&self.db->ring_lock, LW_EXCLUSIVE);
	self.db->head = self.db->tail = 0;
	self.db->reload = self.db->rescan = self.db->prepared = self.db->stale = false;
	self.db->leases = self.db->terms = false;
	LWLockRelease(&self.db->ring_lock);
	self.db->complete = false;
	self.db->state = DATABASE_RUNNING;
	self.db->wanted_again = false;
	LWLockRelease(&engine->lock);
	self.reload_owed = self.rescan_owed = true;
	/* one may have been prepared while nobody was here to be told */
	self.prepared = true;
	/* it starts one dispatcher after the other */
	engine_wake_launcher();
	return true;
}

/* ----------------------------------------------------------------
 * Loops
 * ----------------------------------------------------------------
 */

DispatchLoop *
dispatcher_find_loop(const char *loop_name)
{
	dlist_iter	iter;

	dlist_foreach(iter, &self.loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (strcmp(loop->rules.loop_name, loop_name) == 0)
			return loop;
	}
	return NULL;
}

bool
dispatcher_book_lock(const char *loop_name, const char *entity_id)
{
	(void) set_config_option("lock_timeout", BOOK_LOCK_TIMEOUT, PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	return run_lock(loop_name, entity_id);
}

bool
dispatcher_loop_runs(const DispatchLoop *loop, TimestampTz now)
{
	return loop->rules.enabled && !loop->rules.paused && loop->suspended_until <= now &&
		loop->uncounted_until <= now &&
		(!loop_leads(&loop->rules) || (loop->leading && now < loop->expires_at));
}

/* Makes our loops those of the table; in a transaction. */
static void
reload(void *arg)
{
	LoopRules  *rules;
	int			n = loop_read_all(InvalidOid, &rules);
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &self.loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		loop->present = false;
		/* a run that begins from here on has the new options */
		handout_recall(loop);
	}

	for (int i = 0; i < n; i++)
	{
		DispatchLoop *loop = dispatcher_find_loop(rules[i].loop_name);

		if (loop == NULL)
		{
			loop = MemoryContextAllocZero(self.context, sizeof(DispatchLoop));
			loop->due = due_loop(self.due, rules[i].loop_name);
			dlist_push_tail(&self.loops, &loop->link);
			/* marks of it may have come before it */
			self.rescan_owed = true;
		}
		loop->rules = rules[i];
		loop->present = true;
		/* try again; what is still gone is not logged again */
		loop->suspended_until = 0;
		terms_kick(loop);
	}
}

/* Lets go of loops that are no longer there. */
static void
drop_absent_loops(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &self.loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (loop->present)
			continue;
		loop->rules.enabled = false;
		if (loop->leading)
			terms_release(loop);
		/* what is in flight finishes, and remembers nothing */
		if (handout_has_jobs(loop) || lend_has(loop))
			continue;
		due_forget_loop(self.due, loop->due);
		stats_forget(loop->rules.loop_name);
		dlist_delete(&loop->link);
		pfree(loop);
	}
}

/* ----------------------------------------------------------------
 * Marks
 * ----------------------------------------------------------------
 */

/*
 * May marks of the entity be deleted because others stand for them?  Not while
 * forget() of it is open, nor while somebody else runs it: the marks that stay
 * may be in his list and go with it.  An executor that was given the entity may
 * not have its run lock yet, or no longer.
 */
static bool
may_merge(const DueEntity *entity)
{
	const char *loop_name = entity->loop->loop_name;

	if (entity->state == DUE_RUNNING ?
		!run_held_by(loop_name, entity->entity_id, handout_pid(entity)) :
		!run_exclude(loop_name, entity->entity_id))
		return false;
	return lock_take(LOCK_KIND_FORGET, loop_name, entity->entity_id, ExclusiveLock, false);
}

void
dispatcher_add_mark(const char *loop_name, const char *entity_id, const MarkRef *ref, void *arg)
{
	DispatchLoop *loop = dispatcher_find_loop(loop_name);
	TimestampTz now = clock_now();
	DueEntity  *entity;
	MarkRef    *excess;
	int			n;

	self.marks_seen++;
	if (loop == NULL)
		return;					/* of a loop that is gone; rotation drops it */
	entity = due_add(self.due, loop->due, entity_id, ref, now);

	/* what more than one run could answer is answered by the marks that stay */
	n = due_excess(entity, now, &excess);
	if (n > 0)
	{
		if (may_merge(entity) &&
			mark_try_delete(loop_name, entity_id, excess, n) == n)
			due_drop_excess(entity);
		else
			due_keep_excess(entity);
		pfree(excess);
	}
}

static void
forget_if_gone(const char *loop_name, const char *entity_id, const MarkRef *ref, void *snapshot)
{
	DispatchLoop *loop = dispatcher_find_loop(loop_name);
	DueEntity  *entity = loop != NULL ? due_find(self.due, loop->due, entity_id) : NULL;

	if (entity != NULL && !mark_visible(loop_name, entity_id, ref, snapshot))
		due_gone(self.due, entity, ref, clock_now());
}

/*
 * Marks that were deleted before their time.  Their rows are dead, and mostly
 * still there; if not, they are dropped when they are due.  One whose deletion was
 * rolled back is there for everybody.
 */
static void
read_gone(const WakeMark *mark, Snapshot snapshot)
{
	if (mark->offset == InvalidOffsetNumber)
		mark_scan(mark->segment, mark->block, mark->last_block, SnapshotAny, forget_if_gone, snapshot);
	else
		mark_visit_one(mark->segment, mark->block, mark->offset, SnapshotAny, forget_if_gone, snapshot);
}

typedef struct Messages
{
	WakeMark   *marks;
	int			n;
	bool		terms;			/* a term of ours may have been ended */
} Messages;

static void
read_messages(void *arg)
{
	Messages   *messages = arg;
	Snapshot	snapshot = GetActiveSnapshot();

	for (int i = 0; i < messages->n; i++)
	{
		WakeMark   *mark = &messages->marks[i];

		if (mark->gone)
			read_gone(mark, snapshot);
		else if (mark->offset == InvalidOffsetNumber)
			mark_scan(mark->segment, mark->block, mark->last_block, snapshot, dispatcher_add_mark, NULL);
		else
			mark_visit_one(mark->segment, mark->block, mark->offset, snapshot, dispatcher_add_mark, NULL);
	}
}

typedef struct ScanPlace
{
	int			segment;
	BlockNumber block;
} ScanPlace;

static void
scan_blocks(void *arg)
{
	ScanPlace  *place = arg;
	BlockNumber next = place->block + SCAN_BLOCKS;

	mark_scan(place->segment, place->block, next - 1, GetActiveSnapshot(), dispatcher_add_mark, NULL);
	if (next < mark_segment_blocks(place->segment))
		place->block = next;
	else
	{
		place->segment++;
		place->block = 0;
	}
}

/* Between the parts of a long work: what is led is renewed.  False: we are to leave. */
static bool
keep_leading(void)
{
	dlist_iter	iter;

	process_interrupts();
	if (process_leaving())
		proc_exit(1);
	dlist_foreach(iter, &self.loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (loop->leading)
			terms_tend(loop, clock_now());
	}
	return !self.db->leave;
}

/*
 * Reads all segments.  Where many marks wait that takes longer than a term may
 * last: so it is done by parts, each with a newer snapshot.  What comes into a
 * part that was read already comes by a message, too.
 */
static bool
rescan(void)
{
	ScanPlace	place = {0};

	while (!due_clear(self.due, CLEAR_ENTITIES))
	{
		if (!keep_leading())
			return false;
	}
	while (place.segment < MARK_SEGMENTS)
	{
		if (!process_transaction(scan_blocks, &place) || !keep_leading())
			return false;
	}
	return true;
}

/* Is a prepared transaction left that has marks?  It holds its lock on their segment. */
static void
look_for_prepared(void *arg)
{
	static SqlPlan plan = {
		"SELECT 1 FROM pg_catalog.pg_locks l"
		" WHERE l.pid IS NULL AND l.locktype OPERATOR(pg_catalog.=) 'relation'"
		" AND l.database OPERATOR(pg_catalog.=)"
		" (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())"
		" AND l.relation OPERATOR(pg_catalog.=) ANY (ARRAY['reconcile.mark_0', 'reconcile.mark_1', 'reconcile.mark_2',"
		" 'reconcile.mark_3']::pg_catalog.regclass[]::pg_catalog.oid[])", 0, {0}
	};
	SqlScope	scope;

	sql_begin(&scope);
	self.prepared = sql_run(&plan, NULL, NULL) > 0;
	sql_end(&scope);
}

typedef struct InstallCheck
{
	bool		exists;			/* the extension is there */
	bool		ours;			/* and it is the install that we serve */
} InstallCheck;

static void
check_install(void *arg)
{
	InstallCheck *check = arg;
	const Install *install = install_find();
	const char *version = install == NULL ? install_unserved() : NULL;

	if (version != NULL)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg(INSTALL_UNSERVED_MSG, RECONCILE_VERSION, version),
				 errdetail("No loop of database \"%s\" is run.", get_database_name(MyDatabaseId)),
				 errhint(INSTALL_UNSERVED_HINT)));
	check->exists = install != NULL;
	check->ours = check->exists && (self.schema == InvalidOid || install->schema == self.schema);
	if (check->ours)
		self.schema = install->schema;
}

static void
owe_again(bool *owed, TimestampTz now)
{
	*owed = true;
	self.retry_at = clock_add_ms(now, RETRY_MS);
	dispatcher_wake_at(self.retry_at);
}

/* Takes messages and flags out of the ring; what comes from here on is for the next turn. */
static void
empty_ring(Messages *messages, TimestampTz now)
{
	WakeMark   *ring = engine_ring(self.index);

	messages->marks = palloc(sizeof(WakeMark) * MESSAGES_MAX);
	messages->n = 0;
	LWLockAcquire(&self.db->ring_lock, LW_EXCLUSIVE);
	self.reload_owed |= self.db->reload;
	self.rescan_owed |= self.db->rescan;
	self.prepared |= self.db->prepared;
	self.leases_changed |= self.db->leases;
	messages->terms = self.db->terms;
	self.db->reload = self.db->rescan = self.db->prepared = self.db->leases = self.db->terms = false;
	while (self.db->tail < self.db->head && messages->n < MESSAGES_MAX)
	{
		messages->marks[messages->n++] = ring[self.db->tail % engine->ring_size];
		self.db->tail++;
	}
	self.ring_emptied = self.db->tail == self.db->head;
	if (!self.ring_emptied)
		dispatcher_wake_at(now);
	LWLockRelease(&self.db->ring_lock);
}

static void
adopt(void *arg)
{
	loop_adopt(arg);
}

/* What was in flight before a promotion is looked at again. */
static void
adopt_loops(TimestampTz now)
{
	dlist_iter	iter;

	dlist_foreach(iter, &self.loops)
	{
		DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

		if (!loop->present || !loop->rules.resync_owed)
			continue;
		if (process_transaction(adopt, &loop->rules))
			loop->rules.resync_owed = false;
		else
			owe_again(&self.reload_owed, now);
	}
}

/* Reads the loops again.  Leaves if the install that we serve is gone. */
static void
bring_loops_up_to_date(TimestampTz now)
{
	InstallCheck check;

	self.reload_owed = false;
	if (!process_transaction(check_install, &check))
	{
		owe_again(&self.reload_owed, now);
		return;
	}
	if (!check.ours)
	{
		/* if another install is there, whoever starts anew serves that */
		if (!check.exists && dispatcher_done())
			proc_exit(0);
		proc_exit(1);
	}
	if (!process_transaction(reload, NULL))
	{
		owe_again(&self.reload_owed, now);
		return;
	}
	adopt_loops(now);
	if (!dlist_is_empty(&self.loops))
		publish_open();
	LWLockAcquire(&self.db->ring_lock, LW_EXCLUSIVE);
	self.db->stale = self.db->reload;
	LWLockRelease(&self.db->ring_lock);
}

/*
 * A prepared transaction with marks commits in another session, perhaps without
 * a message to us: while one is left all marks are read again now and then.
 */
static void
look_after_prepared(TimestampTz now)
{
	if (!self.prepared)
		return;
	if (now >= self.prepared_at)
	{
		self.prepared_at = clock_add_ms(now, PREPARED_LOOK_MS);
		self.rescan_owed = true;
		if (process_transaction(look_for_prepared, NULL) && !self.prepared)
		{
			self.prepared_at = 0;
			return;
		}
	}
	dispatcher_wake_at(self.prepared_at);
}

/*
 * Takes in what was sent to us.  The flags are cleared before anything is read,
 * so what comes meanwhile is read again.
 */
static void
take_messages(TimestampTz now)
{
	Messages	messages;
	dlist_iter	iter;

	self.caught_up = false;
	empty_ring(&messages, now);
	if (messages.terms)
	{
		dlist_foreach(iter, &self.loops)
			terms_doubt(dlist_container(DispatchLoop, link, iter.cur));
	}
	if (self.retry_at > now)
	{
		/* what could not be read now is read by the rescan that is owed */
		self.rescan_owed |= messages.n > 0;
		dispatcher_wake_at(self.retry_at);
		return;
	}
	if (self.reload_owed)
		bring_loops_up_to_date(now);
	if (!self.reload_owed)
		suspects_book(now);
	look_after_prepared(now);
	if (self.rescan_owed)
	{
		self.rescan_owed = false;
		self.recount_owed = true;
		if (!rescan())
			owe_again(&self.rescan_owed, now);
	}
	else if (messages.n > 0 && !process_transaction(read_messages, &messages))
		owe_again(&self.rescan_owed, now);
	self.caught_up = self.ring_emptied && !self.reload_owed && !self.rescan_owed;

	if (self.leases_changed)
	{
		self.leases_changed = false;
		dlist_foreach(iter, &self.loops)
			terms_kick(dlist_container(DispatchLoop, link, iter.cur));
	}
}

/* ----------------------------------------------------------------
 * Main
 * ----------------------------------------------------------------
 */

/* DDL wants us out of the database, or there is no loop left: all of us leave. */
static void
leave(void)
{
	TimestampTz give_up = clock_add_ms(clock_now(), 10000);
	dlist_iter	iter;

	while (!handout_leave() && clock_now() < give_up)
	{
		process_interrupts();
		if (process_leaving())
			proc_exit(1);
		collect_jobs();
		process_wait(LEAVE_LOOK_MS, "ReconcileDispatcher");
	}
	/* a successor elsewhere need not wait for terms that nobody leads */
	if (!self.db->leave || self.db->retire)
	{
		dlist_foreach(iter, &self.loops)
		{
			DispatchLoop *loop = dlist_container(DispatchLoop, link, iter.cur);

			if (loop->leading)
				terms_release(loop);
		}
	}
	if (dispatcher_done())
		proc_exit(0);
	self.reload_owed = true;
}

static void
turn(void)
{
	TimestampTz now = clock_now();
	dlist_iter	iter;

	publish_turn_begins();
	collect_jobs();
	lend_collect();
	take_messages(now);
	drop_absent_loops();
	if (dlist_is_empty(&self.loops) && !self.reload_owed)
	{
		leave();
		return;
	}

	now = clock_now();
	dlist_foreach(iter, &self.loops)
		terms_tend(dlist_container(DispatchLoop, link, iter.cur), now);
	resync_tend(now);

	now = clock_now();
	due_advance(self.due, now);
	lend_answer(self.caught_up);
	if (!self.db->retire)
		handout_assign();
	else if (handout_retire())
	{
		leave();
		return;
	}
	rotate_tend(now);
	publish_turn_ends(now);
	/* what waits for a loop that does not run now wakes nobody; what runs it will */
	dispatcher_wake_at(due_next(self.due));
}

static void
take_install_lock(void *arg)
{
	*(bool *) arg = false;
	if (install_find() == NULL)
		return;
	lock_tag(&install_tag, LOCK_KIND_INSTALL, "", "");
	*(bool *) arg = LockAcquire(&install_tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* An aborted transaction releases the session's locks too: takes it again. */
static void
keep_install_lock(void)
{
	bool		ours = true;

	if (!compat_lock_held(&install_tag, ExclusiveLock) &&
		(!process_transaction(take_install_lock, &ours) || !ours))
		proc_exit(1);
}

void
reconcile_dispatcher_main(Datum main_arg)
{
	int			index = DatumGetInt32(main_arg);
	InstallCheck check;
	bool		locked = false;

	process_setup();
	if (!dispatcher_attach(index, process_generation()))
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(self.db->database, InvalidOid, 0);
	process_settings();
	/* no open transaction of a user may hold us up: what failed is tried again */
	SetConfigOption("lock_timeout", "1s", PGC_SUSET, PGC_S_OVERRIDE);
	/* grants are made durable by themselves; the rest may be lost with a crash */
	SetConfigOption("synchronous_commit", "off", PGC_SUSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_IDLE, NULL);

	self.context = AllocSetContextCreate(TopMemoryContext, "reconcile dispatcher", ALLOCSET_DEFAULT_SIZES);
	self.turn = AllocSetContextCreate(self.context, "reconcile turn", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(self.turn);
	dlist_init(&self.loops);
	self.due = due_create(self.context);
	handout_init();
	lend_dispatcher_init();
	rotate_init();

	if (!open_ring())
		proc_exit(0);
	if (!process_transaction(check_install, &check))
		proc_exit(1);
	if (!check.exists)
	{
		dispatcher_done();
		proc_exit(0);
	}
	/* another one that still holds it is about to end; the launcher tries again */
	if (!process_transaction(take_install_lock, &locked) || !locked)
		proc_exit(1);
	strlcpy(self.holder_id, lease_mint_holder(), sizeof(self.holder_id));

	for (;;)
	{
		long		timeout_ms = -1;

		process_interrupts();
		if (process_leaving())
			proc_exit(1);
		MemoryContextReset(self.turn);
		self.wake_at = DT_NOEND;
		keep_install_lock();
		if (self.db->leave)
			leave();
		else
			turn();
		(void) pgstat_report_stat(true);

		if (self.wake_at != DT_NOEND)
		{
			TimestampTz now = clock_now();

			timeout_ms = self.wake_at <= now ? 0 :
				(long) Min((self.wake_at - now + 999) / 1000, PG_INT32_MAX);
		}
		process_wait(timeout_ms, "ReconcileDispatcher");
	}
}

/*
 * pool.c
 *		Executor slots: who gets one, and who gives one up.
 *
 * The slots are shared by all databases of the server and, in a database, by
 * the roles that own loops: a pool is the executors of one role in one database.
 * Where none is free, the pool that has most above its share gives one up, after
 * its run, for the one that asked; where there are more pools than slots they
 * take turns.
 *
 * A run may be long.  So that a database need not wait for those of another, one
 * slot is kept for each that has a dispatcher and no executor, up to half of all.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "core/duration.h"
#include "engine/dispatcher.h"
#include "engine/process.h"

#define RETRY_MIN_MS		1000	/* after a role could not connect, or no worker was free */
#define RETRY_MAX_MS		60000
#define DISPATCHER_FIRST_MS	5000	/* an executor does not take the process that a dispatcher was refused */
#define TURN_MS				1000	/* an executor keeps its slot that long before another pool's turn */

/* Roles whose executors could not connect. */
typedef struct RoleTrouble
{
	Oid			role;
	TimestampTz until;
	int64		retry_ms;
} RoleTrouble;

static RoleTrouble troubles[32];

/* No worker process was to be had. */
static TimestampTz no_worker_until = 0;
static int64 no_worker_ms = 0;

/* In this turn no slot was free for one of our pools. */
static bool waiting = false;

bool
pool_is_mine(const ExecSlot *slot)
{
	return slot->state != EXEC_FREE && slot->database_index == dispatcher->index &&
		slot->dispatcher == dispatcher->generation;
}

bool
pool_takes_jobs(const ExecSlot *slot)
{
	return pool_is_mine(slot) && slot->state == EXEC_ATTACHED && !slot->leave;
}

int
pool_starting(Oid role)
{
	int			n = 0;

	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		n += pool_is_mine(slot) && slot->role == role && slot->state == EXEC_STARTING;
	}
	return n;
}

/* ----------------------------------------------------------------
 * Roles that cannot connect
 * ----------------------------------------------------------------
 */

static void
role_trouble(Oid role, TimestampTz now)
{
	RoleTrouble *trouble = &troubles[0];

	for (int i = 0; i < lengthof(troubles); i++)
	{
		if (troubles[i].role == role)
		{
			trouble = &troubles[i];
			break;
		}
		if (troubles[i].until < trouble->until)
			trouble = &troubles[i];
	}
	/* another role, or trouble of long ago */
	if (trouble->role != role || now >= clock_add_ms(trouble->until, RETRY_MAX_MS))
		trouble->retry_ms = 0;
	trouble->role = role;
	trouble->retry_ms = trouble->retry_ms == 0 ? RETRY_MIN_MS : Min(trouble->retry_ms * 2, RETRY_MAX_MS);
	trouble->until = clock_add_ms(now, trouble->retry_ms);
}

static bool
role_in_trouble(Oid role, TimestampTz now)
{
	for (int i = 0; i < lengthof(troubles); i++)
	{
		if (troubles[i].role == role && troubles[i].until > now)
		{
			dispatcher_wake_at(troubles[i].until);
			return true;
		}
	}
	return false;
}

typedef struct RoleCheck
{
	Oid			role;
	const char *problem;		/* NULL: it can connect */
} RoleCheck;

static void
check_role(void *arg)
{
	RoleCheck  *check = arg;

	check->problem = loop_owner_problem(check->role);
}

/*
 * An executor that cannot connect would only say so in the log, each time.  This
 * takes a transaction: it is asked only where a slot is to be had.
 */
static bool
role_can_connect(Oid role, TimestampTz now)
{
	static Oid	logged = InvalidOid;
	RoleCheck	check = {role};

	if (process_transaction(check_role, &check) && check.problem == NULL)
		return true;
	role_trouble(role, now);
	(void) role_in_trouble(role, now);
	if (check.problem != NULL && logged != role)
		ereport(LOG,
				(errmsg("a loop of the role with OID %u cannot run: %s", role, check.problem),
				 errhint("Put that right, or change the loop with reconcile.alter_loop().")));
	logged = role;
	return false;
}

/* ----------------------------------------------------------------
 * Making room
 * ----------------------------------------------------------------
 */

static bool
is_idle(const ExecSlot *slot)
{
	for (int j = 0; j < EXEC_JOBS; j++)
	{
		if (slot->jobs[j].state != JOB_EMPTY)
			return false;
	}
	return slot->state == EXEC_ATTACHED;
}

/* Executors of a database, or of one of its roles (InvalidOid: of all). */
static int
count(Oid database, Oid role)
{
	int			n = 0;

	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		n += slot->state != EXEC_FREE && slot->database == database &&
			(role == InvalidOid || slot->role == role);
	}
	return n;
}

/*
 * Of a slot's pool against ours: does it have to give one up?  Ours is below
 * what it would have after that, or has none at all.
 */
static bool
is_above(int theirs, int ours)
{
	return theirs > ours + 1 || ours == 0;
}

/* Since when its executor runs what it runs: a hint at how long it still will. */
static TimestampTz
runs_since(const ExecSlot *slot, TimestampTz now)
{
	for (int j = 0; j < EXEC_JOBS; j++)
	{
		if (slot->jobs[j].state == JOB_RUNNING)
			return slot->jobs[j].started_at;
	}
	return now;
}

/*
 * The slot that is to be given up for the role, or NULL: none, or one is on its
 * way to us.  Of several the one whose run began last, as it will most likely end
 * before one that goes on for long.
 */
static ExecSlot *
find_victim(Oid role, TimestampTz now)
{
	Oid			database = dispatcher->db->database;
	int			in_database = count(database, InvalidOid);
	int			in_role = count(database, role);
	ExecSlot   *victim = NULL;
	int			most = 0;
	TimestampTz since = 0;		/* of the victim */

	for (int i = 0; i < engine->nslots; i++)
	{
		if (engine_slot(i)->state != EXEC_FREE && engine_slot(i)->leave &&
			engine_slot(i)->promised == dispatcher->index + 1)
			return NULL;
	}
	for (int i = 0; i < engine->nslots; i++)
	{
		ExecSlot   *slot = engine_slot(i);
		TimestampTz turn_ends = clock_add_ms(slot->registered_at, TURN_MS);
		int			theirs;

		if (slot->state != EXEC_ATTACHED || slot->leave || (slot->database == database && slot->role == role))
			continue;
		/* one of ours that has nothing to do is given up first, and at once */
		if (slot->database == database && is_idle(slot))
			return slot;
		theirs = slot->database == database ? count(database, slot->role) : count(slot->database, InvalidOid);
		if (!is_above(theirs, slot->database == database ? in_role : in_database))
			continue;
		if (turn_ends > now)
			dispatcher_wake_at(turn_ends);
		else if (theirs > most || (theirs == most && runs_since(slot, now) > since))
		{
			victim = slot;
			most = theirs;
			since = runs_since(slot, now);
		}
	}
	return victim;
}

static void
make_room(Oid role, TimestampTz now)
{
	ExecSlot   *victim = find_victim(role, now);

	if (victim == NULL || !role_can_connect(role, now))
		return;
	SpinLockAcquire(&victim->mutex);
	victim->leave = true;
	victim->promised = dispatcher->index + 1;
	SpinLockRelease(&victim->mutex);
	engine_set_latch(victim->procno, victim->pid);
}

/* ----------------------------------------------------------------
 * Slots
 * ----------------------------------------------------------------
 */

/* Was the slot given up for another database, which still waits for one? */
static bool
is_promised(const ExecSlot *slot)
{
	const EngineDatabase *db;

	if (slot->promised == 0 || slot->promised == dispatcher->index + 1)
		return false;
	db = &engine->databases[slot->promised - 1];
	return db->state == DATABASE_RUNNING && db->slot_wanted;
}

/*
 * May we take a free slot, or are those that are left kept for others?  The caller
 * holds engine->lock.
 */
static bool
may_take(void)
{
	int			kept = 0;
	int			nfree = 0;

	for (int i = 0; i < ENGINE_DATABASES; i++)
		kept += i != dispatcher->index && engine->databases[i].state == DATABASE_RUNNING &&
			count(engine->databases[i].database, InvalidOid) == 0;
	for (int i = 0; i < engine->nslots; i++)
		nfree += engine_slot(i)->state == EXEC_FREE;
	return count(dispatcher->db->database, InvalidOid) == 0 || nfree > Min(kept, engine->nslots / 2);
}

/* Takes a free slot for an executor of the role, or -1. */
static int
slot_take(Oid role, TimestampTz now)
{
	int			taken = -1;
	bool		may;

	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	may = may_take();
	for (int i = 0; may && i < engine->nslots && taken < 0; i++)
	{
		ExecSlot   *slot = engine_slot(i);

		SpinLockAcquire(&slot->mutex);
		if (slot->state == EXEC_FREE && !is_promised(slot))
		{
			slot->state = EXEC_STARTING;
			slot->promised = 0;
			slot->generation++;
			slot->database = dispatcher->db->database;
			slot->database_index = dispatcher->index;
			slot->dispatcher = dispatcher->generation;
			slot->role = role;
			slot->pid = 0;
			slot->leave = false;
			slot->attached = false;
			slot->registered_at = now;
			for (int j = 0; j < EXEC_JOBS; j++)
				slot->jobs[j].state = JOB_EMPTY;
			taken = i;
		}
		SpinLockRelease(&slot->mutex);
	}
	LWLockRelease(&engine->lock);
	return taken;
}

void
pool_wake_others(void)
{
	for (int i = 0; i < ENGINE_DATABASES; i++)
	{
		if (i != dispatcher->index && engine->databases[i].slot_wanted)
			engine_wake_dispatcher(i);
	}
}

static void
slot_give(ExecSlot *slot)
{
	SpinLockAcquire(&slot->mutex);
	slot->state = EXEC_FREE;
	SpinLockRelease(&slot->mutex);
	pool_wake_others();
}

void
pool_free(int i, TimestampTz now)
{
	ExecSlot   *slot = engine_slot(i);

	if (!slot->attached)
		role_trouble(slot->role, now);
	slot_give(slot);
}

/* No worker process is to be had: tries again later. */
static void
refused(TimestampTz now)
{
	LWLockAcquire(&engine->lock, LW_EXCLUSIVE);
	engine->refusals++;
	engine->executor_refused_at = now;
	LWLockRelease(&engine->lock);
	engine_wake_launcher();
	engine_warn_no_worker("an executor");
	no_worker_ms = no_worker_ms == 0 ? RETRY_MIN_MS : Min(no_worker_ms * 2, 8 * RETRY_MIN_MS);
	no_worker_until = clock_add_ms(now, no_worker_ms);
	dispatcher_wake_at(no_worker_until);
}

bool
pool_start(Oid role, TimestampTz now)
{
	TimestampTz dispatcher_first = engine->dispatcher_refused_at;
	int			i;

	if (role_in_trouble(role, now))
		return false;
	if (dispatcher_first != 0)
		no_worker_until = Max(no_worker_until, clock_add_ms(dispatcher_first, DISPATCHER_FIRST_MS));
	if (no_worker_until > now)
	{
		dispatcher_wake_at(no_worker_until);
		return false;
	}

	/* said before we look, so that whoever frees one after our look tells us */
	dispatcher->db->slot_wanted = true;
	i = slot_take(role, now);
	if (i >= 0 && !role_can_connect(role, now))
	{
		slot_give(engine_slot(i));
		return false;
	}
	if (i < 0)
	{
		waiting = true;
		make_room(role, now);
		/* whose turn it is changes without a word to us */
		dispatcher_wake_at(clock_add_ms(now, TURN_MS));
		return false;
	}
	if (process_register("reconcile executor", "reconcile_executor_main",
						 dispatcher->db->database, i, engine_slot(i)->generation))
	{
		no_worker_ms = 0;
		engine->refusals = 0;
		return true;
	}

	slot_give(engine_slot(i));
	refused(now);
	return false;
}

void
pool_turn_begins(void)
{
	waiting = false;
}

void
pool_turn_ends(void)
{
	if (waiting || !dispatcher->db->slot_wanted)
		return;
	dispatcher->db->slot_wanted = false;
	/* one that was given up for us is for whoever else waits */
	pool_wake_others();
}

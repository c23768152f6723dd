/*
 * lend.c
 *		Lending, the session's side; and the shared memory of both.
 *
 * What a transaction has been lent goes back at its end, whatever the end is:
 * that a process which dies aborts its transaction is all that this needs.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "core/compat.h"
#include "core/duration.h"
#include "engine/lend_shmem.h"
#include "engine/shmem.h"

#define PATIENCE_MS		2000	/* for the dispatcher; then the tables are searched */
#define PREPARED_MS		1000	/* a prepared transaction has the run locks: look again after that */

LendShared *lend_shared = NULL;

/* What this transaction has been lent. */
typedef struct Borrowed
{
	int			lent;
	SubTransactionId subxact;	/* that borrowed it */
	bool		returned;
} Borrowed;

static Borrowed *borrowed = NULL;	/* in TopMemoryContext */
static int	nborrowed = 0;
static int	borrowed_size = 0;

/* ----------------------------------------------------------------
 * Shared memory
 * ----------------------------------------------------------------
 */

Size
lend_shmem_size(void)
{
	return sizeof(LendShared);
}

void
lend_shmem_attach(void)
{
	bool		found;

	lend_shared = ShmemInitStruct("reconcile lend", sizeof(LendShared), &found);
	if (found)
		return;
	ConditionVariableInit(&lend_shared->request_free);
	SpinLockInit(&lend_shared->mutex);
	lend_shared->nfree = LEND_LENT;
	for (int i = 0; i < LEND_LENT; i++)
	{
		lend_shared->free[i] = LEND_LENT - 1 - i;
		pg_atomic_init_u32(&lend_shared->lent[i].state, LENT_FREE);
	}
	for (int i = 0; i < ENGINE_DATABASES; i++)
		pg_atomic_init_u32(&lend_shared->ended[i], 0);
	for (int i = 0; i < LEND_REQUESTS; i++)
	{
		SpinLockInit(&lend_shared->requests[i].mutex);
		lend_shared->requests[i].state = REQUEST_FREE;
	}
}

/* ----------------------------------------------------------------
 * Giving back
 * ----------------------------------------------------------------
 */

/* The dispatcher owns it again once the state has changed. */
void
lend_end(int index, LentState state, TimestampTz until)
{
	Lent	   *lent = &lend_shared->lent[index];
	int			database_index = lent->database_index;

	lent->until = until;
	pg_write_barrier();
	pg_atomic_write_u32(&lent->state, state);
	pg_atomic_fetch_add_u32(&lend_shared->ended[database_index], 1);
	engine_wake_dispatcher(database_index);
}

void
lend_end_answer(LendRequest *done)
{
	char	   *place = (char *) done->reply;

	for (int i = 0; i < done->n; i++)
	{
		lend_end(((LendItem *) place)->lent, LENT_RETURNED, 0);
		place += ((LendItem *) place)->size;
	}
	done->n = 0;
}

static void
return_lent(int index, TimestampTz at)
{
	for (int i = nborrowed - 1; i >= 0; i--)
	{
		if (borrowed[i].lent != index || borrowed[i].returned)
			continue;
		borrowed[i].returned = true;
		lend_end(index, LENT_RETURNED, at);
		return;
	}
}

static void
lend_xact_callback(XactEvent event, void *arg)
{
	LentState	state;
	TimestampTz until = 0;

	switch (event)
	{
		case XACT_EVENT_COMMIT:
			state = LENT_ANSWERED;
			break;
		case XACT_EVENT_PREPARE:
			state = LENT_RETURNED;
			until = clock_add_ms(clock_now(), PREPARED_MS);
			break;
		case XACT_EVENT_ABORT:
			state = LENT_RETURNED;
			break;
		default:
			return;
	}
	for (int i = 0; i < nborrowed; i++)
	{
		if (!borrowed[i].returned)
			lend_end(borrowed[i].lent, state, until);
	}
	nborrowed = 0;
}

static void
lend_subxact_callback(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB)
		return;
	for (int i = nborrowed - 1; i >= 0 && borrowed[i].subxact >= mine; i--)
	{
		if (borrowed[i].subxact != mine)
			continue;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			borrowed[i].subxact = parent;
		else
			return_lent(borrowed[i].lent, 0);
	}
}

/* Makes room for n more, before anything is lent. */
static void
reserve(int n)
{
	if (nborrowed + n <= borrowed_size)
		return;
	borrowed_size = Max(nborrowed + n, borrowed_size * 2);
	borrowed = borrowed == NULL ? MemoryContextAlloc(TopMemoryContext, sizeof(Borrowed) * borrowed_size) :
		repalloc(borrowed, sizeof(Borrowed) * borrowed_size);
}

/* ----------------------------------------------------------------
 * Asking
 * ----------------------------------------------------------------
 */

static LendRequest *request = NULL; /* ours, while we ask */

/*
 * Lets go of our request.  What an answer that we no longer want has lent goes
 * back at once.
 */
static void
drop_request(void)
{
	LendRequest *mine = request;
	RequestState state;

	SpinLockAcquire(&mine->mutex);
	state = mine->state;
	if (state == REQUEST_FILLING)
		mine->abandoned = true; /* the dispatcher frees it */
	else if (state != REQUEST_ANSWERED)
		mine->state = REQUEST_FREE;
	SpinLockRelease(&mine->mutex);
	if (state == REQUEST_ANSWERED)
	{
		lend_end_answer(mine);
		SpinLockAcquire(&mine->mutex);
		mine->state = REQUEST_FREE;
		SpinLockRelease(&mine->mutex);
	}
	request = NULL;
	ConditionVariableSignal(&lend_shared->request_free);
}

static void
drop_request_at_exit(int code, Datum arg)
{
	if (request != NULL)
		drop_request();
}

static bool
take_request(void)
{
	for (int i = 0; i < LEND_REQUESTS; i++)
	{
		LendRequest *candidate = &lend_shared->requests[i];

		SpinLockAcquire(&candidate->mutex);
		if (candidate->state == REQUEST_FREE)
		{
			candidate->state = REQUEST_TAKEN;
			request = candidate;
		}
		SpinLockRelease(&candidate->mutex);
		if (request != NULL)
			return true;
	}
	return false;
}

/* Takes a request, waiting for others to let go of theirs; false: not in time. */
static bool
wait_for_request(TimestampTz give_up, uint32 event)
{
	bool		taken = take_request();

	while (!taken && clock_now() < give_up)
	{
		(void) ConditionVariableTimedSleep(&lend_shared->request_free, 100, event);
		taken = take_request();
	}
	ConditionVariableCancelSleep();
	return taken;
}

/* Asks, and waits for the answer; false: none came. */
static bool
ask(int database_index, const char *loop_name, int wanted, TimestampTz give_up, uint32 event)
{
	bool		answered = false;

	request->database = MyDatabaseId;
	request->pid = MyProcPid;
	request->procno = compat_my_procno();
	strlcpy(request->loop_name, loop_name, sizeof(request->loop_name));
	request->wanted = wanted;
	request->n = 0;
	request->used = 0;
	request->abandoned = false;
	SpinLockAcquire(&request->mutex);
	request->number++;
	request->state = REQUEST_ASKED;
	SpinLockRelease(&request->mutex);
	engine_wake_dispatcher(database_index);

	for (;;)
	{
		TimestampTz now;

		SpinLockAcquire(&request->mutex);
		answered = request->state == REQUEST_ANSWERED;
		SpinLockRelease(&request->mutex);
		now = clock_now();
		if (answered || now >= give_up)
			return answered;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (give_up - now) / 1000 + 1, event);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* What we were lent is ours until the transaction ends. */
static ClaimCandidate *
take_answer(void)
{
	ClaimCandidate *candidates = palloc(sizeof(ClaimCandidate) * Max(request->n, 1));
	char	   *copy = palloc(request->used);
	char	   *place = copy;

	reserve(request->n);
	memcpy(copy, request->reply, request->used);
	for (int i = 0; i < request->n; i++)
	{
		LendItem   *item = (LendItem *) place;

		candidates[i].lent = item->lent;
		candidates[i].marks = item->marks;
		candidates[i].nmarks = item->nmarks;
		candidates[i].entity_id = (char *) &item->marks[item->nmarks];
		borrowed[nborrowed].lent = item->lent;
		borrowed[nborrowed].subxact = GetCurrentSubTransactionId();
		borrowed[nborrowed].returned = false;
		nborrowed++;
		place += item->size;
	}
	/* nothing of it is to be given back with the request */
	request->n = 0;
	return candidates;
}

static int
lend(const char *loop_name, int wanted, ClaimCandidate **candidates, TimestampTz *next_due)
{
	static uint32 event = 0;
	static bool registered = false;
	int			database_index = engine_my_database();
	TimestampTz give_up = clock_add_ms(clock_now(), PATIENCE_MS);
	volatile int n = -1;

	if (database_index < 0 || engine->databases[database_index].state != DATABASE_RUNNING)
		return -1;
	if (event == 0)
		event = compat_wait_event("ReconcileClaim");
	if (!registered)
	{
		before_shmem_exit(drop_request_at_exit, (Datum) 0);
		registered = true;
	}
	if (!wait_for_request(give_up, event))
		return -1;
	PG_TRY();
	{
		if (ask(database_index, loop_name, wanted, give_up, event))
		{
			n = request->n;
			*next_due = request->next_due;
			*candidates = take_answer();
		}
	}
	PG_FINALLY();
	{
		drop_request();
	}
	PG_END_TRY();
	return n;
}

void
lend_init(void)
{
	/* before wake_init(): what a claim has marked is known when the entity goes back */
	RegisterXactCallback(lend_xact_callback, NULL);
	RegisterSubXactCallback(lend_subxact_callback, NULL);
	claim_lend_hook = lend;
	claim_return_hook = return_lent;
}

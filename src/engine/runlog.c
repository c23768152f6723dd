/*
 * runlog.c
 *		The last runs of a database: a ring in a dynamic shared memory segment.
 *
 * One lock, held for the copy of one entry by who writes and of a few by who
 * reads.  What is overwritten while somebody reads he does not get.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/dsm.h"

#include "engine/runlog.h"
#include "engine/shmem.h"

#define READ_AT_ONCE	100

typedef struct RunLog
{
	LWLock		lock;
	Oid			database;		/* whose runs these are */
	uint64		next;			/* number of the next entry */
	RunEntry	entries[RUNLOG_ENTRIES];
} RunLog;

/* What this process has mapped. */
static dsm_handle mapped_handle = DSM_HANDLE_INVALID;
static RunLog *mapped = NULL;

static RunLog *
map(dsm_segment *segment)
{
	/* until the process ends: outside of any transaction, too */
	dsm_pin_mapping(segment);
	mapped_handle = dsm_segment_handle(segment);
	mapped = dsm_segment_address(segment);
	return mapped;
}

/* The segment of the entry, mapped; NULL: it has none. */
static RunLog *
find(int database_index)
{
	dsm_handle	handle = engine->databases[database_index].runlog;
	dsm_segment *segment;

	if (handle == DSM_HANDLE_INVALID)
		return NULL;
	if (handle == mapped_handle)
		return mapped;
	segment = dsm_find_mapping(handle);
	if (segment == NULL)
		segment = dsm_attach(handle);
	return segment != NULL ? map(segment) : NULL;
}

void
runlog_open(int database_index)
{
	RunLog	   *log = find(database_index);

	if (log == NULL)
	{
		dsm_segment *segment = dsm_create(sizeof(RunLog), 0);

		log = dsm_segment_address(segment);
		LWLockInitialize(&log->lock, engine->lock.tranche);
		log->database = InvalidOid;
		dsm_pin_segment(segment);
		map(segment);
		/* only now may others find it */
		pg_write_barrier();
		engine->databases[database_index].runlog = mapped_handle;
	}
	LWLockAcquire(&log->lock, LW_EXCLUSIVE);
	if (log->database != MyDatabaseId)
	{
		log->database = MyDatabaseId;
		log->next = 0;
	}
	LWLockRelease(&log->lock);
}

/* That of this database, or NULL. */
static RunLog *
mine(void)
{
	int			index = engine_my_database();

	return index >= 0 ? find(index) : NULL;
}

void
runlog_expect(void)
{
	(void) mine();
}

void
runlog_add(const RunObserved *run)
{
	int			index = engine_my_database();
	RunLog	   *log = mapped;

	/* at commit nothing may be mapped any more: see runlog_expect() */
	if (log == NULL || index < 0 || engine->databases[index].runlog != mapped_handle)
		return;
	LWLockAcquire(&log->lock, LW_EXCLUSIVE);
	if (log->database == MyDatabaseId)
	{
		RunEntry   *entry = &log->entries[log->next++ % RUNLOG_ENTRIES];

		strlcpy(entry->loop_name, run->loop_name, sizeof(entry->loop_name));
		strlcpy(entry->entity_id, run->entity_id, sizeof(entry->entity_id));
		entry->started_at = run->started_at;
		entry->queue_us = run->ready_at != 0 ? Max(run->started_at - run->ready_at, 0) : -1;
		entry->run_us = Max(run->ended_at - run->started_at, 0);
		entry->epoch = run->epoch;
		entry->pid = run->pid;
		entry->attempt = run->attempt;
		entry->sqlstate = run->sqlstate;
		entry->result = run->result;
	}
	LWLockRelease(&log->lock);
}

/* Copies up to READ_AT_ONCE entries from number *next on, which it advances; 0: there are no more. */
static int
read_some(RunLog *log, uint64 *next, uint64 end, RunEntry *copies)
{
	int			n = 0;

	LWLockAcquire(&log->lock, LW_SHARED);
	if (log->database != MyDatabaseId)
		end = 0;
	if (log->next > RUNLOG_ENTRIES)
		*next = Max(*next, log->next - RUNLOG_ENTRIES);
	while (*next < end && n < READ_AT_ONCE)
		copies[n++] = log->entries[(*next)++ % RUNLOG_ENTRIES];
	LWLockRelease(&log->lock);
	return n;
}

void
runlog_read(void (*visit) (const RunEntry *entry, void *arg), void *arg)
{
	RunLog	   *log = mine();
	RunEntry   *copies;
	uint64		next = 0;
	uint64		end;
	int			n;

	if (log == NULL)
		return;
	LWLockAcquire(&log->lock, LW_SHARED);
	end = log->next;
	LWLockRelease(&log->lock);
	copies = palloc(sizeof(RunEntry) * READ_AT_ONCE);
	while ((n = read_some(log, &next, end, copies)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
			visit(&copies[i], arg);
	}
	pfree(copies);
}

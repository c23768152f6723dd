/*
 * stats.c
 *		Counts runs and events of each reconciler id, in shared memory.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "engine/shmem.h"
#include "engine/stats.h"

const double stats_bounds[STATS_BUCKETS - 1] = {
	0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60
};

static void
times_init(StatsTimes *times)
{
	for (int i = 0; i < STATS_BUCKETS; i++)
		pg_atomic_init_u64(&times->buckets[i], 0);
	pg_atomic_init_u64(&times->sum_us, 0);
}

static void
slot_init(LoopStats *slot)
{
	for (int i = 0; i < STATS_RESULTS; i++)
		pg_atomic_init_u64(&slot->results[i], 0);
	for (int i = 0; i < TALLIES; i++)
	{
		pg_atomic_init_u64(&slot->tallies[i], 0);
		pg_atomic_init_u64(&slot->logged_at[i], 0);
	}
	times_init(&slot->run);
	times_init(&slot->queue);
	pg_atomic_init_u32(&slot->in_flight, 0);
	pg_atomic_init_u64(&slot->dead, 0);
	pg_atomic_init_u32(&slot->dead_known, 0);
	SpinLockInit(&slot->mutex);
	memset(&slot->gauges, 0, sizeof(slot->gauges));
}

void
stats_init(StatsTable *table, int tranche)
{
	LWLockInitialize(&table->lock, tranche);
	pg_atomic_init_u64(&table->dropped, 0);
}

/* ----------------------------------------------------------------
 * Slots
 * ----------------------------------------------------------------
 */

/* Never 0, which marks a free slot. */
static uint32
id_hash(const char *reconciler_id)
{
	uint32		hash = hash_bytes((const unsigned char *) reconciler_id, strlen(reconciler_id));

	return hash_combine(hash, murmurhash32(MyDatabaseId)) | 1;
}

static LoopStats *
find(uint32 hash, const char *reconciler_id)
{
	StatsTable *table = &engine->stats;

	for (int i = 0; i < table->used; i++)
	{
		if (table->hashes[i] == hash && table->slots[i].database == MyDatabaseId &&
			strcmp(table->slots[i].reconciler_id, reconciler_id) == 0)
			return &table->slots[i];
	}
	return NULL;
}

static LoopStats *
make(uint32 hash, const char *reconciler_id)
{
	StatsTable *table = &engine->stats;

	for (int i = 0; i < STATS_SLOTS; i++)
	{
		if (table->hashes[i] != 0)
			continue;
		slot_init(&table->slots[i]);
		table->slots[i].database = MyDatabaseId;
		strlcpy(table->slots[i].reconciler_id, reconciler_id, sizeof(table->slots[i].reconciler_id));
		table->hashes[i] = hash;
		table->used = Max(table->used, i + 1);
		return &table->slots[i];
	}
	pg_atomic_fetch_add_u64(&table->dropped, 1);
	return NULL;
}

/* The slot, made if there is none; NULL when all are taken.  The caller calls done(). */
static LoopStats *
begin(const char *reconciler_id)
{
	uint32		hash = id_hash(reconciler_id);
	LoopStats  *slot;

	LWLockAcquire(&engine->stats.lock, LW_SHARED);
	slot = find(hash, reconciler_id);
	if (slot != NULL)
		return slot;
	LWLockRelease(&engine->stats.lock);
	LWLockAcquire(&engine->stats.lock, LW_EXCLUSIVE);
	slot = find(hash, reconciler_id);
	return slot != NULL ? slot : make(hash, reconciler_id);
}

/*
 * The slot, or NULL: for what an uncommitted or dropped loop may tell, of which
 * nothing may stay.  The caller calls done().
 */
static LoopStats *
begin_known(const char *reconciler_id)
{
	LWLockAcquire(&engine->stats.lock, LW_SHARED);
	return find(id_hash(reconciler_id), reconciler_id);
}

static void
done(void)
{
	LWLockRelease(&engine->stats.lock);
}

static void
forget_where(Oid database, const char *reconciler_id)
{
	StatsTable *table = &engine->stats;

	LWLockAcquire(&table->lock, LW_EXCLUSIVE);
	for (int i = 0; i < table->used; i++)
	{
		if (table->slots[i].database == database &&
			(reconciler_id == NULL || strcmp(table->slots[i].reconciler_id, reconciler_id) == 0))
			table->hashes[i] = 0;
	}
	LWLockRelease(&table->lock);
}

void
stats_forget(const char *reconciler_id)
{
	forget_where(MyDatabaseId, reconciler_id);
}

void
stats_forget_database(Oid database)
{
	forget_where(database, NULL);
	command_stats_forget_database(database);
}

/* ----------------------------------------------------------------
 * Counting
 * ----------------------------------------------------------------
 */

static void
times_add(StatsTimes *times, int64 us)
{
	int			bucket = 0;

	us = Max(us, 0);
	while (bucket < STATS_BUCKETS - 1 && us > stats_bounds[bucket] * 1000000.0)
		bucket++;
	pg_atomic_fetch_add_u64(&times->buckets[bucket], 1);
	pg_atomic_fetch_add_u64(&times->sum_us, us);
}

void
stats_command(int action, int outcome)
{
	if (!command_stats_count(action, outcome))
		pg_atomic_fetch_add_u64(&engine->stats.dropped, 1);
}

void
stats_run(const RunObserved *run)
{
	LoopStats  *slot = begin(run->loop_name);

	if (slot != NULL)
	{
		pg_atomic_fetch_add_u64(&slot->results[run->result], 1);
		times_add(&slot->run, run->ended_at - run->started_at);
		if (run->ready_at != 0)
			times_add(&slot->queue, run->started_at - run->ready_at);
	}
	done();
}

void
stats_in_flight(const char *loop_name, int change)
{
	LoopStats  *slot = begin_known(loop_name);

	/* the slot may have been made since the run began */
	if (slot != NULL && (change > 0 || pg_atomic_read_u32(&slot->in_flight) > 0))
		pg_atomic_fetch_add_u32(&slot->in_flight, change);
	done();
}

void
stats_skipped(const char *loop_name, int64 n)
{
	LoopStats  *slot = begin(loop_name);

	if (slot != NULL)
		pg_atomic_fetch_add_u64(&slot->results[STATS_SKIPPED], n);
	done();
}

void
stats_tally(const char *reconciler_id, Tally what)
{
	LoopStats  *slot = begin(reconciler_id);

	if (slot != NULL)
		pg_atomic_fetch_add_u64(&slot->tallies[what], 1);
	done();
}

bool
stats_log_due(const char *reconciler_id, Tally what, TimestampTz now)
{
	LoopStats  *slot = begin(reconciler_id);
	bool		due = true;

	if (slot != NULL)
	{
		uint64		last = pg_atomic_read_u64(&slot->logged_at[what]);

		due = now >= (TimestampTz) last + TALLY_LOG_EVERY_US &&
			pg_atomic_compare_exchange_u64(&slot->logged_at[what], &last, (uint64) now);
	}
	done();
	return due;
}

void
stats_gauges(const char *loop_name, const LoopGauges *gauges)
{
	LoopStats  *slot = begin(loop_name);

	if (slot != NULL)
	{
		SpinLockAcquire(&slot->mutex);
		slot->gauges = *gauges;
		SpinLockRelease(&slot->mutex);
	}
	done();
}

void
stats_dead_changed(const char *loop_name, int64 change)
{
	LoopStats  *slot = begin_known(loop_name);

	/* where there is none the number is not known: a count will find it */
	if (slot != NULL)
		pg_atomic_fetch_add_u64(&slot->dead, change);
	done();
}

void
stats_dead_begin(void)
{
	StatsTable *table = &engine->stats;

	LWLockAcquire(&table->lock, LW_SHARED);
	for (int i = 0; i < table->used; i++)
	{
		if (table->hashes[i] == 0 || table->slots[i].database != MyDatabaseId)
			continue;
		pg_atomic_write_u64(&table->slots[i].dead, 0);
		pg_atomic_write_u32(&table->slots[i].dead_known, 1);
	}
	LWLockRelease(&table->lock);
}

void
stats_dead_found(const char *loop_name, int64 n)
{
	LoopStats  *slot = begin(loop_name);

	if (slot != NULL)
	{
		pg_atomic_write_u64(&slot->dead, n);
		pg_atomic_write_u32(&slot->dead_known, 1);
	}
	done();
}

/* ----------------------------------------------------------------
 * Reading
 * ----------------------------------------------------------------
 */

static void
times_read(StatsTimes *times, TimesSample *sample)
{
	sample->count = 0;
	for (int i = 0; i < STATS_BUCKETS; i++)
	{
		sample->buckets[i] = pg_atomic_read_u64(&times->buckets[i]);
		sample->count += sample->buckets[i];
	}
	sample->sum = pg_atomic_read_u64(&times->sum_us) / 1000000.0;
}

void
stats_read(const char *reconciler_id, StatsSample *sample)
{
	LoopStats  *slot;

	memset(sample, 0, sizeof(*sample));
	sample->dead = -1;
	if (engine == NULL)
		return;
	LWLockAcquire(&engine->stats.lock, LW_SHARED);
	slot = find(id_hash(reconciler_id), reconciler_id);
	if (slot != NULL)
	{
		for (int i = 0; i < STATS_RESULTS; i++)
			sample->results[i] = pg_atomic_read_u64(&slot->results[i]);
		for (int i = 0; i < TALLIES; i++)
			sample->tallies[i] = pg_atomic_read_u64(&slot->tallies[i]);
		times_read(&slot->run, &sample->run);
		times_read(&slot->queue, &sample->queue);
		sample->in_flight = pg_atomic_read_u32(&slot->in_flight);
		if (pg_atomic_read_u32(&slot->dead_known))
			sample->dead = Max((int64) pg_atomic_read_u64(&slot->dead), 0);
		SpinLockAcquire(&slot->mutex);
		sample->gauges = slot->gauges;
		SpinLockRelease(&slot->mutex);
	}
	done();
}

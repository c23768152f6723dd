/*
 * stats.h
 *		What is counted of each reconciler id, in shared memory.
 *
 * One slot for each (database, reconciler id), made when something that has
 * committed is first counted of it, or its dispatcher sees the loop.  Counters are atomic and rise until the server restarts, or the
 * loop is dropped.  Nothing here ever waits for anything but the making of a
 * slot, and a reader holds up nobody.
 */
#ifndef RECONCILE_STATS_H
#define RECONCILE_STATS_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/spin.h"

#include "core/ident.h"
#include "core/tally.h"
#include "loop/observed.h"

#define STATS_SLOTS		1024	/* reconciler ids in the server that are counted */
#define STATS_BUCKETS	14		/* of a histogram; the last has no bound */
#define STATS_RESULTS	4		/* RunResult, and then skipped */
#define STATS_SKIPPED	(RESULT_PERMANENT + 1)

/* Upper bounds of the buckets, in seconds. */
extern const double stats_bounds[STATS_BUCKETS - 1];

typedef struct StatsTimes
{
	pg_atomic_uint64 buckets[STATS_BUCKETS];
	pg_atomic_uint64 sum_us;
} StatsTimes;

/* A loop as its dispatcher last saw it. */
typedef struct LoopGauges
{
	uint32		dispatcher;		/* its generation */
	int64		ready;
	int64		running;		/* with those that outside workers have claimed */
	int64		claimed;
	int64		waiting;
	int64		retrying;
	TimestampTz oldest_due_at;	/* of the next ready one; 0 = none */
	TimestampTz suspended_until;	/* 0 = it is not */
} LoopGauges;

typedef struct LoopStats
{
	Oid			database;
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	pg_atomic_uint64 results[STATS_RESULTS];
	pg_atomic_uint64 tallies[TALLIES];
	pg_atomic_uint64 logged_at[TALLIES];	/* TimestampTz of the last log line about it */
	StatsTimes	run;
	StatsTimes	queue;			/* from due to begun */
	pg_atomic_uint32 in_flight;
	pg_atomic_uint64 dead;		/* as int64: it may be counted before it is known */
	pg_atomic_uint32 dead_known;
	slock_t		mutex;			/* of the gauges */
	LoopGauges	gauges;
} LoopStats;

typedef struct StatsTable
{
	LWLock		lock;			/* shared: to use a slot; exclusive: to make or free one */
	int			used;			/* slots beyond have never been used */
	pg_atomic_uint64 dropped;	/* what was not counted because no slot was free */
	uint32		hashes[STATS_SLOTS];	/* 0 = free */
	LoopStats	slots[STATS_SLOTS];
} StatsTable;

/* A slot, copied. */
typedef struct TimesSample
{
	uint64		buckets[STATS_BUCKETS];
	uint64		count;
	double		sum;			/* seconds */
} TimesSample;

typedef struct StatsSample
{
	uint64		results[STATS_RESULTS];
	uint64		tallies[TALLIES];
	TimesSample run;
	TimesSample queue;
	uint32		in_flight;
	int64		dead;			/* -1 = not known */
	LoopGauges	gauges;
} StatsSample;

/* While shared memory is made. */
extern void stats_init(StatsTable *table, int tranche);

/* All of these are about the current database. */
extern void stats_run(const RunObserved *run);
extern void stats_command(int action, int outcome);	/* see journal/count.h */
extern void stats_in_flight(const char *loop_name, int change); /* where there is a slot */
extern void stats_skipped(const char *loop_name, int64 n);
extern void stats_tally(const char *reconciler_id, Tally what);
extern bool stats_log_due(const char *reconciler_id, Tally what, TimestampTz now);
extern void stats_gauges(const char *loop_name, const LoopGauges *gauges);

/* The number of dead entities: changes, and what a count found (see dead.h). */
extern void stats_dead_changed(const char *loop_name, int64 change);
extern void stats_dead_begin(void);
extern void stats_dead_found(const char *loop_name, int64 n);

/* Copies a slot; all zero if there is none. */
extern void stats_read(const char *reconciler_id, StatsSample *sample);

/* The loop is gone; all of a database are. */
extern void stats_forget(const char *reconciler_id);
extern void stats_forget_database(Oid database);

#endif							/* RECONCILE_STATS_H */

/*
 * runlog.h
 *		The last runs of a database, in a shared memory segment of its own.
 *
 * The dispatcher makes the segment when the database has a loop.  It belongs to
 * the database's entry in engine->databases and is kept for whoever has that
 * entry next, so there are never more than ENGINE_DATABASES.
 */
#ifndef RECONCILE_RUNLOG_H
#define RECONCILE_RUNLOG_H

#include "core/ident.h"
#include "loop/observed.h"

#define RUNLOG_ENTRIES	10000

typedef struct RunEntry
{
	char		loop_name[RECONCILER_ID_MAX + 1];
	char		entity_id[ENTITY_ID_MAX + 1];
	TimestampTz started_at;
	int64		queue_us;		/* -1 = not known */
	int64		run_us;
	int64		epoch;
	int			pid;
	int			attempt;
	int			sqlstate;
	RunResult	result;
} RunEntry;

/* By the dispatcher, in a transaction: makes the segment of its database, or finds it. */
extern void runlog_open(int database_index);

/* Maps the segment: runlog_add() does not, so that it cannot fail. */
extern void runlog_expect(void);

/* Adds a run of this database; does nothing where there is no segment. */
extern void runlog_add(const RunObserved *run);

/* Called for each run, the oldest first, with a copy. */
extern void runlog_read(void (*visit) (const RunEntry *entry, void *arg), void *arg);

#endif							/* RECONCILE_RUNLOG_H */

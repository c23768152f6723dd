/*
 * command_stats.h
 *		What is counted of commands, in shared memory, for each database.
 */
#ifndef RECONCILE_COMMAND_STATS_H
#define RECONCILE_COMMAND_STATS_H

#include "port/atomics.h"

#include "journal/count.h"

#define COMMAND_DATABASES	32	/* that are counted */

typedef struct CommandStats
{
	struct
	{
		pg_atomic_uint32 database;	/* 0 = free */
		pg_atomic_uint64 n[COUNT_ACTIONS][COUNT_OUTCOMES];
	}			slots[COMMAND_DATABASES];
} CommandStats;

/* While shared memory is made. */
extern void command_stats_init(CommandStats *stats);

/* Of the current database; false: there is no place for it. */
extern bool command_stats_count(int action, int outcome);
extern uint64 command_stats_read(int action, int outcome);

extern void command_stats_forget_database(Oid database);

#endif							/* RECONCILE_COMMAND_STATS_H */

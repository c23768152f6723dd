/*
 * command_stats.c
 *		Counts what becomes of commands, without a lock.
 *
 * A database takes the first free slot.  Two of its sessions may take one each, if
 * another becomes free meanwhile: who reads adds them up.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "engine/command_stats.h"
#include "engine/shmem.h"

void
command_stats_init(CommandStats *stats)
{
	for (int i = 0; i < COMMAND_DATABASES; i++)
	{
		pg_atomic_init_u32(&stats->slots[i].database, 0);
		for (int j = 0; j < COUNT_ACTIONS; j++)
		{
			for (int k = 0; k < COUNT_OUTCOMES; k++)
				pg_atomic_init_u64(&stats->slots[i].n[j][k], 0);
		}
	}
}

bool
command_stats_count(int action, int outcome)
{
	CommandStats *stats = &engine->commands;

	for (int i = 0; i < COMMAND_DATABASES; i++)
	{
		uint32		database = pg_atomic_read_u32(&stats->slots[i].database);

		if (database == 0 && pg_atomic_compare_exchange_u32(&stats->slots[i].database, &database, MyDatabaseId))
			database = MyDatabaseId;
		if (database != MyDatabaseId)
			continue;
		pg_atomic_fetch_add_u64(&stats->slots[i].n[action][outcome], 1);
		return true;
	}
	return false;
}

uint64
command_stats_read(int action, int outcome)
{
	CommandStats *stats = &engine->commands;
	uint64		n = 0;

	for (int i = 0; i < COMMAND_DATABASES; i++)
	{
		if (pg_atomic_read_u32(&stats->slots[i].database) == MyDatabaseId)
			n += pg_atomic_read_u64(&stats->slots[i].n[action][outcome]);
	}
	return n;
}

void
command_stats_forget_database(Oid database)
{
	CommandStats *stats = &engine->commands;

	for (int i = 0; i < COMMAND_DATABASES; i++)
	{
		if (pg_atomic_read_u32(&stats->slots[i].database) != database)
			continue;
		for (int j = 0; j < COUNT_ACTIONS; j++)
		{
			for (int k = 0; k < COUNT_OUTCOMES; k++)
				pg_atomic_write_u64(&stats->slots[i].n[j][k], 0);
		}
		pg_atomic_write_u32(&stats->slots[i].database, 0);
	}
}

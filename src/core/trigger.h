/*
 * trigger.h
 *		Our triggers on users' tables: make, find, drop.
 *
 * They depend on the extension, so that DROP EXTENSION removes them, and name a
 * function that nobody else may execute, so no user attaches one himself.  What
 * they are for stands in their arguments: a dropped table takes that along, and
 * a dump carries it.
 */
#ifndef RECONCILE_TRIGGER_H
#define RECONCILE_TRIGGER_H

#include "nodes/parsenodes.h"
#include "nodes/pg_list.h"

/* One trigger, as the catalogue has it. */
typedef struct TableTrigger
{
	Oid			oid;
	Oid			relation;
	char	   *name;
	int16		type;			/* tgtype */
	char		enabled;		/* tgenabled */
	int			nargs;
	char	  **args;
} TableTrigger;

/* The trigger function of ours with this name. */
extern Oid	trigger_function(const char *name);

/* The triggers of a function of ours on one table, or on all (InvalidOid): a list of TableTrigger. */
extern List *trigger_list(Oid function, Oid relation);

/*
 * Makes a trigger; "statement" lacks the relation and the function.  Takes
 * ShareRowExclusiveLock on the table.
 */
extern void trigger_make(CreateTrigStmt *statement, Oid relation, Oid function, char fires);

/*
 * Drops one, whatever the caller's rights on its table are.  The table is locked
 * (AccessExclusiveLock) before the trigger, as all others do; who we waited for
 * may have dropped it.
 */
extern void trigger_drop(const TableTrigger *trigger);

/* Arguments from "first" on as String nodes, and a list of such names as name[]. */
extern List *trigger_names(const TableTrigger *trigger, int first);
extern Datum trigger_name_array(List *names);

#endif							/* RECONCILE_TRIGGER_H */

/*
 * watch.h
 *		Watched tables: triggers that mark what a change touched.
 *
 * A watch is its triggers and nothing else: their arguments are the loop, the
 * entity column, 'root' (the table that was named) or 'part' (a partition of
 * that), and the columns that matter, if given.
 */
#ifndef RECONCILE_WATCH_H
#define RECONCILE_WATCH_H

#include "core/trigger.h"

#define WATCH_OLD_TABLE		"reconcile_old"
#define WATCH_NEW_TABLE		"reconcile_new"

/* Places of the trigger's arguments. */
enum
{
	WATCH_ARG_LOOP,
	WATCH_ARG_ENTITY_COLUMN,
	WATCH_ARG_PLACE,
	WATCH_ARG_COLUMNS			/* this one and all that follow */
};

typedef enum WatchKind
{
	WATCH_INSERT,
	WATCH_UPDATE,
	WATCH_DELETE,
	WATCH_TRUNCATE,
	WATCH_ROW,					/* where statement triggers do not fire: rows that a subscription applies */
	WATCH_KINDS
} WatchKind;

typedef struct WatchSpec
{
	char	   *loop_name;
	char	   *entity_column;
	List	   *columns;		/* of String; NIL: a change of any column counts */
} WatchSpec;

/* One trigger, as the catalogue has it. */
typedef struct WatchTrigger
{
	const TableTrigger *trigger;
	WatchKind	kind;
	bool		part;
	WatchSpec	spec;
} WatchTrigger;

/*
 * Drops the triggers of a loop, on whatever table they are; rights are the
 * caller's business.  Takes AccessExclusiveLock on those tables.
 */
extern void watch_drop_all(const char *loop_name);

/* ---- between the files of the watch ---- */

/* Our triggers on one table, or on all (InvalidOid): a list of WatchTrigger. */
extern List *watch_triggers(Oid relation);

/* The watches that were asked for on this table: a list of WatchSpec. */
extern List *watch_specs(Oid relation);

/* The one of this loop, or NULL. */
extern const WatchSpec *watch_spec_of(List *specs, const char *loop_name);

/* Has the table every trigger that this watch needs there, among those given? */
extern bool watch_is_whole(Oid relation, List *triggers, const WatchSpec *spec, bool part);

/* Makes the triggers of a watch on one table.  Locks it in ShareRowExclusiveLock. */
extern void watch_put(Oid relation, const WatchSpec *spec, bool part);

/* Drops a loop's triggers on one table, and says how many there were.  Locks it in AccessExclusiveLock. */
extern int	watch_remove(Oid relation, const char *loop_name);

#endif							/* RECONCILE_WATCH_H */

/*
 * guard.h
 *		Guarded tables: a fence on tables of users.
 *
 * A guard is its triggers and nothing else: their arguments are the reconciler
 * id, the entity column, the epoch column, 'root' or 'part', and the columns that
 * are guarded, if given.  A table has one guard at most.
 */
#ifndef RECONCILE_GUARD_H
#define RECONCILE_GUARD_H

#include "core/compat.h"
#include "core/table.h"
#include "core/trigger.h"

/* Places of the trigger's arguments. */
enum
{
	GUARD_ARG_ID,
	GUARD_ARG_ENTITY_COLUMN,
	GUARD_ARG_EPOCH_COLUMN,
	GUARD_ARG_PLACE,
	GUARD_ARG_COLUMNS			/* this one and all that follow */
};

typedef enum GuardKind
{
	GUARD_ROW,					/* before a row is written: judges and stamps */
	GUARD_CHECK,				/* after it: what other triggers made of it */
	GUARD_TRUNCATE,
	GUARD_KINDS
} GuardKind;

typedef struct GuardSpec
{
	char	   *reconciler_id;
	char	   *entity_column;
	char	   *epoch_column;
	List	   *columns;		/* of String; NIL: all are guarded */
} GuardSpec;

/* One trigger, as the catalogue has it. */
typedef struct GuardTrigger
{
	const TableTrigger *trigger;
	GuardKind	kind;
	bool		part;			/* it came with the root of its table */
	GuardSpec	spec;
} GuardTrigger;

/* Registers the transaction callbacks; once, from _PG_init(). */
extern void guard_init(void);

/* ----------------------------------------------------------------
 * Between the files of the guard
 * ----------------------------------------------------------------
 */

extern const TableUse guard_use;

/* Our triggers on one table, or on all (InvalidOid): a list of GuardTrigger. */
extern List *guard_triggers(Oid relation);

/* What the table was guarded with, or NULL; partitions are guarded by the table that they are part of. */
extern const GuardSpec *guard_spec(Oid relation);

/* The table whose guard covers this one: itself, or the nearest that it is part of; InvalidOid: none. */
extern Oid	guard_owner(Oid relation);

/* The same without the table itself. */
extern Oid	guard_above(Oid relation);

/* 42809 unless the guard that covers the table, if any does, is its own: "cannot VERB the guard of it alone". */
extern void guard_require_own(Oid relation, const char *verb);

/* 42710 if the table has one of its own: what becomes part of a guarded table brings none. */
extern void guard_require_none(Oid relation);

/* 42704: there is no guard to change. */
compat_noreturn extern void guard_raise_none(Oid relation);

extern bool guard_spec_equal(const GuardSpec *a, const GuardSpec *b);

/* Has the table all that this guard needs there, enabled as we made it? */
extern bool guard_is_whole(Oid relation, const GuardSpec *spec, bool part);

/*
 * Makes the triggers of a guard on one table.  ShareRowExclusiveLock.
 */
extern void guard_put(Oid relation, const GuardSpec *spec, bool part);

/* Drops them, and says how many there were.  AccessExclusiveLock. */
extern int	guard_remove(Oid relation);

/*
 * 42703, 42809 unless the columns are there and can do what they are for; and
 * 42809 where a subscription writes the table.
 */
extern void guard_require_table(Relation rel, const GuardSpec *spec);

/* ----------------------------------------------------------------
 * What an operator has lifted in this transaction
 * ----------------------------------------------------------------
 */

typedef struct Override Override;

/* Has anything been lifted?  Cheap. */
extern bool override_any(void);

/* The latest override of the table's own guard (guard_owner()) by this lease; NULL: none. */
extern Override *override_find(Oid owner, const char *reconciler_id);

/* What a row that is inserted under it is stamped with: the lease's epoch at the time of the call, or 0. */
extern int64 override_epoch(const Override *override);

/* Counts a row that was written under it, or notes that the table was truncated. */
extern void override_wrote_row(Override *override);
extern void override_truncated(Override *override);

#endif							/* RECONCILE_GUARD_H */

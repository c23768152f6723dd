/*
 * plan.h
 *		Our own SQL: named, saved plans, run as the owner of our schema.
 *
 * Each room keeps its SQL in one table of SqlPlan.  The texts are fully
 * qualified, operators too, so that no search path of a caller can matter.  A
 * plan belongs to one install and is made again for the next.
 *
 *		SqlScope	scope;
 *
 *		sql_begin(&scope);
 *		if (sql_run(&plans[PLAN_X], values, nulls) > 0)
 *			... SPI_tuptable: copy what is to live on ...
 *		sql_end(&scope);
 *
 * Between sql_begin() and sql_end() the user id is the schema's owner; an error
 * gives it back through (sub)transaction abort.  No user code may run there.
 */
#ifndef RECONCILE_PLAN_H
#define RECONCILE_PLAN_H

#include "executor/spi.h"

#define SQL_MAX_ARGS	24

typedef struct SqlPlan
{
	const char *text;
	int			nargs;
	Oid			types[SQL_MAX_ARGS];
	/* filled at first use */
	SPIPlanPtr	plan;
	Oid			schema;			/* install that the plan was made for */
} SqlPlan;

/* The identity to go back to. */
typedef struct SqlScope
{
	Oid			userid;
	int			context;
	MemoryContext outer;		/* where results that live on are to be copied */
} SqlScope;

/* Called once, when the library is loaded. */
extern void plan_init(void);

extern void sql_begin(SqlScope *scope);
extern void sql_end(SqlScope *scope);

/* Runs the plan with a fresh snapshot (or the transaction's, above READ COMMITTED).  Returns SPI_processed. */
extern uint64 sql_run(SqlPlan *plan, Datum *values, const char *nulls);

/* The same with the newest snapshot at any isolation level: for what is read after a lock. */
extern uint64 sql_run_latest(SqlPlan *plan, Datum *values, const char *nulls);

/* The same with a snapshot of the caller's, for what is read in parts. */
extern uint64 sql_run_snapshot(SqlPlan *plan, Datum *values, const char *nulls, Snapshot snapshot);

/* A statement by itself, run as by sql_run_latest(); its rows are only counted. */
extern uint64 sql_do(SqlPlan *plan, Datum *values, const char *nulls);

/* The same of one that has one row: its only column, of a type that is passed by value and not NULL. */
extern Datum sql_ask(SqlPlan *plan, Datum *values);

/* The same of an instant; "none" where there is no row, or NULL in it. */
extern TimestampTz sql_instant(SqlPlan *plan, Datum *values, TimestampTz none);

/* A column (from 1) of a row (from 0) of the last result; isnull may be NULL where no NULL can be. */
extern Datum sql_value(int row, int column, bool *isnull);

/* A text of the last result, copied into "context"; NULL for NULL. */
extern char *sql_text(int row, int column, MemoryContext context);

#endif							/* RECONCILE_PLAN_H */

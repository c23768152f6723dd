/*
 * crash.h
 *		Who took the server down: what is noted of each run, past the crash.
 *
 * A process that calls user code notes the run in a cell of a small mapped file,
 * and clears the cell when the run is over: plain stores.  A process that is told
 * to quit, or that exits in order, says that it is innocent.  What is left of a
 * process that vanished without a word, or whose parallel worker did, is a suspect:
 * the run that it noted is booked as a failure once a dispatcher serves its database
 * (suspects.c).
 *
 * The file may be missing, then nothing is noted.
 */
#ifndef RECONCILE_CRASH_H
#define RECONCILE_CRASH_H

#include "core/ident.h"
#include "loop/run.h"

typedef struct CrashNote
{
	Oid			database;
	int			pid;
	int			attempt;
	int64		mark;			/* number of one mark of its list */
	TimestampTz started_at;
	char		loop_name[RECONCILER_ID_MAX + 1];
	char		entity_id[ENTITY_ID_MAX + 1];
} CrashNote;

/* When the library is loaded, by the postmaster. */
extern void crash_init(void);

/*
 * When shared memory is made: judges what the last life has left, and makes the
 * cells of this one.  Returns how many new suspects there are.
 */
extern int	crash_start(int nslots, bool crashed);

/* Signal handler for SIGQUIT in a process of ours. */
extern void crash_quit_handler(SIGNAL_ARGS);

/* In an executor: its runs are noted in the cell of its slot. */
extern void crash_attach(int slot);

/* For run_calls_hook: notes the run. */
extern void crash_note(const LoopRun *run);

/* The run is over, and booked; or its process ends in order. */
extern void crash_clear(void);

/* The first suspect of a database from the n-th on; its number, or -1. */
extern int	crash_suspect(int n, Oid database, CrashNote *note);

/* It was booked, or there is nothing to be booked. */
extern void crash_settled(int n);

#endif							/* RECONCILE_CRASH_H */

/*
 * process.h
 *		What our background processes share: signals, transactions, registration.
 */
#ifndef RECONCILE_PROCESS_H
#define RECONCILE_PROCESS_H

#include "postmaster/bgworker.h"

#include "engine/shmem.h"

/*
 * Signal handlers of a process of ours.  SIGTERM asks an idle process to leave
 * without a word, and ends one in mid-transaction as it would end any backend.
 */
extern void process_setup(void);

/*
 * After connecting, whatever is set for the role or the database: READ
 * COMMITTED, read-write, no time limits, no other role, and triggers fire.
 */
extern void process_settings(void);

/* Marks the process as busy (a SIGTERM is then an interrupt) or idle. */
extern void process_busy(bool busy);

/* Was a SIGTERM received while idle? */
extern bool process_leaving(void);

/* Absorbs interrupts; call it each turn.  True if the settings were read again. */
extern bool process_interrupts(void);

/* Waits for the latch, a timeout in ms (-1 = none), or the postmaster's death. */
extern void process_wait(long timeout_ms, const char *wait_event);

/*
 * Runs work(arg) in a transaction of its own with an active snapshot; the process
 * is busy meanwhile.  An error is logged and the transaction aborted; then false.
 */
extern bool process_transaction(void (*work) (void *arg), void *arg);

/* The run that a job asks for; dropped until it is done. */
extern void job_prepare_run(const ExecJob *job, LoopRun *run);

/* Counts the run of a job, which was booked as a success or a failure. */
extern void job_observe(const ExecJob *job);

/* Registers a dynamic worker of ours that is not restarted by the postmaster. */
extern bool process_register(const char *type, const char *function, Oid database,
							 int index, uint32 generation);

/* The generation that process_register() was given. */
extern uint32 process_generation(void);

#endif							/* RECONCILE_PROCESS_H */

/*
 * run.h
 *		The run of one entity: the same under an executor and under run_loop().
 *
 * The run lock ends with its transaction, in an abort too: a lock for the
 * session would not outlive one either.
 *
 *		run_lock()			or the run is given back: somebody else runs it
 *		run_execute()		in the same transaction, which the caller then commits
 *		run_lock()			in another one, if that failed or its commit did
 *		run_book_failure()	in that
 *
 * Who gets in between the two has begun a run of his own, which answers the
 * marks that the failed one left: nothing is booked then.
 */
#ifndef RECONCILE_RUN_H
#define RECONCILE_RUN_H

#include "loop/decide.h"
#include "loop/mark.h"

typedef enum RunOutcome
{
	RUN_DONE,					/* it ran; see result */
	RUN_DROPPED,				/* nothing asked for it: marks gone, or dead and none revives */
	RUN_NOT_LEADER,				/* the lease is not (or no longer) the given one; nothing consumed */
	RUN_CLAIMED,				/* an outside worker has it; nothing consumed */
	RUN_NO_FUNCTION				/* the loop's function is gone or may not be called; nothing consumed */
} RunOutcome;

/* How a run that left no transaction ended. */
typedef enum RunLoss
{
	LOSS_NONE,					/* it failed with an error, or was ended after its timeout */
	LOSS_PROCESS,				/* its process went alone */
	LOSS_SERVER					/* the whole server went with it */
} RunLoss;

typedef struct LoopRun
{
	/* in */
	const LoopRules *rules;
	const char *entity_id;
	const MarkRef *marks;		/* the list that this run answers */
	int			nmarks;
	const char *holder_id;		/* leased loops: the term that the run is bound to */
	int64		epoch;
	bool		in_session;		/* in a caller's session, inside SPI: see run_execute() */
	RunLoss		loss;			/* for run_book_failure() */
	int			nkept;			/* the same: the last of the marks, which an entity that dies keeps */

	/* out, of run_execute() and run_book_failure() */
	RunOutcome	outcome;
	RunResult	result;
	int			attempt;		/* of this run, from 1 */
	TimestampTz deadline;		/* by the loop's timeout; 0 = none */
	int			sqlstate;		/* of a failure */
	TimestampTz claimed_until;	/* RUN_CLAIMED: when to look again; 0 = not known */
	bool		has_look;
	MarkRef		look;			/* the next look; not sent to the ring */
} LoopRun;

/* Tries the run lock of (loop, entity), for the transaction; false also within a run of it. */
extern bool run_lock(const char *loop_name, const char *entity_id);

/* Gives it back: for who has done nothing under it. */
extern void run_unlock(const char *loop_name, const char *entity_id);

/* True if nobody else runs (loop, entity) until this transaction ends; may be asked again in it. */
extern bool run_exclude(const char *loop_name, const char *entity_id);

/* Does the process run (loop, entity)?  True: at this moment it does.  pid 0 is none, which runs nothing. */
extern bool run_held_by(const char *loop_name, const char *entity_id, int pid);

/*
 * Shows, until this transaction ends, that a session may run or claim something
 * of the loop: for run_of_session().  Before the loop's row is read.  Never waits.
 */
extern void run_show(const char *loop_name);

/*
 * A session that shows so, and runs or claims this entity (NULL: whatever it
 * does): its pid; -1 = a prepared transaction, 0 = none.
 */
extern int	run_of_session(const char *loop_name, const char *entity_id);

/*
 * Runs the entity in the current transaction: epoch, function, marks, next
 * look.  An error of the function, or a result that is no duration, is raised;
 * the caller aborts and books it.  In a caller's session the function runs in a
 * subtransaction and its error is booked here, in the same transaction; only a
 * cancel that is not the run's timeout is raised.
 */
extern void run_execute(LoopRun *run);

/*
 * Calls the loop's function in a caller's session, in a subtransaction, and
 * remembers nothing; of *run only rules, entity and attempt are asked for.  NULL,
 * or the error with which it failed; a cancel that is not the run's timeout is
 * raised.  The run is over when it returns.
 */
extern ErrorData *run_once(LoopRun *run, Oid function, RunFacts *facts);

/*
 * In a new transaction, under the run lock: deletes the same list and writes
 * what the failure means.  Of a leased loop only while the run's term stands:
 * otherwise RUN_NOT_LEADER, and nothing is consumed.
 */
extern void run_book_failure(LoopRun *run, const ErrorData *error);

/*
 * The same for a run that took the server down, of which one mark's number is
 * known.  False: it was answered, forgotten or booked, so nothing is to be done.
 */
extern bool run_book_crash(LoopRun *run, int64 mark);

/*
 * Set by the engine when it is preloaded: user code is about to be called, until
 * the transaction is over.
 */
extern void (*run_calls_hook) (const LoopRun *run);

/* What follows from a run; a resync never dies, and asks for no look when it succeeds. */
extern RunDecision run_decide(const LoopRun *run, const RunFacts *facts);

/* 42501 unless the current role is the loop's owner, as whom its functions run in a session. */
extern void run_require_owner(const LoopRules *rules);

/* The run in progress in this backend, until its transaction is over; NULL outside one. */
extern const LoopRun *run_current(void);

/* Has the timeout of the last run struck?  Then its 57014 is the run's own. */
extern bool run_timed_out(void);

#endif							/* RECONCILE_RUN_H */

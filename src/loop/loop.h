/*
 * loop.h
 *		What a loop is: its options, as captured for a run.
 */
#ifndef RECONCILE_LOOP_H
#define RECONCILE_LOOP_H

#include "core/function.h"
#include "core/ident.h"

/*
 * The options of a loop; a plain value, fit for shared memory.  A run keeps
 * those that it began with.  Durations in ms; -1 is the NULL of the option.
 */
typedef struct LoopRules
{
	char		loop_name[RECONCILER_ID_MAX + 1];
	char		reconciler[SIGNATURE_MAX];	/* '' = outside workers only */
	char		lister[SIGNATURE_MAX];	/* '' = none */
	char		repository[SIGNATURE_MAX];	/* '' = the built-in one */
	Oid			owner;
	int64		resync_every_ms;
	int64		default_requeue_ms;
	int64		backoff_base_ms;
	int64		backoff_max_ms;
	double		backoff_jitter;
	int64		timeout_ms;
	int64		lease_ttl_ms;
	int64		renew_every_ms;
	int32		max_attempts;	/* -1 = no limit */
	int32		concurrency;
	bool		enabled;
	bool		paused;			/* by pause_loop(), or as it is foreign */
	bool		foreign;		/* it came with a restore or a clone: see adopt.h */
	bool		resync_owed;	/* the server was promoted since its entities were looked at */
} LoopRules;

/* Does it have a lease for its runs?  That of a loop without reconciler is its workers'. */
static inline bool
loop_leads(const LoopRules *rules)
{
	return rules->lease_ttl_ms > 0 && rules->reconciler[0] != '\0';
}

/* Is it the empty id in a loop with a lister?  Its run calls that, and is the engine's. */
static inline bool
loop_is_resync(const LoopRules *rules, const char *entity_id)
{
	return entity_id[0] == '\0' && rules->lister[0] != '\0';
}

/* Reads one loop with the newest snapshot; false: there is none of that name. */
extern bool loop_read(const char *loop_name, LoopRules *rules);

/*
 * Reads all loops, ordered by name, into a palloc'd array.  "owner" narrows it
 * to the loops that this role owns (InvalidOid: all).
 */
extern int	loop_read_all(Oid owner, LoopRules **rules);

/* 42704 unless there is a loop of that name; fills *rules. */
extern void loop_require(const char *loop_name, LoopRules *rules);

/* False: there is none; else it cannot be dropped until this transaction is over. */
extern bool loop_read_held(const char *loop_name, LoopRules *rules);

/* The same; 42704 unless there is one. */
extern void loop_hold(const char *loop_name);

/* Is there a loop of that name, and whose?  One index probe with the newest snapshot. */
extern bool loop_find_owner(const char *loop_name, Oid *owner);

/* Is there a loop of that name that has a repository?  The same probe. */
extern bool loop_has_repository(const char *loop_name);

/* 42501 unless the current role may trigger the loop, 42704 unless there is one. */
extern void loop_require_trigger(const char *loop_name);

/* Pauses it, as pause_loop() does, and tells the engine at commit in any case. */
extern void loop_pause(const char *loop_name);

/* Resumes it; one that came with a restore, a clone or a subscription is at home from then on. */
extern void loop_resume(const LoopRules *rules);

/*
 * Deletes the marks of an entity (NULL: of the whole loop) that have committed,
 * also those that are being moved meanwhile; returns how many.  Waits for who
 * is deleting one.
 */
extern int	loop_delete_marks(const char *loop_name, const char *entity_id);

/* The kinds of functions that a loop may have: each is an option of that name. */
#define LOOP_FUNCTIONS	(FUNCTION_REPOSITORY + 1)

/* Its signature as the loop has it; '' = none. */
extern char *loop_function(const LoopRules *rules, FunctionKind which);

/* Why no executor can connect to this database as the owner of a loop, or NULL. */
extern const char *loop_owner_problem(Oid owner);

/*
 * Resolves what the caller named, by his search path, into *rules; rules->owner
 * is known.  22023, 42501 or 42883, naming the argument.
 */
extern void loop_set_function(LoopRules *rules, FunctionKind which, const char *text);

#endif							/* RECONCILE_LOOP_H */

/*
 * revive.h
 *		What operators do with entities; for who has asked for the rights, and whether
 *		there is such a loop.
 */
#ifndef RECONCILE_REVIVE_H
#define RECONCILE_REVIVE_H

/* A dead entity is due again; false: it is not dead. */
extern bool loop_revive(const char *loop_name, const char *entity_id);

/*
 * The same for those that have been dead for longest, at most "max", of one SQLSTATE
 * (NULL: of any); returns how many.  Passes over those that somebody has locked.
 */
extern int64 loop_revive_all(const char *loop_name, const char *last_sqlstate, int max);

/*
 * Forgets all that are dead, with the triggers that those have kept which died of
 * crashes; returns how many.  Passes over those that somebody has locked, or is
 * forgetting.
 */
extern int64 loop_purge_dead(const char *loop_name);

/* Nobody else forgets the entity until this transaction is over; before its row is locked. */
extern void loop_enter_forget(const char *loop_name, const char *entity_id);

/* Nothing is known of the entity any more, and nothing due; false: so it was. */
extern bool loop_forget(const char *loop_name, const char *entity_id);

#endif							/* RECONCILE_REVIVE_H */

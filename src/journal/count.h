/*
 * count.h
 *		Commands counted by action and outcome, where something counts them.
 *
 * What is told of a transaction counts when it commits, and not before.  No label
 * names a tenant: there may be any number.
 */
#ifndef RECONCILE_COUNT_H
#define RECONCILE_COUNT_H

#define COUNT_ACTIONS	11		/* the ten that are built in, and other */
#define COUNT_OUTCOMES	18		/* see count.c */

extern const char *const count_actions[COUNT_ACTIONS];
extern const char *const count_outcomes[COUNT_OUTCOMES];

/* Set by the engine when it is preloaded; the numbers are places in the lists above.  Must not throw. */
extern void (*command_counted_hook) (int action, int outcome);

/* An outcome that is in no list is not counted. */
extern void command_count(const char *action, const char *outcome);

/* Registers the transaction callbacks; once, from _PG_init(). */
extern void count_init(void);

#endif							/* RECONCILE_COUNT_H */

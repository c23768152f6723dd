/*
 * schedule.h
 *		Jobs of pg_cron that run loops where no worker may.
 */
#ifndef RECONCILE_SCHEDULE_H
#define RECONCILE_SCHEDULE_H

/* 42501 unless the current role may make jobs of others. */
extern void schedule_require_administrator(const char *function);

/* 55000 unless pg_cron is here.  Within sql_begin(). */
extern void schedule_require_pg_cron(void);

/* The loop is being dropped: its job goes with it, if there is one. */
extern void schedule_drop(const char *loop_name);

#endif							/* RECONCILE_SCHEDULE_H */

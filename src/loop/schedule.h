/*
 * schedule.h
 *		Jobs of pg_cron that run loops where no worker may.
 */
#ifndef RECONCILE_SCHEDULE_H
#define RECONCILE_SCHEDULE_H

/* The loop is being dropped: its job goes with it, if there is one. */
extern void schedule_drop(const char *loop_name);

#endif							/* RECONCILE_SCHEDULE_H */

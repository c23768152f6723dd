/*
 * guc.h
 *		The settings.
 */
#ifndef RECONCILE_GUC_H
#define RECONCILE_GUC_H

extern char *guc_databases;			/* databases to look at; '' finds them */
extern int	guc_max_workers;		/* executors in the server */
extern int	guc_ring_size;			/* marks in a database's ring */
extern int	guc_worker_idle_timeout;	/* seconds */
extern int	guc_fence_grace;		/* ms; -1 never ends a session */
extern bool guc_notify;

/* Called once from _PG_init(); "preloaded" defines what only the postmaster can set. */
extern void guc_define(bool preloaded);

#endif							/* RECONCILE_GUC_H */

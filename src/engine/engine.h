/*
 * engine.h
 *		The processes: launcher, dispatchers, executors.
 */
#ifndef RECONCILE_ENGINE_H
#define RECONCILE_ENGINE_H

/* Shared memory, hooks and the launcher; from _PG_init(), while preloading only. */
extern void engine_init(void);

/* Is the library preloaded, with its shared memory there? */
extern bool engine_present(void);

/* Within the room: registers the static launcher. */
extern void launcher_register(void);

/* Within the room: installs the DDL hooks. */
extern void ddl_init(void);

#endif							/* RECONCILE_ENGINE_H */

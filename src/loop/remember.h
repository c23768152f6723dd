/*
 * remember.h
 *		Which entities a loop knows of.
 */
#ifndef RECONCILE_REMEMBER_H
#define RECONCILE_REMEMBER_H

#include "loop/idset.h"

/* Can the loop list its entities itself, by a lister? */
extern bool loop_has_lister(const char *loop_name);

/*
 * Adds each entity that has a mark of the loop or a row in reconcile.entity, by
 * the newest snapshot.  Takes AccessShareLock on the segments and that table,
 * writes nothing, and does not begin a new command.
 */
extern void loop_remembered(const char *loop_name, IdSet *ids);

#endif							/* RECONCILE_REMEMBER_H */

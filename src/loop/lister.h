/*
 * lister.h
 *		The lister of a loop: which entities there are.
 */
#ifndef RECONCILE_LISTER_H
#define RECONCILE_LISTER_H

#include "loop/loop.h"

/*
 * Calls the loop's lister and marks each entity that it returns, in the current
 * transaction; the dead are not revived by it.  22004 it returned NULL, 22023
 * something that is no entity id; what the lister raises.
 */
extern void lister_run(const LoopRules *rules);

#endif							/* RECONCILE_LISTER_H */

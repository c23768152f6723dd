/*
 * local.h
 *		The built-in actions on loops, which take effect here.
 */
#ifndef RECONCILE_LOCAL_H
#define RECONCILE_LOCAL_H

#include "journal/envelope.h"

/*
 * Does it, in a subtransaction of the caller's; returns the failure, or NULL.  What
 * else there is to know of it goes to *detail.
 */
extern char *local_dispatch(const Envelope *envelope, Jsonb **detail);

#endif							/* RECONCILE_LOCAL_H */

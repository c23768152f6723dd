/*
 * wakeup.h
 *		Messages from committed transactions to dispatchers.
 */
#ifndef RECONCILE_WAKEUP_H
#define RECONCILE_WAKEUP_H

#include "core/wake.h"

/* The engine's wake_hook. */
extern void wakeup_send(const Wake *wake, bool prepared);

/* The engine's mark_current_segment_hook. */
extern int	wakeup_current_segment(void);

#endif							/* RECONCILE_WAKEUP_H */

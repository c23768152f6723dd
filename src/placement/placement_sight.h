/*
 * placement_sight.h
 *		What health and metrics tell of placement.
 */
#ifndef RECONCILE_PLACEMENT_SIGHT_H
#define RECONCILE_PLACEMENT_SIGHT_H

#include "datatype/timestamp.h"

/* Sessions with an open command that have found no host with room since before then, of those that wait at most max + 1. */
extern int64 placement_waiting(TimestampTz before, int max);

/* Offers whose time was over before then, and that nobody has ended, at most max + 1. */
extern int64 placement_offers_overdue(TimestampTz before, int max);

#endif							/* RECONCILE_PLACEMENT_SIGHT_H */

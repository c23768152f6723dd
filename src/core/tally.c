/*
 * tally.c
 *		Where the hook lives by which events are counted.
 */
#include "postgres.h"

#include "core/tally.h"

void		(*tally_hook) (const char *reconciler_id, Tally what) = NULL;

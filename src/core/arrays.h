/*
 * arrays.h
 *		Arguments of functions that do many things at once.
 */
#ifndef RECONCILE_ARRAYS_H
#define RECONCILE_ARRAYS_H

#include "fmgr.h"

/*
 * The elements of a one-dimensional array argument; returns how many.  22004
 * NULL or a NULL element, 2202E more dimensions, 22023 more than "max" elements,
 * each naming "arg".
 */
extern int	array_arg(FunctionCallInfo fcinfo, int n, const char *arg, Oid type, int max,
					  Datum **elements);

/* The same where an element may be NULL. */
extern int	array_nulls_arg(FunctionCallInfo fcinfo, int n, const char *arg, Oid type, int max,
							Datum **elements, bool **nulls);

/* How many a call does at the most.  22004 NULL, 22023 not 1 to "max", with the hint. */
extern int	max_items_arg(FunctionCallInfo fcinfo, int n, int max, const char *hint);

/* 2202E unless two array arguments that belong together are of one length. */
extern void array_lengths_check(const char *arg, int length, const char *other, int other_length);

#endif							/* RECONCILE_ARRAYS_H */

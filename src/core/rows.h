/*
 * rows.h
 *		Results of functions that return a row, or none.
 */
#ifndef RECONCILE_ROWS_H
#define RECONCILE_ROWS_H

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

/* The only row of a function that returns a table; the value to return. */
static inline Datum
return_one_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	InitMaterializedSRF(fcinfo, 0);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	return (Datum) 0;
}

/* A value that may be NULL, as text. */
static inline Datum
text_or_null(const char *value, bool *isnull)
{
	*isnull = value == NULL;
	return value == NULL ? (Datum) 0 : CStringGetTextDatum(value);
}

#endif							/* RECONCILE_ROWS_H */

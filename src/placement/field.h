/*
 * field.h
 *		Arguments of the functions on sessions, hosts and their commands, as fields.
 *
 * Each raises 22004 for NULL and 22023 for what is refused, with the field as COLUMN.
 */
#ifndef RECONCILE_PLACEMENT_FIELD_H
#define RECONCILE_PLACEMENT_FIELD_H

#include "datatype/timestamp.h"
#include "fmgr.h"

/* A text that names somebody or something (identity_field()); NULL where it is not said. */
extern char *optional_field(FunctionCallInfo fcinfo, int n, const char *field);

/* A whole number; the hint tells the limits. */
extern int64 number_field(FunctionCallInfo fcinfo, int n, const char *field, int64 min, int64 max, const char *hint);

/* One of the words, by its place in them; the hint tells them. */
extern int	word_field(FunctionCallInfo fcinfo, int n, const char *field, const char *const *words, int nwords, const char *hint);

/* max_items of a list that is read in pages. */
extern int	page_field(FunctionCallInfo fcinfo, int n);

/* What is left until an instant, as an interval; none of one that is past. */
extern Datum remaining_datum(TimestampTz end, TimestampTz now);

/* Are they equal?  NULL is equal to NULL alone. */
extern bool same_text(const char *a, const char *b);

#endif							/* RECONCILE_PLACEMENT_FIELD_H */

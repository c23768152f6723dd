/*
 * members.h
 *		Arguments that are arrays of objects: their members, one by one.
 *
 * What no reader has asked for is refused at the end, as are members of another type:
 * 22023, with the path of the member as COLUMN.
 */
#ifndef RECONCILE_PLACEMENT_MEMBERS_H
#define RECONCILE_PLACEMENT_MEMBERS_H

#include "utils/jsonb.h"

typedef struct Members
{
	JsonbContainer *object;
	const char *array;			/* the argument */
	int			index;			/* of the object in it, from 0 */
	int			found;
} Members;

/* The array of an argument, NULL being empty; 22023 if it is none, or longer than "max". */
extern JsonbIterator *members_array(Jsonb *value, const char *array, int max, int *n);

/* Its next object. */
extern void members_next(JsonbIterator **iterator, const char *array, int index, Members *members);

/* NULL, or "missing", where it is not there, or null.  A number may be a string of its digits. */
extern char *members_text(Members *members, const char *name);
extern int64 members_int(Members *members, const char *name, int64 missing);
extern bool members_bool(Members *members, const char *name, bool missing);
extern int	members_texts(Members *members, const char *name, int max, char ***texts);

/* The same, 22004 where it is not there. */
extern char *members_need_text(Members *members, const char *name);

/* The name of a member for an error. */
extern char *members_path(const Members *members, const char *name);

/* No other members are there. */
extern void members_end(Members *members);

#endif							/* RECONCILE_PLACEMENT_MEMBERS_H */

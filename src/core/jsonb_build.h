/*
 * jsonb_build.h
 *		Objects of jsonb, made member by member.
 */
#ifndef RECONCILE_JSONB_BUILD_H
#define RECONCILE_JSONB_BUILD_H

#include "datatype/timestamp.h"
#include "utils/jsonb.h"

typedef struct JsonbBuild
{
	JsonbParseState *state;
} JsonbBuild;

extern void jsonb_begin(JsonbBuild *build);

/* NULL is the null of JSON. */
extern void jsonb_add_text(JsonbBuild *build, const char *key, const char *value);
extern void jsonb_add_int(JsonbBuild *build, const char *key, int64 value);
extern void jsonb_add_bool(JsonbBuild *build, const char *key, bool value);

/* As ISO 8601 says it, in UTC; it is finite. */
extern void jsonb_add_time(JsonbBuild *build, const char *key, TimestampTz value);
extern void jsonb_add(JsonbBuild *build, const char *key, const Jsonb *value);

/* The object, in the current memory context. */
extern Jsonb *jsonb_end(JsonbBuild *build);

#endif							/* RECONCILE_JSONB_BUILD_H */

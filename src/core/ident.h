/*
 * ident.h
 *		Identifiers as they come in from SQL: checked, and never a hash.
 */
#ifndef RECONCILE_IDENT_H
#define RECONCILE_IDENT_H

#include "fmgr.h"

#define RECONCILER_ID_MAX	48	/* bytes; also a loop's name and a metric label */
#define HOLDER_ID_MAX		256 /* bytes */
#define ENTITY_ID_MAX		512 /* bytes; '' is the resync-all sentinel */

/*
 * Each returns the argument as a palloc'd C string, or raises 22004 (NULL) or
 * 22023 (bad value), naming "arg" and stating the limit in the hint.
 */
extern char *reconciler_id_arg(FunctionCallInfo fcinfo, int n, const char *arg);
extern char *holder_id_arg(FunctionCallInfo fcinfo, int n, const char *arg);
extern char *entity_id_arg(FunctionCallInfo fcinfo, int n, const char *arg);

/* The same checks on a C string. */
extern void reconciler_id_check(const char *value, const char *arg);
extern void holder_id_check(const char *value, const char *arg);
extern void entity_id_check(const char *value, const char *arg);

/* Is this a legal reconciler id? */
extern bool reconciler_id_valid(const char *value);

/* Is this a legal entity id?  For callers that must not fail. */
extern bool entity_id_valid(const char *value, size_t length);

/* A plain text argument: NULL is 22004, and nothing else is checked. */
extern char *text_arg(FunctionCallInfo fcinfo, int n, const char *arg);

/* Why an operator does what is recorded: 1 to 1,000 bytes.  22004, 22023. */
extern char *reason_arg(FunctionCallInfo fcinfo, int n);

/* Is there a control, zero-width or bidirectional character in it: one that a reader does not see? */
extern bool text_has_invisible(const char *value);

/* Is it empty, or white space as Unicode has it? */
extern bool text_is_blank(const char *value);

/* Five digits or upper-case letters? */
extern bool sqlstate_valid(const char *value);

/* 44 bits of hash for a lock tag: a collision only delays. */
extern uint64 ident_hash(const char *kind_scope, const char *id);

#endif							/* RECONCILE_IDENT_H */

/*
 * errors.h
 *		Our SQLSTATEs, and the refusals that every room words alike.
 */
#ifndef RECONCILE_ERRORS_H
#define RECONCILE_ERRORS_H

#include "fmgr.h"
#include "utils/elog.h"
#include "utils/errcodes.h"

#include "core/compat.h"

#define ERRCODE_LEASE_HELD			MAKE_SQLSTATE('R', 'C', '0', '0', '1')
#define ERRCODE_LEASE_LOST			MAKE_SQLSTATE('R', 'C', '0', '0', '2')
#define ERRCODE_STALE_EPOCH			MAKE_SQLSTATE('R', 'C', '0', '0', '3')
#define ERRCODE_PERMANENT_FAILURE	MAKE_SQLSTATE('R', 'C', '0', '0', '4')
#define ERRCODE_UNMINTED_EPOCH		MAKE_SQLSTATE('R', 'C', '0', '0', '5')
#define ERRCODE_FENCE_UNBOUND		MAKE_SQLSTATE('R', 'C', '0', '0', '6')
#define ERRCODE_REVISION_EXHAUSTED	MAKE_SQLSTATE('R', 'C', '0', '1', '4')
#define ERRCODE_NOT_YET_DURABLE		MAKE_SQLSTATE('R', 'C', '0', '1', '6')
#define ERRCODE_STALE_CLAIM			MAKE_SQLSTATE('R', 'C', '0', '1', '7')

/* 22004: the argument has no NULL meaning. */
compat_noreturn extern void arg_null(const char *arg);

/*
 * 22023: the value of the argument is refused.  "problem" completes the
 * sentence `argument "x" …`; "hint" states the limit and may be NULL.
 */
compat_noreturn extern void arg_invalid(const char *arg, const char *problem, const char *hint);

/* 25006 on a standby, naming the function. */
extern void require_primary(const char *function);

/* The same, and 25006 in a read-only transaction: what writes past the executor must ask itself. */
extern void require_writable(const char *function);

/* 0A000 above READ COMMITTED, where the function would not see what others have committed. */
extern void require_read_committed(const char *function);

/* 2D000 unless the procedure, which commits, was called where it may. */
extern void require_non_atomic(FunctionCallInfo fcinfo, const char *procedure);

#endif							/* RECONCILE_ERRORS_H */

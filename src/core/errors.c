/*
 * errors.c
 *		The refusals that every room words alike.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "nodes/parsenodes.h"

#include "core/errors.h"

void
arg_null(const char *arg)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("argument \"%s\" must not be null", arg),
			 errhint("Pass a value for \"%s\".", arg)));
}

void
arg_invalid(const char *arg, const char *problem, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("argument \"%s\" %s", arg, problem),
			 hint ? errhint("%s", hint) : 0));
}

void
require_primary(const char *function)
{
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s() during recovery", function),
				 errhint("Call it on the primary server.")));
}

void
require_writable(const char *function)
{
	require_primary(function);
	if (XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s() in a read-only transaction", function),
				 errhint("Begin the transaction with READ WRITE.")));
}

void
require_read_committed(const char *function)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s() works at READ COMMITTED only", function),
				 errhint("Begin the transaction with ISOLATION LEVEL READ COMMITTED.")));
}

void
require_non_atomic(FunctionCallInfo fcinfo, const char *procedure)
{
	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_TERMINATION),
				 errmsg("%s() commits, and cannot be called in a transaction block", procedure),
				 errhint("Call it on its own: CALL reconcile.%s(...).", procedure)));
}

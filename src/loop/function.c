/*
 * function.c
 *		The functions of a loop, and the role that they run as.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/syscache.h"

#include "core/compat.h"
#include "core/function.h"
#include "loop/loop.h"

static const size_t offsets[LOOP_FUNCTIONS] = {
	[FUNCTION_RECONCILER] = offsetof(LoopRules, reconciler),
	[FUNCTION_LISTER] = offsetof(LoopRules, lister),
	[FUNCTION_REPOSITORY] = offsetof(LoopRules, repository)
};

char *
loop_function(const LoopRules *rules, FunctionKind which)
{
	return (char *) rules + offsets[which];
}

void
loop_set_function(LoopRules *rules, FunctionKind which, const char *text)
{
	strlcpy(loop_function(rules, which), function_name_signature(which, text, rules->owner, "loop"), SIGNATURE_MAX);
}

const char *
loop_owner_problem(Oid owner)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(owner));
	bool		login;

	if (!HeapTupleIsValid(tuple))
		return "its owner is gone";
	login = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	ReleaseSysCache(tuple);
	if (COMPAT_OWNER_NEEDS_LOGIN && !login)
		return "its owner has no LOGIN, which this version of PostgreSQL asks for";
	if (!compat_database_connect_ok(MyDatabaseId, owner))
		return "its owner may not connect to this database";
	return NULL;
}

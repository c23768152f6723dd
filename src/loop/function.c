/*
 * function.c
 *		The reconciler function of a loop: named by text, kept as a signature.
 *
 * What the caller names is resolved at once, with his search path, and stored
 * schema-qualified.  Each run resolves the signature again and asks anew who owns
 * the function and who may execute it: it may have been made again by another.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "core/compat.h"
#include "core/errors.h"
#include "loop/loop.h"

/*
 * Splits 'name', 'schema.name' or either with '(text)' after it.  NULL if it is
 * nothing of this kind; *other_arguments tells that only the list in the
 * parentheses is not ours.  *schema is NULL where none is named.
 */
static char *
split_signature(const char *signature, char **schema, bool *other_arguments)
{
	char	   *names = pstrdup(signature);
	char	   *open = NULL;
	bool		quoted = false;
	List	   *parts;

	*schema = NULL;
	*other_arguments = false;
	for (char *p = names; *p; p++)
	{
		if (*p == '"')
			quoted = !quoted;
		else if (*p == '(' && !quoted)
		{
			open = p;
			break;
		}
	}
	if (open != NULL)
	{
		char	   *close = strrchr(open, ')');
		char	   *arguments;

		if (close == NULL || close[1 + strspn(close + 1, " \t\n\r")] != '\0')
			return NULL;
		*open = *close = '\0';
		if (!SplitIdentifierString(pstrdup(open + 1), '.', &parts) ||
			list_length(parts) < 1 || list_length(parts) > 2)
			*other_arguments = true;
		else
		{
			arguments = (char *) llast(parts);
			*other_arguments = strcmp(arguments, "text") != 0 ||
				(list_length(parts) == 2 && strcmp((char *) linitial(parts), "pg_catalog") != 0);
		}
	}
	if (!SplitIdentifierString(names, '.', &parts) || list_length(parts) < 1 || list_length(parts) > 2)
		return NULL;
	if (list_length(parts) == 2)
		*schema = (char *) linitial(parts);
	return (char *) llast(parts);
}

/* Is it f(text) returning interval or void, and a plain function? */
static bool
is_reconciler(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		good;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	good = form->prokind == PROKIND_FUNCTION && !form->proretset && form->pronargs == 1 &&
		form->proargtypes.values[0] == TEXTOID &&
		(form->prorettype == INTERVALOID || form->prorettype == VOIDOID);
	ReleaseSysCache(tuple);
	return good;
}

Oid
loop_resolve_function(const char *signature)
{
	char	   *schema;
	char	   *name;
	bool		other_arguments;
	Oid			namespace;
	Oid			function;
	Oid			types[] = {TEXTOID};

	name = split_signature(signature, &schema, &other_arguments);
	if (name == NULL || schema == NULL || other_arguments)
		return InvalidOid;
	namespace = get_namespace_oid(schema, true);
	if (!OidIsValid(namespace))
		return InvalidOid;
	function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
							   PointerGetDatum(buildoidvector(types, 1)), ObjectIdGetDatum(namespace));

	/* made anew since: a result of another type must not be read as an interval */
	return is_reconciler(function) ? function : InvalidOid;
}

LoopFunctionProblem
loop_function_problem(Oid function, Oid owner)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			function_owner;

	if (!HeapTupleIsValid(tuple))
		return LOOP_FUNCTION_GONE;
	function_owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);

	if (!compat_proc_execute_ok(function, owner))
		return LOOP_FUNCTION_NO_EXECUTE;
	if (function_owner != owner && !superuser_arg(function_owner))
		return LOOP_FUNCTION_FOREIGN;
	return LOOP_FUNCTION_OK;
}

static void
wrong_shape(void)
{
	arg_invalid("reconciler", "is not a reconciler function",
				"It takes one argument of type text and returns interval or void; it is no procedure, aggregate, window or set-returning function.");
}

/* Looks up what the caller named, with his search path. */
static Oid
find_function(const char *text)
{
	char	   *schema;
	char	   *name;
	bool		other_arguments;
	List	   *names;
	FuncCandidateList candidates;
	Oid			function = InvalidOid;

	name = split_signature(text, &schema, &other_arguments);
	if (name == NULL)
		arg_invalid("reconciler", "is not the name of a function",
					"Write it like 'app.drive' or 'app.drive(text)'.");
	names = list_make1(makeString(name));
	if (schema != NULL)
		names = lcons(makeString(schema), names);
	candidates = FuncnameGetCandidates(names, -1, NIL, false, false, false, true);
	if (candidates == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" does not exist", text),
				 errdetail("The argument \"reconciler\" names it."),
				 errhint("Write its schema if that is not in your search_path.")));
	for (FuncCandidateList c = candidates; c != NULL && !other_arguments; c = c->next)
	{
		if (c->nargs == 1 && c->args[0] == TEXTOID)
			function = c->oid;
	}
	if (!is_reconciler(function))
		wrong_shape();
	return function;
}

void
loop_set_reconciler(LoopRules *rules, const char *text)
{
	Oid			function = find_function(text);
	Oid			namespace = get_func_namespace(function);
	char	   *signature;

	if (isAnyTempNamespace(namespace))
		arg_invalid("reconciler", "is a temporary function", "It must be there for other sessions too.");
	signature = psprintf("%s(text)", quote_qualified_identifier(get_namespace_name(namespace),
																  get_func_name(function)));
	if (strlen(signature) >= SIGNATURE_MAX)
		arg_invalid("reconciler", "has too long a name",
					psprintf("With its schema, quotes and argument it is at most %d bytes.", SIGNATURE_MAX - 1));

	switch (loop_function_problem(function, rules->owner))
	{
		case LOOP_FUNCTION_OK:
			break;
		case LOOP_FUNCTION_NO_EXECUTE:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for function %s", signature),
					 errdetail("The loop's owner \"%s\" may not execute it.", GetUserNameFromId(rules->owner, false)),
					 errhint("Grant EXECUTE on the function to the owner of the loop.")));
			break;
		case LOOP_FUNCTION_FOREIGN:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("function %s belongs to another role", signature),
					 errdetail("Its owner could run anything as the loop's owner \"%s\".",
							   GetUserNameFromId(rules->owner, false)),
					 errhint("The function must belong to the loop's owner or to a superuser.")));
			break;
		case LOOP_FUNCTION_GONE:
			elog(ERROR, "cache lookup failed for function %u", function);
	}
	strlcpy(rules->reconciler, signature, sizeof(rules->reconciler));
}

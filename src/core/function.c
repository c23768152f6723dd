/*
 * function.c
 *		Users' functions that ours call: named by text, kept as signatures.
 *
 * What the caller names is resolved at once, with his search path, and stored
 * schema-qualified.  Each call resolves the signature again and asks anew who owns
 * the function and who may execute it: it may have been made again by another.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/value.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "core/compat.h"
#include "core/errors.h"
#include "core/function.h"

#define ARGUMENTS_MAX	2
#define RESULTS_MAX		2

static const struct
{
	const char *argument;		/* by which it is named */
	const char *arguments;		/* as they end a stored signature */
	int			nargs;
	Oid			types[ARGUMENTS_MAX];
	const char *names[ARGUMENTS_MAX];
	const char *kind;
	const char *shape;
	Oid			results[RESULTS_MAX];	/* any of them; none: any type */
	bool		set;
}			functions[] = {
	[FUNCTION_RECONCILER] = {
		"reconciler", "(text)", 1, {TEXTOID}, {"text"},
		"is not a reconciler function",
		"It takes one argument of type text and returns interval or void; it is no procedure, aggregate, window or set-returning function.",
		{INTERVALOID, VOIDOID}
	},
	[FUNCTION_LISTER] = {
		"lister", "()", 0, {0}, {0},
		"is not a lister function",
		"It takes no argument and returns SETOF text; it is no procedure, aggregate or window function.",
		{TEXTOID}, true
	},
	[FUNCTION_REPOSITORY] = {
		"repository", "(text,jsonb)", 2, {TEXTOID, JSONBOID}, {"text", "jsonb"},
		"is not a repository function",
		"It takes two arguments of types text and jsonb; it is no procedure, aggregate, window or set-returning function."
	},
	[FUNCTION_DISPATCHER] = {
		"dispatcher", "(jsonb)", 1, {JSONBOID}, {"jsonb"},
		"is not a dispatcher function",
		"It takes one argument of type jsonb and returns jsonb; it is no procedure, aggregate, window or set-returning function.",
		{JSONBOID}
	},
	[FUNCTION_AUTHORIZER] = {
		"authorizer", "(jsonb)", 1, {JSONBOID}, {"jsonb"},
		"is not an authorizer function",
		"It takes one argument of type jsonb and returns boolean; it is no procedure, aggregate, window or set-returning function.",
		{BOOLOID}
	}
};

/* Is the list between the parentheses the one of this kind? */
static bool
are_arguments(FunctionKind which, const char *list)
{
	List	   *types;
	ListCell   *cell;
	int			n = 0;

	if (!SplitIdentifierString(pstrdup(list), ',', &types) || list_length(types) != functions[which].nargs)
		return false;
	foreach(cell, types)
	{
		const char *type = lfirst(cell);

		if (strncmp(type, "pg_catalog.", 11) == 0)
			type += 11;
		if (strcmp(type, functions[which].names[n++]) != 0)
			return false;
	}
	return true;
}

/*
 * Splits 'name', 'schema.name' or either with the arguments after it.  NULL if
 * it is nothing of this kind; *other_arguments tells that only the list in the
 * parentheses is not that of the kind.  *schema is NULL where none is named.
 */
static char *
split_signature(FunctionKind which, const char *signature, char **schema, bool *other_arguments)
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

		if (close == NULL || close[1 + strspn(close + 1, " \t\n\r")] != '\0')
			return NULL;
		*open = *close = '\0';
		*other_arguments = !are_arguments(which, open + 1);
	}
	if (!SplitIdentifierString(names, '.', &parts) || list_length(parts) < 1 || list_length(parts) > 2)
		return NULL;
	if (list_length(parts) == 2)
		*schema = (char *) linitial(parts);
	return (char *) llast(parts);
}

/* Is it a plain function of this kind? */
static bool
has_shape(FunctionKind which, Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		good;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	good = form->prokind == PROKIND_FUNCTION && form->pronargs == functions[which].nargs &&
		form->proretset == functions[which].set;
	for (int i = 0; good && i < functions[which].nargs; i++)
		good = form->proargtypes.values[i] == functions[which].types[i];
	if (OidIsValid(functions[which].results[0]))
		good = good && (form->prorettype == functions[which].results[0] ||
						form->prorettype == functions[which].results[1]);
	ReleaseSysCache(tuple);
	return good;
}

Oid
function_resolve(FunctionKind which, const char *signature)
{
	char	   *schema;
	char	   *name;
	bool		other_arguments;
	Oid			namespace;
	Oid			function;

	name = split_signature(which, signature, &schema, &other_arguments);
	if (name == NULL || schema == NULL || other_arguments)
		return InvalidOid;
	namespace = get_namespace_oid(schema, true);
	if (!OidIsValid(namespace))
		return InvalidOid;
	function = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name),
							   PointerGetDatum(buildoidvector(functions[which].types, functions[which].nargs)),
							   ObjectIdGetDatum(namespace));

	/* made anew since: a result of another type must not be read as what it was */
	return has_shape(which, function) ? function : InvalidOid;
}

FunctionProblem
function_problem(Oid function, Oid owner)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			function_owner;

	if (!HeapTupleIsValid(tuple))
		return FUNCTION_GONE;
	function_owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);

	if (!compat_proc_execute_ok(function, owner))
		return FUNCTION_NO_EXECUTE;
	if (function_owner != owner && !superuser_arg(function_owner))
		return FUNCTION_FOREIGN;
	return FUNCTION_OK;
}

/* Looks up what the caller named, with his search path. */
static Oid
find_function(FunctionKind which, const char *text)
{
	char	   *schema;
	char	   *name;
	bool		other_arguments;
	List	   *names;
	FuncCandidateList candidates;
	Oid			function = InvalidOid;

	name = split_signature(which, text, &schema, &other_arguments);
	if (name == NULL)
		arg_invalid(functions[which].argument, "is not the name of a function",
					psprintf("Write it like 'app.f' or 'app.f%s'.", functions[which].arguments));
	names = list_make1(makeString(name));
	if (schema != NULL)
		names = lcons(makeString(schema), names);
	candidates = FuncnameGetCandidates(names, -1, NIL, false, false, false, true);
	if (candidates == NULL)
		ereport(ERROR,
				(errcode(which == FUNCTION_DISPATCHER || which == FUNCTION_AUTHORIZER ?
						 ERRCODE_INVALID_PARAMETER_VALUE : ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" does not exist", text),
				 errdetail("The argument \"%s\" names it.", functions[which].argument),
				 errhint("Write its schema if that is not in your search_path.")));
	for (FuncCandidateList c = candidates; c != NULL && !other_arguments; c = c->next)
	{
		if (c->nargs == functions[which].nargs &&
			memcmp(c->args, functions[which].types, sizeof(Oid) * c->nargs) == 0)
			function = c->oid;
	}
	if (!has_shape(which, function))
		arg_invalid(functions[which].argument, functions[which].kind, functions[which].shape);
	return function;
}

char *
function_name_signature(FunctionKind which, const char *text, Oid owner, const char *what)
{
	Oid			function = find_function(which, text);
	Oid			namespace = get_func_namespace(function);
	const char *argument = functions[which].argument;
	char	   *signature;

	if (isAnyTempNamespace(namespace))
		arg_invalid(argument, "is a temporary function", "It must be there for other sessions too.");
	signature = psprintf("%s%s", quote_qualified_identifier(get_namespace_name(namespace), get_func_name(function)),
						 functions[which].arguments);
	if (strlen(signature) >= SIGNATURE_MAX)
		arg_invalid(argument, "has too long a name",
					psprintf("With its schema, quotes and arguments it is at most %d bytes.", SIGNATURE_MAX - 1));

	switch (function_problem(function, owner))
	{
		case FUNCTION_OK:
			break;
		case FUNCTION_NO_EXECUTE:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for function %s", signature),
					 errdetail("The %s's owner \"%s\" may not execute it.", what, GetUserNameFromId(owner, false)),
					 errhint("Grant EXECUTE on the function to the owner of the %s.", what)));
			break;
		case FUNCTION_FOREIGN:
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("function %s belongs to another role", signature),
					 errdetail("Its owner could run anything as the %s's owner \"%s\".",
							   what, GetUserNameFromId(owner, false)),
					 errhint("The function must belong to the %s's owner or to a superuser.", what)));
			break;
		case FUNCTION_GONE:
			elog(ERROR, "cache lookup failed for function %u", function);
	}
	return signature;
}

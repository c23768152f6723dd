/*
 * function.c
 *		The functions of a loop: named by text, kept as signatures.
 *
 * What the caller names is resolved at once, with his search path, and stored
 * schema-qualified.  Each run resolves the signature again and asks anew who owns
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
#include "loop/loop.h"

#define ARGUMENTS_MAX	2

static const struct
{
	const char *option;
	size_t		offset;			/* in LoopRules */
	const char *arguments;		/* as they end a stored signature */
	int			nargs;
	Oid			types[ARGUMENTS_MAX];
	const char *names[ARGUMENTS_MAX];
	const char *kind;
	const char *shape;
}			functions[LOOP_FUNCTIONS] = {
	[LOOP_RECONCILER] = {
		"reconciler", offsetof(LoopRules, reconciler), "(text)", 1, {TEXTOID}, {"text"},
		"is not a reconciler function",
		"It takes one argument of type text and returns interval or void; it is no procedure, aggregate, window or set-returning function."
	},
	[LOOP_LISTER] = {
		"lister", offsetof(LoopRules, lister), "()", 0, {0}, {0},
		"is not a lister function",
		"It takes no argument and returns SETOF text; it is no procedure, aggregate or window function."
	},
	[LOOP_REPOSITORY] = {
		"repository", offsetof(LoopRules, repository), "(text,jsonb)", 2, {TEXTOID, JSONBOID}, {"text", "jsonb"},
		"is not a repository function",
		"It takes two arguments of types text and jsonb; it is no procedure, aggregate, window or set-returning function."
	}
};

char *
loop_function(const LoopRules *rules, LoopFunction which)
{
	return (char *) rules + functions[which].offset;
}

/* Is the list between the parentheses the one of this kind? */
static bool
are_arguments(LoopFunction which, const char *list)
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
split_signature(LoopFunction which, const char *signature, char **schema, bool *other_arguments)
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
has_shape(LoopFunction which, Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc form;
	bool		good;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_proc) GETSTRUCT(tuple);
	good = form->prokind == PROKIND_FUNCTION && form->pronargs == functions[which].nargs &&
		form->proretset == (which == LOOP_LISTER);
	for (int i = 0; good && i < functions[which].nargs; i++)
		good = form->proargtypes.values[i] == functions[which].types[i];
	if (which == LOOP_RECONCILER)
		good = good && (form->prorettype == INTERVALOID || form->prorettype == VOIDOID);
	else if (which == LOOP_LISTER)
		good = good && form->prorettype == TEXTOID;
	ReleaseSysCache(tuple);
	return good;
}

Oid
loop_resolve_function(LoopFunction which, const char *signature)
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

/* Looks up what the caller named, with his search path. */
static Oid
find_function(LoopFunction which, const char *text)
{
	char	   *schema;
	char	   *name;
	bool		other_arguments;
	List	   *names;
	FuncCandidateList candidates;
	Oid			function = InvalidOid;

	name = split_signature(which, text, &schema, &other_arguments);
	if (name == NULL)
		arg_invalid(functions[which].option, "is not the name of a function",
					psprintf("Write it like 'app.f' or 'app.f%s'.", functions[which].arguments));
	names = list_make1(makeString(name));
	if (schema != NULL)
		names = lcons(makeString(schema), names);
	candidates = FuncnameGetCandidates(names, -1, NIL, false, false, false, true);
	if (candidates == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function \"%s\" does not exist", text),
				 errdetail("The argument \"%s\" names it.", functions[which].option),
				 errhint("Write its schema if that is not in your search_path.")));
	for (FuncCandidateList c = candidates; c != NULL && !other_arguments; c = c->next)
	{
		if (c->nargs == functions[which].nargs &&
			memcmp(c->args, functions[which].types, sizeof(Oid) * c->nargs) == 0)
			function = c->oid;
	}
	if (!has_shape(which, function))
		arg_invalid(functions[which].option, functions[which].kind, functions[which].shape);
	return function;
}

void
loop_set_function(LoopRules *rules, LoopFunction which, const char *text)
{
	Oid			function = find_function(which, text);
	Oid			namespace = get_func_namespace(function);
	const char *option = functions[which].option;
	char	   *signature;

	if (isAnyTempNamespace(namespace))
		arg_invalid(option, "is a temporary function", "It must be there for other sessions too.");
	signature = psprintf("%s%s", quote_qualified_identifier(get_namespace_name(namespace), get_func_name(function)),
						 functions[which].arguments);
	if (strlen(signature) >= SIGNATURE_MAX)
		arg_invalid(option, "has too long a name",
					psprintf("With its schema, quotes and arguments it is at most %d bytes.", SIGNATURE_MAX - 1));

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
	strlcpy(loop_function(rules, which), signature, SIGNATURE_MAX);
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

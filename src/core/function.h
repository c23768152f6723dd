/*
 * function.h
 *		Users' functions that ours call.
 */
#ifndef RECONCILE_FUNCTION_H
#define RECONCILE_FUNCTION_H

#define SIGNATURE_MAX	320		/* bytes of a stored signature, with its end */

/* Each is named by an argument of that name. */
typedef enum FunctionKind
{
	FUNCTION_RECONCILER,		/* f(text) returning interval or void */
	FUNCTION_LISTER,			/* f() returning setof text */
	FUNCTION_REPOSITORY,		/* f(text, jsonb) returning anything */
	FUNCTION_DISPATCHER,		/* f(jsonb) returning jsonb */
	FUNCTION_AUTHORIZER			/* f(jsonb) returning boolean */
} FunctionKind;

/*
 * The function's oid by its stored signature; InvalidOid if it is gone, or is
 * no longer of its kind.  No error, no rights needed.
 */
extern Oid	function_resolve(FunctionKind which, const char *signature);

/* What stands against running the function as the owner of what names it. */
typedef enum FunctionProblem
{
	FUNCTION_OK,
	FUNCTION_GONE,
	FUNCTION_NO_EXECUTE,		/* the owner may not execute it */
	FUNCTION_FOREIGN			/* it is neither his nor a superuser's: its owner could run anything as him */
} FunctionProblem;

extern FunctionProblem function_problem(Oid function, Oid owner);

/*
 * The signature of what the caller names, by his search path, for a WHAT ("loop")
 * of that owner: palloc'd.  22023, 42501 or 42883, naming the argument.
 */
extern char *function_name_signature(FunctionKind which, const char *text, Oid owner, const char *what);

#endif							/* RECONCILE_FUNCTION_H */

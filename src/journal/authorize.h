/*
 * authorize.h
 *		Who may do what for a tenant.
 */
#ifndef RECONCILE_AUTHORIZE_H
#define RECONCILE_AUTHORIZE_H

/* What may be granted beyond actions, whose names are permissions too. */
#define PERMISSION_VIEW			"view"
#define PERMISSION_AUDIT_VIEW	"audit_view"
#define PERMISSION_DISPATCH		"dispatch"	/* claim, acknowledge, complete */
#define PERMISSION_RESOLVE		"resolve"
#define PERMISSION_REPORT		"report"	/* what a worker has applied */
#define PERMISSION_RETENTION	"retention_configure"

typedef struct AccessRequest
{
	const char *tenant_id;
	const char *permission;
	const char *target_kind;	/* '' = the tenant as a whole: what is granted for any kind */
	const char *target_name;
	const char *actor;			/* for the authorizer alone; may be NULL */
} AccessRequest;

/*
 * May the current role, as it is granted and as the authorizer, if there is one,
 * agrees?  Without a grant no; a denial overrides; an error of the authorizer is a no.
 * Superusers and the owner of our schema may anything, and the authorizer is not asked.
 */
extern bool command_allowed(const AccessRequest *request);

/* The same by grants alone: for rows that are read. */
extern bool command_granted(const char *tenant_id, const char *permission, const char *target_kind, const char *target_name);

/* Is there a grant that names this target: one for whatever name does not count. */
extern bool command_granted_by_name(const char *tenant_id, const char *permission, const char *target_kind, const char *target_name);

/* May the current role do it for any target of the tenant? */
extern bool command_granted_somewhere(const char *tenant_id, const char *permission);

/* The same, if the authorizer agrees as well, who is told of no target. */
extern bool command_allowed_somewhere(const char *tenant_id, const char *permission);

/* May the current role do anything for the tenant, whatever it is? */
extern bool command_tenant_granted(const char *tenant_id);

/*
 * The tenants for which the current role has been granted the permission, for
 * some target; NULL, for who may anything.
 */
extern char **command_tenants(const char *permission, int *n);

/*
 * The role's grants of a permission for a tenant, as arrays of kinds and names ('' =
 * any) and of whether they allow: for plans that ask for many rows.  False: it needs none.
 */
#define GRANT_ROWS(kinds, names, allows) \
	"ROWS FROM (pg_catalog.unnest(" kinds "), pg_catalog.unnest(" names "), pg_catalog.unnest(" allows "))" \
	" AS g (kind, name, allow)"
#define GRANT_COVERS_ROW(row) \
	"(g.kind OPERATOR(pg_catalog.=) '' OR g.kind OPERATOR(pg_catalog.=) " row ".target_kind)" \
	" AND (g.name OPERATOR(pg_catalog.=) '' OR g.name OPERATOR(pg_catalog.=) " row ".target_name)"

/* Is a row's target covered by the arrays, which are NULL for who needs no grant? */
#define GRANT_COVERS(row, kinds, names, allows) \
	"(" kinds " IS NULL OR (EXISTS (SELECT FROM " GRANT_ROWS(kinds, names, allows) \
	" WHERE g.allow AND " GRANT_COVERS_ROW(row) ")" \
	" AND NOT EXISTS (SELECT FROM " GRANT_ROWS(kinds, names, allows) \
	" WHERE NOT g.allow AND " GRANT_COVERS_ROW(row) ")))"

extern bool command_grant_arrays(const char *tenant_id, const char *permission, Datum *kinds, Datum *names, Datum *allows);

/* Does the application's function, if there is one, agree? */
extern bool authorizer_agrees(const AccessRequest *request);

/* Is it one of the permissions that are no actions? */
extern bool permission_is_ours(const char *name);

/* Has anybody been granted anything for the tenant, or was there anything to note of it? */
extern bool command_tenant_known(const char *tenant_id);

#endif							/* RECONCILE_AUTHORIZE_H */

/*
 * access.h
 *		Who may do what: capabilities, by reconciler id.
 *
 * EXECUTE is granted with a capability; the check in each function narrows it
 * to the reconciler ids in the grant's scope.  The owner of a loop has every
 * capability on it; superusers and the schema's owner have all.
 */
#ifndef RECONCILE_ACCESS_H
#define RECONCILE_ACCESS_H

typedef enum Capability
{
	CAP_OBSERVE,
	CAP_TRIGGER,
	CAP_LEASE,
	CAP_FENCE,
	CAP_WORK,
	CAP_COMMAND,
	CAP_PLACE,
	CAP_OPERATE,
	CAP_DEFINE
} Capability;

/* Does the current role have the capability on this reconciler id? */
extern bool access_allowed(Capability capability, const char *reconciler_id);

/* The same, or 42501 naming the reconciler id. */
extern void access_require(Capability capability, const char *reconciler_id);

/* The same for all reconciler ids. */
extern void access_require_all(Capability capability);

/* 42501 unless the current role is a superuser or the owner of our schema. */
extern void access_require_administrator(void);

/* Gives a role EXECUTE on what the capability allows, without a grant on any reconciler id. */
extern void access_grant_functions(Oid role, Capability capability);

/* Gives it SELECT on the relations of the journal that a permission, view or audit_view, is about. */
extern void access_grant_journal(Oid role, const char *permission);

/* Another number each time that roles, or what they may do, may have changed. */
extern uint64 access_generation(void);

/* A grant, or who owns a loop, changed: what sessions keep of it is void when this commits. */
extern void access_changed(void);

/* Grants EXECUTE on what a loop's owner may call, when a loop gets that owner. */
extern void access_grant_owner(Oid role);

#endif							/* RECONCILE_ACCESS_H */

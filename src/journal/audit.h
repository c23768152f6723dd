/*
 * audit.h
 *		What was done for each tenant, in a chain of hashes.
 */
#ifndef RECONCILE_AUDIT_H
#define RECONCILE_AUDIT_H

#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "journal/digest.h"

#define AUDIT_HASH_VERSION	1

/* Where a chain begins that was pruned: behind which event, and how old that and those before were. */
typedef struct AuditAnchor
{
	int64		sequence;		/* 0 = nothing was pruned */
	uint8		hash[DIGEST_BYTES];
	TimestampTz pruned_through;
} AuditAnchor;

/* A step; what does not apply is NULL. */
typedef struct AuditEvent
{
	const char *tenant_id;
	const char *event;			/* what happened: a status, or denied, conflict, resolved ... */
	TimestampTz at;
	const char *command_id;
	const char *idempotency_key;
	const char *actor;
	const char *authentication_method;
	const char *action;
	const char *target_kind;
	const char *target_name;
	const char *reason;
	const Jsonb *options;
	const uint8 *fingerprint;
	const char *failure;
	const Jsonb *detail;		/* what is of this kind of event alone */
	const AuditAnchor *anchor;	/* of a pruning: the chain begins there when this commits */
} AuditEvent;

/*
 * Notes an event of this transaction, with the calling role; it gets its place in
 * the tenant's chain, and its row, when this commits, and vanishes with the
 * subtransaction that noted it.
 */
extern void audit_note(const AuditEvent *event);

/*
 * Something was refused that is no event, since nobody knows its tenant: the
 * transaction is as if it were one, or whoever asked would find that out.
 */
extern void audit_pass_over(void);

/* Has this transaction noted an event of the tenant, which is not in its chain yet? */
extern bool audit_noted(const char *tenant_id);

/* Error where the end of the tenant's chain cannot be appended to; else that is found at COMMIT. */
extern void audit_check(const char *tenant_id);

/* The anchor that this transaction has noted for the tenant last; false: none. */
extern bool audit_noted_anchor(const char *tenant_id, AuditAnchor *anchor);

/*
 * Deletes the oldest events of a tenant, as long as they are older than "before"
 * and of no command that is unfinished or unresolved, at most "max".  The anchor is
 * to be behind them: it goes with the event of the pruning.  Returns how many, or -1
 * where the chain is broken.  Waits for others who prune, and keeps nobody from
 * adding to the chain.
 */
extern int64 audit_prune(const char *tenant_id, TimestampTz before, int max, AuditAnchor *anchor);

/* As the event of the pruning has it, under the name "anchor". */
extern Jsonb *audit_anchor_jsonb(const AuditAnchor *anchor);

/* Registers the transaction callbacks; once, from _PG_init(). */
extern void audit_init(void);

#endif							/* RECONCILE_AUDIT_H */

/*
 * audit_verify.h
 *		A verification of a tenant's audit, as it goes on.
 */
#ifndef RECONCILE_AUDIT_VERIFY_H
#define RECONCILE_AUDIT_VERIFY_H

#include "utils/snapshot.h"

#include "journal/audit.h"

#define AUDIT_VERIFY_PAGE	1000	/* rows that are read together */

typedef struct Verify
{
	const char *tenant_id;
	MemoryContext context;		/* of what is kept to its end */
	Snapshot	snapshot;
	/* the head as it is stored */
	int64		sequence;
	uint8		hash[DIGEST_BYTES];
	AuditAnchor anchor;
	Jsonb	   *pruned;			/* what the last event of a pruning says; NULL = there is none */
	/* the head that the caller has kept; 0 = none */
	int64		kept_sequence;
	uint8		kept_hash[DIGEST_BYTES];
	bool		kept_met;
	/* the answer */
	const char *outcome;		/* NULL: nothing is wrong so far */
	const char *detail;
	int64		bad_sequence;	/* 0 = of none */
	int64		events;
} Verify;

/* Something is wrong: what is found first is what is answered. */
extern void verify_found(Verify *verify, const char *outcome, int64 sequence, const char *detail);

/* Are commands and resolutions as their events have them? */
extern void verify_told(Verify *verify);

#endif							/* RECONCILE_AUDIT_VERIFY_H */

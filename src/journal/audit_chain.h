/*
 * audit_chain.h
 *		The rows of reconcile.audit_event, and how each is hashed with the one before.
 */
#ifndef RECONCILE_AUDIT_CHAIN_H
#define RECONCILE_AUDIT_CHAIN_H

#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "journal/digest.h"

/* All but the hash, in the order in which they are hashed. */
#define AUDIT_COLUMNS \
	"tenant_id, sequence, event, happened_at, command_id, idempotency_key, actor, role_name," \
	" session_role, authentication_method, action, target_kind, target_name, reason, options, fingerprint, failure," \
	" detail, home, hash_version"

#define AUDIT_NCOLUMNS	20

typedef struct AuditRow
{
	char	   *tenant_id;
	int64		sequence;
	char	   *event;
	TimestampTz happened_at;
	char	   *command_id;		/* from here on NULL where nothing applies */
	char	   *idempotency_key;
	char	   *actor;
	char	   *role_name;		/* never NULL */
	char	   *session_role;	/* never NULL */
	char	   *authentication_method;
	char	   *action;
	char	   *target_kind;
	char	   *target_name;
	char	   *reason;
	Jsonb	   *options;
	uint8	   *fingerprint;	/* DIGEST_BYTES */
	char	   *failure;
	Jsonb	   *detail;
	const char *home;
	int			hash_version;
	uint8		hash[DIGEST_BYTES];
} AuditRow;

/* The values of AUDIT_COLUMNS; returns how many. */
extern int	audit_row_values(const AuditRow *row, Datum *values, char *nulls);

/* The row of the last result of a plan that selects AUDIT_COLUMNS and the hash. */
extern void audit_row_read(int n, AuditRow *row);

/* Its hash after the hash "before". */
extern void audit_row_hash(const AuditRow *row, const uint8 *before, uint8 *hash);

/* Holds the chain of a tenant until this transaction is over. */

extern bytea *audit_hash_datum(const uint8 *hash);

/* False: it has another length than a hash. */
extern bool audit_hash_copy(Datum value, uint8 *hash);

#endif							/* RECONCILE_AUDIT_CHAIN_H */

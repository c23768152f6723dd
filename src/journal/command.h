/*
 * command.h
 *		The rows of reconcile.command, and the rules of their states.
 */
#ifndef RECONCILE_COMMAND_H
#define RECONCILE_COMMAND_H

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "journal/audit.h"
#include "journal/envelope.h"

typedef enum CommandStatus
{
	COMMAND_PENDING,
	COMMAND_DISPATCHED,
	COMMAND_ACKNOWLEDGED,
	/* terminal from here on */
	COMMAND_SUCCEEDED,
	COMMAND_FAILED,
	COMMAND_UNSUPPORTED,
	COMMAND_TIMED_OUT,
	COMMAND_PARTIAL,
	COMMAND_UNKNOWN,
	COMMAND_CANCELED
} CommandStatus;

static inline bool
command_is_terminal(CommandStatus status)
{
	return status >= COMMAND_SUCCEEDED;
}

extern const char *command_status_name(CommandStatus status);

/* False: it is none. */
extern bool command_status_find(const char *name, CommandStatus *status);

/* What may come to a command. */
typedef enum CommandStep
{
	STEP_CLAIM,					/* somebody takes it out into the world */
	STEP_ACKNOWLEDGE,			/* a worker has it */
	STEP_COMPLETE,				/* a worker says what became of it */
	STEP_CANCEL,				/* who gave it takes it back */
	STEP_EXPIRE,				/* nobody claimed it by its deadline */
	STEP_LAPSE					/* who claimed it did not answer by the end of his claim */
} CommandStep;

/* May the step come in this state? */
extern bool command_step_legal(CommandStatus status, CommandStep step);

/* Failures that are ours; those of workers pass as they are. */
#define FAILURE_DISPATCH_FAILED			"dispatch_failed"
#define FAILURE_OUTCOME_UNKNOWN			"outcome_unknown"
#define FAILURE_INVALID_RESULT			"invalid_dispatch_result"
#define FAILURE_DEADLINE_EXCEEDED		"deadline_exceeded"
#define FAILURE_CANCELED				"canceled"
#define FAILURE_DATA_PLANE_UNAVAILABLE	"data_plane_unavailable"

typedef struct Command
{
	char	   *tenant_id;
	char	   *idempotency_key;
	char	   *command_id;
	uint8		fingerprint[DIGEST_BYTES];
	char	   *action;
	char	   *target_kind;
	char	   *target_name;
	char	   *reason;
	Jsonb	   *options;
	char	   *actor;
	char	   *authentication_method;
	TimestampTz deadline;
	CommandStatus status;
	const char *failure;		/* NULL: none */
	int64		desired_revision;	/* -1 = it means no state */
	char	   *claim_token;	/* NULL: it was never claimed */
	TimestampTz claim_expires_at;
	FullTransactionId claim_xid;
	char	   *worker_id;
	char	   *protocol;
	int			capability_available;	/* -1 = not said */
	TimestampTz worker_completed_at;	/* DT_NOBEGIN = not said */
} Command;

/* What a command was admitted with beside what an audit event has columns for. */
typedef struct CommandTerms
{
	const char *mode;
	bool		confirmed;
	const char *capability;
	TimestampTz requested_at;	/* DT_NOBEGIN = not said */
	TimestampTz deadline;
	int64		desired_revision;	/* -1 = it means no state */
} CommandTerms;

/* As the event of its admission has them. */
extern Jsonb *command_terms_jsonb(const CommandTerms *terms);

/* Nobody else admits or prunes the key until this transaction is over.  True: it has waited. */
extern bool command_lock_key(const char *tenant_id, const char *idempotency_key);

/* The same; false: somebody else is at it. */
extern bool command_try_lock_key(const char *tenant_id, const char *idempotency_key);

/* The same for an id that the caller chose; after its key. */
extern void command_lock_id(const char *tenant_id, const char *command_id);

/* Is it that of a command, or was it of one that was pruned?  With the lock on it. */
extern bool command_id_is_used(const char *tenant_id, const char *command_id);

/* With the newest snapshot; false: there is none. */
extern bool command_read_by_key(const char *tenant_id, const char *idempotency_key, Command *command);
extern bool command_read(const char *tenant_id, const char *command_id, Command *command);

/* The same, with the row locked. */
extern bool command_lock(const char *tenant_id, const char *command_id, Command *command);

/* The columns of the row in "values", in the order of COMMAND_COLUMNS, from row n of the last result. */
#define COMMAND_COLUMNS \
	"c.tenant_id, c.idempotency_key, c.command_id, c.fingerprint, c.action, c.target_kind, c.target_name, c.reason," \
	" c.options, c.actor, c.authentication_method, c.deadline, c.status, c.failure, c.desired_revision, c.claim_token," \
	" c.claim_expires_at, c.claim_xid, c.worker_id, c.protocol, c.capability_available, c.worker_completed_at"

#define COMMAND_NCOLUMNS	22

extern void command_from_row(int n, MemoryContext context, Command *command);

/* Notes how a command was asked for, with all that its caller said. */
extern void command_audit_envelope(const Command *command, const char *event, const Jsonb *detail, TimestampTz at);

/* Notes what came to a command. */
extern void command_audit(const Command *command, const char *event, const char *reason, const Jsonb *detail, TimestampTz at);

/*
 * Notes that somebody asked for a step of what is not his or is not there, which look
 * alike, or with a token that is not that of the claim.
 */
extern void command_audit_denied(const char *tenant_id, const char *command_id, const char *step);

/* A new id: a ULID in lower case. */
extern char *command_mint_id(TimestampTz at);

#endif							/* RECONCILE_COMMAND_H */

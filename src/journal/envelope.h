/*
 * envelope.h
 *		A command as its caller sends it: checked, and known again.
 */
#ifndef RECONCILE_ENVELOPE_H
#define RECONCILE_ENVELOPE_H

#include "datatype/timestamp.h"
#include "fmgr.h"
#include "utils/jsonb.h"

#include "core/compat.h"
#include "journal/digest.h"

#define IDENTITY_MAX			256 /* bytes of tenants, keys, actors, targets, workers ... */
#define FAILURE_MAX				64	/* bytes */
#define COMMAND_REASON_MAX		1024	/* bytes */
#define COMMAND_OPTIONS_MAX		65536	/* bytes, as jsonb */
#define COMMAND_DEADLINE_MAX_MS (300 * 1000)
#define FINGERPRINT_VERSION		1

typedef struct Envelope
{
	char	   *tenant_id;
	char	   *idempotency_key;
	char	   *command_id;		/* NULL: to be minted */
	char	   *actor;
	char	   *authentication_method;
	char	   *reason;
	char	   *action;
	char	   *capability;
	char	   *target_kind;
	char	   *target_name;
	Jsonb	   *options;		/* an object */
	bool		confirmed;
	int64		deadline_ms;	/* from its admission */
	int64		expected_revision;	/* of the desired state; -1 = any */
	TimestampTz requested_at;	/* as the caller says; DT_NOBEGIN = he does not */
} Envelope;

/*
 * What is sent of a field is refused: 22023, or 22004 for NULL, with the field as
 * COLUMN and the problem as DETAIL.  The hint may be NULL.
 */
compat_noreturn extern void field_invalid(const char *field, const char *problem, const char *hint);
compat_noreturn extern void field_null(const char *field);

/*
 * A text that names somebody or something: 1 to 256 bytes, not blank, without
 * characters that cannot be seen.
 */
extern char *identity_field(FunctionCallInfo fcinfo, int n, const char *field);
extern void identity_check(const char *value, const char *field);

/* Milliseconds of an interval of at most max_ms; "zero": it may be 0. */
extern int64 interval_field(FunctionCallInfo fcinfo, int n, const char *field, bool zero, int64 max_ms, const char *hint);

/* Why something is done: 1 to 1,024 bytes, not blank. */
extern char *command_reason_field(FunctionCallInfo fcinfo, int n, const char *field);

/*
 * The arguments of accept_command(), in the order in which fields are refused; what
 * needs a table comes between the parts: is the action known, the kind of target, and
 * does the one apply to the other?
 */
extern void envelope_sender_args(FunctionCallInfo fcinfo, Envelope *envelope);	/* to the action */
extern void envelope_target_args(FunctionCallInfo fcinfo, Envelope *envelope);	/* capability, kind */
extern void envelope_name_args(FunctionCallInfo fcinfo, Envelope *envelope);	/* name, times */
extern void envelope_option_args(FunctionCallInfo fcinfo, Envelope *envelope);	/* the rest */

/*
 * What the built-in actions ask of options and confirmation; "builtin" is false
 * for an action of the application, whose options are its own.  "confirm" is the
 * action's rule.
 */
extern void envelope_check_options(const Envelope *envelope, bool builtin, bool confirm);

/* [a-z0-9][a-z0-9_.-]*, at most 64 bytes: what may stand as a failure. */
extern bool failure_code_valid(const char *code);

/* major.minor: 1 to 65535 and 0 to 65535. */
extern bool protocol_valid(const char *version);

/* A member of the options, or of the object "group" in them; NULL where it is not there. */
extern JsonbValue *options_member(const Jsonb *options, const char *group, const char *member);

/* The same as text, or as a number; NULL, or "missing", where it is not there. */
extern char *options_text(const Jsonb *options, const char *group, const char *member);
extern int	options_int(const Jsonb *options, const char *group, const char *member, int missing);

/*
 * By it an envelope is known again: all that the caller decides, but for the
 * command's id and the time that he says.
 */
extern void envelope_fingerprint(const Envelope *envelope, uint8 fingerprint[DIGEST_BYTES]);

#endif							/* RECONCILE_ENVELOPE_H */

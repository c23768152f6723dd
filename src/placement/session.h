/*
 * session.h
 *		Sessions: what they are to be, and what their hosts have said of them.
 *
 * The row of a session is the lock on everything of it: who decides about a session
 * has it locked, and reads the rest after that.
 */
#ifndef RECONCILE_SESSION_H
#define RECONCILE_SESSION_H

#include "datatype/timestamp.h"
#include "fmgr.h"

#define SESSION_LABEL_MAX		256 /* bytes of ids, labels, versions */
#define WORKLOAD_MAX			16384	/* bytes */
#define SESSION_LEASE_MAX		32	/* bytes of the reconciler id of a session's lease, with its end */

typedef struct SessionKey
{
	char	   *tenant_id;
	char	   *session_id;
} SessionKey;

/* What a factory wants of a session. */
typedef struct SessionDesired
{
	char	   *placement;		/* pooled, dedicated */
	char	   *runtime_compatibility_id;	/* NULL: not said */
	char	   *workload_version;	/* NULL: no workload */
	bytea	   *workload;
} SessionDesired;

typedef struct Session
{
	SessionKey	key;
	int64		number;
	char	   *agent_id;
	SessionDesired desired;
	char	   *desired_key;
	int64		generation;
	int64		revision;
	char	   *launch_version; /* of its creator; NULL: none */
	bytea	   *launch_workload;
	TimestampTz created_at;

	/* as its hosts say; revision 0: none has said anything */
	int64		observed_revision;
	int64		observed_epoch; /* the highest that has written */
	int64		journal_seq;
	int64		checkpoint_seq; /* 0: none */
} Session;

/* The arguments tenant_id and session_id, the first two of most functions. */
extern void session_key_args(FunctionCallInfo fcinfo, SessionKey *key);

/* The argument placement, and runtime_compatibility_id with workload_version and workload behind it. */
extern void session_desired_args(FunctionCallInfo fcinfo, int placement, int runtime, SessionDesired *desired);

/* With the newest snapshot; false: there is none.  Everything in the current memory context. */
extern bool session_read(const SessionKey *key, Session *session);
extern bool session_read_number(int64 number, Session *session);

/* The same, with the row of the session locked until this transaction is over. */
extern bool session_lock(const SessionKey *key, Session *session);

/* The same; false also where somebody else has it. */
extern bool session_try_lock(const SessionKey *key, Session *session, bool *busy);

/* May the current role see it?  A factory sees all, a host those that it has now. */
extern bool session_may_see(const SessionKey *key);

/* The reconciler id of its lease: "session:<number>". */
extern void session_lease_id(int64 number, char id[SESSION_LEASE_MAX]);

/* Something about it has changed: it is looked at when this commits, if there is the loop for it. */
extern void session_mark(int64 number, TimestampTz due_at);

/* Has it no workload any more, on purpose?  A first generation without one is none that was taken away. */
extern bool session_is_released(const Session *session);

/* Does it start anew, or from what it left? */
extern const char *session_mode(const Session *session);

/* ----------------------------------------------------------------
 * Desired states
 * ----------------------------------------------------------------
 */

typedef enum DesiredWrite
{
	DESIRED_WRITE_APPLIED,
	DESIRED_WRITE_UNCHANGED,	/* it is so already */
	DESIRED_WRITE_EXHAUSTED		/* it has no generation left */
} DesiredWrite;

/*
 * What is wanted of a session that is locked is written, as its next generation,
 * unless it is so already: the key says whose wish it was.
 */
extern DesiredWrite session_desire(Session *session, const SessionDesired *desired, const char *key);

/* The same, also where it is so already. */
extern DesiredWrite session_replace_desired(Session *session, const SessionDesired *desired, const char *key);

/* Are the two the same wish? */
extern bool session_desired_equal(const SessionDesired *a, const SessionDesired *b);

/* The key of a wish that somebody has without a key of his own: a function of it alone. */
extern char *session_desired_key(const SessionKey *key, const SessionDesired *desired);

/* The key of the revival of a released session, whose generation it tells. */
extern char *session_revive_key(const SessionKey *key, const SessionDesired *desired, int64 generation);

/* The name of the workload of a generation: at most 63 characters of a DNS label. */
extern char *session_workload_name(const Session *session, int64 generation);

/* By it a host knows an attachment again, whichever host it was offered to. */
extern char *session_attach_key(const char *tenant_id, const char *session_id, const char *agent_id,
								const char *runtime_compatibility_id, const char *mode, int64 generation);

#endif							/* RECONCILE_SESSION_H */

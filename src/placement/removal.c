/*
 * removal.c
 *		How the workload of a dedicated session is taken away.
 *
 *		drain asked for --> answered --> decided, and fenced --> deleted --> its end recorded
 *
 * A workload may go when its host was seen to have let the session go, or when what has
 * become of it is decided otherwise; that is stored before anything is deleted, and the
 * session is registered nowhere from then on.  Its lease is left to run out: nobody
 * knows when a host that was not drained has really stopped.  The session's row is the
 * lock on all of it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/workload_row.h"

#define DRAIN_MAX_MS	(INT64CONST(24) * 3600 * 1000)

enum
{
	PLAN_READ_END,
	PLAN_WRITE_END,
	PLAN_FORGET
};

#define OF_SESSION "tenant_id OPERATOR(pg_catalog.=) $1 AND session_id OPERATOR(pg_catalog.=) $2"

static SqlPlan plans[] = {
	[PLAN_READ_END] = {
		"SELECT generation, kind, reason, lease_epoch, recorded_at FROM reconcile.session_termination WHERE " OF_SESSION,
		2, {TEXTOID, TEXTOID}
	},
	[PLAN_WRITE_END] = {
		"INSERT INTO reconcile.session_termination (tenant_id, session_id, generation, kind, reason, lease_epoch, recorded_at)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (tenant_id, session_id) DO UPDATE SET generation = $3,"
		" kind = $4, reason = $5, lease_epoch = $6, recorded_at = $7",
		7, {TEXTOID, TEXTOID, INT8OID, TEXTOID, TEXTOID, INT8OID, TIMESTAMPTZOID}
	},
	[PLAN_FORGET] = {
		"DELETE FROM reconcile.session_workload WHERE " OF_SESSION " AND generation OPERATOR(pg_catalog.<=) $3",
		3, {TEXTOID, TEXTOID, INT8OID}
	}
};

/* ----------------------------------------------------------------
 * The decision: a pure function over captured facts
 * ----------------------------------------------------------------
 */

typedef enum Match
{
	ANY,
	NO,
	YES
} Match;

typedef struct RemovalFacts
{
	const char *state;
	const char *answer;			/* of the drain; NULL: none */
	bool		wanted;			/* it is the workload to have */
	bool		routed;			/* its host has the session, now */
	bool		asked;			/* for the drain */
	bool		drained;		/* the host was seen to have let it go, or says so */
	bool		had_session;	/* when the drain was asked for */
	bool		late;			/* the drain's deadline is over */
} RemovalFacts;

typedef struct RemovalRule
{
	const char *state;			/* NULL: any */
	const char *answer;
	Match		wanted;
	Match		routed;
	Match		asked;
	Match		drained;
	Match		had_session;
	Match		late;
	const char *outcome;
	const char *kind;
	const char *reason;
} RemovalRule;

/* First match wins. */
static const RemovalRule rules[] = {
	/* 1, 2: somebody else, or it itself, has ended it: nothing graceful about it */
	{"terminating", NULL, ANY, ANY, ANY, ANY, ANY, ANY, "yes", "forced", "platform_deleted"},
	{"exited", NULL, ANY, ANY, ANY, ANY, ANY, ANY, "yes", "forced", "workload_terminated"},
	/* 3: nobody asks for it to go */
	{NULL, NULL, YES, ANY, ANY, ANY, ANY, ANY, "wanted", NULL, NULL},
	/* 4: it has no session, and was never asked */
	{NULL, NULL, NO, NO, NO, ANY, ANY, ANY, "yes", "forced", "drain_refused"},
	/* 5: it has one, and was never asked */
	{NULL, NULL, NO, YES, NO, ANY, ANY, ANY, "not_drained", NULL, NULL},
	/* 6, 7: it let its session go; where it had none there was nothing to be graceful about */
	{NULL, NULL, NO, ANY, YES, YES, YES, ANY, "yes", "graceful", NULL},
	{NULL, NULL, NO, ANY, YES, YES, NO, ANY, "yes", "forced", "drain_refused"},
	/* 8: it cannot */
	{NULL, "unsupported", NO, ANY, YES, NO, ANY, ANY, "yes", "forced", "drain_refused"},
	/* 9, 10: it would not, and has no session any more or no time left */
	{NULL, "refused", NO, NO, YES, NO, ANY, ANY, "yes", "forced", "drain_refused"},
	{NULL, "refused", NO, ANY, YES, NO, ANY, YES, "yes", "forced", "drain_refused"},
	/* 11: its time is over */
	{NULL, NULL, NO, ANY, YES, NO, ANY, YES, "yes", "forced", "drain_timeout"},
	/* 12: it is gone from the registry without a word: ask again how the drain stands */
	{NULL, NULL, NO, NO, YES, NO, ANY, NO, "undecided", NULL, NULL},
	/* 13: wait for it */
	{NULL, NULL, NO, YES, YES, NO, ANY, NO, "not_drained", NULL, NULL}
};

static bool
matches(Match wanted, bool fact)
{
	return wanted == ANY || (wanted == YES) == fact;
}

static bool
is_text(const char *wanted, const char *fact)
{
	return wanted == NULL || (fact != NULL && strcmp(wanted, fact) == 0);
}

static const RemovalRule *
removal_decide(const RemovalFacts *facts)
{
	for (int i = 0; i < lengthof(rules); i++)
	{
		const RemovalRule *rule = &rules[i];

		if (is_text(rule->state, facts->state) && is_text(rule->answer, facts->answer) &&
			matches(rule->wanted, facts->wanted) && matches(rule->routed, facts->routed) &&
			matches(rule->asked, facts->asked) && matches(rule->drained, facts->drained) &&
			matches(rule->had_session, facts->had_session) && matches(rule->late, facts->late))
			return rule;
	}
	elog(ERROR, "no rule for this workload");
}

/* ----------------------------------------------------------------
 * What is captured
 * ----------------------------------------------------------------
 */

typedef struct Removal
{
	SessionKey	key;
	int64		generation;
	Session		session;
	Workload	workload;
	Registration registration;
	TimestampTz now;
	const char *outcome;		/* where there is nothing to do; NULL: go on */
} Removal;

/* The arguments tenant_id, session_id, generation; the session is locked. */
static void
removal_key_args(FunctionCallInfo fcinfo, Removal *removal)
{
	session_key_args(fcinfo, &removal->key);
	removal->generation = number_field(fcinfo, 2, "generation", 1, PG_INT64_MAX, "It is that of an intent.");
}

static void
removal_begin(Removal *removal)
{
	removal->outcome = workload_begin(&removal->key, removal->generation, &removal->session);
	if (removal->outcome == NULL && !workload_read(&removal->key, removal->generation, &removal->workload))
		removal->outcome = "not_found";
	if (removal->outcome != NULL)
		return;
	registration_read(&removal->key, &removal->registration);
	removal->now = clock_now();
}

/* Is it the workload's host that the session is registered with? */
static bool
is_registered(const Removal *removal)
{
	const Workload *workload = &removal->workload;

	return removal->registration.host_id != NULL && workload->host_id != NULL &&
		strcmp(removal->registration.host_id, workload->host_id) == 0 &&
		removal->registration.host_generation == workload->host_generation;
}

static bool
is_routed(const Removal *removal)
{
	return is_registered(removal) && registration_is_live(&removal->session, &removal->registration, removal->now);
}

/* The host that was asked has released the session itself, at the epoch that it had. */
static bool
was_released(const Removal *removal)
{
	return removal->registration.host_id == NULL && removal->workload.drain_epoch > 0 &&
		removal->registration.lease_epoch == removal->workload.drain_epoch;
}

static bool
has_answer(const Workload *workload, const char *answer)
{
	return workload->drain_answer != NULL && strcmp(workload->drain_answer, answer) == 0;
}

/* ----------------------------------------------------------------
 * Drains
 * ----------------------------------------------------------------
 */

PG_FUNCTION_INFO_V1(reconcile_request_drain);
Datum
reconcile_request_drain(PG_FUNCTION_ARGS)
{
	Removal		removal = {0};
	Workload   *workload = &removal.workload;
	int64		timeout_ms;
	Datum		values[5] = {0};
	bool		nulls[5] = {false, true, true, true, true};

	require_writable("request_drain");
	require_read_committed("request_drain");
	removal_key_args(fcinfo, &removal);
	timeout_ms = interval_field(fcinfo, 3, "timeout", false, DRAIN_MAX_MS, "It is more than 0 and at most 24 hours.");
	access_require_all(CAP_PLACE);

	removal_begin(&removal);
	if (removal.outcome == NULL && workload->drain_requested_at != DT_NOBEGIN)
		removal.outcome = "repeated";
	else if (removal.outcome == NULL)
	{
		workload->drain_requested_at = removal.now;
		workload->drain_deadline = clock_add_ms(removal.now, timeout_ms);
		workload->drain_host_id = workload->host_id;
		workload->drain_generation = workload->host_generation;
		workload->drain_epoch = is_registered(&removal) ? removal.registration.lease_epoch : 0;
		workload_write(&removal.session, workload);
		removal.outcome = "requested";
	}
	values[0] = CStringGetTextDatum(removal.outcome);
	if (workload->state != NULL)
	{
		values[1] = text_or_null(workload->drain_host_id, &nulls[1]);
		nulls[2] = nulls[1];
		values[2] = Int64GetDatum(workload->drain_generation);
		nulls[3] = workload->drain_epoch == 0;
		values[3] = Int64GetDatum(workload->drain_epoch);
		nulls[4] = false;
		values[4] = remaining_datum(workload->drain_deadline, removal.now);
	}
	return return_one_row(fcinfo, values, nulls);
}

/* What a host answers, who saw it says; "drained" is the end of it. */
static const char *
answer(Removal *removal, const char *host_id, int64 host_generation, const char *said)
{
	Workload   *workload = &removal->workload;

	if (workload->drain_requested_at == DT_NOBEGIN)
		return "not_requested";
	if (workload->drain_host_id == NULL || strcmp(workload->drain_host_id, host_id) != 0 ||
		workload->drain_generation != host_generation)
		return "mismatch";
	if (has_answer(workload, said))
		return "repeated";
	if (has_answer(workload, "drained") || workload->decided != NULL)
		return "conflict";
	workload->drain_answer = unconstify(char *, said);
	workload_write(&removal->session, workload);
	return "recorded";
}

PG_FUNCTION_INFO_V1(reconcile_report_drained);
Datum
reconcile_report_drained(PG_FUNCTION_ARGS)
{
	static const char *const answers[] = {"draining", "drained", "refused", "unsupported"};
	Removal		removal = {0};
	char	   *host_id;
	int64		host_generation;
	const char *said;

	require_writable("report_drained");
	require_read_committed("report_drained");
	removal_key_args(fcinfo, &removal);
	host_id = identity_field(fcinfo, 3, "host_id");
	host_generation = number_field(fcinfo, 4, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	said = answers[word_field(fcinfo, 5, "answer", answers, lengthof(answers),
							  "It is draining, drained, refused or unsupported.")];
	access_require_all(CAP_PLACE);

	removal_begin(&removal);
	if (removal.outcome == NULL)
		removal.outcome = answer(&removal, host_id, host_generation, said);
	PG_RETURN_DATUM(CStringGetTextDatum(removal.outcome));
}

/* ----------------------------------------------------------------
 * Decisions
 * ----------------------------------------------------------------
 */

/* From here on nobody finds the session at this host, and what it says of it is refused. */
static void
fence(Removal *removal)
{
	Registration *registration = &removal->registration;

	if (!is_registered(removal))
		return;
	registration->host_id = NULL;
	registration->observed_at = registration->expires_at = removal->now;
	registration_write(&removal->key, registration);
	/* a host that hangs with its target holds up nobody who removes it */
	host_unreserve(registration->offer_id);
	session_mark(removal->session.number, removal->now);
}

static void
decide(Removal *removal)
{
	Workload   *workload = &removal->workload;
	bool		released = was_released(removal);
	RemovalFacts facts = {
		.state = workload->state,
		.answer = workload->drain_answer,
		.wanted = workload_is_wanted(&removal->session, removal->generation),
		.routed = is_routed(removal),
		.asked = workload->drain_requested_at != DT_NOBEGIN,
		.drained = released || has_answer(workload, "drained"),
		.had_session = workload->drain_epoch > 0,
		.late = workload->drain_requested_at != DT_NOBEGIN && removal->now >= workload->drain_deadline
	};
	const RemovalRule *rule = removal_decide(&facts);

	removal->outcome = rule->outcome;
	if (rule->kind == NULL)
		return;
	workload->decided = unconstify(char *, rule->kind);
	workload->decided_reason = unconstify(char *, rule->reason);
	workload->decided_epoch = rule->reason == NULL ? workload->drain_epoch :
		is_registered(removal) ? removal->registration.lease_epoch : workload->drain_epoch;
	workload_write(&removal->session, workload);
	TEST_POINT("removal-decided");
	fence(removal);
	/* what is deleted does not come back with a crash that forgets why */
	ForceSyncCommit();
}

/* A host that has the session again, at a later epoch than was decided about, is asked anew. */
static void
drop_decision(Removal *removal)
{
	Workload   *workload = &removal->workload;

	if (workload->decided == NULL || !is_routed(removal) ||
		removal->registration.lease_epoch <= workload->decided_epoch)
		return;
	workload->decided = workload->decided_reason = NULL;
	workload->drain_requested_at = DT_NOBEGIN;
	workload->drain_host_id = workload->drain_answer = NULL;
	workload->drain_epoch = 0;
	workload_write(&removal->session, workload);
}

PG_FUNCTION_INFO_V1(reconcile_may_delete_workload);
Datum
reconcile_may_delete_workload(PG_FUNCTION_ARGS)
{
	Removal		removal = {0};
	Datum		values[4] = {0};
	bool		nulls[4] = {false, true, true, true};

	require_writable("may_delete_workload");
	require_read_committed("may_delete_workload");
	removal_key_args(fcinfo, &removal);
	access_require_all(CAP_PLACE);

	removal_begin(&removal);
	if (removal.outcome == NULL)
	{
		drop_decision(&removal);
		if (removal.workload.decided != NULL)
			removal.outcome = "yes";
		else
			decide(&removal);
	}
	values[0] = CStringGetTextDatum(removal.outcome);
	if (strcmp(removal.outcome, "yes") == 0)
	{
		values[1] = CStringGetTextDatum(removal.workload.decided);
		values[2] = text_or_null(removal.workload.decided_reason, &nulls[2]);
		values[3] = Int64GetDatum(removal.workload.decided_epoch);
		nulls[1] = nulls[3] = false;
	}
	return return_one_row(fcinfo, values, nulls);
}

/* ----------------------------------------------------------------
 * Ends
 * ----------------------------------------------------------------
 */

typedef struct Termination
{
	int64		generation;		/* 0: none is recorded */
	char	   *kind;
	char	   *reason;			/* NULL: graceful */
	int64		epoch;
	TimestampTz recorded_at;
} Termination;

static void
termination_read(const SessionKey *key, Termination *end)
{
	SqlScope	scope;
	Datum		values[2];

	memset(end, 0, sizeof(*end));
	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	sql_begin(&scope);
	if (sql_run_latest(&plans[PLAN_READ_END], values, NULL) > 0)
	{
		end->generation = DatumGetInt64(sql_value(0, 1, NULL));
		end->kind = sql_text(0, 2, scope.outer);
		end->reason = sql_text(0, 3, scope.outer);
		end->epoch = DatumGetInt64(sql_value(0, 4, NULL));
		end->recorded_at = DatumGetTimestampTz(sql_value(0, 5, NULL));
	}
	sql_end(&scope);
}

static void
termination_write(const SessionKey *key, const Termination *end)
{
	SqlScope	scope;
	Datum		values[7];
	char		nulls[7] = {' ', ' ', ' ', ' ', end->reason == NULL ? 'n' : ' ', ' ', ' '};

	values[0] = CStringGetTextDatum(key->tenant_id);
	values[1] = CStringGetTextDatum(key->session_id);
	values[2] = Int64GetDatum(end->generation);
	values[3] = CStringGetTextDatum(end->kind);
	values[4] = end->reason == NULL ? (Datum) 0 : CStringGetTextDatum(end->reason);
	values[5] = Int64GetDatum(end->epoch);
	values[6] = TimestampTzGetDatum(end->recorded_at);
	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_WRITE_END], values, nulls);
	sql_run_latest(&plans[PLAN_FORGET], values, NULL);
	sql_end(&scope);
}

/* The first member in which a report differs from what is recorded of its generation; NULL: none. */
static const char *
difference(const Termination *stored, const Termination *end)
{
	if (strcmp(stored->kind, end->kind) != 0)
		return "kind";
	if (!same_text(stored->reason, end->reason))
		return "reason";
	return stored->epoch != end->epoch ? "lease_epoch" : NULL;
}

/* Is it what was decided of the workload that is there?  Then it is of no earlier one of its generation. */
static bool
was_decided(const SessionKey *key, const Termination *end)
{
	Workload	workload;

	return workload_read(key, end->generation, &workload) && workload.decided != NULL &&
		strcmp(workload.decided, end->kind) == 0 && same_text(workload.decided_reason, end->reason) &&
		workload.decided_epoch == end->epoch;
}

static const char *
record(const SessionKey *key, Termination *end, Termination *stored, const char **field)
{
	Session		session;

	*field = NULL;
	if (!session_lock(key, &session))
		return "not_found";
	termination_read(key, stored);
	if (end->generation > session.generation)
		return "unissued";
	if (stored->generation > end->generation)
		return "superseded";
	if (stored->generation == end->generation && !was_decided(key, end))
	{
		*field = difference(stored, end);
		return *field == NULL ? "replayed" : "mismatch";
	}
	end->recorded_at = clock_now();
	termination_write(key, end);
	*stored = *end;
	session_mark(session.number, end->recorded_at);
	return "recorded";
}

static const char *const kinds[] = {"graceful", "forced"};
static const char *const reasons[] = {"drain_timeout", "drain_refused", "platform_deleted", "workload_terminated"};

PG_FUNCTION_INFO_V1(reconcile_record_termination);
Datum
reconcile_record_termination(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	Termination end = {0};
	Termination stored = {0};
	const char *field;
	Datum		values[4] = {0};
	bool		nulls[4] = {false, true, true, true};

	require_writable("record_termination");
	require_read_committed("record_termination");
	session_key_args(fcinfo, &key);
	end.generation = number_field(fcinfo, 2, "generation", 1, PG_INT64_MAX, "It is that of the workload.");
	end.kind = unconstify(char *, kinds[word_field(fcinfo, 3, "kind", kinds, lengthof(kinds), "It is graceful or forced.")]);
	if (!PG_ARGISNULL(4))
		end.reason = unconstify(char *, reasons[word_field(fcinfo, 4, "reason", reasons, lengthof(reasons),
														   "It is drain_timeout, drain_refused, platform_deleted or workload_terminated.")]);
	end.epoch = number_field(fcinfo, 5, "lease_epoch", 0, PG_INT64_MAX, "It is 0, for none, or the epoch of its host.");
	if ((strcmp(end.kind, "forced") == 0) != (end.reason != NULL))
		field_invalid("reason", end.reason == NULL ? "must be given" : "must not be given",
					  "What was forced has a reason, what was graceful has none.");
	if (end.reason == NULL && end.epoch == 0)
		field_invalid("lease_epoch", "must be given", "Only a host that had the session lets it go gracefully.");
	access_require_all(CAP_PLACE);

	values[0] = CStringGetTextDatum(record(&key, &end, &stored, &field));
	values[1] = text_or_null(field, &nulls[1]);
	nulls[2] = nulls[3] = stored.generation == 0;
	values[2] = Int64GetDatum(stored.generation);
	values[3] = TimestampTzGetDatum(stored.recorded_at);
	return return_one_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_get_termination);
Datum
reconcile_get_termination(PG_FUNCTION_ARGS)
{
	SessionKey	key;
	Termination stored;
	int64		generation;
	Datum		values[6] = {0};
	bool		nulls[6] = {false, true, true, true, true, true};

	session_key_args(fcinfo, &key);
	generation = number_field(fcinfo, 2, "generation", 1, PG_INT64_MAX, "It is that of the workload.");
	access_require_all(CAP_PLACE);
	termination_read(&key, &stored);
	values[0] = CStringGetTextDatum(stored.generation < generation ? "not_found" :
									stored.generation > generation ? "superseded" : "recorded");
	nulls[1] = stored.generation < generation;
	values[1] = Int64GetDatum(stored.generation);
	if (stored.generation == generation)
	{
		values[2] = CStringGetTextDatum(stored.kind);
		values[3] = text_or_null(stored.reason, &nulls[3]);
		values[4] = Int64GetDatum(stored.epoch);
		values[5] = TimestampTzGetDatum(stored.recorded_at);
		nulls[2] = nulls[4] = nulls[5] = false;
	}
	return return_one_row(fcinfo, values, nulls);
}

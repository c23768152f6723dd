/*
 * workload.c
 *		Workloads of dedicated sessions: intents for their controller, and what it says.
 *
 * Which workload is wanted is not stored: it is the one of the session's generation, as
 * long as that is dedicated and not released.  The session's row is the lock on its
 * workloads.  A row goes when the end of its workload, or of a later one, is recorded; one
 * that is wanted still is asked for again.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/plan.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/field.h"
#include "placement/marks.h"
#include "placement/offer.h"
#include "placement/workload_row.h"

#define EXAMINED_MAX	10000	/* workloads in one call */
#define INTENTS_PAGE	256
#define KEPT_MS			(INT64CONST(24) * 3600 * 1000)	/* a controller that polls no more */

#define INTENT_COLUMNS \
	"w.tenant_id, w.session_id, w.generation, s.agent_id, s.runtime_compatibility_id, s.placement, s.workload_version," \
	" s.workload, w.name, w.state, w.host_id, w.host_generation, w.endpoint, w.drain_requested_at, w.drain_deadline," \
	" o.state, s.desired_generation"

enum
{
	PLAN_CONTROLLED,
	PLAN_MAKE_CONTROLLER,
	PLAN_LOCK_CONTROLLER,
	PLAN_SET_CONTROLLER,
	PLAN_FORGET_CONTROLLER,
	PLAN_INTENTS
};

static SqlPlan plans[] = {
	[PLAN_CONTROLLED] = {
		"SELECT FROM reconcile.workload_controller c WHERE c.expires_at OPERATOR(pg_catalog.>) $1 LIMIT 1",
		1, {TIMESTAMPTZOID}
	},
	[PLAN_MAKE_CONTROLLER] = {
		"INSERT INTO reconcile.workload_controller (controller_id, role_name, polled_at, expires_at)"
		" VALUES ($1, $2, $3, $3) ON CONFLICT DO NOTHING",
		3, {TEXTOID, NAMEOID, TIMESTAMPTZOID}
	},
	[PLAN_LOCK_CONTROLLER] = {
		"SELECT c.tenant_id, c.session_id, c.generation FROM reconcile.workload_controller c"
		" WHERE c.controller_id OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE",
		1, {TEXTOID}
	},
	[PLAN_SET_CONTROLLER] = {
		"UPDATE reconcile.workload_controller SET role_name = $2, polled_at = $3, expires_at = $4, tenant_id = $5,"
		" session_id = $6, generation = $7 WHERE controller_id OPERATOR(pg_catalog.=) $1",
		7, {TEXTOID, NAMEOID, TIMESTAMPTZOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, INT8OID}
	},
	/* one a call is enough: none comes without a call */
	[PLAN_FORGET_CONTROLLER] = {
		"DELETE FROM reconcile.workload_controller c WHERE c.controller_id OPERATOR(pg_catalog.=)"
		" (SELECT o.controller_id FROM reconcile.workload_controller o WHERE o.expires_at OPERATOR(pg_catalog.<) $2"
		" AND o.controller_id OPERATOR(pg_catalog.<>) $1 ORDER BY o.expires_at LIMIT 1 FOR UPDATE SKIP LOCKED)",
		2, {TEXTOID, TIMESTAMPTZOID}
	},
	[PLAN_INTENTS] = {
		"SELECT " INTENT_COLUMNS " FROM (SELECT w.* FROM reconcile.session_workload w"
		" WHERE ROW(w.tenant_id, w.session_id, w.generation) OPERATOR(pg_catalog.>) ROW($1, $2, $3)"
		" ORDER BY w.tenant_id, w.session_id, w.generation LIMIT $4) w"
		" JOIN reconcile.session s ON s.tenant_id OPERATOR(pg_catalog.=) w.tenant_id"
		" AND s.session_id OPERATOR(pg_catalog.=) w.session_id"
		" LEFT JOIN reconcile.session_observed o ON o.tenant_id OPERATOR(pg_catalog.=) w.tenant_id"
		" AND o.session_id OPERATOR(pg_catalog.=) w.session_id"
		" ORDER BY w.tenant_id, w.session_id, w.generation",
		4, {TEXTOID, TEXTOID, INT8OID, INT4OID}
	}
};

bool
workload_is_controlled(TimestampTz now)
{
	SqlScope	scope;
	Datum		value = TimestampTzGetDatum(now);
	bool		controlled;

	sql_begin(&scope);
	controlled = sql_run_latest(&plans[PLAN_CONTROLLED], &value, NULL) > 0;
	sql_end(&scope);
	return controlled;
}

void
workload_ensure(const Session *session, Workload *workload)
{
	if (workload_read(&session->key, session->generation, workload))
		return;
	memset(workload, 0, sizeof(*workload));
	workload->generation = session->generation;
	workload->state = "absent";
	workload->drain_requested_at = DT_NOBEGIN;
	workload_write(session, workload);
}

bool
workload_is_wanted(const Session *session, int64 generation)
{
	return generation == session->generation && strcmp(session->desired.placement, "dedicated") == 0 &&
		!session_is_released(session);
}

bool
workload_is_ready(const Session *session, const Workload *workload)
{
	/* its host counts the generations of the session */
	return strcmp(workload->state, "ready") == 0 && workload->host_generation == session->generation &&
		session->desired.runtime_compatibility_id != NULL;
}

int64
workload_offer(const Session *session, const Workload *workload, int64 round, int64 ttl_ms, TimestampTz *now,
			   bool *busy)
{
	HostTarget	target = {
		.key = {session->agent_id, session->desired.runtime_compatibility_id, "dedicated"},
		.host_id = workload->host_id,
		.host_generation = workload->host_generation
	};
	HostReserved reserved;

	*busy = false;
	reserved = host_reserve(&target, HOST_TURN_MS, now);
	*busy = reserved == HOST_BUSY;
	return reserved == HOST_RESERVED ? offer_make(session, &target, round, ttl_ms, *now) : 0;
}

/* ----------------------------------------------------------------
 * Intents
 * ----------------------------------------------------------------
 */

typedef struct Intents
{
	ReturnSetInfo *result;
	TimestampTz now;
	int			left;			/* that may still be returned */
	/* behind this one it goes on */
	char	   *tenant_id;
	char	   *session_id;
	int64		generation;
	int			examined;
	/* around the end, up to this one */
	const char *last_tenant_id; /* NULL: to the end */
	const char *last_session_id;
	int64		last_generation;
} Intents;

/* Is there anything to do about the workload in a row? */
static bool
is_open(int row, bool wanted)
{
	bool		undrained;

	(void) sql_value(row, 14, &undrained);
	return !wanted || !undrained || strcmp(TextDatumGetCString(sql_value(row, 10, NULL)), "ready") != 0;
}

static bool
row_is_wanted(int row)
{
	bool		bare;
	int64		generation = DatumGetInt64(sql_value(row, 3, NULL));

	(void) sql_value(row, 8, &bare);
	/* a first generation without a workload is none that was taken away */
	return generation == DatumGetInt64(sql_value(row, 17, NULL)) && (!bare || generation == 1) &&
		strcmp(TextDatumGetCString(sql_value(row, 6, NULL)), "dedicated") == 0;
}

static bool
is_behind_last(const Intents *intents, int row)
{
	int			order;

	if (intents->last_tenant_id == NULL)
		return false;
	order = strcmp(TextDatumGetCString(sql_value(row, 1, NULL)), intents->last_tenant_id);
	if (order == 0)
		order = strcmp(TextDatumGetCString(sql_value(row, 2, NULL)), intents->last_session_id);
	return order > 0 || (order == 0 && DatumGetInt64(sql_value(row, 3, NULL)) > intents->last_generation);
}

static void
add_intent(Intents *intents, int row, bool wanted)
{
	Datum		values[18];
	bool		nulls[18];

	values[0] = CStringGetTextDatum(wanted ? "ensure" : "remove");
	nulls[0] = false;
	for (int c = 1; c <= 16; c++)
		values[c] = sql_value(row, c, &nulls[c]);
	/* what is to go is not made again */
	if (!wanted)
		nulls[7] = nulls[8] = true;
	if (!nulls[8])
		values[8] = PointerGetDatum(PG_DETOAST_DATUM(values[8]));
	nulls[17] = nulls[15];
	if (!nulls[17])
		values[17] = remaining_datum(DatumGetTimestampTz(values[15]), intents->now);
	tuplestore_putvalues(intents->result->setResult, intents->result->setDesc, values, nulls);
	intents->left--;
}

/* A page of the workloads behind the place, which moves with them; returns how many it had, and how many were seen to. */
static int
intents_page(Intents *intents, int max, int *seen)
{
	MemoryContext context = CurrentMemoryContext;
	SqlScope	scope;
	Datum		values[4];
	int			n;
	int			i;

	values[0] = CStringGetTextDatum(intents->tenant_id);
	values[1] = CStringGetTextDatum(intents->session_id);
	values[2] = Int64GetDatum(intents->generation);
	values[3] = Int32GetDatum(max);
	sql_begin(&scope);
	n = (int) sql_run_latest(&plans[PLAN_INTENTS], values, NULL);
	for (i = 0; i < n && intents->left > 0 && !is_behind_last(intents, i); i++)
	{
		bool		wanted = row_is_wanted(i);

		if (is_open(i, wanted))
			add_intent(intents, i, wanted);
	}
	if (i > 0)
	{
		intents->tenant_id = MemoryContextStrdup(context, TextDatumGetCString(sql_value(i - 1, 1, NULL)));
		intents->session_id = MemoryContextStrdup(context, TextDatumGetCString(sql_value(i - 1, 2, NULL)));
		intents->generation = DatumGetInt64(sql_value(i - 1, 3, NULL));
	}
	sql_end(&scope);
	intents->examined += i;
	*seen = i;
	return n;
}

/* The workloads behind the place, as many as may still be examined.  True: there are no more. */
static bool
intents_from(Intents *intents)
{
	int			max;
	int			n;
	int			seen;

	do
	{
		CHECK_FOR_INTERRUPTS();
		max = Min(EXAMINED_MAX - intents->examined, INTENTS_PAGE);
		n = intents_page(intents, max, &seen);
	} while (seen == n && n == max && max > 0 && intents->left > 0);
	return seen == n && n < max;
}

/* Where the controller's last page ended; its row is locked. */
static void
lock_controller(Datum *values, Intents *intents)
{
	MemoryContext context = CurrentMemoryContext;
	SqlScope	scope;

	sql_begin(&scope);
	sql_run_latest(&plans[PLAN_MAKE_CONTROLLER], values, NULL);
	if (sql_run_latest(&plans[PLAN_LOCK_CONTROLLER], values, NULL) == 0)
		elog(ERROR, "could not lock a controller");
	intents->tenant_id = MemoryContextStrdup(context, TextDatumGetCString(sql_value(0, 1, NULL)));
	intents->session_id = MemoryContextStrdup(context, TextDatumGetCString(sql_value(0, 2, NULL)));
	intents->generation = DatumGetInt64(sql_value(0, 3, NULL));
	sql_end(&scope);
}

PG_FUNCTION_INFO_V1(reconcile_fetch_intents);
Datum
reconcile_fetch_intents(PG_FUNCTION_ARGS)
{
	Intents		intents = {.result = (ReturnSetInfo *) fcinfo->resultinfo};
	Intents		start;
	Datum		values[7];
	NameData	role;
	int64		ttl_ms;

	require_writable("fetch_intents");
	require_read_committed("fetch_intents");
	values[0] = CStringGetTextDatum(identity_field(fcinfo, 0, "controller_id"));
	intents.left = page_field(fcinfo, 1);
	ttl_ms = interval_field(fcinfo, 2, "ttl", false, TARGET_TTL_MAX_MS, "It is more than 0 and at most 15 minutes.");
	access_require_all(CAP_PLACE);
	InitMaterializedSRF(fcinfo, 0);

	namestrcpy(&role, GetUserNameFromId(GetUserId(), false));
	values[1] = NameGetDatum(&role);
	values[2] = TimestampTzGetDatum(clock_now());
	lock_controller(values, &intents);
	intents.now = clock_now();
	/* sessions that nobody made workloads for are among those with open commands */
	if (!workload_is_controlled(intents.now))
		sweep_mark(SWEEP_PENDING, intents.now);
	start = intents;
	if (intents_from(&intents) && start.tenant_id[0] != '\0')
	{
		/* around the end to where it began: a page hides nothing that comes before */
		intents.tenant_id = intents.session_id = "";
		intents.generation = 0;
		intents.last_tenant_id = start.tenant_id;
		intents.last_session_id = start.session_id;
		intents.last_generation = start.generation;
		(void) intents_from(&intents);
	}

	values[2] = TimestampTzGetDatum(intents.now);
	values[3] = TimestampTzGetDatum(clock_add_ms(intents.now, ttl_ms));
	values[4] = CStringGetTextDatum(intents.tenant_id);
	values[5] = CStringGetTextDatum(intents.session_id);
	values[6] = Int64GetDatum(intents.generation);
	(void) sql_do(&plans[PLAN_SET_CONTROLLER], values, NULL);
	values[1] = TimestampTzGetDatum(clock_add_ms(intents.now, -KEPT_MS));
	(void) sql_do(&plans[PLAN_FORGET_CONTROLLER], values, NULL);
	return (Datum) 0;
}

/* ----------------------------------------------------------------
 * Reports
 * ----------------------------------------------------------------
 */

/* The one to have may end and come again, in the same generation; and what came again is to be removed, too. */
static bool
has_ended(const Session *session, int64 generation)
{
	int64		terminated = workload_terminated(&session->key);
	Workload	workload;

	if (generation != terminated)
		return generation < terminated;
	return !workload_is_wanted(session, generation) && !workload_read(&session->key, generation, &workload);
}

const char *
workload_begin(const SessionKey *key, int64 generation, Session *session)
{
	if (!session_lock(key, session))
		return "not_found";
	if (generation > session->generation)
		return "unissued";
	return has_ended(session, generation) ? "superseded" : NULL;
}

static bool
same_host(const Workload *a, const Workload *b)
{
	return same_text(a->host_id, b->host_id) && a->host_generation == b->host_generation;
}

/* One that is absent was there, if it had a host, or if it was decided that it goes. */
static bool
is_over(const Workload *workload)
{
	if (strcmp(workload->state, "absent") == 0)
		return workload->host_id != NULL || workload->decided != NULL;
	return strcmp(workload->state, "exited") == 0 || strcmp(workload->state, "terminating") == 0;
}

/* One that had ended is made anew. */
static bool
has_come_again(const Workload *workload, const Workload *said)
{
	return is_over(workload) &&
		(strcmp(said->state, "pending") == 0 || strcmp(said->state, "ready") == 0);
}

static const char *
report(const SessionKey *key, Workload *said)
{
	Session		session;
	Workload	workload;
	const char *refused = workload_begin(key, said->generation, &session);
	bool		known;

	if (refused != NULL)
		return refused;
	known = workload_read(key, said->generation, &workload);
	/* whose host is not told still has the host that it had: until it comes again */
	if (known && said->host_id == NULL && !has_come_again(&workload, said))
	{
		said->host_id = workload.host_id;
		said->host_generation = workload.host_generation;
		said->endpoint = workload.endpoint;
	}
	if (known && strcmp(workload.state, said->state) == 0 && same_host(&workload, said) &&
		same_text(workload.endpoint, said->endpoint))
		return "unchanged";
	/* a drain, and what was decided after it, is of one host and one life */
	if (!known || !same_host(&workload, said) || has_come_again(&workload, said))
		workload = *said;
	else
	{
		workload.state = said->state;
		workload.endpoint = said->endpoint;
	}
	workload_write(&session, &workload);
	session_mark(session.number, clock_now());
	return "reported";
}

PG_FUNCTION_INFO_V1(reconcile_report_workload);
Datum
reconcile_report_workload(PG_FUNCTION_ARGS)
{
	static const char *const states[] = {"absent", "pending", "ready", "exited", "terminating"};
	SessionKey	key;
	Workload	said = {.drain_requested_at = DT_NOBEGIN};
	int			given;

	require_writable("report_workload");
	require_read_committed("report_workload");
	session_key_args(fcinfo, &key);
	said.generation = number_field(fcinfo, 2, "generation", 1, PG_INT64_MAX, "It is that of an intent.");
	said.state = unconstify(char *, states[word_field(fcinfo, 3, "state", states, lengthof(states),
													  "It is absent, pending, ready, exited or terminating.")]);
	said.host_id = optional_field(fcinfo, 4, "host_id");
	if (!PG_ARGISNULL(5))
		said.host_generation = number_field(fcinfo, 5, "host_generation", 1, PG_INT64_MAX, "It is at least 1.");
	if (!PG_ARGISNULL(6))
	{
		said.endpoint = identity_field(fcinfo, 6, "endpoint");
		endpoint_check(said.endpoint, "endpoint");
	}
	given = (said.host_id != NULL) + (said.host_generation != 0) + (said.endpoint != NULL);
	if (given != 0 && given != 3)
		field_invalid(said.host_id == NULL ? "host_id" : said.host_generation == 0 ? "host_generation" : "endpoint",
					  "must be given", "A host is told with its generation and its endpoint: all three, or none.");
	if (given == 0 && strcmp(said.state, "ready") == 0)
		field_invalid("host_id", "must be given", "A workload that is ready has a host.");
	access_require_all(CAP_PLACE);
	PG_RETURN_DATUM(CStringGetTextDatum(report(&key, &said)));
}

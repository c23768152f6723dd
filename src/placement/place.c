/*
 * place.c
 *		place_session(), and the runs of the loop "placement".
 *
 * One transaction: the session's row is locked, what is known of it captured, the rule
 * that holds is carried out.  A host is asked by an offer, which reserves its place:
 *
 *		search --offer--> waits for the answer --accepted--> the host has it
 *		  ^                    |
 *		  +-- refused, lapsed -+-- epoch_mismatch --> another round, after a while
 *
 * Nothing here waits for a host, and no other session is locked.  The row of a host's
 * target comes last: who has it asks for no session, and who waits for one has none.
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/rows.h"
#include "core/testpoint.h"
#include "journal/envelope.h"
#include "placement/marks.h"
#include "placement/place.h"

/* A session that just began to wait for room looks once more: some may have come meanwhile. */
#define SECOND_LOOK_MS	1000

typedef struct Placing
{
	PlaceLook	look;
	const char *claim_token;
	const char *outcome;
	int			rule;			/* of place_judge() */
	const char *host_id;		/* NULL: none */
	int64		host_generation;
	int64		lease_epoch;	/* of the owner */
	int64		offer_id;		/* 0: none */
	bool		asks;			/* it was made now */
	int			desired_writes;
	int			replacements;	/* other rounds that an epoch_mismatch led to */
	TimestampTz until;			/* another look is due; DT_NOEND: none by itself */
} Placing;

/* ----------------------------------------------------------------
 * What is wanted
 * ----------------------------------------------------------------
 */

/* False: it has no generation left. */
static bool
desire(Placing *placing, const SessionDesired *desired, const char *key)
{
	switch (session_desire(&placing->look.session, desired, key))
	{
		case DESIRED_WRITE_APPLIED:
			placing->desired_writes++;
			break;
		case DESIRED_WRITE_UNCHANGED:
			break;
		case DESIRED_WRITE_EXHAUSTED:
			placing->outcome = "sequence";
			return false;
	}
	return true;
}

/* As it was launched, in a generation of its own: the key tells which release it takes back. */
static bool
revive(Placing *placing)
{
	const Session *session = &placing->look.session;
	SessionDesired desired = session->desired;

	desired.workload_version = session->launch_version;
	desired.workload = session->launch_workload;
	return desire(placing, &desired, session_revive_key(&session->key, &desired, session->generation));
}

/* ----------------------------------------------------------------
 * The search
 * ----------------------------------------------------------------
 */

/* Was it withdrawn, rather than not answered?  Then it was for another wish. */
static bool
is_for_another_wish(const PlaceLook *look)
{
	return look->offered && look->now < look->offer.expires_at;
}

/* An open offer that nobody is to accept any more; the row of its target is not waited for. */
static void
end_offer(PlaceLook *look)
{
	if (!look->offered)
		return;
	offer_end(&look->offer, is_for_another_wish(look) ? "withdrawn" : "expired", NULL, look->now);
	look->offered = false;
}

/* There is no search: what it has left behind is over. */
static void
end_search(PlaceLook *look)
{
	Search	   *search = &look->search;

	if (look->nasked > 0 || look->round_over || search->mismatches > 0 || search->look_at != DT_NOBEGIN || search->waiting)
		search_next_round(&look->session.key, search, 0, DT_NOBEGIN, NULL);
}

/* A host has an offer: it is told, and looked at when it has not answered. */
static void
answer_asked(Placing *placing, const char *host_id, int64 host_generation)
{
	placing->asks = true;
	placing->host_id = host_id;
	placing->host_generation = host_generation;
	placing->until = clock_add_ms(placing->look.now, placing->look.settings.offer_ttl_ms);
	place_notify_host(host_id);
	sweep_mark(SWEEP_OFFERS, placing->until);
}

/* False: it has no room any more, and its row is not locked. */
static bool
reserve(const HostTarget *target, TimestampTz now)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	bool		reserved;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	reserved = host_reserve(target, now);
	if (reserved)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return reserved;
}

/* Reserved and offered; false: it has no room any more. */
static bool
ask(Placing *placing, const HostTarget *target)
{
	PlaceLook  *look = &placing->look;

	if (!reserve(target, look->now))
		return false;
	TEST_POINT("place-reserved");
	end_offer(look);
	placing->offer_id = offer_make(&look->session, target, look->search.round, look->settings.offer_ttl_ms, look->now);
	answer_asked(placing, target->host_id, target->host_generation);
	return true;
}

/* The first host of the ranking that may have it and has room, however far down it is. */
static bool
ask_next(Placing *placing)
{
	RankPlace	after = {0};
	HostTarget *targets;
	int			n;

	while ((n = place_candidates(&placing->look, &after, &targets)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
		{
			/* those that come after are as full */
			if (targets[i].capacity - targets[i].reserved <= 0)
				return false;
			if (place_passed_over(&placing->look, &targets[i]) == NULL && ask(placing, &targets[i]))
				return true;
		}
	}
	return false;
}

/* Nobody is left: the next round may ask all again, when there is room or at a sweep. */
static void
wait_for_room(Placing *placing)
{
	PlaceLook  *look = &placing->look;
	Session    *session = &look->session;
	TargetKey	target = {session->agent_id, session->desired.runtime_compatibility_id, session->desired.placement};
	bool		told = look->search.waiting;

	placing->outcome = place_outcome_name(PLACE_NO_CAPACITY);
	if (target.runtime_compatibility_id == NULL)
	{
		end_search(look);
		return;
	}
	if (!told || look->nasked > 0 || look->search.mismatches > 0)
		search_next_round(&session->key, &look->search, 0, DT_NOBEGIN, &target);
	/* whoever brought room before this is known did not see that it waits */
	if (!told)
		placing->until = clock_add_ms(look->now, SECOND_LOOK_MS);
}

static void
search(Placing *placing)
{
	PlaceLook  *look = &placing->look;

	/* who did not answer is not asked again in this round; with another wish all are */
	if (is_for_another_wish(look))
	{
		look->round_over = true;
		look->nasked = 0;
	}
	if (look->round_over)
		search_next_round(&look->session.key, &look->search, 0, DT_NOBEGIN, NULL);
	if (!ask_next(placing))
	{
		end_offer(look);
		wait_for_room(placing);
	}
	else if (look->search.waiting || look->search.look_at != DT_NOBEGIN)
	{
		look->search.look_at = DT_NOBEGIN;
		search_write(&look->session.key, &look->search, NULL);
	}
}

/* Where it is, nobody says: once more, later each time. */
static void
begin_backoff(PlaceLook *look)
{
	int			mismatches = look->search.mismatches + 1;
	int64		ms = search_backoff(look->settings.replace_backoff_ms, mismatches);

	ms = search_jitter(ms, pg_prng_double(&pg_global_prng_state));
	search_next_round(&look->session.key, &look->search, mismatches, clock_add_ms(look->now, ms), NULL);
}

/* ----------------------------------------------------------------
 * Dedicated sessions
 * ----------------------------------------------------------------
 */

/* Its workload is ready: the host in it is asked, once in a round. */
static void
ask_workload(Placing *placing, const Workload *workload)
{
	PlaceLook  *look = &placing->look;

	if (place_is_elsewhere(look))
		placing->outcome = place_step_outcome(PLACE_STEP_GIVE_UP);
	if (look->nasked > 0 || look->round_over)
		search_next_round(&look->session.key, &look->search, 0, DT_NOBEGIN, NULL);
	/* who has refused is asked again at a sweep, or when the workload says something new */
	if (look->nasked > 0)
		return;
	placing->offer_id = workload_offer(&look->session, workload, look->search.round, look->settings.offer_ttl_ms, look->now);
	if (placing->offer_id > 0)
		answer_asked(placing, workload->host_id, workload->host_generation);
}

/* Its controller makes the workload first, and the workload brings its host. */
static void
reconcile_dedicated(Placing *placing)
{
	PlaceLook  *look = &placing->look;
	Workload	workload;

	workload_ensure(&look->session, &workload);
	if (look->leased)
	{
		end_offer(look);
		placing->until = look->leased_until;
	}
	else if (look->offered)
	{
		/* the target that this has locked is not to be held while another is waited for */
		end_offer(look);
		placing->until = look->now;
	}
	else if (!place_has_no_work(look))
		ask_workload(placing, &workload);
}

/* ----------------------------------------------------------------
 * Placing
 * ----------------------------------------------------------------
 */

static void
answer_owner(Placing *placing)
{
	const PlaceLook *look = &placing->look;

	placing->host_id = look->registration.host_id;
	placing->host_generation = look->registration.host_generation;
	placing->lease_epoch = look->registration.lease_epoch;
	if (look->work.wakes)
		place_notify_host(placing->host_id);
}

static void
answer_offer(Placing *placing)
{
	placing->host_id = placing->look.offer.host_id;
	placing->host_generation = placing->look.offer.host_generation;
	placing->offer_id = placing->look.offer.offer_id;
}

static void
act(Placing *placing, PlaceStep step)
{
	PlaceLook  *look = &placing->look;

	placing->outcome = place_step_outcome(step);
	placing->replacements = look->search.mismatches;
	switch (step)
	{
		case PLACE_STEP_REUSE_OWNER:
			end_offer(look);
			end_search(look);
			answer_owner(placing);
			break;
		case PLACE_STEP_WAIT_FOR_ANSWER:
			answer_offer(placing);
			break;
		case PLACE_STEP_NO_TEMPLATE:
		case PLACE_STEP_RELEASED:
		case PLACE_STEP_NO_CONTROLLER:
		case PLACE_STEP_UNDECIDED:
		case PLACE_STEP_IDLE:
		case PLACE_STEP_GIVE_UP:
			end_offer(look);
			end_search(look);
			break;
		case PLACE_STEP_DEDICATED:
			reconcile_dedicated(placing);
			return;
		case PLACE_STEP_NEXT_ROUND:
			end_offer(look);
			begin_backoff(look);
			placing->replacements = look->search.mismatches;
			break;
		case PLACE_STEP_SEARCH:
			search(placing);
			return;
		case PLACE_STEP_LEASE_BUSY:
		case PLACE_STEP_BACKOFF:
			end_offer(look);
			break;
		case PLACE_STEP_DEFER:
		case PLACE_STEP_REVIVE:
			break;
	}
	placing->until = place_step_until(look, step);
}

/* The session is locked.  desired: what the caller wants of it; NULL: what its row says. */
static void
place(Placing *placing, const SessionDesired *desired)
{
	PlaceLook  *look = &placing->look;
	PlaceStep	step;

	placing->until = DT_NOEND;
	place_look(look, placing->claim_token);
	step = place_judge(look, &placing->rule);
	/* who has an owner, or is worked on by somebody else, is not changed here */
	if (desired != NULL && step != PLACE_STEP_REUSE_OWNER && step != PLACE_STEP_DEFER)
	{
		if (!desire(placing, desired, session_desired_key(&look->session.key, desired)))
			return;
		step = place_judge(look, &placing->rule);
	}
	if (step == PLACE_STEP_REVIVE)
	{
		if (!revive(placing))
			return;
		step = place_judge(look, &placing->rule);
	}
	act(placing, step);
}

/* ----------------------------------------------------------------
 * SQL functions
 * ----------------------------------------------------------------
 */

static char *
desired_member(JsonbContainer *object, const char *member)
{
	JsonbValue	value;
	char	   *text;

	if (getKeyJsonValueFromContainer(object, member, strlen(member), &value) == NULL || value.type == jbvNull)
		return NULL;
	if (value.type != jbvString)
		field_invalid("desired", psprintf("has a member \"%s\" that is no string", member), NULL);
	text = pnstrdup(value.val.string.val, value.val.string.len);
	if (strcmp(member, "workload") != 0)
		identity_check(text, member);
	return text;
}

/* As to_jsonb() writes a bytea, or decode(..., 'hex') would read it. */
static bytea *
workload_from_text(const char *text)
{
	const char *digits = strncmp(text, "\\x", 2) == 0 ? text + 2 : text;
	size_t		length = strlen(digits);
	bytea	   *workload;

	if (length % 2 != 0 || strspn(digits, "0123456789abcdefABCDEF") != length)
		field_invalid("workload", "is not hexadecimal", "In jsonb it is written like \"\\\\x00ff\".");
	if (length / 2 > WORKLOAD_MAX)
		field_invalid("workload", "is too long", "It is at most 16,384 bytes.");
	workload = palloc(VARHDRSZ + length / 2);
	SET_VARSIZE(workload, VARHDRSZ + (int) hex_decode(digits, length, VARDATA(workload)));
	return workload;
}

static void
check_members(Jsonb *object)
{
	static const char *const members[] = {"placement", "runtime_compatibility_id", "workload_version", "workload"};
	JsonbIterator *iterator = JsonbIteratorInit(&object->root);
	JsonbIteratorToken token;
	JsonbValue	json;

	while ((token = JsonbIteratorNext(&iterator, &json, true)) != WJB_DONE)
	{
		bool		known = token != WJB_KEY;

		for (int i = 0; i < lengthof(members) && !known; i++)
			known = json.val.string.len == strlen(members[i]) &&
				memcmp(json.val.string.val, members[i], json.val.string.len) == 0;
		if (!known)
			field_invalid("desired", psprintf("has the unknown member \"%s\"", pnstrdup(json.val.string.val, json.val.string.len)),
						  "It is placement, runtime_compatibility_id, workload_version or workload.");
	}
}

static void
desired_from_json(Jsonb *json, SessionDesired *desired)
{
	char	   *workload;

	if (!JB_ROOT_IS_OBJECT(json))
		field_invalid("desired", "must be a JSON object", "Its members are placement, runtime_compatibility_id, workload_version and workload.");
	check_members(json);
	desired->placement = desired_member(&json->root, "placement");
	if (desired->placement == NULL)
		field_null("placement");
	if (strcmp(desired->placement, "pooled") != 0 && strcmp(desired->placement, "dedicated") != 0)
		field_invalid("placement", "is no placement", "It is pooled or dedicated.");
	desired->runtime_compatibility_id = desired_member(&json->root, "runtime_compatibility_id");
	desired->workload_version = desired_member(&json->root, "workload_version");
	workload = desired_member(&json->root, "workload");
	/* an empty one is none */
	desired->workload = workload != NULL ? workload_from_text(workload) : NULL;
	if (desired->workload != NULL && VARSIZE(desired->workload) == VARHDRSZ)
		desired->workload = NULL;
	if ((desired->workload == NULL) != (desired->workload_version == NULL))
		field_invalid(desired->workload == NULL ? "workload" : "workload_version", "must be given",
					  "A workload and its version are given together, or neither.");
}

static Datum
return_placing(FunctionCallInfo fcinfo, const Placing *placing)
{
	const PlaceLook *look = &placing->look;
	Datum		values[10] = {0};
	bool		nulls[10] = {false};

	values[0] = CStringGetTextDatum(placing->outcome);
	nulls[1] = placing->rule == 0;
	values[1] = Int32GetDatum(placing->rule);
	values[2] = text_or_null(placing->host_id, &nulls[2]);
	nulls[3] = placing->host_id == NULL;
	values[3] = Int64GetDatum(placing->host_generation);
	nulls[4] = placing->lease_epoch == 0;
	values[4] = Int64GetDatum(placing->lease_epoch);
	nulls[5] = placing->offer_id == 0;
	values[5] = Int64GetDatum(placing->offer_id);
	nulls[6] = placing->rule == 0;
	values[6] = Int64GetDatum(look->session.generation);
	values[7] = Int32GetDatum(placing->desired_writes);
	values[8] = Int32GetDatum(placing->replacements);
	nulls[9] = placing->rule == 0 || placing->until == DT_NOEND;
	if (!nulls[9])
		values[9] = IntervalPGetDatum(duration_interval(Max((placing->until - clock_now()) / 1000, 0)));
	return return_one_row(fcinfo, values, nulls);
}

PG_FUNCTION_INFO_V1(reconcile_place_session);
Datum
reconcile_place_session(PG_FUNCTION_ARGS)
{
	Placing		placing = {0};
	SessionKey	key;
	SessionDesired desired;

	require_writable("place_session");
	require_read_committed("place_session");
	session_key_args(fcinfo, &key);
	if (!PG_ARGISNULL(2))
		desired_from_json(PG_GETARG_JSONB_P(2), &desired);
	if (!PG_ARGISNULL(3))
		placing.claim_token = identity_field(fcinfo, 3, "claim_token");
	access_require_all(CAP_PLACE);

	placing.look.wanted = true;
	if (session_lock(&key, &placing.look.session))
	{
		place(&placing, PG_ARGISNULL(2) ? NULL : &desired);
		/* the caller need not come again to see whether the host has answered */
		if (placing.asks)
			session_mark(placing.look.session.number, placing.until);
	}
	else
		placing.outcome = "not_found";
	return return_placing(fcinfo, &placing);
}

/* An entity of the loop; a name that is no number of a session is nobody's. */
static bool
number_from_entity(const char *entity_id, int64 *number)
{
	char	   *end;

	errno = 0;
	*number = strtoll(entity_id, &end, 10);
	return entity_id[0] >= '1' && entity_id[0] <= '9' && *end == '\0' && errno == 0;
}

/* What place_session() would do, where a command asks for it; returns when to look again. */
PG_FUNCTION_INFO_V1(reconcile_place_entity);
Datum
reconcile_place_entity(PG_FUNCTION_ARGS)
{
	Placing		placing = {0};
	char	   *entity_id;
	int64		number;
	Session		session;

	require_writable("place_entity");
	require_read_committed("place_entity");
	entity_id = entity_id_arg(fcinfo, 0, "entity_id");
	access_require(CAP_PLACE, PLACEMENT_LOOP);

	/* its row has the lock, and its name is not the key of that */
	if (!number_from_entity(entity_id, &number) || !session_read_number(number, &session) ||
		!session_lock(&session.key, &placing.look.session))
		PG_RETURN_NULL();
	place(&placing, NULL);
	if (placing.until == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(duration_interval(Max((placing.until - clock_now() + 999) / 1000, 1)));
}

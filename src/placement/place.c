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
 * What it comes to is kept in the row of its search.  Nothing here waits for a host, and
 * no other session is locked.  The row of a host's target comes last: who has it asks for
 * no session, and who waits for one has none.
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "core/access.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/ident.h"
#include "core/rows.h"
#include "journal/envelope.h"
#include "placement/placing.h"

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
	SessionDesired desired = place_revived(session);

	return desire(placing, &desired, session_revive_key(&session->key, &desired, session->generation));
}

/* ----------------------------------------------------------------
 * Dedicated sessions
 * ----------------------------------------------------------------
 */

/* Its controller makes the workload first, and the workload brings its host. */
static void
reconcile_dedicated(Placing *placing)
{
	PlaceLook  *look = &placing->look;
	Workload	workload;

	workload_ensure(&look->session, &workload);
	(void) search_wait(&look->search, NULL, NULL, 0, look->now);
	if (look->leased)
	{
		place_end_offer(look);
		placing->until = look->leased_until;
	}
	else if (look->offered)
	{
		/* the target that this has locked is not to be held while another is waited for */
		place_end_offer(look);
		placing->until = look->now;
	}
	else if (!place_has_no_work(look))
		place_ask_workload(placing, &workload);
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
			place_end_offer(look);
			place_end_search(look);
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
			place_end_offer(look);
			place_end_search(look);
			break;
		case PLACE_STEP_DEDICATED:
			reconcile_dedicated(placing);
			return;
		case PLACE_STEP_NEXT_ROUND:
			place_end_offer(look);
			place_next_round(look);
			placing->replacements = look->search.mismatches;
			break;
		case PLACE_STEP_SEARCH:
			place_search(placing);
			return;
		case PLACE_STEP_LEASE_BUSY:
		case PLACE_STEP_BACKOFF:
			place_end_offer(look);
			(void) search_wait(&look->search, NULL, NULL, 0, look->now);
			break;
		case PLACE_STEP_DEFER:
			/* room is told to others meanwhile */
			(void) search_wait(&look->search, NULL, NULL, 0, look->now);
			break;
		case PLACE_STEP_REVIVE:
			break;
	}
	placing->until = place_step_until(look, step);
}

/* Is the session not where it is to be, and somebody about to see to it? */
static bool
goes_on(PlaceStep step)
{
	return step == PLACE_STEP_WAIT_FOR_ANSWER || step == PLACE_STEP_DEDICATED || step == PLACE_STEP_LEASE_BUSY ||
		step == PLACE_STEP_NEXT_ROUND || step == PLACE_STEP_BACKOFF || step == PLACE_STEP_SEARCH;
}

/* False: what is wanted could not be written. */
static bool
judge(Placing *placing, const SessionDesired *desired, PlaceStep *step)
{
	PlaceLook  *look = &placing->look;

	*step = place_judge(look, &placing->rule);
	/* who has an owner, or is worked on by somebody else, is not changed here */
	if (desired != NULL && *step != PLACE_STEP_REUSE_OWNER && *step != PLACE_STEP_DEFER)
	{
		if (!desire(placing, desired, session_desired_key(&look->session.key, desired)))
			return false;
		*step = place_judge(look, &placing->rule);
	}
	if (*step == PLACE_STEP_REVIVE)
	{
		if (!revive(placing))
			return false;
		*step = place_judge(look, &placing->rule);
	}
	return true;
}

/*
 * The session is locked.  by_hand: it is to be placed, whether a command asks for it or
 * not, now and by the runs of the loop that follow, until the search ends.  desired: what
 * the caller wants of it; NULL: what its row says.
 */
static void
place(Placing *placing, bool by_hand, const SessionDesired *desired)
{
	PlaceLook  *look = &placing->look;
	PlaceStep	step;

	placing->until = DT_NOEND;
	place_look(look, placing->claim_token);
	look->wanted = by_hand || look->search.wanted;
	if (judge(placing, desired, &step))
	{
		if (by_hand && !look->search.wanted && goes_on(step))
			look->search.wanted = look->search.changed = true;
		act(placing, step);
	}
	/* that nobody asks for one that was never looked at need not be known */
	if (step != PLACE_STEP_IDLE || look->search.outcome != NULL)
		search_note(&look->search, placing->outcome, look->now);
	search_save(&look->session.key, &look->search);
}

/* ----------------------------------------------------------------
 * SQL functions
 * ----------------------------------------------------------------
 */

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
		place_desired_from_json(PG_GETARG_JSONB_P(2), &desired);
	if (!PG_ARGISNULL(3))
		placing.claim_token = identity_field(fcinfo, 3, "claim_token");
	access_require_all(CAP_PLACE);

	if (session_lock(&key, &placing.look.session))
	{
		place(&placing, true, PG_ARGISNULL(2) ? NULL : &desired);
		/* the caller need not come again */
		if (placing.look.search.wanted && placing.until != DT_NOEND)
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

/*
 * What place_session() would do, where a command asks for it, or did so by hand; returns
 * when to look again.  Who has the session at this moment is not waited for: he may hang,
 * and there are other sessions.
 */
PG_FUNCTION_INFO_V1(reconcile_place_entity);
Datum
reconcile_place_entity(PG_FUNCTION_ARGS)
{
	Placing		placing = {0};
	char	   *entity_id;
	int64		number;
	Session		session;
	bool		busy;

	require_writable("place_entity");
	require_read_committed("place_entity");
	entity_id = entity_id_arg(fcinfo, 0, "entity_id");
	access_require(CAP_PLACE, PLACEMENT_LOOP);

	/* its row has the lock, and its name is not the key of that */
	if (!number_from_entity(entity_id, &number) || !session_read_number(number, &session))
		PG_RETURN_NULL();
	if (!session_try_lock(&session.key, &placing.look.session, &busy))
	{
		if (!busy)
			PG_RETURN_NULL();
		PG_RETURN_INTERVAL_P(duration_interval(PLACE_SOON_MS));
	}
	place(&placing, false, NULL);
	if (placing.until == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_INTERVAL_P(duration_interval(Max((placing.until - clock_now() + 999) / 1000, 1)));
}

/*
 * place_search.c
 *		The search for a host: who is asked next, and what is done when nobody is left.
 *
 * The ranking is gone through up to three times: for hosts that nobody else places on at
 * this moment; for the others, whose turn is waited for; and for those that said the
 * session is elsewhere, though nobody has its lease.  Where nobody is left the round
 * rests, if somebody was asked: the same are asked again after a while, new ones at once.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "core/duration.h"
#include "core/testpoint.h"
#include "placement/marks.h"
#include "placement/placing.h"

typedef enum Pass
{
	PASS_FREE,
	PASS_BUSY,
	PASS_ELSEWHERE
} Pass;

typedef struct Asking
{
	Pass		pass;
	bool		may_wait;		/* no target's row is locked by this transaction */
	TimestampTz turns_until;	/* no turn is waited for after that */
	bool		busy;			/* a host that would do has its row taken by somebody */
} Asking;

/* ----------------------------------------------------------------
 * Ending
 * ----------------------------------------------------------------
 */

void
place_end_offer(PlaceLook *look)
{
	bool		in_time;

	if (!look->offered)
		return;
	/* of one whose host is gone nobody else wants anything: it just was not answered */
	in_time = look->now < look->offer.expires_at && (look->answerable || place_offer_is_stale(look));
	offer_end(&look->offer, in_time ? "withdrawn" : "expired", NULL, look->now);
	look->offered = false;
}

void
place_end_search(PlaceLook *look)
{
	Search	   *search = &look->search;

	if (look->nasked > 0 || look->round_over || search->mismatches > 0 || search->refusals > 0 ||
		search->look_at != DT_NOBEGIN || search->wanted || search->waits_at.agent_id != NULL)
		search_end(search);
}

/* ----------------------------------------------------------------
 * Asking
 * ----------------------------------------------------------------
 */

/* A host has an offer: it is told, and looked at when it has not answered. */
static void
answer_asked(Placing *placing, const char *host_id, int64 host_generation)
{
	placing->host_id = host_id;
	placing->host_generation = host_generation;
	placing->until = clock_add_ms(placing->look.now, placing->look.settings.offer_ttl_ms);
	place_notify_host(host_id);
	sweep_mark(SWEEP_OFFERS, placing->until);
}

static int
turn_ms(const Asking *asking)
{
	if (asking->pass == PASS_FREE || !asking->may_wait)
		return 0;
	return (int) Min(Max((asking->turns_until - clock_now()) / 1000, 0), HOST_TURN_MS);
}

/* Reserved and offered; false: it has no room, or somebody has its row. */
static bool
ask(Placing *placing, Asking *asking, const HostTarget *target)
{
	PlaceLook  *look = &placing->look;

	switch (host_reserve(target, turn_ms(asking), &look->now))
	{
		case HOST_BUSY:
			asking->busy = true;
			return false;
		case HOST_FULL:
			return false;
		case HOST_RESERVED:
			break;
	}
	TEST_POINT("place-reserved");
	placing->offer_id = offer_make(&look->session, target, look->search.round, look->settings.offer_ttl_ms, look->now);
	TEST_POINT("place-offered");
	answer_asked(placing, target->host_id, target->host_generation);
	return true;
}

/* The first host of the ranking that may have it and has room, however far down it is. */
static bool
ask_ranked(Placing *placing, Asking *asking)
{
	const PlaceLook *look = &placing->look;
	RankPlace	after = {0};
	HostTarget *targets;
	int			n;

	while ((n = place_candidates(look, &after, &targets)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < n; i++)
		{
			bool		elsewhere = place_said_elsewhere(look, targets[i].host_id);

			/* those that come after are as full */
			if (targets[i].capacity - targets[i].reserved <= 0)
				return false;
			if (elsewhere == (asking->pass == PASS_ELSEWHERE) && place_passed_over(look, &targets[i]) == NULL &&
				ask(placing, asking, &targets[i]))
				return true;
		}
	}
	return false;
}

static bool
ask_next(Placing *placing, Asking *asking)
{
	asking->pass = PASS_FREE;
	if (ask_ranked(placing, asking))
		return true;
	asking->turns_until = clock_add_ms(clock_now(), TURNS_MAX_MS);
	if (asking->busy && asking->may_wait)
	{
		asking->busy = false;
		asking->pass = PASS_BUSY;
		if (ask_ranked(placing, asking))
			return true;
	}
	asking->pass = PASS_ELSEWHERE;
	return placing->look.nelsewhere > 0 && ask_ranked(placing, asking);
}

/* ----------------------------------------------------------------
 * Nobody is left
 * ----------------------------------------------------------------
 */

static TimestampTz
backoff_end(const PlaceLook *look, int64 max_ms, int rounds)
{
	int64		ms = search_backoff(look->settings.replace_backoff_ms, max_ms, rounds);

	return clock_add_ms(look->now, search_jitter(ms, pg_prng_double(&pg_global_prng_state)));
}

/* Those that were asked are asked again after a while, longer each time. */
static TimestampTz
rest(PlaceLook *look)
{
	Search	   *search = &look->search;

	if (search->look_at == DT_NOBEGIN)
	{
		search->mismatches = 0;
		search->refusals++;
		search->look_at = backoff_end(look, REFUSAL_BACKOFF_MAX_MS, search->refusals);
		search->changed = true;
	}
	return search->look_at;
}

/* Nobody is there who could be asked again. */
static void
forget_rounds(Search *search, bool begun)
{
	if (begun || search->mismatches > 0 || search->refusals > 0)
		search_next_round(search, 0, DT_NOBEGIN);
	search->refusals = 0;
}

/*
 * Who may be about to commit room without having seen who waits for it began before that,
 * so the longer it waits the less there is of it: each look is as long after the last one
 * as that was after the beginning.
 */
static TimestampTz
next_look(const PlaceLook *look, TimestampTz since)
{
	return look->now + Max(look->now - since, PLACE_SOON_MS * INT64CONST(1000));
}

/* room_is_known: none is about to come that did not see it wait. */
static void
wait_for_room(Placing *placing, bool room_is_known)
{
	PlaceLook  *look = &placing->look;
	Search	   *search = &look->search;
	TargetKey	target = place_target(look);

	placing->outcome = place_outcome_name(PLACE_NO_CAPACITY);
	/* who has placed it by hand is told so, and that is all */
	if (target.runtime_compatibility_id == NULL || !look->work.needs_host)
	{
		place_end_search(look);
		return;
	}
	if (look->nasked > 0)
	{
		TimestampTz look_at = rest(look);

		/* by itself a few times, and then at a sweep */
		if (search->refusals < look->settings.replace_attempts)
			placing->until = look_at;
	}
	else
		forget_rounds(search, false);
	if (search_wait(search, &target, look->work.requires, look->work.nrequires, look->now) || !room_is_known)
		placing->until = Min(placing->until, next_look(look, search->waits_since));
}

void
place_search(Placing *placing)
{
	PlaceLook  *look = &placing->look;
	Search	   *search = &look->search;
	TargetKey	target = place_target(look);
	Asking		asking = {.may_wait = !look->offered};
	bool		room_is_known;

	/* who did not answer is not asked again in this round; with another wish all are */
	if (look->offered && look->now < look->offer.expires_at && place_offer_is_stale(look))
	{
		look->round_over = true;
		look->nasked = 0;
		search->refusals = 0;
	}
	if (look->round_over)
		search_next_round(search, 0, DT_NOBEGIN);
	/* what it had reserved is free: of one host alone that may be all there is */
	place_end_offer(look);
	room_is_known = target.runtime_compatibility_id != NULL && search_waits_at(search, &target) &&
		host_room_is_known(&target);
	if (ask_next(placing, &asking))
	{
		if (search->look_at != DT_NOBEGIN)
			search->changed = true;
		search->look_at = DT_NOBEGIN;
		(void) search_wait(search, NULL, NULL, 0, look->now);
		return;
	}
	if (asking.busy)
	{
		placing->outcome = "contended";
		placing->until = clock_add_ms(look->now, PLACE_SOON_MS);
	}
	else
		wait_for_room(placing, room_is_known);
}

void
place_next_round(PlaceLook *look)
{
	int			mismatches = look->search.mismatches + 1;

	search_next_round(&look->search, mismatches, backoff_end(look, MISMATCH_BACKOFF_MAX_MS, mismatches));
}

void
place_ask_workload(Placing *placing, const Workload *workload)
{
	PlaceLook  *look = &placing->look;
	TargetKey	target = place_target(look);
	bool		room_is_known;
	bool		busy;

	if (!workload_is_ready(&look->session, workload))
	{
		/* what another one has refused is nothing to this one */
		forget_rounds(&look->search, look->nasked > 0 || look->round_over);
		return;
	}
	if (look->nasked > 0)
	{
		if (place_is_elsewhere(look))
			placing->outcome = place_step_outcome(PLACE_STEP_GIVE_UP);
		placing->until = rest(look);
		return;
	}
	if (look->round_over)
		search_next_round(&look->search, 0, DT_NOBEGIN);
	room_is_known = host_room_is_known(&target);
	placing->offer_id = workload_offer(&look->session, workload, look->search.round, look->settings.offer_ttl_ms,
									   &look->now, &busy);
	if (placing->offer_id > 0)
		answer_asked(placing, workload->host_id, workload->host_generation);
	else if (busy)
		placing->until = clock_add_ms(look->now, PLACE_SOON_MS);
	/* its host may be about to speak, and did not see that it is ready */
	else if (!room_is_known)
		placing->until = next_look(look, workload->reported_at);
}

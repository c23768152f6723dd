/*
 * terms.c
 *		The dispatcher's leases: contend, renew, lose, give back.
 *
 *		contending --grant--> leading --renewal fails, or deadline--> contending
 *
 * Any error while acquiring or renewing ends the term: nothing runs until a new
 * grant, and the next try comes after a second, doubled to thirty.  A loop whose
 * lease another holder has is looked at again at that term's deadline, or when a
 * lease changes here: a follower consumes nothing and does not poll.
 */
#include "postgres.h"

#include "core/duration.h"
#include "core/testpoint.h"
#include "engine/dispatcher.h"
#include "engine/process.h"

#define RETRY_MIN_MS	1000
#define RETRY_MAX_MS	30000
#define DRAIN_LOOK_MS	100		/* a fenced transaction of the old term is in flight */

typedef struct TermWork
{
	DispatchLoop *loop;
	LeaseOutcome outcome;
	Lease		lease;
	bool		renewed;
} TermWork;

static void
acquire(void *arg)
{
	TermWork   *work = arg;

	work->outcome = lease_try_acquire(work->loop->rules.loop_name, dispatcher->holder_id,
									  work->loop->rules.lease_ttl_ms, true, &work->lease);
	TEST_POINT("dispatcher-before-commit");
}

static void
renew(void *arg)
{
	TermWork   *work = arg;

	work->renewed = lease_renew(work->loop->rules.loop_name, dispatcher->holder_id, work->loop->epoch,
								work->loop->rules.lease_ttl_ms, &work->lease);
}

static void
release(void *arg)
{
	TermWork   *work = arg;

	(void) lease_release(work->loop->rules.loop_name, dispatcher->holder_id, work->loop->epoch);
}

static void
retry_later(DispatchLoop *loop, TimestampTz now)
{
	loop->lease_retry_ms = loop->lease_retry_ms == 0 ? RETRY_MIN_MS :
		Min(loop->lease_retry_ms * 2, RETRY_MAX_MS);
	loop->lease_at = clock_add_ms(now, loop->lease_retry_ms);
}

/* Counted from before the request: the deadline that we hold ourselves to is never late. */
static void
lead_until(DispatchLoop *loop, const Lease *lease, TimestampTz asked_at)
{
	int64		ttl_ms = loop->rules.lease_ttl_ms;

	loop->leading = true;
	loop->epoch = lease->epoch;
	loop->expires_at = Min(lease->expires_at, clock_add_ms(asked_at, ttl_ms));
	loop->lease_at = clock_add_ms(asked_at, loop->rules.renew_every_ms > 0 ?
								  Min(loop->rules.renew_every_ms, ttl_ms / 2) : ttl_ms / 3);
	loop->lease_retry_ms = 0;
}

void
terms_end(DispatchLoop *loop, TimestampTz now)
{
	loop->leading = false;
	handout_cancel(loop, CANCEL_LEASE);
	retry_later(loop, now);
}

void
terms_release(DispatchLoop *loop)
{
	TermWork	work = {loop};

	handout_cancel(loop, CANCEL_LEASE);
	loop->leading = false;
	(void) process_transaction(release, &work);
}

void
terms_kick(DispatchLoop *loop)
{
	if (!loop->leading && loop->lease_retry_ms == 0)
		loop->lease_at = 0;
}

/* A renewal tells. */
void
terms_doubt(DispatchLoop *loop)
{
	if (loop->leading)
		loop->lease_at = 0;
}

static void
contend(DispatchLoop *loop, TimestampTz now)
{
	TermWork	work = {loop};

	if (!process_transaction(acquire, &work))
	{
		retry_later(loop, now);
		return;
	}
	switch (work.outcome)
	{
		case LEASE_GRANTED:
			TEST_POINT("dispatcher-after-commit");
			lead_until(loop, &work.lease, now);
			break;
		case LEASE_HELD:
			loop->lease_retry_ms = 0;
			/* after a crash that is later than its expiry: no look before it is of use */
			loop->lease_at = Max(lease_deadline(&work.lease), now) + 1000;
			break;
		case LEASE_DRAINING:
			handout_cancel_orphans(loop->rules.loop_name);
			/* FALLTHROUGH */
		case LEASE_BUSY:
		case LEASE_SETTLING:
			loop->lease_at = clock_add_ms(now, DRAIN_LOOK_MS);
			break;
	}
}

void
terms_tend(DispatchLoop *loop, TimestampTz now)
{
	TermWork	work = {loop};

	/* the lease of a loop for outside workers is theirs */
	if (!loop_leads(&loop->rules) || !loop->rules.enabled || loop->rules.foreign)
	{
		if (loop->leading)
			terms_release(loop);
		return;
	}
	if (!loop->leading)
	{
		if (loop->lease_at <= now)
			contend(loop, now);
	}
	else if (now >= loop->expires_at)
		terms_end(loop, now);
	else if (loop->lease_at <= now)
	{
		if (process_transaction(renew, &work) && work.renewed)
			lead_until(loop, &work.lease, now);
		else
			terms_end(loop, now);
	}
	dispatcher_wake_at(loop->lease_at);
}

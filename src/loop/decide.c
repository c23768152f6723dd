/*
 * decide.c
 *		What follows from a run: a table of rules, first match wins.
 *
 * Pure: no I/O, no clock, no random source.  "n" is the number of consecutive
 * failures before the run.
 */
#include "postgres.h"

#include <math.h>

#include "core/duration.h"
#include "core/errors.h"
#include "loop/decide.h"

#define CRASHES_MAX		3		/* without max_attempts: each may have taken the whole server down */

typedef enum Delay
{
	DELAY_NONE,					/* no next look */
	DELAY_ASKED,				/* what the function returned */
	DELAY_DEFAULT,				/* default_requeue, if the loop has one */
	DELAY_BACKOFF				/* base * 2^n, at most max */
} Delay;

typedef struct Rule
{
	int			number;
	bool		(*matches) (const LoopRules *rules, const RunFacts *facts);
	RunResult	result;
	Delay		delay;
	bool		counts;			/* the failure counts; otherwise the count is reset */
	const char *died_of;
} Rule;

static bool
is_permanent(const LoopRules *rules, const RunFacts *facts)
{
	return facts->failed &&
		(facts->sqlstate == ERRCODE_PERMANENT_FAILURE || facts->sqlstate == ERRCODE_STALE_EPOCH);
}

static bool
is_last_attempt(const LoopRules *rules, const RunFacts *facts)
{
	return facts->failed && rules->max_attempts >= 0 && facts->failures + 1 >= rules->max_attempts;
}

static int
crashes_with(const RunFacts *facts)
{
	return Min(Max(facts->crashes, 0), PG_INT32_MAX - 1) + facts->crashed;
}

/* What fails otherwise in between makes a run that crashes no better. */
static bool
is_last_crash(const LoopRules *rules, const RunFacts *facts)
{
	if (rules->max_attempts >= 0)
		return is_last_attempt(rules, facts) && (facts->crashed || crashes_with(facts) >= CRASHES_MAX);
	return facts->failed && crashes_with(facts) >= CRASHES_MAX;
}

static bool
is_failure(const LoopRules *rules, const RunFacts *facts)
{
	return facts->failed;
}

static bool
asks_for_time(const LoopRules *rules, const RunFacts *facts)
{
	return facts->asked && facts->asked_ms > 0;
}

static bool
always(const LoopRules *rules, const RunFacts *facts)
{
	return true;
}

static const Rule rule_table[] = {
	/* an error that says so, or a write at a stale epoch, is final */
	{10, is_permanent, RESULT_PERMANENT, DELAY_NONE, true, "permanent"},
	/* a run that ended its process, at the last attempt that the loop allows, is revived by an operator alone */
	{15, is_last_crash, RESULT_PERMANENT, DELAY_NONE, true, "crash"},
	/* an error at the last attempt that the loop allows is final too */
	{20, is_last_attempt, RESULT_PERMANENT, DELAY_NONE, true, "attempts"},
	/* any other error is tried again after a backoff */
	{30, is_failure, RESULT_TRANSIENT, DELAY_BACKOFF, true, NULL},
	/* a success that asks for a time gets exactly that */
	{40, asks_for_time, RESULT_SUCCESS, DELAY_ASKED, false, NULL},
	/* a success that asks for nothing is looked at again after the loop's default */
	{50, always, RESULT_SUCCESS, DELAY_DEFAULT, false, NULL},
};

int64
decide_backoff(int64 base_ms, int64 max_ms, int n)
{
	int64		delay = base_ms;

	/* doubling stops at the cap, so it cannot overflow */
	for (int i = 0; i < n && delay < max_ms; i++)
		delay = (delay > max_ms / 2) ? max_ms : delay * 2;
	return Min(delay, max_ms);
}

RunDecision
decide_run(const LoopRules *rules, const RunFacts *facts)
{
	RunDecision decision = {0};
	const Rule *rule = rule_table;

	while (!rule->matches(rules, facts))
		rule++;

	decision.rule = rule->number;
	decision.result = rule->result;
	decision.died_of = rule->died_of;
	decision.failures = rule->counts ? Min(facts->failures, PG_INT32_MAX - 1) + 1 : 0;
	decision.crashes = rule->counts ? crashes_with(facts) : 0;
	switch (rule->delay)
	{
		case DELAY_NONE:
			break;
		case DELAY_ASKED:
			decision.look = true;
			decision.look_ms = facts->asked_ms;
			break;
		case DELAY_DEFAULT:
			decision.look = rules->default_requeue_ms >= 0;
			decision.look_ms = rules->default_requeue_ms;
			break;
		case DELAY_BACKOFF:
			decision.look = true;
			decision.look_ms = decide_backoff(rules->backoff_base_ms, rules->backoff_max_ms, facts->failures);
			/* jitter j: between (1 - j) and 1 of the delay, so the cap holds */
			decision.look_ms -= (int64) rint(decision.look_ms * rules->backoff_jitter * facts->random);
			break;
	}
	return decision;
}

/*
 * decide.h
 *		What follows from a run: a pure function over captured facts.
 */
#ifndef RECONCILE_DECIDE_H
#define RECONCILE_DECIDE_H

#include "loop/loop.h"

typedef enum RunResult
{
	RESULT_SUCCESS,
	RESULT_TRANSIENT,
	RESULT_PERMANENT
} RunResult;

/* The facts. */
typedef struct RunFacts
{
	bool		failed;
	int			sqlstate;		/* of a failure: MAKE_SQLSTATE encoding */
	bool		asked;			/* success: the function asked for a time */
	int64		asked_ms;		/* success: it, 0 or less = asked for nothing */
	int			failures;		/* consecutive ones before this run */
	bool		crashed;		/* of a failure: it ended its process */
	int			crashes;		/* runs that did so since the last success, before this one */
	double		random;			/* in [0, 1), for jitter */
} RunFacts;

typedef struct RunDecision
{
	RunResult	result;
	bool		look;			/* look again, after look_ms */
	int64		look_ms;
	int			failures;		/* from now on */
	int			crashes;		/* the same */
	const char *died_of;		/* NULL, "permanent", "attempts" or "crash" */
	int			rule;			/* number of the rule that decided */
} RunDecision;

extern RunDecision decide_run(const LoopRules *rules, const RunFacts *facts);

/* min(base * 2^n, max), n = consecutive failures before this one; never overflows. */
extern int64 decide_backoff(int64 base_ms, int64 max_ms, int n);

#endif							/* RECONCILE_DECIDE_H */

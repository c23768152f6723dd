/*
 * lend_shmem.h
 *		What sessions and dispatchers share for lending: see lend.h.
 */
#ifndef RECONCILE_LEND_SHMEM_H
#define RECONCILE_LEND_SHMEM_H

#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/spin.h"

#include "engine/lend.h"
#include "engine/shmem.h"

#define LEND_REQUESTS	32		/* sessions that can ask at once, in the server */
#define LEND_LENT		16384	/* entities that can be lent at once, in the server */
#define LEND_REPLY		65536	/* bytes of an answer; the rest is asked for again */

typedef enum RequestState
{
	REQUEST_FREE,
	REQUEST_TAKEN,				/* a session fills it in */
	REQUEST_ASKED,
	REQUEST_FILLING,			/* the dispatcher writes its answer */
	REQUEST_ANSWERED
} RequestState;

typedef struct LendRequest
{
	slock_t		mutex;			/* of the state; the rest belongs to whom the state says */
	RequestState state;
	bool		abandoned;		/* the session gave up while it was filled */
	uint64		number;			/* tells a question from the next one */
	Oid			database;
	int			pid;
	int			procno;
	char		loop_name[RECONCILER_ID_MAX + 1];
	int			wanted;
	TimestampTz next_due;
	int			n;				/* items in the reply */
	Size		used;			/* and their bytes */
	int64		reply[LEND_REPLY / sizeof(int64)];	/* LendItem, one after the other */
} LendRequest;

/* An item of a reply; the entity's id and its end follow the marks. */
typedef struct LendItem
{
	int			lent;
	int			size;			/* of the whole, aligned */
	int			nmarks;
	MarkRef		marks[FLEXIBLE_ARRAY_MEMBER];
} LendItem;

typedef enum LentState
{
	LENT_FREE,
	LENT_OUT,
	LENT_ANSWERED,				/* its transaction committed */
	LENT_RETURNED				/* again, not before "until" */
} LentState;

typedef struct Lent
{
	pg_atomic_uint32 state;
	int			database_index;
	uint32		dispatcher;		/* generation of the one that lent it */
	TimestampTz until;
} Lent;

typedef struct LendShared
{
	ConditionVariable request_free;
	slock_t		mutex;			/* of the free list */
	int			nfree;
	int			free[LEND_LENT];
	Lent		lent[LEND_LENT];
	pg_atomic_uint32 ended[ENGINE_DATABASES];	/* by database: rises when one of its lent entities ends */
	LendRequest requests[LEND_REQUESTS];
} LendShared;

extern LendShared *lend_shared;

/* Ends what is lent; whoever lent it gets it back. */
extern void lend_end(int index, LentState state, TimestampTz until);

/* Ends all that an answer has lent and nobody will take. */
extern void lend_end_answer(LendRequest *request);

#endif							/* RECONCILE_LEND_SHMEM_H */

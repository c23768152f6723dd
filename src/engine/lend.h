/*
 * lend.h
 *		Lending due entities to the transactions of outside workers.
 *
 * claim_work() asks the dispatcher, which knows what is due, and waits for its
 * answer:
 *
 *		request:	free --session--> asked --dispatcher--> answered --session--> free
 *		lent:		free --dispatcher--> out --session's transaction ends--> answered or returned --dispatcher--> free
 *
 * To the dispatcher a lent entity is in flight.  An answer comes only from a
 * turn that began after the question and has taken in all messages, so a worker
 * finds what was committed before it asked.  Nothing depends on it for being
 * right: claim_try() judges each candidate.
 */
#ifndef RECONCILE_LEND_H
#define RECONCILE_LEND_H

#include "loop/claim.h"

struct DispatchLoop;

/* Shared memory: its size, and its making by the first who comes, under AddinShmemInitLock. */
extern Size lend_shmem_size(void);
extern void lend_shmem_attach(void);

/* Sets the hooks of claims; once, where the library is preloaded. */
extern void lend_init(void);

/* The dispatcher's side, each once a turn. */
extern void lend_dispatcher_init(void);
extern void lend_collect(void);			/* takes back what was answered or returned; before the messages are read */
extern void lend_answer(bool caught_up);	/* answers those who asked before lend_collect() */

/* Is an entity of this loop lent? */
extern bool lend_has(const struct DispatchLoop *loop);

#endif							/* RECONCILE_LEND_H */

/*
 * session_due.h
 *		Open commands of a shard, in the order of their deadlines.
 */
#ifndef RECONCILE_PLACEMENT_SESSION_DUE_H
#define RECONCILE_PLACEMENT_SESSION_DUE_H

#include "datatype/timestamp.h"

typedef struct DueCommand
{
	TimestampTz apply_deadline;
	char	   *tenant_id;
	char	   *session_id;
	char	   *command_id;
	char	   *state;
	int64		revision;
	int64		claim_epoch;	/* 0: it was never claimed */
	TimestampTz claim_expires_at;	/* DT_NOBEGIN: likewise */
	char	   *attempt_id;		/* NULL: none was begun */
} DueCommand;

/* Those with a deadline up to "bound", behind one (its first four members) or from the head; how many. */
extern int	session_due_page(int shard, TimestampTz bound, const DueCommand *after, int limit, DueCommand **commands);

/* The one before all. */
extern void session_due_head(DueCommand *head);

/* The earliest deadline that is later than "after", of all shards below that number; DT_NOEND: there is none. */
extern TimestampTz session_due_first(int shards, TimestampTz after);

/* The latest deadline of a shard; DT_NOBEGIN: there is none. */
extern TimestampTz session_due_last(int shard);

#endif							/* RECONCILE_PLACEMENT_SESSION_DUE_H */

/*
 * workload_row.h
 *		Rows of session_workload and session_termination, for those who change them.
 */
#ifndef RECONCILE_WORKLOAD_ROW_H
#define RECONCILE_WORKLOAD_ROW_H

#include "placement/workload.h"

/* With the session locked; false: there is none of this generation. */
extern bool workload_read(const SessionKey *key, int64 generation, Workload *workload);
extern void workload_write(const Session *session, const Workload *workload);

/* Is it the one that the session is to have? */
extern bool workload_is_wanted(const Session *session, int64 generation);

/* The highest generation whose end is on record; 0: none. */
extern int64 workload_terminated(const SessionKey *key);

/* Locks the session for a report about one generation; the outcome where there is nothing to report, or NULL. */
extern const char *workload_begin(const SessionKey *key, int64 generation, Session *session);

#endif							/* RECONCILE_WORKLOAD_ROW_H */

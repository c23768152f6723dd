/*
 * home.h
 *		Where this server stands: what tells it from a copy of itself.
 *
 * Rows that hold only where, and since, they were written (terms of leases,
 * loops) name their home.  Whoever reads one compares it with the running server,
 * in memory: so a row that came with a restore, a clone or a promotion is known
 * for one whatever came before or after it, and nothing has to be kept up to date.
 */
#ifndef RECONCILE_HOME_H
#define RECONCILE_HOME_H

#define HOME_MAX	64			/* bytes, with its end */

typedef struct Home
{
	char		place[HOME_MAX];	/* system identifier/database oid/extension oid */
	int32		timeline;
} Home;

typedef enum HomeDifference
{
	HOME_SAME,
	HOME_TIMELINE,				/* the same place, after a promotion or a recovery to a point in time */
	HOME_FOREIGN				/* another cluster, database or CREATE EXTENSION */
} HomeDifference;

/* That of this backend, valid until the next call; on a standby that of its primary. */
extern const Home *home_here(void);

/* How a row's home differs from home_here(). */
extern HomeDifference home_compare(const char *place, int32 timeline);

#endif							/* RECONCILE_HOME_H */

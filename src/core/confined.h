/*
 * confined.h
 *		Users' functions that run in a session of somebody else, as their owner.
 *
 * With a search path of the owner's, and no way back to the roles of the session.
 * What such a function sets is undone when it returns; its errors are raised.
 */
#ifndef RECONCILE_CONFINED_H
#define RECONCILE_CONFINED_H

/* Calls it, with arguments none of which is NULL. */
extern Datum confined_call(Oid owner, Oid function, int nargs, const Datum *args, bool *isnull);

#endif							/* RECONCILE_CONFINED_H */

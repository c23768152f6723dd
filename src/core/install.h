/*
 * install.h
 *		Our extension as it is installed in this database, and our lock tags.
 *
 * The identity of an install is the oid of its schema: DROP and CREATE
 * EXTENSION give a new one.  All of it is looked up by syscache and kept until
 * an invalidation says otherwise.
 */
#ifndef RECONCILE_INSTALL_H
#define RECONCILE_INSTALL_H

#include "storage/lock.h"

#define MARK_SEGMENTS	4

typedef struct Install
{
	Oid			schema;			/* of "reconcile": also names this install */
	Oid			owner;			/* of that schema: as whom our own plans run */
	Oid			extension;
	Oid			lock_class;		/* oid of reconcile.loop: class of our object locks */
	Oid			segment[MARK_SEGMENTS]; /* the mark segments */
	Oid			access_grant;	/* reconcile.access_grant: invalidated when rights change */
} Install;

/*
 * The install, or NULL where the extension is not there (or is no longer), or
 * has a version that this library cannot serve.
 */
extern const Install *install_find(void);

/* The install, or error 55000. */
extern const Install *install_get(void);

/* The extension's version in this database, palloc'd, if it is one that this library cannot serve; else NULL. */
extern char *install_unserved(void);

/* What is installed here changes with this transaction: all sessions look anew. */
extern void install_changed(void);

#define INSTALL_UNSERVED_MSG \
	"the library reconcile is of version %s, and cannot serve the extension's version %s"
#define INSTALL_UNSERVED_HINT \
	"Run ALTER EXTENSION reconcile UPDATE, or restart the server if it still has an older library loaded."

/*
 * Heavyweight locks on objects in our own class: no user can take them, user
 * code cannot release them, and they end with the transaction (or, where it is
 * said, the session).  The order is the order of these kinds.
 */
typedef enum LockKind
{
	LOCK_KIND_INCARNATION = 0,	/* shared by grants, which try it last; exclusive for a change of incarnation */
	LOCK_KIND_INSTALL,			/* one dispatcher for a database */
	LOCK_KIND_RUN,				/* one run at a time of (loop, entity) */
	LOCK_KIND_LEASE,			/* who may grant an id's next term */
	LOCK_KIND_FENCE,			/* shared by fenced transactions, exclusive for a take-over */
	LOCK_KIND_FORGET,			/* an entity is being forgotten: none of its marks stands for another now */
	LOCK_KIND_DEAD,				/* shared by who changes the number of dead entities, exclusive for counting them */
	LOCK_KIND_PRUNE,			/* a tenant's commands and events are being pruned */
	LOCK_KIND_COMMAND,			/* a tenant's idempotency key: who is admitting or pruning it */
	LOCK_KIND_AUDIT,			/* the end of a tenant's chain, from the last moment of a transaction to its end */
	LOCK_KIND_SWEEP,			/* one sweep of a kind at a time, which tries it; who makes rows for one of placement shares it, and may wait */
	LOCK_KIND_RUNNING			/* shared by who runs or claims of a loop in a session; never waited for, so in no order */
} LockKind;

#define LOCK_KIND_BITS	4

/* The tag of (kind, scope, id); scope is the loop for a run, '' otherwise. */
extern void lock_tag(LOCKTAG *tag, LockKind kind, const char *scope, const char *id);

/* Takes that lock until this transaction is over.  False, if it is not to wait: somebody else has it. */
extern bool lock_take(LockKind kind, const char *scope, const char *id, LOCKMODE mode, bool wait);

#endif							/* RECONCILE_INSTALL_H */

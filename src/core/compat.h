/*
 * compat.h
 *		Differences between the PostgreSQL versions that we build on (15 to 18).
 *
 * The only file that may look at PG_VERSION_NUM.  Code calls the compat_*
 * names; what they mean on each version is here.
 */
#ifndef RECONCILE_COMPAT_H
#define RECONCILE_COMPAT_H

#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_class.h"
#include "datatype/timestamp.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/wait_event.h"
#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#else
#include "storage/backendid.h"
#include "storage/sinvaladt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "reconcile needs PostgreSQL 15 or later"
#endif

/* A token that names a process' PGPROC, fit for shared memory. */
#if PG_VERSION_NUM >= 170000
#define compat_my_procno()			((int) MyProcNumber)
#else
#define compat_my_procno()			(MyProc->pgprocno)
#endif

/* Infinite intervals exist since 17. */
#if PG_VERSION_NUM >= 170000
#define compat_interval_is_finite(i)	(!INTERVAL_NOT_FINITE(i))
#else
#define compat_interval_is_finite(i)	(true)
#endif

/* Does this backend hold exactly this lock in this mode? */
#if PG_VERSION_NUM >= 170000
#define compat_lock_held(tag, mode)		LockHeldByMe((tag), (mode), false)
#else
#define compat_lock_held(tag, mode)		LockHeldByMe((tag), (mode))
#endif

/*
 * Process behind a virtual transaction id that GetLockConflicts() named; 0 if it
 * is gone, or has another transaction by now: one that was prepared keeps its id.
 */
static inline int
compat_vxid_pid(const VirtualTransactionId *vxid)
{
	PGPROC	   *proc;

#if PG_VERSION_NUM >= 170000
	proc = ProcNumberGetProc(vxid->procNumber);
	if (proc != NULL && proc->vxid.lxid != vxid->localTransactionId)
		return 0;
#else
	proc = BackendIdGetProc(vxid->backendId);
	if (proc != NULL && proc->lxid != vxid->localTransactionId)
		return 0;
#endif
	return proc != NULL ? proc->pid : 0;
}

/* Rights on objects: one shape for the checks that 16 unified. */
#if PG_VERSION_NUM >= 160000
#define compat_proc_execute_ok(funcid, roleid) \
	(object_aclcheck(ProcedureRelationId, (funcid), (roleid), ACL_EXECUTE) == ACLCHECK_OK)
#define compat_database_connect_ok(dbid, roleid) \
	(object_aclcheck(DatabaseRelationId, (dbid), (roleid), ACL_CONNECT) == ACLCHECK_OK)
#define compat_class_owned(relid, roleid) \
	object_ownercheck(RelationRelationId, (relid), (roleid))
#define compat_extension_owned(extid, roleid) \
	object_ownercheck(ExtensionRelationId, (extid), (roleid))
#define compat_database_owned(dbid, roleid) \
	object_ownercheck(DatabaseRelationId, (dbid), (roleid))
#define compat_member_can_set_role(member, role)	member_can_set_role((member), (role))
#else
#define compat_proc_execute_ok(funcid, roleid) \
	(pg_proc_aclcheck((funcid), (roleid), ACL_EXECUTE) == ACLCHECK_OK)
#define compat_database_connect_ok(dbid, roleid) \
	(pg_database_aclcheck((dbid), (roleid), ACL_CONNECT) == ACLCHECK_OK)
#define compat_class_owned(relid, roleid)		pg_class_ownercheck((relid), (roleid))
#define compat_extension_owned(extid, roleid)	pg_extension_ownercheck((extid), (roleid))
#define compat_database_owned(dbid, roleid)		pg_database_ownercheck((dbid), (roleid))
#define compat_member_can_set_role(member, role)	is_member_of_role((member), (role))
#endif

/* 17 lets a worker connect as a role without LOGIN. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_WORKER_CONNECT_FLAGS		BGWORKER_BYPASS_ROLELOGINCHECK
#define COMPAT_OWNER_NEEDS_LOGIN		false
#else
#define COMPAT_WORKER_CONNECT_FLAGS		0
#define COMPAT_OWNER_NEEDS_LOGIN		true
#endif

/* The connection limit of a database that DROP DATABASE has left invalid; not all minor releases name it. */
#define COMPAT_DATABASE_INVALID		(-2)

/* The timeout that ends a session in mid-transaction came with 17. */
#if PG_VERSION_NUM >= 170000
#define COMPAT_HAS_TRANSACTION_TIMEOUT	true
#else
#define COMPAT_HAS_TRANSACTION_TIMEOUT	false
#endif

/* Wait events of our own have names since 17. */
#if PG_VERSION_NUM >= 170000
#define compat_wait_event(name)		WaitEventExtensionNew(name)
#else
#define compat_wait_event(name)		PG_WAIT_EXTENSION
#endif

/* Stands before the declaration of a function that does not return. */
#if PG_VERSION_NUM >= 180000
#define compat_noreturn		pg_noreturn
#else
#define compat_noreturn		pg_attribute_noreturn()
#endif

#if PG_VERSION_NUM >= 180000
#define COMPAT_MODULE_MAGIC		PG_MODULE_MAGIC_EXT(.name = "reconcile", .version = "0.1.0")
#else
#define COMPAT_MODULE_MAGIC		PG_MODULE_MAGIC
#endif

#endif							/* RECONCILE_COMPAT_H */

/*
 * fence.c
 *		The fence lock, and what a transaction is bound to.
 *
 * Backend-local state, all of it about the current transaction: the bindings,
 * and how many fences it holds.  Both are stacks whose entries know the nesting
 * level that made them: a subtransaction's commit hands its entries to the
 * parent, its abort pops them, which restores what was there before.  No GUC
 * holds any of it, as a GUC can be set by anyone.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/memutils.h"

#include "core/compat.h"
#include "core/duration.h"
#include "core/errors.h"
#include "core/install.h"
#include "fence/fence.h"
#include "lease/lease.h"

typedef struct Binding
{
	char		reconciler_id[RECONCILER_ID_MAX + 1];
	int64		epoch;
	bool		run;
	int			level;
	bool		verified;		/* the lease was found to be at this epoch ... */
	CommandId	verified_in;	/* ... in this command */
} Binding;

/* Later entries hide earlier ones of the same id. */
static Binding *bindings = NULL;	/* in TopMemoryContext */
static int	nbindings = 0;
static int	bindings_allocated = 0;

typedef struct Usage
{
	int			level;
	int			fences;			/* locks taken in this level, either mode */
	bool		granted;		/* a lease was granted or changed in it */
} Usage;

static Usage *usages = NULL;	/* in TopMemoryContext */
static int	nusages = 0;
static int	usages_allocated = 0;

/* The entry of the current nesting level. */
static Usage *
usage_here(void)
{
	int			level = GetCurrentTransactionNestLevel();

	if (nusages > 0 && usages[nusages - 1].level == level)
		return &usages[nusages - 1];
	if (nusages == usages_allocated)
	{
		int			size = usages_allocated > 0 ? 2 * usages_allocated : 8;

		if (usages == NULL)
			usages = MemoryContextAlloc(TopMemoryContext, size * sizeof(Usage));
		else
			usages = repalloc(usages, size * sizeof(Usage));
		usages_allocated = size;
	}
	usages[nusages].level = level;
	usages[nusages].fences = 0;
	usages[nusages].granted = false;
	return &usages[nusages++];
}

static int
fences_held(void)
{
	int			n = 0;

	for (int i = 0; i < nusages; i++)
		n += usages[i].fences;
	return n;
}

void
fence_note_grant(void)
{
	usage_here()->granted = true;
}

/* ----------------------------------------------------------------
 * The lock
 * ----------------------------------------------------------------
 */

static bool
fence_lock(const char *reconciler_id, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;
	Usage	   *usage;

	lock_tag(&tag, LOCK_KIND_FENCE, "", reconciler_id);
	usage = usage_here();		/* may need memory: before the lock */
	switch (LockAcquire(&tag, mode, false, !wait))
	{
		case LOCKACQUIRE_NOT_AVAIL:
			return false;
		case LOCKACQUIRE_OK:
			/* the lock table is everybody's */
			if (fences_held() >= FENCE_MAX_LEASES)
				ereport(ERROR,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("one transaction can take at most %d leases", FENCE_MAX_LEASES),
						 errhint("Commit in between.")));
			usage->fences++;
			return true;
		default:
			return true;		/* held already */
	}
}

static void
fence_unlock(const char *reconciler_id, LOCKMODE mode)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_FENCE, "", reconciler_id);
	LockRelease(&tag, mode, false);
	if (!compat_lock_held(&tag, mode))
		usage_here()->fences--;
}

bool
fence_lock_shared(const char *reconciler_id, bool wait)
{
	return fence_lock(reconciler_id, ShareLock, wait);
}

void
fence_unlock_shared(const char *reconciler_id)
{
	fence_unlock(reconciler_id, ShareLock);
}

bool
fence_lock_exclusive(const char *reconciler_id)
{
	return fence_lock(reconciler_id, ExclusiveLock, false);
}

void
fence_unlock_exclusive(const char *reconciler_id)
{
	fence_unlock(reconciler_id, ExclusiveLock);
}

bool
fence_used(const char *reconciler_id)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_FENCE, "", reconciler_id);
	return compat_lock_held(&tag, ShareLock);
}

int
fence_terminate(const LOCKTAG *tag, LOCKMODE against, const char *reconciler_id)
{
	VirtualTransactionId *holder = GetLockConflicts(tag, against, NULL);
	int			n = 0;

	for (; VirtualTransactionIdIsValid(*holder); holder++)
	{
		int			pid = compat_vxid_pid(holder);

		if (pid == 0 || pid == MyProcPid)
			continue;
		ereport(LOG,
				(errmsg("ending process %d: it still uses the lapsed term of lease \"%s\"",
						pid, reconciler_id)));
		if (kill(pid, SIGTERM) == 0)
			n++;
	}
	return n;
}

int
fence_terminate_holders(const char *reconciler_id)
{
	LOCKTAG		tag;

	lock_tag(&tag, LOCK_KIND_FENCE, "", reconciler_id);
	return fence_terminate(&tag, ExclusiveLock, reconciler_id);
}

/* ----------------------------------------------------------------
 * Bindings
 * ----------------------------------------------------------------
 */

/* The entry of the id that counts, or -1. */
static int
binding_find(const char *reconciler_id)
{
	for (int i = nbindings - 1; i >= 0; i--)
	{
		if (strcmp(bindings[i].reconciler_id, reconciler_id) == 0)
			return i;
	}
	return -1;
}

static void
binding_reserve(void)
{
	int			size;

	if (nbindings < bindings_allocated)
		return;
	size = bindings_allocated > 0 ? 2 * bindings_allocated : 8;
	if (bindings == NULL)
		bindings = MemoryContextAlloc(TopMemoryContext, size * sizeof(Binding));
	else
		bindings = repalloc(bindings, size * sizeof(Binding));
	bindings_allocated = size;
}

bool
fence_bind(const char *reconciler_id, const char *holder_id, int64 epoch, bool run)
{
	int			level = GetCurrentTransactionNestLevel();
	int			i;
	Lease		lease;

	reconciler_id_check(reconciler_id, "reconciler_id");
	fence_lock_shared(reconciler_id, true);
	if (!lease_read(reconciler_id, &lease) || lease.epoch != epoch ||
		strcmp(lease.holder_id, holder_id) != 0 || clock_now() >= lease.expires_at)
	{
		fence_unlock_shared(reconciler_id);
		return false;
	}

	i = binding_find(reconciler_id);
	run |= i >= 0 && bindings[i].run;
	if (i < 0 || bindings[i].level != level)
	{
		binding_reserve();
		i = nbindings++;
		strlcpy(bindings[i].reconciler_id, reconciler_id, sizeof(bindings[i].reconciler_id));
		bindings[i].level = level;
	}
	bindings[i].epoch = epoch;
	bindings[i].run = run;
	bindings[i].verified = false;
	return true;
}

FenceBound
fence_bound(const char *reconciler_id, FenceBinding *binding)
{
	int			found = -1;
	bool		several = false;

	if (reconciler_id != NULL)
		found = binding_find(reconciler_id);
	else
	{
		for (int i = 0; i < nbindings; i++)
		{
			/* hidden by a later one of the same id */
			if (binding_find(bindings[i].reconciler_id) != i)
				continue;
			if (bindings[i].run)
			{
				found = i;
				several = false;
				break;
			}
			several = found >= 0;
			found = i;
		}
	}
	if (found < 0)
		return FENCE_UNBOUND;
	if (several)
		return FENCE_AMBIGUOUS;
	binding->reconciler_id = bindings[found].reconciler_id;
	binding->epoch = bindings[found].epoch;
	return FENCE_BOUND;
}

FenceHold
fence_hold(const char *reconciler_id, int64 *epoch, int64 *granted)
{
	int			i = binding_find(reconciler_id);
	Lease		lease;

	if (i < 0)
		return FENCE_HOLD_NONE;
	*epoch = bindings[i].epoch;
	if (bindings[i].verified && bindings[i].verified_in == GetCurrentCommandId(false))
		return FENCE_HOLD_CURRENT;
	fence_lock_shared(reconciler_id, true);
	if (!lease_read(reconciler_id, &lease) || lease.epoch != *epoch)
	{
		*granted = lease.epoch;
		return FENCE_HOLD_STALE;
	}
	/* a number that is used is not that of the next statement, too */
	bindings[i].verified_in = GetCurrentCommandId(true);
	bindings[i].verified = true;
	return FENCE_HOLD_CURRENT;
}

/* ----------------------------------------------------------------
 * Transaction callbacks
 * ----------------------------------------------------------------
 */

static void
fence_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			for (int i = 0; i < nusages; i++)
			{
				if (usages[i].fences == 0 && !usages[i].granted)
					continue;
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has used a lease or its fence"),
						 errdetail("No session would be left to end when the next term is due."),
						 errhint("Use COMMIT.")));
			}
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PARALLEL_ABORT:
		case XACT_EVENT_PREPARE:
			nbindings = 0;
			nusages = 0;
			break;
		default:
			break;
	}
}

/* The entry that a subtransaction leaves takes the place of its parent's. */
static void
bindings_to_parent(int level)
{
	int			kept = 0;

	for (int i = 0; i < nbindings; i++)
	{
		int			target = kept;

		if (bindings[i].level >= level)
		{
			bindings[i].level = level - 1;
			for (int j = 0; j < kept; j++)
			{
				if (bindings[j].level == level - 1 &&
					strcmp(bindings[j].reconciler_id, bindings[i].reconciler_id) == 0)
				{
					bindings[i].run |= bindings[j].run;
					target = j;
					break;
				}
			}
		}
		if (target != i)
			bindings[target] = bindings[i];
		if (target == kept)
			kept++;
	}
	nbindings = kept;
}

static void
fence_subxact_callback(SubXactEvent event, SubTransactionId subid,
					   SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		if (nbindings > 0 && bindings[nbindings - 1].level >= level)
			bindings_to_parent(level);
		if (nusages > 0 && usages[nusages - 1].level >= level)
		{
			Usage	   *mine = &usages[nusages - 1];

			mine->level = level - 1;
			if (nusages > 1 && usages[nusages - 2].level == level - 1)
			{
				usages[nusages - 2].fences += mine->fences;
				usages[nusages - 2].granted |= mine->granted;
				nusages--;
			}
		}
	}
	else if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (nbindings > 0 && bindings[nbindings - 1].level >= level)
			nbindings--;
		while (nusages > 0 && usages[nusages - 1].level >= level)
			nusages--;
	}
}

void
fence_init(void)
{
	RegisterXactCallback(fence_xact_callback, NULL);
	RegisterSubXactCallback(fence_subxact_callback, NULL);
}

/* ----------------------------------------------------------------
 * The decision of a fenced write
 * ----------------------------------------------------------------
 */

FenceVerdict
fence_judge(bool leased, int64 current, bool live, int64 epoch, int64 floor)
{
	if (!leased)
		return FENCE_CURRENT;	/* nobody grants epochs here: a plain monotone order */
	if (epoch > current)
		return epoch <= floor ? FENCE_STALE : FENCE_UNMINTED;
	if (epoch < current)
		return FENCE_STALE;		/* for every entity, also one that it never touched */
	return live ? FENCE_CURRENT : FENCE_STALE;
}

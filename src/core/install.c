/*
 * install.c
 *		Looks up our schema and the relations that C code reads by oid, and whether
 *		this library can serve what is installed.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"

/*
 * The versions of the extension that this library can serve.  With any other it
 * reads and writes nothing, as tables and functions may not be those that it
 * knows.
 */
static const char *const served[] = {RECONCILE_VERSION};

static Install cached;
static bool cached_valid = false;

static void
install_forget(Datum arg, int cacheid, uint32 hashvalue)
{
	cached_valid = false;
}

/* pg_extension has no cache, and so no invalidation of its own. */
static void
install_forget_relation(Datum arg, Oid relation)
{
	if (relation == InvalidOid || relation == cached.lock_class)
		cached_valid = false;
}

void
install_changed(void)
{
	const Install *install = install_find();

	if (install != NULL)
		CacheInvalidateRelcacheByRelid(install->lock_class);
	cached_valid = false;
}

/* The extension's version in this database and its oid; NULL: it is not here. */
static char *
read_extension(Oid *extension)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("reconcile"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		*extension = ((Form_pg_extension) GETSTRUCT(tuple))->oid;
		version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion,
												   RelationGetDescr(rel), &isnull));
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

static bool
is_served(const char *version)
{
	for (int i = 0; i < lengthof(served); i++)
	{
		if (strcmp(served[i], version) == 0)
			return true;
	}
	return false;
}

char *
install_unserved(void)
{
	Oid			extension;
	char	   *version = read_extension(&extension);

	return version != NULL && !is_served(version) ? version : NULL;
}

const Install *
install_find(void)
{
	static bool registered = false;
	HeapTuple	tuple;
	Oid			schema;
	Oid			extension;
	const char *version;

	if (cached_valid)
		return &cached;
	if (!registered)
	{
		CacheRegisterSyscacheCallback(NAMESPACEOID, install_forget, (Datum) 0);
		CacheRegisterRelcacheCallback(install_forget_relation, (Datum) 0);
		registered = true;
	}

	schema = get_namespace_oid("reconcile", true);
	if (!OidIsValid(schema))
		return NULL;
	version = read_extension(&extension);
	if (version == NULL || !is_served(version))
		return NULL;
	tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
	if (!HeapTupleIsValid(tuple))
		return NULL;
	memset(&cached, 0, sizeof(cached));
	cached.schema = schema;
	cached.owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	ReleaseSysCache(tuple);

	cached.extension = extension;
	cached.lock_class = get_relname_relid("loop", schema);
	cached.access_grant = get_relname_relid("access_grant", schema);
	for (int i = 0; i < MARK_SEGMENTS; i++)
	{
		char		name[] = "mark_0";

		name[5] = '0' + i;
		cached.segment[i] = get_relname_relid(name, schema);
		if (!OidIsValid(cached.segment[i]))
			return NULL;		/* a namesake schema, or a script in progress */
	}
	if (!OidIsValid(cached.lock_class))
		return NULL;

	cached_valid = true;
	return &cached;
}

const Install *
install_get(void)
{
	const Install *found = install_find();
	const char *version = found == NULL ? install_unserved() : NULL;

	if (version != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg(INSTALL_UNSERVED_MSG, RECONCILE_VERSION, version),
				 errhint(INSTALL_UNSERVED_HINT)));
	if (found == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"reconcile\" is not installed in this database"),
				 errhint("Run CREATE EXTENSION reconcile.")));
	return found;
}

void
lock_tag(LOCKTAG *tag, LockKind kind, const char *scope, const char *id)
{
	uint64		hash = ident_hash(scope, id);

	StaticAssertStmt(LOCK_KIND_RUNNING < (1 << LOCK_KIND_BITS), "kinds of locks must not run into the hash");

	/* 32 bits in the object, 12 more beside the kind in the 16-bit sub-id */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, install_get()->lock_class,
					   (uint32) hash, (uint16) (kind | ((hash >> 32) << LOCK_KIND_BITS)));
}

bool
lock_take(LockKind kind, const char *scope, const char *id, LOCKMODE mode, bool wait)
{
	LOCKTAG		tag;

	lock_tag(&tag, kind, scope, id);
	return LockAcquire(&tag, mode, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * install.c
 *		Looks up our schema and the relations that C code reads by oid.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "core/errors.h"
#include "core/ident.h"
#include "core/install.h"

static Install cached;
static bool cached_valid = false;

static void
install_forget(Datum arg, int cacheid, uint32 hashvalue)
{
	cached_valid = false;
}

const Install *
install_find(void)
{
	static bool registered = false;
	HeapTuple	tuple;
	Oid			schema;

	if (cached_valid)
		return &cached;
	if (!registered)
	{
		CacheRegisterSyscacheCallback(NAMESPACEOID, install_forget, (Datum) 0);
		registered = true;
	}

	schema = get_namespace_oid("reconcile", true);
	if (!OidIsValid(schema))
		return NULL;
	tuple = SearchSysCache1(NAMESPACEOID, ObjectIdGetDatum(schema));
	if (!HeapTupleIsValid(tuple))
		return NULL;
	memset(&cached, 0, sizeof(cached));
	cached.schema = schema;
	cached.owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	ReleaseSysCache(tuple);

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

	/* 32 bits in the object, 13 more beside the kind in the 16-bit sub-id */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, install_get()->lock_class,
					   (uint32) hash, (uint16) (kind | ((hash >> 32) << 3)));
}

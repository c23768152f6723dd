/*
 * audit.c
 *		Events get their places in their tenants' chains when their transaction commits.
 *
 * Until then they are kept in memory, so that nobody waits for a long transaction:
 * the lock on a chain is held from here to the end of the commit, and the chains of
 * more tenants are locked in the order of their names.  Nobody else locks one: whoever
 * could hold a chain would hold up all who tell of that tenant and of another.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "core/compat.h"
#include "core/home.h"
#include "core/install.h"
#include "core/nested.h"
#include "core/plan.h"
#include "core/testpoint.h"
#include "journal/audit.h"
#include "journal/audit_chain.h"

enum
{
	PLAN_HEAD,
	PLAN_CHECK,
	PLAN_SET_HEAD,
	PLAN_SET_ANCHOR,
	PLAN_INSERT
};

static SqlPlan plans[] = {
	[PLAN_HEAD] = {
		"SELECT h.sequence, h.hash FROM reconcile.audit_head h WHERE h.tenant_id OPERATOR(pg_catalog.=) $1",
		1, {TEXTOID}
	},
	/* a head that was restored, or written by hand, or is gone */
	[PLAN_CHECK] = {
		"SELECT FROM (SELECT pg_catalog.max(h.sequence) AS sequence FROM reconcile.audit_head h"
		" WHERE h.tenant_id OPERATOR(pg_catalog.=) $1) h"
		" WHERE h.sequence OPERATOR(pg_catalog.=) 9223372036854775807"
		" OR EXISTS (SELECT FROM reconcile.audit_event e WHERE e.tenant_id OPERATOR(pg_catalog.=) $1"
		" AND e.sequence OPERATOR(pg_catalog.>) COALESCE(h.sequence, 0))",
		1, {TEXTOID}
	},
	[PLAN_SET_HEAD] = {
		"INSERT INTO reconcile.audit_head AS h (tenant_id, sequence, hash, anchor_sequence, anchor_hash)"
		" VALUES ($1, $2, $3, 0, $4)"
		" ON CONFLICT (tenant_id) DO UPDATE SET sequence = EXCLUDED.sequence, hash = EXCLUDED.hash",
		4, {TEXTOID, INT8OID, BYTEAOID, BYTEAOID}
	},
	[PLAN_SET_ANCHOR] = {
		"UPDATE reconcile.audit_head SET anchor_sequence = $2, anchor_hash = $3, pruned_through = $4"
		" WHERE tenant_id OPERATOR(pg_catalog.=) $1",
		4, {TEXTOID, INT8OID, BYTEAOID, TIMESTAMPTZOID}
	},
	[PLAN_INSERT] = {
		"INSERT INTO reconcile.audit_event (" AUDIT_COLUMNS ", hash)"
		" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)",
		21, {TEXTOID, INT8OID, TEXTOID, TIMESTAMPTZOID, TEXTOID, TEXTOID, TEXTOID, NAMEOID, NAMEOID, TEXTOID, TEXTOID,
			 TEXTOID, TEXTOID, TEXTOID, JSONBOID, BYTEAOID, TEXTOID, JSONBOID, TEXTOID, INT2OID, BYTEAOID}
	}
};

typedef struct Pending
{
	Nested		nested;
	int			number;			/* in the order of the transaction */
	Oid			schema;			/* of the install that it is of */
	AuditRow	row;			/* tenant_id NULL: it is no event, and gets no row */
	AuditAnchor *anchor;		/* NULL: it is no pruning */
} Pending;

static Nested *pending = NULL;
static int	next_number = 0;

/* ----------------------------------------------------------------
 * Noting
 * ----------------------------------------------------------------
 */

static char *
copy_text(const char *text)
{
	return text != NULL ? pstrdup(text) : NULL;
}

static Jsonb *
copy_jsonb(const Jsonb *jsonb)
{
	Jsonb	   *copy;

	if (jsonb == NULL)
		return NULL;
	copy = palloc(VARSIZE(jsonb));
	memcpy(copy, jsonb, VARSIZE(jsonb));
	return copy;
}

/* One more; until it has a tenant it is no event. */
static Pending *
add_pending(void)
{
	Oid			schema = install_get()->schema;
	Pending    *noted = nested_add(&pending, sizeof(Pending));

	noted->number = next_number++;
	noted->schema = schema;
	/* whatever the session's synchronous_commit: what was answered is not to be lost */
	ForceSyncCommit();
	return noted;
}

void
audit_note(const AuditEvent *event)
{
	MemoryContext context = MemoryContextSwitchTo(TopTransactionContext);
	Pending    *noted = add_pending();
	AuditRow   *row = &noted->row;

	row->tenant_id = pstrdup(event->tenant_id);
	row->event = pstrdup(event->event);
	row->happened_at = event->at;
	row->command_id = copy_text(event->command_id);
	row->idempotency_key = copy_text(event->idempotency_key);
	row->actor = copy_text(event->actor);
	row->role_name = GetUserNameFromId(GetUserId(), false);
	row->session_role = GetUserNameFromId(GetSessionUserId(), false);
	row->authentication_method = copy_text(event->authentication_method);
	row->action = copy_text(event->action);
	row->target_kind = copy_text(event->target_kind);
	row->target_name = copy_text(event->target_name);
	row->reason = copy_text(event->reason);
	row->options = copy_jsonb(event->options);
	if (event->fingerprint != NULL)
	{
		row->fingerprint = palloc(DIGEST_BYTES);
		memcpy(row->fingerprint, event->fingerprint, DIGEST_BYTES);
	}
	row->failure = copy_text(event->failure);
	row->detail = copy_jsonb(event->detail);
	if (event->anchor != NULL)
	{
		noted->anchor = palloc(sizeof(AuditAnchor));
		*noted->anchor = *event->anchor;
	}
	MemoryContextSwitchTo(context);
}

void
audit_pass_over(void)
{
	(void) add_pending();
	(void) GetTopTransactionId();
}

static bool
is_of_tenant(const Pending *noted, const char *tenant_id)
{
	return noted->row.tenant_id != NULL && strcmp(noted->row.tenant_id, tenant_id) == 0;
}

bool
audit_noted(const char *tenant_id)
{
	for (const Nested *it = pending; it != NULL; it = it->earlier)
	{
		if (is_of_tenant((const Pending *) it, tenant_id))
			return true;
	}
	return false;
}

bool
audit_noted_anchor(const char *tenant_id, AuditAnchor *anchor)
{
	for (const Nested *it = pending; it != NULL; it = it->earlier)
	{
		const Pending *noted = (const Pending *) it;

		if (noted->anchor != NULL && is_of_tenant(noted, tenant_id))
		{
			*anchor = *noted->anchor;
			return true;
		}
	}
	return false;
}

/* ----------------------------------------------------------------
 * Sealing
 * ----------------------------------------------------------------
 */

static int
compare_pending(const ListCell *a, const ListCell *b)
{
	const Pending *x = lfirst(a);
	const Pending *y = lfirst(b);
	/* what is no event comes first */
	int			order = strcmp(x->row.tenant_id != NULL ? x->row.tenant_id : "",
							   y->row.tenant_id != NULL ? y->row.tenant_id : "");

	return order != 0 ? order : x->number - y->number;
}

static void
insert_row(const AuditRow *row)
{
	Datum		values[AUDIT_NCOLUMNS + 1];
	char		nulls[AUDIT_NCOLUMNS + 1];
	int			n = audit_row_values(row, values, nulls);

	Assert(n == AUDIT_NCOLUMNS);
	nulls[n] = ' ';
	values[n] = PointerGetDatum(audit_hash_datum(row->hash));
	sql_run_latest(&plans[PLAN_INSERT], values, nulls);
}

static void
write_head(const char *tenant_id, int64 sequence, const uint8 *hash)
{
	static const uint8 nothing[DIGEST_BYTES] = {0};
	Datum		values[4];

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = Int64GetDatum(sequence);
	values[2] = PointerGetDatum(audit_hash_datum(hash));
	values[3] = PointerGetDatum(audit_hash_datum(nothing));
	sql_run_latest(&plans[PLAN_SET_HEAD], values, NULL);
}

static void
write_anchor(const char *tenant_id, const AuditAnchor *anchor)
{
	Datum		values[4];

	values[0] = CStringGetTextDatum(tenant_id);
	values[1] = Int64GetDatum(anchor->sequence);
	values[2] = PointerGetDatum(audit_hash_datum(anchor->hash));
	values[3] = TimestampTzGetDatum(anchor->pruned_through);
	sql_run_latest(&plans[PLAN_SET_ANCHOR], values, NULL);
}

compat_noreturn static void raise_no_place(const char *tenant_id);

static void
raise_no_place(const char *tenant_id)
{
	ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("the audit of tenant \"%s\" cannot go on", tenant_id),
			 errdetail("Its chain does not end where its head says, or its head is at the last number."),
			 errhint("reconcile.audit_verify() says where it is broken.")));
}

/* Locks the chain, and reads where it ends. */
static void
read_head(const char *tenant_id, int64 *sequence, uint8 *hash)
{
	Datum		value = CStringGetTextDatum(tenant_id);

	(void) lock_take(LOCK_KIND_AUDIT, "", tenant_id, ExclusiveLock, true);
	*sequence = 0;
	memset(hash, 0, DIGEST_BYTES);
	if (sql_run_latest(&plans[PLAN_HEAD], &value, NULL) > 0)
	{
		*sequence = DatumGetInt64(sql_value(0, 1, NULL));
		audit_hash_copy(sql_value(0, 2, NULL), hash);
	}
	else if (sql_run_latest(&plans[PLAN_CHECK], &value, NULL) > 0)
		raise_no_place(tenant_id);
}

void
audit_check(const char *tenant_id)
{
	Datum		value = CStringGetTextDatum(tenant_id);

	if (sql_do(&plans[PLAN_CHECK], &value, NULL) > 0)
		raise_no_place(tenant_id);
}

/* Writes all that was noted; in the last moment before COMMIT. */
static void
seal(void)
{
	MemoryContext context;
	const char *tenant_id = NULL;
	int64		sequence = 0;
	uint8		hash[DIGEST_BYTES];
	Nested	   *latest = pending;
	List	   *events = NIL;
	const Install *install = install_find();
	SqlScope	scope;
	ListCell   *cell;

	pending = NULL;
	/* it was dropped in this transaction, and its tables with it; or updated beyond us */
	if (install == NULL && install_unserved() != NULL)
		install = install_get();
	if (install == NULL)
		return;
	context = MemoryContextSwitchTo(TopTransactionContext);
	for (Nested *it = latest; it != NULL; it = it->earlier)
		events = lappend(events, it);
	list_sort(events, compare_pending);
	sql_begin(&scope);
	foreach(cell, events)
	{
		Pending    *noted = lfirst(cell);
		AuditRow   *row = &noted->row;

		if (noted->schema != install->schema || row->tenant_id == NULL)
			continue;
		if (tenant_id == NULL || strcmp(tenant_id, row->tenant_id) != 0)
		{
			if (tenant_id != NULL)
				write_head(tenant_id, sequence, hash);
			tenant_id = row->tenant_id;
			read_head(tenant_id, &sequence, hash);
		}
		if (sequence == PG_INT64_MAX)
			raise_no_place(tenant_id);
		row->sequence = ++sequence;
		row->home = home_here()->place;
		row->hash_version = AUDIT_HASH_VERSION;
		audit_row_hash(row, hash, row->hash);
		memcpy(hash, row->hash, DIGEST_BYTES);
		insert_row(row);
		if (noted->anchor != NULL)
			write_anchor(tenant_id, noted->anchor);
	}
	if (tenant_id != NULL)
		write_head(tenant_id, sequence, hash);
	sql_end(&scope);
	MemoryContextSwitchTo(context);
}

static void
audit_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (pending != NULL)
			{
				seal();
				TEST_POINT("command-before-commit");
			}
			break;
		case XACT_EVENT_PRE_PREPARE:
			/* or whoever was denied could hold up a tenant for as long as he likes */
			if (pending != NULL)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has an event for the audit"),
						 errdetail("The audit of its tenants would stand still until it is over."),
						 errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
			if (next_number > 0)
				TEST_POINT("command-after-commit");
			/* FALLTHROUGH */
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			/* the context that it was in goes with the transaction */
			pending = NULL;
			next_number = 0;
			break;
		default:
			break;
	}
}

static void
audit_subxact_callback(SubXactEvent event, SubTransactionId subid, SubTransactionId parent, void *arg)
{
	nested_end_subxact(&pending, event);
}

void
audit_init(void)
{
	RegisterXactCallback(audit_xact_callback, NULL);
	RegisterSubXactCallback(audit_subxact_callback, NULL);
}

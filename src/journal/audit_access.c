/*
 * audit_access.c
 *		Sensitive reads: allowed and noted, or not made.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"

#include "core/duration.h"
#include "core/errors.h"
#include "core/jsonb_build.h"
#include "journal/audit.h"
#include "journal/authorize.h"
#include "journal/envelope.h"

/*
 * By it the reader finds his event, whose place in the chain is known at commit alone.
 * By chance, 1 to 2^53: one that counts would tell of other tenants.
 */
static int64
new_number(void)
{
	uint64		number;

	if (!pg_strong_random(&number, sizeof(number)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	return (int64) (number >> 11) + 1;
}

static bool
is_one_of(const char *value, const char *a, const char *b)
{
	return strcmp(value, a) == 0 || strcmp(value, b) == 0;
}

PG_FUNCTION_INFO_V1(reconcile_audit_access);
Datum
reconcile_audit_access(PG_FUNCTION_ARGS)
{
	AccessRequest request = {0};
	AuditEvent	event = {0};
	JsonbBuild	build;
	char	   *reason;
	bool		allowed;
	int64		number = 0;

	require_writable("audit_access");
	require_read_committed("audit_access");
	request.tenant_id = identity_field(fcinfo, 0, "tenant_id");
	if (PG_ARGISNULL(1))
		field_null("permission");
	request.permission = text_to_cstring(PG_GETARG_TEXT_PP(1));
	if (!is_one_of(request.permission, "payload_view", "diagnostics_view"))
		field_invalid("permission", "is not one of a sensitive read", "It is payload_view or diagnostics_view.");
	request.target_kind = identity_field(fcinfo, 2, "target_kind");
	if (!is_one_of(request.target_kind, "failure", "dead_letter"))
		field_invalid("target_kind", "is not a kind of record", "It is failure or dead_letter.");
	request.target_name = identity_field(fcinfo, 3, "target_name");
	reason = command_reason_field(fcinfo, 4, "reason");

	allowed = command_allowed(&request);
	if (!allowed && !command_tenant_known(request.tenant_id))
	{
		audit_pass_over();
		PG_RETURN_NULL();
	}
	event.tenant_id = request.tenant_id;
	event.event = allowed ? "authorized" : "denied";
	event.at = clock_now();
	event.action = request.permission;
	event.target_kind = request.target_kind;
	/* who may do nothing for the tenant writes no text of his into its audit */
	if (command_tenant_granted(request.tenant_id))
	{
		event.target_name = request.target_name;
		event.reason = reason;
	}
	if (allowed)
	{
		number = new_number();
		jsonb_begin(&build);
		jsonb_add_int(&build, "access", number);
		event.detail = jsonb_end(&build);
	}
	audit_note(&event);
	if (!allowed)
		PG_RETURN_NULL();
	PG_RETURN_INT64(number);
}

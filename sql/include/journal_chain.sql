-- The hash of an event, by doc/internals.md ("The hash of an event") and nothing of the library's.
CREATE FUNCTION journal_field(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN value IS NULL THEN '\xffffffffffffffff'::bytea ELSE int8send(length(value)) || value END
$$;
CREATE FUNCTION journal_field(value text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT journal_field(convert_to(value, 'UTF8'))
$$;
CREATE FUNCTION journal_hash(e reconcile.audit_event, before bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(journal_field('reconcile/audit'::text) || journal_field(int8send(e.hash_version)) || journal_field(before) ||
        journal_field(e.tenant_id) || journal_field(int8send(e.sequence)) || journal_field(e.event) ||
        journal_field(int8send((extract(epoch FROM e.happened_at - '2000-01-01 00:00 UTC'::timestamptz) * 1000000)::bigint)) ||
        journal_field(e.command_id) || journal_field(e.idempotency_key) || journal_field(e.actor) || journal_field(e.role_name::text) ||
        journal_field(e.session_role::text) || journal_field(e.authentication_method) || journal_field(e.action) || journal_field(e.target_kind) ||
        journal_field(e.target_name) || journal_field(e.reason) || journal_field(e.options::text) || journal_field(e.fingerprint) ||
        journal_field(e.failure) || journal_field(e.detail::text) || journal_field(e.home))
$$;

\ir journal_forget.sql

-- Who owns the tables can write a chain that is whole: from the anchor on, with the head.
CREATE FUNCTION journal_seal(of_tenant text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    e reconcile.audit_event;
    last reconcile.audit_head;
BEGIN
    SELECT * INTO STRICT last FROM reconcile.audit_head h WHERE h.tenant_id = of_tenant;
    last.sequence := last.anchor_sequence;
    last.hash := last.anchor_hash;
    FOR e IN SELECT * FROM reconcile.audit_event a WHERE a.tenant_id = of_tenant ORDER BY a.sequence LOOP
        last.sequence := e.sequence;
        last.hash := journal_hash(e, last.hash);
        UPDATE reconcile.audit_event a SET hash = last.hash WHERE a.tenant_id = of_tenant AND a.sequence = e.sequence;
    END LOOP;
    UPDATE reconcile.audit_head h SET sequence = last.sequence, hash = last.hash WHERE h.tenant_id = of_tenant;
END $$;

-- What was said of tenants before the given moment was said so much earlier.
CREATE FUNCTION journal_age(of_tenant text, older interval, till timestamptz DEFAULT 'infinity') RETURNS void LANGUAGE plpgsql
SET timezone = 'UTC' AS $$
DECLARE
    c record;
BEGIN
    PERFORM journal_triggers('DISABLE');
    FOR c IN SELECT a.attrelid::regclass AS of_table, string_agg(format('%1$I = %1$I - $1', a.attname), ', ') AS setting,
                    min(CASE WHEN a.attname IN ('accepted_at', 'resolved_at', 'happened_at', 'pruned_at') THEN a.attname END) AS told
               FROM pg_attribute a
              WHERE a.attrelid = ANY ('{reconcile.command,reconcile.command_resolution,reconcile.audit_event,reconcile.command_tombstone}'::regclass[])
                AND a.atttypid = 'timestamptz'::regtype AND NOT a.attisdropped
              GROUP BY 1 LOOP
        EXECUTE format('UPDATE %s SET %s WHERE tenant_id = $2 AND %I < $3', c.of_table, c.setting, c.told) USING older, of_tenant, till;
    END LOOP;
    UPDATE reconcile.audit_event e
       SET detail = (SELECT jsonb_object_agg(d.key, CASE WHEN d.key IN ('deadline', 'requested_at', 'worker_completed_at')
                                                         THEN to_jsonb((d.value #>> '{}')::timestamptz - older) ELSE d.value END)
                       FROM jsonb_each(e.detail) d)
     WHERE e.tenant_id = of_tenant AND e.happened_at < till - older AND e.detail ?| '{deadline,requested_at,worker_completed_at}';
    PERFORM journal_seal(of_tenant);
    PERFORM journal_triggers('ENABLE');
END $$;

CREATE FUNCTION journal_clean(VARIADIC tenants text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journal_forget(VARIADIC tenants);
    DROP TABLE journal_trigger;
    DROP FUNCTION journal_age, journal_seal, journal_forget, journal_triggers, journal_hash, journal_field(text), journal_field(bytea), journal_clean;
END $$;

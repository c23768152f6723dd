-- For tests of commands. A call of accept_command() by the names of its arguments; what is left out is that of a
-- command that is good, which waits to be claimed.
CREATE FUNCTION command_args(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
    SELECT '{"tenant_id": "acme", "idempotency_key": "key", "action": "drain", "target_kind": "worker", "target_name": "w",
             "reason": "why", "options": {}, "confirmed": false, "deadline_in": "5 min", "authentication_method": "internal"}' || args
$$;
CREATE FUNCTION accept(args jsonb)
    RETURNS TABLE (outcome text, command_id text, status text, created boolean, failure text, desired_revision bigint)
LANGUAGE sql AS $$
    SELECT c.* FROM command_args(args) a, reconcile.accept_command(a ->> 'tenant_id', a ->> 'idempotency_key', a ->> 'action',
        a ->> 'target_kind', a ->> 'target_name', a ->> 'reason', (a ->> 'options')::jsonb, (a ->> 'confirmed')::boolean,
        (a ->> 'deadline_in')::interval, (a ->> 'expected_revision')::bigint, a ->> 'actor', a ->> 'authentication_method',
        a ->> 'capability', (a ->> 'requested_at')::timestamptz, a ->> 'command_id') c
$$;
-- What becomes of the call, which is undone: an outcome, or the field that is refused and why.
CREATE FUNCTION tried(args jsonb, OUT outcome text, OUT field text, OUT problem text, OUT message text, OUT hint text)
LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        outcome := concat_ws('/', a.outcome, a.status, a.failure) FROM accept(args) a;
        RAISE 'undone' USING ERRCODE = 'UNDO1';
    EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
    END;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS outcome = RETURNED_SQLSTATE, field = COLUMN_NAME, problem = PG_EXCEPTION_DETAIL,
                            message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
-- A text of so many bytes, of characters as long as c as far as they fit.
CREATE FUNCTION text_of_bytes(c text, bytes int) RETURNS text LANGUAGE sql AS
'SELECT repeat(c, bytes / octet_length(c)) || repeat(''x'', bytes % octet_length(c))';
\ir journal_forget.sql

--
-- The envelope of a command: what each field may be, which is refused first, and how a refusal is told
-- (scenarios 9.1, and 9.18 of fields). Nothing of this file is stored: each call is undone.
--
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set journal :source '/sql/include/journal.sql'
\i :journal

-- As the base of all that follows, one with every option; what is good is accepted.
CREATE TABLE envelope_full AS SELECT '{"action": "replay", "target_kind": "dead_letter", "target_name": "letters", "confirmed": true,
    "options": {"entity_id": "e", "replay": {"destination": "fleet", "idempotency_policy": "reject_duplicate"}}}'::jsonb AS args;
SELECT outcome FROM envelope_full, tried(args);

-- A refusal names the field and the problem
SELECT * FROM tried('{"idempotency_key": "\t"}');
SELECT * FROM tried('{"idempotency_key": null}');

-- Breaks, in the order in which they are refused
CREATE TABLE envelope_break (n int GENERATED ALWAYS AS IDENTITY, field text, args jsonb);
INSERT INTO envelope_break (field, args) VALUES
    ('command_id', '{"command_id": " "}'),
    ('idempotency_key', '{"idempotency_key": ""}'),
    ('tenant_id', '{"tenant_id": null}'),
    ('actor', '{"actor": "\t"}'),
    ('authentication_method', '{"authentication_method": null}'),
    ('reason', '{"reason": " \n"}'),
    ('action', '{"action": "restart"}'),
    ('capability', '{"capability": ""}'),
    ('target_kind', '{"target_kind": "pod"}'),
    ('target_name', '{"target_name": ""}'),
    ('requested_at', '{"requested_at": "infinity"}'),
    ('deadline_in', '{"deadline_in": "0 s"}'),
    ('target_kind', '{"target_kind": "worker"}'),
    ('confirmed', '{"confirmed": null}'),
    ('options', '{"options": []}'),
    ('expected_revision', '{"expected_revision": -1}'),
    ('confirmed', '{"confirmed": false}'),
    ('options.selection', '{"options": {"selection": {}}}'),
    ('options.entity_id', '{"options": {}}'),
    ('options.replay.destination', '{"options": {"entity_id": "e"}}'),
    ('options.replay.idempotency_policy', '{"options": {"entity_id": "e", "replay": {"destination": "d"}}}'),
    ('options.replay.destination', '{"options": {"entity_id": "e", "replay": {"destination": "letters", "idempotency_policy": "reject_duplicate"}}}'),
    ('expected_revision', '{"expected_revision": 0}');
SELECT b.field, b.args, t.outcome, t.field = b.field AS told, t.problem, t.hint
  FROM envelope_full f, envelope_break b, tried(f.args || b.args) t ORDER BY b.n;
-- of any two the earlier one is told, where they break different arguments
SELECT count(*) AS pairs, count(*) FILTER (WHERE t.field = b.field AND t.problem = alone.problem) AS told
  FROM envelope_full f, envelope_break b JOIN envelope_break c ON c.n > b.n AND NOT b.args ?| ARRAY(SELECT jsonb_object_keys(c.args)),
       tried(f.args || b.args || c.args) t, tried(f.args || b.args) alone;
-- whatever is wrong is told before anything is asked or done: there is neither grant nor loop
CREATE ROLE journal_envelope_stranger;
SELECT 'FUNCTION reconcile.accept_command(text,text,text,text,text,text,jsonb,boolean,interval,bigint,text,text,text,timestamptz,text)' AS accept_command \gset
GRANT EXECUTE ON :accept_command TO journal_envelope_stranger;
GRANT SELECT ON envelope_full, envelope_break TO journal_envelope_stranger;
SET ROLE journal_envelope_stranger;
SELECT t.outcome, count(*) FROM envelope_full f, envelope_break b, tried(f.args || b.args) t GROUP BY 1 ORDER BY 1;
SELECT outcome FROM envelope_full, tried(args);
RESET ROLE;

-- Bounds are of bytes, whatever the characters: what is shown was not as it should be
CREATE TABLE envelope_bound (field text, bytes int);
INSERT INTO envelope_bound VALUES ('command_id', 256), ('idempotency_key', 256), ('tenant_id', 256), ('actor', 256),
    ('authentication_method', 256), ('reason', 1024), ('capability', 256), ('target_name', 256), ('options.replay.destination', 256),
    ('options.entity_id', 512);
CREATE FUNCTION envelope_with(args jsonb, field text, value text) RETURNS jsonb LANGUAGE sql AS
    'SELECT jsonb_set(command_args(args), string_to_array(field, ''.''), to_jsonb(value))';
SELECT b.field, c, octet_length(text_of_bytes(c, bytes)) AS bytes, fits.outcome, over.outcome, over.field
  FROM envelope_full f, envelope_bound b, unnest('{x,é,€,😀}'::text[]) c,
       tried(envelope_with(f.args, b.field, text_of_bytes(c, bytes))) fits,
       tried(envelope_with(f.args, b.field, text_of_bytes(c, bytes + 1))) over (outcome, field)
 WHERE (fits.outcome, over.outcome, over.field) IS DISTINCT FROM ('accepted/failed/target_not_found', '22023', b.field);
-- names of actions and kinds are those that there are: longer ones too are only not there, or too long
SELECT left(a, 10) AS action, octet_length(a) AS bytes, t.outcome, t.field, t.problem FROM unnest(ARRAY[repeat('x', 256), repeat('x', 257), 'Drain', ' drain']) a, tried(jsonb_build_object('action', a)) t;
SELECT left(k, 10) AS target_kind, octet_length(k) AS bytes, t.outcome, t.field, t.problem FROM unnest(ARRAY[repeat('x', 256), repeat('x', 257), 'Worker', 'queue']) k, tried(jsonb_build_object('target_kind', k)) t;
SELECT d AS deadline_in, t.outcome, t.problem
  FROM unnest('{0 s,999 us,1 ms,5 min,5 min 0.0009 s,5 min 1 ms,1 mon,-1 s,367 d,178000000 y}'::text[]) d, tried(jsonb_build_object('deadline_in', d)) t;
SELECT n AS "limit", t.outcome, t.field, t.problem
  FROM unnest(ARRAY['0', '1', '1000', '1001', '-1', '1.5', '1e3', '99999999999999999999', '"5"', 'null', 'true', '{}']::jsonb[]) n,
       tried(jsonb_build_object('action', 'bulk_retry', 'target_kind', 'failure', 'confirmed', true, 'options', jsonb_build_object('selection', jsonb_build_object('limit', n)))) t;
SELECT n AS replicas, confirmed, t.outcome, t.field, t.problem
  FROM unnest(ARRAY['0', '1', '10000', '10001', '-1', '0.5', '"1"']::jsonb[]) n, (VALUES (false), (true)) c (confirmed),
       tried(jsonb_build_object('action', 'scale', 'target_kind', 'workload', 'confirmed', confirmed, 'options', jsonb_build_object('scale', jsonb_build_object('replicas', n)))) t;
SELECT o AS options, t.outcome, t.field, t.problem
  FROM unnest(ARRAY['{"sqlstate": "P0001"}', '{"sqlstate": "p0001"}', '{"sqlstate": "P001"}', '{"sqlstate": 22012}', '{"filter": "all"}', '{}']::jsonb[]) o,
       tried(jsonb_build_object('action', 'bulk_retry', 'target_kind', 'failure', 'confirmed', true, 'options', jsonb_build_object('selection', '{"limit": 1}' || o))) t;
SELECT o AS replay, t.outcome, t.field, t.problem
  FROM unnest(ARRAY['[]', 'null', '"fleet"', '{"destination": 1}', '{"destination": ""}', '{"idempotency_policy": "ignore_duplicate"}', '{"idempotency_policy": null}',
                    '{"idempotency_policy": "replace_duplicate"}', '{"destination": "letters"}']::jsonb[]) o,
       tried(jsonb_build_object('action', 'replay', 'target_kind', 'failure', 'target_name', 'letters', 'confirmed', true,
           'options', jsonb_build_object('replay', CASE jsonb_typeof(o) WHEN 'object' THEN '{"destination": "d", "idempotency_policy": "reject_duplicate"}' || o ELSE o END))) t;
SELECT o AS options, t.outcome, t.field, t.problem FROM unnest(ARRAY[NULL, 'null', '[]', '1', '"x"']) o, tried(jsonb_build_object('options', o)) t;
SELECT e AS expected_revision, t.outcome, t.problem FROM unnest('{-1,0,1,9223372036854775807}'::bigint[]) e, tried(jsonb_build_object('expected_revision', e)) t;
-- options of an application's action are its own, of whatever shape, up to 64 kB of jsonb
SELECT reconcile.register_action('journal_envelope_any', '{journal_envelope_thing}', 'external');
SELECT pg_column_size(o) AS bytes, t.outcome, t.field, t.problem
  FROM unnest('{22,65533,65534}'::int[]) size, jsonb_build_object('selection', '') empty,
       jsonb_build_object('selection', repeat('x', size - pg_column_size(empty))) o,
       tried(jsonb_build_object('action', 'journal_envelope_any', 'target_kind', 'journal_envelope_thing', 'options', o)) t;

-- What each action takes of options, on each kind: another is refused, and of its own which are asked for
CREATE TABLE envelope_option (name text, value jsonb);
INSERT INTO envelope_option VALUES ('entity_id', '"e"'), ('selection', '{"limit": 10}'), ('replay', '{"destination": "d", "idempotency_policy": "reject_duplicate"}'),
    ('scale', '{"replicas": 1}'), ('limit', '10'), ('', '{}');
CREATE FUNCTION tried_with(action text, target_kind text, options jsonb, OUT outcome text, OUT field text, OUT problem text) LANGUAGE sql AS $$
    SELECT t.outcome, t.field, t.problem
      FROM tried(jsonb_build_object('action', action, 'target_kind', target_kind, 'confirmed', true, 'options', options)) t
$$;
WITH taken AS (
    SELECT a.action, a.target_kind, coalesce(jsonb_object_agg(o.name, o.value) FILTER (WHERE t.problem IS DISTINCT FROM 'does not apply'), '{}') AS options
      FROM reconcile.command_action a CROSS JOIN envelope_option o, tried_with(a.action, a.target_kind, jsonb_build_object(o.name, o.value)) t
     WHERE a.builtin GROUP BY 1, 2
)
SELECT n.action, n.target_kind, (SELECT string_agg(k, ', ') FROM jsonb_object_keys(n.options) k) AS takes,
       (SELECT t.outcome FROM tried_with(n.action, n.target_kind, n.options) t) AS with_them,
       (SELECT string_agg(concat_ws(' ', t.outcome, t.field, t.problem), ', ' ORDER BY k) FROM jsonb_object_keys(n.options) k, tried_with(n.action, n.target_kind, n.options - k) t) AS without,
       (SELECT count(*) FROM envelope_option o, tried_with(n.action, n.target_kind, n.options || jsonb_build_object(o.name, o.value)) t
         WHERE NOT n.options ? o.name AND t.field = 'options.' || o.name AND t.problem = 'does not apply') AS others_refused
  FROM taken n ORDER BY 1, 2;

-- What asks for confirmation, and without it is not done
SELECT a.action, string_agg(a.target_kind, ', ' ORDER BY a.target_kind) AS kinds
  FROM reconcile.command_action a, tried(jsonb_build_object('action', a.action, 'target_kind', a.target_kind)) t
 WHERE a.builtin AND t.field = 'confirmed' GROUP BY 1 ORDER BY 1;

-- Blank is what has White_Space of Unicode alone; within a text what can be seen of it is a space
CREATE TABLE envelope_space (c int, shows boolean);
INSERT INTO envelope_space SELECT c, false FROM generate_series(9, 13) c UNION ALL VALUES (133, false), (8232, false), (8233, false);
INSERT INTO envelope_space SELECT c, true FROM generate_series(8192, 8202) c UNION ALL VALUES (32, true), (160, true), (5760, true), (8239, true), (8287, true), (12288, true);
SELECT count(*) AS spaces FROM envelope_space;
SELECT b.field, count(*) FILTER (WHERE alone.problem = 'must not be blank' AND alone.field = b.field) AS blank,
       count(*) FILTER (WHERE many.problem = 'must not be blank' AND many.field = b.field) AS blank_of_two,
       count(*) FILTER (WHERE CASE WHEN shows OR b.field = 'reason' THEN within.outcome LIKE 'accepted%' ELSE within.problem = 'contains a character that cannot be seen' END) AS as_seen
  FROM envelope_full f, envelope_bound b, envelope_space s,
       tried(envelope_with(f.args, b.field, chr(c))) alone, tried(envelope_with(f.args, b.field, chr(c) || ' ')) many, tried(envelope_with(f.args, b.field, 'a' || chr(c) || 'b')) within
 WHERE b.field <> 'options.entity_id' GROUP BY 1 ORDER BY 1;

-- What cannot be seen in an identity: where there are such characters, those that are refused
CREATE FUNCTION is_refused(c int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM reconcile.explain_command('t' || chr(c), 'x');
    RETURN false;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN true;
END $$;
SELECT string_agg(format('%s-%s', to_hex(lower(r)), to_hex(upper(r) - 1)), ' ' ORDER BY r) AS refused
  FROM (SELECT unnest(range_agg(int4range(c, c + 1))) AS r
          FROM (SELECT generate_series(1, 13000) UNION ALL SELECT generate_series(64000, 65535) UNION ALL SELECT generate_series(917504, 918000)
                UNION ALL VALUES (44032), (57344), (65536), (128512), (917503), (983040), (1114111)) s (c)
         WHERE is_refused(c)) ranges;
-- in each of them, and in a reason none
SELECT b.field, count(*) FILTER (WHERE t.problem = 'contains a character that cannot be seen' AND t.field = b.field) AS refused
  FROM envelope_full f, envelope_bound b, unnest('{1,27,127,155,1564,8203,8206,8238,8294,65279}'::int[]) c, tried(envelope_with(f.args, b.field, 'a' || chr(c) || 'b')) t
 WHERE b.field <> 'options.entity_id' GROUP BY 1 ORDER BY 1;
-- what is no text at all does not come so far
SELECT convert_from('\x61ff', 'UTF8');
SELECT '{"entity_id": "a\u0000"}'::jsonb;
SELECT chr(0);

-- Nothing has come of all this
SELECT (SELECT count(*) FROM reconcile.command WHERE tenant_id = 'acme') AS commands,
       (SELECT count(*) FROM reconcile.desired_state WHERE tenant_id = 'acme') AS states,
       (SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'acme') AS events;

DELETE FROM reconcile.command_action WHERE action = 'journal_envelope_any';
REVOKE EXECUTE ON :accept_command FROM journal_envelope_stranger;
DROP TABLE envelope_full, envelope_break, envelope_bound, envelope_option, envelope_space;
DROP ROLE journal_envelope_stranger;
DROP FUNCTION is_refused, envelope_with, tried_with, accept, tried, command_args, text_of_bytes, journal_forget, journal_triggers;
DROP TABLE journal_trigger;

--
-- Ids are opaque, and compared byte by byte (contract 0; scenario N13): each that is allowed goes the whole way through all functions, as tenant, session, agent, runtime, host, command, attempt,
-- token, holder and controller at once; each that is not is refused by every function, as the field that it is.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA place_ids;
SET search_path = place_ids;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
SELECT reconcile.control_shards() > 0 AS shards;
CREATE TABLE before AS SELECT * FROM reconcile.placement_setting;
UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000, session_ttl_ms = 3600000;

CREATE TABLE id (n serial, what text, id text UNIQUE);
INSERT INTO id (what, id) VALUES
('SQL', $$'; DROP TABLE reconcile.session; --$$), ('quotes', $$"'"''""`$$), ('a dollar', '$1 $$ $ids$'), ('a backslash', E'\\\\x\\0 \\n\\'), ('patterns', '%_*?[a-z].^'), ('braces', '{a,b} (NULL,"x")'),
('a slash', '/'), ('a dot', '.'), ('two', '..'), ('a path', '../../etc/passwd'), ('a number', '-1'), ('a word', 'NULL'), ('json', '{"a": [1]}'), ('a lease', 'session:1'),
('inner spaces', 'a  b'), ('no inner spaces', 'a b'), ('leading space', ' a b'), ('lower case', 'case'), ('upper case', 'CASE'), ('mixed', 'Case'), ('dotless i', U&'cas\0131'),
('composed', U&'caf\00e9'), ('decomposed', U&'cafe\0301'), ('sharp s', U&'stra\00dfe'), ('its letters', 'strasse'), ('wide', U&'\ff21'), ('Greek', U&'\0391'), ('Latin', 'A'),
('right to left', U&'\05d0\05d1'), ('256 bytes', repeat('x', 256)), ('of two', repeat(U&'\00e9', 128)), ('of three', repeat(U&'\20ac', 85) || 'x'), ('of four', repeat(U&'\+01f600', 64)),
('and another', repeat(U&'\+01f600', 63) || U&'\+01f601'), ('a prefix', repeat(U&'\+01f600', 63)), ('beyond the others', U&'\+10fffd'), ('below them', U&'\ffe5');

-- What becomes of it, in one line; what comes back is the id, to the byte.
CREATE FUNCTION story(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text[];
    token text;
    offer bigint;
    e bigint;
    place text;
    same text := encode(convert_to(id, 'UTF8'), 'hex');
BEGIN
    said := ARRAY[reconcile.register_host(id, current_user)];
    said := said || (SELECT outcome FROM reconcile.create_session(id, id, id, 'pooled', id, id, id, '\x01',
        jsonb_build_object('storage_binding_id', id, 'binding_version', id, 'runtime_session_id', id, 'protocol_mode', 'disposition')));
    said := said || (SELECT outcome FROM reconcile.publish_host_target(id, 1, id, id, 'pooled', 'ws://x', 'cross_tenant_isolated', true, 5, '5 min', ARRAY[id]));
    said := said || (SELECT outcome || ' ' || (encode(convert_to(runtime_command_id, 'UTF8'), 'hex') = same) FROM reconcile.admit_session_command(id, id, id, id, payload_reference => id, payload_digest => sha256(''), payload_size => 0,
        requires => ARRAY[id], runtime_command_id => id, apply_deadline_in => '1 h'));
    SELECT outcome, claim_token INTO place, token FROM reconcile.acquire_claim(id, id, id, '5 min');
    said := said || place || (SELECT outcome || ' ' || (holder_id = id) FROM reconcile.get_claim(id, id));
    said := said || (SELECT outcome || ' ' || (host_id = id) FROM reconcile.place_session(id, id, NULL, token));
    SELECT offer_id INTO offer FROM reconcile.fetch_offers(1000) f WHERE encode(convert_to(f.tenant_id || f.session_id || f.agent_id || f.runtime_compatibility_id || f.host_id || f.workload_version, 'UTF8'), 'hex') = repeat(same, 6);
    SELECT outcome, epoch INTO place, e FROM reconcile.accept_offer(offer, 1, id);
    said := said || place || (SELECT outcome || ' ' || (host_id = id) FROM reconcile.owner_of(id, id));
    said := said || (SELECT string_agg(outcome, ' ') FROM reconcile.heartbeat_host(id, 1,
        jsonb_build_array(jsonb_build_object('agent_id', id, 'runtime_compatibility_id', id, 'placement', 'pooled', 'endpoint', 'ws://x', 'isolation_class', 'cross_tenant_isolated', 'available_capacity', 4, 'capabilities', jsonb_build_array(id))),
        jsonb_build_array(jsonb_build_object('tenant_id', id, 'session_id', id, 'epoch', e, 'token', id))));
    said := said || (SELECT count(*)::text FROM reconcile.compatible_hosts(id, id, 'pooled') h WHERE h.host_id = id AND h.capabilities = ARRAY[id]);
    SELECT position INTO place FROM reconcile.compatible_hosts(id, id, 'pooled');
    said := said || (SELECT count(*)::text FROM reconcile.compatible_hosts(id, id, 'pooled', after => place));
    SELECT position INTO place FROM reconcile.due_session_commands(reconcile.control_shard_of(id, id, reconcile.control_shards()), '2 h') d WHERE d.tenant_id = id AND d.session_id = id AND d.command_id = id;
    said := said || (SELECT count(*)::text FROM reconcile.due_session_commands(reconcile.control_shard_of(id, id, reconcile.control_shards()), after => place) d WHERE d.tenant_id = id);
    said := said || (SELECT count(*)::text FROM reconcile.session_commands(id, id) c WHERE c.command_id = id AND c.kind = id AND c.payload_reference = id AND c.requires = ARRAY[id]);
    said := said || (SELECT outcome FROM reconcile.claim_session_command(id, id, id, e, id, 1));
    said := said || (SELECT outcome FROM reconcile.begin_attempt(id, id, id, e, id, 2, id));
    said := said || (SELECT outcome FROM reconcile.settle_attempt(id, id, id, e, id, 3, id, 'applied', id, 1));
    said := said || (SELECT outcome FROM reconcile.update_host_state(id, id, e, id, id, id, 1, id, 1, id, now(), jsonb_build_array(jsonb_build_object('gate_id', id, 'opened_seq', 1))));
    said := said || (SELECT outcome FROM reconcile.set_pointer(id, id, 'workspace_checkpoint', e, id, 1, id));
    said := said || (SELECT outcome || ' ' || (target = id) FROM reconcile.get_pointer(id, id, 'workspace_checkpoint'));
    said := said || (SELECT count(*)::text FROM reconcile.get_session(id, id) g WHERE g.agent_id = id AND g.runtime_compatibility_id = id AND g.state = id AND g.residency = id AND g.last_event_id = id AND g.checkpoint_reference = id
        AND g.open_gates -> 0 ->> 'gate_id' = id AND g.binding ->> 'storage_binding_id' = id AND g.host_id = id AND g.pending_commands = 0);
    said := said || (SELECT outcome FROM reconcile.clear_pointer(id, id, 'workspace_checkpoint', e, id));
    said := said || (SELECT outcome FROM reconcile.release_session(id, id, e, id));
    -- and as a dedicated one
    said := said || (SELECT outcome FROM reconcile.update_desired_state(id, id, id, 1, 'dedicated', id, id, '\x02'));
    said := said || (SELECT outcome FROM reconcile.update_desired_state(id, id, 'a second key', 1, 'dedicated', id, id, '\x02'));
    said := said || (SELECT count(*)::text FROM reconcile.fetch_intents(id) f WHERE f.tenant_id = id);
    said := said || (SELECT outcome FROM reconcile.place_session(id, id, NULL, token));
    said := said || (SELECT want || ' ' || (f.session_id = id) || ' ' || (f.name = reconcile.workload_identity(id, id, id, id, 2)) FROM reconcile.fetch_intents(id) f WHERE f.tenant_id = id);
    said := said || reconcile.report_workload(id, id, 2, 'ready', id, 2, 'ws://x');
    said := said || (SELECT outcome FROM reconcile.request_drain(id, id, 2));
    said := said || reconcile.report_drained(id, id, 2, id, 2);
    said := said || (SELECT outcome FROM reconcile.update_desired_state(id, id, 'a third key', 2, 'dedicated', id));
    said := said || (SELECT outcome FROM reconcile.may_delete_workload(id, id, 2));
    said := said || (SELECT outcome FROM reconcile.record_termination(id, id, 2, 'forced', 'drain_refused', e));
    said := said || (SELECT outcome FROM reconcile.get_termination(id, id, 2));
    said := said || (SELECT outcome FROM reconcile.release_claim(id, id, id, token));
    said := said || (SELECT outcome FROM reconcile.drain_host_target(id, 1, id, id, 'pooled'));
    said := said || (SELECT count(*) || ' ' || count(*) FILTER (WHERE step = 'outcome') FROM reconcile.explain_placement(id, id) x WHERE step IN ('session', 'outcome'));
    RETURN array_to_string(said, ', ', '?');
END $$;
SELECT string_agg(what, ', ' ORDER BY n) AS what, story FROM (SELECT n, what, story(id) FROM id) s GROUP BY story ORDER BY min(n);

-- each is itself, and no other: not of another case, form, width or length
SELECT count(*), count(DISTINCT number) FROM reconcile.session s JOIN id ON s.tenant_id = id.id AND s.session_id = id.id;
SELECT a.what, b.what AS taken_for FROM id a, id b WHERE a.id <> b.id AND EXISTS (SELECT FROM reconcile.get_session(a.id, b.id));
SELECT count(DISTINCT reconcile.workload_identity(id, id, id, id, 1)) AS workloads, count(DISTINCT reconcile.placement_key(id, id, 'pooled', id, id, '\x01')) AS keys,
       count(DISTINCT reconcile.revive_key(id, id, 'pooled', id, id, '\x01', 1)) AS revivals, count(*) AS ids FROM id;
-- lists are in the order of the bytes, whatever the collation: hosts of one target, the highest first; due commands
SELECT p.outcome, count(*) FROM id, reconcile.publish_host_target(id, 1, 'place-ids', 'rt', 'pooled', 'ws://x', 'cross_tenant_isolated', true, 5) p GROUP BY 1;
SELECT bool_and(h.host_id = i.id) AS in_order, count(*)
  FROM (SELECT host_id, row_number() OVER () AS n FROM reconcile.compatible_hosts('place-ids', 'rt', 'pooled', 1000)) h JOIN (SELECT id, row_number() OVER (ORDER BY convert_to(id, 'UTF8') DESC) AS n FROM id) i USING (n);
-- by pages of one
WITH RECURSIVE page (n, host_id, position) AS (
    SELECT 1, host_id, position FROM reconcile.compatible_hosts('place-ids', 'rt', 'pooled', 1)
    UNION ALL SELECT n + 1, h.host_id, h.position FROM page, reconcile.compatible_hosts('place-ids', 'rt', 'pooled', 1, page.position) h)
SELECT count(*), count(DISTINCT host_id), bool_and(convert_to(host_id, 'UTF8') < COALESCE(convert_to(before, 'UTF8'), '\xffff')) AS in_order FROM (SELECT host_id, lag(host_id) OVER (ORDER BY n) AS before FROM page) p;
SELECT c.outcome, count(*) FROM id, reconcile.create_session('place-ids', id, 'a', 'pooled', 'k') c GROUP BY 1;
SELECT c.outcome, count(*) FROM id, reconcile.admit_session_command('place-ids', id, id, 'input', 'x', apply_deadline_in => '1 h') c GROUP BY 1;
WITH RECURSIVE page (shard, n, command_id, position) AS (
    SELECT s, 1, d.command_id, d.position FROM generate_series(0, reconcile.control_shards() - 1) s, reconcile.due_session_commands(s, '2 h', max_items => 1) d
    UNION ALL SELECT shard, n + 1, d.command_id, d.position FROM page, reconcile.due_session_commands(shard, after => page.position, max_items => 1) d)
SELECT count(*), count(DISTINCT command_id) FROM page WHERE command_id IN (SELECT id FROM id);

--
-- What is none, in each argument that is an id, of each function
--
CREATE TABLE bad (what text, id text);
INSERT INTO bad VALUES ('none', ''), ('blank', '  '), ('257 bytes', repeat('x', 257)), ('257 of two', repeat(U&'\00e9', 128) || 'x'), ('260 of four', repeat(U&'\+01f600', 65)),
('a control', E'a\x01'), ('a line', E'a\nb'), ('delete', E'a\x7f'), ('zero width', U&'a\200bb'), ('bidirectional', U&'a\202eb');
CREATE TABLE value (argument text PRIMARY KEY, value text);
INSERT INTO value VALUES ('tenant_id', '''place-ids'''), ('session_id', '''s'''), ('agent_id', '''a'''), ('runtime_compatibility_id', '''rt'''), ('placement', '''pooled'''), ('idempotency_key', '''k'''), ('workload_version', '''v'''), ('workload', '''\x01'''),
('holder_id', '''h'''), ('claim_token', '''t'''), ('ttl', '''1 min'''), ('command_id', '''c'''), ('kind', '''forced'''), ('payload', '''\x01'''), ('epoch', '1'), ('token', '''t'''), ('expected_revision', '1'), ('attempt_id', '''t'''), ('result', '''applied'''),
('event_id', '''e'''), ('event_seq', '1'), ('state', '''pending'''), ('residency', '''resident'''), ('journal_seq', '1'), ('last_event_id', '''e'''), ('host_id', '''h'''), ('host_generation', '1'), ('endpoint', '''ws://x'''),
('isolation_class', '''cross_tenant_isolated'''), ('accepting', 'true'), ('available_capacity', '1'), ('offer_id', '9000000000000000000'), ('role', '''active_continuation'''), ('sequence', '1'), ('target', '''t'''), ('generation', '1'),
('controller_id', '''c'''), ('reason', '''drain_timeout'''), ('lease_epoch', '1'), ('shards', '16'), ('runtime_command_id', '''r''');
-- with the arguments that it needs, and the one in question; who is registered is a role, too
CREATE FUNCTION statement(f oid, argument text, id text) RETURNS text LANGUAGE sql AS $$
    SELECT format('SELECT * FROM reconcile.%s(%s)', p.proname, string_agg(format('%I => %s', a.name, CASE WHEN a.name = statement.argument THEN quote_literal(id) WHEN p.proname = 'register_host' AND a.name = 'role' THEN 'current_user' ELSE v.value END), ', '))
      FROM pg_proc p, unnest(p.proargnames[1:p.pronargs]) WITH ORDINALITY a (name, n) LEFT JOIN value v ON v.argument = a.name
     WHERE p.oid = f AND (a.n <= p.pronargs - p.pronargdefaults OR a.name = statement.argument OR (statement.argument, a.name) IN (('workload_version', 'workload'), ('event_id', 'event_seq'), ('host_id', 'host_generation'), ('host_id', 'endpoint')) OR a.name = 'payload')
     GROUP BY p.proname;
$$;
CREATE TABLE argument AS
SELECT p.oid AS f, p.proname, a.name AS argument
  FROM pg_proc p, unnest(p.proargnames[1:p.pronargs]) a (name)
 WHERE p.pronamespace = 'reconcile'::regnamespace AND p.prokind = 'f'
   AND (p.oid IN (SELECT f::regprocedure FROM reconcile.capability_functions('place') f) OR p.proname IN ('register_host', 'unregister_host', 'workload_identity', 'placement_key', 'revive_key', 'control_shard_of'))
   AND a.name IN ('tenant_id', 'session_id', 'agent_id', 'runtime_compatibility_id', 'idempotency_key', 'workload_version', 'holder_id', 'claim_token', 'command_id', 'token', 'attempt_id', 'event_id', 'last_event_id', 'host_id', 'controller_id',
                  'runtime_command_id');
SELECT count(*) AS arguments, count(DISTINCT proname) AS functions FROM argument;
SELECT a.proname, a.argument, r.code, r.field, string_agg(b.what, ', ') AS what
  FROM argument a, bad b, refusal(statement(a.f, a.argument, b.id)) r
 WHERE (r.code, r.field) IS DISTINCT FROM ('22023', a.argument) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2;
-- the same calls with an id are not refused as such
SELECT a.proname, a.argument, r.code, r.field FROM argument a, refusal(statement(a.f, a.argument, U&'''\00e9/')) r WHERE r.code = '22023' ORDER BY 1, 2;
-- what stands in an object names a session, or none
SELECT reconcile.register_host('place-ids', current_user);
SELECT h.outcome, count(*) FROM bad b, reconcile.heartbeat_host('place-ids', 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', b.id, 'session_id', 's', 'epoch', 1, 'token', 't'))) h GROUP BY 1 ORDER BY 1;

SELECT count(clean(t, t)) FROM (SELECT replace(replace(replace(id, '\', '\\'), '%', '\%'), '_', '\_') AS t FROM id UNION ALL SELECT 'place-ids') t;
DELETE FROM reconcile.host_target WHERE agent_id = 'place-ids';
DELETE FROM reconcile.workload_controller WHERE controller_id IN (SELECT id FROM id);
UPDATE reconcile.placement_setting s SET offer_ttl_ms = b.offer_ttl_ms, session_ttl_ms = b.session_ttl_ms FROM before b;
DROP SCHEMA place_ids CASCADE;
RESET client_min_messages;

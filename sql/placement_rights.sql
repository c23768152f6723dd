--
-- Who may do what of sessions and hosts (contract 12.8): a host that has nothing but its registration sees and touches its own, and what is another's reads to the letter
-- like what is not there; factories, operators, others; and what a registration is worth when its role changes.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA place_rights;
SET search_path = place_rights;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE regress_place_host;
CREATE ROLE regress_place_member IN ROLE regress_place_host;
CREATE ROLE regress_place_distant NOINHERIT IN ROLE regress_place_host;
CREATE ROLE regress_place_other;
CREATE ROLE regress_place_factory;
CREATE ROLE regress_place_operator;
CREATE ROLE regress_place_scoped;
CREATE ROLE regress_place_bare;
CREATE ROLE regress_place_nobody;
GRANT USAGE ON SCHEMA place_rights TO PUBLIC;
SELECT reconcile.grant_access('regress_place_factory', 'place'), reconcile.grant_access('regress_place_operator', 'operate'),
       reconcile.grant_access('regress_place_scoped', 'place', 'placement'), reconcile.grant_access('regress_place_scoped', 'operate', 'placement_sweeps');
-- EXECUTE, and no right
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO regress_place_bare, regress_place_distant;
SELECT reconcile.register_host('rights-a', 'regress_place_host'), reconcile.register_host('rights-b', 'regress_place_other');
SELECT reconcile.control_shards() > 0 AS shards;
-- nothing lapses on a slow machine
CREATE TABLE before AS SELECT * FROM reconcile.placement_setting;
UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000, session_ttl_ms = 3600000;

-- Each host has a session with a command and a pointer, and is offered another one.
SELECT s, outcome FROM unnest('{a,b,asked-a,asked-b,cold}'::text[]) s, reconcile.create_session('rights', s, 'agent', 'pooled', 'made', 'rt-' || right(s, 1));
SELECT p.outcome, q.outcome FROM publish('rights-a', 1, 9, runtime => 'rt-a') p, publish('rights-b', 1, 9, runtime => 'rt-b') q;
SELECT s, (reconcile.place_session('rights', s)).host_id FROM unnest('{a,b}'::text[]) s;
CREATE TABLE scope AS
SELECT s AS session, a.epoch, 'tok-' || s AS token FROM unnest('{a,b}'::text[]) s, reconcile.accept_offer(offer('rights', s), 1, 'tok-' || s) a;
SELECT s, (reconcile.place_session('rights', s)).host_id FROM unnest('{asked-a,asked-b}'::text[]) s;
SELECT s, c.outcome, p.outcome, k.outcome
  FROM scope, unnest(ARRAY[session]) s, reconcile.admit_session_command('rights', s, 'do', 'input', 'x') c,
       reconcile.set_pointer('rights', s, 'active_continuation', epoch, token, 1, 'it') p, reconcile.acquire_claim('rights', s, 'factory', '5 min') k;
CREATE TABLE place (scope text PRIMARY KEY, session text, host text, offer bigint, epoch bigint, token text);
INSERT INTO place SELECT CASE session WHEN 'a' THEN 'own' ELSE 'foreign' END, session, 'rights-' || session, offer('rights', 'asked-' || session), epoch, token FROM scope;
-- what is not there, with what is right of another's
INSERT INTO place SELECT 'absent', 'zz', 'rights-z', 9000000000000000000, epoch, token FROM place WHERE scope = 'foreign';

-- What is called: <s> a session, <h> its host, <e> and <k> epoch and token, <o> an open offer to that host.
CREATE TABLE call (n serial, call text, by text DEFAULT 'outcome');
INSERT INTO call (call, by) VALUES
('update_host_state(''rights'', <s>, <e>, <k>, ''running'', ''resident'', 1)', 'outcome'),
('claim_session_command(''rights'', <s>, ''do'', <e>, <k>, 1)', 'outcome'),
('begin_attempt(''rights'', <s>, ''do'', <e>, <k>, 1, ''try'')', 'outcome'),
('settle_attempt(''rights'', <s>, ''do'', <e>, <k>, 1, ''try'', ''applied'')', 'outcome'),
('reject_session_command(''rights'', <s>, ''do'', <e>, <k>, 1)', 'outcome'),
('reject_session_command(''rights'', <s>, ''do'', NULL, NULL, 1)', 'outcome'),
('session_commands(''rights'', <s>)', 'count'),
('set_pointer(''rights'', <s>, ''active_continuation'', <e>, <k>, 2, ''that'')', 'outcome'),
('clear_pointer(''rights'', <s>, ''active_continuation'', <e>, <k>)', 'outcome'),
('get_pointer(''rights'', <s>, ''active_continuation'')', 'outcome'),
('get_session(''rights'', <s>)', 'count'),
('owner_of(''rights'', <s>)', 'outcome'),
('publish_host_target(<h>, 2, ''agent'', ''rt'', ''pooled'', ''ws://x'', ''cross_tenant_isolated'', true, 1)', 'outcome'),
('drain_host_target(<h>, 1, ''agent'', ''rt-'' || right(<h>, 1), ''pooled'')', 'outcome'),
('heartbeat_host(<h>, 1)', 'outcome'),
('heartbeat_host(''rights-a'', 1, ''[]'', jsonb_build_array(jsonb_build_object(''tenant_id'', ''rights'', ''session_id'', <s>, ''epoch'', <e>, ''token'', <k>)))', 'outcomes'),
('fetch_offers()', 'count'),
('accept_offer(<o>, 1, ''tok-new'')', 'outcome'),
('refuse_offer(<o>, ''no_capacity'')', 'value'),
('release_session(''rights'', <s>, <e>, <k>)', 'outcome'),
('create_session(''rights'', <s>, ''agent'', ''pooled'', ''made'', ''rt'')', 'outcome'),
('update_desired_state(''rights'', <s>, ''other'', 1, ''pooled'', ''rt'')', 'outcome'),
('placement_intent(''rights'', <s>)', 'count'),
('acquire_claim(''rights'', <s>, ''me'', ''1 min'')', 'outcome'),
('release_claim(''rights'', <s>, ''me'', ''token'')', 'outcome'),
('get_claim(''rights'', <s>)', 'outcome'),
('admit_session_command(''rights'', <s>, ''more'', ''input'', ''x'')', 'outcome'),
('due_session_commands(reconcile.control_shard_of(''rights'', <s>, reconcile.control_shards()), ''1 h'')', 'count'),
('compatible_hosts(''agent'', ''rt-'' || right(<h>, 1), ''pooled'')', 'count'),
('control_shards()', 'done'),
('place_session(''rights'', <s>)', 'outcome'),
('explain_placement(''rights'', <s>)', 'done'),
('place_entity((SELECT s.number::text FROM reconcile.get_session(''rights'', <s>) s))', 'done'),
('fetch_intents(<h>)', 'done'),
('report_workload(''rights'', <s>, 1, ''pending'')', 'value'),
('request_drain(''rights'', <s>, 1)', 'outcome'),
('report_drained(''rights'', <s>, 1, <h>, 1)', 'value'),
('may_delete_workload(''rights'', <s>, 1)', 'outcome'),
('record_termination(''rights'', <s>, 1, ''forced'', ''drain_timeout'', 0)', 'outcome'),
('get_termination(''rights'', <s>, 1)', 'outcome'),
('sweep_claims(<h>)', 'done'),
('register_host(<h>, ''regress_place_host'')', 'value'),
('unregister_host(<h>)', 'value'),
('force_release_session(''rights'', <s>, <e>, ''it is gone'')', 'outcome'),
('set_placement(''{}'')', 'done'),
('sweep_pending()', 'done'),
('sweep_deadlines()', 'done'),
('sweep_host_targets()', 'done'),
('sweep_offers()', 'done'),
('sweep_entity(''offers'')', 'done'),
('sweep_names()', 'done'),
('may_place()', 'value'),
('my_hosts()', 'value'),
('sessions WHERE tenant_id = ''rights'' AND session_id = <s>', 'count'),
('hosts WHERE host_id = <h>', 'count'),
('host_targets WHERE host_id = <h>', 'count'),
('session_offers WHERE host_id = <h>', 'count');
-- all that has a capability of placing is here
SELECT f AS not_called FROM unnest('{place,operate}'::text[]) c, reconcile.capability_functions(c) f
 WHERE (c = 'place' OR f ~ 'reconcile\.(sweep_|set_placement|register_host|unregister_host|force_release_session)') AND f !~ 'sweep_commands'
   AND NOT EXISTS (SELECT FROM call k WHERE split_part(f, '(', 1) = 'reconcile.' || split_part(k.call, '(', 1));

-- What a role is answered, which is undone; an error is its SQLSTATE.
CREATE FUNCTION ask(of_role name, call text, by text, p place, whole boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
    q text := replace(replace(replace(replace(replace(call, '<s>', quote_literal(p.session)), '<h>', quote_literal(p.host)), '<o>', p.offer::text), '<e>', p.epoch::text), '<k>', quote_literal(p.token));
BEGIN
    IF by = 'done' AND NOT whole THEN
        q := format('SELECT ''done'' FROM (SELECT count(*) FROM reconcile.%s) x', q);
    ELSE
        q := format('SELECT %s FROM reconcile.%s', CASE WHEN whole THEN 'string_agg(to_jsonb(r)::text, '', '')' WHEN by = 'outcome' THEN 'min(r.outcome)'
                    WHEN by = 'outcomes' THEN 'string_agg(r.outcome, '' '')' WHEN by = 'value' THEN 'min(to_jsonb(r) #>> ''{}'')' ELSE 'count(*)' END,
                    CASE WHEN q ~ ' WHERE ' THEN replace(q, ' WHERE ', ' r WHERE ') ELSE q || ' r' END);
    END IF;
    PERFORM set_config('role', of_role, true);
    EXECUTE q INTO said;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN RETURN said;
    WHEN OTHERS THEN RETURN SQLSTATE || CASE WHEN whole THEN ' ' || SQLERRM ELSE '' END;
END $$;
SELECT split_part(call, '(', 1) || CASE WHEN call ~ 'NULL, NULL' THEN ' (reconciler)' WHEN call ~ 'jsonb' THEN ' (sessions)' ELSE '' END AS call,
       ask('regress_place_host', call, by, own) AS host, ask('regress_place_host', call, by, foreigner) AS foreigner, ask('regress_place_host', call, by, absent) AS absent,
       ask('regress_place_member', call, by, own) AS member, ask('regress_place_distant', call, by, own) AS distant,
       ask('regress_place_factory', call, by, own) AS factory, ask('regress_place_operator', call, by, own) AS operator,
       ask('regress_place_scoped', call, by, own) AS scoped, ask('regress_place_bare', call, by, own) AS bare
  FROM call, place own, place foreigner, place absent WHERE own.scope = 'own' AND foreigner.scope = 'foreign' AND absent.scope = 'absent' ORDER BY n;
-- another's is what is not there, to the letter; and so for who has EXECUTE alone, whatever is asked
CREATE FUNCTION anonymous(answer text, p place) RETURNS text LANGUAGE sql AS $$
    SELECT replace(replace(answer, '"' || p.session || '"', '"S"'), '"' || p.host || '"', '"H"');
$$;
SELECT role, call, f AS foreigner, a AS absent
  FROM unnest('{regress_place_host,regress_place_member}'::name[]) role, call, place x, place y,
       anonymous(ask(role, call, by, x, true), x) f, anonymous(ask(role, call, by, y, true), y) a
 WHERE x.scope = 'foreign' AND y.scope = 'absent' AND call <> 'fetch_offers()' AND f IS DISTINCT FROM a;
SELECT call, x.scope, f AS there, a AS absent
  FROM call, place x, place y, anonymous(ask('regress_place_bare', call, by, x, true), x) f, anonymous(ask('regress_place_bare', call, by, y, true), y) a
 WHERE x.scope <> 'absent' AND y.scope = 'absent' AND f IS DISTINCT FROM a;
-- without EXECUTE there are the views, and the functions of everybody
SELECT call, ask('regress_place_nobody', call, by, p) AS nobody FROM call, place p WHERE p.scope = 'own' AND ask('regress_place_nobody', call, by, p) IS DISTINCT FROM '42501' ORDER BY n;

-- nobody reads a table, and no view shows what makes a holder
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped,
       unnest('{regress_place_host,regress_place_factory,regress_place_operator,regress_place_nobody}'::name[]) r
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(session|host|workload_|placement_|sweep_)'
   AND (has_column_privilege(r, c.oid, a.attname, 'SELECT, INSERT, UPDATE, REFERENCES') OR has_table_privilege(r, c.oid, 'DELETE, TRUNCATE, TRIGGER'));
SELECT s.relname FROM pg_class s WHERE s.relnamespace = 'reconcile'::regnamespace AND CASE WHEN s.relkind = 'S' THEN has_sequence_privilege('regress_place_factory', s.oid, 'SELECT, USAGE, UPDATE') END;
SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'v' AND c.relname ~ '^(session|host)' AND a.attname ~ 'token|_key$|holder';
SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^(session|host|workload_|placement_|sweep_)';
-- nor does a cheap function of the caller get at rows that are not his
CREATE FUNCTION peep(what text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN
    IF what ~ '\m(b|asked-b|rights-b|cold)\M' THEN
        RAISE 'seen';
    END IF;
    RETURN true;
END $$;
SET ROLE regress_place_host;
SELECT (SELECT count(*) FROM reconcile.sessions WHERE peep(session_id)) AS sessions, (SELECT count(*) FROM reconcile.hosts WHERE peep(host_id)) AS hosts,
       (SELECT count(*) FROM reconcile.host_targets WHERE peep(host_id)) AS targets, (SELECT count(*) FROM reconcile.session_offers WHERE peep(host_id) AND peep(session_id)) AS offers;
RESET ROLE;

--
-- What a registration is worth when something changes
--
CREATE TABLE change (n serial, what text, first text, role name);
INSERT INTO change (what, first, role) VALUES
('nothing', '', 'regress_place_host'),
('unregistered', $$SELECT reconcile.unregister_host('rights-a')$$, 'regress_place_host'),
('unregistered, and registered again', $$SELECT reconcile.unregister_host('rights-a'), reconcile.register_host('rights-a', 'regress_place_host')$$, 'regress_place_host'),
('another role has it', $$SELECT reconcile.register_host('rights-a', 'regress_place_other')$$, 'regress_place_host'),
('the role that has it then', $$SELECT reconcile.register_host('rights-a', 'regress_place_other')$$, 'regress_place_other'),
('a role that had no host before', $$SELECT reconcile.register_host('rights-a', 'regress_place_nobody')$$, 'regress_place_nobody'),
('the role has another name', 'ALTER ROLE regress_place_host RENAME TO regress_place_new', 'regress_place_new'),
('another has its name', 'ALTER ROLE regress_place_host RENAME TO regress_place_new; ALTER ROLE regress_place_other RENAME TO regress_place_host', 'regress_place_host'),
('it has its name again', 'ALTER ROLE regress_place_host RENAME TO regress_place_new; ALTER ROLE regress_place_new RENAME TO regress_place_host', 'regress_place_host'),
('another name, and registered again', $$ALTER ROLE regress_place_host RENAME TO regress_place_new; SELECT reconcile.register_host('rights-a', 'regress_place_new')$$, 'regress_place_new'),
('the role is gone', 'DROP OWNED BY regress_place_host; DROP ROLE regress_place_host', 'regress_place_member'),
('it is gone, and another made with its name', 'DROP OWNED BY regress_place_host; DROP ROLE regress_place_host; CREATE ROLE regress_place_host; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO regress_place_host', 'regress_place_host'),
('who left the role', 'REVOKE regress_place_host FROM regress_place_member; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO regress_place_member', 'regress_place_member'),
('EXECUTE is taken away', 'REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile FROM regress_place_host', 'regress_place_host');
CREATE FUNCTION after(c change, p place) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    answers text[];
BEGIN
    IF c.first <> '' THEN
        EXECUTE c.first;
    END IF;
    SELECT array_agg(coalesce(ask(c.role, call, by, p), '-') ORDER BY k.n) INTO answers FROM call k
     WHERE split_part(call, '(', 1) IN ('update_host_state', 'session_commands', 'set_pointer', 'owner_of', 'publish_host_target', 'fetch_offers', 'accept_offer', 'release_session') OR call LIKE 'hosts %';
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
    RETURN answers;
END $$;
SELECT what, a[1] AS update_host_state, a[2] AS session_commands, a[3] AS set_pointer, a[4] AS owner_of, a[5] AS publish, a[6] AS fetch_offers, a[7] AS accept_offer, a[8] AS release_session, a[9] AS hosts
  FROM change c, place p, after(c, p) a WHERE p.scope = 'own' ORDER BY c.n;
-- what it is registered for counts at once in a session that has asked before
SET ROLE regress_place_other;
SELECT count(*) FROM reconcile.fetch_offers();
RESET ROLE;
SELECT reconcile.register_host('rights-b', 'regress_place_bare');
SET ROLE regress_place_other;
SELECT count(*) FROM reconcile.fetch_offers();
RESET ROLE;

SELECT clean('rights', 'rights-%');
UPDATE reconcile.placement_setting s SET offer_ttl_ms = b.offer_ttl_ms, session_ttl_ms = b.session_ttl_ms FROM before b;
DELETE FROM reconcile.workload_controller WHERE controller_id LIKE 'rights-%';
SELECT reconcile.revoke_access('regress_place_factory', 'place'), reconcile.revoke_access('regress_place_operator', 'operate'),
       reconcile.revoke_access('regress_place_scoped', 'place', 'placement'), reconcile.revoke_access('regress_place_scoped', 'operate', 'placement_sweeps');
DROP SCHEMA place_rights CASCADE;
DROP OWNED BY regress_place_host, regress_place_member, regress_place_distant, regress_place_other, regress_place_factory, regress_place_operator, regress_place_scoped, regress_place_bare, regress_place_nobody;
DROP ROLE regress_place_host, regress_place_member, regress_place_distant, regress_place_other, regress_place_factory, regress_place_operator, regress_place_scoped, regress_place_bare, regress_place_nobody;
RESET client_min_messages;

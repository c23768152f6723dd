--
-- Who has a session: what it allows, who sees it, who takes it away (contract 4, 6.4, 12.7; scenarios J).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA holder_test;
SET search_path = holder_test;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE holder_test_a;
CREATE ROLE holder_test_b;
CREATE ROLE holder_test_factory;
SELECT reconcile.grant_access('holder_test_factory', 'place');
GRANT USAGE ON SCHEMA holder_test TO PUBLIC;
SELECT reconcile.control_shards() > 0 AS set;
UPDATE reconcile.placement_setting SET session_ttl_ms = 300000, offer_ttl_ms = 300000;
SELECT reconcile.register_host('h1', 'holder_test_a'), reconcile.register_host('h2', 'holder_test_b'), reconcile.register_host('pod', 'holder_test_a');
CREATE FUNCTION make(session text, placement text DEFAULT 'pooled') RETURNS text LANGUAGE sql AS $$
    SELECT outcome FROM reconcile.create_session('t-h', session, 'agent', placement, 'made', 'rt', 'v', 'w');
$$;
CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
    SELECT outcome || coalesce(' ' || host_id, '') FROM reconcile.place_session('t-h', session);
$$;
-- Each thing that only the host that has it may do, by an epoch and its token.
CREATE FUNCTION tries(session text, epoch bigint, token text, OUT function text, OUT outcome text) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
    revision bigint := (SELECT c.revision FROM reconcile.session_command c WHERE c.tenant_id = 't-h' AND c.session_id = session AND c.command_id = 'c1');
    began bigint := (SELECT c.revision FROM reconcile.session_command c WHERE c.tenant_id = 't-h' AND c.session_id = session AND c.command_id = 'c2');
BEGIN
    FOR function, outcome IN
        SELECT 'claim_session_command', o.outcome FROM reconcile.claim_session_command('t-h', session, 'c1', epoch, token, revision, '10 min') o
        UNION ALL SELECT 'begin_attempt', o.outcome FROM reconcile.begin_attempt('t-h', session, 'c2', epoch, token, began, 'a2') o
        UNION ALL SELECT 'settle_attempt', o.outcome FROM reconcile.settle_attempt('t-h', session, 'c3', epoch, token, 3, 'a3', 'applied') o
        UNION ALL SELECT 'reject_session_command', o.outcome FROM reconcile.reject_session_command('t-h', session, 'c4', epoch, token, 1) o
        UNION ALL SELECT 'update_host_state', o.outcome FROM reconcile.update_host_state('t-h', session, epoch, token, 'idle', 'resident', 0) o
        UNION ALL SELECT 'set_pointer', o.outcome FROM reconcile.set_pointer('t-h', session, 'active_continuation', epoch, token, 1, 'x') o
        UNION ALL SELECT 'clear_pointer', o.outcome FROM reconcile.clear_pointer('t-h', session, 'active_continuation', epoch, token) o
        UNION ALL SELECT 'heartbeat_host', string_agg(o.outcome, ', ')
          FROM reconcile.heartbeat_host('pod', 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 't-h', 'session_id', session, 'epoch', epoch, 'token', token))) o
    LOOP
        RETURN NEXT;
    END LOOP;
END $$;

-- 6.4, 12.7: who decided that the workload goes has fenced its host: it says and does no more, though its lease goes on
SELECT make('d1', 'dedicated'), count(*) FROM reconcile.fetch_intents('c', 10, '5 min');
SELECT outcome FROM publish('pod', 1, 1, placement => 'dedicated');
SELECT outcome, count(*) FROM generate_series(1, 4) i, reconcile.admit_session_command('t-h', 'd1', 'c' || i, 'input', 'x', NULL, '1 h') GROUP BY 1;
SELECT reconcile.report_workload('t-h', 'd1', 1, 'ready', 'pod', 1, 'ws://pod');
SELECT place('d1');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-h', 'd1'), 1, 'token');
SELECT o.outcome FROM reconcile.claim_session_command('t-h', 'd1', 'c2', 1, 'token', 1) o;
SELECT o.outcome FROM reconcile.claim_session_command('t-h', 'd1', 'c3', 1, 'token', 1) o;
SELECT o.outcome FROM reconcile.begin_attempt('t-h', 'd1', 'c3', 1, 'token', 2, 'a3') o;
SELECT o.outcome FROM reconcile.set_pointer('t-h', 'd1', 'active_continuation', 1, 'token', 0, 'before') o;
SELECT o.outcome FROM reconcile.update_desired_state('t-h', 'd1', 'gone', 1, 'dedicated', 'rt') o;
SELECT reconcile.report_workload('t-h', 'd1', 1, 'exited', 'pod', 1, 'ws://pod');
SELECT outcome, kind, reason FROM reconcile.may_delete_workload('t-h', 'd1', 1);
SELECT l.expires_at > clock_timestamp() + interval '4 min' AS goes_on FROM reconcile.lease l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-h' AND s.session_id = 'd1';
SELECT * FROM tries('d1', 1, 'token');
SELECT state, count(*) FROM reconcile.session_command WHERE tenant_id = 't-h' AND session_id = 'd1' GROUP BY 1 ORDER BY 1;
SELECT target FROM reconcile.session_pointer WHERE tenant_id = 't-h';
-- and when it lets go the lease is free, to nobody but who had it; again is told so
SELECT * FROM reconcile.release_session('t-h', 'd1', 1, 'other');
SELECT * FROM reconcile.release_session('t-h', 'd1', 1, 'token');
SELECT * FROM reconcile.release_session('t-h', 'd1', 1, 'token');
SELECT end_reason FROM reconcile.lease_term l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-h' AND s.session_id = 'd1';

-- whose it is sees it, and its commands, only while he has it
SELECT outcome FROM publish('h1', 1, 5);
SELECT outcome FROM publish('h2', 1, 1);
SELECT make('s1'), place('s1');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-h', 's1'), 1, 'token-1');
SELECT outcome FROM reconcile.admit_session_command('t-h', 's1', 'c1', 'input', 'secret', NULL, '1 h');
SELECT o.outcome FROM reconcile.set_pointer('t-h', 's1', 'active_continuation', 1, 'token-1', 0, 'x') o;
CREATE FUNCTION sees(OUT sessions text, OUT got bigint, OUT commands bigint, OUT pointer text) LANGUAGE sql AS $$
    SELECT (SELECT string_agg(session_id, ' ' ORDER BY session_id) FROM reconcile.sessions WHERE tenant_id = 't-h'),
           (SELECT count(*) FROM reconcile.get_session('t-h', 's1')),
           (SELECT count(*) FROM reconcile.session_commands('t-h', 's1')),
           (SELECT outcome FROM reconcile.get_pointer('t-h', 's1', 'active_continuation'));
$$;
SET ROLE holder_test_a;
SELECT * FROM sees();
RESET ROLE;
SET ROLE holder_test_b;
SELECT * FROM sees();
RESET ROLE;
SELECT lapse_lease('t-h', 's1');
SET ROLE holder_test_a;
SELECT * FROM sees();
-- it is told that it is over, and no more
SELECT outcome, epoch, host_id FROM reconcile.owner_of('t-h', 's1');
RESET ROLE;
SET ROLE holder_test_factory;
SELECT * FROM sees();
RESET ROLE;

-- the views: who places sees all, a host what is its own, others nothing; and how long each thing holds
CREATE FUNCTION shown() RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws('; ', (SELECT string_agg(host_id, ' ' ORDER BY host_id) FROM reconcile.hosts WHERE host_id IN ('h1', 'h2', 'pod')),
           (SELECT string_agg(host_id, ' ' ORDER BY host_id) FROM reconcile.host_targets WHERE host_id IN ('h1', 'h2', 'pod')),
           (SELECT string_agg(DISTINCT host_id, ' ' ORDER BY host_id) FROM reconcile.session_offers WHERE tenant_id = 't-h'));
$$;
SET ROLE holder_test_a;
SELECT shown();
RESET ROLE;
SET ROLE holder_test_b;
SELECT shown();
RESET ROLE;
SET ROLE holder_test_factory;
SELECT shown();
RESET ROLE;
SELECT place('s1');
SELECT host_id, remaining BETWEEN expires_at - clock_timestamp() AND interval '5 min' AS remains FROM reconcile.host_targets WHERE host_id IN ('h1', 'h2') ORDER BY 1;
SELECT state, remaining > '0' AND remaining <= '5 min' AS remains FROM reconcile.session_offers WHERE tenant_id = 't-h' AND session_id = 's1' ORDER BY offer_id;
SELECT outcome, remaining > '0' AND remaining <= '5 min' AS remains FROM reconcile.compatible_hosts('agent', 'rt', 'pooled') WHERE host_id IN ('h1', 'h2');
SELECT outcome, remaining > '0' AND remaining <= '1 min' AS remains FROM reconcile.publish_host_target('h2', 1, 'agent', 'rt', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1);
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-h', 's1'), 1, 'token-2');
SELECT owner, lease_remaining > '0' AND lease_remaining <= '5 min' AS remains FROM reconcile.sessions WHERE tenant_id = 't-h' AND session_id = 's1';
-- a heartbeat tells of the leases that it has renewed, and of none where there is none
SELECT outcome, remaining > '4 min' AND remaining <= '5 min' AS remains FROM reconcile.heartbeat_host('h1', 1, '[]', '[{"tenant_id": "t-h", "session_id": "s1", "epoch": 2, "token": "token-2"}]');
SELECT outcome, remaining FROM reconcile.heartbeat_host('h1', 1, '[]', '[]');
SELECT outcome, session_id, remaining FROM reconcile.heartbeat_host('h1', 1, '[]', '[{"tenant_id": "t-h", "session_id": "s1", "epoch": 1, "token": "token-1"}]');

-- 4.3: the key of an attachment is of these fields, each framed by its length in decimal and a zero byte, and not of the host
CREATE FUNCTION framed(VARIADIC fields text[]) RETURNS text LANGUAGE sql AS $$
    SELECT encode(sha256(string_agg(convert_to(octet_length(f)::text, 'UTF8') || '\x00' || convert_to(f, 'UTF8'), '' ORDER BY n)), 'hex') FROM unnest(fields) WITH ORDINALITY u(f, n);
$$;
SELECT o.outcome FROM (VALUES ('é/1', 'agent', 'rt'), ('k2', 'agent', 'rt'), ('k3', 'agent-2', 'rt'), ('k4', 'agent', 'rt-2')) v(s, a, r), reconcile.create_session('t-h', s, a, 'pooled', 'made', r) o;
SELECT outcome FROM reconcile.publish_host_target('h1', 1, 'agent-2', 'rt', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1);
SELECT outcome FROM publish('h1', 1, 5, runtime => 'rt-2');
INSERT INTO reconcile.session_observed (tenant_id, session_id, revision, lease_epoch, journal_seq, last_active_at) VALUES ('t-h', 'k2', 1, 0, 7, now());
SELECT count(place(s)) FROM unnest('{é/1,k2,k3,k4}'::text[]) s;
SET ROLE holder_test_a;
SELECT session_id, mode, attach_key = holder_test.framed('placement-attach/v1', tenant_id, session_id, agent_id, runtime_compatibility_id, mode, desired_generation::text) AS as_laid_down
  FROM reconcile.fetch_offers() ORDER BY session_id COLLATE "C";
SELECT count(DISTINCT attach_key) FROM reconcile.fetch_offers();
RESET ROLE;
SELECT framed('placement-attach/v1', 't', 's', 'agent', 'rt', 'create', '1');

-- what a host has room for is less what it was offered, unless it says that its number takes account of it
SELECT outcome FROM reconcile.publish_host_target('h2', 1, 'agent', 'rt-3', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 2);
SELECT o.outcome, place('n1') FROM reconcile.create_session('t-h', 'n1', 'agent', 'pooled', 'made', 'rt-3') o;
SELECT outcome FROM reconcile.accept_offer(offer('t-h', 'n1'), 1, 'token');
SELECT outcome FROM reconcile.publish_host_target('h2', 1, 'agent', 'rt-3', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 2);
SELECT ranking('rt-3');
SELECT outcome FROM reconcile.publish_host_target('h2', 1, 'agent', 'rt-3', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1, seen_offer => (SELECT max(offer_id) FROM reconcile.session_offer));
SELECT ranking('rt-3');

-- a host whose role is gone is asked by nobody
CREATE ROLE holder_test_gone;
SELECT reconcile.register_host('g', 'holder_test_gone'), outcome FROM publish('g', 1, 1, runtime => 'rt-4');
SELECT outcome FROM publish('g', 1, 1, runtime => 'rt-4');
SELECT ranking('rt-4');
ALTER ROLE holder_test_gone RENAME TO holder_test_other;
SELECT ranking('rt-4');
SELECT o.outcome, place('g1') FROM reconcile.create_session('t-h', 'g1', 'agent', 'pooled', 'made', 'rt-4') o;
ALTER ROLE holder_test_other RENAME TO holder_test_gone;
SELECT ranking('rt-4');
DROP OWNED BY holder_test_gone;
DROP ROLE holder_test_gone;
SELECT ranking('rt-4');

-- who takes back what it offers is not waited for: what was offered is offered to the next one
SELECT outcome FROM publish('h1', 1, 1, runtime => 'rt-5');
SELECT o.outcome, place('w1') FROM reconcile.create_session('t-h', 'w1', 'agent', 'pooled', 'made', 'rt-5') o;
SELECT place('w1');
SELECT outcome FROM publish('h2', 1, 1, runtime => 'rt-5');
SELECT outcome FROM reconcile.drain_host_target('h1', 1, 'agent', 'rt-5', 'pooled');
SELECT place('w1');
SELECT host_id, state FROM reconcile.session_offers WHERE tenant_id = 't-h' AND session_id = 'w1' ORDER BY offer_id;

-- an operator takes a session from a host that is known to be gone
SET ROLE holder_test_factory;
SELECT * FROM reconcile.force_release_session('t-h', 's1', 2, 'the machine burns');
RESET ROLE;
SELECT refusal.* FROM unnest(ARRAY['NULL, ''s1'', 2, ''why''', '''t-h'', ''s1'', 0, ''why''', '''t-h'', ''s1'', 2, NULL', '''t-h'', ''s1'', 2, ''''', '''t-h'', ''s1'', 2, repeat(''x'', 1001)']) a(args),
    refusal('SELECT * FROM reconcile.force_release_session(' || args || ')');
SELECT * FROM reconcile.force_release_session('t-h', 'none', 2, 'why');
SELECT * FROM reconcile.force_release_session('t-h', 's1', 1, 'why');
SELECT * FROM reconcile.force_release_session('t-h', 's1', 2, 'the machine burns');
SELECT * FROM reconcile.force_release_session('t-h', 's1', 2, 'the machine burns');
SELECT epoch, end_reason, forced_by = current_user AS by, forced_reason FROM reconcile.lease_term l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-h' AND s.session_id = 's1' ORDER BY 1;
SELECT outcome, session_id FROM reconcile.heartbeat_host('h1', 1, '[]', '[{"tenant_id": "t-h", "session_id": "s1", "epoch": 2, "token": "token-2"}]');
SELECT o.outcome FROM reconcile.set_pointer('t-h', 's1', 'active_continuation', 2, 'token-2', 9, 'late') o;
SELECT place('s1');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-h', 's1'), 1, 'token-3');
-- also from one whose workload was decided to go, and who has its lease still; and one whose lease is over
SELECT make('d2', 'dedicated'), count(*) FROM reconcile.fetch_intents('c', 10, '5 min');
SELECT outcome FROM publish('pod', 1, 1, placement => 'dedicated');
SELECT reconcile.report_workload('t-h', 'd2', 1, 'ready', 'pod', 1, 'ws://pod'), place('d2');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-h', 'd2'), 1, 'token');
SELECT o.outcome FROM reconcile.update_desired_state('t-h', 'd2', 'gone', 1, 'dedicated', 'rt') o;
SELECT reconcile.report_workload('t-h', 'd2', 1, 'exited', 'pod', 1, 'ws://pod'), outcome FROM reconcile.may_delete_workload('t-h', 'd2', 1);
SELECT * FROM reconcile.force_release_session('t-h', 'd2', 1, 'gone');
SELECT * FROM reconcile.force_release_session('t-h', 'd2', 1, 'gone');
SELECT * FROM reconcile.release_session('t-h', 'd2', 1, 'token');
SELECT lapse_lease('t-h', 's1');
SELECT * FROM reconcile.force_release_session('t-h', 's1', 3, 'gone');

-- who had it is found beside any number of offers that came to nothing
BEGIN;
INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id, host_generation,
                                     desired_generation, mode, round, made_at, expires_at, state, code, decided_at, counted)
SELECT tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id, host_generation,
       desired_generation, mode, round, made_at, expires_at, 'refused', 'releasing', made_at, false
  FROM reconcile.session_offer, generate_series(1, 2000) WHERE tenant_id = 't-h' AND session_id = 's1' AND epoch = 3;
CREATE FUNCTION offers_read() RETURNS bigint LANGUAGE sql AS $$
    SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'reconcile.session_offer'::regclass;
$$;
DISCARD PLANS;
SELECT offers_read() AS before \gset
SELECT o.outcome FROM reconcile.update_host_state('t-h', 's1', 3, 'token-3', 'idle', 'resident', 0) o;
SELECT offers_read() - :before < 100 AS few;
ROLLBACK;

UPDATE reconcile.placement_setting SET session_ttl_ms = 60000, offer_ttl_ms = 10000;
DO $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'reconcile.session_command'::regclass AND NOT tgisinternal LOOP
        EXECUTE format('ALTER TABLE reconcile.session_command DISABLE TRIGGER %I', t.tgname);
    END LOOP;
    DELETE FROM reconcile.session_command WHERE tenant_id = 't-h';
    FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'reconcile.session_command'::regclass AND NOT tgisinternal LOOP
        EXECUTE format('ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER %I', t.tgname);
    END LOOP;
END $$;
DELETE FROM reconcile.workload_controller WHERE controller_id = 'c';
SELECT clean('t-h', '%');
DROP OWNED BY holder_test_a, holder_test_b, holder_test_factory;
DELETE FROM reconcile.access_grant WHERE role_name LIKE 'holder_test_%';
DROP ROLE holder_test_a, holder_test_b, holder_test_factory;
DROP SCHEMA holder_test CASCADE;

--
-- Workloads of dedicated sessions: intents, reports, drains, ends (contract 6.3, 6.4;
-- scenarios B8, B13, D7, D16, D21, E2, E3, K17).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA dedicated_test;
SET search_path = dedicated_test;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE dedicated_test_controller;
CREATE ROLE dedicated_test_host;
SELECT reconcile.grant_access('dedicated_test_controller', 'place');
SELECT reconcile.register_host('pod', 'dedicated_test_host');
CREATE FUNCTION make(session text) RETURNS text LANGUAGE sql AS $$
    SELECT outcome FROM reconcile.create_session('t-d', session, 'agent', 'dedicated', 'made', 'rt', 'v1', 'image');
$$;
CREATE FUNCTION desire(session text, workload bytea, placement text DEFAULT 'dedicated') RETURNS text LANGUAGE sql AS $$
    SELECT o.outcome FROM reconcile.get_session('t-d', session) s,
        reconcile.update_desired_state('t-d', session, 'k-' || s.revision, s.revision, desire.placement, 'rt',
                                       CASE WHEN desire.workload IS NOT NULL THEN 'v1' END, desire.workload) o;
$$;
CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
    SELECT outcome || coalesce(' ' || host_id, '') FROM reconcile.place_session('t-d', session);
$$;
CREATE FUNCTION intents(max int DEFAULT 100) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(want || ' ' || session_id || ' ' || generation || ' ' || state || coalesce(' ' || convert_from(workload, 'UTF8'), ''), ', ')
      FROM reconcile.fetch_intents('controller', max);
$$;
CREATE FUNCTION may_delete(session text, generation bigint, OUT outcome text, OUT kind text, OUT reason text, OUT lease_epoch bigint) LANGUAGE sql AS $$
    SELECT * FROM reconcile.may_delete_workload('t-d', session, generation);
$$;
CREATE FUNCTION ready(session text, generation bigint, host text DEFAULT 'pod') RETURNS text LANGUAGE sql AS $$
    SELECT reconcile.report_workload('t-d', session, generation, 'ready', host, generation, 'ws://pod');
$$;

-- B13: where nobody polls for workloads none is asked for; one who polls is there for his ttl
SELECT make('s1'), place('s1');
SELECT count(*) FROM reconcile.session_workload WHERE tenant_id = 't-d';
SET ROLE dedicated_test_host;
SELECT count(*) FROM reconcile.fetch_intents('controller');
RESET ROLE;
SET ROLE dedicated_test_controller;
SELECT count(*) FROM reconcile.fetch_intents('controller');
RESET ROLE;
SELECT controller_id, role_name, expires_at - polled_at AS ttl FROM reconcile.workload_controller;
-- B8, E2: asked for before it is looked at, with each call until it is there; one workload for a generation
SELECT place('s1'), place('s1');
SELECT intents(), intents();
SELECT want, tenant_id, session_id, generation, agent_id, runtime_compatibility_id, placement, workload_version, state, host_id, session_state,
       name = reconcile.workload_identity('t-d', 's1', 'agent', 'rt', 1) AS named FROM reconcile.fetch_intents('controller');
SELECT reconcile.report_workload('t-d', 's1', 1, 'pending'), reconcile.report_workload('t-d', 's1', 1, 'pending');
SELECT intents();
-- what is no generation of it, and what is not there
SELECT reconcile.report_workload('t-d', 's1', 2, 'pending'), reconcile.report_workload('t-d', 'none', 1, 'pending');

-- D7: ready: its host is asked, once it says that it takes sessions
SELECT ready('s1', 1);
SELECT place('s1');
SELECT intents();
SELECT outcome FROM publish('pod', 1, 1, placement => 'dedicated');
SELECT place('s1'), place('s1');
SELECT ranking(placement => 'dedicated');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 's1'), 1, 'token');
SELECT outcome FROM reconcile.heartbeat_host('pod', 1, '[]', '[{"tenant_id": "t-d", "session_id": "s1", "epoch": 1, "token": "token"}]');
SELECT place('s1');

-- E3: the one to have is not deleted, nor one that was not drained
SELECT * FROM may_delete('s1', 1);
SELECT * FROM may_delete('s1', 2);
SELECT * FROM may_delete('s2', 1);
-- D21: taken away by a wish without a workload
SELECT desire('s1', NULL);
SELECT place('s1');
SELECT intents();
SELECT * FROM may_delete('s1', 1);
SELECT reconcile.report_drained('t-d', 's1', 1, 'pod', 1);
SELECT outcome, host_id, host_generation, epoch, remaining > '0' AS remains FROM reconcile.request_drain('t-d', 's1', 1, '1 h');
SELECT outcome, host_id, host_generation, epoch, remaining > '59 min' AS remains FROM reconcile.request_drain('t-d', 's1', 1, '1 s');
SELECT * FROM may_delete('s1', 1);
-- the drain is of exactly that host; it hears of it with its heartbeats
SELECT reconcile.report_drained('t-d', 's1', 1, 'pod', 2), reconcile.report_drained('t-d', 's1', 1, 'other', 1);
SELECT outcome, session_id, epoch FROM reconcile.heartbeat_host('pod', 1, '[]', '[{"tenant_id": "t-d", "session_id": "s1", "epoch": 1, "token": "token"}]');
SELECT reconcile.report_drained('t-d', 's1', 1, 'pod', 1, 'draining'), reconcile.report_drained('t-d', 's1', 1, 'pod', 1, 'draining');
SELECT * FROM may_delete('s1', 1);
-- it lets go: that is what was to be seen
SELECT outcome FROM reconcile.release_session('t-d', 's1', 1, 'token');
SELECT * FROM may_delete('s1', 1);
SELECT * FROM may_delete('s1', 1);
SELECT outcome, field, generation FROM reconcile.record_termination('t-d', 's1', 1, 'graceful', NULL, 1);
SELECT * FROM may_delete('s1', 1);
SELECT reconcile.report_workload('t-d', 's1', 1, 'absent');
SELECT intents();

-- the rules of 6.4, one workload for each: what is said of it, whether its host has the session, what it answered
CREATE TABLE rule (n int, state text, routed boolean, drain boolean, answer text, late boolean);
INSERT INTO rule VALUES
    (1, 'terminating', true, false, NULL, false), (2, 'exited', true, false, NULL, false), (3, 'ready', false, false, NULL, false),
    (4, 'ready', true, false, NULL, false), (5, 'ready', true, true, 'drained', false), (6, 'ready', false, true, 'drained', false),
    (7, 'ready', true, true, 'unsupported', false), (8, 'ready', true, true, 'draining', true), (9, 'ready', true, true, NULL, true),
    (10, 'ready', true, true, 'refused', false), (11, 'ready', true, true, 'refused', true), (12, 'ready', false, true, 'refused', false),
    (13, 'ready', true, true, NULL, false), (14, 'ready', false, true, NULL, false), (15, 'ready', false, true, NULL, true),
    (16, 'exited', true, true, 'drained', false);
CREATE PROCEDURE prepare(r rule) LANGUAGE plpgsql AS $$
DECLARE
    s text := 'r' || r.n;
BEGIN
    PERFORM make(s), reconcile.register_host(s, 'dedicated_test_host'), publish(s, 1, 1, placement => 'dedicated');
    PERFORM place(s), ready(s, 1, s);
    PERFORM place(s);
    IF r.routed OR r.answer = 'refused' THEN
        PERFORM reconcile.accept_offer(offer('t-d', s), 1, 'token');
    END IF;
    PERFORM desire(s, NULL);
    IF r.drain THEN
        PERFORM reconcile.request_drain('t-d', s, 1, '1 h');
    END IF;
    IF r.answer IS NOT NULL THEN
        PERFORM reconcile.report_drained('t-d', s, 1, s, 1, r.answer);
    END IF;
    IF NOT r.routed THEN
        PERFORM lapse_lease('t-d', s);
    END IF;
    IF r.late THEN
        UPDATE reconcile.session_workload SET drain_deadline = clock_timestamp() WHERE tenant_id = 't-d' AND session_id = s;
    END IF;
    IF r.state <> 'ready' THEN
        PERFORM reconcile.report_workload('t-d', s, 1, r.state, s, 1, 'ws://pod');
    END IF;
END $$;
DO $$
DECLARE
    r dedicated_test.rule;
BEGIN
    FOR r IN SELECT * FROM dedicated_test.rule ORDER BY n LOOP
        CALL dedicated_test.prepare(r);
    END LOOP;
END $$;
SELECT r.*, d.* FROM rule r, may_delete('r' || r.n, 1) d ORDER BY n;
-- what may be deleted is registered nowhere, and its lease runs out by itself
SELECT session_id, host_id IS NULL AS released, l.expires_at > clock_timestamp() AS leased
  FROM reconcile.session_registration r JOIN reconcile.session s USING (tenant_id, session_id) JOIN reconcile.lease l ON l.reconciler_id = 'session:' || s.number
 WHERE tenant_id = 't-d' AND session_id IN ('r1', 'r4', 'r8', 'r13') ORDER BY 1;
SELECT outcome, session_id FROM reconcile.heartbeat_host('r8', 1, '[]', '[{"tenant_id": "t-d", "session_id": "r8", "epoch": 1, "token": "token"}]');
-- the answer stays, whatever is said later
SELECT reconcile.report_drained('t-d', 'r8', 1, 'r8', 1, 'drained');
SELECT reconcile.report_workload('t-d', 'r8', 1, 'exited', 'r8', 1, 'ws://pod');
SELECT * FROM may_delete('r8', 1);
-- but for a host that has the session again, under a later epoch than was decided about
UPDATE reconcile.lease l SET expires_at = touched_at FROM reconcile.session s WHERE s.tenant_id = 't-d' AND s.session_id = 'r9' AND l.reconciler_id = 'session:' || s.number;
INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id, host_generation, desired_generation,
                                     mode, round, made_at, expires_at, state, counted)
VALUES ('t-d', 'r9', 'agent', 'rt', 'dedicated', 'r9', 1, 2, 'create', 9, now(), now() + interval '1 h', 'offered', false);
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 'r9'), 1, 'token');
SELECT * FROM may_delete('r9', 1);
SELECT outcome, epoch FROM reconcile.request_drain('t-d', 'r9', 1);
SELECT outcome FROM reconcile.release_session('t-d', 'r9', 2, 'token');
SELECT * FROM may_delete('r9', 1);
-- another host in the same workload: what was asked of the one is nothing to the other
SELECT reconcile.report_workload('t-d', 'r13', 1, 'ready', 'r14', 1, 'ws://pod');
SELECT drain_requested_at FROM reconcile.session_workload WHERE session_id = 'r13' AND tenant_id = 't-d';
SELECT * FROM may_delete('r13', 1);

-- D16: each wish is a generation, and a workload of its own: the one before goes, the next one comes
SELECT make('g'), place('g'), desire('g', 'next'), place('g');
SELECT string_agg(want || ' ' || generation || coalesce(' ' || convert_from(workload, 'UTF8'), ''), ', ' ORDER BY generation), count(DISTINCT name)
  FROM reconcile.fetch_intents('controller') WHERE session_id = 'g';
SELECT desire('g', 'next', 'pooled');
SELECT string_agg(want || ' ' || generation, ', ' ORDER BY generation) FROM reconcile.fetch_intents('controller') WHERE session_id = 'g';
-- a page goes on behind the one before, around the end: none of many is passed over
CREATE TABLE seen (page int, session_id text, generation bigint);
INSERT INTO seen SELECT p, i.session_id, i.generation FROM generate_series(1, 12) p, LATERAL (SELECT * FROM reconcile.fetch_intents('pages', 3 + p * 0)) i;
SELECT count(DISTINCT page) AS pages, bool_and(n = 3) AS full FROM (SELECT page, count(DISTINCT (session_id, generation)) AS n FROM seen GROUP BY page) p;
SELECT (SELECT count(DISTINCT (session_id, generation)) FROM seen) = count(*) AS all_seen
  FROM reconcile.session_workload w WHERE tenant_id = 't-d';

-- K17: ends
CREATE FUNCTION ended(session text, generation bigint, kind text, reason text, epoch bigint, OUT outcome text, OUT field text, OUT recorded bigint) LANGUAGE sql AS $$
    SELECT r.outcome, r.field, r.generation FROM reconcile.record_termination('t-d', session, generation, kind, reason, epoch) r;
$$;
SELECT make('e'), desire('e', 'b'), desire('e', 'c'), desire('e', 'd');
SELECT * FROM ended('e', 5, 'forced', 'drain_timeout', 7);
SELECT * FROM ended('none', 1, 'forced', 'drain_timeout', 7);
SELECT * FROM ended('e', 2, 'forced', 'drain_timeout', 7);
SELECT recorded_at AS first FROM reconcile.session_termination WHERE tenant_id = 't-d' AND session_id = 'e' \gset
SELECT * FROM ended('e', 2, 'forced', 'drain_timeout', 7);
SELECT recorded_at = :'first' AS same, kind, reason, lease_epoch FROM reconcile.session_termination WHERE tenant_id = 't-d' AND session_id = 'e';
SELECT e.* FROM (VALUES ('forced', 'drain_refused', 7), ('graceful', NULL, 7), ('forced', 'drain_timeout', 6), ('forced', 'drain_timeout', 8),
    ('forced', 'drain_timeout', 0)) v(kind, reason, epoch), ended('e', 2, kind, reason, epoch) e;
SELECT * FROM ended('e', 1, 'forced', 'drain_timeout', 7);
SELECT * FROM ended('e', 4, 'graceful', NULL, 9);
SELECT * FROM ended('e', 2, 'forced', 'drain_timeout', 7);
SELECT g, outcome, generation, kind, reason, lease_epoch FROM generate_series(3, 5) g, reconcile.get_termination('t-d', 'e', g);
SELECT outcome FROM reconcile.get_termination('t-d', 'none', 1);
-- whose end it is said to be is not asked: a pooled session has one, too
SELECT o.outcome FROM reconcile.create_session('t-d', 'p', 'agent', 'pooled', 'made', 'rt') o;
SELECT * FROM ended('p', 1, 'forced', 'workload_terminated', 0);
SELECT refusal.code FROM (VALUES ('DELETE FROM reconcile.session_termination'), ('TRUNCATE reconcile.session_termination'),
    ('UPDATE reconcile.session_termination SET generation = generation - 1 WHERE generation > 1')) v(s), refusal(s);

-- what is refused, of which field
SELECT n, refusal.* FROM unnest(ARRAY['fetch_intents(NULL)', 'fetch_intents(''c'', 0)', 'fetch_intents(''c'', 1001)', 'fetch_intents(''c'', 1, ''16 min'')',
    'report_workload(NULL, ''s'', 1, ''absent'')', 'report_workload(''t'', ''s'', 0, ''absent'')', 'report_workload(''t'', ''s'', 1, ''gone'')',
    'report_workload(''t'', ''s'', 1, ''ready'')', 'report_workload(''t'', ''s'', 1, ''pending'', ''h'')', 'report_workload(''t'', ''s'', 1, ''pending'', ''h'', 1, ''http://h'')',
    'report_workload(''t'', ''s'', 1, ''pending'', NULL, 1, ''ws://h'')', 'request_drain(''t'', ''s'', 1, ''0'')', 'request_drain(''t'', ''s'', 1, ''25 h'')',
    'report_drained(''t'', ''s'', 1, ''h'', 0)', 'report_drained(''t'', ''s'', 1, ''h'', 1, ''maybe'')', 'may_delete_workload(''t'', ''s'', NULL)',
    'record_termination(''t'', ''s'', 1, ''sudden'', NULL, 0)', 'record_termination(''t'', ''s'', 1, ''forced'', NULL, 0)', 'record_termination(''t'', ''s'', 1, ''forced'', ''why'', 0)',
    'record_termination(''t'', ''s'', 1, ''graceful'', ''drain_timeout'', 1)', 'record_termination(''t'', ''s'', 1, ''graceful'', NULL, 0)',
    'record_termination(''t'', ''s'', 1, ''forced'', ''drain_timeout'', -1)', 'get_termination(''t'', ''s'', 0)']) WITH ORDINALITY a(call, n),
    refusal('SELECT * FROM reconcile.' || call);
SET ROLE dedicated_test_host;
SELECT outcome FROM reconcile.may_delete_workload('t-d', 's1', 1);
SELECT reconcile.report_workload('t-d', 's1', 1, 'absent');
RESET ROLE;

SELECT clean('t-d', '%');
DELETE FROM reconcile.workload_controller;
DELETE FROM reconcile.access_grant WHERE role_name = 'dedicated_test_controller';
DROP OWNED BY dedicated_test_controller, dedicated_test_host;
DROP ROLE dedicated_test_controller, dedicated_test_host;
DROP SCHEMA dedicated_test CASCADE;

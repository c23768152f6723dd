--
-- Workloads of dedicated sessions: intents, reports, drains, ends (contract 6.3, 6.4;
-- scenarios B8, B13, D7, D10, D11, D16, D21, E2, E3, K17).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA dedicated_test;
SET search_path = dedicated_test;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
-- nothing is over but what is ended here, however slow it is
SET lock_timeout = '30 s';
SELECT reconcile.control_shards() > 0 AS settings;
CREATE TABLE before AS SELECT * FROM reconcile.placement_setting;
UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000, session_ttl_ms = 3600000;
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
      FROM reconcile.fetch_intents('controller', max, '15 min');
$$;
CREATE FUNCTION may_delete(session text, generation bigint, OUT outcome text, OUT kind text, OUT reason text, OUT lease_epoch bigint) LANGUAGE sql AS $$
    SELECT * FROM reconcile.may_delete_workload('t-d', session, generation);
$$;
CREATE FUNCTION ready(session text, generation bigint, host text DEFAULT 'pod') RETURNS text LANGUAGE sql AS $$
    SELECT reconcile.report_workload('t-d', session, generation, 'ready', host, generation, 'ws://pod');
$$;

-- The versions of what there is of a session: the same ones were not written.
CREATE FUNCTION versions(text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(v, ' ') FROM (
        SELECT 'session ' || xmin || ctid FROM reconcile.session WHERE tenant_id = 't-d' AND session_id = $1
        UNION ALL SELECT 'workload ' || xmin || ctid FROM reconcile.session_workload WHERE tenant_id = 't-d' AND session_id = $1
        UNION ALL SELECT 'offer ' || xmin || ctid FROM reconcile.session_offer WHERE tenant_id = 't-d' AND session_id = $1
        UNION ALL SELECT 'claim ' || xmin || ctid FROM reconcile.session_claim WHERE tenant_id = 't-d' AND session_id = $1
        UNION ALL SELECT 'command ' || xmin || ctid FROM reconcile.session_command WHERE tenant_id = 't-d' AND session_id = $1
        UNION ALL SELECT 'registration ' || xmin || ctid FROM reconcile.session_registration WHERE tenant_id = 't-d' AND session_id = $1) o (v);
$$;

-- B13: where nobody polls for workloads none is asked for, and nothing is written but the wish, if there is one
SELECT make('s1');
SELECT versions('s1') AS versions \gset
SELECT place('s1');
SELECT versions('s1') = :'versions' AS nothing_written;
-- the first one who polls has the sessions that waited for one looked at; who comes while he is there is nobody's news
BEGIN;
SELECT reconcile.create_loop('placement_sweeps');
DELETE FROM reconcile.workload_controller;
CREATE FUNCTION marks() RETURNS text LANGUAGE sql AS $$ SELECT string_agg(entity_id, ' ') FROM reconcile.mark WHERE loop_name = 'placement_sweeps' $$;
SELECT count(*) FROM reconcile.fetch_intents('first');
SELECT marks();
SELECT count(*) FROM reconcile.fetch_intents('second') a, reconcile.fetch_intents('first') b;
SELECT marks();
ROLLBACK;
-- one who polls is there for his ttl
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
       name = reconcile.workload_identity('t-d', 's1', 'agent', 'rt', 1) AS named FROM reconcile.fetch_intents('controller', ttl => '15 min');
SELECT reconcile.report_workload('t-d', 's1', 1, 'pending'), reconcile.report_workload('t-d', 's1', 1, 'pending');
SELECT intents();
-- what is no generation of it, and what is not there
SELECT reconcile.report_workload('t-d', 's1', 2, 'pending'), reconcile.report_workload('t-d', 'none', 1, 'pending');

-- D7: ready: its host is asked, once it says that it takes sessions: then the session is looked at, and no other
SELECT ready('s1', 1);
SELECT place('s1');
SELECT intents();
SELECT reconcile.create_loop('placement');
SELECT outcome FROM publish('pod', 1, 1, placement => 'dedicated');
SELECT s.session_id FROM reconcile.mark m JOIN reconcile.session s ON m.entity_id = s.number::text WHERE m.loop_name = 'placement';
SELECT reconcile.drop_loop('placement');
SELECT place('s1');
-- again: the same offer, and nothing is written
SELECT versions('s1') AS versions \gset
SELECT place('s1');
SELECT versions('s1') = :'versions' AS nothing_written, count(*) AS offers FROM reconcile.session_offer WHERE tenant_id = 't-d' AND session_id = 's1';
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

-- the workload to have ends, and comes again in its generation: its host is offered the session again
CREATE PROCEDURE lives(session text, again boolean) LANGUAGE plpgsql AS $$
BEGIN
    IF again THEN
        PERFORM lapse_lease('t-d', session);
    ELSE
        PERFORM make(session), reconcile.register_host(session, 'dedicated_test_host');
    END IF;
    PERFORM publish(session, 1, 1, placement => 'dedicated', seen => (SELECT max(offer_id) FROM reconcile.session_offer));
    PERFORM place(session);
END $$;
CREATE FUNCTION record_end(session text, OUT asked text, OUT outcome text, OUT field text, OUT lease_epoch bigint) LANGUAGE sql AS $$
    SELECT m.outcome, r.outcome, r.field, m.lease_epoch FROM reconcile.may_delete_workload('t-d', session, 1) m, reconcile.record_termination('t-d', session, 1, m.kind, m.reason, m.lease_epoch) r;
$$;
CALL lives('w', false);
SELECT ready('w', 1, 'w'), place('w');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 'w'), 1, 'token');
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited', 'w', 1, 'ws://pod');
SELECT * FROM record_end('w');
CALL lives('w', true);
SELECT want, generation, state FROM reconcile.fetch_intents('controller', ttl => '15 min') WHERE session_id = 'w';
SELECT ready('w', 1, 'w'), place('w');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 'w'), 1, 'token2');
-- what is recorded is of its last life; one that never had the session ends like one before
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited', 'w', 1, 'ws://pod');
SELECT * FROM record_end('w');
SELECT outcome, generation, kind, reason, lease_epoch FROM reconcile.get_termination('t-d', 'w', 1);
SELECT outcome, field FROM reconcile.record_termination('t-d', 'w', 1, 'forced', 'workload_terminated', 1);
SELECT outcome, field FROM reconcile.record_termination('t-d', 'w', 1, 'forced', 'workload_terminated', 2);
CALL lives('w', true);
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited');
SELECT * FROM record_end('w');
CALL lives('w', true);
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited');
SELECT * FROM record_end('w');
SELECT count(*) FROM reconcile.session_workload WHERE tenant_id = 't-d' AND session_id = 'w';
-- without a record between: a drain, and what was decided, are not of the next life
CALL lives('w', true);
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited', 'w', 1, 'ws://pod');
SELECT * FROM may_delete('w', 1);
SELECT reconcile.report_workload('t-d', 'w', 1, 'absent', 'w', 1, 'ws://pod');
SELECT * FROM may_delete('w', 1);
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited', 'w', 1, 'ws://pod'), ready('w', 1, 'w');
SELECT * FROM may_delete('w', 1);
-- nor where it was deleted and reported so, and the record never came: it comes again on the host that it had
SELECT reconcile.report_workload('t-d', 'w', 1, 'exited', 'w', 1, 'ws://pod');
SELECT * FROM may_delete('w', 1);
SELECT reconcile.report_workload('t-d', 'w', 1, 'absent');
SELECT reconcile.report_workload('t-d', 'w', 1, 'pending'), ready('w', 1, 'w');
SELECT * FROM may_delete('w', 1);
-- a controller that polls no more is forgotten after a day, and not one that comes back
INSERT INTO reconcile.workload_controller (controller_id, role_name, polled_at, expires_at)
SELECT 'gone' || n, session_user, now() - interval '3 days', now() - n * interval '20 h' FROM generate_series(0, 3) n;
SELECT count(*) >= 0 AS polled FROM reconcile.fetch_intents('gone3', ttl => '1 min');
SELECT string_agg(controller_id, ' ' ORDER BY controller_id) FROM reconcile.workload_controller WHERE controller_id LIKE 'gone%';
DELETE FROM reconcile.workload_controller WHERE controller_id LIKE 'gone%';

-- of one that ends the host need not be told: it had the session all the same, and has it no more
CALL lives('u', false);
SELECT ready('u', 1, 'u'), place('u');
SELECT outcome FROM reconcile.accept_offer(offer('t-d', 'u'), 1, 'token');
SELECT reconcile.report_workload('t-d', 'u', 1, 'exited'), reconcile.report_workload('t-d', 'u', 1, 'exited');
SELECT * FROM may_delete('u', 1);
SELECT host_id IS NULL AS released FROM reconcile.session_registration WHERE tenant_id = 't-d' AND session_id = 'u';

-- one that came again after its end was recorded is taken away like any other, when it is not wanted any more
SELECT desire('w', NULL);
SELECT outcome FROM reconcile.request_drain('t-d', 'w', 1, '1 h');
SELECT reconcile.report_drained('t-d', 'w', 1, 'w', 1);
SELECT * FROM record_end('w');
SELECT ready('w', 1, 'w');
SELECT outcome FROM reconcile.request_drain('t-d', 'w', 1, '1 h');

-- an operator who ends the session of one that is being drained has not seen its host let it go
CALL lives('o', false);
SELECT ready('o', 1, 'o'), place('o');
SELECT outcome FROM reconcile.accept_offer(offer('t-d', 'o'), 1, 'token');
SELECT desire('o', NULL);
SELECT outcome, epoch FROM reconcile.request_drain('t-d', 'o', 1, '1 h');
SELECT outcome FROM reconcile.force_release_session('t-d', 'o', 1, 'it hangs');
SELECT * FROM may_delete('o', 1);
UPDATE reconcile.session_workload SET drain_deadline = clock_timestamp() WHERE tenant_id = 't-d' AND session_id = 'o';
SELECT * FROM may_delete('o', 1);

-- a workload that may be deleted has no session any more: what its host says of it is refused, while its lease goes on
CALL lives('f', false);
SELECT ready('f', 1, 'f'), place('f');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 'f'), 1, 'token');
SELECT count(*) FROM generate_series(1, 4) g, reconcile.admit_session_command('t-d', 'f', 'c' || g, 'input', 'x', apply_deadline_in => '1 h');
SELECT c.outcome FROM generate_series(2, 4) g, reconcile.claim_session_command('t-d', 'f', 'c' || g, 1, 'token', 1, '1 h') c;
SELECT b.outcome FROM generate_series(3, 4) g, reconcile.begin_attempt('t-d', 'f', 'c' || g, 1, 'token', 2, 'try') b;
SELECT outcome FROM reconcile.set_pointer('t-d', 'f', 'workspace_checkpoint', 1, 'token', 1, 'object');
CREATE FUNCTION said() RETURNS TABLE (what text, outcome text) LANGUAGE sql AS $$
    SELECT 'claim', outcome FROM reconcile.claim_session_command('t-d', 'f', 'c1', 1, 'token', 1)
    UNION ALL SELECT 'begin', outcome FROM reconcile.begin_attempt('t-d', 'f', 'c2', 1, 'token', 2, 'try')
    UNION ALL SELECT 'reject', outcome FROM reconcile.reject_session_command('t-d', 'f', 'c1', 1, 'token', 1)
    UNION ALL SELECT 'settle', outcome FROM reconcile.settle_attempt('t-d', 'f', 'c3', 1, 'token', 3, 'try', 'applied')
    UNION ALL SELECT 'state', outcome FROM reconcile.update_host_state('t-d', 'f', 1, 'token', 'running', 'resident', 5)
    UNION ALL SELECT 'set', outcome FROM reconcile.set_pointer('t-d', 'f', 'workspace_checkpoint', 1, 'token', 2, 'other')
    UNION ALL SELECT 'clear', outcome FROM reconcile.clear_pointer('t-d', 'f', 'workspace_checkpoint', 1, 'token')
    UNION ALL SELECT 'heartbeat', outcome FROM reconcile.heartbeat_host('f', 1, '[]', '[{"tenant_id": "t-d", "session_id": "f", "epoch": 1, "token": "token"}]') WHERE session_id = 'f';
$$;
SELECT reconcile.report_workload('t-d', 'f', 1, 'terminating', 'f', 1, 'ws://pod');
SELECT * FROM may_delete('f', 1);
SELECT versions('f') AS versions \gset
SELECT * FROM said();
SELECT versions('f') = :'versions' AS nothing_written;
SELECT place('f');
SELECT outcome, epoch, host_id FROM reconcile.owner_of('t-d', 'f');
-- where it can still be asked, it lets go: then the next host need not wait for the lease
SELECT outcome FROM reconcile.release_session('t-d', 'f', 1, 'wrong');
SELECT outcome FROM reconcile.release_session('t-d', 'f', 2, 'token');
SELECT l.expires_at > clock_timestamp() AS leased FROM reconcile.lease l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-d' AND s.session_id = 'f';
SELECT outcome FROM reconcile.release_session('t-d', 'f', 1, 'token');
SELECT l.expires_at > clock_timestamp() AS leased FROM reconcile.lease l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-d' AND s.session_id = 'f';
SELECT outcome FROM reconcile.release_session('t-d', 'f', 1, 'token');

-- D10: what is being applied brings no released session back, at any time; D11: nor does a restore at its very deadline
CALL lives('a', false);
SELECT ready('a', 1, 'a'), place('a');
SELECT outcome, epoch FROM reconcile.accept_offer(offer('t-d', 'a'), 1, 'token');
SELECT a.outcome, c.outcome, b.outcome FROM reconcile.admit_session_command('t-d', 'a', 'c', 'restore', 'x', apply_deadline_in => '1 h') a, reconcile.claim_session_command('t-d', 'a', 'c', 1, 'token', 1) c,
       reconcile.begin_attempt('t-d', 'a', 'c', 1, 'token', 2, 'try') b;
SELECT desire('a', NULL);
SELECT outcome FROM reconcile.release_session('t-d', 'a', 1, 'token');
SELECT versions('a') AS versions \gset
SELECT place('a');
CREATE PROCEDURE due(session text, command text) LANGUAGE plpgsql AS $$
BEGIN
    ALTER TABLE reconcile.session_command DISABLE TRIGGER session_command_kept;
    UPDATE reconcile.session_command SET accepted_at = accepted_at - interval '2 h', apply_deadline = clock_timestamp() WHERE tenant_id = 't-d' AND session_id = session AND command_id = command;
    ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_kept;
END $$;
CALL due('a', 'c');
SELECT place('a');
SELECT outcome FROM reconcile.admit_session_command('t-d', 'a', 'r', 'restore', 'x', apply_deadline_in => '1 h');
CALL due('a', 'r');
SELECT place('a');
SELECT desired_generation, workload FROM reconcile.get_session('t-d', 'a');

-- D16: each wish is a generation, and a workload of its own: the one before goes, the next one comes
SELECT make('g'), place('g'), desire('g', 'next'), place('g');
SELECT string_agg(want || ' ' || generation || coalesce(' ' || convert_from(workload, 'UTF8'), ''), ', ' ORDER BY generation), count(DISTINCT name)
  FROM reconcile.fetch_intents('controller', ttl => '15 min') WHERE session_id = 'g';
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
UPDATE reconcile.placement_setting s SET offer_ttl_ms = b.offer_ttl_ms, session_ttl_ms = b.session_ttl_ms FROM before b;
RESET lock_timeout;
DELETE FROM reconcile.workload_controller;
DELETE FROM reconcile.access_grant WHERE role_name = 'dedicated_test_controller';
DROP OWNED BY dedicated_test_controller, dedicated_test_host;
DROP ROLE dedicated_test_controller, dedicated_test_host;
DROP SCHEMA dedicated_test CASCADE;

--
-- Offers, and the hosts that answer them: accepting, refusing, heartbeats, letting go
-- (contract 4, 12.7; scenarios C3, C4, C15, C16, I3, J).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA offer_test;
SET search_path = offer_test;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE offer_test_a;
CREATE ROLE offer_test_b;
GRANT USAGE ON SCHEMA offer_test TO PUBLIC;
SELECT reconcile.register_host('h1', 'offer_test_a'), reconcile.register_host('h2', 'offer_test_a'), reconcile.register_host('h3', 'offer_test_b');
SELECT outcome FROM publish('h1', 4, 2);
SELECT outcome FROM publish('h2', 1, 1);
CREATE FUNCTION make(session text, runtime text DEFAULT 'rt') RETURNS text LANGUAGE sql AS $$
    SELECT outcome FROM reconcile.create_session('t-o', session, 'agent', 'pooled', 'made', runtime);
$$;
-- Where it is placed: the outcome, and the host that is asked.
CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
    SELECT outcome || coalesce(' ' || host_id, '') FROM reconcile.place_session('t-o', session);
$$;
CREATE FUNCTION owner(session text, OUT outcome text, OUT epoch bigint, OUT host_id text, OUT host_generation bigint, OUT residency text, OUT accepting boolean)
LANGUAGE sql AS $$
    SELECT o.outcome, o.epoch, o.host_id, o.host_generation, o.residency, o.accepting FROM reconcile.owner_of('t-o', session) o;
$$;
CREATE FUNCTION accept(session text, generation bigint, token text, OUT outcome text, OUT epoch bigint, OUT remains boolean)
LANGUAGE sql AS $$
    SELECT a.outcome, a.epoch, a.remaining > '0' FROM reconcile.accept_offer(offer('t-o', session), generation, token) a;
$$;

-- an offer is seen by the host that it is made to, as often as it asks
SELECT make('s1'), place('s1'), place('s1');
SET ROLE offer_test_b;
SELECT count(*) FROM reconcile.fetch_offers();
RESET ROLE;
SET ROLE offer_test_a;
SELECT count(*) FROM reconcile.fetch_offers();
SELECT host_id, host_generation, tenant_id, session_id, agent_id, runtime_compatibility_id, placement, mode, desired_generation,
       length(attach_key) AS key, expires_at > made_at AS lives, remaining > '0' AS remains
  FROM reconcile.fetch_offers();
RESET ROLE;
-- who is a member of the host's role finds it, too
CREATE ROLE offer_test_member IN ROLE offer_test_a;
SET ROLE offer_test_member;
SELECT count(*) FROM reconcile.fetch_offers();
RESET ROLE;
DROP ROLE offer_test_member;
-- C15, C16: create or restore; the key is of the session and not of the host
SELECT make('s2'), make('s3');
SELECT o.outcome FROM reconcile.update_host_state('t-o', 's2', 1, 'no', 'idle', 'cold', 7) o;
INSERT INTO reconcile.session_observed (tenant_id, session_id, revision, lease_epoch, journal_seq, last_active_at) VALUES ('t-o', 's2', 1, 0, 7, now());
SELECT place('s2'), place('s3');
SELECT session_id, host_id, mode FROM reconcile.fetch_offers() ORDER BY 1;
CREATE TABLE key AS SELECT session_id, attach_key, offer_id FROM reconcile.fetch_offers();
SELECT count(DISTINCT attach_key) FROM key;
-- 12.7: one that is withdrawn is never accepted, and no epoch is granted
SELECT o.outcome FROM reconcile.update_desired_state('t-o', 's3', 'other', 1, 'pooled', 'rt-none') o;
SELECT place('s3');
SELECT a.* FROM key, reconcile.accept_offer(offer_id, 1, 'token') a WHERE session_id = 's3';
SELECT a.* FROM key, reconcile.accept_offer(offer_id, 4, 'token') a WHERE session_id = 's3';
SELECT r FROM key, reconcile.refuse_offer(offer_id) r WHERE session_id = 's3';
SELECT count(*) FROM reconcile.lease l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-o';
SELECT count(*) FROM reconcile.session_registration WHERE tenant_id = 't-o';
-- a full host is not asked: what was offered counts
SELECT ranking();
SELECT make('s4'), place('s4');

-- what is another's, and what was never made, read the same
GRANT SELECT ON key TO PUBLIC;
SET ROLE offer_test_b;
SELECT o.outcome, o.epoch, o.remaining FROM key, reconcile.accept_offer(offer_id, 4, 'token') o WHERE session_id = 's1';
SELECT outcome FROM reconcile.accept_offer(9223372036854775807, 4, 'token');
SELECT r FROM key, reconcile.refuse_offer(offer_id, 'no_capacity') r WHERE session_id = 's1';
RESET ROLE;
-- 4.3: the generation of the host comes before everything that is granted
SELECT * FROM accept('s1', 3, 'token-1');
SELECT * FROM accept('s1', 5, 'token-1');
-- what is rolled back was nothing: the offer is open, and the number may be granted again
BEGIN;
SELECT * FROM accept('s1', 4, 'token-0');
ROLLBACK;
SELECT * FROM owner('s1');
SELECT * FROM accept('s1', 4, 'token-1');
SELECT * FROM owner('s1');
-- whoever did not get the answer asks again with his token: the same epoch; another token has nothing
SELECT o.outcome, o.epoch, o.remaining > '0' AS remains FROM key, reconcile.accept_offer(offer_id, 4, 'token-1') o WHERE session_id = 's1';
SELECT o.outcome, o.epoch FROM key, reconcile.accept_offer(offer_id, 4, 'token-2') o WHERE session_id = 's1';
SELECT r FROM key, reconcile.refuse_offer(offer_id, 'no_capacity') r WHERE session_id = 's1';
SELECT count(*) FROM reconcile.lease_term l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.tenant_id = 't-o' AND session_id = 's1';
-- it may stay only where it is resident
SELECT place('s1');
SELECT outcome, tenant_id, session_id, epoch, generation, remaining > '0' AS remains FROM reconcile.heartbeat_host('h1', 4, '[]',
    '[{"tenant_id": "t-o", "session_id": "s1", "epoch": 1, "token": "token-1"}]');
SELECT place('s1');
SELECT * FROM owner('s1');
-- whom it is none of
SET ROLE offer_test_b;
SELECT * FROM owner('s1');
RESET ROLE;
SET ROLE offer_test_a;
SELECT * FROM owner('s1');
RESET ROLE;

-- what is left of a host: less what it was offered or has accepted, until its number takes account of that
SELECT ranking();
SELECT o.offer_id AS seen FROM reconcile.session_offer o WHERE tenant_id = 't-o' AND session_id = 's1' \gset
SELECT outcome FROM publish('h1', 4, 2, seen => 0);
SELECT ranking();
SELECT outcome FROM publish('h1', 4, 1, seen => :seen);
SELECT ranking();
SELECT reserved, advertised_capacity, seen_offer = :seen AS seen FROM reconcile.host_targets WHERE host_id = 'h1';
-- 7.4 of hosts: expired at its instant, and nothing is written by who comes late
SELECT lapse_offer(offer('t-o', 's2'));
SELECT * FROM accept('s2', 4, 'token');
SELECT r FROM reconcile.refuse_offer(offer('t-o', 's2'), 'no_capacity') r;
SELECT count(*) FROM reconcile.fetch_offers() WHERE session_id = 's2';
SELECT place('s2');
SELECT o.state, o.host_id, o.counted FROM reconcile.session_offers o WHERE session_id = 's2' ORDER BY offer_id;
-- something else is wanted since
SELECT make('s5'), outcome FROM publish('h2', 1, 5);
SELECT place('s5');
SELECT o.outcome FROM reconcile.update_desired_state('t-o', 's5', 'other', 1, 'pooled', 'rt') o;
SELECT count(*) FROM reconcile.fetch_offers() WHERE session_id = 's5';
SELECT * FROM accept('s5', 1, 'token');
-- who takes back what it offers cannot accept; a generation that has come since is told first
SELECT count(place('s5')) FROM generate_series(1, 2);
SELECT outcome FROM reconcile.drain_host_target('h2', 2, 'agent', 'rt', 'pooled');
SELECT * FROM accept('s5', 1, 'token');
SELECT * FROM accept('s5', 2, 'token');
SELECT outcome FROM publish('h2', 2, 5);
SELECT * FROM accept('s5', 2, 'token-5');

-- C3: each code, and none, and the next one is asked; C4: when all have refused there is no capacity
SELECT reconcile.register_host('r' || i, 'offer_test_a') FROM generate_series(1, 6) i;
SELECT outcome FROM generate_series(1, 6) i, publish('r' || i, 1, 1, runtime => 'rt-6');
SELECT make('s6', 'rt-6');
CREATE TABLE answer (n serial, placed text, answer text);
CREATE PROCEDURE refuse_all(session text, codes text[]) LANGUAGE plpgsql AS $$
DECLARE
    code text;
    placed text;
BEGIN
    FOREACH code IN ARRAY codes LOOP
        placed := place(session);
        INSERT INTO answer (placed, answer) SELECT placed, reconcile.refuse_offer(offer('t-o', session), code);
        COMMIT;
    END LOOP;
END $$;
CALL refuse_all('s6', '{runtime_mismatch,no_capacity,not_admitting,runtime_unavailable,releasing,NULL}');
SELECT placed, answer FROM answer ORDER BY n;
SELECT place('s6');
SELECT o.host_id, o.state, o.code, o.counted FROM reconcile.session_offers o WHERE session_id = 's6' ORDER BY offer_id;
SELECT ranking('rt-6');
SELECT offer_id AS o6 FROM reconcile.session_offer WHERE session_id = 's6' AND host_id = 'r5' \gset
SELECT reconcile.refuse_offer(:o6, 'no_capacity'), reconcile.refuse_offer(:o6), reconcile.refuse_offer(:o6, 'releasing');
SELECT outcome FROM reconcile.accept_offer(:o6, 1, 'token');

-- J5, J6: let go: the epoch stays and fences, again writes nothing, another holder's or a lower epoch does nothing
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-2');
SELECT * FROM reconcile.release_session('t-o', 's1', 2, 'token-1');
SELECT * FROM reconcile.release_session('t-o', 's9', 1, 'token-1');
SET ROLE offer_test_b;
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-1');
RESET ROLE;
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-1');
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-1');
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-2');
SELECT * FROM owner('s1');
SELECT host_id IS NULL AND expires_at = observed_at AS released FROM reconcile.session_registration WHERE session_id = 's1';
SELECT outcome, session_id, epoch FROM reconcile.heartbeat_host('h1', 4, '[]', '[{"tenant_id": "t-o", "session_id": "s1", "epoch": 1, "token": "token-1"}]');
SELECT o.outcome, o.epoch FROM key, reconcile.accept_offer(offer_id, 4, 'token-1') o WHERE session_id = 's1';
-- free at once, under the next epoch; who had it is told so
SELECT place('s1');
SELECT * FROM accept('s1', 2, 'token-3');
SELECT * FROM reconcile.release_session('t-o', 's1', 1, 'token-1');
SELECT outcome, session_id, epoch FROM reconcile.heartbeat_host('h2', 2, '[]', '[{"tenant_id": "t-o", "session_id": "s1", "epoch": 1, "token": "token-1"}]');
-- J3: its time is over: no route, but the epoch; nothing renews it; its holder may still say that it let go
SELECT lapse_lease('t-o', 's1');
SELECT * FROM owner('s1');
SELECT outcome, session_id, epoch FROM reconcile.heartbeat_host('h2', 2, '[]', '[{"tenant_id": "t-o", "session_id": "s1", "epoch": "2", "token": "token-3"}]');
SELECT o.outcome, o.epoch FROM reconcile.session_offer, reconcile.accept_offer(offer_id, 2, 'token-3') o WHERE session_id = 's1' AND token = 'token-3';
SELECT * FROM reconcile.release_session('t-o', 's1', 2, 'token-3');

-- a lease that somebody has: a host that was offered the session all the same is refused, and told for how long
SELECT place('s1');
SELECT * FROM accept('s1', 2, 'token-4');
INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id, host_generation, desired_generation,
                                     mode, round, made_at, expires_at, state, counted)
VALUES ('t-o', 's1', 'agent', 'rt', 'pooled', 'h1', 4, 1, 'create', 1, now(), now() + interval '1 h', 'offered', false);
SELECT * FROM accept('s1', 4, 'token');
SELECT * FROM owner('s1');
SELECT r FROM reconcile.refuse_offer(offer('t-o', 's1'), 'epoch_mismatch') r;

-- heartbeats: all that a host has, and what it is to stop
SELECT make('b' || i) FROM generate_series(1, 5) i;
SELECT outcome FROM publish('h1', 4, 10);
SELECT outcome FROM reconcile.drain_host_target('h2', 2, 'agent', 'rt', 'pooled');
SELECT place('b' || i) FROM generate_series(1, 5) i;
SELECT o.* FROM generate_series(1, 5) i, accept('b' || i, 4, 'token-b' || i) o;
SELECT ranking();
CREATE FUNCTION beats(names int[], epoch int DEFAULT 1, prefix text DEFAULT 'token-b') RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_agg(jsonb_build_object('tenant_id', 't-o', 'session_id', 'b' || n, 'epoch', epoch, 'token', prefix || n)) FROM unnest(names) n;
$$;
CREATE FUNCTION target(capacity int, runtime text DEFAULT 'rt') RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('agent_id', 'agent', 'runtime_compatibility_id', runtime, 'placement', 'pooled', 'endpoint', 'ws://h',
                              'isolation_class', 'cross_tenant_isolated', 'available_capacity', capacity);
$$;
CREATE FUNCTION heartbeat(host text, generation bigint, targets jsonb, sessions jsonb) RETURNS TABLE (outcome text, session text, epoch bigint, generation bigint)
LANGUAGE sql AS $$
    SELECT h.outcome, h.session_id, h.epoch, h.generation FROM reconcile.heartbeat_host(host, heartbeat.generation, targets, sessions) h;
$$;
-- the number takes account of those that are listed: two more were accepted meanwhile
SELECT * FROM heartbeat('h1', 4, jsonb_build_array(target(7)), beats('{1,2,3}'));
SELECT ranking();
SELECT * FROM heartbeat('h1', 4, jsonb_build_array(target(5)), beats('{5,4,3,2,1}'));
SELECT ranking();
SELECT count(*) FROM reconcile.session_offer WHERE counted AND host_id = 'h1' AND session_id LIKE 'b%';
-- each kind of not having it, in the order of the call
SELECT outcome FROM reconcile.release_session('t-o', 'b4', 1, 'token-b4');
SELECT lapse_lease('t-o', 'b5');
SELECT * FROM heartbeat('h1', 4, '[]', beats('{5,4,2}') || beats('{1}', 2) || beats('{3}', 1, 'x') || beats('{77}')
                                       || '[{"tenant_id": "t-o", "session_id": "s5", "epoch": 1, "token": "token-5"}]');
-- J1, J26: an equal epoch is renewed, and only those that were
SELECT session_id, residency, accepting FROM reconcile.session_registration WHERE tenant_id = 't-o' AND session_id LIKE 'b%' ORDER BY 1;
SELECT * FROM heartbeat('h1', 4, NULL, '[{"tenant_id": "t-o", "session_id": "b1", "epoch": 1, "token": "token-b1", "residency": "releasing"},
                                        {"tenant_id": "t-o", "session_id": "b2", "epoch": 1, "token": "token-b2", "residency": "resident", "accepting": false}]');
SELECT session_id, residency, accepting FROM reconcile.session_registration WHERE tenant_id = 't-o' AND session_id IN ('b1', 'b2') ORDER BY 1;
-- a later process of the host has spoken: the earlier one has nothing to say; a session goes with the later one
SELECT * FROM heartbeat('h1', 5, jsonb_build_array(target(5)), beats('{1}'));
SELECT * FROM heartbeat('h1', 4, jsonb_build_array(target(9)), beats('{1,2}'));
SELECT * FROM heartbeat('h1', 4, '[]', beats('{1,2}'));
SELECT session_id, host_generation FROM reconcile.session_registration WHERE tenant_id = 't-o' AND session_id IN ('b1', 'b2') ORDER BY 1;
SELECT * FROM heartbeat('h9', 4, jsonb_build_array(target(9)), beats('{1}'));
SELECT * FROM heartbeat('h1', 5, '[]', '[]');
SELECT refusal.* FROM refusal('SELECT * FROM offer_test.heartbeat(''h1'', 5, ''[]'', offer_test.beats(array[1, 1]))');
-- 4: an operator's end of the lease is the end: the registration alone is nothing
SELECT * FROM owner('b2');
UPDATE reconcile.lease l SET expires_at = l.touched_at FROM reconcile.session s WHERE s.tenant_id = 't-o' AND s.session_id = 'b2' AND l.reconciler_id = 'session:' || s.number;
SELECT * FROM owner('b2');
SELECT * FROM heartbeat('h1', 5, '[]', beats('{2}'));

-- a session's place is free with its end, whoever knew of it: nothing is counted of what is not there
SELECT outcome FROM publish('h1', 5, 10);
SELECT make('c1'), place('c1');
SELECT * FROM accept('c1', 5, 'token-c');
SELECT ranking();
SELECT outcome FROM reconcile.release_session('t-o', 'c1', 1, 'token-c');
SELECT ranking();
SELECT place('c1');
SELECT * FROM accept('c1', 5, 'token-d');
SELECT lapse_lease('t-o', 'c1');
SELECT * FROM heartbeat('h1', 5, jsonb_build_array(target(10)), '[]');
SELECT ranking();

-- 64 that each take one place, on ten hosts with room for five: fifty find one
SELECT count(reconcile.register_host('n' || i, 'offer_test_a')) FROM generate_series(1, 10) i;
SELECT outcome, count(*) FROM generate_series(1, 10) i, publish('n' || i, 1, 5, runtime => 'rt-n') GROUP BY 1;
SELECT make('n' || i, 'rt-n') AS outcome, count(*) FROM generate_series(1, 64) i GROUP BY 1;
SELECT left(place('n' || i), 13) AS outcome, count(*) FROM generate_series(1, 64) i GROUP BY 1 ORDER BY 1;
SELECT max(reserved), min(reserved) FROM reconcile.host_targets WHERE runtime_compatibility_id = 'rt-n';

-- what is refused, of which field
SELECT n, refusal.* FROM unnest(ARRAY[$$NULL, 1$$, $$'h1', 0$$, $$'h1', 1, '{}'$$, $$'h1', 1, '1'$$, $$'h1', 1, '[1]'$$, $$'h1', 1, '[{}]'$$,
    $$'h1', 1, jsonb_build_array(offer_test.target(-1))$$, $$'h1', 1, jsonb_build_array(offer_test.target(1) || '{"extra": 1}')$$,
    $$'h1', 1, jsonb_build_array(offer_test.target(1), offer_test.target(2))$$, $$'h1', 1, jsonb_build_array(offer_test.target(1) || '{"endpoint": "http://h"}')$$,
    $$'h1', 1, jsonb_build_array(offer_test.target(1) || '{"accepting": 1}')$$, $$'h1', 1, jsonb_build_array(offer_test.target(1) || '{"capabilities": ["", "b"]}')$$,
    $$'h1', 1, jsonb_build_array(offer_test.target(1) || '{"available_capacity": 1.5}')$$,
    $$'h1', 1, '[]', '[{"tenant_id": "t", "session_id": "s", "token": "x"}]'$$, $$'h1', 1, '[]', '[{"tenant_id": "t", "session_id": "s", "epoch": 1}]'$$,
    $$'h1', 1, '[]', '[{"tenant_id": "t", "session_id": "s", "epoch": 1, "token": "x", "residency": "cold"}]'$$,
    $$'h1', 1, '[]', '[{"tenant_id": "t", "session_id": "s", "epoch": 1, "token": "x", "host": "x"}]'$$,
    $$'h1', 1, '[]', (SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 10001))$$,
    $$'h1', 1, '[]', '[]', '0'$$, $$'h1', 1, '[]', '[]', '16 min'$$, $$'h1', 1, '[]', '[]', '1 s', -1$$]) WITH ORDINALITY a(args, n),
    refusal('SELECT * FROM reconcile.heartbeat_host(' || args || ')');
SELECT n, refusal.* FROM unnest(ARRAY['accept_offer(NULL, 1, ''t'')', 'accept_offer(0, 1, ''t'')', 'accept_offer(1, 0, ''t'')', 'accept_offer(1, 1, NULL)',
    'accept_offer(1, 1, '''')', 'refuse_offer(1, ''busy'')', 'refuse_offer(NULL)', 'fetch_offers(0)', 'fetch_offers(1001)',
    'release_session(NULL, ''s'', 1, ''t'')', 'release_session(''t'', ''s'', 0, ''t'')', 'owner_of(''t'', NULL)']) WITH ORDINALITY a(call, n),
    refusal('SELECT * FROM reconcile.' || call);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT reconcile.refuse_offer(1);
ROLLBACK;

-- leases of sessions are in nobody's list of leases, and nobody takes one by its name
SELECT count(*) FROM reconcile.leases WHERE reconciler_id LIKE 'session%';
SELECT count(*) FROM reconcile.lease_history WHERE reconciler_id LIKE 'session%';
SELECT count(*) FROM reconcile.metrics() WHERE labels::text LIKE '%session:%';
SELECT refusal.* FROM refusal('SELECT reconcile.acquire_lease(''session:1'')');
-- nor is more kept of their terms than a few
SELECT make('d1');
CREATE PROCEDURE go_round(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..n LOOP
        PERFORM place('d1');
        PERFORM accept('d1', 5, 'token-' || i);
        PERFORM reconcile.release_session('t-o', 'd1', i, 'token-' || i);
        COMMIT;
    END LOOP;
END $$;
CALL go_round(15);
SELECT * FROM owner('d1');
SELECT count(*), max(l.epoch) FROM reconcile.lease_term l JOIN reconcile.session s ON l.reconciler_id = 'session:' || s.number WHERE s.session_id = 'd1' AND s.tenant_id = 't-o';

-- J15: a row can be no other than one of these
SELECT refusal.* FROM (VALUES ('host_id = NULL'), ('residency = ''cold'''), ('lease_epoch = 0'), ('host_generation = 0'), ('endpoint = NULL'), ('token = NULL')) v(change),
    refusal('UPDATE reconcile.session_registration SET ' || change || ' WHERE session_id = ''b1''');
SELECT refusal.code FROM (VALUES ('DELETE FROM reconcile.session_registration'), ('TRUNCATE reconcile.session_registration'),
    ('UPDATE reconcile.session_registration SET lease_epoch = lease_epoch - 1 WHERE session_id = ''d1''')) v(s), refusal(s);

SELECT clean('t-o', '%');
DROP OWNED BY offer_test_a, offer_test_b;
DROP ROLE offer_test_a, offer_test_b;
DROP SCHEMA offer_test CASCADE;

--
-- Sessions: what is wanted of them, what their hosts say, and the names that follow
-- from both (contract 1; scenarios K, E1, B18, M12).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA session_test;
SET search_path = session_test;
\getenv source PG_ABS_SRCDIR
\set placement :source '/sql/include/placement.sql'
\i :placement

-- K3: made once; a repetition that differs returns the first; a tenant is another world
SELECT * FROM reconcile.create_session('t-k', 's', 'agent', 'dedicated', 'create-1', 'rt-1', 'v1', '\x0102');
SELECT * FROM reconcile.create_session('t-k', 's', 'other', 'pooled', 'create-2');
SELECT * FROM reconcile.create_session('t-k2', 's', 'other', 'pooled', 'create-2');
SELECT agent_id, placement, runtime_compatibility_id, workload_version, workload FROM reconcile.get_session('t-k', 's');
-- K14: one that no host has written is there, with what is not known of it
SELECT revision, desired_generation, observed_revision, state, owner, pending_commands FROM reconcile.get_session('t-k', 's');
SELECT count(*) FROM reconcile.get_session('t-k', 'none');

-- The versions of its rows: the same ones were not written.
CREATE FUNCTION versions(text, text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(v, ' ') FROM (SELECT 'session ' || xmin || ctid FROM reconcile.session WHERE tenant_id = $1 AND session_id = $2
        UNION ALL SELECT 'observed ' || xmin || ctid FROM reconcile.session_observed WHERE tenant_id = $1 AND session_id = $2) o (v) $$;
-- K4: the key that it was made with is kept: the same one again is a replay, whatever it asks for
SELECT versions('t-k', 's') AS versions \gset
SELECT * FROM reconcile.create_session('t-k', 's', 'other', 'pooled', 'create-2');
SELECT * FROM reconcile.update_desired_state('t-k', 's', 'create-1', 1, 'pooled');
-- the order of 1.4: the key comes before the revision, the revision before the generation
SELECT * FROM reconcile.update_desired_state('t-k', 's', 'create-1', 99, 'pooled');
SELECT * FROM reconcile.update_desired_state('t-k', 's', 'fresh', 99, 'pooled');
SELECT versions('t-k', 's') = :'versions' AS nothing_written;
SELECT * FROM reconcile.update_desired_state('t-k', 's', 'fresh', 1, 'pooled', 'rt-2');
SELECT * FROM reconcile.update_desired_state('t-k', 'none', 'fresh', 1, 'pooled');
-- all of it is replaced: what was not said is gone (K9, D21)
SELECT placement, runtime_compatibility_id, workload_version, workload, revision, desired_generation FROM reconcile.get_session('t-k', 's');
-- K7: a retry with the old revision and the key that was applied
SELECT versions('t-k', 's') AS versions \gset
SELECT * FROM reconcile.update_desired_state('t-k', 's', 'fresh', 1, 'dedicated');
SELECT versions('t-k', 's') = :'versions' AS nothing_written;
-- a key is compared with the last one alone: A, B, A applies three times
SELECT o.* FROM reconcile.update_desired_state('t-k', 's', 'A', 2, 'pooled') o;
SELECT o.* FROM reconcile.update_desired_state('t-k', 's', 'B', 3, 'pooled') o;
SELECT o.* FROM reconcile.update_desired_state('t-k', 's', 'A', 4, 'pooled') o;
-- the same wish under another key is a new generation: only place_session() compares contents
SELECT o.* FROM reconcile.update_desired_state('t-k', 's', 'C', 5, 'pooled') o;

-- K2: no generation is left; a replay and a stale revision are told before that
UPDATE reconcile.session SET desired_generation = 9223372036854775807 WHERE tenant_id = 't-k2';
SELECT * FROM reconcile.update_desired_state('t-k2', 's', 'create-2', 1, 'dedicated');
SELECT * FROM reconcile.update_desired_state('t-k2', 's', 'next', 9, 'dedicated');
SELECT versions('t-k2', 's') AS versions \gset
SELECT * FROM reconcile.update_desired_state('t-k2', 's', 'next', 1, 'dedicated');
SELECT placement, desired_generation, revision FROM reconcile.get_session('t-k2', 's');
-- nor a revision
SELECT o.outcome FROM reconcile.create_session('t-k3', 's', 'a', 'pooled', 'c') o;
UPDATE reconcile.session SET revision = 9223372036854775807 WHERE tenant_id = 't-k3';
SELECT * FROM reconcile.update_desired_state('t-k3', 's', 'next', 9223372036854775807, 'dedicated');
SELECT placement, desired_generation, revision FROM reconcile.get_session('t-k3', 's');
SELECT versions('t-k2', 's') = :'versions' AS nothing_written;

-- 1.8: released is dedicated, not the first generation, and without a workload
SELECT o.* FROM reconcile.create_session('t-k', 'r', 'agent', 'dedicated', 'c') o;
SELECT released FROM reconcile.get_session('t-k', 'r');
SELECT o.outcome FROM reconcile.update_desired_state('t-k', 'r', 'k2', 1, 'dedicated', NULL, 'v', '\x01') o;
SELECT released FROM reconcile.get_session('t-k', 'r');
SELECT o.outcome FROM reconcile.update_desired_state('t-k', 'r', 'k3', 2, 'dedicated') o;
SELECT released FROM reconcile.get_session('t-k', 'r');

-- K10: an intent is what is wanted, and nothing of who has it
SELECT * FROM reconcile.placement_intent('t-k', 's');
SELECT * FROM reconcile.placement_intent('t-k', 'none');

-- K8, K9, K11, K13: what is refused, and of which field; nothing is left behind
CREATE TABLE calls (n serial, call text);
INSERT INTO calls (call) VALUES
    ($$reconcile.create_session(NULL, 's', 'a', 'pooled', 'k')$$),
    ($$reconcile.create_session('', 's', 'a', 'pooled', 'k')$$),
    ($$reconcile.create_session(repeat('t', 257), 's', 'a', 'pooled', 'k')$$),
    ($$reconcile.create_session('t-bad', E's\n', 'a', 'pooled', 'k')$$),
    ($$reconcile.create_session('t-bad', 's', ' ', 'pooled', 'k')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'spread', 'k')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', NULL, 'k')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', '')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', repeat('r', 257))$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', '')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', NULL, 'v')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', NULL, 'v', '')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', NULL, NULL, '\x01')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', NULL, 'v', decode(repeat('00', 16385), 'hex'))$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', binding => '[]')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', binding => '{"storage_binding_id": "b", "binding_version": "1", "runtime_session_id": "r"}')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', binding => '{"storage_binding_id": "b", "binding_version": "1", "runtime_session_id": "r", "protocol_mode": "legacy"}')$$),
    ($$reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k', binding => '{"storage_binding_id": "b", "binding_version": "1", "runtime_session_id": "", "protocol_mode": "disposition"}')$$),
    ($$reconcile.update_desired_state('t-k', 's', '', 1, 'nowhere')$$),
    ($$reconcile.update_desired_state('t-k', 's', NULL, NULL, 'nowhere')$$),
    ($$reconcile.update_desired_state('t-k', 's', 'k', NULL, 'nowhere')$$),
    ($$reconcile.update_desired_state('t-k', 's', 'k', 1, 'nowhere')$$),
    ($$reconcile.get_session('t-k', NULL)$$),
    ($$reconcile.placement_intent(NULL, 's')$$);
SELECT c.call, r.code, r.field, r.problem FROM calls c, field_refusal('SELECT * FROM ' || c.call) r ORDER BY c.n;
SELECT count(*) FROM reconcile.session WHERE tenant_id = 't-bad';
-- the limits themselves are good: 256 bytes, 16 kB
SELECT o.* FROM reconcile.create_session('t-k', repeat('s', 256), repeat('a', 256), 'pooled', repeat('k', 256), repeat('r', 256), repeat('v', 256),
    decode(repeat('00', 16384), 'hex'), '{"storage_binding_id": "b", "binding_version": "1", "runtime_session_id": "r", "protocol_mode": "disposition"}') o;
-- a workload without a byte is none
SELECT o.outcome FROM reconcile.create_session('t-k', 'empty', 'a', 'pooled', 'k', NULL, NULL, '') o;
SELECT workload IS NULL AS none FROM reconcile.get_session('t-k', 'empty');

--
-- What hosts say (1.3)
--
CREATE ROLE session_test_host;
INSERT INTO reconcile.host VALUES ('h1', 'session_test_host', 'session_test_host', now());
SELECT o.outcome FROM reconcile.create_session('t-h', 's', 'agent', 'pooled', 'c', 'rt') o;
-- nobody has it yet, and it is not there for who has it not
SELECT * FROM reconcile.update_host_state('t-h', 's', 1, 'tok1', 'running', 'resident', 0);
SELECT give('t-h', 's', 'h1', 5, 'tok5');
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'wrong', 'running', 'resident', 0);
SELECT * FROM reconcile.update_host_state('t-h', 's', 6, 'tok5', 'running', 'resident', 0);
SELECT * FROM reconcile.update_host_state('t-h', 'none', 5, 'tok5', 'running', 'resident', 0);
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'running', 'resident', 7, 'ev7', 6, 'ref6', '2026-01-01 00:00+00',
    '[{"gate_id": "b", "opened_seq": 1, "kind": "ask"}, {"gate_id": "a", "opened_seq": 2}]', '1 h');
-- K1: it moves the revision of what is observed, and nothing of what is wanted
SELECT revision, desired_generation, observed_revision, observed_epoch, state, residency, journal_seq, last_event_id, checkpoint_seq, checkpoint_reference,
       open_gates, date_trunc('minute', now() - last_active_at) AS active_ago, owner, host_id
  FROM reconcile.get_session('t-h', 's');
SELECT * FROM reconcile.update_desired_state('t-h', 's', 'w', 1, 'pooled', 'rt');
-- K5: a journal that falls; an equal one is good. K6: what is omitted is cleared
SELECT versions('t-h', 's') AS versions \gset
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'idle', 'resident', 6);
SELECT versions('t-h', 's') = :'versions' AS nothing_written;
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'idle', 'cold', 7);
SELECT state, residency, last_event_id, checkpoint_seq, open_gates FROM reconcile.get_session('t-h', 's');
-- a later holder: the one before is refused by its lease, and once the later one has written, by the epoch
SELECT give('t-h', 's', 'h1', 8, 'tok8');
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'idle', 'cold', 9);
SELECT * FROM reconcile.update_host_state('t-h', 's', 8, 'tok8', 'running', 'resident', 9);
-- two refusals at once: epoch before lease_lost and sequence, lease_lost before sequence
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'idle', 'cold', 1);
SELECT lapse('t-h', 's');
SELECT * FROM reconcile.update_host_state('t-h', 's', 8, 'tok8', 'idle', 'cold', 1);
SELECT state, observed_revision, observed_epoch, owner FROM reconcile.get_session('t-h', 's');
-- K5: two epochs in turn: the mark keeps the higher one, and the lower one is told of it
CREATE TABLE turn (n serial, epoch bigint, holder bigint);
INSERT INTO turn (epoch, holder) VALUES (8, 8), (5, 8), (8, 8), (5, 5), (8, 5), (11, 11), (8, 11), (5, 11), (11, 11);
SELECT o.outcome FROM reconcile.create_session('t-turn', 's', 'agent', 'pooled', 'c') o;
SELECT count(give('t-turn', 's', 'h1', e, 'tok' || e)) FROM unnest('{5,8,11}'::bigint[]) e;
CREATE FUNCTION in_turn(t turn, OUT outcome text, OUT mark bigint, OUT written boolean) LANGUAGE plpgsql AS $$
DECLARE
    before text := versions('t-turn', 's');
BEGIN
    PERFORM give('t-turn', 's', 'h1', t.holder, 'tok' || t.holder);
    SELECT u.outcome, u.epoch INTO outcome, mark FROM reconcile.update_host_state('t-turn', 's', t.epoch, 'tok' || t.epoch, 'running', 'resident', 9) u;
    written := versions('t-turn', 's') <> before;
END $$;
SELECT t.n, t.epoch, t.holder, r.* FROM turn t, in_turn(t) r ORDER BY t.n;
SELECT clean('t-turn');
-- K7: what is wanted goes on, and the fence of the hosts stands
SELECT * FROM reconcile.update_desired_state('t-h', 's', 'x', 2, 'pooled', 'rt');
SELECT * FROM reconcile.update_host_state('t-h', 's', 5, 'tok5', 'idle', 'cold', 10);

-- K14: of one tenant, the last ones first: a page goes on behind the last row, ties and changes of rank repeat none and pass over none; one that no host has written comes last
SELECT count(*) FROM generate_series(1, 7) g, reconcile.create_session(CASE WHEN g = 7 THEN 't-list2' ELSE 't-list' END, 's' || g, 'agent', 'pooled', 'c') o;
SELECT count(give(s.tenant_id, s.session_id, 'h1', 1, 'tok')) FROM reconcile.session s WHERE s.tenant_id LIKE 't-list%' AND s.session_id <> 's6';
SELECT count(*) FROM generate_series(1, 5) g, reconcile.update_host_state('t-list', 's' || g, 1, 'tok', 'idle', 'cold', 0) u;
UPDATE reconcile.session_observed SET last_active_at = '2026-01-01' WHERE tenant_id = 't-list' AND session_id IN ('s2', 's3', 's4');
UPDATE reconcile.session_observed SET last_active_at = '2026-01-02' WHERE tenant_id = 't-list' AND session_id = 's1';
UPDATE reconcile.session_observed SET last_active_at = '2025-12-31' WHERE tenant_id = 't-list' AND session_id = 's5';
CREATE FUNCTION listed() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    active timestamptz := 'infinity';
    id text := '';
    page text[];
BEGIN
    LOOP
        SELECT array_agg(session_id), (array_agg(at))[2], (array_agg(session_id))[2] INTO page, active, id
          FROM (SELECT session_id, coalesce(last_active_at, '-infinity') AS at FROM reconcile.sessions
                 WHERE tenant_id = 't-list' AND (coalesce(last_active_at, '-infinity'), session_id) < (active, id) ORDER BY at DESC, session_id DESC LIMIT 2) s;
        EXIT WHEN page IS NULL;
        RETURN NEXT array_to_string(page, ' ');
        -- one that was told already moves to the head
        PERFORM reconcile.update_host_state('t-list', page[1], 1, 'tok', 'idle', 'cold', 0);
        EXIT WHEN id IS NULL;
    END LOOP;
END $$;
SELECT * FROM listed();
-- what callers ask the views for has an index of their collation
SET enable_seqscan = off;
CREATE FUNCTION index_of(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    line text;
    plan text := '';
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
        plan := plan || line || E'\n';
    END LOOP;
    RETURN QUERY SELECT m[1] || ': ' || m[2] FROM regexp_matches(plan, '(session_\w*named) on \w+ \w\s+Index Cond: ([^\n]*)') m;
END $$;
SELECT index_of($$SELECT * FROM reconcile.sessions WHERE tenant_id = 't-list' AND session_id = 's1'$$);
SELECT index_of($$SELECT * FROM reconcile.sessions WHERE tenant_id = 't-list'$$);
SELECT index_of($$SELECT * FROM reconcile.session_offers WHERE tenant_id = 't-list' AND session_id = 's1'$$);
RESET enable_seqscan;
SELECT clean('t-list%');

TRUNCATE calls;
INSERT INTO calls (call) VALUES
    ($$(0, 'tok', 'x', 'y', 1)$$), ($$(NULL, 'tok', 'x', 'y', 1)$$), ($$(8, NULL, 'x', 'y', 1)$$), ($$(8, 't', '', 'y', 1)$$), ($$(8, 't', 'x', repeat('y', 257), 1)$$),
    ($$(8, 't', 'x', 'y', -1)$$), ($$(8, 't', 'x', 'y', 1, '')$$),
    ($$(8, 't', 'x', 'y', 1, NULL, 1)$$), ($$(8, 't', 'x', 'y', 1, NULL, 1, 'r')$$), ($$(8, 't', 'x', 'y', 1, NULL, NULL, 'r')$$),
    ($$(8, 't', 'x', 'y', 1, NULL, 0, 'r', now())$$), ($$(8, 't', 'x', 'y', 1, NULL, 1, '', now())$$), ($$(8, 't', 'x', 'y', 1, NULL, 1, 'r', 'infinity')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => '{}')$$), ($$(8, 't', 'x', 'y', 1, open_gates => '[1]')$$), ($$(8, 't', 'x', 'y', 1, open_gates => '[{"gate_id": "a"}]')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => '[{"gate_id": "a", "opened_seq": 1.5}]')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => '[{"gate_id": "a", "opened_seq": 1}, {"gate_id": "a", "opened_seq": 2}]')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => '[{"gate_id": "a", "opened_seq": 2}, {"gate_id": "b", "opened_seq": 1}]')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => '[{"gate_id": "b", "opened_seq": 1}, {"gate_id": "a", "opened_seq": 1}]')$$),
    ($$(8, 't', 'x', 'y', 1, open_gates => (SELECT jsonb_agg(jsonb_build_object('gate_id', 'g' || g, 'opened_seq', g)) FROM generate_series(1, 17) g))$$),
    ($$(8, 't', 'x', 'y', 1, active_ago => '-1 s')$$), ($$(8, 't', 'x', 'y', 1, active_ago => '1 month')$$);
SELECT c.call, r.code, r.field, r.problem FROM calls c,
       field_refusal('SELECT * FROM reconcile.update_host_state(''t-h'', ''s'', ' || substr(c.call, 2)) r ORDER BY c.n;

--
-- Marks and rows stay, whoever tries
--
TRUNCATE calls;
INSERT INTO calls (call) VALUES
    ($$UPDATE reconcile.session SET desired_generation = 1 WHERE tenant_id = 't-h'$$), ($$UPDATE reconcile.session SET revision = 1 WHERE tenant_id = 't-h'$$),
    ($$UPDATE reconcile.session SET agent_id = 'other' WHERE tenant_id = 't-h'$$), ($$UPDATE reconcile.session SET launch_version = 'v', launch_workload = '\x01' WHERE tenant_id = 't-h'$$),
    ($$UPDATE reconcile.session SET number = number + 1000000 WHERE tenant_id = 't-h'$$), ($$DELETE FROM reconcile.session WHERE tenant_id = 't-h'$$),
    ($$TRUNCATE reconcile.session$$), ($$UPDATE reconcile.session_observed SET lease_epoch = 7 WHERE tenant_id = 't-h'$$),
    ($$UPDATE reconcile.session_observed SET journal_seq = 0 WHERE tenant_id = 't-h'$$), ($$DELETE FROM reconcile.session_observed WHERE tenant_id = 't-h'$$),
    ($$INSERT INTO reconcile.session (tenant_id, session_id, agent_id, placement, desired_key, desired_generation, revision, created_at) VALUES ('t-bad', 's', 'a', 'pooled', 'k', 0, 1, now())$$);
SET session_replication_role = replica;
SELECT c.call, r.code, r.message FROM calls c, field_refusal(c.call) r ORDER BY c.n;
RESET session_replication_role;

--
-- Names, computed here anew: 1.7, 1.8, 1.9, 7.6
--
CREATE FUNCTION framed8(VARIADIC f bytea[]) RETURNS bytea LANGUAGE sql AS
$$ SELECT sha256(string_agg(int8send(length(x)) || x, '' ORDER BY n)) FROM unnest(f) WITH ORDINALITY u (x, n) $$;
CREATE FUNCTION framed_decimal(VARIADIC f bytea[]) RETURNS text LANGUAGE sql AS
$$ SELECT encode(sha256(string_agg(convert_to(length(x)::text, 'UTF8') || '\x00' || x, '' ORDER BY n)), 'hex') FROM unnest(f) WITH ORDINALITY u (x, n) $$;
CREATE FUNCTION framed4(VARIADIC f bytea[]) RETURNS bytea LANGUAGE sql AS
$$ SELECT sha256(string_agg(int4send(length(x)) || x, '' ORDER BY n)) FROM unnest(f) WITH ORDINALITY u (x, n) $$;

SELECT w, length(w), w = 'lrw-' || encode(substr(framed8(convert_to(t, 'UTF8'), convert_to(s, 'UTF8'), convert_to(a, 'UTF8'), convert_to(coalesce(r, ''), 'UTF8'), int8send(g)), 1, 28), 'hex') AS same
  FROM (VALUES ('tenant', 'session', 'agent', 'runtime', 1), ('tenant', 'session', 'agent', NULL, 1), ('tenant', 'session', 'agent', 'runtime', 9223372036854775807),
               ('tenants', 'ession', 'agent', 'runtime', 1), ('ö/.', '€', 'a', 'r', 256)) v (t, s, a, r, g),
       reconcile.workload_identity(t, s, a, r, g) w;
SELECT k, k = 'placement-' || framed_decimal('tenant', 'session', convert_to(p, 'UTF8'), convert_to(coalesce(r, ''), 'UTF8'), convert_to(coalesce(v, ''), 'UTF8'), coalesce(w, '')) AS same,
       reconcile.revive_key('tenant', 'session', p, r, v, w, 12)
           = 'revive-' || framed_decimal('tenant', 'session', convert_to(p, 'UTF8'), convert_to(coalesce(r, ''), 'UTF8'), convert_to(coalesce(v, ''), 'UTF8'), coalesce(w, ''), '12') AS revive_same
  FROM (VALUES ('pooled', NULL, NULL, NULL::bytea), ('pooled', 'rt', NULL, NULL), ('dedicated', 'rt', 'v1', '2x'), ('dedicated', 'rt', 'v12', 'x'),
               ('dedicated', 'rt', 'v1', '\x0000ff')) f (p, r, v, w),
       reconcile.placement_key('tenant', 'session', p, r, v, w) k;
-- B18: by session, and by what was released
SELECT reconcile.placement_key('t', 'a', 'pooled', NULL, NULL, NULL) <> reconcile.placement_key('t', 'b', 'pooled', NULL, NULL, NULL) AS by_session,
       reconcile.revive_key('t', 'a', 'pooled', NULL, NULL, NULL, 2) <> reconcile.revive_key('t', 'a', 'pooled', NULL, NULL, NULL, 3) AS by_release;

-- M12: pinned, as a SHA-256 elsewhere has them (Python's hashlib), and computed anew by PostgreSQL's; neither is ours
SELECT t, s, n, reconcile.control_shard_of(t, s, n) AS shard, pinned,
       mod(('x' || encode(substr(framed4('looprig/sessionstore/shard/v1', convert_to(t, 'UTF8'), convert_to(s, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint::numeric
           + CASE WHEN get_bit(framed4('looprig/sessionstore/shard/v1', convert_to(t, 'UTF8'), convert_to(s, 'UTF8')), 7) = 1 THEN 18446744073709551616 ELSE 0 END, n) AS anew
  FROM (VALUES ('tenant-a', 'session-1', 16, 13), ('tenant-a', 'session-2', 16, 1), ('tenant-b', 'session-1', 16, 12), ('tenant-a', 'session-1', 1, 0),
               ('tenant-a', 'session-1', 64, 61), ('tenant-a', 'session-1', 4096, 61), ('ab', 'c', 16, 7), ('a', 'bc', 16, 5)) v (t, s, n, pinned);
-- 100,000 sessions are spread within 15 %
SELECT count(*) AS shards, min(n) > 6250 * 0.85 AND max(n) < 6250 * 1.15 AS even
  FROM (SELECT count(*) AS n FROM generate_series(1, 100000) g GROUP BY reconcile.control_shard_of('tenant-' || g % 100, 'session-' || g, 16)) c;
SELECT c.call, r.code, r.field, r.problem FROM (VALUES ($$reconcile.workload_identity('t', 's', 'a', NULL, 0)$$), ($$reconcile.workload_identity('t', 's', NULL, NULL, 1)$$),
    ($$reconcile.placement_key('t', 's', 'x', NULL, NULL, NULL)$$), ($$reconcile.revive_key('t', 's', 'pooled', NULL, NULL, NULL, NULL)$$),
    ($$reconcile.control_shard_of('t', 's', 0)$$), ($$reconcile.control_shard_of('t', 's', 4097)$$)) c (call), field_refusal('SELECT ' || c.call) r;

--
-- Who sees what, and may what
--
CREATE ROLE session_test_factory;
CREATE ROLE session_test_nobody;
SELECT reconcile.grant_access('session_test_factory', 'place');
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO session_test_host, session_test_nobody;
GRANT USAGE ON SCHEMA session_test TO PUBLIC;
SET ROLE session_test_factory;
SELECT count(*) FROM reconcile.sessions WHERE tenant_id = 't-h';
SELECT count(*) FROM reconcile.get_session('t-h', 's');
SELECT outcome FROM reconcile.update_desired_state('t-h', 's', 'x', 1, 'pooled');
-- a factory is no host
SELECT outcome FROM reconcile.update_host_state('t-h', 's', 8, 'tok8', 'idle', 'cold', 10);
-- a host sees what it has, and no more of what it lost
SET ROLE session_test_host;
SELECT count(*) FROM reconcile.sessions;
RESET ROLE;
SELECT give('t-h', 's', 'h1', 8, 'tok8');
SET ROLE session_test_host;
SELECT tenant_id, session_id, host_id FROM reconcile.sessions;
SELECT count(*) FROM reconcile.get_session('t-h', 's');
SELECT count(*) FROM reconcile.get_session('t-k', 's');
SELECT outcome FROM reconcile.update_host_state('t-h', 's', 8, 'tok8', 'idle', 'cold', 10);
SELECT code FROM field_refusal($$SELECT reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k')$$);
SELECT code FROM field_refusal($$SELECT reconcile.update_desired_state('t-h', 's', 'x', 1, 'pooled')$$);
SELECT code FROM field_refusal($$SELECT * FROM reconcile.placement_intent('t-h', 's')$$);
SET ROLE session_test_nobody;
SELECT count(*) FROM reconcile.sessions;
SELECT count(*) FROM reconcile.get_session('t-h', 's');
SELECT outcome FROM reconcile.update_host_state('t-h', 's', 8, 'tok8', 'idle', 'cold', 10);
RESET ROLE;
-- where others' commits would not be seen, and where nothing can be written
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT code FROM field_refusal($$SELECT reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k')$$);
SELECT code FROM field_refusal($$SELECT reconcile.update_desired_state('t-h', 's', 'x', 1, 'pooled')$$);
SELECT code FROM field_refusal($$SELECT reconcile.update_host_state('t-h', 's', 8, 'tok8', 'x', 'y', 1)$$);
COMMIT;
BEGIN READ ONLY;
SELECT code FROM field_refusal($$SELECT reconcile.create_session('t-bad', 's', 'a', 'pooled', 'k')$$);
SELECT count(*) FROM reconcile.get_session('t-h', 's');
COMMIT;

-- a desired change is looked at, if there is the loop for it
SELECT reconcile.create_loop('placement');
SELECT o.outcome FROM reconcile.update_desired_state('t-h', 's', 'marked', 3, 'pooled') o;
SELECT o.outcome FROM reconcile.update_desired_state('t-h', 's', 'marked', 3, 'pooled') o;
SELECT count(*) FROM reconcile.mark m JOIN reconcile.session s ON m.entity_id = s.number::text WHERE m.loop_name = 'placement' AND s.tenant_id = 't-h';
SELECT reconcile.drop_loop('placement');

DELETE FROM reconcile.host WHERE host_id = 'h1';
SELECT reconcile.revoke_access('session_test_factory', 'place');
DROP OWNED BY session_test_host, session_test_nobody, session_test_factory;
DROP ROLE session_test_host, session_test_nobody, session_test_factory;
SELECT clean('t-%');
DROP SCHEMA session_test CASCADE;

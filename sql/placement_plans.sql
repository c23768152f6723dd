--
-- What a page costs among 100,000 rows (scenario N12; issue: rank, due and order pages use their index without a sort): the functions' own statements read no more rows than
-- their page has, and none of them by a scan of the table; first pages, and those in the middle.
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA place_plans;
SET search_path = place_plans;
SELECT reconcile.control_shards() > 0 AS shards;
BEGIN;
INSERT INTO reconcile.host (host_id, role, role_name, registered_at) SELECT 'plan-' || n, current_user::regrole, current_user, now() FROM generate_series(1, 100000) n;
INSERT INTO reconcile.host_target (agent_id, runtime_compatibility_id, placement, host_id, host_generation, revision, observed_at, endpoint, isolation_class, accepting, capacity, reserved, expires_at)
SELECT 'plan', 'rt', 'pooled', 'plan-' || n, 1, 1, clock_timestamp(), 'ws://x', 'cross_tenant_isolated', true, 1 + n % 700, 0, clock_timestamp() + interval '10 min' FROM generate_series(1, 100000) n;
SELECT outcome, count(*) FROM unnest('{s,wanted}'::text[]) s, reconcile.create_session('t-plan', s, 'plan', 'pooled', 'k', 'rt') GROUP BY 1;
INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest, payload_size, payload, requires, accepted_at, apply_deadline, state)
SELECT 't-plan', 's', 'c' || n, reconcile.control_shard_of('t-plan', 's', reconcile.control_shards()), n, 1, 'r' || n, 'input', sha256(''), 0, '', '{}', now() - interval '2 h', now() - interval '1 h' + n * interval '30 ms', 'pending'
  FROM generate_series(1, 100000) n;
ANALYZE reconcile.host, reconcile.host_target, reconcile.session_command, reconcile.session;

-- Scans of a table itself, and what is read of it or its indexes.
CREATE FUNCTION counted(of_table regclass, OUT scans bigint, OUT read bigint) LANGUAGE sql AS $$
    SELECT s.seq_scan, s.seq_tup_read + greatest(s.idx_tup_fetch, (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) FROM pg_index i WHERE i.indrelid = of_table))::bigint
      FROM pg_stat_xact_all_tables s WHERE s.relid = of_table;
$$;
CREATE FUNCTION cost(statement text, of_table text, OUT scans bigint, OUT read bigint, OUT rows bigint) LANGUAGE plpgsql AS $$
DECLARE
    before record;
BEGIN
    SELECT * INTO before FROM counted(('reconcile.' || of_table)::regclass);
    EXECUTE 'SELECT count(*) FROM reconcile.' || statement INTO rows;
    SELECT c.scans - before.scans, c.read - before.read INTO scans, read FROM counted(('reconcile.' || of_table)::regclass) c;
END $$;
-- the position of a row in the middle
CREATE FUNCTION middle() RETURNS text LANGUAGE sql AS $$
    SELECT regexp_replace(h.position, '/.*', '') || '/' || t.capacity || '/' || t.host_id
      FROM reconcile.compatible_hosts('plan', 'rt', 'pooled', 1) h, (SELECT capacity, host_id FROM reconcile.host_target WHERE agent_id = 'plan' ORDER BY capacity DESC, host_id DESC OFFSET 50000 LIMIT 1) t;
$$;
CREATE FUNCTION late() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    place text;
    shard int := reconcile.control_shard_of('t-plan', 's', reconcile.control_shards());
BEGIN
    FOR i IN 1 .. 50 LOOP
        SELECT d.position INTO place FROM (SELECT *, row_number() OVER () AS n FROM reconcile.due_session_commands(shard, CASE WHEN place IS NULL THEN interval '2 h' END, place, 1000)) d ORDER BY n DESC LIMIT 1;
    END LOOP;
    RETURN place;
END $$;
CREATE TABLE page AS SELECT middle() AS rank, late() AS due, reconcile.control_shard_of('t-plan', 's', reconcile.control_shards()) AS shard;
UPDATE reconcile.placement_setting SET page_limit = 16, max_pages = 32;
-- a call of a sweep may read its pages twice, and a row or two more for each that it settles
SELECT what, of_table, scans, CASE WHEN n <= 6 THEN c.read::text WHEN c.read <= 5000 THEN 'its pages' ELSE c.read::text END AS read, CASE WHEN n <= 6 THEN rows END AS rows FROM page, LATERAL (VALUES
    (1, 'rank, first', $$compatible_hosts('plan', 'rt', 'pooled', 20)$$, 'host_target'),
    (2, 'rank, middle', format('compatible_hosts(%L, %L, %L, 20, %L)', 'plan', 'rt', 'pooled', rank), 'host_target'),
    (3, 'due, first', format('due_session_commands(%s, %L, max_items => 20)', shard, '2 h'), 'session_command'),
    (4, 'due, middle', format('due_session_commands(%s, after => %L, max_items => 20)', shard, due), 'session_command'),
    (5, 'order, first', $$session_commands('t-plan', 's', 0, 20)$$, 'session_command'),
    (6, 'order, middle', $$session_commands('t-plan', 's', 50000, 20)$$, 'session_command'),
    (7, 'a placement', $$place_session('t-plan', 'wanted')$$, 'host_target'),
    (8, 'its hosts', $$place_session('t-plan', 'wanted')$$, 'host'),
    (9, 'the sweep of deadlines', $$sweep_deadlines()$$, 'session_command'),
    (10, 'the pending sweep', $$sweep_pending()$$, 'session_command'),
    (11, 'the sweep of hosts', $$sweep_host_targets()$$, 'host_target'),
    (12, 'one command more', $$admit_session_command('t-plan', 's', 'more', 'input', 'x')$$, 'session_command')) v (n, what, statement, of_table), cost(statement, of_table) c ORDER BY n;
ROLLBACK;
DROP SCHEMA place_plans CASCADE;
RESET client_min_messages;

--
-- Hosts: who acts for them, what they offer, and their ranking (contract 3; scenarios I).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA host_test;
SET search_path = host_test;
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
CREATE ROLE host_test_a;
CREATE ROLE host_test_b;
CREATE ROLE host_test_factory;
SELECT reconcile.grant_access('host_test_factory', 'place');
GRANT USAGE ON SCHEMA host_test TO PUBLIC;

-- who acts for which host: a role may for many, a host has one
SELECT reconcile.register_host('h1', 'host_test_a'), reconcile.register_host('h2', 'host_test_a'),
       reconcile.register_host('h3', 'host_test_b'), reconcile.register_host('h1', 'host_test_a');
SELECT reconcile.register_host('h3', 'host_test_a'), reconcile.register_host('h3', 'host_test_b');
SELECT reconcile.register_host('h1', 'host_test_nobody');
SELECT refusal.* FROM (VALUES ($$NULL, 'host_test_a'$$), ($$'h', NULL$$), ($$'', 'host_test_a'$$),
    ($$repeat('x', 257), 'host_test_a'$$)) a(args), refusal('SELECT reconcile.register_host(' || args || ')');
SET ROLE host_test_a;
SELECT reconcile.register_host('h4', 'host_test_a');
SELECT reconcile.unregister_host('h3');

-- one's own alone; what is another's, what is unknown and what nobody acts for are all the same
SELECT * FROM publish('h1', 1, 5);
SELECT * FROM publish('h3', 1, 5);
SELECT * FROM publish('h9', 1, 5);
SELECT outcome FROM reconcile.drain_host_target('h3', 1, 'agent', 'rt', 'pooled');
SELECT host_id, role, bound FROM reconcile.hosts ORDER BY 1;
SELECT host_id, state, available_capacity FROM reconcile.host_targets;
-- the ranking is for who places
SELECT ranking();
RESET ROLE;
SET ROLE host_test_b;
SELECT * FROM publish('h1', 2, 5);
SELECT count(*) FROM reconcile.host_targets;
RESET ROLE;
SET ROLE host_test_factory;
SELECT * FROM publish('h1', 2, 5);
SELECT host_id, role FROM reconcile.hosts ORDER BY 1;
SELECT ranking();
RESET ROLE;
-- a new role of an old name inherits nothing
ALTER ROLE host_test_b RENAME TO host_test_c;
CREATE ROLE host_test_b;
SELECT reconcile.grant_access('host_test_b', 'place');
SELECT reconcile.revoke_access('host_test_b', 'place');
SET ROLE host_test_b;
SELECT * FROM publish('h3', 1, 5);
RESET ROLE;
SELECT host_id, bound FROM reconcile.hosts WHERE host_id = 'h3';
DROP OWNED BY host_test_b;
DROP ROLE host_test_b;
ALTER ROLE host_test_c RENAME TO host_test_b;

-- I2: the first one, and each heartbeat, is one write
SELECT * FROM publish('h2', 7, 3);
SELECT * FROM publish('h2', 7, 4);
-- I3: a lower generation is told the mark and changes nothing, an equal or higher one is admitted
SELECT * FROM publish('h2', 6, 9);
SELECT host_generation, advertised_capacity, revision FROM reconcile.host_targets WHERE host_id = 'h2';
SELECT * FROM publish('h2', 8, 2);
-- I5: one host with two targets, two hosts with one; I9: one that nobody ever offered
SELECT * FROM publish('h2', 8, 1, runtime => 'rt-2');
SELECT ranking(), ranking('rt-2'), ranking('rt-9');

-- I1, I8: most room first, then the id descending by its bytes; full ones last; who does not accept is not there, but due
SELECT reconcile.register_host(h, 'host_test_a') FROM unnest('{Z,a,é,b0,b}'::text[]) h;
SELECT h, outcome FROM (VALUES ('Z', 5), ('a', 5), ('é', 5), ('b0', 0), ('b', 9)) v(h, c), publish(h, 1, c);
SELECT outcome FROM publish('b', 1, 9, accepting => false);
SELECT ranking();
SELECT host_id, state FROM reconcile.host_targets WHERE host_id = 'b';
SELECT count(*) FROM reconcile.host_target WHERE host_id = 'b' AND expires_at IS NOT NULL;

-- I10: what is over is told so, stays where it is, and nothing is lost of it
SELECT lapse_target('Z');
SELECT ranking();
SELECT host_id, state FROM reconcile.host_targets WHERE host_id = 'Z';
-- I26: three that are over fill a page of three; behind it is the one that lives
SELECT lapse_target(h) FROM unnest('{é,a}'::text[]) h;
SELECT outcome FROM publish('h1', 1, 4);
SELECT ranking(max => 3);
-- I12: pages, each behind the last row of the one before; a position is of its target alone
CREATE TABLE page (n serial, host_id text, "position" text);
INSERT INTO page (host_id, "position") SELECT host_id, "position" FROM reconcile.compatible_hosts('agent', 'rt', 'pooled', 3);
INSERT INTO page (host_id, "position") SELECT host_id, "position" FROM reconcile.compatible_hosts('agent', 'rt', 'pooled', 3,
    (SELECT "position" FROM page ORDER BY n DESC LIMIT 1));
INSERT INTO page (host_id, "position") SELECT host_id, "position" FROM reconcile.compatible_hosts('agent', 'rt', 'pooled', 3,
    (SELECT "position" FROM page ORDER BY n DESC LIMIT 1));
SELECT string_agg(host_id, ' ' ORDER BY n) FROM page;
SELECT refusal.* FROM (SELECT "position" FROM page LIMIT 1) p,
    LATERAL (VALUES (p."position", 'rt-2', 'pooled'), (p."position", 'rt', 'dedicated'), ('', 'rt', 'pooled'), ('x/1/h', 'rt', 'pooled'),
            (left(p."position", 17), 'rt', 'pooled'), (left(p."position", 17) || '99999999999/h', 'rt', 'pooled')) v(after, runtime, placement),
    refusal(format('SELECT * FROM reconcile.compatible_hosts(''agent'', %L, %L, 3, %L)', runtime, placement, after));

-- I14: taken back in one write, which keeps the generation; again by the same one writes nothing, by a later one the mark
SELECT * FROM reconcile.drain_host_target('h2', 8, 'agent', 'rt', 'pooled');
SELECT state, host_generation, internal_endpoint, isolation_class, advertised_capacity, expires_at FROM reconcile.host_targets
 WHERE host_id = 'h2' AND runtime_compatibility_id = 'rt';
SELECT * FROM reconcile.drain_host_target('h2', 8, 'agent', 'rt', 'pooled');
SELECT * FROM reconcile.drain_host_target('h2', 9, 'agent', 'rt', 'pooled');
-- I15: an older generation, and what was never offered, which is not made by it
SELECT * FROM reconcile.drain_host_target('h2', 8, 'agent', 'rt', 'pooled');
SELECT * FROM reconcile.drain_host_target('h2', 9, 'agent', 'rt-8', 'pooled');
SELECT count(*) FROM reconcile.host_target WHERE runtime_compatibility_id = 'rt-8';
-- I16: the row is used again
SELECT * FROM publish('h2', 8, 5);
SELECT * FROM publish('h2', 9, 5);
-- the highest generation there is stays (3.2)
SELECT outcome FROM publish('h2', 9223372036854775807, 5);
SELECT * FROM publish('h2', 10, 5);

-- I6, I7: what is refused, of which field, and nothing is written
CREATE TABLE bad (n serial, args text);
INSERT INTO bad (args) VALUES
    ($$NULL, 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 0, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', NULL, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, '', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', repeat('r', 257), 'pooled', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'elsewhere', 'ws://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'http://h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://:80', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://u:p@h', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://h/x?q', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://h/#f', 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'wss://' || repeat('h', 251), 'tenant_exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'exclusive', true, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', NULL, 1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, NULL$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, -1$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1048577$$),
    ($$'h1', 1, 'a', 'r', 'dedicated', 'ws://h', 'tenant_exclusive', true, 2$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '0'$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '15 min 1 ms'$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '1 min', NULL$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '1 min', '{NULL}'$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '1 min', '{""}'$$),
    ($$'h1', 1, 'a', 'r', 'pooled', 'ws://h', 'tenant_exclusive', true, 1, '1 min', '{}', -1$$);
SELECT n, refusal.* FROM bad, refusal('SELECT * FROM reconcile.publish_host_target(' || args || ')') ORDER BY n;
SELECT count(*) FROM reconcile.host_target WHERE agent_id = 'a';
SELECT o.outcome FROM reconcile.publish_host_target('h1', 1, 'a', 'r', 'pooled', 'wss://' || repeat('h', 250), 'tenant_exclusive', true, 1048576,
                                                    '15 min', '{b,a,b}') o;
SELECT capabilities FROM reconcile.host_targets WHERE agent_id = 'a';
SELECT refusal.* FROM (VALUES ($$'a', 'r', 'pooled', 0$$), ($$'a', 'r', 'pooled', 1001$$), ($$'a', 'r', 'x'$$), ($$'a', NULL, 'pooled'$$)) v(args),
    refusal('SELECT * FROM reconcile.compatible_hosts(' || args || ')');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM publish('h1', 1, 5);
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM publish('h1', 1, 5);
ROLLBACK;

-- I20, I30: a row can be no other than one of these
SELECT refusal.* FROM (VALUES ('expires_at = NULL'), ('accepting = true, expires_at = NULL, endpoint = NULL, isolation_class = NULL'),
    ('expires_at = observed_at'), ('capacity = 1048577'), ('reserved = -1'), ('endpoint = NULL'), ('isolation_class = ''x'''),
    ('placement = ''dedicated'', capacity = 2'), ('host_generation = 0'), ('host_generation = host_generation - 1')) v(change),
    refusal('UPDATE reconcile.host_target SET ' || change || ' WHERE agent_id = ''agent'' AND host_id = ''h2'' AND runtime_compatibility_id = ''rt''');
SELECT refusal.code FROM (VALUES ('DELETE FROM reconcile.host_target'), ('TRUNCATE reconcile.host_target')) v(s), refusal(s);

-- what is not registered any more is placed on by nobody, and says nothing
SELECT outcome FROM publish('h1', 1, 7);
SELECT reconcile.unregister_host('h1'), reconcile.unregister_host('h1');
SELECT ranking(max => 2);
SELECT outcome FROM publish('h1', 1, 7);

-- N12: a page of the ranking uses its index, without a sort, at whatever size
INSERT INTO reconcile.host (host_id, role, role_name, registered_at) SELECT 'm' || i, 'host_test_a'::regrole, 'host_test_a', now() FROM generate_series(1, 2000) i;
INSERT INTO reconcile.host_target SELECT 'agent', 'rt-many', 'pooled', 'm' || i, 1, 1, now(), 'ws://m', 'cross_tenant_isolated', true, i % 50, 0, 0, '{}', now() + interval '1 h'
  FROM generate_series(1, 2000) i;
ANALYZE reconcile.host_target, reconcile.host;
BEGIN;
SET LOCAL enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT t.host_id FROM reconcile.host_target t
 WHERE t.agent_id = 'agent' AND t.runtime_compatibility_id = 'rt-many' AND t.placement = 'pooled' AND t.accepting AND t.expires_at IS NOT NULL
   AND ROW(t.capacity - t.reserved, t.host_id) < ROW(49, 'm'::text) AND (SELECT true FROM reconcile.host h WHERE h.host_id = t.host_id)
 ORDER BY (t.capacity - t.reserved) DESC, t.host_id DESC LIMIT 32;
COMMIT;
SELECT ranking('rt-many', 3);

SELECT clean('none', '%');
DROP OWNED BY host_test_a, host_test_b, host_test_factory;
DELETE FROM reconcile.access_grant WHERE role_name LIKE 'host_test_%';
DROP ROLE host_test_a, host_test_b, host_test_factory;
DROP SCHEMA host_test CASCADE;

--
-- Fenced writes: what a stale epoch cannot do (P6; contracts: fenced writer 100 to 104, fencing 112).
--
SET client_min_messages = warning;
CREATE SCHEMA fence_test;
SET search_path = fence_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- Returns when the lease is over; its ttl is some milliseconds.
CREATE PROCEDURE lapse(id text) LANGUAGE plpgsql AS $$
BEGIN
    WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = id) LOOP
    END LOOP;
END $$;

-- Without a lease: a monotone compare-and-swap for each entity.
SELECT reconcile.apply_fenced('plain', 'e', 0, '{"n": 1}') AS first;
SELECT reconcile.apply_fenced('plain', 'e', 0, '{"n": 2}') AS equal;
SELECT reconcile.apply_fenced('plain', 'e', 5, '{"n": 3}') AS higher;
SELECT reconcile.apply_fenced('plain', 'e', 3, '{"n": 4}') AS lower;
SELECT reconcile.apply_fenced('plain', 'e', 0, '{"n": 5}') AS none_after_some;
SELECT reconcile.apply_fenced('plain', 'other', 0, '{"n": 6}') AS another_entity;
SELECT reconcile.apply_fenced('plain', '', 1, '{"n": 7}') AS empty_id;
SELECT reconciler_id, entity_id, last_epoch, revision, state FROM reconcile.resources ORDER BY entity_id COLLATE "C";

-- With a lease the database knows more.
SELECT epoch FROM reconcile.acquire_lease('fleet', 'a');
SELECT reconcile.apply_fenced('fleet', 'device', 1, '{"by": "a"}');
SELECT reconcile.apply_fenced('fleet', 'device', 0, '{"by": "nobody"}') AS no_lease_beside_one;
SELECT * FROM refusal($$SELECT reconcile.apply_fenced('fleet', 'device', 2, '{"by": "a"}')$$);
-- 112: a(1) hands to b(2); b's write is accepted, a's replay is not
SELECT reconcile.release_lease('fleet', 'a', 1);
SELECT reconcile.apply_fenced('fleet', 'device', 1, '{"by": "a"}') AS released;
SELECT epoch FROM reconcile.acquire_lease('fleet', 'b');
SELECT reconcile.apply_fenced('fleet', 'device', 2, '{"by": "b"}') AS b;
SELECT reconcile.apply_fenced('fleet', 'device', 1, '{"by": "a"}') AS a_again;
SELECT reconcile.apply_fenced('fleet', 'untouched', 1, '{"by": "a"}') AS a_elsewhere;
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'fleet';
-- the current epoch is stale too once its term has lapsed
SELECT reconcile.release_lease('fleet', 'b', 2);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'c', '5 ms');
CALL lapse('fleet');
SELECT reconcile.apply_fenced('fleet', 'device', 3, '{"by": "c"}') AS lapsed;

-- 104, 103: nothing is bound; 100: a write goes under the bound epoch
SELECT reconcile.fenced_epoch() IS NULL AS unbound, reconcile.fenced_epoch('fleet') IS NULL AS unbound_by_name;
SELECT * FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'd');
BEGIN;
SELECT reconcile.bind_lease('fleet', 'd', 4);
SELECT reconcile.fenced_epoch(), reconcile.fenced_epoch('fleet'), reconcile.fenced_epoch('other') IS NULL AS other;
SELECT reconcile.fenced_write('device', '{"by": "d"}');
SELECT reconcile.fenced_write('new', '{"by": "d"}');
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'fleet' ORDER BY entity_id;
COMMIT;
-- it ends with the transaction
SELECT reconcile.fenced_epoch() IS NULL AS unbound;
SELECT code FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
-- a transaction that began while its lease was live may write and commit after the deadline
SELECT epoch FROM reconcile.acquire_lease('slow', 'a', '1 s');
BEGIN;
SELECT reconcile.bind_lease('slow', 'a', 1);
CALL lapse('slow');
SELECT reconcile.fenced_write('device', '{"by": "a"}');
SELECT reconcile.apply_fenced('slow', 'device', 1, '{"by": "a"}') AS apply_is_literal;
COMMIT;
-- but not begin after it
SELECT * FROM refusal($$SELECT reconcile.bind_lease('slow', 'a', 1)$$);

-- Only the live term can be bound: holder and epoch, exactly.
SELECT call, r.* FROM unnest(ARRAY['bind_lease(''fleet'', ''d'', 3)', 'bind_lease(''fleet'', ''c'', 3)', 'bind_lease(''fleet'', ''x'', 4)',
                                   'bind_lease(''fleet'', ''d'', 5)', 'bind_lease(''fleet'', ''d'', 0)', 'bind_lease(''none'', ''d'', 1)']) call,
       refusal('SELECT reconcile.' || call) r;

-- 101: a stale write names both epochs. The lease, and then the entity, moves
-- on under a bound transaction as only a superuser can make it.
BEGIN;
SELECT reconcile.bind_lease('fleet', 'd', 4);
SAVEPOINT s;
UPDATE reconcile.lease SET epoch = 5 WHERE reconciler_id = 'fleet';
SELECT code, message FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
ROLLBACK TO s;
UPDATE reconcile.resource SET last_epoch = 9 WHERE reconciler_id = 'fleet' AND entity_id = 'device';
SELECT code, message FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
ROLLBACK;

-- Several leases in one transaction.
SELECT epoch FROM reconcile.acquire_lease('second', 'd');
BEGIN;
SELECT reconcile.bind_lease('fleet', 'd', 4), reconcile.bind_lease('second', 'd', 1), reconcile.bind_lease('second', 'd', 1);
SELECT reconcile.fenced_epoch('fleet') AS fleet, reconcile.fenced_epoch('second') AS second;
SELECT * FROM refusal('SELECT reconcile.fenced_epoch()');
SELECT * FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
COMMIT;

-- Subtransactions: commit keeps a binding, abort restores what was.
BEGIN;
SAVEPOINT a;
SELECT reconcile.bind_lease('fleet', 'd', 4);
SAVEPOINT b;
SELECT reconcile.bind_lease('second', 'd', 1);
RELEASE b;
SELECT code FROM refusal('SELECT reconcile.fenced_epoch()');
ROLLBACK TO a;
SELECT reconcile.fenced_epoch() IS NULL AS unbound;
SELECT code FROM refusal($$SELECT reconcile.fenced_write('device', '{}')$$);
-- a block with an exception handler keeps it, whether the handler is used or not
DO $$
BEGIN
    BEGIN
        PERFORM reconcile.bind_lease('fleet', 'd', 4);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        PERFORM reconcile.bind_lease('second', 'd', 1);
        PERFORM 1 / 0;
    EXCEPTION WHEN division_by_zero THEN
        NULL;
    END;
END $$;
SELECT reconcile.fenced_epoch();
-- a second binding of the same id in a block is the same binding
SELECT count(*) FROM generate_series(1, 3) n, refusal($$SELECT reconcile.bind_lease('fleet', 'd', 4)$$) r WHERE r.code IS NULL;
SELECT reconcile.fenced_epoch();
ROLLBACK TO a;
COMMIT;
-- a term acquired, bound, and undone to the term before
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('undo', 'a');
SAVEPOINT a;
SELECT reconcile.bind_lease('undo', 'a', 1);
ROLLBACK TO a;
SELECT reconcile.release_lease('undo', 'a', 1);
SELECT epoch FROM reconcile.acquire_lease('undo', 'a');
SELECT reconcile.bind_lease('undo', 'a', 2);
SELECT reconcile.fenced_epoch();
COMMIT;

-- Who has used a fence of an id cannot acquire it; a rollback to a savepoint is seen.
BEGIN;
SAVEPOINT s;
SELECT reconcile.apply_fenced('fleet', 'device', 4, '{}');
SELECT * FROM refusal($$SELECT reconcile.acquire_lease('fleet', 'd')$$);
SELECT code FROM refusal($$SELECT reconcile.try_acquire_lease('fleet', 'd')$$);
ROLLBACK TO s;
SELECT epoch FROM reconcile.acquire_lease('fleet', 'd');
SELECT reconcile.bind_lease('fleet', 'd', 4);
SELECT code FROM refusal($$SELECT reconcile.acquire_lease('fleet', 'd')$$);
-- another id is free
SELECT epoch FROM reconcile.acquire_lease('second', 'd');
ROLLBACK;
-- a refused write has used nothing
BEGIN;
SELECT reconcile.apply_fenced('fleet', 'device', 1, '{}');
SELECT epoch FROM reconcile.acquire_lease('fleet', 'd');
COMMIT;

-- Nobody could end a prepared transaction.
BEGIN;
SELECT reconcile.bind_lease('fleet', 'd', 4);
PREPARE TRANSACTION 'fence_test';
BEGIN;
SELECT reconcile.apply_fenced('fleet', 'device', 4, '{}');
PREPARE TRANSACTION 'fence_test';
SELECT reconcile.fenced_epoch() IS NULL AS unbound;

-- At any isolation level.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT reconcile.bind_lease('fleet', 'd', 4);
SELECT reconcile.fenced_write('device', '{"level": "serializable"}');
SELECT reconcile.apply_fenced('fleet', 'device', 4, '{}'), reconcile.apply_fenced('fleet', 'device', 3, '{}');
COMMIT;

-- One transaction uses the fences of 1,000 leases at most.
SELECT code, message FROM refusal($$SELECT reconcile.apply_fenced('bulk_' || n, 'e', 0, '{}') FROM generate_series(1, 1001) n$$);
SELECT count(*) FROM generate_series(1, 2000) n WHERE reconcile.apply_fenced('plain', 'e' || n, 0, '{}');

-- RFC 7396, appendix A.
SELECT state, patch, reconcile.json_merge_patch(state::jsonb, patch::jsonb) AS result
  FROM (VALUES ('{"a":"b"}', '{"a":"c"}'), ('{"a":"b"}', '{"b":"c"}'), ('{"a":"b"}', '{"a":null}'),
               ('{"a":"b","b":"c"}', '{"a":null}'), ('{"a":["b"]}', '{"a":"c"}'), ('{"a":"c"}', '{"a":["b"]}'),
               ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}'), ('{"a":[{"b":"c"}]}', '{"a":[1]}'),
               ('["a","b"]', '["c","d"]'), ('{"a":"b"}', '["c"]'), ('{"a":"foo"}', 'null'), ('{"a":"foo"}', '"bar"'),
               ('{"e":null}', '{"a":1}'), ('[1,2]', '{"a":"b","c":null}'), ('{}', '{"a":{"bb":{"ccc":null}}}'),
               -- and beyond: nothing at all, scalars, a patch below a scalar, nulls in an array
               (NULL, '{"a":{"b":null,"c":[null]}}'), (NULL, '7'), ('7', '{"a":1}'), ('{"a":1,"b":{"c":1}}', '{"a":{"x":1},"b":{"c":{}}}'),
               ('{"a":1}', '{}')) v (state, patch);
SELECT reconcile.apply_fenced('json', 'e', 0, '"scalar"'), reconcile.apply_fenced('json', 'e', 0, '{"a": {"b": null}}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'json';
SELECT reconcile.apply_fenced('json', 'e', 0, 'null');
SELECT state, revision FROM reconcile.resources WHERE reconciler_id = 'json';

-- Bad input (P12): its SQLSTATE, and nothing is changed.
SELECT count(*) AS resources FROM reconcile.resource \gset
CREATE TABLE bad (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO bad (call)
SELECT format(f, id) FROM unnest(ARRAY['apply_fenced(%s, ''e'', 1, ''{}'')', 'bind_lease(%s, ''a'', 1)', 'fenced_epoch(%s)']) f,
       unnest(ARRAY['NULL', '''''', '''Fleet''', '''fleet-1''', '''flé''', 'repeat(''x'', 49)']) id
 WHERE NOT (f LIKE 'fenced_epoch%' AND id = 'NULL');
INSERT INTO bad (call)
SELECT format('bind_lease(''fleet'', %s, 4)', holder)
  FROM unnest(ARRAY['NULL', '''''', 'repeat(''x'', 257)', 'E''a\u0001''', 'E''a\u200b''']) holder;
INSERT INTO bad (call)
SELECT format(f, epoch) FROM unnest(ARRAY['apply_fenced(''fleet'', ''e'', %s, ''{}'')', 'bind_lease(''fleet'', ''d'', %s)']) f,
       unnest(ARRAY['NULL', '-1', '-9223372036854775808']) epoch;
INSERT INTO bad (call)
SELECT format(f, entity) FROM unnest(ARRAY['apply_fenced(''fleet'', %s, 4, ''{}'')', 'fenced_write(%s, ''{}'')']) f,
       unnest(ARRAY['NULL', 'repeat(''x'', 513)', 'repeat(''é'', 257)']) entity;
INSERT INTO bad (call)
SELECT format(f, mutation)
  FROM unnest(ARRAY['apply_fenced(''fleet'', ''e'', 4, %s)', 'fenced_write(''e'', %s)']) f,
       unnest(ARRAY['NULL', 'to_jsonb(repeat(''x'', 1048576))', '(repeat(''['', 65) || repeat('']'', 65))::jsonb',
                    '(repeat(''{"a":'', 65) || 1 || repeat(''}'', 65))::jsonb']) mutation;
INSERT INTO bad (call) VALUES
    ('json_merge_patch(''{}'', NULL)'), ('json_merge_patch(''{}'', (repeat(''{"a":'', 65) || 1 || repeat(''}'', 65))::jsonb)');
SELECT call, r.code, r.message FROM bad, refusal('SELECT reconcile.' || call) r ORDER BY n;
SELECT count(*) = :resources AS unchanged FROM reconcile.resource;
-- just within the limits
SELECT reconcile.apply_fenced('limits', repeat('x', 512), 0, (repeat('{"a":', 64) || 1 || repeat('}', 64))::jsonb),
       reconcile.apply_fenced('limits', 'large', 0, jsonb_build_object('a', repeat('x', 1048000)));

-- Rights: "fence" for an epoch of the caller's choice, "lease" to bind; a bound
-- transaction needs none more, nor does a pure function.
CREATE ROLE fence_test_writer;
GRANT USAGE ON SCHEMA fence_test TO fence_test_writer;
SET ROLE fence_test_writer;
SELECT call, code FROM unnest(ARRAY['apply_fenced(''fleet'', ''e'', 4, ''{}'')', 'bind_lease(''fleet'', ''d'', 4)', 'fenced_write(''e'', ''{}'')',
                                    'json_merge_patch(NULL, ''{}'')']) call, refusal('SELECT reconcile.' || call);
SELECT count(*) FROM reconcile.resources;
RESET ROLE;
SELECT reconcile.grant_access('fence_test_writer', 'lease', 'mine'), reconcile.grant_access('fence_test_writer', 'fence', 'free');
SET ROLE fence_test_writer;
SELECT call, code, detail FROM unnest(ARRAY['apply_fenced(''mine'', ''e'', 4, ''{}'')', 'bind_lease(''fleet'', ''d'', 4)']) call,
       refusal('SELECT reconcile.' || call);
SELECT reconcile.apply_fenced('free', 'e', 0, '{}');
SELECT epoch FROM reconcile.acquire_lease('mine', 'a');
BEGIN;
SELECT reconcile.bind_lease('mine', 'a', 1);
SELECT reconcile.fenced_epoch();
SELECT reconcile.fenced_write('e', '{"by": "a"}');
COMMIT;
SELECT code FROM refusal('SELECT * FROM reconcile.resource');
RESET ROLE;
SELECT reconcile.grant_access('fence_test_writer', 'observe', 'mine');
SET ROLE fence_test_writer;
SELECT reconciler_id, entity_id, last_epoch, revision, state FROM reconcile.resources;
RESET ROLE;

-- A caller's own operators and functions are never looked at.
CREATE FUNCTION never(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'a caller''s operator was used'; END $$;
CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = never);
SET search_path = fence_test, pg_catalog;
SELECT reconcile.apply_fenced('path', 'e', 0, '{"n": 1}'), reconcile.apply_fenced('path', 'e', 0, '{"n": 2}');
SELECT (reconcile.acquire_lease('path', 'a')).epoch;
SELECT (SELECT count(*) FROM reconcile.resources) > 0 AS shown;
RESET search_path;

DO $$
BEGIN
    PERFORM reconcile.revoke_access('fence_test_writer', c, s)
       FROM (VALUES ('lease', 'mine'), ('fence', 'free'), ('observe', 'mine')) v (c, s);
END $$;
DROP SCHEMA fence_test CASCADE;
DROP OWNED BY fence_test_writer;
DROP ROLE fence_test_writer;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

-- Loops and triggers, as a user could rerun it: contracts/loop.md 8.1 to 8.3 as
-- far as they need no run, in one transaction.
BEGIN;
SELECT plan(37);
SET client_min_messages = warning;

CREATE SCHEMA tap;
CREATE FUNCTION tap.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE TABLE tap.device (id text PRIMARY KEY, desired text, reported text);

-- 8, 16, 17: a minimal loop and its defaults
SELECT lives_ok($$SELECT reconcile.create_loop('fleet', 'tap.drive')$$, '8: a minimal loop is made');
SELECT is((SELECT concurrency FROM reconcile.loops), 1, '16: concurrency is 1');
SELECT is((SELECT default_requeue FROM reconcile.loops), interval '30 s', '17: default requeue is 30 s');
SELECT is((SELECT (backoff_base, backoff_max, backoff_jitter) FROM reconcile.loops), (interval '5 ms', interval '1000 s', 0::float8), '17: backoff is 5 ms to 1000 s without jitter');
SELECT is((SELECT max_attempts FROM reconcile.loops), NULL, 'attempts have no limit');
SELECT ok((SELECT enabled AND NOT paused FROM reconcile.loops), 'it is enabled and not paused');
SELECT is((SELECT reconciler FROM reconcile.loops), 'tap.drive(text)', 'its function is stored with its schema and argument');
SELECT throws_ok($$SELECT reconcile.create_loop('fleet')$$, '42710', NULL, 'a second one of the name is refused');

-- 9, 22, 23: refusals
SELECT throws_ok($$SELECT reconcile.create_loop('x', repository => 'f')$$, '22023', 'argument "repository" needs "lease_ttl"', '9: a repository needs a lease');
SELECT throws_ok($$SELECT reconcile.create_loop('x', backoff_base => '2 s', backoff_max => '1 s')$$, '22023',
                 'argument "backoff_base" must not be more than "backoff_max"', '22: base above max names both');
SELECT lives_ok(format('SELECT reconcile.create_loop(%L)', id), '23: ' || id || ' is an id')
  FROM unnest(ARRAY['simple', 'digits_1', '_leading', repeat('x', 48)]) id;
SELECT throws_ok(format('SELECT reconcile.create_loop(%L)', id), '22023', 'argument "loop_name" is not a reconciler id', '23: "' || id || '" is none')
  FROM unnest(ARRAY['', '1x', 'Upper', 'a-b', 'a.b', 'a b', 'a|b', 'a=b', repeat('x', 49)]) id;

-- 49, 52: the sentinel; of several due times the earlier stays, the later is ignored
SELECT reconcile.enqueue('fleet', ''), reconcile.enqueue('fleet', 'd1');
SELECT is((SELECT count(*) FROM reconcile.work WHERE state = 'ready'), 2::bigint, '49: the empty id and a real one are two');
SELECT reconcile.enqueue('fleet', 'd2', '1 h'), reconcile.enqueue('fleet', 'd2', '10 s'), reconcile.enqueue('fleet', 'd2', '2 h');
SELECT is((SELECT count(*) FROM reconcile.work WHERE entity_id = 'd2'), 1::bigint, '52: one entry for an entity');
SELECT ok((SELECT state = 'waiting' AND due_at < now() + '1 min' FROM reconcile.work WHERE entity_id = 'd2'), '52: with the earliest time');
-- 54: forget removes the named entity only; unknown is no error
SELECT ok(reconcile.forget('fleet', 'd2'), '54: forget removes it');
SELECT ok(NOT reconcile.forget('fleet', 'd2'), '54: once');
SELECT is((SELECT count(*) FROM reconcile.work), 2::bigint, '54: and nothing else');

-- a watched table
SELECT lives_ok($$SELECT reconcile.watch('fleet', 'tap.device', 'id', '{desired}')$$, 'a table is watched');
INSERT INTO tap.device SELECT 'w' || g, 'a', 'a' FROM generate_series(1, 3) g;
SELECT is((SELECT count(*) FROM reconcile.work WHERE entity_id LIKE 'w%'), 3::bigint, 'each inserted row is an entity');
SELECT reconcile.forget('fleet', id) FROM tap.device;
UPDATE tap.device SET reported = 'b';
SELECT is((SELECT count(*) FROM reconcile.work WHERE entity_id LIKE 'w%'), 0::bigint, 'what is not watched marks nothing');
UPDATE tap.device SET desired = 'b' WHERE id = 'w2';
SELECT results_eq($$SELECT entity_id FROM reconcile.work WHERE entity_id LIKE 'w%'$$, ARRAY['w2'], 'what is watched does');
SELECT lives_ok($$SELECT reconcile.unwatch('fleet', 'tap.device')$$, 'and no longer');
SELECT throws_ok($$SELECT reconcile.unwatch('fleet', 'tap.device')$$, '42704', NULL, 'a second time it is not there');

-- permanent errors, and no run outside a run
SELECT throws_ok($$SELECT reconcile.permanent_error('scrapped')$$, 'RC004', 'scrapped', '65: a permanent error has its SQLSTATE and message');
SELECT is_empty('SELECT * FROM reconcile.current_run()', 'no run outside a run');

SELECT * FROM finish();
ROLLBACK;

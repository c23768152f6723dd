--
-- Triggers, and what is remembered of an entity.
--
\set VERBOSITY default
CREATE ROLE regress_enqueue_app;
CREATE ROLE regress_enqueue_ops;
SELECT reconcile.create_loop('queue_a');
SELECT reconcile.create_loop('queue_b');

-- A trigger is due at once; duplicates are one entity's work (P2)
SELECT reconcile.enqueue('queue_a', 'e1');
SELECT reconcile.enqueue('queue_a', 'e1');
SELECT reconcile.enqueue('queue_b', 'e1');
SELECT loop_name, entity_id, state, due_at <= clock_timestamp() AS due, failures, last_run_at FROM reconcile.work ORDER BY loop_name;
SELECT ready, waiting, retrying, dead, running, oldest_due_age >= '0' AS aged FROM reconcile.loops ORDER BY loop_name;

-- The empty id is the sentinel for all, and no other entity (8.3: 49); any text is an id
SELECT reconcile.enqueue('queue_a', '');
SELECT reconcile.enqueue('queue_a', ' ');
SELECT reconcile.enqueue('queue_a', E'tab\tquote''slash\\');
SELECT reconcile.enqueue('queue_a', repeat('x', 512));
SELECT left(entity_id, 20) AS entity_id, length(entity_id), state FROM reconcile.work WHERE loop_name = 'queue_a' ORDER BY entity_id COLLATE "C";

-- delay: not before; of several the earliest counts
SELECT reconcile.enqueue('queue_a', 'later', '1 h');
SELECT state, due_at BETWEEN now() + '59 min' AND now() + '61 min' AS in_an_hour FROM reconcile.work WHERE entity_id = 'later';
SELECT reconcile.enqueue('queue_a', 'later', '1 day');
SELECT state, due_at BETWEEN now() + '59 min' AND now() + '61 min' AS in_an_hour FROM reconcile.work WHERE entity_id = 'later';
SELECT reconcile.enqueue('queue_a', 'later');
SELECT state FROM reconcile.work WHERE entity_id = 'later';

-- A rolled back trigger is none; one of its transaction is seen by it
BEGIN;
SELECT reconcile.enqueue('queue_a', 'undone');
SELECT state FROM reconcile.work WHERE entity_id = 'undone';
ROLLBACK;
SELECT count(*) FROM reconcile.work WHERE entity_id = 'undone';
BEGIN;
SAVEPOINT s;
SELECT reconcile.enqueue('queue_a', 'undone');
ROLLBACK TO s;
SELECT reconcile.enqueue('queue_a', 'done');
COMMIT;
SELECT entity_id FROM reconcile.work WHERE entity_id LIKE '%done' ORDER BY 1;

-- At any isolation level, also for a loop that an old snapshot does not see
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot;
SELECT reconcile.create_loop('queue_c');
SELECT reconcile.enqueue('queue_c', 'e1');
COMMIT;
SELECT reconcile.drop_loop('queue_c');
SELECT reconcile.enqueue('queue_c', 'e1');

-- enqueue_many: each distinct entity once
SELECT reconcile.enqueue_many('queue_b', ARRAY['a', 'b', 'a', '', 'c']);
SELECT reconcile.enqueue_many('queue_b', '{}');
SELECT entity_id, state FROM reconcile.work WHERE loop_name = 'queue_b' ORDER BY entity_id COLLATE "C";
SELECT count(*) FROM reconcile.mark WHERE loop_name = 'queue_b';
SELECT reconcile.drop_loop('queue_b'), reconcile.create_loop('queue_b');
SELECT reconcile.enqueue_many('queue_b', ARRAY(SELECT 'e' || g FROM generate_series(1, 1000) g), delay => '1 h', spread => '1 h');
SELECT count(*), min(due_at) BETWEEN now() + '59 min' AND now() + '65 min' AS first_soon,
       max(due_at) BETWEEN now() + '115 min' AND now() + '121 min' AS last_late,
       count(DISTINCT due_at) > 900 AS spread
  FROM reconcile.work WHERE loop_name = 'queue_b';
SELECT reconcile.drop_loop('queue_b'), reconcile.create_loop('queue_b');
SELECT reconcile.enqueue_many('queue_b', ARRAY(SELECT 'e' || g FROM generate_series(1, 100000) g));
SELECT ready, oldest_due_age > '0' AS aged FROM reconcile.loops WHERE loop_name = 'queue_b';
SELECT reconcile.drop_loop('queue_b'), reconcile.create_loop('queue_b');

-- A pause keeps nothing out
SELECT reconcile.pause_loop('queue_b');
SELECT reconcile.enqueue('queue_b', 'e1');
SELECT loop_name, state FROM reconcile.work WHERE loop_name = 'queue_b';

-- What views make of failures; a next look after one is a mark of kind b. An entity that is dead and was triggered
-- again is one state in "work", and counts as both in "loops"
INSERT INTO reconcile.entity VALUES
    ('queue_b', 'backoff', 2, NULL, '22012', 'division by zero', '2026-01-01'),
    ('queue_b', 'dead', 5, 'attempts', 'P0001', 'secret', '2026-01-02'),
    ('queue_b', 'crashed', 5, 'crash', 'XX000', 'gone', '2026-01-03'),
    ('queue_b', 'reborn', 1, 'permanent', 'RC004', 'never', '2026-01-04');
INSERT INTO reconcile.mark_1 VALUES (1, '2200-01-01', '2026-01-01', 'b', 'queue_b', 'backoff');
SELECT reconcile.enqueue_many('queue_b', ARRAY['crashed', 'reborn']);
SELECT entity_id, state, due_at IS NULL AS no_due, failures, last_error, last_sqlstate, last_run_at::date
  FROM reconcile.work WHERE loop_name = 'queue_b' ORDER BY entity_id COLLATE "C";
SELECT * FROM reconcile.dead_letters WHERE loop_name = 'queue_b' ORDER BY died_at;
SELECT ready, waiting, retrying, dead FROM reconcile.loops WHERE loop_name = 'queue_b';

-- Who sees what (P11): nothing; then work without error texts; then all
SET ROLE regress_enqueue_app;
SELECT count(*) FROM reconcile.work;
SELECT count(*) FROM reconcile.loops;
SELECT count(*) FROM reconcile.dead_letters;
SELECT reconcile.enqueue('queue_b', 'e1');
SELECT reconcile.revive('queue_b', 'dead');
SELECT * FROM reconcile.mark;
RESET ROLE;
SELECT reconcile.grant_access('regress_enqueue_app', 'observe', 'queue_b'), reconcile.grant_access('regress_enqueue_app', 'trigger', 'queue_b');
SET ROLE regress_enqueue_app;
SELECT DISTINCT loop_name FROM reconcile.work;
SELECT entity_id, last_error, last_sqlstate FROM reconcile.dead_letters ORDER BY died_at;
SELECT reconcile.enqueue('queue_b', 'e2');
SELECT reconcile.enqueue_many('queue_b', ARRAY['e3']);
SELECT reconcile.enqueue('queue_a', 'e2');
SELECT reconcile.enqueue('queue_none', 'e2');
SELECT reconcile.pause_loop('queue_b');
RESET ROLE;
SELECT reconcile.grant_access('regress_enqueue_ops', 'observe', 'queue_b'), reconcile.grant_access('regress_enqueue_ops', 'operate', 'queue_b');
SET ROLE regress_enqueue_ops;
SELECT entity_id, last_error FROM reconcile.dead_letters ORDER BY died_at;

-- revive: dead entities only
SELECT reconcile.revive('queue_b', 'dead');
SELECT reconcile.revive('queue_b', 'crashed');
SELECT reconcile.revive('queue_b', 'backoff');
SELECT reconcile.revive('queue_b', 'unknown');
SELECT entity_id, state, failures FROM reconcile.work WHERE entity_id IN ('dead', 'crashed', 'backoff') ORDER BY entity_id COLLATE "C";

-- forget: marks and state; what comes after is new
SELECT reconcile.forget('queue_b', 'backoff');
SELECT reconcile.forget('queue_b', 'reborn');
SELECT reconcile.forget('queue_b', 'e3');
SELECT reconcile.forget('queue_b', 'e3');
RESET ROLE;
SELECT entity_id FROM reconcile.work WHERE loop_name = 'queue_b' ORDER BY entity_id COLLATE "C";
SELECT reconcile.enqueue('queue_b', 'e3');
SELECT state, failures FROM reconcile.work WHERE entity_id = 'e3';

-- Outside a run
SET ROLE regress_enqueue_app;
SELECT * FROM reconcile.current_run();
DO $$
BEGIN
    PERFORM reconcile.permanent_error('this device was scrapped');
EXCEPTION WHEN SQLSTATE 'RC004' THEN
    RAISE NOTICE 'permanent: %', SQLERRM;
END $$;
SELECT reconcile.permanent_error('%s and % are only text');
RESET ROLE;

SELECT reconcile.drop_loop(loop_name) FROM reconcile.loops;
SELECT count(*) FROM reconcile.mark;
SELECT reconcile.revoke_access('regress_enqueue_app', 'observe', 'queue_b'), reconcile.revoke_access('regress_enqueue_app', 'trigger', 'queue_b'),
       reconcile.revoke_access('regress_enqueue_ops', 'observe', 'queue_b'), reconcile.revoke_access('regress_enqueue_ops', 'operate', 'queue_b');
DROP OWNED BY regress_enqueue_app, regress_enqueue_ops;
DROP ROLE regress_enqueue_app, regress_enqueue_ops;

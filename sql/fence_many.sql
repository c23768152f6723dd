--
-- Many fenced writes in one call: what apply_fenced does, for each.
--
SET client_min_messages = warning;
CREATE SCHEMA fence_many_test;
SET search_path = fence_many_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- Without a lease each entity has its own order of epochs.
SELECT reconcile.apply_fenced('plain', 'b', 5, '{"n": 0}');
SELECT * FROM reconcile.apply_fenced_many('plain', '{c,b,a}', 3, ARRAY['{"n": 1}', '{"n": 2}', '{"n": 3}']::jsonb[]);
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'plain' ORDER BY entity_id;
-- the same entity twice: in the order of the call
SELECT * FROM reconcile.apply_fenced_many('plain', '{a,c,a,a}', 4,
    ARRAY['{"n": 4, "first": true}', '{}', '{"n": null, "second": true}', '{"n": 6}']::jsonb[]);
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'plain' ORDER BY entity_id;
-- new ones too, and a mutation that is no object
SELECT * FROM reconcile.apply_fenced_many('plain', '{"","",d,d}', 0, ARRAY['1', '{"a": {"b": null}}', '{"a": 1}', '[null]']::jsonb[]);
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'plain' ORDER BY entity_id COLLATE "C";

-- With a lease: below, at and above its epoch.
SELECT epoch FROM reconcile.acquire_lease('fleet', 'h');
SELECT reconcile.release_lease('fleet', 'h', 1);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'h');
SELECT * FROM reconcile.apply_fenced_many('fleet', '{a,b}', 1, ARRAY['1', '2']::jsonb[]);
SELECT * FROM reconcile.apply_fenced_many('fleet', '{a,b}', 2, ARRAY['1', '2']::jsonb[]);
SELECT * FROM refusal($$SELECT reconcile.apply_fenced_many('fleet', '{a,b}', 3, ARRAY['3', '4']::jsonb[])$$);
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'fleet' ORDER BY entity_id;

-- It is a fenced transaction once anything was accepted, and not before.
BEGIN;
SELECT count(*) FROM reconcile.apply_fenced_many('fleet', '{a,b}', 1, ARRAY['1', '2']::jsonb[]);
SELECT count(*) FROM reconcile.apply_fenced_many('fleet', '{}', 2, '{}');
SELECT code FROM refusal($$SELECT reconcile.acquire_lease('fleet', 'h')$$);
SELECT accepted FROM reconcile.apply_fenced_many('fleet', '{a}', 2, ARRAY['1']::jsonb[]);
SELECT code FROM refusal($$SELECT reconcile.acquire_lease('fleet', 'h')$$);
ROLLBACK;

-- The current epoch is stale too once its term is over.
SELECT reconcile.release_lease('fleet', 'h', 2);
SELECT * FROM reconcile.apply_fenced_many('fleet', '{a,new}', 2, ARRAY['1', '2']::jsonb[]);

-- At any isolation level.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FILTER (WHERE accepted) FROM reconcile.apply_fenced_many('plain', '{a,a,x}', 9, ARRAY['1', '2', '3']::jsonb[]);
COMMIT;

-- At most 10,000.
SELECT count(*) FILTER (WHERE accepted), bool_and(entity_id = 'e' || ord) AS in_order FROM reconcile.apply_fenced_many('bulk',
    ARRAY(SELECT 'e' || n FROM generate_series(1, 10000) n), 0, ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 10000) n));
SELECT count(*), bool_and(state = to_jsonb(substr(entity_id, 2)::int)) AS each_its_own FROM reconcile.resources WHERE reconciler_id = 'bulk';

-- Bad input (P12): its SQLSTATE, and nothing is changed.
SELECT count(*) AS resources FROM reconcile.resource \gset
CREATE TABLE bad (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO bad (call) VALUES
    ('NULL, ''{x}'', 0, ''{1}'''), ('''Fleet'', ''{x}'', 0, ''{1}'''),
    ('''bad'', NULL, 0, ''{1}'''), ('''bad'', ''{x}'', NULL, ''{1}'''), ('''bad'', ''{x}'', 0, NULL'),
    ('''bad'', ''{x}'', -1, ''{1}'''),
    ('''bad'', ''{x,NULL}'', 0, ''{1,1}'''), ('''bad'', ''{x,y}'', 0, ''{1,NULL}'''),
    ('''bad'', ''{x,y}'', 0, ''{1}'''), ('''bad'', ''{x}'', 0, ''{1,1}'''), ('''bad'', ''{}'', 0, ''{1}'''),
    ('''bad'', ''{{x},{y}}'', 0, ''{1,1}'''), ('''bad'', ''{x,y}'', 0, ''{{1},{1}}'''),
    ('''bad'', ARRAY[''x'', repeat(''x'', 513)], 0, ''{1,1}'''),
    ('''bad'', ''{x,y}'', 0, ARRAY[''1'', to_jsonb(repeat(''x'', 1048576))]'),
    ('''bad'', ''{x,y}'', 0, ARRAY[''1'', (repeat(''['', 65) || repeat('']'', 65))::jsonb]'),
    ('''bad'', array_fill(''x''::text, ARRAY[10001]), 0, array_fill(''1''::jsonb, ARRAY[10001])');
SELECT call, r.code, r.message, r.hint FROM bad, refusal('SELECT reconcile.apply_fenced_many(' || call || ')') r ORDER BY n;
SELECT count(*) = :resources AS unchanged FROM reconcile.resource;

-- Rights: the capability "fence".
CREATE ROLE fence_many_test_writer;
GRANT USAGE ON SCHEMA fence_many_test TO fence_many_test_writer;
SELECT reconcile.grant_access('fence_many_test_writer', 'fence', 'plain');
SET ROLE fence_many_test_writer;
SELECT accepted FROM reconcile.apply_fenced_many('plain', '{c}', 9, '{1}');
SELECT code, message FROM refusal($$SELECT reconcile.apply_fenced_many('fleet', '{c}', 2, '{1}')$$);
RESET ROLE;
SELECT reconcile.revoke_access('fence_many_test_writer', 'fence', 'plain');

DROP SCHEMA fence_many_test CASCADE;
DROP OWNED BY fence_many_test_writer;
DROP ROLE fence_many_test_writer;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

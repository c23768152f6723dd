--
-- Guarded tables (P6): a write needs the bound epoch of the lease, whatever
-- statement makes it; the guard stamps the row with it.
--
SET client_min_messages = warning;
CREATE SCHEMA guard_test;
SET search_path = guard_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal
-- The term that is next: its epoch.
CREATE FUNCTION next_term(id text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM reconcile.release_lease(l.reconciler_id, l.holder_id, l.epoch) FROM reconcile.leases l WHERE l.reconciler_id = id;
    RETURN (SELECT epoch FROM reconcile.acquire_lease(id, 'a', '1 h'));
END $$;
CREATE FUNCTION bind(id text) RETURNS void LANGUAGE sql AS
    'SELECT reconcile.bind_lease(reconciler_id, holder_id, epoch) FROM reconcile.leases WHERE reconciler_id = id';

CREATE TABLE device (id text PRIMARY KEY, desired text, reported text, last_epoch bigint NOT NULL DEFAULT 0);
INSERT INTO device VALUES ('old', 'x', 'x');
SELECT reconcile.attach_fence('device', 'fleet', 'id');
SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'device'::regclass ORDER BY 1;
SELECT * FROM reconcile.fence_problems();

-- Nothing is bound: RC006, whatever the statement.
SELECT next_term('fleet');
CREATE TABLE statement (n int GENERATED ALWAYS AS IDENTITY, text text);
INSERT INTO statement (text) VALUES
    ($$INSERT INTO device VALUES ('new', 'x', 'x')$$),
    ($$INSERT INTO device SELECT 'new', 'x', 'x', 9$$),
    ($$UPDATE device SET reported = 'y'$$),
    ($$UPDATE device SET reported = reported$$),
    ($$UPDATE device SET last_epoch = 7$$),
    ($$DELETE FROM device$$),
    ($$INSERT INTO device VALUES ('old', 'y', 'y') ON CONFLICT (id) DO UPDATE SET reported = 'y'$$),
    ($$MERGE INTO device USING (VALUES ('old')) v (id) ON device.id = v.id WHEN MATCHED THEN UPDATE SET reported = 'y'$$),
    ($$MERGE INTO device USING (VALUES ('old')) v (id) ON device.id = v.id WHEN MATCHED THEN DELETE$$),
    ($$MERGE INTO device USING (VALUES ('new')) v (id) ON device.id = v.id WHEN NOT MATCHED THEN INSERT (id) VALUES (v.id)$$),
    ($$TRUNCATE device$$),
    ($$WITH gone AS (DELETE FROM device RETURNING id) SELECT * FROM gone$$),
    ($$COPY device (id) FROM PROGRAM 'echo new'$$);
SELECT s.text, r.code, r.message FROM statement s, refusal(s.text) r ORDER BY n;
SELECT hint FROM refusal('DELETE FROM device');
COPY device (id) FROM stdin;
new
\.
SELECT * FROM device;

-- Bound: the row gets the epoch, whatever it was given.
BEGIN;
SELECT bind('fleet');
SELECT s.text, r.code, r.message FROM statement s, refusal(s.text) r WHERE s.text NOT LIKE 'COPY%' ORDER BY n;
TRUNCATE device;
INSERT INTO device VALUES ('a', 'x', 'x', 0), ('b', 'x', 'x', 99), ('c', 'x', 'x', -1);
UPDATE device SET reported = 'y', last_epoch = 42 WHERE id = 'a';
INSERT INTO device VALUES ('b', 'y', 'y') ON CONFLICT (id) DO UPDATE SET reported = 'y', last_epoch = EXCLUDED.last_epoch + 5;
MERGE INTO device USING (VALUES ('c'), ('d')) v (id) ON device.id = v.id
    WHEN MATCHED THEN UPDATE SET reported = 'z' WHEN NOT MATCHED THEN INSERT (id, last_epoch) VALUES (v.id, 8);
COPY device (id, last_epoch) FROM stdin;
e	77
f	0
\.
COMMIT;
SELECT * FROM device ORDER BY id;
-- the next term writes them, and the one before does not
SELECT next_term('fleet');
BEGIN;
SELECT bind('fleet');
UPDATE device SET reported = 'second' WHERE id IN ('a', 'b');
DELETE FROM device WHERE id = 'c';
COMMIT;
SELECT * FROM device ORDER BY id;
SELECT code, message FROM refusal($$SELECT reconcile.bind_lease('fleet', 'a', 1)$$);

-- A row that has seen a higher epoch (of a past that was lost) is not written: RC003.
BEGIN;
SELECT reconcile.detach_fence('device');
UPDATE device SET last_epoch = 9 WHERE id = 'a';
SELECT reconcile.attach_fence('device', 'fleet', 'id');
COMMIT;
BEGIN;
SELECT bind('fleet');
SELECT code, message FROM unnest(ARRAY['UPDATE device SET reported = ''z''', 'DELETE FROM device', 'DELETE FROM device WHERE id = ''a''',
    'INSERT INTO device VALUES (''a'') ON CONFLICT (id) DO UPDATE SET reported = ''z''']) s, refusal(s);
SELECT code FROM refusal($$UPDATE device SET reported = 'z' WHERE id <> 'a'$$);
COMMIT;
-- a row that was deleted is forgotten, and its epoch with it: who was replaced is refused by his lease
BEGIN;
SELECT reconcile.detach_fence('device');
DELETE FROM device WHERE id = 'a';
SELECT reconcile.attach_fence('device', 'fleet', 'id');
SELECT bind('fleet');
INSERT INTO device VALUES ('a');
COMMIT;
SELECT id, last_epoch FROM device WHERE id = 'a';

-- The lease moves on under a bound transaction, as only a superuser can make it:
-- the epoch is read anew for each statement.
BEGIN;
SELECT bind('fleet');
UPDATE device SET reported = '3' WHERE id = 'a';
SAVEPOINT s;
UPDATE reconcile.lease SET epoch = 5 WHERE reconciler_id = 'fleet';
SELECT code, message FROM unnest(ARRAY['UPDATE device SET reported = ''4''', 'DELETE FROM device', 'INSERT INTO device VALUES (''z'')', 'TRUNCATE device']) s, refusal(s);
ROLLBACK TO s;
UPDATE device SET reported = '5' WHERE id = 'a';
UPDATE reconcile.lease SET epoch = 5 WHERE reconciler_id = 'fleet';
SELECT code, message FROM refusal($$UPDATE device SET reported = '6' WHERE id = 'a'$$);
ROLLBACK;

-- A binding ends with its savepoint, and another lease's is none.
SELECT next_term('other');
BEGIN;
SELECT bind('other');
SELECT code, message FROM refusal($$DELETE FROM device$$);
SAVEPOINT s;
SELECT bind('fleet');
UPDATE device SET reported = 'in s' WHERE id = 'a';
ROLLBACK TO s;
SELECT code, message FROM refusal($$DELETE FROM device$$);
SAVEPOINT s;
SELECT bind('fleet');
RELEASE s;
UPDATE device SET reported = 'after s' WHERE id = 'a';
COMMIT;
SELECT reported, last_epoch FROM device WHERE id = 'a';
-- a term that is over by the clock, or by force, may still write until the next is granted
BEGIN;
SELECT bind('fleet');
SELECT reconcile.force_release_lease('fleet', 2, 'test');
UPDATE device SET reported = 'late' WHERE id = 'a';
COMMIT;
SELECT code FROM refusal($$SELECT reconcile.bind_lease('fleet', 'a', 2)$$);
SELECT next_term('fleet');

-- At any isolation level.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT bind('fleet');
UPDATE device SET reported = 'serializable' WHERE id = 'a';
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
UPDATE device SET reported = 'unbound' WHERE id = 'a';
ROLLBACK;

-- In the role "replica", too; and where nobody has a right but on the table.
CREATE ROLE guard_test_writer;
GRANT USAGE ON SCHEMA guard_test TO guard_test_writer;
GRANT ALL ON device TO guard_test_writer;
SET session_replication_role = replica;
SELECT code FROM unnest(ARRAY['UPDATE device SET reported = ''r''', 'DELETE FROM device', 'INSERT INTO device VALUES (''z'')', 'TRUNCATE device']) s, refusal(s);
BEGIN;
SELECT bind('fleet');
UPDATE device SET reported = 'replica' WHERE id = 'a';
COMMIT;
SET session_replication_role = DEFAULT;
SET ROLE guard_test_writer;
SELECT code FROM refusal($$UPDATE device SET reported = 'r'$$);
RESET ROLE;
BEGIN;
SELECT bind('fleet');
SET LOCAL ROLE guard_test_writer;
UPDATE device SET reported = 'by writer' WHERE id = 'a';
COMMIT;
SELECT * FROM device WHERE id = 'a';

-- Foreign keys that cascade reach the guard.
CREATE TABLE site (name text PRIMARY KEY);
CREATE TABLE gateway (id text PRIMARY KEY, site text REFERENCES site ON DELETE CASCADE ON UPDATE CASCADE, epoch bigint NOT NULL DEFAULT 0);
CREATE TABLE port (id text PRIMARY KEY, gateway text REFERENCES gateway ON DELETE SET NULL, "last epoch" bigint NOT NULL DEFAULT 0);
INSERT INTO site VALUES ('s'), ('t');
INSERT INTO gateway VALUES ('g', 's'), ('h', 't');
INSERT INTO port VALUES ('p', 'g'), ('q', 'h');
SELECT reconcile.attach_fence('gateway', 'fleet', 'id', 'epoch'), reconcile.attach_fence('port', 'fleet', 'id', 'last epoch');
SELECT s, code, message FROM unnest(ARRAY['DELETE FROM site', 'UPDATE site SET name = ''u'' WHERE name = ''s''', 'TRUNCATE site CASCADE', 'TRUNCATE gateway, port']) s, refusal(s);
BEGIN;
SELECT bind('fleet');
UPDATE site SET name = 'u' WHERE name = 't';
DELETE FROM site WHERE name = 's';
SELECT * FROM gateway;
SELECT * FROM port ORDER BY id;
TRUNCATE site CASCADE;
SELECT count(*) FROM gateway;
COMMIT;
DROP TABLE port, gateway, site;

-- With columns an UPDATE that changes none of them is free, and is not stamped.
CREATE TABLE part_guarded (id text PRIMARY KEY, desired text, reported text, detail jsonb, last_epoch bigint NOT NULL DEFAULT 0);
INSERT INTO part_guarded VALUES ('a', 'x', 'x', jsonb_build_object('long', (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 400) g)));
SELECT reconcile.attach_fence('part_guarded', 'fleet', 'id', columns => '{reported,detail}');
UPDATE part_guarded SET desired = 'free';
UPDATE part_guarded SET desired = 'free', reported = reported, detail = detail, id = id, last_epoch = last_epoch;
UPDATE part_guarded SET detail = detail || '{}';
MERGE INTO part_guarded p USING (VALUES ('a')) v (id) ON p.id = v.id WHEN MATCHED THEN UPDATE SET desired = 'merged';
INSERT INTO part_guarded (id, desired) VALUES ('a', 'upserted') ON CONFLICT (id) DO UPDATE SET desired = EXCLUDED.desired;
INSERT INTO part_guarded (id, desired) VALUES ('a', 'upserted') ON CONFLICT (id) DO NOTHING;
SELECT id, desired, reported, last_epoch FROM part_guarded;
SELECT s, code, message FROM unnest(ARRAY[
    'UPDATE part_guarded SET reported = ''y''', 'UPDATE part_guarded SET detail = ''{}''', 'UPDATE part_guarded SET reported = NULL',
    'UPDATE part_guarded SET id = ''b''', 'UPDATE part_guarded SET last_epoch = 1', 'UPDATE part_guarded SET last_epoch = 99, desired = ''z''',
    'INSERT INTO part_guarded (id, desired) VALUES (''b'', ''x'')', 'DELETE FROM part_guarded', 'TRUNCATE part_guarded',
    'INSERT INTO part_guarded (id) VALUES (''b'') ON CONFLICT (id) DO UPDATE SET desired = ''x''',
    'INSERT INTO part_guarded (id) VALUES (''a'') ON CONFLICT (id) DO UPDATE SET reported = ''x2''',
    'INSERT INTO part_guarded (id) VALUES (''a'') ON CONFLICT (id) DO UPDATE SET last_epoch = EXCLUDED.last_epoch - 1']) s, refusal(s);
BEGIN;
SELECT bind('fleet');
UPDATE part_guarded SET desired = 'bound, and free all the same';
SELECT id, last_epoch FROM part_guarded;
UPDATE part_guarded SET desired = 'bound', reported = 'y';
INSERT INTO part_guarded VALUES ('b', 'x', 'x');
SELECT id, desired, reported, last_epoch FROM part_guarded ORDER BY id;
COMMIT;

-- Other triggers: those before the guard may do as they like, those after it are caught.
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_ARGV[0] = 'epoch' THEN
        NEW.last_epoch := TG_ARGV[1];
    ELSIF TG_ARGV[0] = 'id' THEN
        NEW.id := TG_ARGV[1];
    ELSIF TG_ARGV[0] = 'reported' THEN
        NEW.reported := TG_ARGV[1];
    ELSE
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;
BEGIN;
CREATE TRIGGER a_first BEFORE INSERT OR UPDATE ON device FOR EACH ROW EXECUTE FUNCTION meddle('epoch', '99');
SELECT bind('fleet');
UPDATE device SET reported = 'meddled' WHERE id = 'a';
INSERT INTO device VALUES ('m');
SELECT * FROM device WHERE id IN ('a', 'm') ORDER BY id;
CREATE TRIGGER zzz_last BEFORE INSERT OR UPDATE ON device FOR EACH ROW EXECUTE FUNCTION meddle('epoch', '98');
SELECT code, message, hint FROM unnest(ARRAY['UPDATE device SET reported = ''n''', 'INSERT INTO device VALUES (''n'')',
    'INSERT INTO device VALUES (''a'') ON CONFLICT (id) DO UPDATE SET reported = ''n''']) s, refusal(s);
ROLLBACK;
-- what is free is judged by what is written in the end
BEGIN;
CREATE TRIGGER a_first BEFORE UPDATE ON part_guarded FOR EACH ROW EXECUTE FUNCTION meddle('reported', 'by trigger');
SELECT code, message FROM refusal($$UPDATE part_guarded SET desired = 'z'$$);
ALTER TRIGGER a_first ON part_guarded RENAME TO zzz_last;
SELECT code, message FROM refusal($$UPDATE part_guarded SET desired = 'z'$$);
SELECT bind('fleet');
SELECT code, message FROM refusal($$UPDATE part_guarded SET desired = 'z'$$);
ROLLBACK;
BEGIN;
CREATE TRIGGER zzz_last BEFORE UPDATE ON part_guarded FOR EACH ROW EXECUTE FUNCTION meddle('id', 'other');
SELECT code, message FROM refusal($$UPDATE part_guarded SET desired = 'z' WHERE id = 'a'$$);
DROP TRIGGER zzz_last ON part_guarded;
CREATE TRIGGER zzz_last BEFORE UPDATE ON part_guarded FOR EACH ROW EXECUTE FUNCTION meddle('nothing');
SELECT bind('fleet');
UPDATE part_guarded SET reported = 'not written';
SELECT reported FROM part_guarded WHERE id = 'a';
DROP TRIGGER zzz_last ON part_guarded;
CREATE TRIGGER a_first BEFORE INSERT ON part_guarded FOR EACH ROW EXECUTE FUNCTION meddle('nothing');
INSERT INTO part_guarded VALUES ('never');
SELECT id FROM part_guarded ORDER BY id;
ROLLBACK;
-- a trigger that writes, to the table itself as well, has the guard judge again
CREATE FUNCTION write_more() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() = 1 THEN
        UPDATE device SET desired = 'also' WHERE id = 'f';
    END IF;
    RETURN NULL;
END $$;
BEGIN;
CREATE TRIGGER more AFTER UPDATE ON device FOR EACH ROW EXECUTE FUNCTION write_more();
SELECT bind('fleet');
UPDATE device SET reported = 'more' WHERE id IN ('a', 'b', 'd');
SELECT * FROM device ORDER BY id;
ROLLBACK;
-- a row whose entity is NULL is guarded like any other
CREATE TABLE no_entity (id text, have text, last_epoch bigint NOT NULL DEFAULT 0);
SELECT reconcile.attach_fence('no_entity', 'fleet', 'id');
SELECT code FROM refusal('INSERT INTO no_entity VALUES (NULL)');
BEGIN;
SELECT bind('fleet');
INSERT INTO no_entity VALUES (NULL, 'x');
UPDATE no_entity SET id = 'now';
SELECT * FROM no_entity;
COMMIT;

-- override_fence: this transaction, by who may operate, recorded with the number of rows.
BEGIN;
SELECT reconcile.override_fence('device', 'a repair');
UPDATE device SET reported = 'repaired', last_epoch = 77 WHERE id IN ('a', 'b');
INSERT INTO device VALUES ('by hand', 'x', 'x', 66);
DELETE FROM device WHERE id = 'f';
SELECT code FROM refusal('UPDATE no_entity SET have = ''y''');
SELECT relation, rows, truncated FROM reconcile.fence_overrides;
COMMIT;
SELECT * FROM device ORDER BY id;
SELECT relation, reconciler_id, overridden_by = current_user AS by_me, reason, at <= clock_timestamp() AS past, rows, truncated FROM reconcile.fence_overrides;
SELECT code FROM refusal('DELETE FROM device');
-- a subtransaction undoes what it has lifted, and what it has written
BEGIN;
SAVEPOINT a;
SELECT reconcile.override_fence('device', 'undone');
UPDATE device SET reported = 'undone';
ROLLBACK TO a;
SELECT code FROM refusal('DELETE FROM device');
SELECT reconcile.override_fence('device', 'in parts');
UPDATE device SET reported = 'kept' WHERE id = 'a';
SAVEPOINT b;
UPDATE device SET reported = 'not kept';
ROLLBACK TO b;
UPDATE device SET reported = 'kept' WHERE id = 'b';
RELEASE b;
DO $$
BEGIN
    FOR n IN 1 .. 3 LOOP
        BEGIN
            UPDATE device SET reported = 'kept ' || n WHERE id = 'd';
            IF n = 2 THEN
                RAISE 'undo';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    END LOOP;
END $$;
SAVEPOINT c;
SELECT reconcile.override_fence('device', 'released');
DELETE FROM device WHERE id = 'e';
RELEASE c;
SAVEPOINT d;
ROLLBACK TO d;
DELETE FROM device WHERE id = 'by hand';
COMMIT;
SELECT reason, rows FROM reconcile.fence_overrides ORDER BY at;
-- what is free is not counted; what a lease binds beside it is overridden too; nothing written, nothing counted
BEGIN;
SELECT reconcile.override_fence('part_guarded', 'columns');
UPDATE part_guarded SET desired = 'free';
UPDATE part_guarded SET reported = 'r' WHERE id = 'a';
UPDATE part_guarded SET last_epoch = 12 WHERE id = 'b';
SELECT bind('fleet');
UPDATE part_guarded SET reported = 's' WHERE id = 'b';
INSERT INTO part_guarded (id) VALUES ('a') ON CONFLICT (id) DO UPDATE SET reported = 't';
SELECT id, reported, last_epoch FROM part_guarded ORDER BY id;
SELECT reconcile.override_fence('no_entity', 'truncated');
TRUNCATE no_entity;
SELECT reconcile.override_fence('no_entity', 'nothing');
COMMIT;
BEGIN;
SELECT reconcile.override_fence('device', 'rolled back');
DELETE FROM device;
ROLLBACK;
SELECT reason, rows, truncated FROM reconcile.fence_overrides ORDER BY at OFFSET 3;
-- without a lease a new row has seen no epoch
CREATE TABLE unleased (id text, last_epoch bigint NOT NULL);
SELECT reconcile.attach_fence('unleased', 'never_leased', 'id');
SELECT code, message FROM refusal('INSERT INTO unleased VALUES (''a'', 1)');
BEGIN;
SELECT reconcile.override_fence('unleased', 'first');
INSERT INTO unleased VALUES ('a', 5);
SELECT * FROM unleased;
-- it is of this lease's guard, not of what guards the table next
SELECT reconcile.detach_fence('unleased');
SELECT reconcile.attach_fence('unleased', 'other', 'id');
SELECT code, message FROM refusal('DELETE FROM unleased');
ROLLBACK;
-- only the last records of an id are kept
INSERT INTO reconcile.fence_override
SELECT gen_random_uuid(), 'x', 'never_leased', 'x', 'x', now() - interval '91 days' - n * interval '1 s', 0, false FROM generate_series(1, 1010) n;
INSERT INTO reconcile.fence_override
SELECT gen_random_uuid(), 'x', 'other', 'x', 'x', now() - interval '89 days' - n * interval '1 s', 0, false FROM generate_series(1, 1010) n;
BEGIN;
SELECT reconcile.override_fence('unleased', 'trims');
COMMIT;
SELECT reconciler_id, count(*) FROM reconcile.fence_overrides GROUP BY 1 ORDER BY 1;

-- What is counted, and the run of a leased loop, is in tap/066.

-- Attached again: nothing to do; with other arguments: 42710; what is not whole is mended.
SELECT oid AS before FROM pg_trigger WHERE tgrelid = 'device'::regclass ORDER BY 1 LIMIT 1 \gset
SELECT reconcile.attach_fence('device', 'fleet', 'id');
SELECT oid = :before AS the_same FROM pg_trigger WHERE tgrelid = 'device'::regclass ORDER BY tgrelid, oid LIMIT 1;
SELECT s, r.* FROM unnest(ARRAY['''other'', ''id''', '''fleet'', ''reported''', '''fleet'', ''id'', columns => ''{reported}''']) s,
       refusal(format('SELECT reconcile.attach_fence(''device'', %s)', s)) r;
ALTER TABLE device DISABLE TRIGGER zz_reconcile_fence_row;
DROP TRIGGER zz_reconcile_fence_truncate ON device;
SELECT * FROM reconcile.fence_problems();
SELECT status, detail, hint FROM reconcile.health WHERE check_name = 'guards';
UPDATE device SET reported = 'the owner''s DDL is not fenced, but the check still stands' WHERE id = 'a';
SELECT reconcile.attach_fence('device', 'fleet', 'id');
SELECT * FROM reconcile.fence_problems();
SELECT status, detail, hint FROM reconcile.health WHERE check_name = 'guards';
-- a column gets another name, another type, or goes
ALTER TABLE part_guarded RENAME reported TO have;
ALTER TABLE part_guarded RENAME COLUMN last_epoch TO seen;
ALTER TABLE part_guarded RENAME id TO name;
SELECT kind, entity_column, epoch_column, columns, fires FROM reconcile.fence_triggers() WHERE relation = 'part_guarded'::regclass ORDER BY 1;
SELECT code FROM refusal('UPDATE part_guarded SET have = ''renamed''');
UPDATE part_guarded SET desired = 'renamed';
ALTER TABLE part_guarded ALTER seen TYPE int;
SELECT code, message FROM refusal('UPDATE part_guarded SET have = ''x''');
SELECT * FROM reconcile.fence_problems();
ALTER TABLE part_guarded ALTER seen TYPE bigint, ALTER seen DROP NOT NULL;
SELECT * FROM reconcile.fence_problems();
ALTER TABLE part_guarded DROP seen, DROP detail;
SELECT code, message, hint FROM refusal('UPDATE part_guarded SET have = ''x''');
SELECT * FROM reconcile.fence_problems();
SELECT reconcile.detach_fence('part_guarded');
UPDATE part_guarded SET have = 'free';
-- DISABLE EVENT TRIGGER is seen
ALTER EVENT TRIGGER reconcile_fence DISABLE;
SELECT * FROM reconcile.fence_problems();
ALTER EVENT TRIGGER reconcile_fence ENABLE ALWAYS;

-- Which tables, and bad input (P12).
CREATE VIEW a_view AS SELECT * FROM device;
CREATE MATERIALIZED VIEW a_matview AS SELECT * FROM device;
CREATE SEQUENCE a_sequence;
CREATE FOREIGN DATA WRAPPER guard_test_fdw;
CREATE SERVER guard_test_server FOREIGN DATA WRAPPER guard_test_fdw;
CREATE FOREIGN TABLE a_foreign (id text, last_epoch bigint NOT NULL) SERVER guard_test_server;
CREATE TABLE parent (id text, last_epoch bigint NOT NULL);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE plain (id text, n int, nullable bigint, small int NOT NULL, stored bigint GENERATED ALWAYS AS (1) STORED NOT NULL,
                    counted bigint GENERATED ALWAYS AS IDENTITY, last_epoch bigint NOT NULL DEFAULT 0);
CREATE DOMAIN epoch AS bigint;
CREATE TABLE domained (id text, last_epoch epoch NOT NULL);
CREATE TABLE by_epoch (id text, last_epoch bigint NOT NULL) PARTITION BY RANGE (last_epoch);
CREATE TABLE by_expression (id text, last_epoch bigint NOT NULL) PARTITION BY RANGE ((last_epoch % 10));
CREATE TABLE with_foreign (id text, last_epoch bigint NOT NULL) PARTITION BY LIST (id);
CREATE FOREIGN TABLE foreign_part PARTITION OF with_foreign DEFAULT SERVER guard_test_server;
CREATE TABLE bad (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO bad (call)
SELECT format('attach_fence(%L, ''fleet'', ''id'')', t)
  FROM unnest(ARRAY['a_view', 'a_matview', 'a_sequence', 'a_foreign', 'parent', 'child', 'domained', 'by_epoch', 'by_expression', 'with_foreign',
                    'pg_class', 'reconcile.loop', 'nothing']) t;
INSERT INTO bad (call) VALUES
    ('attach_fence(NULL, ''fleet'', ''id'')'), ('attach_fence(''plain'', NULL, ''id'')'), ('attach_fence(''plain'', ''Fleet'', ''id'')'),
    ('attach_fence(''plain'', '''', ''id'')'), ('attach_fence(''plain'', ''fleet'', NULL)'), ('attach_fence(''plain'', ''fleet'', ''id'', NULL)'),
    ('attach_fence(''plain'', ''fleet'', ''none'')'), ('attach_fence(''plain'', ''fleet'', ''ctid'')'), ('attach_fence(''plain'', ''fleet'', ''stored'')'),
    ('attach_fence(''plain'', ''fleet'', ''id'', ''none'')'), ('attach_fence(''plain'', ''fleet'', ''id'', ''xmin'')'), ('attach_fence(''plain'', ''fleet'', ''id'', ''nullable'')'),
    ('attach_fence(''plain'', ''fleet'', ''id'', ''small'')'), ('attach_fence(''plain'', ''fleet'', ''id'', ''stored'')'), ('attach_fence(''plain'', ''fleet'', ''id'', ''counted'')'),
    ('attach_fence(''plain'', ''fleet'', ''last_epoch'')'), ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{}'')'), ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{n,NULL}'')'),
    ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{{n},{id}}'')'), ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{none}'')'),
    ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{stored}'')'), ('attach_fence(''plain'', ''fleet'', ''id'', columns => ''{n,last_epoch}'')'),
    ('detach_fence(NULL)'), ('detach_fence(''plain'')'), ('detach_fence(''a_view'')'), ('detach_fence(0)'),
    ('override_fence(NULL, ''x'')'), ('override_fence(''device'', NULL)'), ('override_fence(''device'', '''')'), ('override_fence(''device'', repeat(''x'', 1001))'),
    ('override_fence(''plain'', ''x'')'), ('override_fence(0, ''x'')'), ('fence_trigger()');
SELECT call, r.code, r.message FROM bad, refusal('SELECT reconcile.' || call) r ORDER BY n;
SELECT detail, hint FROM refusal($$SELECT reconcile.attach_fence('plain', 'fleet', 'id', 'nullable')$$);
SELECT hint FROM refusal($$SELECT reconcile.attach_fence('a_view', 'fleet', 'id')$$);
BEGIN;
CREATE TEMP TABLE a_temp (id text, last_epoch bigint NOT NULL);
SELECT code, message, hint FROM refusal($$SELECT reconcile.attach_fence('a_temp', 'fleet', 'id')$$);
ROLLBACK;
SET ROLE guard_test_writer;
SELECT code, message FROM refusal($$CREATE TRIGGER own BEFORE UPDATE ON device FOR EACH ROW EXECUTE FUNCTION reconcile.fence_trigger()$$);
RESET ROLE;
BEGIN;
CREATE TRIGGER own BEFORE UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION reconcile.fence_trigger();
CREATE TRIGGER gone AFTER DELETE ON plain FOR EACH ROW EXECUTE FUNCTION reconcile.fence_trigger('fleet', 'id', 'last_epoch', 'root');
INSERT INTO plain (small) VALUES (1);
SELECT code, message FROM unnest(ARRAY['UPDATE plain SET n = 1', 'DELETE FROM plain']) s, refusal(s);
ROLLBACK;
BEGIN READ ONLY;
SELECT code FROM unnest(ARRAY['attach_fence(''plain'', ''fleet'', ''id'')', 'detach_fence(''device'')', 'override_fence(''device'', ''x'')']) call, refusal('SELECT reconcile.' || call);
ROLLBACK;
SELECT DISTINCT relation::text FROM reconcile.fence_triggers() ORDER BY 1;
-- an identity may be the entity
CREATE TABLE counted (id bigint GENERATED ALWAYS AS IDENTITY, last_epoch bigint NOT NULL DEFAULT 0);
SELECT reconcile.attach_fence('counted', 'fleet', 'id', columns => '{id}');
BEGIN;
SELECT bind('fleet');
INSERT INTO counted DEFAULT VALUES RETURNING *;
COMMIT;
-- inheriting later is worth a warning; each table's rows are guarded where they are
RESET client_min_messages;
CREATE TABLE counted_child () INHERITS (counted);
SET client_min_messages = warning;
SELECT * FROM reconcile.fence_problems();
DROP TABLE counted_child;

-- Rights: "define" on the id, and the table; "operate" to override.
SELECT reconcile.grant_access('guard_test_writer', 'define', 'fleet');
SET ROLE guard_test_writer;
SELECT call, code, message FROM unnest(ARRAY['attach_fence(''plain'', ''fleet'', ''id'')', 'attach_fence(''plain'', ''other'', ''id'')', 'detach_fence(''device'')',
    'detach_fence(''plain'')', 'override_fence(''device'', ''x'')', 'attach_fence(''device'', ''fleet'', ''id'')']) call, refusal('SELECT reconcile.' || call);
RESET ROLE;
ALTER TABLE plain OWNER TO guard_test_writer;
SELECT reconcile.revoke_access('guard_test_writer', 'define', 'fleet'), reconcile.grant_access('guard_test_writer', 'define', 'mine'), reconcile.grant_access('guard_test_writer', 'operate', 'mine');
SET ROLE guard_test_writer;
SELECT code FROM refusal($$SELECT reconcile.attach_fence('guard_test.plain', 'fleet', 'id')$$);
SELECT reconcile.attach_fence('guard_test.plain', 'mine', 'id');
BEGIN;
SELECT reconcile.override_fence('guard_test.plain', 'mine');
INSERT INTO plain (small) VALUES (1);
COMMIT;
SELECT count(*) FROM reconcile.fence_overrides;
SELECT code FROM refusal('SELECT * FROM reconcile.fence_override');
SELECT detail FROM reconcile.health WHERE check_name = 'guards';
RESET ROLE;
SELECT reconcile.revoke_access('guard_test_writer', 'define', 'mine'), reconcile.revoke_access('guard_test_writer', 'operate', 'mine'), reconcile.grant_access('guard_test_writer', 'observe', 'mine');
SET ROLE guard_test_writer;
SELECT code, message FROM refusal($$SELECT reconcile.detach_fence('guard_test.plain')$$);
SELECT relation, overridden_by, reason, rows FROM reconcile.fence_overrides;
-- whoever owns the table can drop a trigger: DDL is not fenced, but seen by those who may see the id
ALTER TABLE plain DISABLE TRIGGER ALL;
SELECT status, detail FROM reconcile.health WHERE check_name = 'guards';
RESET ROLE;
SELECT reconcile.revoke_access('guard_test_writer', 'observe', 'mine');

-- DROP EXTENSION needs no CASCADE (P13), also where an override is open.
BEGIN;
SELECT reconcile.override_fence('device', 'dropped');
UPDATE device SET reported = 'x';
DROP EXTENSION reconcile;
SELECT count(*) FROM pg_trigger WHERE tgname ~ 'reconcile';
CREATE EXTENSION reconcile;
SELECT count(*) FROM reconcile.fence_override;
COMMIT;
SELECT reconcile.attach_fence('device', 'fleet', 'id');
SELECT code FROM refusal('DELETE FROM device');
SELECT next_term('fleet');
BEGIN;
SELECT bind('fleet');
SELECT code, message FROM refusal('DELETE FROM device');
COMMIT;

DROP SCHEMA guard_test CASCADE;
DROP FOREIGN DATA WRAPPER guard_test_fdw CASCADE;
DROP OWNED BY guard_test_writer;
DROP ROLE guard_test_writer;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.fence_override;

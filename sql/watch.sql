--
-- Watched tables: what a statement changes is marked, once, with the change (P1).
--
\set VERBOSITY default
CREATE ROLE regress_watch_owner LOGIN;
CREATE ROLE regress_watch_writer;
CREATE SCHEMA watch_app AUTHORIZATION regress_watch_owner;
GRANT USAGE ON SCHEMA watch_app TO PUBLIC;
SELECT reconcile.grant_access('regress_watch_owner', 'define', 'fleet');
SET ROLE regress_watch_owner;
CREATE TABLE watch_app.device (id text, want text, have text, big text);
GRANT ALL ON watch_app.device TO regress_watch_writer;
SELECT reconcile.create_loop('fleet');
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
\d watch_app.device

-- Lists what is marked since the last call, and clears it.
RESET ROLE;
CREATE FUNCTION watch_app.marked() RETURNS TABLE (loop_name text, entity_id text, marks bigint)
    LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT m.loop_name COLLATE "default", m.entity_id COLLATE "C", count(*) FROM reconcile.mark m GROUP BY 1, 2 ORDER BY 1, 2;
    PERFORM reconcile.forget(w.loop_name, w.entity_id) FROM reconcile.work w;
END $$;

-- INSERT, UPDATE, DELETE, by who has no right on the loop; one mark for an entity and a statement
SET ROLE regress_watch_writer;
INSERT INTO watch_app.device SELECT 'd' || g % 3, 'a', 'a', repeat('x', 10) FROM generate_series(1, 6) g;
RESET ROLE;
SELECT * FROM watch_app.marked();
SET ROLE regress_watch_writer;
UPDATE watch_app.device SET want = 'b' WHERE id = 'd1';
DELETE FROM watch_app.device WHERE id = 'd2';
RESET ROLE;
SELECT * FROM watch_app.marked();

-- The old and the new value; NULL is none
UPDATE watch_app.device SET id = 'd9' WHERE id = 'd0';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET id = NULL WHERE id = 'd9';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET want = 'c' WHERE id IS NULL;
SELECT * FROM watch_app.marked();
-- nothing changed, nothing marked; a rolled back change neither
UPDATE watch_app.device SET want = 'c' WHERE id = 'none';
BEGIN;
DELETE FROM watch_app.device;
ROLLBACK;
SELECT * FROM watch_app.marked();

-- COPY, upsert, MERGE, CTE, foreign key cascade
TRUNCATE watch_app.device;
ALTER TABLE watch_app.device ADD PRIMARY KEY (id);
COPY watch_app.device (id, want) FROM stdin;
c1	a
c2	a
\.
INSERT INTO watch_app.device (id) VALUES ('c2'), ('c3') ON CONFLICT (id) DO UPDATE SET want = 'up';
SELECT * FROM watch_app.marked();
MERGE INTO watch_app.device d USING (VALUES ('c1'), ('c4')) AS s (id) ON d.id = s.id
    WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id);
SELECT * FROM watch_app.marked();
WITH gone AS (DELETE FROM watch_app.device WHERE id = 'c2' RETURNING id)
    INSERT INTO watch_app.device (id) SELECT id || 'x' FROM gone;
SELECT * FROM watch_app.marked();
CREATE TABLE watch_app.part (id int PRIMARY KEY, device text REFERENCES watch_app.device ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO watch_app.part VALUES (1, 'c3'), (2, 'c4');
-- the entity may have any type; several loops may watch one table, and one loop several
SELECT reconcile.create_loop('parts');
SELECT reconcile.watch('parts', 'watch_app.part', 'id'), reconcile.watch('fleet', 'watch_app.part', 'device');
DELETE FROM watch_app.device WHERE id = 'c3';
UPDATE watch_app.device SET id = 'c5' WHERE id = 'c4';
SELECT * FROM watch_app.marked();
SELECT reconcile.drop_loop('parts');
DROP TABLE watch_app.part;

-- columns: only where one of them changed; called again it replaces
SELECT reconcile.watch('fleet', 'watch_app.device', 'id', '{want,big}');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'watch_app.device'::regclass ORDER BY 1;
INSERT INTO watch_app.device SELECT 'd' || g, 'a', 'a', (SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 300) i) FROM generate_series(1, 3) g;
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET have = 'b';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET want = CASE id WHEN 'd1' THEN 'b' ELSE want END, have = 'c';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET want = NULL WHERE id = 'd1';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET want = NULL WHERE id = 'd1';
SELECT * FROM watch_app.marked();
-- a value that is stored out of line, written again and changed
UPDATE watch_app.device SET big = big || '' WHERE id = 'd2';
SELECT * FROM watch_app.marked();
UPDATE watch_app.device SET big = overlay(big PLACING '!' FROM 5000) WHERE id = 'd2';
SELECT * FROM watch_app.marked();
DELETE FROM watch_app.device WHERE id = 'd3';
SELECT * FROM watch_app.marked();
-- what tells two values apart counts, even if the type calls them equal
ALTER TABLE watch_app.device ADD amount numeric DEFAULT 1.0;
SELECT reconcile.watch('fleet', 'watch_app.device', 'id', '{amount}');
UPDATE watch_app.device SET amount = 1.00 WHERE id = 'd1';
SELECT * FROM watch_app.marked();
-- a column that is gone: miss nothing
ALTER TABLE watch_app.device DROP COLUMN amount;
UPDATE watch_app.device SET have = 'd' WHERE id = 'd1';
SELECT * FROM watch_app.marked();

-- What cannot be an entity id never fails the statement: one warning, and '' is marked
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
INSERT INTO watch_app.device (id) VALUES (repeat('x', 512)), (repeat('y', 513)), (repeat('z', 600)), ('good');
SELECT loop_name, left(entity_id, 20), marks FROM watch_app.marked();
-- where the name means another table by the end of the command, that one's watch stays
BEGIN;
CREATE SCHEMA watch_other;
CREATE TABLE watch_other.device (id text);
CREATE FUNCTION watch_other.elsewhere() RETURNS event_trigger LANGUAGE plpgsql AS
    $$BEGIN PERFORM set_config('search_path', 'watch_app', true); END$$;
CREATE EVENT TRIGGER before_reconcile_watch ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION watch_other.elsewhere();
SET LOCAL search_path = watch_other;
ALTER TABLE device RENAME COLUMN id TO device_id;
SELECT DISTINCT relation::oid::regclass::text, entity_column FROM reconcile.watch_triggers() WHERE loop_name = 'fleet' AND relation = 'watch_app.device'::regclass;
ROLLBACK;

-- a column that is renamed is watched under its new name
ALTER TABLE watch_app.device RENAME COLUMN id TO device_id;
UPDATE watch_app.device SET want = 'z' WHERE device_id IN ('d1', 'd2');
SELECT * FROM watch_app.marked();
ALTER TABLE watch_app.device RENAME COLUMN device_id TO id;
-- one that is gone fails nothing either; another type, name or schema of the table is all one
CREATE TABLE watch_app.changing (id text, other text);
SELECT reconcile.watch('fleet', 'watch_app.changing', 'id', '{other}');
ALTER TABLE watch_app.changing RENAME COLUMN other TO another;
ALTER TABLE watch_app.changing ALTER COLUMN id TYPE int USING id::int;
ALTER TABLE watch_app.changing RENAME TO changed;
ALTER TABLE watch_app.changed SET SCHEMA public;
INSERT INTO public.changed VALUES (7, 'a');
UPDATE public.changed SET another = 'a';
SELECT * FROM watch_app.marked();
SELECT * FROM reconcile.watch_problems();
ALTER TABLE public.changed DROP COLUMN id;
INSERT INTO public.changed VALUES ('b');
SELECT * FROM watch_app.marked();
SELECT * FROM reconcile.watch_problems();
-- a copy of its definition is not watched
CREATE TABLE watch_app.alike (LIKE public.changed INCLUDING ALL);
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'watch_app.alike'::regclass;
DROP TABLE public.changed, watch_app.alike;
DELETE FROM watch_app.device WHERE length(id) > 100;
SELECT loop_name, left(entity_id, 20), marks FROM watch_app.marked();

-- TRUNCATE marks all that the loop remembers, or '' if it can list its entities
SELECT reconcile.enqueue('fleet', 'later', '1 hour'), reconcile.enqueue('fleet', 'later', '2 hours');
INSERT INTO reconcile.entity VALUES ('fleet', 'dead', 1, 'permanent', 'RC004', 'never', now()), ('other', 'not of it', 1, NULL, 'P0001', 'no', now());
TRUNCATE watch_app.device;
SELECT entity_id, due_at <= clock_timestamp() AS due, count(*) FROM reconcile.mark GROUP BY 1, 2 ORDER BY 1, 2;
DELETE FROM reconcile.entity WHERE loop_name = 'other';
SELECT count(*) FROM watch_app.marked();
BEGIN;
UPDATE reconcile.loop SET lister = 'watch_app.list()' WHERE loop_name = 'fleet';
SELECT reconcile.enqueue('fleet', 'later', '1 hour');
TRUNCATE watch_app.device;
SAVEPOINT again;
TRUNCATE watch_app.device;
ROLLBACK TO again;
TRUNCATE watch_app.device;
SELECT entity_id, due_at <= clock_timestamp() AS due, count(*) FROM reconcile.mark GROUP BY 1, 2 ORDER BY 1, 2;
ROLLBACK;

-- Under session_replication_role = replica, as where a subscription applies, rows mark: each entity once in a transaction
CREATE TABLE watch_app.applied (id text, want text, have text);
SELECT reconcile.watch('fleet', 'watch_app.applied', 'id');
SET session_replication_role = replica;
INSERT INTO watch_app.applied SELECT 'one', 'a' FROM generate_series(1, 100000);
SELECT * FROM watch_app.marked();
BEGIN;
UPDATE watch_app.applied SET id = 'two' WHERE ctid IN ('(0,1)', '(0,2)');
DELETE FROM watch_app.applied;
SELECT entity_id, count(*) FROM reconcile.mark GROUP BY 1 ORDER BY 1;
-- what is undone, or forgotten, is marked anew
SAVEPOINT undone;
INSERT INTO watch_app.applied VALUES ('three');
ROLLBACK TO undone;
INSERT INTO watch_app.applied VALUES ('three'), (repeat('x', 600)), (repeat('y', 600)), (NULL);
SELECT reconcile.forget('fleet', 'three');
INSERT INTO watch_app.applied VALUES ('three'), ('four');
COMMIT;
SELECT * FROM watch_app.marked();
SELECT reconcile.watch('fleet', 'watch_app.applied', 'id', '{want}');
UPDATE watch_app.applied SET want = 'b', have = 'b' WHERE id = 'four';
UPDATE watch_app.applied SET have = 'c';
SELECT * FROM watch_app.marked();
SELECT reconcile.enqueue('fleet', 'later', '1 hour');
TRUNCATE watch_app.applied;
SELECT * FROM watch_app.marked();
RESET session_replication_role;
DROP TABLE watch_app.applied;
-- ENABLE TRIGGER ALL, as pg_restore --disable-triggers leaves it, does not make it mark twice
ALTER TABLE watch_app.device DISABLE TRIGGER ALL;
SELECT * FROM reconcile.watch_problems();
ALTER TABLE watch_app.device ENABLE TRIGGER ALL;
INSERT INTO watch_app.device VALUES ('once');
SELECT * FROM watch_app.marked();
SELECT * FROM reconcile.watch_problems();
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
SELECT * FROM reconcile.watch_problems();

-- 100,000 rows are 100,000 entities with one insert
TRUNCATE watch_app.device;
INSERT INTO watch_app.device SELECT 'd' || g, 'a' FROM generate_series(1, 100000) g;
SELECT count(*), count(DISTINCT m.made_at) AS inserts FROM reconcile.mark m;
SELECT reconcile.drop_loop('fleet');
SET ROLE regress_watch_owner;
SELECT reconcile.create_loop('fleet');
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
RESET ROLE;
UPDATE watch_app.device SET want = 'b';
SELECT count(*), count(DISTINCT m.made_at) AS inserts, count(DISTINCT m.entity_id) AS entities FROM reconcile.mark m;
TRUNCATE watch_app.device;
SET ROLE regress_watch_owner;
SELECT reconcile.drop_loop('fleet'), reconcile.create_loop('fleet');
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
RESET ROLE;

-- What an entity's own run writes does not trigger it again; another entity's row, and an enqueue, do.
-- (Whoever runs them: workers, or run_loop where there are none.)
CREATE TABLE watch_app.runs (loop_name text, entity_id text, epoch bigint, attempt int, deadline timestamptz);
CREATE FUNCTION watch_app.converge(entity_id text) RETURNS interval LANGUAGE sql AS $$
    INSERT INTO watch_app.runs SELECT * FROM reconcile.current_run();
    UPDATE watch_app.device SET have = want WHERE id = entity_id OR (entity_id = 'a1' AND id = 'a2');
    SELECT reconcile.enqueue('converge', entity_id)
     WHERE entity_id = 'a3' AND (SELECT count(*) FROM watch_app.runs r WHERE r.entity_id = 'a3') < 2;
    SELECT NULL::interval;
$$;
SELECT reconcile.unwatch('fleet', 'watch_app.device');
INSERT INTO watch_app.device VALUES ('a1', 'x'), ('a2', 'x'), ('a3', 'x');
SELECT reconcile.create_loop('converge', 'watch_app.converge', default_requeue => NULL);
SELECT reconcile.watch('converge', 'watch_app.device', 'id');
SELECT reconcile.enqueue_many('converge', '{a1,a3}');
CALL reconcile.run_loop('converge');
CALL reconcile.run_loop('converge');
CALL reconcile.run_loop('converge');
SET statement_timeout = '60 s';
DO $$ BEGIN WHILE EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'converge') LOOP END LOOP; END $$;
RESET statement_timeout;
SELECT loop_name, entity_id, count(*) AS runs, max(epoch) AS epoch, max(attempt) AS attempt, max(deadline) AS deadline
  FROM watch_app.runs GROUP BY 1, 2 ORDER BY 1, 2;
SELECT id, have FROM watch_app.device ORDER BY id;
SELECT reconcile.drop_loop('converge');
-- nor does its TRUNCATE; what else the loop remembers runs
TRUNCATE watch_app.runs;
CREATE TABLE watch_app.wiped (id text);
CREATE FUNCTION watch_app.wipe(entity_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watch_app.runs SELECT * FROM reconcile.current_run();
    IF (SELECT count(*) FROM watch_app.runs r WHERE r.entity_id = wipe.entity_id) < 3 THEN
        TRUNCATE watch_app.wiped;
    END IF;
END $$;
SELECT reconcile.create_loop('wipe', 'watch_app.wipe', default_requeue => NULL);
SELECT reconcile.watch('wipe', 'watch_app.wiped', 'id');
BEGIN;
SELECT reconcile.enqueue('wipe', 'later', '1 hour'), reconcile.enqueue('wipe', 'now');
COMMIT;
CALL reconcile.run_loop('wipe');
CALL reconcile.run_loop('wipe');
SET statement_timeout = '60 s';
DO $$ BEGIN WHILE EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'wipe' AND state <> 'waiting') LOOP END LOOP; END $$;
RESET statement_timeout;
SELECT entity_id, count(*) FROM watch_app.runs GROUP BY 1 ORDER BY 1;
SELECT reconcile.drop_loop('wipe');
DROP TABLE watch_app.wiped;
DELETE FROM watch_app.device;
SET ROLE regress_watch_owner;
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
RESET ROLE;

-- Rights: the loop's owner or "define", and the table's owner (P11)
CREATE TABLE watch_app.foreign_table_owner (id text);
SET ROLE regress_watch_owner;
SELECT reconcile.watch('fleet', 'watch_app.foreign_table_owner', 'id');
SELECT reconcile.unwatch('fleet', 'watch_app.foreign_table_owner');
SET ROLE regress_watch_writer;
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
RESET ROLE;
SELECT reconcile.grant_access('regress_watch_writer', 'trigger', 'fleet');
SELECT reconcile.grant_access('regress_watch_writer', 'define', 'other');
SET ROLE regress_watch_writer;
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
RESET ROLE;
-- nobody attaches the function himself, or calls it
SET ROLE regress_watch_owner;
CREATE TRIGGER mine AFTER INSERT ON watch_app.device REFERENCING NEW TABLE AS n
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.watch_trigger('fleet', 'id');
RESET ROLE;
SELECT reconcile.watch_trigger();
CREATE TRIGGER mine BEFORE INSERT ON watch_app.device FOR EACH ROW EXECUTE FUNCTION reconcile.watch_trigger('fleet', 'id');
INSERT INTO watch_app.device VALUES ('x');
DROP TRIGGER mine ON watch_app.device;

-- What cannot be watched
CREATE VIEW watch_app.v AS SELECT * FROM watch_app.device;
CREATE MATERIALIZED VIEW watch_app.mv AS SELECT * FROM watch_app.device;
CREATE FOREIGN DATA WRAPPER regress_watch_fdw;
CREATE SERVER regress_watch_server FOREIGN DATA WRAPPER regress_watch_fdw;
CREATE FOREIGN TABLE watch_app.ft (id text) SERVER regress_watch_server;
CREATE SEQUENCE watch_app.seq;
CREATE TABLE watch_app.parted (id text) PARTITION BY LIST (id);
CREATE TABLE watch_app.parted_a PARTITION OF watch_app.parted DEFAULT;
CREATE TABLE watch_app.parted_foreign (id text) PARTITION BY LIST (id);
CREATE FOREIGN TABLE watch_app.parted_ft PARTITION OF watch_app.parted_foreign DEFAULT SERVER regress_watch_server;
CREATE TABLE watch_app.parent (id text);
CREATE TABLE watch_app.child () INHERITS (watch_app.parent);
SELECT reconcile.watch('fleet', 'watch_app.v', 'id');
SELECT reconcile.watch('fleet', 'watch_app.mv', 'id');
SELECT reconcile.watch('fleet', 'watch_app.ft', 'id');
SELECT reconcile.watch('fleet', 'watch_app.seq', 'id');
SELECT reconcile.watch('fleet', 'pg_catalog.pg_class', 'relname');
SELECT reconcile.watch('fleet', 'reconcile.mark_0', 'entity_id');
BEGIN;
CREATE TEMP TABLE watch_temp (id text);
SELECT reconcile.watch('fleet', 'watch_temp', 'id');
ROLLBACK;
SELECT reconcile.watch('fleet', 'watch_app.parted_a', 'id');
SELECT reconcile.watch('fleet', 'watch_app.parted_foreign', 'id');
SELECT reconcile.watch('fleet', 'watch_app.parent', 'id');
SELECT reconcile.watch('fleet', 'watch_app.child', 'id');
SELECT reconcile.watch('fleet', 'watch_app.device', 'nothing');
SELECT reconcile.watch('fleet', 'watch_app.device', 'ctid');
SELECT reconcile.watch('fleet', 'watch_app.device', 'id', '{want,nothing}');
SELECT reconcile.watch('fleet', 999999999::oid::regclass, 'id');
-- a virtual generated column (18 and later) has no value in a trigger
DO $$
BEGIN
    IF current_setting('server_version_num')::int < 180000 THEN
        RETURN;
    END IF;
    EXECUTE 'CREATE TABLE watch_app.generated (id text, upper_id text GENERATED ALWAYS AS (upper(id)) VIRTUAL)';
    BEGIN
        PERFORM reconcile.watch('fleet', 'watch_app.generated', 'upper_id');
        RAISE EXCEPTION 'accepted';
    EXCEPTION WHEN wrong_object_type THEN NULL;
    END;
    BEGIN
        PERFORM reconcile.watch('fleet', 'watch_app.generated', 'id', '{upper_id}');
        RAISE EXCEPTION 'accepted';
    EXCEPTION WHEN wrong_object_type THEN NULL;
    END;
END $$;
-- a stored one has
CREATE TABLE watch_app.stored (id text, upper_id text GENERATED ALWAYS AS (upper(id)) STORED);
SELECT reconcile.watch('fleet', 'watch_app.stored', 'upper_id');
INSERT INTO watch_app.stored VALUES ('a');
SELECT * FROM watch_app.marked() WHERE entity_id NOT LIKE 'd%';

-- unwatch, and the ways in which a watch ends by itself
SELECT reconcile.unwatch('fleet', 'watch_app.stored');
SELECT reconcile.unwatch('fleet', 'watch_app.stored');
INSERT INTO watch_app.stored VALUES ('b');
SELECT * FROM watch_app.marked();
-- a name of a trigger means nothing
ALTER TRIGGER reconcile_fleet_ins ON watch_app.device RENAME TO something;
SELECT reconcile.watch('fleet', 'watch_app.device', 'id');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'watch_app.device'::regclass ORDER BY 1;
-- a trigger of a loop that is no more does nothing
CREATE TABLE watch_app.dropped (id text);
SELECT reconcile.watch('fleet', 'watch_app.dropped', 'id');
DELETE FROM reconcile.loop WHERE loop_name = 'fleet';
INSERT INTO watch_app.dropped VALUES ('a');
SELECT count(*) FROM reconcile.mark;
SELECT * FROM reconcile.watch_problems() WHERE relation = 'watch_app.dropped';
SELECT reconcile.create_loop('fleet', owner => 'regress_watch_owner');
DROP TABLE watch_app.dropped;
INSERT INTO watch_app.device VALUES ('still');
SELECT * FROM watch_app.marked();

-- DROP EXTENSION needs no CASCADE for what is on users' tables (P13)
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION reconcile;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'watch_app.device'::regclass;
SELECT count(*) FROM pg_event_trigger WHERE evtname = 'reconcile_watch';
INSERT INTO watch_app.device VALUES ('free');
ROLLBACK;

SELECT reconcile.drop_loop('fleet');
SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE p.proname = 'watch_trigger';
SELECT reconcile.revoke_access('regress_watch_owner', 'define', 'fleet'), reconcile.revoke_access('regress_watch_writer', 'trigger', 'fleet'),
       reconcile.revoke_access('regress_watch_writer', 'define', 'other');
SET client_min_messages = warning;
DROP SCHEMA watch_app CASCADE;
DROP FOREIGN DATA WRAPPER regress_watch_fdw CASCADE;
DROP OWNED BY regress_watch_owner, regress_watch_writer;
DROP ROLE regress_watch_owner, regress_watch_writer;

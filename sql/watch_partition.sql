--
-- Watched partitioned tables (P1): what a statement changes is marked once,
-- whichever table of the tree it names, and whenever a partition came to it.
--
\set VERBOSITY default
CREATE ROLE regress_watch_part;
CREATE SCHEMA watch_part AUTHORIZATION regress_watch_part;
CREATE FUNCTION watch_part.marked() RETURNS TABLE (loop_name text, entity_id text, marks bigint)
    LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT m.loop_name COLLATE "default", m.entity_id COLLATE "C", count(*) FROM reconcile.mark m GROUP BY 1, 2 ORDER BY 1, 2;
    PERFORM reconcile.forget(w.loop_name, w.entity_id) FROM reconcile.work w;
END $$;
-- the triggers of a table, by the loop
CREATE FUNCTION watch_part.triggers() RETURNS TABLE (relation text, loop_name text, part boolean, kinds text)
    LANGUAGE sql AS $$
    SELECT t.relation::text, t.loop_name, t.part, string_agg(t.kind, ' ' ORDER BY t.kind) || CASE WHEN bool_and(t.fires) THEN '' ELSE ' (wrong)' END
      FROM reconcile.watch_triggers() t GROUP BY 1, 2, 3 ORDER BY 1, 2
$$;
SELECT reconcile.create_loop('fleet'), reconcile.create_loop('second');

-- Two levels; the columns of each partition are elsewhere
CREATE TABLE watch_part.device (id text, region text, want text, have text) PARTITION BY LIST (region);
CREATE TABLE watch_part.device_a (gone int, want text, region text, have text, id text);
ALTER TABLE watch_part.device_a DROP COLUMN gone;
ALTER TABLE watch_part.device ATTACH PARTITION watch_part.device_a FOR VALUES IN ('a');
CREATE TABLE watch_part.device_b PARTITION OF watch_part.device FOR VALUES IN ('b') PARTITION BY HASH (id);
CREATE TABLE watch_part.device_b0 PARTITION OF watch_part.device_b FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE watch_part.device_b1 PARTITION OF watch_part.device_b FOR VALUES WITH (MODULUS 2, REMAINDER 1);
SELECT reconcile.watch('fleet', 'watch_part.device', 'id', '{region,want}');
SELECT * FROM watch_part.triggers();
SELECT * FROM reconcile.watch_problems();

-- INSERT, COPY, UPDATE, DELETE, MERGE by the root, a leaf, the middle, and a leaf of that: each row once
INSERT INTO watch_part.device VALUES ('r1', 'a'), ('r2', 'b'), ('r3', 'b');
INSERT INTO watch_part.device_a (id, region) VALUES ('a1', 'a');
INSERT INTO watch_part.device_b VALUES ('b1', 'b'), ('b2', 'b'), ('b3', 'b'), ('b4', 'b');
COPY watch_part.device (id, region) FROM stdin;
c1	a
c2	b
\.
COPY watch_part.device_a (id, region) FROM stdin;
c3	a
\.
SELECT * FROM watch_part.marked();
SELECT 'watch_part.device_b' || CASE WHEN EXISTS (SELECT FROM watch_part.device_b0 WHERE id = 'b1') THEN '0' ELSE '1' END AS leaf \gset
UPDATE :leaf SET want = 'x' WHERE id = 'b1';
UPDATE watch_part.device_b SET want = 'x' WHERE id = 'b2';
UPDATE watch_part.device SET want = 'x' WHERE id IN ('r1', 'r2');
UPDATE watch_part.device_a SET want = 'x' WHERE id = 'a1';
SELECT * FROM watch_part.marked();
-- columns count, by name
UPDATE watch_part.device SET have = 'x';
UPDATE watch_part.device_a SET have = 'y';
UPDATE watch_part.device SET want = CASE WHEN id IN ('c1', 'c2') THEN 'y' ELSE want END, have = 'z';
SELECT * FROM watch_part.marked();
MERGE INTO watch_part.device d USING (VALUES ('r1'), ('m1')) AS s (id) ON d.id = s.id
    WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, 'b');
MERGE INTO watch_part.device_b d USING (VALUES ('r2'), ('m2')) AS s (id) ON d.id = s.id
    WHEN MATCHED THEN UPDATE SET want = 'm' WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, 'b');
DELETE FROM watch_part.device WHERE id IN ('c1', 'b3');
DELETE FROM watch_part.device_b WHERE id = 'b4';
SELECT * FROM watch_part.marked();

-- A row that moves: old and new value, compared in pairs
UPDATE watch_part.device SET region = 'b', id = id || '!' WHERE id IN ('a1', 'c3');
SELECT * FROM watch_part.marked();
-- What a MERGE moves is for the triggers of DELETE and INSERT, which the server fires only for a MERGE that has these actions
BEGIN;
INSERT INTO watch_part.device VALUES ('moved', 'a');
SELECT * FROM watch_part.marked();
MERGE INTO watch_part.device d USING (VALUES ('moved')) AS s (id) ON d.id = s.id
    WHEN MATCHED THEN UPDATE SET region = 'b';
SELECT * FROM watch_part.marked();
MERGE INTO watch_part.device d USING (VALUES ('moved')) AS s (id) ON d.id = s.id
    WHEN MATCHED AND d.have = 'no' THEN DELETE WHEN MATCHED THEN UPDATE SET region = 'a';
SELECT * FROM watch_part.marked();
MERGE INTO watch_part.device d USING (VALUES ('moved')) AS s (id) ON d.id = s.id
    WHEN MATCHED THEN UPDATE SET region = 'b' WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, 'b');
SELECT * FROM watch_part.marked();
ROLLBACK;
-- one that is not let in is gone from where it was
CREATE FUNCTION watch_part.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN NEW.id LIKE 'a%' THEN NULL ELSE NEW END; END $$;
INSERT INTO watch_part.device VALUES ('a2', 'a', 'w'), ('d2', 'a', 'w'), ('e2', 'a', 'w');
SELECT count(*) FROM watch_part.marked();
CREATE TRIGGER refuse BEFORE INSERT ON watch_part.device_b0 FOR EACH ROW EXECUTE FUNCTION watch_part.refuse();
CREATE TRIGGER refuse BEFORE INSERT ON watch_part.device_b1 FOR EACH ROW EXECUTE FUNCTION watch_part.refuse();
UPDATE watch_part.device SET region = CASE id WHEN 'a2' THEN 'b' ELSE region END, have = 'moved' WHERE id IN ('a2', 'd2', 'e2');
SELECT * FROM watch_part.marked();
DROP TRIGGER refuse ON watch_part.device_b0;
DROP TRIGGER refuse ON watch_part.device_b1;

-- upsert, and what a foreign key does
CREATE TABLE watch_part.site (name text PRIMARY KEY) PARTITION BY LIST (name);
CREATE TABLE watch_part.site_1 PARTITION OF watch_part.site FOR VALUES IN ('s1', 's2', 's3');
CREATE TABLE watch_part.rack (id int, site text REFERENCES watch_part.site ON DELETE CASCADE ON UPDATE CASCADE, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE watch_part.rack_1 PARTITION OF watch_part.rack FOR VALUES FROM (0) TO (10);
CREATE TABLE watch_part.rack_2 PARTITION OF watch_part.rack FOR VALUES FROM (10) TO (20);
SELECT reconcile.watch('second', 'watch_part.rack', 'id'), reconcile.watch('fleet', 'watch_part.rack', 'site');
INSERT INTO watch_part.site VALUES ('s1'), ('s2');
INSERT INTO watch_part.rack VALUES (1, 's1'), (11, 's1'), (2, 's2');
SELECT * FROM watch_part.marked();
INSERT INTO watch_part.rack VALUES (1, 's1'), (12, 's1') ON CONFLICT (id) DO UPDATE SET site = 's2';
SELECT * FROM watch_part.marked();
UPDATE watch_part.site SET name = 's3' WHERE name = 's1';
SELECT * FROM watch_part.marked();
DELETE FROM watch_part.site_1 WHERE name = 's3';
SELECT * FROM watch_part.marked();

-- TRUNCATE: once for a statement, by the root or a partition
SELECT reconcile.enqueue('fleet', 'x', '1 hour'), reconcile.enqueue('second', 'y', '1 hour');
TRUNCATE watch_part.rack;
SELECT * FROM watch_part.marked();
SELECT reconcile.enqueue('fleet', 'x', '1 hour'), reconcile.enqueue('second', 'y', '1 hour');
TRUNCATE watch_part.device_b1;
SELECT * FROM watch_part.marked();
DROP TABLE watch_part.rack, watch_part.site;

-- Rows as a subscription applies them, and statements of such a session
SET session_replication_role = replica;
INSERT INTO watch_part.device VALUES ('p1', 'a'), ('p2', 'b'), ('p1', 'b');
UPDATE watch_part.device SET have = 'q' WHERE id = 'p2';
UPDATE watch_part.device_a SET want = 'q' WHERE id = 'p1';
SELECT * FROM watch_part.marked();
SELECT reconcile.enqueue('fleet', 'x', '1 hour');
TRUNCATE watch_part.device;
SELECT * FROM watch_part.marked();
-- a partition that is made there is watched as well
CREATE TABLE watch_part.device_c PARTITION OF watch_part.device FOR VALUES IN ('c');
RESET session_replication_role;
INSERT INTO watch_part.device_c VALUES ('c1', 'c');
SELECT * FROM watch_part.marked();

-- Partitions that come later, by who has no right on the loop
ALTER TABLE watch_part.device OWNER TO regress_watch_part;
SET ROLE regress_watch_part;
SET search_path = watch_part;
CREATE TABLE device_d PARTITION OF device FOR VALUES IN ('d') PARTITION BY LIST (id);
CREATE TABLE device_d1 PARTITION OF device_d FOR VALUES IN ('d1', 'd2');
CREATE TABLE device_d2 (want text, have text, region text, id text);
ALTER TABLE device_d ATTACH PARTITION device_d2 FOR VALUES IN ('d3');
-- a tree is attached at once
CREATE TABLE device_e (LIKE device) PARTITION BY LIST (id);
CREATE TABLE device_e1 PARTITION OF device_e DEFAULT;
ALTER TABLE device ATTACH PARTITION device_e FOR VALUES IN ('e');
RESET search_path;
RESET ROLE;
CREATE SCHEMA watch_part_2 CREATE TABLE device_f PARTITION OF watch_part.device FOR VALUES IN ('f');
SET search_path = watch_part;
-- in the shadow of a temporary table of its name
BEGIN;
CREATE TEMP TABLE device_g (id text);
CREATE TABLE watch_part.device_g PARTITION OF device FOR VALUES IN ('g');
DROP TABLE pg_temp.device_g;
COMMIT;
RESET search_path;
SELECT * FROM watch_part.triggers();
SELECT * FROM reconcile.watch_problems();
INSERT INTO watch_part.device_d2 (id, region) VALUES ('d3', 'd');
INSERT INTO watch_part.device_d VALUES ('d1', 'd');
INSERT INTO watch_part.device_e1 VALUES ('e1', 'e');
INSERT INTO watch_part_2.device_f VALUES ('f1', 'f');
INSERT INTO watch_part.device VALUES ('e2', 'e'), ('f2', 'f'), ('g2', 'g');
UPDATE watch_part.device_d2 SET have = 'x';
SELECT * FROM watch_part.marked();
SET session_replication_role = replica;
INSERT INTO watch_part.device VALUES ('d3', 'd'), ('e3', 'e');
RESET session_replication_role;
SELECT * FROM watch_part.marked();

-- A column that is renamed is renamed in all of them
ALTER VIEW watch_part.device RENAME COLUMN id TO device_id;
ALTER MATERIALIZED VIEW watch_part.device RENAME COLUMN want TO desired;
SELECT * FROM reconcile.watch_problems();
UPDATE watch_part.device_d2 SET have = 'y';
UPDATE watch_part.device_d2 SET desired = 'y';
UPDATE watch_part.device SET desired = 'y' WHERE device_id = 'g2';
SELECT * FROM watch_part.marked();

-- A partition that goes is watched no longer, and all that is below it
ALTER TABLE watch_part.device DETACH PARTITION watch_part.device_a;
ALTER TABLE watch_part.device DETACH PARTITION watch_part.device_e;
ALTER TABLE watch_part.device DETACH PARTITION watch_part.device_c CONCURRENTLY;
SELECT t.* FROM watch_part.triggers() t WHERE t.relation ~ '_[ace]';
SELECT * FROM reconcile.watch_problems();
INSERT INTO watch_part.device_a (device_id, region) VALUES ('a9', 'a');
SELECT * FROM watch_part.marked();
-- and may come back
ALTER TABLE watch_part.device ATTACH PARTITION watch_part.device_a FOR VALUES IN ('a');
INSERT INTO watch_part.device_a (device_id, region) VALUES ('a9', 'a');
SELECT * FROM watch_part.marked();

-- Watched by itself, a table that is attached takes over what its root has, and is told of what it has not
CREATE TABLE watch_part.device_h (LIKE watch_part.device);
SELECT reconcile.watch('fleet', 'watch_part.device_h', 'region'), reconcile.watch('second', 'watch_part.device_h', 'device_id');
ALTER TABLE watch_part.device ATTACH PARTITION watch_part.device_h FOR VALUES IN ('h');
SELECT t.* FROM watch_part.triggers() t WHERE t.relation ~ '_h';
SELECT * FROM reconcile.watch_problems();
INSERT INTO watch_part.device VALUES ('h1', 'h');
SELECT * FROM watch_part.marked();
INSERT INTO watch_part.device_h VALUES ('h2', 'h');
SELECT * FROM watch_part.marked();
SELECT reconcile.watch('second', 'watch_part.device_h', 'device_id');
SELECT reconcile.unwatch('fleet', 'watch_part.device_h');
SELECT reconcile.unwatch('second', 'watch_part.device_h');
SELECT * FROM reconcile.watch_problems();
-- the same, in the old way of inheritance
CREATE TABLE watch_part.alone (id text);
CREATE TABLE watch_part.parent (id text);
SELECT reconcile.watch('second', 'watch_part.alone', 'id');
ALTER TABLE watch_part.alone INHERIT watch_part.parent;
SELECT * FROM reconcile.watch_problems();
ALTER TABLE watch_part.alone NO INHERIT watch_part.parent;
CREATE TABLE watch_part.child () INHERITS (watch_part.alone);
SELECT * FROM reconcile.watch_problems();
DROP TABLE watch_part.child, watch_part.alone, watch_part.parent;

-- A foreign partition
CREATE FOREIGN DATA WRAPPER regress_watch_part_fdw;
CREATE SERVER regress_watch_part_server FOREIGN DATA WRAPPER regress_watch_part_fdw;
CREATE FOREIGN TABLE watch_part.device_i PARTITION OF watch_part.device FOR VALUES IN ('i') SERVER regress_watch_part_server;
SELECT * FROM reconcile.watch_problems();
INSERT INTO watch_part.device VALUES ('h1', 'h');
SELECT * FROM watch_part.marked();
DROP FOREIGN DATA WRAPPER regress_watch_part_fdw CASCADE;

-- The user's command does not fail for what hinders us
CREATE TABLE watch_part.device_j (LIKE watch_part.device);
CREATE FUNCTION watch_part.nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER reconcile_fleet_del AFTER DELETE ON watch_part.device_j EXECUTE FUNCTION watch_part.nothing();
ALTER TABLE watch_part.device ATTACH PARTITION watch_part.device_j FOR VALUES IN ('j');
SELECT * FROM reconcile.watch_problems();
DROP TRIGGER reconcile_fleet_del ON watch_part.device_j;
-- without the event trigger problems are listed; watch() again is the remedy
ALTER EVENT TRIGGER reconcile_watch DISABLE;
CREATE TABLE watch_part.device_k PARTITION OF watch_part.device FOR VALUES IN ('k');
ALTER TABLE watch_part.device DETACH PARTITION watch_part.device_a;
ALTER TABLE watch_part.device DISABLE TRIGGER reconcile_fleet_upd;
SELECT * FROM reconcile.watch_problems();
-- a trigger that is left there marks nothing
INSERT INTO watch_part.device_a (device_id, region) VALUES ('a9', 'a');
SELECT * FROM watch_part.marked();
ALTER EVENT TRIGGER reconcile_watch ENABLE ALWAYS;
SELECT reconcile.watch('fleet', 'watch_part.device', 'device_id');
SELECT reconcile.unwatch('fleet', 'watch_part.device_a');
SELECT * FROM reconcile.watch_problems();

-- unwatch and drop_loop take all of them away
SELECT reconcile.watch('second', 'watch_part.device', 'device_id');
SELECT reconcile.unwatch('fleet', 'watch_part.device');
SELECT DISTINCT loop_name FROM reconcile.watch_triggers();
INSERT INTO watch_part.device_h VALUES ('h2', 'h');
SELECT * FROM watch_part.marked();
SELECT reconcile.drop_loop('second');
SELECT count(*) FROM reconcile.watch_triggers();
SELECT reconcile.watch('fleet', 'watch_part.device', 'device_id');
-- DROP EXTENSION needs no CASCADE (P13)
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION reconcile;
SELECT count(*) FROM pg_trigger WHERE tgname ~ '^reconcile_';
SELECT count(*) FROM pg_event_trigger;
CREATE TABLE watch_part.device_l PARTITION OF watch_part.device FOR VALUES IN ('l');
ROLLBACK;
SELECT reconcile.unwatch('fleet', 'watch_part.device');
-- one that is watched by itself, with partitions of its own, keeps their triggers below a table that is not watched, and afterwards
CREATE TABLE watch_part.low (id text) PARTITION BY LIST (id);
CREATE TABLE watch_part.low_1 PARTITION OF watch_part.low FOR VALUES IN ('1');
CREATE TABLE watch_part.top (id text) PARTITION BY LIST (id);
SELECT reconcile.watch('fleet', 'watch_part.low', 'id');
ALTER TABLE watch_part.top ATTACH PARTITION watch_part.low DEFAULT;
CREATE TABLE watch_part.low_2 PARTITION OF watch_part.low FOR VALUES IN ('2');
SELECT * FROM watch_part.triggers();
INSERT INTO watch_part.low_1 VALUES ('1');
INSERT INTO watch_part.low_2 VALUES ('2');
SELECT * FROM watch_part.marked();
ALTER TABLE watch_part.top DETACH PARTITION watch_part.low;
INSERT INTO watch_part.low_1 VALUES ('1');
INSERT INTO watch_part.low_2 VALUES ('2');
SELECT * FROM watch_part.marked();
-- the root's watch takes the place of one in the middle
SELECT reconcile.watch('fleet', 'watch_part.top', 'id');
ALTER TABLE watch_part.top ATTACH PARTITION watch_part.low DEFAULT;
SELECT * FROM watch_part.triggers();
INSERT INTO watch_part.low_1 VALUES ('1');
INSERT INTO watch_part.low VALUES ('2');
INSERT INTO watch_part.top VALUES ('1'), ('2');
SELECT * FROM watch_part.marked();
SELECT reconcile.drop_loop('fleet');
SELECT reconcile.watch_ddl();
SET client_min_messages = warning;
DROP SCHEMA watch_part, watch_part_2 CASCADE;
DROP ROLE regress_watch_part;

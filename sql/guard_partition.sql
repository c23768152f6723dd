--
-- Guarded partitioned tables (P6): whichever table of the tree a statement
-- names, and whenever a partition came to it.
--
SET client_min_messages = warning;
CREATE SCHEMA guard_part;
SET search_path = guard_part;
\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal
CREATE FUNCTION bind() RETURNS void LANGUAGE sql AS
    'SELECT reconcile.bind_lease(reconciler_id, holder_id, epoch) FROM reconcile.leases WHERE reconciler_id = ''fleet''';
-- the triggers of each table, by their kinds; those that are not enabled as they were made in brackets
CREATE FUNCTION guards() RETURNS TABLE (relation text, kinds text, part text) LANGUAGE sql AS $$
    SELECT f.relation::text, string_agg(CASE WHEN f.fires THEN f.kind ELSE '[' || f.kind || ']' END, ' ' ORDER BY f.kind), string_agg(DISTINCT f.part::text, ' ')
      FROM reconcile.fence_triggers() f GROUP BY 1 ORDER BY 1
$$;
-- what each way to write a table comes to
CREATE FUNCTION writes(relation text, id text, region text) RETURNS TABLE (statement text, code text) LANGUAGE sql AS $$
    SELECT s, r.code FROM unnest(ARRAY[
        format('INSERT INTO %s (id, region) VALUES (%L, %L)', relation, id, region),
        format('UPDATE %s SET have = ''written'' WHERE id = %L', relation, id),
        format('DELETE FROM %s WHERE id = %L', relation, id),
        format('TRUNCATE %s', relation)]) s, refusal(s) r
$$;

CREATE TABLE device (id text, region text, want text, have text, last_epoch bigint NOT NULL DEFAULT 0) PARTITION BY LIST (region);
CREATE TABLE device_a PARTITION OF device FOR VALUES IN ('a');
-- other columns, in another order
CREATE TABLE device_b (last_epoch bigint NOT NULL DEFAULT 0, gone int, have text, want text, region text, id text) PARTITION BY LIST (id);
ALTER TABLE device_b DROP gone;
CREATE TABLE device_b1 (gone int, want text, id text, have text, last_epoch bigint NOT NULL DEFAULT 0, region text);
ALTER TABLE device_b1 DROP gone;
ALTER TABLE device_b ATTACH PARTITION device_b1 DEFAULT;
ALTER TABLE device ATTACH PARTITION device_b FOR VALUES IN ('b');
INSERT INTO device (id, region, have) VALUES ('a1', 'a', 'x'), ('b1', 'b', 'x');
SELECT epoch FROM reconcile.acquire_lease('fleet', 'a', '1 h');
SELECT reconcile.attach_fence('device', 'fleet', 'id', columns => '{have}');
SELECT * FROM guards();
SELECT * FROM reconcile.fence_problems();

SELECT w.* FROM (VALUES ('device', 'a1', 'a'), ('device_a', 'a1', 'a'), ('device_b', 'b1', 'b'), ('device_b1', 'b1', 'b')) t (r, i, g), writes(t.r, t.i, t.g) w;
UPDATE device SET want = 'free';
UPDATE device_b1 SET want = 'free';
BEGIN;
SELECT bind();
INSERT INTO device (id, region) VALUES ('a2', 'a'), ('b2', 'b');
INSERT INTO device_b (id, region, last_epoch) VALUES ('b3', 'b', 44);
UPDATE device SET have = 'y' WHERE id IN ('a1', 'b1');
COPY device (id, region, have) FROM stdin;
a3	a	copied
b4	b	copied
\.
SELECT tableoid::regclass, id, have, last_epoch FROM device ORDER BY 1, 2;
-- a row that moves
UPDATE device SET region = 'b' WHERE id = 'a1';
UPDATE device_b1 SET have = 'z', id = 'b9' WHERE id = 'b1';
SELECT tableoid::regclass, id, have, last_epoch FROM device WHERE id IN ('a1', 'b9') ORDER BY 1, 2;
COMMIT;
-- is deleted and inserted, whatever changes in it
SELECT code, message FROM refusal($$UPDATE device SET region = 'a' WHERE id = 'b2'$$);
SELECT w.* FROM writes('device_b1', 'b1', 'b') w;
BEGIN;
SELECT reconcile.detach_fence('device');
UPDATE device SET last_epoch = 9 WHERE id = 'b2';
SELECT reconcile.attach_fence('device', 'fleet', 'id', columns => '{have}');
SELECT bind();
SELECT code, message FROM unnest(ARRAY['UPDATE device SET region = ''a'' WHERE id = ''b2''', 'UPDATE device SET have = ''q''', 'DELETE FROM device_b1']) s, refusal(s);
ROLLBACK;
-- TRUNCATE of the root, of a partition alone, of all
BEGIN;
SELECT bind();
TRUNCATE device_b;
TRUNCATE device;
SELECT count(*) FROM device;
ROLLBACK;

-- Partitions that come later: made, attached, with partitions of their own, in CREATE SCHEMA.
CREATE TABLE device_c PARTITION OF device FOR VALUES IN ('c');
CREATE TABLE device_d (LIKE device) PARTITION BY LIST (id);
CREATE TABLE device_d1 PARTITION OF device_d FOR VALUES IN ('d1');
CREATE TABLE device_d2 PARTITION OF device_d DEFAULT;
INSERT INTO device_d (id, region, last_epoch) VALUES ('d1', 'd', 0), ('d2', 'd', 0);
ALTER TABLE device ATTACH PARTITION device_d FOR VALUES IN ('d');
CREATE SCHEMA guard_part_2
    CREATE TABLE device_e PARTITION OF guard_part.device FOR VALUES IN ('e');
SET session_replication_role = replica;
CREATE TABLE device_f PARTITION OF device FOR VALUES IN ('f');
SELECT code FROM refusal('TRUNCATE device_f');
SET session_replication_role = DEFAULT;
SELECT * FROM guards();
SELECT * FROM reconcile.fence_problems();
SELECT w.* FROM (VALUES ('device_c', 'c1', 'c'), ('device_d', 'd1', 'd'), ('device_d1', 'd1', 'd'), ('guard_part_2.device_e', 'e1', 'e')) t (r, i, g), writes(t.r, t.i, t.g) w;
BEGIN;
SELECT bind();
UPDATE device SET have = 'later' WHERE id IN ('d1', 'd2');
SELECT id, last_epoch FROM device_d ORDER BY 1;
COMMIT;
-- and those that go
ALTER TABLE device DETACH PARTITION device_d;
ALTER TABLE device DETACH PARTITION device_c CONCURRENTLY;
SELECT * FROM guards() WHERE relation ~ '_[cd]';
SELECT w.* FROM writes('device_d1', 'd1', 'd') w;
INSERT INTO device_c VALUES ('free', 'c');
TRUNCATE device_c, device_d;
DROP TABLE device_d, device_c;

-- A table that is guarded by itself does not become a partition of one that is guarded.
CREATE TABLE device_g (LIKE device INCLUDING DEFAULTS);
SELECT reconcile.attach_fence('device_g', 'other', 'id');
SELECT code, message FROM refusal($$ALTER TABLE device ATTACH PARTITION device_g FOR VALUES IN ('g')$$);
BEGIN;
SELECT reconcile.detach_fence('device_g');
ALTER TABLE device ATTACH PARTITION device_g FOR VALUES IN ('g');
COMMIT;
SELECT * FROM guards() WHERE relation ~ '_g';
-- a partition is guarded, detached and overridden by its root
SELECT s, code, message, hint FROM unnest(ARRAY['attach_fence(''device_g'', ''fleet'', ''id'')', 'detach_fence(''device_g'')', 'override_fence(''device_b1'', ''x'')']) s, refusal('SELECT reconcile.' || s);
BEGIN;
SELECT reconcile.override_fence('device', 'of the tree');
INSERT INTO device (id, region) VALUES ('g1', 'g');
UPDATE device_b1 SET have = 'overridden', last_epoch = 3 WHERE id = 'b2';
UPDATE device SET region = 'a' WHERE id = 'b2';
TRUNCATE device_g;
SELECT tableoid::regclass, id, have, last_epoch FROM device WHERE id = 'b2';
COMMIT;
SELECT relation, reason, rows, truncated FROM reconcile.fence_overrides;
-- one that is guarded by itself, below a table that is not, stays so, and must be detached before that table is guarded
CREATE TABLE open (id text, region text, have text, last_epoch bigint NOT NULL DEFAULT 0) PARTITION BY LIST (region);
CREATE TABLE open_a (LIKE open INCLUDING DEFAULTS);
SELECT reconcile.attach_fence('open_a', 'other', 'id');
ALTER TABLE open ATTACH PARTITION open_a FOR VALUES IN ('a');
SELECT w.* FROM writes('open', 'a', 'a') w;
SELECT code, message FROM refusal($$SELECT reconcile.attach_fence('open', 'fleet', 'id')$$);
SELECT reconcile.detach_fence('open_a');
SELECT reconcile.attach_fence('open', 'fleet', 'id');
SELECT w.* FROM writes('open', 'a', 'a') w;
-- one that is partitioned itself keeps its guard, with all below it, wherever it is moved
CREATE TABLE middle (LIKE open INCLUDING DEFAULTS) PARTITION BY LIST (region);
CREATE TABLE lower (LIKE open INCLUDING DEFAULTS) PARTITION BY LIST (id);
CREATE TABLE lower_1 PARTITION OF lower FOR VALUES IN ('1');
CREATE TABLE top (LIKE open INCLUDING DEFAULTS) PARTITION BY LIST (region);
SELECT reconcile.attach_fence('lower', 'fleet', 'id');
ALTER TABLE middle ATTACH PARTITION lower DEFAULT;
CREATE TABLE lower_2 PARTITION OF lower FOR VALUES IN ('2');
ALTER TABLE top ATTACH PARTITION middle DEFAULT;
SELECT * FROM guards() WHERE relation ~ 'lower';
SELECT * FROM reconcile.fence_problems();
SELECT t, code FROM unnest(ARRAY['lower', 'lower_1', 'lower_2', 'middle', 'top']) t, refusal('TRUNCATE ' || t);
SELECT s, code, hint FROM unnest(ARRAY['detach_fence(''lower_1'')', 'override_fence(''lower_1'', ''x'')', 'override_fence(''top'', ''x'')']) s, refusal('SELECT reconcile.' || s);
BEGIN;
SELECT reconcile.override_fence('lower', 'below others');
INSERT INTO top (id, region) VALUES ('1', 'x'), ('2', 'x');
DELETE FROM lower_2;
TRUNCATE lower_1;
COMMIT;
SELECT relation, rows, truncated FROM reconcile.fence_overrides WHERE reason = 'below others';
ALTER TABLE top DETACH PARTITION middle;
ALTER TABLE middle DETACH PARTITION lower;
SELECT * FROM guards() WHERE relation ~ 'lower';
SELECT t, code FROM unnest(ARRAY['lower', 'lower_1', 'lower_2']) t, refusal('TRUNCATE ' || t);
DROP TABLE top, middle, lower;
-- what cannot be guarded does not become a partition
CREATE FOREIGN DATA WRAPPER guard_part_fdw;
CREATE SERVER guard_part_server FOREIGN DATA WRAPPER guard_part_fdw;
SELECT code, message, hint FROM refusal($$CREATE FOREIGN TABLE device_h PARTITION OF device FOR VALUES IN ('h') SERVER guard_part_server$$);
CREATE FOREIGN TABLE device_i (id text, region text, want text, have text, last_epoch bigint NOT NULL) SERVER guard_part_server;
SELECT code, message FROM refusal($$ALTER TABLE device ATTACH PARTITION device_i FOR VALUES IN ('i')$$);
CREATE TABLE device_j (LIKE device);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER zz_reconcile_fence_truncate BEFORE TRUNCATE ON device_j EXECUTE FUNCTION nothing();
SELECT code, message FROM refusal($$ALTER TABLE device ATTACH PARTITION device_j FOR VALUES IN ('j')$$);
SELECT relid FROM pg_partition_tree('device') ORDER BY relid::regclass::text;
DROP FOREIGN TABLE device_i;
DROP TABLE device_j;

-- Columns that are renamed, in the whole tree.
ALTER VIEW device RENAME have TO has;
ALTER MATERIALIZED VIEW device RENAME has TO "now has";
ALTER TABLE device RENAME last_epoch TO seen;
SELECT DISTINCT kind, entity_column, epoch_column, columns, fires FROM reconcile.fence_triggers() WHERE relation::text ~ 'device' ORDER BY 1;
SELECT * FROM guards() WHERE relation ~ 'device';
SELECT code FROM unnest(ARRAY['UPDATE device_b1 SET "now has" = ''x''', 'TRUNCATE device_a']) s, refusal(s);
UPDATE device SET want = 'still free';

-- What somebody took away is listed, and mended by the same call.
ALTER EVENT TRIGGER reconcile_fence DISABLE;
CREATE TABLE device_k PARTITION OF device FOR VALUES IN ('k');
ALTER TABLE device DETACH PARTITION device_g;
ALTER EVENT TRIGGER reconcile_fence ENABLE ALWAYS;
ALTER TABLE device_b1 DISABLE TRIGGER zz_reconcile_fence_row;
ALTER TABLE device_a ENABLE TRIGGER zz_reconcile_fence_check;
SELECT * FROM reconcile.fence_problems();
SELECT * FROM guards() WHERE relation ~ 'device';
-- a guard that was left behind stops nobody, and goes when it is detached
TRUNCATE device_g;
SELECT reconcile.detach_fence('device_g');
SELECT reconcile.attach_fence('device', 'fleet', 'id', 'seen', '{now has}');
SELECT * FROM reconcile.fence_problems();
SELECT * FROM guards() WHERE relation ~ 'device';

-- Detached with all partitions.
SELECT reconcile.detach_fence('device');
SELECT * FROM guards();
UPDATE device SET "now has" = 'free', seen = 0;
TRUNCATE device;
SELECT reconcile.attach_fence('device', 'fleet', 'id', 'seen');
-- DROP EXTENSION needs no CASCADE (P13)
BEGIN;
DROP EXTENSION reconcile;
SELECT count(*) FROM pg_trigger WHERE tgname ~ 'reconcile';
CREATE TABLE device_l PARTITION OF device FOR VALUES IN ('l');
ROLLBACK;
SELECT reconcile.fence_ddl();

DROP SCHEMA guard_part, guard_part_2 CASCADE;
DROP FOREIGN DATA WRAPPER guard_part_fdw CASCADE;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.fence_override;

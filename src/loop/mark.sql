-- mark.sql: the mark segments
--
-- Append only, deleted by TID, emptied by truncation: no index, no autovacuum.
-- REPLICA IDENTITY FULL, so that a publication FOR ALL TABLES does not refuse
-- the deletes.  src/loop/mark.c relies on the order of the columns.

CREATE TABLE reconcile.mark_0 (
    number    bigint NOT NULL,
    due_at    timestamptz NOT NULL,
    made_at   timestamptz NOT NULL,
    kind      "char" NOT NULL,
    loop_name text COLLATE "C" NOT NULL,
    entity_id text COLLATE "C" NOT NULL
) USING heap WITH (autovacuum_enabled = off);
CREATE TABLE reconcile.mark_1 (LIKE reconcile.mark_0) USING heap WITH (autovacuum_enabled = off);
CREATE TABLE reconcile.mark_2 (LIKE reconcile.mark_0) USING heap WITH (autovacuum_enabled = off);
CREATE TABLE reconcile.mark_3 (LIKE reconcile.mark_0) USING heap WITH (autovacuum_enabled = off);
ALTER TABLE reconcile.mark_0 REPLICA IDENTITY FULL;
ALTER TABLE reconcile.mark_1 REPLICA IDENTITY FULL;
ALTER TABLE reconcile.mark_2 REPLICA IDENTITY FULL;
ALTER TABLE reconcile.mark_3 REPLICA IDENTITY FULL;
COMMENT ON TABLE reconcile.mark_0 IS
'Marks: (loop_name, entity_id) is to be looked at at or after due_at. kind: t trigger, l next look, b next look after a failure, r resync, c deadline of a claim.';
COMMENT ON TABLE reconcile.mark_1 IS 'Marks, as mark_0.';
COMMENT ON TABLE reconcile.mark_2 IS 'Marks, as mark_0.';
COMMENT ON TABLE reconcile.mark_3 IS 'Marks, as mark_0.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.mark_0', '');
SELECT pg_catalog.pg_extension_config_dump('reconcile.mark_1', '');
SELECT pg_catalog.pg_extension_config_dump('reconcile.mark_2', '');
SELECT pg_catalog.pg_extension_config_dump('reconcile.mark_3', '');

-- All marks, whatever segment they are in.
CREATE VIEW reconcile.mark AS
    SELECT * FROM reconcile.mark_0 UNION ALL SELECT * FROM reconcile.mark_1
    UNION ALL SELECT * FROM reconcile.mark_2 UNION ALL SELECT * FROM reconcile.mark_3;
COMMENT ON VIEW reconcile.mark IS 'All marks, whatever segment they are in.';

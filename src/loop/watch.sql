-- watch.sql: watched tables

CREATE FUNCTION reconcile.watch_trigger() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_watch_trigger';
COMMENT ON FUNCTION reconcile.watch_trigger() IS
'The trigger function of watched tables, which only watch() attaches. 39P01 not called by such a trigger.';

CREATE FUNCTION reconcile.watch(loop_name text, relation regclass, entity_column name, columns name[] DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_watch';
COMMENT ON FUNCTION reconcile.watch(text, regclass, name, name[]) IS
'Triggers the loop for the old and the new value of entity_column in each row of the table, or of any of its partitions, that a statement or a subscription changes, or only where one of columns changed; called again it replaces. 22004, 22023, 2202E bad argument; 42501 no right or not the table''s owner; 42704 no such loop; 42P01, 42703 no such table or column; 42809 a table that cannot be watched, or a partition; 0A000 not yet.';

CREATE FUNCTION reconcile.unwatch(loop_name text, relation regclass) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_unwatch';
COMMENT ON FUNCTION reconcile.unwatch(text, regclass) IS
'Ends what watch began. 22004, 22023 bad argument; 42501 no right or not the table''s owner; 42704 no such loop, or it does not watch the table; 42809 a partition of a watched table; 42P01 no such table.';

-- Partitions that come and go, and columns that are renamed. It has no search
-- path of its own: it finds tables by the names in the user's command. ALWAYS,
-- as a session in the role "replica" attaches partitions too.
CREATE FUNCTION reconcile.watch_ddl() RETURNS event_trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_watch_ddl';
COMMENT ON FUNCTION reconcile.watch_ddl() IS
'The function of the event trigger reconcile_watch: gives a watched table''s triggers to its new partitions, and takes them from those that are detached. 39P03 not called by an event trigger.';
CREATE EVENT TRIGGER reconcile_watch ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TABLE', 'ALTER FOREIGN TABLE',
                 'ALTER VIEW', 'ALTER MATERIALIZED VIEW')      -- which rename columns of tables, too
    EXECUTE FUNCTION reconcile.watch_ddl();
ALTER EVENT TRIGGER reconcile_watch ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER reconcile_watch IS
'Gives a watched table''s triggers to its new partitions, and takes them from those that are detached.';

CREATE FUNCTION reconcile.watch_triggers()
    RETURNS TABLE (loop_name text, relation regclass, kind text, part boolean, entity_column name, columns name[],
                   trigger_name name, fires boolean)
    LANGUAGE c STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_watch_triggers';
COMMENT ON FUNCTION reconcile.watch_triggers() IS
'Each trigger of each watch: kind is insert, update, delete, truncate or row; part: it came with a partitioned table; fires: it is enabled as watch() made it.';

-- The planner thinks of far more partitions than there are: compiling would take
-- longer than all the rest.
CREATE FUNCTION reconcile.watch_problems() RETURNS TABLE (loop_name text, relation text, problem text)
    LANGUAGE sql STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET jit = off
BEGIN ATOMIC
WITH present AS MATERIALIZED (
    SELECT * FROM reconcile.watch_triggers()
), watched AS MATERIALIZED (
    SELECT DISTINCT t.loop_name, t.relation, t.entity_column, t.columns FROM present t WHERE NOT t.part
), covered AS MATERIALIZED (
    SELECT w.loop_name, w.relation AS root, c.oid::regclass AS relation, c.relkind, w.entity_column, w.columns
      FROM watched w
      CROSS JOIN LATERAL (SELECT w.relation UNION SELECT p.relid FROM pg_partition_tree(w.relation) p) AS m (relation)
      JOIN pg_class c ON c.oid = m.relation
), found AS (
    SELECT c.loop_name, c.relation, 'its trigger for ' || k.kind || ' is missing' AS problem
      FROM covered c
      CROSS JOIN (VALUES ('insert'), ('update'), ('delete'), ('truncate'), ('row')) AS k (kind)
     WHERE c.relkind <> 'f' AND (k.kind <> 'row' OR c.relkind <> 'p')
       AND NOT EXISTS (SELECT FROM present t
                        WHERE t.loop_name = c.loop_name AND t.relation = c.relation AND t.kind = k.kind)
    UNION ALL
    SELECT t.loop_name, t.relation, 'its trigger "' || t.trigger_name || '" is not enabled as watch() made it'
      FROM present t WHERE NOT t.fires
    UNION ALL
    SELECT DISTINCT c.loop_name, c.relation, 'its column "' || n.name || '", which is watched, is not there'
      FROM covered c
      CROSS JOIN LATERAL unnest(c.entity_column || c.columns) AS n (name)
     WHERE NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = c.relation AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped)
    UNION ALL
    SELECT c.loop_name, c.relation, 'it is a foreign table, and part of a watched one: its changes fail there, or are not seen'
      FROM covered c WHERE c.relkind = 'f'
    UNION ALL
    SELECT w.loop_name, w.relation, 'it is part of "' || i.inhparent::regclass::text || '", which is not watched with it'
      FROM watched w JOIN pg_inherits i ON i.inhrelid = w.relation
    UNION ALL
    SELECT DISTINCT w.loop_name, w.relation, 'tables inherit from it, which are not watched with it'
      FROM watched w JOIN pg_class c ON c.oid = w.relation AND c.relkind = 'r'
      JOIN pg_inherits i ON i.inhparent = c.oid
    UNION ALL
    SELECT DISTINCT t.loop_name, t.relation, 'it has triggers of a watched table that it is not part of'
      FROM present t
     WHERE t.part AND NOT EXISTS (SELECT FROM covered c WHERE c.loop_name = t.loop_name AND c.relation = t.relation)
    UNION ALL
    SELECT DISTINCT t.loop_name, t.relation, 'the loop that watches it does not exist'
      FROM present t
     WHERE NOT EXISTS (SELECT FROM reconcile.loop l WHERE l.loop_name = t.loop_name)
    UNION ALL
    SELECT NULL, NULL, 'the event trigger "' || e.evtname || '", which follows partitions, is not enabled as it was made'
      FROM pg_event_trigger e WHERE e.evtname = 'reconcile_watch' AND e.evtenabled <> 'A'
)
SELECT f.loop_name, f.relation::text, f.problem FROM found f ORDER BY 1, 2, 3;
END;
COMMENT ON FUNCTION reconcile.watch_problems() IS
'What keeps a watch from seeing a change: triggers that are missing or not enabled, columns that are gone, tables that are watched apart from what they are part of; loop_name and relation are NULL for what concerns all.';

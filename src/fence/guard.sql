-- guard.sql: guarded tables, and what operators wrote past their guards

CREATE TABLE reconcile.fence_override (
    id            uuid PRIMARY KEY,
    relation      text NOT NULL,
    reconciler_id text COLLATE "C" NOT NULL,
    overridden_by text COLLATE "C" NOT NULL,     -- the role
    reason        text NOT NULL,
    at            timestamptz NOT NULL,
    rows          bigint NOT NULL CHECK (rows >= 0),
    truncated     boolean NOT NULL
) USING heap;
COMMENT ON TABLE reconcile.fence_override IS
'Each call of override_fence, with the number of rows that its transaction wrote under it.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.fence_override', '');

CREATE FUNCTION reconcile.fence_trigger() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_fence_trigger';
COMMENT ON FUNCTION reconcile.fence_trigger() IS
'The trigger function of guarded tables, which only attach_fence() attaches. RC006 the lease is not bound; RC003 its epoch is stale; 42703, 42809 a column is gone or has another type; 39P01 not called by such a trigger.';

CREATE FUNCTION reconcile.attach_fence(relation regclass, reconciler_id text, entity_column name,
                                       epoch_column name DEFAULT 'last_epoch', columns name[] DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_attach_fence';
COMMENT ON FUNCTION reconcile.attach_fence(regclass, text, name, name, name[]) IS
'Guards the table and all its partitions: a write needs a bound epoch of the lease (RC006), not below that of the row (RC003), and stamps the row with it in epoch_column, a bigint NOT NULL; with columns, an UPDATE that changes none of them is free. Nothing to do where it is so already. 42710 guarded with other arguments; 42P01, 42703 no such table or column; 42809 a table or column that cannot be guarded; 0A000 not yet; 22004, 22023, 2202E bad argument; 42501 no right or not the table''s owner; 25006 on a standby.';

CREATE FUNCTION reconcile.detach_fence(relation regclass) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_detach_fence';
COMMENT ON FUNCTION reconcile.detach_fence(regclass) IS
'Ends what attach_fence began; stamps stay as they are. 42704 the table is not guarded; 42809 a partition of a guarded table; 42P01 no such table; 22004 bad argument; 42501 no right or not the table''s owner; 25006 on a standby.';

CREATE FUNCTION reconcile.override_fence(relation regclass, reason text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_override_fence';
COMMENT ON FUNCTION reconcile.override_fence(regclass, text) IS
'Lets the rest of this transaction write the guarded table without an epoch, and records who did it, why (1 to 1,000 bytes) and how many rows; a row keeps its stamp, a new one gets the lease''s current epoch or 0. 42704 the table is not guarded; 42809 a partition of a guarded table; 42P01 no such table; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

-- It has no search path of its own: it finds tables by the names in the user's
-- command. ALWAYS, as a session in the role "replica" attaches partitions too.
CREATE FUNCTION reconcile.fence_ddl() RETURNS event_trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_fence_ddl';
COMMENT ON FUNCTION reconcile.fence_ddl() IS
'The function of the event trigger reconcile_fence: guards the new partitions of a guarded table. 42809 one that cannot be guarded; 39P03 not called by an event trigger.';
CREATE EVENT TRIGGER reconcile_fence ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TABLE', 'ALTER FOREIGN TABLE',
                 'ALTER VIEW', 'ALTER MATERIALIZED VIEW')      -- which rename columns of tables, too
    EXECUTE FUNCTION reconcile.fence_ddl();
ALTER EVENT TRIGGER reconcile_fence ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER reconcile_fence IS
'Guards the new partitions of a guarded table, and takes the guard from those that are detached.';

CREATE FUNCTION reconcile.fence_triggers()
    RETURNS TABLE (relation regclass, reconciler_id text, kind text, part boolean, entity_column name, epoch_column name,
                   columns name[], trigger_name name, fires boolean)
    LANGUAGE c STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_fence_triggers';
COMMENT ON FUNCTION reconcile.fence_triggers() IS
'Each trigger of each guard: kind is row, check or truncate; part: it came with a partitioned table; fires: it is enabled as attach_fence() made it.';

CREATE FUNCTION reconcile.fence_problems() RETURNS TABLE (reconciler_id text, relation text, problem text)
    LANGUAGE sql STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp SET jit = off
BEGIN ATOMIC
WITH present AS MATERIALIZED (
    SELECT * FROM reconcile.fence_triggers()
), guarded AS MATERIALIZED (
    SELECT DISTINCT t.reconciler_id, t.relation, t.entity_column, t.epoch_column, t.columns FROM present t WHERE NOT t.part
), covered AS MATERIALIZED (
    SELECT g.reconciler_id, c.oid::regclass AS relation, c.relkind, g.entity_column, g.epoch_column, g.columns
      FROM guarded g
      CROSS JOIN LATERAL (SELECT g.relation UNION SELECT p.relid FROM pg_partition_tree(g.relation) p) AS m (relation)
      JOIN pg_class c ON c.oid = m.relation
), found AS (
    SELECT c.reconciler_id, c.relation, 'its trigger for "' || k.kind || '" is missing' AS problem
      FROM covered c CROSS JOIN (VALUES ('row'), ('check'), ('truncate')) AS k (kind)
     WHERE c.relkind <> 'f' AND (k.kind = 'truncate' OR c.relkind <> 'p')
       AND NOT EXISTS (SELECT FROM present t
                        WHERE t.reconciler_id = c.reconciler_id AND t.relation = c.relation AND t.kind = k.kind)
    UNION ALL
    SELECT t.reconciler_id, t.relation, 'its trigger "' || t.trigger_name || '" is not enabled as attach_fence() made it'
      FROM present t WHERE NOT t.fires
    UNION ALL
    SELECT DISTINCT c.reconciler_id, c.relation, 'its column "' || n.name || '", which the guard needs, is not there'
      FROM covered c
      CROSS JOIN LATERAL unnest(array[c.entity_column, c.epoch_column] || c.columns) AS n (name)
     WHERE NOT EXISTS (SELECT FROM pg_attribute a
                        WHERE a.attrelid = c.relation AND a.attname = n.name AND a.attnum > 0 AND NOT a.attisdropped)
    UNION ALL
    SELECT c.reconciler_id, c.relation, 'its column "' || c.epoch_column || '" is not "bigint NOT NULL" any more'
      FROM covered c JOIN pg_attribute a ON a.attrelid = c.relation AND a.attname = c.epoch_column AND a.attnum > 0
     WHERE a.atttypid <> 'bigint'::regtype OR NOT a.attnotnull
    UNION ALL
    SELECT c.reconciler_id, c.relation, 'it is a foreign table, and part of a guarded one: its rows can be changed past the guard'
      FROM covered c WHERE c.relkind = 'f'
    UNION ALL
    SELECT DISTINCT c.reconciler_id, c.relation, 'a subscription writes to it, and comes without an epoch'
      FROM covered c JOIN pg_subscription_rel s ON s.srrelid = c.relation
    UNION ALL
    SELECT DISTINCT g.reconciler_id, g.relation, 'tables inherit from it, which are not guarded with it'
      FROM guarded g JOIN pg_class c ON c.oid = g.relation AND c.relkind = 'r'
      JOIN pg_inherits i ON i.inhparent = c.oid
    UNION ALL
    SELECT DISTINCT t.reconciler_id, t.relation, 'it has triggers of a guarded table that it is not part of'
      FROM present t
     WHERE t.part AND NOT EXISTS (SELECT FROM covered c WHERE c.reconciler_id = t.reconciler_id AND c.relation = t.relation)
    UNION ALL
    SELECT NULL, NULL, 'the event trigger "' || e.evtname || '", which follows partitions, is not enabled as it was made'
      FROM pg_event_trigger e WHERE e.evtname = 'reconcile_fence' AND e.evtenabled <> 'A'
)
SELECT f.reconciler_id, f.relation::text, f.problem FROM found f ORDER BY 1, 2, 3;
END;
COMMENT ON FUNCTION reconcile.fence_problems() IS
'What lets a write past a guard, or keeps all away: triggers that are missing or not enabled, columns that are gone or changed, tables that a guard does not cover; reconciler_id and relation are NULL for what concerns all.';

CREATE VIEW reconcile.fence_overrides WITH (security_barrier) AS
    SELECT o.relation, o.reconciler_id COLLATE "default" AS reconciler_id,
           o.overridden_by COLLATE "default" AS overridden_by, o.reason, o.at, o.rows, o.truncated
      FROM reconcile.fence_override o
     WHERE reconcile.may_observe(o.reconciler_id);
COMMENT ON VIEW reconcile.fence_overrides IS
'Who wrote a guarded table without an epoch, why, when, and how many rows, for the reconciler ids that the caller may observe: the last 1,000 of an id or 90 days, whichever is more.';

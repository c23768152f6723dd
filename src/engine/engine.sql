-- engine.sql: sight of the processes

CREATE FUNCTION reconcile.running()
    RETURNS TABLE (loop_name text, entity_id text, started_at timestamptz, pid int)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_running';
COMMENT ON FUNCTION reconcile.running() IS
'Runs in flight in this database that the caller may observe, from shared memory; no rows where the library is not preloaded.';

CREATE FUNCTION reconcile.worker_list()
    RETURNS TABLE (pid int, kind text, database_id oid, role_id oid, state text, loop_name text, since timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_worker_list';
COMMENT ON FUNCTION reconcile.worker_list() IS
'Processes of the engine in the whole server, from shared memory, each with the loop that it runs where that is of this database and the caller may observe it; no rows where the library is not preloaded.';

-- A view runs its functions as the caller, so those that it needs are granted below with it.
CREATE VIEW reconcile.workers WITH (security_barrier) AS
    SELECT w.pid, w.kind,
           d.datname::text COLLATE "default" AS database,
           r.rolname::text COLLATE "default" AS owner,
           w.state, w.loop_name, w.since
      FROM reconcile.worker_list() w
      LEFT JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) w.database_id
      LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) w.role_id;
COMMENT ON VIEW reconcile.workers IS
'Processes of the engine in the server: launcher, dispatchers, executors; empty where the library is not preloaded.';

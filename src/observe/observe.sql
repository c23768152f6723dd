-- observe.sql: counts, metrics, health, the last runs

-- The views run their functions as the caller, so those that they need are for everybody.
CREATE FUNCTION reconcile.loop_counts()
    RETURNS TABLE (loop_name text, ready bigint, running bigint, waiting bigint, retrying bigint, dead bigint, oldest_due_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_loop_counts';
COMMENT ON FUNCTION reconcile.loop_counts() IS
'How many entities of each loop that the caller may observe are in which state, as this database''s dispatcher has them now, without a scan; no rows where none runs.';

CREATE FUNCTION reconcile.recent_runs()
    RETURNS TABLE (loop_name text, entity_id text, started_at timestamptz, queue_ms float8, run_ms float8,
                   result text, sqlstate text, attempt int, epoch bigint, pid int)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_recent_runs';
COMMENT ON FUNCTION reconcile.recent_runs() IS
'The last 10,000 runs of this database, of the loops that the caller may observe, from shared memory; no rows where the library is not preloaded.';

CREATE FUNCTION reconcile.health_checks()
    RETURNS TABLE (check_name text, status text, detail text, hint text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_health_checks';
COMMENT ON FUNCTION reconcile.health_checks() IS
'Whether the extension can do its work here, and what to do about it; of loops and leases, those that the caller may observe.';

CREATE FUNCTION reconcile.metrics()
    RETURNS TABLE (name text, type text, help text, labels jsonb, value float8)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_metrics';
COMMENT ON FUNCTION reconcile.metrics() IS
'Counters, gauges and histograms of the loops and leases that the caller may observe, and of the engine; times in seconds. Counters begin anew with the server. Reads no table that grows with the work.';

CREATE FUNCTION reconcile.metrics_text() RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_metrics_text';
COMMENT ON FUNCTION reconcile.metrics_text() IS
'What metrics() gives, in the Prometheus text format.';

CREATE VIEW reconcile.runs WITH (security_barrier) AS
    SELECT r.loop_name COLLATE "default" AS loop_name, r.entity_id COLLATE "default" AS entity_id,
           r.started_at, r.queue_ms, r.run_ms, r.result, r.sqlstate, r.attempt, r.epoch, r.pid
      FROM reconcile.recent_runs() r;
COMMENT ON VIEW reconcile.runs IS
'The last 10,000 runs of the database, of the loops that the caller may observe, since the server started; queue_ms from due to begun, run_ms from begun to done, in milliseconds. Empty where the library is not preloaded.';

CREATE VIEW reconcile.health WITH (security_barrier) AS
    SELECT h.check_name, h.status, h.detail, h.hint FROM reconcile.health_checks() h;
COMMENT ON VIEW reconcile.health IS
'Whether the extension can do its work here: a row for each check that is ok, and for each finding that is not; status is ok, warn or crit.';

-- explain.sql: why an entity does not run now

CREATE FUNCTION reconcile.explain(loop_name text, entity_id text)
    RETURNS TABLE (state text, reason text, until timestamptz, detail text, hint text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_explain';
COMMENT ON FUNCTION reconcile.explain(text, text) IS
'Says why an entity does not run now: reason is idle, due, delayed, backoff, running, claimed, dead, paused, disabled, no_lease, no_worker, slots_full, owner_gone or function_gone, until is when that ends (NULL: not known). 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

-- operate.sql: what an operator asks of runs

CREATE PROCEDURE reconcile.drain_loop(loop_name text, timeout interval DEFAULT '1 min', INOUT drained boolean DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'reconcile_drain_loop';
COMMENT ON PROCEDURE reconcile.drain_loop(text, interval, boolean) IS
'Pauses the loop, commits, and waits up to timeout (0 to 366 days) until its last run is over, in workers, sessions and claims; drained is false if that was too short, or if the loop was resumed meanwhile. 22004, 22023 bad argument; 25006 read-only; 2D000 in a transaction block; 42501 no right; 42704 no such loop, or no longer.';

CREATE PROCEDURE reconcile.wait_idle(loop_name text, timeout interval DEFAULT '1 min', INOUT idle boolean DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'reconcile_wait_idle';
COMMENT ON PROCEDURE reconcile.wait_idle(text, interval, boolean) IS
'Waits up to timeout (0 to 366 days) until nothing of the loop is due or runs; idle is false if that was too short. 22004, 22023 bad argument; 25006 on a standby; 2D000 in a transaction block; 42501 no right; 42704 no such loop, or no longer.';

CREATE FUNCTION reconcile.cancel_run(loop_name text, entity_id text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_cancel_run';
COMMENT ON FUNCTION reconcile.cancel_run(text, text) IS
'Cancels the run of the entity in a background worker, uncounted, so that it comes again after a second, or takes an outside worker''s claim back, uncounted, so that it is due at once; false if there is neither. 22004, 22023 bad argument; 25006 read-only; 42501 no right; 42704 no such loop.';

-- run.sql: runs in the caller's session

CREATE PROCEDURE reconcile.run_loop(loop_name text DEFAULT NULL, max_items int DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'reconcile_run_loop';
COMMENT ON PROCEDURE reconcile.run_loop(text, int) IS
'Runs what is due now in the caller''s own loops (NULL: all of them), here, in a transaction each, at most max_items entities; a leased loop only if its lease can be had, which is given back. 22023 bad argument; 25006 on a standby; 2D000 in a transaction block; 42501 caller does not own the loop; 42704 no such loop.';

-- No search path of its own: the loop's function runs in it.
CREATE FUNCTION reconcile.run_entity(loop_name text, entity_id text)
    RETURNS TABLE (result text, requeue_after interval, sqlstate text, message text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_run_entity';
COMMENT ON FUNCTION reconcile.run_entity(text, text) IS
'Runs an entity now, in this transaction, for tests and debugging: result is success, transient or permanent, requeue_after when the next look would come (NULL: none); nothing is remembered, and what a failed run wrote is undone. 22004, 22023 bad argument; 25006 read-only; 42501 caller does not own the loop; 42704 no such loop; 42883 its function is gone; 55000 no reconciler, or in a run; 55P03 somebody runs the entity.';

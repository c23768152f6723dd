-- run.sql: runs in the caller's session

CREATE PROCEDURE reconcile.run_loop(loop_name text DEFAULT NULL, max_items int DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'reconcile_run_loop';
COMMENT ON PROCEDURE reconcile.run_loop(text, int) IS
'Runs what is due now in the caller''s own loops (NULL: all of them), here, in a transaction each, at most max_items entities; a leased loop only if its lease can be had, which is given back. 22023 bad argument; 25006 on a standby; 2D000 in a transaction block; 42501 caller does not own the loop; 42704 no such loop.';

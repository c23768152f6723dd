-- schedule.sql: jobs of pg_cron, where no worker may run

CREATE FUNCTION reconcile.schedule_loops() RETURNS int
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_schedule_loops';
COMMENT ON FUNCTION reconcile.schedule_loops() IS
'Gives each loop with a function a job of pg_cron that calls run_loop each minute as its owner, removes the jobs of loops that are gone, and returns how many loops have one. 25006 read-only; 42501 caller is no administrator; 55000 no pg_cron in this database.';

CREATE FUNCTION reconcile.unschedule_loops() RETURNS int
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_unschedule_loops';
COMMENT ON FUNCTION reconcile.unschedule_loops() IS
'Removes the jobs that schedule_loops made, and returns how many there were. 25006 read-only; 42501 caller is no administrator; 55000 no pg_cron in this database.';

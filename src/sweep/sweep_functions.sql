-- sweep_functions.sql: the sweeps over sessions and hosts

CREATE FUNCTION reconcile.sweep_pending()
    RETURNS TABLE (shard int, pages int, examined bigint, sessions bigint, owned bigint, marked bigint, failed bigint,
                   truncated boolean, resumed boolean, failure text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 16 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_pending';
COMMENT ON FUNCTION reconcile.sweep_pending() IS
'Looks at the open commands, whatever their deadlines, shard by shard until max_pages of set_placement are spent, a row for each: of the sessions that need a host, those that are not where they may stay are marked in the loop placement (none where there is no such loop); failed: of those nobody can tell, which the log has. truncated: the next pass of the shard goes on behind the last row, up to the deadline that was the last when this one began; failure: the SQLSTATE with which a page ended, which the next one begins with. After a call that was rolled back each takes one page only, until all shards have had their turn. No row while another one is at it. 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_deadlines()
    RETURNS TABLE (shard int, pages int, examined bigint, due bigint, rejected bigint, deferred bigint, contended bigint,
                   failed bigint, unexpired bigint, applying bigint, claim_live bigint,
                   truncated boolean, resumed boolean, failure text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 16 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_deadlines';
COMMENT ON FUNCTION reconcile.sweep_deadlines() IS
'Rejects commands that nobody took by their deadlines (due), shard by shard, but for those whose session somebody has a claim on (deferred), and those that are locked, or were written since their page was read (contended); one that is being applied is never ended by time, and one with a live claim is its host''s. Shards, rows, truncated, resumed and failure as of sweep_pending. 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_host_targets()
    RETURNS TABLE (pages int, scanned bigint, withdrawn bigint, still_live bigint, contended bigint, failed bigint,
                   exhausted boolean, resumed boolean, failure text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_host_targets';
COMMENT ON FUNCTION reconcile.sweep_host_targets() IS
'Withdraws what hosts offered and have not renewed, but for what is being written, or was since its page was read (contended); withdrawn, still_live, contended and failed add up to scanned. Not exhausted: the next pass goes on behind the last row. No row while another one is at it. 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_offers()
    RETURNS TABLE (pages int, examined bigint, expired bigint, contended bigint, failed bigint, deleted bigint,
                   truncated boolean, resumed boolean, failure text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_offers';
COMMENT ON FUNCTION reconcile.sweep_offers() IS
'Ends offers that no host answered in time, whose sessions are then looked at, and deletes those that were made a day ago and are decided. truncated, resumed and failure as of sweep_pending. No row while another one is at it. 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_claims(holder_id text, max_items int DEFAULT 256)
    RETURNS TABLE (released bigint, held bigint, more boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_claims';
COMMENT ON FUNCTION reconcile.sweep_claims(text, int) IS
'Releases live claims (1 to 10,000) of that holder and the caller''s role, for a replica that was restarted, and nobody else; held: those of its name that are another role''s; more: some are left. 22004, 22023 bad argument; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_entity(entity_id text) RETURNS interval
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_entity';
COMMENT ON FUNCTION reconcile.sweep_entity(text) IS
'The reconciler of the loop placement_sweeps: does a page of the sweep of that name, and returns when another look is worth it; NULL where there is nothing to look at. 22004, 22023 bad argument; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.sweep_names() RETURNS SETOF text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 5 SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    VALUES ('pending'), ('host_targets'), ('deadlines'), ('offers'), ('old_offers');
END;
COMMENT ON FUNCTION reconcile.sweep_names() IS
'The lister of the loop placement_sweeps: the names of the sweeps.';

CREATE FUNCTION reconcile.schedule_sweeps() RETURNS int
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_schedule_sweeps';
COMMENT ON FUNCTION reconcile.schedule_sweeps() IS
'Makes jobs of pg_cron that call the sweeps as the owner of the loop placement_sweeps, which is paused, and returns how many: each interval of set_placement in whole seconds, rounded up, or each minute where that is more than 59 seconds, or pg_cron is older than 1.5. 25006 read-only; 42501 caller is no administrator; 55000 no such loop, or no pg_cron in this database.';

CREATE FUNCTION reconcile.unschedule_sweeps() RETURNS int
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_unschedule_sweeps';
COMMENT ON FUNCTION reconcile.unschedule_sweeps() IS
'Removes the jobs that schedule_sweeps made, resumes the loop placement_sweeps, and returns how many there were. 25006 read-only; 42501 caller is no administrator; 55000 no pg_cron in this database.';

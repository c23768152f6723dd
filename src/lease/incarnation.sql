-- incarnation.sql: the lives of this database, whose epochs rise from one to the next

CREATE TABLE reconcile.incarnation (
    incarnation bigint NOT NULL,
    home        text COLLATE "C" NOT NULL,      -- as reconcile.here() says it
    timeline    int NOT NULL,
    epoch_floor bigint NOT NULL,
    since       timestamptz NOT NULL,
    reason      text NOT NULL,
    PRIMARY KEY (incarnation, home)             -- a subscription brings those of another server
) USING heap;
COMMENT ON TABLE reconcile.incarnation IS
'Where, since when and why epochs were granted above which floor: a row for each incarnation, written by its first grant. Row 0 says where the extension was created.';
-- Row 0 is of this CREATE EXTENSION alone: a restore makes its own.
INSERT INTO reconcile.incarnation (incarnation, home, timeline, epoch_floor, since, reason)
SELECT 0, h.home, h.timeline, 0, pg_catalog.clock_timestamp(), 'extension created' FROM reconcile.here() h;
SELECT pg_catalog.pg_extension_config_dump('reconcile.incarnation', 'WHERE incarnation > 0');

CREATE FUNCTION reconcile.incarnation()
    RETURNS TABLE (incarnation bigint, system_identifier text, timeline int, epoch_floor bigint, since timestamptz, reason text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_incarnation';
COMMENT ON FUNCTION reconcile.incarnation() IS
'The incarnation that this database is in: how many there were, where, and the floor that all of its epochs are above. since is NULL where the next grant will begin it.';

CREATE FUNCTION reconcile.bump_incarnation(reason text) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_bump_incarnation';
COMMENT ON FUNCTION reconcile.bump_incarnation(text) IS
'Begins another incarnation: ends all live leases, raises the floor that epochs are granted above, and returns it; for a past that was lost and that nothing inside can see. reason is 1 to 1,000 bytes. 22004, 22023 bad argument; 42501 no right on all reconciler ids; 25006 on a standby.';

\echo Use "CREATE EXTENSION reconcile" to load this file. \quit

-- Every name below is found in pg_catalog or is written with its schema.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Made here and not by the control file, so that it belongs to the extension
-- and DROP EXTENSION leaves nothing. A schema of that name that is already
-- there is somebody else's: the statement fails.
CREATE SCHEMA reconcile;
COMMENT ON SCHEMA reconcile IS 'Leases, fenced writes and reconcile loops.';

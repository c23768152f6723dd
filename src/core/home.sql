-- home.sql: what tells this server from a copy of itself

-- The views compare rows with it, as whoever reads them.
CREATE FUNCTION reconcile.here(OUT home text, OUT timeline int)
    LANGUAGE c STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_here';
COMMENT ON FUNCTION reconcile.here() IS
'This server as rows of ours name it: system identifier, database and extension, and the timeline (on a standby that of its primary).';

-- watch.sql: watched tables

CREATE FUNCTION reconcile.watch_trigger() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_watch_trigger';
COMMENT ON FUNCTION reconcile.watch_trigger() IS
'The trigger function of watched tables, which only watch() attaches. 39P01 not called by such a trigger.';

CREATE FUNCTION reconcile.watch(loop_name text, relation regclass, entity_column name, columns name[] DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_watch';
COMMENT ON FUNCTION reconcile.watch(text, regclass, name, name[]) IS
'Triggers the loop for the old and the new value of entity_column in each row that a statement changes, or only where one of columns changed; called again it replaces. 22004, 22023, 2202E bad argument; 42501 no right or not the table''s owner; 42704 no such loop; 42P01, 42703 no such table or column; 42809 a table that cannot be watched; 0A000 not yet.';

CREATE FUNCTION reconcile.unwatch(loop_name text, relation regclass) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_unwatch';
COMMENT ON FUNCTION reconcile.unwatch(text, regclass) IS
'Ends what watch began. 22004, 22023 bad argument; 42501 no right or not the table''s owner; 42704 no such loop, or it does not watch the table; 42P01 no such table.';

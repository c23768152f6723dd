-- For the isolation tester behind a pooler: the process ids that it is told are
-- the pooler's inventions. It asks with one of them, and with those of all its
-- sessions in the order of the spec; the place in there says which session is
-- meant, and the application name which server works for it.
--
-- Expects the table pooled.session (spec, place, name).

SET allow_system_table_mods = on;

-- A built-in function is found by its oid, so replacing it would not be heard of.
ALTER FUNCTION pg_catalog.pg_isolation_test_session_is_blocked RENAME TO pg_isolation_test_process_is_blocked;
CREATE FUNCTION pg_catalog.pg_isolation_test_session_is_blocked(asked int, sessions int[])
RETURNS bool LANGUAGE sql AS $$
    WITH server AS (
        SELECT a.pid, a.state = 'active' AND s.place = array_position(sessions, asked) AS is_asked
          FROM pooled.session s
          JOIN pg_stat_activity a ON a.application_name = 'isolation/' || s.spec || '/' || s.name
         WHERE current_setting('application_name') = 'isolation/' || s.spec || '/control connection'
    )
    SELECT EXISTS (SELECT FROM server
                    WHERE is_asked AND pg_blocking_pids(pid) && (SELECT array_agg(pid) FROM server))
$$;

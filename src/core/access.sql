-- access.sql: capabilities of roles, by reconciler id

CREATE TABLE reconcile.access_grant (
    role       pg_catalog.regrole NOT NULL,
    role_name  name COLLATE "C" NOT NULL,
    capability text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,
    PRIMARY KEY (role_name, capability, scope)
);
COMMENT ON TABLE reconcile.access_grant IS
'Capabilities of roles; scope is one reconciler id, or empty for all. A row counts only while role and role_name name the same role.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.access_grant', '');

-- Sessions keep what they were granted.
CREATE FUNCTION reconcile.grants_changed() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_grants_changed';
COMMENT ON FUNCTION reconcile.grants_changed() IS
'Trigger of our own tables: tells sessions at commit that grants came or went. 39P01 when called otherwise.';
CREATE TRIGGER grants_changed AFTER INSERT OR UPDATE OR DELETE ON reconcile.access_grant
    FOR EACH ROW EXECUTE FUNCTION reconcile.grants_changed();
CREATE TRIGGER grants_truncated AFTER TRUNCATE ON reconcile.access_grant
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.grants_changed();
ALTER TABLE reconcile.access_grant ENABLE ALWAYS TRIGGER grants_changed;
ALTER TABLE reconcile.access_grant ENABLE ALWAYS TRIGGER grants_truncated;

CREATE FUNCTION reconcile.grant_access(role name, capability text, scope text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_grant_access';
COMMENT ON FUNCTION reconcile.grant_access(name, text, text) IS
'Gives a role a capability (observe, trigger, lease, fence, work, command, place, operate, define) on one reconciler id, or on all (scope NULL). 22004, 22023 bad argument; 42501 caller is no administrator; 42704 no such role.';

CREATE FUNCTION reconcile.revoke_access(role name, capability text, scope text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_revoke_access';
COMMENT ON FUNCTION reconcile.revoke_access(name, text, text) IS
'Takes back what grant_access gave for the same capability and scope. 22004, 22023 bad argument; 42501 caller is no administrator; 42704 no such role.';

-- The views of the rooms filter by it, as whoever reads them.
CREATE FUNCTION reconcile.may_observe(reconciler_id text) RETURNS boolean
    LANGUAGE c STABLE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_may_observe';
COMMENT ON FUNCTION reconcile.may_observe(text) IS
'May the current role observe this reconciler id? 22004 no reconciler id.';

CREATE FUNCTION reconcile.may_see_errors(reconciler_id text) RETURNS boolean
    LANGUAGE c STABLE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_may_see_errors';
COMMENT ON FUNCTION reconcile.may_see_errors(text) IS
'May the current role see the error texts of this reconciler id, as its owner or by the capability operate? 22004 no reconciler id.';

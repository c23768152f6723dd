--
-- Who may do what for which tenant (contract 10.8 (5)): all permissions, on one's own, another object and another tenant, of tables, views and functions,
-- by a table of rules that is written here.
--
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set chain :source '/sql/include/journal_chain.sql'
\i :chain
SET client_min_messages = warning;
CREATE SCHEMA rights_app;
GRANT USAGE ON SCHEMA rights_app TO PUBLIC;
CREATE ROLE regress_rights_user;
CREATE ROLE regress_rights_group;
CREATE ROLE regress_rights_stranger;
-- the rows alone are to decide
CREATE ROLE regress_rights_reader;
GRANT regress_rights_reader TO regress_rights_user, regress_rights_stranger;
GRANT SELECT ON ALL TABLES IN SCHEMA reconcile TO regress_rights_reader;
-- with EXECUTE, and the right to nothing that is there
SELECT reconcile.grant_command(r, 'rights_elsewhere', 'drain') FROM unnest('{regress_rights_user,regress_rights_group,regress_rights_stranger}'::name[]) r;

-- The same things in two tenants: on the worker "mine" and on the worker "other".
CREATE TABLE rights_app.thing AS SELECT t AS tenant, n AS name FROM unnest('{rights_own,rights_foreign}'::text[]) t, unnest('{mine,other}'::text[]) n;
CREATE ROLE regress_rights_hands;
SELECT count(reconcile.grant_command('regress_rights_hands', t, 'dispatch')) FROM unnest('{rights_own,rights_foreign}'::text[]) t;
SELECT k, outcome, count(*) FROM rights_app.thing, unnest('{claimed,unsure}'::text[]) k,
       reconcile.accept_command(tenant, k || name, 'drain', 'worker', name, 'why', deadline_in => '5 min', command_id => k || '-' || name) GROUP BY 1, 2;
SET ROLE regress_rights_hands;
SELECT count(*) FROM reconcile.claim_commands('hands', NULL, 100, '1 h');
RESET ROLE;
SELECT outcome, count(*), count(reconcile.report_observed(tenant, 'w', 'worker', name, 1, 'draining')), count(reconcile.audit_access(tenant, 'payload_view', 'failure', name, 'why'))
  FROM rights_app.thing, reconcile.accept_command(tenant, 'pending' || name, 'drain', 'worker', name, 'why', deadline_in => '5 min', command_id => 'pending-' || name) GROUP BY 1;
CREATE FUNCTION rights_app.token(of_tenant text, id text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT claim_token FROM reconcile.command WHERE tenant_id = of_tenant AND command_id = id$$;
SELECT count(*), min(reconcile.complete_command(tenant, 'unsure-' || name, rights_app.token(tenant, 'unsure-' || name), 'unknown', 'no_answer')),
       min(reconcile.resolve_command(tenant, 'unsure-' || name, 'failed', '{"seen": true}', 'why')) FROM rights_app.thing;

--
-- The rules: what each call asks for, what it answers to who may, and to who may not or where there is nothing
--
CREATE TABLE rights_app.call (call text, kind text, permission text, whole boolean, expression text, yes text, no text);
INSERT INTO rights_app.call
SELECT 'accept ' || a.action, a.kind, a.action, false,
       format('(SELECT outcome FROM reconcile.accept_command(T, %L, %L, %L, N, ''why'', %L, true))', 'new ' || a.action, a.action, a.kind, a.options), 'accepted', 'denied'
  FROM (VALUES ('pause', 'worker_group', '{}'), ('resume', 'worker_group', '{}'), ('drain', 'worker', '{}'), ('terminate', 'worker', '{}'),
               ('retry', 'failure', '{}'), ('bulk_retry', 'failure', '{"selection": {"limit": 1}}'), ('delete', 'failure', '{}'), ('purge', 'failure', '{}'),
               ('replay', 'failure', '{"replay": {"destination": "dest", "idempotency_policy": "reject_duplicate"}}'), ('scale', 'workload', '{"scale": {"replicas": 1}}')) a (action, kind, options);
INSERT INTO rights_app.call VALUES
('accept again', 'worker', 'drain', false, $$(SELECT outcome FROM reconcile.accept_command(T, 'pending' || N, 'drain', 'worker', N, 'why', deadline_in => '5 min', actor => session_user))$$, 'replayed', 'denied'),
('accept otherwise', 'worker', 'drain', false, $$(SELECT outcome FROM reconcile.accept_command(T, 'pending' || N, 'drain', 'worker', N, 'another reason'))$$, 'conflict', 'denied'),
('cancel', 'worker', 'drain', false, $$reconcile.cancel_command(T, 'pending-' || N, 'why')$$, 'canceled', 'not_found'),
('claim', 'worker', 'dispatch', false, $$(SELECT count(*) FROM reconcile.claim_commands('me', NULL, 100) c WHERE c.tenant_id = T AND target_name = N)$$, '1', '0'),
('acknowledge', 'worker', 'dispatch', false, $$reconcile.acknowledge_command(T, 'claimed-' || N, COALESCE(rights_app.token(T, 'claimed-' || N), 'x'))$$, 'acknowledged', 'not_found'),
('acknowledge stale', 'worker', 'dispatch', false, $$reconcile.acknowledge_command(T, 'claimed-' || N, 'x')$$, 'stale_token', 'not_found'),
('complete', 'worker', 'dispatch', false, $$reconcile.complete_command(T, 'claimed-' || N, COALESCE(rights_app.token(T, 'claimed-' || N), 'x'), 'succeeded')$$, 'completed', 'not_found'),
('resolve', 'worker', 'resolve', false, $$reconcile.resolve_command(T, 'unsure-' || N, 'succeeded', '{"by": "eye"}', 'why')$$, 'resolved', 'not_found'),
('report', 'worker', 'report', false, $$reconcile.report_observed(T, 'w', 'worker', N, 1, 'draining')$$, 'stored', 'unknown_target'),
('explain_command', 'worker', 'view', false, $$(SELECT reason FROM reconcile.explain_command(T, 'unsure-' || N))$$, 'resolved', NULL),
('desired_state_of', 'worker', 'view', false, $$(SELECT state FROM reconcile.desired_state_of(T, 'worker', N))$$, 'draining', NULL),
('desired_states_since', 'worker', 'view', false, $$(SELECT count(*) FROM reconcile.desired_states_since(T) WHERE target_name = N)$$, '1', '0'),
('effective_state', 'worker', 'view', false, $$(SELECT state FROM reconcile.effective_state(T, N))$$, 'draining', NULL),
('audit_access payload', 'failure', 'payload_view', false, $$(reconcile.audit_access(T, 'payload_view', 'failure', N, 'why') IS NOT NULL)$$, 'true', 'false'),
('audit_access diagnostics', 'failure', 'diagnostics_view', false, $$(reconcile.audit_access(T, 'diagnostics_view', 'failure', N, 'why') IS NOT NULL)$$, 'true', 'false'),
('audit_verify', 'worker', 'audit_view', true, $$(SELECT outcome FROM reconcile.audit_verify(T))$$, 'ok', '42501'),
('set_command_retention', 'worker', 'retention_configure', true, $$reconcile.set_command_retention(T, '1 day')$$, '', '42501'),
('prune_commands', 'worker', 'retention_configure', true, $$(SELECT outcome FROM reconcile.prune_commands(T))$$, 'no_policy', 'denied'),
('may_read_command', 'worker', 'view', false, $$reconcile.may_read_command(T, 'view', 'worker', N)$$, 'true', 'false');
INSERT INTO rights_app.call
SELECT 'SELECT ' || v.relation, 'worker', v.permission, false, format('(SELECT count(*) > 0 FROM reconcile.%s r WHERE r.tenant_id = T AND %s)', v.relation, v.of_it), 'true', 'false'
  FROM (VALUES ('commands', 'view', 'r.target_name = N'), ('desired_states', 'view', 'r.target_name = N'), ('desired_drift', 'view', 'r.target_name = N'),
               ('audit_events', 'audit_view', $$r.target_name = N AND r.target_kind = 'worker'$$), ('command_timeline', 'audit_view', 'r.target_name = N'),
               ('command', 'view', 'r.target_name = N'), ('command_resolution', 'view', $$r.command_id = 'unsure-' || N$$), ('desired_state', 'view', 'r.target_name = N'),
               ('observed_state', 'view', 'r.target_name = N'), ('audit_event', 'audit_view', $$r.target_name = N AND r.target_kind = 'worker'$$)) v (relation, permission, of_it);
-- all functions and relations of commands are here, but for those of administrators; what sessions have of tenants is another
-- room's: see sql/placement_rights
CREATE VIEW rights_app.relation AS
SELECT c.oid::regclass AS relation, c.relname, c.relkind
  FROM pg_class c WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'v')
   AND (EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id') OR c.relname = 'command_authorizer')
   AND c.relname !~ '^session|^workload_';
SELECT p.proname FROM pg_proc p JOIN reconcile.capability_functions('command') f ON f::regprocedure = p.oid
 WHERE NOT EXISTS (SELECT FROM rights_app.call c WHERE c.expression ~ ('reconcile\.' || p.proname || '\('));
SELECT c.relname, c.relkind FROM rights_app.relation c
 WHERE c.relname <> 'command_authorizer' AND NOT EXISTS (SELECT FROM rights_app.call k WHERE k.expression ~ ('reconcile\.' || c.relname || ' ')) ORDER BY 1;

-- What a role gets, which is undone; an error is its SQLSTATE.
CREATE FUNCTION rights_app.answer(of_role name, expression text, tenant text, name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
BEGIN
    PERFORM set_config('role', of_role, true);
    EXECUTE format('SELECT (%s)::text', regexp_replace(regexp_replace(expression, '\mT\M', '$1', 'g'), '\mN\M', '$2', 'g')) INTO said USING tenant, name;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN RETURN said;
    WHEN OTHERS THEN RETURN SQLSTATE;
END $$;

--
-- Each call with each permission, granted in each way, on each target
--
CREATE TABLE rights_app.shape (shape text, covers text[], whole boolean);
INSERT INTO rights_app.shape VALUES
('none',         '{}',          false),
('kind, name',   '{own}',       false),
('kind',         '{own,other}', false),
('name',         '{own}',       false),
('all',          '{own,other}', true),
('another kind', '{}',          false),
('another name', '{}',          false);
CREATE TABLE rights_app.scope (scope text, tenant text, name text);
INSERT INTO rights_app.scope VALUES ('own', 'rights_own', 'mine'), ('other', 'rights_own', 'other'), ('foreign', 'rights_foreign', 'mine'),
    ('absent', 'rights_own', 'nothing'), ('nobody''s', 'rights_nowhere', 'mine');
CREATE FUNCTION rights_app.grant_it(permission text, shape text, kind text, effect text) RETURNS void LANGUAGE sql AS $$
    SELECT reconcile.grant_command('regress_rights_user', 'rights_own', permission,
               CASE WHEN shape IN ('kind, name', 'kind', 'another name') THEN kind WHEN shape = 'another kind' THEN 'queue' END,
               CASE WHEN shape IN ('kind, name', 'name', 'another kind') THEN 'mine' WHEN shape = 'another name' THEN 'min' END, effect)
     WHERE shape <> 'none';
$$;
CREATE TABLE rights_app.result (call text, permission text, allow text, deny text, scope text, expected text, found text);
CREATE FUNCTION rights_app.try(c rights_app.call, permission text, allow text, deny text) RETURNS SETOF rights_app.result LANGUAGE plpgsql AS $$
DECLARE
    s rights_app.scope;
    r rights_app.result[];
    one rights_app.result;
    allows rights_app.shape;
    denies rights_app.shape;
    may boolean;
BEGIN
    SELECT * INTO allows FROM rights_app.shape WHERE shape = allow;
    SELECT * INTO denies FROM rights_app.shape WHERE shape = deny;
    BEGIN
        PERFORM rights_app.grant_it(permission, allow, c.kind, 'allow');
        PERFORM rights_app.grant_it(permission, deny, c.kind, 'deny');
        IF c.call = 'accept replay' THEN
            PERFORM reconcile.grant_command('regress_rights_user', 'rights_own', 'replay', 'queue', 'dest');
        END IF;
        -- another permission is tried where it would matter most
        FOR s IN SELECT * FROM rights_app.scope WHERE permission = c.permission OR scope = 'own' LOOP
            may := permission = c.permission AND s.tenant = 'rights_own' AND
                CASE WHEN c.whole THEN allows.whole AND deny = 'none'
                     ELSE replace(s.scope, 'absent', 'other') = ANY (allows.covers) AND NOT replace(s.scope, 'absent', 'other') = ANY (denies.covers) END;
            one := (c.call, permission, allow, deny, s.scope, CASE WHEN may THEN c.yes ELSE c.no END, rights_app.answer('regress_rights_user', c.expression, s.tenant, s.name));
            -- where nothing is there the answer is as to who may not, if it is not about something new
            IF s.scope = 'absent' AND c.call !~ '^(accept|audit_access|may_read)' AND NOT c.whole THEN
                one.expected := c.no;
            ELSIF s.scope = 'absent' AND c.call ~ '^accept (again|otherwise)' AND may THEN
                one.expected := 'accepted';
            END IF;
            r := r || one;
        END LOOP;
        RAISE EXCEPTION USING ERRCODE = 'UNDO0';
    EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
    END;
    RETURN QUERY SELECT * FROM unnest(r);
END $$;
-- the permission asked for, in each way, and each other one for all of the tenant
INSERT INTO rights_app.result
SELECT t.* FROM rights_app.call c, rights_app.shape s, LATERAL rights_app.try(c, c.permission, s.shape, 'none') t;
INSERT INTO rights_app.result
SELECT t.* FROM rights_app.call c,
       unnest('{pause,resume,drain,terminate,retry,bulk_retry,delete,purge,replay,scale,view,record_list,record_inspect,payload_view,diagnostics_view,audit_view,retention_configure,dispatch,resolve,report}'::text[]) p,
       LATERAL rights_app.try(c, p, 'all', 'none') t WHERE p <> c.permission;
-- a denial in each way, whatever else is allowed
INSERT INTO rights_app.result
SELECT t.* FROM rights_app.call c, rights_app.shape s, unnest('{all,"kind, name"}'::text[]) a, LATERAL rights_app.try(c, c.permission, a, s.shape) t WHERE s.shape <> 'none';
SELECT * FROM rights_app.result WHERE found IS DISTINCT FROM expected ORDER BY 1, 2, 3, 4, 5;
SELECT r.call, count(*), count(*) FILTER (WHERE found = c.yes) AS yes, count(*) FILTER (WHERE found IS NOT DISTINCT FROM c.no) AS no
  FROM rights_app.result r JOIN rights_app.call c USING (call) GROUP BY 1 ORDER BY r.call COLLATE "C";

--
-- Nothing that is stored, and no count of it, is for who has no right: what he meets is the same, to the letter, as where there is nothing
--
CREATE FUNCTION rights_app.said(of_role name, expression text, tenant text, name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
    detail text;
    hint text;
BEGIN
    PERFORM set_config('role', of_role, true);
    EXECUTE format('SELECT (%s)::text', regexp_replace(regexp_replace(expression, '\mT\M', '$1', 'g'), '\mN\M', '$2', 'g')) INTO said USING tenant, name;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN RETURN said;
    WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
        RETURN replace(replace(format('%s %s %s %s', SQLSTATE, SQLERRM, detail, hint), tenant, 'TENANT'), name, 'NAME');
END $$;
SELECT c.call, count(*), string_agg(DISTINCT rights_app.said('regress_rights_stranger', c.expression, s.tenant, s.name), ' / ') AS said
  FROM rights_app.call c, rights_app.scope s GROUP BY 1 HAVING count(DISTINCT COALESCE(rights_app.said('regress_rights_stranger', c.expression, s.tenant, s.name), 'NULL')) > 1;
-- an id that the caller chooses is his tenant's alone
SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'scale');
SELECT rights_app.answer('regress_rights_user', $$(SELECT outcome || ' ' || command_id FROM reconcile.accept_command(T, 'id', 'scale', 'workload', 'w', 'why', '{"scale": {"replicas": 1}}', command_id => N))$$, 'rights_own', n)
  FROM unnest('{new,pending-mine}'::text[]) n;
SELECT reconcile.grant_command('regress_rights_user', 'rights_elsewhere', 'scale');
SELECT rights_app.answer('regress_rights_user', $$(SELECT outcome || ' ' || command_id FROM reconcile.accept_command(T, 'id', 'scale', 'workload', 'w', 'why', '{"scale": {"replicas": 1}}', command_id => N))$$, 'rights_elsewhere', 'pending-mine');
-- a function of the reader's sees no row that he does not
SELECT reconcile.grant_command('regress_rights_user', 'rights_own', p, 'worker', 'mine') FROM unnest('{view,audit_view}'::text[]) p;
CREATE FUNCTION rights_app.peep(value text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$
BEGIN
    IF value !~ 'mine$' THEN
        RAISE EXCEPTION 'seen: %', value;
    END IF;
    RETURN true;
END $$;
SELECT rights_app.said('regress_rights_user', q, 'rights_own', 'mine') FROM unnest(ARRAY[
    '(SELECT count(*) FROM reconcile.command WHERE rights_app.peep(command_id))', '(SELECT count(*) FROM reconcile.commands WHERE rights_app.peep(command_id))',
    '(SELECT count(*) FROM reconcile.desired_states WHERE rights_app.peep(target_name))', '(SELECT count(*) FROM reconcile.desired_drift WHERE rights_app.peep(target_name))',
    '(SELECT count(*) FROM reconcile.audit_events WHERE rights_app.peep(target_name))', '(SELECT count(*) FROM reconcile.command_timeline WHERE rights_app.peep(target_name))',
    '(SELECT count(*) FROM reconcile.command_resolution WHERE rights_app.peep(command_id))', '(SELECT count(*) FROM reconcile.observed_state WHERE rights_app.peep(target_name))']) q;
REVOKE SELECT ON ALL TABLES IN SCHEMA reconcile FROM regress_rights_reader;
-- and without a grant to read, not even the plan of a query, which counts rows; nor what no view shows
SELECT r.relation, bool_or(has_column_privilege('regress_rights_user', r.relation, a.attname, 'SELECT')) AS reads,
       string_agg(a.attname, ' ' ORDER BY a.attnum) FILTER (WHERE NOT has_column_privilege('regress_rights_user', r.relation, a.attname, 'SELECT')) AS but,
       bool_or(has_column_privilege('regress_rights_stranger', r.relation, a.attname, 'SELECT')) AS stranger,
       bool_or(has_table_privilege('regress_rights_user', r.relation, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') OR
               has_column_privilege('regress_rights_user', r.relation, a.attname, 'INSERT, UPDATE, REFERENCES')) AS writes
  FROM rights_app.relation r
  JOIN pg_attribute a ON a.attrelid = r.relation AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY 1 ORDER BY r.relation::text COLLATE "C";
SELECT rights_app.said('regress_rights_stranger', q, '', '-') FROM unnest('{(SELECT count(*) FROM reconcile.commands),(SELECT count(*) FROM reconcile.audit_events),(SELECT count(*) FROM reconcile.command)}'::text[]) q;
SET ROLE regress_rights_stranger;
EXPLAIN SELECT * FROM reconcile.commands;
-- what can be commanded is for everybody, and by whose function for nobody
SELECT action, target_kind, mode, confirm, desired_state, builtin FROM reconcile.command_action WHERE action = 'drain' ORDER BY 2;
SELECT * FROM reconcile.command_action;
\echo :SQLSTATE
RESET ROLE;
SELECT reconcile.revoke_command('regress_rights_user', t, p) FROM (VALUES ('rights_own', 'scale'), ('rights_elsewhere', 'scale')) v (t, p);
SELECT reconcile.revoke_command('regress_rights_user', 'rights_own', p, 'worker', 'mine') FROM unnest('{view,audit_view}'::text[]) p;

--
-- A loop is nobody's tenant: it takes a grant that names it, or "operate" on it. Replay asks for both ends
--
CREATE FUNCTION rights_app.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
SELECT reconcile.create_loop(l, 'rights_app.drive', enabled => false) FROM unnest('{rights_a,rights_b}'::text[]) l;
CREATE FUNCTION rights_app.with_grants(grants text[], operate text, expression text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
    g text;
BEGIN
    FOREACH g IN ARRAY grants LOOP
        EXECUTE format('SELECT reconcile.grant_command(''regress_rights_user'', ''rights_own'', %s)', g);
    END LOOP;
    IF operate <> '' THEN
        PERFORM reconcile.grant_access('regress_rights_user', 'operate', NULLIF(operate, 'all'));
    END IF;
    said := rights_app.answer('regress_rights_user', expression, 'rights_own', '');
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN RETURN said;
END $$;
SELECT l.action, l.kind, g.grants, o.operate, rights_app.with_grants(ARRAY(SELECT replace(replace(x, 'ACTION', l.action), 'KIND', l.kind) FROM unnest(g.grants) x), o.operate,
           format('(SELECT concat_ws('' '', outcome, status, failure) FROM reconcile.accept_command(T, ''k'', %L, %L, ''rights_a'', ''why'', %L, true))', l.action, l.kind, l.options)) AS answer
  FROM (VALUES ('pause', 'queue', '{}'), ('retry', 'dead_letter', '{"entity_id": "e"}')) l (action, kind, options),
       (VALUES (1, ARRAY[]::text[]), (2, ARRAY['''ACTION'', ''KIND''']), (3, ARRAY['''ACTION'', ''KIND'', ''rights_a''']), (4, ARRAY['''ACTION'', ''KIND'', ''rights_b''']),
               (5, ARRAY['''ACTION'', NULL, ''rights_a''']), (6, ARRAY['''ACTION'', ''KIND'', ''rights_a''', '''ACTION'', NULL, NULL, ''deny'''])) g (n, grants),
       (VALUES (''), ('rights_a'), ('rights_b'), ('all')) o (operate)
 ORDER BY l.action, g.n, o.operate COLLATE "C";
-- all that are local
SELECT a.action, a.target_kind, rights_app.with_grants(ARRAY[format('%L', a.action)], '', e.call) AS wide, rights_app.with_grants(ARRAY[format('%L, %L, %L', a.action, a.target_kind, 'rights_a'), $x$'replay', 'queue', 'rights_b'$x$], '', e.call) AS by_name
  FROM reconcile.command_action a,
       LATERAL (SELECT format('(SELECT outcome FROM reconcile.accept_command(T, ''k'', %L, %L, ''rights_a'', ''why'', %L, true))', a.action, a.target_kind,
            CASE a.action WHEN 'bulk_retry' THEN '{"selection": {"limit": 1}}' WHEN 'replay' THEN '{"entity_id": "e", "replay": {"destination": "rights_b", "idempotency_policy": "reject_duplicate"}}'
                WHEN 'retry' THEN '{"entity_id": "e"}' WHEN 'delete' THEN '{"entity_id": "e"}' ELSE '{}' END) AS call) e
 WHERE a.mode = 'local' AND a.builtin ORDER BY 1, 2;
SELECT g.grants, rights_app.with_grants(g.grants, g.operate, $$(SELECT concat_ws(' ', outcome, failure) FROM reconcile.accept_command(T, 'k', 'replay', 'dead_letter', 'rights_a', 'why', '{"entity_id": "e", "replay": {"destination": "rights_b", "idempotency_policy": "reject_duplicate"}}', true))$$) AS answer
  FROM (VALUES (ARRAY[$$'replay', 'dead_letter', 'rights_a'$$], ''), (ARRAY[$$'replay', 'queue', 'rights_b'$$], ''), (ARRAY[$$'replay', 'dead_letter', 'rights_a'$$, $$'replay', 'queue', 'rights_b'$$], ''),
               (ARRAY[$$'replay', 'dead_letter', 'rights_a'$$, $$'replay', 'dead_letter', 'rights_b'$$], ''), (ARRAY[$$'replay', 'dead_letter', 'rights_a'$$, $$'replay', 'queue'$$], ''),
               (ARRAY[$$'replay'$$], 'rights_a'), (ARRAY[$$'replay'$$], 'all'), (ARRAY[$$'replay', 'dead_letter', 'rights_a'$$, $$'replay', 'queue', 'rights_b'$$, $$'replay', 'queue', NULL, 'deny'$$], '')) g (grants, operate);
-- what is answered of an earlier command asks for both again
SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'replay', k, n) FROM (VALUES ('failure', 'f'), ('queue', 'dest')) v (k, n);
SET ROLE regress_rights_user;
SELECT outcome FROM reconcile.accept_command('rights_own', 'replayed', 'replay', 'failure', 'f', 'why', '{"replay": {"destination": "dest", "idempotency_policy": "reject_duplicate"}}', true);
SELECT outcome FROM reconcile.accept_command('rights_own', 'replayed', 'replay', 'failure', 'f', 'why', '{"replay": {"destination": "dest", "idempotency_policy": "reject_duplicate"}}', true);
RESET ROLE;
SELECT reconcile.revoke_command('regress_rights_user', 'rights_own', 'replay', 'queue', 'dest');
SET ROLE regress_rights_user;
SELECT outcome FROM reconcile.accept_command('rights_own', 'replayed', 'replay', 'failure', 'f', 'why', '{"replay": {"destination": "dest", "idempotency_policy": "reject_duplicate"}}', true);
RESET ROLE;
SELECT reconcile.revoke_command('regress_rights_user', 'rights_own', 'replay', 'failure', 'f');

--
-- Whose grants count
--
CREATE ROLE regress_rights_distant;
SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine');
CREATE FUNCTION rights_app.drain() RETURNS text LANGUAGE sql AS
    $$SELECT outcome FROM reconcile.accept_command('rights_own', 'who', 'drain', 'worker', 'mine', 'why')$$;
CREATE FUNCTION rights_app.drain_as_group() RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT outcome FROM reconcile.accept_command('rights_own', 'who', 'drain', 'worker', 'mine', 'why')$$;
CREATE FUNCTION rights_app.drain_as_stranger() RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT outcome FROM reconcile.accept_command('rights_own', 'who', 'drain', 'worker', 'mine', 'why')$$;
ALTER FUNCTION rights_app.drain_as_group OWNER TO regress_rights_group;
ALTER FUNCTION rights_app.drain_as_stranger OWNER TO regress_rights_stranger;
CREATE TABLE rights_app.asker (n int GENERATED ALWAYS AS IDENTITY, what text, first text, session name, role name, path text, call text DEFAULT 'rights_app.drain()', expected text);
INSERT INTO rights_app.asker (what, first, session, role, expected) VALUES
('a superuser', '', session_user, 'none', 'accepted'),
('the role', '', 'regress_rights_group', 'none', 'accepted'),
('a stranger', '', 'regress_rights_stranger', 'none', 'denied'),
('a superuser who is the role now', '', session_user, 'regress_rights_group', 'accepted'),
('a superuser who is a stranger now', '', session_user, 'regress_rights_stranger', 'denied'),
('a member', 'GRANT regress_rights_group TO regress_rights_user', 'regress_rights_user', 'none', 'accepted'),
('a member of a member', 'GRANT regress_rights_group TO regress_rights_distant; GRANT regress_rights_distant TO regress_rights_user', 'regress_rights_user', 'none', 'accepted'),
('a member that does not inherit', 'ALTER ROLE regress_rights_user NOINHERIT; GRANT regress_rights_group TO regress_rights_user', 'regress_rights_user', 'none', 'denied'),
('the same, as the group', 'ALTER ROLE regress_rights_user NOINHERIT; GRANT regress_rights_group TO regress_rights_user', 'regress_rights_user', 'regress_rights_group', 'accepted'),
('a role of which the role is a member', 'GRANT regress_rights_user TO regress_rights_group', 'regress_rights_user', 'none', 'denied'),
('a member who is a stranger now', 'GRANT regress_rights_group, regress_rights_stranger TO regress_rights_user', 'regress_rights_user', 'regress_rights_stranger', 'denied'),
('the group is denied', $$SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_group', 'none', 'denied'),
('another part is denied', $$SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'other', 'deny')$$, 'regress_rights_group', 'none', 'accepted'),
('denied, and then allowed once more', $$SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine', 'deny'); SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine')$$, 'regress_rights_group', 'none', 'denied'),
('denied, revoked, and allowed', $$SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine', 'deny'); SELECT reconcile.revoke_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine'); SELECT reconcile.grant_command('regress_rights_group', 'rights_own', 'drain', 'worker', 'mine')$$, 'regress_rights_group', 'none', 'accepted'),
('the member alone is denied', $$GRANT regress_rights_group TO regress_rights_user; SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_user', 'none', 'denied'),
('and steps into the group', $$GRANT regress_rights_group TO regress_rights_user; SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_user', 'regress_rights_group', 'denied'),
('denied by a group whose rights are not inherited', $$ALTER ROLE regress_rights_user NOINHERIT; GRANT regress_rights_distant TO regress_rights_user; SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain'); SELECT reconcile.grant_command('regress_rights_distant', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_user', 'none', 'denied'),
('a superuser is no member of who is denied', $$SELECT reconcile.grant_command('regress_rights_distant', 'rights_own', 'drain', effect => 'deny')$$, session_user, 'regress_rights_group', 'accepted'),
('the role has another name', 'ALTER ROLE regress_rights_group RENAME TO regress_rights_renamed', 'regress_rights_renamed', 'none', 'denied'),
('another has its name', 'ALTER ROLE regress_rights_group RENAME TO regress_rights_renamed; ALTER ROLE regress_rights_stranger RENAME TO regress_rights_group', 'regress_rights_group', 'none', 'denied'),
('who was denied has another name', $$SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain', effect => 'deny'); ALTER ROLE regress_rights_user RENAME TO regress_rights_renamed; SELECT reconcile.grant_command('regress_rights_renamed', 'rights_own', 'drain')$$, 'regress_rights_renamed', 'none', 'denied'),
('another has the name of who was denied', $$SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain', effect => 'deny'); ALTER ROLE regress_rights_user RENAME TO regress_rights_renamed; ALTER ROLE regress_rights_distant RENAME TO regress_rights_user; SELECT reconcile.grant_command('regress_rights_user', 'rights_own', 'drain')$$, 'regress_rights_user', 'none', 'denied'),
('settings say nothing', $$SET LOCAL reconcile_app.tenant = 'rights_own'; SET LOCAL app.role = 'regress_rights_group'; SET LOCAL application_name = 'regress_rights_group'$$, 'regress_rights_stranger', 'none', 'denied');
INSERT INTO rights_app.asker (what, first, session, role, call, expected) VALUES
('through a function of the role', '', 'regress_rights_stranger', 'none', 'rights_app.drain_as_group()', 'accepted'),
('through a function of a stranger', '', 'regress_rights_group', 'none', 'rights_app.drain_as_stranger()', 'denied'),
('denied, through a function of the role', $$SELECT reconcile.grant_command('regress_rights_stranger', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_stranger', 'none', 'rights_app.drain_as_group()', 'denied'),
('its owner is denied by a group whose rights he does not inherit', $$ALTER ROLE regress_rights_group NOINHERIT; GRANT regress_rights_distant TO regress_rights_group; SELECT reconcile.grant_command('regress_rights_distant', 'rights_own', 'drain', effect => 'deny')$$, 'regress_rights_stranger', 'none', 'rights_app.drain_as_group()', 'denied');
-- what the caller puts in the way of our names
CREATE SCHEMA rights_trick;
GRANT USAGE ON SCHEMA rights_trick TO PUBLIC;
CREATE FUNCTION rights_trick.pg_has_role(oid, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION rights_trick.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR rights_trick.= (FUNCTION = rights_trick.same, LEFTARG = text, RIGHTARG = text);
CREATE TABLE rights_trick.command_grant AS SELECT * FROM reconcile.command_grant;
INSERT INTO rights_app.asker (what, first, session, role, path, expected) VALUES ('by a search path', '', 'regress_rights_stranger', 'none', 'rights_trick, pg_catalog', 'denied');
CREATE FUNCTION rights_app.ask(a rights_app.asker) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
BEGIN
    IF a.first <> '' THEN
        EXECUTE a.first;
    END IF;
    PERFORM set_config('session_authorization', a.session, true), set_config('role', a.role, true);
    IF a.path IS NOT NULL THEN
        PERFORM set_config('search_path', a.path, true);
    END IF;
    EXECUTE 'SELECT ' || a.call INTO said;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN RETURN said;
    WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT a.what, rights_app.ask(a) AS answer, NULLIF(a.expected, rights_app.ask(a)) AS but_expected FROM rights_app.asker a ORDER BY n;

SELECT count(reconcile.drop_loop(l)) FROM unnest('{rights_a,rights_b}'::text[]) l;
SELECT journal_clean('rights_own', 'rights_foreign', 'rights_elsewhere');
DROP SCHEMA rights_app, rights_trick CASCADE;
DROP OWNED BY regress_rights_user, regress_rights_group, regress_rights_stranger, regress_rights_reader, regress_rights_hands, regress_rights_distant;
DROP ROLE regress_rights_user, regress_rights_group, regress_rights_stranger, regress_rights_reader, regress_rights_hands, regress_rights_distant;
RESET client_min_messages;

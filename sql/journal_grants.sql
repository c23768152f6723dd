--
-- grant_command(), revoke_command() and set_authorizer(): their contract, and bad input (P12)
--
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set chain :source '/sql/include/journal_chain.sql'
\set refusal :source '/sql/include/refusal.sql'
\i :chain
\i :refusal
CREATE ROLE regress_grants_a;
CREATE ROLE regress_grants_b;
CREATE ROLE regress_grants_super SUPERUSER;
CREATE SCHEMA grants_app;
GRANT USAGE ON SCHEMA grants_app TO PUBLIC;
GRANT EXECUTE ON FUNCTION refusal TO PUBLIC;
CREATE VIEW grants_app.grants AS
SELECT role_name, permission, target_kind, target_name, effect, role::oid = (SELECT oid FROM pg_roles r WHERE r.rolname = g.role_name) AS same
  FROM reconcile.command_grant g WHERE tenant_id = 'grants' ORDER BY role_name, permission COLLATE "C", target_kind COLLATE "C", target_name COLLATE "C", effect COLLATE "C";
CREATE VIEW grants_app.events AS SELECT sequence, event, role_name, reason, detail FROM reconcile.audit_event WHERE tenant_id = 'grants' ORDER BY sequence;
-- How many of the functions of commands, and which relations, a role may use by itself.
CREATE FUNCTION grants_app.given(of_role name, OUT functions bigint, OUT relations text) LANGUAGE sql AS $$
    SELECT (SELECT count(*) FROM reconcile.capability_functions('command') f WHERE has_function_privilege(of_role, f, 'EXECUTE')),
           (SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class c
             WHERE relnamespace = 'reconcile'::regnamespace AND relkind IN ('r', 'v') AND has_any_column_privilege(of_role, c.oid, 'SELECT')
               AND NOT has_any_column_privilege('public', c.oid, 'SELECT'))
$$;

--
-- Given, and taken
--
SELECT * FROM grants_app.given('regress_grants_a');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'drain', effect => 'deny');
-- who is denied gets nothing with it
SELECT * FROM grants_app.given('regress_grants_a');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'drain', 'worker');
SELECT * FROM grants_app.given('regress_grants_a');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'view');
SELECT * FROM grants_app.given('regress_grants_a');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'audit_view', NULL, 'w1');
SELECT * FROM grants_app.given('regress_grants_a');
-- the same once more changes nothing; another effect is another row
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'drain', 'worker');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'drain', 'worker', effect => 'deny');
SELECT * FROM grants_app.grants;
-- exactly what was granted is taken, with either effect
SELECT reconcile.revoke_command('regress_grants_a', 'grants', 'drain', 'worker', 'w1');
SELECT reconcile.revoke_command('regress_grants_b', 'grants', 'drain', 'worker');
SELECT reconcile.revoke_command('regress_grants_a', 'grants_other', 'drain', 'worker');
SELECT count(*) FROM grants_app.grants;
SELECT reconcile.revoke_command('regress_grants_a', 'grants', 'drain', 'worker');
SELECT * FROM grants_app.grants;
-- the functions stay, and refuse; the relations, and show nothing
SELECT reconcile.revoke_command('regress_grants_a', 'grants', p, k, n) FROM (VALUES ('view', NULL, NULL), ('audit_view', NULL, 'w1'), ('drain', NULL, NULL)) v (p, k, n);
SELECT * FROM grants_app.given('regress_grants_a');
SET ROLE regress_grants_a;
SELECT count(*) FROM reconcile.audit_events;
SELECT outcome FROM reconcile.accept_command('grants', 'k', 'drain', 'worker', 'w1', 'why');
RESET ROLE;
-- all of it is in the tenant's audit, but for what changed nothing
SELECT * FROM grants_app.events;
-- a superuser needs none, and gets none that would stand in the way of DROP ROLE
SELECT reconcile.grant_command('regress_grants_super', 'grants', 'view');
SELECT count(*) FROM pg_shdepend WHERE refobjid = 'regress_grants_super'::regrole;
-- one that is rolled back is none
BEGIN;
SELECT reconcile.grant_command('regress_grants_b', 'grants', 'drain');
SET LOCAL ROLE regress_grants_b;
SELECT outcome FROM reconcile.accept_command('grants', 'k', 'drain', 'worker', 'w1', 'why');
ROLLBACK;
SELECT count(*) FROM grants_app.grants WHERE role_name = 'regress_grants_b';
SELECT * FROM grants_app.given('regress_grants_b');

--
-- Roles that are dropped or renamed
--
SELECT reconcile.grant_command('regress_grants_b', 'grants', 'drain');
DROP OWNED BY regress_grants_b;
DROP ROLE regress_grants_b;
CREATE ROLE regress_grants_b;
SELECT * FROM grants_app.grants;
GRANT EXECUTE ON FUNCTION reconcile.accept_command TO regress_grants_b;
SET ROLE regress_grants_b;
SELECT outcome FROM reconcile.accept_command('grants', 'k', 'drain', 'worker', 'w1', 'why');
RESET ROLE;
-- granted to the new one
SELECT reconcile.grant_command('regress_grants_b', 'grants', 'drain');
SELECT * FROM grants_app.grants;
ALTER ROLE regress_grants_b RENAME TO regress_grants_c;
SET ROLE regress_grants_c;
SELECT outcome FROM reconcile.accept_command('grants', 'k', 'drain', 'worker', 'w1', 'why');
RESET ROLE;
-- under the name that it had, of a role that is not there any more
SELECT reconcile.revoke_command('regress_grants_c', 'grants', 'drain');
SELECT count(*) FROM grants_app.grants WHERE role_name = 'regress_grants_b';
SELECT reconcile.revoke_command('regress_grants_b', 'grants', 'drain');
SELECT count(*) FROM grants_app.grants WHERE role_name = 'regress_grants_b';
ALTER ROLE regress_grants_c RENAME TO regress_grants_b;

--
-- Bad input
--
SELECT c.call, r.code, r.message, r.hint
  FROM (VALUES ($$grant_command(NULL, 'grants', 'view')$$), ($$grant_command('regress_grants_a', NULL, 'view')$$), ($$grant_command('regress_grants_a', 'grants', NULL)$$),
               ($$grant_command('regress_grants_a', 'grants', 'view', effect => NULL)$$), ($$grant_command('regress_grants_a', 'grants', 'view', effect => 'DENY')$$),
               ($$grant_command('regress_grants_a', 'grants', 'view', effect => '')$$), ($$grant_command('regress_grants_a', '', 'view')$$), ($$grant_command('regress_grants_a', U&'\2003', 'view')$$),
               ($$grant_command('regress_grants_a', repeat('t', 257), 'view')$$), ($$grant_command('regress_grants_a', E'a\tb', 'view')$$), ($$grant_command('regress_grants_a', 'grants', '')$$),
               ($$grant_command('regress_grants_a', 'grants', 'View')$$), ($$grant_command('regress_grants_a', 'grants', 'observe')$$), ($$grant_command('regress_grants_a', 'grants', '*')$$),
               ($$grant_command('regress_grants_a', 'grants', 'view', '')$$), ($$grant_command('regress_grants_a', 'grants', 'view', repeat('k', 257))$$),
               ($$grant_command('regress_grants_a', 'grants', 'view', 'worker', '')$$), ($$grant_command('regress_grants_a', 'grants', 'view', 'worker', U&'a\202Eb')$$),
               ($$grant_command('regress_grants_gone', 'grants', 'view')$$), ($$grant_command('public', 'grants', 'view')$$), ($$grant_command('', 'grants', 'view')$$),
               ($$revoke_command(NULL, 'grants', 'view')$$), ($$revoke_command('regress_grants_a', NULL, 'view')$$), ($$revoke_command('regress_grants_a', 'grants', NULL)$$),
               ($$revoke_command('regress_grants_a', 'grants', 'nothing')$$), ($$revoke_command('regress_grants_a', 'grants', 'view', '')$$)) c (call),
       LATERAL refusal('SELECT reconcile.' || c.call) r;
-- of an administrator alone, and where it can be written
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO regress_grants_b;
SET ROLE regress_grants_b;
SELECT c.call, r.code, r.message FROM (VALUES ($$grant_command('regress_grants_b', 'grants', 'view')$$), ($$revoke_command('regress_grants_a', 'grants', 'view')$$), ($$set_authorizer(NULL)$$)) c (call),
       LATERAL refusal('SELECT reconcile.' || c.call) r;
RESET ROLE;
BEGIN READ ONLY;
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'view');
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.revoke_command('regress_grants_a', 'grants', 'view');
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.set_authorizer(NULL);
ROLLBACK;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile FROM regress_grants_b;
-- each permission may be granted
SELECT count(reconcile.grant_command('regress_grants_a', 'grants', p)) FROM unnest('{pause,resume,drain,terminate,retry,bulk_retry,delete,purge,replay,scale,view,record_list,record_inspect,payload_view,diagnostics_view,audit_view,retention_configure,dispatch,resolve,report}'::text[]) p;
-- an action of one's own is a permission, when there is one; and none is named like another permission
SELECT reconcile.register_action('grants_retire', '{region}', 'external');
SELECT reconcile.grant_command('regress_grants_a', 'grants', 'grants_retire', 'region', 'eu');
SELECT p, r.code, r.message FROM unnest('{view,audit_view,dispatch,resolve,report,retention_configure,record_list,record_inspect,payload_view,diagnostics_view,pause}'::text[]) p,
       LATERAL refusal(format('SELECT reconcile.register_action(%L, ''{region}'', ''external'')', p)) r;
SET ROLE regress_grants_a;
SELECT n, outcome FROM unnest('{eu,us}'::text[]) n, reconcile.accept_command('grants', 'retire ' || n, 'grants_retire', 'region', n, 'why');
RESET ROLE;

--
-- An authorizer agrees to what grants allow, or not
--
CREATE TABLE grants_app.asked (request jsonb, as_role name DEFAULT current_user, path text DEFAULT current_setting('search_path'));
CREATE FUNCTION grants_app.yes(request jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION grants_app.no(request jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE FUNCTION grants_app.perhaps(request jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT NULL::boolean';
CREATE FUNCTION grants_app.fails(request jsonb) RETURNS boolean LANGUAGE sql AS $$SELECT 1 / (request->>'x' IS NOT NULL)::int = 1$$;
CREATE FUNCTION grants_app.notes(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO grants_app.asked VALUES (request);
    RETURN request->>'target_name' IS DISTINCT FROM 'w2';
END $$;
CREATE FUNCTION grants_app.sets_role(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RESET ROLE; RETURN true; END$$;
CREATE FUNCTION grants_app.sets_authorization(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN SET SESSION AUTHORIZATION DEFAULT; RETURN true; END$$;
CREATE FUNCTION grants_app.writes_and_fails(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN INSERT INTO grants_app.asked VALUES (request); RAISE 'secret of the authorizer'; END$$;
CREATE FUNCTION grants_app.sets(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('work_mem', '123kB', false); RETURN true; END$$;
CREATE FUNCTION grants_app.asks_again(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT outcome = 'denied' FROM reconcile.accept_command('grants', 'inner', 'drain', 'worker', 'w1', 'why')); END$$;
-- what each comes to, which is undone
CREATE FUNCTION grants_app.with(authorizer text, meanwhile text DEFAULT '', OUT answer text, OUT asked bigint, OUT work_mem text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM reconcile.set_authorizer(authorizer);
    IF meanwhile <> '' THEN
        EXECUTE meanwhile;
    END IF;
    PERFORM set_config('role', 'regress_grants_a', true);
    SELECT outcome INTO answer FROM reconcile.accept_command('grants', 'with', 'drain', 'worker', 'w1', 'why', actor => 'ann');
    PERFORM set_config('role', 'none', true);
    IF to_regclass('grants_app.asked') IS NOT NULL THEN
        asked := (SELECT count(*) FROM grants_app.asked);
    END IF;
    work_mem := current_setting('work_mem');
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN NULL;
    WHEN OTHERS THEN answer := SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT f, a.* FROM unnest('{NULL,grants_app.yes,grants_app.no,grants_app.perhaps,grants_app.fails,grants_app.notes,grants_app.sets_role,grants_app.sets_authorization,grants_app.writes_and_fails,grants_app.sets,grants_app.asks_again}'::text[]) f,
       LATERAL grants_app.with(f) a;
-- whatever becomes of it afterwards
SELECT m, a.answer
  FROM (VALUES ('DROP FUNCTION grants_app.yes'), ('ALTER FUNCTION grants_app.yes RENAME TO was_yes'), ('ALTER SCHEMA grants_app RENAME TO grants_gone'), ('ALTER FUNCTION grants_app.yes OWNER TO regress_grants_a'),
               ('DROP FUNCTION grants_app.yes; CREATE FUNCTION grants_app.yes(request jsonb) RETURNS text LANGUAGE sql AS $$SELECT true::text$$'),
               ('DROP FUNCTION grants_app.yes; CREATE FUNCTION grants_app.yes(request jsonb, more text DEFAULT NULL) RETURNS boolean LANGUAGE sql AS $$SELECT true$$'),
               ('CREATE OR REPLACE FUNCTION grants_app.yes(request jsonb) RETURNS boolean LANGUAGE sql AS $$SELECT false$$'),
               ('UPDATE reconcile.command_authorizer SET owner_name = ''regress_grants_gone'''), ('UPDATE reconcile.command_authorizer SET signature = ''no signature'''), ('SELECT 1')) v (m),
       LATERAL grants_app.with('grants_app.yes', m) a;
-- what it is told, by whom, and as whom it runs; a replay asks as well
SELECT reconcile.set_authorizer('grants_app.notes');
SET ROLE regress_grants_a;
SELECT outcome FROM reconcile.accept_command('grants', 'told', 'drain', 'worker', 'w1', 'why', actor => 'ann', command_id => 'told');
SELECT outcome FROM reconcile.accept_command('grants', 'told', 'drain', 'worker', 'w1', 'why', actor => 'ann');
SELECT outcome FROM reconcile.accept_command('grants', 'told_2', 'drain', 'worker', 'w2', 'why');
SELECT reconcile.cancel_command('grants', 'told', 'why');
SELECT reconcile.audit_access('grants', 'payload_view', 'failure', 'w2', 'why');
SELECT count(*) FROM reconcile.desired_states_since('grants');
SELECT outcome FROM reconcile.audit_verify('grants');
SELECT outcome FROM reconcile.prune_commands('grants');
RESET ROLE;
SELECT * FROM grants_app.asked;
-- not who may anything, nor where no grant allows it
TRUNCATE grants_app.asked;
SELECT outcome FROM reconcile.accept_command('grants', 'told_3', 'drain', 'worker', 'w2', 'why');
GRANT EXECUTE ON FUNCTION reconcile.accept_command TO regress_grants_b;
SET ROLE regress_grants_b;
SELECT outcome FROM reconcile.accept_command('grants', 'told_4', 'drain', 'worker', 'w2', 'why');
RESET ROLE;
SELECT count(*) FROM grants_app.asked;
SELECT signature, owner_name FROM reconcile.command_authorizer;
-- what it refuses is claimed by nobody, and stands before nothing
SELECT reconcile.grant_command('regress_grants_b', 'grants', 'dispatch');
SELECT reconcile.set_authorizer(NULL);
SELECT outcome FROM unnest('{w2,w2,w3}'::text[]) WITH ORDINALITY n (name, n), reconcile.accept_command('grants', 'claim ' || n, 'drain', 'worker', name, 'why', deadline_in => '5 min');
SELECT reconcile.set_authorizer('grants_app.notes');
SET ROLE regress_grants_b;
SELECT target_name FROM reconcile.claim_commands('hands', '{drain}', 1);
SELECT target_name FROM reconcile.claim_commands('hands', '{drain}', 1);
RESET ROLE;
SELECT reconcile.set_authorizer(NULL);
SELECT count(*) FROM reconcile.command_authorizer;
-- bad input
CREATE FUNCTION grants_app.another(request text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION grants_app.many(request jsonb) RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION grants_app.foreign(request jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
ALTER FUNCTION grants_app.foreign OWNER TO regress_grants_a;
CREATE PROCEDURE grants_app.procedure(request jsonb) LANGUAGE sql AS 'SELECT true';
SELECT f, r.code, r.message FROM unnest(ARRAY['', 'grants_app.gone', 'yes', 'grants_app.another', 'grants_app.many', 'grants_app.procedure', 'grants_app.foreign', 'grants_app.yes(text)', 'a.b.c', 'grants_app.yes(jsonb)']) f,
       LATERAL refusal(format('SELECT reconcile.set_authorizer(%L)', f)) r;
SELECT signature FROM reconcile.command_authorizer;
SELECT reconcile.set_authorizer();

SELECT outcome FROM reconcile.audit_verify('grants');
SELECT journal_clean('grants');
DELETE FROM reconcile.command_action WHERE action = 'grants_retire';
SET client_min_messages = warning;
DROP SCHEMA grants_app CASCADE;
RESET client_min_messages;
DROP FUNCTION refusal;
DROP OWNED BY regress_grants_a, regress_grants_b, regress_grants_super;
DROP ROLE regress_grants_a, regress_grants_b, regress_grants_super;

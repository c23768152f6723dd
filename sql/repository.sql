--
-- A loop's repository: a function of the user's that takes the fenced writes.
--
SET client_min_messages = warning;
CREATE SCHEMA repo_test;
GRANT USAGE ON SCHEMA repo_test TO PUBLIC;
SET search_path = repo_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

CREATE ROLE repo_test_owner;
CREATE ROLE repo_test_writer;
CREATE ROLE repo_test_stranger;
CREATE SCHEMA repo_test_owner AUTHORIZATION repo_test_owner;
SELECT reconcile.grant_access('repo_test_owner', 'define', 'store');
SELECT reconcile.grant_access('repo_test_writer', 'fence', 'store'), reconcile.grant_access('repo_test_writer', 'lease', 'store');

-- What it is called with, as whom, and by which path.
SET SESSION AUTHORIZATION repo_test_owner;
CREATE TABLE repo_test_owner.kept (n int GENERATED ALWAYS AS IDENTITY, entity text, mutation jsonb,
    as_role name DEFAULT current_user, as_session name DEFAULT session_user, path text DEFAULT current_setting('search_path'));
CREATE FUNCTION repo_test_owner.store(entity_id text, mutation jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF mutation = '"fails"' THEN RAISE 'cannot keep %', entity_id USING ERRCODE = 'AP001'; END IF;
    INSERT INTO kept (entity, mutation) VALUES (entity_id, mutation);
    IF mutation ? 'run' THEN EXECUTE mutation ->> 'run'; END IF;
END $$;
SELECT reconcile.create_loop('store', repository => 'repo_test_owner.store', lease_ttl => '1 h');
RESET SESSION AUTHORIZATION;

-- Accepted: called, and the entity's epoch and revision are recorded. Refused: not called.
SET SESSION AUTHORIZATION repo_test_writer;
SELECT reconcile.apply_fenced('store', 'a', 0, '{"n": 1}'), reconcile.apply_fenced('store', 'a', 5, '{"n": 2}'),
       reconcile.apply_fenced('store', 'a', 4, '{"n": 3}');
SELECT epoch FROM reconcile.acquire_lease('store', 'h');
SELECT reconcile.apply_fenced('store', 'b', 5, '{"n": 4}') AS stale;
SELECT code FROM refusal($$SELECT reconcile.apply_fenced('store', 'b', 7, '{"n": 5}')$$);
SELECT * FROM reconcile.apply_fenced_many('store', '{c,a,c}', 6, ARRAY['{"n": 6}', '{"n": 7}', '[8]']::jsonb[]);
SELECT * FROM reconcile.apply_fenced_many('store', '{c,a}', 5, ARRAY['{"n": 9}', '{"n": 10}']::jsonb[]);
BEGIN;
SELECT reconcile.bind_lease('store', 'h', 6);
SELECT reconcile.fenced_write('d', '{"n": 11}');
COMMIT;
RESET SESSION AUTHORIZATION;
SELECT n, entity, mutation, as_role FROM repo_test_owner.kept ORDER BY n;
SELECT entity_id, last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'store' ORDER BY entity_id;
-- the limits of a mutation come first
SELECT code, message FROM unnest(ARRAY['to_jsonb(repeat(''x'', 1048576))', '(repeat(''['', 65) || repeat('']'', 65))::jsonb']) m,
    refusal(format($$SELECT reconcile.apply_fenced('store', 'a', 6, %s)$$, m));

-- An error of it is the writer's, and takes all of the call with it.
SELECT code, message FROM refusal($$SELECT reconcile.apply_fenced('store', 'a', 6, '"fails"')$$);
SELECT code, message FROM refusal($$SELECT reconcile.apply_fenced_many('store', '{a,b,c}', 6, ARRAY['1', '2', '"fails"']::jsonb[])$$);
SELECT entity_id, last_epoch, revision FROM reconcile.resources WHERE reconciler_id = 'store' ORDER BY entity_id;
SELECT count(*) FROM repo_test_owner.kept;

-- It is the owner who runs it, by a path of his: the writer's tables, temporary
-- ones too, are not what it finds, and nothing that it sets stays.
TRUNCATE repo_test_owner.kept;
SET SESSION AUTHORIZATION repo_test_writer;
BEGIN;
CREATE TEMP TABLE kept (entity text, mutation jsonb);
SET LOCAL search_path = pg_temp;
SELECT reconcile.apply_fenced('store', 'a', 6, '{"run": "SET work_mem = ''77kB''"}');
SELECT current_user, current_setting('search_path'), current_setting('work_mem') <> '77kB' AS work_mem_stays;
SELECT count(*) FROM kept;
DROP TABLE kept;
COMMIT;
RESET SESSION AUTHORIZATION;
SELECT as_role, as_session, path FROM repo_test_owner.kept;
-- the path that a session of his begins with, in the order in which settings count there
SET search_path = repo_test;
ALTER ROLE repo_test_owner SET search_path = repo_test_owner;
SELECT reconcile.apply_fenced('store', 'a', 6, '1');
DO $$ BEGIN EXECUTE format('ALTER ROLE repo_test_owner IN DATABASE %I SET search_path = pg_temp, repo_test_owner', current_database()); END $$;
SELECT reconcile.apply_fenced('store', 'a', 6, '2');
SELECT mutation, path FROM repo_test_owner.kept WHERE n > (SELECT min(n) FROM repo_test_owner.kept) ORDER BY n;
DO $$ BEGIN EXECUTE format('ALTER ROLE repo_test_owner IN DATABASE %I RESET search_path', current_database()); END $$;
ALTER ROLE repo_test_owner RESET search_path;

-- No way from there to the session's own roles.
SELECT command, code FROM unnest(ARRAY['RESET ROLE', 'SET ROLE NONE', 'SET SESSION AUTHORIZATION DEFAULT',
    'SELECT set_config(''role'', ''none'', true)', 'ALTER ROLE repo_test_owner SUPERUSER']) command,
    refusal(format($$SELECT reconcile.apply_fenced('store', 'a', 6, %L)$$, jsonb_build_object('run', command)));
SELECT current_user = session_user AS as_before, current_setting('search_path');

-- and nothing of it waits for COMMIT, when the session is the writer's again
CREATE TABLE repo_test_owner.later (as_role name);
GRANT ALL ON repo_test_owner.later TO repo_test_owner;
SET SESSION AUTHORIZATION repo_test_owner;
CREATE FUNCTION repo_test_owner.later() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO repo_test_owner.later VALUES (current_user);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON repo_test_owner.kept DEFERRABLE INITIALLY IMMEDIATE
    FOR EACH ROW WHEN (NEW.entity = 'later') EXECUTE FUNCTION repo_test_owner.later();
RESET SESSION AUTHORIZATION;
SELECT statement, code, message FROM unnest(ARRAY['SET CONSTRAINTS repo_test_owner.later DEFERRED; INSERT INTO kept (entity) VALUES (''later'')',
    'DECLARE held CURSOR WITH HOLD FOR SELECT 1', 'CREATE TEMP TABLE mine ()']) statement,
    refusal(format($$SELECT reconcile.apply_fenced('store', 'a', 6, %L)$$, jsonb_build_object('run', statement)));
SELECT * FROM repo_test_owner.later;
SELECT reconcile.apply_fenced('store', 'later', 6, '0');
SELECT * FROM repo_test_owner.later;
DROP TRIGGER later ON repo_test_owner.kept;

-- It may write other entities, and not the one that it is called for.
SELECT reconcile.apply_fenced('store', 'a', 6, jsonb_build_object('run', $$SELECT reconcile.apply_fenced('store', 'x', 6, '"by a"')$$));
SELECT last_epoch, revision FROM reconcile.resources WHERE entity_id = 'x';
SELECT code, message, hint FROM refusal(format($$SELECT reconcile.apply_fenced('store', 'a', 6, %L)$$,
    jsonb_build_object('run', $$SELECT reconcile.apply_fenced('store', 'a', 6, '"again"')$$)));
SELECT code FROM refusal(format($$SELECT reconcile.apply_fenced('store', 'a', 6, %L)$$, jsonb_build_object('run',
    format($$SELECT reconcile.apply_fenced('store', 'y', 6, %L)$$, jsonb_build_object('run', $$SELECT reconcile.apply_fenced('store', 'a', 6, '"again"')$$)))));
-- and once it has failed, the next call is none within it
SELECT reconcile.apply_fenced('store', 'a', 6, '3');

-- A session that has written before hears of each change of the loop.
SELECT reconcile.alter_loop('store', '{"repository": null}');
SELECT reconcile.apply_fenced('store', 'a', 6, '{"merged": true}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';
BEGIN;
SELECT reconcile.alter_loop('store', '{"repository": "repo_test_owner.store"}');
SELECT reconcile.apply_fenced('store', 'a', 6, '{"called": true}');
ROLLBACK;
SELECT reconcile.apply_fenced('store', 'a', 6, '{"merged": 2}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';
SELECT reconcile.alter_loop('store', '{"repository": "repo_test_owner.store"}');
SELECT reconcile.apply_fenced('store', 'a', 6, '{"called": 2}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';

-- also of one that came past our functions
SELECT reconcile.alter_loop('store', '{"repository": null}');
SELECT reconcile.apply_fenced('store', 'a', 6, '{"merged": 3}');
UPDATE reconcile.loop SET repository = 'repo_test_owner.store(text,jsonb)' WHERE loop_name = 'store';
SELECT reconcile.apply_fenced('store', 'a', 6, '{"called": 3}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';

-- What may have become of the function since: each is refused, by name, and nothing is written.
SELECT revision AS before FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a' \gset
CREATE FUNCTION write_a(OUT code text, OUT message text, OUT detail text) LANGUAGE sql AS
    $$SELECT code, message, detail FROM repo_test.refusal('SELECT reconcile.apply_fenced(''store'', ''a'', 6, ''{"late": true}'')')$$;
BEGIN;
ALTER FUNCTION repo_test_owner.store RENAME TO gone;
SELECT * FROM write_a();
ROLLBACK;
BEGIN;
DROP FUNCTION repo_test_owner.store;
CREATE FUNCTION repo_test_owner.store(entity_id text, mutation jsonb) RETURNS SETOF text LANGUAGE sql AS 'SELECT entity_id';
SELECT code, message FROM write_a();
ROLLBACK;
BEGIN;
REVOKE EXECUTE ON FUNCTION repo_test_owner.store FROM PUBLIC, repo_test_owner;
SELECT * FROM write_a();
ROLLBACK;
BEGIN;
ALTER FUNCTION repo_test_owner.store OWNER TO repo_test_stranger;
SELECT * FROM write_a();
ROLLBACK;
BEGIN;
-- of a superuser it may be; it runs as the loop's owner nevertheless
ALTER FUNCTION repo_test_owner.store OWNER TO CURRENT_USER;
SELECT * FROM write_a();
SELECT DISTINCT as_role FROM repo_test_owner.kept WHERE mutation ? 'late';
ROLLBACK;
SELECT revision - :before AS written FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';

-- Dropped with its loop.
SELECT reconcile.drop_loop('store');
SELECT reconcile.apply_fenced('store', 'a', 6, '{"merged": 4}');
SELECT state FROM reconcile.resources WHERE reconciler_id = 'store' AND entity_id = 'a';

DO $$
BEGIN
    PERFORM reconcile.revoke_access(r, c, 'store')
       FROM (VALUES ('repo_test_owner'::name, 'define'), ('repo_test_writer', 'fence'), ('repo_test_writer', 'lease')) v (r, c);
END $$;
DROP SCHEMA repo_test, repo_test_owner CASCADE;
DROP OWNED BY repo_test_owner, repo_test_writer, repo_test_stranger;
DROP ROLE repo_test_owner, repo_test_writer, repo_test_stranger;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

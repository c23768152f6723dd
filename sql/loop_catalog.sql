--
-- Loops: made, changed, read, dropped.
--
\set VERBOSITY default
SET client_min_messages = notice;
CREATE ROLE regress_loop_owner LOGIN;
CREATE ROLE regress_loop_other LOGIN;
CREATE ROLE regress_loop_nobody NOLOGIN;
CREATE SCHEMA loop_app AUTHORIZATION regress_loop_owner;
GRANT USAGE ON SCHEMA loop_app TO PUBLIC;
GRANT CREATE ON SCHEMA loop_app TO regress_loop_other;
SET ROLE regress_loop_owner;
CREATE FUNCTION loop_app.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE FUNCTION loop_app.drive_void(entity_id text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION loop_app.drive(entity_id int) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE FUNCTION loop_app.by_number(entity_id int) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE FUNCTION loop_app.to_text(entity_id text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION loop_app.many(entity_id text) RETURNS SETOF interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE PROCEDURE loop_app.proc(entity_id text) LANGUAGE sql AS '';
CREATE FUNCTION loop_app."Drive It"(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
CREATE FUNCTION loop_app.closed(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
REVOKE EXECUTE ON FUNCTION loop_app.closed FROM PUBLIC, regress_loop_owner;
RESET ROLE;
SET ROLE regress_loop_other;
CREATE FUNCTION loop_app.foreign_drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
RESET ROLE;
SELECT reconcile.grant_access('regress_loop_owner', 'define', 'loop_a');

-- Defaults of a minimal loop (8.1: 8, 16, 17)
SET ROLE regress_loop_owner;
SELECT reconcile.create_loop('loop_a', 'loop_app.drive');
\x
SELECT * FROM reconcile.loops WHERE loop_name = 'loop_a';
\x
-- its owner has every capability on it
SELECT reconcile.enqueue('loop_a', 'e1');
SELECT reconcile.pause_loop('loop_a');

-- "define" was given on loop_a only, and others have nothing (P11)
SELECT reconcile.create_loop('loop_b', 'loop_app.drive');
SET ROLE regress_loop_other;
SELECT reconcile.create_loop('loop_b', 'loop_app.drive');
SELECT count(*) FROM reconcile.loops;
RESET ROLE;
SELECT reconcile.grant_access('regress_loop_owner', 'define');

-- There already: error, keep, replace
SET ROLE regress_loop_owner;
SELECT reconcile.create_loop('loop_a', 'loop_app.drive_void');
SELECT reconcile.create_loop('loop_a', 'loop_app.drive_void', if_exists => 'keep');
SELECT owner, reconciler FROM reconcile.loops WHERE loop_name = 'loop_a';
SELECT reconcile.create_loop('loop_a', 'loop_app.drive_void', concurrency => 4, owner => 'regress_loop_owner',
                             timeout => '5 s', lease_ttl => '9 s', renew_every => '4.5 s', if_exists => 'replace');
SELECT owner, reconciler, concurrency, timeout, lease_ttl, renew_every, paused FROM reconcile.loops WHERE loop_name = 'loop_a';

-- Functions are named by text, resolved at once by the caller's path, stored with their schema
SELECT reconcile.create_loop('loop_b', 'drive');
SET search_path = loop_app;
SELECT reconcile.create_loop('loop_b', 'drive');
SELECT reconcile.create_loop('loop_c', 'DRIVE ( pg_catalog.text ) ');
SELECT reconcile.create_loop('loop_d', '"Drive It"');
SELECT reconcile.create_loop('loop_e', 'loop_app."Drive It"(text)', enabled => false);
SELECT reconcile.create_loop('loop_f');
RESET search_path;
SELECT loop_name, reconciler, enabled FROM reconcile.loops ORDER BY loop_name;
SELECT reconcile.create_loop('loop_x', 'loop_app.none');
SELECT reconcile.create_loop('loop_x', 'no_schema.drive(text)');
SELECT reconcile.create_loop('loop_x', 'loop_app.by_number');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive(int)');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive()');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive(text, text)');
SELECT reconcile.create_loop('loop_x', 'loop_app.to_text');
SELECT reconcile.create_loop('loop_x', 'loop_app.many');
SELECT reconcile.create_loop('loop_x', 'loop_app.proc');
SELECT reconcile.create_loop('loop_x', 'pg_catalog.min');
SELECT reconcile.create_loop('loop_x', '12345');
SELECT reconcile.create_loop('loop_x', 'a.b.c');
SELECT reconcile.create_loop('loop_x', '');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive(text) x');
BEGIN;
CREATE FUNCTION pg_temp.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
SELECT reconcile.create_loop('loop_x', 'pg_temp.drive');
ROLLBACK;

-- User code runs as its owner: who may choose it (P11)
SELECT reconcile.create_loop('loop_x', 'loop_app.closed');
SELECT reconcile.create_loop('loop_x', 'loop_app.foreign_drive');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive', owner => 'regress_loop_other');
SELECT reconcile.create_loop('loop_x', 'loop_app.drive', owner => 'regress_no_such_role');
RESET ROLE;
SELECT reconcile.create_loop('loop_x', 'loop_app.drive', owner => 'regress_loop_other');
SELECT reconcile.grant_access('regress_loop_other', 'define', 'loop_a');
SET ROLE regress_loop_other;
SELECT reconcile.alter_loop('loop_a', '{"concurrency": 5}');
SELECT reconcile.alter_loop('loop_a', '{"reconciler": "loop_app.drive"}');
SELECT reconcile.alter_loop('loop_a', '{"owner": "regress_loop_owner"}');
SELECT reconcile.alter_loop('loop_b', '{"concurrency": 5}');
RESET ROLE;

-- Who cannot connect owns no loop with a function
GRANT regress_loop_nobody TO regress_loop_owner;
BEGIN;
DO $$ BEGIN EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database()); END $$;
SELECT reconcile.create_loop('loop_x', 'loop_app.drive_void', owner => 'regress_loop_owner');
ROLLBACK;
SELECT reconcile.create_loop('loop_g', owner => 'regress_loop_nobody');
SELECT owner FROM reconcile.loops WHERE loop_name = 'loop_g';
SELECT reconcile.drop_loop('loop_g');

-- Bounds that concern two options name both (8.1: 9, 22)
SELECT reconcile.create_loop('loop_x', backoff_base => '2 s', backoff_max => '1 s');
SELECT reconcile.create_loop('loop_x', backoff_base => '1 h');
SELECT reconcile.create_loop('loop_x', renew_every => '1 s');
SELECT reconcile.create_loop('loop_x', lease_ttl => '3 s', renew_every => '2 s');
SELECT reconcile.create_loop('loop_x', repository => 'loop_app.drive');

-- A lister takes nothing and returns ids; a repository takes an id and a mutation
SELECT reconcile.create_loop('loop_x', lister => 'loop_app.drive');
SELECT reconcile.create_loop('loop_x', lister => 'loop_app.drive()');
CREATE FUNCTION loop_app.list_all() RETURNS SETOF text LANGUAGE sql AS $$ SELECT 'a' $$;
CREATE FUNCTION loop_app.list_int() RETURNS SETOF int LANGUAGE sql AS $$ SELECT 1 $$;
CREATE FUNCTION loop_app.store(id text, mutation jsonb) RETURNS void LANGUAGE sql AS '';
SELECT reconcile.create_loop('loop_x', lister => 'loop_app.list_int');
SELECT reconcile.create_loop('loop_x', lister => 'loop_app.list_all(text)');
SELECT reconcile.create_loop('loop_x', repository => 'loop_app.drive', lease_ttl => '3 s');
SELECT reconcile.create_loop('loop_x', repository => 'loop_app.store(jsonb, text)', lease_ttl => '3 s');
SELECT reconcile.alter_loop('loop_a', '{"lister": "loop_app.drive"}');
SELECT reconcile.create_loop('loop_x', lister => 'loop_app.list_all()', resync_every => '1 h', lease_ttl => '3 s',
    repository => 'loop_app.store (text, pg_catalog.jsonb)', enabled => false);
SELECT lister, resync_every, repository FROM reconcile.loops WHERE loop_name = 'loop_x';
SELECT reconcile.alter_loop('loop_x', '{"lease_ttl": null}');
SELECT reconcile.alter_loop('loop_x', '{"lister": null, "repository": null, "resync_every": null, "lease_ttl": null}');
SELECT lister, resync_every, repository FROM reconcile.loops WHERE loop_name = 'loop_x';
SELECT reconcile.drop_loop('loop_x');
DROP FUNCTION loop_app.list_all(), loop_app.list_int(), loop_app.store(text, jsonb);

-- alter_loop: what is absent stays, null is the option's NULL
SET ROLE regress_loop_owner;
SELECT reconcile.alter_loop('loop_a', '{}');
SELECT reconcile.alter_loop('loop_a', '{"default_requeue": null, "timeout": null, "max_attempts": 3, "backoff_jitter": 0.25,
    "backoff_base": "1 s", "backoff_max": "1 min 30 s", "enabled": false, "lister": null}');
\x
SELECT reconciler, default_requeue, concurrency, backoff_base, backoff_max, backoff_jitter, max_attempts, timeout, lease_ttl,
       renew_every, enabled, paused FROM reconcile.loops WHERE loop_name = 'loop_a';
\x
-- the whole is checked, with what was there
SELECT reconcile.alter_loop('loop_a', '{"backoff_base": "2 min"}');
SELECT reconcile.alter_loop('loop_a', '{"lease_ttl": null}');
SELECT reconcile.alter_loop('loop_a', '{"lease_ttl": "8 s"}');
SELECT reconcile.alter_loop('loop_a', '{"concurrency": 7, "lease_ttl": null, "renew_every": null, "reconciler": null}');
SELECT reconciler, concurrency, lease_ttl, renew_every FROM reconcile.loops WHERE loop_name = 'loop_a';
-- a new owner, and null for the caller
SELECT reconcile.alter_loop('loop_a', '{"owner": "regress_loop_nobody"}');
SELECT reconcile.alter_loop('loop_a', '{"owner": "regress_loop_nobody", "reconciler": "loop_app.drive_void"}');
SELECT owner FROM reconcile.loops WHERE loop_name = 'loop_a';
SELECT reconcile.alter_loop('loop_a', '{"owner": null}');
SELECT owner FROM reconcile.loops WHERE loop_name = 'loop_a';
RESET ROLE;

-- A loop whose function is gone, or became another, can still be changed
DROP FUNCTION loop_app."Drive It"(text);
SELECT reconcile.alter_loop('loop_d', '{"concurrency": 2}');
SELECT reconcile.alter_loop('loop_d', '{"owner": "regress_loop_owner"}');
SELECT loop_name, concurrency FROM reconcile.loops WHERE loop_name = 'loop_d';

-- pause and resume: idempotent
SELECT reconcile.pause_loop('loop_b'), reconcile.pause_loop('loop_b');
SELECT paused FROM reconcile.loops WHERE loop_name = 'loop_b';
SELECT reconcile.resume_loop('loop_b');
SELECT reconcile.resume_loop('loop_b');
SELECT paused FROM reconcile.loops WHERE loop_name = 'loop_b';

-- drop_loop: its marks, its entities' state and its watches go, its lease and the history stay
CREATE TABLE loop_app.thing (id text);
SELECT reconcile.watch('loop_b', 'loop_app.thing', 'id');
INSERT INTO loop_app.thing VALUES ('w1'), ('w2');
SELECT reconcile.enqueue_many('loop_b', ARRAY['x', 'y'], delay => '1 h');
SELECT reconcile.enqueue('loop_c', 'x');
INSERT INTO reconcile.entity VALUES ('loop_b', 'sick', 3, 'attempts', '22023', 'no', now());
SELECT epoch FROM reconcile.acquire_lease('loop_b', 'somebody');
SELECT reconcile.drop_loop('loop_b');
SELECT count(*) FROM reconcile.loop WHERE loop_name = 'loop_b';
SELECT loop_name, entity_id FROM reconcile.mark WHERE loop_name IN ('loop_b', 'loop_c') ORDER BY 1, 2;
SELECT count(*) FROM reconcile.entity WHERE loop_name = 'loop_b';
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'loop_app.thing'::regclass;
SELECT reconciler_id, holder_id, epoch FROM reconcile.leases WHERE reconciler_id = 'loop_b';
INSERT INTO loop_app.thing VALUES ('w3');
SELECT count(*) FROM reconcile.work WHERE loop_name = 'loop_b';
SELECT reconcile.drop_loop('loop_b');

SELECT reconcile.drop_loop(loop_name) FROM reconcile.loops;
SELECT count(*) FROM reconcile.mark;
DELETE FROM reconcile.lease_term WHERE reconciler_id = 'loop_b';
DELETE FROM reconcile.lease WHERE reconciler_id = 'loop_b';
SELECT reconcile.revoke_access('regress_loop_owner', 'define');
SELECT reconcile.revoke_access('regress_loop_owner', 'define', 'loop_a');
SELECT reconcile.revoke_access('regress_loop_other', 'define', 'loop_a');
SET client_min_messages = warning;
DROP SCHEMA loop_app CASCADE;
DROP OWNED BY regress_loop_owner, regress_loop_other, regress_loop_nobody CASCADE;
DROP ROLE regress_loop_owner, regress_loop_other, regress_loop_nobody;

-- P12: what run_loop() refuses, and how.
\set SHOW_CONTEXT never
CREATE ROLE run_loop_owner LOGIN;
CREATE ROLE run_loop_stranger;
SELECT reconcile.grant_access('run_loop_owner', 'define');
SELECT reconcile.grant_access('run_loop_stranger', 'operate');
CREATE SCHEMA AUTHORIZATION run_loop_owner;
SET SESSION AUTHORIZATION run_loop_owner;
CREATE FUNCTION run_loop_owner.drive(entity_id text) RETURNS void LANGUAGE sql AS 'SELECT';
SELECT reconcile.create_loop('run_loop_quiet', 'run_loop_owner.drive', enabled => false);

-- an argument that is no reconciler id, or none of ours: 22023, 42704
\set VERBOSITY sqlstate
CALL reconcile.run_loop('Not An Id');
CALL reconcile.run_loop('');
CALL reconcile.run_loop(repeat('a', 49));
CALL reconcile.run_loop('run_loop_missing');
CALL reconcile.run_loop('run_loop_quiet', 0);
CALL reconcile.run_loop('run_loop_quiet', -1);

-- it commits, so not in a block: 2D000
BEGIN;
CALL reconcile.run_loop('run_loop_quiet');
ROLLBACK;
-- nor in a function, whatever calls it
CREATE FUNCTION run_loop_owner.inside() RETURNS void LANGUAGE plpgsql AS
    $$BEGIN CALL reconcile.run_loop('run_loop_quiet'); END$$;
SELECT run_loop_owner.inside();

-- another's loop: 42501, also for whoever may operate it, and for a superuser
SET SESSION AUTHORIZATION run_loop_stranger;
CALL reconcile.run_loop('run_loop_quiet');
RESET SESSION AUTHORIZATION;
CALL reconcile.run_loop('run_loop_quiet');
-- its owner sees it; all that follows is his
SET SESSION AUTHORIZATION run_loop_owner;
SELECT count(*) FROM reconcile.loops WHERE loop_name LIKE 'run_loop%';

-- nothing due, all of one's loops, from a procedure of one's own: no error
CALL reconcile.run_loop('run_loop_quiet');
CALL reconcile.run_loop();
CALL reconcile.run_loop(max_items => 1);
DO $$BEGIN CALL reconcile.run_loop('run_loop_quiet'); END$$;
-- a default isolation level above READ COMMITTED, or read only, does not matter
SET default_transaction_isolation = 'serializable';
SET default_transaction_read_only = on;
CALL reconcile.run_loop('run_loop_quiet');
RESET default_transaction_isolation;
RESET default_transaction_read_only;

SELECT reconcile.drop_loop('run_loop_quiet');
RESET SESSION AUTHORIZATION;
DROP OWNED BY run_loop_owner, run_loop_stranger;
SELECT reconcile.revoke_access('run_loop_owner', 'define');
SELECT reconcile.revoke_access('run_loop_stranger', 'operate');
DROP ROLE run_loop_owner, run_loop_stranger;

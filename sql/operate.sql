--
-- The operator's functions of section 3: their contract where no process matters, and bad input (P12).
--
\set SHOW_CONTEXT never
CREATE SCHEMA operate;
CREATE TABLE operate.seen (id text, note text);
CREATE FUNCTION operate.drive(entity_id text) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO operate.seen SELECT drive.entity_id, format('attempt %s of %s, path %s', r.attempt, r.loop_name, current_setting('search_path'))
        FROM reconcile.current_run() r;
    PERFORM set_config('work_mem', '123kB', false);
    CASE drive.entity_id
        WHEN 'asks' THEN RETURN '5 min';
        WHEN 'fails' THEN RAISE EXCEPTION 'cannot drive it' USING ERRCODE = 'AP001';
        WHEN 'gives_up' THEN PERFORM reconcile.permanent_error('never will');
        WHEN 'no_duration' THEN RETURN '1 month';
        WHEN 'slow' THEN PERFORM pg_sleep(60);
        WHEN 'sets_role' THEN RESET ROLE;
        WHEN 'writes_fenced' THEN PERFORM reconcile.fenced_write('writes_fenced', '{}');
        WHEN 'nests' THEN PERFORM * FROM reconcile.run_entity('operate_main', 'other');
        WHEN 'triggers' THEN PERFORM reconcile.enqueue('operate_main', 'triggered');
        ELSE
    END CASE;
    RETURN NULL;
END $$;
CREATE FUNCTION operate.list() RETURNS SETOF text LANGUAGE sql AS $$ VALUES ('one'), ('two') $$;
-- disabled: no worker comes in between
SELECT reconcile.create_loop('operate_main', 'operate.drive', enabled => false, default_requeue => '7 s',
    backoff_base => '1 s', max_attempts => 3, timeout => '30 s');

--
-- run_entity(): one run, now, and nothing is remembered
--
SELECT * FROM reconcile.run_entity('operate_main', 'plain');
SELECT * FROM reconcile.run_entity('operate_main', 'asks');
SELECT * FROM reconcile.run_entity('operate_main', 'fails');
SELECT * FROM reconcile.run_entity('operate_main', 'gives_up');
SELECT * FROM reconcile.run_entity('operate_main', 'no_duration');
-- what a failed one wrote is undone, and what it set for the session
SELECT id, note FROM operate.seen ORDER BY id;
SHOW work_mem;
-- what any of them did is the caller's to commit
BEGIN;
SELECT result FROM reconcile.run_entity('operate_main', 'triggers');
SELECT entity_id FROM reconcile.mark WHERE loop_name = 'operate_main';
SELECT count(*) FROM reconcile.current_run();
ROLLBACK;
SELECT count(*) FROM reconcile.mark WHERE loop_name = 'operate_main';
SELECT count(*) FROM reconcile.entity WHERE loop_name = 'operate_main';
-- marks that are there stay, and failures decide the backoff and the last attempt
INSERT INTO reconcile.entity (loop_name, entity_id, failures, last_sqlstate, last_failed_at) VALUES ('operate_main', 'fails', 1, 'AP001', now());
-- no restore brings it another row
INSERT INTO reconcile.entity (loop_name, entity_id, failures) VALUES ('operate_main', 'other', 1), ('operate_main', 'fails', 1);
SELECT reconcile.enqueue('operate_main', 'fails');
SELECT * FROM reconcile.run_entity('operate_main', 'fails');
UPDATE reconcile.entity SET failures = 2 WHERE loop_name = 'operate_main';
SELECT * FROM reconcile.run_entity('operate_main', 'fails');
SELECT count(*), (SELECT failures FROM reconcile.entity WHERE loop_name = 'operate_main') AS failures FROM reconcile.mark WHERE loop_name = 'operate_main';
SELECT reconcile.forget('operate_main', 'fails');
-- the same twice in a transaction, and two of them
BEGIN;
SELECT result FROM reconcile.run_entity('operate_main', 'plain');
SELECT result FROM reconcile.run_entity('operate_main', 'plain');
SELECT result FROM reconcile.run_entity('operate_main', 'asks');
COMMIT;
-- the timeout of the loop is a transient failure; any other cancel is the caller's
SELECT reconcile.alter_loop('operate_main', '{"timeout": "50 ms"}');
SELECT * FROM reconcile.run_entity('operate_main', 'slow');
SELECT reconcile.alter_loop('operate_main', '{"timeout": null}');
SET statement_timeout = '50 ms';
SELECT * FROM reconcile.run_entity('operate_main', 'slow');
-- also one that he catches: the run is over then
DO $$
BEGIN
    PERFORM * FROM reconcile.run_entity('operate_main', 'slow');
EXCEPTION WHEN query_canceled THEN
    RAISE NOTICE 'cancelled; in a run: %', EXISTS (SELECT FROM reconcile.current_run());
END $$;
RESET statement_timeout;
-- in a run it is refused, which fails that run
SELECT result, sqlstate, message FROM reconcile.run_entity('operate_main', 'nests');
-- a leased loop: under the lease that the caller has bound, else unfenced
SELECT reconcile.create_loop('operate_leased', 'operate.drive', enabled => false, lease_ttl => '1 min');
SELECT result, sqlstate FROM reconcile.run_entity('operate_leased', 'writes_fenced');
SELECT epoch FROM reconcile.acquire_lease('operate_leased', 'me', '1 min');
BEGIN;
SELECT reconcile.bind_lease('operate_leased', 'me', 1);
SELECT result, sqlstate FROM reconcile.run_entity('operate_leased', 'writes_fenced');
COMMIT;
SELECT entity_id, last_epoch FROM reconcile.resources WHERE reconciler_id = 'operate_leased';
SELECT reconcile.release_lease('operate_leased', 'me', 1);
-- the empty id of a loop with a lister: what that lists is marked
SELECT reconcile.create_loop('operate_lists', 'operate.drive', 'operate.list', enabled => false);
SELECT * FROM reconcile.run_entity('operate_lists', '');
SELECT entity_id, kind FROM reconcile.mark WHERE loop_name = 'operate_lists' ORDER BY 1;
SELECT reconcile.create_loop('operate_outside');
\set VERBOSITY sqlstate
SELECT * FROM reconcile.run_entity('operate_outside', 'e');
BEGIN READ ONLY;
SELECT * FROM reconcile.run_entity('operate_main', 'plain');
ROLLBACK;
\set VERBOSITY default
-- as the owner, and confined to him
CREATE ROLE operate_owner LOGIN;
CREATE ROLE operate_other;
SELECT reconcile.grant_access('operate_owner', 'define', 'operate_his');
SELECT reconcile.grant_access('operate_other', 'operate');
SELECT reconcile.grant_access('operate_other', 'observe');
GRANT USAGE ON SCHEMA operate TO PUBLIC;
GRANT ALL ON operate.seen TO PUBLIC;
SET ROLE operate_owner;
SELECT reconcile.create_loop('operate_his', 'operate.drive', enabled => false);
SELECT result, sqlstate, message FROM reconcile.run_entity('operate_his', 'sets_role');
SELECT current_user;
SET ROLE operate_other;
SELECT * FROM reconcile.run_entity('operate_his', 'plain');
RESET ROLE;
SELECT * FROM reconcile.run_entity('operate_his', 'plain');
-- a function that is gone
ALTER FUNCTION operate.drive(text) RENAME TO drives;
SELECT * FROM reconcile.run_entity('operate_main', 'plain');
ALTER FUNCTION operate.drives(text) RENAME TO drive;

--
-- revive_all(): who died first, first
--
INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of, last_sqlstate, last_failed_at)
    SELECT 'operate_main', 'd' || i, 3, CASE WHEN i < 6 THEN 'attempts' END, CASE WHEN i % 2 = 0 THEN 'AP000' ELSE 'AP001' END, now() - i * interval '1 min'
      FROM generate_series(1, 6) i;
SELECT reconcile.revive_all('operate_main', max_items => 1);
SELECT entity_id, kind, due_at <= clock_timestamp() AS due FROM reconcile.mark WHERE loop_name = 'operate_main' ORDER BY 1;
SELECT reconcile.revive_all('operate_main', 'AP000');
SELECT entity_id, died_of FROM reconcile.entity WHERE loop_name = 'operate_main' ORDER BY 1;
SELECT reconcile.revive_all('operate_main', 'AP002');
SELECT reconcile.revive_all('operate_main');
SELECT reconcile.revive_all('operate_main');
SELECT entity_id, failures FROM reconcile.entity WHERE loop_name = 'operate_main';
SELECT entity_id, state FROM reconcile.work WHERE loop_name = 'operate_main' ORDER BY 1;

--
-- drain_loop(), wait_idle(): nothing runs in loops that are disabled, and what is due is not idle
--
CALL reconcile.drain_loop('operate_main', '0 s');
SELECT paused FROM reconcile.loops WHERE loop_name = 'operate_main';
CALL reconcile.drain_loop('operate_main');
CALL reconcile.wait_idle('operate_main', '0 s');
CALL reconcile.wait_idle('operate_main', '10 ms');
CALL reconcile.wait_idle('operate_leased');
-- a mark that is due later, and a look of what is dead, are idle; a fresh trigger of the dead is not
SELECT reconcile.enqueue('operate_leased', 'later', '1 h');
INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of) VALUES ('operate_leased', 'dead', 1, 'permanent'), ('operate_leased', 'crashed', 1, 'crash');
INSERT INTO reconcile.mark_0 VALUES (1, now(), now(), 'r', 'operate_leased', 'dead'), (2, now(), now(), 't', 'operate_leased', 'crashed');
CALL reconcile.wait_idle('operate_leased', '0 s');
SELECT reconcile.enqueue('operate_leased', 'dead');
CALL reconcile.wait_idle('operate_leased', '0 s');
-- a claim that stands keeps both waiting; one of a term that is over does not
SELECT reconcile.create_loop('operate_claims', lease_ttl => '1 min');
INSERT INTO reconcile.entity (loop_name, entity_id, failures, claim_epoch, claim_holder, claim_expires_at)
    VALUES ('operate_outside', 'e', 1, 1, 'worker', now() + interval '1 h');
INSERT INTO reconcile.entity (loop_name, entity_id, failures, claim_epoch, claim_holder, claim_expires_at, claim_lease_epoch)
    VALUES ('operate_claims', 'e', 1, 1, 'worker', now() + interval '1 h', 7);
CALL reconcile.wait_idle('operate_outside', '0 s');
CALL reconcile.drain_loop('operate_outside', '0 s');
CALL reconcile.drain_loop('operate_claims', '0 s');
UPDATE reconcile.entity SET claim_expires_at = now() WHERE loop_name = 'operate_outside';
CALL reconcile.drain_loop('operate_outside', '0 s');
-- from a procedure, into a variable; and in no block
DO $$DECLARE done boolean; BEGIN CALL reconcile.drain_loop('operate_main', '1 s', done); RAISE NOTICE 'drained: %', done; END$$;
BEGIN;
CALL reconcile.drain_loop('operate_main', '1 s');
ROLLBACK;
BEGIN;
CALL reconcile.wait_idle('operate_main', '1 s');
ROLLBACK;
SET default_transaction_isolation = 'serializable';
CALL reconcile.drain_loop('operate_main', '0 s');
RESET default_transaction_isolation;
SET default_transaction_read_only = on;
CALL reconcile.wait_idle('operate_main', '0 s');
CALL reconcile.drain_loop('operate_main', '0 s');
RESET default_transaction_read_only;

--
-- resume_all(): the loops that the caller may operate
--
SELECT reconcile.pause_loop('operate_his');
SELECT loop_name FROM reconcile.loops WHERE paused ORDER BY 1;
SET ROLE operate_owner;
SELECT reconcile.resume_all();
RESET ROLE;
SELECT loop_name FROM reconcile.loops WHERE paused ORDER BY 1;
CREATE ROLE operate_nobody;
GRANT EXECUTE ON FUNCTION reconcile.resume_all() TO operate_nobody;
SET ROLE operate_nobody;
SELECT reconcile.resume_all();
RESET ROLE;
SELECT reconcile.resume_all();
SELECT count(*) FROM reconcile.loops WHERE paused;
SET ROLE operate_nobody;
SELECT reconcile.resume_all();
RESET ROLE;

--
-- cancel_run(): there is none
--
SELECT reconcile.cancel_run('operate_main', 'd1');

--
-- explain(): what the tables know
--
SELECT loop_name, entity_id, state, reason, until IS NOT NULL AS until, detail, hint
  FROM (VALUES ('operate_main', 'none'), ('operate_main', 'd1'), ('operate_leased', 'later'), ('operate_leased', 'crashed'),
       ('operate_leased', 'dead'), ('operate_lists', 'one')) AS v (loop_name, entity_id), reconcile.explain(v.loop_name, v.entity_id);
SELECT reconcile.pause_loop('operate_outside');
SELECT reconcile.enqueue('operate_outside', 'p');
SELECT state, reason, detail, hint FROM reconcile.explain('operate_outside', 'p');
SELECT reconcile.resume_loop('operate_outside');
SELECT state, reason, detail, hint FROM reconcile.explain('operate_outside', 'p');

--
-- schedule_loops(): there is no pg_cron here
--
SELECT reconcile.schedule_loops();
SELECT reconcile.unschedule_loops();
SET ROLE operate_other;
SELECT reconcile.schedule_loops();
RESET ROLE;

--
-- Bad input: SQLSTATE, the argument's name, a hint
--
CREATE FUNCTION operate_refused(statement text, OUT code text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    code := 'accepted';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
CREATE TABLE operate_cases (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO operate_cases (call) SELECT format('SELECT reconcile.%s(%s)', f, args) FROM unnest(ARRAY['cancel_run', 'run_entity', 'explain']) AS f,
    unnest(ARRAY['NULL, ''e''', '''operate_main'', NULL', '''No'', ''e''', '''operate_none'', ''e''', '''operate_main'', repeat(''x'', 513)']) AS args;
INSERT INTO operate_cases (call) SELECT format('CALL reconcile.%s(%s)', f, args) FROM unnest(ARRAY['drain_loop', 'wait_idle']) AS f,
    unnest(ARRAY['NULL', '''No''', '''operate_none''', '''operate_main'', NULL', '''operate_main'', ''-1 s''', '''operate_main'', ''1 month''',
    '''operate_main'', ''367 days''', '''operate_main'', ''10 us''', '''operate_main'', ''366 days''']) AS args;
INSERT INTO operate_cases (call) SELECT format('SELECT reconcile.revive_all(%s)', args) FROM
    unnest(ARRAY['NULL', '''No''', '''operate_none''', '''operate_main'', ''''', '''operate_main'', ''ap001''', '''operate_main'', ''AP00''', '''operate_main'', ''AP0011''',
    '''operate_main'', NULL, NULL', '''operate_main'', NULL, 0', '''operate_main'', NULL, -1', '''operate_main'', NULL, 1000001', '''operate_main'', ''AP001'', 1000000']) AS args;
SELECT n, call, r.* FROM operate_cases, operate_refused(call) r ORDER BY n;
DROP TABLE operate_cases;
DROP FUNCTION operate_refused;
-- no right
SET ROLE operate_owner;
CALL reconcile.drain_loop('operate_main');
CALL reconcile.wait_idle('operate_main');
SELECT reconcile.cancel_run('operate_main', 'e');
SELECT reconcile.revive_all('operate_main');
SELECT reconcile.explain('operate_main', 'e');
RESET ROLE;

SELECT count(reconcile.drop_loop(loop_name)) FROM reconcile.loops WHERE loop_name LIKE 'operate%';
DELETE FROM reconcile.resource WHERE reconciler_id = 'operate_leased';
DELETE FROM reconcile.lease WHERE reconciler_id = 'operate_leased';
DELETE FROM reconcile.lease_term WHERE reconciler_id = 'operate_leased';
SELECT reconcile.revoke_access('operate_owner', 'define', 'operate_his');
SELECT reconcile.revoke_access('operate_other', 'operate');
SELECT reconcile.revoke_access('operate_other', 'observe');
DROP OWNED BY operate_owner, operate_other, operate_nobody;
DROP ROLE operate_owner, operate_other, operate_nobody;
DROP SCHEMA operate CASCADE;

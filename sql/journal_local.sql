--
-- Commands that take effect in this database: the built-in ones on loops, and an application's own. They have two
-- outcomes and never a third (scenarios 9.2, 9.4, and of 9.18 inapplicable and failing ones).
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
\getenv source PG_ABS_SRCDIR
\set journal :source '/sql/include/journal.sql'
\i :journal
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

CREATE SCHEMA jl;
CREATE FUNCTION jl.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
-- disabled: nobody runs what a command makes due
SELECT reconcile.create_loop('jl_' || l, 'jl.drive', enabled => false) FROM unnest('{main,other,gone}'::text[]) l;
-- A command on jl_main, or another target, under a key that nobody has
CREATE SEQUENCE jl.key;
CREATE FUNCTION jl.command(action text, target_kind text, options jsonb DEFAULT '{}', target text DEFAULT 'jl_main', OUT outcome text, OUT status text, OUT failure text, OUT revision bigint) LANGUAGE sql AS $$
    SELECT a.outcome, a.status, a.failure, a.desired_revision
      FROM accept(jsonb_build_object('tenant_id', 'loc', 'idempotency_key', 'key ' || nextval('jl.key'), 'action', action, 'target_kind', target_kind,
                                     'target_name', target, 'options', options, 'confirmed', true)) a
$$;
CREATE FUNCTION jl.paused() RETURNS boolean LANGUAGE sql AS $$SELECT paused FROM reconcile.loops WHERE loop_name = 'jl_main'$$;
CREATE FUNCTION jl.told(OUT event text, OUT failure text, OUT detail jsonb) LANGUAGE sql AS
    $$SELECT event, failure, detail FROM reconcile.audit_event WHERE tenant_id = 'loc' ORDER BY sequence DESC LIMIT 1$$;
-- Who is dead, and what is due
CREATE FUNCTION jl.entities(after text DEFAULT '', OUT dead text, OUT alive text, OUT due text) LANGUAGE sql AS $$
    SELECT (SELECT string_agg(loop_name || '/' || entity_id, ' ' ORDER BY loop_name, entity_id) FROM reconcile.entity WHERE loop_name LIKE 'jl%' AND died_of IS NOT NULL),
           (SELECT string_agg(loop_name || '/' || entity_id, ' ' ORDER BY loop_name, entity_id) FROM reconcile.entity WHERE loop_name LIKE 'jl%' AND died_of IS NULL),
           (SELECT string_agg(loop_name || '/' || entity_id, ' ' ORDER BY loop_name, entity_id) FROM reconcile.mark WHERE loop_name LIKE 'jl%')
$$;
CREATE PROCEDURE jl.refill() LANGUAGE sql AS $$
    SELECT reconcile.forget(loop_name, entity_id) FROM reconcile.work WHERE loop_name LIKE 'jl%';
    DELETE FROM reconcile.entity WHERE loop_name LIKE 'jl%';
    INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of, last_sqlstate, last_failed_at)
        SELECT 'jl_main', 'd' || i, 3, CASE i WHEN 3 THEN 'crash' WHEN 2 THEN 'permanent' ELSE 'attempts' END, CASE WHEN i % 2 = 0 THEN 'AP000' ELSE 'AP001' END, now() - i * interval '1 min'
          FROM generate_series(1, 4) i;
    INSERT INTO reconcile.entity (loop_name, entity_id, failures) VALUES ('jl_main', 'fails', 1);
    SELECT reconcile.enqueue('jl_main', 'waits');
$$;

--
-- A queue is a loop. Paused, resumed: it is so at once, its state is said, and both are one step
--
SELECT *, jl.paused() FROM jl.command('pause', 'queue');
SELECT state, revision, command_id IS NOT NULL AS by_it FROM reconcile.desired_state_of('loc', 'queue', 'jl_main');
SELECT *, jl.paused() FROM jl.command('pause', 'queue');
SELECT *, jl.paused() FROM jl.command('resume', 'queue');
SELECT reconcile.pause_loop('jl_main');
SELECT jl.paused(), state AS says_nothing FROM reconcile.desired_state_of('loc', 'queue', 'jl_main');
SELECT *, jl.paused() FROM jl.command('resume', 'queue');
SELECT event, idempotency_key, failure, detail - 'deadline' AS detail FROM reconcile.audit_event WHERE tenant_id = 'loc' ORDER BY sequence LIMIT 2;
SELECT status, completed_at >= accepted_at AS at_its_end, claim_token, dispatched_at FROM reconcile.command WHERE tenant_id = 'loc' AND idempotency_key = 'key 1';
-- a replay of it does not pause again
SELECT outcome, status, desired_revision FROM accept('{"tenant_id": "loc", "idempotency_key": "key 1", "action": "pause", "target_kind": "queue", "target_name": "jl_main", "confirmed": true}');
SELECT jl.paused();
-- nor can it be taken back, or claimed
SELECT reconcile.cancel_command('loc', command_id, 'no'), (SELECT count(*) FROM reconcile.claim_commands('d', '{pause}')) FROM reconcile.command WHERE idempotency_key = 'key 1' AND tenant_id = 'loc';
BEGIN;
SELECT outcome FROM jl.command('pause', 'queue');
ROLLBACK;
SELECT jl.paused(), (SELECT state FROM reconcile.desired_state_of('loc', 'queue', 'jl_main'));

-- Of what is not there every action tells that, and leaves no state
SELECT a.action, a.target_kind, t, c.status, c.failure, c.revision
  FROM reconcile.command_action a, unnest('{jl_nowhere,No Loop,jl_gone2}'::text[]) t,
       jl.command(a.action, a.target_kind, CASE a.action WHEN 'bulk_retry' THEN '{"selection": {"limit": 1}}' WHEN 'replay' THEN '{"entity_id": "e", "replay": {"destination": "jl_other", "idempotency_policy": "reject_duplicate"}}'
                                           WHEN 'retry' THEN '{"entity_id": "e"}' WHEN 'delete' THEN '{"entity_id": "e"}' ELSE '{}' END::jsonb, t) c
 WHERE a.builtin AND a.mode = 'local' ORDER BY t, 1, 2;
SELECT count(*) FROM reconcile.desired_state WHERE tenant_id = 'loc' AND target_name <> 'jl_main' AND revision > 0;

--
-- Its dead letters are its dead entities
--
CALL jl.refill();
SELECT * FROM jl.entities();
SELECT e, c.status, c.failure, x.* FROM unnest('{d2,d2,d3,fails,waits,nobody,""}'::text[]) e, jl.command('retry', 'dead_letter', jsonb_build_object('entity_id', e)) c, jl.entities(c.status) x;

CALL jl.refill();
-- as many as it says, who died first, first
SELECT c.status, c.failure, x.* FROM jl.command('bulk_retry', 'dead_letter', '{"selection": {"limit": 2}}') c, jl.entities(c.status) x;
SELECT * FROM jl.told();
SELECT c.status, c.failure, x.* FROM jl.command('bulk_retry', 'dead_letter', '{"selection": {"limit": 1000, "sqlstate": "AP000"}}') c, jl.entities(c.status) x;
SELECT * FROM jl.told();
SELECT c.status, c.failure FROM jl.command('bulk_retry', 'dead_letter', '{"selection": {"limit": 1000}}') c;
SELECT * FROM jl.told();
SELECT c.status, c.failure FROM jl.command('bulk_retry', 'dead_letter', '{"selection": {"limit": 1000}}') c;
SELECT * FROM jl.told();
CALL jl.refill();
SELECT c.status, c.failure, x.* FROM jl.command('bulk_retry', 'dead_letter', '{"selection": {"limit": 1000, "sqlstate": "AP001"}}') c, jl.entities(c.status) x;
SELECT * FROM jl.told();

CALL jl.refill();
-- what is not dead is not deleted, nor what waits
SELECT e, c.status, c.failure, x.* FROM unnest('{d1,d1,d3,fails,waits}'::text[]) e, jl.command('delete', 'dead_letter', jsonb_build_object('entity_id', e)) c, jl.entities(c.status) x;

CALL jl.refill();
INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of) VALUES ('jl_other', 'd1', 1, 'permanent');
SELECT c.status, c.failure, x.* FROM jl.command('purge', 'dead_letter') c, jl.entities(c.status) x;
SELECT * FROM jl.told();
CALL jl.refill();
SELECT c.status, c.failure, x.* FROM jl.command('purge', 'queue') c, jl.entities(c.status) x;
SELECT * FROM jl.told();
SELECT c.status, c.failure FROM jl.command('purge', 'queue') c;
SELECT * FROM jl.told();

-- Replayed in another loop: it stays where it is, and the other looks at one of that id
CREATE FUNCTION jl.replay(entity_id text, policy text, destination text DEFAULT 'jl_other', OUT outcome text, OUT status text, OUT failure text) LANGUAGE sql AS $$
    SELECT c.outcome, c.status, c.failure
      FROM jl.command('replay', 'dead_letter', jsonb_build_object('entity_id', entity_id, 'replay', jsonb_build_object('destination', destination, 'idempotency_policy', policy))) c
$$;
CALL jl.refill();
SELECT e, r.*, x.* FROM unnest('{d1,d1,fails,waits,nobody}'::text[]) e, jl.replay(e, 'reject_duplicate') r, jl.entities(r.status) x;
-- one that the other loop knows is a duplicate: waiting, failing, dead, or claimed
INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of, claim_epoch, claim_holder, claimed_at, claim_expires_at, claim_mark)
    VALUES ('jl_other', 'd2', 1, NULL, NULL, NULL, NULL, NULL, NULL), ('jl_other', 'd3', 1, 'permanent', NULL, NULL, NULL, NULL, NULL),
           ('jl_other', 'd4', 0, NULL, 1, 'w', now(), now() + interval '1 h', 1);
SELECT e, r.status, r.failure FROM unnest('{d1,d2,d3,d4}'::text[]) e, jl.replay(e, 'reject_duplicate') r;
SELECT * FROM jl.entities();
-- or it is forgotten there, and begins anew
SELECT e, r.status, r.failure FROM unnest('{d1,d2,d3,nobody}'::text[]) e, jl.replay(e, 'replace_duplicate') r;
SELECT * FROM jl.entities();
SELECT d AS destination, r.status, r.failure FROM unnest('{jl_nowhere,No Loop}'::text[]) d, unnest('{reject_duplicate,replace_duplicate}'::text[]) p, jl.replay('d1', p, d) r;

-- A loop that was dropped meanwhile is not there, and a dead entity of a new one of that name is another
SELECT reconcile.drop_loop('jl_gone');
SELECT c.status, c.failure FROM jl.command('pause', 'queue', target => 'jl_gone') c;
CALL jl.refill();
DELETE FROM reconcile.entity WHERE loop_name LIKE 'jl%';
SELECT reconcile.forget('jl_main', 'waits'), reconcile.forget('jl_other', 'd1'), reconcile.forget('jl_other', 'd2'), reconcile.forget('jl_other', 'd3');

--
-- Who may: a loop is nobody's tenant's, so it takes a grant that names it, or one that does not and "operate" on the loop
--
CREATE ROLE journal_local_named;
CREATE ROLE journal_local_wide;
GRANT USAGE ON SCHEMA jl TO journal_local_named, journal_local_wide;
GRANT USAGE ON SEQUENCE jl.key TO journal_local_named, journal_local_wide;
SELECT count(reconcile.grant_command('journal_local_named', 'loc', p, k, 'jl_main')) FROM (VALUES ('pause', 'queue'), ('purge', 'queue'), ('replay', 'dead_letter')) v (p, k);
SELECT count(reconcile.grant_command('journal_local_wide', 'loc', p)) FROM unnest('{pause,purge,retry,replay}'::text[]) p;
CREATE FUNCTION jl.rights() RETURNS TABLE (action text, target text, outcome text) LANGUAGE sql AS $$
    SELECT v.action, v.target, c.outcome FROM (VALUES (1, 'pause', 'queue', '{}', 'jl_main'), (2, 'pause', 'queue', '{}', 'jl_other'), (3, 'purge', 'queue', '{}', 'jl_main'), (4, 'purge', 'dead_letter', '{}', 'jl_main'),
        (5, 'pause', 'worker_group', '{}', 'jl_main'),
        (6, 'replay', 'dead_letter', '{"entity_id": "e", "replay": {"destination": "jl_other", "idempotency_policy": "reject_duplicate"}}', 'jl_main')) v (n, action, kind, options, target),
        jl.command(v.action, v.kind, v.options::jsonb, v.target) c ORDER BY n
$$;
SET ROLE journal_local_named;
SELECT * FROM jl.rights();
SET ROLE journal_local_wide;
SELECT * FROM jl.rights();
RESET ROLE;
-- the destination of a replay is a target of its own
SELECT reconcile.grant_command('journal_local_named', 'loc', 'replay', 'queue', 'jl_other');
SELECT reconcile.grant_access('journal_local_wide', 'operate', 'jl_main');
SET ROLE journal_local_named;
SELECT * FROM jl.rights() WHERE action = 'replay';
SET ROLE journal_local_wide;
SELECT * FROM jl.rights();
RESET ROLE;

--
-- An application's own actions
--
CREATE FUNCTION jl.good(command jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{"status": "succeeded"}'::jsonb$$;
CREATE FUNCTION jl.of_text(command text) RETURNS jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$;
CREATE FUNCTION jl.gives_text(command jsonb) RETURNS text LANGUAGE sql AS $$SELECT ''$$;
CREATE FUNCTION jl.gives_many(command jsonb) RETURNS SETOF jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$;
CREATE PROCEDURE jl.is_procedure(command jsonb) LANGUAGE sql AS '';
-- what it does not take
CREATE TABLE jl.call (n int GENERATED ALWAYS AS IDENTITY, args text);
INSERT INTO jl.call (args) VALUES ($$NULL, '{jl_thing}', 'external'$$), ($$'', '{jl_thing}', 'external'$$), ($$'Jl', '{jl_thing}', 'external'$$), ($$'j-l', '{jl_thing}', 'external'$$), ($$'1l', '{jl_thing}', 'external'$$),
    ($$repeat('x', 48), '{jl_thing}', 'none'$$), ($$repeat('x', 49), '{jl_thing}', 'external'$$),
    ($$'jl_act', NULL, 'external'$$), ($$'jl_act', '{}', 'external'$$), ($$'jl_act', '{jl_thing,NULL}', 'external'$$), ($$'jl_act', '{{jl_thing}}', 'external'$$), ($$'jl_act', '{Queue}', 'external'$$),
    ($$'jl_act', '{a,b,c,d,e,f,g,h,i}', 'external'$$), ($$'jl_act', '{jl_thing}', NULL$$), ($$'jl_act', '{jl_thing}', 'remote'$$),
    ($$'jl_act', '{jl_thing}', 'local'$$), ($$'jl_act', '{jl_thing}', 'external', 'jl.good'$$), ($$'jl_act', '{jl_thing}', 'unavailable', 'jl.good'$$),
    ($$'jl_act', '{jl_thing}', 'external', confirm => NULL$$), ($$'jl_act', '{jl_thing}', 'external', desired_state => 'gone'$$),
    ($$'jl_act', '{jl_thing}', 'local', ''$$), ($$'jl_act', '{jl_thing}', 'local', 'jl.nothing'$$), ($$'jl_act', '{jl_thing}', 'local', 'good'$$), ($$'jl_act', '{jl_thing}', 'local', 'nowhere.good'$$),
    ($$'jl_act', '{jl_thing}', 'local', 'jl.of_text'$$), ($$'jl_act', '{jl_thing}', 'local', 'jl.gives_text'$$), ($$'jl_act', '{jl_thing}', 'local', 'jl.gives_many'$$), ($$'jl_act', '{jl_thing}', 'local', 'jl.is_procedure'$$),
    ($$'jl_act', '{jl_thing}', 'local', 'jl.good(text)'$$), ($$'jl_act', '{jl_thing}', 'local', 'a.b.c'$$);
SELECT c.n, c.args, r.code, r.message FROM jl.call c, refusal('SELECT reconcile.register_action(' || c.args || ')') r ORDER BY n;
BEGIN;
CREATE FUNCTION pg_temp.passing(command jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$;
SELECT code, message FROM refusal($$SELECT reconcile.register_action('jl_act', '{jl_thing}', 'local', 'pg_temp.passing')$$);
ROLLBACK;
-- nor a name that means something else
SELECT a AS action, r.code, r.message FROM unnest('{view,audit_view,dispatch,resolve,report,retention_configure,record_list,record_inspect,payload_view,diagnostics_view}'::text[] ||
    ARRAY(SELECT DISTINCT action::text FROM reconcile.command_action WHERE builtin ORDER BY 1)) a, refusal(format('SELECT reconcile.register_action(%L, ''{jl_thing}'', ''external'')', a)) r;
SELECT count(*) FROM reconcile.command_action WHERE NOT builtin AND target_kind = 'jl_thing';
-- who may define
CREATE ROLE journal_local_owner;
GRANT USAGE, CREATE ON SCHEMA jl TO journal_local_owner;
SELECT code, message FROM refusal($$SET LOCAL ROLE journal_local_owner; SELECT reconcile.register_action('jl_act', '{jl_thing}', 'external')$$);
SELECT reconcile.grant_access('journal_local_owner', 'define', 'jl_main');
SELECT code, message FROM refusal($$SET LOCAL ROLE journal_local_owner; SELECT reconcile.register_action('jl_act', '{jl_thing}', 'external')$$);
SELECT reconcile.grant_access('journal_local_owner', 'define');
-- and whose function it is that would run as him
CREATE FUNCTION jl.foreign(command jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$;
ALTER FUNCTION jl.foreign OWNER TO journal_local_named;
REVOKE EXECUTE ON FUNCTION jl.good FROM PUBLIC;
SELECT f, r.* FROM unnest('{jl.foreign,jl.good}'::text[]) f, refusal(format($$SET LOCAL ROLE journal_local_owner; SELECT reconcile.register_action('jl_act', '{jl_thing}', 'local', %L)$$, f)) r;
GRANT EXECUTE ON FUNCTION jl.good TO PUBLIC;

-- What it is called with, as whom, and where; what it writes is the command's
SET ROLE journal_local_owner;
CREATE TABLE jl.done (by name, session_too boolean, path text, command jsonb, n serial);
CREATE FUNCTION jl.act(command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO jl.done VALUES (current_user, session_user = current_user, current_setting('search_path'), command);
    IF command #>> '{options,run}' IS NOT NULL THEN
        EXECUTE command #>> '{options,run}';
    END IF;
    IF command #>> '{options,raise}' IS NOT NULL THEN
        RAISE EXCEPTION 'a secret: %', command USING ERRCODE = command #>> '{options,raise}';
    END IF;
    RETURN CASE WHEN command -> 'options' ? 'answer' THEN nullif(command #> '{options,answer}', '"NULL"') ELSE '{"status": "succeeded"}' END;
END $$;
SET search_path = jl;
SELECT reconcile.register_action('jl_act', '{jl_thing,queue}', 'local', 'act');
RESET search_path;
RESET ROLE;
SELECT action, target_kind, mode, dispatcher, owner_name, confirm, desired_state, builtin FROM reconcile.command_action WHERE action = 'jl_act' ORDER BY 2;
SELECT reconcile.grant_command('journal_local_wide', 'loc', 'jl_act');
SET ROLE journal_local_wide;
SET work_mem = '1MB';
SELECT * FROM jl.command('jl_act', 'jl_thing', '{"run": "SET work_mem = \"77kB\"", "more": [1, null]}', 'a thing');
SHOW work_mem;
RESET work_mem;
RESET ROLE;
SELECT by, session_too, path, command - 'command_id' AS command, command ->> 'command_id' = (SELECT command_id FROM reconcile.command WHERE action = 'jl_act' AND tenant_id = 'loc') AS its_id FROM jl.done;
-- a failure, and an error, undo all that it did; the error's text is kept nowhere
TRUNCATE jl.done;
SELECT a AS answer, c.* FROM unnest(ARRAY['{"status": "succeeded"}', '{"status": "succeeded", "failure": "x", "n": 1}', '{"status": "failed", "failure": "no_room"}', '{"status": "failed"}', '{"status": "failed", "failure": null}',
    '{"status": "failed", "failure": "Bad code"}', '{"status": "failed", "failure": 1}', '{"status": "unknown", "failure": "x"}', '{"status": "pending"}', '{"status": null}', '{}', '[]', '["succeeded"]', 'null', '"succeeded"', '"NULL"']::jsonb[]) a,
    jl.command('jl_act', 'jl_thing', jsonb_build_object('answer', a)) c;
SELECT count(*) AS done FROM jl.done;
SELECT length(f) AS length, c.failure = f AS as_said, c.failure FROM unnest(ARRAY['a', '0.a-b_c', repeat('x', 64), repeat('x', 65), '.a', '-a', '_a', 'A', 'a b', 'é', '']) f,
    jl.command('jl_act', 'jl_thing', jsonb_build_object('answer', jsonb_build_object('status', 'failed', 'failure', f))) c;
TRUNCATE jl.done;
SELECT c.* FROM jl.command('jl_act', 'jl_thing', '{"raise": "AP001"}') c;
SELECT * FROM jl.told();
SELECT count(*) FROM jl.done;
SELECT count(*) FROM reconcile.audit_event e WHERE tenant_id = 'loc' AND e::text LIKE '%secret%';
-- errors that say nothing of the command are the caller's, and its key is free
CREATE FUNCTION jl.raised(sqlstate text, OUT raised text, OUT failure text) LANGUAGE plpgsql AS $$
BEGIN
    failure := c.failure FROM jl.command('jl_act', 'jl_thing', jsonb_build_object('raise', sqlstate)) c;
EXCEPTION WHEN query_canceled OR OTHERS THEN
    raised := SQLSTATE;
END $$;
SELECT s AS sqlstate, r.* FROM unnest('{40001,40P01,53100,57014,57P01,58030,XX000,55P03,RC014,22012,23505,42501,55000,P0001,RC002}'::text[]) s, jl.raised(s) r;
SELECT c.outcome, c.status FROM accept('{"tenant_id": "loc", "idempotency_key": "free", "action": "jl_act", "target_kind": "jl_thing", "options": {"answer": {"status": "succeeded"}}}') c,
    refusal($$SELECT * FROM accept('{"tenant_id": "loc", "idempotency_key": "free", "action": "jl_act", "target_kind": "jl_thing", "options": {"raise": "40001"}}')$$) r;

-- What it must not: it is its owner's, in a session of somebody else, and in the middle of a step
TRUNCATE jl.done;
SET SESSION AUTHORIZATION journal_local_wide;
SELECT run, c.failure
  FROM unnest(ARRAY['RESET ROLE', 'SET ROLE NONE', 'SET SESSION AUTHORIZATION DEFAULT', 'SELECT set_config(''role'', ''none'', true)', 'COMMIT', 'ROLLBACK', 'SAVEPOINT s', 'DO ''BEGIN COMMIT; END''',
      'PREPARE TRANSACTION ''x''', 'SET TRANSACTION ISOLATION LEVEL SERIALIZABLE', 'DECLARE held CURSOR WITH HOLD FOR SELECT 1', 'CREATE TEMP TABLE mine ()', 'LISTEN x',
      'UPDATE reconcile.command SET status = ''succeeded''', 'DELETE FROM reconcile.audit_event', 'ALTER ROLE journal_local_owner SUPERUSER', 'SELECT 1/0']) run, jl.command('jl_act', 'jl_thing', jsonb_build_object('run', run)) c;
SELECT current_user, current_setting('transaction_isolation');
RESET SESSION AUTHORIZATION;
SELECT run, detail FROM (SELECT e.detail, c.options ->> 'run' AS run, e.sequence FROM reconcile.audit_event e JOIN reconcile.command c USING (tenant_id, command_id)
                          WHERE c.tenant_id = 'loc' AND e.event = 'failed' AND c.options ? 'run') s ORDER BY sequence;
SELECT count(*) FROM jl.done;
-- also where the session is of whoever may anything
SELECT run, c.failure FROM unnest(ARRAY['RESET ROLE', 'COMMIT', 'SET SESSION AUTHORIZATION DEFAULT', 'UPDATE reconcile.command SET status = ''succeeded''']) run, jl.command('jl_act', 'jl_thing', jsonb_build_object('run', run)) c;
SELECT current_user = session_user AS as_before;

-- It may give commands itself, which are of its owner, and come and go with its own
SELECT reconcile.register_action('jl_hush', '{worker_group}', 'local', 'jl.act', desired_state => 'paused') FROM set_config('role', 'journal_local_owner', true);
RESET ROLE;
SELECT count(reconcile.grant_command('journal_local_owner', 'loc', p)) FROM unnest('{resume,drain,jl_act}'::text[]) p;
CREATE FUNCTION jl.nested(key text, args jsonb, fail boolean DEFAULT false) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object('tenant_id', 'loc', 'idempotency_key', key, 'action', 'jl_hush', 'target_kind', 'worker_group', 'target_name', 'nest',
        'options', jsonb_build_object('run', format('SELECT accept(%L)', '{"tenant_id": "loc", "target_kind": "worker_group", "target_name": "nest"}'::jsonb || args)) ||
            CASE WHEN fail THEN '{"raise": "AP001"}' ELSE '{}' END::jsonb)
$$;
-- what it commands of the same target comes after it
SELECT outcome, status, desired_revision FROM accept(jl.nested('nest 1', '{"idempotency_key": "inner 1", "action": "resume"}'));
SELECT idempotency_key, action, status, role_name = 'journal_local_owner' AS of_its_owner, desired_revision FROM reconcile.command WHERE tenant_id = 'loc' AND target_name = 'nest' ORDER BY accepted_at;
SELECT state, revision FROM reconcile.desired_state_of('loc', 'worker_group', 'nest');
SELECT event, idempotency_key FROM reconcile.audit_event WHERE tenant_id = 'loc' AND target_name = 'nest' ORDER BY sequence;
-- and is undone with it
SELECT outcome, status, failure FROM accept(jl.nested('nest 2', '{"idempotency_key": "inner 2", "action": "drain"}', true));
SELECT count(*) FROM reconcile.command WHERE tenant_id = 'loc' AND idempotency_key = 'inner 2';
SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'loc' AND idempotency_key = 'inner 2';
SELECT state, revision FROM reconcile.desired_state_of('loc', 'worker_group', 'nest');
-- its own key and id are taken
SELECT n, c.outcome, c.status, c.failure FROM (VALUES (3, '{"idempotency_key": "nest 3", "action": "drain"}'::jsonb), (4, '{"idempotency_key": "inner 4", "command_id": "id of 4", "action": "drain"}')) v (n, inner_args),
    accept(jl.nested('nest ' || n, inner_args) || CASE n WHEN 4 THEN '{"command_id": "id of 4", "action": "jl_act", "target_kind": "jl_thing"}' ELSE '{}' END::jsonb) c;
SELECT detail FROM reconcile.audit_event WHERE tenant_id = 'loc' AND event = 'failed' AND idempotency_key IN ('nest 3', 'nest 4') ORDER BY sequence;
SELECT idempotency_key, action, failure FROM reconcile.command WHERE tenant_id = 'loc' AND (idempotency_key IN ('nest 3', 'nest 4') OR command_id = 'id of 4');

-- What may have become of the function, and of its owner, since
SELECT c.status FROM jl.command('jl_act', 'jl_thing') c;
ALTER FUNCTION jl.act RENAME TO renamed;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
SELECT * FROM jl.told();
CREATE FUNCTION jl.act(command jsonb) RETURNS text LANGUAGE sql AS $$SELECT ''$$;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
DROP FUNCTION jl.act;
CREATE FUNCTION jl.act(command jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{"status": "succeeded"}'::jsonb$$;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
REVOKE EXECUTE ON FUNCTION jl.act FROM PUBLIC;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
GRANT EXECUTE ON FUNCTION jl.act TO PUBLIC;
ALTER FUNCTION jl.act OWNER TO journal_local_named;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
ALTER FUNCTION jl.act OWNER TO journal_local_owner;
ALTER ROLE journal_local_owner RENAME TO journal_local_renamed;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;
ALTER ROLE journal_local_renamed RENAME TO journal_local_owner;
SELECT c.status, c.failure FROM jl.command('jl_act', 'jl_thing') c;

-- Registered anew it is another: for who carries it out, nobody, or with a question
SELECT reconcile.register_action('jl_act', '{jl_thing}', 'external', confirm => true, desired_state => 'draining');
SELECT action, target_kind, mode, dispatcher, owner_name, confirm, desired_state FROM reconcile.command_action WHERE action = 'jl_act' ORDER BY 2;
SELECT outcome, field, problem FROM tried('{"tenant_id": "loc", "action": "jl_act", "target_kind": "jl_thing"}');
SELECT * FROM jl.command('jl_act', 'jl_thing', '{"whatever": {"it": ["takes"]}}');
SELECT tenant_id, action, target_kind, target_name, options FROM reconcile.claim_commands('d', '{jl_act}');
SELECT reconcile.register_action('jl_act', '{jl_thing}', 'unavailable');
SELECT * FROM jl.command('jl_act', 'jl_thing');
SELECT count(*) FROM reconcile.claim_commands('d', '{jl_act}');
SELECT state, revision FROM reconcile.desired_state_of('loc', 'jl_thing', 'jl_main');
SELECT outcome, field, problem FROM tried('{"tenant_id": "loc", "action": "jl_act", "target_kind": "jl_thing", "expected_revision": 1}');
-- a kind is an action's own: another does not apply to it
SELECT outcome, field, problem FROM tried('{"tenant_id": "loc", "action": "drain", "target_kind": "jl_thing"}');

DELETE FROM reconcile.command_action WHERE action LIKE 'jl%';
SELECT count(reconcile.drop_loop(loop_name)) FROM reconcile.loops WHERE loop_name LIKE 'jl%';
DROP FUNCTION accept, tried, command_args, text_of_bytes, refusal;
SELECT reconcile.revoke_access('journal_local_wide', 'operate', 'jl_main'), reconcile.revoke_access('journal_local_owner', 'define', 'jl_main'), reconcile.revoke_access('journal_local_owner', 'define');
SELECT journal_forget('loc');
DROP FUNCTION journal_forget, journal_triggers;
DROP TABLE journal_trigger;
DROP SCHEMA jl CASCADE;
DROP OWNED BY journal_local_named, journal_local_wide, journal_local_owner;
DROP ROLE journal_local_named, journal_local_wide, journal_local_owner;

--
-- Desired states: which command a state is that of, revisions, and how workers read and report (scenarios 9.3, 9.6, 9.7,
-- and of 9.18 cancel, expiry, failure, group over queue).
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
\getenv source PG_ABS_SRCDIR
\set journal :source '/sql/include/journal.sql'
\i :journal
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- A command for a group, under its name as key: pause, resume, drain, terminate
CREATE FUNCTION command(key text, action text, target text DEFAULT 'g', args jsonb DEFAULT '{}', OUT outcome text, OUT revision bigint) LANGUAGE sql AS $$
    SELECT outcome, desired_revision FROM accept(jsonb_build_object('tenant_id', 'des', 'idempotency_key', key, 'action', action, 'target_kind', 'worker_group', 'target_name', target) || args)
$$;
CREATE FUNCTION id_of(key text) RETURNS text LANGUAGE sql AS $$SELECT command_id FROM reconcile.command WHERE tenant_id = 'des' AND idempotency_key = key$$;
CREATE FUNCTION cancel(key text) RETURNS text LANGUAGE sql AS $$SELECT reconcile.cancel_command('des', id_of(key), 'no more')$$;
-- The state of the group, and the key of its command
CREATE FUNCTION state(target text DEFAULT 'g') RETURNS text LANGUAGE sql AS $$
    SELECT format('%s r%s by %s', coalesce(d.state, 'none'), d.revision, coalesce(c.idempotency_key, 'nobody'))
      FROM reconcile.desired_states d LEFT JOIN reconcile.command c USING (tenant_id, command_id) WHERE d.tenant_id = 'des' AND d.target_name = target
$$;

--
-- The first says it, the next says it anew; whose it is, and since when
--
SELECT state();
SELECT * FROM reconcile.desired_state_of('des', 'worker_group', 'g');
SELECT *, state() FROM command('a', 'pause', args => '{"requested_at": "2020-01-01 00:00:00Z"}');
SELECT tenant_id, target_kind, target_name, state, revision, command_id = id_of('a') AS its_command, requested_at = '2020-01-01 00:00:00Z' AS as_asked, changed_at > now() - interval '1 min' AS now
  FROM reconcile.desired_state_of('des', 'worker_group', 'g');
SELECT *, state() FROM command('b', 'resume');
-- what is so already gets no revision; whose it is stays
SELECT *, state() FROM command('c', 'resume');
SELECT *, state() FROM command('d', 'drain');
-- an older one that comes later wins: the callers' clocks say nothing
SELECT *, state() FROM command('e', 'pause', args => '{"requested_at": "1999-01-01 00:00:00Z"}');
-- what means no state changes none
SELECT outcome, desired_revision, state() FROM accept('{"tenant_id": "des", "idempotency_key": "f", "action": "purge", "target_kind": "failure", "target_name": "g", "confirmed": true}');
SELECT count(*) FROM reconcile.desired_state WHERE tenant_id = 'des';

--
-- What the caller has seen
--
SELECT expected, c.*, state() FROM unnest('{3,5}'::bigint[]) expected, command('seen_' || expected, 'resume', args => jsonb_build_object('expected_revision', expected)) c;
SELECT *, state() FROM command('seen', 'resume', args => '{"expected_revision": 4}');
SELECT *, state('new') FROM command('new_1', 'pause', 'new', '{"expected_revision": 1}');
SELECT *, state('new') FROM command('new_0', 'pause', 'new', '{"expected_revision": 0}');
-- and where it is so already it is asked all the same
SELECT *, state('new') FROM command('new_2', 'pause', 'new', '{"expected_revision": 0}');
SELECT *, state('new') FROM command('new_3', 'pause', 'new', '{"expected_revision": 1}');

--
-- Terminating stays; who asks for it again is told so
--
SELECT *, state('t') FROM command('t_1', 'drain', 't');
SELECT *, state('t') FROM command('t_2', 'terminate', 't');
SELECT action, c.*, state('t') FROM unnest('{pause,resume,drain,terminate}'::text[]) action, command('t_' || action, action, 't') c;
SELECT event, action, command_id, reason FROM reconcile.audit_event WHERE tenant_id = 'des' AND event IN ('illegal_transition', 'stale_revision') ORDER BY sequence;
-- nothing but the cancelling of its command leaves it, and that of the last one alone
SELECT cancel('t_2'), state('t');
SELECT cancel('t_terminate'), state('t');

--
-- A command that is taken back takes its state along: what the last one meant that stands counts again
--
CREATE FUNCTION chain(target text, VARIADIC steps text[]) RETURNS TABLE (step text, result text, state text) LANGUAGE plpgsql AS $$
DECLARE
    part text[];
BEGIN
    -- 'a pause' commands under the key a; '-a' cancels it; '+a' claims it
    FOREACH step IN ARRAY steps LOOP
        part := string_to_array(step, ' ');
        result := CASE left(step, 1)
            WHEN '-' THEN cancel(target || '_' || substr(step, 2))
            WHEN '+' THEN (SELECT count(*) || ' claimed' FROM reconcile.claim_commands('d', ARRAY[(SELECT action FROM reconcile.command WHERE tenant_id = 'des' AND idempotency_key = target || '_' || substr(step, 2))]) c
                            WHERE c.command_id = id_of(target || '_' || substr(step, 2)))
            ELSE (SELECT c.outcome FROM command(target || '_' || part[1], part[2], target) c) END;
        state := state(target);
        RETURN NEXT;
    END LOOP;
END $$;
SELECT * FROM chain('c1', 'a pause', '-a', 'b resume', '-b', '-b');
SELECT * FROM chain('c2', 'a pause', 'b resume', 'c drain', '-b', '-c', '-a');
SELECT * FROM chain('c3', 'a pause', 'b resume', 'c drain', '-a', '-c', '-b', 'd resume');
-- one that changed nothing stands for the one before it: its cancelling changes nothing, and that of the other neither
SELECT * FROM chain('c4', 'a pause', 'b pause', '-b', 'c pause', '-a', '-c');
-- back at the same state there is another command to it, and no revision
SELECT * FROM chain('c5', 'a pause', 'b resume', 'c pause', '-b', '-c', '-a');
SELECT target_name, count(*) FROM reconcile.desired_intent WHERE tenant_id = 'des' AND target_name ~ '^c' GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM reconcile.desired_state_of('des', 'worker_group', 'c1');
-- each step of it that changes a state is at a higher revision, and none was used twice
SELECT bool_and(revision = steps) AS counted FROM (VALUES ('c1', 4), ('c2', 5), ('c3', 6)) v (target, steps) JOIN reconcile.desired_states d ON d.target_name = v.target AND d.tenant_id = 'des';

--
-- What somebody claimed cannot be taken back, nor what was before it; it may have been applied
--
SELECT count(reconcile.cancel_command(tenant_id, command_id, 'make room')) FROM reconcile.command WHERE tenant_id = 'des' AND status = 'pending';
SELECT * FROM chain('k1', 'a pause', 'b resume', '+b', '-b', '-a', 'c drain', '-c');
SELECT command_id = id_of('k1_b') AS of_b, final FROM reconcile.desired_intent WHERE tenant_id = 'des' AND target_name = 'k1';
-- of one that failed it stays: who applied what is another question
SELECT reconcile.complete_command('des', id_of('k1_b'), claim_token, 'failed', 'no_group'), state('k1') FROM reconcile.command WHERE command_id = id_of('k1_b');
-- the claimed one below, the last one above taken back
SELECT count(reconcile.cancel_command(tenant_id, command_id, 'make room')) FROM reconcile.command WHERE tenant_id = 'des' AND status = 'pending';
SELECT * FROM chain('k2', 'a pause', '+a', 'b resume', 'c drain', '-c', '-b');

--
-- What nobody claims by its deadline does the same in the sweep
--
SELECT * FROM command('x_1', 'pause', 'x');
SELECT * FROM command('x_2', 'drain', 'x', '{"deadline_in": "1 ms"}');
SELECT * FROM command('y_1', 'terminate', 'y', '{"deadline_in": "1 ms"}');
SELECT pg_sleep(0.002);
SELECT state('x'), state('y');
SELECT canceled >= 2 AS both FROM reconcile.sweep_commands();
SELECT state('x'), state('y');
SELECT * FROM command('y_2', 'pause', 'y');

--
-- No revision after the last
--
SELECT * FROM command('r_1', 'pause', 'r');
UPDATE reconcile.desired_state SET revision = 9223372036854775806 WHERE tenant_id = 'des' AND target_name = 'r';
SELECT * FROM command('r_2', 'resume', 'r');
SELECT a AS action, r.* FROM unnest('{pause,resume}'::text[]) a, refusal(format('SELECT * FROM command(''r_3'', %L, ''r'')', a)) r;
SELECT code FROM refusal($$SELECT cancel('r_2')$$);
SELECT status, state('r') FROM reconcile.command WHERE tenant_id = 'des' AND idempotency_key = 'r_2';
SELECT count(*) FROM reconcile.command WHERE tenant_id = 'des' AND idempotency_key = 'r_3';

--
-- One whose effect fails here leaves no state, and one that has an effect leaves it for good
--
CREATE SCHEMA des_app;
CREATE FUNCTION des_app.obey(command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    IF command #>> '{options,fail}' = 'raise' THEN
        RAISE 'no' USING ERRCODE = 'AP001';
    END IF;
    RETURN jsonb_build_object('status', CASE WHEN command #> '{options,fail}' IS NULL THEN 'succeeded' ELSE 'failed' END, 'failure', 'would_not');
END $$;
SELECT reconcile.register_action('journal_desired_hush', '{worker_group}', 'local', 'des_app.obey', desired_state => 'paused');
SELECT reconcile.register_action('journal_desired_away', '{worker_group}', 'unavailable', desired_state => 'terminating');
-- it changes no state, so there is no revision to expect
SELECT code, message FROM refusal($$SELECT reconcile.accept_command('des', 'l_0', 'journal_desired_away', 'worker_group', 'l', 'why', expected_revision => 0)$$);
SELECT outcome, desired_revision FROM command('l_1', 'drain', 'l') AS c (outcome, desired_revision);
SELECT o AS options, a.outcome, a.status, a.failure, a.desired_revision, state('l')
  FROM unnest(ARRAY['{"fail": "raise"}', '{"fail": "say"}']::jsonb[]) o,
       accept(jsonb_build_object('tenant_id', 'des', 'idempotency_key', concat('l', o), 'action', 'journal_desired_hush', 'target_kind', 'worker_group', 'target_name', 'l', 'options', o)) a;
SELECT a.outcome, a.status, a.failure, a.desired_revision, state('l')
  FROM accept('{"tenant_id": "des", "idempotency_key": "l_3", "action": "journal_desired_away", "target_kind": "worker_group", "target_name": "l"}') a;
SELECT a.outcome, a.status, a.failure, a.desired_revision, state('l')
  FROM accept('{"tenant_id": "des", "idempotency_key": "l_2", "action": "journal_desired_hush", "target_kind": "worker_group", "target_name": "l"}') a;
SELECT cancel('l_1'), cancel('l_2'), state('l');

--
-- Polling: what has changed behind a position, in the order of positions, each once and as it is now
--
-- whatever else runs in the server may hold up a change for a moment
CREATE FUNCTION settled() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last timestamptz := clock_timestamp() + '5 min';
BEGIN
    WHILE EXISTS (SELECT FROM reconcile.desired_state WHERE tenant_id = 'des' AND change_xid >= pg_snapshot_xmin(pg_current_snapshot())) LOOP
        IF clock_timestamp() > last THEN
            RAISE 'a transaction holds up the changes of "des"';
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
SELECT settled();
SELECT "position" AS seen FROM reconcile.desired_states_since('des', NULL, 10000) WITH ORDINALITY s ORDER BY s.ordinality DESC LIMIT 1 \gset
SELECT count(*) FROM reconcile.desired_states_since('des', :'seen');
SELECT outcome FROM command('p_1', 'pause', 'p1');
SELECT outcome FROM command('p_2', 'pause', 'p2');
SELECT settled();
BEGIN;
SELECT outcome FROM command('p_3', 'drain', 'p3');
SELECT outcome FROM command('p_4', 'pause', 'p4');
-- what is not committed is shown to nobody, not even to who does it: it has no place yet
SELECT target_name, state, revision FROM reconcile.desired_states_since('des', :'seen');
COMMIT;
SELECT settled();
SELECT target_kind, target_name, state, revision, command_id = id_of('p_' || right(target_name, 1)) AS of_its FROM reconcile.desired_states_since('des', :'seen');
-- a page at a time, each from where the one before ended
WITH RECURSIVE page AS (
    SELECT 1 AS n, s.* FROM reconcile.desired_states_since('des', :'seen', 1) s
    UNION ALL
    SELECT n + 1, s.* FROM page p, reconcile.desired_states_since('des', p."position", 1) s
)
SELECT n, target_name FROM page;
-- one that has changed again is behind the others, and no longer where it was
SELECT outcome FROM command('p_5', 'terminate', 'p1');
SELECT cancel('p_2');
SELECT settled();
SELECT target_name, state, revision, command_id IS NULL AS of_nobody FROM reconcile.desired_states_since('des', :'seen');
-- one that changed nothing is no change
SELECT "position" AS seen FROM reconcile.desired_states_since('des', :'seen', 4) OFFSET 3 \gset
SELECT outcome FROM command('p_6', 'terminate', 'p1');
SELECT count(*) FROM reconcile.desired_states_since('des', :'seen');
SELECT a AS after, code, message FROM unnest('{"",x,1,1.2,-1.2.3,1.2.3,1.2.3.4.5,"1.2.3.4 ",1.2.03.4,1.2.3.-4}'::text[]) a, refusal(format('SELECT * FROM reconcile.desired_states_since(''des'', %L)', a));
SELECT n AS max_items, code, message, hint FROM unnest('{NULL,0,-1,10001}'::int[]) n, refusal(format('SELECT * FROM reconcile.desired_states_since(''des'', NULL, %s)', coalesce(n::text, 'NULL')));
SELECT count(*) > 10 AS all_of_them FROM reconcile.desired_states_since('des', '0.0.0.0', 10000);
SELECT count(*) FROM reconcile.desired_states_since('des_two');

--
-- Reports: a worker says which revision it has applied; an older one that comes late changes nothing
--
SELECT * FROM chain('o', 'a pause', 'b resume', 'c drain', 'd pause');
SELECT revision, state, reconcile.report_observed('des', 'w1', 'worker_group', 'o', revision, state)
  FROM (VALUES (2, 'active'), (4, 'paused'), (3, 'draining'), (4, 'paused'), (5, 'active'), (9223372036854775807, 'active')) v (revision, state);
SELECT reconcile.report_observed('des', 'w2', 'worker_group', 'o', 3, 'draining');
-- it was told to pause, and has not
SELECT reconcile.report_observed('des', 'w3', 'worker_group', 'o', 4, 'active');
SELECT reconcile.report_observed('des', 'w1', kind, name, 1, 'paused') FROM (VALUES ('worker_group', 'nowhere'), ('worker', 'o'), ('pod', 'o')) v (kind, name);
-- a state that was taken back has a revision, and nothing to apply
SELECT state('c1'), reconcile.report_observed('des', 'w1', 'worker_group', 'c1', 2, 'active');
-- and of one of which none was ever said there is none, though somebody was refused to say it
SELECT * FROM command('never', 'pause', 'never', '{"expected_revision": 3}');
SELECT reconcile.report_observed('des', 'w1', 'worker_group', 'never', 1, 'paused');
SELECT target_name, worker_id, desired_state, desired_revision, observed_state, observed_revision, drift
  FROM reconcile.desired_drift WHERE tenant_id = 'des' AND target_name IN ('o', 'l', 'c1', 'never') ORDER BY 1, 2;
SELECT code, message, hint FROM unnest(ARRAY['NULL, ''w'', ''worker'', ''x'', 1, ''paused''', '''des'', '' '', ''worker'', ''x'', 1, ''paused''', '''des'', ''w'', '''', ''x'', 1, ''paused''',
    '''des'', ''w'', ''worker'', NULL, 1, ''paused''', '''des'', ''w'', ''worker'', ''x'', NULL, ''paused''', '''des'', ''w'', ''worker'', ''x'', 0, ''paused''',
    '''des'', ''w'', ''worker'', ''x'', 1, NULL', '''des'', ''w'', ''worker'', ''x'', 1, ''gone''']) a, refusal('SELECT reconcile.report_observed(' || a || ')');
SELECT code, message FROM unnest(ARRAY['NULL, ''worker'', ''x''', '''des'', NULL, ''x''', '''des'', ''worker'', '' ''']) a, refusal('SELECT * FROM reconcile.desired_state_of(' || a || ')');

--
-- Scopes that overlap: the one that binds most, and of equal ones the nearest
--
INSERT INTO reconcile.desired_state SELECT 'eff', k, s, s, 1, 'x', NULL, now(), 0, '0', 0 FROM unnest('{worker,worker_group,queue}'::text[]) k, unnest('{active,paused,draining,terminating}'::text[]) s;
WITH strength (state, n) AS (VALUES ('terminating', 1), ('draining', 2), ('paused', 3), ('active', 4), (NULL, 5)),
all_of AS (
    SELECT w.state AS worker, g.state AS worker_group, q.state AS queue, least(w.n, g.n, q.n) AS n,
           CASE least(w.n, g.n, q.n) WHEN w.n THEN 'worker' WHEN g.n THEN 'worker_group' ELSE 'queue' END AS nearest
      FROM strength w, strength g, strength q WHERE least(w.n, g.n, q.n) < 5
)
SELECT count(*) AS combinations, count(*) FILTER (WHERE (e.state, e.target_kind, e.target_name, e.revision) = (s.state, a.nearest, s.state, 1)) AS as_said
  FROM all_of a JOIN strength s USING (n), reconcile.effective_state('eff', a.worker, a.worker_group, a.queue) e;
-- a group that is resumed does not let run what its queue holds back
SELECT state, target_kind FROM reconcile.effective_state('eff', NULL, 'active', 'paused');
-- nor is a drained worker let back by its group
SELECT state, target_kind FROM reconcile.effective_state('eff', 'draining', 'active', 'active');
-- whose state was taken back says nothing; where nobody says anything there is no row, which is not "active"
SELECT count(*) FROM reconcile.effective_state('des', worker_group => 'c1');
SELECT count(*) FROM reconcile.effective_state('eff', 'none', 'none', 'none');
SELECT code, message FROM refusal($$SELECT * FROM reconcile.effective_state('eff')$$);
SELECT code, message FROM refusal($$SELECT * FROM reconcile.effective_state('eff', queue => '')$$);
SELECT code, message FROM refusal($$SELECT * FROM reconcile.effective_state(NULL, 'w')$$);

--
-- Of others' tenants there is nothing to see or to say; it looks as what is not there
--
SELECT settled();
CREATE ROLE journal_desired_worker;
SELECT reconcile.grant_command('journal_desired_worker', 'des', p, 'worker_group', 'o') FROM unnest('{view,report}'::text[]) p;
SET ROLE journal_desired_worker;
SELECT name, (SELECT count(*) FROM reconcile.desired_state_of('des', 'worker_group', name)), reconcile.report_observed('des', 'w4', 'worker_group', name, 4, 'paused')
  FROM unnest('{o,l,nowhere}'::text[]) name;
SELECT t, (SELECT string_agg(target_name, ' ') FROM reconcile.desired_states_since(t)) AS since FROM unnest('{des,eff}'::text[]) t;
SELECT count(*) FROM reconcile.effective_state('des', worker_group => 'l');
SELECT DISTINCT target_name FROM reconcile.desired_drift;
RESET ROLE;

DELETE FROM reconcile.command_action WHERE action LIKE 'journal_desired_%';
DROP FUNCTION command, id_of, cancel, state, chain, settled;
DROP SCHEMA des_app CASCADE;
SELECT journal_forget('des', 'eff');
DROP OWNED BY journal_desired_worker;
DROP ROLE journal_desired_worker;
DROP FUNCTION accept, tried, command_args, text_of_bytes, journal_forget, journal_triggers, refusal;
DROP TABLE journal_trigger;

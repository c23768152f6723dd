--
-- sweep_commands(): what nobody claimed is canceled, what nobody answered is unknown, and of n rows that are
-- due each is settled within n / b + 1 calls of a budget b, whatever cannot be settled.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA journal_sweep;
SET search_path = journal_sweep;
\getenv source PG_ABS_SRCDIR
\set settled :source '/sql/include/commands_settled.sql'
\i :settled
-- as where nobody has swept yet
DELETE FROM reconcile.command_sweep_cursor;
SELECT * FROM reconcile.sweep_commands();

CREATE FUNCTION give(tenant_id text, command_id text, action text DEFAULT 'retry', deadline_in interval DEFAULT '1 ms', target text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(' ', a.outcome, a.status, a.failure, a.desired_revision)
      FROM reconcile.accept_command(tenant_id, 'key of ' || command_id, action,
               CASE action WHEN 'drain' THEN 'worker' ELSE 'failure' END, COALESCE(target, 'target of ' || command_id),
               'test', deadline_in => deadline_in, command_id => command_id) a $$;
CREATE FUNCTION take(ttl interval, actions text[] DEFAULT NULL) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT c.command_id FROM reconcile.claim_commands('w', actions, 1000, ttl) c $$;
CREATE VIEW now_is AS
SELECT c.tenant_id, c.command_id, c.status, c.failure, string_agg(e.event, ' ' ORDER BY e.sequence) AS events
  FROM reconcile.commands c JOIN reconcile.audit_events e USING (tenant_id, command_id) GROUP BY 1, 2, 3, 4;

--
-- What comes of each
--
SELECT give('sw', 'lapses', 'drain', '5 min');
SELECT give('sw', 'lapses acknowledged', 'retry', '5 min');
SELECT take('1 ms');
SELECT reconcile.acknowledge_command('sw', c.command_id, c.claim_token) FROM reconcile.command c WHERE c.tenant_id = 'sw' AND c.command_id = 'lapses acknowledged';
SELECT give('sw', 'claimed still', 'retry', '5 min');
SELECT take('5 min');
-- a claim outlives the deadline, which is for who has not claimed
SELECT give('swlate', 'claimed in time', 'retry', '5 min');
SELECT take('5 min');
UPDATE reconcile.command SET deadline = now() - interval '1 s' WHERE tenant_id = 'swlate';
SELECT give('sw', 'expires'), give('sw', 'expires drain', 'drain'), give('sw', 'pending still', 'retry', '5 min');
SELECT pg_sleep(0.002);
SELECT * FROM reconcile.sweep_commands();
SELECT * FROM now_is WHERE tenant_id LIKE 'sw%' ORDER BY command_id COLLATE "C";
SELECT * FROM reconcile.sweep_commands();
-- it does not leave its desired state behind; what was given out does
SELECT target_name, state, revision, command_id FROM reconcile.desired_states WHERE tenant_id = 'sw' ORDER BY target_name COLLATE "C";
-- neither is ever given out again, nor by its key
SELECT take('5 min', ARRAY['drain']);
SELECT outcome, status, failure, created FROM reconcile.accept_command('sw', 'key of lapses', 'drain', 'worker', 'target of lapses', 'test', deadline_in => '5 min');
SELECT outcome, status, failure, created FROM reconcile.accept_command('sw', 'key of expires', 'retry', 'failure', 'target of expires', 'test', deadline_in => '1 ms');

--
-- An action that nothing can carry out: at its end at once, and no desired state
--
SELECT reconcile.register_action('sw_halt', ARRAY['worker', 'failure'], 'unavailable', desired_state => 'paused');
SELECT outcome, status, failure, desired_revision FROM reconcile.accept_command('sw', 'halt', 'sw_halt', 'worker', 'w', 'test', deadline_in => '1 ms', command_id => 'halt');
SELECT outcome, status, failure, created FROM reconcile.accept_command('sw', 'halt', 'sw_halt', 'worker', 'w', 'test', deadline_in => '1 ms');
SELECT * FROM now_is WHERE command_id = 'halt';
SELECT count(*) FROM reconcile.desired_state WHERE tenant_id = 'sw' AND target_name = 'w';
SELECT take('5 min', ARRAY['sw_halt']);
SELECT reconcile.cancel_command('sw', 'halt', 'r'), reconcile.resolve_command('sw', 'halt', 'failed', '{"a": 1}', 'r');

--
-- The bound
--
-- Settles n due commands with a budget of b and counts the sweeps. The first "raising" of them cannot be
-- settled: those that are to be canceled because their target has no revision left, those that have lapsed
-- because the audit of their tenant, of each another one, cannot go on. One of three of the others is claimed.
CREATE TABLE run (n int, b int, raising int, how text, start text, sweeps int, looped int);
CREATE PROCEDURE run(n int, b int, raising int, how text, start text) LANGUAGE plpgsql AS $$
DECLARE
    tenant text := concat_ws(' ', 'sw', n, b, raising, how, start);
    broken text[] := CASE how WHEN 'lapsed' THEN ARRAY(SELECT tenant || ' a' || i FROM generate_series(1, raising) i) END;
    again boolean;
    calls int := 0;
    looped int;
    sweeps int;
    left_over int;
BEGIN
    IF how = 'lapsed' THEN
        PERFORM journal_sweep.give(t, 'a', deadline_in => '5 min') FROM unnest(broken) t;
        COMMIT;
        PERFORM journal_sweep.take('1 ms', ARRAY['retry']);
        COMMIT;
        UPDATE reconcile.audit_head h SET sequence = 9223372036854775807 WHERE h.tenant_id = ANY (broken);
    ELSE
        FOR i IN 1 .. raising LOOP
            PERFORM journal_sweep.give(tenant, 'a' || i, 'drain');
        END LOOP;
        UPDATE reconcile.desired_state d SET revision = 9223372036854775807 WHERE d.tenant_id = tenant;
    END IF;
    PERFORM journal_sweep.give(tenant, 'b' || g, 'retry', CASE WHEN g % 3 = 0 THEN interval '5 min' ELSE '1 ms' END)
       FROM generate_series(raising + 1, n) g;
    COMMIT;
    PERFORM journal_sweep.take('1 ms', ARRAY['retry']);
    COMMIT;
    PERFORM pg_sleep(0.002);
    UPDATE reconcile.command_sweep_cursor SET tenant_id = '', command_id = '', at = CASE start WHEN 'beginning' THEN '-infinity' WHEN 'end' THEN now()
        ELSE (SELECT o.at FROM (SELECT COALESCE(c.claim_expires_at, c.deadline) AS at FROM reconcile.command c WHERE c.tenant_id = tenant OR c.tenant_id = ANY (broken) ORDER BY 1 OFFSET n / 2) o LIMIT 1) END;
    -- who goes on for as long as it says so comes to an end
    LOOP
        COMMIT;
        SELECT s.more INTO again FROM reconcile.sweep_commands(b) s;
        calls := calls + 1;
        IF sweeps IS NULL THEN
            SELECT count(*) - raising INTO left_over FROM reconcile.command c
             WHERE (c.tenant_id = tenant OR c.tenant_id = ANY (broken)) AND c.completed_at IS NULL;
            sweeps := CASE WHEN left_over = 0 THEN calls END;
        END IF;
        looped := CASE WHEN again THEN NULL ELSE COALESCE(looped, calls) END;
        EXIT WHEN calls >= 100 OR sweeps IS NOT NULL AND looped IS NOT NULL;
    END LOOP;
    INSERT INTO journal_sweep.run VALUES (n, b, raising, how, start, sweeps, looped);
    -- and when the cause is gone the rest is settled, too
    UPDATE reconcile.desired_state d SET revision = 1 WHERE d.tenant_id = tenant;
    UPDATE reconcile.audit_head h SET sequence = (SELECT max(e.sequence) FROM reconcile.audit_event e WHERE e.tenant_id = h.tenant_id)
     WHERE h.tenant_id = ANY (broken);
    COMMIT;
    PERFORM * FROM reconcile.sweep_commands();
END $$;
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT n, b, raising, how, start
               FROM unnest(ARRAY[1, 2, 4, 6, 9]) n, unnest(ARRAY[1, 2, 3, 9]) b, unnest(ARRAY['beginning', 'middle', 'end']) start,
                    LATERAL (SELECT DISTINCT unnest(ARRAY[0, b, n])) x (raising), unnest(ARRAY['expired', 'lapsed']) how
              WHERE raising <= n AND (raising > 0 OR how = 'expired') ORDER BY 1, 2, 3, 4, 5 LOOP
        CALL journal_sweep.run(r.n, r.b, r.raising, r.how, r.start);
    END LOOP;
END $$;
SELECT * FROM run WHERE sweeps IS NULL OR looped IS NULL OR sweeps > CASE WHEN raising = n THEN 1 ELSE ceil(n::numeric / b) + 1 END;
SELECT CASE WHEN raising > 0 THEN how END AS raising, start, count(*) AS cases FROM run GROUP BY 1, 2 ORDER BY 1, 2;
SELECT DISTINCT status, failure FROM reconcile.commands WHERE tenant_id LIKE 'sw %' ORDER BY 1;
SELECT count(*) FROM (SELECT DISTINCT tenant_id FROM reconcile.commands WHERE tenant_id LIKE 'sw %') t, reconcile.audit_verify(t.tenant_id) v WHERE v.outcome <> 'ok';

--
-- A tenant whose audit cannot go on holds up no other
--
SELECT give('sw broken', 'x'), give('sw whole', 'x');
SELECT pg_sleep(0.002);
BEGIN;
UPDATE reconcile.audit_head SET sequence = 9223372036854775807 WHERE tenant_id = 'sw broken';
COMMIT;
SELECT * FROM reconcile.sweep_commands();
SELECT tenant_id, status FROM reconcile.commands WHERE tenant_id IN ('sw broken', 'sw whole') ORDER BY 1;
UPDATE reconcile.audit_head SET sequence = 0 WHERE tenant_id = 'sw broken';
SELECT * FROM reconcile.sweep_commands();
-- nor one whose chain has no end any more
CREATE TABLE journal_sweep.head AS SELECT * FROM reconcile.audit_head WHERE tenant_id = 'sw broken';
DELETE FROM reconcile.audit_head WHERE tenant_id = 'sw broken';
SELECT give('sw whole', 'y');
SELECT pg_sleep(0.002);
SELECT * FROM reconcile.sweep_commands();
SELECT tenant_id, idempotency_key, status FROM reconcile.commands WHERE tenant_id IN ('sw broken', 'sw whole') ORDER BY 1, 2;
\set VERBOSITY sqlstate
SELECT give('sw broken', 'y');
\set VERBOSITY terse
INSERT INTO reconcile.audit_head SELECT * FROM journal_sweep.head;
DROP TABLE journal_sweep.head;
UPDATE reconcile.audit_head SET sequence = 1 WHERE tenant_id = 'sw broken';
SELECT * FROM reconcile.sweep_commands();
SELECT tenant_id, status FROM reconcile.commands WHERE tenant_id IN ('sw broken', 'sw whole') ORDER BY 1;
SELECT outcome FROM reconcile.audit_verify('sw broken');

--
-- A sweep that is rolled back has done nothing, and the next one begins where it began
--
SELECT give('sw', 'once more');
SELECT pg_sleep(0.002);
BEGIN;
SELECT * FROM reconcile.sweep_commands();
ROLLBACK;
SELECT * FROM now_is WHERE command_id = 'once more';
SELECT * FROM reconcile.sweep_commands();
SELECT * FROM now_is WHERE command_id = 'once more';

--
-- Whoever it is for, and bad arguments
--
CREATE ROLE journal_sweeper;
SELECT reconcile.grant_command('journal_sweeper', 'sw', p) FROM unnest(ARRAY['dispatch', 'resolve', 'retry']) p;
SET ROLE journal_sweeper;
SELECT * FROM reconcile.sweep_commands();
RESET ROLE;
SELECT reconcile.grant_access('journal_sweeper', 'operate');
SET ROLE journal_sweeper;
SELECT * FROM reconcile.sweep_commands();
RESET ROLE;
SELECT * FROM reconcile.sweep_commands(NULL);
SELECT * FROM reconcile.sweep_commands(0);
SELECT * FROM reconcile.sweep_commands(10001);

--
-- Cleaning up
--
\i :settled
DO $$
BEGIN
    PERFORM reconcile.revoke_command(role_name, tenant_id, permission) FROM reconcile.command_grant WHERE tenant_id = 'sw';
    PERFORM reconcile.revoke_access('journal_sweeper', 'operate');
    DELETE FROM reconcile.command_action WHERE action = 'sw_halt';
END $$;
SELECT outcome FROM reconcile.audit_verify('sw');
DROP OWNED BY journal_sweeper;
DROP ROLE journal_sweeper;
RESET search_path;
DROP SCHEMA journal_sweep CASCADE;

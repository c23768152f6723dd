--
-- Where a command stands, what came of it step by step, and that who may not see it sees nothing.
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
\getenv source PG_ABS_SRCDIR
\set journal :source '/sql/include/journal.sql'
\i :journal
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

CREATE TABLE sight_claim (command_id text, claim_token text);
CREATE FUNCTION give(key text, args jsonb DEFAULT '{}') RETURNS text LANGUAGE sql AS $$
    SELECT outcome FROM accept(jsonb_build_object('tenant_id', 'see', 'idempotency_key', key, 'command_id', key, 'target_name', key) || args)
$$;
CREATE FUNCTION claim(key text, ttl interval DEFAULT '1 h') RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO sight_claim SELECT c.command_id, c.claim_token FROM reconcile.claim_commands('dispatcher', '{drain}', 1, ttl) c;
    RETURN (SELECT count(*) FROM sight_claim WHERE command_id = key);
END $$;
CREATE FUNCTION report(key text, status text, failure text DEFAULT NULL) RETURNS text LANGUAGE sql AS
    $$SELECT reconcile.complete_command('see', key, claim_token, status, failure) FROM sight_claim WHERE command_id = key$$;
-- Returns when the time of the command is over
CREATE PROCEDURE pass(key text) LANGUAGE plpgsql AS $$
DECLARE
    last timestamptz := clock_timestamp() + '5 min';
BEGIN
    WHILE EXISTS (SELECT FROM reconcile.command WHERE tenant_id = 'see' AND command_id = key AND coalesce(claim_expires_at, deadline) > clock_timestamp()) LOOP
        IF clock_timestamp() > last THEN
            RAISE 'the time of % is not over', key;
        END IF;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
CREATE FUNCTION explained(key text, OUT status text, OUT reason text, OUT until text, OUT detail text, OUT hint text) LANGUAGE sql AS $$
    SELECT e.status, e.reason, CASE e.until WHEN c.deadline THEN 'its deadline' WHEN c.claim_expires_at THEN 'end of claim' ELSE e.until::text END,
           regexp_replace(replace(e.detail, quote_ident(session_user), 'me'), '[0-9]{4}-[0-9-]+ [0-9:]+[.][0-9]+[+-][0-9]+', 'then', 'g'), e.hint
      FROM reconcile.explain_command('see', key) e LEFT JOIN reconcile.command c ON c.tenant_id = 'see' AND c.command_id = key
$$;
SET timezone = 'UTC';
SET datestyle = 'ISO';

--
-- Where it stands: the first that is so
--
CREATE ROLE journal_sight_dispatcher;
SELECT give('a');
SELECT * FROM explained('a') \gx
SELECT reconcile.grant_command('journal_sight_dispatcher', 'see', 'dispatch', 'worker_group');
SELECT reconcile.grant_command('journal_sight_dispatcher', 'see', 'dispatch', 'worker', 'b');
SELECT reason FROM explained('a');
SELECT reconcile.grant_command('journal_sight_dispatcher', 'see', 'dispatch', 'worker', 'a');
SELECT * FROM explained('a') \gx
SELECT claim('a');
SELECT * FROM explained('a') \gx
SELECT reconcile.acknowledge_command('see', 'a', claim_token, 'w', '1.0') FROM sight_claim WHERE command_id = 'a';
SELECT * FROM explained('a') \gx
SELECT report('a', 'succeeded');
SELECT * FROM explained('a') \gx
SELECT give('b', '{"deadline_in": "1 ms"}');
CALL pass('b');
SELECT * FROM explained('b') \gx
SELECT give('c'), claim('c', '1 ms');
CALL pass('c');
SELECT * FROM explained('c') \gx
SELECT canceled >= 1 AND lapsed >= 1 AS both FROM reconcile.sweep_commands();
SELECT * FROM explained('b') \gx
SELECT * FROM explained('c') \gx
SELECT give('d'), reconcile.cancel_command('see', 'd', 'no more');
SELECT * FROM explained('d') \gx
SELECT give('e'), claim('e');
SELECT report('e', 'timed_out', 'no_answer');
SELECT * FROM explained('e') \gx
-- what was unknown, and is known now: by its worker, and by an operator, whose verdict counts however late the worker is
SELECT report('c', 'failed', 'no_worker');
SELECT * FROM explained('c') \gx
SELECT reconcile.resolve_command('see', 'c', 'not_executed', '{"looked at": "w"}', 'its log is empty');
SELECT report('c', 'succeeded');
SELECT * FROM explained('c') \gx
SELECT status, effective_status FROM reconcile.commands WHERE tenant_id = 'see' AND command_id = 'c';
SELECT give('f'), claim('f');
SELECT report('f', 'unknown', 'connection_lost');
SELECT * FROM explained('f') \gx
-- a local one, and one that nobody can have
SELECT give('g', '{"action": "pause", "target_kind": "queue"}');
SELECT * FROM explained('g') \gx
SELECT reconcile.register_action('journal_sight_none', '{worker}', 'unavailable');
SELECT give('h', '{"action": "journal_sight_none"}');
SELECT * FROM explained('h') \gx
SELECT * FROM reconcile.explain_command('see', 'nobody');
SELECT code, message FROM unnest(ARRAY['NULL, ''a''', '''see'', NULL', ''''', ''a''', '''see'', '' ''']) a, refusal('SELECT * FROM reconcile.explain_command(' || a || ')');
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT reason FROM explained('a');
COMMIT;

--
-- Step by step
--
SELECT command_id, event, action, failure, reason, detail - '{deadline,evidence}'::text[] AS detail, since_last >= '0 s' AS later
  FROM reconcile.command_timeline WHERE tenant_id = 'see' ORDER BY command_id, sequence;
-- what was refused is no step of a command
SELECT count(*) FROM accept('{"tenant_id": "see", "idempotency_key": "a", "reason": "another"}');
SELECT count(*) FROM reconcile.command_timeline WHERE tenant_id = 'see' AND event = 'conflict';

--
-- Who may not see it sees what he would see of what is not there
--
CREATE ROLE journal_sight_reader;
SELECT reconcile.grant_command('journal_sight_reader', 'see', 'view', 'worker', 'a');
SET ROLE journal_sight_reader;
SELECT k, (SELECT count(*) FROM reconcile.explain_command('see', k)) AS explained FROM unnest('{a,b,nobody}'::text[]) k;
SELECT command_id FROM reconcile.commands;
SELECT count(*) FROM reconcile.command_timeline;
RESET ROLE;
SELECT reconcile.grant_command('journal_sight_reader', 'see', 'audit_view', 'worker', 'a');
SET ROLE journal_sight_reader;
SELECT DISTINCT command_id FROM reconcile.command_timeline;
RESET ROLE;

DELETE FROM reconcile.command_action WHERE action = 'journal_sight_none';
DROP TABLE sight_claim;
DROP FUNCTION give, claim, report, explained;
DROP PROCEDURE pass;
SELECT journal_forget('see');
DROP OWNED BY journal_sight_dispatcher, journal_sight_reader;
DROP ROLE journal_sight_dispatcher, journal_sight_reader;
DROP FUNCTION accept, tried, command_args, text_of_bytes, journal_forget, journal_triggers, refusal;
DROP TABLE journal_trigger;

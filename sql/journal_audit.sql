--
-- The audit of commands (contract 9.8, 9.1 SensitiveAccess): what each step leaves, how it is hashed, and that whatever is changed is found.
--
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set chain :source '/sql/include/journal_chain.sql'
\set refusal :source '/sql/include/refusal.sql'
\i :chain
\i :refusal
CREATE ROLE regress_audit_giver;
CREATE ROLE regress_audit_worker;
CREATE ROLE regress_audit_auditor;
CREATE ROLE regress_audit_stranger;
SELECT count(reconcile.grant_command('regress_audit_giver', 'acme', p)) FROM unnest('{drain,scale,retry,bulk_retry,delete,purge,pause,resume,resolve}'::text[]) p;
SELECT count(reconcile.grant_command('regress_audit_worker', 'acme', p)) FROM unnest('{dispatch,report}'::text[]) p;
SELECT reconcile.grant_command('regress_audit_auditor', 'acme', 'audit_view');
-- who may do nothing has EXECUTE all the same
SELECT reconcile.grant_command('regress_audit_stranger', 'elsewhere', 'drain');
CREATE SCHEMA audit_app;
CREATE FUNCTION audit_app.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
SELECT reconcile.create_loop('audit_loop', 'audit_app.drive', enabled => false);
SELECT reconcile.register_action('audit_nowhere', '{worker}', 'unavailable');
SELECT reconcile.grant_command('regress_audit_giver', 'acme', 'audit_nowhere');
SELECT reconcile.grant_command('regress_audit_giver', 'acme', 'pause', 'queue', 'audit_loop');
SELECT reconcile.grant_command('regress_audit_giver', 'acme', 'pause', 'queue', 'audit_none');

--
-- Each step is one event
--
CREATE VIEW audit_app.events AS
SELECT sequence AS n, event, idempotency_key AS key, command_id IS NOT NULL AS id, actor, e.role_name AS role, authentication_method AS method, action, target_kind AS kind, target_name AS name,
       e.reason, e.options, e.fingerprint IS NOT NULL AS print, e.failure, detail - '{deadline,access}'::text[] AS detail
  FROM reconcile.audit_event e WHERE tenant_id = 'acme' ORDER BY sequence;
SELECT n, event, role, detail FROM audit_app.events;
SELECT max(n) AS seen FROM audit_app.events \gset

SET ROLE regress_audit_giver;
SELECT outcome, status FROM reconcile.accept_command('acme', 'pending', 'drain', 'worker', 'w1', 'is to stop', actor => 'ann', requested_at => '2026-01-02 03:04:05.678901 UTC');
SELECT outcome, status FROM reconcile.accept_command('acme', 'canceled', 'drain', 'worker', 'w1', 'is to stop, too');
SELECT outcome, status FROM reconcile.accept_command('acme', 'local', 'pause', 'queue', 'audit_loop', 'stop it', authentication_method => 'token');
SELECT outcome, status, failure FROM reconcile.accept_command('acme', 'local_failed', 'pause', 'queue', 'audit_none', 'stop it');
SELECT outcome, status, failure FROM reconcile.accept_command('acme', 'unavailable', 'audit_nowhere', 'worker', 'w1', 'cannot be');
SELECT k, outcome, status FROM unnest('{dispatched,acknowledged,succeeded,failed,unknown}'::text[]) k,
       reconcile.accept_command('acme', k, 'bulk_retry', 'failure', 'f1', 'again', '{"selection": {"limit": 7, "sqlstate": "AP001"}}', true, deadline_in => '5 min', capability => 'retries');
SELECT reconcile.cancel_command('acme', command_id, 'not after all') FROM (SELECT * FROM reconcile.accept_command('acme', 'canceled', 'drain', 'worker', 'w1', 'is to stop, too')) c;
RESET ROLE;

SET ROLE regress_audit_worker;
SELECT count(*) FROM reconcile.claim_commands('hands', '{bulk_retry}', 5, '1 h');
RESET ROLE;
CREATE FUNCTION audit_app.id(key text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT command_id FROM reconcile.command c WHERE c.tenant_id = 'acme' AND c.idempotency_key = key$$;
CREATE FUNCTION audit_app.token(key text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT claim_token FROM reconcile.command c WHERE c.tenant_id = 'acme' AND c.idempotency_key = key$$;
GRANT USAGE ON SCHEMA audit_app TO PUBLIC;
SET ROLE regress_audit_worker;
SELECT k, reconcile.acknowledge_command('acme', audit_app.id(k), audit_app.token(k), 'w7', '1.2') FROM unnest('{acknowledged,succeeded}'::text[]) k;
SELECT reconcile.complete_command('acme', audit_app.id('succeeded'), audit_app.token('succeeded'), 'succeeded', NULL, 'w7', '1.2', true, '2026-01-02 03:04:05 UTC');
SELECT reconcile.complete_command('acme', audit_app.id('failed'), audit_app.token('failed'), 'failed', 'target_mismatch', capability_available => false);
SELECT reconcile.complete_command('acme', audit_app.id('unknown'), audit_app.token('unknown'), 'unknown', 'no_answer');
-- what became of it comes too late
SELECT reconcile.complete_command('acme', audit_app.id('unknown'), audit_app.token('unknown'), 'partial', 'half_of_it', 'w7', '1.2');
RESET ROLE;
SET ROLE regress_audit_giver;
SELECT reconcile.resolve_command('acme', audit_app.id('unknown'), 'succeeded', '{"seen": "by eye"}', 'looked at it');
RESET ROLE;
SELECT n, event, key, id, actor, role, method, action, kind, name, reason FROM audit_app.events WHERE n > :seen;
SELECT n, event, key, options, print, failure, detail FROM audit_app.events WHERE n > :seen;
SELECT max(n) AS seen FROM audit_app.events \gset
-- what is replayed or repeated is none
SET ROLE regress_audit_giver;
SELECT outcome FROM reconcile.accept_command('acme', 'local', 'pause', 'queue', 'audit_loop', 'stop it', authentication_method => 'token');
SELECT reconcile.resolve_command('acme', audit_app.id('unknown'), 'succeeded', '{"seen": "by eye"}', 'looked at it');
RESET ROLE;
SET ROLE regress_audit_worker;
SELECT reconcile.complete_command('acme', audit_app.id('failed'), audit_app.token('failed'), 'failed', 'target_mismatch', capability_available => false);
RESET ROLE;
SELECT count(*) FROM audit_app.events WHERE n > :seen;

--
-- Refusals are events of no command, and have no text of who may do nothing
--
SET ROLE regress_audit_giver;
SELECT outcome, command_id FROM reconcile.accept_command('acme', 'local', 'pause', 'queue', 'audit_loop', 'another reason');
SELECT outcome FROM reconcile.accept_command('acme', 'new_1', 'terminate', 'worker', 'w1', 'not allowed, by one who is known', '{}', command_id => audit_app.id('failed'));
SELECT outcome, desired_revision FROM reconcile.accept_command('acme', 'new_2', 'drain', 'worker', 'w1', 'stale', expected_revision => 77);
SELECT reconcile.cancel_command('acme', 'no-such-command', 'mine is the reason');
RESET ROLE;
SET ROLE regress_audit_worker;
SELECT reconcile.acknowledge_command('acme', audit_app.id('acknowledged'), 'another-token');
SELECT reconcile.complete_command('acme', audit_app.id('acknowledged'), 'another-token', 'succeeded');
SELECT reconcile.complete_command('acme', audit_app.id('pending'), 'another-token', 'succeeded');
RESET ROLE;
SET ROLE regress_audit_stranger;
SELECT outcome FROM reconcile.accept_command('acme', 'new_3', 'bulk_retry', 'failure', 'f1', 'text of a stranger', '{"selection": {"limit": 7}}', true, command_id => audit_app.id('failed'));
SELECT reconcile.cancel_command('acme', audit_app.id('pending'), 'text of a stranger');
SELECT reconcile.resolve_command('acme', audit_app.id('unknown'), 'failed', '{"text": "of a stranger"}', 'text of a stranger');
SELECT reconcile.acknowledge_command('acme', audit_app.id('acknowledged'), audit_app.token('acknowledged'));
SELECT reconcile.complete_command('acme', audit_app.id('acknowledged'), audit_app.token('acknowledged'), 'succeeded');
SELECT reconcile.report_observed('acme', 'w1', 'worker', 'w1', 1, 'draining');
SELECT outcome FROM reconcile.prune_commands('acme');
SELECT reconcile.audit_access('acme', 'payload_view', 'failure', 'f1', 'text of a stranger');
-- of names that nobody knows there is no audit
SELECT outcome FROM reconcile.accept_command('nobody', 'k', 'drain', 'worker', 'w1', 'text of a stranger');
SELECT reconcile.cancel_command('nobody', 'no-such-command', 'text of a stranger');
SELECT reconcile.audit_access('nobody', 'payload_view', 'failure', 'f1', 'text of a stranger');
RESET ROLE;
SELECT n, event, key, id, actor, role, action, kind, name FROM audit_app.events WHERE n > :seen;
SELECT n, event, reason, options, failure, regexp_replace(detail::text, '[0-9a-z]{26}', 'ID') AS detail FROM audit_app.events WHERE n > :seen;
SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'nobody';
SELECT max(n) AS seen FROM audit_app.events \gset
-- a command's timeline is of its own steps
SELECT event FROM reconcile.command_timeline WHERE tenant_id = 'acme' AND command_id = audit_app.id('failed') ORDER BY sequence;

--
-- A place in the chain is given at COMMIT, to what commits
--
SELECT head_sequence AS before FROM reconcile.audit_verify('acme') \gset
BEGIN;
SELECT outcome FROM reconcile.accept_command('zeta', 'k1', 'drain', 'worker', 'w1', 'first');
SELECT outcome FROM reconcile.accept_command('acme', 'in_1', 'scale', 'workload', 'x', 'second', '{"scale": {"replicas": 1}}');
SAVEPOINT s;
SELECT outcome FROM reconcile.accept_command('acme', 'in_2', 'scale', 'workload', 'x', 'undone', '{"scale": {"replicas": 2}}');
SAVEPOINT t;
SELECT outcome FROM reconcile.accept_command('zeta', 'k2', 'drain', 'worker', 'w1', 'undone');
RELEASE t;
ROLLBACK TO s;
SAVEPOINT u;
SELECT outcome FROM reconcile.accept_command('acme', 'in_3', 'scale', 'workload', 'x', 'third', '{"scale": {"replicas": 3}}');
RELEASE u;
SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'zeta' OR sequence > :before AND tenant_id = 'acme';
COMMIT;
SELECT tenant_id, sequence - CASE tenant_id WHEN 'acme' THEN :before ELSE 0 END AS n, event, reason FROM reconcile.audit_event WHERE tenant_id = 'zeta' OR sequence > :before AND tenant_id = 'acme' ORDER BY 1, 2;
BEGIN;
SELECT outcome FROM reconcile.accept_command('zeta', 'k3', 'drain', 'worker', 'w1', 'undone');
ROLLBACK;
-- who prepares would keep the chain of a tenant standing, by a denial too
SET ROLE regress_audit_stranger;
BEGIN;
SELECT outcome FROM reconcile.accept_command('acme', 'new_4', 'drain', 'worker', 'w1', 'denied');
PREPARE TRANSACTION 'journal_audit';
ROLLBACK PREPARED 'journal_audit';
-- nor does he learn by it whether there is such a tenant
BEGIN;
SELECT outcome FROM reconcile.accept_command('nobody', 'new_4', 'drain', 'worker', 'w1', 'denied');
PREPARE TRANSACTION 'journal_audit';
BEGIN;
SELECT reconcile.cancel_command('nobody', 'no-such-command', 'denied'), reconcile.audit_access('nobody', 'payload_view', 'failure', 'f1', 'denied');
PREPARE TRANSACTION 'journal_audit';
-- neither with what he has taken back (versions word the hint of it in their own way)
\set VERBOSITY terse
BEGIN;
SAVEPOINT s;
SELECT outcome FROM reconcile.accept_command('acme', 'new_4', 'drain', 'worker', 'w1', 'denied');
ROLLBACK TO s;
PREPARE TRANSACTION 'journal_audit';
ROLLBACK PREPARED 'journal_audit';
BEGIN;
SAVEPOINT s;
SELECT outcome FROM reconcile.accept_command('nobody', 'new_4', 'drain', 'worker', 'w1', 'denied');
ROLLBACK TO s;
PREPARE TRANSACTION 'journal_audit';
ROLLBACK PREPARED 'journal_audit';
\set VERBOSITY default
RESET ROLE;
SELECT (SELECT sequence FROM reconcile.audit_head WHERE tenant_id = 'acme') - :before AS acme, (SELECT sequence FROM reconcile.audit_head WHERE tenant_id = 'zeta') AS zeta;
-- of a tenant for which nobody has a grant any more, but that has an audit
SET ROLE regress_audit_stranger;
SELECT outcome FROM reconcile.accept_command('zeta', 'new_5', 'drain', 'worker', 'w1', 'denied');
RESET ROLE;
SELECT sequence, event, idempotency_key, reason FROM reconcile.audit_event WHERE tenant_id = 'zeta' AND event = 'denied';
-- a session's role, and who it acts as
SET SESSION AUTHORIZATION regress_audit_giver;
SELECT outcome FROM reconcile.accept_command('acme', 'as_session', 'scale', 'workload', 'x', 'who', '{"scale": {"replicas": 4}}');
RESET SESSION AUTHORIZATION;
CREATE FUNCTION audit_app.as_definer() RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT outcome FROM reconcile.accept_command('acme', 'as_definer', 'scale', 'workload', 'x', 'who', '{"scale": {"replicas": 4}}')$$;
ALTER FUNCTION audit_app.as_definer OWNER TO regress_audit_giver;
SET SESSION AUTHORIZATION regress_audit_stranger;
SELECT audit_app.as_definer();
RESET SESSION AUTHORIZATION;
SELECT idempotency_key, actor, role_name, session_role FROM reconcile.audit_event WHERE idempotency_key IN ('as_session', 'as_definer') AND tenant_id = 'acme' ORDER BY sequence;

--
-- The hash (SealUsesStableV1Encoding): by SQL alone the same as stored, and a given event for ever
--
SELECT count(*) > 30 AS many, bool_and(hash = journal_hash(e, before)) AS same
  FROM (SELECT e, e.hash, lag(e.hash, 1, decode(repeat('00', 32), 'hex')) OVER (PARTITION BY tenant_id ORDER BY sequence) AS before
          FROM reconcile.audit_event e WHERE tenant_id IN ('acme', 'zeta')) e;
INSERT INTO reconcile.audit_event VALUES
('golden', 1, 'denied', '2026-07-16 12:00:00.000001 UTC', NULL, 'request-123', 'operator@example.test', 'api', 'pool', 'internal',
 'drain', 'worker_group', 'payments', 'maintenance – now', '{"b": [1, null], "a": "ü"}', sha256('fingerprint'), NULL,
 '{"confirmed": false}', '7000000000000000001/16384', 1, '\x78697c0c98f50d6f4b4d104a8c3133c0c4360489865f86a6ab7bcc80aa962eea'),
('golden', 2, 'denied', '1999-12-31 23:59:59 UTC', NULL, NULL, NULL, 'api', 'pool', NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, '', 1,
 '\x0c2db50d0d07054b37adce481e3ed54a644efcc9236e1f7829cf4c0413816a2d');
INSERT INTO reconcile.audit_head VALUES ('golden', 2, '\x0c2db50d0d07054b37adce481e3ed54a644efcc9236e1f7829cf4c0413816a2d', 0, decode(repeat('00', 32), 'hex'));
SELECT outcome, events, head_sequence, head_hash, bad_sequence FROM reconcile.audit_verify('golden');

--
-- Whatever is changed past the triggers is found, in each column: a new column is a new line here
--
SELECT head_sequence, head_hash FROM reconcile.audit_verify('acme') \gset kept_
INSERT INTO reconcile.command_tombstone
SELECT tenant_id, 'spent', 'spent', fingerprint, 1, 'failed', 'x', 1, now(), now() FROM reconcile.command WHERE tenant_id = 'acme' AND idempotency_key = 'succeeded';
CREATE TABLE audit_app.edit (relation regclass, col name, edit text, setting text);
INSERT INTO audit_app.edit
SELECT a.attrelid, a.attname, 'other',
       format(CASE format_type(a.atttypid, NULL)
                  WHEN 'text' THEN '%1$I = COALESCE(%1$I, '''') || ''x'''
                  WHEN 'name' THEN '%1$I = %1$I || ''x'''
                  WHEN 'smallint' THEN '%1$I = %1$I + 1'
                  WHEN 'integer' THEN '%1$I = %1$I + 1'
                  WHEN 'bigint' THEN '%1$I = COALESCE(%1$I, 0) + 1'
                  WHEN 'boolean' THEN '%1$I = NOT COALESCE(%1$I, false)'
                  WHEN 'timestamp with time zone' THEN '%1$I = COALESCE(%1$I, now()) + ''1 us'''
                  WHEN 'jsonb' THEN '%1$I = COALESCE(%1$I, ''{}'') || ''{"x": 1}'''
                  WHEN 'bytea' THEN '%1$I = sha256(COALESCE(%1$I, ''''))'
                  WHEN 'xid8' THEN '%1$I = ''3'''
              END, a.attname)
  FROM pg_attribute a
 WHERE a.attrelid = ANY ('{reconcile.audit_event,reconcile.audit_head,reconcile.command,reconcile.command_resolution,reconcile.command_tombstone}'::regclass[])
   AND a.attnum > 0 AND NOT a.attisdropped;
INSERT INTO audit_app.edit
SELECT a.attrelid, a.attname, 'NULL', format('%I = NULL', a.attname)
  FROM pg_attribute a
 WHERE a.attrelid = ANY ('{reconcile.audit_event,reconcile.audit_head,reconcile.command,reconcile.command_resolution,reconcile.command_tombstone}'::regclass[])
   AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attnotnull;
-- what a constraint binds to another column is changed along
UPDATE audit_app.edit e SET setting = COALESCE(w.setting, e.setting || w.along)
  FROM (VALUES ('command', 'mode', 'other', $$mode = CASE mode WHEN 'local' THEN 'external' ELSE 'local' END$$, NULL),
               ('command_resolution', 'source', 'other', $$source = CASE source WHEN 'worker' THEN 'operator' ELSE 'worker' END$$, NULL),
               ('command', 'protocol', 'other', $$protocol = '9.9', worker_id = COALESCE(worker_id, 'x')$$, NULL),
               ('command', 'protocol', 'NULL', NULL, ', worker_id = NULL'),
               ('command', 'worker_id', 'other', NULL, $$, protocol = COALESCE(protocol, '9.9')$$),
               ('command', 'worker_id', 'NULL', NULL, ', protocol = NULL'),
               ('command', 'claim_token', 'other', NULL, ', dispatched_at = COALESCE(dispatched_at, now())'),
               ('command', 'claim_token', 'NULL', NULL, ', dispatched_at = NULL'),
               ('command', 'dispatched_at', 'other', NULL, $$, claim_token = COALESCE(claim_token, 'x')$$),
               ('command', 'dispatched_at', 'NULL', NULL, ', claim_token = NULL')) w (relation, col, edit, setting, along)
 WHERE e.relation = ('reconcile.' || w.relation)::regclass AND e.col = w.col AND e.edit = w.edit;
-- a status with all that its constraints ask for
DELETE FROM audit_app.edit WHERE relation = 'reconcile.command'::regclass AND col = 'status';
INSERT INTO audit_app.edit
SELECT 'reconcile.command'::regclass, 'status', s, format('status = %L, failure = %s, completed_at = %s, dispatched_at = %s, acknowledged_at = %s, claim_token = %s', s,
           CASE WHEN s IN ('pending', 'dispatched', 'acknowledged', 'succeeded') THEN 'NULL' ELSE 'COALESCE(failure, ''x'')' END,
           CASE WHEN s IN ('pending', 'dispatched', 'acknowledged') THEN 'NULL' ELSE 'COALESCE(completed_at, clock_timestamp())' END,
           CASE WHEN s IN ('dispatched', 'acknowledged') THEN 'COALESCE(dispatched_at, clock_timestamp())' ELSE 'dispatched_at' END,
           CASE WHEN s = 'acknowledged' THEN 'COALESCE(acknowledged_at, clock_timestamp())' ELSE 'acknowledged_at' END,
           CASE WHEN s IN ('dispatched', 'acknowledged') THEN 'COALESCE(claim_token, ''x'')' ELSE 'claim_token' END)
  FROM unnest('{pending,dispatched,acknowledged,succeeded,failed,unsupported,timed_out,partial,unknown,canceled}'::text[]) s;

CREATE FUNCTION audit_app.rows_of(of_relation regclass, OUT ref tid, OUT name text) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT ctid, idempotency_key FROM reconcile.command
     WHERE of_relation = 'reconcile.command'::regclass AND tenant_id = 'acme' AND idempotency_key !~ '^(in|as)_'
    UNION ALL
    SELECT ctid, source FROM reconcile.command_resolution WHERE of_relation = 'reconcile.command_resolution'::regclass AND tenant_id = 'acme'
    UNION ALL
    SELECT ctid, 'tombstone' FROM reconcile.command_tombstone WHERE of_relation = 'reconcile.command_tombstone'::regclass AND tenant_id = 'acme'
    UNION ALL
    SELECT ctid, 'head' FROM reconcile.audit_head WHERE of_relation = 'reconcile.audit_head'::regclass AND tenant_id = 'acme'
    UNION ALL
    -- the first, the last, and one of each kind
    SELECT ctid, sequence::text FROM reconcile.audit_event
     WHERE of_relation = 'reconcile.audit_event'::regclass AND tenant_id = 'acme'
       AND (sequence = 1 OR sequence = (SELECT h.sequence FROM reconcile.audit_head h WHERE h.tenant_id = 'acme')
            OR sequence IN (SELECT DISTINCT ON (event) e.sequence FROM reconcile.audit_event e WHERE e.tenant_id = 'acme' ORDER BY event, e.sequence))
$$;

-- What a statement, which is undone, comes to: the outcome, or that a constraint refuses it.
CREATE FUNCTION audit_app.tamper(statement text, head_sequence bigint DEFAULT NULL, head_hash bytea DEFAULT NULL,
    OUT outcome text, OUT bad_sequence bigint, OUT detail text) LANGUAGE plpgsql AS $$
DECLARE
    touched bigint;
BEGIN
    EXECUTE statement;
    GET DIAGNOSTICS touched = ROW_COUNT;
    SELECT v.outcome, v.bad_sequence, v.detail INTO outcome, bad_sequence, detail
      FROM reconcile.audit_verify('acme', head_sequence, head_hash) v;
    IF touched = 0 THEN
        outcome := '-';
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION
    WHEN SQLSTATE 'UNDO0' THEN NULL;
    WHEN check_violation OR not_null_violation OR unique_violation THEN
        outcome := 'refused';
END $$;
CREATE FUNCTION audit_app.matrix() RETURNS TABLE (relation regclass, col name, edit text, name text, outcome text, bad_sequence bigint) LANGUAGE plpgsql AS $$
DECLARE
    e audit_app.edit;
    r record;
BEGIN
    PERFORM journal_triggers('DISABLE');
    FOR e IN SELECT * FROM audit_app.edit LOOP
        FOR r IN SELECT * FROM audit_app.rows_of(e.relation) LOOP
            SELECT e.relation, e.col, e.edit, r.name, t.outcome, t.bad_sequence INTO relation, col, edit, name, outcome, bad_sequence
              FROM audit_app.tamper(format('UPDATE %s SET %s WHERE ctid = %L AND %s', e.relation, e.setting, r.ref,
                       CASE WHEN e.col = 'status' THEN format('status <> %L', e.edit)
                            WHEN e.edit = 'NULL' THEN format('%I IS NOT NULL', e.col) ELSE 'true' END)) t;
            RETURN NEXT;
        END LOOP;
    END LOOP;
    PERFORM journal_triggers('ENABLE');
END $$;
CREATE TABLE audit_app.found AS SELECT * FROM audit_app.matrix();
SELECT relation, col, edit, count(*) FILTER (WHERE outcome = 'refused') AS refused,
       string_agg(DISTINCT outcome, ' ') FILTER (WHERE outcome NOT IN ('ok', '-', 'refused')) AS found,
       count(*) FILTER (WHERE outcome NOT IN ('ok', '-', 'refused')) AS n,
       string_agg(name, ' ' ORDER BY name) FILTER (WHERE outcome = 'ok') AS missed
  FROM audit_app.found WHERE relation <> 'reconcile.command_tombstone'::regclass GROUP BY 1, 2, 3 ORDER BY relation::text COLLATE "C", col, edit COLLATE "C";
-- of an event it is said which
SELECT col, name, outcome, bad_sequence FROM audit_app.found
 WHERE relation = 'reconcile.audit_event'::regclass AND bad_sequence IS DISTINCT FROM name::bigint AND outcome NOT IN ('-', 'refused');
-- what is missed, with the reason: nothing else is
SELECT DISTINCT f.relation, f.col, f.edit, r.reason FROM audit_app.found f
  LEFT JOIN (VALUES ('claim_token', 'a secret of the claimant: with another one nobody''s report counts, and that is noted'),
                    ('claim_expires_at', 'when a claim lapses: that it did is an event with its time'),
                    ('claim_xid', 'which transaction claimed: it decides in that one alone'),
                    ('fingerprint_version', 'how the fingerprint was made, which is found itself')) r (col, reason)
         ON f.relation = 'reconcile.command'::regclass AND f.col = r.col
 WHERE f.outcome = 'ok' AND f.relation <> 'reconcile.command_tombstone'::regclass ORDER BY 2;
-- what is left of a command that was pruned has no events any more, so none of it is found
SELECT string_agg(col, ' ' ORDER BY col) FROM audit_app.found WHERE relation = 'reconcile.command_tombstone'::regclass AND edit = 'other' AND outcome = 'ok';

--
-- What is deleted, moved, or put in
--
CREATE TABLE audit_app.attack (n int GENERATED ALWAYS AS IDENTITY, what text, statement text);
INSERT INTO audit_app.attack (what, statement) VALUES
('the first event', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 1$$),
('one in the middle', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 20$$),
('the last', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = (SELECT sequence FROM reconcile.audit_head WHERE tenant_id = 'acme')$$),
('the last, and the head is moved', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = (SELECT sequence FROM reconcile.audit_head WHERE tenant_id = 'acme');
    SELECT journal_seal('acme')$$),
('the last denial, and all is written anew', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 56;
    UPDATE reconcile.audit_event SET sequence = sequence + 1000 WHERE tenant_id = 'acme' AND sequence > 56;
    UPDATE reconcile.audit_event SET sequence = sequence - 1001 WHERE tenant_id = 'acme' AND sequence > 1000; SELECT journal_seal('acme')$$),
('the first, and the anchor is moved', $$UPDATE reconcile.audit_head SET anchor_sequence = 1, anchor_hash = (SELECT hash FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 1) WHERE tenant_id = 'acme';
    DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 1$$),
('the first, the anchor is moved, as if pruned', $$UPDATE reconcile.audit_head SET anchor_sequence = 1, anchor_hash = (SELECT hash FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 1), pruned_through = now() WHERE tenant_id = 'acme';
    DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 1$$),
('all events', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme'$$),
('all events and the head', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme'; DELETE FROM reconcile.audit_head WHERE tenant_id = 'acme'$$),
('the head', $$DELETE FROM reconcile.audit_head WHERE tenant_id = 'acme'$$),
('two are swapped', $$UPDATE reconcile.audit_event SET sequence = 1045 - sequence WHERE tenant_id = 'acme' AND sequence IN (22, 23);
    UPDATE reconcile.audit_event SET sequence = sequence - 1000 WHERE tenant_id = 'acme' AND sequence > 1000$$),
('one from another tenant', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 20;
    UPDATE reconcile.audit_event SET tenant_id = 'acme', sequence = 20 WHERE tenant_id = 'zeta' AND sequence = 1$$),
('one from another tenant, behind the last', $$UPDATE reconcile.audit_event SET tenant_id = 'acme', sequence = 1 + (SELECT sequence FROM reconcile.audit_head WHERE tenant_id = 'acme') WHERE tenant_id = 'zeta' AND sequence = 1$$),
('an older version, hashed', $$UPDATE reconcile.audit_event SET hash_version = 0 WHERE tenant_id = 'acme' AND sequence = 20; SELECT journal_seal('acme')$$),
('one says another role, and all is hashed anew', $$UPDATE reconcile.audit_event SET role_name = 'nobody' WHERE tenant_id = 'acme' AND sequence = 1; SELECT journal_seal('acme')$$),
('one says another end, and all is hashed anew', $$UPDATE reconcile.audit_event SET event = 'succeeded', failure = NULL WHERE tenant_id = 'acme' AND event = 'failed'; SELECT journal_seal('acme')$$),
('the same, and the command', $$UPDATE reconcile.audit_event SET event = 'succeeded', failure = NULL WHERE tenant_id = 'acme' AND event = 'failed'; SELECT journal_seal('acme');
    UPDATE reconcile.command SET status = 'succeeded', failure = NULL WHERE tenant_id = 'acme' AND status = 'failed'$$),
('a command', $$DELETE FROM reconcile.command WHERE tenant_id = 'acme' AND idempotency_key = 'failed'$$),
('a pending command', $$DELETE FROM reconcile.command WHERE tenant_id = 'acme' AND idempotency_key = 'pending'$$),
('a command that nobody gave', $$INSERT INTO reconcile.command SELECT (jsonb_populate_record(c, '{"idempotency_key": "made", "command_id": "made"}')).* FROM reconcile.command c WHERE tenant_id = 'acme' AND idempotency_key = 'succeeded'$$),
('a resolution', $$DELETE FROM reconcile.command_resolution WHERE tenant_id = 'acme' AND source = 'operator'$$),
('a resolution that nobody made', $$INSERT INTO reconcile.command_resolution SELECT (jsonb_populate_record(r, '{"number": 9}')).* FROM reconcile.command_resolution r WHERE tenant_id = 'acme' AND source = 'operator'$$),
('a second end, hashed', $$INSERT INTO reconcile.audit_event SELECT (jsonb_populate_record(e, jsonb_build_object('sequence', h.sequence + 1))).*
    FROM reconcile.audit_event e JOIN reconcile.audit_head h USING (tenant_id) WHERE tenant_id = 'acme' AND event = 'failed' AND idempotency_key = 'failed'; SELECT journal_seal('acme')$$),
('a claimed command is pending again', $$UPDATE reconcile.command SET status = 'pending', claimant = NULL, claim_token = NULL, claim_expires_at = NULL, claim_xid = NULL, dispatched_at = NULL
    WHERE tenant_id = 'acme' AND idempotency_key = 'dispatched'$$),
('a finished command is pending again', $$UPDATE reconcile.command SET status = 'pending', failure = NULL, completed_at = NULL, claimant = NULL, claim_token = NULL, claim_expires_at = NULL, claim_xid = NULL,
    dispatched_at = NULL, acknowledged_at = NULL, worker_id = NULL, protocol = NULL, capability_available = NULL, worker_completed_at = NULL WHERE tenant_id = 'acme' AND idempotency_key = 'succeeded'$$);
CREATE FUNCTION audit_app.attacks(kept_sequence bigint, kept_hash bytea) RETURNS TABLE (n int, what text, outcome text, bad_sequence bigint, detail text, by_kept_head text) LANGUAGE plpgsql AS $$
DECLARE
    a audit_app.attack;
BEGIN
    PERFORM journal_triggers('DISABLE');
    FOR a IN SELECT * FROM audit_app.attack ORDER BY attack.n LOOP
        n := a.n;
        what := a.what;
        SELECT t.outcome, t.bad_sequence, regexp_replace(t.detail, '[0-9a-z]{26}', 'ID') INTO outcome, bad_sequence, detail FROM audit_app.tamper(a.statement) t;
        SELECT t.outcome INTO by_kept_head FROM audit_app.tamper(a.statement, kept_sequence, kept_hash) t;
        RETURN NEXT;
    END LOOP;
    PERFORM journal_triggers('ENABLE');
END $$;
SELECT what, outcome, bad_sequence, detail, NULLIF(by_kept_head, outcome) AS by_kept_head FROM audit_app.attacks(:kept_head_sequence, :'kept_head_hash') ORDER BY n;
-- the head that was kept
SELECT v.* FROM (VALUES (0, decode(repeat('00', 32), 'hex')), (20, sha256('another')), (:kept_head_sequence, :'kept_head_hash'), (:kept_head_sequence, sha256('another')), (9223372036854775807, :'kept_head_hash')) k (n, hash),
       LATERAL (SELECT outcome, bad_sequence = n AS at_it, detail FROM reconcile.audit_verify('acme', n, hash)) v;
SELECT outcome FROM reconcile.audit_verify('acme', 20, (SELECT hash FROM reconcile.audit_event WHERE tenant_id = 'acme' AND sequence = 20));
-- of a tenant that nobody knows there is nothing that is wrong
SELECT outcome, events, head_sequence, head_hash = decode(repeat('00', 32), 'hex') AS zero FROM reconcile.audit_verify('nobody');
SELECT outcome FROM reconcile.audit_verify('nobody', 0, decode(repeat('00', 32), 'hex'));
SELECT outcome FROM reconcile.audit_verify('nobody', 1, decode(repeat('00', 32), 'hex'));

--
-- More events than are read at once
--
SELECT count(reconcile.audit_access('pages', 'payload_view', 'failure', 'f', 'many')) FROM generate_series(1, 2001);
SELECT outcome, events, head_sequence, bad_sequence FROM reconcile.audit_verify('pages');
BEGIN;
SELECT journal_triggers('DISABLE');
SAVEPOINT s;
UPDATE reconcile.audit_event SET target_name = 'g' WHERE tenant_id = 'pages' AND sequence = 1001;
SELECT outcome, events, bad_sequence FROM reconcile.audit_verify('pages');
ROLLBACK TO s;
DELETE FROM reconcile.audit_event WHERE tenant_id = 'pages' AND sequence IN (1000, 1001);
SELECT outcome, events, bad_sequence FROM reconcile.audit_verify('pages');
ROLLBACK;

--
-- A chain that cannot go on is not gone on with
--
BEGIN;
UPDATE reconcile.audit_head SET sequence = 9223372036854775807 WHERE tenant_id = 'zeta';
SELECT reconcile.audit_access('zeta', 'payload_view', 'failure', 'f', 'no place') IS NOT NULL AS answered;
COMMIT;
\echo :SQLSTATE
BEGIN;
UPDATE reconcile.audit_head SET sequence = 0 WHERE tenant_id = 'zeta';
SELECT outcome FROM reconcile.accept_command('zeta', 'k4', 'drain', 'worker', 'w1', 'no place');
COMMIT;
SELECT count(*) FROM reconcile.command WHERE tenant_id = 'zeta' AND idempotency_key = 'k4';
SELECT outcome FROM reconcile.audit_verify('zeta');

--
-- What is over is kept: for every role, in every mode of replication
--
SELECT count(*), bool_and(tgenabled = 'A') AS always FROM pg_trigger WHERE tgfoid = 'reconcile.keep_row()'::regprocedure;
CREATE ROLE regress_audit_owner BYPASSRLS;
GRANT ALL ON ALL TABLES IN SCHEMA reconcile TO regress_audit_owner;
CREATE FUNCTION audit_app.keeps(of_role name, mode text) RETURNS TABLE (statement text, code text, message text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('session_replication_role', mode, true);
    PERFORM set_config('role', of_role, true);
    RETURN QUERY SELECT s.statement, r.code, r.message
      FROM (SELECT format(f, t) AS statement FROM unnest('{command,command_resolution,command_tombstone,audit_event}'::text[]) t,
                   unnest(ARRAY['UPDATE reconcile.%s SET tenant_id = tenant_id WHERE tenant_id = ''acme''', 'DELETE FROM reconcile.%s WHERE tenant_id = ''acme''', 'TRUNCATE reconcile.%s']) f
            UNION ALL VALUES ($s$DELETE FROM reconcile.command WHERE tenant_id = 'acme' AND status = 'pending'$s$),
                             ($s$UPDATE reconcile.command SET status = 'pending', completed_at = NULL, failure = NULL WHERE tenant_id = 'acme' AND status = 'unknown'$s$)) s,
           refusal(s.statement) r;
    PERFORM set_config('role', 'none', true);
    PERFORM set_config('session_replication_role', 'origin', true);
END $$;
GRANT EXECUTE ON FUNCTION refusal TO PUBLIC;
SELECT * FROM audit_app.keeps('none', 'origin');
SELECT r.role, m.mode, k.code, count(*) FROM unnest('{none,regress_audit_owner}'::name[]) r (role), unnest('{origin,local,replica}'::text[]) m (mode), LATERAL audit_app.keeps(r.role, m.mode) k GROUP BY 1, 2, 3 ORDER BY 1, 2;
-- a head that is none is refused
SELECT r.code, r.message FROM unnest('{hash,anchor_hash}'::text[]) c, refusal(format('UPDATE reconcile.audit_head SET %I = ''\x00'' WHERE tenant_id = ''acme''', c)) r;
-- no SQL calls it
SELECT * FROM refusal('SELECT reconcile.keep_row()');

--
-- A sensitive read is allowed and noted, or not made (9.1)
--
SELECT p.permission, k.kind, r.code, r.message
  FROM unnest('{payload_view,diagnostics_view,view,audit_view,record_list,record_inspect,retention_configure,pause,purge,dispatch,resolve,report,"",Payload_view}'::text[]) p (permission),
       unnest('{failure,dead_letter,queue,worker,worker_group,workload,other,""}'::text[]) k (kind),
       LATERAL refusal(format('SELECT reconcile.audit_access(%L, %L, %L, %L, %L)', 'acme', p.permission, k.kind, 'n', 'why')) r
 WHERE (r.code IS NULL) <> (p.permission ~ '^(payload|diagnostics)_view$' AND k.kind IN ('failure', 'dead_letter')) OR k.kind = 'failure' OR p.permission = 'payload_view';
SELECT b.args, r.code, r.message
  FROM (VALUES ($$NULL, 'payload_view', 'failure', 'n', 'why'$$), ($$'acme', NULL, 'failure', 'n', 'why'$$), ($$'acme', 'payload_view', NULL, 'n', 'why'$$),
               ($$'acme', 'payload_view', 'failure', NULL, 'why'$$), ($$'acme', 'payload_view', 'failure', 'n', NULL$$),
               ($$U&'\00A0', 'payload_view', 'failure', 'n', 'why'$$), ($$repeat('t', 257), 'payload_view', 'failure', 'n', 'why'$$),
               ($$'acme', 'payload_view', 'failure', E'a\u202Eb', 'why'$$), ($$'acme', 'payload_view', 'failure', repeat('n', 257), 'why'$$),
               ($$'acme', 'payload_view', 'failure', 'n', E'\t'$$), ($$'acme', 'payload_view', 'failure', 'n', repeat('w', 1025)$$)) b (args),
       LATERAL refusal('SELECT reconcile.audit_access(' || b.args || ')') r;
SELECT reconcile.grant_command('regress_audit_auditor', 'acme', 'payload_view', 'failure', 'f1');
SET ROLE regress_audit_auditor;
SELECT reconcile.audit_access('acme', 'payload_view', 'failure', 'f1', 'ticket 1') AS access \gset
SELECT :access BETWEEN 1 AND 9007199254740992 AS numbered;
SELECT reconcile.audit_access('acme', 'payload_view', 'failure', 'f2', 'ticket 2');
SELECT reconcile.audit_access('acme', 'diagnostics_view', 'failure', 'f1', 'ticket 3');
SELECT event, action, target_kind, target_name, reason, idempotency_key, command_id, detail = jsonb_build_object('access', :access) AS numbered FROM reconcile.audit_events WHERE tenant_id = 'acme' ORDER BY sequence DESC LIMIT 3;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT reconcile.audit_access('acme', 'payload_view', 'failure', 'f1', 'ticket 4');
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.audit_access('acme', 'payload_view', 'failure', 'f1', 'ticket 4');
ROLLBACK;
RESET ROLE;

--
-- Who may have it verified, and what with
--
CREATE FUNCTION audit_app.as_role(of_role name, statement text, OUT code text, OUT message text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('role', of_role, true);
    SELECT r.code, r.message INTO code, message FROM refusal(statement) r;
    PERFORM set_config('role', 'none', true);
END $$;
SELECT r.role, v.* FROM unnest('{regress_audit_auditor,regress_audit_giver,regress_audit_stranger}'::name[]) r (role),
       LATERAL audit_app.as_role(r.role, $$SELECT * FROM reconcile.audit_verify('acme')$$) v;
SELECT b.args, r.code, r.message
  FROM (VALUES ('NULL'), ($$''$$), ($$'acme', 1$$), ($$'acme', NULL, '\x00'$$), ($$'acme', -1, sha256('')$$), ($$'acme', 1, '\x00'$$), ($$'acme', 1, ''$$)) b (args),
       LATERAL refusal('SELECT * FROM reconcile.audit_verify(' || b.args || ')') r;
-- on a part of the tenant it does not do, and a denial of a part keeps from all
SELECT reconcile.grant_command('regress_audit_stranger', 'acme', 'audit_view', 'worker');
SELECT * FROM audit_app.as_role('regress_audit_stranger', $$SELECT * FROM reconcile.audit_verify('acme')$$);
SELECT reconcile.grant_command('regress_audit_auditor', 'acme', 'audit_view', 'worker', 'w9', 'deny');
SELECT * FROM audit_app.as_role('regress_audit_auditor', $$SELECT * FROM reconcile.audit_verify('acme')$$);
SELECT outcome FROM reconcile.audit_verify('acme');

SELECT journal_clean('acme', 'zeta', 'pages', 'golden', 'elsewhere');
DELETE FROM reconcile.command_action WHERE action = 'audit_nowhere';
SELECT reconcile.drop_loop('audit_loop');
SET client_min_messages = warning;
DROP SCHEMA audit_app CASCADE;
RESET client_min_messages;
DROP FUNCTION refusal;
DROP OWNED BY regress_audit_giver, regress_audit_worker, regress_audit_auditor, regress_audit_stranger, regress_audit_owner;
DROP ROLE regress_audit_giver, regress_audit_worker, regress_audit_auditor, regress_audit_stranger, regress_audit_owner;

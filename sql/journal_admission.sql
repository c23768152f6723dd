--
-- Admission: a key is of one command; who sends it again learns what is stored, whoever sends another is told so, and
-- whatever is refused leaves the key free (scenarios 9.2, 9.5, 9.6; K84 to K86).
--
\set SHOW_CONTEXT never
SET client_min_messages = warning;
\getenv source PG_ABS_SRCDIR
\set journal :source '/sql/include/journal.sql'
\i :journal
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

CREATE ROLE journal_admission_clerk;
CREATE ROLE journal_admission_other;
CREATE ROLE journal_admission_stranger;
SELECT count(reconcile.grant_command('journal_admission_clerk', 'adm', p)) FROM unnest('{drain,terminate,scale,view,audit_view,dispatch,pause}'::text[]) p;
SELECT count(reconcile.grant_command('journal_admission_other', t, p)) FROM unnest('{adm,adm_two}'::text[]) t, unnest('{drain,view}'::text[]) p;
-- what there is of a tenant
CREATE FUNCTION stored(tenant text, OUT commands bigint, OUT states bigint, OUT events bigint) LANGUAGE sql AS $$
    SELECT (SELECT count(*) FROM reconcile.command WHERE tenant_id = tenant), (SELECT count(*) FROM reconcile.desired_state WHERE tenant_id = tenant AND revision > 0),
           (SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = tenant)
$$;
SELECT * FROM stored('adm');

--
-- Accepted: what the caller leaves out is filled in, and all of it is stored, in one step
--
SET ROLE journal_admission_clerk;
SELECT outcome, status, created, failure, desired_revision FROM reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy');
SELECT outcome, status, created, failure, desired_revision FROM reconcile.accept_command('adm', 'k2', 'scale', 'workload', 'web', 'night', '{"scale": {"replicas": 2}}', true, '1 min', NULL,
    'kim', 'token', 'scaling', '2020-02-02 02:02:02.1234567Z', 'my-own-id');
SELECT idempotency_key, command_id = 'my-own-id' AS own_id, action, target_kind, target_name, mode, status, effective_status, failure, desired_revision, actor, role_name, authentication_method, capability, reason,
       options, confirmed, deadline - accepted_at AS deadline_in, requested_at AT TIME ZONE 'UTC' AS requested_at, claimant, dispatched_at, acknowledged_at, completed_at
  FROM reconcile.commands WHERE tenant_id = 'adm' ORDER BY 1 \gx
SELECT sequence, event, idempotency_key, actor, role_name, authentication_method, action, target_kind, target_name, reason, options, failure,
       detail - 'deadline' AS terms FROM reconcile.audit_events WHERE tenant_id = 'adm' AND event <> 'granted' ORDER BY sequence;
SELECT e.happened_at = c.accepted_at AS at_once, (e.detail ->> 'deadline')::timestamptz = c.deadline AS deadline
  FROM reconcile.audit_events e JOIN reconcile.commands c USING (tenant_id, command_id) WHERE tenant_id = 'adm';
RESET ROLE;
SELECT * FROM stored('adm');

--
-- Replayed: the same once more is the answer of what is stored, and nothing is done
--
CREATE VIEW admission_first AS SELECT command_id FROM reconcile.command WHERE tenant_id = 'adm' AND idempotency_key = 'k1';
GRANT SELECT ON admission_first TO journal_admission_clerk;
SET ROLE journal_admission_clerk;
SELECT outcome, c.command_id = f.command_id AS same_id, status, created, failure, desired_revision
  FROM admission_first f, reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy') c;
-- when he asked, and under which id he would have it, is not what he asks for
SELECT t AS requested_at, i AS command_id, outcome, c.command_id = f.command_id AS same_id
  FROM admission_first f, unnest('{4000-01-01 BC,2020-01-01,294000-01-01}'::timestamptz[]) t, unnest('{other,my-own-id}'::text[]) i,
       reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy', requested_at => t, command_id => i) c;
-- what is filled in is the same as what is said
SELECT outcome FROM reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy', '{}', false, '30000.9 ms', NULL, 'journal_admission_clerk', 'internal', 'drain');
SELECT o AS options, outcome FROM unnest(ARRAY['{"scale": {"replicas": 2}}', '{ "scale" : {"replicas":1, "replicas":2} }']::jsonb[]) o,
    reconcile.accept_command('adm', 'k2', 'scale', 'workload', 'web', 'night', o, true, '1 min', NULL, 'kim', 'token', 'scaling');
RESET ROLE;
SELECT * FROM stored('adm');

--
-- Conflict: whatever else differs is another command, also while the first waits; of the first nothing is told
--
SET ROLE journal_admission_clerk;
SELECT a AS but_for, outcome, concat_ws(' ', command_id, status, failure, desired_revision) AS told, created
  FROM unnest(ARRAY['{"actor": "kim"}', '{"authentication_method": "token"}', '{"reason": "deploy "}', '{"action": "terminate"}', '{"capability": "draining"}',
                    '{"action": "pause", "target_kind": "worker_group"}', '{"target_name": "w2"}', '{"confirmed": true}', '{"deadline_in": "29.999 s"}', '{"expected_revision": 0}', '{"expected_revision": 1}',
                    '{"action": "scale", "target_kind": "workload", "options": {"scale": {"replicas": 1}}}']::jsonb[]) a,
       accept('{"tenant_id": "adm", "idempotency_key": "k1", "target_name": "w1", "reason": "deploy", "deadline_in": "30 s"}' || a);
-- options: there or not, and each of its values
SELECT o AS options, outcome FROM unnest(ARRAY['{"scale": {"replicas": 3}}', '{"scale": {"replicas": 20}}']::jsonb[]) o,
    reconcile.accept_command('adm', 'k2', 'scale', 'workload', 'web', 'night', o, true, '1 min', NULL, 'kim', 'token', 'scaling');
-- where one field ends and the next begins counts
SELECT a AS of_the_same_letters, outcome
  FROM unnest(ARRAY['{"actor": "ab", "authentication_method": "c"}', '{"actor": "a", "authentication_method": "bc"}', '{"actor": "ab", "authentication_method": "c"}']::jsonb[]) a,
       accept('{"tenant_id": "adm", "idempotency_key": "k8", "target_name": "w8"}' || a);
-- a colleague who leaves out whose command it is gives his own
SET ROLE journal_admission_other;
SELECT outcome FROM reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy');
SELECT outcome, created FROM reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy', actor => 'journal_admission_clerk');
-- keys are a tenant's own, and so are ids
SELECT outcome, created FROM reconcile.accept_command('adm_two', 'k1', 'drain', 'worker', 'w1', 'deploy', command_id => 'my-own-id');
RESET ROLE;
SELECT * FROM stored('adm');
SELECT event, count(*), count(command_id) AS of_a_command, count(DISTINCT idempotency_key) AS keys FROM reconcile.audit_event WHERE tenant_id = 'adm' GROUP BY 1 ORDER BY 1;
-- an id is of one command of a tenant
SELECT outcome, field, problem FROM tried('{"tenant_id": "adm", "idempotency_key": "k3", "command_id": "my-own-id"}');


--
-- What is the same is told by a fingerprint, which other versions than this one read too: SHA-256 of each field behind
-- its length
--
CREATE FUNCTION part(field text) RETURNS bytea LANGUAGE sql AS $$SELECT int8send(octet_length(field)) || convert_to(field, 'UTF8')$$;
CREATE FUNCTION part(field bigint) RETURNS bytea LANGUAGE sql AS 'SELECT int8send(8) || int8send(field)';
SELECT idempotency_key, fingerprint_version, fingerprint = sha256(part('reconcile/command') || part(1) || part(tenant_id) || part(idempotency_key) || part(actor) ||
       part(authentication_method) || part(reason) || part(action) || part(capability) || part(target_kind) || part(target_name) || part(options::text) ||
       part(confirmed::int) || part((extract(epoch FROM deadline - accepted_at) * 1000)::bigint) || part(-1)) AS as_computed
  FROM reconcile.command WHERE tenant_id = 'adm' ORDER BY 1;
DROP FUNCTION part(text), part(bigint);

--
-- While it runs, and after: a replay tells where it stands (K86)
--
SET ROLE journal_admission_clerk;
SELECT outcome, status FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'deploy', deadline_in => '5 min');
SELECT command_id, claim_token FROM reconcile.claim_commands('d', '{terminate}') \gset
SELECT outcome, status FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'deploy', deadline_in => '5 min');
SELECT reconcile.complete_command('adm', :'command_id', :'claim_token', 'failed', 'no_such_worker');
SELECT outcome, status, created, failure, desired_revision FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'deploy', deadline_in => '5 min');
SELECT outcome FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'another', deadline_in => '5 min');
-- rights are asked each time: whoever lost them does not even learn what became of it
RESET ROLE;
SELECT reconcile.revoke_command('journal_admission_clerk', 'adm', 'terminate');
SET ROLE journal_admission_clerk;
SELECT * FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'deploy', deadline_in => '5 min');
SELECT * FROM reconcile.accept_command('adm', 'k0', 'terminate', 'worker', 'w0', 'another', deadline_in => '5 min');
RESET ROLE;
SELECT reconcile.grant_command('journal_admission_clerk', 'adm', 'terminate');

--
-- Denied: told, and noted where the tenant is known; a stranger writes no text of his into its audit
--
GRANT EXECUTE ON FUNCTION reconcile.accept_command(text,text,text,text,text,text,jsonb,boolean,interval,bigint,text,text,text,timestamptz,text) TO journal_admission_stranger;
SET ROLE journal_admission_stranger;
SELECT * FROM reconcile.accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy', actor => 'journal_admission_clerk');
SELECT * FROM reconcile.accept_command('adm', 'k4', 'scale', 'workload', 'web', 'let me', '{"scale": {"replicas": 2}}', command_id => 'my-own-id');
SELECT outcome FROM reconcile.accept_command('adm_nobody', 'k4', 'drain', 'worker', 'w1', 'let me');
SET ROLE journal_admission_other;
SELECT outcome FROM reconcile.accept_command('adm', 'k4', 'scale', 'workload', 'web', 'let me, too', '{"scale": {"replicas": 2}}', command_id => 'his-own-id');
RESET ROLE;
SELECT role_name, command_id, idempotency_key, action, reason, options, detail FROM reconcile.audit_event WHERE tenant_id LIKE 'adm%' AND event = 'denied' ORDER BY sequence;
SELECT * FROM stored('adm_nobody');
SELECT code, message FROM refusal($$SET LOCAL ROLE journal_admission_stranger; SELECT reconcile.cancel_command('adm', 'my-own-id', 'why')$$);

--
-- Whatever fails leaves the key free
--
BEGIN;
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "k5"}');
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "k5"}');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "k5"}');
ROLLBACK TO s;
SELECT outcome, created FROM accept('{"tenant_id": "adm", "idempotency_key": "k5", "reason": "another"}');
COMMIT;
SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'adm' AND idempotency_key = 'k5';
SELECT outcome, desired_revision FROM accept('{"tenant_id": "adm", "idempotency_key": "k6", "target_name": "w1", "expected_revision": 7}');
SELECT outcome, created FROM accept('{"tenant_id": "adm", "idempotency_key": "k6", "target_name": "w6"}');

--
-- The caller's time decides nothing: neither the deadline, nor what the audit says
--
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "past", "requested_at": "4000-01-01 BC"}');
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "future", "requested_at": "294000-01-01"}');
SELECT c.idempotency_key, c.accepted_at > now() - interval '1 min' AND c.accepted_at <= clock_timestamp() AS now, c.deadline - c.accepted_at AS deadline_in,
       e.happened_at = c.accepted_at AS event_too, d.changed_at BETWEEN c.accepted_at - interval '1 min' AND clock_timestamp() AS state_too
  FROM reconcile.command c JOIN reconcile.audit_event e USING (tenant_id, command_id)
  JOIN reconcile.desired_state d ON (d.tenant_id, d.target_kind, d.target_name) = (c.tenant_id, c.target_kind, c.target_name)
 WHERE c.tenant_id = 'adm' AND c.idempotency_key IN ('past', 'future') ORDER BY 1;

--
-- A key of which the command was pruned: the same command is answered, another refused, and neither done
--
INSERT INTO reconcile.command_tombstone SELECT tenant_id, 'pruned', 'pruned-id', fingerprint, 1, 'failed', 'no_such_worker', 4, now(), now()
  FROM reconcile.command WHERE tenant_id = 'adm' AND idempotency_key = 'k5';
SELECT outcome, created, command_id FROM accept('{"tenant_id": "adm", "idempotency_key": "pruned", "reason": "another"}');
-- the fingerprint is of its key, too: that of the command itself
BEGIN;
SELECT outcome FROM accept('{"tenant_id": "adm", "idempotency_key": "again", "target_name": "w9"}');
INSERT INTO reconcile.command_tombstone SELECT tenant_id, idempotency_key, 'again-id', fingerprint, 1, 'failed', 'no_such_worker', 4, now(), now()
  FROM reconcile.command WHERE tenant_id = 'adm' AND idempotency_key = 'again';
ALTER TABLE reconcile.command DISABLE TRIGGER command_unfinished;
DELETE FROM reconcile.command WHERE tenant_id = 'adm' AND idempotency_key = 'again';
ALTER TABLE reconcile.command ENABLE ALWAYS TRIGGER command_unfinished;
COMMIT;
SELECT * FROM accept('{"tenant_id": "adm", "idempotency_key": "again", "target_name": "w9"}');
SELECT * FROM accept('{"tenant_id": "adm", "idempotency_key": "again", "target_name": "w10"}');
SELECT outcome, field, problem FROM tried('{"tenant_id": "adm", "idempotency_key": "k7", "command_id": "again-id"}');
SELECT count(*) AS commands FROM reconcile.command WHERE tenant_id = 'adm' AND target_name IN ('w9', 'w10');

--
-- Above READ COMMITTED none of it could be told truly, and in a read-only transaction none done
--
CREATE TABLE admission_call (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO admission_call (call) VALUES ($$accept_command('adm', 'k1', 'drain', 'worker', 'w1', 'deploy')$$), ($$claim_commands('d')$$),
    ($$acknowledge_command('adm', 'my-own-id', 't')$$), ($$complete_command('adm', 'my-own-id', 't', 'succeeded')$$), ($$cancel_command('adm', 'my-own-id', 'why')$$),
    ($$resolve_command('adm', 'my-own-id', 'failed', '{"a": 1}', 'why')$$), ($$sweep_commands(1)$$), ($$report_observed('adm', 'w', 'worker', 'w1', 1, 'draining')$$),
    ($$audit_access('adm', 'payload_view', 'failure', 'f', 'why')$$), ($$prune_commands('adm')$$);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT split_part(call, '(', 1) AS function, r.* FROM admission_call, refusal('SELECT reconcile.' || call) r ORDER BY n;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT code, count(*) FROM admission_call, refusal('SELECT reconcile.' || call) r GROUP BY 1;
COMMIT;
BEGIN READ ONLY;
SELECT code, count(*) FROM admission_call, refusal('SELECT reconcile.' || call) r GROUP BY 1;
-- what reads alone does not mind
SELECT status FROM reconcile.explain_command('adm', 'my-own-id');
SELECT count(*) FROM reconcile.desired_state_of('adm', 'worker', 'w1');
COMMIT;

DROP VIEW admission_first;
DROP TABLE admission_call;
DROP FUNCTION stored;
SELECT journal_forget('adm', 'adm_two');
DROP OWNED BY journal_admission_clerk, journal_admission_other, journal_admission_stranger;
DROP ROLE journal_admission_clerk, journal_admission_other, journal_admission_stranger;
DROP FUNCTION accept, tried, command_args, text_of_bytes, journal_forget, journal_triggers, refusal;
DROP TABLE journal_trigger;

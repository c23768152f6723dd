--
-- Retention of commands and their audit (contract 9.16): what goes, what stays, and that no key is used a second time.
--
\set SHOW_CONTEXT never
\getenv source PG_ABS_SRCDIR
\set chain :source '/sql/include/journal_chain.sql'
\set refusal :source '/sql/include/refusal.sql'
\i :chain
\i :refusal
CREATE SCHEMA retention_app;
CREATE ROLE regress_retention_hands;
SELECT count(reconcile.grant_command('regress_retention_hands', t, 'dispatch')) FROM unnest('{keeps,late}'::text[]) t;
-- what there is of a tenant
CREATE FUNCTION retention_app.left_of(tenant text, OUT events bigint, OUT first bigint, OUT anchor bigint, OUT commands text, OUT tombstones text, OUT resolutions bigint, OUT verified text) LANGUAGE sql AS $$
    SELECT count(e.sequence), min(e.sequence), (SELECT anchor_sequence FROM reconcile.audit_head WHERE tenant_id = tenant),
           (SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM reconcile.command WHERE tenant_id = tenant),
           (SELECT string_agg(idempotency_key, ' ' ORDER BY idempotency_key) FROM reconcile.command_tombstone WHERE tenant_id = tenant),
           (SELECT count(*) FROM reconcile.command_resolution WHERE tenant_id = tenant),
           (SELECT outcome || COALESCE(': ' || detail, '') FROM reconcile.audit_verify(tenant))
      FROM reconcile.audit_event e WHERE e.tenant_id = tenant
$$;
CREATE FUNCTION retention_app.id(tenant text, key text) RETURNS text LANGUAGE sql AS
    $$SELECT command_id FROM reconcile.command WHERE tenant_id = tenant AND idempotency_key = key$$;
CREATE FUNCTION retention_app.token(tenant text, key text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
    $$SELECT claim_token FROM reconcile.command WHERE tenant_id = tenant AND idempotency_key = key$$;
CREATE FUNCTION retention_app.give(tenant text, key text, action text DEFAULT 'retry', reason text DEFAULT 'why') RETURNS text LANGUAGE sql AS $$
    SELECT concat_ws(' ', outcome, status, failure, command_id = retention_app.id(tenant, key))
      FROM reconcile.accept_command(tenant, key, action, CASE action WHEN 'retry' THEN 'failure' ELSE 'worker_group' END, 'x', reason, deadline_in => '5 min')
$$;

--
-- Policies
--
SELECT * FROM reconcile.prune_commands('keeps');
SELECT c.call, r.code, r.message, r.hint
  FROM (VALUES ($$NULL, '1 day'$$), ($$'', '1 day'$$), ($$'keeps', '59 min 59.999 s'$$), ($$'keeps', '3661 days'$$), ($$'keeps', '3660 days 1 s'$$), ($$'keeps', '-1 day'$$), ($$'keeps', '1 day -23:30'$$), ($$'keeps', '1 month'$$),
               ($$'keeps', '1 year'$$), ($$'keeps', '0'$$), ($$'keeps', '178000000 days'$$), ($$'keeps', '1 day', NULL$$), ($$'keeps', NULL, true$$), ($$'keeps', '1 day', false, '1 min'$$),
               ($$'keeps', '1 day', false, '1 month'$$), ($$'keeps', '1 day', false, '3661 days'$$), ($$'keeps', '1 hour'$$), ($$'keeps', '3660 days', true, '3660 days'$$)) c (call),
       LATERAL refusal(format('SELECT reconcile.set_command_retention(%s)', c.call)) r;
SELECT keep, keep_keys, legal_hold FROM reconcile.command_retention WHERE tenant_id = 'keeps';
SELECT reconcile.set_command_retention('keeps', NULL);
SELECT count(*) FROM reconcile.command_retention WHERE tenant_id = 'keeps';
SELECT event, detail FROM reconcile.audit_event WHERE tenant_id = 'keeps' ORDER BY sequence;
SELECT n, r.code, r.message FROM unnest('{0,-1,10001,NULL,1,10000}'::text[]) n, LATERAL refusal(format('SELECT * FROM reconcile.prune_commands(''keeps'', %s)', COALESCE(n, 'NULL'))) r;
SELECT r.code, r.message FROM refusal('SELECT * FROM reconcile.prune_commands(NULL)') r;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM reconcile.prune_commands('keeps');
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM reconcile.prune_commands('keeps');
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.set_command_retention('keeps', '1 day');
ROLLBACK;
-- a policy that somebody wrote by hand, and that cannot be followed, is none
BEGIN;
INSERT INTO reconcile.command_retention VALUES ('keeps', '1 month', NULL, false) ON CONFLICT (tenant_id) DO UPDATE SET keep = EXCLUDED.keep;
SELECT outcome, events, commands FROM reconcile.prune_commands('keeps');
ROLLBACK;
-- who may for a part may not for all
SELECT reconcile.grant_command('regress_retention_hands', 'keeps', 'retention_configure', 'worker');
SET ROLE regress_retention_hands;
SELECT outcome FROM reconcile.prune_commands('keeps');
SELECT reconcile.set_command_retention('keeps', '1 day');
RESET ROLE;
SELECT journal_forget('keeps');
SELECT reconcile.grant_command('regress_retention_hands', 'keeps', 'dispatch');

--
-- What is old goes: events from the first on, then commands of which nothing is left, and their keys stay
--
SELECT k, retention_app.give('keeps', k) FROM unnest('{failed,succeeded,resolved,late}'::text[]) k;
SET ROLE regress_retention_hands;
SELECT count(*) FROM reconcile.claim_commands('hands', NULL, 100, '1 h');
RESET ROLE;
SELECT reconcile.acknowledge_command('keeps', retention_app.id('keeps', 'succeeded'), retention_app.token('keeps', 'succeeded'), 'w', '1.0');
SELECT k, reconcile.complete_command('keeps', retention_app.id('keeps', k), retention_app.token('keeps', k), s, f, worker_completed_at => '2026-01-01 UTC')
  FROM (VALUES ('failed', 'failed', 'target_mismatch'), ('succeeded', 'succeeded', NULL), ('resolved', 'unknown', 'no_answer'), ('late', 'unknown', 'no_answer')) v (k, s, f);
SELECT reconcile.resolve_command('keeps', retention_app.id('keeps', 'resolved'), 'succeeded', '{"seen": true}', 'looked');
-- that a worker has told it later is an answer, too
SELECT reconcile.complete_command('keeps', retention_app.id('keeps', 'late'), retention_app.token('keeps', 'late'), 'succeeded');
SELECT reconcile.set_command_retention('keeps', '1 day');
SELECT journal_age('keeps', '23:59:00');
SELECT * FROM reconcile.prune_commands('keeps');
SELECT * FROM retention_app.left_of('keeps');
SELECT journal_age('keeps', '00:01:00');
-- by the server's clock: what callers and workers say of theirs decides nothing
SELECT outcome FROM reconcile.accept_command('keeps', 'said_old', 'retry', 'failure', 'x', 'why', requested_at => '1999-01-01 UTC');
SELECT head_sequence AS head, head_hash AS hash FROM reconcile.audit_verify('keeps') \gset
-- in batches
SELECT * FROM reconcile.prune_commands('keeps', 1);
SELECT * FROM retention_app.left_of('keeps');
SELECT * FROM reconcile.prune_commands('keeps', 5);
SELECT * FROM retention_app.left_of('keeps');
SELECT * FROM reconcile.prune_commands('keeps', 3);
SELECT * FROM reconcile.prune_commands('keeps', 10000);
SELECT * FROM retention_app.left_of('keeps');
SELECT * FROM reconcile.prune_commands('keeps');
SELECT sequence, event, detail #- '{anchor,pruned_through}' AS detail FROM reconcile.audit_event WHERE tenant_id = 'keeps' AND event = 'pruned' ORDER BY sequence;
-- a head that was kept before is met, or cannot be compared any more
SELECT outcome FROM reconcile.audit_verify('keeps', :head, :'hash');
SELECT outcome, bad_sequence FROM reconcile.audit_verify('keeps', 2, sha256('any'));
SELECT k.n, v.outcome, v.bad_sequence FROM reconcile.audit_head a, unnest(ARRAY[a.anchor_hash, sha256('another')]) WITH ORDINALITY k (kept, n),
       reconcile.audit_verify('keeps', a.anchor_sequence, k.kept) v WHERE a.tenant_id = 'keeps';

--
-- A key that was pruned is answered or refused, and never a second execution
--
SELECT k, retention_app.give('keeps', k) FROM unnest('{failed,succeeded,resolved,late}'::text[]) k;
SELECT k, retention_app.give('keeps', k, reason => 'another') FROM unnest('{failed,late}'::text[]) k;
SELECT outcome, command_id, status, created, failure FROM reconcile.accept_command('keeps', 'failed', 'retry', 'failure', 'x', 'another', deadline_in => '5 min');
SELECT count(*) FROM reconcile.command WHERE tenant_id = 'keeps' AND idempotency_key IN ('failed', 'succeeded', 'resolved', 'late');
-- nor does its id come again
SELECT r.code, r.message FROM reconcile.command_tombstone t, refusal(format($$SELECT reconcile.accept_command('keeps', 'new', 'retry', 'failure', 'x', 'why', command_id => %L)$$, t.command_id)) r
 WHERE t.tenant_id = 'keeps' AND t.idempotency_key = 'failed';
-- of the command there is nothing else any more: a report that comes late is of none, and nobody's next command gets it
SELECT t.idempotency_key, reconcile.complete_command('keeps', t.command_id, 'some-token', 'succeeded'), reconcile.acknowledge_command('keeps', t.command_id, 'some-token'),
       reconcile.cancel_command('keeps', t.command_id, 'why'), reconcile.resolve_command('keeps', t.command_id, 'failed', '{"a": 1}', 'why'), (SELECT count(*) FROM reconcile.explain_command('keeps', t.command_id))
  FROM reconcile.command_tombstone t WHERE t.tenant_id = 'keeps' AND t.idempotency_key IN ('failed', 'late') ORDER BY 1;
SELECT outcome FROM reconcile.audit_verify('keeps');
-- when the key goes too, it is as new: after keep_keys, by when it was pruned
SELECT reconcile.set_command_retention('keeps', '1 day', keep_keys => '1 hour');
SELECT outcome, commands, keys FROM reconcile.prune_commands('keeps');
SELECT journal_triggers('DISABLE');
UPDATE reconcile.command_tombstone SET pruned_at = pruned_at - interval '1 hour' WHERE tenant_id = 'keeps' AND idempotency_key <> 'late';
SELECT journal_triggers('ENABLE');
SELECT outcome, commands, keys, more FROM reconcile.prune_commands('keeps', 2);
SELECT outcome, commands, keys, more FROM reconcile.prune_commands('keeps', 2);
SELECT tombstones FROM retention_app.left_of('keeps');
SELECT retention_app.give('keeps', 'failed', reason => 'another'), retention_app.give('keeps', 'late', reason => 'another');

--
-- What is not over, or unknown and not resolved, keeps its audit, and all that came after
--
SELECT retention_app.give('late', 'before'), retention_app.give('late', 'open'), retention_app.give('late', 'after');
SELECT reconcile.cancel_command('late', retention_app.id('late', k), 'why') FROM unnest('{before,after}'::text[]) k;
SELECT journal_age('late', '3 days');
SELECT reconcile.set_command_retention('late', '1 day');
-- pending, though its deadline was over long ago; then dispatched, and with a worker, though its claim has lapsed
SELECT * FROM reconcile.prune_commands('late');
SELECT * FROM retention_app.left_of('late');
SELECT journal_triggers('DISABLE');
UPDATE reconcile.command SET deadline = deadline + interval '4 days' WHERE tenant_id = 'late' AND idempotency_key = 'open';
SELECT journal_triggers('ENABLE');
SET ROLE regress_retention_hands;
SELECT count(*) FROM reconcile.claim_commands('hands', NULL, 100, '1 h');
RESET ROLE;
SELECT journal_triggers('DISABLE');
UPDATE reconcile.command SET deadline = deadline - interval '4 days' WHERE tenant_id = 'late' AND idempotency_key = 'open';
SELECT journal_triggers('ENABLE');
SELECT journal_age('late', '3 days');
SELECT * FROM reconcile.prune_commands('late');
SELECT reconcile.acknowledge_command('late', retention_app.id('late', 'open'), retention_app.token('late', 'open'));
SELECT journal_age('late', '3 days');
SELECT * FROM reconcile.prune_commands('late');
SELECT reconcile.complete_command('late', retention_app.id('late', 'open'), retention_app.token('late', 'open'), 'unknown', 'no_answer');
SELECT journal_age('late', '3 days');
SELECT * FROM reconcile.prune_commands('late');
-- that its worker says unknown once more is no answer
SELECT reconcile.complete_command('late', retention_app.id('late', 'open'), retention_app.token('late', 'open'), 'unknown', 'another');
SELECT * FROM reconcile.prune_commands('late');
SELECT reconcile.resolve_command('late', retention_app.id('late', 'open'), 'not_executed', '{"a": 1}', 'looked');
-- it is resolved since just now, which is not old
SELECT * FROM reconcile.prune_commands('late', 2);
SELECT * FROM retention_app.left_of('late');

--
-- What a desired state comes from stays, and what it may come from again
--
SELECT reconcile.grant_command('regress_retention_hands', 'states', 'dispatch');
SELECT retention_app.give('states', 'first', 'pause');
SET ROLE regress_retention_hands;
SELECT count(*) FROM reconcile.claim_commands('hands', '{pause}', 100, '1 h');
RESET ROLE;
SELECT reconcile.complete_command('states', retention_app.id('states', 'first'), retention_app.token('states', 'first'), 'succeeded');
SELECT retention_app.give('states', 'other', 'resume'), retention_app.give('states', 'second', 'drain');
SELECT reconcile.cancel_command('states', retention_app.id('states', 'other'), 'why');
SELECT journal_age('states', '3 days');
SELECT reconcile.set_command_retention('states', '1 day');
-- the second is pending: if it is canceled, the state is that of the first
SELECT state, revision FROM reconcile.desired_state_of('states', 'worker_group', 'x');
SELECT outcome, events, commands FROM reconcile.prune_commands('states');
SELECT * FROM retention_app.left_of('states');
SELECT reconcile.cancel_command('states', retention_app.id('states', 'second'), 'why');
SELECT state, revision FROM reconcile.desired_state_of('states', 'worker_group', 'x');
SELECT journal_age('states', '3 days');
SELECT outcome, events, commands FROM reconcile.prune_commands('states');
SELECT * FROM retention_app.left_of('states');
SELECT state, revision FROM reconcile.desired_state_of('states', 'worker_group', 'x');

--
-- Under a legal hold nothing goes, and it is in the audit who set it
--
SELECT reconcile.set_command_retention('late', '1 day', true, '1 hour');
SELECT * FROM reconcile.prune_commands('late');
SELECT reconcile.set_command_retention('late', '1 day');
SELECT event, role_name, detail FROM reconcile.audit_event WHERE tenant_id = 'late' AND event = 'retention_set' ORDER BY sequence;

--
-- A chain that is broken loses nothing, of commands neither
--
CREATE FUNCTION retention_app.broken(change text, OUT outcome text, OUT events bigint, OUT commands bigint, OUT keys bigint, OUT more boolean, OUT same boolean) LANGUAGE plpgsql AS $$
DECLARE
    before text;
    after text;
BEGIN
    EXECUTE change;
    before := retention_app.left_of('late')::text;
    SELECT p.* INTO outcome, events, commands, keys, more FROM reconcile.prune_commands('late') p;
    after := retention_app.left_of('late')::text;
    same := before = after;
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
END $$;
SELECT journal_triggers('DISABLE');
SELECT c.what, b.* FROM (VALUES
    ('the second is changed', $$UPDATE reconcile.audit_event SET reason = 'x' WHERE tenant_id = 'late' AND sequence = (SELECT anchor_sequence + 2 FROM reconcile.audit_head WHERE tenant_id = 'late')$$),
    ('the first is gone', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'late' AND sequence = (SELECT anchor_sequence + 1 FROM reconcile.audit_head WHERE tenant_id = 'late')$$),
    ('the second is gone', $$DELETE FROM reconcile.audit_event WHERE tenant_id = 'late' AND sequence = (SELECT anchor_sequence + 2 FROM reconcile.audit_head WHERE tenant_id = 'late')$$),
    ('of another version', $$UPDATE reconcile.audit_event SET hash_version = 7 WHERE tenant_id = 'late' AND sequence = (SELECT anchor_sequence + 1 FROM reconcile.audit_head WHERE tenant_id = 'late')$$),
    ('another anchor', $$UPDATE reconcile.audit_head SET anchor_hash = sha256('x') WHERE tenant_id = 'late'$$),
    ('an earlier anchor', $$UPDATE reconcile.audit_head SET anchor_sequence = anchor_sequence - 1 WHERE tenant_id = 'late'$$),
    ('no head', $$DELETE FROM reconcile.audit_head WHERE tenant_id = 'late'$$),
    ('neither head nor events', $$DELETE FROM reconcile.audit_head WHERE tenant_id = 'late'; DELETE FROM reconcile.audit_event WHERE tenant_id = 'late'$$)) c (what, change), LATERAL retention_app.broken(c.change) b;

--
-- After a pruning, what is left is still found where it is changed
--
SELECT * FROM retention_app.left_of('late');
CREATE FUNCTION retention_app.found(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    said text;
BEGIN
    EXECUTE change;
    SELECT outcome || COALESCE(' ' || detail, '') INTO said FROM reconcile.audit_verify('late');
    RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN RETURN regexp_replace(said, '[0-9a-z]{26}', 'ID');
END $$;
SELECT c.what, retention_app.found(c.change) FROM (VALUES
    ('nothing', 'SELECT 1'),
    ('how one has failed', $$UPDATE reconcile.command SET failure = 'y' WHERE tenant_id = 'late' AND idempotency_key = 'after'$$),
    ('what was asked for, of which the event is gone', $$UPDATE reconcile.command SET reason = 'y' WHERE tenant_id = 'late' AND idempotency_key = 'open'$$),
    ('how one has ended', $$UPDATE reconcile.command SET status = 'succeeded', failure = NULL WHERE tenant_id = 'late' AND idempotency_key = 'after'$$),
    ('that it has ended', $$UPDATE reconcile.command SET status = 'pending', failure = NULL, completed_at = NULL WHERE tenant_id = 'late' AND idempotency_key = 'after'$$),
    ('how much is gone', $$UPDATE reconcile.audit_head SET pruned_through = pruned_through + interval '1 year' WHERE tenant_id = 'late'$$),
    ('that some is gone', $$UPDATE reconcile.audit_head SET pruned_through = NULL WHERE tenant_id = 'late'$$),
    ('one more is gone', $$UPDATE reconcile.audit_head h SET anchor_sequence = e.sequence, anchor_hash = e.hash FROM reconcile.audit_event e
       WHERE h.tenant_id = 'late' AND e.tenant_id = 'late' AND e.sequence = h.anchor_sequence + 1;
       DELETE FROM reconcile.audit_event e USING reconcile.audit_head h WHERE e.tenant_id = 'late' AND h.tenant_id = 'late' AND e.sequence <= h.anchor_sequence$$)) c (what, change);
SELECT journal_triggers('ENABLE');

--
-- What a transaction has pruned is told of when it commits
--
BEGIN;
SELECT outcome, events > 0 AS some FROM reconcile.prune_commands('late');
SELECT outcome FROM reconcile.audit_verify('late');
ROLLBACK;
BEGIN;
SELECT outcome FROM reconcile.prune_commands('late', 1);
SELECT outcome FROM reconcile.prune_commands('late', 2);
COMMIT;
SELECT * FROM retention_app.left_of('late');

--
-- A tenant of which there is nothing
--
SELECT reconcile.set_command_retention('empty', '1 hour');
SELECT * FROM reconcile.prune_commands('empty');
SELECT * FROM reconcile.prune_commands('nobody');
SELECT outcome, events FROM reconcile.audit_verify('nobody');

SELECT journal_clean('keeps', 'late', 'states', 'empty', 'nobody');
SET client_min_messages = warning;
DROP SCHEMA retention_app CASCADE;
RESET client_min_messages;
DROP FUNCTION refusal;
DROP OWNED BY regress_retention_hands;
DROP ROLE regress_retention_hands;

--
-- What becomes of a command whose effect is elsewhere: each call in each state, reports that come twice,
-- too late or from somebody else, verdicts, and who gets what from claim_commands().
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA journal_lifecycle;
SET search_path = journal_lifecycle;
\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\set settled :source '/sql/include/commands_settled.sql'
\i :refusal
\i :settled
-- the claims of this test
CREATE TABLE held (command_id text PRIMARY KEY, claim_token text NOT NULL);

CREATE FUNCTION give(tenant_id text, command_id text, action text DEFAULT 'retry', deadline_in interval DEFAULT '5 min')
RETURNS text LANGUAGE sql AS $$
    SELECT a.outcome || ' ' || a.status
      FROM reconcile.accept_command(tenant_id, 'key of ' || command_id, action,
               CASE action WHEN 'retry' THEN 'failure' WHEN 'drain' THEN 'worker' ELSE 'workload' END, 'target of ' || command_id,
               'test', CASE action WHEN 'scale' THEN '{"scale": {"replicas": 1}}' ELSE '{}' END::jsonb,
               deadline_in => deadline_in, command_id => command_id) a $$;
CREATE FUNCTION take(actions text[] DEFAULT NULL, max_items int DEFAULT 1, ttl interval DEFAULT '5 min')
RETURNS SETOF text LANGUAGE sql AS $$
    INSERT INTO journal_lifecycle.held
    SELECT c.command_id, c.claim_token FROM reconcile.claim_commands('w', actions, max_items, ttl) c
    RETURNING command_id $$;
CREATE FUNCTION token(command_id text) RETURNS text LANGUAGE sql AS $$
    SELECT COALESCE((SELECT h.claim_token FROM journal_lifecycle.held h WHERE h.command_id = token.command_id), 'none') $$;
CREATE FUNCTION finish(command_id text, status text, failure text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
    SELECT reconcile.complete_command('lc', command_id, journal_lifecycle.token(command_id), status, failure) $$;
CREATE FUNCTION state(command_id text) RETURNS text LANGUAGE sql AS $$
    SELECT c.status || COALESCE('/' || c.failure, '') FROM reconcile.commands c
     WHERE c.tenant_id = 'lc' AND c.command_id = state.command_id $$;
CREATE FUNCTION events(command_id text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(t.event, ' ' ORDER BY t.sequence) FROM reconcile.command_timeline t
     WHERE t.tenant_id = 'lc' AND t.command_id = events.command_id $$;

--
-- Each call in each state
--
-- a command in a state, by the calls that lead there
CREATE PROCEDURE bring(id text, state text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journal_lifecycle.give('lc', id, 'retry', CASE state WHEN 'expired' THEN '1 ms' ELSE '5 min' END::interval);
    COMMIT;
    IF state NOT IN ('pending', 'canceled', 'expired') THEN
        PERFORM journal_lifecycle.take(ttl => CASE state WHEN 'lapsed' THEN '1 ms' ELSE '5 min' END::interval);
        COMMIT;
    END IF;
    CASE state
        WHEN 'pending', 'dispatched' THEN
        WHEN 'acknowledged' THEN PERFORM reconcile.acknowledge_command('lc', id, journal_lifecycle.token(id), 'w', '1.0');
        WHEN 'canceled' THEN PERFORM reconcile.cancel_command('lc', id, 'test');
        WHEN 'expired', 'lapsed' THEN
            PERFORM pg_sleep(0.002);
            PERFORM * FROM reconcile.sweep_commands();
        ELSE PERFORM journal_lifecycle.finish(id, state, CASE WHEN state <> 'succeeded' THEN 'no' END);
    END CASE;
    COMMIT;
END $$;
CREATE TABLE cell (n int, state text, call text, answer text, after text, PRIMARY KEY (state, call));
DO $$
DECLARE
    id text;
BEGIN
    INSERT INTO journal_lifecycle.cell
    SELECT s.n, s.state, c.call FROM unnest(ARRAY['dispatched', 'acknowledged', 'succeeded', 'failed', 'unsupported',
        'timed_out', 'partial', 'unknown', 'lapsed', 'canceled', 'expired', 'pending']) WITH ORDINALITY s (state, n),
        unnest(ARRAY['claim', 'acknowledge', 'complete', 'cancel', 'resolve', 'sweep']) c (call);
    -- pending ones last: a claim takes whatever is pending
    FOR id IN SELECT c.state || ':' || c.call FROM journal_lifecycle.cell c ORDER BY c.n, c.call LOOP
        CALL journal_lifecycle.bring(id, split_part(id, ':', 1));
    END LOOP;
    UPDATE journal_lifecycle.cell c SET answer = CASE c.call
            WHEN 'acknowledge' THEN reconcile.acknowledge_command('lc', x.id, journal_lifecycle.token(x.id), 'other', '2.0')
            WHEN 'complete' THEN reconcile.complete_command('lc', x.id, journal_lifecycle.token(x.id), 'failed', 'other')
            WHEN 'cancel' THEN reconcile.cancel_command('lc', x.id, 'other')
            WHEN 'resolve' THEN reconcile.resolve_command('lc', x.id, 'failed', '{"seen": true}', 'other')
        END
      FROM (SELECT y.state || ':' || y.call AS id, y.state, y.call FROM journal_lifecycle.cell y) x
     WHERE x.state = c.state AND x.call = c.call AND c.call NOT IN ('claim', 'sweep');
    COMMIT;
    -- none of these is due
    PERFORM * FROM reconcile.sweep_commands();
    UPDATE journal_lifecycle.cell SET after = journal_lifecycle.state(state || ':' || call) WHERE call <> 'claim';
    UPDATE journal_lifecycle.cell SET answer = 'taken'
     WHERE call = 'claim' AND state || ':' || call IN (SELECT * FROM journal_lifecycle.take(ARRAY['retry'], 1000));
    UPDATE journal_lifecycle.cell SET after = journal_lifecycle.state(state || ':' || call) WHERE call = 'claim';
END $$;
SELECT c.state,
       max(answer) FILTER (WHERE call = 'claim') AS claim,
       max(answer) FILTER (WHERE call = 'acknowledge') AS acknowledge,
       max(answer) FILTER (WHERE call = 'complete') AS complete,
       max(answer) FILTER (WHERE call = 'cancel') AS cancel,
       max(answer) FILTER (WHERE call = 'resolve') AS resolve
  FROM cell c GROUP BY n, state ORDER BY n;
-- those in another state than before: where a call was not answered with a step, nothing has changed
SELECT state, call, answer, after FROM cell
 WHERE after NOT IN (state, state || '/no', replace(state, 'lapsed', 'unknown/outcome_unknown'),
                     replace(state, 'canceled', 'canceled/canceled'), replace(state, 'expired', 'canceled/deadline_exceeded'))
 ORDER BY n, call;
-- and every step is one event: of those that were not called any more, and of those that a call changed
SELECT c.state, min(events(c.state || ':sweep')), count(*) FROM cell c WHERE call = 'sweep' GROUP BY n, c.state ORDER BY n;
SELECT c.state, c.call, events(c.state || ':' || c.call) FROM cell c WHERE answer IN ('taken', 'acknowledged', 'completed', 'canceled') ORDER BY n, call;
-- a verdict is beside the outcome, which stays
SELECT command_id, status, failure, effective_status, events(command_id) FROM reconcile.commands
 WHERE tenant_id = 'lc' AND command_id IN ('lapsed:resolve', 'unknown:resolve', 'lapsed:complete', 'unknown:complete') ORDER BY command_id;
SELECT outcome, detail FROM reconcile.audit_verify('lc');
-- nobody is to get what is left
DO $$ BEGIN PERFORM reconcile.cancel_command('lc', command_id, 'over') FROM reconcile.commands WHERE tenant_id = 'lc' AND status = 'pending'; END $$;

--
-- Reports that are repeated
--
SELECT give('lc', 'again');
SELECT take();
SELECT reconcile.acknowledge_command('lc', 'again', token('again'), 'w1', '1.2');
SELECT reconcile.acknowledge_command('lc', 'again', token('again'), 'w1', '1.2') AS same,
       reconcile.acknowledge_command('lc', 'again', token('again'), 'w2', '1.2') AS other_worker,
       reconcile.acknowledge_command('lc', 'again', token('again'), 'w1', '1.3') AS other_protocol,
       reconcile.acknowledge_command('lc', 'again', token('again')) AS nobody;
SELECT reconcile.complete_command('lc', 'again', token('again'), 'partial', 'half', NULL, NULL, true, '2020-01-01 00:00+0');
SELECT reconcile.complete_command('lc', 'again', token('again'), 'partial', 'half', NULL, NULL, true, '2020-01-01 00:00+0') AS same,
       reconcile.complete_command('lc', 'again', token('again'), 'partial', 'half', 'w1', '1.2', true, '2020-01-01 00:00+0') AS by_name;
-- whatever is different is another report
SELECT n, reconcile.complete_command('lc', 'again', token('again'), r.status, r.failure, r.worker_id, r.protocol, r.available, r.at)
  FROM (VALUES (1, 'failed', 'half', NULL, NULL, true, timestamptz '2020-01-01 00:00+0'),
               (2, 'partial', 'other', NULL, NULL, true, '2020-01-01 00:00+0'),
               (3, 'partial', 'half', 'w2', '1.2', true, '2020-01-01 00:00+0'),
               (4, 'partial', 'half', 'w1', '1.3', true, '2020-01-01 00:00+0'),
               (5, 'partial', 'half', NULL, NULL, false, '2020-01-01 00:00+0'),
               (6, 'partial', 'half', NULL, NULL, NULL, '2020-01-01 00:00+0'),
               (7, 'partial', 'half', NULL, NULL, true, '2020-01-01 00:00:00.000001+0'),
               (8, 'partial', 'half', NULL, NULL, true, NULL),
               (9, 'succeeded', NULL, NULL, NULL, true, '2020-01-01 00:00+0')) r (n, status, failure, worker_id, protocol, available, at)
 ORDER BY n;
SELECT status, failure, worker_id, protocol, capability_available, worker_completed_at = '2020-01-01 00:00+0' AS as_said, events(command_id)
  FROM reconcile.commands WHERE command_id = 'again';
-- what a worker does not say stays unsaid
SELECT give('lc', 'silent');
SELECT take();
SELECT finish('silent', 'succeeded'), finish('silent', 'succeeded');
SELECT failure, worker_id, protocol, capability_available, worker_completed_at, acknowledged_at FROM reconcile.commands WHERE command_id = 'silent';
-- one and the same command all the way, and a retry of its admission learns of the end
SELECT outcome, command_id, status, created FROM reconcile.accept_command('lc', 'key of silent', 'retry', 'failure', 'target of silent', 'test', deadline_in => '5 min');

--
-- RC016: a claim is durable before it is reported
--
SELECT give('lc', 'durable');
\set VERBOSITY default
BEGIN;
SELECT take();
SELECT finish('durable', 'succeeded');
ROLLBACK;
\set VERBOSITY terse
BEGIN;
SELECT take();
SELECT reconcile.acknowledge_command('lc', 'durable', token('durable'));
ROLLBACK;
-- a subtransaction of either is the same transaction
BEGIN;
SAVEPOINT s;
SELECT take();
RELEASE s;
SELECT finish('durable', 'succeeded');
ROLLBACK;
BEGIN;
SELECT take();
SAVEPOINT s;
SELECT finish('durable', 'succeeded');
ROLLBACK TO s;
SELECT (refusal($$SELECT finish('durable', 'failed', 'no')$$)).code;
ROLLBACK;
-- what was rolled back was never claimed: it can be taken again, and the first token says nothing
BEGIN;
SAVEPOINT s;
SELECT claim_token AS lost FROM reconcile.claim_commands('w') \gset
ROLLBACK TO s;
SELECT state('durable'), reconcile.complete_command('lc', 'durable', :'lost', 'succeeded');
COMMIT;
SELECT take();
SELECT reconcile.complete_command('lc', 'durable', :'lost', 'succeeded'), reconcile.acknowledge_command('lc', 'durable', :'lost'),
       reconcile.complete_command('lc', 'durable', token('durable') || 'x', 'succeeded');
SELECT finish('durable', 'succeeded');
-- whatever the session's synchronous_commit is, claims and reports are on disk when they are answered
SELECT give('lc', 'flushed');
SET synchronous_commit = off;
BEGIN;
SELECT take();
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS durable;
BEGIN;
SELECT finish('flushed', 'succeeded');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS durable;
BEGIN;
SELECT give('lc', 'flushed too');
SELECT pg_current_wal_insert_lsn() AS written \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'written' AS durable;
RESET synchronous_commit;
SELECT reconcile.cancel_command('lc', 'flushed too', 'over');

--
-- What a report may say
--
SELECT give('lc', 'said');
SELECT take();
SELECT r.* , (refusal(format('SELECT finish(''said'', %L, %L)', r.status, r.failure))).*
  FROM (VALUES ('pending', 'no'), ('dispatched', 'no'), ('acknowledged', 'no'), ('accepted', 'no'), ('canceled', 'no'), ('', 'no'), (NULL, 'no'),
               ('Succeeded', NULL), ('succeeded', 'no'), ('failed', NULL), ('unsupported', NULL), ('timed_out', NULL), ('partial', NULL), ('unknown', NULL)) r (status, failure);
SELECT r.*, (refusal(format('SELECT reconcile.complete_command(''lc'', ''said'', token(''said''), ''succeeded'', NULL, %L, %L)', r.worker_id, r.protocol))).*
  FROM (VALUES ('w', NULL), (NULL, '1.0'), ('', '1.0'), ('w', ''), ('w', '1'), ('w', '0.1'), ('w', '1.65536'), ('w', '65536.0'), ('w', '01.0'),
               ('w', '1.0 '), ('w', '-1.0'), ('w', '1.0.0')) r (worker_id, protocol);
SELECT (refusal(format('SELECT reconcile.acknowledge_command(''lc'', ''said'', token(''said''), %L, %L)', r.worker_id, r.protocol))).code
  FROM (VALUES ('w', NULL), (NULL, '1.0'), ('w', '0.1')) r (worker_id, protocol);
SELECT at, (refusal(format('SELECT reconcile.complete_command(''lc'', ''said'', token(''said''), ''succeeded'', worker_completed_at => %L)', at))).*
  FROM unnest(ARRAY['infinity', '-infinity']) at;
SELECT (refusal('SELECT reconcile.complete_command(NULL, ''said'', ''t'', ''succeeded'')')).*;
SELECT (refusal('SELECT reconcile.complete_command(''lc'', NULL, ''t'', ''succeeded'')')).*;
SELECT (refusal('SELECT reconcile.complete_command(''lc'', ''said'', NULL, ''succeeded'')')).*;
SELECT (refusal('SELECT reconcile.cancel_command(''lc'', ''said'', ' || r || ')')).* FROM unnest(ARRAY['NULL', ''' ''', 'repeat(''x'', 1025)']) r;
SELECT state('said');
-- what is no code may be a secret: it is stored nowhere
CREATE TABLE code (n int PRIMARY KEY, failure text);
INSERT INTO code VALUES (1, 'a'), (2, '0'), (3, 'with.all_of-these'), (4, repeat('a', 64)), (5, repeat('a', 65)), (6, ''), (7, 'Upper'), (8, 'in between'),
                        (9, E'new\nline'), (10, '_first'), (11, '.first'), (12, 'ä'), (13, 'password=x'), (14, 'b' || repeat('c', 10000));
DO $$
BEGIN
    PERFORM journal_lifecycle.give('lc', 'code ' || n) FROM journal_lifecycle.code;
    COMMIT;
    PERFORM journal_lifecycle.take(NULL, 1000);
    COMMIT;
    PERFORM journal_lifecycle.finish('code ' || n, 'failed', failure) FROM journal_lifecycle.code;
END $$;
SELECT n, left(failure, 20) AS said, left(state('code ' || n), 40) AS stored, (SELECT e.failure = substr(state('code ' || n), 8) FROM reconcile.audit_event e
        WHERE e.tenant_id = 'lc' AND e.command_id = 'code ' || n AND e.event = 'failed') AS audited,
       finish('code ' || n, 'failed', failure) AS again FROM code ORDER BY n;
SELECT count(*) FROM reconcile.audit_event e WHERE e::text ~ 'password';

--
-- Whatever a worker's clock says, what it reports counts
--
CREATE TABLE clock (n int PRIMARY KEY, at timestamptz);
INSERT INTO clock VALUES (1, now() - interval '1.5 s'), (2, now()), (3, now() + interval '1 h'), (4, now() - interval '20 years'), (5, '4713-01-02 BC'), (6, '294276-12-30');
DO $$
BEGIN
    PERFORM journal_lifecycle.give('lc', 'clock ' || n) FROM journal_lifecycle.clock;
    COMMIT;
    PERFORM journal_lifecycle.take(NULL, 1000);
    COMMIT;
    PERFORM reconcile.complete_command('lc', 'clock ' || n, journal_lifecycle.token('clock ' || n), 'succeeded', worker_completed_at => at) FROM journal_lifecycle.clock;
END $$;
SELECT n, c.status, c.worker_completed_at = k.at AS as_said, c.completed_at BETWEEN c.dispatched_at AND clock_timestamp() AS by_ours
  FROM clock k JOIN reconcile.commands c ON c.tenant_id = 'lc' AND c.command_id = 'clock ' || n ORDER BY n;

--
-- A claim that lapses: the outcome is unknown for ever, and what becomes known stands beside it
--
CALL bring('late', 'lapsed');
SELECT * FROM reconcile.claim_commands('w');
CREATE VIEW known AS SELECT c.command_id, c.status, c.failure, c.effective_status,
    (SELECT string_agg(concat_ws(' ', r.number, r.source, r.verdict, r.failure, r.evidence), ', ' ORDER BY r.number)
       FROM reconcile.command_resolution r WHERE r.tenant_id = 'lc' AND r.command_id = c.command_id) AS beside, events(c.command_id)
  FROM reconcile.commands c WHERE c.tenant_id = 'lc';
SELECT reconcile.acknowledge_command('lc', 'late', token('late'));
-- that it does not know either is nothing new
SELECT finish('late', 'unknown', 'lost_reply');
SELECT reconcile.complete_command('lc', 'late', token('late') || 'x', 'succeeded');
SELECT * FROM known WHERE command_id = 'late';
SELECT reconcile.complete_command('lc', 'late', token('late'), 'succeeded', NULL, 'w1', '1.0', NULL, '2020-01-01 00:00+0');
SELECT * FROM known WHERE command_id = 'late';
SELECT reconcile.complete_command('lc', 'late', token('late'), 'succeeded', NULL, 'w1', '1.0', NULL, '2020-01-01 00:00+0');
SELECT finish('late', 'partial', 'half');
SELECT * FROM known WHERE command_id = 'late';
-- an operator's verdict is before it, also when the worker comes again
SELECT reconcile.resolve_command('lc', 'late', 'not_executed', '{"ticket": 7}', 'looked');
SELECT finish('late', 'partial', 'half'), finish('late', 'succeeded');
SELECT * FROM known WHERE command_id = 'late';
SELECT reconcile.resolve_command('lc', 'late', 'not_executed', '{"ticket": 7}', 'looked again') AS same,
       reconcile.resolve_command('lc', 'late', 'not_executed', '{"ticket": 8}', 'looked') AS other_evidence,
       reconcile.resolve_command('lc', 'late', 'failed', '{"ticket": 8}', 'looked') AS other_verdict;
SELECT * FROM known WHERE command_id = 'late';
-- what a worker itself could not tell is resolved in the same way
CALL bring('lost', 'unknown');
SELECT finish('lost', 'unknown', 'no'), finish('lost', 'unknown', 'other');
SELECT reconcile.resolve_command('lc', 'lost', 'succeeded', '{"seen": "x"}', 'looked');
SELECT * FROM known WHERE command_id = 'lost';
-- an operator who says the same as the worker has said it, too
CALL bring('agreed', 'lapsed');
SELECT reconcile.complete_command('lc', 'agreed', token('agreed'), 'succeeded', NULL, 'w1', '1.0');
SELECT reconcile.resolve_command('lc', 'agreed', 'succeeded', '{"worker_id": "w1", "protocol": "1.0"}', 'looked') AS first,
       reconcile.resolve_command('lc', 'agreed', 'succeeded', '{"worker_id": "w1", "protocol": "1.0"}', 'looked') AS again;
SELECT * FROM known WHERE command_id = 'agreed';
-- a report that comes after the end of its claim, but before anybody has settled it, counts
SELECT give('lc', 'in time');
SELECT take(ttl => '1 ms');
SELECT pg_sleep(0.002);
SELECT reconcile.acknowledge_command('lc', 'in time', token('in time')), finish('in time', 'succeeded');
-- what a verdict is
SELECT v, (refusal(format('SELECT reconcile.resolve_command(''lc'', ''late'', %L, ''{"a": 1}'', ''r'')', v))).*
  FROM unnest(ARRAY['succeeded', 'failed', 'partial', 'not_executed', 'unknown', 'canceled', 'Failed', '', NULL]) v;
SELECT e, (refusal(format('SELECT reconcile.resolve_command(''lc'', ''late'', ''failed'', %L, ''r'')', e))).*
  FROM unnest(ARRAY['{}', '[]', '[{"a": 1}]', '1', 'null', NULL, '{"a": null}']) e;
SELECT (refusal(format('SELECT reconcile.resolve_command(''lc'', ''late'', ''failed'', %L, ''r'')', jsonb_build_object('a', repeat('x', n))))).*
  FROM unnest(ARRAY[65000, 65536]) n;
SELECT (refusal('SELECT reconcile.resolve_command(''lc'', ''late'', ''failed'', ''{"a": 1}'', ' || r || ')')).* FROM unnest(ARRAY['NULL', ''' ''', 'repeat(''x'', 1025)']) r;

--
-- Who gets what
--
CREATE ROLE journal_worker;
CREATE ROLE journal_giver;
CREATE ROLE journal_stranger;
SELECT reconcile.grant_command('journal_worker', 'lc', 'dispatch', 'failure');
SELECT reconcile.grant_command('journal_worker', 'lc', 'dispatch', 'worker', 'target of own worker');
SELECT reconcile.grant_command('journal_giver', 'lc', 'retry');
SELECT reconcile.grant_command('journal_giver', 'lc two', 'retry');
SELECT reconcile.grant_command('journal_stranger', 'lc two', p) FROM unnest(ARRAY['dispatch', 'retry', 'scale', 'drain', 'resolve']) p;
GRANT USAGE ON SCHEMA journal_lifecycle TO journal_worker, journal_giver, journal_stranger;
GRANT ALL ON held TO journal_worker, journal_giver, journal_stranger;
-- in their order; what is not the caller's, or not asked for, stands before nothing
SELECT give('lc', id, action) FROM (VALUES (1, 'scaled', 'scale'), (2, 'other worker', 'drain'), (3, 'first', 'retry'), (4, 'own worker', 'drain'),
    (5, 'second', 'retry'), (6, 'third', 'retry')) g (n, id, action) ORDER BY n;
SET ROLE journal_giver;
SELECT reconcile.cancel_command('lc', 'scaled', 'not his');
SELECT outcome, status FROM reconcile.accept_command('lc two', 'k', 'retry', 'failure', 'f', 'test', deadline_in => '5 min', command_id => 'of two');
SELECT * FROM reconcile.claim_commands('w', max_items => 1000);
SET ROLE journal_worker;
SELECT take(ARRAY['drain']);
SELECT take(ARRAY['scale', 'drain', 'no such action'], 1000);
SELECT take(NULL, 2);
SELECT take(NULL, 1000);
SELECT take(NULL, 1000);
RESET ROLE;
SELECT command_id, status FROM reconcile.commands WHERE tenant_id LIKE 'lc%' AND status IN ('pending', 'dispatched') AND command_id !~ ':' ORDER BY command_id;
-- another tenant's are not there, whatever their state and with their token, as those that are nowhere
SET ROLE journal_stranger;
SELECT reconcile.acknowledge_command(t.tenant_id, t.id, h.claim_token), reconcile.complete_command(t.tenant_id, t.id, h.claim_token, 'succeeded'),
       reconcile.cancel_command(t.tenant_id, t.id, 'r'), reconcile.resolve_command(t.tenant_id, t.id, 'failed', '{"a": 1}', 'r')
  FROM held h, (VALUES ('lc', 'first'), ('lc two', 'first'), ('lc', 'nowhere'), ('lc nowhere', 'first')) t (tenant_id, id) WHERE h.command_id = 'first';
-- of his own tenant the token is still that of a claim
SELECT reconcile.acknowledge_command('lc two', 'of two', h.claim_token), reconcile.complete_command('lc two', 'of two', h.claim_token, 'succeeded')
  FROM held h WHERE h.command_id = 'first';
SELECT reconcile.cancel_command('lc two', 'of two', 'over');
RESET ROLE;
-- who may give a command may not report it, and who carries it out may not take it back
SET ROLE journal_giver;
SELECT reconcile.complete_command('lc', 'first', h.claim_token, 'succeeded'), reconcile.cancel_command('lc', 'first', 'r') FROM held h WHERE h.command_id = 'first';
SET ROLE journal_worker;
SELECT reconcile.cancel_command('lc', 'first', 'r'), reconcile.resolve_command('lc', 'late', 'failed', '{"a": 1}', 'r');
RESET ROLE;
-- all of it was noted, under no command
SELECT e.tenant_id, e.role_name, e.detail, e.command_id, count(*) FROM reconcile.audit_events e
 WHERE e.tenant_id LIKE 'lc%' AND e.event = 'denied' AND e.role_name <> current_user GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3::text;
-- what a claim tells, and a token of its own for each
SELECT give('lc', 'told', 'scale');
SELECT k.tenant_id, k.command_id, k.claim_token ~ '^[0-7][0-9a-hjkmnp-tv-z]{25}$' AS is_token, k.action, k.target_kind, k.target_name, k.options,
       k.deadline = c.deadline AS same_deadline, k.remaining BETWEEN '4 min' AND '5 min' AS remaining
  FROM reconcile.claim_commands('w', ARRAY['scale'], 10) k JOIN reconcile.command c USING (tenant_id, command_id) WHERE k.command_id = 'told';
SELECT claimant, claim_expires_at - dispatched_at AS ttl, claim_xid IS NOT NULL AS by_transaction FROM reconcile.command WHERE tenant_id = 'lc' AND command_id = 'told';
SELECT count(*) = count(DISTINCT claim_token) AS all_differ FROM held;
-- tenants take turns: one that always has something does not keep the others from it
CREATE TABLE turn (tenant_id text);
DO $$
BEGIN
    PERFORM journal_lifecycle.give('lc busy', 'busy ' || i, 'drain') FROM generate_series(1, 40) i;
    PERFORM journal_lifecycle.give('lc quiet', 'quiet', 'drain');
    FOR i IN 1 .. 40 LOOP
        INSERT INTO journal_lifecycle.turn SELECT k.tenant_id FROM reconcile.claim_commands('w', ARRAY['drain']) k;
    END LOOP;
END $$;
SELECT DISTINCT tenant_id FROM turn WHERE tenant_id IN ('lc busy', 'lc quiet') ORDER BY 1;
-- what is past its deadline is not given out, though nobody has swept yet
SELECT give('lc', 'over', 'retry', '1 ms');
SELECT pg_sleep(0.002);
SELECT take(ARRAY['retry'], 1000);
SELECT state('over');
-- an authorizer that refuses one stands before nothing either, and one that takes its time does not outlast a deadline
CREATE FUNCTION judge(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF request ->> 'permission' = 'dispatch' AND request ->> 'target_name' = 'target of slow' THEN
        PERFORM pg_sleep(0.3);
    END IF;
    RETURN NOT (request ->> 'permission' = 'dispatch' AND request ->> 'target_name' = 'target of refused');
END $$;
SELECT reconcile.set_authorizer('journal_lifecycle.judge(jsonb)');
SELECT reconcile.grant_command('journal_giver', 'lc', 'dispatch', 'failure');
SELECT give('lc', 'refused'), give('lc', 'behind it'), give('lc', 'slow', 'retry', '250 ms'), give('lc', 'last');
SET ROLE journal_giver;
SELECT take();
SELECT take();
SELECT take();
RESET ROLE;
SELECT reconcile.set_authorizer(NULL);
SELECT id, state(id) FROM unnest(ARRAY['refused', 'slow']) id;
-- bad arguments
SELECT a, (refusal('SELECT * FROM reconcile.claim_commands(' || a || ')')).*
  FROM unnest(ARRAY['NULL', '''''', '''w'', ''{}''', '''w'', ''{NULL}''', '''w'', array_fill(''a''::text, ARRAY[101])', '''w'', NULL, NULL', '''w'', NULL, 0', '''w'', NULL, 1001',
      '''w'', NULL, 1, NULL', '''w'', NULL, 1, ''0''', '''w'', NULL, 1, ''-1 s''']) a;
-- levels at which the caller could not read what he is told
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT (refusal(c)).code FROM unnest(ARRAY['SELECT * FROM reconcile.claim_commands(''w'')', 'SELECT reconcile.acknowledge_command(''lc'', ''first'', ''t'')',
    'SELECT reconcile.complete_command(''lc'', ''first'', ''t'', ''succeeded'')', 'SELECT reconcile.cancel_command(''lc'', ''first'', ''r'')',
    'SELECT reconcile.resolve_command(''lc'', ''late'', ''failed'', ''{"a": 1}'', ''r'')', 'SELECT * FROM reconcile.sweep_commands()']) c;
ROLLBACK;
BEGIN READ ONLY;
SELECT (refusal(c)).code FROM unnest(ARRAY['SELECT * FROM reconcile.claim_commands(''w'')', 'SELECT reconcile.acknowledge_command(''lc'', ''first'', ''t'')',
    'SELECT reconcile.complete_command(''lc'', ''first'', ''t'', ''succeeded'')', 'SELECT reconcile.cancel_command(''lc'', ''first'', ''r'')',
    'SELECT reconcile.resolve_command(''lc'', ''late'', ''failed'', ''{"a": 1}'', ''r'')', 'SELECT * FROM reconcile.sweep_commands()']) c;
ROLLBACK;

--
-- Cleaning up
--
\i :settled
DO $$
BEGIN
    PERFORM reconcile.revoke_command(role_name, tenant_id, permission, NULLIF(target_kind, ''), NULLIF(target_name, ''))
       FROM reconcile.command_grant WHERE tenant_id LIKE 'lc%';
END $$;
SELECT outcome, detail FROM reconcile.audit_verify('lc');
DROP OWNED BY journal_worker, journal_giver, journal_stranger;
DROP ROLE journal_worker, journal_giver, journal_stranger;
RESET search_path;
DROP SCHEMA journal_lifecycle CASCADE;

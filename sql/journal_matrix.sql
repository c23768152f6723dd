--
-- Every external action with every outcome, whatever the clocks of its giver and its worker say, and with a
-- cancel at each point of its way: against a table of rules that is written here, and not taken from the code.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA journal_matrix;
SET search_path = journal_matrix;
\getenv source PG_ABS_SRCDIR
\set settled :source '/sql/include/commands_settled.sql'
\i :settled

-- what is given
CREATE TABLE action (action text, target_kind text, options jsonb, desired text);
INSERT INTO action VALUES
    ('pause', 'worker_group', '{}', 'paused'), ('resume', 'worker_group', '{}', 'active'),
    ('drain', 'worker', '{}', 'draining'), ('terminate', 'worker', '{}', 'terminating'),
    ('drain', 'worker_group', '{}', 'draining'), ('terminate', 'worker_group', '{}', 'terminating'),
    ('retry', 'failure', '{}', NULL), ('delete', 'failure', '{}', NULL), ('purge', 'failure', '{}', NULL),
    ('bulk_retry', 'failure', '{"selection": {"limit": 5}}', NULL),
    ('replay', 'failure', '{"replay": {"destination": "elsewhere", "idempotency_policy": "reject_duplicate"}}', NULL),
    ('scale', 'workload', '{"scale": {"replicas": 3}}', NULL), ('mx_probe', 'workload', '{"anything": 1}', NULL),
    ('mx_hold', 'worker', '{}', 'paused');
SELECT reconcile.register_action('mx_probe', ARRAY['workload'], 'external'), reconcile.register_action('mx_hold', ARRAY['worker'], 'external', desired_state => 'paused');
CREATE TABLE outcome (outcome text, failure text);
INSERT INTO outcome VALUES ('succeeded', NULL), ('failed', 'target_mismatch'), ('unsupported', 'unsupported_action'), ('timed_out', 'no_answer'),
    ('partial', 'half'), ('unknown', 'lost_reply'), ('lapsed', NULL), ('lapsed, then succeeded', NULL);
CREATE TABLE skew (skew interval);
INSERT INTO skew VALUES ('-1.5 s'), ('0'), ('1 h'), ('-20 years'), (NULL);
CREATE TABLE cancel_at (cancel_at text);
INSERT INTO cancel_at VALUES ('never'), ('before the claim'), ('after the claim'), ('after the acknowledgement'), ('after the end');

CREATE TABLE cell AS
SELECT row_number() OVER () AS n, a.*, o.*, s.*, c.*, 'mx ' || CASE WHEN o.outcome LIKE 'lapsed%' THEN 'lapsed' ELSE 'reported' END AS tenant_id,
       NULL::text AS id, NULL::text AS token, NULL::timestamptz AS at, NULL::text AS given, NULL::text AS canceled, NULL::text AS acknowledged, NULL::text AS completed,
       NULL::text AS repeated
  FROM action a, outcome o, skew s, cancel_at c
 -- what is canceled before that has no outcome
 WHERE c.cancel_at <> 'before the claim' OR o.outcome = 'succeeded';
UPDATE cell SET id = 'c' || n;

-- the ways of those of one tenant, side by side
CREATE PROCEDURE cancel(tenant text, point text) LANGUAGE plpgsql AS $$
BEGIN
    UPDATE journal_matrix.cell c SET canceled = reconcile.cancel_command(tenant, c.id, 'test') WHERE c.tenant_id = tenant AND c.cancel_at = point;
    COMMIT;
END $$;
CREATE FUNCTION complete(c cell, outcome text) RETURNS text LANGUAGE sql AS $$
    SELECT reconcile.complete_command(c.tenant_id, c.id, c.token, outcome, CASE WHEN outcome <> 'succeeded' THEN c.failure END, 'w', '1.0', NULL, c.at) $$;
CREATE PROCEDURE go(tenant text, ttl interval) LANGUAGE plpgsql AS $$
DECLARE
    taken int;
BEGIN
    UPDATE journal_matrix.cell c SET given =
        (SELECT a.outcome || ' ' || a.status FROM reconcile.accept_command(tenant, c.id, c.action, c.target_kind, c.id, 'test', c.options, true, '5 min',
            requested_at => clock_timestamp() + c.skew, command_id => c.id) a) WHERE c.tenant_id = tenant;
    COMMIT;
    CALL journal_matrix.cancel(tenant, 'before the claim');
    LOOP
        UPDATE journal_matrix.cell c SET token = k.claim_token FROM reconcile.claim_commands('w', NULL, 1000, ttl) k
         WHERE k.tenant_id = c.tenant_id AND k.command_id = c.id;
        GET DIAGNOSTICS taken = ROW_COUNT;
        COMMIT;
        EXIT WHEN taken = 0;
    END LOOP;
    CALL journal_matrix.cancel(tenant, 'after the claim');
    UPDATE journal_matrix.cell c SET acknowledged = reconcile.acknowledge_command(tenant, c.id, c.token, 'w', '1.0')
     WHERE c.tenant_id = tenant AND c.token IS NOT NULL;
    COMMIT;
    CALL journal_matrix.cancel(tenant, 'after the acknowledgement');
    UPDATE journal_matrix.cell c SET at = clock_timestamp() + c.skew WHERE c.tenant_id = tenant AND c.token IS NOT NULL;
    UPDATE journal_matrix.cell c SET completed = journal_matrix.complete(c, c.outcome) WHERE c.tenant_id = tenant AND c.token IS NOT NULL AND c.outcome NOT LIKE 'lapsed%';
    COMMIT;
    PERFORM pg_sleep(0.002);
    PERFORM * FROM reconcile.sweep_commands(10000);
    COMMIT;
    CALL journal_matrix.cancel(tenant, 'after the end');
    UPDATE journal_matrix.cell c SET completed = journal_matrix.complete(c, 'succeeded') WHERE c.tenant_id = tenant AND c.token IS NOT NULL AND c.outcome = 'lapsed, then succeeded';
    COMMIT;
    UPDATE journal_matrix.cell c SET repeated = journal_matrix.complete(c, CASE WHEN c.outcome LIKE 'lapsed%' THEN 'succeeded' ELSE c.outcome END)
     WHERE c.tenant_id = tenant AND c.completed IS NOT NULL;
END $$;
DO $$
BEGIN
    CALL journal_matrix.go('mx lapsed', '1 ms');
    CALL journal_matrix.go('mx reported', '1 h');
END $$;

-- what became of each
CREATE VIEW got AS
SELECT c.n, c.given, c.canceled, c.acknowledged, c.completed, c.repeated, k.status, k.failure, k.effective_status,
       d.state, d.revision, (SELECT string_agg(e.event, ' ' ORDER BY e.sequence) FROM reconcile.audit_event e WHERE e.tenant_id = c.tenant_id AND e.command_id = c.id) AS events,
       k.worker_completed_at IS NOT DISTINCT FROM CASE WHEN c.completed = 'completed' THEN c.at END AS as_said,
       k.completed_at BETWEEN k.accepted_at AND now() AND COALESCE(k.completed_at >= k.acknowledged_at AND k.acknowledged_at >= k.dispatched_at, k.dispatched_at IS NULL) AS by_ours
  FROM cell c JOIN reconcile.commands k ON k.tenant_id = c.tenant_id AND k.command_id = c.id
  LEFT JOIN reconcile.desired_states d ON d.tenant_id = c.tenant_id AND d.target_kind = c.target_kind AND d.target_name = c.id;

-- and what should: the clocks and the action are in no rule, but that an action may mean a state
CREATE TABLE rule (cancel_at text, canceled text, claimed boolean);
INSERT INTO rule VALUES
    ('never', NULL, true),
    ('before the claim', 'canceled', false),            -- nobody has it yet
    ('after the claim', 'too_late', true),              -- somebody may be at it, and his report counts
    ('after the acknowledgement', 'too_late', true),
    ('after the end', 'terminal', true);                -- and what it meant stays
CREATE TABLE end_rule (outcome text, completed text, repeated text, status text, failure text, effective_status text, events text);
INSERT INTO end_rule VALUES
    ('succeeded', 'completed', 'repeated', 'succeeded', NULL, 'succeeded', 'succeeded'),
    ('failed', 'completed', 'repeated', 'failed', 'target_mismatch', 'failed', 'failed'),
    ('unsupported', 'completed', 'repeated', 'unsupported', 'unsupported_action', 'unsupported', 'unsupported'),
    ('timed_out', 'completed', 'repeated', 'timed_out', 'no_answer', 'timed_out', 'timed_out'),
    ('partial', 'completed', 'repeated', 'partial', 'half', 'partial', 'partial'),
    ('unknown', 'completed', 'repeated', 'unknown', 'lost_reply', 'unknown', 'unknown'),
    ('lapsed', NULL, NULL, 'unknown', 'outcome_unknown', 'unknown', 'unknown'),
    ('lapsed, then succeeded', 'terminal', 'terminal', 'unknown', 'outcome_unknown', 'succeeded', 'unknown reported_late');
CREATE VIEW due AS
SELECT c.n, 'accepted pending' AS given, r.canceled, CASE WHEN r.claimed THEN 'acknowledged' END AS acknowledged, CASE WHEN r.claimed THEN e.completed END AS completed,
       CASE WHEN r.claimed THEN e.repeated END AS repeated, CASE WHEN r.claimed THEN e.status ELSE 'canceled' END AS status,
       CASE WHEN r.claimed THEN e.failure ELSE 'canceled' END AS failure, CASE WHEN r.claimed THEN e.effective_status ELSE 'canceled' END AS effective_status,
       CASE WHEN r.claimed THEN c.desired END AS state, CASE WHEN c.desired IS NOT NULL THEN CASE WHEN r.claimed THEN 1 ELSE 2 END END AS revision,
       CASE WHEN r.claimed THEN 'accepted dispatched acknowledged ' || e.events ELSE 'accepted canceled' END AS events, true AS as_said, true AS by_ours
  FROM cell c JOIN rule r USING (cancel_at) JOIN end_rule e USING (outcome);

SELECT count(*) AS cells, count(DISTINCT action || ' ' || target_kind) AS actions, count(DISTINCT outcome) AS outcomes FROM cell;
SELECT 'got' AS side, c.action, c.target_kind, c.outcome, c.skew, c.cancel_at, x.* FROM (TABLE got EXCEPT TABLE due) x JOIN cell c USING (n)
UNION ALL
SELECT 'due', c.action, c.target_kind, c.outcome, c.skew, c.cancel_at, x.* FROM (TABLE due EXCEPT TABLE got) x JOIN cell c USING (n)
 ORDER BY n, side LIMIT 20;
-- the whole of it, for who reads this
SELECT c.cancel_at, c.outcome, g.canceled, g.completed, g.status, g.failure, g.effective_status, g.state IS NOT NULL AS has_state, count(*)
  FROM got g JOIN cell c USING (n) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 8;
-- every step is in the audit, and nothing else is
SELECT e.event, count(*) FROM reconcile.audit_event e WHERE e.tenant_id LIKE 'mx %' GROUP BY 1 ORDER BY 1;
SELECT t.tenant_id, v.outcome, v.detail FROM (VALUES ('mx lapsed'), ('mx reported')) t (tenant_id), reconcile.audit_verify(t.tenant_id) v ORDER BY 1;
-- nothing of it is left to be claimed, or to be swept
SELECT count(*) FROM reconcile.commands WHERE tenant_id LIKE 'mx %' AND completed_at IS NULL;

DELETE FROM reconcile.command_action WHERE action LIKE 'mx\_%';
RESET search_path;
DROP SCHEMA journal_matrix CASCADE;

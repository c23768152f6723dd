-- Commands as tables: what applies to what, which states a row may have, the planner of desired states, and that
-- admission does what it plans (contract 9.1, 9.3), in one transaction.
BEGIN;
SELECT plan(30);
SET client_min_messages = warning;
CREATE SCHEMA tap;

-- NewCommandIDAllocatesOpaqueDistinctIdentifiers
CREATE TABLE tap.id AS SELECT n, c.* FROM generate_series(1, 100) n, reconcile.accept_command('ids', 'k' || n, 'drain', 'worker', 'w' || n, 'why') c;
SELECT is((SELECT count(DISTINCT command_id) FROM tap.id WHERE outcome = 'accepted'), 100::bigint, 'a hundred commands have a hundred ids');
SELECT is_empty($$SELECT command_id FROM tap.id WHERE command_id !~ '^[0-7][0-9a-hjkmnp-tv-z]{25}$'$$, 'each is a ULID in lower case');
SELECT cmp_ok((SELECT count(DISTINCT right(command_id, 16)) FROM tap.id), '=', 100::bigint, 'and by chance, not by its time alone');
-- the first ten characters are the milliseconds of the admission
CREATE FUNCTION tap.ulid_time(id text) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT to_timestamp(sum((strpos('0123456789abcdefghjkmnpqrstvwxyz', substr(id, i, 1)) - 1) * 32::numeric ^ (10 - i))::float8 / 1000) FROM generate_series(1, 10) i
$$;
SELECT is_empty($$SELECT c.command_id FROM reconcile.commands c WHERE tenant_id = 'ids' AND abs(extract(epoch FROM tap.ulid_time(command_id) - accepted_at)) > 0.002$$,
                'whose first part is when it was admitted');

-- CommandLifetimeContractRemainsBounded
SELECT is((SELECT DISTINCT deadline - accepted_at FROM reconcile.commands WHERE tenant_id = 'ids'), interval '30 s', '30 s to claim it, by default');
SELECT reconcile.accept_command('ids', 'long', 'drain', 'worker', 'long', 'why', deadline_in => '5 min');
SELECT is((SELECT deadline - accepted_at FROM reconcile.commands WHERE idempotency_key = 'long'), interval '5 min', '5 min at most');

-- ActionSupportsOnlyCompatibleTargets: ten actions and one that there is not, with six kinds and one that there is not
CREATE TABLE tap.applies (action text, kinds text[], state text, confirmed boolean, options jsonb);
INSERT INTO tap.applies VALUES
    ('pause', '{queue,worker_group}', 'paused', false, '{}'),
    ('resume', '{queue,worker_group}', 'active', false, '{}'),
    ('drain', '{worker,worker_group}', 'draining', false, '{}'),
    ('terminate', '{worker,worker_group}', 'terminating', false, '{}'),
    ('retry', '{failure,dead_letter}', NULL, false, '{}'),
    ('bulk_retry', '{failure,dead_letter}', NULL, true, '{"selection": {"limit": 1}}'),
    ('delete', '{failure,dead_letter}', NULL, false, '{}'),
    ('purge', '{queue,failure,dead_letter}', NULL, true, '{}'),
    ('replay', '{failure,dead_letter}', NULL, true, '{"replay": {"destination": "d", "idempotency_policy": "reject_duplicate"}}'),
    ('scale', '{workload}', NULL, false, '{"scale": {"replicas": 1}}');
CREATE TABLE tap.kind (kind text);
INSERT INTO tap.kind VALUES ('queue'), ('worker'), ('worker_group'), ('workload'), ('failure'), ('dead_letter');
CREATE FUNCTION tap.outcome(tenant text, action text, kind text, name text, confirmed boolean, options jsonb,
                            OUT outcome text, OUT status text, OUT revision bigint, OUT field text, OUT problem text) LANGUAGE plpgsql AS $$
BEGIN
    SELECT c.outcome, c.status, c.desired_revision INTO outcome, status, revision
      FROM reconcile.accept_command(tenant, concat_ws('/', action, kind, name), action, kind, name, 'why', options, confirmed) c;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS outcome = RETURNED_SQLSTATE, field = COLUMN_NAME, problem = PG_EXCEPTION_DETAIL;
END $$;
CREATE TABLE tap.tried AS
SELECT a.action, k.kind, k.kind = ANY (a.kinds) AS applies, a.state, t.*
  FROM tap.applies a CROSS JOIN tap.kind k,
       tap.outcome('matrix', a.action, k.kind, a.action, a.confirmed,
                   a.options || CASE WHEN k.kind = 'dead_letter' AND a.action IN ('retry', 'delete', 'replay') THEN '{"entity_id": "e"}' ELSE '{}' END::jsonb) t;
SELECT is((SELECT count(*) FROM tap.tried), 60::bigint, 'ten actions with six kinds are sixty');
SELECT is_empty($$SELECT * FROM tap.tried WHERE applies AND outcome <> 'accepted'$$, 'those that apply are accepted');
SELECT is((SELECT count(*) FROM tap.tried WHERE applies), 20::bigint, 'which are twenty');
SELECT is_empty($$SELECT * FROM tap.tried WHERE NOT applies AND (outcome, field, problem) IS DISTINCT FROM ('22023', 'target_kind', 'is not one that the action applies to')$$,
                'the others are refused under target_kind');
SELECT is_empty($$SELECT * FROM tap.kind k, tap.outcome('matrix', 'reboot', kind, 'none', false, '{}') t WHERE (t.outcome, t.field) IS DISTINCT FROM ('22023', 'action')$$,
                'an action that there is not applies to none');
SELECT is_empty($$SELECT * FROM tap.applies a, tap.outcome('matrix', action, 'pod', 'none', true, '{}') t WHERE (t.outcome, t.field) IS DISTINCT FROM ('22023', 'target_kind')$$,
                'nor does any to a kind that there is not');
SELECT is_empty($$SELECT * FROM tap.tried WHERE applies AND status IS DISTINCT FROM CASE WHEN kind IN ('queue', 'dead_letter') THEN 'failed' ELSE 'pending' END$$,
                'what is not here is pending, what is here at its end');
SELECT is_empty($$SELECT * FROM tap.tried WHERE applies AND revision IS DISTINCT FROM CASE WHEN state IS NOT NULL AND status = 'pending' THEN 1 END$$,
                'four mean a desired state');
SELECT results_eq($$SELECT action, target_kind FROM reconcile.command_action WHERE builtin ORDER BY 1, 2$$,
                  $$SELECT action COLLATE "C", kind COLLATE "C" FROM tap.tried WHERE applies ORDER BY 1, 2$$, 'the table of actions says the same');

-- CommandResultValidateRequiresTenantScopedOutcome, CommandResultPreservesDistinctTerminalStates: of rows of every shape
-- only those stay that mean something
CREATE TABLE tap.shape AS
SELECT s.status, failure, completed, claimed, acknowledged, worker, protocol
  FROM unnest('{pending,dispatched,acknowledged,succeeded,failed,unsupported,timed_out,partial,unknown,canceled,accepted,done}'::text[]) s (status),
       unnest('{t,f}'::boolean[]) failure, unnest('{t,f}'::boolean[]) completed, unnest('{t,f}'::boolean[]) claimed,
       unnest('{t,f}'::boolean[]) acknowledged, unnest('{t,f}'::boolean[]) worker, unnest('{t,f}'::boolean[]) protocol;
CREATE FUNCTION tap.stays(s tap.shape) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        INSERT INTO reconcile.command SELECT (jsonb_populate_record(c, jsonb_build_object('command_id', 'shape', 'idempotency_key', 'shape', 'status', s.status,
            'failure', CASE WHEN s.failure THEN 'code' END, 'completed_at', CASE WHEN s.completed THEN now() END,
            'claim_token', CASE WHEN s.claimed THEN 'x' END, 'dispatched_at', CASE WHEN s.claimed THEN now() END,
            'acknowledged_at', CASE WHEN s.acknowledged THEN now() END,
            'worker_id', CASE WHEN s.worker THEN 'w' END, 'protocol', CASE WHEN s.protocol THEN '1.0' END))).*
          FROM reconcile.command c WHERE tenant_id = 'ids' AND idempotency_key = 'k1';
        RAISE 'undone' USING ERRCODE = 'UNDO1';
    EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
        RETURN true;
    END;
EXCEPTION WHEN check_violation THEN
    RETURN false;
END $$;
CREATE FUNCTION tap.means_something(s tap.shape) RETURNS boolean LANGUAGE sql AS $$
    SELECT s.worker = s.protocol
       AND CASE s.status WHEN 'pending' THEN NOT s.failure AND NOT s.completed
                         WHEN 'dispatched' THEN NOT s.failure AND NOT s.completed AND s.claimed
                         WHEN 'acknowledged' THEN NOT s.failure AND NOT s.completed AND s.claimed AND s.acknowledged
                         WHEN 'succeeded' THEN NOT s.failure AND s.completed
                         WHEN 'accepted' THEN false WHEN 'done' THEN false ELSE s.failure AND s.completed END
$$;
SELECT is_empty('SELECT s.* FROM tap.shape s WHERE tap.stays(s) AND NOT tap.means_something(s)', 'no row stays that means nothing');
SELECT is_empty('SELECT s.* FROM tap.shape s WHERE NOT tap.stays(s) AND tap.means_something(s)
                    -- acknowledged without a claim, and what waits with one, are not of this world either, and not checked
                    AND (s.claimed OR NOT s.acknowledged)', 'and each that means something does');

-- The planner (9.3). NextDesiredStateBuildsMonotonicAttributedTransitions, …AllowsRepeatedTerminalRequest
CREATE TABLE tap.state (state text, revision bigint);
INSERT INTO tap.state VALUES (NULL, NULL), (NULL, 0), (NULL, 3), ('active', 1), ('paused', 4), ('draining', 9), ('terminating', 4), ('hibernating', 2);
CREATE TABLE tap.planned AS
SELECT s.state AS current, s.revision AS at, a.action, k.kind, p.*
  FROM tap.state s, tap.applies a, tap.kind k, reconcile.next_desired_state(s.state, s.revision, a.action, k.kind) p;
SELECT results_eq($$SELECT current, at, action, outcome, state, revision FROM tap.planned WHERE kind = 'worker_group' AND action IN ('pause', 'resume', 'drain', 'terminate')
                     ORDER BY current NULLS FIRST, at NULLS FIRST, action$$,
$$VALUES (NULL, NULL, 'drain', 'planned', 'draining', 1::bigint), (NULL, NULL, 'pause', 'planned', 'paused', 1), (NULL, NULL, 'resume', 'planned', 'active', 1), (NULL, NULL, 'terminate', 'planned', 'terminating', 1),
         (NULL, 0::bigint, 'drain', 'planned', 'draining', 1), (NULL, 0, 'pause', 'planned', 'paused', 1), (NULL, 0, 'resume', 'planned', 'active', 1), (NULL, 0, 'terminate', 'planned', 'terminating', 1),
         (NULL, 3, 'drain', 'planned', 'draining', 4), (NULL, 3, 'pause', 'planned', 'paused', 4), (NULL, 3, 'resume', 'planned', 'active', 4), (NULL, 3, 'terminate', 'planned', 'terminating', 4),
         ('active', 1, 'drain', 'planned', 'draining', 2), ('active', 1, 'pause', 'planned', 'paused', 2), ('active', 1, 'resume', 'planned', 'active', 2), ('active', 1, 'terminate', 'planned', 'terminating', 2),
         ('draining', 9, 'drain', 'planned', 'draining', 10), ('draining', 9, 'pause', 'planned', 'paused', 10), ('draining', 9, 'resume', 'planned', 'active', 10), ('draining', 9, 'terminate', 'planned', 'terminating', 10),
         ('hibernating', 2, 'drain', 'illegal_transition', NULL, NULL), ('hibernating', 2, 'pause', 'illegal_transition', NULL, NULL), ('hibernating', 2, 'resume', 'illegal_transition', NULL, NULL), ('hibernating', 2, 'terminate', 'illegal_transition', NULL, NULL),
         ('paused', 4, 'drain', 'planned', 'draining', 5), ('paused', 4, 'pause', 'planned', 'paused', 5), ('paused', 4, 'resume', 'planned', 'active', 5), ('paused', 4, 'terminate', 'planned', 'terminating', 5),
         ('terminating', 4, 'drain', 'illegal_transition', NULL, NULL), ('terminating', 4, 'pause', 'illegal_transition', NULL, NULL), ('terminating', 4, 'resume', 'illegal_transition', NULL, NULL), ('terminating', 4, 'terminate', 'planned', 'terminating', 5)$$,
    'every state with every action that means one, on a group');
-- NextDesiredStateRejectsUnsafeTransitions, NextDesiredStateRejectsInvalidCommandTarget, DesiredStateForRejectsInvalidTarget
SELECT is_empty($$SELECT * FROM tap.planned p JOIN tap.applies a USING (action) WHERE a.state IS NULL AND p.outcome <> 'not_a_state_action'$$, 'six actions mean none, on whatever kind');
SELECT is_empty($$SELECT * FROM tap.planned p JOIN tap.applies a USING (action) WHERE a.state IS NOT NULL AND (p.outcome = 'invalid_target') = (p.kind = ANY (a.kinds))$$,
                'and where the action does not apply there is nothing to plan');
SELECT is_empty($$SELECT * FROM tap.planned p JOIN tap.planned g USING (action) WHERE g.kind = 'worker_group' AND p.current IS NOT DISTINCT FROM g.current AND p.at IS NOT DISTINCT FROM g.at
                     AND p.outcome NOT IN ('invalid_target', 'not_a_state_action') AND (p.outcome, p.state, p.revision) IS DISTINCT FROM (g.outcome, g.state, g.revision)$$,
                'where it does the kind decides nothing else');
SELECT results_eq($$SELECT r, (p).outcome, (p).revision FROM (SELECT r, reconcile.next_desired_state('paused', r, 'resume', 'queue') AS p
                      FROM unnest(ARRAY[9223372036854775806, 9223372036854775807]) r) s ORDER BY r$$,
                  $$VALUES (9223372036854775806, 'planned', 9223372036854775807), (9223372036854775807, 'exhausted', NULL)$$, 'the last revision is the highest bigint');
SELECT throws_ok($$SELECT reconcile.next_desired_state('paused', -1, 'resume', 'queue')$$, '22023', 'argument "current_revision" must not be negative');
SELECT throws_ok($$SELECT reconcile.next_desired_state('paused', 0, 'resume', 'queue')$$, '22023', 'argument "current_revision" must be that of current_state');
SELECT throws_ok($$SELECT reconcile.next_desired_state('paused', 1, 'reboot', 'queue')$$, '22023', 'argument "action" is not a built-in action');
SELECT throws_ok($$SELECT reconcile.next_desired_state('paused', 1, NULL, 'queue')$$, '22004', 'argument "action" must not be null');
SELECT throws_ok($$SELECT reconcile.next_desired_state('paused', 1, 'resume', NULL)$$, '22004', 'argument "target_kind" must not be null');
SELECT is((SELECT provolatile::text || proparallel::text FROM pg_proc WHERE oid = 'reconcile.next_desired_state'::regproc), 'is', 'it is a pure function');

-- Admission does what is planned: all series of four actions, each for a group of its own. What is so already gets no revision.
CREATE TABLE tap.step (series text, n int, was text, was_at bigint, action text, outcome text, revision bigint, state text, at bigint, planned text, planned_state text, planned_revision bigint);
DO $$
DECLARE
    s record;
    d record;
    c record;
    p record;
    acts text[] := '{pause,resume,drain,terminate}';
BEGIN
    FOR s IN SELECT ARRAY[a1, a2, a3, a4] AS actions FROM unnest(acts) a1, unnest(acts) a2, unnest(acts) a3, unnest(acts) a4 LOOP
        FOR i IN 1 .. 4 LOOP
            SELECT state, revision INTO d FROM reconcile.desired_state_of('plan', 'worker_group', s.actions::text);
            SELECT * INTO p FROM reconcile.next_desired_state(d.state, d.revision, s.actions[i], 'worker_group');
            SELECT * INTO c FROM reconcile.accept_command('plan', s.actions::text || i, s.actions[i], 'worker_group', s.actions::text, 'why');
            INSERT INTO tap.step SELECT s.actions::text, i, d.state, d.revision, s.actions[i], c.outcome, c.desired_revision, n.state, n.revision, p.outcome, p.state, p.revision
              FROM reconcile.desired_state_of('plan', 'worker_group', s.actions::text) n;
        END LOOP;
    END LOOP;
END $$;
SELECT is((SELECT count(*) FROM tap.step), 1024::bigint, '256 series of four');
SELECT is_empty($$SELECT * FROM tap.step WHERE (outcome, revision, state, at) IS DISTINCT FROM
                     (CASE planned WHEN 'planned' THEN 'accepted' ELSE planned END,
                      CASE WHEN planned = 'planned' THEN CASE WHEN was = planned_state THEN was_at ELSE planned_revision END END,
                      coalesce(planned_state, was), CASE WHEN planned = 'planned' AND was IS DISTINCT FROM planned_state THEN planned_revision ELSE was_at END)$$,
                'each step is what was planned');

SELECT * FROM finish();
ROLLBACK;

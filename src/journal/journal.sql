-- journal.sql: what users call and read of commands, desired states and the audit

-- What is over does not change, for whatever role and whatever session_replication_role says.
CREATE FUNCTION reconcile.keep_row() RETURNS trigger
    LANGUAGE c SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_keep_row';
COMMENT ON FUNCTION reconcile.keep_row() IS
'Trigger of our own tables: refuses to change or delete what is final. 55000 it is; 39P01 not called by such a trigger.';

CREATE TRIGGER command_final BEFORE UPDATE OR DELETE ON reconcile.command
    FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL) EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER command_unfinished BEFORE DELETE ON reconcile.command
    FOR EACH ROW WHEN (OLD.completed_at IS NULL) EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER command_truncated BEFORE TRUNCATE ON reconcile.command
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER resolution_final BEFORE UPDATE OR DELETE ON reconcile.command_resolution
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER resolution_truncated BEFORE TRUNCATE ON reconcile.command_resolution
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER tombstone_final BEFORE UPDATE OR DELETE ON reconcile.command_tombstone
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER tombstone_truncated BEFORE TRUNCATE ON reconcile.command_tombstone
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER event_final BEFORE UPDATE OR DELETE ON reconcile.audit_event
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_row();
CREATE TRIGGER event_truncated BEFORE TRUNCATE ON reconcile.audit_event
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_row();
ALTER TABLE reconcile.command ENABLE ALWAYS TRIGGER command_final;
ALTER TABLE reconcile.command ENABLE ALWAYS TRIGGER command_unfinished;
ALTER TABLE reconcile.command ENABLE ALWAYS TRIGGER command_truncated;
ALTER TABLE reconcile.command_resolution ENABLE ALWAYS TRIGGER resolution_final;
ALTER TABLE reconcile.command_resolution ENABLE ALWAYS TRIGGER resolution_truncated;
ALTER TABLE reconcile.command_tombstone ENABLE ALWAYS TRIGGER tombstone_final;
ALTER TABLE reconcile.command_tombstone ENABLE ALWAYS TRIGGER tombstone_truncated;
ALTER TABLE reconcile.audit_event ENABLE ALWAYS TRIGGER event_final;
ALTER TABLE reconcile.audit_event ENABLE ALWAYS TRIGGER event_truncated;

-- Commands: who gives them.

CREATE FUNCTION reconcile.accept_command(
    tenant_id             text,
    idempotency_key       text,
    action                text,
    target_kind           text,
    target_name           text,
    reason                text,
    options               jsonb DEFAULT '{}',
    confirmed             boolean DEFAULT false,
    deadline_in           interval DEFAULT '30 s',
    expected_revision     bigint DEFAULT NULL,
    actor                 text DEFAULT NULL,
    authentication_method text DEFAULT 'internal',
    capability            text DEFAULT NULL,
    requested_at          timestamptz DEFAULT NULL,
    command_id            text DEFAULT NULL)
    RETURNS TABLE (outcome text, command_id text, status text, created boolean, failure text, desired_revision bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_accept_command';
COMMENT ON FUNCTION reconcile.accept_command(text, text, text, text, text, text, jsonb, boolean, interval, bigint, text, text, text, timestamptz, text) IS
'Admits a command once for each tenant and idempotency key: accepted, replayed (what is stored is returned, nothing is done), conflict, denied, stale_revision, illegal_transition or key_spent; one that takes effect in this database is succeeded or failed on return. 22004, 22023 bad field (COLUMN names it, DETAIL says what is wrong); 0A000 isolation level; 25006 read-only; RC014 no revision left.';

CREATE FUNCTION reconcile.cancel_command(tenant_id text, command_id text, reason text) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_cancel_command';
COMMENT ON FUNCTION reconcile.cancel_command(text, text, text) IS
'Takes back a command that nobody has claimed, and the desired state that it meant: canceled, too_late, terminal, not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; RC014 no revision left.';

CREATE FUNCTION reconcile.resolve_command(tenant_id text, command_id text, verdict text, evidence jsonb, reason text) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_resolve_command';
COMMENT ON FUNCTION reconcile.resolve_command(text, text, text, jsonb, text) IS
'Says beside a command whose outcome is unknown what became of it: verdict is succeeded, failed, partial or not_executed, evidence is an object that is not empty. Resolved, repeated, not_unknown, not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.explain_command(tenant_id text, command_id text)
    RETURNS TABLE (status text, reason text, until timestamptz, detail text, hint text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_explain_command';
COMMENT ON FUNCTION reconcile.explain_command(text, text) IS
'Says where a command stands and why: reason is waiting_for_claim, no_dispatcher, overdue, claimed, claim_lapsed, unknown, resolved, done or its failure; no row where there is none that the caller may view. 22004, 22023 bad field.';

-- Commands: who carries them out.

CREATE FUNCTION reconcile.claim_commands(claimant text, actions text[] DEFAULT NULL, max_items int DEFAULT 1, ttl interval DEFAULT '30 s')
    RETURNS TABLE (tenant_id text, command_id text, claim_token text, action text, target_kind text, target_name text,
                   options jsonb, deadline timestamptz, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10
    AS 'MODULE_PATHNAME', 'reconcile_claim_commands';
COMMENT ON FUNCTION reconcile.claim_commands(text, text[], int, interval) IS
'Takes pending commands (1 to 1,000) that the caller may dispatch, the oldest of a tenant first, for ttl: once this has committed he may act, and nobody else gets them. remaining is the time to the deadline. 22004, 22023, 2202E bad argument; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.acknowledge_command(tenant_id text, command_id text, claim_token text, worker_id text DEFAULT NULL, protocol text DEFAULT NULL)
    RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_acknowledge_command';
COMMENT ON FUNCTION reconcile.acknowledge_command(text, text, text, text, text) IS
'Says that a worker has a claimed command: acknowledged, repeated, conflict (another worker has it), stale_token, terminal, not_found. protocol is major.minor. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; RC016 the claim has not committed.';

CREATE FUNCTION reconcile.complete_command(tenant_id text, command_id text, claim_token text, status text, failure text DEFAULT NULL,
    worker_id text DEFAULT NULL, protocol text DEFAULT NULL, capability_available boolean DEFAULT NULL,
    worker_completed_at timestamptz DEFAULT NULL) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_complete_command';
COMMENT ON FUNCTION reconcile.complete_command(text, text, text, text, text, text, text, boolean, timestamptz) IS
'Says what became of a claimed command: status is succeeded, failed, unsupported, timed_out, partial or unknown, failure a code for all but the first. Completed, repeated, stale_token, terminal (what comes too late for an unknown one is kept beside it), not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; RC016 the claim has not committed.';

CREATE FUNCTION reconcile.sweep_commands(max_items int DEFAULT 1000)
    RETURNS TABLE (canceled bigint, lapsed bigint, skipped bigint, failed bigint, more boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_sweep_commands';
COMMENT ON FUNCTION reconcile.sweep_commands(int) IS
'Settles commands (1 to 10,000) whose time is over: one that nobody claimed by its deadline is canceled, one whose claim has lapsed is unknown. The next call goes on behind them; more says that it has something to do. 22004, 22023 bad argument; 0A000 isolation level; 25006 read-only; 42501 no right.';

-- Desired states.

CREATE FUNCTION reconcile.desired_state_of(tenant_id text, target_kind text, target_name text)
    RETURNS TABLE (tenant_id text, target_kind text, target_name text, state text, revision bigint, command_id text,
                   requested_at timestamptz, changed_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_desired_state_of';
COMMENT ON FUNCTION reconcile.desired_state_of(text, text, text) IS
'The state that a target is to be in; no row where no command that stands has said it, or the caller may not view it: that is not "active". 22004, 22023 bad field.';

CREATE FUNCTION reconcile.desired_states_since(tenant_id text, after text DEFAULT NULL, max_items int DEFAULT 100)
    RETURNS TABLE ("position" text, target_kind text, target_name text, state text, revision bigint, command_id text, changed_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100
    AS 'MODULE_PATHNAME', 'reconcile_desired_states_since';
COMMENT ON FUNCTION reconcile.desired_states_since(text, text, int) IS
'The targets (1 to 10,000) whose desired state has changed behind a position (NULL: all), in the order of their positions, each as it is now; state is NULL where the command that said it was taken back. None is passed over: a change is shown when no earlier one can come any more. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.effective_state(tenant_id text, worker text DEFAULT NULL, worker_group text DEFAULT NULL, queue text DEFAULT NULL)
    RETURNS TABLE (state text, target_kind text, target_name text, revision bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_effective_state';
COMMENT ON FUNCTION reconcile.effective_state(text, text, text, text) IS
'Which of the desired states of a worker, its group and its queue counts: terminating before draining before paused before active, and of equal ones the worker''s before the group''s before the queue''s; no row where none is said. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.report_observed(tenant_id text, worker_id text, target_kind text, target_name text, revision bigint, state text) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_report_observed';
COMMENT ON FUNCTION reconcile.report_observed(text, text, text, text, bigint, text) IS
'A worker says which revision of a target it has applied: stored, older (it has said a later one), ahead (there is no such revision), unknown_target. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

-- Actions and rights.

CREATE FUNCTION reconcile.register_action(action text, target_kinds text[], mode text, dispatcher text DEFAULT NULL,
    confirm boolean DEFAULT false, desired_state text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_register_action';
COMMENT ON FUNCTION reconcile.register_action(text, text[], text, text, boolean, text) IS
'Makes, or changes, an action of the application on kinds of targets. mode is local (dispatcher f(command jsonb) RETURNS jsonb {"status": "succeeded"} or {"status": "failed", "failure": code} runs as the caller of this function, in the transaction of the command), external (somebody claims it) or unavailable (it fails at once); desired_state is the state that it means. 22004, 22023, 2202E bad argument, or no such function; 25006 read-only; 42501 no right; 42710 it is built in.';

CREATE FUNCTION reconcile.grant_command(role name, tenant_id text, permission text, target_kind text DEFAULT NULL,
    target_name text DEFAULT NULL, effect text DEFAULT 'allow') RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_grant_command';
COMMENT ON FUNCTION reconcile.grant_command(name, text, text, text, text, text) IS
'Lets a role (effect allow), or keeps it from (deny, which overrides), use a permission for a tenant, on a kind of targets and a name, or on any (NULL). A permission is the name of an action, or view, audit_view, dispatch, resolve, report, retention_configure, record_list, record_inspect, payload_view, diagnostics_view. 22004, 22023 bad argument; 25006 read-only; 42501 caller is no administrator; 42704 no such role.';

CREATE FUNCTION reconcile.revoke_command(role name, tenant_id text, permission text, target_kind text DEFAULT NULL, target_name text DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_revoke_command';
COMMENT ON FUNCTION reconcile.revoke_command(name, text, text, text, text) IS
'Takes back what grant_command said, with either effect, for the same role, tenant, permission and target; of a role that is gone, too. 22004, 22023 bad argument; 25006 read-only; 42501 caller is no administrator.';

CREATE FUNCTION reconcile.set_authorizer(authorizer text DEFAULT NULL) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_set_authorizer';
COMMENT ON FUNCTION reconcile.set_authorizer(text) IS
'Names a function f(request jsonb) RETURNS boolean that has to agree to whatever grants allow, NULL for none; it runs as the caller of this function, and its error is a no. 22023 bad function, or none; 25006 read-only; 42501 caller is no administrator, or another role''s function.';

-- Audit and retention.

CREATE FUNCTION reconcile.audit_access(tenant_id text, permission text, target_kind text, target_name text, reason text) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_audit_access';
COMMENT ON FUNCTION reconcile.audit_access(text, text, text, text, text) IS
'Asks for a sensitive read, payload_view or diagnostics_view of a failure or dead_letter, and notes it: the number of the access, or NULL where it is denied. What it notes commits with the caller; where it cannot be noted it fails. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.audit_verify(tenant_id text, head_sequence bigint DEFAULT NULL, head_hash bytea DEFAULT NULL)
    RETURNS TABLE (outcome text, events bigint, head_sequence bigint, head_hash bytea, bad_sequence bigint, detail text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_audit_verify';
COMMENT ON FUNCTION reconcile.audit_verify(text, bigint, bytea) IS
'Is the audit of a tenant what was written? ok, changed, gap, cut, forked, wrong_head, unknown_version, pruned (the given head is older than what is left), command_changed, command_missing or resolution_changed. The head that it returns is to be kept elsewhere, and given to a later call: by it a tail is missed that was cut. 22004, 22023 bad argument; 42501 no right; 55000 something is wrong that events of this transaction may explain.';

CREATE FUNCTION reconcile.set_command_retention(tenant_id text, keep interval, legal_hold boolean DEFAULT false, keep_keys interval DEFAULT NULL)
    RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_set_command_retention';
COMMENT ON FUNCTION reconcile.set_command_retention(text, interval, boolean, interval) IS
'How long (1 hour to 3,660 days) prune_commands() leaves the commands and the audit of a tenant, and after that the keys (NULL: for ever); under a legal hold it leaves all. keep NULL: no policy. 22004, 22023 bad argument; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.prune_commands(tenant_id text, max_items int DEFAULT 1000)
    RETURNS TABLE (outcome text, events bigint, commands bigint, keys bigint, more boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_prune_commands';
COMMENT ON FUNCTION reconcile.prune_commands(text, int) IS
'Deletes what the retention of a tenant does not keep, at most max_items (1 to 10,000) of events, commands and keys each: pruned, denied, no_policy, legal_hold, broken_chain. Keys of commands stay, so that none is executed again. 22004, 22023 bad argument; 0A000 isolation level; 25006 read-only.';

-- Reading. A row is for who has the permission for its target: the tenant comes from the role.

CREATE FUNCTION reconcile.may_read_command(tenant_id text, permission text, target_kind text, target_name text) RETURNS boolean
    LANGUAGE c STABLE STRICT PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_may_read_command';
COMMENT ON FUNCTION reconcile.may_read_command(text, text, text, text) IS
'Has the current role the permission for this tenant and target? The policies of the tables ask it.';

ALTER TABLE reconcile.command ENABLE ROW LEVEL SECURITY;
ALTER TABLE reconcile.command_resolution ENABLE ROW LEVEL SECURITY;
ALTER TABLE reconcile.desired_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE reconcile.observed_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE reconcile.audit_event ENABLE ROW LEVEL SECURITY;
CREATE POLICY command_view ON reconcile.command FOR SELECT
    USING (reconcile.may_read_command(tenant_id, 'view', target_kind, target_name));
CREATE POLICY command_resolution_view ON reconcile.command_resolution FOR SELECT
    USING (EXISTS (SELECT FROM reconcile.command c
                    WHERE c.tenant_id = command_resolution.tenant_id AND c.command_id = command_resolution.command_id));
CREATE POLICY desired_state_view ON reconcile.desired_state FOR SELECT
    USING (reconcile.may_read_command(tenant_id, 'view', target_kind, target_name));
CREATE POLICY observed_state_view ON reconcile.observed_state FOR SELECT
    USING (reconcile.may_read_command(tenant_id, 'view', target_kind, target_name));
CREATE POLICY audit_event_view ON reconcile.audit_event FOR SELECT
    USING (reconcile.may_read_command(tenant_id, 'audit_view', COALESCE(target_kind, ''), COALESCE(target_name, '')));

CREATE VIEW reconcile.commands WITH (security_invoker) AS
SELECT c.tenant_id COLLATE "default" AS tenant_id,
       c.command_id COLLATE "default" AS command_id,
       c.idempotency_key COLLATE "default" AS idempotency_key,
       c.action COLLATE "default" AS action,
       c.target_kind COLLATE "default" AS target_kind,
       c.target_name COLLATE "default" AS target_name,
       c.mode COLLATE "default" AS mode,
       c.status COLLATE "default" AS status,
       COALESCE(r.verdict, c.status) COLLATE "default" AS effective_status,
       c.failure COLLATE "default" AS failure,
       c.desired_revision,
       c.actor COLLATE "default" AS actor,
       c.role_name,
       c.authentication_method COLLATE "default" AS authentication_method,
       c.capability COLLATE "default" AS capability,
       c.reason,
       c.options,
       c.confirmed,
       c.accepted_at,
       c.deadline,
       c.claimant COLLATE "default" AS claimant,
       c.claim_expires_at,
       c.dispatched_at,
       c.acknowledged_at,
       c.completed_at,
       c.worker_id COLLATE "default" AS worker_id,
       c.protocol COLLATE "default" AS protocol,
       c.capability_available,
       c.requested_at,
       c.worker_completed_at
  FROM reconcile.command c
  LEFT JOIN LATERAL (
    SELECT r.verdict FROM reconcile.command_resolution r
     WHERE r.tenant_id = c.tenant_id AND r.command_id = c.command_id
     ORDER BY r.source = 'operator' DESC, r.number DESC LIMIT 1
  ) r ON true;
COMMENT ON VIEW reconcile.commands IS
'Commands that the caller may view; effective_status is the verdict on one whose outcome was unknown, if there is one: an operator''s before what its worker reported too late. requested_at and worker_completed_at are what others'' clocks said.';

CREATE VIEW reconcile.command_timeline WITH (security_invoker) AS
SELECT e.tenant_id COLLATE "default" AS tenant_id,
       e.command_id COLLATE "default" AS command_id,
       e.sequence,
       e.event COLLATE "default" AS event,
       e.happened_at,
       e.happened_at - pg_catalog.lag(e.happened_at) OVER of_command AS since_last,
       e.actor COLLATE "default" AS actor,
       e.role_name,
       e.session_role,
       e.action COLLATE "default" AS action,
       e.target_kind COLLATE "default" AS target_kind,
       e.target_name COLLATE "default" AS target_name,
       e.failure COLLATE "default" AS failure,
       e.reason,
       e.detail
  FROM reconcile.audit_event e
 WHERE e.command_id IS NOT NULL
-- by the columns as they are shown, or a condition on them would be asked after all events were read
WINDOW of_command AS (PARTITION BY e.tenant_id COLLATE "default", e.command_id COLLATE "default" ORDER BY e.sequence);
COMMENT ON VIEW reconcile.command_timeline IS
'The steps of each command whose audit the caller may view, in their order, with the time since the step before.';

CREATE VIEW reconcile.audit_events WITH (security_invoker) AS
SELECT e.tenant_id COLLATE "default" AS tenant_id,
       e.sequence,
       e.event COLLATE "default" AS event,
       e.happened_at,
       e.command_id COLLATE "default" AS command_id,
       e.idempotency_key COLLATE "default" AS idempotency_key,
       e.actor COLLATE "default" AS actor,
       e.role_name,
       e.session_role,
       e.authentication_method COLLATE "default" AS authentication_method,
       e.action COLLATE "default" AS action,
       e.target_kind COLLATE "default" AS target_kind,
       e.target_name COLLATE "default" AS target_name,
       e.reason,
       e.options,
       e.failure COLLATE "default" AS failure,
       e.detail,
       e.home COLLATE "default" AS home,
       e.hash
  FROM reconcile.audit_event e;
COMMENT ON VIEW reconcile.audit_events IS
'The audit of the tenants whose audit the caller may view: one row for each step, denials too, in a chain for each tenant; audit_verify() checks it.';

CREATE VIEW reconcile.desired_states WITH (security_invoker) AS
SELECT d.tenant_id COLLATE "default" AS tenant_id,
       d.target_kind COLLATE "default" AS target_kind,
       d.target_name COLLATE "default" AS target_name,
       d.state COLLATE "default" AS state,
       d.revision,
       d.command_id COLLATE "default" AS command_id,
       d.requested_at,
       d.changed_at
  FROM reconcile.desired_state d
 WHERE d.revision > 0;
COMMENT ON VIEW reconcile.desired_states IS
'The states that targets are to be in, of those that the caller may view; NULL where the command that said it was taken back.';

CREATE VIEW reconcile.desired_drift WITH (security_invoker) AS
SELECT d.tenant_id COLLATE "default" AS tenant_id,
       d.target_kind COLLATE "default" AS target_kind,
       d.target_name COLLATE "default" AS target_name,
       o.worker_id COLLATE "default" AS worker_id,
       d.state COLLATE "default" AS desired_state,
       d.revision AS desired_revision,
       o.state COLLATE "default" AS observed_state,
       o.revision AS observed_revision,
       CASE WHEN d.state IS NULL THEN 'withdrawn'
            WHEN o.worker_id IS NULL THEN 'unreported'
            WHEN o.revision = d.revision AND o.state = d.state THEN 'applied'
            WHEN o.revision = d.revision THEN 'diverged'
            ELSE 'behind' END AS drift,
       d.changed_at,
       o.reported_at
  FROM reconcile.desired_state d
  LEFT JOIN reconcile.observed_state o
         ON o.tenant_id = d.tenant_id AND o.target_kind = d.target_kind AND o.target_name = d.target_name
 WHERE d.revision > 0;
COMMENT ON VIEW reconcile.desired_drift IS
'Which worker has applied which revision of which target, of those that the caller may view: drift is applied, behind (an older revision), diverged (this revision, another state), unreported (by nobody yet) or withdrawn (the command that said the state was taken back, so there is nothing to apply).';

-- Tables of the administrators: these show a caller what concerns him.
CREATE VIEW reconcile.command_grants WITH (security_barrier) AS
SELECT g.role_name,
       g.tenant_id COLLATE "default" AS tenant_id,
       g.permission COLLATE "default" AS permission,
       NULLIF(g.target_kind, '') COLLATE "default" AS target_kind,
       NULLIF(g.target_name, '') COLLATE "default" AS target_name,
       g.effect COLLATE "default" AS effect,
       r.same OR (r.same IS NOT NULL AND g.effect = 'deny') AS in_force
  FROM reconcile.command_grant g
  LEFT JOIN LATERAL (
    SELECT pg_catalog.bool_or(r.oid = g.role AND r.rolname = g.role_name) AS same,
           pg_catalog.bool_or(pg_catalog.pg_has_role(r.oid, 'MEMBER')) AS mine
      FROM pg_catalog.pg_roles r WHERE r.oid = g.role OR r.rolname = g.role_name
  ) r ON true
 -- nobody is granted the permission '': only administrators have it
 WHERE r.mine OR reconcile.may_read_command(g.tenant_id, '', '', '');
COMMENT ON VIEW reconcile.command_grants IS
'What roles may do for tenants, of roles that the caller is a member of; to administrators all. target_kind and target_name are NULL for any. in_force is false, or NULL, where the role was renamed or is gone: then what it allows does not count; revoke_command() removes it.';

CREATE VIEW reconcile.retention_policies WITH (security_barrier) AS
SELECT p.tenant_id COLLATE "default" AS tenant_id, p.keep, p.keep_keys, p.legal_hold
  FROM reconcile.command_retention p
 WHERE reconcile.may_read_command(p.tenant_id, 'retention_configure', '', '')
    OR reconcile.may_read_command(p.tenant_id, 'audit_view', '', '');
COMMENT ON VIEW reconcile.retention_policies IS
'How long the commands and the audit of each tenant are kept, for those with retention_configure or audit_view for the whole tenant; a tenant without a row keeps all.';

-- catalogue.sql: what is called and read of sessions, claims on them, commands for them, and their pointers

-- Marks by which the late are refused do not fall, for whatever role and whatever
-- session_replication_role says, and the rows that keep them stay.
CREATE FUNCTION reconcile.keep_marks() RETURNS trigger
    LANGUAGE c SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_keep_marks';
COMMENT ON FUNCTION reconcile.keep_marks() IS
'Refuses to remove a row, or to let its marks fall: name = never falls, =name = never changes, !name = never changes once it is there, * = nothing changes. 55000.';

CREATE TRIGGER session_kept BEFORE UPDATE OR DELETE ON reconcile.session
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('desired_generation', 'revision', '=tenant_id', '=session_id', '=number', '=agent_id',
        '=launch_version', '=launch_workload', '=binding', '=created_at');
CREATE TRIGGER session_truncated BEFORE TRUNCATE ON reconcile.session
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER observed_kept BEFORE UPDATE OR DELETE ON reconcile.session_observed
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('lease_epoch', 'journal_seq', 'revision', '=tenant_id', '=session_id');
CREATE TRIGGER observed_truncated BEFORE TRUNCATE ON reconcile.session_observed
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER pointer_kept BEFORE UPDATE OR DELETE ON reconcile.session_pointer
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('lease_epoch', 'sequence', '=tenant_id', '=session_id', '=role');
CREATE TRIGGER pointer_truncated BEFORE TRUNCATE ON reconcile.session_pointer
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER session_command_kept BEFORE UPDATE OR DELETE ON reconcile.session_command
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('revision', 'claim_epoch', '=tenant_id', '=session_id', '=command_id', '=shard', '=accepted_order', '=kind',
        '=payload', '=payload_reference', '=payload_digest', '=payload_size', '=requires', '=runtime_command_id',
        '=accepted_at', '=apply_deadline', '!attempt_id', '!attempt_epoch', '!attempt_started_at');
CREATE TRIGGER session_command_truncated BEFORE TRUNCATE ON reconcile.session_command
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER session_command_settled BEFORE UPDATE ON reconcile.session_command
    FOR EACH ROW WHEN (OLD.settled_at IS NOT NULL) EXECUTE FUNCTION reconcile.keep_marks('*');
ALTER TABLE reconcile.session ENABLE ALWAYS TRIGGER session_kept;
ALTER TABLE reconcile.session ENABLE ALWAYS TRIGGER session_truncated;
ALTER TABLE reconcile.session_observed ENABLE ALWAYS TRIGGER observed_kept;
ALTER TABLE reconcile.session_observed ENABLE ALWAYS TRIGGER observed_truncated;
ALTER TABLE reconcile.session_pointer ENABLE ALWAYS TRIGGER pointer_kept;
ALTER TABLE reconcile.session_pointer ENABLE ALWAYS TRIGGER pointer_truncated;
ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_kept;
ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_truncated;
ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_settled;

-- Names that other programs compute too.

CREATE FUNCTION reconcile.workload_identity(
    tenant_id text, session_id text, agent_id text, runtime_compatibility_id text, generation bigint)
    RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_workload_identity';
COMMENT ON FUNCTION reconcile.workload_identity(text, text, text, text, bigint) IS
'The name of the workload of a generation (1 or more) of a session, a DNS label of 60 characters: lrw- and the first 28 bytes of a SHA-256, in hexadecimal. runtime_compatibility_id NULL is the same as none. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.placement_key(
    tenant_id text, session_id text, placement text, runtime_compatibility_id text, workload_version text,
    workload bytea)
    RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_placement_key';
COMMENT ON FUNCTION reconcile.placement_key(text, text, text, text, text, bytea) IS
'The idempotency key of a desired state that its author gave none: a function of that state alone. NULL is what is not said. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.revive_key(
    tenant_id text, session_id text, placement text, runtime_compatibility_id text, workload_version text,
    workload bytea, generation bigint)
    RETURNS text
    LANGUAGE c IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_revive_key';
COMMENT ON FUNCTION reconcile.revive_key(text, text, text, text, text, bytea, bigint) IS
'The idempotency key of the revival of a session that was released as of that generation. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.control_shard_of(tenant_id text, session_id text, shards int) RETURNS int
    LANGUAGE c IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_control_shard_of';
COMMENT ON FUNCTION reconcile.control_shard_of(text, text, int) IS
'The shard of a session, from 0 on, below shards (1 to 4,096). 22004, 22023 bad field.';

-- Sessions.

CREATE FUNCTION reconcile.may_place() RETURNS boolean
    LANGUAGE c STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_may_place';
COMMENT ON FUNCTION reconcile.may_place() IS
'Has the current role the capability place, by which it sees all sessions and hosts?';

CREATE FUNCTION reconcile.my_hosts() RETURNS text[]
    LANGUAGE c STABLE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_my_hosts';
COMMENT ON FUNCTION reconcile.my_hosts() IS
'The hosts that the current role acts for.';

CREATE VIEW reconcile.sessions WITH (security_barrier) AS
SELECT s.tenant_id COLLATE "default" AS tenant_id,
       s.session_id COLLATE "default" AS session_id,
       s.number,
       s.agent_id COLLATE "default" AS agent_id,
       s.runtime_compatibility_id COLLATE "default" AS runtime_compatibility_id,
       s.placement COLLATE "default" AS placement,
       s.workload_version COLLATE "default" AS workload_version,
       s.workload,
       s.desired_generation,
       s.revision,
       s.placement = 'dedicated' AND s.desired_generation > 1 AND s.workload IS NULL AS released,
       s.binding,
       s.created_at,
       o.revision AS observed_revision,
       o.lease_epoch AS observed_epoch,
       o.state COLLATE "default" AS state,
       o.residency COLLATE "default" AS residency,
       o.journal_seq,
       o.last_event_id COLLATE "default" AS last_event_id,
       o.checkpoint_seq,
       o.checkpoint_reference COLLATE "default" AS checkpoint_reference,
       o.checkpoint_captured_at,
       o.open_gates,
       o.last_active_at,
       CASE WHEN r.lease_epoch IS NULL THEN NULL
            WHEN r.host_id IS NULL THEN 'released'
            WHEN l.expires_at > pg_catalog.clock_timestamp() THEN 'live'
            ELSE 'expired' END AS owner,
       r.host_id COLLATE "default" AS host_id,
       r.host_generation,
       r.endpoint COLLATE "default" AS endpoint,
       r.residency COLLATE "default" AS host_residency,
       r.accepting,
       r.lease_epoch,
       l.expires_at AS lease_expires_at,
       GREATEST(l.expires_at - pg_catalog.clock_timestamp(), interval '0') AS lease_remaining,
       c.pending AS pending_commands,
       c.claimed AS claimed_commands,
       c.applying AS applying_commands,
       p.outcome COLLATE "default" AS placement_outcome,
       p.outcome_at AS placement_outcome_at
  FROM reconcile.session s
  CROSS JOIN reconcile.here() h
  LEFT JOIN reconcile.session_observed o ON o.tenant_id = s.tenant_id AND o.session_id = s.session_id
  LEFT JOIN reconcile.session_search p ON p.tenant_id = s.tenant_id AND p.session_id = s.session_id
  LEFT JOIN reconcile.session_registration r ON r.tenant_id = s.tenant_id AND r.session_id = s.session_id
  LEFT JOIN reconcile.lease l
         ON l.reconciler_id = 'session:' || s.number AND l.epoch = r.lease_epoch AND r.host_id IS NOT NULL
        AND l.home = h.home AND l.timeline = h.timeline
        -- those of an incarnation that is over stand as they were
        AND l.epoch > COALESCE((SELECT i.epoch_floor FROM reconcile.incarnation i
                                 ORDER BY i.incarnation DESC, i.epoch_floor DESC LIMIT 1), 0)
  LEFT JOIN LATERAL (
    SELECT pg_catalog.count(*) FILTER (WHERE c.state = 'pending') AS pending,
           pg_catalog.count(*) FILTER (WHERE c.state = 'claimed') AS claimed,
           pg_catalog.count(*) FILTER (WHERE c.state = 'applying') AS applying
      FROM reconcile.session_command c
     WHERE c.tenant_id = s.tenant_id AND c.session_id = s.session_id
       AND c.state IN ('pending', 'claimed', 'applying')
  ) c ON true
 WHERE (SELECT reconcile.may_place())
    OR (r.host_id = ANY ((SELECT reconcile.my_hosts())::text[]) AND l.expires_at > pg_catalog.clock_timestamp());
COMMENT ON VIEW reconcile.sessions IS
'Sessions that the caller may see, all by the capability place, or those that a host of the caller''s has now: what is wanted of each (revision), what its hosts have said of it (observed_revision; NULL: nothing), where it is (owner is live, expired or released; NULL: it was nowhere yet), and how many commands are open. number is its entity in the loop placement.';

CREATE FUNCTION reconcile.create_session(
    tenant_id text, session_id text, agent_id text, placement text, idempotency_key text,
    runtime_compatibility_id text DEFAULT NULL, workload_version text DEFAULT NULL,
    workload bytea DEFAULT NULL, binding jsonb DEFAULT NULL)
    RETURNS TABLE (outcome text, revision bigint, generation bigint, created boolean)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_create_session';
COMMENT ON FUNCTION reconcile.create_session(text, text, text, text, text, text, text, bytea, jsonb) IS
'Makes a session, once: created, or exists (nothing is changed, also where the rest differs). placement is pooled or dedicated; a workload (at most 16 kB) has a version; binding is {storage_binding_id, binding_version, runtime_session_id, protocol_mode: disposition}. What it is made with is its first desired state, of that idempotency key. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.get_session(tenant_id text, session_id text) RETURNS SETOF reconcile.sessions
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_get_session';
COMMENT ON FUNCTION reconcile.get_session(text, text) IS
'The session as the view sessions shows it; no row where there is none that the caller may see. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.update_desired_state(
    tenant_id text, session_id text, idempotency_key text, expected_revision bigint, placement text,
    runtime_compatibility_id text DEFAULT NULL, workload_version text DEFAULT NULL, workload bytea DEFAULT NULL)
    RETURNS TABLE (outcome text, revision bigint, generation bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_update_desired_state';
COMMENT ON FUNCTION reconcile.update_desired_state(text, text, text, bigint, text, text, text, bytea) IS
'Replaces what is wanted of a session as a whole: applied; replayed (the key is that of what is wanted already: nothing is done, whatever the rest says); conflict (its revision is another one); sequence (no generation is left); not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.update_host_state(
    tenant_id text, session_id text, epoch bigint, token text, state text, residency text, journal_seq bigint,
    last_event_id text DEFAULT NULL, checkpoint_seq bigint DEFAULT NULL,
    checkpoint_reference text DEFAULT NULL, checkpoint_captured_at timestamptz DEFAULT NULL,
    open_gates jsonb DEFAULT '[]', active_ago interval DEFAULT '0')
    RETURNS TABLE (outcome text, revision bigint, epoch bigint, journal_seq bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_update_host_state';
COMMENT ON FUNCTION reconcile.update_host_state(text, text, bigint, text, text, text, bigint, text, bigint, text, timestamptz, jsonb, interval) IS
'Says what the host that has a session, by the epoch and token of its acceptance, observes of it; replaces what was said before as a whole: written; epoch (a later holder has written); lease_lost (the session is its no more); sequence (journal_seq falls); not_found. The revision is of what was observed. open_gates are at most 16 objects with gate_id and opened_seq, sorted; active_ago is 0 to 366 days. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.placement_intent(tenant_id text, session_id text)
    RETURNS TABLE (tenant_id text, session_id text, agent_id text, runtime_compatibility_id text, placement text, workload_version text,
                   workload bytea, generation bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_placement_intent';
COMMENT ON FUNCTION reconcile.placement_intent(text, text) IS
'What is wanted of a session, for whoever makes workloads: each member is a wish, and none says that anybody has it. No row where there is no such session. 22004, 22023 bad field; 42501 no right.';

-- Claims: who works on a session for a while. A claim spares others the work, and is no fence.

CREATE FUNCTION reconcile.acquire_claim(
    tenant_id text, session_id text, holder_id text, ttl interval DEFAULT NULL, claim_token text DEFAULT NULL)
    RETURNS TABLE (outcome text, claim_token text, expires_at timestamptz, remaining interval, holder_id text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_acquire_claim';
COMMENT ON FUNCTION reconcile.acquire_claim(text, text, text, interval, text) IS
'Claims a session for ttl (at most 5 minutes; NULL: the setting claim_ttl): acquired; extended (longer or shorter, by who shows the token of the live claim); taken_over (the one before is over); held (somebody else has it, perhaps under the same holder_id: nothing is written); not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.release_claim(tenant_id text, session_id text, holder_id text, claim_token text)
    RETURNS TABLE (outcome text, expires_at timestamptz, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_release_claim';
COMMENT ON FUNCTION reconcile.release_claim(text, text, text, text) IS
'Ends a claim: released (also one of the caller that is over already); held or lapsed (it is another''s: nothing is written); not_found. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.get_claim(tenant_id text, session_id text)
    RETURNS TABLE (outcome text, expires_at timestamptz, remaining interval, holder_id text, claimed_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_get_claim';
COMMENT ON FUNCTION reconcile.get_claim(text, text) IS
'The claim on a session: live; lapsed (released or over, and nobody''s); not_found. 22004, 22023 bad field; 42501 no right.';

-- Commands for sessions.

CREATE FUNCTION reconcile.admit_session_command(
    tenant_id text, session_id text, command_id text, kind text, payload bytea DEFAULT NULL,
    payload_reference text DEFAULT NULL, apply_deadline_in interval DEFAULT NULL,
    requires text[] DEFAULT '{}', payload_digest bytea DEFAULT NULL, payload_size bigint DEFAULT NULL,
    runtime_command_id text DEFAULT NULL)
    RETURNS TABLE (outcome text, accepted_order bigint, runtime_command_id text, state text, revision bigint,
                   apply_deadline timestamptz, remaining interval, field text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_admit_session_command';
COMMENT ON FUNCTION reconcile.admit_session_command(text, text, text, text, bytea, text, interval, text[], bytea, bigint, text) IS
'Admits a command for a session, once for each command_id of the session: admitted; exists (what is stored is returned; go on with its runtime_command_id); command_mismatch (another kind, payload or requires has that id: field); not_found. The payload is given (at most 64 kB), or as a reference with its SHA-256 and size; requires are capabilities that the host must have; apply_deadline_in is at most 366 days, NULL is the setting horizon; remaining is of apply_deadline. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.claim_session_command(
    tenant_id text, session_id text, command_id text, epoch bigint, token text, expected_revision bigint,
    ttl interval DEFAULT '1 min', repeats timestamptz DEFAULT NULL)
    RETURNS TABLE (outcome text, revision bigint, state text, claim_epoch bigint, claim_expires_at timestamptz, remaining interval, field text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_claim_session_command';
COMMENT ON FUNCTION reconcile.claim_session_command(text, text, text, bigint, text, bigint, interval, timestamptz) IS
'Claims a command for ttl (at most 1 hour) for who has its session by that epoch and token: claimed (remaining is of claim_expires_at), or, in this order, not_found, conflict (revision), terminal, state (an attempt was begun), epoch (a later holder has claimed it), lease_lost, repeated (repeats is the claim_expires_at of the live claim of this epoch), deadline, claim_held (this epoch has it: a claim is not renewed). 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.begin_attempt(
    tenant_id text, session_id text, command_id text, epoch bigint, token text, expected_revision bigint,
    attempt_id text)
    RETURNS TABLE (outcome text, revision bigint, state text, claim_epoch bigint, claim_expires_at timestamptz, remaining interval, field text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_begin_attempt';
COMMENT ON FUNCTION reconcile.begin_attempt(text, text, text, bigint, text, bigint, text) IS
'Begins the attempt without which a claimed command must not be dispatched, for good: begun, or, in this order, not_found, conflict (revision), terminal, state (it is not claimed), epoch, lease_lost, claim_lost (field epoch: it is another holder''s; field claim: it is over). Act after COMMIT. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.settle_attempt(
    tenant_id text, session_id text, command_id text, epoch bigint, token text, expected_revision bigint,
    attempt_id text, result text, event_id text DEFAULT NULL, event_seq bigint DEFAULT NULL)
    RETURNS TABLE (outcome text, revision bigint, state text, claim_epoch bigint, claim_expires_at timestamptz, remaining interval, field text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_settle_attempt';
COMMENT ON FUNCTION reconcile.settle_attempt(text, text, text, bigint, text, bigint, text, text, text, bigint) IS
'Says what became of an attempt: result is applied or no_op, from the holder that made it, or not_applied, from one of a higher epoch; applied may name its event, with id and sequence. settled, or, in this order, not_found, conflict (revision), repeated (it is settled or rejected already), state (no attempt was begun), epoch, lease_lost, evidence (field cannot be so). 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.reject_session_command(
    tenant_id text, session_id text, command_id text, epoch bigint, token text, expected_revision bigint)
    RETURNS TABLE (outcome text, revision bigint, state text, claim_epoch bigint, claim_expires_at timestamptz, remaining interval, field text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_reject_session_command';
COMMENT ON FUNCTION reconcile.reject_session_command(text, text, text, bigint, text, bigint) IS
'Rejects a command that no attempt was begun of, for who has its session, or for a reconciler (epoch and token NULL): rejected, or, in this order, not_found, conflict (revision), repeated, terminal, state (an attempt was begun), epoch, lease_lost, claim_held (a live claim is another''s). No deadline is asked. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.session_commands(
    tenant_id text, session_id text, after_order bigint DEFAULT 0, max_items int DEFAULT 100)
    RETURNS TABLE (accepted_order bigint, command_id text, runtime_command_id text, kind text, payload bytea, payload_reference text,
                   payload_digest bytea, payload_size bigint, requires text[], accepted_at timestamptz, apply_deadline timestamptz,
                   state text, revision bigint, claim_epoch bigint, claim_expires_at timestamptz, attempt_id text,
                   attempt_epoch bigint, outcome text, outcome_epoch bigint, event_id text, event_seq bigint,
                   settled_at timestamptz, remaining interval, claim_remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_session_commands';
COMMENT ON FUNCTION reconcile.session_commands(text, text, bigint, int) IS
'The commands of a session behind after_order, in the order of their admission, at most max_items (1 to 1,000), for who may see the session; remaining is of apply_deadline, claim_remaining of claim_expires_at. 22004, 22023 bad field.';

CREATE FUNCTION reconcile.due_session_commands(
    shard int, within interval DEFAULT NULL, after text DEFAULT NULL, max_items int DEFAULT 100)
    RETURNS TABLE ("position" text, tenant_id text, session_id text, command_id text, state text, apply_deadline timestamptz,
                   revision bigint, claim_epoch bigint, claim_expires_at timestamptz, attempt_id text,
                   remaining interval, claim_remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_due_session_commands';
COMMENT ON FUNCTION reconcile.due_session_commands(int, interval, text, int) IS
'The open commands of a shard that are due within an interval from now, by their deadlines, at most max_items (1 to 1,000); or those behind the position of one of them, up to the same instant as at the beginning. remaining is of apply_deadline, claim_remaining of claim_expires_at. 22004, 22023 bad field; 42501 no right.';

-- Pointers.

CREATE FUNCTION reconcile.set_pointer(
    tenant_id text, session_id text, role text, epoch bigint, token text, sequence bigint, target text)
    RETURNS TABLE (outcome text, epoch bigint, sequence bigint, updated_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_set_pointer';
COMMENT ON FUNCTION reconcile.set_pointer(text, text, text, bigint, text, bigint, text) IS
'Points a role (workspace_checkpoint, runtime_checkpoint, active_continuation) of a session at an object, for who has the session by that epoch and token: written, or, in this order, not_found, epoch (a later holder has written it), lease_lost, sequence (it falls); with the marks that stand. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.clear_pointer(tenant_id text, session_id text, role text, epoch bigint, token text)
    RETURNS TABLE (outcome text, epoch bigint, sequence bigint, updated_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_clear_pointer';
COMMENT ON FUNCTION reconcile.clear_pointer(text, text, text, bigint, text) IS
'Points a role of a session at nothing; its marks stay: cleared (also where it was by this epoch), or, in this order, not_found, epoch, lease_lost. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only.';

CREATE FUNCTION reconcile.get_pointer(tenant_id text, session_id text, role text)
    RETURNS TABLE (outcome text, epoch bigint, sequence bigint, target text, updated_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_get_pointer';
COMMENT ON FUNCTION reconcile.get_pointer(text, text, text) IS
'What a role of a session points at: set, cleared (with its marks), not_found. 22004, 22023 bad field.';

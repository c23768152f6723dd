-- session_command.sql: commands for sessions, and pointers that are written under their leases

CREATE TABLE reconcile.session_command (
    tenant_id                text COLLATE "C" NOT NULL,
    session_id               text COLLATE "C" NOT NULL,
    command_id               text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(command_id) BETWEEN 1 AND 256),
    shard                    int NOT NULL CHECK (shard >= 0),
    accepted_order           bigint NOT NULL CHECK (accepted_order > 0),
    revision                 bigint NOT NULL CHECK (revision > 0),
    runtime_command_id       text COLLATE "C" NOT NULL,
    kind                     text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(kind) BETWEEN 1 AND 256),
    payload_digest           bytea NOT NULL CHECK (pg_catalog.length(payload_digest) = 32),
    payload_size             bigint NOT NULL CHECK (payload_size >= 0),
    payload                  bytea CHECK (pg_catalog.length(payload) <= 65536),
    payload_reference        text COLLATE "C" CHECK (pg_catalog.octet_length(payload_reference) BETWEEN 1 AND 1024),
    requires                 text[] NOT NULL DEFAULT '{}', -- capabilities that its host must have
    accepted_at              timestamptz NOT NULL,
    apply_deadline           timestamptz NOT NULL,
    state                    text COLLATE "C" NOT NULL CHECK (state IN ('pending', 'claimed', 'applying', 'applied', 'rejected')),
    claim_epoch              bigint CHECK (claim_epoch > 0),
    claim_expires_at         timestamptz,
    attempt_id               text COLLATE "C" CHECK (pg_catalog.octet_length(attempt_id) BETWEEN 1 AND 256),
    attempt_epoch            bigint CHECK (attempt_epoch > 0),
    attempt_started_at       timestamptz,
    outcome                  text COLLATE "C" CHECK (outcome IN ('applied', 'no_op', 'not_applied')),
    outcome_epoch            bigint CHECK (outcome_epoch > 0),  -- of the holder that says so
    event_id                 text COLLATE "C",
    event_seq                bigint CHECK (event_seq > 0),
    settled_at               timestamptz,
    PRIMARY KEY (tenant_id, session_id, command_id),
    UNIQUE (tenant_id, session_id, accepted_order),
    CHECK (apply_deadline > accepted_at),
    CHECK (pg_catalog.num_nonnulls(payload, payload_reference) = 1),
    CHECK ((claim_epoch IS NULL) = (claim_expires_at IS NULL)),
    CHECK (pg_catalog.num_nulls(attempt_id, attempt_epoch, attempt_started_at) IN (0, 3)),
    CHECK ((outcome IS NULL) = (outcome_epoch IS NULL)),
    CHECK ((settled_at IS NOT NULL) = (state IN ('applied', 'rejected'))),
    -- what goes with each state
    CHECK (CASE state
           WHEN 'pending' THEN claim_epoch IS NULL AND attempt_id IS NULL AND outcome IS NULL
           WHEN 'claimed' THEN claim_epoch IS NOT NULL AND attempt_id IS NULL AND outcome IS NULL
           WHEN 'applying' THEN claim_epoch IS NOT NULL AND attempt_id IS NOT NULL AND outcome IS NULL
           WHEN 'applied' THEN claim_epoch IS NOT NULL AND attempt_id IS NOT NULL AND outcome IN ('applied', 'no_op') AND outcome IS NOT NULL
           ELSE (attempt_id IS NULL AND outcome IS NULL)
                OR (claim_epoch IS NOT NULL AND attempt_id IS NOT NULL AND outcome IS NOT NULL AND outcome = 'not_applied')
           END),
    CHECK (attempt_epoch = claim_epoch),
    CHECK (outcome <> 'not_applied' OR outcome_epoch > attempt_epoch),
    CHECK (outcome NOT IN ('applied', 'no_op') OR outcome_epoch = attempt_epoch),
    CHECK ((event_id IS NULL) = (event_seq IS NULL)),
    CHECK (event_id IS NULL OR (outcome IS NOT NULL AND outcome = 'applied'))
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.session_command IS
'Commands for sessions, in the order in which they were admitted: their hosts claim them, begin an attempt, and say what became of it; an attempt is never ended by time.';
CREATE INDEX session_command_due ON reconcile.session_command (shard, apply_deadline, tenant_id, session_id, command_id)
    WHERE state IN ('pending', 'claimed', 'applying');
CREATE INDEX session_command_open ON reconcile.session_command (tenant_id, session_id, accepted_order)
    WHERE state IN ('pending', 'claimed', 'applying');
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_command', '');

CREATE TABLE reconcile.session_pointer (
    tenant_id   text COLLATE "C" NOT NULL,
    session_id  text COLLATE "C" NOT NULL,
    role        text COLLATE "C" NOT NULL CHECK (role IN ('workspace_checkpoint', 'runtime_checkpoint', 'active_continuation')),
    lease_epoch bigint NOT NULL CHECK (lease_epoch > 0),
    sequence    bigint NOT NULL CHECK (sequence >= 0),
    target      text COLLATE "C" CHECK (pg_catalog.octet_length(target) BETWEEN 1 AND 1024), -- NULL: cleared
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id, role)
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.session_pointer IS
'The objects that a session stands on, each written under an epoch and a sequence that never fall; one that was cleared keeps both.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_pointer', '');

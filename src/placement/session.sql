-- session.sql: sessions, what they are to be and what their hosts say of them, and claims on them

-- A session's number names it where a bounded name is needed: in our loop, and as its
-- lease "session:<number>".
CREATE SEQUENCE reconcile.session_number;
COMMENT ON SEQUENCE reconcile.session_number IS
'The numbers of sessions.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_number', '');

CREATE TABLE reconcile.session (
    tenant_id                text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(tenant_id) BETWEEN 1 AND 256),
    session_id               text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(session_id) BETWEEN 1 AND 256),
    number                   bigint NOT NULL UNIQUE DEFAULT pg_catalog.nextval('reconcile.session_number'),
    agent_id                 text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(agent_id) BETWEEN 1 AND 256),
    runtime_compatibility_id text COLLATE "C" CHECK (pg_catalog.octet_length(runtime_compatibility_id) BETWEEN 1 AND 256),
    placement                text COLLATE "C" NOT NULL CHECK (placement IN ('pooled', 'dedicated')),
    workload_version         text COLLATE "C" CHECK (pg_catalog.octet_length(workload_version) BETWEEN 1 AND 256),
    workload                 bytea CHECK (pg_catalog.length(workload) BETWEEN 1 AND 16384),
    desired_key              text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(desired_key) BETWEEN 1 AND 256),
    desired_generation       bigint NOT NULL CHECK (desired_generation > 0),
    revision                 bigint NOT NULL CHECK (revision > 0),
    -- of its creator, and never changed
    launch_version           text COLLATE "C",
    launch_workload          bytea,
    binding                  jsonb,
    created_at               timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    CHECK ((workload_version IS NULL) = (workload IS NULL)),
    CHECK ((launch_version IS NULL) = (launch_workload IS NULL))
) WITH (fillfactor = 80);
-- The views have the default collation, so what they are asked for is found by indexes that have it. A row of a session
-- keeps these, so that only its making pays for them.
CREATE INDEX session_named ON reconcile.session (tenant_id COLLATE "default", session_id COLLATE "default");
COMMENT ON TABLE reconcile.session IS
'Sessions and what their factory wants of them, in generations; the workload is never read.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session', '');

CREATE TABLE reconcile.session_observed (
    tenant_id              text COLLATE "C" NOT NULL,
    session_id             text COLLATE "C" NOT NULL,
    revision               bigint NOT NULL CHECK (revision > 0),
    lease_epoch            bigint NOT NULL CHECK (lease_epoch >= 0), -- the highest that has written; 0: none yet
    state                  text COLLATE "C" CHECK (pg_catalog.octet_length(state) BETWEEN 1 AND 256),
    residency              text COLLATE "C" CHECK (pg_catalog.octet_length(residency) BETWEEN 1 AND 256),
    journal_seq            bigint NOT NULL CHECK (journal_seq >= 0),
    last_event_id          text COLLATE "C",
    checkpoint_seq         bigint CHECK (checkpoint_seq > 0),
    checkpoint_reference   text COLLATE "C",
    checkpoint_captured_at timestamptz,
    open_gates             jsonb NOT NULL DEFAULT '[]',
    last_active_at         timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    CHECK ((checkpoint_seq IS NULL) = (checkpoint_reference IS NULL)),
    CHECK ((checkpoint_seq IS NULL) = (checkpoint_captured_at IS NULL))
) WITH (fillfactor = 60);
COMMENT ON TABLE reconcile.session_observed IS
'What the host of each session has said of it last; its revision is its own, so that a report is no conflict for the factory.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_observed', '');

CREATE TABLE reconcile.session_claim (
    tenant_id   text COLLATE "C" NOT NULL,
    session_id  text COLLATE "C" NOT NULL,
    holder_id   text COLLATE "C" NOT NULL,
    claim_token text COLLATE "C" NOT NULL,   -- who shows it is the holder: two loops may share his name
    role_name   name COLLATE "C" NOT NULL,
    claimed_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    CHECK (expires_at >= claimed_at)         -- equal: it was released
) WITH (fillfactor = 60);
COMMENT ON TABLE reconcile.session_claim IS
'Who works on a session for a while: it spares others the work, and is no fence.';
CREATE INDEX session_claim_holder ON reconcile.session_claim (holder_id);
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_claim', '');

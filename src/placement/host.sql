-- host.sql: hosts, what they offer, which sessions they have, and the offers made to them

CREATE TABLE reconcile.host (
    host_id       text COLLATE "C" PRIMARY KEY CHECK (pg_catalog.octet_length(host_id) BETWEEN 1 AND 256),
    role          pg_catalog.regrole NOT NULL,
    role_name     name COLLATE "C" NOT NULL,
    registered_at timestamptz NOT NULL
);
COMMENT ON TABLE reconcile.host IS
'Which role acts for which host; a row counts only while role and role_name name the same role.';
CREATE INDEX host_role ON reconcile.host (role_name);
SELECT pg_catalog.pg_extension_config_dump('reconcile.host', '');

-- What a host offers for a target (agent, runtime, placement). reserved: what was placed on
-- it since it said how much it has.
CREATE TABLE reconcile.host_target (
    agent_id                 text COLLATE "C" NOT NULL,
    runtime_compatibility_id text COLLATE "C" NOT NULL,
    placement                text COLLATE "C" NOT NULL CHECK (placement IN ('pooled', 'dedicated')),
    host_id                  text COLLATE "C" NOT NULL,
    host_generation          bigint NOT NULL CHECK (host_generation > 0),
    revision                 bigint NOT NULL CHECK (revision > 0),
    observed_at              timestamptz NOT NULL,
    endpoint                 text COLLATE "C" CHECK (pg_catalog.octet_length(endpoint) BETWEEN 1 AND 256),
    isolation_class          text COLLATE "C" CHECK (isolation_class IN ('cross_tenant_isolated', 'tenant_exclusive')),
    accepting                boolean NOT NULL,
    capacity                 int NOT NULL CHECK (capacity BETWEEN 0 AND 1048576),
    reserved                 int NOT NULL CHECK (reserved >= 0),
    seen_offer               bigint NOT NULL DEFAULT 0,  -- the last one that its capacity takes account of
    capabilities             text[] NOT NULL DEFAULT '{}',
    expires_at               timestamptz,                -- NULL: withdrawn
    PRIMARY KEY (agent_id, runtime_compatibility_id, placement, host_id),
    CHECK (placement <> 'dedicated' OR capacity <= 1),
    CHECK (expires_at > observed_at),
    CHECK ((expires_at IS NULL) = (endpoint IS NULL)),
    CHECK ((expires_at IS NULL) = (isolation_class IS NULL)),
    CHECK (expires_at IS NOT NULL OR NOT accepting)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE reconcile.host_target IS
'What each host offers for a target (agent, runtime, placement), until expires_at; a row without one is withdrawn, and keeps its generation.';
CREATE INDEX host_target_rank ON reconcile.host_target
    (agent_id, runtime_compatibility_id, placement, (capacity - reserved) DESC, host_id DESC)
    WHERE accepting AND expires_at IS NOT NULL;
CREATE INDEX host_target_due ON reconcile.host_target (expires_at, host_id, agent_id, runtime_compatibility_id, placement)
    WHERE expires_at IS NOT NULL;
CREATE INDEX host_target_host ON reconcile.host_target (host_id);
SELECT pg_catalog.pg_extension_config_dump('reconcile.host_target', '');

-- One row for each session that a host ever had: host_id NULL is what it leaves behind.
CREATE TABLE reconcile.session_registration (
    tenant_id                text COLLATE "C" NOT NULL,
    session_id               text COLLATE "C" NOT NULL,
    lease_epoch              bigint NOT NULL CHECK (lease_epoch > 0),
    observed_at              timestamptz NOT NULL,
    expires_at               timestamptz NOT NULL,
    host_id                  text COLLATE "C",
    host_generation          bigint CHECK (host_generation > 0),
    agent_id                 text COLLATE "C",
    runtime_compatibility_id text COLLATE "C",
    placement                text COLLATE "C" CHECK (placement IN ('pooled', 'dedicated')),
    endpoint                 text COLLATE "C",
    residency                text COLLATE "C" CHECK (residency IN ('attaching', 'resident', 'releasing')),
    accepting                boolean,
    offer_id                 bigint NOT NULL,            -- by which it came, and the name of its lease's holder
    token                    text COLLATE "C" NOT NULL,  -- of who accepted: with the epoch it is the right to act
    PRIMARY KEY (tenant_id, session_id),
    CHECK (host_id IS NOT NULL OR expires_at = observed_at),
    CHECK (pg_catalog.num_nulls(host_id, host_generation, agent_id, runtime_compatibility_id, placement, endpoint, residency, accepting) IN (0, 8))
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE reconcile.session_registration IS
'Where each session is, at which epoch of its lease; without a host it was released, and its epoch fences all before.';
CREATE INDEX session_registration_host ON reconcile.session_registration (host_id) WHERE host_id IS NOT NULL;
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_registration', '');

CREATE SEQUENCE reconcile.offer_number;
COMMENT ON SEQUENCE reconcile.offer_number IS
'Numbers of offers, which name the holders of the leases of sessions, too.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.offer_number', '');

CREATE TABLE reconcile.session_offer (
    offer_id                 bigint PRIMARY KEY DEFAULT pg_catalog.nextval('reconcile.offer_number'),
    tenant_id                text COLLATE "C" NOT NULL,
    session_id               text COLLATE "C" NOT NULL,
    agent_id                 text COLLATE "C" NOT NULL,
    runtime_compatibility_id text COLLATE "C" NOT NULL,
    placement                text COLLATE "C" NOT NULL,
    host_id                  text COLLATE "C" NOT NULL,
    host_generation          bigint NOT NULL,
    desired_generation       bigint NOT NULL,
    mode                     text COLLATE "C" NOT NULL CHECK (mode IN ('create', 'restore')),
    round                    bigint NOT NULL,            -- of the search that made it
    made_at                  timestamptz NOT NULL,
    expires_at               timestamptz NOT NULL,
    state                    text COLLATE "C" NOT NULL CHECK (state IN ('offered', 'accepted', 'refused', 'withdrawn', 'expired')),
    code                     text COLLATE "C" CHECK (code IN ('epoch_mismatch', 'runtime_mismatch', 'no_capacity', 'not_admitting',
                                                     'releasing', 'runtime_unavailable')),
    token                    text COLLATE "C",           -- of the host that accepted
    epoch                    bigint,
    decided_at               timestamptz,
    counted                  boolean NOT NULL,           -- in the target's reserved
    CHECK ((state = 'offered') = (decided_at IS NULL)),
    CHECK ((state = 'accepted') = (token IS NOT NULL)),
    CHECK ((state = 'accepted') = (epoch IS NOT NULL)),
    CHECK (code IS NULL OR state = 'refused')
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.session_offer IS
'Sessions offered to hosts: a host accepts or refuses, or the offer is withdrawn or expires; what is decided stays as it is.';
CREATE UNIQUE INDEX session_offer_open ON reconcile.session_offer (tenant_id, session_id) WHERE state = 'offered';
CREATE INDEX session_offer_of_host ON reconcile.session_offer (host_id, offer_id) WHERE state = 'offered';
CREATE INDEX session_offer_due ON reconcile.session_offer (expires_at, offer_id) WHERE state = 'offered';
CREATE INDEX session_offer_counted ON reconcile.session_offer
    (agent_id, runtime_compatibility_id, placement, host_id, offer_id) WHERE counted;
CREATE INDEX session_offer_accepted ON reconcile.session_offer (tenant_id, session_id, epoch) WHERE state = 'accepted';
CREATE INDEX session_offer_of_session ON reconcile.session_offer (tenant_id, session_id, round);
CREATE INDEX session_offer_named ON reconcile.session_offer USING hash (session_id COLLATE "default"); -- for the view
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_offer', '');

-- The search for a host that a session is in, and what the last look at it came to; no
-- row: none was looked at.
CREATE TABLE reconcile.session_search (
    tenant_id    text COLLATE "C" NOT NULL,
    session_id   text COLLATE "C" NOT NULL,
    round        bigint NOT NULL,                        -- hosts that were asked in it are not asked again
    replacements int NOT NULL,                           -- epoch_mismatch, one after the other
    refusals     int NOT NULL,                           -- rounds in which nobody took it, one after the other
    look_at      timestamptz,                            -- the next round not before; NULL: now
    wanted       boolean NOT NULL,                       -- by who called place_session(), until it is placed
    -- the target that it found no capacity for: whoever brings some marks the session
    agent_id                 text COLLATE "C",
    runtime_compatibility_id text COLLATE "C",
    placement                text COLLATE "C",
    waits_since              timestamptz,
    requires                 text[] NOT NULL,            -- capabilities of the host that it waits for
    outcome                  text COLLATE "C",           -- as place_session() has it
    outcome_at               timestamptz,                -- since when it is so
    PRIMARY KEY (tenant_id, session_id),
    CHECK (pg_catalog.num_nulls(agent_id, runtime_compatibility_id, placement, waits_since) IN (0, 4)),
    CHECK ((outcome IS NULL) = (outcome_at IS NULL))
) WITH (fillfactor = 60);
COMMENT ON TABLE reconcile.session_search IS
'How far the search for a host of each session has come, and the outcome of the last look at it.';
CREATE INDEX session_search_waiting ON reconcile.session_search (agent_id, runtime_compatibility_id, placement, waits_since)
    WHERE agent_id IS NOT NULL;
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_search', '');

CREATE TABLE reconcile.workload_controller (
    controller_id text COLLATE "C" PRIMARY KEY CHECK (pg_catalog.octet_length(controller_id) BETWEEN 1 AND 256),
    role_name     name COLLATE "C" NOT NULL,
    polled_at     timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    -- where its last page ended: the next one goes on there
    tenant_id     text COLLATE "C" NOT NULL DEFAULT '',
    session_id    text COLLATE "C" NOT NULL DEFAULT '',
    generation    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
COMMENT ON TABLE reconcile.workload_controller IS
'Controllers that have polled for dedicated workloads; one counts until expires_at.';
CREATE INDEX workload_controller_live ON reconcile.workload_controller (expires_at);
SELECT pg_catalog.pg_extension_config_dump('reconcile.workload_controller', '');

-- The workload of each generation of a dedicated session that was asked for, until its
-- end is recorded.
CREATE TABLE reconcile.session_workload (
    tenant_id          text COLLATE "C" NOT NULL,
    session_id         text COLLATE "C" NOT NULL,
    generation         bigint NOT NULL CHECK (generation > 0),
    name               text COLLATE "C" NOT NULL,        -- workload_identity() of that generation
    state              text COLLATE "C" NOT NULL CHECK (state IN ('absent', 'pending', 'ready', 'exited', 'terminating')),
    host_id            text COLLATE "C",
    host_generation    bigint CHECK (host_generation > 0),
    endpoint           text COLLATE "C" CHECK (pg_catalog.octet_length(endpoint) BETWEEN 1 AND 256),
    reported_at        timestamptz NOT NULL,             -- or asked for
    drain_host_id      text COLLATE "C",                 -- asked for, of exactly that host
    drain_generation   bigint,
    drain_epoch        bigint NOT NULL DEFAULT 0,        -- at which that host had the session; 0: it had not
    drain_requested_at timestamptz,
    drain_deadline     timestamptz,
    drain_answer       text COLLATE "C" CHECK (drain_answer IN ('draining', 'drained', 'refused', 'unsupported')),
    decided            text COLLATE "C" CHECK (decided IN ('graceful', 'forced')),
    decided_reason     text COLLATE "C" CHECK (decided_reason IN ('drain_timeout', 'drain_refused', 'platform_deleted', 'workload_terminated')),
    decided_epoch      bigint,
    PRIMARY KEY (tenant_id, session_id, generation),
    CHECK (pg_catalog.num_nulls(host_id, host_generation, endpoint) IN (0, 3)),
    CHECK (state <> 'ready' OR host_id IS NOT NULL),
    CHECK (pg_catalog.num_nulls(drain_host_id, drain_generation) IN (0, 2)),
    CHECK ((drain_requested_at IS NULL) = (drain_deadline IS NULL)),
    CHECK (drain_requested_at IS NOT NULL OR (drain_host_id IS NULL AND drain_answer IS NULL)),
    CHECK ((decided IS NULL) = (decided_epoch IS NULL)),
    CHECK ((decided IS NOT NULL AND decided = 'forced') = (decided_reason IS NOT NULL)),
    CHECK (decided <> 'graceful' OR decided_epoch > 0)
) WITH (fillfactor = 60);
COMMENT ON TABLE reconcile.session_workload IS
'The workloads of dedicated sessions as their controller sees them, and how far the removal of each has come.';
-- what a host is asked to let go
CREATE INDEX session_workload_drain ON reconcile.session_workload (drain_host_id, drain_generation)
    WHERE drain_host_id IS NOT NULL AND decided IS NULL;
-- whose session is offered to it, once it says that it takes it
CREATE INDEX session_workload_ready ON reconcile.session_workload (host_id) WHERE state = 'ready';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_workload', '');

CREATE TABLE reconcile.session_termination (
    tenant_id   text COLLATE "C" NOT NULL,
    session_id  text COLLATE "C" NOT NULL,
    generation  bigint NOT NULL CHECK (generation > 0),
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('graceful', 'forced')),
    reason      text COLLATE "C" CHECK (reason IN ('drain_timeout', 'drain_refused', 'platform_deleted', 'workload_terminated')),
    lease_epoch bigint NOT NULL CHECK (lease_epoch >= 0),
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, session_id),
    CHECK ((kind = 'forced') = (reason IS NOT NULL)),
    CHECK (kind = 'forced' OR lease_epoch > 0)
);
COMMENT ON TABLE reconcile.session_termination IS
'How the workload of the highest generation that ended did so, the last time; of one that is not wanted nothing is heard after that.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.session_termination', '');

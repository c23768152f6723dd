-- audit.sql: what was done for each tenant, in a chain of hashes

CREATE TABLE reconcile.audit_event (
    tenant_id             text COLLATE "C" NOT NULL,
    sequence              bigint NOT NULL CHECK (sequence > 0),
    event                 text COLLATE "C" NOT NULL,
    happened_at           timestamptz NOT NULL,
    command_id            text COLLATE "C",
    idempotency_key       text COLLATE "C",
    actor                 text COLLATE "C",
    role_name             name COLLATE "C" NOT NULL,     -- that did it
    session_role          name COLLATE "C" NOT NULL,     -- whose session it was
    authentication_method text COLLATE "C",
    action                text COLLATE "C",
    target_kind           text COLLATE "C",
    target_name           text COLLATE "C",
    reason                text,
    options               jsonb,
    fingerprint           bytea,
    failure               text COLLATE "C",
    detail                jsonb,
    home                  text COLLATE "C" NOT NULL,     -- the server and database that sealed it
    hash_version          smallint NOT NULL,
    hash                  bytea NOT NULL CHECK (pg_catalog.length(hash) = 32),
    PRIMARY KEY (tenant_id, sequence)
);
COMMENT ON TABLE reconcile.audit_event IS
'One row for each step, in the transaction of the step; each is hashed with the one before it. Rows do not change, and are deleted by prune_commands() alone.';
CREATE INDEX audit_event_command ON reconcile.audit_event (tenant_id, command_id);
-- For the views, as those of reconcile.command.
CREATE INDEX audit_event_tenant ON reconcile.audit_event (tenant_id COLLATE "default", sequence);
CREATE INDEX audit_event_id ON reconcile.audit_event USING hash (command_id COLLATE "default");
SELECT pg_catalog.pg_extension_config_dump('reconcile.audit_event', '');

CREATE TABLE reconcile.audit_head (
    tenant_id       text COLLATE "C" PRIMARY KEY,
    sequence        bigint NOT NULL,             -- of the last event
    hash            bytea NOT NULL CHECK (pg_catalog.length(hash) = 32),
    anchor_sequence bigint NOT NULL,             -- of the last event that was pruned; 0 = none
    anchor_hash     bytea NOT NULL CHECK (pg_catalog.length(anchor_hash) = 32),
    pruned_through  timestamptz                  -- of the youngest event that was pruned
) WITH (fillfactor = 50);
COMMENT ON TABLE reconcile.audit_head IS
'Where the chain of each tenant begins and ends.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.audit_head', '');

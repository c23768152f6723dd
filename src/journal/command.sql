-- command.sql: commands, what is known of them, and who may give and carry them out

CREATE TABLE reconcile.command_action (
    action        text COLLATE "C" NOT NULL,
    target_kind   text COLLATE "C" NOT NULL,
    mode          text COLLATE "C" NOT NULL CHECK (mode IN ('local', 'external', 'unavailable')),
    dispatcher    text COLLATE "C",              -- local: a function's signature; NULL of the built-in ones
    owner_name    name COLLATE "C",              -- as whom it runs
    confirm       boolean NOT NULL,
    desired_state text COLLATE "C" CHECK (desired_state IN ('active', 'paused', 'draining', 'terminating')),
    builtin       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (action, target_kind),
    CHECK (builtin OR (mode = 'local') = (dispatcher IS NOT NULL)),
    CHECK ((dispatcher IS NULL) = (owner_name IS NULL))
);
COMMENT ON TABLE reconcile.command_action IS
'What can be commanded: each action with the kinds of targets that it applies to, where it takes effect, and the desired state that it means.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_action', 'WHERE NOT builtin');

CREATE FUNCTION reconcile.builtin_actions()
    RETURNS TABLE (action text, target_kind text, mode text, confirm boolean, desired_state text)
    LANGUAGE c IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_builtin_actions';
COMMENT ON FUNCTION reconcile.builtin_actions() IS
'The rows of command_action that come with the extension.';

INSERT INTO reconcile.command_action (action, target_kind, mode, confirm, desired_state, builtin)
SELECT b.action, b.target_kind, b.mode, b.confirm, b.desired_state, true FROM reconcile.builtin_actions() b;

-- Those rows are in each database that has the extension: a subscription does not bring them again.
CREATE FUNCTION reconcile.skip_row() RETURNS trigger
    LANGUAGE c SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_skip_row';
COMMENT ON FUNCTION reconcile.skip_row() IS
'Trigger of our own table: lets a row go that is there already. 39P01 not called by such a trigger.';
CREATE TRIGGER command_action_builtin BEFORE INSERT ON reconcile.command_action
    FOR EACH ROW WHEN (NEW.builtin) EXECUTE FUNCTION reconcile.skip_row();
ALTER TABLE reconcile.command_action ENABLE REPLICA TRIGGER command_action_builtin;

CREATE TABLE reconcile.command (
    tenant_id             text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(tenant_id) BETWEEN 1 AND 256),
    idempotency_key       text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(idempotency_key) BETWEEN 1 AND 256),
    command_id            text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(command_id) BETWEEN 1 AND 256),
    fingerprint           bytea NOT NULL CHECK (pg_catalog.length(fingerprint) = 32),
    fingerprint_version   smallint NOT NULL,
    action                text COLLATE "C" NOT NULL,
    target_kind           text COLLATE "C" NOT NULL,
    target_name           text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(target_name) BETWEEN 1 AND 256),
    mode                  text COLLATE "C" NOT NULL CHECK (mode IN ('local', 'external', 'unavailable')),
    reason                text NOT NULL CHECK (pg_catalog.octet_length(reason) BETWEEN 1 AND 1024),
    options               jsonb NOT NULL,
    confirmed             boolean NOT NULL,
    actor                 text COLLATE "C" NOT NULL,
    role_name             name COLLATE "C" NOT NULL,      -- the calling role, whatever the actor says
    authentication_method text COLLATE "C" NOT NULL,
    capability            text COLLATE "C" NOT NULL,
    requested_at          timestamptz,                    -- as the caller says: nothing depends on it
    accepted_at           timestamptz NOT NULL,
    deadline              timestamptz NOT NULL,
    status                text COLLATE "C" NOT NULL,
    failure               text COLLATE "C" CHECK (failure ~ '^[a-z0-9][a-z0-9_.-]{0,63}$'),
    desired_revision      bigint,                         -- that it made, or found
    claimant              text COLLATE "C",
    claim_token           text COLLATE "C",
    claim_expires_at      timestamptz,
    claim_xid             xid8,                           -- of the transaction that claimed
    dispatched_at         timestamptz,
    acknowledged_at       timestamptz,
    completed_at          timestamptz,
    worker_id             text COLLATE "C",
    protocol              text COLLATE "C" CHECK (protocol ~ '^[1-9][0-9]{0,4}[.][0-9]{1,5}$'),
    capability_available  boolean,
    worker_completed_at   timestamptz,                    -- by the worker's clock: nothing depends on it
    PRIMARY KEY (tenant_id, idempotency_key),
    UNIQUE (tenant_id, command_id),
    CHECK (status IN ('pending', 'dispatched', 'acknowledged', 'succeeded', 'failed', 'unsupported', 'timed_out',
                      'partial', 'unknown', 'canceled')),
    -- what is unsuccessful says why, and nothing else does
    CHECK ((failure IS NOT NULL) = (status IN ('failed', 'unsupported', 'timed_out', 'partial', 'unknown', 'canceled'))),
    CHECK ((completed_at IS NOT NULL) = (status NOT IN ('pending', 'dispatched', 'acknowledged'))),
    CHECK ((claim_token IS NOT NULL) = (dispatched_at IS NOT NULL)),
    CHECK ((status IN ('dispatched', 'acknowledged')) <= (dispatched_at IS NOT NULL)),
    CHECK ((status = 'acknowledged') <= (acknowledged_at IS NOT NULL)),
    CHECK ((worker_id IS NULL) = (protocol IS NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.command IS
'Each command that was accepted, once for each tenant and idempotency key; when its status is terminal the row does not change any more.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command', '');
-- In the order in which they are claimed; and what a sweep has to settle.
CREATE INDEX command_pending ON reconcile.command (tenant_id, accepted_at, command_id) WHERE status = 'pending';
CREATE INDEX command_pending_deadline ON reconcile.command (deadline, tenant_id, command_id) WHERE status = 'pending';
CREATE INDEX command_claimed ON reconcile.command (claim_expires_at, tenant_id, command_id)
    WHERE status IN ('dispatched', 'acknowledged');
CREATE INDEX command_unknown ON reconcile.command (completed_at, tenant_id, command_id) WHERE status = 'unknown';
-- The views have the default collation, so what they are asked for is found by indexes that have it. Where order does not
-- matter it is a hash, which no other version of a locale makes wrong.
CREATE INDEX command_accepted ON reconcile.command (tenant_id COLLATE "default", accepted_at);
CREATE INDEX command_id ON reconcile.command USING hash (command_id COLLATE "default");

CREATE TABLE reconcile.command_resolution (
    tenant_id   text COLLATE "C" NOT NULL,
    command_id  text COLLATE "C" NOT NULL,
    number      int NOT NULL CHECK (number > 0),
    source      text COLLATE "C" NOT NULL CHECK (source IN ('operator', 'worker')),
    verdict     text COLLATE "C" NOT NULL,
    failure     text COLLATE "C",
    evidence    jsonb NOT NULL,
    reason      text NOT NULL,
    role_name   name COLLATE "C" NOT NULL,
    resolved_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, command_id, number)
);
COMMENT ON TABLE reconcile.command_resolution IS
'What became known of commands whose outcome is unknown: an operator''s verdict with its evidence, or what the worker reported too late. The last one of an operator counts, or else of the worker.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_resolution', '');

CREATE TABLE reconcile.command_tombstone (
    tenant_id           text COLLATE "C" NOT NULL,
    idempotency_key     text COLLATE "C" NOT NULL,
    command_id          text COLLATE "C" NOT NULL,
    fingerprint         bytea NOT NULL,
    fingerprint_version smallint NOT NULL,
    status              text COLLATE "C" NOT NULL,
    failure             text COLLATE "C",
    desired_revision    bigint,
    completed_at        timestamptz NOT NULL,
    pruned_at           timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, idempotency_key),
    UNIQUE (tenant_id, command_id)
);
COMMENT ON TABLE reconcile.command_tombstone IS
'Keys of commands that were pruned: their use is answered or refused, and never a second execution.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_tombstone', '');

CREATE TABLE reconcile.command_grant (
    role        pg_catalog.regrole NOT NULL,
    role_name   name COLLATE "C" NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL,
    permission  text COLLATE "C" NOT NULL,
    target_kind text COLLATE "C" NOT NULL,     -- '' = any
    target_name text COLLATE "C" NOT NULL,     -- '' = any
    effect      text COLLATE "C" NOT NULL CHECK (effect IN ('allow', 'deny')),
    PRIMARY KEY (tenant_id, permission, target_kind, target_name, role_name, effect)
);
COMMENT ON TABLE reconcile.command_grant IS
'What roles may do for tenants; a denial overrides. A row that allows counts only while role and role_name name the same role, one that denies for both.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_grant', '');
CREATE TRIGGER grants_changed AFTER INSERT OR UPDATE OR DELETE ON reconcile.command_grant
    FOR EACH ROW EXECUTE FUNCTION reconcile.grants_changed();
CREATE TRIGGER grants_truncated AFTER TRUNCATE ON reconcile.command_grant
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.grants_changed();
ALTER TABLE reconcile.command_grant ENABLE ALWAYS TRIGGER grants_changed;
ALTER TABLE reconcile.command_grant ENABLE ALWAYS TRIGGER grants_truncated;

-- Whoever loses it begins anew: it needs no WAL, no dump and no subscription.
CREATE UNLOGGED TABLE reconcile.command_sweep_cursor (
    singleton  boolean PRIMARY KEY CHECK (singleton),
    at         timestamptz NOT NULL DEFAULT '-infinity',
    tenant_id  text COLLATE "C" NOT NULL DEFAULT '',
    command_id text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
COMMENT ON TABLE reconcile.command_sweep_cursor IS
'How far the last sweep of commands came; the next one goes on there.';

CREATE TABLE reconcile.command_authorizer (
    singleton  boolean PRIMARY KEY CHECK (singleton),
    signature  text COLLATE "C" NOT NULL,
    owner_name name COLLATE "C" NOT NULL          -- where there is no such role nothing is allowed
);
COMMENT ON TABLE reconcile.command_authorizer IS
'The function, if there is one, that has to agree to what grants allow.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_authorizer', '');

CREATE TABLE reconcile.command_retention (
    tenant_id  text COLLATE "C" PRIMARY KEY CHECK (pg_catalog.octet_length(tenant_id) BETWEEN 1 AND 256),
    keep       interval NOT NULL,
    keep_keys  interval,                         -- NULL: for ever
    legal_hold boolean NOT NULL
);
COMMENT ON TABLE reconcile.command_retention IS
'How long the commands and the audit of each tenant are kept; without a row for ever.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.command_retention', '');

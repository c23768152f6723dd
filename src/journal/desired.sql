-- desired.sql: the states that targets are to be in, and those that workers have reported

-- The position of a change is (floor of the incarnation, transaction, number in it).
CREATE TABLE reconcile.desired_state (
    tenant_id          text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(tenant_id) BETWEEN 1 AND 256),
    target_kind        text COLLATE "C" NOT NULL,
    target_name        text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(target_name) BETWEEN 1 AND 256),
    state              text COLLATE "C" CHECK (state IN ('active', 'paused', 'draining', 'terminating')),
    revision           bigint NOT NULL CHECK (revision >= 0),
    command_id         text COLLATE "C",            -- that made it so; NULL: none that stands
    requested_at       timestamptz,
    changed_at         timestamptz NOT NULL,
    change_floor       bigint NOT NULL,
    change_xid         xid8 NOT NULL,
    change_number      bigint NOT NULL,
    PRIMARY KEY (tenant_id, target_kind, target_name),
    CHECK ((state IS NULL) = (command_id IS NULL))
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.desired_state IS
'The state that each target is to be in, in revisions from 1; state is NULL where no command that stands has said it.';
CREATE INDEX desired_state_change ON reconcile.desired_state (tenant_id, change_floor, change_xid, change_number);
SELECT pg_catalog.pg_extension_config_dump('reconcile.desired_state', '');

-- The commands that a target's state may come from: the last of them counts.
CREATE TABLE reconcile.desired_intent (
    tenant_id    text COLLATE "C" NOT NULL,
    target_kind  text COLLATE "C" NOT NULL,
    target_name  text COLLATE "C" NOT NULL,
    number       bigint NOT NULL,
    command_id   text COLLATE "C" NOT NULL,
    state        text COLLATE "C" NOT NULL,
    requested_at timestamptz,
    final        boolean NOT NULL,               -- it was claimed, or has taken effect: it is not withdrawn any more
    PRIMARY KEY (tenant_id, target_kind, target_name, number),
    UNIQUE (tenant_id, command_id)
);
COMMENT ON TABLE reconcile.desired_intent IS
'What the last commands for each target meant its state to be, until a later one is final; one that is canceled or expires is taken out.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.desired_intent', '');

CREATE TABLE reconcile.observed_state (
    tenant_id   text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(tenant_id) BETWEEN 1 AND 256),
    target_kind text COLLATE "C" NOT NULL,
    target_name text COLLATE "C" NOT NULL,
    worker_id   text COLLATE "C" NOT NULL CHECK (pg_catalog.octet_length(worker_id) BETWEEN 1 AND 256),
    revision    bigint NOT NULL CHECK (revision > 0),
    state       text COLLATE "C" NOT NULL CHECK (state IN ('active', 'paused', 'draining', 'terminating')),
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, target_kind, target_name, worker_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE reconcile.observed_state IS
'The last revision of each target that each worker has said to have applied.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.observed_state', '');

CREATE FUNCTION reconcile.next_desired_state(current_state text, current_revision bigint, action text, target_kind text)
    RETURNS TABLE (outcome text, state text, revision bigint)
    LANGUAGE c IMMUTABLE PARALLEL SAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_next_desired_state';
COMMENT ON FUNCTION reconcile.next_desired_state(text, bigint, text, text) IS
'The desired state that follows a built-in action on a target that has current_state at current_revision (NULL, or revision 0: none yet): planned, not_a_state_action, invalid_target, illegal_transition, exhausted. 22004, 22023 bad argument.';

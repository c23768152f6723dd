-- loop.sql: loops, and what is remembered of their entities

-- src/loop/catalog.c relies on the places of loop_name, owner and repository.
CREATE TABLE reconcile.loop (
    loop_name          text COLLATE "C" PRIMARY KEY,
    owner              pg_catalog.regrole NOT NULL,
    reconciler         text,
    lister             text,
    repository         text,
    resync_every_ms    bigint,
    default_requeue_ms bigint,
    concurrency        int NOT NULL,
    backoff_base_ms    bigint NOT NULL,
    backoff_max_ms     bigint NOT NULL,
    backoff_jitter     float8 NOT NULL,
    max_attempts       int,
    timeout_ms         bigint,
    lease_ttl_ms       bigint,
    renew_every_ms     bigint,
    enabled            boolean NOT NULL,
    paused             boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL,
    ticked_at          timestamptz,          -- the last tick of resync_every, where run_loop() makes them
    home               text COLLATE "C" NOT NULL, -- where its entities were last looked at, as reconcile.here()
    timeline           int NOT NULL          -- says it: in another home it is paused until it is resumed
) USING heap;
COMMENT ON TABLE reconcile.loop IS 'Loops and their options; functions are stored as signatures, durations in milliseconds.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.loop', '');

-- Rows that come past our functions (a restore, COPY): the engine is told.
CREATE FUNCTION reconcile.rows_changed() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_rows_changed';
COMMENT ON FUNCTION reconcile.rows_changed() IS
'Trigger of our own tables: tells the engine at commit that loops or marks came past our functions. 39P01 when called otherwise.';
CREATE TRIGGER rows_changed AFTER INSERT OR UPDATE OR DELETE ON reconcile.loop
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.rows_changed();
CREATE TRIGGER rows_changed AFTER INSERT ON reconcile.mark_0
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.rows_changed();
CREATE TRIGGER rows_changed AFTER INSERT ON reconcile.mark_1
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.rows_changed();
CREATE TRIGGER rows_changed AFTER INSERT ON reconcile.mark_2
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.rows_changed();
CREATE TRIGGER rows_changed AFTER INSERT ON reconcile.mark_3
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.rows_changed();

-- A row only for what must outlive the next look: failures, death, a claim.  A
-- claim counts as a failure from when it is made until its worker reports.  A row
-- with none of them is empty, and stays while an old snapshot would keep what it was.
CREATE TABLE reconcile.entity (
    loop_name         text COLLATE "C" NOT NULL,
    entity_id         text COLLATE "C" NOT NULL,
    failures          int NOT NULL,
    died_of           text,                 -- permanent, attempts, crash; NULL = alive
    last_sqlstate     text,
    last_error        text,
    last_failed_at    timestamptz,
    claim_epoch       bigint,               -- of the claim in progress, or of one that ran out; NULL = none
    claim_holder      text COLLATE "C",
    claimed_at        timestamptz,
    claim_expires_at  timestamptz,
    claim_lease_epoch bigint,               -- leased loops: the term that it belongs to
    claim_mark        bigint,               -- where the mark of its deadline was written
    crashes           int NOT NULL DEFAULT 0 -- runs since the last success that ended their process, or the server
) USING heap WITH (fillfactor = 70);
ALTER TABLE reconcile.entity REPLICA IDENTITY FULL;
COMMENT ON TABLE reconcile.entity IS
'What is remembered of an entity beyond its next look: consecutive failures, the last error, why it is dead, and an outside worker''s claim.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.entity', '');
-- One row for each; what keeps it so is in src/loop/entity.c.  The newest of a key's entries must be the last.
CREATE INDEX entity_key ON reconcile.entity (loop_name, entity_id) WITH (deduplicate_items = off);
CREATE INDEX entity_dead ON reconcile.entity (loop_name) WHERE died_of IS NOT NULL;
-- Few at any time: who runs alone, and whom health names.
CREATE INDEX entity_crashed ON reconcile.entity (loop_name, entity_id) WHERE crashes > 0;

-- What comes past our functions (a restore, COPY) finds what is there already.
CREATE FUNCTION reconcile.entity_once() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_entity_once';
COMMENT ON FUNCTION reconcile.entity_once() IS
'Trigger of our own table: refuses a second row of an entity. 23505 there is one; 39P01 not called by such a trigger.';
CREATE TRIGGER entity_once BEFORE INSERT ON reconcile.entity
    FOR EACH ROW EXECUTE FUNCTION reconcile.entity_once();
ALTER TABLE reconcile.entity ENABLE ALWAYS TRIGGER entity_once;

-- Fire for what changes the number of dead entities, and for nothing else.
CREATE FUNCTION reconcile.dead_changed() RETURNS trigger
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_dead_changed';
COMMENT ON FUNCTION reconcile.dead_changed() IS
'Trigger of our own table: counts who is dead, for the engine. 39P01 not called by such a trigger.';
CREATE TRIGGER dead_inserted AFTER INSERT ON reconcile.entity
    FOR EACH ROW WHEN (NEW.died_of IS NOT NULL) EXECUTE FUNCTION reconcile.dead_changed();
CREATE TRIGGER dead_updated AFTER UPDATE ON reconcile.entity
    FOR EACH ROW WHEN ((NEW.died_of IS NULL) <> (OLD.died_of IS NULL)) EXECUTE FUNCTION reconcile.dead_changed();
CREATE TRIGGER dead_deleted AFTER DELETE ON reconcile.entity
    FOR EACH ROW WHEN (OLD.died_of IS NOT NULL) EXECUTE FUNCTION reconcile.dead_changed();
ALTER TABLE reconcile.entity ENABLE ALWAYS TRIGGER dead_inserted;
ALTER TABLE reconcile.entity ENABLE ALWAYS TRIGGER dead_updated;
ALTER TABLE reconcile.entity ENABLE ALWAYS TRIGGER dead_deleted;

-- create_loop() and alter_loop() have no search path of their own: they resolve
-- the names in their arguments by the caller's.  The hot functions have none
-- either, as they run no SQL by name.
CREATE FUNCTION reconcile.create_loop(
    loop_name       text,
    reconciler      text DEFAULT NULL,
    lister          text DEFAULT NULL,
    resync_every    interval DEFAULT NULL,
    default_requeue interval DEFAULT '30 s',
    concurrency     int DEFAULT 1,
    backoff_base    interval DEFAULT '5 ms',
    backoff_max     interval DEFAULT '1000 s',
    backoff_jitter  float8 DEFAULT 0,
    max_attempts    int DEFAULT NULL,
    timeout         interval DEFAULT NULL,
    lease_ttl       interval DEFAULT NULL,
    renew_every     interval DEFAULT NULL,
    repository      text DEFAULT NULL,
    owner           name DEFAULT NULL,
    enabled         boolean DEFAULT true,
    if_exists       text DEFAULT 'error') RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_create_loop';
COMMENT ON FUNCTION reconcile.create_loop(text, text, text, interval, interval, int, interval, interval, float8, int, interval, interval, interval, text, name, boolean, text) IS
'Defines a loop whose reconciler f(entity_id text) RETURNS interval or void runs as the owner for each entity that is due, and whose lister f() RETURNS SETOF text names the entities that a resync marks. 22004, 22023 bad option; 42883 no such function; 42704 no such owner; 42710 loop exists; 42501 no right; 55000 the owner cannot connect.';

CREATE FUNCTION reconcile.alter_loop(loop_name text, changes jsonb) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_alter_loop';
COMMENT ON FUNCTION reconcile.alter_loop(text, jsonb) IS
'Changes options of a loop: keys are arguments of create_loop, intervals are strings, null is the NULL of the option, and a key that is absent stays as it is; a run in flight keeps the old. 22004, 22023 bad option or unknown key; 42704 no such loop; others as create_loop.';

CREATE FUNCTION reconcile.drop_loop(loop_name text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_drop_loop';
COMMENT ON FUNCTION reconcile.drop_loop(text) IS
'Drops a loop with its marks, its entities'' state and its watch triggers; its lease and the lease''s history stay. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.pause_loop(loop_name text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_pause_loop';
COMMENT ON FUNCTION reconcile.pause_loop(text) IS
'Lets no run of the loop begin until resume_loop; marks keep coming in, and runs in flight finish. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.resume_loop(loop_name text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_resume_loop';
COMMENT ON FUNCTION reconcile.resume_loop(text) IS
'Ends what pause_loop began. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.resume_all() RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_resume_all';
COMMENT ON FUNCTION reconcile.resume_all() IS
'Resumes each paused loop that the caller may operate. 25006 read-only; 42501 loops are paused and he may operate none.';

CREATE FUNCTION reconcile.enqueue(loop_name text, entity_id text, delay interval DEFAULT '0 s') RETURNS void
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_enqueue';
COMMENT ON FUNCTION reconcile.enqueue(text, text, interval) IS
'Triggers an entity: once this commits, a run begins that sees it, not before delay (0 to 366 days) has passed; never waits for another enqueue. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.enqueue_many(loop_name text, entity_ids text[], delay interval DEFAULT '0 s', spread interval DEFAULT '0 s')
    RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_enqueue_many';
COMMENT ON FUNCTION reconcile.enqueue_many(text, text[], interval, interval) IS
'Triggers each distinct entity of the array (at most 1,000,000), each after delay and a random part of spread, and returns how many. 22004 NULL or a NULL element; 2202E more than one dimension; 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.revive(loop_name text, entity_id text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_revive';
COMMENT ON FUNCTION reconcile.revive(text, text) IS
'Makes a dead entity due now, with no failures counted; false, without effect, if it is not dead. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.revive_all(loop_name text, last_sqlstate text DEFAULT NULL, max_items int DEFAULT 1000) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_revive_all';
COMMENT ON FUNCTION reconcile.revive_all(text, text, int) IS
'Revives the entities that died first, at most max_items (1 to 1,000,000), of last_sqlstate or of any (NULL), passing over what is locked, and returns how many. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.forget(loop_name text, entity_id text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_forget';
COMMENT ON FUNCTION reconcile.forget(text, text) IS
'Deletes the marks and the state of an entity, and says whether there were any; marks that commit later survive, and a run in flight finishes. 22004, 22023 bad argument; 42501 no right; 42704 no such loop.';

CREATE FUNCTION reconcile.permanent_error(message text) RETURNS interval
    LANGUAGE c VOLATILE PARALLEL UNSAFE
    AS 'MODULE_PATHNAME', 'reconcile_permanent_error';
COMMENT ON FUNCTION reconcile.permanent_error(text) IS
'Never returns: raises RC004, by which a reconciler says that another attempt is of no use. 22004 NULL message.';

CREATE FUNCTION reconcile.current_run()
    RETURNS TABLE (loop_name text, entity_id text, epoch bigint, attempt int, deadline timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_current_run';
COMMENT ON FUNCTION reconcile.current_run() IS
'The run that this transaction is: its loop, entity, lease epoch (0: no lease), attempt (from 1) and deadline (NULL: none); no row outside a run.';

-- What the clients of the history check write to.

CREATE EXTENSION reconcile;
CREATE SCHEMA soak;

-- A line for each write, in the write's own transaction.
CREATE TABLE soak.log (
    write_id text,
    kind     text,              -- resource, table
    id       text,
    entity   text,
    epoch    bigint,
    revision bigint             -- of the entity, as the write left it
);

-- A line for each grant that was made in a transaction block.
CREATE TABLE soak.granted (id text, epoch bigint, holder text);

-- Shows the driver that the server commits.
CREATE TABLE soak.tick (at timestamptz DEFAULT clock_timestamp());

-- A user's table for each lease.
CREATE TABLE soak.alpha (
    entity_id  text PRIMARY KEY,
    value      text,
    revision   bigint NOT NULL DEFAULT 0,
    last_epoch bigint NOT NULL DEFAULT 0
);
CREATE TABLE soak.beta (LIKE soak.alpha INCLUDING ALL);
CREATE TABLE soak.gamma (LIKE soak.alpha INCLUDING ALL);
INSERT INTO soak.alpha (entity_id) VALUES ('e1'), ('e2'), ('e3'), ('e4');
INSERT INTO soak.beta (entity_id) SELECT entity_id FROM soak.alpha;
INSERT INTO soak.gamma (entity_id) SELECT entity_id FROM soak.alpha;

CREATE FUNCTION soak.note(kind text, id text, entity text, epoch bigint, write_id text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    revision bigint;
BEGIN
    IF kind = 'resource' THEN
        SELECT r.revision INTO STRICT revision FROM reconcile.resources r
         WHERE r.reconciler_id = note.id AND r.entity_id = note.entity;
    ELSE
        EXECUTE format('SELECT revision FROM soak.%I WHERE entity_id = $1', id) INTO STRICT revision USING entity;
    END IF;
    INSERT INTO soak.log VALUES (write_id, kind, id, entity, epoch, revision);
END
$$;

CREATE FUNCTION soak.apply(id text, entity text, epoch bigint, write_id text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT reconcile.apply_fenced(id, entity, epoch, jsonb_build_object('w', write_id)) THEN
        RETURN false;
    END IF;
    PERFORM soak.note('resource', id, entity, epoch, write_id);
    RETURN true;
END
$$;

-- Their rows are there, so that an epoch that was never granted is none.
SELECT reconcile.release_lease(id, 'setup', (reconcile.acquire_lease(id, 'setup')).epoch)
  FROM unnest('{alpha,beta,gamma}'::text[]) id;

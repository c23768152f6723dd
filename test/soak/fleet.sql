-- What the simulated fleet needs: its sessions, and effects of commands, which are
-- fenced by the epochs that hosts bring, as those of any careful store are.

CREATE SCHEMA fleet;
GRANT USAGE ON SCHEMA fleet TO PUBLIC;

CREATE TABLE fleet.fence (tenant_id text, session_id text, epoch bigint NOT NULL, PRIMARY KEY (tenant_id, session_id));
CREATE TABLE fleet.effect (
    n bigint GENERATED ALWAYS AS IDENTITY,
    tenant_id text, session_id text, command_id text, attempt_id text, epoch bigint, host_id text);
CREATE INDEX ON fleet.effect (tenant_id, session_id, command_id);

-- Who comes with an epoch keeps out all before.
CREATE FUNCTION fleet.raise(tenant text, session text, mine bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    stands bigint;
BEGIN
    INSERT INTO fleet.fence AS f VALUES (tenant, session, mine)
        ON CONFLICT (tenant_id, session_id) DO UPDATE SET epoch = GREATEST(f.epoch, mine) RETURNING f.epoch INTO stands;
    RETURN stands = mine;
END $$;

CREATE FUNCTION fleet.apply(tenant text, session text, command text, attempt text, mine bigint, host text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NOT fleet.raise(tenant, session, mine) THEN
        RETURN 'fenced';
    ELSIF EXISTS (SELECT FROM fleet.effect e WHERE (e.tenant_id, e.session_id, e.command_id, e.attempt_id) = (tenant, session, command, attempt)) THEN
        RETURN 'repeated';
    END IF;
    INSERT INTO fleet.effect (tenant_id, session_id, command_id, attempt_id, epoch, host_id)
        VALUES (tenant, session, command, attempt, mine, host);
    RETURN 'done';
END $$;

-- Was it done?  From now on nobody before does it.
CREATE FUNCTION fleet.was_done(tenant text, session text, command text, mine bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    RETURN NOT fleet.raise(tenant, session, mine)
        OR EXISTS (SELECT FROM fleet.effect e WHERE (e.tenant_id, e.session_id, e.command_id) = (tenant, session, command));
END $$;

-- Sessions that a command waits for, and that no host has.
CREATE VIEW fleet.homeless AS
    SELECT DISTINCT c.tenant_id, c.session_id
      FROM reconcile.session_command c
      LEFT JOIN reconcile.session_registration r ON (r.tenant_id, r.session_id) = (c.tenant_id, c.session_id)
     WHERE c.state IN ('pending', 'claimed', 'applying')
       AND (r.host_id IS NULL OR r.expires_at <= clock_timestamp());

-- Targets whose reserved is not the number of the offers that count, in one snapshot.
CREATE VIEW fleet.miscounted AS
SELECT t.* FROM reconcile.host_target t
 WHERE t.reserved <> (SELECT count(*) FROM reconcile.session_offer o WHERE o.counted AND o.agent_id = t.agent_id
    AND o.runtime_compatibility_id = t.runtime_compatibility_id AND o.placement = t.placement AND o.host_id = t.host_id);

-- As fleet_owner: the devices, the function that drives one of them to its
-- desired state, and the loop that calls it.

CREATE TABLE fleet.device (
    device_id text PRIMARY KEY,
    region    text NOT NULL,
    model     text NOT NULL,
    desired   text NOT NULL,        -- firmware that it should have
    reported  text,                 -- firmware that it has; NULL: never heard of
    revision  int NOT NULL DEFAULT 0
);

-- One row for each run, also for one that found nothing to do.
CREATE TABLE fleet.history (
    run        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device_id  text NOT NULL,
    epoch      bigint NOT NULL,     -- of the lease under which the run wrote
    before     text,
    after      text NOT NULL,
    changed    boolean NOT NULL,
    ran_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Compares desired with reported, and acts on the difference. It may run at any
-- time and any number of times: it looks at what is there, not at what happened.
CREATE FUNCTION fleet.drive(id text) RETURNS interval LANGUAGE plpgsql AS $$
DECLARE
    device fleet.device;
BEGIN
    SELECT * INTO device FROM fleet.device d WHERE d.device_id = id;
    IF NOT FOUND THEN
        RETURN NULL;                -- it was deleted: nothing to drive
    END IF;

    INSERT INTO fleet.history (device_id, epoch, before, after, changed)
    VALUES (id, reconcile.fenced_epoch(), device.reported, device.desired,
            device.reported IS DISTINCT FROM device.desired);

    IF device.reported IS DISTINCT FROM device.desired THEN
        UPDATE fleet.device d
           SET reported = device.desired, revision = d.revision + 1
         WHERE d.device_id = id;
    END IF;
    RETURN NULL;                    -- done; look again when something changes
END
$$;

-- Under a lease, four at a time; without a new look unless something changes.
SELECT reconcile.create_loop('fleet', 'fleet.drive',
                             concurrency => 4, lease_ttl => '15 s', default_requeue => NULL);

-- Each committed change of a device is followed by a run of that device.
SELECT reconcile.watch('fleet', 'fleet.device', entity_column => 'device_id');

-- What the leaders of the rollout write, each row under an epoch of their lease.
CREATE TABLE fleet.wave (
    wave       int PRIMARY KEY,
    leader     text NOT NULL,
    epoch      bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

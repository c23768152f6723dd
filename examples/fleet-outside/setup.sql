-- As a superuser: what the workers of ../fleet-node, ../fleet-python and
-- ../fleet-psql work on. The loop "firmware" has no function: its entities are
-- handed to whoever asks with claim_work().

CREATE EXTENSION IF NOT EXISTS reconcile;
SELECT 'CREATE ROLE fleet_worker LOGIN'
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'fleet_worker') \gexec

CREATE SCHEMA firmware;
CREATE TABLE firmware.device (
    device_id text PRIMARY KEY,
    desired   text NOT NULL,        -- firmware that it should have
    reported  text                  -- firmware that it has, as far as we know
);
-- What was done. A device may be called twice, if a worker dies after the call
-- and before its commit; no such row is there twice.
CREATE TABLE firmware.installed (
    device_id    text NOT NULL,
    version      text NOT NULL,
    claim_epoch  bigint NOT NULL,
    holder       text NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

SELECT reconcile.create_loop('firmware', default_requeue => NULL,
                             backoff_base => '1 s', backoff_max => '10 min');
SELECT reconcile.watch('firmware', 'firmware.device', 'device_id', columns => '{desired}');

SELECT reconcile.grant_access('fleet_worker', 'work', scope => 'firmware');
GRANT USAGE ON SCHEMA firmware TO fleet_worker;
GRANT SELECT, UPDATE (reported) ON firmware.device TO fleet_worker;
GRANT INSERT ON firmware.installed TO fleet_worker;

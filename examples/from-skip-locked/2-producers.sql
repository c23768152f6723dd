-- When the old workers are stopped: no more rows. The old table becomes a view,
-- so that old producers need not be changed; their INSERT enqueues the device.
-- Give the view the grants that the table had.

ALTER TABLE app.job RENAME TO old_job;      -- waits for the producers' transactions
SELECT reconcile.unwatch('device', 'app.old_job');
-- What is left over in it, for the loop. It comes before any producer's INSERT.
SELECT reconcile.enqueue_many('device', array_agg(device_id)) FROM (SELECT DISTINCT device_id FROM app.old_job) j HAVING count(*) > 0;
TRUNCATE app.old_job;

CREATE VIEW app.job AS SELECT job_id, device_id, queued_at FROM app.old_job;
CREATE FUNCTION app.job_to_loop() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM reconcile.enqueue('device', NEW.device_id);
    RETURN NEW;
END
$$;
CREATE TRIGGER job_to_loop INSTEAD OF INSERT ON app.job FOR EACH ROW EXECUTE FUNCTION app.job_to_loop();

CREATE OR REPLACE FUNCTION app.drive(entity text) RETURNS interval LANGUAGE sql AS $$
    SELECT app.bring(entity, 'loop');
    SELECT NULL::interval
$$;
CREATE OR REPLACE FUNCTION app.queued() RETURNS SETOF text LANGUAGE sql AS
    'SELECT device_id FROM app.device WHERE reported <> desired';

-- The loop, beside the old workers. It answers the jobs of one device: takes
-- those that no old worker has just now, and does the work once for all of them.
-- Old producers go on inserting into the old table, which the loop watches.

CREATE EXTENSION IF NOT EXISTS reconcile;

CREATE FUNCTION app.drive(entity text) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM app.job WHERE job_id IN (SELECT job_id FROM app.job WHERE device_id = entity FOR UPDATE SKIP LOCKED);
    PERFORM app.bring(entity, 'loop');
    RETURN NULL;
END
$$;
-- What is left over in the queue: for the first resync, and for one each hour.
CREATE FUNCTION app.queued() RETURNS SETOF text LANGUAGE sql AS 'SELECT DISTINCT device_id FROM app.job';
-- The queue had no index that helps to find the jobs of one device.
CREATE INDEX job_device_id ON app.job (device_id);

SELECT reconcile.create_loop('device', 'app.drive', lister => 'app.queued', resync_every => '1 h',
                             default_requeue => NULL, concurrency => 4, backoff_base => '1 s', timeout => '1 min');
SELECT reconcile.watch('device', 'app.job', 'device_id');

-- Back to the old workers alone: what waits in the queue, they find there.
SELECT reconcile.drop_loop('device');
DROP FUNCTION app.drive, app.queued;
DROP INDEX app.job_device_id;

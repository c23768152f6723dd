-- Back to step 1: the old table is a table again. What waits in the loop, waits on.
DROP VIEW app.job;                          -- waits for the producers' transactions
DROP FUNCTION app.job_to_loop;
ALTER TABLE app.old_job RENAME TO job;
CREATE OR REPLACE FUNCTION app.drive(entity text) RETURNS interval LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM app.job WHERE job_id IN (SELECT job_id FROM app.job WHERE device_id = entity FOR UPDATE SKIP LOCKED);
    PERFORM app.bring(entity, 'loop');
    RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION app.queued() RETURNS SETOF text LANGUAGE sql AS 'SELECT DISTINCT device_id FROM app.job';
SELECT reconcile.watch('device', 'app.job', 'device_id');
-- The old workers know only of the table, so they get a job for each that waits in the loop.
INSERT INTO app.job (device_id) SELECT entity_id FROM reconcile.work WHERE loop_name = 'device' AND entity_id <> '';

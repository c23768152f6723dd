-- What there was: devices, a queue table, and workers who call app.work_one()
-- again and again. As a superuser, for the example.

CREATE SCHEMA app;
CREATE TABLE app.device (
    device_id text PRIMARY KEY,
    desired   int NOT NULL,
    reported  int NOT NULL DEFAULT 0
);
CREATE TABLE app.job (
    job_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device_id text NOT NULL,
    queued_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- what was done, for all to see
CREATE TABLE app.done (device_id text NOT NULL, version int NOT NULL, by text NOT NULL);

-- The work itself: it brings a device to what is desired now.
CREATE FUNCTION app.bring(id text, by text) RETURNS void LANGUAGE sql AS $$
    WITH brought AS (
        UPDATE app.device SET reported = desired WHERE device_id = id AND reported <> desired RETURNING desired
    )
    INSERT INTO app.done SELECT id, desired, by FROM brought
$$;

-- One job; false when there is none.
CREATE FUNCTION app.work_one() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    job app.job;
BEGIN
    DELETE FROM app.job WHERE job_id = (SELECT job_id FROM app.job ORDER BY job_id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING * INTO job;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM app.bring(job.device_id, 'old worker');
    RETURN true;
END
$$;

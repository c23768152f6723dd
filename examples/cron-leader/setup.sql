-- As a superuser: what the leaders in this folder write.

CREATE EXTENSION IF NOT EXISTS reconcile;
SELECT 'CREATE ROLE cron_worker LOGIN'
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cron_worker') \gexec

CREATE SCHEMA nightly;
CREATE TABLE nightly.report (
    report  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    leader  text NOT NULL,
    epoch   bigint NOT NULL,        -- of the lease under which it was written
    tables  bigint NOT NULL,        -- what it reports
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

SELECT reconcile.grant_access('cron_worker', 'lease', scope => 'nightly');
GRANT USAGE ON SCHEMA nightly TO cron_worker;
GRANT SELECT, INSERT ON nightly.report TO cron_worker;

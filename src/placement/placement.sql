-- placement.sql: how sessions are placed

CREATE TABLE reconcile.placement_setting (
    singleton          boolean PRIMARY KEY CHECK (singleton),
    control_shards     int NOT NULL CHECK (control_shards BETWEEN 1 AND 4096), -- fixed by the first row, or set_placement()
    claim_ttl_ms       bigint NOT NULL CHECK (claim_ttl_ms BETWEEN 1 AND 300000),
    candidate_limit    int NOT NULL CHECK (candidate_limit BETWEEN 1 AND 1000),
    replace_attempts   int NOT NULL CHECK (replace_attempts BETWEEN 1 AND 10),
    replace_backoff_ms bigint NOT NULL CHECK (replace_backoff_ms BETWEEN 1 AND 5000),
    offer_ttl_ms       bigint NOT NULL CHECK (offer_ttl_ms BETWEEN 1 AND 300000),
    session_ttl_ms     bigint NOT NULL CHECK (session_ttl_ms BETWEEN 1 AND 3600000),
    horizon_ms         bigint NOT NULL CHECK (horizon_ms > 0),
    interval_ms        bigint NOT NULL CHECK (interval_ms > 0),
    page_limit         int NOT NULL CHECK (page_limit BETWEEN 1 AND 1000),
    max_pages          int NOT NULL CHECK (max_pages BETWEEN 1 AND 1024),
    CHECK (interval_ms < claim_ttl_ms AND claim_ttl_ms < horizon_ms)
);
COMMENT ON TABLE reconcile.placement_setting IS
'How sessions are placed; without a row the defaults hold. Durations are in milliseconds.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.placement_setting', '');

-- lease.sql: who leads a reconciler id, at which epoch, and who did

CREATE TABLE reconcile.lease (
    reconciler_id text COLLATE "C" PRIMARY KEY,
    holder_id     text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL CHECK (epoch > 0),
    acquired_at   timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    touched_at    timestamptz NOT NULL,      -- of the last write: a crash may have lost a later one
    ttl_ms        bigint NOT NULL CHECK (ttl_ms > 0),
    renewals      bigint NOT NULL,
    engine        boolean NOT NULL,
    home          text COLLATE "C" NOT NULL, -- where it was granted, as reconcile.here() says it:
    timeline      int NOT NULL               -- anywhere else it is void
) USING heap WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
                   autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000);
COMMENT ON TABLE reconcile.lease IS
'The last term of each reconciler id; it is live until expires_at where it was granted (home, timeline), and the row outlives it. ttl_ms is in milliseconds.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.lease', '');
-- Those of sessions, "session:<number>", are as many as there are sessions: who looks at
-- leases that somebody named looks here.
CREATE INDEX lease_named ON reconcile.lease (reconciler_id) WHERE pg_catalog.strpos(reconciler_id, ':') = 0;

CREATE TABLE reconcile.lease_term (
    reconciler_id text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL CHECK (epoch > 0),
    holder_id     text COLLATE "C" NOT NULL,
    acquired_at   timestamptz NOT NULL,
    ended_at      timestamptz,
    end_reason    text COLLATE "C" CHECK (end_reason IN ('released', 'expired', 'forced', 'incarnation')),
    forced_by     text COLLATE "C",         -- by force_release_lease: the role
    forced_reason text,
    PRIMARY KEY (reconciler_id, epoch),
    CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) USING heap;
COMMENT ON TABLE reconcile.lease_term IS
'Every term that was granted, once for each reconciler id and epoch; a term that ran out gets its end with the grant that follows it.';
SELECT pg_catalog.pg_extension_config_dump('reconcile.lease_term', '');

-- Those of this home: the others are over, whatever their deadline says.
CREATE VIEW reconcile.standing_lease AS
    SELECT l.* FROM reconcile.lease l JOIN reconcile.here() h
        ON l.home OPERATOR(pg_catalog.=) h.home AND l.timeline OPERATOR(pg_catalog.=) h.timeline
     WHERE pg_catalog.strpos(l.reconciler_id, ':') OPERATOR(pg_catalog.=) 0;
COMMENT ON VIEW reconcile.standing_lease IS
'The leases whose last term was granted in this database of this server, on this timeline; not those of sessions.';

CREATE TYPE reconcile.lease_token AS (
    reconciler_id text,
    holder_id     text,
    epoch         bigint,
    acquired_at   timestamptz,
    expires_at    timestamptz
);
COMMENT ON TYPE reconcile.lease_token IS
'A term of a lease: live while clock_timestamp() < expires_at, fenced by epoch.';

CREATE FUNCTION reconcile.acquire_lease(reconciler_id text, holder_id text DEFAULT NULL,
                                        ttl interval DEFAULT '15 s', wait interval DEFAULT '0 s')
    RETURNS reconcile.lease_token
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_acquire_lease';
COMMENT ON FUNCTION reconcile.acquire_lease(text, text, interval, interval) IS
'Acquires the lease for ttl (1 ms to 366 days), waiting for it up to wait (0 to 1 minute); holder_id NULL mints one. RC001 another holder has it; 55000 this transaction used its fence; 53400 over 1,000 leases; 54000 no epoch is left; 0A000 a wait above READ COMMITTED; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.try_acquire_lease(reconciler_id text, holder_id text DEFAULT NULL,
                                            ttl interval DEFAULT '15 s')
    RETURNS reconcile.lease_token
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_try_acquire_lease';
COMMENT ON FUNCTION reconcile.try_acquire_lease(text, text, interval) IS
'Acquires the lease for ttl (1 ms to 366 days) without ever waiting; NULL when another holder has it. 55000 this transaction used its fence; 53400 over 1,000 leases; 54000 no epoch is left; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.renew_lease(reconciler_id text, holder_id text, epoch bigint, ttl interval DEFAULT NULL)
    RETURNS reconcile.lease_token
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_renew_lease';
COMMENT ON FUNCTION reconcile.renew_lease(text, text, bigint, interval) IS
'Extends a live term to ttl (1 ms to 366 days; NULL: that of the grant) from now. RC002 the term is over or not the caller''s; 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.renew_leases(holder_id text, reconciler_ids text[], epochs bigint[], ttl interval DEFAULT NULL)
    RETURNS TABLE (ord int, reconciler_id text, renewed boolean, expires_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_renew_leases';
COMMENT ON FUNCTION reconcile.renew_leases(text, text[], bigint[], interval) IS
'Renews up to 10,000 live terms of one holder as renew_lease does, one row for each in the order given (ord from 1); a term that is over or not the caller''s is not renewed, and its expires_at is NULL. 22004 NULL or a NULL element; 2202E unequal lengths or more than one dimension; 22023 bad argument; 42501 no right on one of them; 25006 on a standby.';

CREATE FUNCTION reconcile.release_lease(reconciler_id text, holder_id text, epoch bigint)
    RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_release_lease';
COMMENT ON FUNCTION reconcile.release_lease(text, text, bigint) IS
'Ends a live term for an immediate take-over; false, without effect, when it is over or not the caller''s. 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE FUNCTION reconcile.force_release_lease(reconciler_id text, seen_epoch bigint, reason text) RETURNS boolean
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_force_release_lease';
COMMENT ON FUNCTION reconcile.force_release_lease(text, bigint, text) IS
'Ends the live term of any holder, if its epoch is seen_epoch, and records in lease_history who did it and why (1 to 1,000 bytes); false, without effect, when that epoch is not live. 22004, 22023 bad argument; 42501 no right; 25006 on a standby.';

CREATE VIEW reconcile.leases WITH (security_barrier) AS
    SELECT l.reconciler_id COLLATE "default" AS reconciler_id,
           l.holder_id COLLATE "default" AS holder_id,
           l.epoch, l.acquired_at, l.expires_at,
           c.now OPERATOR(pg_catalog.<) l.expires_at AND c.stands AS live,
           CASE WHEN c.stands THEN GREATEST(l.expires_at OPERATOR(pg_catalog.-) c.now, interval '0')
                ELSE interval '0' END AS remaining,
           l.renewals
      FROM reconcile.lease l, reconcile.here() h,
           LATERAL (SELECT pg_catalog.clock_timestamp() AS now, l.home OPERATOR(pg_catalog.=) h.home
                           AND l.timeline OPERATOR(pg_catalog.=) h.timeline AS stands) c
     WHERE pg_catalog.strpos(l.reconciler_id, ':') OPERATOR(pg_catalog.=) 0 
       AND reconcile.may_observe(l.reconciler_id);
COMMENT ON VIEW reconcile.leases IS
'The last term of each reconciler id that the caller may observe: who has it, until when, and whether it is live now.';

CREATE VIEW reconcile.lease_history WITH (security_barrier) AS
    SELECT t.reconciler_id COLLATE "default" AS reconciler_id, t.epoch,
           t.holder_id COLLATE "default" AS holder_id,
           t.acquired_at, t.ended_at,
           t.end_reason COLLATE "default" AS end_reason,
           t.forced_by COLLATE "default" AS forced_by, t.forced_reason
      FROM reconcile.lease_term t
     WHERE pg_catalog.strpos(t.reconciler_id, ':') OPERATOR(pg_catalog.=) 0 
       AND reconcile.may_observe(t.reconciler_id);
COMMENT ON VIEW reconcile.lease_history IS
'Every term of the reconciler ids that the caller may observe: the last 1,000 of an id or 90 days, whichever is more; end_reason is released, expired, forced, incarnation, or NULL while it lasts; forced_by and forced_reason are of force_release_lease.';

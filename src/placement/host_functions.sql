-- host_functions.sql: what hosts call, and who places on them

CREATE FUNCTION reconcile.register_host(host_id text, role name) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_register_host';
COMMENT ON FUNCTION reconcile.register_host(text, name) IS
'Says which role acts for a host; a role may act for many. Returns registered, rebound (another role did until now) or unchanged. 22004, 22023 bad argument; 42704 no such role; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.unregister_host(host_id text) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_unregister_host';
COMMENT ON FUNCTION reconcile.unregister_host(text) IS
'Nobody acts for the host any more, and nothing is placed on it; its sessions stay its own until their leases run out. Returns unregistered or not_found. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.publish_host_target(
    host_id                  text,
    host_generation          bigint,
    agent_id                 text,
    runtime_compatibility_id text,
    placement                text,
    endpoint                 text,
    isolation_class          text,
    accepting                boolean,
    available_capacity       int,
    ttl                      interval DEFAULT '1 min',
    capabilities             text[] DEFAULT '{}',
    seen_offer               bigint DEFAULT NULL)
    RETURNS TABLE (outcome text, generation bigint, revision bigint, expires_at timestamptz, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_publish_host_target';
COMMENT ON FUNCTION reconcile.publish_host_target(text, bigint, text, text, text, text, text, boolean, int, interval, text[], bigint) IS
'Says what a host of the caller''s offers for a target (agent, runtime, placement) from now on, for ttl (at most 15 minutes). available_capacity (0 to 1,048,576; of a dedicated host at most 1) takes account of the accepted offers up to seen_offer (NULL: of none). outcome: published; generation (a later generation, which is told, has spoken of it: nothing is written); not_found (not a host of the caller''s). 22004, 22023 bad argument; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.drain_host_target(host_id text, host_generation bigint, agent_id text,
                                            runtime_compatibility_id text, placement text)
    RETURNS TABLE (outcome text, generation bigint, revision bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_drain_host_target';
COMMENT ON FUNCTION reconcile.drain_host_target(text, bigint, text, text, text) IS
'Takes back what a host of the caller''s offers for a target; its generation stays. outcome: drained; already (it was, by the same generation: nothing is written); generation (a later generation, which is told, has spoken of it); not_found (it never offered it, or is not a host of the caller''s). 22004, 22023 bad argument; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.compatible_hosts(agent_id text, runtime_compatibility_id text, placement text,
                                           max_items int DEFAULT 32, after text DEFAULT NULL)
    RETURNS TABLE (outcome text, host_id text, host_generation bigint, agent_id text, runtime_compatibility_id text,
                   placement text, internal_endpoint text, isolation_class text, accepting boolean,
                   available_capacity int, advertised_capacity int, capabilities text[], observed_at timestamptz,
                   expires_at timestamptz, remaining interval, "position" text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 32 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_compatible_hosts';
COMMENT ON FUNCTION reconcile.compatible_hosts(text, text, text, int, text) IS
'At most max_items (1 to 1,000) hosts that accept sessions for a target, those with most room first, then by id descending. outcome is live, or lapsed for one that nothing is placed on until it speaks again. available_capacity is what is left of advertised_capacity. after is the position of the last row of the page before; a short page is not the end, an empty one is. 22004, 22023 bad argument, or a position of another target; 42501 no right.';

CREATE FUNCTION reconcile.fetch_offers(max_items int DEFAULT 10)
    RETURNS TABLE (offer_id bigint, host_id text, host_generation bigint, tenant_id text, session_id text,
                   agent_id text, runtime_compatibility_id text, placement text, mode text, desired_generation bigint,
                   workload_version text, workload bytea, binding jsonb, attach_key text,
                   made_at timestamptz, expires_at timestamptz, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_fetch_offers';
COMMENT ON FUNCTION reconcile.fetch_offers(int) IS
'At most max_items (1 to 1,000) sessions that are offered to the hosts of the caller''s now, the oldest offer first; it takes none of them. mode is create or restore; attach_key is the same for whichever host such a session is offered to. 22004, 22023 bad argument.';

CREATE FUNCTION reconcile.accept_offer(offer_id bigint, host_generation bigint, token text)
    RETURNS TABLE (outcome text, epoch bigint, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_accept_offer';
COMMENT ON FUNCTION reconcile.accept_offer(bigint, bigint, text) IS
'Takes the session of an offer to a host of the caller''s, under an epoch of its lease that nobody had before; do nothing before COMMIT. token is random and the host''s own: with the epoch it is the right to act, and who repeats the call with it gets the same answer. remaining counts from when the call was sent. One transaction may accept some hundreds at most. outcome: accepted; repeated (it was, with this token); taken (it was, with another one); refused, withdrawn or expired (it is open no more, or the session was lost since); generation (another generation of the host speaks for the target); stale_offer (something else is wanted of the session by now); lease_busy (another host may still act for it, for remaining); not_found. 22004, 22023 bad argument; 53400 more than 1,000 in one transaction; 54000 no epoch is left; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.refuse_offer(offer_id bigint, code text DEFAULT NULL) RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_refuse_offer';
COMMENT ON FUNCTION reconcile.refuse_offer(bigint, text) IS
'Refuses an offer to a host of the caller''s, so that the next one is asked: code is epoch_mismatch (another host has the session), runtime_mismatch, no_capacity, not_admitting, releasing, runtime_unavailable, or NULL. Returns refused; repeated; conflict (it was, with another code, which stays); accepted, withdrawn or expired (it is open no more); not_found. 22004, 22023 bad argument; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.heartbeat_host(host_id text, host_generation bigint, targets jsonb DEFAULT '[]',
                                         sessions jsonb DEFAULT '[]', ttl interval DEFAULT '1 min',
                                         seen_offer bigint DEFAULT NULL)
    RETURNS TABLE (outcome text, tenant_id text, session_id text, epoch bigint, generation bigint, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_heartbeat_host';
COMMENT ON FUNCTION reconcile.heartbeat_host(text, bigint, jsonb, jsonb, interval, bigint) IS
'All that a host of the caller''s has to say: targets (at most 1,000 objects with agent_id, runtime_compatibility_id, placement, endpoint, isolation_class, accepting, available_capacity, capabilities) are published for ttl, as publish_host_target does, and the leases of sessions (at most 10,000 objects with tenant_id, session_id, epoch, token, residency, accepting) are renewed. available_capacity takes account of these sessions, and of accepted offers up to seen_offer. It waits for nobody who has one of the sessions, which then holds as long as it did, and a fifth of a second, and a second in all, for who has what it offers, which then is left as it was. The first row is of the host: renewed, with how long all that it keeps holds (NULL: it has none), counted from when the call was sent; generation (a later generation, which is told, has spoken: nothing is written, stop all); not_found. Each other row is a session to stop at once: not_found (it is not this host''s), epoch (it is under another one, which is told), released, expired, generation; or to let go: drain. 22004, 22023 bad argument; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.release_session(tenant_id text, session_id text, epoch bigint, token text)
    RETURNS TABLE (outcome text, epoch bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_release_session';
COMMENT ON FUNCTION reconcile.release_session(text, text, bigint, text) IS
'A host of the caller''s has let a session go: another one may have it at once, under a later epoch. outcome: released (also one that may_delete_workload has taken from it); already (it was: nothing is written); epoch (it is under another one, which is told); not_found (it never was there, or is not this holder''s). 22004, 22023 bad argument; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.force_release_session(tenant_id text, session_id text, seen_epoch bigint, reason text)
    RETURNS TABLE (outcome text, epoch bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_force_release_session';
COMMENT ON FUNCTION reconcile.force_release_session(text, text, bigint, text) IS
'Takes a session from its host, whoever that is, so that another one may have it at once: for a host that is known to be gone, as one that still acts for it is not asked, and learns of it with its next heartbeat. Who did it and why (1 to 1,000 bytes) is kept with the term of its lease. outcome: released; already (nobody has it: nothing is written); epoch (seen_epoch is not its last one, which is told); not_found (it never was anywhere). 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.owner_of(tenant_id text, session_id text)
    RETURNS TABLE (outcome text, epoch bigint, host_id text, host_generation bigint, agent_id text,
                   runtime_compatibility_id text, placement text, endpoint text, residency text, accepting boolean,
                   observed_at timestamptz, expires_at timestamptz, remaining interval, tenant_id text, session_id text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_owner_of';
COMMENT ON FUNCTION reconcile.owner_of(text, text) IS
'Where a session is; as to_jsonb() has the row it is an owner for decide(). outcome: live; expired or released, without a route, but with the epoch that still fences; not_found (it never was anywhere, or the caller has neither the capability place nor the host of the session). 22004, 22023 bad argument.';

CREATE VIEW reconcile.hosts WITH (security_barrier) AS
    SELECT h.host_id COLLATE "default" AS host_id, h.role_name AS role, h.registered_at,
           (r.oid IS NOT NULL) AS bound
      FROM reconcile.host h
      LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) h.role
           AND r.rolname OPERATOR(pg_catalog.=) h.role_name
     WHERE (SELECT reconcile.may_place()) OR h.host_id OPERATOR(pg_catalog.=) ANY ((SELECT reconcile.my_hosts())::text[]);
COMMENT ON VIEW reconcile.hosts IS
'Hosts and the roles that act for them, of the caller''s or with the capability place; bound is false where that role is gone or renamed.';

CREATE VIEW reconcile.host_targets WITH (security_barrier) AS
    SELECT t.agent_id COLLATE "default" AS agent_id,
           t.runtime_compatibility_id COLLATE "default" AS runtime_compatibility_id,
           t.placement COLLATE "default" AS placement,
           t.host_id COLLATE "default" AS host_id,
           t.host_generation, t.revision, t.observed_at, t.expires_at,
           GREATEST(t.expires_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp(), interval '0') AS remaining,
           CASE WHEN t.expires_at IS NULL THEN 'withdrawn'
                WHEN t.expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() THEN 'lapsed'
                WHEN NOT t.accepting THEN 'draining'
                ELSE 'accepting' END AS state,
           t.endpoint COLLATE "default" AS internal_endpoint,
           t.isolation_class COLLATE "default" AS isolation_class,
           t.accepting,
           GREATEST(t.capacity OPERATOR(pg_catalog.-) t.reserved, 0) AS available_capacity,
           t.capacity AS advertised_capacity, t.reserved, t.seen_offer, t.capabilities
      FROM reconcile.host_target t
     WHERE (SELECT reconcile.may_place()) OR t.host_id OPERATOR(pg_catalog.=) ANY ((SELECT reconcile.my_hosts())::text[]);
COMMENT ON VIEW reconcile.host_targets IS
'What each host offers for each target (agent, runtime, placement), of the caller''s hosts or with the capability place; reserved is what was placed since it said how much it has.';

CREATE VIEW reconcile.session_offers WITH (security_barrier) AS
    SELECT o.offer_id, o.tenant_id COLLATE "default" AS tenant_id, o.session_id COLLATE "default" AS session_id,
           o.host_id COLLATE "default" AS host_id, o.host_generation,
           o.mode COLLATE "default" AS mode, o.desired_generation, o.round, o.made_at, o.expires_at,
           CASE WHEN o.state OPERATOR(pg_catalog.=) 'offered' THEN
                GREATEST(o.expires_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp(), interval '0') END AS remaining,
           o.state COLLATE "default" AS state, o.code COLLATE "default" AS code, o.epoch, o.decided_at, o.counted
      FROM reconcile.session_offer o
     WHERE (SELECT reconcile.may_place()) OR o.host_id OPERATOR(pg_catalog.=) ANY ((SELECT reconcile.my_hosts())::text[]);
COMMENT ON VIEW reconcile.session_offers IS
'Offers of sessions and what became of them, of the caller''s hosts or with the capability place; counted ones take room of their target.';

-- What fences never falls, and is never removed.
CREATE TRIGGER host_target_kept BEFORE UPDATE OR DELETE ON reconcile.host_target
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('host_generation', 'revision', 'seen_offer', '=agent_id',
        '=runtime_compatibility_id', '=placement', '=host_id');
CREATE TRIGGER host_target_truncated BEFORE TRUNCATE ON reconcile.host_target
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER registration_kept BEFORE UPDATE OR DELETE ON reconcile.session_registration
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('lease_epoch', '=tenant_id', '=session_id');
CREATE TRIGGER registration_truncated BEFORE TRUNCATE ON reconcile.session_registration
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
CREATE TRIGGER termination_kept BEFORE UPDATE OR DELETE ON reconcile.session_termination
    FOR EACH ROW EXECUTE FUNCTION reconcile.keep_marks('generation', '=tenant_id', '=session_id');
CREATE TRIGGER termination_truncated BEFORE TRUNCATE ON reconcile.session_termination
    FOR EACH STATEMENT EXECUTE FUNCTION reconcile.keep_marks();
ALTER TABLE reconcile.host_target ENABLE ALWAYS TRIGGER host_target_kept;
ALTER TABLE reconcile.host_target ENABLE ALWAYS TRIGGER host_target_truncated;
ALTER TABLE reconcile.session_registration ENABLE ALWAYS TRIGGER registration_kept;
ALTER TABLE reconcile.session_registration ENABLE ALWAYS TRIGGER registration_truncated;
ALTER TABLE reconcile.session_termination ENABLE ALWAYS TRIGGER termination_kept;
ALTER TABLE reconcile.session_termination ENABLE ALWAYS TRIGGER termination_truncated;

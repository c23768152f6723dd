-- What the tests of sessions share, in a schema of their own that is on the path.

-- What a statement is refused with, and of which field; NULL when it is not.
CREATE FUNCTION field_refusal(statement text, OUT code text, OUT field text, OUT problem text, OUT message text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, field = COLUMN_NAME, problem = PG_EXCEPTION_DETAIL,
                            message = MESSAGE_TEXT;
END $$;

-- A host has a session at an epoch of the test's choice, as if it had accepted an offer.
CREATE FUNCTION give(tenant text, session text, host text, epoch bigint, token text, ttl interval DEFAULT '1 h') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    s reconcile.session;
    id bigint;
BEGIN
    SELECT * INTO STRICT s FROM reconcile.session x WHERE x.tenant_id = tenant AND x.session_id = session;
    INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id,
                                         host_generation, desired_generation, mode, round, made_at, expires_at, state,
                                         token, epoch, decided_at, counted)
    VALUES (tenant, session, s.agent_id, 'any', s.placement, host, 1, s.desired_generation, 'create', 1, now(),
            now() + interval '1 min', 'accepted', token, epoch, now(), false)
    RETURNING offer_id INTO id;
    INSERT INTO reconcile.lease AS l (reconciler_id, holder_id, epoch, acquired_at, expires_at, touched_at, ttl_ms,
                                      renewals, engine, home, timeline)
    SELECT 'session:' || s.number, 'offer:' || id, epoch, clock_timestamp(), clock_timestamp() + ttl, clock_timestamp(),
           greatest(extract(epoch FROM ttl) * 1000, 1)::bigint, 0, false, h.home, h.timeline
      FROM reconcile.here() h
    ON CONFLICT (reconciler_id) DO UPDATE
       SET holder_id = EXCLUDED.holder_id, epoch = EXCLUDED.epoch, acquired_at = EXCLUDED.acquired_at,
           expires_at = EXCLUDED.expires_at, touched_at = EXCLUDED.touched_at, ttl_ms = EXCLUDED.ttl_ms;
    -- the epoch of a test may fall
    ALTER TABLE reconcile.session_registration DISABLE TRIGGER registration_kept;
    INSERT INTO reconcile.session_registration (tenant_id, session_id, lease_epoch, observed_at, expires_at, host_id,
                                                host_generation, agent_id, runtime_compatibility_id, placement, endpoint,
                                                residency, accepting, offer_id, token)
    VALUES (tenant, session, epoch, now(), now() + interval '1 h', host, 1, s.agent_id, 'any', s.placement,
            'ws://host.internal', 'resident', true, id, token)
    ON CONFLICT (tenant_id, session_id) DO UPDATE
       SET lease_epoch = EXCLUDED.lease_epoch, host_id = EXCLUDED.host_id, offer_id = EXCLUDED.offer_id,
           token = EXCLUDED.token;
    ALTER TABLE reconcile.session_registration ENABLE ALWAYS TRIGGER registration_kept;
END $$;

-- Its lease is over.
CREATE FUNCTION lapse(tenant text, session text) RETURNS void
LANGUAGE sql AS $$
    UPDATE reconcile.lease l SET expires_at = l.touched_at
      FROM reconcile.session s
     WHERE s.tenant_id = tenant AND s.session_id = session AND l.reconciler_id = 'session:' || s.number;
$$;

-- Removes what the tests made of these tenants, which nobody else can.
CREATE FUNCTION clean(tenants text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t record;
    stands text[] := '{session_pointer,session_command,session_claim,session_registration,session_observed,session_offer}';
    name text;
BEGIN
    DELETE FROM reconcile.lease l USING reconcile.session s
     WHERE s.tenant_id LIKE tenants AND l.reconciler_id = 'session:' || s.number;
    FOREACH name IN ARRAY stands || '{session}'::text[] LOOP
        FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = ('reconcile.' || name)::regclass AND NOT tgisinternal LOOP
            EXECUTE format('ALTER TABLE reconcile.%I DISABLE TRIGGER %I', name, t.tgname);
        END LOOP;
        EXECUTE format('DELETE FROM reconcile.%I WHERE tenant_id LIKE $1', name) USING tenants;
        FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = ('reconcile.' || name)::regclass AND NOT tgisinternal LOOP
            EXECUTE format('ALTER TABLE reconcile.%I ENABLE ALWAYS TRIGGER %I', name, t.tgname);
        END LOOP;
    END LOOP;
END $$;

-- What the tests of hosts share, in a schema of their own that is on the path.

-- What a statement is refused with, and of which field; NULL when it is not.
CREATE FUNCTION refusal(statement text, OUT code text, OUT field text, OUT problem text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, field = COLUMN_NAME, problem = MESSAGE_TEXT;
END $$;

-- Its number takes account of all that was offered to it so far, unless the test says of how much.
CREATE FUNCTION publish(host text, generation bigint, capacity int, accepting boolean DEFAULT true, runtime text DEFAULT 'rt',
                        placement text DEFAULT 'pooled', seen bigint DEFAULT NULL, isolation text DEFAULT 'cross_tenant_isolated',
                        OUT outcome text, OUT mark bigint, OUT revision bigint)
LANGUAGE sql AS $$
    SELECT p.outcome, p.generation, p.revision
      FROM reconcile.publish_host_target(host, generation, 'agent', runtime, placement, 'wss://' || host || ':9/x', isolation,
                                         accepting, capacity, '5 min', '{}',
                                         coalesce(seen, (SELECT max(o.offer_id) FROM reconcile.session_offers o WHERE o.host_id = host))) p;
$$;

-- As the ranking has it: host, outcome, what is left.
CREATE FUNCTION ranking(runtime text DEFAULT 'rt', max int DEFAULT 32, placement text DEFAULT 'pooled') RETURNS text
LANGUAGE sql AS $$
    SELECT string_agg(h.host_id || ' ' || h.outcome || ' ' || h.available_capacity, ', ')
      FROM reconcile.compatible_hosts('agent', runtime, placement, max) h;
$$;

-- Its time is over.
CREATE FUNCTION lapse_target(host text) RETURNS void
LANGUAGE sql AS $$
    UPDATE reconcile.host_target SET observed_at = '2000-01-01', expires_at = '2000-01-02' WHERE host_id = host;
$$;

CREATE FUNCTION lapse_offer(id bigint) RETURNS void
LANGUAGE sql AS $$
    UPDATE reconcile.session_offer SET expires_at = clock_timestamp() WHERE offer_id = id;
$$;

CREATE FUNCTION lapse_lease(tenant text, session text) RETURNS void
LANGUAGE sql AS $$
    UPDATE reconcile.lease l SET expires_at = l.touched_at FROM reconcile.session s
     WHERE s.tenant_id = tenant AND s.session_id = session AND l.reconciler_id = 'session:' || s.number;
    UPDATE reconcile.session_registration SET expires_at = observed_at WHERE tenant_id = tenant AND session_id = session;
$$;

-- The open offer of a session.
CREATE FUNCTION offer(tenant text, session text) RETURNS bigint
LANGUAGE sql AS $$
    SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = tenant AND session_id = session AND state = 'offered';
$$;

-- Removes what a test made, which nobody else can.
CREATE FUNCTION clean(tenants text, hosts text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    t record;
    name text;
BEGIN
    DELETE FROM reconcile.lease_term l USING reconcile.session s
     WHERE s.tenant_id LIKE tenants AND l.reconciler_id = 'session:' || s.number;
    DELETE FROM reconcile.lease l USING reconcile.session s
     WHERE s.tenant_id LIKE tenants AND l.reconciler_id = 'session:' || s.number;
    FOREACH name IN ARRAY '{session_pointer,session_command,session_claim,session_registration,session_observed,session_offer,
                            session_search,session_workload,session_termination,session,host_target,host}'::text[] LOOP
        FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = ('reconcile.' || name)::regclass AND NOT tgisinternal LOOP
            EXECUTE format('ALTER TABLE reconcile.%I DISABLE TRIGGER %I', name, t.tgname);
        END LOOP;
        EXECUTE format('DELETE FROM reconcile.%I WHERE %I LIKE $1', name, CASE WHEN name ~ '^host' THEN 'host_id' ELSE 'tenant_id' END)
          USING CASE WHEN name ~ '^host' THEN hosts ELSE tenants END;
        FOR t IN SELECT tgname FROM pg_trigger WHERE tgrelid = ('reconcile.' || name)::regclass AND NOT tgisinternal LOOP
            EXECUTE format('ALTER TABLE reconcile.%I ENABLE ALWAYS TRIGGER %I', name, t.tgname);
        END LOOP;
    END LOOP;
END $$;

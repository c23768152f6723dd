-- Where a session belongs, as plain SELECTs: decide() is pure.
\set SHOW_CONTEXT never
\set VERBOSITY terse
BEGIN;
CREATE TEMP TABLE fact ON COMMIT DROP AS SELECT
    '{"tenant_id": "t", "session_id": "s", "agent_id": "a", "runtime_compatibility_id": "r", "placement": "pooled"}'::jsonb AS session,
    '{"tenant_id": "t", "session_id": "s", "agent_id": "a", "runtime_compatibility_id": "r", "placement": "pooled",
      "residency": "resident", "accepting": true, "lease_epoch": 7, "expires_at": "2030-01-01T00:00:10+00:00"}'::jsonb AS owner,
    '{"host_id": "h1", "agent_id": "a", "runtime_compatibility_id": "r", "placement": "pooled",
      "isolation_class": "cross_tenant_isolated", "accepting": true, "available_capacity": 3}'::jsonb AS host,
    '2030-01-01 00:00:00+00'::timestamptz AS at;

-- A1: an owner that it may stay with beats every candidate; its epoch comes with it
SELECT d.outcome, d.rule, d.owner->'lease_epoch' AS epoch, d.target
  FROM fact, reconcile.decide(session, owner, jsonb_build_array(host), at) d;

-- A2: each single change of the owner sends it to the candidate
SELECT c.change, d.outcome, d.rule, d.owner, d.target->>'host_id' AS host
  FROM fact, (VALUES
    ('{"runtime_compatibility_id": "r2"}'), ('{"agent_id": "a2"}'), ('{"placement": "dedicated"}'), ('{"tenant_id": "t2"}'),
    ('{"session_id": "s2"}'), ('{"residency": "releasing"}'), ('{"residency": "attaching"}'), ('{"residency": "cold"}'),
    ('{"residency": null}'), ('{"accepting": false}'), ('{"accepting": null}'), ('{"expires_at": "2030-01-01T00:00:00+00:00"}'),
    ('{"expires_at": "2029-12-31T23:59:59.999999+00:00"}'), ('{"expires_at": null}'), ('{"expires_at": "-infinity"}')) c (change),
    reconcile.decide(session, owner || c.change::jsonb, jsonb_build_array(host), at) d;
-- and a microsecond more is enough; whatever the zone that it is written in
SELECT c.expires_at, d.outcome
  FROM fact, (VALUES ('2030-01-01T00:00:00.000001+00:00'), ('2030-01-01T02:00:00.000001+02:00'), ('2030-01-01T02:00:00+02:00'),
    ('infinity')) c (expires_at),
    reconcile.decide(session, owner || jsonb_build_object('expires_at', c.expires_at), NULL, at) d;
-- more than it asks for is no matter
SELECT d.outcome FROM fact, reconcile.decide(session, owner || '{"host_generation": 9, "other": [1]}', NULL, at) d;

-- A3, A4: who was not observed is no owner, nor is one of whom nothing is known
SELECT d.outcome, d.rule, d.owner, d.target FROM fact, reconcile.decide(session, NULL, '[]', at) d;
SELECT d.outcome FROM fact, reconcile.decide('{}', '{}', '[]', at) d;
SELECT d.outcome FROM fact, reconcile.decide(session - 'agent_id', owner - 'agent_id', '[]', at) d;
SELECT d.outcome FROM fact, reconcile.decide(session, '{}', NULL, at) d;

-- A5: the first that is not admissible is passed over, and alone it is no capacity
SELECT c.change, d.outcome, d.target->>'host_id' AS host, alone.outcome AS alone, alone.target
  FROM fact, (VALUES
    ('{"available_capacity": 0}'), ('{"available_capacity": -1}'), ('{"available_capacity": null}'), ('{"accepting": false}'),
    ('{"runtime_compatibility_id": "r2"}'), ('{"agent_id": "a2"}'), ('{"placement": "dedicated"}'),
    ('{"isolation_class": "tenant_exclusive"}'), ('{"isolation_class": null}')) c (change),
    reconcile.decide(session, NULL, jsonb_build_array(host || c.change::jsonb, host || '{"host_id": "h2"}'), at) d,
    reconcile.decide(session, NULL, jsonb_build_array(host || c.change::jsonb), at) alone;
-- capabilities: all that are asked for, whatever else there is
SELECT c.asked, c.has, d.outcome
  FROM fact, (VALUES ('[]', '[]'), ('["x"]', '[]'), ('["x"]', '["x"]'), ('["x", "y"]', '["y"]'), ('["x", "y"]', '["y", "z", "x"]'),
    ('[]', '["x"]')) c (asked, has),
    reconcile.decide(session || jsonb_build_object('requires', c.asked::jsonb), NULL,
        jsonb_build_array(host || jsonb_build_object('capabilities', c.has::jsonb)), at) d;

-- A6: of equal ones always the first; they are never ranked anew
SELECT DISTINCT d.target->>'host_id' AS host
  FROM fact, generate_series(1, 64) i,
    reconcile.decide(session, NULL, (SELECT jsonb_agg(host || jsonb_build_object('host_id', 'h' || j, 'n', i)) FROM generate_series(1, 5) j), at) d;
SELECT d.target->>'host_id' AS host
  FROM fact, reconcile.decide(session, NULL, jsonb_build_array(host, host || '{"host_id": "h2", "available_capacity": 9}'), at) d;

-- A7: a dedicated one ignores a free seat; but not its owner
SELECT d.outcome, d.rule, d.target FROM fact, reconcile.decide(session || '{"placement": "dedicated"}', NULL, jsonb_build_array(host), at) d;
SELECT d.outcome, d.rule FROM fact,
    reconcile.decide(session || '{"placement": "dedicated"}', owner || '{"placement": "dedicated"}', jsonb_build_array(host), at) d;
-- A8: nobody here knows of such a placement
SELECT p.placement, d.outcome, d.rule FROM fact, (VALUES ('shared'), (''), (NULL)) p (placement),
    reconcile.decide(session || jsonb_build_object('placement', p.placement), NULL, jsonb_build_array(host), at) d;

-- it is immutable, so it may stand in an index, and anybody may ask
SELECT provolatile, proparallel, has_function_privilege('public', oid, 'EXECUTE') AS anybody
  FROM pg_proc WHERE oid = 'reconcile.decide(jsonb, jsonb, jsonb, timestamptz)'::regprocedure;
COMMIT;

-- what is no such fact is refused, and never passed over
CREATE ROLE placement_decide_anybody;
SET ROLE placement_decide_anybody;
SELECT reconcile.decide(NULL, NULL, NULL, now());
SELECT reconcile.decide('{}', NULL, NULL, NULL);
SELECT reconcile.decide('[]', NULL, NULL, now());
SELECT reconcile.decide('1', NULL, NULL, now());
SELECT reconcile.decide('{}', '[]', NULL, now());
SELECT reconcile.decide('{}', NULL, '{}', now());
SELECT reconcile.decide('{}', NULL, '1', now());
SELECT reconcile.decide('{}', NULL, '[1]', now());
SELECT reconcile.decide('{}', NULL, '[[]]', now());
SELECT reconcile.decide('{"agent_id": 1}', NULL, NULL, now());
SELECT reconcile.decide('{"requires": "x"}', NULL, NULL, now());
SELECT reconcile.decide('{"requires": [1]}', NULL, NULL, now());
SELECT reconcile.decide('{"requires": {}}', NULL, NULL, now());
SELECT reconcile.decide('{}', '{"accepting": "yes"}', NULL, now());
SELECT reconcile.decide('{}', NULL, '[{"available_capacity": "1"}]', now());
SELECT reconcile.decide('{}', NULL, '[{"available_capacity": 3000000000}]', now());
-- an instant without its offset would mean something else in another session
SELECT reconcile.decide('{}', '{"expires_at": "2030-01-01T00:00:00"}', NULL, now());
SELECT reconcile.decide('{}', '{"expires_at": "2030-01-01 00:00:00+00"}', NULL, now());
SELECT reconcile.decide('{}', '{"expires_at": "tomorrow"}', NULL, now());
SELECT reconcile.decide('{}', '{"expires_at": "2030-13-01T00:00:00Z"}', NULL, now());
SELECT reconcile.decide('{}', '{"expires_at": 1}', NULL, now());
RESET ROLE;
DROP ROLE placement_decide_anybody;

-- the rows of the catalogue are its facts as they are: rules 1 to 5 on a session that lives
SELECT count(reconcile.register_host(h, session_user)) FROM unnest('{live1,live2}'::text[]) h;
CREATE SCHEMA placement_live;
CREATE FUNCTION placement_live.live(change jsonb DEFAULT '{}', OUT outcome text, OUT rule int, OUT owner text, OUT target text)
LANGUAGE sql AS $$
    SELECT d.outcome, d.rule, d.owner->>'host_id', d.target->>'host_id'
      FROM reconcile.sessions s, reconcile.owner_of(s.tenant_id, s.session_id) o,
           LATERAL (SELECT jsonb_agg(to_jsonb(h)) AS hosts FROM reconcile.compatible_hosts(s.agent_id, s.runtime_compatibility_id, s.placement) h) c,
           LATERAL reconcile.decide(to_jsonb(s) || change, to_jsonb(o), c.hosts, clock_timestamp()) d
     WHERE s.tenant_id = 't-live' AND s.session_id = 's'
$$;
CREATE FUNCTION placement_live.place() RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.place_session('t-live', 's') $$;
CREATE FUNCTION placement_live.accept(OUT outcome text, OUT epoch bigint) LANGUAGE sql AS $$
    SELECT a.outcome, a.epoch FROM reconcile.session_offer o, reconcile.accept_offer(o.offer_id, 1, 'token') a WHERE o.tenant_id = 't-live' AND o.state = 'offered'
$$;
CREATE FUNCTION placement_live.report(epoch bigint, residency text) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(outcome, ' ') FROM reconcile.heartbeat_host('live1', 1, '[]', jsonb_build_array(jsonb_build_object(
        'tenant_id', 't-live', 'session_id', 's', 'epoch', epoch, 'token', 'token', 'residency', residency)))
$$;
SELECT outcome FROM reconcile.create_session('t-live', 's', 'live', 'pooled', 'k', 'r');
SELECT placement_live.live();
SELECT h, p.outcome FROM (VALUES ('live1', 3, '{}'::text[]), ('live2', 2, '{gpu}')) v (h, capacity, capabilities),
    reconcile.publish_host_target(h, 1, 'live', 'r', 'pooled', 'wss://' || h, 'cross_tenant_isolated', true, capacity, '5 min', capabilities) p;
SELECT placement_live.live(), placement_live.live('{"requires": ["gpu"]}') AS requires, placement_live.live('{"requires": ["tpu"]}') AS impossible;
SELECT placement_live.place(), placement_live.accept();
SELECT placement_live.live() AS attaching;
SELECT placement_live.report(1, 'resident'), placement_live.live(), placement_live.live('{"placement": "dedicated"}') AS dedicated, placement_live.live('{"placement": "shared"}') AS shared;
SELECT placement_live.report(1, 'releasing'), placement_live.live() AS releasing;
SELECT outcome FROM reconcile.release_session('t-live', 's', 1, 'token');
SELECT placement_live.live() AS released;
SELECT count(reconcile.unregister_host(h)) FROM unnest('{live1,live2}'::text[]) h;
SELECT placement_live.live() AS nobody;
DROP FUNCTION placement_live.live, placement_live.place, placement_live.accept, placement_live.report;
DROP SCHEMA placement_live;

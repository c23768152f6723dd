-- The statements of ./agent, by their names. Each is a transaction, and may be sent again:
-- that is what tokens, epochs and revisions are for.

-- generation
SELECT greatest(max(host_generation) + 1, (1000 * extract(epoch FROM clock_timestamp()))::bigint)
  FROM reconcile.host_targets WHERE host_id = :'host';

-- heartbeat
WITH said AS (
    SELECT f[1] AS id, f[2] AS tenant_id, f[3] AS session_id, f[4] AS epoch, f[5] AS token
      FROM string_to_table(nullif(:'said', ''), E'\n') line, string_to_array(line, E'\x1f') f)
SELECT outcome, floor(1000 * extract(epoch FROM remaining)), id
  FROM reconcile.heartbeat_host(:'host', :generation,
      CASE WHEN :'stopping' = '' THEN jsonb_build_array(jsonb_build_object(
          'agent_id', 'room', 'runtime_compatibility_id', 'v1', 'placement', 'pooled', 'endpoint', 'ws://' || :'host' || ':80',
          'isolation_class', 'cross_tenant_isolated', 'available_capacity', :room)) ELSE '[]' END,
      (SELECT coalesce(jsonb_agg(to_jsonb(said) - 'id'), '[]') FROM said), 3 * interval :'heartbeat')
  LEFT JOIN said USING (tenant_id, session_id);

-- drain
SELECT outcome FROM reconcile.drain_host_target(:'host', :generation, 'room', 'v1', 'pooled');

-- offers
SELECT offer_id, tenant_id, session_id FROM reconcile.fetch_offers(100);

-- accept
SELECT outcome, epoch, floor(1000 * extract(epoch FROM remaining)) FROM reconcile.accept_offer(:id, :generation, :'token');

-- refuse
SELECT reconcile.refuse_offer(:id, 'no_capacity');

-- release
SELECT outcome FROM reconcile.release_session(:'tenant', :'session', :epoch, :'token');

-- next, the first open command, or the last one behind which none was
SELECT accepted_order, command_id, state, revision, attempt_epoch, attempt_id
  FROM reconcile.session_commands(:'tenant', :'session', :done, 100), LATERAL (SELECT state IN ('applied', 'rejected') AS is_done) d
 ORDER BY is_done, CASE WHEN is_done THEN -accepted_order ELSE accepted_order END LIMIT 1;

-- claim
SELECT outcome, revision FROM reconcile.claim_session_command(:'tenant', :'session', :'command', :epoch, :'token', :revision);

-- reject
SELECT outcome, revision FROM reconcile.reject_session_command(:'tenant', :'session', :'command', :epoch, :'token', :revision);

-- begin
SELECT outcome, revision FROM reconcile.begin_attempt(:'tenant', :'session', :'command', :epoch, :'token', :revision, :'attempt');

-- settle
SELECT outcome, revision FROM reconcile.settle_attempt(:'tenant', :'session', :'command', :epoch, :'token', :revision, :'attempt', :'result');

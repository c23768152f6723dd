-- workload_functions.sql: what a controller of dedicated workloads calls

CREATE FUNCTION reconcile.fetch_intents(controller_id text, max_items int DEFAULT 100, ttl interval DEFAULT '1 min')
    RETURNS TABLE (want text, tenant_id text, session_id text, generation bigint, agent_id text,
                   runtime_compatibility_id text, placement text, workload_version text, workload bytea, name text,
                   state text, host_id text, host_generation bigint, endpoint text, drain_requested_at timestamptz,
                   drain_deadline timestamptz, session_state text, drain_remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_fetch_intents';
COMMENT ON FUNCTION reconcile.fetch_intents(text, int, interval) IS
'Workloads that a controller has to do something about: want is ensure (there is to be one of this name) or remove (see may_delete_workload). At most max_items (1 to 1,000); the next call goes on behind them, around the end to the beginning. The controller counts as there for ttl (at most 15 minutes) from this call. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.report_workload(tenant_id text, session_id text, generation bigint, state text,
                                          host_id text DEFAULT NULL, host_generation bigint DEFAULT NULL,
                                          endpoint text DEFAULT NULL)
    RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_report_workload';
COMMENT ON FUNCTION reconcile.report_workload(text, text, bigint, text, text, bigint, text) IS
'What the controller sees of the workload of a generation: absent, pending, ready (with its host, whose generation is that of the workload), exited or terminating. Returns reported; unchanged (nothing is written); unissued (the session has no such generation yet); superseded (its end is recorded and it is not wanted any more, or that of a later one is); not_found. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.request_drain(tenant_id text, session_id text, generation bigint, timeout interval DEFAULT '1 min')
    RETURNS TABLE (outcome text, host_id text, host_generation bigint, epoch bigint, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_request_drain';
COMMENT ON FUNCTION reconcile.request_drain(text, text, bigint, interval) IS
'Asks the host of a workload to let its session go, within timeout (at most 24 hours); the host hears of it with its heartbeats. outcome: requested; repeated (it was asked before: that deadline stands); unissued, superseded, not_found. epoch is the one at which that host had the session, NULL for none. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.report_drained(tenant_id text, session_id text, generation bigint, host_id text,
                                         host_generation bigint, answer text DEFAULT 'drained')
    RETURNS text
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_report_drained';
COMMENT ON FUNCTION reconcile.report_drained(text, text, bigint, text, bigint, text) IS
'What the host that was asked to drain answers: draining, drained, refused or unsupported. Where the host itself releases the session, nobody need say drained. Returns recorded; repeated; conflict (it was drained, or is decided about, already); mismatch (another host, or generation of it, was asked); not_requested; unissued, superseded, not_found. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.may_delete_workload(tenant_id text, session_id text, generation bigint)
    RETURNS TABLE (outcome text, kind text, reason text, lease_epoch bigint)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_may_delete_workload';
COMMENT ON FUNCTION reconcile.may_delete_workload(text, text, bigint) IS
'May the workload be deleted now? yes: graceful (its host has let the session go) or forced, with the reason; that is stored, the session is registered with that host no more, and the call may be repeated. No: wanted (it is the one to have), not_drained, undecided (its host has the session no more, and nobody says how the drain stands), unissued, superseded, not_found. Pass kind, reason and lease_epoch to record_termination when it is deleted. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.record_termination(tenant_id text, session_id text, generation bigint, kind text,
                                             reason text, lease_epoch bigint)
    RETURNS TABLE (outcome text, field text, generation bigint, recorded_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_record_termination';
COMMENT ON FUNCTION reconcile.record_termination(text, text, bigint, text, text, bigint) IS
'Records how the workload of a generation ended: graceful, at the epoch of its host, or forced (drain_timeout, drain_refused, platform_deleted, workload_terminated; lease_epoch 0 for none). outcome: recorded; replayed (it was, exactly so); mismatch (it was, otherwise: field tells in what; but one that came again in its generation, and that may_delete_workload said this of, is recorded anew); superseded (a later generation''s is recorded); unissued (the session has no such generation yet); not_found. generation and recorded_at are of what is recorded. 22004, 22023 bad argument; 42501 no right; 0A000 above READ COMMITTED; 25006 on a standby.';

CREATE FUNCTION reconcile.get_termination(tenant_id text, session_id text, generation bigint)
    RETURNS TABLE (outcome text, generation bigint, kind text, reason text, lease_epoch bigint, recorded_at timestamptz)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_get_termination';
COMMENT ON FUNCTION reconcile.get_termination(text, text, bigint) IS
'How the workload of a generation ended. outcome: recorded; superseded (only a later generation''s is kept, which is told); not_found. 22004, 22023 bad argument; 42501 no right.';

-- place.sql: where sessions belong, and how they come there

CREATE FUNCTION reconcile.decide(session jsonb, owner jsonb, candidates jsonb, at timestamptz)
    RETURNS TABLE (outcome text, rule int, owner jsonb, target jsonb)
    LANGUAGE c IMMUTABLE PARALLEL SAFE ROWS 1
    AS 'MODULE_PATHNAME', 'reconcile_decide';
COMMENT ON FUNCTION reconcile.decide(jsonb, jsonb, jsonb, timestamptz) IS
'Where a session belongs, as a pure function: session is a row of the view sessions, owner where it is (NULL: not observed), candidates an array of rows of compatible_hosts, the best first, each as to_jsonb() has it; session may have "requires", an array of capabilities. reuse_owner (with owner), reconcile_dedicated, attach_pooled (with target), no_capacity, undecided. 22004, 22023 bad argument.';

CREATE FUNCTION reconcile.control_shards() RETURNS int
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_control_shards';
COMMENT ON FUNCTION reconcile.control_shards() IS
'How many shards the commands of sessions are swept in; the first call, command or set_placement fixes it. 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.set_placement(changes jsonb) RETURNS jsonb
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_set_placement';
COMMENT ON FUNCTION reconcile.set_placement(jsonb) IS
'Changes how sessions are placed and returns all that holds from now on; makes the loops placement and placement_sweeps, owned by the caller, where they are not there. Keys: control_shards (1 to 4,096; fixed at its first use), claim_ttl (at most 5 min), candidate_limit (1 to 1,000), replace_attempts (1 to 10), replace_backoff (at most 5 s), offer_ttl (at most 5 min), session_ttl (at most 1 h), horizon, interval, page_limit (1 to 1,000), max_pages (1 to 1,024); durations are strings, null is the default, and interval < claim_ttl < horizon. 22004, 22023 bad argument or unknown key; 0A000 isolation level; 25006 read-only; 42501 no right; 55000 control_shards is fixed, or the caller cannot connect.';

CREATE FUNCTION reconcile.place_session(tenant_id text, session_id text, desired jsonb DEFAULT NULL, claim_token text DEFAULT NULL)
    RETURNS TABLE (outcome text, rule int, host_id text, host_generation bigint, lease_epoch bigint, offer_id bigint,
                   generation bigint, desired_writes int, replacements int, remaining interval)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_place_session';
COMMENT ON FUNCTION reconcile.place_session(text, text, jsonb, text) IS
'Places a session now, whether a command asks for it or not. desired {"placement", "runtime_compatibility_id", "workload_version", "workload" in hexadecimal} is written first, unless it is so already; claim_token is that of the caller''s claim. reuse_owner, deferred (somebody else has a claim), attach_pooled (a host was asked), offered (one was asked before), lease_busy, backoff, no_capacity, contended (hosts were busy with other placements), registry_stale, reconcile_dedicated, no_controller, released, no_launch_template, sequence (no generation left), not_found; rule is the number of the rule that said so, in the reference''s list; remaining is the time until another look is worth it. 22004, 22023 bad field; 0A000 isolation level; 25006 read-only; 42501 no right.';

CREATE FUNCTION reconcile.explain_placement(tenant_id text, session_id text)
    RETURNS TABLE (step text, host_id text, verdict text, why text)
    LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 20 SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_explain_placement';
COMMENT ON FUNCTION reconcile.explain_placement(text, text) IS
'What place_session would do now, and why: rows session, owner, claim, offer, lease, search, asked, host (of a pooled one: chosen, admissible, or passed_over and why; at most 1,000) or workload (of a dedicated one), and last outcome; writes nothing. No row where there is no such session. 22004, 22023 bad field; 42501 no right.';

CREATE FUNCTION reconcile.place_entity(entity_id text) RETURNS interval
    LANGUAGE c VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
    AS 'MODULE_PATHNAME', 'reconcile_place_entity';
COMMENT ON FUNCTION reconcile.place_entity(text) IS
'The reconciler of the loop placement: places the session of that number if a command asks for it, and returns when another look is worth it. 22004, 22023 bad argument; 0A000 isolation level; 25006 read-only; 42501 no right.';

-- grants.sql: the last part of the script: ACLs of everything above
--
-- Nothing is granted to PUBLIC but USAGE and the functions named here;
-- grant_access() gives EXECUTE on the functions of a capability.

-- The functions of each capability, as GRANT names them.  A loop's owner has
-- all of them on his loop, so "define" comes with every other one.
CREATE FUNCTION reconcile.capability_functions(capability text) RETURNS SETOF text
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.oid::pg_catalog.regprocedure::text
      FROM (VALUES
        ('observe', 'metrics'), ('observe', 'metrics_text'),
        ('trigger', 'enqueue'), ('trigger', 'enqueue_many'),
        ('lease', 'acquire_lease'), ('lease', 'try_acquire_lease'), ('lease', 'renew_lease'),
        ('lease', 'renew_leases'), ('lease', 'release_lease'), ('lease', 'bind_lease'),
        ('fence', 'apply_fenced'), ('fence', 'apply_fenced_many'),
        ('work', 'claim_work'), ('work', 'extend_work'), ('work', 'complete_work'), ('work', 'complete_works'),
        ('work', 'fail_work'), ('work', 'next_due'),
        ('operate', 'force_release_lease'), ('operate', 'override_fence'), ('operate', 'bump_incarnation'),
        ('operate', 'pause_loop'), ('operate', 'resume_loop'), ('operate', 'revive'), ('operate', 'forget'),
        ('operate', 'run_loop'), ('operate', 'run_entity'), ('operate', 'drain_loop'), ('operate', 'cancel_run'),
        ('operate', 'revive_all'), ('operate', 'resume_all'),
        ('observe', 'wait_idle'), ('observe', 'explain'),
        ('command', 'accept_command'), ('command', 'claim_commands'), ('command', 'acknowledge_command'),
        ('command', 'complete_command'), ('command', 'cancel_command'), ('command', 'resolve_command'),
        ('command', 'explain_command'), ('command', 'desired_state_of'), ('command', 'desired_states_since'),
        ('command', 'effective_state'), ('command', 'report_observed'), ('command', 'audit_access'),
        ('command', 'audit_verify'), ('command', 'set_command_retention'), ('command', 'prune_commands'),
        ('place', 'publish_host_target'), ('place', 'drain_host_target'), ('place', 'compatible_hosts'),
        ('place', 'fetch_offers'), ('place', 'accept_offer'), ('place', 'refuse_offer'), ('place', 'heartbeat_host'),
        ('place', 'release_session'), ('place', 'owner_of'),
        ('place', 'fetch_intents'), ('place', 'report_workload'), ('place', 'request_drain'), ('place', 'report_drained'),
        ('place', 'may_delete_workload'), ('place', 'record_termination'), ('place', 'get_termination'),
        ('operate', 'register_host'), ('operate', 'unregister_host'), ('operate', 'force_release_session'),
        ('place', 'create_session'), ('place', 'get_session'), ('place', 'update_desired_state'),
        ('place', 'update_host_state'), ('place', 'placement_intent'), ('place', 'acquire_claim'),
        ('place', 'release_claim'), ('place', 'get_claim'), ('place', 'admit_session_command'),
        ('place', 'claim_session_command'), ('place', 'begin_attempt'), ('place', 'settle_attempt'),
        ('place', 'reject_session_command'), ('place', 'session_commands'), ('place', 'due_session_commands'),
        ('place', 'set_pointer'), ('place', 'clear_pointer'), ('place', 'get_pointer'),
        ('operate', 'sweep_commands'), ('define', 'register_action'),
        ('place', 'control_shards'), ('place', 'place_session'), ('place', 'explain_placement'), ('place', 'place_entity'),
        ('place', 'sweep_claims'), ('operate', 'set_placement'), ('operate', 'sweep_pending'), ('operate', 'sweep_deadlines'),
        ('operate', 'sweep_host_targets'), ('operate', 'sweep_offers'), ('operate', 'sweep_entity'), ('operate', 'sweep_names'),
        ('define', 'create_loop'), ('define', 'alter_loop'), ('define', 'drop_loop'),
        ('define', 'watch'), ('define', 'unwatch'), ('define', 'attach_fence'), ('define', 'detach_fence')
      ) AS f (capability, name)
      JOIN pg_catalog.pg_proc p ON p.proname OPERATOR(pg_catalog.=) f.name
       AND p.pronamespace OPERATOR(pg_catalog.=) 'reconcile'::pg_catalog.regnamespace
     WHERE f.capability OPERATOR(pg_catalog.=) capability_functions.capability
        OR capability_functions.capability OPERATOR(pg_catalog.=) 'define';
END;
COMMENT ON FUNCTION reconcile.capability_functions(text) IS
'The functions that EXECUTE is granted on with a capability.';

-- What is read with the permissions "view" and "audit_view", and of which columns; which
-- rows is said by the policies. Not what makes a claim good, nor what a key was for.
CREATE FUNCTION reconcile.journal_relations(permission text) RETURNS TABLE (relation text, columns text)
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'reconcile.' OPERATOR(pg_catalog.||) r.relation, r.columns
      FROM (VALUES
        ('view', 'command', ' (tenant_id, command_id, idempotency_key, action, target_kind, target_name, mode, '
         'status, failure, desired_revision, actor, role_name, reason, options, confirmed, '
         'authentication_method, capability, accepted_at, deadline, claimant, claim_expires_at, '
         'dispatched_at, acknowledged_at, completed_at, worker_id, protocol, '
         'capability_available, requested_at, worker_completed_at)'),
        ('view', 'command_resolution', ''), ('view', 'desired_state', ''), ('view', 'observed_state', ''),
        ('view', 'commands', ''), ('view', 'desired_states', ''), ('view', 'desired_drift', ''),
        ('audit_view', 'audit_event', ' (tenant_id, sequence, event, happened_at, command_id, idempotency_key, actor, '
         'role_name, session_role, authentication_method, action, target_kind, target_name, '
         'reason, options, failure, detail, home, hash_version, hash)'),
        ('audit_view', 'audit_events', ''), ('audit_view', 'command_timeline', '')
      ) AS r (permission, relation, columns)
     WHERE r.permission OPERATOR(pg_catalog.=) journal_relations.permission;
END;
COMMENT ON FUNCTION reconcile.journal_relations(text) IS
'The relations and columns that SELECT is granted on with a permission.';

REVOKE ALL ON ALL ROUTINES IN SCHEMA reconcile FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA reconcile FROM PUBLIC;
REVOKE ALL ON SCHEMA reconcile FROM PUBLIC;
GRANT USAGE ON SCHEMA reconcile TO PUBLIC;
GRANT EXECUTE ON FUNCTION
    reconcile.permanent_error(text),
    reconcile.current_run(),
    reconcile.fenced_epoch(text),
    reconcile.fenced_write(text, jsonb),
    reconcile.json_merge_patch(jsonb, jsonb),
    reconcile.incarnation(),
    reconcile.next_desired_state(text, bigint, text, text),
    reconcile.may_read_command(text, text, text, text),
    reconcile.may_observe(text),
    reconcile.decide(jsonb, jsonb, jsonb, timestamptz),
    reconcile.may_place(),
    reconcile.my_hosts(),
    reconcile.workload_identity(text, text, text, text, bigint),
    reconcile.placement_key(text, text, text, text, text, bytea),
    reconcile.revive_key(text, text, text, text, text, bytea, bigint),
    reconcile.control_shard_of(text, text, int),
    reconcile.may_see_errors(text),
    reconcile.here(),
    reconcile.running(),
    reconcile.worker_list(),
    reconcile.loop_counts(),
    reconcile.recent_runs(),
    reconcile.health_checks()
    TO PUBLIC;
-- These show a caller only what he may observe.
GRANT SELECT ON reconcile.leases, reconcile.lease_history, reconcile.resources, reconcile.fence_overrides,
    reconcile.loops, reconcile.work, reconcile.dead_letters, reconcile.workers,
    reconcile.runs, reconcile.health, reconcile.command_grants, reconcile.retention_policies,
    reconcile.sessions, reconcile.hosts, reconcile.host_targets, reconcile.session_offers TO PUBLIC;
-- What can be commanded; not by whose function.
GRANT SELECT (action, target_kind, mode, confirm, desired_state, builtin) ON reconcile.command_action TO PUBLIC;

-- What users see of the journal: conditions on the views are found by indexes, and each sees what concerns him.
CREATE ROLE journal_views_ops NOLOGIN;
CREATE ROLE journal_views_kim NOLOGIN;
CREATE ROLE journal_views_lee NOLOGIN;
GRANT journal_views_ops TO journal_views_kim;

-- By which index is that found, where any is better than none? (That of a policy is left out.)
CREATE FUNCTION found_by(query text) RETURNS text LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan;
    RETURN (SELECT string_agg(DISTINCT m[1], ', ')
              FROM regexp_matches(plan::text, '"Index Name": "((?:command|audit_event)_(?!resolution|tenant_id)\w+)"', 'g') m);
END $$;

SELECT reconcile.grant_command('journal_views_ops', 'v', p) FROM unnest('{drain,view,audit_view,dispatch,resolve}'::text[]) p;
SELECT reconcile.grant_command('journal_views_lee', 'w', 'drain', 'worker', 'w1', effect => 'deny');
SELECT reconcile.grant_command('journal_views_lee', 'v', 'retention_configure');
SELECT count(*) FROM generate_series(1, 3) i, reconcile.accept_command('v', 'k' || i, 'drain', 'worker', 'w' || i, 'why', deadline_in => '5 min', command_id => 'c' || i);
-- events of no command, and what is known of all: whatever was there before, and whenever it was analyzed
SELECT count(reconcile.audit_access('v', 'payload_view', 'failure', 'f', 'many')) FROM generate_series(1, 500);
ANALYZE reconcile.audit_event;

SET ROLE journal_views_kim;
SELECT found_by($$SELECT * FROM reconcile.commands WHERE tenant_id = 'v' AND command_id = 'c1'$$);
SELECT found_by($$SELECT * FROM reconcile.commands WHERE tenant_id = 'v' ORDER BY accepted_at DESC LIMIT 20$$);
SELECT found_by($$SELECT * FROM reconcile.command_timeline WHERE tenant_id = 'v' AND command_id = 'c1' ORDER BY sequence$$);
SELECT found_by($$SELECT * FROM reconcile.audit_events WHERE tenant_id = 'v' AND command_id = 'c1'$$);
SELECT found_by($$SELECT * FROM reconcile.audit_events WHERE tenant_id = 'v' ORDER BY sequence DESC LIMIT 20$$);
SELECT command_id, event, since_last IS NULL AS first FROM reconcile.command_timeline WHERE tenant_id = 'v' AND command_id = 'c1';

-- A verdict counts before what the worker reports later, and the view says the same as the function.
SELECT command_id, claim_token FROM reconcile.claim_commands('d', ttl => '1 ms') \gset
SELECT pg_sleep(0.01);
RESET ROLE;
SELECT lapsed FROM reconcile.sweep_commands();
SET ROLE journal_views_kim;
SELECT reconcile.resolve_command('v', :'command_id', 'not_executed', '{"looked at": "w1"}', 'no trace of it');
SELECT reconcile.complete_command('v', :'command_id', :'claim_token', 'succeeded');
SELECT status, effective_status FROM reconcile.commands WHERE tenant_id = 'v' AND command_id = :'command_id';
SELECT reason, detail FROM reconcile.explain_command('v', :'command_id');

-- A state that was taken back is nothing to apply.
SELECT reconcile.cancel_command('v', 'c2', 'the wrong one'), reconcile.cancel_command('v', 'c3', 'that, too');
RESET ROLE;
SELECT reconcile.report_observed('v', 'n', 'worker', 'w2', 1, 'draining');
SELECT target_name, worker_id, desired_state, drift FROM reconcile.desired_drift WHERE tenant_id = 'v' ORDER BY target_name COLLATE "C";

-- Grants: of a role that one is a member of; to administrators all.
SET ROLE journal_views_kim;
SELECT role_name, tenant_id, permission, target_kind, target_name, effect, in_force FROM reconcile.command_grants ORDER BY permission COLLATE "C";
SET ROLE journal_views_lee;
SELECT role_name, tenant_id, permission, target_kind, target_name, effect, in_force FROM reconcile.command_grants ORDER BY permission COLLATE "C";
RESET ROLE;
SELECT role_name, count(*) FROM reconcile.command_grants WHERE role_name LIKE 'journal_views%' GROUP BY 1 ORDER BY 1;

-- Policies: for the whole tenant, or not at all.
SELECT reconcile.set_command_retention('v', '90 days', keep_keys => '365 days'), reconcile.set_command_retention('w', '1 day', true);
SET ROLE journal_views_kim;
SELECT * FROM reconcile.retention_policies;
SET ROLE journal_views_lee;
SELECT * FROM reconcile.retention_policies;
RESET ROLE;
SELECT * FROM reconcile.retention_policies ORDER BY 1;

-- Who is renamed keeps what he is denied, and loses what he is allowed.
ALTER ROLE journal_views_lee RENAME TO journal_views_leigh;
SELECT role_name, permission, effect, in_force FROM reconcile.command_grants WHERE role_name = 'journal_views_lee' ORDER BY permission COLLATE "C";
DROP OWNED BY journal_views_leigh;
DROP ROLE journal_views_leigh;
SELECT role_name, permission, effect, in_force FROM reconcile.command_grants WHERE role_name = 'journal_views_lee' ORDER BY permission COLLATE "C";
SELECT reconcile.revoke_command('journal_views_lee', 'w', 'drain', 'worker', 'w1'), reconcile.revoke_command('journal_views_lee', 'v', 'retention_configure');
SELECT count(*) FROM reconcile.command_grants WHERE role_name = 'journal_views_lee';

SELECT reconcile.set_command_retention('v', NULL), reconcile.set_command_retention('w', NULL);
DROP FUNCTION found_by(text);
DROP OWNED BY journal_views_ops, journal_views_kim;
DROP ROLE journal_views_ops, journal_views_kim;

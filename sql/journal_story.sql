--
-- The whole way of a few commands (contract 9.9, PostgresRuntimeIntegration): given, repeated, carried out, listed, audited and pruned.
--
\getenv source PG_ABS_SRCDIR
\set chain :source '/sql/include/journal_chain.sql'
\i :chain
CREATE ROLE regress_story_ops;
CREATE ROLE regress_story_hands;
CREATE ROLE regress_story_others;
SELECT count(reconcile.grant_command('regress_story_ops', 'story', p)) FROM unnest('{drain,retry,view,audit_view,payload_view}'::text[]) p;
SELECT count(reconcile.grant_command('regress_story_hands', 'story', 'dispatch')) AS hands;
SELECT count(reconcile.grant_command('regress_story_others', 'story_other', p)) FROM unnest('{view,audit_view}'::text[]) p;

-- given, and given again: it is carried out once, and its key is no other command's
SET ROLE regress_story_ops;
SELECT command_id FROM reconcile.accept_command('story', 'first', 'drain', 'worker_group', 'g', 'deploy', deadline_in => '5 min') \gset
SELECT outcome, status, created, command_id = :'command_id' AS the_same FROM reconcile.accept_command('story', 'first', 'drain', 'worker_group', 'g', 'deploy', deadline_in => '5 min');
SET ROLE regress_story_hands;
SELECT command_id = :'command_id' AS the_same, claim_token, action, target_name FROM reconcile.claim_commands('hands', ttl => '5 min') \gset claimed_
SELECT :'claimed_the_same' AS the_same, :'claimed_action' AS action, :'claimed_target_name' AS target_name;
SELECT count(*) FROM reconcile.claim_commands('hands', ttl => '5 min');
SELECT reconcile.acknowledge_command('story', :'command_id', :'claimed_claim_token', 'worker-1', '1.0'),
       reconcile.complete_command('story', :'command_id', :'claimed_claim_token', 'succeeded', worker_id => 'worker-1', protocol => '1.0');
SET ROLE regress_story_ops;
SELECT outcome, status, created, command_id = :'command_id' AS the_same FROM reconcile.accept_command('story', 'first', 'drain', 'worker_group', 'g', 'deploy', deadline_in => '5 min');
SELECT outcome, created FROM reconcile.accept_command('story', 'first', 'drain', 'worker_group', 'g', 'another reason', deadline_in => '5 min');
SELECT state, revision, command_id = :'command_id' AS of_the_command FROM reconcile.desired_state_of('story', 'worker_group', 'g');

-- listed, the newest first, page by page
SELECT count(*) FILTER (WHERE outcome = 'accepted') AS accepted FROM generate_series(2, 3) n, reconcile.accept_command('story', 'key ' || n, 'retry', 'failure', 'f', 'again', deadline_in => '5 min');
SELECT idempotency_key, accepted_at, status FROM reconcile.commands WHERE tenant_id = 'story' ORDER BY accepted_at DESC, command_id DESC LIMIT 1 \gset page_
SELECT :'page_idempotency_key' AS idempotency_key, :'page_status' AS status;
SELECT idempotency_key, status FROM reconcile.commands WHERE tenant_id = 'story' AND accepted_at < :'page_accepted_at' ORDER BY accepted_at DESC, command_id DESC LIMIT 1;
-- of another tenant nobody sees anything
SET ROLE regress_story_others;
SELECT (SELECT count(*) FROM reconcile.commands) AS commands, (SELECT count(*) FROM reconcile.desired_state_of('story', 'worker_group', 'g')) AS states, (SELECT count(*) FROM reconcile.audit_events WHERE tenant_id = 'story') AS events;

-- the steps, in their order; a sensitive read is of no key
SET ROLE regress_story_ops;
SELECT event FROM reconcile.audit_events WHERE command_id = :'command_id' ORDER BY sequence;
SELECT reconcile.audit_access('story', 'payload_view', 'failure', 'f', 'ticket 1') > 0 AS allowed;
SELECT event, action, idempotency_key, command_id FROM reconcile.audit_events WHERE tenant_id = 'story' ORDER BY sequence DESC LIMIT 1;

-- two of three old ones are over, one of these is what a desired state comes from; one is unfinished, one is recent
SELECT command_id AS canceled FROM reconcile.commands WHERE tenant_id = 'story' AND idempotency_key = 'key 2' \gset
SELECT reconcile.cancel_command('story', :'canceled', 'no need');
RESET ROLE;
SELECT journal_age('story', '3 h');
SELECT outcome FROM reconcile.accept_command('story', 'recent', 'retry', 'failure', 'f', 'again') \gset
SELECT reconcile.set_command_retention('story', '1 h');
SELECT outcome, events, commands, more FROM reconcile.prune_commands('story', 1);
SELECT outcome, events, commands, more FROM reconcile.prune_commands('story', 1000);
SELECT idempotency_key, status FROM reconcile.command WHERE tenant_id = 'story' ORDER BY accepted_at, command_id COLLATE "C";
-- what was unfinished holds its events, and what comes after them
SELECT command_id AS unfinished FROM reconcile.command WHERE tenant_id = 'story' AND idempotency_key = 'key 3' \gset
SELECT reconcile.cancel_command('story', :'unfinished', 'no need');
SELECT journal_age('story', '3 h');
SELECT outcome, events > 0 AS events, commands, more FROM reconcile.prune_commands('story', 1000);
SELECT idempotency_key, status FROM reconcile.command WHERE tenant_id = 'story' ORDER BY accepted_at, command_id COLLATE "C";
SELECT idempotency_key, status FROM reconcile.command_tombstone WHERE tenant_id = 'story' ORDER BY 1;
SELECT state, revision, command_id = :'command_id' AS of_the_command FROM reconcile.desired_state_of('story', 'worker_group', 'g');

-- the chain is whole behind what was pruned, also by a head that was kept; each pruning is an event of it
SELECT head_sequence, head_hash FROM reconcile.audit_verify('story') \gset
SELECT outcome, events = (SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = 'story') AS all_of_them FROM reconcile.audit_verify('story', :head_sequence, :'head_hash');
SELECT count(*) AS prunings FROM reconcile.audit_event WHERE tenant_id = 'story' AND event = 'pruned';
SELECT journal_clean('story', 'story_other');
DROP OWNED BY regress_story_ops, regress_story_hands, regress_story_others;
DROP ROLE regress_story_ops, regress_story_hands, regress_story_others;

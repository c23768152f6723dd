-- Placing sessions by hand: what place_session() does, in the order in which it asks.
\set SHOW_CONTEXT never
\set VERBOSITY terse
CREATE SCHEMA placement_place;
SET search_path = placement_place, public;

-- What a placement comes to; ids and instants left out.
CREATE FUNCTION place(s text, desired jsonb DEFAULT NULL, token text DEFAULT NULL,
    OUT outcome text, OUT rule int, OUT host text, OUT epoch bigint, OUT generation bigint, OUT writes int, OUT again int, OUT asked boolean, OUT waits boolean)
LANGUAGE sql AS $$
    SELECT p.outcome, p.rule, p.host_id, p.lease_epoch, p.generation, p.desired_writes, p.replacements, p.offer_id IS NOT NULL, p.remaining IS NOT NULL
      FROM reconcile.place_session('place', s, desired, token) p
$$;
CREATE FUNCTION session(s text, agent text DEFAULT 'place', placement text DEFAULT 'pooled', runtime text DEFAULT 'r',
    version text DEFAULT NULL, workload bytea DEFAULT NULL) RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.create_session('place', s, agent, placement, 'create ' || s, runtime, version, workload) $$;
CREATE FUNCTION host(h text, capacity int DEFAULT 5, agent text DEFAULT 'place', isolation text DEFAULT 'cross_tenant_isolated',
    accepting boolean DEFAULT true, capabilities text[] DEFAULT '{}', ttl interval DEFAULT '5 min') RETURNS text
LANGUAGE sql AS $$
    SELECT reconcile.register_host(h, session_user);
    SELECT outcome FROM reconcile.publish_host_target(h, 1, agent, 'r', 'pooled', 'wss://' || h, isolation, accepting, capacity, ttl, capabilities)
$$;
CREATE FUNCTION gone(h text, agent text DEFAULT 'place') RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.drain_host_target(h, 1, agent, 'r', 'pooled') $$;
CREATE FUNCTION open_offer(s text) RETURNS bigint
LANGUAGE sql AS $$ SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = 'place' AND session_id = s AND state = 'offered' $$;
CREATE FUNCTION refuse(s text, code text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$ SELECT reconcile.refuse_offer(open_offer(s), code) $$;
CREATE FUNCTION place_and_refuse(s text, code text) RETURNS text
LANGUAGE plpgsql AS $$ BEGIN RETURN concat_ws(' ', (SELECT concat_ws(' ', outcome, host) FROM place(s)), refuse(s, code)); END $$;
CREATE FUNCTION accept(s text, OUT outcome text, OUT epoch bigint)
LANGUAGE sql AS $$ SELECT outcome, epoch FROM reconcile.accept_offer(open_offer(s), 1, 'token of ' || s) $$;
CREATE FUNCTION report(h text, s text, epoch bigint, residency text DEFAULT 'resident', accepting boolean DEFAULT true) RETURNS text
LANGUAGE sql AS $$
    SELECT string_agg(outcome, ' ') FROM reconcile.heartbeat_host(h, 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 'place', 'session_id', s,
        'epoch', epoch, 'token', 'token of ' || s, 'residency', residency, 'accepting', accepting)))
$$;
CREATE FUNCTION command(s text, c text, kind text DEFAULT 'input', requires text[] DEFAULT '{}', deadline interval DEFAULT '5 min') RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.admit_session_command('place', s, c, kind, 'x', apply_deadline_in => deadline, requires => requires) $$;
CREATE FUNCTION offers(s text) RETURNS text
LANGUAGE sql AS $$ SELECT string_agg(concat_ws(':', host_id, state, code), ' ' ORDER BY offer_id) FROM reconcile.session_offer WHERE tenant_id = 'place' AND session_id = s $$;
-- time passes
CREATE FUNCTION wait_until_late(s text, c text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE clock_timestamp() < (SELECT apply_deadline FROM reconcile.session_command WHERE tenant_id = 'place' AND session_id = s AND command_id = c) LOOP END LOOP;
END $$;
CREATE FUNCTION lapse_offer(s text) RETURNS void
LANGUAGE sql AS $$ UPDATE reconcile.session_offer SET expires_at = clock_timestamp() WHERE offer_id = open_offer(s) $$;
-- the next round is put off by so much, from when that was decided; and then for long, so that no clock matters
CREATE FUNCTION put_off(s text, lo interval, hi interval) RETURNS boolean
LANGUAGE sql AS $$
    WITH was AS (SELECT look_at - outcome_at BETWEEN lo AND hi AS so FROM reconcile.session_search WHERE tenant_id = 'place' AND session_id = s)
    UPDATE reconcile.session_search SET look_at = clock_timestamp() + interval '1 h' FROM was WHERE tenant_id = 'place' AND session_id = s RETURNING was.so
$$;
CREATE FUNCTION lapse_claim(s text) RETURNS void
LANGUAGE sql AS $$ UPDATE reconcile.session_claim SET claimed_at = '2000-01-01', expires_at = '2000-01-02' WHERE tenant_id = 'place' AND session_id = s $$;
CREATE FUNCTION lapse_lease(s text) RETURNS void
LANGUAGE sql AS $$
    UPDATE reconcile.lease l SET expires_at = l.touched_at FROM reconcile.session v
     WHERE v.tenant_id = 'place' AND v.session_id = s AND l.reconciler_id = 'session:' || v.number;
    UPDATE reconcile.session_registration SET expires_at = observed_at WHERE tenant_id = 'place' AND session_id = s;
$$;
-- what is known of the search, and what the last look came to
CREATE FUNCTION search(s text, OUT rounds text, OUT wanted boolean, OUT waits_at text, OUT outcome text)
LANGUAGE sql AS $$
    SELECT format('%s elsewhere, %s in vain', replacements, refusals), wanted, runtime_compatibility_id, outcome
      FROM reconcile.session_search WHERE tenant_id = 'place' AND session_id = s
$$;
CREATE FUNCTION run(s text) RETURNS boolean
LANGUAGE sql AS $$ SELECT reconcile.place_entity(number::text) IS NOT NULL FROM reconcile.session WHERE tenant_id = 'place' AND session_id = s $$;
CREATE FUNCTION lapse_backoff(s text) RETURNS void
LANGUAGE sql AS $$ UPDATE reconcile.session_search SET look_at = clock_timestamp() WHERE tenant_id = 'place' AND session_id = s AND look_at IS NOT NULL $$;

-- a machine that stands still for a while is no reason to lapse
SELECT reconcile.control_shards() > 0 AS fixed;
UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000, session_ttl_ms = 3600000, replace_backoff_ms = 2000;
SET lock_timeout = '30 s';
-- of whatever came before no controller is left
UPDATE reconcile.workload_controller SET polled_at = '2000-01-01', expires_at = clock_timestamp();

-- ----------------------------------------------------------------
-- pooled
SELECT host('big', 9, isolation => 'tenant_exclusive'), host('h1', 3), host('h2', 2), host('drains', 8, accepting => false);
SELECT * FROM place('nobody');
-- B2, C10: one that is a tenant's alone is never asked, nor one that drains; a claim is not taken for it
SELECT session('s1');
SELECT * FROM place('s1');
SELECT outcome FROM reconcile.get_claim('place', 's1');
-- the offer stands: nobody else is asked
SELECT * FROM place('s1');
SELECT offers('s1'), (SELECT reserved FROM reconcile.host_target WHERE agent_id = 'place' AND host_id = 'h1');
-- C1, C15: it takes it, and until it says that it is there it is busy, for whoever comes
SELECT mode FROM reconcile.session_offer WHERE offer_id = open_offer('s1');
SELECT * FROM accept('s1');
SELECT * FROM place('s1');
SELECT report('h1', 's1', 1);
-- B1, C14: it stays where it is, at its epoch, and nothing else is looked at
SELECT * FROM place('s1');
SELECT outcome FROM reconcile.get_claim('place', 's1');
-- what is wanted of it is not written then
SELECT * FROM place('s1', '{"placement": "pooled", "runtime_compatibility_id": "r", "workload_version": "1", "workload": "\\x00"}');
-- an owner that drains, or that has gone, is none; its lease stands until it is over or given back
SELECT report('h1', 's1', 1, 'resident', false), report('h1', 's1', 1, 'releasing', false);
SELECT * FROM place('s1');
SELECT outcome FROM reconcile.release_session('place', 's1', 1, 'token of s1');
-- a new search asks all again
SELECT * FROM place('s1');
SELECT * FROM accept('s1');
SELECT report('h2', 's1', 2), report('h1', 's1', 2);

-- B4: another one's claim defers, whatever is wanted; it is told how long, and the claim stays
SELECT session('s2');
SELECT outcome, claim_token AS token FROM reconcile.acquire_claim('place', 's2', 'replica 1', '4 min') \gset
SELECT * FROM place('s2', '{"placement": "dedicated"}');
SELECT remaining BETWEEN '3 min' AND '4 min' AS told FROM reconcile.place_session('place', 's2');
SELECT outcome, holder_id FROM reconcile.get_claim('place', 's2');
-- who shows its token is the one who works on it; a name is not enough, nor is another token
SELECT outcome FROM place('s2', NULL, 'replica 1');
SELECT outcome, host FROM place('s2', NULL, :'token');
-- it is deferred while an offer is open, too, which stays
SELECT outcome FROM place('s2');
SELECT offers('s2');
-- B5: where it is by now is told all the same
SELECT accept('s2'), report('h2', 's2', 1);
SELECT outcome, host FROM place('s2');
-- B7: a claim that is over is nothing
SELECT session('s3');
SELECT outcome, claim_token AS token FROM reconcile.acquire_claim('place', 's3', 'replica 1', '4 min') \gset
SELECT outcome FROM place('s3');
SELECT lapse_claim('s3');
SELECT outcome, host FROM place('s3');
SELECT session('s4');
SELECT outcome, claim_token AS token FROM reconcile.acquire_claim('place', 's4', 'replica 1', '4 min') \gset
SELECT outcome FROM reconcile.release_claim('place', 's4', 'replica 1', :'token');
SELECT outcome, host FROM place('s4');
-- the outcome stays to be read, for who did not call
SELECT session_id, placement_outcome, placement_outcome_at IS NOT NULL AS dated FROM reconcile.sessions WHERE tenant_id = 'place' ORDER BY 1;

-- C3: whatever the code, the next one is asked at once, and nobody twice
SELECT host('c' || i, 20 - i, 'codes') FROM generate_series(1, 8) i;
SELECT session('codes', 'codes');
SELECT c.code, place_and_refuse('codes', c.code)
  FROM (VALUES ('runtime_mismatch'), ('no_capacity'), ('not_admitting'), ('runtime_unavailable'), ('releasing'), (NULL)) c (code);
-- nor one that does not answer
SELECT outcome, host FROM place('codes');
SELECT lapse_offer('codes');
SELECT reconcile.refuse_offer(open_offer('codes'), 'no_capacity');
SELECT outcome, host FROM place('codes');
SELECT refuse('codes', 'no_capacity');
-- C4, B3: all have refused; that is no error, and what they had reserved is free again
SELECT * FROM place('codes');
SELECT sum(reserved) FROM reconcile.host_target WHERE agent_id = 'codes';
SELECT offers('codes');
-- the next round begins at the top: C18, what is broken is asked first each time, and blocks nobody
SELECT place_and_refuse('codes', NULL), place_and_refuse('codes', NULL);
SELECT outcome, host FROM place('codes');
SELECT accept('codes'), report('c3', 'codes', 1);
SELECT outcome, host FROM place('codes');

-- C5, C6: it is elsewhere: later, once more, and then those last that said so; at last it is said that nobody knows where
SELECT host('e1', 3, 'elsewhere'), host('e2', 2, 'elsewhere'), session('elsewhere', 'elsewhere');
SELECT * FROM place('elsewhere');
SELECT refuse('elsewhere', 'epoch_mismatch');
SELECT * FROM place('elsewhere');
-- C22, C23: half of it to all; a look that comes early changes nothing
SELECT put_off('elsewhere', '1 s', '2 s');
SELECT outcome, waits FROM place('elsewhere');
SELECT lapse_backoff('elsewhere');
SELECT outcome, host, again FROM place('elsewhere');
SELECT refuse('elsewhere', 'no_capacity');
SELECT outcome, host, again FROM place('elsewhere');
SELECT refuse('elsewhere', 'epoch_mismatch');
SELECT outcome, again FROM place('elsewhere');
SELECT put_off('elsewhere', '2 s', '4 s');
SELECT lapse_backoff('elsewhere');
SELECT outcome, host, again FROM place('elsewhere');
SELECT search('elsewhere');
SELECT refuse('elsewhere', 'epoch_mismatch');
SELECT * FROM place('elsewhere');
SELECT offers('elsewhere');
-- and then it begins anew
SELECT outcome, host, again FROM place('elsewhere');
-- a round in which all refuse ends the row of them
SELECT refuse('elsewhere', 'no_capacity'), place_and_refuse('elsewhere', 'epoch_mismatch');
SELECT outcome, again FROM place('elsewhere');
SELECT lapse_backoff('elsewhere');
SELECT place_and_refuse('elsewhere', 'releasing'), place_and_refuse('elsewhere', 'releasing');
SELECT outcome, again FROM place('elsewhere');
SELECT place_and_refuse('elsewhere', 'epoch_mismatch');
SELECT outcome, again FROM place('elsewhere');
-- C5, D3: where it is, its owner says himself, at the epoch of his registration
SELECT lapse_backoff('elsewhere');
SELECT outcome, host, again FROM place('elsewhere');
SELECT refuse('elsewhere', 'epoch_mismatch');
SELECT outcome FROM place('elsewhere');
SELECT lapse_backoff('elsewhere');
SELECT outcome, host FROM place('elsewhere');
SELECT accept('elsewhere');
SELECT outcome, rule FROM place('elsewhere');
SELECT report('e1', 'elsewhere', 1), report('e2', 'elsewhere', 1);
SELECT outcome, rule, host, epoch, again FROM place('elsewhere');
SELECT search('elsewhere');

-- C2, C4: where all have refused they are asked again after a while, and who comes new at once
SELECT host('r1', 5, 'rests'), session('rests', 'rests'), command('rests', 'c1', deadline => '1 h');
SELECT place_and_refuse('rests', 'not_admitting');
SELECT outcome, rule, waits FROM place('rests');
SELECT put_off('rests', '1 s', '2 s'), search('rests');
SELECT outcome, waits FROM generate_series(1, 5), LATERAL place('rests');
SELECT run('rests');
SELECT offers('rests');
SELECT step, host_id, verdict, regexp_replace(why, 'until .*', 'until') AS why FROM reconcile.explain_placement('place', 'rests') WHERE step IN ('search', 'asked', 'host', 'outcome');
SELECT host('r2', 1, 'rests');
SELECT place_and_refuse('rests', 'runtime_unavailable');
SELECT outcome FROM place('rests');
SELECT put_off('rests', '2 s', '4 s'), offers('rests'), search('rests');
SELECT lapse_backoff('rests');
SELECT place_and_refuse('rests', 'not_admitting'), place_and_refuse('rests', 'not_admitting');
-- after some of them not by itself any more, but for a sweep, or for room
SELECT outcome FROM place('rests');
SELECT put_off('rests', '4 s', '8 s');
SELECT outcome, waits FROM place('rests');
SELECT search('rests');
SELECT lapse_backoff('rests');
SELECT outcome, host FROM place('rests');
-- never more than a minute, however often
SELECT refuse('rests', 'not_admitting'), place_and_refuse('rests', 'not_admitting');
CREATE FUNCTION put_off_after(n int) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE reconcile.session_search SET refusals = n, look_at = NULL WHERE tenant_id = 'place' AND session_id = 'rests';
    PERFORM place('rests');
    RETURN (SELECT look_at - outcome_at > interval '5 s' AND look_at <= clock_timestamp() + interval '1 min' AND refusals = n + 1
              FROM reconcile.session_search WHERE tenant_id = 'place' AND session_id = 'rests');
END $$;
SELECT n, put_off_after(n) FROM unnest(ARRAY[5, 34, 35, 63, 64, 1000, 1048576]) n;
-- who has it in the end has ended the search
SELECT lapse_backoff('rests');
SELECT outcome, host FROM place('rests');
SELECT accept('rests'), report('r1', 'rests', 1);
SELECT outcome, host, waits FROM place('rests');
SELECT search('rests');
-- a command of it needs it: it is looked at again when its lease ends, also by a run of the loop
SELECT remaining BETWEEN '50 min' AND '1 h' AS lease FROM reconcile.place_session('place', 'rests');
SELECT run('rests');
SELECT step, host_id, verdict, regexp_replace(why, 'until [^;]*', 'until') AS why FROM reconcile.explain_placement('place', 'rests') WHERE step = 'owner';
-- C27: its owner keeps it, though it lacks what a command requires; that is told
SELECT command('rests', 'c2', requires => '{gpu}');
SELECT outcome, host FROM place('rests');
SELECT step, host_id, verdict, regexp_replace(why, 'until [^;]*', 'until') AS why FROM reconcile.explain_placement('place', 'rests') WHERE step IN ('session', 'owner');
-- it dies: nobody else can what is required, and one that cannot be met keeps the others from a host, too
SELECT lapse_lease('rests');
SELECT outcome FROM place('rests');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'rests') WHERE step IN ('session', 'host');

-- who is placed by hand goes on until somebody has it, by the runs of the loop; without a command no room is waited for
SELECT host('w1', 5, 'wanted'), host('w2', 4, 'wanted'), session('wanted', 'wanted');
SELECT run('wanted'), search('wanted');
SELECT place_and_refuse('wanted', 'not_admitting');
SELECT run('wanted'), offers('wanted'), search('wanted');
SELECT refuse('wanted', 'not_admitting'), run('wanted'), search('wanted');
SELECT run('wanted'), search('wanted');
SELECT place_and_refuse('wanted', 'epoch_mismatch'), run('wanted'), search('wanted');
SELECT lapse_backoff('wanted'), run('wanted'), offers('wanted');
SELECT accept('wanted'), report('w2', 'wanted', 1), run('wanted'), search('wanted');
SELECT outcome FROM reconcile.release_session('place', 'wanted', 1, 'token of wanted');
SELECT run('wanted'), search('wanted');

-- it waits for room where it is wanted, not where it was
SELECT session('waits', 'nowhere', runtime => 'r1'), command('waits', 'c1', deadline => '1 h');
SELECT outcome, waits FROM place('waits');
SELECT outcome, waits FROM place('waits');
SELECT search('waits');
SELECT outcome FROM reconcile.update_desired_state('place', 'waits', 'k2', 1, 'pooled', 'r2');
SELECT outcome, waits FROM place('waits');
SELECT search('waits');
SELECT outcome, waits FROM place('waits');
-- and with what is required by then
SELECT command('waits', 'c2', requires => '{x}');
SELECT outcome, waits FROM place('waits');
SELECT requires FROM reconcile.session_search WHERE session_id = 'waits';
-- not while somebody works on it, or as something else
SELECT outcome FROM reconcile.acquire_claim('place', 'waits', 'replica 1', '4 min');
SELECT outcome FROM place('waits');
SELECT search('waits');

-- an offer of a host that is gone is nobody's: the next one is asked in the same round
SELECT host('g1', 5, 'goes'), host('g2', 4, 'goes'), host('g3', 3, 'goes'), session('goes', 'goes');
SELECT outcome, host FROM place('goes');
SELECT gone('g1', 'goes');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'goes') WHERE step IN ('offer', 'host');
SELECT outcome, host FROM place('goes');
SELECT reconcile.unregister_host('g2');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'goes') WHERE step IN ('offer', 'host');
SELECT outcome, host FROM place('goes');
SELECT offers('goes');
-- one whose role is gone is asked nothing
CREATE ROLE placement_place_gone;
SELECT reconcile.register_host('g3', 'placement_place_gone');
ALTER ROLE placement_place_gone RENAME TO placement_place_went;
SELECT outcome, host FROM place('goes');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'goes') WHERE step IN ('offer', 'host');
SELECT outcome FROM reconcile.compatible_hosts('goes', 'r', 'pooled');
SELECT reconcile.unregister_host('g3');
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA reconcile FROM placement_place_went;
REVOKE ALL ON SCHEMA reconcile FROM placement_place_went;
DROP ROLE placement_place_went;

-- C15, C16: one key for an attachment, whichever host it is offered to; another one for another agent, runtime, generation or mode
CREATE FUNCTION key(s text, OUT host text, OUT mode text, OUT key text)
LANGUAGE sql AS $$ SELECT host_id, mode, left(attach_key, 12) FROM reconcile.fetch_offers(1000) WHERE tenant_id = 'place' AND session_id = s $$;
SELECT host('k1', 9, 'keys'), host('k2', 8, 'keys'), host('k1', 9, 'keys2'), session('key', 'keys'), session('key2', 'keys2'), session('key3', 'keys');
SELECT outcome, key('key') FROM place('key');
SELECT refuse('key');
SELECT outcome, key('key') FROM place('key');
SELECT outcome, key('key2') FROM place('key2');
SELECT outcome, key('key3') FROM place('key3');
SELECT outcome FROM reconcile.update_desired_state('place', 'key', 'k2', 1, 'pooled', 'r', '1', 'x');
SELECT outcome, key('key') FROM place('key');
-- it left something: a journal, a checkpoint, or what a pointer points at
SELECT accept('key'), accept('key2'), accept('key3');
SELECT outcome FROM reconcile.update_host_state('place', 'key', 1, 'token of key', 'idle', 'resident', 1);
SELECT outcome FROM reconcile.update_host_state('place', 'key2', 1, 'token of key2', 'idle', 'resident', 0, checkpoint_seq => 1, checkpoint_reference => 'c', checkpoint_captured_at => now());
SELECT outcome FROM reconcile.set_pointer('place', 'key3', 'active_continuation', 1, 'token of key3', 1, 'object');
SELECT s, outcome FROM unnest('{key,key2,key3}'::text[]) s, reconcile.release_session('place', s, 1, 'token of ' || s);
SELECT s, outcome, key(s) FROM unnest('{key,key2,key3}'::text[]) s, place(s);
-- what it pointed at and no longer does is nothing left
SELECT accept('key3');
SELECT outcome FROM reconcile.clear_pointer('place', 'key3', 'active_continuation', 2, 'token of key3');
SELECT outcome FROM reconcile.release_session('place', 'key3', 2, 'token of key3');
SELECT outcome, key('key3') FROM place('key3');

-- B22: an offer of what is not wanted any more is taken back, before anybody else is asked
SELECT host('m1', 3, 'moves'), host('m2', 2, 'moves'), session('moves', 'moves');
SELECT outcome, host FROM place('moves');
SELECT outcome, generation FROM reconcile.update_desired_state('place', 'moves', 'k2', 1, 'pooled', 'r', '1', 'x');
SELECT outcome, host, generation FROM place('moves');
SELECT outcome FROM reconcile.update_desired_state('place', 'moves', 'k3', 2, 'dedicated', 'r', '1', 'x');
SELECT outcome, host FROM place('moves');
SELECT offers('moves'), sum(reserved) FROM reconcile.host_target WHERE agent_id = 'moves';
-- without a runtime there is no target
SELECT outcome FROM reconcile.update_desired_state('place', 'moves', 'k4', 3, 'pooled');
SELECT outcome, rule, waits FROM place('moves');

-- C27: what a command asks for its host must have, for as long as it may be applied
SELECT host('plain', 9, 'capable'), host('able', 3, 'capable', capabilities => '{y,x}'), host('half', 5, 'capable', capabilities => '{x}'),
    session('capable', 'capable'), session('capable2', 'capable');
SELECT command('capable', 'c1', requires => '{x}'), command('capable', 'c2', requires => '{y}'), command('capable', 'c3');
SELECT outcome, host FROM place('capable');
SELECT command('capable2', 'c1', requires => '{z}');
SELECT outcome, host FROM place('capable2');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'capable2') WHERE step IN ('host', 'outcome');

-- ----------------------------------------------------------------
-- what a session is to be, said as it is placed
SELECT session('wish', 'wish');
-- B8, B10: written once for each wish
SELECT n, p.* FROM (VALUES (1, 'aa'), (2, 'aa'), (3, 'bb'), (4, 'bb'), (5, 'aa')) w (n, workload), LATERAL place('wish',
    jsonb_build_object('placement', 'pooled', 'runtime_compatibility_id', 'r', 'workload_version', '1', 'workload', '\x' || w.workload)) p ORDER BY n;
SELECT desired_key = reconcile.placement_key('place', 'wish', 'pooled', 'r', '1', '\xaa') AS derived, desired_generation FROM reconcile.session WHERE session_id = 'wish';
-- it is no other one's than the key's: a key of the caller's own is not compared
SELECT outcome, generation FROM reconcile.update_desired_state('place', 'wish', 'mine', 4, 'pooled', 'r', '1', '\xcc');
SELECT outcome, writes, generation FROM place('wish', '{"placement": "pooled", "runtime_compatibility_id": "r", "workload_version": "1", "workload": "cc"}');
-- nothing is as good as an empty one
SELECT outcome, writes, generation FROM place('wish', '{"placement": "pooled", "runtime_compatibility_id": "r", "workload": ""}');
SELECT outcome, writes, generation FROM place('wish', '{"placement": "pooled", "runtime_compatibility_id": "r"}');

-- ----------------------------------------------------------------
-- dedicated
-- B13: without a controller nothing is written but what is wanted
SELECT session('d1', 'dedicated', 'dedicated', 'r', '1', '\x01');
SELECT * FROM place('d1');
SELECT * FROM place('d1', '{"placement": "dedicated", "runtime_compatibility_id": "r", "workload_version": "2", "workload": "02"}');
SELECT count(*) > 0 AS polls FROM reconcile.fetch_intents('controller', 100, '1 min');
-- B9, A7: its controller sees to it; a seat is nothing to it
SELECT host('seat', 5, 'dedicated');
SELECT * FROM place('d1');
SELECT offers('d1');

-- D12: what was released stays so, and nothing is written; D21: a release is a wish without a workload
SELECT * FROM place('d1', '{"placement": "dedicated", "runtime_compatibility_id": "r"}');
SELECT * FROM place('d1');
-- D13: what never had a workload was not released
SELECT session('d2', 'dedicated', 'dedicated');
SELECT outcome, generation FROM place('d2');
-- D9: who only says something does not bring it back; D10: nor what is being applied; D11: nor what is too late
SELECT command('d1', 'input');
SELECT outcome, generation FROM place('d1');
SELECT command('d1', 'late', 'restore', deadline => '1 ms');
SELECT wait_until_late('d1', 'late');
SELECT outcome, generation FROM place('d1');
-- D8: a restore that waits does, as it was launched, once
SELECT command('d1', 'restore', 'restore');
SELECT step, verdict FROM reconcile.explain_placement('place', 'd1') WHERE step = 'outcome';
SELECT * FROM place('d1');
SELECT * FROM place('d1');
SELECT workload_version, workload, desired_generation FROM reconcile.session WHERE tenant_id = 'place' AND session_id = 'd1';
-- D16, D19: each release has a key of its own, and none is taken for another
CREATE TABLE revived AS SELECT desired_key FROM reconcile.session WHERE tenant_id = 'place' AND session_id = 'd1';
SELECT outcome, generation FROM reconcile.update_desired_state('place', 'd1', 'release 2', 4, 'dedicated', 'r');
SELECT outcome, generation, writes FROM place('d1');
INSERT INTO revived SELECT desired_key FROM reconcile.session WHERE tenant_id = 'place' AND session_id = 'd1';
SELECT count(DISTINCT desired_key), bool_and(desired_key LIKE 'revive-%') FROM revived;
-- D18: what somebody else wanted meanwhile is not overwritten
SELECT outcome, generation FROM reconcile.update_desired_state('place', 'd1', 'other', 6, 'dedicated', 'r', '9', '\x09');
SELECT outcome, generation, writes FROM place('d1');
-- D14: nobody said how it was launched
SELECT session('d3', 'dedicated', 'dedicated'), (SELECT outcome FROM reconcile.update_desired_state('place', 'd3', 'k', 1, 'dedicated', 'r2') WHERE session('d3') IS NOT NULL);
SELECT command('d3', 'restore', 'restore');
SELECT * FROM place('d3');
-- D7: its controller makes the workload, and the host in it is asked; that is where it stays, in that generation
SELECT session('d4', 'dedicated', 'dedicated', 'r', '1', '\x01');
SELECT outcome, asked FROM place('d4');
SELECT want, generation, state FROM reconcile.fetch_intents('controller') WHERE session_id = 'd4';
SELECT step, host_id, verdict, why = reconcile.workload_identity('place', 'd4', 'dedicated', 'r', 1) AS named FROM reconcile.explain_placement('place', 'd4') WHERE step = 'workload';
SELECT reconcile.register_host('w4', session_user), reconcile.report_workload('place', 'd4', 1, 'ready', 'w4', 1, 'wss://w4');
-- not before it says that it takes it
SELECT outcome, host, asked FROM place('d4');
SELECT outcome FROM reconcile.publish_host_target('w4', 1, 'dedicated', 'r', 'dedicated', 'wss://w4', 'tenant_exclusive', true, 1);
SELECT outcome, host, asked, waits FROM place('d4');
SELECT outcome, host, asked, waits FROM place('d4');
-- D2: who says that it is elsewhere is not asked again at once, nor is who has refused
SELECT refuse('d4', 'epoch_mismatch');
SELECT step, verdict, why FROM reconcile.explain_placement('place', 'd4') WHERE step = 'outcome';
SELECT outcome, asked, waits FROM place('d4');
SELECT put_off('d4', '1 s', '2 s'), run('d4'), search('d4');
SELECT outcome, asked, waits FROM place('d4');
SELECT lapse_backoff('d4');
SELECT outcome, asked FROM place('d4');
SELECT refuse('d4', 'not_admitting');
-- but by itself after a while, though no command asks for it
SELECT run('d4'), search('d4');
SELECT put_off('d4', '2 s', '1 min'), run('d4'), offers('d4');
SELECT lapse_backoff('d4'), run('d4'), offers('d4');
-- what this one has refused is nothing to the one that its controller makes in its place
SELECT refuse('d4', 'runtime_unavailable'), run('d4'), search('d4');
SELECT reconcile.report_workload('place', 'd4', 1, 'exited', 'w4', 1, 'wss://w4'), run('d4'), search('d4');
SELECT reconcile.report_workload('place', 'd4', 1, 'ready', 'w4', 1, 'wss://w4'), run('d4'), offers('d4');
SELECT accept('d4');
SELECT outcome, waits FROM place('d4');
SELECT report('w4', 'd4', 1);
SELECT * FROM place('d4');
-- D6: another wish is another workload, and its owner is none of it
SELECT step, host_id, verdict, regexp_replace(why, 'until .*', 'until') AS why FROM reconcile.explain_placement('place', 'd4') WHERE step IN ('owner', 'outcome');
SELECT outcome, generation FROM reconcile.update_desired_state('place', 'd4', 'k2', 1, 'dedicated', 'r', '2', '\x02');
SELECT * FROM place('d4');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'd4') WHERE step IN ('owner', 'outcome');
SELECT want, generation, state FROM reconcile.fetch_intents('controller') WHERE session_id = 'd4' ORDER BY generation;
-- D15: without a controller it is wanted back all the same
SELECT outcome FROM reconcile.update_desired_state('place', 'd1', 'release 3', 7, 'dedicated', 'r');
UPDATE reconcile.workload_controller SET polled_at = '2000-01-01', expires_at = clock_timestamp();
SELECT outcome, generation, writes FROM place('d1');

-- ----------------------------------------------------------------
-- 64 sessions, 10 hosts of 5: what is offered counts at once, so none gets more than it has
SELECT count(host(format('f%s', i), 5, 'fleet')) FROM generate_series(1, 10) i;
SELECT count(session(format('fleet %s', i), 'fleet')) FROM generate_series(1, 64) i;
SELECT p.outcome, count(*) FROM generate_series(1, 64) i, LATERAL place(format('fleet %s', i)) p GROUP BY 1 ORDER BY 1;
SELECT max(capacity - reserved), min(capacity - reserved) FROM reconcile.host_target WHERE agent_id = 'fleet';
-- of a page that is all full the next one is read, whatever the limit
SELECT host('rank' || i, 30 - i, 'rank', isolation => CASE WHEN i < 9 THEN 'tenant_exclusive' ELSE 'cross_tenant_isolated' END) FROM generate_series(1, 10) i;
SELECT session('rank', 'rank');
UPDATE reconcile.placement_setting SET candidate_limit = 3 RETURNING candidate_limit;
SELECT outcome, host FROM place('rank');
UPDATE reconcile.placement_setting SET candidate_limit = 256;
-- who has not renewed what he offers is passed over, and ranks until a sweep has been there
SELECT host('l1', 9, 'lapsed'), host('l2', 1, 'lapsed'), session('lapsed', 'lapsed');
UPDATE reconcile.host_target SET observed_at = clock_timestamp() - interval '1 min', expires_at = clock_timestamp() WHERE agent_id = 'lapsed' AND host_id = 'l1';
SELECT outcome, host FROM place('lapsed');

-- ----------------------------------------------------------------
-- explain_placement() tells it, and does nothing
SELECT host('x1', 3, 'explain'), host('x2', 2, 'explain', capabilities => '{x}'), host('x3', 9, 'explain', 'tenant_exclusive'),
    host('x4', 0, 'explain'), host('x5', 5, 'explain', accepting => false), host('x6', 5, 'explain'), gone('x6', 'explain'),
    host('x7', 8, 'explain'), session('explain', 'explain');
SELECT outcome FROM reconcile.publish_host_target('x1', 1, 'explain', 'r2', 'pooled', 'wss://x1', 'cross_tenant_isolated', true, 7);
UPDATE reconcile.host_target SET observed_at = clock_timestamp() - interval '1 min', expires_at = clock_timestamp() WHERE agent_id = 'explain' AND host_id = 'x7';
SELECT * FROM reconcile.explain_placement('place', 'explain');
SELECT * FROM reconcile.explain_placement('place', 'nobody');
SELECT offers('explain'), sum(reserved) FROM reconcile.host_target WHERE agent_id = 'explain';
BEGIN READ ONLY;
SELECT step, host_id, verdict FROM reconcile.explain_placement('place', 's1') WHERE step IN ('owner', 'outcome');
COMMIT;
SELECT command('explain', 'c1', requires => '{x}');
SELECT outcome, host FROM place('explain');
SELECT step, host_id, verdict, regexp_replace(why, 'until .*', 'until') AS why FROM reconcile.explain_placement('place', 'explain');
SELECT accept('explain');
SELECT step, host_id, verdict, regexp_replace(why, 'until .*', 'until') AS why FROM reconcile.explain_placement('place', 'explain') WHERE step IN ('owner', 'lease', 'outcome');
SELECT report('x2', 'explain', 1);
SELECT step, host_id, verdict, regexp_replace(why, 'until .*', 'until') AS why FROM reconcile.explain_placement('place', 'explain') WHERE step IN ('owner', 'lease', 'outcome');
SELECT outcome FROM reconcile.release_session('place', 'explain', 1, 'token of explain');
SELECT step, host_id, verdict, why FROM reconcile.explain_placement('place', 'explain') WHERE step IN ('owner', 'lease');

-- ----------------------------------------------------------------
-- what is wrong is refused, and never an outcome
\set VERBOSITY sqlstate
SELECT reconcile.place_session(NULL, 's1');
SELECT reconcile.place_session('place', '');
SELECT reconcile.place_session('place', 's1', '[]');
SELECT reconcile.place_session('place', 's1', '{}');
SELECT reconcile.place_session('place', 's1', '{"placement": "shared"}');
SELECT reconcile.place_session('place', 's1', '{"placement": 1}');
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "epoch": 1}');
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "workload": "00"}');
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "workload_version": "1"}');
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "workload_version": "1", "workload": "0"}');
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "workload_version": "1", "workload": "0g"}');
SELECT reconcile.place_session('place', 's1', jsonb_build_object('placement', 'pooled', 'workload_version', '1', 'workload', repeat('00', 16385)));
SELECT reconcile.place_session('place', 's1', '{"placement": "pooled", "runtime_compatibility_id": ""}');
SELECT reconcile.place_session('place', 's1', NULL, '');
SELECT reconcile.explain_placement('place', NULL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT reconcile.place_session('place', 's1');
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.place_session('place', 's1');
ROLLBACK;
CREATE ROLE placement_place_stranger;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO placement_place_stranger;
SET ROLE placement_place_stranger;
SELECT reconcile.place_session('place', 's1');
SELECT reconcile.explain_placement('place', 's1');
SELECT reconcile.place_entity('1');
SELECT reconcile.control_shards();
RESET ROLE;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile FROM placement_place_stranger;
DROP ROLE placement_place_stranger;
-- an entity that is none of the loop's is nobody's
SELECT e, reconcile.place_entity(e) FROM (VALUES ('0'), ('-1'), ('x'), ('1x'), (''), (' 1'), ('9223372036854775807'), ('9223372036854775808')) v (e);

\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
SELECT clean('place', '%');
RESET search_path;
RESET lock_timeout;
\set VERBOSITY terse
DROP SCHEMA placement_place CASCADE;
UPDATE reconcile.placement_setting SET offer_ttl_ms = 10000, session_ttl_ms = 60000, replace_backoff_ms = 200;

-- Who is looked at when something changes for him: the loop has a mark of each, and is paused so that they stay.
\set SHOW_CONTEXT never
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA placement_wake;
SET search_path = placement_wake, public;
BEGIN;
SELECT reconcile.set_placement('{"offer_ttl": "5 min", "session_ttl": "1 h", "replace_backoff": "5 s"}') ->> 'offer_ttl' AS offer_ttl;
SELECT reconcile.pause_loop('placement'), reconcile.pause_loop('placement_sweeps');
COMMIT;
SET lock_timeout = '30 s';

CREATE FUNCTION session(s text, runtime text DEFAULT 'r', requires text[] DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
    SELECT reconcile.create_session('wake', s, 'wake', 'pooled', 'k', runtime);
    SELECT reconcile.admit_session_command('wake', s, 'c', 'input', 'x', apply_deadline_in => '1 h', requires => coalesce(requires, '{}'));
$$;
CREATE FUNCTION host(h text, capacity int, runtime text DEFAULT 'r', capabilities text[] DEFAULT '{}', isolation text DEFAULT 'cross_tenant_isolated',
    accepting boolean DEFAULT true, generation int DEFAULT 1) RETURNS text
LANGUAGE sql AS $$
    SELECT outcome FROM reconcile.publish_host_target(h, generation, 'wake', runtime, 'pooled', 'wss://' || h, isolation, accepting, capacity, '15 min', capabilities)
$$;
CREATE FUNCTION place(s text) RETURNS text
LANGUAGE sql AS $$ SELECT concat_ws(' ', outcome, host_id) FROM reconcile.place_session('wake', s) $$;
CREATE FUNCTION open_offer(s text) RETURNS bigint
LANGUAGE sql AS $$ SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = 'wake' AND session_id = s AND state = 'offered' $$;
CREATE FUNCTION accept(s text) RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.accept_offer(open_offer(s), 1, 'token') $$;
CREATE FUNCTION refuse(s text) RETURNS text LANGUAGE sql AS $$ SELECT reconcile.refuse_offer(open_offer(s), 'no_capacity') $$;
CREATE FUNCTION release(s text) RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.release_session('wake', s, 1, 'token') $$;
CREATE FUNCTION report(h text, s text, residency text DEFAULT 'resident', accepting boolean DEFAULT true) RETURNS text
LANGUAGE sql AS $$
    SELECT string_agg(outcome, ' ') FROM reconcile.heartbeat_host(h, 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 'wake', 'session_id', s,
        'epoch', 1, 'token', 'token', 'residency', residency, 'accepting', accepting)))
$$;
CREATE FUNCTION forget() RETURNS void
LANGUAGE sql AS $$ SELECT count(reconcile.forget('placement', number::text)) FROM reconcile.session WHERE tenant_id = 'wake' $$;
-- who is due now; and nothing is left of it
CREATE FUNCTION woken() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    names text;
BEGIN
    SELECT string_agg(s.session_id, ' ' ORDER BY s.number) INTO names FROM reconcile.session s
      JOIN reconcile.work w ON w.loop_name = 'placement' AND w.entity_id = s.number::text
     WHERE s.tenant_id = 'wake' AND w.due_at <= clock_timestamp();
    PERFORM forget();
    RETURN names;
END $$;
CREATE FUNCTION waits() RETURNS text
LANGUAGE sql AS $$ SELECT string_agg(session_id, ' ' ORDER BY waits_since) FROM reconcile.session_search WHERE tenant_id = 'wake' AND agent_id IS NOT NULL $$;
SELECT count(reconcile.register_host(h, session_user)) FROM unnest('{h1,h2,h3,h4,h5}'::text[]) h;

-- a command
SELECT session('c'), woken();

-- ----------------------------------------------------------------
-- room: of those that wait, by how long they do, as many as there is room for, and some more; not those that
-- the host cannot have
SELECT session(format('w%s', i), requires => CASE WHEN i <= 6 THEN '{gpu}'::text[] END) FROM generate_series(1, 14) i;
SELECT i, place(format('w%s', i)) FROM generate_series(1, 14) i;
SELECT waits(), woken() IS NOT NULL AS second_looks;
SELECT forget();
SELECT host('h1', 1), woken();
-- the same again is no new room, nor is less of it
SELECT host('h1', 1), woken();
SELECT host('h1', 3), woken();
SELECT host('h1', 2), woken();
-- what it can do now is: the six, not the eight, who were told
SELECT host('h1', 2, capabilities => '{gpu}'), woken();
SELECT host('h1', 2, capabilities => '{gpu}'), woken();
-- so is whom it takes
SELECT host('h2', 1, isolation => 'tenant_exclusive'), woken();
SELECT host('h2', 1), woken();
SELECT host('h3', 1, accepting => false), woken();
SELECT host('h3', 1), woken();
SELECT host('h4', 0), woken();
SELECT host('h5', 9, 'r2'), woken();
-- a host that comes back
SELECT reconcile.unregister_host('h3'), woken();
SELECT reconcile.register_host('h3', session_user), woken();
SELECT reconcile.register_host('h3', session_user), woken();
-- room that is given back: who has waited longest, and a few more in case that he cannot have it
SELECT session(format('f%s', i), 'full') FROM generate_series(1, 8) i;
SELECT host('h1', 1, 'full');
SELECT i, place(format('f%s', i)) FROM generate_series(1, 8) i;
SELECT accept('f1'), report('h1', 'f1'), forget();
SELECT release('f1'), woken();
-- who was told need not have looked yet: more of it is for more of them, and so is each place that is given back
SELECT session(format('g%s', i), 'grows') FROM generate_series(1, 20) i;
SELECT count(place(format('g%s', i))) FROM generate_series(1, 20) i;
SELECT forget();
SELECT host('h1', 1, 'grows'), woken();
SELECT host('h1', 9, 'grows'), woken();
SELECT host('h1', 10, 'grows'), woken();
SELECT host('h1', 2, 'grows'), host('h2', 1, 'grows', accepting => false), woken();
SELECT place('g1'), place('g2'), accept('g1'), accept('g2'), report('h1', 'g1'), report('h1', 'g2'), forget();
SELECT release('g1'), woken();
SELECT release('g2'), woken();
-- a later life of a host is one that nobody was told of
SELECT host('h5', 2, 'grows'), woken();
SELECT host('h5', 2, 'grows'), woken();
SELECT host('h5', 2, 'grows', generation => 2), woken();
-- an offer that nobody answers gives it back, too
SELECT place('f3'), forget();
SELECT refuse('f3'), woken();

-- ----------------------------------------------------------------
-- who waits is told of room where he is wanted, not where he was
SELECT session('moves', 'elsewhere 1'), place('moves'), forget();
SELECT outcome FROM reconcile.update_desired_state('wake', 'moves', 'k2', 1, 'pooled', 'elsewhere 2');
SELECT place('moves'), forget();
SELECT host('h1', 1, 'elsewhere 1'), woken();
SELECT host('h1', 1, 'elsewhere 2'), woken();

-- a host that has refused in the round is not what a session waits for
SELECT session('refused', 'refuses'), host('h1', 1, 'refuses'), place('refused');
SELECT refuse('refused'), place('refused'), forget();
UPDATE reconcile.session_search SET look_at = clock_timestamp() + interval '1 h' WHERE session_id = 'refused';
SELECT host('h1', 0, 'refuses'), host('h1', 1, 'refuses'), woken();
SELECT host('h2', 1, 'refuses'), woken();
-- once the round has rested it is
UPDATE reconcile.session_search SET look_at = clock_timestamp() WHERE session_id = 'refused';
SELECT host('h1', 0, 'refuses'), host('h1', 1, 'refuses'), woken();

-- ----------------------------------------------------------------
-- hosts that go: of one that answers no offers any more the next is asked at once
SELECT session('goes', 'goes'), session('stays', 'goes'), host('h1', 9, 'goes'), host('h2', 7, 'goes');
SELECT place('goes'), place('stays'), accept('stays'), report('h1', 'stays'), forget();
SELECT outcome FROM reconcile.drain_host_target('h1', 1, 'wake', 'goes', 'pooled');
SELECT woken(), place('goes'), forget();
SELECT outcome FROM reconcile.drain_host_target('h1', 1, 'wake', 'goes', 'pooled');
SELECT woken();
SELECT reconcile.unregister_host('h2'), woken();
SELECT reconcile.register_host('h2', session_user);

-- a session that its host is about to let go of
SELECT forget();
SELECT report('h1', 'stays', 'resident', true), woken();
SELECT report('h1', 'stays', 'resident', false), woken();
SELECT report('h1', 'stays', 'releasing', false), woken();
SELECT report('h1', 'stays', 'resident', true), woken();
SELECT report('h1', 'stays', 'releasing', true), woken();
SELECT report('h1', 'stays', 'resident', true), release('stays'), woken();
-- one that nobody asks anything of is nobody's matter
SELECT reconcile.create_session('wake', 'idle', 'wake', 'pooled', 'k', 'goes') IS NOT NULL AS made, host('h1', 20, 'goes'), place('idle'), accept('idle'), report('h1', 'idle'), forget();
SELECT report('h1', 'idle', 'releasing'), woken();

SELECT reconcile.drop_loop('placement'), reconcile.drop_loop('placement_sweeps');
\getenv source PG_ABS_SRCDIR
\set hosts :source '/sql/include/hosts.sql'
\i :hosts
SELECT clean('wake', '%');
UPDATE reconcile.placement_setting SET offer_ttl_ms = 10000, session_ttl_ms = 60000, replace_backoff_ms = 200;
RESET lock_timeout;
RESET search_path;
DROP SCHEMA placement_wake CASCADE;

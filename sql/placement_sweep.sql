-- Settings of placement, and the sweeps: pages, budgets, and where the next pass goes on.
\set SHOW_CONTEXT never
\set VERBOSITY terse
CREATE SCHEMA placement_sweep;
SET search_path = placement_sweep, public;

-- ----------------------------------------------------------------
-- settings: checked together, and what is refused changes nothing
BEGIN;
SELECT reconcile.set_placement('{}') - 'control_shards' AS defaults;
SELECT reconcile.pause_loop('placement'), reconcile.pause_loop('placement_sweeps');
COMMIT;
SELECT loop_name, reconciler, lister, resync_every, default_requeue, concurrency FROM reconcile.loops WHERE loop_name LIKE 'placement%' ORDER BY 1;
SELECT key, value, reconcile.set_placement(jsonb_build_object(key, value)) -> key AS now
  FROM (VALUES ('horizon', '"366 days"'::jsonb), ('claim_ttl', '"5 min"'), ('interval', '"1 ms"'), ('candidate_limit', '1'), ('candidate_limit', '1000'),
    ('replace_attempts', '1'), ('replace_attempts', '10'), ('replace_backoff', '"5 s"'), ('replace_backoff', '"1 ms"'),
    ('offer_ttl', '"5 min"'), ('session_ttl', '"1 h"'), ('page_limit', '1'), ('page_limit', '1000'), ('max_pages', '1'), ('max_pages', '1024')) v (key, value);
-- null is the default, and what is not named stays
SELECT reconcile.set_placement('{"claim_ttl": null, "horizon": null, "interval": null, "candidate_limit": null, "replace_attempts": null, "replace_backoff": null,
    "offer_ttl": null, "session_ttl": null, "page_limit": 2}') - 'control_shards' AS settings;
\set VERBOSITY default
SELECT reconcile.set_placement('{"interval": "30 s"}');
SELECT reconcile.set_placement('{"horizon": "30 s"}');
SELECT reconcile.set_placement(jsonb_build_object('control_shards', reconcile.control_shards() + 1));
\set VERBOSITY terse
SELECT reconcile.set_placement(NULL);
SELECT reconcile.set_placement('[]');
SELECT reconcile.set_placement('{"pages": 1}');
SELECT reconcile.set_placement('{"claim_ttl": "5 min 1 ms"}');
SELECT reconcile.set_placement('{"claim_ttl": "0 s"}');
SELECT reconcile.set_placement('{"claim_ttl": "1 mon"}');
SELECT reconcile.set_placement('{"claim_ttl": "soon"}');
SELECT reconcile.set_placement('{"claim_ttl": 30}');
SELECT reconcile.set_placement('{"candidate_limit": 0}');
SELECT reconcile.set_placement('{"candidate_limit": 1001}');
SELECT reconcile.set_placement('{"candidate_limit": "5"}');
SELECT reconcile.set_placement('{"candidate_limit": 3000000000}');
SELECT reconcile.set_placement('{"replace_attempts": 0}');
SELECT reconcile.set_placement('{"replace_attempts": -1}');
SELECT reconcile.set_placement('{"replace_attempts": 11}');
SELECT reconcile.set_placement('{"replace_backoff": "5.001 s"}');
SELECT reconcile.set_placement('{"page_limit": 1001}');
SELECT reconcile.set_placement('{"max_pages": 1025}');
SELECT reconcile.set_placement('{"control_shards": 4097}');
SELECT reconcile.set_placement('{"max_pages": 1, "page_limit": 0}');
SELECT max_pages, page_limit FROM reconcile.placement_setting;
-- who may: an operator, and to make the loops whoever may define them
CREATE ROLE placement_sweep_operator LOGIN;
SET ROLE placement_sweep_operator;
SELECT reconcile.set_placement('{}');
RESET ROLE;
SELECT reconcile.grant_access('placement_sweep_operator', 'operate');
SET ROLE placement_sweep_operator;
SELECT reconcile.set_placement('{"max_pages": 1}') -> 'max_pages' AS max_pages;
RESET ROLE;
SELECT reconcile.drop_loop('placement');
SET ROLE placement_sweep_operator;
SELECT reconcile.set_placement('{}');
RESET ROLE;

-- ----------------------------------------------------------------
-- In a shard that nobody else uses.  Its loop is not made again yet: nothing marks.
UPDATE reconcile.placement_setting SET control_shards = 64;
CREATE TABLE member AS
    SELECT 's' || to_char(row_number() OVER (ORDER BY i), 'FM00') AS name, 'm' || i AS id FROM generate_series(1, 5000) i WHERE reconcile.control_shard_of('sweep', 'm' || i, 64) = 40 LIMIT 20;
CREATE FUNCTION id(s text) RETURNS text LANGUAGE sql AS $$ SELECT id FROM member WHERE name = s $$;
CREATE FUNCTION session(s text) RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.create_session('sweep', id(s), 'sweep', 'pooled', 'create', 'r') $$;
CREATE FUNCTION command(s text, c text, deadline interval DEFAULT '4 min', kind text DEFAULT 'input') RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.admit_session_command('sweep', id(s), c, kind, 'x', apply_deadline_in => deadline) $$;
CREATE FUNCTION all_late(s text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WHILE clock_timestamp() < (SELECT max(apply_deadline) FROM reconcile.session_command WHERE tenant_id = 'sweep' AND session_id = id(s)) LOOP END LOOP;
END $$;
-- the next turn is of that shard, and none has failed
CREATE FUNCTION turn(name text, shard int DEFAULT 40) RETURNS bigint LANGUAGE sql AS $$
    DELETE FROM reconcile.placement_cursor c WHERE c.sweep = name AND c.shard = -1;
    INSERT INTO reconcile.placement_cursor (sweep, shard, turn) VALUES (name, -1, turn.shard - 1);
    SELECT setval('reconcile.sweep_turn_' || name, shard, false) $$;
-- pages, examined, sessions, owned, marked, failed, truncated, resumed, failure
CREATE FUNCTION pending(OUT pages int, OUT examined bigint, OUT sessions bigint, OUT owned bigint, OUT marked bigint, OUT failed bigint, OUT truncated boolean, OUT resumed boolean, OUT failure text)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM turn('pending');
    SELECT p.pages, p.examined, p.sessions, p.owned, p.marked, p.failed, p.truncated, p.resumed, p.failure FROM reconcile.sweep_pending() p WHERE p.shard = 40
      INTO pages, examined, sessions, owned, marked, failed, truncated, resumed, failure;
END $$;
CREATE FUNCTION deadlines() RETURNS SETOF record LANGUAGE plpgsql AS $$ BEGIN PERFORM turn('deadlines'); RETURN QUERY SELECT * FROM reconcile.sweep_deadlines() d WHERE d.shard = 40; END $$;
CREATE FUNCTION marked() RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(m.name, ' ' ORDER BY m.name) FROM member m JOIN reconcile.session s ON s.tenant_id = 'sweep' AND s.session_id = m.id
      JOIN reconcile.work w ON w.loop_name = 'placement' AND w.entity_id = s.number::text $$;
CREATE FUNCTION forget() RETURNS void LANGUAGE sql AS $$
    SELECT count(reconcile.forget('placement', s.number::text)) FROM reconcile.session s WHERE s.tenant_id = 'sweep' $$;
SELECT count(*), string_agg(session(name), ' ') FROM member WHERE name <= 's15';

-- F7, F16: a call goes round, a row for each shard; M5: with a page it is of one, and the next one of the next
UPDATE reconcile.placement_setting SET control_shards = 3;
SELECT turn('pending', 1), turn('deadlines', 2);
SELECT (SELECT string_agg(shard::text, ' ') FROM reconcile.sweep_pending()) AS a, (SELECT string_agg(shard::text, ' ') FROM reconcile.sweep_pending()) AS b,
    (SELECT string_agg(shard::text, ' ') FROM reconcile.sweep_deadlines()) AS c;
-- a turn is over also where it is rolled back; who comes after takes one page a call, until all had their turn
SELECT turn('pending', 0), (SELECT count(*) FROM reconcile.sweep_pending()) AS shards;
CREATE FUNCTION pending_shards() RETURNS text LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT string_agg(shard::text, ' ') FROM reconcile.sweep_pending()); END $$;
BEGIN;
SAVEPOINT without;
SELECT DISTINCT command(name, 'of its shard') FROM member WHERE name <= 's15';
SELECT count(DISTINCT shard) AS shards FROM reconcile.session_command WHERE tenant_id = 'sweep';
SELECT reconcile.set_placement('{"page_limit": 100, "max_pages": 8}') -> 'page_limit' AS page_limit;
SAVEPOINT lost;
SELECT pending_shards();
ROLLBACK TO lost;
SELECT i, pending_shards() FROM generate_series(1, 5) i;
-- a crash takes the row, and not the turns: that is no failure
DELETE FROM reconcile.placement_cursor;
SELECT pending_shards();
-- to find none takes no page
ROLLBACK TO without;
SELECT i, pending_shards() FROM generate_series(1, 2) i;
ROLLBACK;
-- F15, M10: what the shards that vanished had come to is gone
INSERT INTO reconcile.placement_cursor (sweep, shard, bound) SELECT 'pending', i, now() FROM generate_series(1, 5) i;
UPDATE reconcile.placement_setting SET control_shards = 2;
SELECT turn('pending', 2);
SELECT string_agg(shard::text, ' ') FROM reconcile.sweep_pending();
SELECT sweep, shard FROM reconcile.placement_cursor WHERE sweep = 'pending' AND shard > 0 ORDER BY 2;
UPDATE reconcile.placement_setting SET control_shards = 64;
DELETE FROM reconcile.placement_cursor;

-- F9: one live command behind more expired ones than a pass reads, 2 rows of 1 page: found by passes that go on
SELECT string_agg(command('s01', 'c' || i, '1 ms'), ' ') FROM generate_series(1, 5) i;
SELECT all_late('s01');
SELECT command('s02', 'create');
SELECT i, pending() FROM generate_series(1, 3) i;
-- F10, I24: what is not at its end is kept, with the bound that it began with, the last deadline then: what comes after is seen by the next cycle
SELECT bound = (SELECT max(apply_deadline) FROM reconcile.session_command WHERE shard = 40 AND state = 'pending') AS bound, at = bound AS at_end,
    position[1], position[2] = id('s02') AS session, position[3] FROM reconcile.placement_cursor WHERE sweep = 'pending' AND shard = 40;
SELECT command('s04', 'after', '200 days');
-- and one that is given no deadline has that of the horizon
BEGIN;
SELECT reconcile.set_placement('{"horizon": "3 days", "claim_ttl": "1 min"}') IS NOT NULL;
SELECT outcome FROM reconcile.admit_session_command('sweep', id('s15'), 'none', 'input', 'x');
SELECT apply_deadline - accepted_at AS deadline FROM reconcile.session_command WHERE tenant_id = 'sweep' AND command_id = 'none';
ROLLBACK;
SELECT * FROM pending();
-- at the end the place is gone
SELECT count(*) FROM reconcile.placement_cursor WHERE sweep = 'pending' AND shard = 40;
SELECT i, pending() FROM generate_series(1, 4) i;
-- F11: a place that nobody can go on from is dropped
SELECT truncated, resumed FROM pending();
UPDATE reconcile.placement_cursor SET position = '{x}' WHERE sweep = 'pending' AND shard = 40;
SELECT pages, examined, resumed FROM pending();
DELETE FROM reconcile.placement_cursor WHERE sweep = 'pending' AND shard = 40;

-- with the loop, each is marked once; the loop runs it in a transaction of its own (F5)
BEGIN;
SELECT reconcile.set_placement('{"page_limit": 100, "max_pages": 2}') -> 'page_limit' AS page_limit;
SELECT reconcile.pause_loop('placement');
COMMIT;
SELECT pending(), marked();
-- F3: pending and claimed ones while they may be applied; what is being applied whatever the time
SELECT reconcile.register_host('sweep host', session_user);
SELECT outcome FROM reconcile.publish_host_target('sweep host', 1, 'sweep', 'r', 'pooled', 'wss://h', 'cross_tenant_isolated', true, 20, '15 min');
CREATE FUNCTION own(s text, residency text DEFAULT 'resident') RETURNS text LANGUAGE plpgsql AS $$
DECLARE offer bigint; e bigint;
BEGIN
    SELECT offer_id FROM reconcile.place_session('sweep', id(s)) INTO offer;
    SELECT epoch FROM reconcile.accept_offer(offer, 1, 'token') INTO e;
    PERFORM reconcile.heartbeat_host('sweep host', 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 'sweep', 'session_id', id(s), 'epoch', e,
        'token', 'token', 'residency', residency, 'accepting', true)));
    RETURN e;
END $$;
CREATE FUNCTION disown(s text) RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.release_session('sweep', id(s), 1, 'token') $$;
CREATE FUNCTION take(s text, c text, ttl interval DEFAULT '10 min') RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.claim_session_command('sweep', id(s), c, 1, 'token', 1, ttl) $$;
CREATE FUNCTION begin_attempt(s text, c text) RETURNS text
LANGUAGE sql AS $$ SELECT outcome FROM reconcile.begin_attempt('sweep', id(s), c, 1, 'token', 2, 'attempt') $$;
SELECT name, own(name) FROM member WHERE name IN ('s03', 's04', 's05', 's06', 's07', 's08') ORDER BY 1;
SELECT command('s03', 'live'), command('s03', 'live too'), command('s04', 'claimed live'), command('s05', 'claimed late', '4 min'), command('s06', 'applying', '4 min'),
    command('s07', 'claim lapsed', '4 min'), command('s08', 'owned');
SELECT take('s04', 'claimed live'), take('s05', 'claimed late'), take('s06', 'applying'), begin_attempt('s06', 'applying'), take('s07', 'claim lapsed', '1 ms');
-- time passes: past what keeps it
ALTER TABLE reconcile.session_command DISABLE TRIGGER session_command_kept;
UPDATE reconcile.session_command SET accepted_at = accepted_at - interval '5 min', apply_deadline = apply_deadline - interval '5 min'
    WHERE tenant_id = 'sweep' AND session_id IN (id('s05'), id('s06'), id('s07'));
ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_kept;
-- B1, F13: who is where it may stay is not marked
SELECT forget();
SELECT pending(), marked();
SELECT disown(name) FROM member WHERE name IN ('s03', 's04', 's05', 's06', 's07') ORDER BY name;
SELECT forget();
SELECT pending(), marked();
-- sessions of which nobody can tell hold up no other
ALTER TABLE reconcile.session_registration RENAME COLUMN endpoint TO endpoint_gone;
SELECT pending();
ALTER TABLE reconcile.session_registration RENAME COLUMN endpoint_gone TO endpoint;
-- F11: a page that cannot be read is told, and the next pass begins with it
SELECT reconcile.set_placement('{"page_limit": 4, "max_pages": 2}') -> 'page_limit' AS page_limit;
SELECT pending();
ALTER TABLE reconcile.session_command RENAME COLUMN command_id TO command_gone;
SELECT pending();
ALTER TABLE reconcile.session_command RENAME COLUMN command_gone TO command_id;
SELECT pending();
SELECT reconcile.set_placement('{"page_limit": 100}') -> 'page_limit' AS page_limit;

-- ----------------------------------------------------------------
-- deadlines
-- M1: late ones that nobody has are rejected, also with a claim that is over; the others stay
SELECT outcome, claim_token AS token FROM reconcile.acquire_claim('sweep', id('s09'), 'somebody', '5 min') \gset
SELECT command('s09', 'deferred', '1 ms');
SELECT all_late('s09');
SELECT pages, examined, due, rejected, deferred, contended, failed, unexpired, applying, claim_live, truncated, resumed, failure
  FROM deadlines() AS (shard int, pages int, examined bigint, due bigint, rejected bigint, deferred bigint, contended bigint, failed bigint,
    unexpired bigint, applying bigint, claim_live bigint, truncated boolean, resumed boolean, failure text);
SELECT m.name, c.command_id, c.state, c.revision, c.claim_epoch, c.attempt_id, c.outcome, c.settled_at IS NOT NULL AS settled
  FROM reconcile.session_command c JOIN member m ON m.id = c.session_id WHERE c.tenant_id = 'sweep' ORDER BY 1, 2;
-- M11: once the claim on its session is given back it goes as well; M14: what is being applied is seen each time
SELECT outcome FROM reconcile.release_claim('sweep', id('s09'), 'somebody', :'token');
CREATE VIEW swept AS SELECT pages, examined, due, rejected, deferred, contended, failed, applying, claim_live, truncated, resumed, failure
  FROM deadlines() AS (shard int, pages int, examined bigint, due bigint, rejected bigint, deferred bigint, contended bigint, failed bigint,
    unexpired bigint, applying bigint, claim_live bigint, truncated boolean, resumed boolean, failure text);
SELECT * FROM swept;
SELECT * FROM swept;
-- M5, M8: a budget of 1 page of 2 rows; 7 rows, of which 2 are never settled, each exactly once
SELECT reconcile.set_placement('{"page_limit": 2, "max_pages": 1}') -> 'page_limit' AS page_limit;
SELECT string_agg(command('s01', 'd' || i, '1 ms'), ' ') FROM generate_series(1, 5) i;
SELECT all_late('s01');
SELECT * FROM swept;
-- M4: up to the instant at which it began
SELECT c.bound BETWEEN max(d.apply_deadline) AND clock_timestamp() AS bound FROM reconcile.placement_cursor c, reconcile.session_command d
  WHERE c.sweep = 'deadlines' AND c.shard = 40 AND d.tenant_id = 'sweep' AND d.session_id = id('s01') GROUP BY c.bound;
SELECT * FROM swept;
SELECT * FROM swept;
SELECT * FROM swept;
SELECT * FROM swept;
-- one that cannot be settled is told, and holds up no other
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = 'XX001'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON reconcile.session_command FOR EACH ROW WHEN (NEW.command_id = 'e1') EXECUTE FUNCTION refuse();
SELECT reconcile.set_placement('{"page_limit": 100}') -> 'page_limit' AS page_limit;
SELECT string_agg(command('s01', 'e' || i, '1 ms'), ' ') FROM generate_series(1, 3) i;
SELECT all_late('s01');
DELETE FROM reconcile.placement_cursor WHERE sweep = 'deadlines' AND shard = 40;
SELECT * FROM swept;
DROP TRIGGER refuse ON reconcile.session_command;
-- a session that loses a command is looked at: it may wait for room
SELECT forget();
SELECT * FROM swept;
SELECT marked();

-- ----------------------------------------------------------------
-- host targets: of whatever came before nothing is left
CREATE FUNCTION lapse_all(except_host text DEFAULT '') RETURNS bigint LANGUAGE sql AS $$
    WITH u AS (UPDATE reconcile.host_target SET observed_at = now() - interval '1 min', expires_at = now() - interval '1 s'
                WHERE expires_at IS NOT NULL AND host_id <> except_host RETURNING 1) SELECT count(*) FROM u $$;
CREATE FUNCTION host(h text, capacity int DEFAULT 5) RETURNS text LANGUAGE sql AS $$
    SELECT reconcile.register_host(h, session_user);
    SELECT outcome FROM reconcile.publish_host_target(h, 3, 'targets', 'r', 'pooled', 'wss://h', 'cross_tenant_isolated', true, capacity) $$;
SELECT reconcile.set_placement('{"page_limit": 1000, "max_pages": 100}') -> 'max_pages' AS max_pages;
SELECT lapse_all() > 0 AS any;
SELECT scanned > 0 AND withdrawn = scanned AS all, exhausted, resumed FROM reconcile.sweep_host_targets();
-- I17, G7: a host that died is withdrawn once, and keeps its generation; a live one stays
SELECT host('t1', 9), host('t2', 8), host('t3', 7), host('live', 1);
SELECT lapse_all('live');
SELECT * FROM reconcile.sweep_host_targets();
SELECT * FROM reconcile.sweep_host_targets();
SELECT host_id, host_generation, expires_at IS NULL AS withdrawn, endpoint, accepting, observed_at > now() - interval '10 s' AS now FROM reconcile.host_target WHERE agent_id = 'targets' ORDER BY 1;
-- I16: and may come back
SELECT host('t1', 9), host('t2', 8), host('t3', 7);
-- I26: crowded out by those that died, the live one is the first after a sweep
SELECT lapse_all('live');
SELECT host_id FROM reconcile.compatible_hosts('targets', 'r', 'pooled', 3) WHERE host_id IS NOT NULL;
SELECT withdrawn FROM reconcile.sweep_host_targets();
SELECT host_id FROM reconcile.compatible_hosts('targets', 'r', 'pooled', 3) WHERE host_id IS NOT NULL;
-- I23, G3: 1 page of 1 row; one that cannot be withdrawn is stepped past, and comes again after the end
SELECT reconcile.set_placement('{"page_limit": 1, "max_pages": 1}') -> 'page_limit' AS page_limit;
SELECT host('t1'), host('t2');
SELECT lapse_all('live');
CREATE TRIGGER refuse BEFORE UPDATE ON reconcile.host_target FOR EACH ROW WHEN (NEW.host_id = 't1') EXECUTE FUNCTION refuse();
SELECT * FROM reconcile.sweep_host_targets();
SELECT * FROM reconcile.sweep_host_targets();
SELECT * FROM reconcile.sweep_host_targets();
DROP TRIGGER refuse ON reconcile.host_target;
-- G5, I25: a page that cannot be read is told, and the next pass begins with it
SELECT host('t2');
SELECT lapse_all('live');
SELECT * FROM reconcile.sweep_host_targets();
ALTER TABLE reconcile.host_target RENAME COLUMN revision TO revision_gone;
SELECT * FROM reconcile.sweep_host_targets();
ALTER TABLE reconcile.host_target RENAME COLUMN revision_gone TO revision;
SELECT * FROM reconcile.sweep_host_targets();
SELECT * FROM reconcile.sweep_host_targets();
-- I18, I24: a bound of another clock: what is not over by now stays
INSERT INTO reconcile.placement_cursor (sweep, shard, bound, at, position) VALUES ('host_targets', 0, clock_timestamp() + interval '1 h', '-infinity', '{"", "", "", ""}')
    ON CONFLICT (sweep, shard) DO UPDATE SET bound = EXCLUDED.bound, at = EXCLUDED.at, position = EXCLUDED.position;
SELECT pages, scanned, withdrawn, still_live, resumed FROM reconcile.sweep_host_targets();
DELETE FROM reconcile.placement_cursor WHERE sweep = 'host_targets' AND shard = 0;
SELECT reconcile.set_placement('{"page_limit": 100, "max_pages": 8}') -> 'page_limit' AS page_limit;

-- ----------------------------------------------------------------
-- offers that nobody answered: their sessions are looked at again
SELECT count(reconcile.refuse_offer(offer_id)) >= 0 AS answered FROM reconcile.session_offer WHERE state = 'offered';
SELECT reconcile.unregister_host('sweep host') IS NOT NULL, reconcile.register_host('sweep host', session_user);
SELECT outcome FROM reconcile.publish_host_target('sweep host', 1, 'sweep', 'r', 'pooled', 'wss://h', 'cross_tenant_isolated', true, 20, '15 min',
                                                      seen_offer => (SELECT max(offer_id) FROM reconcile.session_offer));
SELECT outcome FROM reconcile.place_session('sweep', id('s10')) UNION ALL SELECT outcome FROM reconcile.place_session('sweep', id('s11'));
UPDATE reconcile.session_offer SET expires_at = clock_timestamp() WHERE state = 'offered' AND session_id = id('s10');
SELECT forget();
SELECT pages, examined, expired, contended, failed, deleted, truncated, resumed, failure FROM reconcile.sweep_offers();
SELECT state, counted FROM reconcile.session_offer WHERE tenant_id = 'sweep' AND session_id IN (id('s10'), id('s11')) ORDER BY offer_id;
SELECT marked();
-- what was decided a day ago is deleted, but for what still counts
CREATE VIEW old_offers AS SELECT o.state, o.counted, count(*) FROM reconcile.session_offer o WHERE o.tenant_id = 'sweep' AND o.made_at < now() - interval '1 day' GROUP BY 1, 2 ORDER BY 1, 2;
UPDATE reconcile.session_offer SET made_at = now() - interval '25 h';
SELECT state, counted FROM old_offers;
SELECT deleted > 0 AS deleted FROM reconcile.sweep_offers();
SELECT state, counted FROM old_offers;

-- ----------------------------------------------------------------
-- G8: a replica gives back its own claims, by its name and its role; nothing else
SELECT string_agg(outcome, ' ') FROM (VALUES ('s12', 'me'), ('s13', 'me'), ('s14', 'another'), ('s15', 'me')) v (name, holder),
    LATERAL reconcile.acquire_claim('sweep', id(name), holder, '5 min');
UPDATE reconcile.session_claim SET role_name = 'placement_sweep_operator' WHERE tenant_id = 'sweep' AND session_id = id('s15');
SELECT * FROM reconcile.sweep_claims('me', 1);
SELECT * FROM reconcile.sweep_claims('me');
SELECT * FROM reconcile.sweep_claims('me');
SELECT * FROM reconcile.sweep_claims('nobody');
SELECT m.name, c.holder_id, c.expires_at = c.claimed_at AS released FROM reconcile.session_claim c JOIN member m ON m.id = c.session_id WHERE c.tenant_id = 'sweep' AND m.name > 's11' ORDER BY 1;
SELECT reconcile.sweep_claims(NULL);
SELECT reconcile.sweep_claims('me', 0);
SELECT reconcile.sweep_claims('me', 10001);

-- ----------------------------------------------------------------
-- A run reads a page, and the next one follows at once until the round is over
DELETE FROM reconcile.placement_cursor;
SELECT reconcile.set_placement('{"page_limit": 2}') -> 'page_limit' AS page_limit;
CREATE FUNCTION runs_of_round(name text, OUT runs int, OUT look interval) LANGUAGE plpgsql AS $$
BEGIN
    runs := 0;
    LOOP
        look := reconcile.sweep_entity(name);
        runs := runs + 1;
        EXIT WHEN look IS DISTINCT FROM '1 ms';
    END LOOP;
END $$;
SELECT runs >= ceil((SELECT count(*) FROM reconcile.session_command c WHERE c.shard = 40 AND c.state IN ('pending', 'claimed', 'applying')) / 2.0) AS runs, look >= '5 s' AS look
  FROM runs_of_round('pending');
-- then it rests for as long as its runs took, whatever lies between them: a pause, an outage
SELECT reconcile.set_placement('{"interval": "10 ms"}') -> 'interval' AS interval;
CREATE FUNCTION rests_after_pause(name text, OUT runs int, OUT by_its_runs boolean) LANGUAGE plpgsql AS $$
DECLARE ran interval := '0'; began timestamptz; look interval;
BEGIN
    runs := 0;
    LOOP
        began := clock_timestamp();
        look := reconcile.sweep_entity(name);
        ran := ran + (clock_timestamp() - began);
        runs := runs + 1;
        EXIT WHEN look IS DISTINCT FROM '1 ms';
        PERFORM pg_sleep(1) WHERE runs = 1;
    END LOOP;
    by_its_runs := look <= greatest(ran, '10 ms') + '100 ms';
END $$;
SELECT runs > 1 AS paused, by_its_runs FROM rests_after_pause('pending');
SELECT reconcile.set_placement('{"page_limit": 100, "interval": null}') -> 'page_limit' AS page_limit;

-- ----------------------------------------------------------------
-- A sweep that has nothing to look at looks no more, until somebody makes a row; one whose first row is due later, not before that
CREATE FUNCTION looks(name text) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN wake_at = 'infinity' THEN 'never' WHEN wake_at < clock_timestamp() + interval '10 s' THEN 'soon' ELSE 'later' END FROM reconcile.placement_cursor WHERE sweep = name AND shard = -1 $$;
SELECT lapse_all('') > 0 AS any;
SELECT reconcile.sweep_entity('host_targets'), looks('host_targets');
CREATE FUNCTION waits(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM reconcile.work WHERE loop_name = 'placement_sweeps' AND entity_id = name $$;
SELECT reconcile.forget('placement_sweeps', 'host_targets'), reconcile.forget('placement_sweeps', 'pending');
SELECT host('t1');
SELECT waits('host_targets'), waits('pending');
SELECT reconcile.sweep_entity('host_targets') BETWEEN '30 s' AND '1 min' AS look, looks('host_targets');
SELECT reconcile.forget('placement_sweeps', 'host_targets');
-- one that is due after that wakes nobody, one that is due before that does
SELECT host('t2');
SELECT waits('host_targets');
SELECT outcome FROM reconcile.publish_host_target('t2', 3, 'targets', 'r2', 'pooled', 'wss://h', 'cross_tenant_isolated', true, 1, '20 s');
SELECT waits('host_targets');
SELECT reconcile.forget('placement_sweeps', 'deadlines');
-- what is being applied is no reason to look again, and a claim is at its end
SELECT runs, look BETWEEN '5 s' AND '11 min' AS look, looks('deadlines') FROM runs_of_round('deadlines');
SELECT command('s12', 'far', '20 days'), waits('deadlines');
SELECT command('s12', 'near', '6 s'), waits('deadlines');
-- while one is at it, or there is an open command, it does not fall asleep
SELECT look BETWEEN '5 s' AND '6 s' AS look, looks('pending') FROM runs_of_round('pending');
SELECT reconcile.sweep_entity('nobody');
SELECT * FROM reconcile.sweep_names();

-- ----------------------------------------------------------------
-- rights: F6, M6: before anything is read, and no turn is over by it
CREATE ROLE placement_sweep_stranger;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO placement_sweep_stranger;
SELECT turn('pending', 7);
SET ROLE placement_sweep_stranger;
\set VERBOSITY sqlstate
SELECT reconcile.sweep_pending();
SELECT reconcile.sweep_deadlines();
SELECT reconcile.sweep_host_targets();
SELECT reconcile.sweep_offers();
SELECT reconcile.sweep_claims('me');
SELECT reconcile.sweep_entity('pending');
SELECT reconcile.schedule_sweeps();
SELECT reconcile.unschedule_sweeps();
RESET ROLE;
SELECT last_value, is_called FROM reconcile.sweep_turn_pending;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT reconcile.sweep_pending();
ROLLBACK;
BEGIN READ ONLY;
SELECT reconcile.sweep_pending();
ROLLBACK;
\set VERBOSITY terse
SELECT reconcile.schedule_sweeps();
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile FROM placement_sweep_stranger;

UPDATE reconcile.placement_setting SET control_shards = 16;
DELETE FROM reconcile.placement_cursor;
SELECT reconcile.set_placement('{"page_limit": null, "max_pages": null, "claim_ttl": null}') -> 'page_limit' AS page_limit;
SELECT reconcile.drop_loop('placement'), reconcile.drop_loop('placement_sweeps');
SELECT reconcile.revoke_access('placement_sweep_operator', 'operate');
DROP OWNED BY placement_sweep_operator;
DROP ROLE placement_sweep_operator, placement_sweep_stranger;
RESET search_path;
DROP SCHEMA placement_sweep CASCADE;

--
-- Incarnations (P5, P6): what was granted before a promotion, a restore or a
-- clone is void from the first moment, and each new epoch is higher. Each part
-- is rolled back, so that the epochs of other tests stay as they are.
--
SET client_min_messages = warning;
CREATE SCHEMA incarnation_test;
SET search_path = incarnation_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- Makes all rows look as if the server, or what is named, were another since.
CREATE FUNCTION move(what text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    here record;
    place text[];
BEGIN
    SELECT * INTO here FROM reconcile.here();
    place := string_to_array(here.home, '/');
    IF what = 'timeline' THEN
        here.timeline := here.timeline + 1;
    ELSE
        place[array_position('{system,database,extension}'::text[], what)] := '4711';
        here.home := array_to_string(place, '/');
    END IF;
    UPDATE reconcile.incarnation SET home = here.home, timeline = here.timeline;
    UPDATE reconcile.lease SET home = here.home, timeline = here.timeline;
    UPDATE reconcile.loop SET home = here.home, timeline = here.timeline;
END $$;

-- The floor that the clock gives, within a minute.
CREATE FUNCTION by_clock(epoch bigint) RETURNS boolean LANGUAGE sql AS
    'SELECT abs(epoch - extract(epoch FROM clock_timestamp()) * 1048576) < 60 * 1048576';

-- ---------------------------------------------------------------------------
-- A first life counts from 1.
BEGIN;
DELETE FROM reconcile.lease; DELETE FROM reconcile.lease_term; DELETE FROM reconcile.resource;
DELETE FROM reconcile.incarnation WHERE incarnation > 0;
-- the tables without an index are scanned, and not by a plan that is compiled for its cost: that would be told
SET LOCAL client_min_messages = debug1;
SELECT incarnation, epoch_floor, since, reason FROM reconcile.incarnation();
SET LOCAL client_min_messages = warning;
SELECT i.system_identifier = s.system_identifier::text AS system, i.timeline = c.timeline_id AS timeline
  FROM reconcile.incarnation() i, pg_control_system() s, pg_control_checkpoint() c;
SELECT epoch FROM reconcile.acquire_lease('fleet', 'a');
SELECT incarnation, epoch_floor, since <= clock_timestamp() AS since, reason FROM reconcile.incarnation();
SELECT reconcile.release_lease('fleet', 'a', 1);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'a');
SELECT epoch FROM reconcile.acquire_lease('other', 'a');
SELECT count(*) AS stored FROM reconcile.incarnation WHERE incarnation > 0;
-- a database whose first grant was lost with the server that made it is no first life
DELETE FROM reconcile.lease; DELETE FROM reconcile.lease_term;
DELETE FROM reconcile.incarnation WHERE incarnation > 0;
SELECT move('timeline');
SELECT incarnation, since, reason, by_clock(epoch_floor) FROM reconcile.incarnation();
SELECT by_clock(epoch) FROM reconcile.acquire_lease('fleet', 'a');
ROLLBACK;

-- Nor is one whose leases are there before its incarnation: a restore in progress.
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('restored', 'a');
DELETE FROM reconcile.incarnation WHERE incarnation > 0;
SELECT incarnation, since, reason, by_clock(epoch_floor) FROM reconcile.incarnation();
ROLLBACK;

-- ---------------------------------------------------------------------------
-- Whatever is another: terms are void before anybody was granted a new one.
CREATE FUNCTION story(what text) RETURNS TABLE (n int, says text) LANGUAGE plpgsql AS $$
DECLARE
    was reconcile.lease_token;
    now_ reconcile.lease_token;
    floor_ bigint;
    last_ bigint;
BEGIN
    was := reconcile.acquire_lease('fleet', 'a', '1 h');
    was := reconcile.acquire_lease('fleet', 'a', '1 h');
    PERFORM reconcile.acquire_lease('short', 'a', '1 ms');
    WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = 'short') LOOP END LOOP;
    IF NOT reconcile.apply_fenced('fleet', 'e', was.epoch, '{"by": "a"}') THEN RAISE 'not fenced'; END IF;
    -- what follows is another transaction, for all that is known of fences
    last_ := (SELECT incarnation FROM reconcile.incarnation());
    PERFORM move(what);
    SELECT epoch_floor INTO floor_ FROM reconcile.incarnation();
    RETURN QUERY SELECT 1, concat_ws(' ', i.incarnation - last_, i.since IS NULL, i.reason, by_clock(i.epoch_floor)) FROM reconcile.incarnation() i;
    RETURN QUERY SELECT 2, concat_ws(' ', l.live, l.remaining) FROM reconcile.leases l WHERE l.reconciler_id = 'fleet';
    RETURN QUERY SELECT 3, 'apply ' || reconcile.apply_fenced('fleet', 'f', e, '{}') FROM unnest(ARRAY[was.epoch, was.epoch + 1, floor_]) e;
    RETURN QUERY SELECT 4, concat_ws(' ', r.code, r.detail) FROM unnest(ARRAY[
        format($f$SELECT reconcile.bind_lease('fleet', 'a', %s)$f$, was.epoch),
        format($f$SELECT reconcile.bind_lease('fleet', 'a', %s)$f$, was.epoch + 1),
        format($f$SELECT reconcile.renew_lease('fleet', 'a', %s)$f$, was.epoch)]) s, refusal(s) r;
    RETURN QUERY SELECT 5, concat_ws(' ', renewed, reconcile.release_lease('fleet', 'a', was.epoch),
        reconcile.force_release_lease('fleet', was.epoch, 'why')) FROM reconcile.renew_leases('a', '{fleet}', ARRAY[was.epoch]);
    -- an id of which nothing is known might have had a first grant; one that was written has an order from elsewhere
    RETURN QUERY SELECT 6, concat_ws(' ', reconcile.apply_fenced('unknown', 'e', 1, '{}'), reconcile.apply_fenced('unknown', 'e', 0, '{}'),
        reconcile.apply_fenced('unknown', 'e', 1, '{}'));
    -- the grant is one for another id, and settles it for all
    now_ := reconcile.acquire_lease('another', 'b');
    RETURN QUERY SELECT 7, concat_ws(' ', i.incarnation - last_, i.since IS NULL, i.reason, i.epoch_floor >= floor_, now_.epoch - i.epoch_floor)
        FROM reconcile.incarnation() i;
    RETURN QUERY SELECT 8, concat_ws(' ', t.reconciler_id, t.ended_at IS NULL, t.end_reason) FROM reconcile.lease_history t
        WHERE t.reconciler_id IN ('fleet', 'short') ORDER BY t.reconciler_id, t.epoch DESC LIMIT 2;
    RETURN QUERY SELECT 9, concat_ws(' ', l.live, l.remaining) FROM reconcile.leases l WHERE l.reconciler_id = 'fleet';
    floor_ := (SELECT epoch_floor FROM reconcile.incarnation());
    RETURN QUERY SELECT 10, r.code FROM refusal(format($f$SELECT reconcile.apply_fenced('fleet', 'f', %s, '{}')$f$, floor_ + 1)) r;
    RETURN QUERY SELECT 11, 'apply ' || reconcile.apply_fenced('fleet', 'f', floor_, '{}');
END $$;

BEGIN; SELECT says FROM story('timeline'); ROLLBACK;
BEGIN; SELECT says FROM story('system'); ROLLBACK;
BEGIN; SELECT DISTINCT reason FROM move('database'), reconcile.incarnation(); ROLLBACK;
BEGIN; SELECT DISTINCT reason FROM move('extension'), reconcile.incarnation(); ROLLBACK;

-- The id itself: its holder, another, and one whose resources have seen more than its lease.
BEGIN;
SELECT epoch AS was FROM reconcile.acquire_lease('fleet', 'a', '1 h') \gset
SELECT epoch FROM reconcile.acquire_lease('ahead', 'a', '1 h') \gset ahead_
INSERT INTO reconcile.resource VALUES ('ahead', 'e', 9000000000000000000, 1, '{}', now());
SELECT move('timeline');
SELECT epoch AS is FROM reconcile.try_acquire_lease('fleet', 'a', '1 h') \gset
SELECT :is > :was + 4294967296 AS higher, by_clock(:is);
SELECT epoch = :is AS kept FROM reconcile.acquire_lease('fleet', 'a', '1 h');
SELECT reconcile.try_acquire_lease('fleet', 'b') IS NULL AS refused;
SELECT epoch FROM reconcile.acquire_lease('ahead', 'b');
SELECT count(*) AS changes FROM reconcile.incarnation WHERE reason = 'the timeline changed';
ROLLBACK;
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('full', 'a', '1 h') \gset full_
INSERT INTO reconcile.resource VALUES ('full', 'e', 9223372036854775800, 1, '{}', now());
SELECT move('timeline');
SELECT code, message FROM refusal($$SELECT reconcile.acquire_lease('full', 'a')$$);
ROLLBACK;

-- Rows that a subscription brings: one of the same number is of another server, whose home may be before ours or after it in their order.
BEGIN;
SELECT epoch AS was FROM reconcile.acquire_lease('fleet', 'a', '1 h') \gset
INSERT INTO reconcile.incarnation
SELECT i.incarnation, home, 1, i.epoch_floor, i.since, 'of another server' FROM reconcile.incarnation() i, unnest('{0/1/1,9/1/1}'::text[]) home;
SELECT reason <> 'of another server' AS ours, since IS NOT NULL AS settled FROM reconcile.incarnation();
SELECT epoch = :was AS stands FROM reconcile.acquire_lease('fleet', 'a', '1 h');
ROLLBACK;

-- ---------------------------------------------------------------------------
-- On request.
BEGIN;
SELECT epoch AS was FROM reconcile.acquire_lease('fleet', 'a', '1 h') \gset
SELECT incarnation AS before FROM reconcile.incarnation() \gset
SELECT reconcile.bump_incarnation('the storage was rolled back') AS floor \gset
SELECT incarnation - :before AS more, epoch_floor = :floor AS floor, by_clock(:floor), since <= clock_timestamp() AS since, reason FROM reconcile.incarnation();
SELECT live, remaining FROM reconcile.leases WHERE reconciler_id = 'fleet';
SELECT end_reason FROM reconcile.lease_history WHERE reconciler_id = 'fleet' ORDER BY epoch DESC LIMIT 1;
SELECT reconcile.apply_fenced('fleet', 'e', :was, '{}') AS was, reconcile.apply_fenced('fleet', 'e', :floor, '{}') AS lost;
SELECT code FROM refusal(format($$SELECT reconcile.renew_lease('fleet', 'a', %s)$$, :was));
SELECT code FROM refusal(format($$SELECT reconcile.apply_fenced('fleet', 'e', %s, '{}')$$, :floor + 1));
ROLLBACK;
BEGIN;
SELECT reconcile.bump_incarnation('once') AS floor \gset
SELECT reconcile.bump_incarnation('twice') - :floor = 4294967296 AS far_above;
SELECT epoch - :floor = 4294967297 AS above FROM reconcile.acquire_lease('fleet', 'c');
-- a floor that is not durable would be no floor
SET LOCAL synchronous_commit = off;
PREPARE TRANSACTION 'incarnation_test';
SELECT count(*) FROM reconcile.incarnation WHERE reason IN ('once', 'twice');

-- an outside order led ids above all floors: there, too, room is left for what may be lost, a term after this one or a first one
BEGIN;
INSERT INTO reconcile.resource SELECT id, 'e', 9007199254740992, 1, '{}', now() FROM unnest('{led,first_led}'::text[]) id;
SELECT epoch FROM reconcile.acquire_lease('led', 'a', '1 h');
SELECT reconcile.bump_incarnation('the storage was rolled back') < 9007199254740992 AS below;
SELECT live FROM reconcile.leases WHERE reconciler_id = 'led';
SELECT code FROM refusal($$SELECT reconcile.renew_lease('led', 'a', 9007199254740993)$$);
SAVEPOINT fenced;
SELECT reconcile.apply_fenced('led', 'e', 9007199254740993, '{}');
ROLLBACK TO fenced;
SELECT reconciler_id, epoch - 9007199254740992 > 4294967296 AS far_above
  FROM unnest('{led,first_led}'::text[]) id, reconcile.acquire_lease(id, 'b', '1 h');
SELECT holder_id, end_reason FROM reconcile.lease_history WHERE reconciler_id = 'led' ORDER BY epoch;
ROLLBACK;
-- claims of outside workers are fenced by their epochs, which do not repeat either
BEGIN;
SELECT reconcile.create_loop('outside');
SELECT reconcile.enqueue('outside', id) FROM unnest('{a,b,c,d}'::text[]) id;
SELECT claim_epoch AS first FROM reconcile.claim_work('outside', 'w') \gset
SELECT claim_epoch - :first AS next FROM reconcile.claim_work('outside', 'w');
SELECT move('timeline');
SELECT claim_epoch AS above FROM reconcile.claim_work('outside', 'w') \gset
SELECT :above - epoch_floor - :first AS next, by_clock(:above), since IS NULL AS unsettled, reason FROM reconcile.incarnation();
SELECT reconcile.bump_incarnation('the storage was rolled back') > 0 AS bumped;
SELECT claim_epoch AS above FROM reconcile.claim_work('outside', 'w') \gset
SELECT :above - epoch_floor - :first AS next FROM reconcile.incarnation();
ROLLBACK;

SELECT * FROM refusal($$SELECT reconcile.bump_incarnation(NULL)$$);
SELECT * FROM refusal($$SELECT reconcile.bump_incarnation('')$$);
SELECT * FROM refusal($$SELECT reconcile.bump_incarnation(repeat('x', 1001))$$);
BEGIN READ ONLY;
SELECT code FROM refusal($$SELECT reconcile.bump_incarnation('why')$$);
ROLLBACK;
CREATE ROLE incarnation_operator;
GRANT USAGE ON SCHEMA incarnation_test TO incarnation_operator;
SELECT reconcile.grant_access('incarnation_operator', 'operate', 'fleet');
SET ROLE incarnation_operator;
SELECT code, message, detail FROM refusal($$SELECT reconcile.bump_incarnation('why')$$);
SELECT count(*) FROM reconcile.incarnation();
RESET ROLE;
SELECT reconcile.grant_access('incarnation_operator', 'operate');
BEGIN;
SET LOCAL ROLE incarnation_operator;
SELECT reconcile.bump_incarnation('why') > 0 AS bumped;
ROLLBACK;

-- ---------------------------------------------------------------------------
-- Loops: of another place they are paused until they are resumed; in either case
-- what they remember is looked at again.
CREATE FUNCTION drive(id text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION list() RETURNS SETOF text LANGUAGE sql AS $$SELECT 'x'$$;
BEGIN;
SELECT reconcile.create_loop('plain', 'drive(text)'), reconcile.create_loop('listed', 'drive(text)', lister => 'list()'),
       reconcile.create_loop('outside');
SELECT reconcile.enqueue('plain', 'p', '1 h'), reconcile.enqueue('listed', 'l', '1 h'), reconcile.enqueue('outside', 'o');
SELECT move('database');
SELECT loop_name, paused FROM reconcile.loops ORDER BY loop_name;
SELECT state, reason, detail, hint FROM reconcile.explain('outside', 'o');
SELECT count(*) FROM reconcile.claim_work('outside', 'w');
SELECT reconcile.next_due('outside');
SELECT status, detail, hint FROM reconcile.health WHERE check_name = 'incarnation' AND detail ~ 'loops';
-- they can be triggered, changed and paused, which resumes nothing
SELECT reconcile.enqueue('outside', 'o2'), reconcile.alter_loop('outside', '{"max_attempts": 3}'), reconcile.pause_loop('plain');
SELECT loop_name, paused FROM reconcile.loops ORDER BY loop_name;
SELECT reconcile.resume_loop('outside');
SELECT loop_name, paused FROM reconcile.loops ORDER BY loop_name;
SELECT entity_id, claim_epoch > 0 AS claimed FROM reconcile.claim_work('outside', 'w', 10) ORDER BY 1;
SELECT reconcile.resume_all();
SELECT loop_name, paused FROM reconcile.loops ORDER BY loop_name;
SELECT loop_name, entity_id, kind FROM reconcile.mark WHERE loop_name <> 'outside' ORDER BY 1, 2, 3;
-- once
SELECT reconcile.resume_all();
SELECT count(*) FROM reconcile.mark WHERE loop_name <> 'outside';
-- who was no first life here begins above what the original may have granted
SELECT by_clock(epoch) FROM reconcile.acquire_lease('fleet', 'c');
ROLLBACK;
-- nor does one that came with a dump from before the first grant, in which loops alone say that there was another
BEGIN;
DELETE FROM reconcile.lease; DELETE FROM reconcile.lease_term; DELETE FROM reconcile.incarnation WHERE incarnation > 0;
SELECT reconcile.create_loop('one'), reconcile.create_loop('other');
UPDATE reconcile.loop SET home = regexp_replace(home, '^\d+', '4711') WHERE loop_name = 'other';
SELECT reconcile.resume_all();
SELECT by_clock(epoch) FROM reconcile.acquire_lease('fleet', 'a');
ROLLBACK;
BEGIN;
SELECT reconcile.create_loop('outside');
SELECT reconcile.enqueue('outside', 'o', '1 h');
SELECT move('timeline');
-- promoted: it runs
SELECT loop_name, paused FROM reconcile.loops ORDER BY loop_name;
SELECT reconcile.next_due('outside') > '1 min' AS later;
SELECT reconcile.bump_incarnation('why') > 0 AS bumped;
SELECT reconcile.next_due('outside') AS now;
ROLLBACK;

RESET search_path;
SELECT reconcile.revoke_access('incarnation_operator', 'operate', 'fleet'), reconcile.revoke_access('incarnation_operator', 'operate');
DROP SCHEMA incarnation_test CASCADE;
DROP OWNED BY incarnation_operator;
DROP ROLE incarnation_operator;

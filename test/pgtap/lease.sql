-- Leases and fenced writes, as a user could rerun it: contracts/loop.md 8.8 and
-- 8.9, scenarios 100 to 113, in one transaction.
BEGIN;
SELECT plan(43);

-- 105: exclusive
SELECT is((SELECT epoch FROM reconcile.acquire_lease('tap', 'a', '1 h')), 1::bigint, 'the first acquire of an id is epoch 1');
SELECT throws_ok($$SELECT reconcile.acquire_lease('tap', 'b')$$, 'RC001', 'lease "tap" is held', '105: a second holder is refused');
SELECT is(reconcile.try_acquire_lease('tap', 'b'), NULL, '105: or gets NULL');
SELECT is((SELECT count(*) FROM reconcile.try_acquire_lease('tap', 'b')), 1::bigint, 'a NULL token is one row of NULLs');

-- 107: renew keeps lease and epoch; so does the holder's acquire
SELECT is((SELECT epoch FROM reconcile.renew_lease('tap', 'a', 1)), 1::bigint, '107: renew keeps the epoch');
SELECT is(reconcile.try_acquire_lease('tap', 'b'), NULL, '107: the follower stays locked out');
SELECT is((SELECT epoch FROM reconcile.acquire_lease('tap', 'a', '1 h')), 1::bigint, '107: the holder''s acquire keeps the epoch');
SELECT ok((SELECT live AND remaining > '59 min' FROM reconcile.leases WHERE reconciler_id = 'tap'), '107: and refreshes the expiry');

-- 106, 108: release and hand-off
SELECT ok(reconcile.release_lease('tap', 'a', 1), '106: release frees it');
SELECT ok(NOT reconcile.release_lease('tap', 'a', 1), 'a second release frees nothing');
SELECT is((SELECT epoch FROM reconcile.acquire_lease('tap', 'b', '1 h')), 2::bigint, '108: a hand-off bumps the epoch');

-- 110, 111: the old holder
SELECT throws_ok($$SELECT reconcile.renew_lease('tap', 'a', 1)$$, 'RC002', NULL, '110: renew after a take-over is lost');
SELECT ok(NOT reconcile.release_lease('tap', 'a', 1), '111: a stale release frees nothing');
SELECT is(reconcile.try_acquire_lease('tap', 'c'), NULL, '111: a third holder stays locked out');
SELECT is((SELECT epoch FROM reconcile.renew_lease('tap', 'b', 2)), 2::bigint, '111: the new holder still renews');
SELECT ok(NOT reconcile.release_lease('tap', 'b', 1), 'the right holder with an older epoch frees nothing');
SELECT throws_ok($$SELECT reconcile.renew_lease('tap', 'b', 1)$$, 'RC002', NULL, 'nor does he renew');

-- 109: re-acquire after release
SELECT ok(reconcile.release_lease('tap', 'b', 2), 'the new holder releases');
SELECT is((SELECT epoch FROM reconcile.acquire_lease('tap', 'b', '1 h')), 3::bigint, '109: the same holder gets a new epoch after his release');

-- 113: expiry
SELECT is((SELECT epoch FROM reconcile.acquire_lease('brief', 'a', '20 ms')), 1::bigint, '113: a lease of 20 ms');
DO $$ BEGIN WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = 'brief') LOOP END LOOP; END $$;
SELECT throws_ok($$SELECT reconcile.renew_lease('brief', 'a', 1)$$, 'RC002', NULL, '113: is lost once it is over');
SELECT is((SELECT epoch FROM reconcile.acquire_lease('brief', 'b', '1 h')), 2::bigint, '113: and goes to another, higher');
SELECT throws_ok($$SELECT reconcile.renew_lease('brief', 'a', 1)$$, 'RC002',
                 'epoch 1 of lease "brief" is lost: epoch 2 has been granted', '113: whose epoch the old holder is told');
SELECT results_eq($$SELECT epoch, holder_id, end_reason FROM reconcile.lease_history WHERE reconciler_id = 'brief' ORDER BY 1$$,
                  $$VALUES (1::bigint, 'a', 'expired'), (2, 'b', NULL)$$, 'history has each term once');

-- 112: fencing
SELECT ok(reconcile.apply_fenced('tap', 'device', 3, '{"by": "b"}'), '112: the live epoch writes');
SELECT ok(NOT reconcile.apply_fenced('tap', 'device', 2, '{"by": "zombie"}'), '112: an older one does not');
SELECT throws_ok($$SELECT reconcile.apply_fenced('tap', 'device', 4, '{}')$$, 'RC005', NULL, '112: one that was never granted is an error');
SELECT results_eq($$SELECT last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'tap'$$,
                  $$VALUES (3::bigint, 1::bigint, '{"by": "b"}'::jsonb)$$, '112: exactly one effect');
SELECT throws_ok($$SELECT reconcile.acquire_lease('tap', 'b')$$, '55000', NULL, 'who used the fence of an id does not acquire it');

-- 100 to 104: the bound epoch
SELECT is(reconcile.fenced_epoch(), NULL, '104: unbound');
SELECT throws_ok($$SELECT reconcile.fenced_write('device', '{}')$$, 'RC006', NULL, '103: a write without a bound epoch');
SELECT throws_ok($$SELECT reconcile.bind_lease('tap', 'b', 2)$$, 'RC002', NULL, 'an older epoch cannot be bound');
SELECT lives_ok($$SELECT reconcile.bind_lease('tap', 'b', 3)$$, 'the live one can');
SELECT is(reconcile.fenced_epoch(), 3::bigint, '104: bound');
SELECT lives_ok($$SELECT reconcile.fenced_write('device', '{"by": null, "at": 1}')$$, '100: a write under the bound epoch');
SELECT results_eq($$SELECT last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'tap'$$,
                  $$VALUES (3::bigint, 2::bigint, '{"at": 1}'::jsonb)$$, '100: is merged');
SAVEPOINT s;
UPDATE reconcile.resource SET last_epoch = 5 WHERE reconciler_id = 'tap';
SELECT throws_ok($$SELECT reconcile.fenced_write('device', '{}')$$, 'RC003',
                 'epoch 3 of "tap" is stale: the entity has seen epoch 5', '101: a stale write names both epochs');
ROLLBACK TO s;
SELECT is(reconcile.fenced_epoch(), 3::bigint, 'a rollback to a later savepoint keeps the binding');
SELECT throws_ok($$SELECT reconcile.fenced_write('device', NULL)$$, '22004', NULL, '102: a bad mutation is not reported as stale');

-- the surface
SELECT has_function('reconcile', 'acquire_lease', ARRAY['text', 'text', 'interval', 'interval'], 'acquire_lease');
SELECT has_function('reconcile', 'apply_fenced', ARRAY['text', 'text', 'bigint', 'jsonb'], 'apply_fenced');
SELECT columns_are('reconcile', 'leases', ARRAY['reconciler_id', 'holder_id', 'epoch', 'acquired_at', 'expires_at', 'live', 'remaining', 'renewals']);
SELECT columns_are('reconcile', 'lease_history', ARRAY['reconciler_id', 'epoch', 'holder_id', 'acquired_at', 'ended_at', 'end_reason', 'forced_by', 'forced_reason']);

SELECT * FROM finish();
ROLLBACK;

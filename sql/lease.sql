--
-- Leases: who leads, at which epoch (contracts: loop conformance 105 to 113).
--
SET client_min_messages = warning;
CREATE SCHEMA lease_test;
SET search_path = lease_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- Returns when the lease is over; its ttl is some milliseconds.
CREATE PROCEDURE lapse(id text) LANGUAGE plpgsql AS $$
BEGIN
    WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = id) LOOP
    END LOOP;
END $$;

-- The epoch table, row by row.
-- first acquire of an id: 1
SELECT reconciler_id, holder_id, epoch, expires_at - acquired_at AS ttl FROM reconcile.acquire_lease('fleet', 'a');
-- same holder, lease live: unchanged, and both times are refreshed
SELECT acquired_at AS first_acquired, expires_at AS first_expires FROM reconcile.leases WHERE reconciler_id = 'fleet' \gset
SELECT epoch, acquired_at > :'first_acquired' AS acquired_later, expires_at > :'first_expires' AS expires_later
  FROM reconcile.acquire_lease('fleet', 'a', '20 s');
-- other holder, lease live: refused (105)
SELECT reconciler_id, holder_id, epoch FROM reconcile.try_acquire_lease('fleet', 'b');
SELECT code, message, detail, regexp_replace(hint, '[0-9]{4,5} ms', 'N ms') AS hint
  FROM refusal($$SELECT reconcile.acquire_lease('fleet', 'b')$$);
-- renew: unchanged, the other stays out (107); NULL ttl is that of the grant
SELECT epoch, expires_at > acquired_at + interval '20 s' AS later FROM reconcile.renew_lease('fleet', 'a', 1);
SELECT epoch, expires_at > acquired_at + interval '1 h' AS later FROM reconcile.renew_lease('fleet', 'a', 1, '1 h');
SELECT holder_id, epoch, live, remaining BETWEEN '59 min' AND '1 h' AS remaining, renewals FROM reconcile.leases;
SELECT reconcile.try_acquire_lease('fleet', 'b') IS NULL AS refused;
-- the same holder after its release: a gap, so +1 (109)
SELECT reconcile.release_lease('fleet', 'a', 1);
SELECT live, remaining FROM reconcile.leases;
SELECT epoch FROM reconcile.acquire_lease('fleet', 'a');
-- another after a release: +1 (106, 108)
SELECT reconcile.release_lease('fleet', 'a', 2);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'b', '20 ms');
-- the same holder after expiry: +1
CALL lapse('fleet');
SELECT epoch FROM reconcile.acquire_lease('fleet', 'b', '20 ms');
-- another after expiry: +1 (113), and the old holder has lost
CALL lapse('fleet');
SELECT epoch FROM reconcile.acquire_lease('fleet', 'c');
SELECT * FROM refusal($$SELECT reconcile.renew_lease('fleet', 'b', 4)$$);

-- 110: renew after a take-over. 111: a late release frees nobody's term.
SELECT reconcile.release_lease('fleet', 'b', 4);
SELECT reconcile.try_acquire_lease('fleet', 'd') IS NULL AS still_locked_out;
SELECT epoch FROM reconcile.renew_lease('fleet', 'c', 5);
-- holder and epoch are both compared
SELECT reconcile.release_lease('fleet', 'c', 4), reconcile.release_lease('fleet', 'b', 5), reconcile.release_lease('none', 'a', 1);
SELECT code FROM refusal($$SELECT reconcile.renew_lease('fleet', 'b', 5)$$);
SELECT * FROM refusal($$SELECT reconcile.renew_lease('fleet', 'c', 6)$$);
SELECT * FROM refusal($$SELECT reconcile.renew_lease('none', 'a', 1)$$);
-- a released or lapsed term cannot be renewed or released again
SELECT reconcile.release_lease('fleet', 'c', 5), reconcile.release_lease('fleet', 'c', 5);
SELECT * FROM refusal($$SELECT reconcile.renew_lease('fleet', 'c', 5)$$);
SELECT epoch FROM reconcile.acquire_lease('fleet', 'c', '5 ms');
CALL lapse('fleet');
SELECT code FROM refusal($$SELECT reconcile.renew_lease('fleet', 'c', 6)$$);
SELECT reconcile.release_lease('fleet', 'c', 6);

-- Every term is a row of history, once (P5).
SELECT epoch, holder_id, ended_at >= acquired_at AS ended, end_reason FROM reconcile.lease_history
 WHERE reconciler_id = 'fleet' ORDER BY epoch;
SELECT code FROM refusal($$INSERT INTO reconcile.lease_term SELECT * FROM reconcile.lease_term WHERE epoch = 3$$);
-- a lost row does not let an epoch be granted twice
DELETE FROM reconcile.lease WHERE reconciler_id = 'fleet';
SELECT epoch FROM reconcile.acquire_lease('fleet', 'c');
-- the newest 1,000 terms stay, and what is younger than 90 days
INSERT INTO reconcile.lease_term
SELECT id, n, 'x', at, at, 'released'
  FROM (VALUES ('old', 91), ('young', 89)) v (id, days), generate_series(1, 1205) n,
       LATERAL (SELECT clock_timestamp() - interval '1 day' * days AS at) t;
SELECT reconciler_id, epoch FROM unnest(ARRAY['old', 'young']) id, reconcile.acquire_lease(id, 'b');
SELECT reconciler_id, min(epoch), max(epoch), count(*) FROM reconcile.lease_history
 WHERE reconciler_id IN ('old', 'young') GROUP BY reconciler_id ORDER BY reconciler_id;

-- The first epoch of an id is above what its resources have seen.
SELECT reconcile.apply_fenced('counted', 'e1', 41, '{}'), reconcile.apply_fenced('counted', 'e2', 7, '{}');
SELECT epoch FROM reconcile.acquire_lease('counted', 'a');

-- A holder of its own for each call without one.
SELECT holder_id ~ '^minted/[0-9a-f]{32}$' AS minted FROM reconcile.acquire_lease('minted');
SELECT reconcile.try_acquire_lease('minted') IS NULL AS another_one;
SELECT count(DISTINCT holder_id) FROM generate_series(1, 3) n, reconcile.try_acquire_lease('minted_' || n);

-- wait: until the holder's deadline, or its own end.
SELECT epoch FROM reconcile.acquire_lease('waited', 'a', '50 ms');
SELECT epoch FROM reconcile.acquire_lease('waited', 'b', wait => '30 s');
SELECT code FROM refusal($$SELECT reconcile.acquire_lease('waited', 'a', wait => '10 ms')$$);

-- A grant that was rolled back was none: its number is granted to another.
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('undone', 'a');
ROLLBACK;
SELECT epoch FROM reconcile.acquire_lease('undone', 'b');
SELECT epoch, holder_id FROM reconcile.lease_history WHERE reconciler_id = 'undone';
-- Several terms in one transaction.
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('several', 'a');
SELECT reconcile.release_lease('several', 'a', 1);
SELECT epoch FROM reconcile.acquire_lease('several', 'b');
SELECT epoch FROM reconcile.renew_lease('several', 'b', 2);
SELECT epoch FROM reconcile.acquire_lease('several', 'b');
COMMIT;

-- A grant is on disk when its COMMIT returns, whatever the session sets (P5).
SET synchronous_commit = off;
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('durable', 'a');
SET LOCAL synchronous_commit = off;
SELECT pg_current_wal_insert_lsn() AS granted_at \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'granted_at' AS flushed;
RESET synchronous_commit;

-- One transaction takes 1,000 leases at most; undone ones do not count.
SELECT * FROM refusal($$SELECT reconcile.acquire_lease('bulk_' || n, 'a') FROM generate_series(1, 1001) n$$);
BEGIN;
SELECT count(*) FROM generate_series(1, 1000) n, reconcile.acquire_lease('bulk_' || n, 'a');
SELECT code FROM refusal($$SELECT reconcile.acquire_lease('bulk', 'a')$$);
SELECT count(*) FROM generate_series(1, 1000) n, reconcile.acquire_lease('bulk_' || n, 'a');
ROLLBACK;
BEGIN;
SELECT code, count(*) FROM generate_series(1, 20) n, refusal(format(
    $$SELECT reconcile.acquire_lease('bulk_%s_' || m, 'a'), 1 / (m - 60) FROM generate_series(1, 60) m$$, n)) GROUP BY code;
SELECT epoch FROM reconcile.acquire_lease('bulk', 'a');
ROLLBACK;

-- A transaction that could not be ended by anyone is refused.
BEGIN;
SELECT epoch FROM reconcile.acquire_lease('prepared', 'a');
PREPARE TRANSACTION 'lease_test';
SELECT count(*) FROM reconcile.leases WHERE reconciler_id = 'prepared';
BEGIN;
SELECT epoch FROM reconcile.renew_lease('undone', 'b', 1);
PREPARE TRANSACTION 'lease_test';

-- Isolation levels: a wait would lie, an attempt does not.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM refusal($$SELECT reconcile.acquire_lease('levels', 'a', wait => '1 s')$$);
SELECT epoch FROM reconcile.acquire_lease('levels', 'a');
SELECT epoch FROM reconcile.renew_lease('levels', 'a', 1);
SELECT reconcile.release_lease('levels', 'a', 1);
COMMIT;

-- Bad input (P12): its SQLSTATE, and nothing is changed.
SELECT count(*) AS leases FROM reconcile.lease \gset
CREATE TABLE bad (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO bad (call)
SELECT format(f, id) FROM unnest(ARRAY['acquire_lease(%s)', 'try_acquire_lease(%s)', 'renew_lease(%s, ''a'', 1)',
                                       'release_lease(%s, ''a'', 1)']) f,
       unnest(ARRAY['NULL', '''''', '''Fleet''', '''1fleet''', '''fleet-1''', '''flé''', 'repeat(''x'', 49)']) id;
INSERT INTO bad (call)
SELECT format(f, holder) FROM unnest(ARRAY['acquire_lease(''x'', %s)', 'try_acquire_lease(''x'', %s)', 'renew_lease(''x'', %s, 1)',
                                           'release_lease(''x'', %s, 1)']) f,
       unnest(ARRAY['''''', 'repeat(''x'', 257)', 'E''a\u0001''', 'E''a\u200b''', 'E''a\u202e''', 'E''a\u0085''']) holder;
INSERT INTO bad (call) VALUES
    ('renew_lease(''x'', NULL, 1)'), ('release_lease(''x'', NULL, 1)'),
    ('renew_lease(''x'', ''a'', NULL)'), ('release_lease(''x'', ''a'', NULL)'),
    ('renew_lease(''x'', ''a'', -1)'), ('release_lease(''x'', ''a'', -1)'),
    ('acquire_lease(''x'', ''a'', NULL)'), ('try_acquire_lease(''x'', ''a'', NULL)');
INSERT INTO bad (call)
SELECT format(f, ttl) FROM unnest(ARRAY['acquire_lease(''x'', ''a'', %s)', 'try_acquire_lease(''x'', ''a'', %s)',
                                        'renew_lease(''x'', ''a'', 1, %s)']) f,
       unnest(ARRAY['''0 s''', '''-1 s''', '''999 us''', '''1 month''', '''1 year''', '''1 mon -30 days''', '''367 days''', '''178000000 years''']) ttl;
INSERT INTO bad (call) VALUES
    ('acquire_lease(''x'', ''a'', wait => NULL)'), ('acquire_lease(''x'', ''a'', wait => ''-1 s'')'),
    ('acquire_lease(''x'', ''a'', wait => ''60001 ms'')'), ('acquire_lease(''x'', ''a'', wait => ''1 month'')'),
    ('acquire_lease(''x'', ''a'', wait => ''1 us'')');
SELECT call, r.code, r.message FROM bad, refusal('SELECT reconcile.' || call) r ORDER BY n;
-- an infinite interval is a syntax error before 17, and refused by us from then on
SELECT code IN ('22007', '22023') AS refused
  FROM refusal($$SELECT reconcile.acquire_lease('x', 'a', 'infinity')$$);
SELECT count(*) = :leases AS unchanged FROM reconcile.lease;

-- Rights: the capability "lease", and its scope.
CREATE ROLE lease_test_holder;
CREATE ROLE lease_test_reader;
GRANT USAGE ON SCHEMA lease_test TO lease_test_holder, lease_test_reader;
SET ROLE lease_test_holder;
SELECT call, code FROM unnest(ARRAY['acquire_lease(''fleet'')', 'try_acquire_lease(''fleet'')', 'renew_lease(''fleet'', ''c'', 7)',
                                    'release_lease(''fleet'', ''c'', 7)']) call, refusal('SELECT reconcile.' || call);
SELECT count(*) FROM reconcile.leases;
SELECT count(*) FROM reconcile.lease_history;
RESET ROLE;
SELECT reconcile.grant_access('lease_test_holder', 'lease', 'mine');
SELECT reconcile.grant_access('lease_test_reader', 'observe', 'mine');
SET ROLE lease_test_holder;
SELECT call, code, message, detail
  FROM unnest(ARRAY['acquire_lease(''fleet'')', 'try_acquire_lease(''fleet'')', 'renew_lease(''fleet'', ''c'', 7)',
                    'release_lease(''fleet'', ''c'', 7)']) call, refusal('SELECT reconcile.' || call);
SELECT epoch FROM reconcile.acquire_lease('mine', 'a');
SELECT epoch FROM reconcile.renew_lease('mine', 'a', 1);
SELECT reconcile.release_lease('mine', 'a', 1);
SELECT code FROM refusal('SELECT * FROM reconcile.lease');
SET ROLE lease_test_reader;
SELECT reconciler_id, holder_id, epoch FROM reconcile.leases;
SELECT reconciler_id, epoch, end_reason FROM reconcile.lease_history;
RESET ROLE;
SELECT reconcile.revoke_access('lease_test_holder', 'lease', 'mine');
SELECT reconcile.revoke_access('lease_test_reader', 'observe', 'mine');

-- Ids come out in the default collation, so that a join uses the user's index.
SELECT attrelid::regclass AS view, attname, attcollation::regcollation AS collation FROM pg_attribute
 WHERE attrelid IN ('reconcile.leases'::regclass, 'reconcile.lease_history'::regclass) AND atttypid = 'text'::regtype
 ORDER BY attrelid, attnum;

DROP SCHEMA lease_test CASCADE;
DROP OWNED BY lease_test_holder, lease_test_reader;
DROP ROLE lease_test_holder, lease_test_reader;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

--
-- Leases and fences where others were hurt (contracts: public-reports.md, A and B).
-- Those that need a process to hang or die are in test/tap/012_leases, 025_fence_grace
-- and 043_forced_terms.
--
SET client_min_messages = warning;
CREATE SCHEMA reports_test;
SET search_path = reports_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

-- Returns when the lease is over; its ttl is some milliseconds.
CREATE PROCEDURE lapse(id text) LANGUAGE plpgsql AS $$
BEGIN
    WHILE (SELECT live FROM reconcile.leases WHERE reconciler_id = id) LOOP
    END LOOP;
END $$;

-- 1: no clock but the server's. No function of leases and fences takes a time.
SELECT proname FROM pg_proc, unnest(proargtypes) type
 WHERE pronamespace = 'reconcile'::regnamespace AND proname ~ 'lease|fence' AND type IN ('timestamp'::regtype, 'timestamptz'::regtype, 'time'::regtype);
-- nor do settings of the client's move it: a day is 24 hours, and now is now
BEGIN;
SET LOCAL timezone = 'Pacific/Kiritimati';
SELECT pg_sleep(0.05);
SELECT epoch, acquired_at > now() AS after_begin, expires_at - acquired_at AS ttl, l.remaining > '50 s' AS remaining
  FROM reconcile.acquire_lease('clock', 'a', '1 min') t, LATERAL (SELECT t.expires_at - clock_timestamp() AS remaining) l;
ROLLBACK;

-- 2: one that is over is had at the first call, by somebody who never saw it before.
SELECT epoch FROM reconcile.acquire_lease('dead', 'a', '10 ms');
CALL lapse('dead');
SELECT epoch FROM reconcile.acquire_lease('dead', 'b', '1 h', wait => '0 s');

-- the ttl is that of the holder, whatever a candidate asks for
SELECT reconcile.try_acquire_lease('dead', 'c', '1 ms') IS NULL AS refused, remaining > '59 min' AS unchanged FROM reconcile.leases WHERE reconciler_id = 'dead';

-- 4, 5: a holder who lost the lease and has it again has another number; his earlier self writes nothing.
SELECT epoch FROM reconcile.acquire_lease('again', 'a', '10 ms');
CALL lapse('again');
SELECT epoch FROM reconcile.acquire_lease('again', 'a', '1 h');
SELECT reconcile.apply_fenced('again', 'checkpoint', 2, '{"at": 9}'), reconcile.apply_fenced('again', 'checkpoint', 1, '{"at": 3}') AS earlier_self;
SELECT code FROM refusal($$SELECT reconcile.bind_lease('again', 'a', 1)$$);
SELECT last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'again';

-- 10, 11: processes of one host name are told apart by the holder that the server makes.
SELECT holder_id AS first FROM reconcile.acquire_lease('host', ttl => '1 h') \gset
SELECT count(*) FROM generate_series(1, 3), reconcile.try_acquire_lease('host', ttl => '1 h') t WHERE t.epoch IS NOT NULL;
SELECT detail LIKE '%' || :'first' || '%' AS names_the_holder FROM refusal($$SELECT reconcile.acquire_lease('host')$$);
SELECT code FROM refusal($$SELECT reconcile.renew_lease('host', 'web-1', 1)$$);
SELECT holder_id = :'first' AS only_one FROM reconcile.lease_history WHERE reconciler_id = 'host';

-- 13, 14: who saw that a term hangs, and acts late, does not hit the next one.
SELECT epoch AS seen FROM reconcile.acquire_lease('listed', 'a', '10 ms') \gset
CALL lapse('listed');
SELECT epoch FROM reconcile.acquire_lease('listed', 'a', '1 h');
SELECT reconcile.force_release_lease('listed', :seen, 'it looked dead'), reconcile.release_lease('listed', 'a', :seen);
SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'listed';

-- 16: a session that ends keeps nothing alive, and takes nothing with it.
\c
SET client_min_messages = warning;
SET search_path = reports_test;
SELECT epoch FROM reconcile.acquire_lease('gone', 'a', '2 s');
\c
SET client_min_messages = warning;
SET search_path = reports_test;
SELECT reconcile.try_acquire_lease('gone', 'b') IS NULL AS still_held;
SELECT epoch FROM reconcile.acquire_lease('gone', 'b', wait => '10 s');
SELECT ended_at - acquired_at AS lasted, end_reason FROM reconcile.lease_history WHERE reconciler_id = 'gone' AND epoch = 1;

-- 17: a holder who comes back late, but before the deadline, still has it.
SELECT epoch FROM reconcile.acquire_lease('late', 'a', '10 s');
SELECT pg_sleep(0.1);
SELECT epoch FROM reconcile.renew_lease('late', 'a', 1);

-- 19: released in the middle of its work, that work is refused from then on.
SELECT epoch FROM reconcile.acquire_lease('early', 'a', '1 h');
SELECT reconcile.release_lease('early', 'a', 1);
SELECT reconcile.apply_fenced('early', 'e', 1, '{}');

-- Scenarios of the loop contract that have no other place.
-- 26: a ttl is floored to 1 ms.
SELECT ttl, expires_at - acquired_at AS lease FROM unnest('{1 ms,1.5 ms,30 s,1 h}'::interval[]) WITH ORDINALITY v (ttl, n),
    reconcile.acquire_lease('ttl_' || n, 'a', ttl);
-- 115: epochs at the ends of their range.
SELECT epoch, r.code, r.message FROM unnest('{-9223372036854775808,-1,0,1,9223372036854775807}'::bigint[]) epoch,
    refusal(format($$SELECT reconcile.apply_fenced('range', 'e', %s, '{}')$$, epoch)) r;
SELECT last_epoch FROM reconcile.resources WHERE reconciler_id = 'range';
SELECT * FROM refusal($$SELECT reconcile.acquire_lease('range', 'a')$$);
SELECT count(*) FROM reconcile.leases WHERE reconciler_id = 'range';

DROP SCHEMA reports_test CASCADE;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

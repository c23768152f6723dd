--
-- Many leases renewed in one call, and a lease that an operator takes away.
--
SET client_min_messages = warning;
CREATE SCHEMA lease_many_test;
SET search_path = lease_many_test;

\getenv source PG_ABS_SRCDIR
\set refusal :source '/sql/include/refusal.sql'
\i :refusal

SELECT reconciler_id, epoch FROM unnest(ARRAY['a', 'b', 'c', 'd', 'e']) id, reconcile.acquire_lease(id, 'h', '1 min');

-- One row for each, in the order given; NULL ttl is that of the grant.
SELECT ord, reconciler_id, renewed, expires_at BETWEEN clock_timestamp() + interval '59 s' AND clock_timestamp() + interval '1 min' AS as_granted
  FROM reconcile.renew_leases('h', '{c,a,b}', '{1,1,1}');
SELECT ord, reconciler_id, renewed, expires_at > clock_timestamp() + interval '59 min' AS longer
  FROM reconcile.renew_leases('h', '{c,a,b}', '{1,1,1}', '1 h');
SELECT reconciler_id, renewals FROM reconcile.leases ORDER BY 1;
SELECT expires_at FROM reconcile.renew_leases('h', '{a}', '{1}') \gset
SELECT expires_at = :'expires_at' AS as_shown FROM reconcile.leases WHERE reconciler_id = 'a';

-- What cannot be renewed is no error, and hinders no other: released, another
-- holder's, another epoch, taken over, never granted, expired.
SELECT reconcile.release_lease('b', 'h', 1), reconcile.release_lease('c', 'h', 1);
SELECT epoch FROM reconcile.acquire_lease('c', 'other');
UPDATE reconcile.lease SET expires_at = clock_timestamp() WHERE reconciler_id = 'd';
SELECT * FROM reconcile.renew_leases('h', '{b,c,c,c,a,d,none}', '{1,1,2,3,2,1,1}');
SELECT ord, reconciler_id, renewed FROM reconcile.renew_leases('h', '{none,e,d,a}', '{1,1,1,1}');

-- The same term twice is one renewal, and answered alike.
SELECT renewals AS before FROM reconcile.leases WHERE reconciler_id = 'a' \gset
SELECT ord, renewed, count(*) OVER (PARTITION BY expires_at) AS alike
  FROM reconcile.renew_leases('h', '{a,e,a,a,a}', '{1,1,1,2,1}') ORDER BY ord;
SELECT renewals - :before AS renewals FROM reconcile.leases WHERE reconciler_id = 'a';

-- None at all; any lower bound.
SELECT count(*) FROM reconcile.renew_leases('h', '{}', '{}');
SELECT ord, reconciler_id, renewed FROM reconcile.renew_leases('h', '[5:6]={a,e}', '[0:1]={1,1}');

-- At most 10,000, all in one transaction: it does not fill the lock table.
INSERT INTO reconcile.lease SELECT 'bulk_' || n, 'h', 1, now(), now() + interval '1 h', now(), 60000, 0, false, h.home, h.timeline
  FROM reconcile.here() h, generate_series(1, 10000) n;
SELECT count(*), count(*) FILTER (WHERE renewed), bool_and(reconciler_id = 'bulk_' || ord) AS in_order
  FROM reconcile.renew_leases('h', ARRAY(SELECT 'bulk_' || n FROM generate_series(1, 10000) n), array_fill(1::bigint, ARRAY[10000]));
BEGIN;
SELECT count(*) FROM reconcile.renew_leases('h', ARRAY(SELECT 'bulk_' || n FROM generate_series(1, 10000) n), array_fill(1::bigint, ARRAY[10000]));
SELECT count(*) < 100 AS few_locks FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK;
DELETE FROM reconcile.lease WHERE reconciler_id LIKE 'bulk%';

-- Bad input (P12): its SQLSTATE, and nothing is changed.
SELECT xmin AS before FROM reconcile.lease WHERE reconciler_id = 'a' \gset
CREATE TABLE bad (n int GENERATED ALWAYS AS IDENTITY, call text);
INSERT INTO bad (call) VALUES
    ('NULL, ''{a}'', ''{1}'''), (''''', ''{a}'', ''{1}'''),
    ('''h'', NULL, ''{1}'''), ('''h'', ''{a}'', NULL'),
    ('''h'', ''{a,NULL}'', ''{1,1}'''), ('''h'', ''{a,e}'', ''{1,NULL}'''),
    ('''h'', ''{a,e}'', ''{1}'''), ('''h'', ''{a}'', ''{1,1}'''), ('''h'', ''{}'', ''{1}'''),
    ('''h'', ''{{a},{e}}'', ''{1,1}'''), ('''h'', ''{a,e}'', ''{{1},{1}}'''),
    ('''h'', ''{a,E}'', ''{1,1}'''), ('''h'', ''{a,""}'', ''{1,1}'''),
    ('''h'', ''{a,e}'', ''{1,-1}'''),
    ('''h'', ''{a}'', ''{1}'', ''0 s'''), ('''h'', ''{a}'', ''{1}'', ''-1 s'''), ('''h'', ''{a}'', ''{1}'', ''1 month'''),
    ('''h'', array_fill(''a''::text, ARRAY[10001]), array_fill(1::bigint, ARRAY[10001])');
SELECT call, r.code, r.message, r.hint FROM bad, refusal('SELECT reconcile.renew_leases(' || call || ')') r ORDER BY n;
SELECT xmin = :'before' AS unchanged FROM reconcile.lease WHERE reconciler_id = 'a';

-- Rights: the capability "lease" for each of them, before anything is changed.
CREATE ROLE lease_many_test_holder;
GRANT USAGE ON SCHEMA lease_many_test TO lease_many_test_holder;
SELECT reconcile.grant_access('lease_many_test_holder', 'lease', 'a');
SET ROLE lease_many_test_holder;
SELECT code, message FROM refusal($$SELECT reconcile.renew_leases('h', '{a,e}', '{1,1}')$$);
SELECT code FROM refusal($$SELECT reconcile.force_release_lease('a', 1, 'why')$$);
SELECT renewed FROM reconcile.renew_leases('h', '{a}', '{1}');
RESET ROLE;

-- A forced end: only of the epoch that was seen, while it is live.
SELECT reconcile.force_release_lease('a', 2, 'why'), reconcile.force_release_lease('a', 0, 'why'), reconcile.force_release_lease('none', 1, 'why'),
       reconcile.force_release_lease('d', 1, 'expired'), reconcile.force_release_lease('b', 1, 'released');
SELECT live FROM reconcile.leases WHERE reconciler_id = 'a';
SELECT reconcile.grant_access('lease_many_test_holder', 'operate', 'a');
SET ROLE lease_many_test_holder;
SELECT reconcile.force_release_lease('a', 1, 'it hangs'), reconcile.force_release_lease('a', 1, 'again');
SELECT code, message, detail FROM refusal($$SELECT reconcile.force_release_lease('e', 1, 'why')$$);
RESET ROLE;
SELECT reconciler_id, epoch, holder_id, ended_at >= acquired_at AS ended, end_reason, forced_by, forced_reason FROM reconcile.lease_history
 WHERE reconciler_id IN ('a', 'b', 'c') ORDER BY reconciler_id, epoch;
-- what the old holder has left
SELECT * FROM refusal($$SELECT reconcile.renew_lease('a', 'h', 1)$$);
SELECT renewed FROM reconcile.renew_leases('h', '{a}', '{1}');
SELECT reconcile.release_lease('a', 'h', 1);
SELECT code FROM refusal($$SELECT reconcile.bind_lease('a', 'h', 1)$$);
SELECT reconcile.apply_fenced('a', 'e', 1, '{}');
-- the next term is anybody's, at once
SELECT epoch FROM reconcile.acquire_lease('a', 'h');
SELECT reconcile.force_release_lease('a', 1, 'a late one'), reconcile.force_release_lease('a', 2, 'another');
SELECT epoch FROM reconcile.acquire_lease('a', 'other');
-- rolled back, nothing happened
BEGIN;
SELECT reconcile.force_release_lease('a', 3, 'never mind');
ROLLBACK;
SELECT live FROM reconcile.leases WHERE reconciler_id = 'a';
-- on disk when its COMMIT returns
SET synchronous_commit = off;
BEGIN;
SELECT reconcile.force_release_lease('a', 3, 'really');
SELECT pg_current_wal_insert_lsn() AS forced_at \gset
COMMIT;
SELECT pg_current_wal_flush_lsn() >= :'forced_at' AS flushed;
RESET synchronous_commit;
-- and not to be prepared
BEGIN;
SELECT reconcile.force_release_lease('e', 1, 'prepared');
PREPARE TRANSACTION 'lease_many_test';

TRUNCATE bad;
INSERT INTO bad (call) VALUES
    ('NULL, 1, ''why'''), ('''E'', 1, ''why'''), ('''e'', NULL, ''why'''), ('''e'', -1, ''why'''),
    ('''e'', 1, NULL'), ('''e'', 1, '''''), ('''e'', 1, repeat(''x'', 1001)');
SELECT call, r.code, r.message, r.hint FROM bad, refusal('SELECT reconcile.force_release_lease(' || call || ')') r ORDER BY n;
SELECT live FROM reconcile.leases WHERE reconciler_id = 'e';
SELECT reconcile.force_release_lease('e', 1, repeat('x', 1000));

DO $$
BEGIN
    PERFORM reconcile.revoke_access('lease_many_test_holder', c, 'a') FROM unnest('{lease,operate}'::text[]) c;
END $$;
DROP SCHEMA lease_many_test CASCADE;
DROP OWNED BY lease_many_test_holder;
DROP ROLE lease_many_test_holder;
TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.resource;

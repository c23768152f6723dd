-- Scenarios that need no run and no second session: what the catalogue shows,
-- what the limits of numbers, names and times do. Numbers as in doc/scenarios.md;
-- a letter before one is a public report.
BEGIN;
SELECT plan(40);
SET client_min_messages = warning;
CREATE SCHEMA tap;
CREATE FUNCTION tap.drive(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';

-- 28, 29, 30, 131 to 133: a reconciler takes the entity's id, and gives a duration or nothing
SELECT lives_ok($$SELECT reconcile.create_loop('fleet', 'tap.drive(text)')$$, '30: f(text) RETURNS interval is a reconciler');
CREATE FUNCTION tap.quiet(entity_id text) RETURNS void LANGUAGE sql AS '';
SELECT lives_ok($$SELECT reconcile.create_loop('quiet', 'tap.quiet')$$, '29: so is f(text) RETURNS void');
CREATE FUNCTION tap.more(entity_id text, priority int DEFAULT 0) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
SELECT throws_ok($$SELECT reconcile.create_loop('x', 'tap.more')$$, '22023', NULL, '132: one that takes more is none');
CREATE FUNCTION tap.fuller(entity_id text, OUT requeue boolean, OUT after interval) LANGUAGE sql AS $$SELECT true, interval '1 s'$$;
SELECT throws_ok($$SELECT reconcile.create_loop('x', 'tap.fuller')$$, '22023', NULL, '133: nor one that gives more');

-- 17: what a loop has that says nothing
SELECT is((SELECT (resync_every, lister, timeout, lease_ttl, renew_every, repository)::text FROM reconcile.loops WHERE loop_name = 'fleet'),
          '(,,,,,)', '17: no resync, timeout or lease');
SELECT is((SELECT owner FROM reconcile.loops WHERE loop_name = 'fleet')::text, current_user::text, '17: the caller owns it');
SELECT is((SELECT count(*) FROM reconcile.leases), 0::bigint, '12: and no lease is asked for');

-- 26: durations are floored to a millisecond; less than one is none
SELECT throws_ok(format('SELECT reconcile.create_loop(%L, lease_ttl => %L)', 'x', ttl), '22023', NULL, '26: a ttl of ' || ttl || ' is refused')
  FROM unnest(ARRAY['0.000001 s', '999 us', '0 s', '-1 s']) ttl;
SELECT reconcile.create_loop('ttl_' || n, lease_ttl => ttl::interval)
  FROM (VALUES (1, '1 ms'), (2, '1.5 ms'), (3, '30 s'), (4, '1 h')) v (n, ttl);
SELECT results_eq($$SELECT lease_ttl FROM reconcile.loops WHERE loop_name LIKE 'ttl\_%' ORDER BY loop_name$$,
                  $$VALUES (interval '1 ms'), ('1 ms'), ('30 s'), ('1 h')$$, '26: 1 ms, 1.5 ms, 30 s and 1 h are 1, 1, 30,000 and 3,600,000 ms');
SELECT is((SELECT expires_at - acquired_at FROM reconcile.acquire_lease('floored', 'a', '1.9 ms')), interval '1 ms', '26: so is that of a grant');

-- 135: the token, and the types that clients bind to
SELECT is((SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute
            WHERE attrelid = 'reconcile.lease_token'::regclass AND attnum > 0),
          'reconciler_id text, holder_id text, epoch bigint, acquired_at timestamp with time zone, expires_at timestamp with time zone',
          '135: lease_token has its five fields');
SELECT is_empty($$SELECT a.attrelid::regclass, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                   WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'v', 'c') AND a.attname ~ 'epoch$' AND a.atttypid <> 'int8'::regtype$$,
                '135: an epoch is a bigint everywhere');

-- 138 to 142: the state is reached by functions only; a fenced write takes no epoch
SELECT is_empty($$SELECT c.relname FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
                   WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'r' AND has_table_privilege('public', c.oid, p)$$,
                '138: nobody makes a loop, a mark or a lease but by its function');
CREATE TABLE tap.open (id text);
GRANT SELECT ON tap.open TO PUBLIC;
SELECT ok(has_table_privilege('public', 'tap.open', 'SELECT'), '138: (a table that is open would be seen)');
SELECT is((SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE pronamespace = 'reconcile'::regnamespace AND proname = 'fenced_write'),
          'entity_id text, mutation jsonb', '139, 140: a fenced write takes no epoch');
SELECT is_empty($$SELECT name FROM pg_settings WHERE name LIKE 'reconcile.%' AND (context = 'user' OR name ~ 'epoch|holder')$$,
                '139: nor does a setting that a session can change');
SELECT ok(NOT has_function_privilege('public', 'reconcile.apply_fenced(text, text, bigint, jsonb)', 'EXECUTE'),
          '141: apply_fenced, with an epoch of the caller''s choice, is not for everyone');

-- A1: no client's clock counts
SELECT is_empty($$SELECT p.oid::regprocedure FROM pg_proc p
                   WHERE p.pronamespace = 'reconcile'::regnamespace AND p.proname ~ 'lease|fence|loop|enqueue|work|entity|revive|forget|watch'
                     AND EXISTS (SELECT FROM unnest(p.proargtypes) t WHERE t::regtype::text ~ '^(date|time)')$$,
                'A1: no function of leases, fences or loops takes a time of the caller');

-- A11: a holder who names himself nothing is nobody else
SELECT is((SELECT count(DISTINCT holder_id) FROM generate_series(1, 3) n, reconcile.acquire_lease('minted_' || n)), 3::bigint, 'A11: three callers without a name are three holders');
SELECT is((SELECT count(*) FROM generate_series(1, 3) n, reconcile.try_acquire_lease('one_only' || left(n::text, 0)) t WHERE t.epoch IS NOT NULL), 1::bigint, 'A11: of whom one leads');

-- A10: the same holder name, an epoch of before
SELECT reconcile.acquire_lease('renewed', 'worker', '1 h'), reconcile.release_lease('renewed', 'worker', 1), reconcile.acquire_lease('renewed', 'worker', '1 h');
SELECT throws_ok($$SELECT reconcile.renew_lease('renewed', 'worker', 1)$$, 'RC002', NULL, 'A10, A4: a renewal matches name and epoch');

-- A16, G59: a lease is tied to no session, and no session lock is taken
SELECT is_empty($$SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'$$, 'G59: no advisory lock is taken');

-- L92, L93: keys are compared by their bytes
SELECT is_empty($$SELECT a.attrelid::regclass, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                   WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind IN ('r', 'i', 'p') AND a.attnum > 0 AND NOT a.attisdropped
                     AND a.atttypid = 'text'::regtype AND a.attname IN ('reconciler_id', 'entity_id', 'loop_name', 'holder_id') AND a.attcollation <> '"C"'::regcollation$$,
                'L93: all keys are COLLATE "C"');
SELECT reconcile.enqueue('fleet', U&'caf\00E9'), reconcile.enqueue('fleet', U&'cafe\0301'), reconcile.enqueue('fleet', 'CAFE'), reconcile.enqueue('fleet', 'cafe');
SELECT is((SELECT count(*) FROM reconcile.work WHERE loop_name = 'fleet' AND state = 'ready'), 4::bigint, 'L93: composed, decomposed, upper and lower are four entities');
SELECT is_empty($$SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
                   WHERE c.relnamespace = 'reconcile'::regnamespace AND i.indisunique AND (m.amname = 'hash' OR i.indexprs IS NOT NULL)$$, 'L92: no key is a hash');

-- M96, M97: intervals that are none
SELECT throws_ok(format('SELECT reconcile.enqueue(%L, %L, %L)', 'fleet', 'e', d), '22023', NULL, 'M96: a delay of ' || d || ' is refused')
  FROM unnest(ARRAY['-1 s', '1 month', '1 mon -30 days', '367 days']) d;
SELECT throws_matching($$SELECT reconcile.enqueue('fleet', 'e', 'infinity')$$, 'infinity|delay', 'M97: so is one for ever');

-- M99: a time zone moves nothing; a day is 24 hours
SET LOCAL timezone = 'Pacific/Apia';
SELECT reconcile.enqueue('fleet', 'zoned', '1 day');
SET LOCAL timezone = 'America/St_Johns';
SELECT reconcile.enqueue('fleet', 'zoned_too', '24 h');
SELECT ok((SELECT max(due_at) - min(due_at) < '1 min' AND min(due_at) BETWEEN now() + '86400 s' AND now() + '86460 s'
             FROM reconcile.work WHERE entity_id LIKE 'zoned%'), 'M99: a delay is the same instant in each time zone');

-- N101, 115: epochs beyond 32 bits, and at the end of 64
INSERT INTO reconcile.resource SELECT id, 'e', epoch, 1, '{}', now()
  FROM (VALUES ('wide', 2147483653), ('wider', 9007199254740993), ('widest', 9223372036854775807)) v (id, epoch);
SELECT is((SELECT epoch FROM reconcile.acquire_lease('wide', 'a', '1 h')), 2147483654, 'N101: an epoch of 2^31 + 5 is followed by the next');
SELECT is((SELECT epoch FROM reconcile.acquire_lease('wider', 'a', '1 h')), 9007199254740994, 'N101: so is one of 2^53 + 1');
SELECT is((SELECT epoch FROM reconcile.renew_lease('wider', 'a', 9007199254740994)), 9007199254740994, 'N101: which can be renewed');
SELECT ok(reconcile.apply_fenced('wider', 'e', 9007199254740994, '{}') AND NOT reconcile.apply_fenced('wider', 'e', 9007199254740993, '{}'), 'N101: and fences');
SELECT is((SELECT to_jsonb(l)->>'epoch' FROM reconcile.leases l WHERE reconciler_id = 'wider'), '9007199254740994', 'N101: and is the same in JSON');
SELECT throws_ok($$SELECT reconcile.acquire_lease('widest', 'a')$$, '54000', NULL, '115: after the last epoch none is granted, and none begins anew');

SELECT * FROM finish();
ROLLBACK;

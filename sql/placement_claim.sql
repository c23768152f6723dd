--
-- Claims on sessions (contract 2; scenarios H).
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA claim_test;
SET search_path = claim_test;
\getenv source PG_ABS_SRCDIR
\set placement :source '/sql/include/placement.sql'
\i :placement
SET lock_timeout = '30 s';

-- The claim is over, as if its time had passed.
CREATE FUNCTION run_out(session text) RETURNS void LANGUAGE sql AS
$$ UPDATE reconcile.session_claim SET claimed_at = claimed_at - interval '1 h', expires_at = clock_timestamp() WHERE tenant_id = 't-c' AND session_id = session $$;
-- The version of the row: the same one was not written.
CREATE FUNCTION version(session text) RETURNS text LANGUAGE sql AS
$$ SELECT c.xmin || ' ' || c.ctid FROM reconcile.session_claim c WHERE tenant_id = 't-c' AND session_id = session $$;
-- The token of the live claim, which nobody else is told.
CREATE FUNCTION token(session text) RETURNS text LANGUAGE sql AS
$$ SELECT c.claim_token FROM reconcile.session_claim c WHERE tenant_id = 't-c' AND session_id = session $$;
SELECT count(*) FROM generate_series(1, 4) g, reconcile.create_session('t-c', 's' || g, 'a', 'pooled', 'c') o;

-- H11, H10, H23: none
SELECT * FROM reconcile.get_claim('t-c', 's1');
SELECT * FROM reconcile.get_claim('t-c', 'none');
SELECT * FROM reconcile.release_claim('t-c', 's1', 'a', 'token');
SELECT * FROM reconcile.release_claim('t-c', 'none', 'a', 'token');
SELECT * FROM reconcile.acquire_claim('t-c', 'none', 'a', '1 min');

-- H1: made, and extended by who shows the token; ClaimedAt is the server's (H6)
SELECT outcome, claim_token = token('s1') AS token, holder_id, remaining FROM reconcile.acquire_claim('t-c', 's1', 'a', '1 min');
SELECT outcome, holder_id, remaining > '50 s' AS live, claimed_at <= clock_timestamp() AS claimed FROM reconcile.get_claim('t-c', 's1');
CREATE TABLE before AS SELECT version('s1'), token('s1'), clock_timestamp() AS at;
SELECT outcome, claim_token = token AS same_token, remaining FROM before, reconcile.acquire_claim('t-c', 's1', 'a', '5 min', token);
SELECT version('s1') <> version AS written, claimed_at > at AS restamped, expires_at - claimed_at AS ttl FROM before, reconcile.get_claim('t-c', 's1');
-- it may be shortened, too
SELECT outcome, remaining FROM reconcile.acquire_claim('t-c', 's1', 'a', '4 min', token('s1'));
SELECT outcome, remaining FROM reconcile.acquire_claim('t-c', 's1', 'a', '5 min', token('s1'));

-- H2: somebody else while it is live; and one of the same name without the token, or with another one
CREATE TABLE attempts (n serial, holder text, shown text);
INSERT INTO attempts (holder, shown) VALUES ('b', NULL), ('a', NULL), ('a', 'wrong'), ('b', token('s1'));
UPDATE before SET version = version('s1');
SELECT n, outcome, claim_token, remaining > '4 min' AS remaining, holder_id FROM attempts, reconcile.acquire_claim('t-c', 's1', holder, '1 min', shown) ORDER BY n;
-- H9: nor does any of them end it
SELECT n, outcome, expires_at > clock_timestamp() AS until, remaining > '4 min' AS remaining FROM attempts, reconcile.release_claim('t-c', 's1', holder, coalesce(shown, 'none')) ORDER BY n;
SELECT version('s1') = version AS nothing_written FROM before;

-- H7: let go early: at once anybody's; H8: again, without a write
SELECT outcome, expires_at <= clock_timestamp() AS over, remaining FROM reconcile.release_claim('t-c', 's1', 'a', token('s1'));
SELECT claimed_at = expires_at AS released FROM reconcile.session_claim WHERE tenant_id = 't-c' AND session_id = 's1';
UPDATE before SET version = version('s1'), token = token('s1');
SELECT outcome FROM reconcile.release_claim('t-c', 's1', 'a', token('s1'));
SELECT version('s1') = version AS nothing_written FROM before;
-- H11: one that is over is told without what is in it
SELECT outcome, expires_at IS NULL AS no_end, remaining, holder_id, claimed_at FROM reconcile.get_claim('t-c', 's1');
SELECT outcome, holder_id FROM reconcile.acquire_claim('t-c', 's1', 'b', '1 min');
SELECT token('s1') <> token AS new_token FROM before;
-- H3: who had it comes back, with the token of then
SELECT outcome, holder_id FROM before, reconcile.acquire_claim('t-c', 's1', 'a', '1 min', token);
SELECT outcome FROM before, reconcile.release_claim('t-c', 's1', 'a', token);

-- H4: one that has run out is anybody's, its holder's too, as another claim; at its end it is over
SELECT outcome FROM reconcile.acquire_claim('t-c', 's2', 'a', '1 min');
UPDATE before SET token = token('s2');
SELECT run_out('s2');
SELECT outcome FROM reconcile.get_claim('t-c', 's2');
-- H9: released by another, it is lapsed; by who overran it, released; neither is written
UPDATE before SET version = version('s2');
SELECT outcome FROM reconcile.release_claim('t-c', 's2', 'b', 'token');
SELECT outcome FROM reconcile.release_claim('t-c', 's2', 'a', 'token');
SELECT outcome FROM before, reconcile.release_claim('t-c', 's2', 'a', token);
SELECT version('s2') = version AS nothing_written FROM before;
SELECT outcome, claim_token <> token AS new_token FROM before, reconcile.acquire_claim('t-c', 's2', 'a', '1 min', token);

-- H15: a claim and a registration of one session have nothing to do with one another; H18: nobody asks for it
INSERT INTO reconcile.host VALUES ('hc', current_user::regrole, current_user, now());
SELECT give('t-c', 's2', 'hc', 3, 'tok');
SELECT outcome FROM reconcile.get_claim('t-c', 's2');
SELECT outcome FROM reconcile.update_host_state('t-c', 's2', 3, 'tok', 'running', 'resident', 1);
SELECT outcome FROM reconcile.update_desired_state('t-c', 's2', 'k', 1, 'pooled');
SELECT outcome FROM reconcile.admit_session_command('t-c', 's2', 'c', 'input', '\x01');
DELETE FROM reconcile.host WHERE host_id = 'hc';

-- H5, H13, H19: what is refused, and of which field
SELECT c.call, r.code, r.field, r.problem
  FROM (VALUES (1, $$acquire_claim('t-c', 's3', 'a', '0 s')$$), (2, $$acquire_claim('t-c', 's3', 'a', '-1 s')$$), (3, $$acquire_claim('t-c', 's3', 'a', '5 min 1 ms')$$),
               (5, $$acquire_claim('t-c', 's3', '', '1 min')$$), (6, $$acquire_claim('t-c', 's3', repeat('h', 257), '1 min')$$),
               (7, $$acquire_claim('t-c', NULL, '', '0 s')$$), (8, $$acquire_claim('t-c', 's3', 'a', '1 min', '')$$), (9, $$release_claim('t-c', 's3', 'a', NULL)$$),
               (10, $$release_claim('t-c', 's3', NULL, NULL)$$), (11, $$get_claim(NULL, 's3')$$),
               (12, $$acquire_claim('t-c', 's3', 'a', '1 month')$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.' || c.call) r ORDER BY c.n;
SELECT * FROM reconcile.get_claim('t-c', 's3');
SELECT outcome, remaining FROM reconcile.acquire_claim('t-c', 's3', repeat('h', 256), '5 min');
-- who says no ttl has that of the settings
SELECT outcome, remaining FROM reconcile.acquire_claim('t-c', 's3', repeat('h', 256), claim_token => token('s3'));
SELECT message FROM field_refusal($$UPDATE reconcile.session_claim SET expires_at = claimed_at - interval '1 us' WHERE tenant_id = 't-c'$$);

-- H16: what was let go and what has run out look alike
SELECT outcome FROM reconcile.acquire_claim('t-c', 's4', 'a', '1 min');
SELECT outcome FROM reconcile.release_claim('t-c', 's4', 'a', token('s4'));
SELECT run_out('s3');
CREATE FUNCTION looks(session text, OUT got text, OUT released text, OUT acquired text) LANGUAGE plpgsql AS $$
BEGIN
    SELECT outcome || coalesce(' ' || holder_id, '') INTO got FROM reconcile.get_claim('t-c', session);
    SELECT outcome INTO released FROM reconcile.release_claim('t-c', session, 'b', 'x');
    SELECT outcome || coalesce(' ' || holder_id, '') INTO acquired FROM reconcile.acquire_claim('t-c', session, 'b', '1 min');
    RAISE SQLSTATE 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
END $$;
UPDATE reconcile.session_claim SET holder_id = 'a' WHERE tenant_id = 't-c' AND session_id = 's3';
SELECT v.s, looks.* FROM (VALUES ('s3'), ('s4')) v (s), looks(v.s);
-- also were the clock turned back: both would live again, for an hour here, which costs work alone
UPDATE reconcile.session_claim SET claimed_at = clock_timestamp() + interval '1 h', expires_at = clock_timestamp() + interval '1 h' WHERE tenant_id = 't-c' AND session_id IN ('s3', 's4');
SELECT v.s, looks.* FROM (VALUES ('s3'), ('s4')) v (s), looks(v.s);
SELECT outcome FROM reconcile.release_claim('t-c', 's3', 'a', token('s3'));
SELECT outcome FROM reconcile.release_claim('t-c', 's4', 'a', token('s4'));

-- what a claim can spell: no epoch, no host, no endpoint (H17)
SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'reconcile.session_claim'::regclass AND attnum > 0;

-- an abort leaves nothing; above READ COMMITTED it is refused
BEGIN;
SELECT outcome FROM reconcile.acquire_claim('t-c', 's4', 'a', '1 min');
ROLLBACK;
SELECT outcome FROM reconcile.get_claim('t-c', 's4');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT code FROM field_refusal($$SELECT * FROM reconcile.acquire_claim('t-c', 's4', 'a', '1 min')$$);
SELECT code FROM field_refusal($$SELECT * FROM reconcile.release_claim('t-c', 's4', 'a', 'x')$$);
COMMIT;

-- whoever left the session alone looks at it when the claim ends, by who had it or by sweep_claims()
SELECT reconcile.create_loop('placement');
SELECT count(run_out('s' || g)) FROM generate_series(1, 4) g;
CREATE FUNCTION marked() RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(s.session_id, ' ' ORDER BY s.session_id) FROM reconcile.mark m JOIN reconcile.session s ON m.entity_id = s.number::text WHERE m.loop_name = 'placement' AND s.tenant_id = 't-c' $$;
SELECT count(*) FROM generate_series(1, 4) g, reconcile.acquire_claim('t-c', 's' || g, 'm', '5 min') o WHERE o.outcome = 'taken_over';
SELECT marked();
BEGIN;
SELECT outcome FROM reconcile.release_claim('t-c', 's4', 'other', token('s4'));
SELECT outcome FROM reconcile.release_claim('t-c', 's1', 'm', token('s1'));
SELECT marked();
SELECT outcome FROM reconcile.release_claim('t-c', 's1', 'm', token('s1'));
SELECT released, remain FROM reconcile.sweep_claims('m', 2) s(released, held, remain);
SELECT marked();
ROLLBACK;
SELECT reconcile.drop_loop('placement');

-- it takes the right to place
CREATE ROLE claim_test_nobody;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO claim_test_nobody;
GRANT USAGE ON SCHEMA claim_test TO claim_test_nobody;
SET ROLE claim_test_nobody;
SELECT r.code FROM (VALUES (1, $$acquire_claim('t-c', 's4', 'a', '1 min')$$), (2, $$release_claim('t-c', 's4', 'a', 'x')$$), (3, $$get_claim('t-c', 's4')$$)) c (n, call),
       field_refusal('SELECT * FROM reconcile.' || c.call) r ORDER BY c.n;
RESET ROLE;
DROP OWNED BY claim_test_nobody;
DROP ROLE claim_test_nobody;
SELECT clean('t-c');
RESET lock_timeout;
DROP SCHEMA claim_test CASCADE;

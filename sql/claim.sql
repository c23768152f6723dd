-- Outside workers: claim, extend, complete, fail, next_due (api 4).
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA claim_app;
CREATE TABLE claim_app.device (id text PRIMARY KEY, reported int);
-- the claims that the "workers" of this test hold
CREATE TABLE claim_app.held (entity_id text, claim_epoch bigint, attempt int, n serial);
SELECT reconcile.create_loop('claims', default_requeue => NULL, backoff_base => '1 h', backoff_max => '2 h', max_attempts => 3);
SELECT reconcile.watch('claims', 'claim_app.device', 'id');

-- Nothing is due
SELECT reconcile.next_due('claims');
SELECT * FROM reconcile.claim_work('claims', 'w1');

-- A trigger that has committed is found at once, and the claim counts an attempt
SELECT reconcile.enqueue('claims', 'a');
SELECT reconcile.next_due('claims');
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1');
SELECT entity_id, attempt FROM claim_app.held;
SELECT state, due_at, failures FROM reconcile.work WHERE loop_name = 'claims';

-- Another worker does not get it, even where a fresh trigger asks for it
SELECT reconcile.enqueue('claims', 'a');
SELECT entity_id FROM reconcile.claim_work('claims', 'w2', 10);
SELECT reconcile.next_due('claims') BETWEEN '5 s' AND '30 s' AS in_a_while;

-- Completed: what came meanwhile is due
SELECT reconcile.complete_work('claims', 'a', claim_epoch) FROM claim_app.held WHERE n = 1;
SELECT state, failures FROM reconcile.work WHERE loop_name = 'claims';
-- A report is taken once
SELECT reconcile.complete_work('claims', 'a', claim_epoch) FROM claim_app.held WHERE n = 1;
SELECT reconcile.fail_work('claims', 'a', claim_epoch, 'no') FROM claim_app.held WHERE n = 1;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1');
SELECT h.attempt, h.claim_epoch > o.claim_epoch AS rises FROM claim_app.held h, claim_app.held o WHERE h.n = 2 AND o.n = 1;
-- and not that of another attempt, nor of another entity
SELECT reconcile.complete_work('claims', 'a', claim_epoch) FROM claim_app.held WHERE n = 1;
SELECT reconcile.complete_work('claims', 'b', claim_epoch) FROM claim_app.held WHERE n = 2;

-- The writes of the work do not ask for another look; those of somebody else do
BEGIN;
INSERT INTO claim_app.device VALUES ('a', 1), ('other', 1);
SELECT reconcile.complete_work('claims', 'a', claim_epoch) FROM claim_app.held WHERE n = 2;
COMMIT;
SELECT entity_id, state FROM reconcile.work WHERE loop_name = 'claims';

-- RC016: a claim is durable before it is reported
BEGIN;
SELECT reconcile.complete_work('claims', entity_id, claim_epoch) FROM reconcile.claim_work('claims', 'w1');
ROLLBACK;
BEGIN;
SELECT reconcile.fail_work('claims', entity_id, claim_epoch, 'no') FROM reconcile.claim_work('claims', 'w1');
ROLLBACK;
BEGIN;
SELECT * FROM reconcile.complete_works('claims', ARRAY['other'], ARRAY[(SELECT claim_epoch FROM reconcile.claim_work('claims', 'w1'))]);
ROLLBACK;
-- what was rolled back was never claimed, also to a savepoint
BEGIN;
SAVEPOINT s;
SELECT entity_id FROM reconcile.claim_work('claims', 'w1');
ROLLBACK TO s;
SELECT entity_id, attempt FROM reconcile.claim_work('claims', 'w1');
COMMIT;
SELECT reconcile.forget('claims', 'other');

-- Failures: backoff, retry_after, dead
SELECT reconcile.enqueue_many('claims', '{f1,f2,f3}');
TRUNCATE claim_app.held;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1', 100);
SELECT reconcile.fail_work('claims', 'f1', claim_epoch, 'first time') FROM claim_app.held WHERE entity_id = 'f1';
SELECT reconcile.fail_work('claims', 'f2', claim_epoch, 'soon', retry_after => '10 min') FROM claim_app.held WHERE entity_id = 'f2';
SELECT reconcile.fail_work('claims', 'f3', claim_epoch, 'never', permanent => true) FROM claim_app.held WHERE entity_id = 'f3';
SELECT entity_id, state, round(extract(epoch FROM due_at - clock_timestamp()) / 60) AS minutes, failures, last_error, last_sqlstate
  FROM reconcile.work WHERE loop_name = 'claims' ORDER BY 1;
-- a trigger does not wait for the backoff, nor does it reset the count; the last attempt kills
DO $$
DECLARE
	c record;
BEGIN
	FOR i IN 2 .. 3 LOOP
		PERFORM reconcile.enqueue('claims', 'f1');
		COMMIT;
		SELECT * INTO STRICT c FROM reconcile.claim_work('claims', 'w1');
		COMMIT;
		PERFORM reconcile.fail_work('claims', c.entity_id, c.claim_epoch, 'time ' || c.attempt);
		COMMIT;
	END LOOP;
END $$;
SELECT entity_id, failures, last_error, last_sqlstate FROM reconcile.dead_letters WHERE loop_name = 'claims' ORDER BY 1;
-- the dead are not claimed; revived, they are
SELECT entity_id FROM reconcile.claim_work('claims', 'w1', 100);
SELECT reconcile.revive('claims', 'f3');
TRUNCATE claim_app.held;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1', 100);
SELECT entity_id, attempt FROM claim_app.held;
-- an error text in a foreign encoding or of any length is kept as far as it goes
SELECT reconcile.fail_work('claims', 'f3', claim_epoch, repeat('ä', 5000)) FROM claim_app.held;
SELECT octet_length(last_error) FROM reconcile.work WHERE loop_name = 'claims' AND entity_id = 'f3';

-- Success asks for a look: a time of its own, or the loop's default
SELECT reconcile.alter_loop('claims', '{"default_requeue": "20 min"}');
SELECT reconcile.enqueue_many('claims', '{s1,s2,s3}');
TRUNCATE claim_app.held;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1', 100);
SELECT reconcile.complete_work('claims', 's1', claim_epoch, '5 min') FROM claim_app.held WHERE entity_id = 's1';
SELECT ord, w.entity_id, completed FROM reconcile.complete_works('claims', '{s3,s2,s1,s2}',
	(SELECT ARRAY[max(claim_epoch) FILTER (WHERE entity_id = 's3'), max(claim_epoch) FILTER (WHERE entity_id = 's2'),
		max(claim_epoch) FILTER (WHERE entity_id = 's1'), max(claim_epoch) FILTER (WHERE entity_id = 's2')] FROM claim_app.held),
	'{0,7 min,1 min,NULL}') w;
SELECT entity_id, state, round(extract(epoch FROM due_at - clock_timestamp()) / 60) AS minutes
  FROM reconcile.work WHERE loop_name = 'claims' AND entity_id ~ '^s' ORDER BY 1;

-- A paused or disabled loop gives no work, and a claim can be reported
SELECT reconcile.enqueue('claims', 'p');
TRUNCATE claim_app.held;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, attempt FROM reconcile.claim_work('claims', 'w1', 100);
SELECT reconcile.enqueue('claims', 'q');
SELECT reconcile.pause_loop('claims');
SELECT entity_id FROM reconcile.claim_work('claims', 'w1');
SELECT reconcile.next_due('claims');
SELECT ord, entity_id, extended, remaining BETWEEN '50 s' AND '1 min' AS remaining
  FROM reconcile.extend_work('claims', '{p,q}', (SELECT ARRAY[claim_epoch, 1] FROM claim_app.held), '1 min');
SELECT reconcile.complete_work('claims', 'p', claim_epoch) FROM claim_app.held;
SELECT reconcile.resume_loop('claims');
SELECT entity_id FROM reconcile.claim_work('claims', 'w1');

-- forget() takes a claim back; so does drop_loop()
SELECT reconcile.forget('claims', 'q');
SELECT entity_id FROM reconcile.claim_work('claims', 'w1');

-- Only the holder of the loop's lease may claim
SELECT reconcile.create_loop('claims_led', lease_ttl => '1 h', default_requeue => NULL);
SELECT reconcile.enqueue_many('claims_led', '{a,b}');
SELECT entity_id FROM reconcile.claim_work('claims_led', 'w1');
SELECT epoch FROM reconcile.acquire_lease('claims_led', 'w1', '1 h');
SELECT entity_id FROM reconcile.claim_work('claims_led', 'w2');
TRUNCATE claim_app.held;
INSERT INTO claim_app.held SELECT entity_id, claim_epoch, lease_epoch FROM reconcile.claim_work('claims_led', 'w1', 10);
SELECT entity_id, attempt AS lease_epoch FROM claim_app.held ORDER BY 1;
BEGIN;
SELECT reconcile.complete_work('claims_led', 'a', claim_epoch) FROM claim_app.held WHERE entity_id = 'a';
SELECT reconcile.fenced_epoch('claims_led');
COMMIT;
-- the next term voids what the last one claimed
SELECT reconcile.release_lease('claims_led', 'w1', 1);
SELECT epoch FROM reconcile.acquire_lease('claims_led', 'w2', '1 h');
SELECT reconcile.complete_work('claims_led', 'b', claim_epoch) FROM claim_app.held WHERE entity_id = 'b';
SELECT reconcile.enqueue('claims_led', 'b');
SELECT entity_id, lease_epoch, attempt FROM reconcile.claim_work('claims_led', 'w2', 10);

-- The resync of a loop with a lister is nobody's to claim; without one it is
CREATE FUNCTION claim_app.list() RETURNS SETOF text LANGUAGE sql AS $$ SELECT 'x' WHERE false $$;
SELECT reconcile.create_loop('claims_listed', lister => 'claim_app.list', enabled => false);
SELECT reconcile.create_loop('claims_plain', default_requeue => NULL);
SELECT reconcile.enqueue('claims_plain', '');
SELECT quote_literal(entity_id) FROM reconcile.claim_work('claims_plain', 'w1');

-- Bad input changes nothing
CREATE TABLE claim_app.cases (call text);
INSERT INTO claim_app.cases VALUES
	('claim_work(NULL, ''w'')'), ('claim_work(''claims'', NULL)'), ('claim_work(''claims'', '''')'), ('claim_work(''Claims'', ''w'')'),
	('claim_work(''no_such_loop'', ''w'')'), ('claim_work(''claims'', ''w'', 0)'), ('claim_work(''claims'', ''w'', 1001)'), ('claim_work(''claims'', ''w'', NULL)'),
	('claim_work(''claims'', ''w'', 1, ''0'')'), ('claim_work(''claims'', ''w'', 1, NULL)'), ('claim_work(''claims'', ''w'', 1, ''-1 s'')'), ('claim_work(''claims'', ''w'', 1, ''1 month'')'),
	('claim_work(''claims'', E''w\n'')'), ('claim_work(''claims'', repeat(''w'', 257))'),
	('extend_work(''claims'', NULL, ''{}'')'), ('extend_work(''claims'', ''{a}'', ''{}'')'), ('extend_work(''claims'', ''{NULL}'', ''{1}'')'),
	('extend_work(''claims'', ''{a}'', ''{NULL}'')'), ('extend_work(''claims'', ''{{a}}'', ''{1}'')'), ('extend_work(''claims'', ''{a}'', ''{1}'', ''0'')'),
	('extend_work(''claims'', array_fill(''a''::text, ''{10001}''), array_fill(1::bigint, ''{10001}''))'), ('extend_work(''claims'', ''{}'', ''{}'')'),
	('complete_work(''claims'', NULL, 1)'), ('complete_work(''claims'', ''a'', NULL)'), ('complete_work(''claims'', ''a'', 1)'), ('complete_work(''claims'', ''a'', 1, ''-1 s'')'),
	('complete_work(''claims'', repeat(''a'', 513), 1)'), ('complete_work(''no_such_loop'', ''a'', 1)'),
	('complete_works(''claims'', ''{a}'', ''{1}'', ''{1 s,2 s}'')'), ('complete_works(''claims'', ''{a}'', ''{1}'', ''{1 month}'')'), ('complete_works(''claims'', ''{a}'', ''{1}'')'),
	('fail_work(''claims'', ''a'', 1, NULL)'), ('fail_work(''claims'', ''a'', 1, ''x'', NULL)'), ('fail_work(''claims'', ''a'', 1, ''x'', true, ''1 s'')'), ('fail_work(''claims'', ''a'', 1, ''x'', false, ''-1 s'')'),
	('fail_work(''claims'', ''a'', 1, ''x'')'), ('next_due(NULL)'), ('next_due(''no_such_loop'')');
CREATE FUNCTION claim_app.try(call text, OUT code text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT * FROM reconcile.' || call;
	code := 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
SELECT c.call, t.* FROM claim_app.cases c, claim_app.try(c.call) t;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM reconcile.claim_work('claims', 'w1');
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM reconcile.claim_work('claims', 'w1');
ROLLBACK;

SELECT reconcile.drop_loop(l) FROM unnest('{claims,claims_led,claims_listed,claims_plain}'::text[]) l;
SELECT count(*) FROM reconcile.entity;
DROP SCHEMA claim_app CASCADE;

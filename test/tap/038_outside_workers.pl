# Outside workers (api 4): deadlines, attempts, batches, many at once; what a
# worker that dies anywhere leaves behind; with a dispatcher, without one, while
# it stands still, and without preload.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 4\nmax_prepared_transactions = 4\n");
prepare($node);

sub make_outside
{
	my ($where, $name, $options) = @_;
	sql($where, "SELECT reconcile.create_loop('$name', default_requeue => NULL" . ($options ? ", $options" : '') . ')');
	return;
}

# claim(WHERE, LOOP, N, TTL): what a worker gets, as "entity attempt epoch" lines.
sub claim
{
	my ($where, $loop, $n, $ttl) = @_;
	$n //= 1;
	$ttl //= '1 hour';
	return sql($where, "SELECT entity_id, attempt, claim_epoch FROM reconcile.claim_work('$loop', 'w', $n, '$ttl') ORDER BY 1");
}

# draw_in(WHERE, LOOP, ENTITY): its claim runs out now.
sub draw_in
{
	my ($where, $loop, $entity) = @_;
	is(sql($where, "SELECT w.extended FROM reconcile.entity e, reconcile.extend_work('$loop', ARRAY[e.entity_id], ARRAY[e.claim_epoch], '1 ms') w
		WHERE e.loop_name = '$loop' AND e.entity_id = '$entity'"), 't', "the deadline of $entity is drawn in");
	return;
}

sub epoch_of { return (split /\|/, $_[0])[2]; }

sub state_of
{
	my ($where, $loop, $entity) = @_;
	return sql($where, "SELECT concat_ws(' ', state, failures) FROM reconcile.work WHERE loop_name = '$loop' AND entity_id = '$entity'");
}

# ----------------------------------------------------------------------
note 'a claim that nobody reports comes back at its deadline, counted';

make_outside($node, 'lost', 'max_attempts => 3');
enqueue($node, 'lost', 'a');
my $first = claim($node, 'lost');
like($first, qr/^a\|1\|/, 'the first attempt');
is(state_of($node, 'lost', 'a'), 'running 1', 'it is at work');
is(sql($node, q{SELECT reconcile.next_due('lost') BETWEEN '50 min' AND '1 hour'}), 't', 'a poller knows when to look');
draw_in($node, 'lost', 'a');
wait_for($node, q{(SELECT state FROM reconcile.work WHERE loop_name = 'lost' AND entity_id = 'a') = 'ready'}, 'the deadline passes');
session_fails($node, 'RC017', "SELECT reconcile.complete_work('lost', 'a', " . epoch_of($first) . ')', 'a report after the deadline is refused, though nobody else has it yet');
is(sql($node, "SELECT extended FROM reconcile.extend_work('lost', '{a}', ARRAY[" . epoch_of($first) . '])'), 'f', 'nor is it extended');
my $second = claim($node, 'lost', 1, '1 hour');
like($second, qr/^a\|2\|/, 'the next attempt is the second');
cmp_ok(epoch_of($second), '>', epoch_of($first), 'with a higher epoch');
session_fails($node, 'RC017', "SELECT reconcile.fail_work('lost', 'a', " . epoch_of($first) . ", 'x')", 'the first attempt cannot report any more');
draw_in($node, 'lost', 'a');
wait_for($node, q{(SELECT state FROM reconcile.work WHERE loop_name = 'lost' AND entity_id = 'a') = 'ready'}, 'a deadline may be drawn in, too');
like(claim($node, 'lost'), qr/^a\|3\|/, 'the last attempt');
draw_in($node, 'lost', 'a');
wait_for($node, q{reconcile.next_due('lost') = '0'}, 'its deadline passes');
is(claim($node, 'lost'), '', 'nobody gets it after that');
is(sql($node, q{SELECT failures, last_sqlstate, last_error FROM reconcile.dead_letters WHERE loop_name = 'lost'}),
	'3|RC017|the claim of its worker ran out', 'it is dead, and says of what');
is(sql($node, q{SELECT coalesce(reconcile.next_due('lost')::text, 'nothing')}), 'nothing', 'nothing waits');
enqueue($node, 'lost', 'a');
my $revived = claim($node, 'lost');
like($revived, qr/^a\|1\|/, 'a fresh trigger begins anew');
sql($node, "SELECT reconcile.complete_work('lost', 'a', " . epoch_of($revived) . ')');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE loop_name = 'lost' AND failures <> 0}), '0', 'after a success nothing is remembered');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'lost'}), '0', 'and no mark is left');
is(sql($node, q{SELECT coalesce(reconcile.next_due('lost')::text, 'nothing')}), 'nothing', 'nor is any waited for');

# ----------------------------------------------------------------------
note 'a claim that does not commit was none';

make_outside($node, 'open');
enqueue($node, 'open', 'a');
my $session = $node->background_psql('postgres');
$session->query_safe(q{BEGIN; SELECT * FROM reconcile.claim_work('open', 'w')});
is(claim($node, 'open'), '', 'while it is open nobody else gets the entity');
is(state_of($node, 'open', 'a'), 'ready 0', 'nor does anybody see a claim');
$session->query_safe('ROLLBACK');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM reconcile.claim_work('open', 'w') WHERE attempt = 1}), 'rolled back, it is given anew, as a first attempt');
sql($node, q{SELECT reconcile.forget('open', 'a')});

enqueue($node, 'open', 'a');
my $pid = $session->query_safe('SELECT pg_backend_pid()');
$session->query_safe(q{BEGIN; SELECT * FROM reconcile.claim_work('open', 'w')});
expect_log(qr/FATAL:  terminating connection due to administrator command/);
sql($node, "SELECT pg_terminate_backend($pid, 10000)");
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM reconcile.claim_work('open', 'w') WHERE attempt = 1}), 'so it is after the end of the session');
eval { $session->quit };
sql($node, q{SELECT reconcile.forget('open', 'a')});

note 'nor one in a subtransaction that was rolled back in a transaction that was not';
sql($node, q{SELECT reconcile.enqueue_many('open', '{a,b,c}')});
is(sql($node, q{BEGIN;
	SELECT entity_id FROM reconcile.claim_work('open', 'w');
	SAVEPOINT one; SAVEPOINT two;
	SELECT entity_id FROM reconcile.claim_work('open', 'w');
	RELEASE two;
	ROLLBACK TO one;
	COMMIT}), "a\nb", 'one stays, one goes back');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM (SELECT FROM reconcile.work WHERE loop_name = 'open' AND state = 'ready') w}), 'two are ready');
my $left = '';
for (1 .. 100)
{
	$left = join(' ', grep { $_ ne '' } $left, split(/\n/, sql($node, q{SELECT entity_id FROM reconcile.claim_work('open', 'w', 10)})));
	last if length $left >= 3;
}
is(join(' ', sort split / /, $left), 'b c', 'and both are given');
is(sql($node, q{SELECT string_agg(DISTINCT failures::text, ' ') FROM reconcile.entity WHERE loop_name = 'open'}), '1', 'each as a first attempt');
sql($node, q{SELECT reconcile.drop_loop('open')});

note 'a claim in a prepared transaction stands when that is committed';
make_outside($node, 'prepared');
enqueue($node, 'prepared', 'a');
sql($node, q{BEGIN; SELECT * FROM reconcile.claim_work('prepared', 'w', 1, '1 hour'); PREPARE TRANSACTION 'claims'});
is(claim($node, 'prepared'), '', 'until then nobody gets the entity');
sql($node, q{COMMIT PREPARED 'claims'});
is(state_of($node, 'prepared', 'a'), 'running 1', 'then it is at work');
sql($node, q{SELECT reconcile.complete_work('prepared', 'a', (SELECT claim_epoch FROM reconcile.entity WHERE loop_name = 'prepared'))});
is(state_of($node, 'prepared', 'a'), '', 'and can be reported');

# ----------------------------------------------------------------------
note 'batches';

make_outside($node, 'batch');
sql($node, q{SELECT reconcile.enqueue_many('batch', ARRAY(SELECT 'e' || n FROM generate_series(1, 9000) n))});
is(sql($node, q{CREATE TABLE app.batch AS SELECT * FROM reconcile.claim_work('batch', 'w', 1000, '1 hour');
	DO $$ BEGIN FOR i IN 2 .. 9 LOOP INSERT INTO app.batch SELECT * FROM reconcile.claim_work('batch', 'w', 1000, '1 hour'); COMMIT; END LOOP; END $$;
	SELECT count(*), count(DISTINCT entity_id), count(DISTINCT claim_epoch) FROM app.batch}), '9000|9000|9000', 'thousands are claimed, a thousand at once');
is(sql($node, q{WITH a AS (SELECT array_agg(entity_id ORDER BY claim_epoch) AS ids, array_agg(claim_epoch ORDER BY claim_epoch) AS epochs FROM app.batch)
	SELECT count(*) FILTER (WHERE completed), max(ord) FROM a, reconcile.complete_works('batch', a.ids, a.epochs)}), '9000|9000', 'and completed at once');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'batch'}), '0', 'no mark is left');

note 'the writes of a batch trigger none of it';
sql($node, q{CREATE TABLE app.written (id text); SELECT reconcile.watch('batch', 'app.written', 'id');
	SELECT reconcile.enqueue_many('batch', ARRAY(SELECT 'e' || n FROM generate_series(1, 500) n));
	TRUNCATE app.batch;
	INSERT INTO app.batch SELECT * FROM reconcile.claim_work('batch', 'w', 1000, '1 hour')});
sql($node, q{BEGIN;
	INSERT INTO app.written SELECT 'e' || n FROM generate_series(1, 510) n;
	SELECT count(*) FROM reconcile.complete_works('batch', (SELECT array_agg(entity_id ORDER BY claim_epoch) FROM app.batch), (SELECT array_agg(claim_epoch ORDER BY claim_epoch) FROM app.batch));
	COMMIT});
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'batch'}), '10', 'but ten that were not claimed');
sql($node, q{SELECT reconcile.drop_loop('batch')});

# ----------------------------------------------------------------------
note 'the cost of a claim does not grow with what is waiting';

make_outside($node, 'deep');
sub buffers
{
	my ($plan) = sql($node, q{EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM reconcile.claim_work('deep', 'w', 10)});
	my ($hit) = $plan =~ /"Shared Hit Blocks": (\d+)/;
	return $hit;
}
sql($node, q{SELECT reconcile.enqueue_many('deep', ARRAY(SELECT 'e' || n FROM generate_series(1, 100) n))});
buffers();
my $shallow = buffers();
sql($node, q{SELECT reconcile.enqueue_many('deep', ARRAY(SELECT 'f' || n FROM generate_series(1, 60000) n))});
buffers();
my $deep = buffers();
cmp_ok($deep, '<', 2 * $shallow + 100, "ten of sixty thousand touch $deep buffers, ten of a hundred $shallow");
sql($node, q{SELECT reconcile.drop_loop('deep')});

# ----------------------------------------------------------------------
note 'the engine does not run what an outside worker has';

make_loop($node, 'both', options => 'enabled => false');
sql($node, q{SELECT reconcile.alter_loop('both', '{"reconciler": null, "enabled": true}')});
enqueue($node, 'both', 'a');
my $claim = claim($node, 'both');
sql($node, q{SELECT reconcile.alter_loop('both', '{"reconciler": "app.both"}')});
enqueue($node, 'both', 'a', 'b');
wait_tries($node, 'both', 1);
is(runs($node, 'both', 'b'), 1, 'another entity runs');
is(runs($node, 'both', 'a'), 0, 'the claimed one does not');
is(state_of($node, 'both', 'a'), 'running 1', 'it is at work');
sql($node, "SELECT reconcile.complete_work('both', 'a', " . epoch_of($claim) . ')');
wait_tries($node, 'both', 2);
wait_quiet($node, 'both');
is(runs($node, 'both', 'a'), 1, 'until its worker is done: then what came meanwhile is run');
sql($node, q{SELECT reconcile.drop_loop('both')});

# ----------------------------------------------------------------------
note 'many workers, among them some that die: nothing is lost, nothing done twice';

make_outside($node, 'crowd');
sql($node, q{
	CREATE TABLE app.done (entity_id text, claim_epoch bigint, PRIMARY KEY (entity_id, claim_epoch));
	CREATE SEQUENCE app.deaths;
	-- claims, works, reports; now and then it forgets to report
	CREATE PROCEDURE app.worker(holder text) LANGUAGE plpgsql AS $$
	DECLARE
		c record;
		got bool;
	BEGIN
		LOOP
			got := false;
			FOR c IN SELECT * FROM reconcile.claim_work('crowd', holder, 5, '300 ms') LOOP
				got := true;
				COMMIT;
				PERFORM app.gate('crowd');
				BEGIN
					IF c.attempt = 1 AND random() < 0.1 THEN
						PERFORM nextval('app.deaths');
					ELSIF random() < 0.1 THEN
						PERFORM reconcile.fail_work('crowd', c.entity_id, c.claim_epoch, 'no', retry_after => '0');
					ELSE
						INSERT INTO app.done VALUES (c.entity_id, c.claim_epoch);
						PERFORM reconcile.complete_work('crowd', c.entity_id, c.claim_epoch);
					END IF;
				EXCEPTION WHEN SQLSTATE 'RC017' THEN NULL;
				END;
				COMMIT;
			END LOOP;
			COMMIT;
			EXIT WHEN NOT got AND reconcile.next_due('crowd') IS NULL;
		END LOOP;
	END $$;
	SELECT reconcile.enqueue_many('crowd', ARRAY(SELECT 'e' || n FROM generate_series(1, 1000) n));
});
my $crowd = close_gate($node, 'crowd');
my @workers;
for my $n (1 .. 6)
{
	my $h = $node->background_psql('postgres', on_error_stop => 0);
	begins($h, "CALL app.worker('w$n');\n\\q");
	push @workers, $h;
}
wait_held($node, 'crowd', 6);
expect_log(qr/FATAL:  terminating background worker "reconcile dispatcher/);
sql($node, 'SELECT pg_terminate_backend(' . dispatcher_pid($node) . ')');
is(sql($node, q{SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
	WHERE query LIKE '%app.worker%' AND pid <> pg_backend_pid() ORDER BY pid LIMIT 2) w}), '2', 'two of six end with claims in hand, and the dispatcher as well');
$crowd->open;
$node->poll_query_until('postgres', 'SELECT count(DISTINCT entity_id) = 1000 FROM app.done') or die 'some were not done';
pass('all are done in the end');
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM reconcile.work WHERE loop_name = 'crowd'}) or die 'not quiet';
is(sql($node, 'SELECT count(*) FROM (SELECT FROM app.done GROUP BY entity_id HAVING count(*) > 1) d'), '0', 'and none twice');
cmp_ok(sql($node, 'SELECT last_value FROM app.deaths'), '>', 10, 'though workers forgot to report');
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%app.worker%' AND pid <> pg_backend_pid()});
eval { $_->quit } for @workers;

# ----------------------------------------------------------------------
note 'a dispatcher that does not answer: the tables are searched, and nothing stays lent';

make_outside($node, 'deaf');
enqueue($node, 'deaf', 'a');
my $dispatcher = dispatcher_pid($node);
kill 'STOP', $dispatcher;
session_fails($node, '57014', q{SET statement_timeout = '300 ms'; SELECT * FROM reconcile.claim_work('deaf', 'w')}, 'a worker may be cancelled while it waits');
$claim = claim($node, 'deaf');
like($claim, qr/^a\|1\|/, 'another gets the entity in the end');
kill 'CONT', $dispatcher;
sql($node, "SELECT reconcile.complete_work('deaf', 'a', " . epoch_of($claim) . ')');
enqueue($node, 'deaf', 'a', 'b');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM reconcile.claim_work('deaf', 'w') WHERE attempt = 1}), 'afterwards it is as before') for 1 .. 2;

# ----------------------------------------------------------------------
note 'without preload';

my $bare = new_node('bare', preload => 0);
make_outside($bare, 'bare', "backoff_base => '1 h', backoff_max => '1 h'");
is(sql($bare, q{SELECT coalesce(reconcile.next_due('bare')::text, 'nothing')}), 'nothing', 'nothing is due');
sql($bare, q{SELECT reconcile.enqueue_many('bare', ARRAY(SELECT 'e' || n FROM generate_series(1, 50) n)); SELECT reconcile.enqueue('bare', 'later', '1 hour')});
is(sql($bare, q{SELECT reconcile.next_due('bare')}), '00:00:00', 'now something is');
sql($bare, q{CREATE TABLE got AS SELECT * FROM reconcile.claim_work('bare', 'w', 40, '1 hour')});
is(sql($bare, q{SELECT count(*) FROM got}), '40', 'it is claimed');
is(sql($bare, q{CREATE TABLE others AS SELECT * FROM reconcile.claim_work('bare', 'w2', 40, '1 hour')}) . sql($bare, 'SELECT count(*) FROM others'), '10', 'by others, the rest');
is(sql($bare, q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state) FROM reconcile.work}), 'running waiting', 'the view shows it');
is(sql($bare, q{SELECT count(*) FILTER (WHERE completed) FROM (SELECT (reconcile.complete_works('bare', array_agg(entity_id ORDER BY claim_epoch), array_agg(claim_epoch ORDER BY claim_epoch))).* FROM got) c}), '40', 'and completed');
sql($bare, q{SELECT reconcile.extend_work('bare', array_agg(entity_id ORDER BY claim_epoch), array_agg(claim_epoch ORDER BY claim_epoch), '1 ms') FROM others});
wait_for($bare, q{reconcile.next_due('bare') = '0'}, 'deadlines pass');
is(sql($bare, q{SELECT count(*) FROM reconcile.claim_work('bare', 'w3', 40) WHERE attempt = 2}), '10', 'the lost ones are claimed anew');
is(sql($bare, q{SELECT reconcile.next_due('bare') BETWEEN '1 s' AND '30 s'}), 't', 'the next to come is a deadline');
enqueue($bare, 'bare', 'p');
sql($bare, q{SELECT reconcile.pause_loop('bare')});
is(claim($bare, 'bare'), '', 'a paused loop gives no work');
is(sql($bare, q{SELECT coalesce(reconcile.next_due('bare')::text, 'nothing')}), 'nothing', 'nor says when');
sql($bare, q{SELECT reconcile.resume_loop('bare')});
like(claim($bare, 'bare'), qr/^p\|1\|/, 'resumed it does');

finish();

# Loops, run by background workers (P1, P2, P3; scenarios 41 to 57 and 158 of
# the loop contract): convergence, results, backoff, death and revival, delay,
# coalescing, concurrency, self-suppression, one commit, timeouts, management.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 24\nreconcile.max_workers = 12\nmax_prepared_transactions = 4\n");
prepare($node);

expect_log(qr/FATAL:  terminating background worker "reconcile executor/);

# Judged at the end, as it takes five seconds.
make_loop($node, 'deaf', options => q{timeout => '50 ms', backoff_base => '1 hour', backoff_max => '1 hour'},
	body => q{LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP;});
enqueue($node, 'deaf', 'a');

# The state in which an entity waits: state, failures and SQLSTATE.
sub waits
{
	my ($loop, $entity) = @_;
	return sql($node, "SELECT concat_ws(' ', state, failures, last_sqlstate) FROM reconcile.work
		WHERE loop_name = '$loop' AND entity_id = '$entity'");
}

# In how many minutes it is due.
sub due_in_minutes
{
	my ($loop, $entity) = @_;
	return sql($node, "SELECT round(extract(epoch FROM due_at - clock_timestamp()) / 60) FROM reconcile.work
		WHERE loop_name = '$loop' AND entity_id = '$entity'");
}

sub dead
{
	my ($loop, $entity) = @_;
	return sql($node, "SELECT concat_ws(' ', failures, last_sqlstate, last_error) FROM reconcile.dead_letters
		WHERE loop_name = '$loop' AND entity_id = '$entity'");
}

# ----------------------------------------------------------------------
note 'a watched table converges';

sql($node, q{
	CREATE TABLE app.device (id text PRIMARY KEY, region text, desired int, reported int);
});
make_loop($node, 'converge', options => 'concurrency => 3',
	body => 'UPDATE app.device SET reported = desired WHERE id = entity; RETURN NULL;');
sql($node, q{
	SELECT reconcile.watch('converge', 'app.device', 'id');
	INSERT INTO app.device SELECT 'd' || n, CASE WHEN n <= 10 THEN 'north' ELSE 'south' END, 1 FROM generate_series(1, 40) n;
});
wait_for($node, 'SELECT count(*) = 40 FROM app.device WHERE reported = desired', 'every inserted row reaches its desired state');
wait_quiet($node, 'converge');
is(tries($node, 'converge'), 40, 'with one run each: a run does not trigger itself by its own write');
sql($node, q{UPDATE app.device SET desired = 2 WHERE region = 'north'});
wait_for($node, 'SELECT count(*) = 10 FROM app.device WHERE reported = 2', 'changed rows follow');
wait_quiet($node, 'converge');
is(tries($node, 'converge'), 50, 'and only those ran');

# ----------------------------------------------------------------------
note 'results';

make_loop($node, 'again', body => q{RETURN CASE WHEN try = 1 THEN interval '1 ms' END;});
make_loop($node, 'by_default', options => q{default_requeue => '5 ms'});
make_loop($node, 'negative', options => q{default_requeue => '1 hour'}, body => q{RETURN '-5 s';});
make_loop($node, 'illegal', options => q{backoff_base => '1 hour', backoff_max => '1 day'}, body => q{RETURN '1 month';});
enqueue($node, $_, 'a') for qw(again by_default negative illegal);

wait_tries($node, 'again', 2);
wait_quiet($node, 'again');
is(tries($node, 'again'), 2, 'RequeueAfter 1 ms gives exactly one further run (45)');
is(waits('again', 'a'), '', 'after which nothing is remembered');
wait_tries($node, 'by_default', 4);
pass('a success that asks for nothing is looked at again after default_requeue (57)');
sql($node, q{SELECT reconcile.drop_loop('by_default')});
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'negative' AND state = 'waiting')},
	'a negative result is a success');
is(due_in_minutes('negative', 'a'), 60, 'that asks for nothing, like 0');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'illegal' AND state = 'retrying')},
	'a result that is no legal duration is a transient failure');
is(waits('illegal', 'a'), 'retrying 1 22023', 'with SQLSTATE 22023');

# ----------------------------------------------------------------------
note 'failures';

make_loop($node, 'transient', options => q{backoff_base => '1 ms', backoff_max => '2 ms'});
make_loop($node, 'permanent', options => q{backoff_base => '1 ms', backoff_max => '2 ms'});
behave($node, 'transient', 'a', 'fail');
behave($node, 'permanent', 'a', 'permanent');
enqueue($node, 'permanent', 'a');
enqueue($node, 'transient', 'a');
wait_tries($node, 'transient', 4);
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'permanent')}, 'a permanent failure is final');
is(tries($node, 'permanent'), 1, 'it ran once, while the transient one was retried more than three times (46)');
is(dead('permanent', 'a'), '1 RC004 never will', 'the dead letter has failures, SQLSTATE and message');
behave($node, 'transient', 'a', 'succeed');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'transient')}, 'a transient failure ends with a success');
is(sql($node, q{SELECT count(*) FROM app.run WHERE loop_name = 'permanent'}), 0, 'failed runs leave nothing behind (P3)');

make_loop($node, 'backoff', options => q{backoff_base => '1 hour', backoff_max => '3 hours'});
behave($node, 'backoff', 'a', 'fail');
my @expected_minutes = (60, 120, 180, 180);
foreach my $n (1 .. @expected_minutes)
{
	enqueue($node, 'backoff', 'a');
	wait_for($node, qq{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'backoff' AND failures = $n AND state = 'retrying')},
		"a fresh trigger does not wait for the backoff: failure $n");
	is(due_in_minutes('backoff', 'a'), $expected_minutes[ $n - 1 ], 'the backoff doubles up to its maximum');
}
is(sql($node, q{SELECT last_error FROM reconcile.work WHERE loop_name = 'backoff'}), 'cannot drive a', 'the last error is shown');
behave($node, 'backoff', 'a', 'succeed');
enqueue($node, 'backoff', 'a');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'backoff')}, 'a success forgets the failures');
is(sql($node, q{SELECT attempt FROM app.run WHERE loop_name = 'backoff'}), 5, 'it was the fifth attempt in a row');
behave($node, 'backoff', 'a', 'fail');
enqueue($node, 'backoff', 'a');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'backoff' AND failures = 1 AND state = 'retrying')},
	'so that the next failure counts from one (47)');
is(due_in_minutes('backoff', 'a'), 60, 'and backs off from the base');

# ----------------------------------------------------------------------
note 'death and revival';

make_loop($node, 'mortal', options => q{max_attempts => 3, backoff_base => '1 ms', backoff_max => '1 ms'});
behave($node, 'mortal', $_, 'fail') for qw(a b c);
enqueue($node, 'mortal', qw(a b c));
wait_for($node, q{(SELECT count(*) FROM reconcile.dead_letters WHERE loop_name = 'mortal') = 3}, 'max_attempts is final');
is(tries($node, 'mortal'), 9, 'after that many attempts');
is(dead('mortal', 'a'), '3 AP001 cannot drive a', 'the dead letter tells of the last one');
is(waits('mortal', 'a'), 'dead 3 AP001', 'and the entity is dead');
enqueue($node, 'mortal', 'a');
wait_for($node, q{(SELECT count(*) FROM reconcile.dead_letters WHERE loop_name = 'mortal' AND entity_id = 'a') = 1
	AND (SELECT last_value FROM app.mortal_tries) = 12}, 'a fresh trigger revives a dead one, with all its attempts (158)');
behave($node, 'mortal', $_, 'succeed') for qw(a b c);
enqueue($node, 'mortal', 'a');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'mortal' AND entity_id = 'a')},
	'and its success leaves nothing of it');
is(sql($node, q{SELECT reconcile.revive('mortal', 'b'), reconcile.revive('mortal', 'a'), reconcile.forget('mortal', 'c'),
		reconcile.forget('mortal', 'c')}), 't|f|t|f', 'revive() and forget() say whether there was anything to do');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'mortal' AND entity_id = 'b' AND attempt = 1)},
	'revive() makes a dead entity due, with no failures counted');
wait_quiet($node, 'mortal');
is(runs($node, 'mortal', 'c'), 0, 'forget() runs nothing');
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'mortal'}), 0, 'nobody is left');

# ----------------------------------------------------------------------
note 'delay';

make_loop($node, 'delayed');
sql($node, q{
	SELECT reconcile.enqueue('delayed', 'a', '1 hour');
	SELECT reconcile.enqueue('delayed', 'b', '2 hours');
	SELECT reconcile.enqueue('delayed', 'b');
	SELECT reconcile.enqueue('delayed', 'c', '3 hours');
	SELECT reconcile.enqueue('delayed', 'c', '1 hour');
	SELECT reconcile.enqueue('delayed', 'c', '2 hours');
});
my $asked_at = sql($node, q{
	SELECT clock_timestamp() FROM reconcile.enqueue('delayed', 'a', '400 ms')});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'delayed' AND entity_id = 'a')}, 'a delayed trigger runs');
is(sql($node, qq{SELECT began >= '$asked_at'::timestamptz + interval '395 ms' FROM app.run
		WHERE loop_name = 'delayed' AND entity_id = 'a'}), 't', 'not before its time');
is(waits('delayed', 'a'), '', 'of several the earliest wins, and stands for the later ones');
is(runs($node, 'delayed', 'b'), 1, 'a trigger that is due runs at once');
is(due_in_minutes('delayed', 'b'), 120, 'and does not answer a delayed one before its time');
is(due_in_minutes('delayed', 'c'), 60, 'the earliest of those that wait is what counts');

# ----------------------------------------------------------------------
note 'coalescing';

make_loop($node, 'paused');
sql($node, q{
	SELECT reconcile.pause_loop('paused');
	DO $$ BEGIN FOR i IN 1 .. 1000 LOOP PERFORM reconcile.enqueue('paused', 'a'); COMMIT; END LOOP; END $$;
	SELECT reconcile.enqueue_many('paused', ARRAY['a', 'b', 'a']);
});
is(sql($node, q{SELECT string_agg(entity_id || ' ' || state, ', ' ORDER BY entity_id) FROM reconcile.work WHERE loop_name = 'paused'}),
	'a ready, b ready', 'a paused loop takes triggers in');
is(tries($node, 'paused'), 0, 'and runs nothing');
sql($node, q{SELECT reconcile.resume_loop('paused')});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'paused')}, 'after resume_loop() all is answered');
is(tries($node, 'paused'), 2, 'by one run for each entity, not for each of 1000 triggers');

my $gate = close_gate($node, 'paused');
enqueue($node, 'paused', 'first');
wait_held($node, 'paused', 1);
enqueue($node, 'paused', ('second') x 5);
make_loop($node, 'onlooker');
dispatcher_looks($node, 'onlooker');
# what was given out before is not begun either, however late the dispatcher hears of it
my $dispatcher = dispatcher_pid($node);
kill 'STOP', $dispatcher;
sql($node, q{SELECT reconcile.pause_loop('paused')});
$gate->open;
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'paused' AND entity_id = 'first')}, 'a run in flight finishes while the loop is paused');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'paused')}, 'then none begins');
is(runs($node, 'paused', 'second'), 0, 'from the commit of pause_loop() on');
kill 'CONT', $dispatcher;
dispatcher_looks($node, 'onlooker');
is(waits('paused', 'second'), 'ready 0', 'what waits goes on waiting');
sql($node, q{SELECT reconcile.resume_loop('paused')});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'paused')}, 'until the loop is resumed');
is(runs($node, 'paused', 'second'), 1, 'five triggers that wait together are one run');

# What waits behind a run of a loop with short runs is given out ahead of its turn.
$gate = close_gate($node, 'paused');
enqueue($node, 'paused', 'third');
wait_held($node, 'paused', 1);
enqueue($node, 'paused', 'fourth') for 1 .. 5;
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'paused')}, 'all is answered');
is(runs($node, 'paused', 'fourth'), 1, 'five triggers that come one by one behind a run are one run');

make_loop($node, 'dirty', options => 'concurrency => 4');
make_loop($node, 'doomed', body => q{IF try = 1 THEN PERFORM reconcile.permanent_error('no'); END IF; RETURN NULL;});
make_loop($node, 'failing', options => q{backoff_base => '1 hour', backoff_max => '1 hour'},
	body => q{IF try = 1 THEN RAISE 'no'; END IF; RETURN NULL;});
foreach my $loop (qw(dirty doomed failing))
{
	my $closed = close_gate($node, $loop);
	enqueue($node, $loop, 'a');
	wait_held($node, $loop, 1);
	enqueue($node, $loop, ('a') x 3);
	$closed->open;
}
foreach my $loop (qw(dirty doomed failing))
{
	wait_tries($node, $loop, 2);
	wait_for($node, qq{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = '$loop')}, "loop $loop comes to rest");
}
is(tries($node, 'dirty'), 2, 'triggers that land in a run cause exactly one more (42, 43)');
is(tries($node, 'doomed'), 2, 'also when the run fails for good (P2)');
is(tries($node, 'failing'), 2, 'and when it fails for now, without waiting for the backoff');

# ----------------------------------------------------------------------
note 'triggers count when they commit (P1)';

make_loop($node, 'committed');
sql($node, q{
	BEGIN; SELECT reconcile.enqueue('committed', 'aborted'); ROLLBACK;
	BEGIN; SAVEPOINT s; SELECT reconcile.enqueue('committed', 'undone'); ROLLBACK TO s; SELECT reconcile.enqueue('committed', 'kept'); COMMIT;
	BEGIN; SELECT reconcile.enqueue('committed', 'prepared'); PREPARE TRANSACTION 'one';
	BEGIN; SELECT reconcile.enqueue('committed', 'withdrawn'); PREPARE TRANSACTION 'two';
	SELECT reconcile.enqueue('committed', 'last');
});
wait_for($node, q{(SELECT string_agg(entity_id, ' ' ORDER BY entity_id) FROM app.run WHERE loop_name = 'committed') = 'kept last'},
	'neither an aborted nor a prepared one causes a run');
sql($node, q{ROLLBACK PREPARED 'two'});
sql($node, q{COMMIT PREPARED 'one'});
wait_for($node, q{(SELECT string_agg(entity_id, ' ' ORDER BY entity_id) FROM app.run WHERE loop_name = 'committed') = 'kept last prepared'},
	'COMMIT PREPARED does');

# ----------------------------------------------------------------------
note 'an open forget()';

make_loop($node, 'forgotten', options => 'concurrency => 2');
make_loop($node, 'elsewhere');
$gate = close_gate($node, 'forgotten');
enqueue($node, 'forgotten', 'a');
wait_held($node, 'forgotten', 1);
enqueue($node, 'forgotten', ('a') x 50);
my $forgetting = $node->background_psql('postgres');
$forgetting->query_safe(q{BEGIN});
is($forgetting->query_safe(q{SELECT reconcile.forget('forgotten', 'a')}), 't', 'an entity with triggers is being forgotten');
enqueue($node, 'forgotten', ('a') x 100);
enqueue($node, 'elsewhere', 'a');
wait_tries($node, 'elsewhere', 1);
pass('meanwhile new triggers of it hold the dispatcher up in no way');
$forgetting->query_safe(q{COMMIT});
$forgetting->quit;
$gate->open;
wait_tries($node, 'forgotten', 2);
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'forgotten')}, 'those that came after it are answered');

# ----------------------------------------------------------------------
note 'concurrency';

make_loop($node, 'two', options => 'concurrency => 2');
$gate = close_gate($node, 'two');
enqueue($node, 'two', 1 .. 5);
wait_held($node, 'two', 2);
is(sql($node, q{SELECT count(*) FROM reconcile.running() WHERE loop_name = 'two'}), 2, 'concurrency 2 has two runs in flight');
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'two') = 5}, 'all five entities run');
is(sql($node, q{SELECT max(beside) FROM app.run WHERE loop_name = 'two'}), 2, 'never more than two at a time (41)');

make_loop($node, 'overlap', options => 'concurrency => 4', body => q{
	IF NOT pg_try_advisory_xact_lock(3, hashtext(entity)) THEN
		PERFORM nextval('app.overlaps');
	END IF;
	PERFORM pg_sleep(0.001);
	RETURN NULL;});
sql($node, 'CREATE SEQUENCE app.overlaps');
$node->pgbench('-n -c 4 -j 2 -t 150', 0, [qr/processed: 600/], [qr/^$/], 'four sessions trigger three entities 600 times',
	{ '010_overlap' => q{\set entity random(1, 3)
SELECT reconcile.enqueue('overlap', (:entity)::text);} });
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'overlap')}, 'all triggers are answered');
is(sql($node, 'SELECT is_called FROM app.overlaps'), 'f', 'no two runs of an entity overlap at concurrency 4 (42)');

make_loop($node, 'empty', options => 'concurrency => 2');
$gate = close_gate($node, 'empty');
enqueue($node, 'empty', '', 'real');
wait_held($node, 'empty', 2);
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'empty' AND entity_id IN ('', 'real')) = 2},
	q{the entity '' runs beside a real one (49)});

# ----------------------------------------------------------------------
note 'what a run writes itself';

sql($node, q{
	CREATE TABLE app.thing (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
	CREATE TABLE app.thing_log (id text);
	INSERT INTO app.thing VALUES ('a'), ('other');
	CREATE FUNCTION app.touch() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN UPDATE app.thing SET n = n + 100 WHERE id = NEW.id; RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER touch AFTER INSERT ON app.thing_log
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.touch();
});
make_loop($node, 'selfish', body => q{
	UPDATE app.thing SET n = n + 1 WHERE id = entity;
	INSERT INTO app.thing_log VALUES (entity);
	RETURN NULL;});
sql($node, q{SELECT reconcile.watch('selfish', 'app.thing', 'id')});
$gate = close_gate($node, 'selfish');
enqueue($node, 'selfish', 'a');
wait_held($node, 'selfish', 1);
$gate->open;
wait_for($node, q{(SELECT n FROM app.thing WHERE id = 'a') = 101}, 'a run writes to its watched row, at its end by a deferred trigger too');
wait_quiet($node, 'selfish');
is(tries($node, 'selfish'), 1, 'its own writes do not trigger it');
$gate = close_gate($node, 'selfish');
enqueue($node, 'selfish', 'a');
wait_held($node, 'selfish', 1);
sql($node, q{UPDATE app.thing SET n = 0 WHERE id = 'a'});
$gate->open;
wait_for($node, q{(SELECT n FROM app.thing WHERE id = 'a') = 202}, q{another session's write in the midst of a run is seen by one more});
wait_quiet($node, 'selfish');
is(tries($node, 'selfish'), 3, 'by exactly one');

make_loop($node, 'neighbour', body => q{
	UPDATE app.neighbour_thing SET n = 1 WHERE id = 'other' AND n = 0; RETURN NULL;});
sql($node, q{
	CREATE TABLE app.neighbour_thing AS SELECT 'other' AS id, 0 AS n;
	SELECT reconcile.watch('neighbour', 'app.neighbour_thing', 'id');
});
enqueue($node, 'neighbour', 'a');
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'neighbour' AND entity_id = 'other') = 1},
	q{a write to another entity's row triggers that one});

make_loop($node, 'explicit', body => q{
	IF try = 1 THEN PERFORM reconcile.enqueue('explicit', entity); END IF; RETURN NULL;});
enqueue($node, 'explicit', 'a');
wait_tries($node, 'explicit', 2);
wait_quiet($node, 'explicit');
is(tries($node, 'explicit'), 2, 'an explicit enqueue() inside a run of its own entity counts');

# ----------------------------------------------------------------------
note 'one commit (P3)';

sql($node, q{
	CREATE TABLE app.parent (id text PRIMARY KEY);
	CREATE TABLE app.child (id text REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
});
make_loop($node, 'atomic', options => q{backoff_base => '1 hour', backoff_max => '1 hour'}, body => q{
	INSERT INTO app.child VALUES (entity);
	IF entity = 'raises' THEN RAISE 'after the write'; END IF;
	RETURN NULL;});
sql($node, q{INSERT INTO app.parent VALUES ('fits'), ('raises')});
enqueue($node, 'atomic', qw(fits raises orphan));
wait_for($node, q{(SELECT count(*) FROM reconcile.work WHERE loop_name = 'atomic' AND state = 'retrying') = 2
	AND EXISTS (SELECT FROM app.child)}, 'three runs end');
is(sql($node, q{SELECT string_agg(id, ' ') FROM app.child}), 'fits', 'a run that fails leaves nothing');
is(waits('atomic', 'raises'), 'retrying 1 P0001', 'it is booked');
is(waits('atomic', 'orphan'), 'retrying 1 23503', 'and so is one that fails only at COMMIT');
is(sql($node, join(' UNION ', map { qq{SELECT m.xmin = e.xmin FROM reconcile.entity e JOIN reconcile.mark_$_ m USING (loop_name, entity_id) WHERE loop_name = 'atomic'} } 0 .. 3)),
	't', 'the failure and its next look are one transaction');

# A deferred trigger sees what the run's transaction made of its marks before it commits.
sql($node, q{
	CREATE TABLE app.whole (entity text, made text DEFAULT 'here');
	CREATE FUNCTION app.marks_now() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE app.whole SET made = (SELECT string_agg(m.kind::text || CASE WHEN m.due_at > clock_timestamp() THEN ' later' ELSE ' due' END, ', ')
			FROM reconcile.mark m WHERE m.loop_name = 'whole' AND m.entity_id = NEW.entity) WHERE entity = NEW.entity;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER marks_now AFTER INSERT ON app.whole DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.marks_now();
});
make_loop($node, 'whole', options => q{default_requeue => '1 hour'}, body => 'INSERT INTO app.whole VALUES (entity); RETURN NULL;');
enqueue($node, 'whole', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.whole)}, 'a run has effects');
is(sql($node, q{SELECT made FROM app.whole}), 'l later', 'and in the same transaction its trigger is answered and the next look is there');

# ----------------------------------------------------------------------
note 'timeout';

make_loop($node, 'slow', options => q{timeout => '100 ms', backoff_base => '1 hour', backoff_max => '1 hour'},
	body => q{PERFORM pg_sleep(60); RETURN NULL;});
make_loop($node, 'stubborn', options => q{timeout => '50 ms', backoff_base => '1 hour', backoff_max => '1 hour'},
	body => q{BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; RETURN NULL;});
make_loop($node, 'quick', options => q{timeout => '1 hour'});
enqueue($node, $_, 'a') for qw(slow stubborn quick);
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'slow' AND state = 'retrying')}, 'a run that takes too long is ended');
is(waits('slow', 'a'), 'retrying 1 57014', 'as a transient failure, 57014');
wait_for($node, q{(SELECT deadline > began + interval '59 min' FROM app.run WHERE loop_name = 'quick')},
	'current_run() tells the deadline');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'stubborn')}, 'a run that catches the cancel may finish');

make_loop($node, 'suicidal', body => q{PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(1); RETURN NULL;});
enqueue($node, 'suicidal', 'a');
wait_tries($node, 'suicidal', 1);
is(sql($node, q{SELECT count(*) FROM reconcile.current_run()}), 0, 'there is no current run outside of one');

# ----------------------------------------------------------------------
note 'management';

make_loop($node, 'altered');
sql($node, q{CREATE FUNCTION app.altered_too(entity text) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO app.run (loop_name, entity_id) VALUES ('altered', 'new ' || entity) $$});
$gate = close_gate($node, 'altered');
enqueue($node, 'altered', 'a');
wait_held($node, 'altered', 1);
enqueue($node, 'altered', 'b');
sql($node, q{SELECT reconcile.alter_loop('altered', '{"reconciler": "app.altered_too", "default_requeue": "1 hour"}')});
$gate->open;
wait_for($node, q{(SELECT string_agg(entity_id, ', ' ORDER BY n) FROM app.run WHERE loop_name = 'altered') = 'a, new b'},
	'a run in flight keeps the options that it began with; the next one has the new');
wait_for($node, q{(SELECT string_agg(entity_id, ' ') FROM reconcile.work WHERE loop_name = 'altered') = 'b'}, 'all of them');

make_loop($node, 'dropped', options => q{default_requeue => '1 hour'});
$gate = close_gate($node, 'dropped');
enqueue($node, 'dropped', qw(a b));
wait_held($node, 'dropped', 1);
sql($node, q{SET statement_timeout = '5 s'; SELECT reconcile.drop_loop('dropped')});
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'dropped'}), 0, 'drop_loop() does not wait for a run in flight');
sql($node, q{SELECT reconcile.create_loop('dropped', 'app.dropped', default_requeue => NULL); SELECT reconcile.enqueue('dropped', 'a')});
is(tries($node, 'dropped'), 1, 'a loop of the same name does not run the entity beside it');
$gate->open;
wait_tries($node, 'dropped', 2);
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.mark WHERE loop_name = 'dropped')}, 'the run in flight remembers nothing');
is(sql($node, q{SELECT string_agg(entity_id || beside, ' ' ORDER BY n) FROM app.run WHERE loop_name = 'dropped'}), 'a1 a1',
	'it finishes, and the new loop runs what it was asked, after it');

wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.mark m WHERE NOT EXISTS
	(SELECT FROM reconcile.loop l WHERE l.loop_name = m.loop_name))}, 'no mark is left of a loop that is gone');

# ----------------------------------------------------------------------
note 'what was begun above';

wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'deaf' AND state = 'retrying')},
	'a run that does not heed its timeout loses its process');
is(waits('deaf', 'a'), 'retrying 1 57014', 'and is booked as one that timed out');
cmp_ok(tries($node, 'suicidal'), '<=', 10, 'a run that cancels itself is repeated, but not at once');

# ----------------------------------------------------------------------
note 'a loop is dropped while a run of it has written to what it watches';

sql($node, q{CREATE TABLE app.dropped (id text, n int); INSERT INTO app.dropped VALUES ('a', 0)});
make_loop($node, 'demolished', body => q{UPDATE app.dropped SET n = n + 1 WHERE id = entity; PERFORM app.gate('demolished_later'); RETURN NULL;});
sql($node, q{SELECT reconcile.watch('demolished', 'app.dropped', 'id')});
my $later = close_gate($node, 'demolished_later');
enqueue($node, 'demolished', 'a');
wait_held($node, 'demolished_later', 1);
my $dropper = $node->background_psql('postgres');
begins($dropper, q{SELECT reconcile.drop_loop('demolished');});
wait_for($node, q{EXISTS (SELECT FROM pg_locks WHERE relation = 'app.dropped'::regclass AND NOT granted)}, 'it waits for the table');
$later->open;
$dropper->query_safe('SELECT 1');
$dropper->quit;
is(sql($node, 'SELECT n FROM app.dropped'), '1', 'the run finishes, and nobody waits for ever');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'demolished'}), '0', 'nothing of the loop is left');

finish();

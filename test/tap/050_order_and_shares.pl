# In what order entities are run, and that none holds up another (P9, P10;
# scenarios 86, 153, 155 to 157 of the loop contract and public reports B29, C33,
# D41 to D47, J79, M97): due order, loops beside a large one, entities that fail,
# that end their process, or that come with an impossible time; what a resync
# brings back; and who is seen in a run: nobody of the session that triggered it
# (94 to 99).

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 3\n");
expect_log(qr/FATAL:  terminating background worker "reconcile executor/);
prepare($node);

# The entities of a loop in the order in which they began.
sub order
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(entity_id, ' ' ORDER BY n) FROM app.run WHERE loop_name = '$loop'");
}

# ----------------------------------------------------------------------
note 'due order';

make_loop($node, 'small_probe');

make_loop($node, 'ordered');
my $gate = close_gate($node, 'ordered');
enqueue($node, 'ordered', 'first');
wait_held($node, 'ordered', 1);
enqueue($node, 'ordered', qw(c a b e d));
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'ordered') = 6}, 'what waits behind a run is run');
is(order('ordered'), 'first c a b e d', 'in the order in which it was triggered, none lost (86)');

make_loop($node, 'timed');
sql($node, q{SELECT reconcile.enqueue('timed', 't' || ms, interval '1 ms' * ms) FROM unnest(ARRAY[900, 300, 600]) ms});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'timed') = 3}, 'three are triggered with delays');
is(order('timed'), 't300 t600 t900', 'they run in due order, not in that of the triggers (51, 53, 155)');

make_loop($node, 'rounds', options => 'concurrency => 3', body => q{
	RETURN CASE WHEN (SELECT count(*) FROM app.run r WHERE r.loop_name = 'rounds' AND r.entity_id = entity) = 1 THEN interval '2 s' END;});
sql($node, q{SELECT reconcile.enqueue_many('rounds', ARRAY(SELECT 'e' || n FROM generate_series(1, 100) n))});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'rounds') = 200}, 'a hundred entities run, and again after the time that they asked for');
is(sql($node, q{SELECT count(*) FROM (SELECT r.began - lag(r.began) OVER (PARTITION BY r.entity_id ORDER BY r.n) AS pause FROM app.run r WHERE loop_name = 'rounds') p
	WHERE pause < '1995 ms'}), 0, 'none before its time (45, 123, 153)');
is(sql($node, q{SELECT count(DISTINCT entity_id) FROM (SELECT entity_id FROM app.run WHERE loop_name = 'rounds' ORDER BY n LIMIT 100) r}), 100,
	'all of the first round before any of the second (153)');

# ----------------------------------------------------------------------
note 'a failed run does not move the time that its entity has (156)';

sql($node, q{
	CREATE TABLE app.ttl (id text PRIMARY KEY, expires_at timestamptz NOT NULL, expired boolean NOT NULL DEFAULT false);
	GRANT ALL ON app.ttl TO PUBLIC});
make_loop($node, 'ttl', options => q{backoff_base => '1 ms', backoff_max => '20 ms'}, body => q{
	UPDATE app.ttl SET expired = expires_at <= clock_timestamp() WHERE id = entity;
	IF try <= 3 THEN RAISE 'not yet'; END IF;
	RETURN (SELECT CASE WHEN NOT expired THEN date_trunc('milliseconds', expires_at - clock_timestamp() + interval '1 ms') END FROM app.ttl WHERE id = entity);});
sql($node, q{
	INSERT INTO app.ttl SELECT 'a', clock_timestamp() + interval '700 ms';
	SELECT reconcile.enqueue('ttl', 'a')});
wait_for($node, q{(SELECT expired FROM app.ttl)}, 'an entity that fails at first expires');
is(sql($node, q{SELECT bool_and(r.began >= t.expires_at) FROM app.ttl t, LATERAL (SELECT began FROM app.run WHERE loop_name = 'ttl' ORDER BY n DESC LIMIT 1) r}), 't', 'at its own time');
cmp_ok(tries($node, 'ttl'), '<=', 6, 'with one look at that time, not by looking again and again');

# ----------------------------------------------------------------------
note 'a loop that is not to run (34, 35)';

make_loop($node, 'off', options => q{enabled => false, lease_ttl => '1 h'});
enqueue($node, 'off', 'a');
dispatcher_looks($node, 'small_probe');
is(tries($node, 'off'), 0, 'it runs nothing');
is(sql($node, q{SELECT count(*) FROM reconcile.leases WHERE reconciler_id = 'off'}), 0, 'nor does it lead');
sql($node, q{SELECT reconcile.alter_loop('off', '{"enabled": true}')});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'off' AND epoch = 1)}, 'enabled, it leads and runs what has come meanwhile');
sql($node, q{SELECT reconcile.alter_loop('off', '{"enabled": false}')});
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'off')}, 'disabled, it gives its lease back');
enqueue($node, 'off', 'b');
dispatcher_looks($node, 'small_probe');
is(tries($node, 'off'), 1, 'and runs nothing');

# ----------------------------------------------------------------------
note 'a loop with much to do beside one with little (D41)';

make_loop($node, 'large', options => 'concurrency => 3');
make_loop($node, 'small');
$gate = close_gate($node, 'large');
sql($node, q{SELECT reconcile.enqueue_many('large', ARRAY(SELECT n::text FROM generate_series(1, 20000) n))});
wait_held($node, 'large', 3);
enqueue($node, 'small', 'only');
$gate->open;
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'small')}, 'its entity runs');
cmp_ok(sql($node, q{SELECT count(*) FROM app.run l WHERE l.loop_name = 'large' AND l.n < (SELECT s.n FROM app.run s WHERE s.loop_name = 'small')}), '<', 500,
	'before all but a few of the 20,000 that were due before it');
sql($node, q{SELECT reconcile.drop_loop('large')});

note 'twenty loops are due while one has all executors (D43)';
make_loop($node, 'hog', options => 'concurrency => 3');
make_loop($node, "due_$_") for 1 .. 20;
$gate = close_gate($node, 'hog');
enqueue($node, 'hog', 1 .. 9);
wait_held($node, 'hog', 3);
enqueue($node, "due_$_", 'a') for 1 .. 20;
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name LIKE 'due\_%' AND state = 'ready'}), 20, 'they wait');
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name LIKE 'due\_%') = 20}, 'each runs when an executor is free');

# ----------------------------------------------------------------------
note 'entities that fail, in front of those that do not (D44)';

make_loop($node, 'front', options => q{backoff_base => '1 h', backoff_max => '1 h'});
sql($node, q{INSERT INTO app.behaviour SELECT 'front', 'bad' || n, 'fail' FROM generate_series(1, 300) n});
sql($node, q{SELECT reconcile.pause_loop('front');
	SELECT reconcile.enqueue_many('front', ARRAY(SELECT 'bad' || n FROM generate_series(1, 300) n));
	SELECT reconcile.enqueue_many('front', ARRAY(SELECT 'good' || n FROM generate_series(1, 300) n));
	SELECT reconcile.resume_loop('front')});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'front') = 300}, 'all that can succeed do');
is(tries($node, 'front'), 600, 'after one attempt of each');

# ----------------------------------------------------------------------
note 'a resync finds what was lost, and does not feed itself (C33, D44, 157)';

sql($node, q{
	CREATE SEQUENCE app.listed;
	CREATE TABLE app.known (id text);
	CREATE FUNCTION app.list() RETURNS SETOF text LANGUAGE sql AS $$ SELECT nextval('app.listed'); SELECT id FROM app.known $$;
	GRANT ALL ON app.known, app.listed TO PUBLIC});
make_loop($node, 'listed', options => q{lister => 'app.list', resync_every => '1 h', backoff_base => '1 h', backoff_max => '1 h'});
wait_for($node, q{(SELECT is_called FROM app.listed)}, 'a loop lists, and there is nothing');
dispatcher_looks($node, 'due_1');
is(sql($node, q{SELECT last_value, (SELECT count(*) FROM reconcile.work WHERE loop_name = 'listed') FROM app.listed}), '1|0', 'it does not list again for that');
sql($node, q{INSERT INTO app.known SELECT CASE WHEN n <= 100 THEN 'bad' ELSE 'good' END || n FROM generate_series(1, 200) n;
	INSERT INTO app.behaviour SELECT 'listed', id, 'fail' FROM app.known WHERE id LIKE 'bad%';
	SELECT reconcile.pause_loop('listed');
	SELECT reconcile.enqueue('listed', 'good200')});
dispatcher_looks($node, 'due_1');
sql($node, 'DELETE FROM reconcile.mark_' . $_ . q{ WHERE entity_id = 'good200'}) for 0 .. 3;
sql($node, q{SELECT reconcile.resume_loop('listed'); SELECT reconcile.enqueue('listed', '')});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'listed') = 100}, 'one resync brings all that can succeed, and whose trigger somebody deleted');
is(tries($node, 'listed'), 200, 'after one attempt of each');

# ----------------------------------------------------------------------
note 'an entity that ends its process (J79)';

make_loop($node, 'killer', options => q{max_attempts => 5, backoff_base => '1 ms', backoff_max => '1 ms', concurrency => 2}, body => q{
	IF entity = 'kills' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF; RETURN NULL;});
enqueue($node, 'killer', qw(kills lives));
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'killer')}, 'it dies of it');
is(sql($node, q{SELECT concat_ws(' ', entity_id, failures, last_sqlstate) FROM reconcile.dead_letters WHERE loop_name = 'killer'}), 'kills 5 57P01',
	'after max_attempts, with the SQLSTATE that says so');
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'killer') = 1}, 'its neighbour has run');
is(tries($node, 'killer'), 6, 'nobody was tried more often');

# ----------------------------------------------------------------------
note 'a serialization failure at COMMIT undoes work and acknowledgement (B29)';

sql($node, q{
	CREATE TABLE app.ack (id text, n int);
	GRANT ALL ON app.ack TO PUBLIC;
	CREATE SEQUENCE app.acks;
	CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('app.acks') = 1 THEN RAISE 'could not serialize' USING ERRCODE = '40001'; END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.ack DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.late()});
make_loop($node, 'acknowledged', options => q{backoff_base => '1 ms'}, body => q{INSERT INTO app.ack VALUES (entity, try); RETURN NULL;});
enqueue($node, 'acknowledged', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.ack)}, 'it is run again');
wait_quiet($node, 'acknowledged');
is(sql($node, q{SELECT string_agg(id || n, ' ') FROM app.ack}), 'a2', 'and its work is there once');
is(tries($node, 'acknowledged'), 2, 'after two runs');

# ----------------------------------------------------------------------
note 'who is seen in a run (94 to 99)';

sql($node, q{CREATE ROLE tenant LOGIN});
make_loop($node, 'seen', body => q{
	INSERT INTO app.said VALUES (entity, concat_ws(' ', session_user, current_user, coalesce(nullif(current_setting('app.tenant', true), ''), '-'),
		coalesce(nullif(current_setting('application_name'), ''), '-')));
	PERFORM set_config('app.tenant', 'of run ' || entity, false);
	RETURN NULL;});
sql($node, q{CREATE TABLE app.said (entity text, who text); GRANT ALL ON app.said TO PUBLIC;
	SELECT reconcile.grant_access('tenant', 'trigger', 'seen')});
sql($node, q{SET SESSION AUTHORIZATION tenant; SET app.tenant = 'acme'; SET application_name = 'acme'; SELECT reconcile.enqueue('seen', 'a')});
sql($node, q{SET app.tenant = 'other'; SELECT reconcile.enqueue('seen', 'b')});
wait_for($node, q{(SELECT count(*) FROM app.said) = 2}, 'two sessions trigger, as different roles and tenants');
my $superuser = sql($node, 'SELECT current_user');
my $named = sql($node, q{SELECT count(*) FROM app.said WHERE who LIKE '%acme%' OR who LIKE '%other%' OR who LIKE '%tenant%' OR who LIKE '%of run%'});
is($named, 0, 'a run has nothing of the session that triggered it, nor of the run before');
is(sql($node, qq{SELECT count(*) FROM app.said WHERE who LIKE '$superuser $superuser - %'}), 2, 'it is the owner, without a tenant');

# ----------------------------------------------------------------------
note 'rows with impossible times, made by hand (M97)';

make_loop($node, 'impossible', options => 'concurrency => 2');
enqueue($node, 'impossible', 'before');
wait_quiet($node, 'impossible');
sql($node, q{
	INSERT INTO reconcile.mark_1 VALUES (1, 'infinity', now(), 't', 'impossible', 'never'), (2, '-infinity', now(), 't', 'impossible', 'always'),
		(3, '294276-12-31 23:59:59.999999+00', '-infinity', 'l', 'impossible', 'late'), (4, '4713-01-02 00:00:00+00 BC', 'infinity', 'l', 'impossible', 'early'),
		(5, now(), now(), '?', 'impossible', 'unknown'), (6, now(), now(), 't', 'no_such_loop', 'lost');
	INSERT INTO reconcile.entity VALUES ('impossible', 'early', -5, NULL, '', '', '-infinity'), ('impossible', 'always', 2147483647, NULL, 'P0001', 'x', 'infinity')});
enqueue($node, 'impossible', 'after');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'after')}, 'others run beside them');
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id IN ('always', 'early')) = 2}, 'as do those whose time is long past');
is(sql($node, q{SELECT count(*) FROM app.run WHERE entity_id IN ('never', 'late')}), 0, 'those of no time wait');
is(sql($node, q{SELECT string_agg(entity_id || ' ' || state, ', ' ORDER BY entity_id) FROM reconcile.work WHERE loop_name = 'impossible' AND entity_id IN ('never', 'late')}),
	'late waiting, never waiting', 'and can be seen');
enqueue($node, 'impossible', qw(never late));
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id IN ('never', 'late')) = 2}, 'a trigger of them counts');
is(sql($node, q{SELECT reconcile.forget('impossible', 'never')}), 't', 'and what is left can be forgotten');

# ----------------------------------------------------------------------
note 'many sessions, random pairs of entities in random order (D47)';

make_loop($node, 'pairs', options => 'concurrency => 3');
$node->pgbench('-n -c 16 -j 2 -t 60', 0, [qr/processed: 960/], [qr/^$/], 'none waits for another, longer than it takes to extend a file, and none fails',
	{ '050_pairs' => q{\set a random(1, 5)
\set b random(1, 5)
BEGIN;
SET LOCAL lock_timeout = '500ms';
SELECT reconcile.enqueue('pairs', (:a)::text);
SELECT reconcile.enqueue('pairs', (:b)::text);
END;} });
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'pairs')}, 'all are answered (44)');
is(sql($node, q{SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()}), 0, 'without a deadlock');
is(sql($node, q{SELECT count(*) FROM reconcile.dead_letters WHERE loop_name <> 'killer'}), 0, 'nobody else has died');

# ----------------------------------------------------------------------
note 'who has the only executor is given a second entity, unless another loop has none';

my $one = new_node('one', conf => "max_worker_processes = 8\nreconcile.max_workers = 1\n");
prepare($one);
make_loop($one, $_) for qw(alone shared other);

# holds_it(LOOP): the gate at which its first run, of which nobody knows yet how long it takes, has the executor.
sub holds_it
{
	my ($loop) = @_;
	my $held = close_gate($one, $loop);
	enqueue($one, $loop, 'first');
	wait_held($one, $loop, 1);
	return $held;
}

# all_due(LOOP => ENTITY...): the dispatcher hears of them at once, and has done what it does about them.
sub all_due
{
	my (%due) = @_;
	my $dispatcher = dispatcher_pid($one);
	kill('STOP', $dispatcher) or die;
	enqueue($one, $_, $due{$_}) for sort keys %due;
	kill('CONT', $dispatcher) or die;
	wait_for($one, "(SELECT ready FROM reconcile.loops WHERE loop_name = '$_') = 1", "$_ is due") for sort keys %due;
	sql($one, q{SELECT ready FROM reconcile.loops});
	return;
}

$gate = holds_it('alone');
all_due(alone => 'second');
my $dispatcher = dispatcher_pid($one);
kill('STOP', $dispatcher) or die;
$gate->open;
wait_for($one, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'alone' AND entity_id = 'second')}, 'it runs without the dispatcher');
kill('CONT', $dispatcher) or die;
wait_quiet($one, 'alone');

$gate = holds_it('shared');
all_due(shared => 'second', other => 'only');
$gate->open;
wait_for($one, q{(SELECT count(*) FROM app.run WHERE loop_name IN ('shared', 'other')) = 3}, 'both run');
is(sql($one, q{SELECT string_agg(entity_id, ' ' ORDER BY n) FROM app.run WHERE loop_name IN ('shared', 'other')}), 'first only second',
	'the one of the loop that had nothing comes first');

finish();

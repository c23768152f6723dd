# Processes that are ended in the midst of their work, and servers that stop
# (P1, P3): what was counted, what was not, and that all work goes on.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.ring_size = 64\n");
expect_log(qr/FATAL:  terminating background worker "reconcile (?:executor|dispatcher|launcher)/,
	qr/014_restart.pl FATAL:  terminating connection due to administrator command/,
	qr/014_restart.pl WARNING:  PID \d+ is not a PostgreSQL (?:backend|server) process/,
	qr/WARNING:  terminating connection because of crash of another server process/);
prepare($node);
make_loop($node, 'drive', options => q{concurrency => 2, default_requeue => NULL, backoff_base => '1 ms', backoff_max => '1 ms'});

sub end_process
{
	my ($kind) = @_;
	is(sql($node, qq{SELECT bool_and(pg_terminate_backend(pid, 10000)) FROM reconcile.workers WHERE kind = '$kind'}), 't', "the $kind is ended");
	return;
}

# state, failures and SQLSTATE of an entity, or ''
sub work
{
	my ($entity) = @_;
	return sql($node, "SELECT concat_ws(' ', state, failures, last_sqlstate) FROM reconcile.work WHERE entity_id = '$entity'");
}

sub runs_as_attempt
{
	my ($entity, $attempt, $name) = @_;
	wait_for($node, qq{EXISTS (SELECT FROM app.run WHERE entity_id = '$entity')}, $name);
	is(sql($node, qq{SELECT string_agg(attempt::text, ' ') FROM app.run WHERE entity_id = '$entity'}), $attempt, "as attempt $attempt");
	wait_for($node, qq{NOT EXISTS (SELECT FROM reconcile.work WHERE entity_id = '$entity')}, 'and nothing is left of it');
	return;
}

# ----------------------------------------------------------------------
note 'an executor is ended in mid-run';

sql($node, q{SELECT reconcile.alter_loop('drive', '{"backoff_base": "1 hour", "backoff_max": "1 hour"}')});
my $gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'executor');
wait_held($node, 'drive', 1);
end_process('executor');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE entity_id = 'executor' AND state = 'retrying')}, 'its run has failed, for now');
is(work('executor'), 'retrying 1 57P01', 'once');
$gate->open;
is(runs($node, 'drive'), 0, 'and left nothing');
sql($node, q{SELECT reconcile.alter_loop('drive', '{"backoff_base": "1 ms"}')});
enqueue($node, 'drive', 'executor');
runs_as_attempt('executor', 2, 'it runs again');

# ----------------------------------------------------------------------
note 'the dispatcher is ended';

$gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'finishing');
wait_held($node, 'drive', 1);
my $dispatcher = dispatcher_pid($node);
end_process('dispatcher');
enqueue($node, 'drive', 'waiting');
wait_for($node, qq{EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running' AND pid <> $dispatcher)}, 'another takes its place');
wait_for($node, qq{(SELECT count(*) FROM reconcile.running()) = 2}, 'and gives out work beside the run in flight');
is(tries($node, 'drive'), 4, 'but not that entity again');
$gate->open;
runs_as_attempt('finishing', 1, 'a run of its predecessor finishes');
runs_as_attempt('waiting', 1, 'what was asked meanwhile runs');
wait_quiet($node, 'drive');
is(tries($node, 'drive'), 4, 'each once');

note 'dispatchers and executors are ended again and again';
foreach my $turn (1 .. 3)
{
	enqueue($node, 'drive', map { "$turn $_" } 1 .. 5);
	sql($node, q{SELECT count(pg_terminate_backend(pid)) FROM reconcile.workers WHERE kind IN ('executor', 'dispatcher')});
	enqueue($node, 'drive', map { "$turn $_" } 6 .. 10);
}
wait_for($node, q{(SELECT count(DISTINCT entity_id) FROM app.run WHERE entity_id ~ ' ') = 30}, 'no trigger is lost');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work)}, 'and nobody is dead or waits');

# ----------------------------------------------------------------------
note 'the ring overflows while the dispatcher does not read it';

$dispatcher = dispatcher_pid($node);
kill('STOP', $dispatcher) or die;
sql($node, q{DO $$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM reconcile.enqueue('drive', 'ring' || i); COMMIT; END LOOP; END $$});
kill('CONT', $dispatcher) or die;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id LIKE 'ring%') = 500}, 'no trigger is lost');

# ----------------------------------------------------------------------
note 'the launcher is ended';

my $launcher = sql($node, q{SELECT pid FROM reconcile.workers WHERE kind = 'launcher'});
end_process('launcher');
enqueue($node, 'drive', 'without');
runs_as_attempt('without', 1, 'work goes on without it');
wait_for($node, qq{EXISTS (SELECT FROM reconcile.workers WHERE kind = 'launcher' AND pid <> $launcher)}, 'it comes back');
end_process('dispatcher');
enqueue($node, 'drive', 'with');
runs_as_attempt('with', 1, 'and starts a dispatcher where one is missing');

# ----------------------------------------------------------------------
foreach my $mode (qw(fast immediate))
{
	note "the server stops, -m $mode";

	$gate = close_gate($node, 'drive');
	enqueue($node, 'drive', "running $mode", "other $mode", "ready $mode");
	sql($node, qq{SELECT reconcile.enqueue('drive', 'delayed $mode', '1 hour')});
	wait_held($node, 'drive', 2);
	sql($node, 'CHECKPOINT') if $mode eq 'immediate';
	$node->stop($mode);
	eval { $gate->open };
	$node->start;
	wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE state <> 'waiting')}, 'after the start all that was due runs');
	is(sql($node, qq{SELECT string_agg(entity_id || ' ' || attempt, ', ' ORDER BY entity_id) FROM app.run WHERE entity_id LIKE '% $mode'}),
		"other $mode 1, ready $mode 1, running $mode 1", 'runs that were in flight are not counted as failures');
	is(sql($node, qq{SELECT state FROM reconcile.work WHERE entity_id = 'delayed $mode'}), 'waiting', 'what was to come later still is');
	is(sql($node, q{SELECT count(*) FROM reconcile.entity}), 0, 'nothing else is remembered');
}

finish();

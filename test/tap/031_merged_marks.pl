# P1 where many marks of an entity are merged: those that stay stand for all that
# are deleted, whatever is due and whoever runs the entity.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

my $node = new_node('main', test_points => 1, conf => "max_worker_processes = 16\nreconcile.ring_size = 64\nmax_prepared_transactions = 1\n");
expect_log(qr/FATAL:  terminating background worker "reconcile executor" due to administrator command/);
prepare($node);
make_loop($node, 'drive');
make_loop($node, 'probe');

# enqueue_often(ENTITY, N, DELAY): each in a transaction of its own
sub enqueue_often
{
	my ($entity, $n, $delay) = @_;
	sql($node, qq{DO \$\$ BEGIN FOR i IN 1 .. $n LOOP PERFORM reconcile.enqueue('drive', '$entity', '$delay'); COMMIT; END LOOP; END \$\$});
	return;
}

# runs_in(SESSION): it runs what is due, up to the gate.
sub runs_in
{
	my ($session) = @_;
	begins($session, q{CALL reconcile.run_loop('drive');});
	wait_held($node, 'drive', 1);
	return;
}

# ----------------------------------------------------------------------
# The mark of the run, and 64 more.
my %order = (
	'delayed, then due' => [ [ 20, '1 hour' ], [ 44, '0 s' ] ],
	'due, then delayed' => [ [ 44, '0 s' ], [ 20, '1 hour' ] ]);

foreach my $name (sort keys %order)
{
	note "in a run: $name";
	my $tries = tries($node, 'drive');
	my $gate = close_gate($node, 'drive');
	enqueue($node, 'drive', $name);
	wait_held($node, 'drive', 1);
	enqueue_often($name, @$_) for @{ $order{$name} };
	dispatcher_looks($node, 'probe');
	$gate->open;
	wait_for($node, qq{(SELECT count(*) FROM app.run WHERE entity_id = '$name') = 2}, 'what is due runs after it, at once');
	wait_quiet($node, 'drive');
	is(tries($node, 'drive') - $tries, 2, 'in one run');
	is(sql($node, qq{SELECT state FROM reconcile.work WHERE entity_id = '$name' AND due_at > now() + interval '50 min'}), 'waiting',
		'what is delayed still waits');
}

# ----------------------------------------------------------------------
note 'a session runs the entity, with more marks than are kept';

# The dispatcher is to read the marks of the session's run after those that come
# later. It cannot take the entity, and must not make its marks stand for theirs.
my $dispatcher = dispatcher_pid($node);
my $session = $node->background_psql('postgres');
my $gate = close_gate($node, 'drive');
dispatcher_looks($node, 'probe');
$session->query_safe('BEGIN; LOCK TABLE reconcile.mark_0 IN ACCESS EXCLUSIVE MODE');
kill('STOP', $dispatcher) or die;
enqueue_often('shared', 70, '0 s');
$session->query_safe('COMMIT');
is(sql($node, q{SELECT count(*) FROM reconcile.mark_0 WHERE entity_id = 'shared'}), 0, 'marks are written elsewhere');
runs_in($session);
enqueue_often('shared', 5, '0 s');
is(sql($node, q{SELECT count(*) FROM reconcile.mark_0 WHERE entity_id = 'shared'}), 5, 'later ones are written where they are read first');
kill('CONT', $dispatcher) or die;
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE entity_id = 'shared'}), 75, 'none is deleted');
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id = 'shared') = 2}, 'what came during the run runs after it');
$session->quit;
wait_quiet($node, 'drive');
is(runs($node, 'drive', 'shared'), 2, 'once');
is(sql($node, q{SELECT count(*) FROM app.run WHERE entity_id = 'shared' AND pid IN (SELECT pid FROM reconcile.workers)}), 1, 'by a worker');

note 'more enqueues than are kept while a session runs the entity';
$gate = close_gate($node, 'drive');
$session = $node->background_psql('postgres');
kill('STOP', $dispatcher) or die;
enqueue($node, 'drive', 'beside');
runs_in($session);
kill('CONT', $dispatcher) or die;
enqueue_often('beside', 100, '0 s');
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE entity_id = 'beside'}), 101, 'none is deleted');
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE entity_id = 'beside')}, 'all is answered');
# One run takes as many marks as are kept.
cmp_ok(runs($node, 'drive', 'beside'), '<=', 3, 'by one run more, or two');
$session->quit;

# ----------------------------------------------------------------------
note 'a session was faster than the executor that was given the entity';

$gate = close_gate($node, 'drive');
$session = $node->background_psql('postgres');
arm($node, 'executor-after-intent');
enqueue($node, 'drive', 'faster');
reached($node, 'executor-after-intent');
runs_in($session);
enqueue_often('faster', 100, '0 s');
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE entity_id = 'faster'}), 101, 'none is deleted');
release($node, 'executor-after-intent');
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE entity_id = 'faster')}, 'all is answered');
$session->quit;

# ----------------------------------------------------------------------
note 'an executor went away in its run of the entity, and a prepared transaction has run it since';

$gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'prepared');
wait_held($node, 'drive', 1);
my $executor = sql($node, q{SELECT pid FROM pg_stat_activity WHERE query = 'reconcile drive: prepared'});
kill('STOP', $dispatcher) or die;
kill('TERM', $executor) or die;
wait_for($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $executor)", 'the executor is gone');
$gate->open;
sql($node, q{BEGIN; SELECT reconcile.run_entity('drive', 'prepared'); PREPARE TRANSACTION 'ran'});
enqueue_often('prepared', 100, '0 s');
kill('CONT', $dispatcher) or die;
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE entity_id = 'prepared'}), 101, 'none is deleted');
sql($node, q{COMMIT PREPARED 'ran'});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE entity_id = 'prepared')}, 'all is answered');

finish();

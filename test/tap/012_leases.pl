# Loops under a lease (P6; scenarios 116 to 121 of the loop contract): epochs
# bound to runs, followers that consume nothing, take-overs of a leader that
# hangs, and dispatchers that die.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.fence_grace = -1\n");
my $client = $node->background_psql('postgres');
prepare($node);
make_loop($node, 'unled');
my $write = q{PERFORM reconcile.fenced_write(entity, jsonb_build_object('try', try)); RETURN NULL;};

sub acquire
{
	my ($loop, $ttl) = @_;
	return $client->query_safe("SELECT epoch FROM reconcile.acquire_lease('$loop', 'client', '$ttl', wait => '20 s')");
}

sub epochs
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(entity_id || ' ' || epoch, ', ' ORDER BY n) FROM app.run WHERE loop_name = '$loop'");
}

sub history
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(concat_ws(' ', epoch, CASE holder_id WHEN 'client' THEN 'client' ELSE 'dispatcher' END, end_reason), ', '
		ORDER BY epoch) FROM reconcile.lease_history WHERE reconciler_id = '$loop'");
}

sub work
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(concat_ws(' ', entity_id, state, failures), ', ' ORDER BY entity_id) FROM reconcile.work
		WHERE loop_name = '$loop'");
}

# ----------------------------------------------------------------------
note 'a term';

make_loop($node, 'led', options => q{lease_ttl => '1 hour'}, body => $write);
enqueue($node, 'led', 'a');
wait_for($node, q{EXISTS (SELECT FROM reconcile.resources WHERE reconciler_id = 'led')}, 'a leased loop runs');
is(epochs('led'), 'a 1', 'its first term binds epoch 1');
is(sql($node, q{SELECT last_epoch, state FROM reconcile.resources WHERE reconciler_id = 'led'}), '1|{"try": 1}',
	'at which a fenced write lands (116)');
is(sql($node, q{SELECT leader_epoch FROM reconcile.loops WHERE loop_name = 'led'}), 1, 'the loop shows who leads it');

# ----------------------------------------------------------------------
note 'a follower';

is(acquire('follower', '1 hour'), 1, 'a client has the lease first');
make_loop($node, 'follower', options => q{lease_ttl => '1 hour'}, body => $write);
enqueue($node, 'follower', 'a');
sql($node, q{SELECT reconcile.enqueue('follower', 'b', '1 ms')});
dispatcher_looks($node, 'unled');
is(tries($node, 'follower'), 0, 'workers do not run while another leads (118)');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'follower'}), 2, 'and consume nothing (121)');
$client->query_safe(q{SELECT reconcile.release_lease('follower', 'client', 1)});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'follower' AND epoch = 2) = 2},
	'they run at the next epoch when it is released');

is(acquire('expiring', '1 s'), 1, 'a client has a lease that it does not renew');
my $expires_at = sql($node, q{SELECT expires_at FROM reconcile.leases WHERE reconciler_id = 'expiring'});
make_loop($node, 'expiring', options => q{lease_ttl => '1 hour'}, body => $write);
enqueue($node, 'expiring', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'expiring' AND epoch = 2)}, 'a follower takes over after its expiry (119)');
is(sql($node, qq{SELECT began >= '$expires_at' FROM app.run WHERE loop_name = 'expiring'}), 't', 'not before');
is(history('expiring'), '1 client expired, 2 dispatcher', 'the history says how');

# ----------------------------------------------------------------------
note 'failures to acquire';

sql($node, q{ALTER TABLE reconcile.lease ADD CONSTRAINT no_room CHECK (reconciler_id <> 'unlucky')});
my $log_from = -s $node->logfile;
make_loop($node, 'unlucky', options => q{lease_ttl => '1 hour'}, body => $write);
enqueue($node, 'unlucky', 'a');
ok($node->wait_for_log(qr/(?:violates check constraint "no_room".*){2}/s, $log_from), 'acquiring fails, twice');
is(tries($node, 'unlucky'), 0, 'nothing runs');
sql($node, q{ALTER TABLE reconcile.lease DROP CONSTRAINT no_room});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'unlucky' AND epoch = 1)}, 'it runs when acquiring succeeds (120)');

# ----------------------------------------------------------------------
note 'a term that is lost while a run is in flight';

make_loop($node, 'losing', options => q{lease_ttl => '1200 ms'}, body => $write);
my $gate = close_gate($node, 'losing');
enqueue($node, 'losing', 'a');
wait_held($node, 'losing', 1);
sql($node, q{SELECT reconcile.release_lease(reconciler_id, holder_id, epoch) FROM reconcile.leases WHERE reconciler_id = 'losing'});
wait_for($node, q{(SELECT last_value FROM app.losing_tries) = 2}, 'the run is cancelled within a renewal (117), and begun anew');
is(history('losing'), '1 dispatcher released, 2 dispatcher', 'at a new grant');
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'losing')}, 'it ends');
is(sql($node, q{SELECT epoch, attempt FROM app.run WHERE loop_name = 'losing'}), '2|1', 'the cancelled run was not counted');

# ----------------------------------------------------------------------
note 'a leader that hangs: its run in flight is waited for';

make_loop($node, 'hanging', options => q{lease_ttl => '500 ms'}, body => $write);
$gate = close_gate($node, 'hanging');
enqueue($node, 'hanging', 'a');
wait_held($node, 'hanging', 1);
my $dispatcher = dispatcher_pid($node);
kill('STOP', $dispatcher) or die;
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'hanging')}, 'the dispatcher is stopped, and its lease lapses');
is(sql($node, q{SELECT epoch IS NULL FROM reconcile.try_acquire_lease('hanging', 'client', '1 hour')}), 't',
	'nobody takes over while its run can still commit (P6)');
enqueue($node, 'hanging', 'b');
$gate->open;
is(acquire('hanging', '1 hour'), 2, 'the take-over comes after it');
is(epochs('hanging'), 'a 1', 'it committed before, at the old epoch');
kill('CONT', $dispatcher) or die;
dispatcher_looks($node, 'unled');
is(work('hanging'), 'b ready 0', 'the old leader goes on, and runs nothing');
is(sql($node, q{SELECT last_epoch FROM reconcile.resources WHERE reconciler_id = 'hanging'}), 1, 'and writes nothing');
$client->query_safe(q{SELECT reconcile.release_lease('hanging', 'client', 2)});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'hanging')}, 'until it is granted a term again');
is(epochs('hanging'), 'a 1, b 3', 'of its own epoch');

# ----------------------------------------------------------------------
note 'a leader that hangs: its run in flight is ended after the grace';

expect_log(qr/FATAL:  terminating background worker "reconcile executor/);
$node->append_conf('postgresql.conf', q{reconcile.fence_grace = '300 ms'});
$node->reload;
$gate = close_gate($node, 'hanging');
enqueue($node, 'hanging', 'c');
wait_held($node, 'hanging', 1);
kill('STOP', $dispatcher) or die;
is(acquire('hanging', '1 hour'), 4, 'a take-over does not wait for ever');
wait_held($node, 'hanging', 0);
kill('CONT', $dispatcher) or die;
dispatcher_looks($node, 'unled');
is(work('hanging'), 'c ready 0', 'the run that was ended is not counted');
$gate->open;
dispatcher_looks($node, 'unled');
is(epochs('hanging'), 'a 1, b 3', 'nor did it leave anything');
$client->query_safe(q{SELECT reconcile.release_lease('hanging', 'client', 4)});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'hanging')}, 'it runs again at a new grant');
is(epochs('hanging'), 'a 1, b 3, c 5', 'with that epoch');
is(sql($node, q{SELECT attempt FROM app.run WHERE loop_name = 'hanging' AND entity_id = 'c'}), 1, 'as its first attempt');

# ----------------------------------------------------------------------
note 'a run that fails when its term is over: the failure is not booked (P6)';

make_loop($node, 'too_late', options => q{lease_ttl => '500 ms', backoff_base => '1 hour', backoff_max => '1 hour'}, body => $write);
$gate = close_gate($node, 'too_late');
behave($node, 'too_late', 'a', 'fail');
enqueue($node, 'too_late', 'a');
wait_held($node, 'too_late', 1);
kill('STOP', $dispatcher) or die;
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'too_late')}, 'the term lapses in the midst of a run');
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'too_late')}, 'then the run fails');
is(work('too_late'), 'a ready 0', 'nothing of it is remembered, and its trigger is still there');
behave($node, 'too_late', 'a', 'succeed');
kill('CONT', $dispatcher) or die;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'too_late')}, 'it runs again under the next term');
is(sql($node, q{SELECT epoch > 1, attempt FROM app.run WHERE loop_name = 'too_late'}), 't|1', 'as its first attempt');

# ----------------------------------------------------------------------
note 'a dispatcher that dies';

expect_log(qr/FATAL:  terminating background worker "reconcile dispatcher/);
$gate = close_gate($node, 'led');
enqueue($node, 'led', 'b');
wait_held($node, 'led', 1);
sql($node, qq{SELECT pg_terminate_backend($dispatcher, 5000)});
wait_for($node, q{(SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'led' AND live) = 2},
	'its successor does not wait for a term of an hour');
is(history('led'), '1 dispatcher forced, 2 dispatcher', 'it ends the dead one');
wait_tries($node, 'led', 3);
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'led')}, 'the run of the old term was cancelled, and begun anew');
is(epochs('led'), 'a 1, b 2', 'it commits at the new epoch');
is(sql($node, q{SELECT attempt FROM app.run WHERE loop_name = 'led' AND entity_id = 'b'}), 1, 'as its first attempt');

sql($node, q{SELECT reconcile.drop_loop('led')});
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'led')}, 'a dropped loop gives its lease back');
is(history('led'), '1 dispatcher forced, 2 dispatcher released', 'and its history stays');

$client->quit;
finish();

# What others do beside the engine: leases that are none of its business do not
# wake it (P7) and are not taken from outside workers (P6), and run_loop() in a
# session heeds that its loop is paused.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nlog_min_messages = debug1\n");
sql($node, 'CREATE ROLE app LOGIN; CREATE DATABASE loopless; CREATE DATABASE later');
my $later = [ $node, 'later' ];
my $loopless = [ $node, 'loopless' ];
sql($_, 'CREATE EXTENSION reconcile') for $later, $loopless;
prepare($_) for $node, $later;

sub change_leases
{
	my ($where, $n) = @_;
	sql($where, join("\n", map { "SELECT reconcile.release_lease(reconciler_id, holder_id, epoch) FROM reconcile.acquire_lease('worker', 'client');" } 1 .. $n));
	return;
}

# ----------------------------------------------------------------------
note 'leases in a database without a loop';

# How often a dispatcher was started for the database.
sub started
{
	my ($database, $from) = @_;
	my $oid = sql($node, "SELECT oid FROM pg_database WHERE datname = '$database'");
	my @lines = slurp_file($node->logfile, $from) =~ /starting background worker process "reconcile dispatcher for database $oid"/g;
	return scalar @lines;
}

my $log_from = -s $node->logfile;
change_leases($loopless, 20);
# What was asked for before it has been started when this is.
make_loop($later, 'drive');
enqueue($later, 'drive', 'a');
wait_for($later, q{EXISTS (SELECT FROM app.run)}, 'a loop in another database starts a dispatcher');
is(started('later', $log_from), 1, 'as the log says');
is(started('loopless', $log_from), 0, 'grants and releases of a lease start none where no loop is');

# ----------------------------------------------------------------------
note 'a loop whose function is gone';

make_loop($node, 'probe');

# A try to run it is a transaction of its owner's executor that is rolled back;
# its end makes that known.
sub tries_without_function
{
	sql($node, q{SELECT count(pg_terminate_backend(pid, 10000)) FROM reconcile.workers WHERE kind = 'executor' AND owner = 'app'});
	return sql($node, 'SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()');
}

sql($node, q{SELECT reconcile.grant_access('app', 'define')});
make_loop($node, 'gone', role => 'app');
sql($node, 'DROP FUNCTION app.gone');
$log_from = -s $node->logfile;
enqueue($node, 'gone', 'a');
ok($node->wait_for_log(qr/loop "gone" is suspended/, $log_from), 'it is suspended');
my $rolled_back = tries_without_function();
for (1 .. 30)
{
	change_leases($node, 1);
	dispatcher_looks($node, 'probe');
}
$rolled_back = tries_without_function() - $rolled_back;
note "tried $rolled_back times";
cmp_ok($rolled_back, '<', 15, 'it is not tried again with each lease that changes (of 30)');
sql($node, q{SELECT reconcile.drop_loop('gone')});

# ----------------------------------------------------------------------
note 'a leased loop without a reconciler is for outside workers';

sql($node, q{SELECT reconcile.create_loop('outside', lease_ttl => '1 hour')});
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT epoch FROM reconcile.acquire_lease('outside', 'client')}), 1, 'an outside worker gets its lease');
is(sql($node, q{SELECT reconcile.release_lease('outside', 'client', 1)}), 't', 'and gives it back');
dispatcher_looks($node, 'probe');
is(sql($node, q{SELECT epoch FROM reconcile.acquire_lease('outside', 'other')}), 2, 'for the next one');

make_loop($node, 'led', options => q{lease_ttl => '1 hour'});
wait_for($node, q{EXISTS (SELECT FROM reconcile.leases WHERE reconciler_id = 'led' AND live)}, 'the dispatcher leads one that has a reconciler');
sql($node, q{SELECT reconcile.alter_loop('led', '{"reconciler": null}')});
wait_for($node, q{EXISTS (SELECT FROM reconcile.leases WHERE reconciler_id = 'led' AND NOT live)}, 'until that is taken from it');
is(sql($node, q{SELECT epoch FROM reconcile.acquire_lease('led', 'client')}), 2, 'then an outside worker may');

# ----------------------------------------------------------------------
note 'run_loop() of a loop that is paused meanwhile';

my $plain = new_node('plain', preload => 0);
prepare($plain);
make_loop($plain, 'by_hand');
my $gate = close_gate($plain, 'by_hand');
my $session = $plain->background_psql('postgres');
enqueue($plain, 'by_hand', 1 .. 5);
begins($session, q{CALL reconcile.run_loop('by_hand');});
wait_held($plain, 'by_hand', 1);
sql($plain, q{SELECT reconcile.pause_loop('by_hand')});
$gate->open;
is($session->query_safe('SELECT 1'), '1', 'the call ends');
is(runs($plain, 'by_hand'), 1, 'after the run in which it was paused');
is(sql($plain, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'by_hand' AND state = 'ready'}), 4, 'the rest waits');
sql($plain, q{SELECT reconcile.resume_loop('by_hand'); CALL reconcile.run_loop('by_hand')});
is(runs($plain, 'by_hand'), 5, 'for the next call, when it is resumed');
$session->quit;

finish();

# A fast stop with fifty runs in flight, in five loops of two owners: it ends by
# itself, nothing is counted, and after the start all of it runs.  And a crash of
# a server that does not preload the library.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 60
	reconcile.max_workers = 50
	EOC
# What a fast stop meets in mid-run; and the session of the gate.
expect_log(qr/FATAL:  terminating connection due to administrator command/);
sql($node, 'CREATE ROLE app LOGIN');
prepare($node);
sql($node, q{SELECT reconcile.grant_access('app', 'define')});
foreach my $n (1 .. 5)
{
	make_loop($node, "drive_$n", role => $n > 3 ? 'app' : undef, options => 'concurrency => 10' . ($n == 5 ? q{, lease_ttl => '1 hour'} : ''));
}
my @gates = map { close_gate($node, "drive_$_") } 1 .. 5;
enqueue($node, "drive_$_", 1 .. 15) for 1 .. 5;
wait_held($node, "drive_$_", 10) for 1 .. 5;
is(sql($node, 'SELECT count(*) FROM reconcile.running()'), 50, 'fifty runs are in flight');

my $started = time();
$node->stop('fast');
note sprintf 'the stop took %.2f s', time() - $started;
pass('the server stops');
eval { $_->open } for @gates;
my @said = grep { /\] (?:WARNING|ERROR|FATAL|PANIC):/ && !/terminating background worker "reconcile executor/ } split /\n/, slurp_file($node->logfile) =~ s/.*received fast shutdown request//sr;
is(join("\n", grep { !/084_fast_stop/ } @said), '', 'and nobody but the executors says a word');

$node->start;
wait_for($node, 'NOT EXISTS (SELECT FROM reconcile.work)', 'after the start all of it runs');
is(sql($node, 'SELECT count(*), count(DISTINCT (loop_name, entity_id)), max(attempt) FROM app.run'), '75|75|1', 'each once, as the first attempt');
is(sql($node, 'SELECT count(*) FROM reconcile.entity'), 0, 'and nothing was charged');

# ----------------------------------------------------------------------
note 'a crash where nothing is preloaded';

my $plain = new_node('plain', preload => 0, conf => "wal_writer_delay = '10 s'\n");
expect_log(qr/WARNING:  terminating connection because of crash of another server process/, qr/was terminated by signal 9/);
sql($plain, q{SELECT reconcile.acquire_lease('mine', 'me', '1 hour')});
my $postmaster = sql($plain, 'SELECT pg_postmaster_start_time()');
foreach my $call (q{renew_lease('mine', 'me', 1)}, q{acquire_lease('mine', 'me', '1 hour')})
{
	my $victim = $plain->background_psql('postgres');
	my $pid = $victim->query_safe('SELECT pg_backend_pid()');
	my $expires = sql($plain, "SET synchronous_commit = off; SELECT expires_at FROM reconcile.$call");

	kill('KILL', $pid) or die;
	eval { $victim->quit };
	$plain->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die;
	is(sql($plain, q{SELECT expires_at FROM reconcile.leases}), $expires, "a crash does not take back what $call said, although the session asked for no more");
}
is(sql($plain, 'SELECT pg_postmaster_start_time()'), $postmaster, 'the server goes on by itself');

finish();

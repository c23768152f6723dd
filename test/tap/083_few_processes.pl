# Worker processes are short: for dispatchers, for executors, for all while others
# have them.  Everything goes on as soon as it can, and the log says it once.  And
# reconcile.databases changes a hundred times.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

expect_log(qr/WARNING:  reconcile could not start (?:a dispatcher|an executor): no background worker slot is free/,
	qr/FATAL:  terminating background worker "parallel worker" due to administrator command/);

sub warnings
{
	my ($node) = @_;
	my @found = slurp_file($node->logfile) =~ /WARNING:  reconcile could not start/g;
	return scalar @found;
}

sub make_database
{
	my ($node, $database) = @_;
	my $where = [ $node, $database ];

	sql($node, "CREATE DATABASE $database");
	sql($where, 'CREATE EXTENSION reconcile');
	prepare($where);
	make_loop($where, 'drive', options => q{default_requeue => '20 ms', concurrency => 4});
	enqueue($where, 'drive', 1 .. 4);
	return;
}

sub goes_on
{
	my ($node, $database, $name) = @_;
	my $tries = tries([ $node, $database ], 'drive');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for([ $node, $database ], "(SELECT last_value FROM app.drive_tries) > $tries + 3", $name);
	return;
}

# ----------------------------------------------------------------------
note 'two processes for three databases';

# The launcher has one, and the server's own for logical replication.
my $tight = new_node('tight', extension => 0, conf => <<~'EOC');
	max_worker_processes = 4
	reconcile.max_workers = 4
	EOC
my $started = time();
make_database($tight, "few_$_") for 1 .. 3;
goes_on($tight, "few_$_", "loops of database $_ run") for 1 .. 3;
cmp_ok(warnings($tight), '<=', 1 + (time() - $started) / 60, 'the log says it once a minute');
sql([ $tight, 'few_1' ], q{SELECT reconcile.drop_loop('drive')});
sql([ $tight, 'few_2' ], q{SELECT reconcile.drop_loop('drive')});
goes_on($tight, 'few_3', 'one that is left has what it needs');
note sprintf '%d s', time() - $started;
is(sql([ $tight, 'few_3' ], 'SELECT count(*) FROM reconcile.entity'), 0, 'no run was charged');
$tight->stop;

# ----------------------------------------------------------------------
note 'others have all the processes';

my $node = new_node('busy', conf => <<~'EOC');
	max_worker_processes = 8
	reconcile.max_workers = 4
	reconcile.worker_idle_timeout = '1 s'
	EOC
prepare($node);
make_loop($node, 'drive');
sql($node, q{CREATE TABLE app.big AS SELECT n FROM generate_series(1, 1000) n; ALTER TABLE app.big SET (parallel_workers = 16)});
enqueue($node, 'drive', 'a');
wait_tries($node, 'drive', 1);
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'executor')}, 'the executor has left');

# A query finds what is free when it begins.
my @parallel;
until (@parallel == 10 || sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^(reconcile|parallel|logical)'}) == 8)
{
	my $session = $node->background_psql('postgres');
	$session->query_safe(<<~'EOS');
		SET max_parallel_workers_per_gather = 16;
		SET parallel_setup_cost = 0;
		SET parallel_tuple_cost = 0;
		SET min_parallel_table_scan_size = 0;
		EOS
	begins($session, 'SELECT count(pg_sleep(1)) FROM app.big;');
	push @parallel, $session;
	$node->poll_query_until('postgres', 'SELECT count(*) = ' . @parallel . q{ FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND backend_type = 'client backend'}) or die;
}
sql($node, 'CREATE TABLE app.waiting AS SELECT clock_timestamp() AS ready_at');
enqueue($node, 'drive', 'b', 'c');
$node->wait_for_log(qr/WARNING:  reconcile could not start an executor/);
wait_for($node, q{(SELECT clock_timestamp() - ready_at > '5 s' FROM app.waiting)}, 'it is tried again and again');
is(warnings($node), 1, 'the log says it once, however often it was tried');
is(sql($node, q{SELECT count(*) FROM reconcile.workers WHERE kind = 'dispatcher'}), 1, 'the only dispatcher stays');
sql($node, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1)%' AND backend_type = 'client backend' AND pid <> pg_backend_pid()});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id IN ('b', 'c')) = 2}, 'it runs when they are over');
eval { $_->quit } for @parallel;

# ----------------------------------------------------------------------
note 'reconcile.databases changes a hundred times';

make_database($node, 'listed');
goes_on($node, 'listed', 'a database is served');
my $postmaster = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/ ? $1 : die;
sub list
{
	my ($listed) = @_;

	append_to_file($node->data_dir . '/postgresql.conf', "reconcile.databases = '$listed'\n");
	kill('HUP', $postmaster) or die;
	return;
}

# What the launcher was told it has dealt with when it sleeps again.
my $launcher = sql($node, q{SELECT pid FROM reconcile.workers WHERE kind = 'launcher'});
sub list_and_wait
{
	my ($listed) = @_;
	my $slept = slurp_file("/proc/$launcher/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die;

	list($listed);
	for (1 .. 10_000)
	{
		my ($now) = slurp_file("/proc/$launcher/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
		return if $now > $slept;
		usleep(1000);
	}
	die 'the launcher does not wake up';
}

# It is named again before its dispatcher has left.
my $leaving = dispatcher_pid([ $node, 'listed' ]);
kill('STOP', $leaving) or die;
list_and_wait($_) for 'postgres', 'postgres, listed';
kill('CONT', $leaving) or die;
wait_for($node, "EXISTS (SELECT FROM reconcile.workers WHERE database = 'listed' AND kind = 'dispatcher' AND state = 'running' AND pid <> $leaving)",
	'a dispatcher that had to leave is followed by another');
goes_on($node, 'listed', 'and its loops go on');

foreach my $turn (1 .. 50)
{
	foreach my $listed ('postgres', 'postgres, listed')
	{
		list($listed);
		# sometimes the launcher reads it, and sometimes it meets the next
		sql($node, q{SELECT pg_sleep(0.005)}) if $turn % 3 == 0;
	}
}
goes_on($node, 'listed', 'in the end it is named, and served');
is(sql([ $node, 'listed' ], 'SELECT count(*) FROM reconcile.entity'), 0, 'and no run was charged');
append_to_file($node->data_dir . '/postgresql.conf', "reconcile.databases = 'postgres'\n");
$node->reload;
wait_for($node, q{NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'listed')}, 'one that is not named is left');
enqueue($node, 'drive', 'd');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'd')}, 'and the other served');

finish();

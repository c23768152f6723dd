# Who is not to blame for a crash (P9): who ran beside the one that did it, or was
# in mid-run when the server was stopped, killed, or restarted for another's sake;
# and what is known of a crash when the postmaster is another one, the file in
# which runs are noted is not ours, the loop is gone, or the run had committed.

use strict;
use warnings;

use CrashTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('main', allows_streaming => 1, conf => "max_worker_processes = 16\nreconcile.max_workers = 4\n");
my $file = $node->data_dir . '/pg_stat_tmp/reconcile_runs';
my $gate;
my $postmaster;

expect_crashes();
expect_log(qr/background worker "reconcile \w+" \(PID \d+\) exited with exit code 2/,
	qr/FATAL:  terminating background worker "reconcile/, qr/FATAL:  terminating connection due to unexpected postmaster exit/);
prepare($node);
make_crash($node);
make_loop($node, 'crashes', options => q{concurrency => 2, backoff_base => '1 h', backoff_max => '1 h'}, body => crash_body('crashes'));
make_loop($node, 'held', options => q{concurrency => 2, default_requeue => '1 h', backoff_base => '1 ms', backoff_max => '1 ms'});

# Two runs in flight, at the gate.
sub hold_two
{
	$gate = close_gate($node, 'held');
	provoke($node, 'held', @_);
	wait_held($node, 'held', 2);
	return;
}

# What came through is whole, and was tried for the first time as far as anybody knows.
sub nobody_blamed
{
	my ($name, @entities) = @_;
	my $list = join(', ', map { "'$_'" } @entities);

	eval { $gate->open };
	wait_for($node, "(SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'held' AND entity_id IN ($list)) = " . @entities, "$name: they run again");
	is(sql($node, "SELECT string_agg(DISTINCT attempt::text, ' ') FROM app.run WHERE loop_name = 'held' AND entity_id IN ($list)"), '1', 'and nothing was counted');
	is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE loop_name = 'held'}), 0, 'nor is anything remembered');
	return;
}

# Until the postmaster is gone, which ended in its own way.
sub wait_gone
{
	my ($postmaster) = @_;

	for (1 .. 1800)
	{
		last unless kill(0, $postmaster);
		usleep(100_000);
	}
	$node->_update_pid(-1);
	return;
}

# Processes of the server are gone before it can start again.
sub start_again
{
	my $tries = 0;

	until ($node->start(fail_ok => 1))
	{
		die 'the server does not start' if ++$tries > 100;
		$node->_update_pid(-1);
		usleep(100_000);
	}
	return;
}

sub executor_of
{
	my ($loop) = @_;
	return sql($node, "SELECT pid FROM reconcile.running() WHERE loop_name = '$loop' LIMIT 1");
}

# A server that a crash ends: the next one is started by hand.
sub crash_for_good
{
	my ($entity) = @_;
	my $pid = postmaster_pid($node);

	will($node, 'crashes', $entity, 'kill');
	sql($node, q{ALTER SYSTEM SET restart_after_crash = off; SELECT pg_reload_conf()});
	$node->poll_query_until('postgres', q{SELECT current_setting('restart_after_crash') = 'off'}) or die;
	provoke($node, 'crashes', $entity);
	wait_gone($pid);
	$node->append_conf('postgresql.auto.conf', "restart_after_crash = on\n");
	return;
}

# ----------------------------------------------------------------------
note 'who runs beside a run that takes the server down';

will($node, 'crashes', 'poison', 'segv');
foreach my $n (1 .. 3)
{
	hold_two("a $n", "b $n");
	my $from = -s $node->logfile;
	provoke($node, 'crashes', 'poison');
	wait_back($node, $from);
	nobody_blamed("crash $n", "a $n", "b $n");
}
wait_entity($node, 'crashes', 'poison', '3 3 crash 57P02', 'the one that did it is');

# ----------------------------------------------------------------------
note 'immediate stops, and the death of the postmaster';

foreach my $n (1 .. 3)
{
	hold_two("c $n", "d $n");
	$node->stop('immediate');
	$node->start;
	nobody_blamed("stop $n", "c $n", "d $n");
}
hold_two('e 1', 'e 2');
$postmaster = postmaster_pid($node);
$node->kill9;
wait_gone($postmaster);
start_again();
nobody_blamed('SIGKILL of the postmaster', 'e 1', 'e 2');

note 'all processes are killed at once, as when the machine goes';
foreach my $n (1 .. 3)
{
	hold_two("f $n", "g $n");
	$postmaster = postmaster_pid($node);
	my @pids = split(/\n/, sql($node, q{SELECT pid FROM reconcile.workers}));
	kill('STOP', $postmaster);
	kill('KILL', @pids, $postmaster);
	wait_gone($postmaster);
	start_again();
	nobody_blamed("time $n", "f $n", "g $n");
}

# ----------------------------------------------------------------------
note 'a crash of somebody else';

foreach my $n (1 .. 3)
{
	hold_two("h $n", "i $n");
	my $from = -s $node->logfile;
	my $session = $node->background_psql('postgres');
	kill('KILL', $session->query_safe('SELECT pg_backend_pid()')) or die;
	wait_back($node, $from);
	eval { $session->quit };
	nobody_blamed("SIGKILL of a session, $n", "h $n", "i $n");
}
foreach my $kind (qw(executor dispatcher launcher))
{
	hold_two("j $kind", "k $kind");
	my $from = -s $node->logfile;
	kill('QUIT', sql($node, "SELECT pid FROM reconcile.workers WHERE kind = '$kind' LIMIT 1")) or die;
	wait_back($node, $from);
	nobody_blamed("SIGQUIT to the $kind", "j $kind", "k $kind");
}
hold_two('l 1', 'l 2');
my $from = -s $node->logfile;
kill('KILL', dispatcher_pid($node)) or die;
wait_back($node, $from);
nobody_blamed('SIGKILL of the dispatcher', 'l 1', 'l 2');

# ----------------------------------------------------------------------
note 'a run that had committed, of a process that was killed before it could say so';

hold_two('m 1', 'm 2');
sql($node, q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()});
$node->poll_query_until('postgres', q{SELECT current_setting('synchronous_standby_names') = 'nobody'}) or die;
# whoever commits goes by what the checkpointer has read
sql($node, 'CHECKPOINT');
$gate->open;
wait_for($node, q{(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'reconcile executor') = 2}, 'two runs wait for a standby, committed');
$from = -s $node->logfile;
my @pids = split(/\n/, sql($node, q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'reconcile executor'}));
kill('KILL', $pids[0]) or die;
wait_back($node, $from);
$node->append_conf('postgresql.auto.conf', "synchronous_standby_names = ''\n");
$node->reload;
dispatcher_looks($node, 'crashes');
nobody_blamed('SIGKILL after COMMIT', 'm 1', 'm 2');
is(runs($node, 'held', 'm 1') + runs($node, 'held', 'm 2'), 2, 'nor run twice');

# ----------------------------------------------------------------------
note 'two are to blame';

$gate = close_gate($node, 'crashes');
will($node, 'crashes', $_, 'kill') foreach qw(one two);
provoke($node, 'crashes', qw(one two));
wait_held($node, 'crashes', 2);
$postmaster = postmaster_pid($node);
@pids = split(/\n/, sql($node, q{SELECT pid FROM reconcile.running()}));
$from = -s $node->logfile;
kill('STOP', $postmaster);
$gate->open;
for (1 .. 1800) { last unless grep { slurp_file("/proc/$_/stat") !~ /\) Z / } @pids; usleep(100_000); }
kill('CONT', $postmaster);
wait_entity($node, 'crashes', $_, '1 1 lives 57P02', "'$_' is counted") foreach qw(one two);

# ----------------------------------------------------------------------
note 'a process that is killed while it books a failure';

behave($node, 'crashes', 'booking', 'fail');
enqueue($node, 'crashes', 'booking');
wait_entity($node, 'crashes', 'booking', '1 0 lives AP001', 'an entity fails');
my $locker = $node->background_psql('postgres');
$locker->query_safe(q{BEGIN; SELECT FROM reconcile.entity WHERE entity_id = 'booking' FOR UPDATE});
enqueue($node, 'crashes', 'booking');
wait_for($node, q{EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'reconcile executor' AND wait_event_type = 'Lock')}, 'its next failure waits to be booked');
$from = -s $node->logfile;
kill('KILL', sql($node, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'reconcile executor' AND wait_event_type = 'Lock'})) or die;
wait_back($node, $from);
eval { $locker->quit };
wait_entity($node, 'crashes', 'booking', '2 1 lives 57P02', 'it is counted as a crash');

# ----------------------------------------------------------------------
note 'a postmaster that ends with the crash';

crash_for_good('ended');
is(sprintf('%04o', (stat $file)[2] & oct('7777')), '0600', 'the file is for the server alone');
$node->start;
wait_entity($node, 'crashes', 'ended', '1 1 lives 57P02', 'the next one counts it');

crash_for_good('ended');
$node->append_conf('postgresql.conf', "reconcile.max_workers = 2\n");
$node->start;
wait_entity($node, 'crashes', 'ended', '2 2 lives 57P02', 'also where it has fewer executors');

my $long = ('x' x 10) . ('é' x 250) . 'xx';
crash_for_good($long);
$node->start;
wait_entity($node, 'crashes', $long, '1 1 lives 57P02', 'an id of 512 bytes');

note 'a file of another boot, or that is none';
sub change_file
{
	my ($change) = @_;
	my $content = slurp_file($file);
	$content = $change->($content);
	open(my $out, '>:raw', $file) or die;
	print $out $content;
	close $out;
	return;
}
crash_for_good('stale');
change_file(sub { my ($boot_id) = slurp_file('/proc/sys/kernel/random/boot_id') =~ /(\S+)/; my $other = reverse $boot_id; $_[0] =~ s/$boot_id/$other/ or die; $_[0] });
$from = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $from);
wait_entity($node, 'crashes', 'stale', '1 1 lives 57P02', 'a note of another boot is none: only what it does after the start counts');
my %broken = (empty => sub { '' }, short => sub { substr($_[0], 0, -1) }, long => sub { $_[0] . 'x' },
	foreign => sub { 'x' x length $_[0] }, version => sub { substr($_[0], 8, 1) = "\x7f"; $_[0] }, count => sub { substr($_[0], 16, 4) = "\xff\xff\xff\xff"; $_[0] });
foreach my $kind (sort keys %broken)
{
	$node->stop;
	change_file($broken{$kind});
	$from = -s $node->logfile;
	$node->start;
	ok($node->log_contains(qr/LOG:  file "pg_stat_tmp\/reconcile_runs" is ignored/, $from), "$kind: it is ignored");
	enqueue($node, 'held', "n $kind");
	wait_for($node, qq{EXISTS (SELECT FROM app.run WHERE entity_id = 'n $kind')}, 'and work goes on');
}
$node->stop;
unlink($file);
mkdir($file);
$from = -s $node->logfile;
$node->start;
ok($node->log_contains(qr/LOG:  could not make file "pg_stat_tmp\/reconcile_runs"/, $from), 'a file that cannot be made is told of');
enqueue($node, 'held', 'without');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'without')}, 'and work goes on without it');
$node->stop;
rmdir($file);
$node->start;

# ----------------------------------------------------------------------
note 'a loop that is gone when its crash is to be booked';

make_loop($node, 'gone', options => q{backoff_base => '1 h', backoff_max => '1 h'}, body => q{PERFORM app.crash('kill'); RETURN NULL;});
sql($node, q{ALTER SYSTEM SET restart_after_crash = off; SELECT pg_reload_conf()});
$node->poll_query_until('postgres', q{SELECT current_setting('restart_after_crash') = 'off'}) or die;
$postmaster = postmaster_pid($node);
provoke($node, 'gone', 'a');
wait_gone($postmaster);
$node->append_conf('postgresql.auto.conf', "restart_after_crash = on\nreconcile.databases = 'nowhere'\n");
$node->start;
sql($node, q{SELECT reconcile.drop_loop('gone')});
$node->append_conf('postgresql.auto.conf', "reconcile.databases = ''\n");
$node->reload;
enqueue($node, 'held', 'after');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'after')}, 'the others go on');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE loop_name = 'gone'}), 0, 'and nothing is remembered of it');

finish();

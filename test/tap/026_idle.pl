# P7: idle costs nothing. While nothing is due, no process of ours wakes up,
# writes WAL, holds a snapshot or says a word; a leased loop costs its renewals.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# Nobody else writes WAL by himself.
my $conf = <<~'EOC';
	max_worker_processes = 16
	autovacuum = off
	checkpoint_timeout = '1 h'
	reconcile.worker_idle_timeout = '10 min'
	EOC

# observed_node(NAME, OPTIONS): a node with a loop that has worked, and one that
# has work but is paused.
sub observed_node
{
	my ($name, $options) = @_;
	my $node = new_node($name, conf => $conf);
	my $session = $node->background_psql('postgres');

	$session->query_safe(<<~"EOS");
		CREATE TABLE seen (id text, at timestamptz DEFAULT clock_timestamp());
		CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen (id) VALUES (id)';
		SELECT reconcile.create_loop('works', 'see', default_requeue => '1 h', concurrency => 2 $options);
		SELECT reconcile.create_loop('asleep', 'see');
		SELECT reconcile.pause_loop('asleep');
		SELECT reconcile.enqueue('asleep', 'due, but paused');
		SELECT reconcile.enqueue_many('works', ARRAY(SELECT 'e' || n FROM generate_series(1, 100) n));
		EOS
	$node->poll_query_until('postgres', 'SELECT count(*) = 100 FROM seen') or die;
	return { node => $node, session => $session };
}

sub waits_of
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : -1;
}

sub begin_observation
{
	my ($it) = @_;

	# What ends with the work, such as the statistics of it, is done after ten seconds.
	$it->{node}->poll_query_until('postgres', q{SELECT max(at) < clock_timestamp() - interval '11 s' FROM seen}) or die;
	$it->{pids} = { map { split /\|/ } split /\n/, $it->{session}->query_safe(q{SELECT kind || ' ' || pid, pid FROM reconcile.workers}) };
	$it->{wal} = $it->{session}->query_safe('SELECT pg_current_wal_insert_lsn()');
	$it->{log} = -s $it->{node}->logfile;
	$it->{waits} = { map { ($_ => waits_of($it->{pids}{$_})) } keys %{ $it->{pids} } };
	return;
}

sub end_observation
{
	my ($it) = @_;

	$it->{waits}{$_} = waits_of($it->{pids}{$_}) - $it->{waits}{$_} for keys %{ $it->{pids} };
	$it->{log} = (-s $it->{node}->logfile) - $it->{log};
	$it->{wal} = $it->{session}->query_safe("SELECT pg_current_wal_insert_lsn() - '$it->{wal}'");
	$it->{snapshots} = $it->{session}->query_safe(<<~'EOS');
		SELECT pid FROM pg_stat_activity
		 WHERE backend_type LIKE 'reconcile%' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start IS NOT NULL)
		EOS
	return;
}

my $plain = observed_node('plain', '');
my $leased = observed_node('leased', q{, lease_ttl => '6 s'});
begin_observation($plain);
begin_observation($leased);

# The first thing that is due ends it.
my $started = time();
$_->{session}->query_safe(q{SELECT reconcile.enqueue('works', 'the next', '10 s')}) for $plain, $leased;
for my $it ($plain, $leased)
{
	# The enqueue wakes the dispatcher, and writes.
	my ($dispatcher) = grep { /^dispatcher/ } keys %{ $it->{pids} };
	my $woken = $it->{waits}{$dispatcher};
	usleep(1000) while waits_of($it->{pids}{$dispatcher}) == $woken;
	$it->{node}->poll_query_until('postgres', 'SELECT pg_current_wal_insert_lsn() = pg_current_wal_flush_lsn()') or die;
	begin_observation($it);
}
my $seconds = time();
usleep(20_000) while time() < $started + 9.5;
$seconds = time() - $seconds;
end_observation($_) for $plain, $leased;

cmp_ok($seconds, '>', 7, 'nothing is due for several seconds');
note sprintf 'observed for %.1f s', $seconds;

# ---------------------------------------------------------------------------
# Nothing at all

is(join(' ', sort map { (split / /)[0] } keys %{ $plain->{pids} }), 'dispatcher executor executor launcher', 'all processes of ours are there');
is($plain->{waits}{$_}, 0, "$_ does not wake up") for sort keys %{ $plain->{pids} };
is($plain->{wal}, '0', 'no WAL is written');
is($plain->{log}, 0, 'no line is logged');
is($plain->{snapshots}, '', 'no snapshot is held');

# ---------------------------------------------------------------------------
# Renewals, and no more than these

my $renewals = $seconds / 2;
for my $process (sort keys %{ $leased->{pids} })
{
	if ($process =~ /^dispatcher/)
	{
		cmp_ok($leased->{waits}{$process}, '<=', 2 * ($renewals + 1), "$process wakes up for renewals only");
		cmp_ok($leased->{waits}{$process}, '>=', $renewals - 1, 'of which there are some');
	}
	else
	{
		is($leased->{waits}{$process}, 0, "$process does not wake up");
	}
}
cmp_ok($leased->{wal}, '<', 1000 * ($renewals + 1), 'a renewal writes little');
is($leased->{log}, 0, 'and logs nothing');
is($leased->{snapshots}, '', 'no snapshot is held in between');

for my $it ($plain, $leased)
{
	ok($it->{node}->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM seen WHERE id = 'the next')}), 'what is due next runs');
	$it->{session}->quit;
}
finish();

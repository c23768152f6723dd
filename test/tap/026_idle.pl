# P7: idle costs nothing. While nothing is due, no process of ours wakes up,
# writes WAL, holds a snapshot or says a word; a leased loop costs its renewals.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# Nobody else writes WAL by himself.
my $node = new_node('idle', conf => <<~'EOC');
	max_worker_processes = 16
	autovacuum = off
	checkpoint_timeout = '1 h'
	reconcile.worker_idle_timeout = '10 min'
	EOC

my $probe = $node->background_psql('postgres');
$probe->query_safe(<<~'EOS');
	CREATE TABLE seen (id text, at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen (id) VALUES (id)';
	SELECT reconcile.create_loop('plain', 'see', default_requeue => '1 h', concurrency => 2);
	SELECT reconcile.create_loop('asleep', 'see');
	SELECT reconcile.pause_loop('asleep');
	SELECT reconcile.enqueue('asleep', 'due, but paused');
	SELECT reconcile.enqueue_many('plain', ARRAY(SELECT 'e' || n FROM generate_series(1, 100) n));
	EOS
$node->poll_query_until('postgres', 'SELECT count(*) = 100 FROM seen') or die;

sub processes
{
	return map { (split /\|/)[ 0, 1 ] } split /\n/, $probe->query_safe('SELECT pid, kind FROM reconcile.workers');
}

sub waits_of
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : -1;
}

# observe(SECONDS): what happens between now and a run that is due then. Each
# process' waits, the WAL written, the bytes logged.
sub observe
{
	my ($seconds) = @_;
	my %kind = processes();

	$probe->query_safe("SELECT reconcile.enqueue('plain', 'marker', '$seconds s')");
	my $until = time() + $seconds - 0.5;
	# The enqueue itself wakes the dispatcher, and what comes of it settles.
	my $settled = time() + 2;
	my %before;
	do
	{
		%before = map { $_ => waits_of($_) } keys %kind;
		usleep(200_000);
	} while (time() < $settled || grep { waits_of($_) != $before{$_} && $kind{$_} ne 'dispatcher' } keys %before);

	my $wal = $probe->query_safe('SELECT pg_current_wal_insert_lsn()');
	my $logged = -s $node->logfile;
	my $from = time();
	my %last = %before;
	while (time() < $until) {
	    usleep(20_000);
	    for (keys %kind) { my $w = waits_of($_); if ($w != $last{$_}) { diag sprintf '%s %s %.3f', $kind{$_}, $w - $last{$_}, time()-$from; $last{$_} = $w } }
	}

	my %seen = (
		seconds => time() - $from,
		wal => $probe->query_safe("SELECT pg_current_wal_insert_lsn() - '$wal'"),
		log => (-s $node->logfile) - $logged,
		waits => { map { ("$kind{$_} $_" => waits_of($_) - $before{$_}) } keys %kind },
		snapshots => $probe->query_safe(
			q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start IS NOT NULL)}));
	$node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM seen WHERE id = 'marker')") or die;
	$probe->query_safe("DELETE FROM seen");
	return \%seen;
}

my $seen = observe(12);
cmp_ok($seen->{seconds}, '>', 7, 'nothing is due for several seconds');
note sprintf 'observed for %.1f s', $seen->{seconds};
my %kinds = map { (split / /, $_)[0] => 1 } keys %{ $seen->{waits} };
is(join(' ', sort keys %kinds), 'dispatcher executor launcher', 'all processes of ours are there');
is($seen->{waits}{$_}, 0, "$_ does not wake up") for sort keys %{ $seen->{waits} };
is($seen->{wal}, '0', 'no WAL is written');
is($seen->{log}, 0, 'no line is logged');
is($seen->{snapshots}, '', 'no snapshot is held');

# ---------------------------------------------------------------------------
# Renewals, and no more than these

$probe->query_safe(q{SELECT reconcile.create_loop('leased', 'see', lease_ttl => '6 s')});
$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM reconcile.leases WHERE live)}) or die;
$seen = observe(10);
my $renewals = $seen->{seconds} / 2;
note sprintf 'observed for %.1f s', $seen->{seconds};
for my $process (sort keys %{ $seen->{waits} })
{
	if ($process =~ /^dispatcher/)
	{
		cmp_ok($seen->{waits}{$process}, '<=', 2 * ($renewals + 1), "$process wakes up for renewals only");
		cmp_ok($seen->{waits}{$process}, '>=', $renewals - 1, 'of which there are some');
	}
	else
	{
		is($seen->{waits}{$process}, 0, "$process does not wake up");
	}
}
cmp_ok($seen->{wal}, '<', 1000 * ($renewals + 1), 'and a renewal writes little');

$probe->quit;
finish();

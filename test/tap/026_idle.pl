# P7: idle costs nothing. While nothing is due, no process of ours wakes up,
# commits, writes WAL, holds a snapshot or says a word, whatever waits; leased
# loops cost their renewals, each of which is counted.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $observed_for = 20;

# Nobody else writes WAL by himself: with wal_level = minimal not even the
# background writer, for standbys.
my $conf = <<~'EOC';
	wal_level = minimal
	max_wal_senders = 0
	max_worker_processes = 16
	autovacuum = off
	checkpoint_timeout = '1 h'
	reconcile.worker_idle_timeout = '10 min'
	EOC

# observed_node(NAME, OPTIONS...): a node whose loops have worked, one with each
# of the options, and which has work of all kinds that is not due, or not ours.
sub observed_node
{
	my ($name, @options) = @_;
	my $node = new_node($name, conf => $conf);
	my $loops = join("\n", map {
			qq{
			SELECT reconcile.create_loop('works$_', 'app.see', default_requeue => '1 h', concurrency => 2 $options[$_]);
			SELECT reconcile.enqueue_many('works$_', ARRAY(SELECT 'e' || n FROM generate_series(1, 1000) n));}
	} 0 .. $#options);

	$node->safe_psql('postgres', <<~"EOS");
		CREATE DATABASE aside;
		CREATE SCHEMA app;
		CREATE TABLE app.seen (id text);
		CREATE FUNCTION app.see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO app.seen VALUES (id)';
		CREATE FUNCTION app.never(id text) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''never''; END';
		SELECT reconcile.create_loop('asleep', 'app.see');
		SELECT reconcile.pause_loop('asleep');
		SELECT reconcile.enqueue('asleep', 'due, but paused');
		SELECT reconcile.create_loop('buried', 'app.never', max_attempts => 2, backoff_base => '1 ms');
		SELECT reconcile.enqueue_many('buried', ARRAY(SELECT 'e' || n FROM generate_series(1, 10) n));
		SELECT reconcile.create_loop('backing_off', 'app.never', backoff_base => '10 min', backoff_max => '10 min');
		SELECT reconcile.enqueue('backing_off', 'fails');
		SELECT reconcile.create_loop('outside');
		SELECT reconcile.enqueue('outside', 'due, but without a worker'), reconcile.enqueue('outside', 'later', '1 h');
		SELECT epoch FROM reconcile.acquire_lease('somebody', 'outside', '1 h');
		$loops
		EOS
	$node->poll_query_until('postgres', 'SELECT count(*) = ' . 1000 * @options . ' FROM app.seen') or die;
	$node->poll_query_until('postgres', q{SELECT count(*) FILTER (WHERE died_of IS NOT NULL) = 10 AND count(*) FILTER (WHERE failures = 1) = 1 FROM reconcile.entity}) or die;
	$node->safe_psql('aside', 'CREATE EXTENSION pg_walinspect');
	my $aside = $node->background_psql('aside');
	$aside->set_query_timer_restart;
	return { node => $node, aside => $aside };
}

sub switches_of
{
	my ($pid) = @_;
	my $status = slurp_file("/proc/$pid/status");
	my ($voluntary) = $status =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	my ($forced) = $status =~ /^nonvoluntary_ctxt_switches:\s+(\d+)/m;

	return [ $voluntary, $forced ];
}

# What the processes of ours show of themselves and in the statistics.
sub look_at
{
	my ($it) = @_;
	my %look = (
		log => -s $it->{node}->logfile,
		wal => $it->{aside}->query_safe('SELECT pg_current_wal_insert_lsn()'),
		transactions => $it->{aside}->query_safe(q{SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'}));

	$look{switches}{$_} = switches_of($it->{pids}{$_}) for keys %{ $it->{pids} };
	$look{activity} = $it->{aside}->query_safe(q{
		SELECT string_agg(pid || ' ' || backend_start || ' ' || coalesce(state_change::text, ''), E'\n' ORDER BY pid)
		FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'});
	$look{snapshots} = $it->{aside}->query_safe(q{
		SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'
		AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR xact_start IS NOT NULL)});
	return \%look;
}

# Until what follows the work is done: an executor reports the statistics of its
# last run after ten seconds.  (A dispatcher that leads goes on renewing.)
sub settle
{
	my @nodes = @_;
	my $last = '';

	$_->{pids} = { map { split /\|/ } split /\n/, $_->{node}->safe_psql('postgres', q{SELECT kind || ' ' || pid, pid FROM reconcile.workers}) } for @nodes;
	for my $try (1 .. 10)
	{
		my $now = join ' ', map { my $it = $_; map { "@{ switches_of($it->{pids}{$_}) }" } grep { !/dispatcher/ } sort keys %{ $it->{pids} } } @nodes;
		return if $now eq $last;
		$last = $now;
		usleep(11_000_000);
	}
	return;
}

sub end_observation
{
	my ($it) = @_;

	$it->{after} = look_at($it);
	$it->{wal} = $it->{aside}->query_safe("SELECT '$it->{after}{wal}'::pg_lsn - '$it->{before}{wal}'");
	return;
}

# [voluntary, forced] since the first look
sub switched
{
	my ($it, $process) = @_;
	return [ map { $it->{after}{switches}{$process}[$_] - $it->{before}{switches}{$process}[$_] } 0, 1 ];
}

# How often its leases were renewed.
sub renewals_of
{
	my ($it) = @_;
	$it->{inside} //= $it->{node}->background_psql('postgres');
	return $it->{inside}->query_safe('SELECT sum(renewals) FROM reconcile.lease WHERE engine');
}

my $plain = observed_node('plain', '', '');
my $leased = observed_node('leased', q{, lease_ttl => '6 s'}, q{, lease_ttl => '10 s', renew_every => '500 ms'});
settle($plain, $leased);
renewals_of($leased);
$plain->{before} = look_at($plain);
$leased->{before} = look_at($leased);
my $renewals = renewals_of($leased);

usleep($observed_for * 1_000_000);
$renewals = renewals_of($leased) - $renewals;
end_observation($_) for $leased, $plain;
note "$renewals renewals";

# ---------------------------------------------------------------------------
note 'nothing at all';

is(join(' ', sort map { (split / /)[0] } keys %{ $plain->{pids} }) =~ s/( executor)+/ executors/r, 'dispatcher executors launcher', 'all processes of ours are there');
is_deeply(switched($plain, $_), [ 0, 0 ], "$_ does not run at all") for sort keys %{ $plain->{pids} };
is($plain->{wal}, '0', 'no WAL is written');
is($plain->{after}{transactions} - $plain->{before}{transactions}, 0, 'no transaction begins or ends');
is($plain->{after}{activity}, $plain->{before}{activity}, 'no process changes its state');
is($plain->{after}{log} - $plain->{before}{log}, 0, 'no line is logged');
is($plain->{before}{snapshots} . $plain->{after}{snapshots}, '', 'no snapshot is held');

# ---------------------------------------------------------------------------
note 'renewals, each of them one transaction, and nothing else';

# Between two looks at different things there may be a renewal of each lease.
my $about = 2;
# what was inserted last may not be on disk yet, and is read from there
$leased->{node}->poll_query_until('aside', "SELECT pg_current_wal_flush_lsn() >= '$leased->{after}{wal}'") or die;
my %records = split /[|\n]/, $leased->{aside}->query_safe(<<~"EOS");
	SELECT resource_manager || ' ' || record_type, count(*)
	  FROM pg_get_wal_records_info('$leased->{before}{wal}', '$leased->{after}{wal}') GROUP BY 1
	EOS
note join ', ', map { "$_ $records{$_}" } sort keys %records;

# about(FOUND, EXPECTED, NAME)
sub about
{
	my ($found, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(abs($found - $expected) <= $about, "$name: $found") || diag("expected about $expected");
}

cmp_ok($renewals, '>', 10, 'there are renewals');
about($records{'Transaction COMMIT'}, $renewals, 'commits');
# a look may come in the middle of one
about($records{'Heap LOCK'}, $records{'Transaction COMMIT'}, 'each of which locks the row');
about(($records{'Heap HOT_UPDATE'} // 0) + ($records{'Heap UPDATE'} // 0), $records{'Transaction COMMIT'}, 'and writes it');
is(join(', ', grep { !/^(Transaction COMMIT|Heap (LOCK|HOT_UPDATE|UPDATE)|Heap2 PRUNE\w*|Btree INSERT_LEAF|XLOG FPI_FOR_HINT)$/ } sort keys %records), '',
	'nothing else writes WAL');
for my $process (sort keys %{ $leased->{pids} })
{
	if ($process =~ /^dispatcher/)
	{
		my ($woken) = @{ switched($leased, $process) };
		cmp_ok($woken, '<=', $renewals + $about, "$process wakes up for renewals: $woken times");
	}
	else
	{
		is_deeply(switched($leased, $process), [ 0, 0 ], "$process does not run at all");
	}
}
is($leased->{after}{log} - $leased->{before}{log}, 0, 'no line is logged');
is($leased->{before}{snapshots} . $leased->{after}{snapshots}, '', 'no snapshot is held in between');

# ---------------------------------------------------------------------------
# None of it is asleep for good.

for my $it ($plain, $leased)
{
	$it->{node}->safe_psql('postgres', q{SELECT reconcile.enqueue('works0', 'the next', '1 s')});
	ok($it->{node}->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM app.seen WHERE id = 'the next')}), 'what is due next runs');
	$it->{aside}->quit;
}
$leased->{inside}->quit;
finish();

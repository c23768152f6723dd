# P6: a take-over comes after every fenced transaction of the old term: it
# waits for them, past reconcile.fence_grace it ends their sessions, and one
# that cannot be ended keeps it off; a leader that slept through the take-over
# is told so, with both epochs.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_node('fence', conf => "reconcile.fence_grace = '1h'\n");
my $ended = qr/FATAL:  terminating connection due to administrator command/;
expect_log($ended);

$node->safe_psql('postgres', 'CREATE TABLE written (by text, epoch bigint)');

sub set_grace
{
	my ($grace) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET reconcile.fence_grace = '$grace'");
	$node->reload;
	# Until a session that is already there would see it, too.
	$node->poll_query_until('postgres', "SELECT current_setting('reconcile.fence_grace') = '$grace'") or die;
	return;
}

# A leader with a short term, in the middle of a transaction that is bound to
# it, when the term is over.
sub leader_past_its_term
{
	my ($id) = @_;
	my $leader = $node->background_psql('postgres', on_error_stop => 0);

	# at once, or a slow machine lets it lapse in between
	$leader->query_safe("SELECT reconcile.acquire_lease('$id', 'old', '3 s');
		BEGIN; SELECT reconcile.bind_lease('$id', 'old', 1);
		INSERT INTO written VALUES ('$id', reconcile.fenced_epoch('$id'))");
	lapse($id);
	return $leader;
}

sub lapse
{
	my ($id) = @_;

	$node->poll_query_until('postgres', "SELECT NOT live FROM reconcile.leases WHERE reconciler_id = '$id'") or die;
	return;
}

# acquire(ID, HOLDER, WAIT): what psql says, and the seconds that it took.
sub acquire
{
	my ($id, $holder, $wait) = @_;
	my $started = time();

	my ($status, $out, $err) = $node->psql('postgres', <<~"EOS");
		\\set VERBOSITY verbose
		SELECT epoch FROM reconcile.acquire_lease('$id', '$holder', '1 min', wait => '$wait')
		EOS
	return ($out, $err, time() - $started);
}

sub written
{
	my ($id) = @_;

	return $node->safe_psql('postgres', "SELECT by, epoch FROM written WHERE by = '$id'");
}

# ---------------------------------------------------------------------------
# Within the grace: the successor waits

my $leader = leader_past_its_term('patient');
my ($epoch, $err, $took) = acquire('patient', 'new', '700 ms');
like($err, qr/ERROR:  RC001: lease "patient" is held/, 'a take-over is refused while a fenced transaction is in flight');
like($err, qr/HINT:  It is draining/, 'the hint says that it is draining');
like($err, qr/DETAIL:  The term before is of "old", at epoch 1\./, 'the detail names the holder before');
cmp_ok($took, '>=', 0.7, 'after waiting as long as it was told to');
is( $node->safe_psql('postgres', "SELECT reconcile.try_acquire_lease('patient', 'new') IS NULL"),
	't', 'try_acquire_lease gives NULL');

my $waiting = $node->background_psql('postgres');
begins($waiting, q{SELECT 'granted ' || epoch FROM reconcile.acquire_lease('patient', 'new', '1 min', wait => '1 min');});
ok( $node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query ~ 'granted.*wait =>' AND state = 'active' AND pid <> pg_backend_pid())"),
	'another one waits longer');
$leader->query_safe('COMMIT');
like($waiting->query_until(qr/granted 2/, ''), qr/granted 2/, 'it is granted the next epoch when the transaction has committed');
is(written('patient'), 'patient|1', 'and the write of the old term, which came before, is there');
$leader->quit;
$waiting->quit;

# ---------------------------------------------------------------------------
# Never to be ended

set_grace('-1');
$leader = leader_past_its_term('never');
($epoch, $err, $took) = acquire('never', 'new', '300 ms');
like($err, qr/RC001.*HINT:  It is draining/s, 'with fence_grace -1 nobody is ended');
is($leader->query_safe('SELECT 1'), '1', 'the old session lives');
$leader->query_safe('ROLLBACK');
($epoch) = acquire('never', 'new', '0 s');
is($epoch, '2', 'and is followed when it has rolled back');
is(written('never'), '', 'without a write of its own');
$leader->quit;

# ---------------------------------------------------------------------------
# Past the grace: the old session is ended

set_grace('0');
is(count_ended(), 0, 'no session was ended so far');

$leader = leader_past_its_term('ended');
($epoch, $err, $took) = acquire('ended', 'new', '20 s');
is("$epoch$err", '2', 'past the grace the successor is granted the next epoch');
cmp_ok($took, '<', 10, 'without waiting for the old session');
is(written('ended'), '', 'nothing that the old term wrote is there');
is(count_ended(), 1, 'its session was ended');
like(slurp_file($node->logfile), qr/LOG:  ending process \d+: it still uses the lapsed term of lease "ended"/, 'which the log explains');
abandon($leader);

# The same for try_acquire_lease, which does not wait for the end of it.
$leader = leader_past_its_term('tried');
my ($status, $out) = $node->psql('postgres', "SELECT reconcile.try_acquire_lease('tried', 'new') IS NULL");
is($out, 't', 'try_acquire_lease does not wait for the session that it ends');
ok($node->poll_query_until('postgres', "SELECT (reconcile.try_acquire_lease('tried', 'new')).epoch = 2"),
	'and a later one is granted the next epoch');
is(written('tried'), '', 'nothing that the old term wrote is there');
is(count_ended(), 2, 'one more session was ended');
abandon($leader);

# ---------------------------------------------------------------------------
# A grant in progress is no lapsed term's: another candidate waits for it

$node->safe_psql('postgres', "SELECT reconcile.acquire_lease('candidates', 'old', '1 ms')");
lapse('candidates');
my $first = $node->background_psql('postgres');
$first->query_safe("BEGIN; SELECT reconcile.acquire_lease('candidates', 'first', '1 min')");
is($node->safe_psql('postgres', "SELECT reconcile.try_acquire_lease('candidates', 'second') IS NULL"), 't', 'a candidate is refused while another is granted the term');
is(count_ended(), 2, 'and does not end it');
$first->query_safe('COMMIT');
is($node->safe_psql('postgres', "SELECT holder_id, epoch FROM reconcile.leases WHERE reconciler_id = 'candidates'"), 'first|2', 'which leads when it has committed');
$first->quit;

# ---------------------------------------------------------------------------
# A server process that cannot take the signal is not minted over

$leader = leader_past_its_term('stopped');
my $backend = $node->safe_psql('postgres',
	"SELECT pid FROM pg_stat_activity WHERE query ~ 'INSERT INTO written' AND state = 'idle in transaction'");
kill 'STOP', $backend;
($epoch, $err) = acquire('stopped', 'new', '500 ms');
like($err, qr/RC001.*HINT:  It is draining/s, 'a session that cannot be ended keeps the take-over off');
is($node->safe_psql('postgres', "SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'stopped'"), '1', 'no epoch was minted over it');
kill 'CONT', $backend;
($epoch, $err) = acquire('stopped', 'new', '20 s');
is("$epoch$err", '2', 'once it can be, it ends, and the successor is granted the next epoch');
is(written('stopped'), '', 'nothing that the old term wrote is there');
is(count_ended(), 3, 'its session was ended');
abandon($leader);

# ---------------------------------------------------------------------------
# A client that sleeps between two transactions

# A transaction under a term of 'fleet' that writes who wrote it.
sub fenced_transaction
{
	my ($holder, $epoch) = @_;
	return qq{
		BEGIN;
		SELECT reconcile.bind_lease('fleet', '$holder', $epoch);
		SELECT reconcile.fenced_write('device', '{"by": "$holder"}');
		COMMIT;};
}

set_grace('1h');
my $sleeper = $node->background_psql('postgres', on_error_stop => 0);
$sleeper->query_safe("SELECT reconcile.acquire_lease('fleet', 'sleeper', '3 s');" . fenced_transaction('sleeper', 1));
my $client = $sleeper->{run}->{KIDS}[0]{PID};
kill 'STOP', $client;
($epoch, $err) = acquire('fleet', 'waker', '5 s');
is("$epoch$err", '2', 'another client takes over from one that is stopped between two transactions');
$node->safe_psql('postgres', fenced_transaction('waker', 2));
kill 'CONT', $client;

$out = $sleeper->query("SELECT reconcile.apply_fenced('fleet', 'device', 1, '{\"by\": \"sleeper\"}')");
is($out, 'f', 'continued, its compare-and-swap at the old epoch is not accepted');
$sleeper->query(fenced_transaction('sleeper', 1));
like($sleeper->{stderr}, qr/epoch 1 of lease "fleet" is lost: epoch 2 has been granted/, 'and its transaction is refused, with both epochs');
is($node->safe_psql('postgres', "SELECT last_epoch, state FROM reconcile.resources WHERE reconciler_id = 'fleet'"),
	'2|{"by": "waker"}', 'what the new leader wrote stands');
$sleeper->{stderr} = '';
$sleeper->quit;

is(count_ended(), 3, 'no session was ended for that');

finish();

# The client of a session that was ended.
sub abandon
{
	my ($client) = @_;

	$client->{run}->kill_kill;
	return;
}

sub count_ended
{
	return scalar grep { $_ =~ $ended } split /\n/, slurp_file($node->logfile);
}

# An operator ends a term (force_release_lease): a run under it cannot commit,
# the engine leads again at the next epoch or another holder does, and a session
# that hangs under the term, or in a renewal of it, is ended as in any take-over.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.fence_grace = -1\n");
prepare($node);
make_loop($node, 'unled');

# What the loop's runs committed, and its terms.
sub epochs
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(entity_id || ' ' || epoch, ', ' ORDER BY n) FROM app.run WHERE loop_name = '$loop'");
}

sub history
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(concat_ws(' ', epoch, CASE holder_id WHEN 'client' THEN 'client' ELSE 'dispatcher' END, end_reason, forced_reason), ', '
		ORDER BY epoch) FROM reconcile.lease_history WHERE reconciler_id = '$loop'");
}

my $write = q{PERFORM reconcile.fenced_write(entity, jsonb_build_object('epoch', reconcile.fenced_epoch())); RETURN NULL;};

# ----------------------------------------------------------------------
note 'while a run of the engine is in flight';

# Renewals are far away: nothing else would tell the engine.
make_loop($node, 'forced', options => q{lease_ttl => '1 hour'}, body => $write);
my $gate = close_gate($node, 'forced');
enqueue($node, 'forced', 'a');
wait_held($node, 'forced', 1);
is(sql($node, q{SELECT reconcile.force_release_lease('forced', 1, 'drill')}), 't', 'an operator ends its term');
wait_for($node, q{(SELECT last_value FROM app.forced_tries) = 2}, 'the run is cancelled, and begun anew by a leader');
$gate->open;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'forced')}, 'which ends');
is(epochs('forced'), 'a 2', 'only the run of the new term has committed');
is(sql($node, q{SELECT attempt FROM app.run WHERE loop_name = 'forced'}), 1, 'the other was not counted');
is(sql($node, q{SELECT last_epoch, revision, state FROM reconcile.resources WHERE reconciler_id = 'forced'}), '2|1|{"epoch": 2}', 'nor did it write');
is(history('forced'), '1 dispatcher forced drill, 2 dispatcher', 'the history has the reason');
is(sql($node, q{SELECT forced_by FROM reconcile.lease_history WHERE reconciler_id = 'forced' AND epoch = 1}), 'postgres', 'and the role');
is(sql($node, q{SELECT reconcile.force_release_lease('forced', 1, 'late')}), 'f', 'who comes late ends no other term');

# Only the loop's own term: the others lead on at the epoch that they had.
make_loop($node, 'neighbour', options => q{lease_ttl => '1 hour'}, body => $write);
enqueue($node, 'neighbour', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'neighbour')}, 'another loop leads');
is(sql($node, q{SELECT reconcile.force_release_lease('forced', 2, 'again')}), 't', 'a term is ended while nothing runs');
enqueue($node, 'forced', 'b');
enqueue($node, 'neighbour', 'b');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'forced' AND entity_id = 'b')
	AND EXISTS (SELECT FROM app.run WHERE loop_name = 'neighbour' AND entity_id = 'b')}, 'both run on');
is(epochs('forced') . '; ' . epochs('neighbour'), 'a 2, b 3; a 1, b 1', 'one of them in a new term');

# ----------------------------------------------------------------------
note 'while somebody waits for the lease';

make_loop($node, 'wanted', options => q{lease_ttl => '1 hour'}, body => $write);
$gate = close_gate($node, 'wanted');
enqueue($node, 'wanted', 'a');
wait_held($node, 'wanted', 1);
my $waiting = $node->background_psql('postgres');
begins($waiting, q{SELECT 'granted ' || epoch FROM reconcile.acquire_lease('wanted', 'client', '1 hour', wait => '1 min');});
wait_for($node, q{EXISTS (SELECT FROM pg_stat_activity WHERE query ~ 'granted.*wait =>' AND wait_event IS NOT NULL AND state = 'active' AND pid <> pg_backend_pid())},
	'a client waits for the lease of a loop that runs');
is(sql($node, q{SELECT reconcile.force_release_lease('wanted', 1, 'make room')}), 't', 'its term is ended');
like($waiting->query_until(qr/granted 2/, ''), qr/granted 2/, 'the client is granted the next');
$gate->open;
dispatcher_looks($node, 'unled');
is(sql($node, q{SELECT count(*) FROM app.run WHERE loop_name = 'wanted'}), 0, 'nothing of the run has committed');
is(sql($node, q{SELECT state, failures FROM reconcile.work WHERE loop_name = 'wanted'}), 'ready|0', 'its entity waits, uncounted');
$waiting->query_safe(q{SELECT reconcile.release_lease('wanted', 'client', 2)});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'wanted')}, 'until the engine leads again');
is(history('wanted'), '1 dispatcher forced make room, 2 client released, 3 dispatcher', 'the terms follow each other');

# ----------------------------------------------------------------------
note 'sessions that hang under the term';

expect_log(qr/FATAL:  terminating connection due to administrator command/);

sub set_grace
{
	my ($grace) = @_;
	sql($node, "ALTER SYSTEM SET reconcile.fence_grace = '$grace'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT current_setting('reconcile.fence_grace') = '$grace'") or die;
	return;
}

# A session of a holder of the lease that has begun a transaction of the given
# statement, and hangs.
sub hanging
{
	my ($id, $ttl, $statement) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	# in one go, as the ttl may be short
	$session->query_safe("SELECT count(epoch) FROM reconcile.acquire_lease('$id', 'old', '$ttl'); BEGIN; $statement");
	return $session;
}

sub next_term
{
	my ($id, $wait) = @_;
	my ($status, $out, $err) = $node->psql('postgres', "SELECT epoch FROM reconcile.acquire_lease('$id', 'new', '1 hour', wait => '$wait')");
	return $out . ($err =~ /HINT:  (It is draining|Another transaction)/ ? $1 : '');
}

my $hung = hanging('bound', '1 hour', q{SELECT reconcile.bind_lease('bound', 'old', 1); SELECT reconcile.fenced_write('e', '1')});
is(sql($node, q{SELECT reconcile.force_release_lease('bound', 1, 'it hangs')}), 't', 'the operator does not wait for a fenced transaction');
is(next_term('bound', '300 ms'), 'It is draining', 'the next term does');
set_grace('0');
is(next_term('bound', '20 s'), '2', 'or has it ended, past the grace');
is(sql($node, q{SELECT count(*) FROM reconcile.resources WHERE reconciler_id = 'bound'}), 0, 'with all that it wrote');
$hung->{run}->kill_kill;

# ----------------------------------------------------------------------
note 'sessions that hang in a change of the lease';

for my $case (
	[ 'renewal', q{SELECT reconcile.renew_lease('renewal', 'old', 1, '1 hour')} ],
	[ 'savepoint', q{SAVEPOINT a; SELECT reconcile.renew_lease('savepoint', 'old', 1, '1 hour'); RELEASE a; SAVEPOINT b} ],
	[ 'twice', q{SELECT reconcile.renew_lease('twice', 'old', 1, '1 hour'); SAVEPOINT a; SELECT reconcile.renew_lease('twice', 'old', 1, '1 hour')} ],
	[ 'many', q{SELECT count(*) FROM reconcile.renew_leases('old', '{unled,many,forced}', '{1,1,1}', '1 hour')} ],
	[ 'release', q{SELECT reconcile.release_lease('release', 'old', 1)} ],
	[ 'force', q{SELECT reconcile.force_release_lease('force', 1, 'hangs himself')} ])
{
	my ($id, $statement) = @$case;

	set_grace('-1');
	$hung = hanging($id, '2 s', $statement);
	my $behind = $node->background_psql('postgres', on_error_stop => 0);
	begins($behind, "SELECT * FROM reconcile.renew_lease('$id', 'old', 1);");
	wait_for($node, "(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = '$id')", "$id: the term is over as far as anybody can see");
	is(next_term($id, '100 ms'), 'Another transaction', 'the next waits for the change to commit');

	set_grace('0');
	is(next_term($id, '20 s'), '2', 'or has its session ended, past the grace');
	like($behind->query('SELECT 1'), qr/^1$/m, 'not that of who waited for the same change');
	like($behind->{stderr}, qr/epoch 1 of lease "$id" is lost/, 'whose renewal has failed');
	$behind->{stderr} = '';
	$behind->quit;
	is(sql($node, "SELECT holder_id FROM reconcile.leases WHERE reconciler_id = '$id'"), 'new', 'and nothing of the change is there');
	$hung->{run}->kill_kill;
}

# ----------------------------------------------------------------------
note 'who asks for what is over, and is told so, has nothing of it';

set_grace('-1');
for my $case (
	[ 'no_renewal', q{SELECT renewed FROM reconcile.renew_leases('old', '{no_renewal}', '{1}')} ],
	[ 'no_release', q{SELECT reconcile.release_lease('no_release', 'old', 1)} ],
	[ 'no_force', q{SELECT reconcile.force_release_lease('no_force', 1, 'late')} ])
{
	my ($id, $statement) = @$case;
	my $late = $node->background_psql('postgres');

	sql($node, "SELECT reconcile.acquire_lease('$id', 'old', '1 ms')");
	wait_for($node, "(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = '$id')", "$id: the term is over");
	is($late->query_safe("BEGIN; $statement"), 'f', 'whoever asks for it hears so, and stays in his transaction');
	is(next_term($id, '0 s'), '2', 'which is in nobody\'s way');
	$late->quit;
}

# The same for who was waiting when it became so.
$hung = hanging('waited', '3 s', q{SELECT reconcile.renew_lease('waited', 'old', 1, '1 hour')});
my $late = $node->background_psql('postgres');
my $pid = $late->query_safe('SELECT pg_backend_pid()');
begins($late, q{BEGIN; SELECT renewed FROM reconcile.renew_leases('old', '{waited}', '{1}');});
wait_for($node, "(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid)", 'somebody waits for another\'s renewal');
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'waited')}, 'until the term is over');
$hung->query_safe('ROLLBACK');
like($late->query('SELECT 1'), qr/^f$/m, 'the renewal is rolled back, and there is nothing to renew');
is(next_term('waited', '0 s'), '2', 'he has kept nothing of what he waited for');
$_->quit for $late, $hung;

finish();

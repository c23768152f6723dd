# P1 for prepared transactions: marks whose transaction is prepared in one
# session and committed in another, or after a crash, are run; and what waits for
# them stops waiting when none is left (P7).

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 5\n");
prepare($node);
make_loop($node, 'drive', options => 'default_requeue => NULL');
enqueue($node, 'drive', 'first');
wait_quiet($node, 'drive');

sub prepare_enqueue
{
	my ($entity) = @_;
	sql($node, "BEGIN; SELECT reconcile.enqueue('drive', '$entity'); PREPARE TRANSACTION '$entity'");
	is(sql($node, "SELECT count(*) FROM app.run WHERE entity_id = '$entity'"), '0', "$entity: nothing runs before the commit");
	return;
}

sub is_run
{
	my ($entity) = @_;
	wait_for($node, "EXISTS (SELECT FROM app.run WHERE entity_id = '$entity')", "$entity: it runs after the commit");
	return;
}

note 'committed by another session';
prepare_enqueue('other');
sql($node, "COMMIT PREPARED 'other'");
is_run('other');

note 'rolled back: nothing runs';
prepare_enqueue('undone');
sql($node, "ROLLBACK PREPARED 'undone'");
enqueue($node, 'drive', 'after');
is_run('after');
wait_quiet($node, 'drive');
is(sql($node, "SELECT count(*) FROM app.run WHERE entity_id = 'undone'"), '0', 'undone: it never ran');

note 'prepared before a crash, committed after it';
prepare_enqueue('crashed');
$node->stop('immediate');
$node->start;
sql($node, "COMMIT PREPARED 'crashed'");
is_run('crashed');
wait_quiet($node, 'drive');

note 'leases and fences cannot be prepared (0A000): nobody could end them';
session_fails($node, '0A000', "BEGIN; SELECT reconcile.acquire_lease('led', 'a'); PREPARE TRANSACTION 'led'", 'a grant');
session_fails($node, '0A000', "BEGIN; SELECT reconcile.apply_fenced('led', 'e', 0, '{}'); PREPARE TRANSACTION 'led'", 'a fenced write');

finish();

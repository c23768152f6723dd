# Without shared_preload_libraries the journal is all there: sessions load the library
# when they first call it, also within a transaction, and a savepoint of it.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', preload => 0, conf => "max_prepared_transactions = 2\n");
make_journal_roles($node);
prepare($node);
make_journal($node);
my $head = kept_head($node, 'acme');
replays($node);
is((poll($node))[1], 'g1 draining 1, w2 draining 1, g3 paused 1, g2 paused 1, commanded paused 1, w1 draining 1, w3 none 2', 'pollers read');
is(sql($node, q{SELECT paused FROM reconcile.loops WHERE loop_name = 'commanded'}), 't', 'a command of a loop has taken effect');
foreach my $view (qw(commands command_timeline audit_events desired_states desired_drift health))
{
	is(sql($node, "SELECT count(*) > 0 FROM reconcile.$view"), 't', "$view reads");
	is(sql($node, "SET ROLE giver; SELECT count(*) > 0 FROM reconcile.$view"), 't', "$view reads, in a session that begins with it") if $view ne 'health';
}
is(sql($node, q{SELECT count(*) FROM reconcile.commands c, reconcile.explain_command('acme', c.command_id)}), sql($node, 'SELECT count(*) FROM reconcile.command'), 'each is explained');

# ----------------------------------------------------------------------
note 'a session that loads the library in the middle of a transaction';

# noted(TENANT): its events.
sub noted
{
	my ($tenant) = @_;
	return sql($node, "SELECT coalesce(string_agg(concat_ws(' ', event, idempotency_key), ', ' ORDER BY sequence), '') FROM reconcile.audit_event WHERE tenant_id = '$tenant'");
}

sub give
{
	my ($tenant, $key) = @_;
	return "SELECT outcome FROM reconcile.accept_command('$tenant', '$key', 'drain', 'worker', 'w', 'why');";
}

sql($node, 'BEGIN; CREATE TABLE app.t (); SAVEPOINT s; ' . give('t1', 'a') . ' ROLLBACK TO s; COMMIT');
is(noted('t1'), '', 'in a savepoint that is rolled back');
sql($node, 'BEGIN; SAVEPOINT s; ' . give('t2', 'a') . ' RELEASE s; SAVEPOINT u; ' . give('t2', 'b') . ' ROLLBACK TO u; COMMIT');
is(noted('t2'), 'accepted a', 'in one that is released, before one that is rolled back');
sql($node, 'BEGIN; SAVEPOINT s; SAVEPOINT u; ' . give('t3', 'a') . ' RELEASE u; ' . give('t3', 'b') . ' ROLLBACK TO s; ' . give('t3', 'c') . ' COMMIT');
is(noted('t3'), 'accepted c', 'released into one that is rolled back');
sql($node, 'BEGIN; ' . give('t4', 'a') . ' ROLLBACK');
is(noted('t4'), '', 'rolled back');
session_fails($node, '0A000', 'BEGIN; ' . give('t5', 'a') . " PREPARE TRANSACTION 'p'", 'prepared');
is(noted('t5'), '', 'which it cannot be');
sql($node, 'BEGIN; ' . join('', map { give("m$_", 'a') } qw(c a b)) . ' COMMIT');
is(noted("m$_"), 'accepted a', 'of several tenants') foreach qw(a b c);
is(verified($node, $_), 'ok', "the audit of $_ is whole") foreach qw(t1 t2 t3 t4 t5 ma mb mc);
is(verified($node, 'acme', $head), 'ok', 'and that of the first one');

finish();

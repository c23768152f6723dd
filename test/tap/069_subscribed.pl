# Our tables as the target of a subscription: the rows of another server name their
# home, so its loops do not run here too, nor do its leases stand; who fails over to
# the subscriber has all of it, at epochs above those of the publisher.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $publisher = new_node('publisher', allows_streaming => 'logical', conf => "wal_level = logical\nmax_worker_processes = 16\n");
# a server of its own, not a copy
my $subscriber = new_node('subscriber', initdb => [], conf => "max_worker_processes = 16\n");
prepare($_) for $publisher, $subscriber;
isnt(sql($publisher, 'SELECT system_identifier FROM pg_control_system()'), sql($subscriber, 'SELECT system_identifier FROM pg_control_system()'), 'two servers');

# Only our tables: what the loops write stays where they run.
make_loop($publisher, 'drive');
sql($publisher, q{
	SELECT reconcile.acquire_lease('client', 'a', '1 h');
	SELECT reconcile.apply_fenced('client', 'e', 1, '{"by": "a"}');
	CREATE PUBLICATION ours FOR TABLES IN SCHEMA reconcile});
enqueue($publisher, 'drive', 'before');
wait_quiet($publisher, 'drive');

# The function is there, the loop comes.
make_loop($subscriber, 'drive');
make_loop($subscriber, 'own');
sql($subscriber, q{SELECT reconcile.pause_loop('drive'); SELECT reconcile.drop_loop('drive')});
my $connection = $publisher->connstr . ' dbname=postgres';
sql($subscriber, "CREATE SUBSCRIPTION ours CONNECTION '$connection' PUBLICATION ours");
$subscriber->wait_for_subscription_sync($publisher, 'ours');

# ----------------------------------------------------------------------
note 'the publisher works';

my $gate = close_gate($publisher, 'drive');
enqueue($publisher, 'drive', map { "e$_" } 1 .. 20);
$publisher->wait_for_catchup('ours');
cmp_ok(sql($subscriber, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'drive'}), '>=', 20, 'what is due there is here');
dispatcher_looks($subscriber, 'own');
is(tries($subscriber, 'drive'), 0, 'and nothing of it runs here');
like(sql($subscriber, q{SELECT status || ' ' || detail FROM reconcile.health WHERE check_name = 'incarnation'}),
	qr/^warn 1 loops came here with a restore, a clone or a subscription, and are paused/, 'health says why');
is(sql($subscriber, q{SELECT reason FROM reconcile.explain('drive', 'e1')}), 'paused', 'and explain()');
session_fails($subscriber, 'RC002', q{SELECT reconcile.renew_lease('client', 'a', 1)}, 'its lease is nobody\'s here');
is(sql($subscriber, q{SELECT reconcile.apply_fenced('client', 'e', 1, '{"by": "late"}')}), 'f', 'who holds it there writes nothing here');
$gate->open;
wait_quiet($publisher, 'drive');

# ----------------------------------------------------------------------
note 'fail-over to the subscriber';

$gate = close_gate($publisher, 'drive');
enqueue($publisher, 'drive', map { "f$_" } 1 .. 20);
$publisher->wait_for_catchup('ours');
$publisher->stop('immediate');
sql($subscriber, $_) for 'ALTER SUBSCRIPTION ours DISABLE', 'ALTER SUBSCRIPTION ours SET (slot_name = NONE)', 'DROP SUBSCRIPTION ours';
is(tries($subscriber, 'drive'), 0, 'until somebody says so nothing runs');
sql($subscriber, q{SELECT reconcile.resume_all()});
wait_quiet($subscriber, 'drive');
is(sql($subscriber, q{SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'drive' AND entity_id ~ '^f'}), 20, 'then all that was due does');
is(sql($subscriber, q{SELECT l.epoch > i.epoch_floor AND i.epoch_floor > 1 FROM reconcile.acquire_lease('client', 'b') l, reconcile.incarnation() i}), 't', 'a lease is granted above all epochs of the publisher');

finish();

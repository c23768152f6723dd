# reconcile.notify: outside workers LISTEN instead of polling.  One message when
# work came due, with the loop's name; none while nothing does, for loops that
# the engine runs itself, or while the setting is off.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	reconcile.notify = on
	EOC
prepare($node);
sql($node, q{SELECT reconcile.create_loop('outside'), reconcile.create_loop('another')});
make_loop($node, 'inside');

my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN reconcile');

# heard(): the messages since the last call, once the dispatcher has taken in all that was committed.
sub heard
{
	sql($node, 'SELECT count(*) FROM reconcile.loops');
	my $output = $listener->query('SELECT 1');
	return join(' ', sort $output =~ /Asynchronous notification "reconcile" with payload "(\w+)"/g);
}

dispatcher_looks($node, 'inside');
is(heard(), '', 'nothing is due, and nothing is heard; a run of the engine itself is no news');
enqueue($node, 'outside', 'a');
is(heard(), 'outside', 'work for outside workers is told of, by the loop\'s name');
is(heard(), '', 'once');
sql($node, q{SELECT reconcile.enqueue_many('outside', ARRAY(SELECT 'e' || n FROM generate_series(1, 1000) n)), reconcile.enqueue('another', 'b')});
is(heard(), 'another outside', 'many entities of one commit are one message for each loop');
enqueue($node, 'outside', 'a');
is(heard(), 'outside', 'a new trigger of an entity that waits is news: somebody may have it in hand');
sql($node, q{SELECT reconcile.enqueue('outside', 'late', '1 hour')});
is(heard(), '', 'what is due later is no news');
sql($node, q{SELECT reconcile.enqueue('outside', 'soon', '400 ms')});
wait_for($node, q{SELECT state = 'ready' FROM reconcile.work WHERE entity_id = 'soon'}, 'until it is due');
is(heard(), 'outside', 'and then it is');
sql($node, q{BEGIN; SELECT reconcile.enqueue('outside', 'undone'); ROLLBACK});
is(heard(), '', 'what is rolled back never was');
sql($node, q{SELECT reconcile.pause_loop('outside')});
enqueue($node, 'outside', 'c');
is(heard(), '', 'a paused loop calls nobody');
sql($node, q{SELECT reconcile.resume_loop('outside')});
is(heard(), 'outside', 'until it is resumed');

$node->append_conf('postgresql.conf', 'reconcile.notify = off');
$node->reload;
wait_for($node, q{SELECT current_setting('reconcile.notify') = 'off'}, 'it is turned off');
dispatcher_looks($node, 'inside');
enqueue($node, 'outside', 'd');
is(heard(), '', 'and nothing is told');

$listener->quit;
finish();

# The deadline of a claim that was reported may be left among the marks, where it
# was moved since: nobody takes it for something to do.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main');
sql($node, q{SELECT reconcile.create_loop('outside', default_requeue => NULL)});

# One is left by a claim that was reported, one is of a claim that ran out.
my %epoch;
for my $claim ([ 'done', '1 h' ], [ 'held', '100 ms' ])
{
	my ($entity, $ttl) = @$claim;
	enqueue($node, 'outside', $entity);
	$epoch{$entity} = sql($node, "SELECT claim_epoch FROM reconcile.claim_work('outside', 'worker', 1, '$ttl')");
}
sql($node, "SELECT reconcile.pause_loop('outside'), reconcile.complete_work('outside', 'done', $epoch{done})");
sql($node, "INSERT INTO reconcile.mark_0 VALUES ($epoch{done}, now() - interval '1 min', now(), 'c', 'outside', 'done')");
wait_for($node, q{SELECT state = 'ready' FROM reconcile.work WHERE entity_id = 'held'}, 'a claim runs out');

my $explain = q{SELECT string_agg(e.reason, ' ' ORDER BY id) FROM (VALUES ('done'), ('held')) v (id), reconcile.explain('outside', id) e};
is(sql($node, $explain), 'idle paused', 'explain() tells them apart');
is(sql($node, q{CALL reconcile.wait_idle('outside', '0 s')}), 'f', 'what is of the claim that ran out is due');
sql($node, q{SELECT reconcile.forget('outside', 'held')});
is(sql($node, q{CALL reconcile.wait_idle('outside', '0 s')}), 't', 'what was left is not');
is(sql($node, $explain), 'idle idle', 'and explains nothing');

finish();

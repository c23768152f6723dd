# explain(): each reason for which an entity does not run now, in the order in
# which they are asked; on a standby and without preload, too.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', allows_streaming => 1,
	conf => "max_worker_processes = 16\nreconcile.max_workers = 2\nreconcile.databases = 'postgres'\n");
prepare($node);

# reason(WHERE, LOOP, ENTITY): state and reason.
sub reason
{
	my ($where, $loop, $entity) = @_;
	return sql($where, "SELECT state, reason FROM reconcile.explain('$loop', '$entity')");
}

sub field
{
	my ($field, $loop, $entity) = @_;
	return sql($node, "SELECT $field FROM reconcile.explain('$loop', '$entity')");
}

# The answer once it is looked at: the executor that finds that out runs it for a moment.
sub settles
{
	my ($reason, $detail, $name) = @_;
	return wait_for($node, "SELECT state || '|' || reason = '$reason' AND detail LIKE '%$detail%' FROM reconcile.explain('left', 'a')", $name);
}

# ----------------------------------------------------------------------
note 'the entity itself';

make_loop($node, 'drive', options => q{backoff_base => '10 min', max_attempts => 2, timeout => '10 min'});
is(reason($node, 'drive', 'a'), 'idle|idle', 'nothing asks for it');
sql($node, q{SELECT reconcile.enqueue('drive', 'a', '1 h')});
is(reason($node, 'drive', 'a'), 'waiting|delayed', 'a delay');
is(field(q{until = (SELECT due_at FROM reconcile.work WHERE entity_id = 'a')}, 'drive', 'a'), 't', 'until its time');
like(field('detail', 'drive', 'a'), qr/trigger/, 'of a trigger');
is(reason($node, 'drive', 'A'), 'idle|idle', 'of that entity alone');

behave($node, 'drive', 'b', 'fail');
enqueue($node, 'drive', 'b');
wait_for($node, q{(SELECT state FROM reconcile.work WHERE entity_id = 'b') = 'retrying'}, 'it has failed');
is(reason($node, 'drive', 'b'), 'retrying|backoff', 'a backoff');
like(field('detail', 'drive', 'b'), qr/failure 1 in a row, SQLSTATE AP001/, 'after a failure');
is(field('until > now()', 'drive', 'b'), 't', 'until its time');
unlike(field('concat_ws(chr(10), detail, hint)', 'drive', 'b'), qr/cannot drive/, 'without the text of its error');
enqueue($node, 'drive', 'b');
wait_for($node, q{(SELECT state FROM reconcile.work WHERE entity_id = 'b') = 'dead'}, 'it has failed again');
is(reason($node, 'drive', 'b'), 'dead|dead', 'the last attempt');
like(field('detail', 'drive', 'b'), qr/failure 2 in a row, SQLSTATE AP001/, 'says how often');
sql($node, q{SELECT reconcile.enqueue('drive', 'b', '1 h')});
is(reason($node, 'drive', 'b'), 'retrying|delayed', 'a trigger with a delay will revive it');
behave($node, 'drive', 'p', 'permanent');
enqueue($node, 'drive', 'p');
wait_for($node, q{(SELECT state FROM reconcile.work WHERE entity_id = 'p') = 'dead'}, 'it is dead');
like(field('detail', 'drive', 'p'), qr/failure 1 in a row, SQLSTATE RC004/, 'a permanent failure');

my $gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'r');
wait_held($node, 'drive', 1);
is(reason($node, 'drive', 'r'), 'running|running', 'a run');
is(field('detail LIKE format($$Executor %s has run it since%%$$, (SELECT pid FROM reconcile.running()))', 'drive', 'r'), 't', 'names its process');
is(field('until - now() > interval $$9 min$$', 'drive', 'r'), 't', 'until its timeout');
sql($node, q{SELECT reconcile.pause_loop('drive')});
enqueue($node, 'drive', 'r');
is(reason($node, 'drive', 'r'), 'running|running', 'whatever else holds it up');

sql($node, q{SELECT reconcile.create_loop('outside', max_attempts => 1)});
enqueue($node, 'outside', 'c');
is(reason($node, 'outside', 'c'), 'ready|due', 'a loop for outside workers');
like(field('detail', 'outside', 'c'), qr/for outside workers/, 'says so');
sql($node, q{SELECT * FROM reconcile.claim_work('outside', 'the worker', 1, '1 h')});
is(reason($node, 'outside', 'c'), 'running|claimed', 'a claim');
is(field(q{detail LIKE '%"the worker"%' AND until > now() + interval '50 min'}, 'outside', 'c'), 't', 'names the worker, until its deadline');
sql($node, q{SELECT reconcile.cancel_run('outside', 'c')});
is(reason($node, 'outside', 'c'), 'ready|due', 'one that is taken back is none');

# ----------------------------------------------------------------------
note 'its loop';

enqueue($node, 'drive', 'w');
is(reason($node, 'drive', 'w'), 'ready|paused', 'paused');
sql($node, q{SELECT reconcile.alter_loop('drive', '{"enabled": false}')});
is(reason($node, 'drive', 'w'), 'ready|disabled', 'disabled');
sql($node, q{SELECT reconcile.alter_loop('drive', '{"enabled": true}'); SELECT reconcile.resume_loop('drive')});
is(reason($node, 'drive', 'w'), 'ready|slots_full', 'all that its concurrency allows is in progress');
like(field('detail', 'drive', 'w'), qr/concurrency/, 'says so');
$gate->open;
wait_quiet($node, 'drive');
is(reason($node, 'drive', 'w'), 'idle|idle', 'then it has run');

sql($node, q{CREATE ROLE leaver LOGIN; SELECT reconcile.grant_access('leaver', 'define', 'left')});
make_loop($node, 'left', role => 'leaver', options => 'enabled => false');
enqueue($node, 'left', 'a');
sql($node, q{ALTER FUNCTION app.left(text) OWNER TO postgres; REVOKE ALL ON FUNCTION app.left(text) FROM PUBLIC; SELECT reconcile.alter_loop('left', '{"enabled": true}')});
settles('ready|function_gone', 'may not execute', 'its owner may not execute the function');
sql($node, q{DROP FUNCTION app.left(text)});
settles('ready|function_gone', 'is not there', 'the function is dropped');
sql($node, q{ALTER ROLE leaver NOLOGIN});
if ($ENV{RECONCILE_PG_VERSION} < 17)
{
	settles('ready|owner_gone', 'cannot log in', 'its owner cannot log in');
}
else
{
	settles('ready|function_gone', 'is not there', 'its owner need not log in');
}
sql($node, q{DROP OWNED BY leaver; SELECT reconcile.revoke_access('leaver', 'define', 'left'); DROP ROLE leaver});
settles('ready|owner_gone', 'owner is gone', 'its owner is dropped');
sql($node, q{SELECT reconcile.drop_loop('left')});

# ----------------------------------------------------------------------
note 'the server';

sql($node, q{SELECT epoch FROM reconcile.acquire_lease('led', 'another', '1 h')});
make_loop($node, 'led', options => q{lease_ttl => '1 min'});
enqueue($node, 'led', 'a');
is(reason($node, 'led', 'a'), 'ready|no_lease', 'another one has the lease');
is(field(q{detail LIKE '%"another" holds%' AND until = (SELECT expires_at FROM reconcile.leases WHERE reconciler_id = 'led')}, 'led', 'a'), 't', 'named, until when');
sql($node, q{SELECT reconcile.release_lease('led', 'another', 1)});
wait_tries($node, 'led', 1);
pass('it runs when the lease is free');

make_loop($node, 'wide', options => 'concurrency => 2');
make_loop($node, 'late');
$gate = close_gate($node, 'wide');
enqueue($node, 'wide', 'a', 'b');
wait_held($node, 'wide', 2);
enqueue($node, 'late', 'a');
is(reason($node, 'late', 'a'), 'ready|slots_full', 'other loops have all executors');
like(field('detail', 'late', 'a'), qr/all 2 executors/, 'says how many');
$gate->open;
wait_quiet($node, 'late');

# A dispatcher that does not get to it: due, and nothing stands against it.
my $dispatcher = dispatcher_pid($node);
kill 'STOP', $dispatcher;
enqueue($node, 'late', 'a');
is(reason($node, 'late', 'a'), 'ready|due', 'due');
kill 'CONT', $dispatcher;
wait_quiet($node, 'late');

sql($node, 'CREATE DATABASE elsewhere');
my $elsewhere = [ $node, 'elsewhere' ];
sql($elsewhere, 'CREATE EXTENSION reconcile');
prepare($elsewhere);
make_loop($elsewhere, 'late');
enqueue($elsewhere, 'late', 'a');
is(reason($elsewhere, 'late', 'a'), 'ready|no_worker', 'no dispatcher serves the database');
is(reason($elsewhere, 'late', 'b'), 'idle|idle', 'which does not matter for what is idle');

sql($node, q{SELECT reconcile.pause_loop('late')});
enqueue($node, 'late', 'a');
my $standby = new_standby($node, 'standby');
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is(reason($standby, 'late', 'a'), 'ready|paused', 'a standby tells what its tables say');
sql($node, q{SELECT reconcile.pause_loop('drive'); SELECT reconcile.pause_loop('led')});
kill 'STOP', $dispatcher;
sql($node, q{SELECT reconcile.resume_loop('late')});
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is(reason($standby, 'late', 'a'), 'ready|no_worker', 'and that nothing runs there');
kill 'CONT', $dispatcher;
wait_quiet($node, 'late');

my $bare = new_node('bare', preload => 0);
prepare($bare);
make_loop($bare, 'by_hand');
enqueue($bare, 'by_hand', 'a');
is(reason($bare, 'by_hand', 'a'), 'ready|no_worker', 'no worker without preload');
like(sql($bare, q{SELECT hint FROM reconcile.explain('by_hand', 'a')}), qr/shared_preload_libraries/, 'the hint has the line to add');

finish();

# Dumps and clones (P5, P6): pg_dump restored into a fresh cluster, into another
# database of the same, and over itself while the engine runs; CREATE DATABASE ...
# TEMPLATE.  Epochs of before are void, new ones are higher, and loops wait for
# resume_all() from the first moment.

use strict;
use warnings;

use LoopTest;
use LostPast;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $conf = "max_worker_processes = 24\n";
my $node = new_node('main', conf => $conf, extension => 0);
my $fresh = new_node('fresh', conf => $conf, extension => 0, initdb => []);
my $dump = $node->basedir . '/dump';

# What is dumped: a loop that is due at once and held, one under a lease, one of
# outside workers, leases; in a database of its own.
sub make_origin
{
	my ($where) = @_;

	sql($where, 'CREATE EXTENSION reconcile');
	prepare($where);
	sql($where, q{CREATE TABLE app.device (id text PRIMARY KEY)});
	make_loop($where, 'drive');
	make_loop($where, 'led', options => q{lease_ttl => '1 hour'}, body => q{PERFORM reconcile.fenced_write(entity, '{}'); RETURN NULL;});
	sql($where, q{SELECT reconcile.create_loop('outside'), reconcile.watch('drive', 'app.device', 'id')});
	enqueue($where, 'led', 'a');
	wait_for($where, q{EXISTS (SELECT FROM reconcile.resources WHERE reconciler_id = 'led')}, 'a leased loop runs');
	wait_quiet($where, 'led');
	sql($where, q{SELECT reconcile.enqueue(l, 'later', '1 h') FROM unnest('{drive,led,outside}'::text[]) l});
	sql($where, q{SELECT reconcile.enqueue('outside', 'now')});
	return;
}

# paused_there(WHERE): tests that nothing runs there, whoever asks, until resume_all().
sub paused_there
{
	my ($where) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# a loop that is made there runs: when it has, the dispatcher has seen all
	make_loop($where, 'native');
	dispatcher_looks($where, 'native');
	is(sql($where, q{SELECT string_agg(loop_name, ' ' ORDER BY loop_name) FROM reconcile.loops WHERE paused}), 'drive led outside', 'its loops are paused');
	sql($where, 'CALL reconcile.run_loop()');
	is(sql($where, q{SELECT count(*) FROM reconcile.claim_work('outside', 'w')}), 0, 'no work is given to outside workers');
	is(runs($where, 'drive') + runs($where, 'led', 'later'), 0, 'no run of them has begun');
	is(sql($where, q{SELECT count(*) FROM reconcile.lease_history WHERE reconciler_id = 'led' AND epoch > 1}), 0, 'nor is their lease asked for');
	is(sql($where, q{SELECT reason FROM reconcile.explain('outside', 'now')}), 'paused', 'explain() says so');
	like(sql($where, q{SELECT status || ': ' || detail FROM reconcile.health WHERE check_name = 'incarnation' ORDER BY detail LIMIT 1}),
		qr/^warn: 3 loops came here/, 'as does health');
	return;
}

sub resumed_there
{
	my ($where) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($where, 'SELECT reconcile.resume_all()');
	wait_for($where, q{(SELECT count(DISTINCT loop_name) FROM app.run WHERE entity_id = 'later' AND loop_name IN ('drive', 'led')) = 2},
		'resume_all() runs them, and they look again at what they remember');
	is(sql($where, q{SELECT bool_and(r.epoch > i.epoch_floor) FROM app.run r, reconcile.incarnation() i WHERE r.loop_name = 'led' AND r.entity_id = 'later'}), 't',
		'a leased one under an epoch above the floor');
	is(sql($where, q{SELECT string_agg(entity_id, ' ' ORDER BY entity_id) FROM reconcile.claim_work('outside', 'w', 10)}), 'later now', 'outside workers get theirs');
	sql($where, q{SELECT reconcile.complete_work('outside', entity_id, claim_epoch) FROM reconcile.entity WHERE loop_name = 'outside'});
	is(sql($where, q{SELECT count(*) FROM reconcile.health WHERE check_name = 'incarnation' AND status <> 'ok'}), 0, 'health is content');
	return;
}

sql($node, 'CREATE DATABASE origin');
my $origin = [ $node, 'origin' ];
make_origin($origin);
my $known = grant($origin, 'fleet', 'me');
$node->command_ok([ 'pg_dump', '-Fc', '--file', "$dump.c", $node->connstr('origin') ], 'dumped');
$node->command_ok([ 'pg_dump', '-Fd', '--jobs', '3', '--file', "$dump.d", $node->connstr('origin') ], 'and by several');
my $lost = grant($origin, 'fleet', 'you');
my $first = grant($origin, 'first', 'you');
my $counts = q{SELECT (SELECT count(*) FROM reconcile.mark WHERE loop_name IN ('drive', 'led', 'outside')), (SELECT count(*) FROM reconcile.lease_term WHERE epoch = 1 AND reconciler_id <> 'first')};
my $rows = sql($origin, $counts);

# ----------------------------------------------------------------------
for my $case (
	[ 'into a fresh cluster', $fresh, 'copy', 'the system identifier changed', "$dump.c" ],
	[ 'into a fresh cluster, by several', $fresh, 'parallel', 'the system identifier changed', '--jobs', '3', "$dump.d" ],
	[ 'into another database', $node, 'copy', 'the database changed', "$dump.c" ],
	[ 'into another database, by several', $node, 'parallel', 'the database changed', '--jobs', '3', "$dump.d" ])
{
	my ($name, $server, $database, $reason, @from) = @$case;
	my $where = [ $server, $database ];

	note "restored $name";
	sql($server, "CREATE DATABASE $database");
	$server->command_ok([ 'pg_restore', '--exit-on-error', '--dbname', $server->connstr($database), @from ], 'restored without an error');
	is(sql($where, $counts), $rows, 'with all its rows');
	is(sql($where, q{SELECT incarnation, since IS NULL, reason FROM reconcile.incarnation()}), "2|t|$reason", 'nothing was granted there yet');
	paused_there($where);
	refused($where, 'fleet', 'me', $known);
	refused($where, 'fleet', 'you', $lost);
	refused($where, 'first', 'you', $first);
	granted_above($where, 'fleet', $known, $lost);
	granted_above($where, 'first', $first);
	resumed_there($where);
	is(sql($where, q{SELECT incarnation, since IS NULL, reason FROM reconcile.incarnation()}), "2|f|$reason", 'one incarnation it is');
}
is(sql($origin, q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'fleet'}), "$lost|t", 'the origin goes on');
is(sql($origin, q{SELECT count(*) FROM reconcile.loops WHERE paused}), 0, 'with its loops');
is(sql([ $node, 'copy' ], q{SELECT count(*) FROM reconcile.incarnation WHERE incarnation = 0}), 1, 'where the extension was created is not dumped');

# ----------------------------------------------------------------------
note 'restored over itself, while the engine runs';

# This session has made its plans, and keeps them.
my $session = $node->background_psql('origin');
is($session->query_safe(q{SELECT reconcile.apply_fenced('fleet', 'old', epoch, '{}') FROM reconcile.leases WHERE reconciler_id = 'fleet'}), 't', 'a session writes');
enqueue($origin, 'drive', 'b');
$node->command_ok([ 'pg_restore', '--clean', '--if-exists', '--exit-on-error', '--dbname', $node->connstr('origin'), "$dump.c" ], 'restored without an error');
is($session->query_safe(qq{SELECT reconcile.apply_fenced('fleet', 'old', $_, '{}')}), 'f', "epoch $_ cannot write from that session") for $known, $lost;
is(sql($origin, q{SELECT incarnation, since IS NULL, reason FROM reconcile.incarnation()}), '2|t|the extension was created anew', 'nothing was granted since');
paused_there($origin);
refused($origin, 'fleet', 'me', $known);
refused($origin, 'fleet', 'you', $lost);
refused($origin, 'first', 'you', $first);
granted_above($origin, 'fleet', $known, $lost);
granted_above($origin, 'first', $first);
resumed_there($origin);
$session->quit;

# ----------------------------------------------------------------------
note 'a clone by CREATE DATABASE ... TEMPLATE';

sql($origin, q{SELECT reconcile.drop_loop('native')});
sql($origin, q{SELECT reconcile.enqueue(l, 'later', '1 h') FROM unnest('{drive,led,outside}'::text[]) l});
sql($origin, q{SELECT reconcile.enqueue('outside', 'now')});
sql($origin, 'TRUNCATE app.run; DROP FUNCTION app.native; DROP SEQUENCE app.native_tries');
my $before = sql($origin, q{SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'fleet'});
sql($node, 'CREATE DATABASE clone TEMPLATE origin');
my $clone = [ $node, 'clone' ];
$lost = grant($origin, 'fleet', 'you');
$first = grant($origin, 'second', 'you');
is(sql($clone, q{SELECT since IS NULL, reason FROM reconcile.incarnation()}), 't|the database changed', 'the clone knows that it is one');
refused($clone, 'fleet', 'the heir', $before);
refused($clone, 'fleet', 'you', $lost);
refused($clone, 'second', 'you', $first);
is(sql($clone, q{SELECT string_agg(loop_name, ' ' ORDER BY loop_name) FROM reconcile.loops WHERE paused}), 'drive led outside', 'its loops are paused');
sql($clone, 'CALL reconcile.run_loop()');
is(sql($clone, q{SELECT count(*) FROM reconcile.claim_work('outside', 'w')}), 0, 'to outside workers, too');
is(sql($clone, 'SELECT count(*) FROM app.run'), 0, 'and nothing has run');
granted_above($clone, 'fleet', $before, $lost);
granted_above($clone, 'second', $first);
resumed_there($clone);
is(sql($origin, q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'fleet'}), "$lost|t", 'the origin knows nothing of that');

finish();

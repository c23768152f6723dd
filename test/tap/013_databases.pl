# Several databases, and run_loop() in a session: beside the workers, without
# them, on a leased loop (P2; no entity is lost and no two runs of one overlap,
# whoever starts them).

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 24\n");
my @databases = ('postgres', 'Second one');
sql($node, q{CREATE DATABASE "Second one"; CREATE ROLE app LOGIN});
my ($first, $second) = map { [ $node, $_ ] } @databases;
sql($second, 'CREATE EXTENSION reconcile');

# ----------------------------------------------------------------------
note 'two databases';

my %gate;
foreach my $database ($first, $second)
{
	prepare($database);
	sql($database, q{SELECT reconcile.grant_access('app', 'define')});
	make_loop($database, 'shared', role => 'app', options => 'concurrency => 3');
	$gate{$database} = close_gate($database, 'shared');
	enqueue($database, 'shared', 1 .. 4);
}
wait_held($_, 'shared', 3) for $first, $second;
pass('loops of the same name in two databases run at once');
is(sql($node, q{SELECT string_agg(DISTINCT database, ', ' ORDER BY database) FROM reconcile.workers WHERE kind = 'dispatcher'}),
	'Second one, postgres', 'each has a dispatcher');
is(sql($node, q{SELECT count(DISTINCT entity_id) FROM reconcile.running()}), 3, 'and sees its own runs');
$gate{$_}->open for $first, $second;
wait_for($_, q{(SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'shared') = 4}, "all entities of $_->[1] run")
  for $first, $second;
sql($node, q{SET statement_timeout = '4 s'; DROP DATABASE "Second one" WITH (FORCE)});
enqueue($first, 'shared', 5);
wait_for($first, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'shared' AND entity_id = '5')}, 'one goes on when the other is dropped');

# ----------------------------------------------------------------------
note 'run_loop() beside the workers';

sql($node, 'CREATE SEQUENCE app.overlaps; CREATE TABLE app.done (id text PRIMARY KEY, n int)');
make_loop($node, 'both', options => 'concurrency => 2', body => q{
	IF NOT pg_try_advisory_xact_lock(3, hashtext(entity)) THEN
		PERFORM nextval('app.overlaps');
	END IF;
	INSERT INTO app.done VALUES (entity, 1) ON CONFLICT (id) DO UPDATE SET n = app.done.n + 1;
	RETURN NULL;});
sql($node, q{
	CREATE TABLE app.asked (id text);
	INSERT INTO app.asked SELECT n FROM generate_series(1, 600) n;
	SELECT reconcile.enqueue_many('both', array_agg(id)) FROM app.asked;
});
$node->pgbench('-n -c 2 -j 2 -t 60', 0, [qr/processed: 120/], [qr/^$/], 'two sessions trigger, and run what is due',
	{ '013_both' => q{SELECT reconcile.enqueue_many('both', ARRAY(SELECT ceil(random() * 600)::int::text FROM generate_series(1, 5)));
CALL reconcile.run_loop('both', 20);} });
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'both')}, 'all is answered');
is(sql($node, 'SELECT count(*) FROM app.asked a WHERE NOT EXISTS (SELECT FROM app.done d WHERE d.id = a.id)'), 0, 'no entity is lost');
is(sql($node, 'SELECT is_called FROM app.overlaps'), 'f', 'no two runs of one overlap (P2)');
cmp_ok(sql($node, q{SELECT count(DISTINCT pid) FROM app.run WHERE loop_name = 'both'}), '>=', 3, 'workers and sessions both ran some');

my $gate = close_gate($node, 'both');
enqueue($node, 'both', 'held');
wait_held($node, 'both', 1);
enqueue($node, 'both', 'held');
sql($node, q{SET statement_timeout = '5 s'; CALL reconcile.run_loop('both')});
is(runs($node, 'both', 'held'), 0, 'run_loop() does not wait for an entity that runs elsewhere');
$gate->open;
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'both' AND entity_id = 'held') = 2}, 'nor does its trigger get lost');

# ----------------------------------------------------------------------
note 'who may call run_loop(), and where';

session_fails($node, '2D000', q{BEGIN; CALL reconcile.run_loop('both')}, 'in a transaction block it is refused');
session_fails($node, '2D000', q{DO $$ BEGIN PERFORM 1; CALL reconcile.run_loop('both'); EXCEPTION WHEN division_by_zero THEN END $$},
	'and in a block with a handler');
session_fails($node, '42501', q{SET SESSION AUTHORIZATION app; CALL reconcile.run_loop('both')}, 'and for the loop of another');
session_fails($node, '42704', q{CALL reconcile.run_loop('nobody')}, 'and for one that is not there');

# ----------------------------------------------------------------------
note 'run_loop() where nothing is preloaded';

my $plain = new_node('plain', preload => 0);
prepare($plain);
sql($plain, q{CREATE ROLE app LOGIN; SELECT reconcile.grant_access('app', 'define'); ALTER ROLE app SET search_path = app});
make_loop($plain, 'by_hand', options => q{backoff_base => '1 hour', backoff_max => '1 day'});
behave($plain, 'by_hand', 'fails', 'fail');
behave($plain, 'by_hand', 'dies', 'permanent');
sql($plain, q{
	CREATE TABLE app.parent (id text PRIMARY KEY);
	CREATE TABLE app.child (id text REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
	GRANT ALL ON app.parent, app.child TO PUBLIC;
});
enqueue($plain, 'by_hand', qw(fine fails dies fine fine));
sql($plain, q{SELECT reconcile.enqueue('by_hand', 'later', '1 hour')});
is(tries($plain, 'by_hand'), 0, 'nothing runs by itself');
sql($plain, q{CALL reconcile.run_loop()});
is(tries($plain, 'by_hand'), 3, 'run_loop() runs each entity that is due once');
is(sql($plain, q{SELECT string_agg(concat_ws(' ', entity_id, state, failures, last_sqlstate), ', ' ORDER BY entity_id) FROM reconcile.work}),
	'dies dead 1 RC004, fails retrying 1 AP001, later waiting 0', 'and books as a worker would');
sql($plain, q{CALL reconcile.run_loop('by_hand')});
is(tries($plain, 'by_hand'), 3, 'what is not due is left alone');
enqueue($plain, 'by_hand', 1 .. 5);
sql($plain, q{CALL reconcile.run_loop('by_hand', 2)});
is(tries($plain, 'by_hand'), 5, 'it runs at most max_items');
sql($plain, q{CALL reconcile.run_loop('by_hand', max_items => 100)});
is(tries($plain, 'by_hand'), 8, 'and the rest with the next call');

make_loop($plain, 'atomic', role => 'app', options => q{backoff_base => '1 hour', backoff_max => '1 day'},
	body => q{INSERT INTO child VALUES (entity); RETURN NULL;});
sql($plain, q{INSERT INTO app.parent VALUES ('fits')});
sql($plain, q{SELECT reconcile.enqueue('atomic', 'orphan'); SELECT reconcile.enqueue('atomic', 'fits')});
is($plain->safe_psql('postgres', q{SET search_path = pg_catalog; CALL reconcile.run_loop('atomic'); SHOW search_path},
		connstr => $plain->connstr('postgres') . q{ user=app}), 'pg_catalog', 'a run has the search path of its role, and the session keeps its own');
is(sql($plain, q{SELECT string_agg(id, ' ') FROM app.child}), 'fits', 'a run is one commit (P3)');
is(sql($plain, q{SELECT concat_ws(' ', entity_id, state, failures, last_sqlstate) FROM reconcile.work WHERE loop_name = 'atomic'}),
	'orphan retrying 1 23503', 'and fails at COMMIT');
is(sql($plain, q{SELECT DISTINCT concat_ws(' ', session_role, role) FROM app.run WHERE loop_name = 'atomic'}), 'app app', 'as who the session is');

# ----------------------------------------------------------------------
note 'run_loop() of a leased loop';

make_loop($plain, 'leased', options => q{lease_ttl => '1 hour'},
	body => q{PERFORM reconcile.fenced_write(entity, '{}'); RETURN NULL;});
enqueue($plain, 'leased', 'a');
sql($plain, q{CALL reconcile.run_loop('leased')});
is(sql($plain, q{SELECT epoch FROM app.run WHERE loop_name = 'leased'}), 1, 'it takes the lease, and binds its runs to it');
is(sql($plain, q{SELECT live FROM reconcile.leases WHERE reconciler_id = 'leased'}), 'f', 'and gives it back');
is(sql($plain, q{SELECT epoch FROM reconcile.acquire_lease('leased', 'client', '1 hour')}), 2, 'so that another can have it');
enqueue($plain, 'leased', 'b');
sql($plain, q{CALL reconcile.run_loop('leased')});
is(runs($plain, 'leased', 'b'), 0, 'it runs nothing while another leads');
is(sql($plain, q{SELECT reconcile.release_lease('leased', 'client', 2)}), 't', 'until that one goes');
sql($plain, q{CALL reconcile.run_loop()});
is(sql($plain, q{SELECT epoch FROM app.run WHERE loop_name = 'leased' AND entity_id = 'b'}), 3, 'then it does');
make_loop($plain, 'long', options => q{lease_ttl => '1 hour', backoff_base => '1 hour', backoff_max => '1 day'},
	body => q{PERFORM pg_sleep(CASE WHEN entity = 'long' THEN 60 ELSE 0 END); RETURN NULL;});
enqueue($plain, 'long', 'long');
session_fails($plain, '57014', q{SET statement_timeout = '200 ms'; CALL reconcile.run_loop('long')}, 'a caller who is cancelled in mid-run gets his error');
is(sql($plain, q{SELECT concat_ws(' ', state, failures) FROM reconcile.work WHERE loop_name = 'long'}), 'ready 0', 'the run is not counted');
is(sql($plain, q{SELECT live FROM reconcile.leases WHERE reconciler_id = 'long'}), 'f', 'and the lease is given back');
sql($plain, q{SELECT reconcile.alter_loop('long', '{"timeout": "100 ms"}'); SELECT reconcile.enqueue('long', 'short')});
sql($plain, q{CALL reconcile.run_loop('long')});
is(sql($plain, q{SELECT concat_ws(' ', state, failures, last_sqlstate) FROM reconcile.work WHERE loop_name = 'long'}), 'retrying 1 57014',
	q{the loop's own timeout is a failure of the run, and the call goes on});
is(sql($plain, q{SELECT string_agg(concat_ws(' ', entity_id, epoch), ', ') FROM app.run WHERE loop_name = 'long'}), 'short 2', 'with the next entity');
is(sql($plain, q{SELECT count(*) FROM reconcile.workers}), 0, 'there is no worker that could have');

finish();

# A run whose entity took the server down runs alone the next time (P9), and yet
# holds up nobody for long (P10); a lister that crashes is parked, and its loop
# goes on; a run_loop() that takes the server down is counted like a worker's run.

use strict;
use warnings;

use CrashTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 4\nwal_writer_delay = 10s\n");

expect_crashes();
prepare($node);
make_crash($node);
sql($node, q{
	CREATE TABLE app.company (entity_id text, others bigint);
	CREATE DATABASE other});
make_loop($node, 'crashes', options => q{concurrency => 2, backoff_base => '1 h', backoff_max => '1 h'}, body => q{
	INSERT INTO app.company SELECT entity, count(*) - 1 FROM reconcile.running();
	PERFORM pg_sleep(0.2);
	INSERT INTO app.company SELECT entity, count(*) - 1 FROM reconcile.running();} . crash_body('crashes'));
make_loop($node, 'busy', options => 'concurrency => 3', body => q{PERFORM pg_sleep(0.01); RETURN NULL;});
make_loop($node, 'held');

# ----------------------------------------------------------------------
note 'alone';

will($node, 'crashes', 'a', 'segv');
provoke($node, 'crashes', 'a');
wait_entity($node, 'crashes', 'a', '1 1 lives 57P02', 'an entity takes the server down');
will($node, 'crashes', 'a', 'nothing');
sql($node, q{SELECT reconcile.enqueue_many('busy', ARRAY(SELECT n::text FROM generate_series(1, 600) n))});
wait_for($node, q{(SELECT count(*) FROM reconcile.running() WHERE loop_name = 'busy') > 1}, 'many others are due, and run');
enqueue($node, 'crashes', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'crashes')}, 'it runs again');
is(sql($node, q{SELECT string_agg(others::text, ' ') FROM app.company WHERE entity_id = 'a'}), '0 0', 'and nobody with it');
cmp_ok(runs($node, 'busy'), '<', 600, 'before all the others are done');
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'busy') = 600}, 'who then go on');
enqueue($node, 'crashes', 'a');
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'crashes') = 2}, 'and so does it');
entity_is($node, 'crashes', 'a', '', 'nothing is held against it');

# ----------------------------------------------------------------------
note 'but not for long: others are held up for ten seconds at most';

will($node, 'crashes', 'b', 'segv');
provoke($node, 'crashes', 'b');
wait_entity($node, 'crashes', 'b', '1 1 lives 57P02', 'another entity does it');
will($node, 'crashes', 'b', 'nothing');
my $gate = close_gate($node, 'crashes');
my $other_gate = close_gate($node, 'held');
enqueue($node, 'held', 'long');
wait_held($node, 'held', 1);
enqueue($node, 'crashes', 'b');
wait_held($node, 'crashes', 1);
is(sql($node, q{SELECT count(*) FROM reconcile.running() WHERE loop_name = 'held'}), 1, 'it does not wait for ever for a run that does not end');
enqueue($node, 'busy', 'beside');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'busy' AND entity_id = 'beside')}, 'nor do others wait for ever for its own end');
is(sql($node, q{SELECT count(*) FROM reconcile.running() WHERE loop_name = 'crashes'}), 1, 'while it runs');
$gate->open;
$other_gate->open;
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'crashes' AND entity_id = 'b')}, 'it succeeds');

# ----------------------------------------------------------------------
note 'a lister that takes the server down';

sql($node, q{CREATE FUNCTION app.list() RETURNS SETOF text LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM app.crash((SELECT how FROM app.will WHERE loop_name = 'listed'));
		RETURN NEXT 'x';
	END $$});
will($node, 'listed', '', 'kill');
make_loop($node, 'listed', options => q{lister => 'app.list', backoff_base => '1 ms', backoff_max => '10 ms', max_attempts => 100});
my $from = -s $node->logfile;
# which may cost this session its life, too
$node->psql('postgres', q{SELECT reconcile.alter_loop('listed', '{"resync_every": "100 ms"}')});
wait_entity($node, 'listed', '', '3 3 crash 57P02', 'it is parked after three crashes, whatever max_attempts is');
is(crashes_since($node, $from), 3, 'and no more: none is lost with the tick that it came of');
is(sql($node, q{SELECT status || ' ' || detail || ' ' || hint FROM reconcile.health WHERE check_name = 'crashes' AND status = 'crit'}),
	q{crit loop "listed" lists nothing any more: its lister ended its process or crashed the server Put app.list() right, and call reconcile.revive('listed', '').}, 'health is critical');
$from = -s $node->logfile;
enqueue($node, 'listed', 'single');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'listed' AND entity_id = 'single')}, 'the loop goes on');
dispatcher_looks($node, 'busy');
will($node, 'listed', '', 'nothing');
is(sql($node, q{SELECT reconcile.revive('listed', '')}), 't', 'revive() ends it');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'listed' AND entity_id = 'x')}, 'it lists again');
is(crashes_since($node, $from), 0, 'and nothing has crashed since');
sql($node, q{SELECT reconcile.alter_loop('listed', '{"resync_every": null}')});

# ----------------------------------------------------------------------
note 'a crash that takes with it what the run was to answer';

# With every commit asynchronous, the run before it, its next look and the step are
# lost together: the same begins anew.
sql($node, 'CREATE TABLE app.step (entity_id text)');
make_loop($node, 'forgets', options => q{enabled => false, default_requeue => NULL, backoff_base => '1 ms', backoff_max => '10 ms'}, body => q{
	IF EXISTS (SELECT FROM app.step WHERE entity_id = entity) THEN
		PERFORM app.crash('kill');
	END IF;
	INSERT INTO app.step VALUES (entity);
	RETURN '1 ms';});
enqueue($node, 'forgets', 'a');
sql($node, 'ALTER SYSTEM SET synchronous_commit = off');
$node->restart;
$from = -s $node->logfile;
$node->psql('postgres', q{SET synchronous_commit = on; SELECT reconcile.alter_loop('forgets', '{"enabled": true}')});
wait_entity($node, 'forgets', 'a', '3 3 crash 57P02', 'the entity is parked all the same');
is(crashes_since($node, $from), 4, 'after one crash more, of which nothing was left');
sql($node, q{ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf()});

# ----------------------------------------------------------------------
note 'run_loop()';

make_loop($node, 'called', options => q{backoff_base => '1 h', backoff_max => '1 h'}, body => crash_body('called'));
sql($node, q{ALTER SYSTEM SET reconcile.databases = 'other'; SELECT pg_reload_conf()});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher' AND database = current_database())}, 'no workers here');
will($node, 'called', 'first', 'segv');
enqueue($node, 'called', qw(first second));
$from = -s $node->logfile;
$node->psql('postgres', q{CALL reconcile.run_loop('called')}, stdout => \my $out, stderr => \my $err);
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $from);
$node->poll_query_until('postgres', 'SELECT true') or die;
note 'a session that is told to quit is not to blame';
$gate = close_gate($node, 'called');
will($node, 'called', 'first', 'nothing');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->{stdin} .= "CALL reconcile.run_loop('called', 1);\n";
$session->{run}->pump_nb;
wait_held($node, 'called', 1);
$from = -s $node->logfile;
kill('KILL', sql($node, q{SELECT pid FROM reconcile.workers WHERE kind = 'launcher'})) or die;
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $from);
$node->poll_query_until('postgres', 'SELECT true') or die;
eval { $gate->open };
eval { $session->quit };
will($node, 'called', 'first', 'nothing');
sql($node, q{ALTER SYSTEM RESET reconcile.databases; SELECT pg_reload_conf()});
wait_entity($node, 'called', 'first', '1 1 lives 57P02', 'what a session did is booked by the dispatcher that comes');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'called' AND entity_id = 'second')}, 'the others go on');

finish();

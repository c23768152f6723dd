# Who is to blame for a crash: also a run whose helper crashed, a parallel worker of
# a query of it (P9); and nobody else whose query has such workers.

use strict;
use warnings;

use CrashTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 3\n");
expect_crashes();
expect_log(qr/FATAL:  terminating background worker "parallel worker"/, qr/WARNING:  PID \d+ is not a PostgreSQL/, qr/terminating connection due to administrator command/);
prepare($node);
make_crash($node);
sql($node, q{
	CREATE TABLE app.big AS SELECT n FROM generate_series(1, 20000) n;
	CREATE FUNCTION app.parallel(how text) RETURNS bigint LANGUAGE plpgsql
		SET min_parallel_table_scan_size = 0 SET parallel_setup_cost = 0 SET parallel_tuple_cost = 0
		SET parallel_leader_participation = off AS $$
	DECLARE counted bigint;
	BEGIN
		EXECUTE format('SELECT count(app.crash_beside(%L)) FROM app.big', how) INTO counted;
		RETURN counted;
	END $$});
my ($library) = sql($node, q{SELECT probin FROM pg_proc WHERE proname = 'crash'});
sql($node, qq{CREATE FUNCTION app.crash_beside(how text) RETURNS int STRICT PARALLEL SAFE LANGUAGE c AS '$library', 'crash'});
is(sql($node, q{SELECT app.parallel('nothing')}), 20000, 'a query has parallel workers');

make_loop($node, 'crashes', options => q{concurrency => 2, backoff_base => '1 h', backoff_max => '1 h'}, body => q{
	PERFORM app.parallel((SELECT w.how FROM app.will w WHERE w.loop_name = 'crashes' AND w.entity_id = entity));
	RETURN NULL;});
will($node, 'crashes', 'poison', 'segv');
provoke($node, 'crashes', 'poison');
wait_entity($node, 'crashes', 'poison', '1 1 lives 57P02', 'a run whose parallel worker crashes is counted');


will($node, 'crashes', 'poison', 'nothing');
enqueue($node, 'crashes', 'poison');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'poison')}, 'and runs again');
entity_is($node, 'crashes', 'poison', '', 'nothing is held against it');

# ----------------------------------------------------------------------
note 'a crash elsewhere';

make_loop($node, 'waits', options => q{concurrency => 2}, body => q{
	SET LOCAL min_parallel_table_scan_size = 0; SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0;
	IF EXISTS (SELECT FROM app.will w WHERE w.loop_name = 'waits' AND w.how = 'nothing') THEN RETURN NULL; END IF;
	PERFORM count(pg_sleep(600)) FROM app.big; RETURN NULL;});

# Runs two entities whose queries have parallel workers.
sub wait_helped
{
	enqueue($node, 'waits', qw(a b));
	wait_for($node, q{(SELECT count(DISTINCT leader_pid) FROM pg_stat_activity WHERE backend_type = 'parallel worker' AND wait_event = 'PgSleep') = 2},
		'two runs have parallel workers');
	return;
}

wait_helped();
my $from = -s $node->logfile;
my $victim = $node->background_psql('postgres');
kill('KILL', $victim->query_safe('SELECT pg_backend_pid()')) or die;
eval { $victim->quit };
wait_back($node, $from);
is(sql($node, 'SELECT count(*) FROM reconcile.entity WHERE failures <> 0'), 0, 'when another process crashes neither is blamed');

wait_helped();
$node->stop('immediate');
$node->start;
wait_helped();
is(sql($node, 'SELECT count(*) FROM reconcile.entity WHERE failures <> 0'), 0, 'nor at an immediate stop');

sql($node, q{INSERT INTO app.will VALUES ('waits', '', 'nothing')});
sql($node, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'parallel worker'});
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'waits') = 2}, 'a parallel worker that is terminated fails the query');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE crashes > 0}), 0, 'which is no crash');

# ----------------------------------------------------------------------
note 'run_loop()';

sql($node, q{ALTER SYSTEM SET reconcile.databases = 'other'; SELECT pg_reload_conf()});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher' AND database = current_database())}, 'no workers here');
will($node, 'crashes', 'called', 'kill');
enqueue($node, 'crashes', 'called');
$from = -s $node->logfile;
$node->psql('postgres', q{CALL reconcile.run_loop('crashes')});
$node->wait_for_log(qr/all server processes terminated; reinitializing/, $from);
$node->poll_query_until('postgres', 'SELECT true') or die;
sql($node, q{ALTER SYSTEM RESET reconcile.databases; SELECT pg_reload_conf()});
wait_entity($node, 'crashes', 'called', '1 1 lives 57P02', 'one that ran in a session is counted as well');

# ----------------------------------------------------------------------
note 'a loop that is for outside workers by now';

$from = -s $node->logfile;
sql($node, q{SELECT reconcile.alter_loop('crashes', '{"reconciler": null}')});
enqueue($node, 'crashes', 'called');
dispatcher_looks($node, 'waits');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM reconcile.claim_work('crashes', 'w', 1) WHERE entity_id = 'called'}), 'who crashed is claimed as any other');
ok(!$node->log_contains(qr/is suspended/, $from), 'and was given to no worker of ours');

finish();

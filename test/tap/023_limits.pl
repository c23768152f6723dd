# Limits: with all of max_worker_processes taken the server says so once a
# minute, nobody spins, and work resumes by itself; a ring that overflows loses
# nothing; an UPDATE of 100,000 watched rows marks, and runs, 100,000 entities.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

sub pid_of
{
	my ($node, $database, $kind) = @_;

	$node->poll_query_until('postgres',
		"SELECT EXISTS (SELECT FROM reconcile.workers WHERE database = '$database' AND kind = '$kind' AND state <> 'starting')")
	  or die "no $kind in $database";
	return $node->safe_psql('postgres',
		"SELECT pid FROM reconcile.workers WHERE database = '$database' AND kind = '$kind' ORDER BY pid LIMIT 1");
}

# How often the process has waited so far.
sub waits_of
{
	my ($pid) = @_;

	return slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : die;
}

# time_for_waits(PID, N, LIMIT): seconds until the process has waited N times
# more, or LIMIT if it has not by then.
sub time_for_waits
{
	my ($pid, $n, $limit) = @_;
	my $started = time();
	my $goal = waits_of($pid) + $n;

	while (time() < $started + $limit)
	{
		return time() - $started if waits_of($pid) >= $goal;
		usleep(10_000);
	}
	return $limit;
}

sub count_in_log
{
	my ($node, $pattern) = @_;

	return scalar grep { $_ =~ $pattern } split /\n/, slurp_file($node->logfile);
}

# ---------------------------------------------------------------------------
# All worker processes taken: by the launcher, by two dispatchers, and by one
# executor of another database, in a run that ends when we say so.

my $full = new_node('full', conf => <<~'EOC');
	max_worker_processes = 4
	max_logical_replication_workers = 0
	reconcile.worker_idle_timeout = 1
	EOC
my $no_worker = qr/WARNING:  reconcile could not start an? (?:executor|dispatcher): no background worker slot is free/;
expect_log($no_worker);

my $one_loop = <<~'EOS';
	CREATE SEQUENCE runs;
	CREATE FUNCTION drive(id text) RETURNS void LANGUAGE sql AS $$ SELECT nextval('runs') $$;
	SELECT reconcile.create_loop('cheap', 'drive', default_requeue => NULL, concurrency => 4);
	EOS
$full->safe_psql('postgres', $one_loop);
pid_of($full, 'postgres', 'dispatcher');

for my $database ('busy', 'late')
{
	$full->safe_psql('postgres', "CREATE DATABASE $database");
	$full->safe_psql($database, 'CREATE EXTENSION reconcile');
}
my $gate = $full->background_psql('busy');
$gate->query_safe('SELECT pg_advisory_lock(1)');
$full->safe_psql('busy', <<~'EOS');
	CREATE FUNCTION wait_for_gate(id text) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared(1)';
	SELECT reconcile.create_loop('gated', 'wait_for_gate', default_requeue => NULL);
	SELECT reconcile.enqueue('gated', 'g');
	EOS
$full->poll_query_until('busy', "SELECT EXISTS (SELECT FROM reconcile.running())") or die;

$full->safe_psql('postgres', "SELECT reconcile.enqueue('cheap', 'e' || i) FROM generate_series(1, 10) i");
ok($full->wait_for_log($no_worker), 'a WARNING says that no executor could be started');
like(slurp_file($full->logfile), qr/HINT:  Raise max_worker_processes \(now 4\)/, 'and names the setting');

my $dispatcher = pid_of($full, 'postgres', 'dispatcher');
cmp_ok(time_for_waits($dispatcher, 3, 4), '>', 2, 'the dispatcher does not spin meanwhile');

# A database whose dispatcher cannot be started either.
$full->safe_psql('late', $one_loop . "SELECT reconcile.enqueue('cheap', 'e')");
my $launcher = $full->safe_psql('postgres', "SELECT pid FROM reconcile.workers WHERE kind = 'launcher'");
cmp_ok(time_for_waits($launcher, 4, 2.5), '>', 1.5, 'nor does the launcher');
is($full->safe_psql('postgres', 'SELECT is_called FROM runs'), 'f', 'nothing ran so far');
is(count_in_log($full, $no_worker), 1, 'all of that took one WARNING, as there was one minute');

# Two processes end: a dispatcher and an executor can take their places.
$gate->quit;
$full->safe_psql('busy', "SELECT reconcile.drop_loop('gated')");
ok($full->poll_query_until('postgres', 'SELECT last_value = 10 FROM runs'), 'work resumes by itself when processes end');
ok($full->poll_query_until('late', 'SELECT is_called FROM runs'), 'also that of a database whose dispatcher could not be started');
cmp_ok(count_in_log($full, $no_worker), '<=', 2, 'and the log was spared');

# ---------------------------------------------------------------------------
# A ring that overflows

my $node = new_node('ring', conf => <<~'EOC');
	reconcile.ring_size = 64
	max_worker_processes = 16
	EOC

$node->safe_psql('postgres', <<~'EOS');
	CREATE TABLE seen (id text PRIMARY KEY);
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES (id)';
	SELECT reconcile.create_loop('see', 'see', default_requeue => NULL, concurrency => 2, backoff_base => '1 h', backoff_max => '2 h');
	SELECT reconcile.enqueue('see', 'first');
	EOS
$node->poll_query_until('postgres', 'SELECT EXISTS (SELECT FROM seen)') or die;
$dispatcher = pid_of($node, 'postgres', 'dispatcher');

# It cannot read its ring while it is stopped; in a wait it holds no lock.
usleep(1000) until slurp_file("/proc/$dispatcher/status") =~ /^State:\s+S/m && time_for_waits($dispatcher, 1, 0.2) == 0.2;
kill 'STOP', $dispatcher;
$node->safe_psql('postgres', <<~'EOS');
	DO $$ BEGIN
	    FOR i IN 1 .. 300 LOOP
	        PERFORM reconcile.enqueue('see', 'one' || i);
	        COMMIT;
	    END LOOP;
	    FOR i IN 1 .. 80 LOOP
	        PERFORM reconcile.enqueue_many('see', ARRAY(SELECT 'many' || i || '/' || n FROM generate_series(1, 70) n));
	        COMMIT;
	    END LOOP;
	END $$;
	EOS
kill 'CONT', $dispatcher;
ok($node->poll_query_until('postgres', 'SELECT count(*) = 1 + 300 + 80 * 70 FROM seen'),
	'nothing is lost when the ring overflows');
ok($node->poll_query_until('postgres', 'SELECT NOT EXISTS (SELECT FROM reconcile.mark)'), 'no mark is left');
is($node->safe_psql('postgres', 'SELECT * FROM reconcile.entity'), '', 'and none was run twice');

# ---------------------------------------------------------------------------
# A bulk UPDATE

$node->safe_psql('postgres', <<~'EOS');
	CREATE TABLE device (id int, version int NOT NULL DEFAULT 0);
	INSERT INTO device SELECT i FROM generate_series(1, 100000) i;
	CREATE SEQUENCE looked;
	CREATE FUNCTION look(id text) RETURNS void LANGUAGE sql AS $$ SELECT nextval('looked') $$;
	SELECT reconcile.create_loop('look', 'look', default_requeue => NULL, concurrency => 2);
	SELECT reconcile.watch('look', 'device', 'id');
	EOS
is( $node->safe_psql('postgres', <<~'EOS'), '100000|100000|t', 'an UPDATE of 100,000 watched rows marks 100,000 entities');
	BEGIN;
	UPDATE device SET version = 1;
	SELECT count(*), count(DISTINCT entity_id), bool_and(kind = 't') FROM reconcile.mark;
	COMMIT;
	EOS
my $started = time();
ok($node->poll_query_until('postgres', 'SELECT last_value >= 100000 FROM looked'), 'and all of them run');
note sprintf '%.1f s for 100,000 runs', time() - $started;
ok($node->poll_query_until('postgres', 'SELECT NOT EXISTS (SELECT FROM reconcile.mark)'), 'no mark is left');
is($node->safe_psql('postgres', 'SELECT last_value FROM looked'), '100000', 'each ran once');

finish();

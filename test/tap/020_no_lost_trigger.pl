# P1 and P2: every committed enqueue, and every committed change of a watched
# row, is followed by a run that sees it, and no two runs of an entity overlap,
# while executors and dispatchers are terminated at random and the server is
# stopped at once, three times, under load.
#
#   RECONCILE_P1_SECONDS  length of the load; 60 on 15, 20 on other versions

use strict;
use warnings;

use IPC::Run;
use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seconds = $ENV{RECONCILE_P1_SECONDS}
  || ($ENV{RECONCILE_PG_VERSION} == 15 ? 60 : 20);
my $stops = 3;

# What is acknowledged is durable here, as with a user.
my $node = new_node('load', conf => <<~'EOC');
	fsync = on
	max_worker_processes = 16
	reconcile.max_workers = 8
	EOC

expect_log(
	qr/FATAL:  terminating background worker "reconcile (?:executor|dispatcher)[^"]*" due to administrator command/,
	qr/terminating connection due to immediate shutdown command/,
	qr/FATAL:  connection to client lost/);

# ---------------------------------------------------------------------------
# Two loops, one of them leased; half of the entities each.

$node->safe_psql('postgres', <<~'EOS');
	CREATE SCHEMA app;
	CREATE TABLE app.device (id text PRIMARY KEY, lock_key int UNIQUE, version bigint NOT NULL DEFAULT 0)
	    WITH (fillfactor = 50);
	CREATE TABLE app.leased_device (LIKE app.device INCLUDING ALL);
	INSERT INTO app.device SELECT 'd' || i, i FROM generate_series(1, 250) i;
	INSERT INTO app.leased_device SELECT 'd' || i, i FROM generate_series(251, 500) i;
	CREATE TABLE app.change (id bigserial, entity text NOT NULL);
	CREATE INDEX ON app.change (entity);
	CREATE TABLE app.run (id bigserial, entity text NOT NULL, changes bigint NOT NULL, version bigint NOT NULL,
	    pid int NOT NULL DEFAULT pg_backend_pid());

	-- A lock that this transaction holds to its end, and that another run of the
	-- entity would find taken, whichever process it is in: no overlap is missed.
	-- A line in the log outlives whatever becomes of this transaction.
	CREATE FUNCTION app.drive(device text, device_version bigint, device_lock int) RETURNS void
	LANGUAGE plpgsql AS $$
	BEGIN
	    IF NOT pg_try_advisory_xact_lock(device_lock) THEN
	        RAISE WARNING 'two runs of % overlap', device;
	    END IF;
	    INSERT INTO app.run (entity, changes, version)
	        SELECT device, count(*), device_version FROM app.change c WHERE c.entity = device;
	    -- some outlive their dispatcher for long
	    PERFORM pg_sleep(random() * CASE WHEN random() < 0.03 THEN 0.5 ELSE 0.01 END);
	    IF random() < 0.02 THEN
	        RAISE 'this run fails';
	    END IF;
	END $$;
	CREATE FUNCTION app.drive_plain(entity text) RETURNS void LANGUAGE sql AS
	    'SELECT app.drive(id, version, lock_key) FROM app.device WHERE id = entity';
	CREATE FUNCTION app.drive_leased(entity text) RETURNS void LANGUAGE sql AS
	    'SELECT app.drive(id, version, lock_key) FROM app.leased_device WHERE id = entity';

	SELECT reconcile.create_loop('plain', 'app.drive_plain', concurrency => 4, default_requeue => '1 h');
	SELECT reconcile.create_loop('leased', 'app.drive_leased', concurrency => 4, default_requeue => '1 h',
	    lease_ttl => '3 s');
	SELECT reconcile.watch('plain', 'app.device', 'id');
	SELECT reconcile.watch('leased', 'app.leased_device', 'id');

	-- Ends a process of ours once the loops have gone on by so many runs.
	CREATE FUNCTION app.strike(victim text, after_runs int) RETURNS int
	LANGUAGE plpgsql AS $$
	DECLARE
	    give_up timestamptz := clock_timestamp() + interval '5 s';
	    goal bigint := (SELECT last_value FROM app.run_id_seq) + after_runs;
	    struck int;
	BEGIN
	    WHILE clock_timestamp() < give_up LOOP
	        IF (SELECT last_value FROM app.run_id_seq) >= goal THEN
	            SELECT pid INTO struck FROM reconcile.worker_list()
	             WHERE kind = victim AND state IN ('running', 'idle') ORDER BY state DESC, random() LIMIT 1;
	            IF struck IS NOT NULL AND pg_terminate_backend(struck) THEN
	                RETURN struck;
	            END IF;
	        END IF;
	        PERFORM pg_sleep(0.005);
	    END LOOP;
	    RETURN NULL;
	END $$;
	EOS

my $enqueue = $node->basedir . '/enqueue.sql';
append_to_file($enqueue, <<~'EOS');
	\set n random(1, 250)
	BEGIN;
	INSERT INTO app.change (entity) VALUES ('d' || :n);
	SELECT reconcile.enqueue('plain', 'd' || :n);
	COMMIT;
	EOS
my $enqueue_leased = $node->basedir . '/enqueue_leased.sql';
append_to_file($enqueue_leased, <<~'EOS');
	\set n random(251, 500)
	BEGIN;
	SELECT reconcile.enqueue('leased', 'd' || :n);
	INSERT INTO app.change (entity) VALUES ('d' || :n);
	COMMIT;
	EOS
my $update = $node->basedir . '/update.sql';
append_to_file($update, <<~'EOS');
	\set n random(1, 250)
	\set m random(251, 500)
	UPDATE app.device SET version = version + 1 WHERE id = 'd' || :n;
	UPDATE app.leased_device SET version = version + 1 WHERE id = 'd' || :m;
	EOS

# ---------------------------------------------------------------------------
# The load, and what happens to it

my %struck = (executor => 0, dispatcher => 0);
my ($out, $err);

sub start_load
{
	($out, $err) = ('', '');
	return IPC::Run::start(
		[
			'pgbench', '--no-vacuum', '--client=8', '--jobs=2', '--rate=900', "--time=$seconds",
			"--file=$enqueue\@2", "--file=$enqueue_leased\@2", "--file=$update\@1",
			'--host=' . $node->host, '--port=' . $node->port, 'postgres'
		],
		'<' => \undef, '>' => \$out, '2>' => \$err);
}

sub strike
{
	my ($kind) = @_;

	my ($status, $pid) = $node->psql('postgres', "SELECT app.strike('$kind', 10 + (random() * 40)::int)");
	$struck{$kind}++ if $status == 0 && $pid;
}

my $started = time();
for my $stop (1 .. $stops + 1)
{
	my $until = $started + $seconds * $stop / ($stops + 1);
	my $load = start_load();

	while (time() < $until)
	{
		strike('executor') for 1 .. 3;
		strike('dispatcher');
	}
	# This stop is in the middle of it all; the last part of the load only ends.
	if ($stop <= $stops)
	{
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		$load->signal('TERM');
	}
	$load->finish;
}

cmp_ok($struck{executor}, '>', 3, 'executors were terminated');
cmp_ok($struck{dispatcher}, '>', 3, 'dispatchers were terminated');
note "terminated: $struck{executor} executors, $struck{dispatcher} dispatchers";

# ---------------------------------------------------------------------------
# Idle: nobody runs, and all that is left is the look that each has in an hour

my $settled_from = time();
ok( $node->poll_query_until('postgres', <<~'EOS'), 'the loops become idle');
	SELECT NOT EXISTS (SELECT FROM reconcile.running())
	   AND NOT EXISTS (SELECT FROM reconcile.mark WHERE due_at < now() + interval '10 min')
	EOS
note sprintf 'idle %.1f s after the load', time() - $settled_from;

my %count = map { split /\|/ } split /\n/, $node->safe_psql('postgres', <<~'EOS');
	SELECT 'changes', count(*) FROM app.change
	UNION ALL SELECT 'updates', sum(version) FROM (TABLE app.device UNION ALL TABLE app.leased_device) d
	UNION ALL SELECT 'runs', count(*) FROM app.run
	UNION ALL SELECT 'executors', count(DISTINCT pid) FROM app.run
	EOS
note join ', ', map { "$count{$_} $_" } sort keys %count;

cmp_ok($count{changes}, '>', 1000, 'there were enqueues');
cmp_ok($count{updates}, '>', 500, 'there were updates of watched rows');
cmp_ok($count{runs}, '>', 1000, 'there were runs');

is( $node->safe_psql('postgres', <<~'EOS'), '', 'every committed enqueue was followed by a run that saw its change');
	SELECT c.entity, count(*), (SELECT max(r.changes) FROM app.run r WHERE r.entity = c.entity) AS seen
	  FROM app.change c GROUP BY c.entity
	HAVING count(*) IS DISTINCT FROM (SELECT max(r.changes) FROM app.run r WHERE r.entity = c.entity) LIMIT 10
	EOS
is( $node->safe_psql('postgres', <<~'EOS'), '', 'every committed update of a watched row was followed by a run that saw it');
	SELECT d.id, d.version, (SELECT max(r.version) FROM app.run r WHERE r.entity = d.id) AS seen
	  FROM (TABLE app.device UNION ALL TABLE app.leased_device) d
	 WHERE d.version > 0
	   AND d.version IS DISTINCT FROM (SELECT max(r.version) FROM app.run r WHERE r.entity = d.id) LIMIT 10
	EOS
is($node->safe_psql('postgres', 'SELECT count(*) FROM reconcile.dead_letters'), '0', 'nobody is dead');
is( $node->safe_psql('postgres', <<~'EOS'), '', 'each entity that ran has one next look');
	SELECT r.entity, count(DISTINCT m.number)
	  FROM (SELECT DISTINCT entity FROM app.run) r LEFT JOIN reconcile.mark m ON m.entity_id = r.entity
	 GROUP BY r.entity HAVING count(DISTINCT m.number) <> 1 LIMIT 10
	EOS
is( $node->safe_psql('postgres', <<~'EOS'), '', 'no epoch of the leased loop was granted twice, and terms do not overlap');
	SELECT epoch FROM (SELECT epoch, ended_at, lead(epoch) OVER w AS next_epoch, lead(acquired_at) OVER w AS next_at
	                     FROM reconcile.lease_history WINDOW w AS (ORDER BY epoch)) t
	 WHERE next_epoch = epoch OR next_at < ended_at
	EOS
my @overlaps = grep { /two runs of/ } split /\n/, slurp_file($node->logfile);
is(join("\n", @overlaps), '', 'no two runs of an entity overlapped');

finish();

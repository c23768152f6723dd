# P13: commands that need a database for themselves, or the extension gone,
# succeed within seconds while loops run, some of them in the middle of a long
# run; one that fails leaves the loops running; and nothing is left behind.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# The launcher, two dispatchers at most and their executors.
my $node = new_node('ddl', conf => <<~'EOC');
	max_worker_processes = 16
	reconcile.max_workers = 6
	EOC

# ddl(DATABASE, SQL, NAME): runs it as a user with a short timeout would, one
# statement to a transaction.
sub ddl
{
	my ($database, $sql, $name) = @_;
	my ($out, $err) = ('', '');
	my $started = time();

	my $status = $node->psql($database, $sql, stdout => \$out, stderr => \$err,
		extra_params => ['--set=ON_ERROR_STOP=1']);
	note sprintf '%.2f s: %s', time() - $started, $sql =~ s/\s+/ /gr;
	is("$status$err", '0', $name);
	return;
}

# What a test waits for, in the database postgres, which keeps the extension.
sub no_process_in
{
	my ($database) = @_;

	return $node->poll_query_until('postgres', <<~"EOS");
		SELECT NOT EXISTS (SELECT FROM reconcile.workers WHERE database = '$database')
		   AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = '$database')
		EOS
}

# Loops in a database: one that never rests, and one in the middle of a run
# that lasts for minutes, of a watched table.
sub create_loops
{
	my ($database) = @_;

	$node->safe_psql($database, <<~'EOS');
		SELECT reconcile.create_loop('quick', 'app.quick', default_requeue => '20 ms', concurrency => 2);
		SELECT reconcile.create_loop('slow', 'app.slow', concurrency => 2, default_requeue => '1 h', lease_ttl => '10 s');
		SELECT reconcile.watch('quick', 'app.device', 'id');
		SELECT reconcile.watch('slow', 'app.device', 'id', '{slow}');
		INSERT INTO app.device SELECT 'd' || i FROM generate_series(1, 4) i ON CONFLICT DO NOTHING;
		UPDATE app.device SET slow = slow + 1, quick = quick + 1;
		EOS
	return;
}

my $longest = 0;

# The loops run: the quick one goes on, and the slow one is in a run.
sub loops_run
{
	my ($database, $name) = @_;
	my $started = time();
	my $before = $node->safe_psql($database, 'SELECT last_value FROM app.quick_runs');

	ok( $node->poll_query_until($database, <<~"EOS"), $name);
		SELECT last_value > $before + 5
		   AND EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'slow')
		  FROM app.quick_runs
		EOS
	$longest = time() - $started if time() - $started > $longest;
	return;
}

# Nobody is charged for a run that a command cut short.
sub no_failures
{
	my ($database, $name) = @_;

	is($node->safe_psql($database, 'SELECT * FROM reconcile.entity'), '', $name);
	return;
}

sub make_database
{
	my ($database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, <<~'EOS');
		CREATE EXTENSION reconcile;
		CREATE SCHEMA app;
		CREATE TABLE app.device (id text PRIMARY KEY, quick int NOT NULL DEFAULT 0, slow int NOT NULL DEFAULT 0);
		CREATE SEQUENCE app.quick_runs;
		CREATE FUNCTION app.quick(id text) RETURNS void LANGUAGE sql AS $$ SELECT nextval('app.quick_runs') $$;
		CREATE FUNCTION app.slow(id text) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(300)';
		EOS
	create_loops($database);
	return;
}

my $user_settings = "ALTER ROLE CURRENT_USER SET statement_timeout = '4 s'";
$node->safe_psql('postgres', $user_settings);
my $other_before = $node->safe_psql('postgres', 'SELECT count(*) FROM pg_class');

# ---------------------------------------------------------------------------
# Commands after which the loops go on

make_database('fleet');
loops_run('fleet', 'loops run');

ddl('fleet', 'BEGIN; DROP EXTENSION reconcile; ROLLBACK;', 'DROP EXTENSION in a transaction that is rolled back');
loops_run('fleet', 'the loops go on after a rolled back DROP EXTENSION');
no_failures('fleet', 'and no run was charged for it');

my $session = $node->background_psql('fleet');
$session->query_safe('BEGIN; SAVEPOINT before; DROP EXTENSION reconcile; ROLLBACK TO before');
loops_run('fleet', 'the loops go on after a ROLLBACK TO, in a transaction that is still open');
$session->query_safe('ROLLBACK');
$session->query_safe(<<~'EOS');
	DO $$
	BEGIN
	    DROP EXTENSION reconcile;
	    RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
	    NULL;
	END $$
	EOS
loops_run('fleet', 'and after an error that was caught');
$session->quit;

my ($status, $out, $err) = $node->psql('fleet',
	'CREATE VIEW public.mine AS SELECT * FROM reconcile.loops; DROP EXTENSION reconcile;');
like($err, qr/cannot drop extension reconcile because other objects depend on it/,
	'DROP EXTENSION is refused where a view of the user depends on it');
loops_run('fleet', 'the loops go on after a refused DROP EXTENSION');
$node->safe_psql('fleet', 'DROP VIEW public.mine');

ddl('postgres', 'ALTER DATABASE fleet RENAME TO fleet_b', 'ALTER DATABASE RENAME');
loops_run('fleet_b', 'the loops go on in the renamed database');

ddl('postgres', 'CREATE DATABASE fleet_copy TEMPLATE fleet_b', 'CREATE DATABASE TEMPLATE');
loops_run('fleet_b', 'the loops go on in the template');
no_failures('fleet_b', 'and no run was charged for it');

$session = $node->background_psql('fleet_b');
($status, $out, $err) = $node->psql('postgres', "SET statement_timeout = 0; DROP DATABASE fleet_b");
like($err, qr/database "fleet_b" is being accessed by other users/,
	'DROP DATABASE is refused while another session is there');
loops_run('fleet_b', 'the loops go on after a refused DROP DATABASE');
$session->quit;

$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN');
($status, $out, $err) = $node->psql('fleet_b', 'SET ROLE stranger; DROP EXTENSION reconcile');
like($err, qr/must be owner/, 'DROP EXTENSION is refused to who does not own it');
($status, $out, $err) = $node->psql('postgres', 'SET ROLE stranger; DROP DATABASE fleet_b');
like($err, qr/must be owner/, 'DROP DATABASE is refused to who does not own it');
my $dispatchers = $node->safe_psql('postgres',
	q{SELECT count(*) FROM reconcile.workers WHERE database = 'fleet_b' AND kind = 'dispatcher' AND state = 'running'});
is($dispatchers, '1', 'a command that is not allowed does not disturb the dispatcher');

# However many commands there were, and whatever became of them.
cmp_ok($longest, '<', 5, 'the loops always came back soon');
note sprintf 'at the latest after %.1f s', $longest;

# ---------------------------------------------------------------------------
# The extension goes, and comes again

loops_run('fleet_b', 'loops run');
ddl('fleet_b', 'DROP EXTENSION reconcile', 'DROP EXTENSION without CASCADE, with watched tables');
is( $node->safe_psql('fleet_b', <<~'EOS'), '', 'nothing of it is left in the catalogues');
	SELECT 'trigger', tgname::text FROM pg_trigger WHERE NOT tgisinternal
	UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname LIKE 'reconcile%'
	UNION ALL SELECT 'function', proname FROM pg_proc WHERE probin LIKE '%reconcile%'
	UNION ALL SELECT 'depends', refobjid::regclass::text FROM pg_depend d
	 WHERE d.classid = 'pg_trigger'::regclass AND d.deptype = 'x'
	EOS
ok(no_process_in('fleet_b'), 'no process of it is left');
ddl('fleet_b', 'UPDATE app.device SET quick = quick + 1, slow = slow + 1', 'the tables that it watched are as they were');

ddl('fleet_b', 'CREATE EXTENSION reconcile', 'CREATE EXTENSION again');
is($node->safe_psql('fleet_b', 'SELECT * FROM reconcile.mark'), '', 'the new one begins empty');
create_loops('fleet_b');
loops_run('fleet_b', 'loops of the new one run');

ddl('fleet_b', 'DROP EXTENSION reconcile; CREATE EXTENSION reconcile;', 'DROP and CREATE EXTENSION in a row');
create_loops('fleet_b');
loops_run('fleet_b', 'loops of that one run');

# ---------------------------------------------------------------------------
# The database goes

ddl('postgres', 'DROP DATABASE fleet_b', 'DROP DATABASE');
ok(no_process_in('fleet_b'), 'no process of it is left');
ddl('postgres', 'DROP DATABASE fleet_copy', 'DROP DATABASE of the copy');

make_database('fleet');
loops_run('fleet', 'loops run in a new database of the old name');
ddl('postgres', 'DROP DATABASE fleet WITH (FORCE)', 'DROP DATABASE WITH (FORCE)');
ok(no_process_in('fleet'), 'no process of it is left');

# A run that does not let itself be cancelled is ended.
make_database('stubborn');
$node->safe_psql('stubborn', <<~'EOS');
	CREATE FUNCTION app.stubborn(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    LOOP
	        BEGIN
	            PERFORM pg_sleep(300);
	        EXCEPTION WHEN query_canceled THEN
	            NULL;
	        END;
	    END LOOP;
	END $$;
	SELECT reconcile.create_loop('stubborn', 'app.stubborn');
	SELECT reconcile.enqueue('stubborn', 'x');
	EOS
sub stubborn_runs
{
	return $node->poll_query_until('stubborn', q{SELECT EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'stubborn')});
}
expect_log(qr/FATAL:  terminating background worker "reconcile executor" due to administrator command/);
stubborn_runs() or die;
ddl('postgres', 'ALTER DATABASE stubborn RENAME TO other; ALTER DATABASE other RENAME TO stubborn', 'ALTER DATABASE RENAME beside a run that ignores a cancel');
ok(stubborn_runs(), 'it runs again');
no_failures('stubborn', 'and was not charged for it');
ddl('stubborn', 'DROP EXTENSION reconcile', 'DROP EXTENSION beside a run that ignores a cancel');
ddl('postgres', 'DROP DATABASE stubborn', 'DROP DATABASE');

# ---------------------------------------------------------------------------
# No entry of a database in shared memory is left either: there are 32, and
# more databases than that come and go.

my $script = "SET statement_timeout = '4 s';\n";
make_database('pattern');
$node->safe_psql('pattern', "SELECT reconcile.drop_loop('slow')");
for my $i (1 .. 34)
{
	$script .= <<~"EOS";
		\\c postgres
		CREATE DATABASE many_$i TEMPLATE pattern;
		\\c many_$i
		SELECT reconcile.alter_loop('quick', '{"concurrency": 1}');
		\\c postgres
		DO \$\$ BEGIN
		    WHILE NOT EXISTS (SELECT FROM reconcile.workers WHERE database = 'many_$i' AND kind = 'dispatcher' AND state = 'running') LOOP
		        PERFORM pg_sleep(0.005);
		    END LOOP;
		END \$\$;
		DROP DATABASE many_$i;
		EOS
}
my $started = time();
is($node->psql('postgres', $script, extra_params => ['--set=ON_ERROR_STOP=1'], timeout => 60, stderr => \$err), 0,
	'34 databases with a loop come and go one after another')
  or diag $err;
note sprintf '%.1f s', time() - $started;
ddl('pattern', 'DROP EXTENSION reconcile', 'DROP EXTENSION in the template');
ddl('postgres', 'DROP DATABASE pattern', 'DROP DATABASE of the template');

ok( $node->poll_query_until('postgres', <<~'EOS'), 'in the end there is the launcher and nothing else');
	SELECT string_agg(kind, ' ') = 'launcher' FROM reconcile.workers
	EOS
ok( $node->poll_query_until('postgres', <<~'EOS'), 'no lock of ours is left');
	SELECT NOT EXISTS (SELECT FROM pg_locks
	    WHERE locktype = 'object' AND database <> 0 AND pid IS DISTINCT FROM pg_backend_pid())
	EOS
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_class'),
	$other_before, 'and nothing in the database beside it has changed');

# Our processes have no name in the prefix of the log, sessions do.
my @said = grep { /\[\d+\] (?:WARNING|ERROR|FATAL|PANIC):/ && !/FATAL:  terminating background worker/ } split /\n/, slurp_file($node->logfile);
is(join("\n", @said), '', 'our processes said nothing in the log');

finish();

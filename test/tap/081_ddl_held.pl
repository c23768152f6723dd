# P13, with commands that are held open, refused, rolled back in parts, or cut
# off, several at a time, while workers run; with what a loop stands on dropped
# under it; and with databases that may not be connected to for a while.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = new_node('held', conf => <<~'EOC');
	max_worker_processes = 20
	reconcile.max_workers = 8
	max_prepared_transactions = 2
	allow_in_place_tablespaces = on
	EOC
expect_log(qr/081_ddl_held.pl FATAL:  terminating connection due to administrator command/);
sql($node, q{ALTER ROLE CURRENT_USER SET statement_timeout = '4 s'; CREATE ROLE app LOGIN});

my $fleet = [ $node, 'fleet' ];

# make_fleet(DATABASE, ROLE): a loop that never rests and a leased one in the midst
# of a run that lasts for minutes.
sub make_fleet
{
	my ($database, $role) = @_;
	my $where = [ $node, $database ];

	$role = $role ? "SET ROLE $role;" : '';
	sql($node, "CREATE DATABASE $database");
	sql($where, "$role CREATE EXTENSION reconcile");
	prepare($where);
	make_loops($where);
	return;
}

sub make_loops
{
	my ($where) = @_;

	sql($where, 'DROP SEQUENCE IF EXISTS app.quick_tries, app.slow_tries; DROP FUNCTION IF EXISTS app.quick, app.slow');
	make_loop($where, 'quick', options => q{default_requeue => '10 ms', concurrency => 2});
	make_loop($where, 'slow', options => q{lease_ttl => '10 s'}, body => 'PERFORM pg_sleep(300); RETURN NULL;');
	enqueue($where, 'quick', 1 .. 3);
	enqueue($where, 'slow', 1);
	return;
}

sub all_run
{
	my ($where, $name) = @_;
	my $tries = tries($where, 'quick');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for($where, qq{(SELECT last_value FROM app.quick_tries) > $tries + 3
		AND EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'slow')}, $name);
	is(sql($where, q{SELECT count(*) FROM reconcile.entity}), 0, 'and no run was charged');
	return;
}

# The launcher has had its turn: what it would have started it has started.
sub launcher_turn
{
	sql($node, 'CREATE DATABASE turn');
	sql([ $node, 'turn' ], q{
		CREATE EXTENSION reconcile;
		CREATE FUNCTION f(id text) RETURNS void LANGUAGE sql AS '';
		SELECT reconcile.create_loop('turn', 'f')});
	$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM reconcile.workers WHERE database = 'turn' AND state = 'running')}) or die;
	sql($node, 'DROP DATABASE turn');
	return;
}

sub processes
{
	my ($database) = @_;

	return sql($node, "SELECT count(*) FROM pg_stat_activity WHERE datname = '$database' AND backend_type LIKE 'reconcile%'");
}

sub command
{
	my ($database, $sql, $name) = @_;
	my $started = time();

	my ($status, $out, $err) = $node->psql($database, $sql, extra_params => ['--set=ON_ERROR_STOP=1']);
	$err =~ s/^.*NOTICE: .*\n?//mg;
	note sprintf '%.2f s: %s', time() - $started, $sql =~ s/\s+/ /gr;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$status$err", '0', $name);
	return;
}

make_fleet('fleet');
all_run($fleet, 'loops run');

# ----------------------------------------------------------------------
note 'two sessions keep the workers out';

my $one = $node->background_psql('fleet');
$one->query_safe('BEGIN; DROP EXTENSION reconcile');
session_fails($fleet, '55P03', q{SET lock_timeout = '100 ms'; DROP EXTENSION reconcile}, 'a second DROP EXTENSION gives up');
session_fails($node, '57014', q{SET statement_timeout = '300 ms'; DROP DATABASE fleet}, 'and a DROP DATABASE');
launcher_turn();
is(processes('fleet'), 0, 'nobody comes back while the first is open');
$one->query_safe('ROLLBACK');
all_run($fleet, 'when that is rolled back they do');

note 'more sessions than there is room for';
my @sessions = map { $node->background_psql('fleet') } 1 .. 10;
$_->query_safe('BEGIN; SAVEPOINT s') for @sessions;
$sessions[0]->query_safe('DROP EXTENSION reconcile');
foreach my $session (@sessions[1 .. 9])
{
	is($session->query_safe(q{SET LOCAL lock_timeout = '20 ms'; DO $$ BEGIN DROP EXTENSION reconcile; EXCEPTION WHEN lock_not_available THEN NULL; END $$; SELECT 1}), 1, 'one more gives up');
}
$_->query_safe('COMMIT') for @sessions[ 1 .. 9 ];
launcher_turn();
is(processes('fleet'), 0, 'nobody comes back');
$sessions[0]->query_safe('ROLLBACK');
$_->quit for @sessions;
all_run($fleet, 'until the last has gone');

note 'a session is ended';
$one->query_safe('BEGIN; DROP EXTENSION reconcile');
my $pid = $one->query_safe('SELECT pg_backend_pid()');
is(sql($node, "SELECT pg_terminate_backend($pid, 4000)"), 't', 'while it keeps the workers out');
all_run($fleet, 'the loops go on');
eval { $one->quit };

# ----------------------------------------------------------------------
note 'transactions in parts';

$one = $node->background_psql('fleet');
$one->query_safe('BEGIN; DROP EXTENSION reconcile; SAVEPOINT a; CREATE EXTENSION reconcile; DROP EXTENSION reconcile; ROLLBACK TO a');
launcher_turn();
is(processes('fleet'), 0, 'what an outer level drops stays dropped when an inner one is rolled back');
$one->query_safe('ROLLBACK');
all_run($fleet, 'and comes back with it');
$one->query_safe(q{DO $$
	BEGIN
		FOR i IN 1 .. 3 LOOP
			BEGIN
				DROP EXTENSION reconcile;
				CREATE EXTENSION reconcile;
				RAISE division_by_zero;
			EXCEPTION WHEN division_by_zero THEN NULL;
			END;
		END LOOP;
	END $$});
all_run($fleet, 'a block that drops and makes it thrice, each time in vain');
$one->quit;

session_fails($fleet, '0A000', q{BEGIN; DROP EXTENSION reconcile; PREPARE TRANSACTION 'drop'}, 'a drop cannot be prepared');
all_run($fleet, 'the loops go on');
command('fleet', 'BEGIN; DROP EXTENSION reconcile; CREATE EXTENSION reconcile; ROLLBACK', 'DROP and CREATE EXTENSION, rolled back');
all_run($fleet, 'the loops go on');
command('fleet', 'BEGIN; DROP EXTENSION reconcile; CREATE EXTENSION reconcile; COMMIT', 'DROP and CREATE EXTENSION, committed');
is(sql($fleet, 'SELECT count(*) FROM reconcile.mark'), 0, 'the new one is empty');
make_loops($fleet);
all_run($fleet, 'and its loops run');
session_fails($fleet, '2BP01', 'DROP SCHEMA reconcile CASCADE', 'DROP SCHEMA reconcile CASCADE is refused');
all_run($fleet, 'the loops go on');

# ----------------------------------------------------------------------
note 'what a loop stands on';

sql($fleet, q{CREATE SCHEMA fns; CREATE SCHEMA fns2; CREATE TABLE app.note (t text); GRANT ALL ON app.note TO PUBLIC;
	GRANT CREATE, USAGE ON SCHEMA fns TO app;
	CREATE FUNCTION fns.f(id text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(300); END $$;
	CREATE FUNCTION fns2.f(id text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(300); END $$;
	SELECT reconcile.grant_access('app', 'define');
	SELECT reconcile.create_loop('dropped', 'fns.f', concurrency => 1);
	SELECT reconcile.create_loop('cascaded', 'fns2.f', concurrency => 1);
	SELECT reconcile.enqueue_many(l, '{a,b}') FROM unnest('{dropped,cascaded}'::text[]) l});
sub in_run
{
	my ($loop) = @_;
	return wait_for($fleet, "EXISTS (SELECT FROM reconcile.running() WHERE loop_name = '$loop')", "$loop is in a run");
}
in_run($_) for qw(dropped cascaded);
command('fleet', 'DROP FUNCTION fns.f', 'DROP FUNCTION of a reconciler that runs');
command('fleet', 'DROP SCHEMA fns2 CASCADE', 'DROP SCHEMA … CASCADE of one that runs');
sql($fleet, q{SELECT count(reconcile.cancel_run(loop_name, entity_id)) FROM reconcile.running() WHERE loop_name IN ('dropped', 'cascaded')});
wait_for($fleet, q{(SELECT count(*) FROM reconcile.health WHERE check_name = 'loops' AND status = 'crit') = 2}, 'health names both');
all_run($fleet, 'other loops go on');
command('fleet', q{CREATE FUNCTION fns.f(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO app.note VALUES (id)';
	SELECT reconcile.alter_loop('dropped', '{"concurrency": 2}')}, 'it is made again');
wait_for($fleet, q{(SELECT count(DISTINCT t) FROM app.note) = 2}, 'and what waited runs');
command('fleet', q{CREATE OR REPLACE FUNCTION fns.f(id text) RETURNS void LANGUAGE sql AS $$ INSERT INTO app.note VALUES (id || ' anew') $$},
	'CREATE OR REPLACE FUNCTION');
enqueue($fleet, 'dropped', 'c');
wait_for($fleet, q{EXISTS (SELECT FROM app.note WHERE t = 'c anew')}, 'the next run is by the new one');
sql($fleet, q{SELECT reconcile.drop_loop('cascaded')});

sql($fleet, q{SET ROLE app;
	CREATE FUNCTION fns.theirs(id text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(300); END $$;
	SELECT reconcile.create_loop('theirs', 'fns.theirs', concurrency => 1);
	SELECT reconcile.enqueue_many('theirs', '{a,b}')});
in_run('theirs');
command('fleet', 'DROP OWNED BY app', q{DROP OWNED BY a loop's owner});
command('fleet', 'DROP ROLE app', 'DROP ROLE');
sql($fleet, q{SELECT reconcile.cancel_run('theirs', 'a'), reconcile.cancel_run('theirs', 'b')});
wait_for($fleet, q{EXISTS (SELECT FROM reconcile.health WHERE detail = 'loop "theirs" cannot run: its owner is gone')}, 'health says that he is gone');
sql($fleet, q{SELECT count(pg_terminate_backend(pid, 4000)) FROM pg_stat_activity WHERE backend_type = 'reconcile executor' AND usename IS NULL AND datname = 'fleet'});
$node->wait_for_log(qr/LOG:  a loop of the role with OID \d+ cannot run: its owner is gone/);
all_run($fleet, 'other loops go on');
sql($fleet, q{SELECT reconcile.drop_loop('theirs')});

# ----------------------------------------------------------------------
note 'databases';

command('postgres', "CREATE TABLESPACE elsewhere LOCATION ''; ALTER DATABASE fleet SET TABLESPACE elsewhere", 'ALTER DATABASE SET TABLESPACE');
all_run($fleet, 'the loops go on');
command('postgres', 'CREATE DATABASE copy TEMPLATE fleet', 'CREATE DATABASE … TEMPLATE');
all_run($fleet, 'the loops go on');
wait_for($node, q{EXISTS (SELECT FROM reconcile.workers WHERE database = 'copy' AND kind = 'dispatcher' AND state = 'running')},
	'and the copy has a dispatcher');
command('postgres', 'DROP DATABASE copy WITH (FORCE)', 'DROP DATABASE … WITH (FORCE)');

command('postgres', 'ALTER DATABASE fleet ALLOW_CONNECTIONS false', 'a database that may not be connected to');
wait_for($node, q{NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'fleet')}, 'is left');
command('postgres', 'ALTER DATABASE fleet ALLOW_CONNECTIONS true', 'may be again');
all_run($fleet, 'and its loops go on');
command('postgres', 'ALTER DATABASE fleet CONNECTION LIMIT 0; ALTER ROLE CURRENT_USER CONNECTION LIMIT 0', 'no connections but those of superusers');
sql($node, q{SELECT count(pg_terminate_backend(pid, 4000)) FROM reconcile.workers WHERE database = 'fleet' AND kind = 'dispatcher'});
all_run($fleet, 'a new dispatcher, too, connects');
sql($node, 'ALTER DATABASE fleet CONNECTION LIMIT -1; ALTER ROLE CURRENT_USER CONNECTION LIMIT -1');

sql($node, q{UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'fleet'});
command('postgres', 'ALTER DATABASE postgres CONNECTION LIMIT -1', 'a database that DROP DATABASE has left half dropped');
wait_for($node, q{NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'fleet')}, 'is left');
$node->restart;
launcher_turn();
sql($node, q{UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'fleet'; ALTER DATABASE postgres CONNECTION LIMIT -1});
all_run($fleet, 'were it whole again, its loops would run');

# ----------------------------------------------------------------------
note 'the owner of the extension goes';

sql($node, 'CREATE ROLE installer SUPERUSER');
make_fleet('theirs', 'installer');
my $theirs = [ $node, 'theirs' ];
all_run($theirs, 'loops run');
command('theirs', 'BEGIN; DROP OWNED BY installer CASCADE; ROLLBACK', 'DROP OWNED BY its owner, rolled back');
all_run($theirs, 'loops go on');
command('theirs', 'DROP OWNED BY installer CASCADE', 'DROP OWNED BY its owner');
is(sql($theirs, q{SELECT count(*) FROM pg_extension WHERE extname = 'reconcile'}), 0, 'it is gone');
wait_for($node, q{NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'theirs')}, 'and so are the workers');
command('postgres', 'DROP DATABASE theirs', 'DROP DATABASE');

# ----------------------------------------------------------------------
note 'databases come and go while workers are about to start in them';

srand(81);
foreach my $n (1 .. 12)
{
	sql($node, "CREATE DATABASE brief$n TEMPLATE fleet");
	usleep(rand(60_000));
	command('postgres', "DROP DATABASE brief$n" . ($n % 2 ? ' WITH (FORCE)' : ''), "database $n");
}
all_run($fleet, 'the loops of their template go on');
command('postgres', 'DROP DATABASE fleet', 'DROP DATABASE');

# Our processes have no name in the prefix of the log, sessions do.  A dispatcher
# that was ended says so.
my @said = grep { /\[\d+\] (?:WARNING|ERROR|FATAL|PANIC):/ && !/FATAL:  terminating background worker/ } split /\n/, slurp_file($node->logfile);
is(join("\n", @said), '', 'our processes said nothing in the log');

finish();

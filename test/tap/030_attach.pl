# Which database has a dispatcher, and that it has one only (P1): after a
# restart, after a dispatcher that came too late, where the extension was dropped
# and made anew, and where reconcile.databases says so.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

# Nobody else waits for pg_db_role_setting.
my $node = new_node('main', conf => "max_worker_processes = 24\nautovacuum = off\n");
expect_log(qr/FATAL:  terminating background worker "reconcile dispatcher/);
my %database = map { $_ => [ $node, $_ ] } qw(postgres second third);

foreach my $name (sort keys %database)
{
	sql($node, qq{CREATE DATABASE $name}) unless $name eq 'postgres';
	sql($database{$name}, q{CREATE EXTENSION IF NOT EXISTS reconcile});
	prepare($database{$name});
	make_loop($database{$name}, 'drive');
}

sub runs_in
{
	my ($name, $entity, $what) = @_;
	enqueue($database{$name}, 'drive', $entity);
	wait_for($database{$name}, qq{EXISTS (SELECT FROM app.run WHERE entity_id = '$entity')}, $what);
	return;
}

# ----------------------------------------------------------------------
note 'after a restart';

runs_in($_, 'before', "$_: its loop runs") for sort keys %database;
enqueue($database{$_}, 'drive', 'over') for sort keys %database;
$node->restart;
wait_for($node, q{(SELECT count(*) FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running') = 3}, 'all databases get their dispatchers');
is(sql($node, q{SELECT max(backend_start) - min(backend_start) < interval '5 s' FROM pg_stat_activity WHERE backend_type = 'reconcile dispatcher'}),
	't', 'one after the other, without a wait for the deadline of a start in between');
runs_in($_, 'after', "$_: its loop runs") for sort keys %database;

# ----------------------------------------------------------------------
note 'reconcile.databases is changed';

my $dispatchers = q{(SELECT string_agg(database, ' ' ORDER BY database) FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running')};

sub serve
{
	my ($names) = @_;
	$node->append_conf('postgresql.conf', "reconcile.databases = '$names'\n");
	$node->reload;
	return;
}

serve('postgres, third');
wait_for($node, qq{$dispatchers = 'postgres third'}, 'a database that is not named is left');
enqueue($database{second}, 'drive', 'left');
runs_in('third', 'named', 'one that is named is not');
is(runs($database{second}, 'drive', 'left'), 0, 'where nobody is nothing runs');
serve('postgres, second');
wait_for($database{second}, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'left')}, 'named again it is served, with what came meanwhile');
wait_for($node, qq{$dispatchers = 'postgres second'}, 'and the other is left');
serve('');
wait_for($node, qq{$dispatchers = 'postgres second third'}, 'all are served where none is named');
runs_in('third', 'unnamed', 'as before');

# ----------------------------------------------------------------------
note q{the extension goes with its owner's objects, and comes back};

sql($node, q{CREATE ROLE keeper SUPERUSER LOGIN; CREATE DATABASE kept});
my $kept = [ $node, 'kept' ];

foreach my $time (qw(first second))
{
	sql($kept, q{
		SET ROLE keeper;
		CREATE EXTENSION reconcile;
		CREATE TABLE seen (id text);
		CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO public.seen VALUES (id)';
		SELECT reconcile.create_loop('see', 'see', default_requeue => NULL);
		SELECT reconcile.enqueue('see', 'a');
	});
	wait_for($kept, q{EXISTS (SELECT FROM seen)}, "made for the $time time, its loop runs");
	sql($kept, q{DROP OWNED BY keeper CASCADE});
	is(sql($kept, q{SELECT count(*) FROM pg_extension WHERE extname = 'reconcile'}), 0, 'DROP OWNED takes it away');
}
wait_for($node, q{NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'kept' AND backend_type LIKE 'reconcile%')}, 'then nobody of ours is left there');
sql($node, 'DROP DATABASE kept');

# ----------------------------------------------------------------------
note 'a dispatcher hangs while it connects, and another is started in its place';

# While the lock is held nobody can connect; who waits for it is a dispatcher of this database.
my $holder = $node->background_psql('postgres');
my $observer = $node->background_psql('postgres');

sub observe
{
	my ($condition, $name) = @_;
	ok($observer->query_safe(qq{
		DO \$\$ BEGIN
			FOR i IN 1 .. 3000 LOOP
				EXIT WHEN $condition;
				PERFORM pg_sleep(0.02);
			END LOOP;
		END \$\$;
		SELECT CASE WHEN $condition THEN 'yes' ELSE 'no' END}) eq 'yes', $name);
	return;
}

my $waiting = q{(SELECT %s FROM pg_locks WHERE relation = 'pg_db_role_setting'::regclass AND NOT granted)};
my $count = sprintf $waiting, 'count(*)';
my $pids = sprintf $waiting, q{string_agg(pid::text, ' ')};
my $dispatcher = dispatcher_pid($node);
$holder->query_safe('BEGIN; LOCK TABLE pg_catalog.pg_db_role_setting IN ACCESS EXCLUSIVE MODE');
$observer->query_safe("SELECT pg_terminate_backend($dispatcher, 10000)");
observe("$count = 1", 'its successor hangs');
my $late = $observer->query_safe("SELECT $pids");
observe("$count = 2", 'and is given up');
my ($next) = grep { $_ != $late } split / /, $observer->query_safe("SELECT $pids");

# The late one is first to go on.
kill('STOP', $next) or die;
$holder->query_safe('COMMIT');
$_->quit for $holder, $observer;
for (1 .. 500)
{
	last unless kill(0, $late);
	usleep(20_000);
}
ok(!kill(0, $late), 'it leaves when it can go on');
kill('CONT', $next) or die;
runs_in('postgres', 'freed 1', 'the one in its place does the work');
is(dispatcher_pid($node), $next, 'it is the dispatcher');
runs_in('postgres', "freed $_", 'it stays awake') for 2 .. 4;
is(dispatcher_pid($node), $next, 'it is not replaced');
is(sql($node, q{SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type = 'reconcile dispatcher'}),
	$next, 'there is no other');

finish();

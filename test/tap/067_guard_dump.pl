# Guarded tables in a dump (P6): the data is restored before the guard, which
# stands afterwards as it stood; a restore of data alone must be let in.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
my $dump = $node->basedir . '/dump';

# pg_restore goes when it is refused, and the server may be about to send it more
expect_log(qr/FATAL:  connection to client lost/);

sql($node, q{
	CREATE SCHEMA app;
	CREATE TABLE app.device (id text PRIMARY KEY, want text, have text, last_epoch bigint NOT NULL DEFAULT 0);
	CREATE TABLE app.part (id text, region text, have text, "odd ""epoch" bigint NOT NULL) PARTITION BY LIST (region);
	CREATE TABLE app.part_a (have text, "odd ""epoch" bigint NOT NULL, region text, id text);
	ALTER TABLE app.part ATTACH PARTITION app.part_a FOR VALUES IN ('a');
	CREATE TABLE app.part_b PARTITION OF app.part FOR VALUES IN ('b') PARTITION BY LIST (id);
	CREATE TABLE app.part_b1 PARTITION OF app.part_b DEFAULT;
	SELECT reconcile.attach_fence('app.device', 'fleet', 'id', columns => '{have}');
	SELECT reconcile.attach_fence('app.part', 'fleet', 'id', 'odd "epoch');
	CREATE TABLE app.part_c PARTITION OF app.part FOR VALUES IN ('c');
	SELECT reconcile.acquire_lease('fleet', 'a', '1 h');
	BEGIN;
	SELECT reconcile.bind_lease('fleet', 'a', 1);
	INSERT INTO app.part SELECT 'r' || g, CASE g % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE 'c' END, 'w' FROM generate_series(1, 300) g;
	INSERT INTO app.device SELECT 'd' || g, 'w', 'h' FROM generate_series(1, 100) g;
	COMMIT;
	BEGIN;
	SELECT reconcile.override_fence('app.device', 'kept in the dump');
	DELETE FROM app.device WHERE id = 'd1';
	COMMIT;
});
my $guards = q{SELECT relation, reconciler_id, kind, part, entity_column, epoch_column, columns, trigger_name, fires FROM reconcile.fence_triggers() ORDER BY 1, 3};
my $rows = q{SELECT count(*), sum(last_epoch), (SELECT count(*) || ' ' || sum("odd ""epoch") FROM app.part) FROM app.device};
my $before = sql($node, $guards);
my $lines = () = $before =~ /\n/g;
is($lines + 1, 14, 'there are triggers to be dumped');
is(sql($node, $rows), '99|99|300 300', 'and stamped rows');

$node->command_ok([ 'pg_dump', '-Fp', '--file', "$dump.sql", $node->connstr('postgres') ], 'dumped as a script');
$node->command_ok([ 'pg_dump', '-Fd', '--file', "$dump.d", $node->connstr('postgres') ], 'and as a folder');
sql($node, "CREATE DATABASE $_") for qw(script parallel);
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '--file', "$dump.sql", $node->connstr('script') ], 'the script is restored without an error');
$node->command_ok([ 'pg_restore', '--exit-on-error', '--jobs', '3', '--dbname', $node->connstr('parallel'), "$dump.d" ], 'the folder is, in parallel');

for my $database (qw(script parallel))
{
	my $where = [ $node, $database ];

	note "restored: $database";
	is(sql($where, $guards), $before, 'the guards are the same');
	is(sql($where, $rows), '99|99|300 300', 'so are the rows and their stamps');
	is(sql($where, q{SELECT * FROM reconcile.fence_problems()}), '', 'no problem is listed');
	is(sql($where, q{SELECT evtenabled FROM pg_event_trigger WHERE evtname = 'reconcile_fence'}), 'A', 'the event trigger is there once, and always enabled');
	is(sql($where, q{SELECT relation, reason, rows FROM reconcile.fence_overrides}), 'app.device|kept in the dump|1', 'the record of an override is there');
	session_fails($where, 'RC006', $_, "refused: $_") for (
		q{UPDATE app.device SET have = 'x'}, q{DELETE FROM app.part_b1}, q{TRUNCATE app.part_c}, q{TRUNCATE app.part_b},
		q{SET session_replication_role = replica; INSERT INTO app.part VALUES ('x', 'a', 'x', 5)});
	sql($where, q{
		UPDATE app.device SET want = 'free';
		CREATE TABLE app.part_d PARTITION OF app.part FOR VALUES IN ('d');
	});
	session_fails($where, 'RC006', q{TRUNCATE app.part_d}, 'a partition that comes now is guarded');

	note 'data alone';
	sql($where, q{BEGIN; SELECT reconcile.override_fence('app.device', 'emptied'); TRUNCATE app.device; COMMIT; TRUNCATE reconcile.lease, reconcile.lease_term, reconcile.fence_override, reconcile.access_grant});
	$node->command_fails([ 'pg_restore', '--data-only', '--exit-on-error', '--table', 'device', '--dbname', $node->connstr($database), "$dump.d" ], 'is refused as any COPY is');
	is(sql($where, q{SELECT count(*) FROM app.device}), 0, 'and brings nothing');
	$node->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '--exit-on-error', '--table', 'device', '--dbname', $node->connstr($database), "$dump.d" ],
		'with --disable-triggers it is let in');
	is(sql($where, q{SELECT count(*), min(last_epoch) FROM app.device}), '99|1', 'with the stamps of the dump');
	session_fails($where, 'RC006', q{DELETE FROM app.device}, 'the guard stands again');
	is(sql($where, q{SELECT count(*) FROM reconcile.fence_problems()}), 3, 'but not for a replica: that is listed');
	sql($where, q{SELECT reconcile.attach_fence('app.device', 'fleet', 'id', columns => '{have}')});
	is(sql($where, q{SELECT count(*) FROM reconcile.fence_problems()}), 0, 'and mended by the same call of attach_fence()');

	sql($where, 'DROP EXTENSION reconcile');
	is(sql($where, q{SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%reconcile%'}), 0, 'DROP EXTENSION takes them away');
}

finish();

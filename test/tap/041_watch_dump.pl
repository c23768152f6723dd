# Watched tables in a dump: pg_dump carries the triggers, and restoring them
# meets none that the event trigger has made, in one session or in parallel.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
my $dump = $node->basedir . '/dump';

sql($node, q{
	SELECT reconcile.create_loop('fleet'), reconcile.create_loop('second');
	CREATE SCHEMA app;
	CREATE TABLE app.device (id text PRIMARY KEY, want text, have text);
	CREATE TABLE app.part (id text, region text, want text, "odd ""name" text) PARTITION BY LIST (region);
	CREATE TABLE app.part_a (want text, "odd ""name" text, region text, id text);
	ALTER TABLE app.part ATTACH PARTITION app.part_a FOR VALUES IN ('a');
	CREATE TABLE app.part_b PARTITION OF app.part FOR VALUES IN ('b') PARTITION BY LIST (id);
	CREATE TABLE app.part_b1 PARTITION OF app.part_b DEFAULT;
	SELECT reconcile.watch('fleet', 'app.device', 'id'), reconcile.watch('second', 'app.device', 'id', '{want}');
	SELECT reconcile.watch('fleet', 'app.part', 'odd "name', ARRAY['want', 'id', 'odd "name']::name[]);
	CREATE TABLE app.part_c PARTITION OF app.part FOR VALUES IN ('c');
	INSERT INTO app.part SELECT 'r' || g, CASE g % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE 'c' END, 'w', 'o' || g FROM generate_series(1, 300) g;
	SELECT reconcile.forget('fleet', entity_id) FROM (SELECT DISTINCT entity_id FROM reconcile.mark) m;
});
my $watches = q{SELECT loop_name, relation, kind, part, entity_column, columns, trigger_name, fires FROM reconcile.watch_triggers() ORDER BY 1, 2, 3};
my $before = sql($node, $watches);
my $lines = () = $before =~ /\n/g;
cmp_ok($lines, '>', 20, 'there are triggers to be dumped');

$node->command_ok([ 'pg_dump', '-Fp', '--file', "$dump.sql", $node->connstr('postgres') ], 'dumped as a script');
$node->command_ok([ 'pg_dump', '-Fd', '--file', "$dump.d", $node->connstr('postgres') ], 'and as a folder');
sql($node, "CREATE DATABASE $_") for qw(script parallel);
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '--file', "$dump.sql", $node->connstr('script') ], 'the script is restored without an error');
$node->command_ok([ 'pg_restore', '--exit-on-error', '--jobs', '3', '--dbname', $node->connstr('parallel'), "$dump.d" ], 'the folder is, in parallel');

for my $database (qw(script parallel))
{
	my $where = [ $node, $database ];

	note "restored: $database";
	is(sql($where, $watches), $before, 'the triggers are the same');
	is(sql($where, q{SELECT * FROM reconcile.watch_problems()}), '', 'no problem is listed');
	is(sql($where, q{SELECT evtenabled FROM pg_event_trigger WHERE evtname = 'reconcile_watch'}), 'A', 'the event trigger is there once, and always enabled');
	is(sql($where, q{SELECT count(*) FROM reconcile.mark}), 0, 'the restore marked nothing');
	sql($where, q{
		CREATE TABLE app.part_d PARTITION OF app.part FOR VALUES IN ('d');
		INSERT INTO app.part_d VALUES ('x', 'd', 'w', 'by part');
		UPDATE app.part SET want = 'v' WHERE id = 'r1';
		UPDATE app.part_a SET region = 'a' WHERE id = 'r3';
		INSERT INTO app.device VALUES ('by root');
	});
	is(sql($where, q{SELECT string_agg(loop_name || ' ' || entity_id, ', ' ORDER BY loop_name, entity_id) FROM reconcile.mark}),
		'fleet by part, fleet by root, fleet o1, second by root', 'and they mark as before');
	sql($where, 'DROP EXTENSION reconcile');
	is(sql($where, q{SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'reconcile%'}), 0, 'DROP EXTENSION takes them away');
}

finish();

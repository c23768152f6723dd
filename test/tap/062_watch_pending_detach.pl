# A partition whose DETACH CONCURRENTLY was broken off is a partition without a
# root: watch() and unwatch() answer for it like for any other table.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main');

sql($node, q{
	CREATE TABLE device (id text, region text) PARTITION BY LIST (region);
	CREATE TABLE device_a PARTITION OF device FOR VALUES IN ('a');
	CREATE TABLE device_b PARTITION OF device FOR VALUES IN ('b') PARTITION BY LIST (id);
	SELECT reconcile.create_loop('fleet');
	SELECT reconcile.watch('fleet', 'device', 'id');
});

sub break_off_detach
{
	my ($partition) = @_;
	my $reader = $node->background_psql('postgres');

	$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM device');
	my ($status, undef, $err) = $node->psql('postgres', "SET statement_timeout = '300 ms';\nALTER TABLE device DETACH PARTITION $partition CONCURRENTLY");
	like($err, qr/statement timeout/, "the detaching of $partition is broken off");
	$reader->query_safe('COMMIT');
	$reader->quit;
	is(sql($node, "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = '$partition'::regclass"), 't', 'and is pending');
	return;
}

break_off_detach('device_a');
my (undef, undef, $err) = $node->psql('postgres', q{SELECT reconcile.watch('fleet', 'device_a', 'id')});
like($err, qr/ERROR:  cannot watch "device_a": it is a partition\nHINT:  It is being detached: .* FINALIZE\./, 'watch() refuses it, and says how it goes on');
sql($node, q{SELECT reconcile.unwatch('fleet', 'device_a')});
is(sql($node, q{SELECT count(*) FROM reconcile.watch_triggers() WHERE relation = 'device_a'::regclass}), '0', 'unwatch() takes its triggers');
sql($node, 'ALTER TABLE device DETACH PARTITION device_a FINALIZE');

break_off_detach('device_b');
sql($node, q{CREATE TABLE device_b1 PARTITION OF device_b FOR VALUES IN ('x')});
is(sql($node, q{SELECT count(*) FROM reconcile.watch_triggers() WHERE relation = 'device_b1'::regclass}), '0', 'a partition that is made below such a one is not watched');
sql($node, 'ALTER TABLE device DETACH PARTITION device_b FINALIZE');
is(sql($node, q{SELECT count(*) FROM reconcile.watch_problems()}), '0', 'in the end nothing is amiss');

finish();

# Watched tables of a subscriber (P1): what a subscription copies at first and
# applies later is marked with it, on an ordinary and on a partitioned table.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $publisher = new_node('publisher', extension => 0, preload => 0, allows_streaming => 'logical', conf => "wal_level = logical\n");
my $subscriber = new_node('subscriber', conf => "max_worker_processes = 16\n");

# The apply worker does not close a partition on which an AFTER ROW trigger fired,
# whatever the trigger's function, and says so on 18, or with assertions.
expect_log(qr/WARNING:  (resource was not closed|relcache reference leak): relation "(event|part)_\d"/)
  if $ENV{RECONCILE_PG_VERSION} >= 18 || sql($subscriber, 'SHOW debug_assertions') eq 'on';

# ----------------------------------------------------------------------
note 'a publisher that knows nothing of us';

sql($publisher, q{
	CREATE TABLE device (n int PRIMARY KEY, id text, have text);
	CREATE TABLE event (n int PRIMARY KEY, id text, have text);
	CREATE TABLE part (n int, id text, have text, PRIMARY KEY (n)) PARTITION BY RANGE (n);
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
	CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
	INSERT INTO device VALUES (1, 'first'), (2, 'first'), (3, 'second');
	INSERT INTO event VALUES (1, 'e1'), (11, 'e2');
	INSERT INTO part VALUES (1, 'p1'), (11, 'p2');
	-- to a partitioned table under another name of its partitions, and to partitions themselves
	CREATE PUBLICATION ours FOR TABLE device, event;
	CREATE PUBLICATION parts FOR TABLE part WITH (publish_via_partition_root = false);
});

# Outside workers are nobody here: the marks of this loop stay.
prepare($subscriber);
make_loop($subscriber, 'drive');
sql($subscriber, q{
	SELECT reconcile.create_loop('fleet');
	CREATE TABLE device (have text, id text, n int PRIMARY KEY);
	CREATE TABLE event (n int, id text, have text, PRIMARY KEY (n)) PARTITION BY RANGE (n);
	CREATE TABLE event_1 (have text, id text, n int NOT NULL);
	ALTER TABLE event ATTACH PARTITION event_1 FOR VALUES FROM (0) TO (10);
	CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM (10) TO (20);
	CREATE TABLE part (n int, id text, have text, PRIMARY KEY (n)) PARTITION BY RANGE (n);
	CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (10);
	SELECT reconcile.watch('fleet', 'device', 'id', '{id,n}');
	SELECT reconcile.watch('drive', 'device', 'id');
	SELECT reconcile.watch('fleet', 'event', 'id');
	SELECT reconcile.watch('fleet', 'part', 'id');
	CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (10) TO (20);
});

# What loop fleet has been marked for since the last call.
sub marked
{
	my $marks = sql($subscriber, q{SELECT string_agg(entity_id || ' ' || n, ', ' ORDER BY entity_id)
		FROM (SELECT entity_id, count(*) AS n FROM reconcile.mark WHERE loop_name = 'fleet' GROUP BY entity_id) m});
	sql($subscriber, q{SELECT reconcile.forget('fleet', entity_id) FROM (SELECT DISTINCT entity_id FROM reconcile.mark WHERE loop_name = 'fleet') m});
	return $marks;
}

# applied(QUERY, MARKS, NAME): what a transaction of the publisher comes to here.
sub applied
{
	my ($query, $marks, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($publisher, $query);
	$publisher->wait_for_catchup('ours');
	is(marked(), $marks, $name);
	return;
}

# ----------------------------------------------------------------------
note 'the initial copy';

my $connection = $publisher->connstr . ' dbname=postgres';
sql($subscriber, "CREATE SUBSCRIPTION ours CONNECTION '$connection' PUBLICATION ours, parts");
$subscriber->wait_for_subscription_sync($publisher, 'ours');
is(marked(), 'e1 1, e2 1, first 1, p1 1, p2 1, second 1', 'marks each entity that it brings, once');
wait_for($subscriber, q{(SELECT count(DISTINCT entity_id) FROM app.run) = 2}, 'and they run');
wait_quiet($subscriber, 'drive');

# ----------------------------------------------------------------------
note 'rows that are applied';

applied(q{INSERT INTO device SELECT 100 + g, 'many' FROM generate_series(1, 500) g}, 'many 1', 'an entity is marked once in a transaction');
applied(q{UPDATE device SET id = 'third' WHERE n = 3}, 'second 1, third 1', 'an update marks the old and the new value');
applied(q{UPDATE device SET have = 'x' WHERE n = 1}, '', 'but not where none of the columns changed');
applied(q{DELETE FROM device WHERE n = 2}, 'first 1', 'a deletion marks');
applied(q{BEGIN; INSERT INTO device VALUES (4, 'undone'); ROLLBACK}, '', 'what was rolled back does not come');
applied(q{INSERT INTO event VALUES (2, 'e3'), (12, 'e4'), (13, 'e3')}, 'e3 1, e4 1', 'rows that are routed to partitions mark');
applied(q{UPDATE event SET n = 14, id = 'e5' WHERE n = 2}, 'e3 1, e5 1', 'so does one that moves to another');
applied(q{INSERT INTO part VALUES (2, 'p3'), (12, 'p4'); DELETE FROM part WHERE n = 1}, 'p1 1, p3 1, p4 1', 'and those of partitions that are published themselves');
expect_log(qr/WARNING:  a value of column "id" of "device" is no entity id for loop "(fleet|drive)"/);
applied(q{INSERT INTO device VALUES (5, repeat('x', 600)), (6, repeat('y', 600)), (7, 'good')}, ' 1, good 1', 'a value that is no entity id stops nothing');
wait_for($subscriber, qq{EXISTS (SELECT FROM app.run WHERE entity_id = '$_')}, "'$_' runs, told of by the apply worker") for 'many', 'third', '', 'good';

# ----------------------------------------------------------------------
note 'a partition that the subscriber makes later, and TRUNCATE';

sql($subscriber, q{CREATE TABLE event_3 PARTITION OF event FOR VALUES FROM (20) TO (30)});
applied(q{INSERT INTO event VALUES (21, 'e6')}, 'e6 1', 'its rows mark');
sql($subscriber, q{SELECT reconcile.enqueue('fleet', 'known', '1 hour')});
applied(q{TRUNCATE event}, 'known 2', 'TRUNCATE of a partitioned table marks what is known, once');
sql($subscriber, q{SELECT reconcile.enqueue('fleet', 'known', '1 hour')});
applied(q{TRUNCATE device, part}, 'known 2', 'and of several tables');
is(sql($subscriber, q{SELECT * FROM reconcile.watch_problems()}), '', 'no problem is listed');

expect_log(qr/FATAL:  terminating logical replication worker due to administrator command/);
sql($subscriber, 'DROP SUBSCRIPTION ours');
finish();

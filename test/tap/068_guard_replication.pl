# Guarded tables and replication (P6): a table that a subscription writes cannot
# be guarded; the publisher's can; a subscription that comes later is kept out,
# and listed. A standby refuses to guard, and is guarded when it is promoted.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $publisher = new_node('publisher', allows_streaming => 'logical', conf => "wal_level = logical\n");
my $subscriber = new_node('subscriber', preload => 0, conf => "max_worker_processes = 16\n");

sql($publisher, q{
	CREATE TABLE device (id text PRIMARY KEY, have text, last_epoch bigint NOT NULL DEFAULT 0);
	CREATE TABLE later (LIKE device INCLUDING ALL);
	CREATE TABLE part (LIKE device INCLUDING ALL);
	SELECT reconcile.attach_fence('device', 'fleet', 'id');
	SELECT reconcile.acquire_lease('fleet', 'a', '1 h');
	CREATE PUBLICATION ours FOR TABLE device, part;
	CREATE PUBLICATION second FOR TABLE later;
});
sql($subscriber, q{
	CREATE TABLE device (id text PRIMARY KEY, have text, last_epoch bigint NOT NULL DEFAULT 0);
	CREATE TABLE later (LIKE device INCLUDING ALL);
	CREATE TABLE part (LIKE device INCLUDING ALL);
	CREATE TABLE tree (id text PRIMARY KEY, have text, last_epoch bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id);
});

# ----------------------------------------------------------------------
note 'the target of a subscription';

my $connection = $publisher->connstr . ' dbname=postgres';
sql($subscriber, "CREATE SUBSCRIPTION ours CONNECTION '$connection' PUBLICATION ours");
$subscriber->wait_for_subscription_sync($publisher, 'ours');
session_fails($subscriber, 42809, q{SELECT reconcile.attach_fence('device', 'fleet', 'id')}, 'is not guarded');
sql($subscriber, q{SELECT reconcile.attach_fence('tree', 'fleet', 'id')});
session_fails($subscriber, 42809, q{ALTER TABLE tree ATTACH PARTITION part FOR VALUES IN ('p')}, 'nor made a partition of a guarded table');
sql($subscriber, q{SELECT reconcile.detach_fence('tree'); ALTER TABLE tree ATTACH PARTITION part FOR VALUES IN ('p')});
session_fails($subscriber, 42809, q{SELECT reconcile.attach_fence('tree', 'fleet', 'id')}, 'nor guarded as one');
is(sql($subscriber, q{SELECT count(*) FROM reconcile.fence_triggers()}), 0, 'there is no guard');

# ----------------------------------------------------------------------
note 'what the publisher writes under its guard';

sql($publisher, q{BEGIN; SELECT reconcile.bind_lease('fleet', 'a', 1); INSERT INTO device VALUES ('a', 'x', 7); UPDATE device SET have = 'y'; COMMIT});
session_fails($publisher, 'RC006', q{UPDATE device SET have = 'z'}, 'and nothing else');
$publisher->wait_for_catchup('ours');
is(sql($subscriber, q{SELECT * FROM device}), 'a|y|1', 'comes with its stamp');

# ----------------------------------------------------------------------
note 'a subscription that comes to a guarded table';

sql($subscriber, q{SELECT reconcile.attach_fence('later', 'fleet', 'id')});
expect_log(qr/ERROR:  table "later" is guarded/);
sql($subscriber, "CREATE SUBSCRIPTION second CONNECTION '$connection' PUBLICATION second");
$subscriber->wait_for_subscription_sync($publisher, 'second');
sql($publisher, q{INSERT INTO later VALUES ('l', 'x')});
ok($subscriber->wait_for_log(qr/ERROR:  table "later" is guarded: lease "fleet" is not bound/), 'is refused');
is(sql($subscriber, q{SELECT count(*) FROM later}), 0, 'and writes nothing');
is(sql($subscriber, q{SELECT relation || ': ' || problem FROM reconcile.fence_problems()}),
	'public.later: a subscription writes to it, and comes without an epoch', 'it is listed');
sql($subscriber, q{SELECT reconcile.detach_fence('later')});
$publisher->wait_for_catchup('second');
is(sql($subscriber, q{SELECT id FROM later}), 'l', 'without the guard it goes on');
expect_log(qr/FATAL:  terminating logical replication worker due to administrator command/);
sql($subscriber, $_) for 'DROP SUBSCRIPTION ours', 'DROP SUBSCRIPTION second';

# ----------------------------------------------------------------------
note 'a standby';

my $standby = new_standby($publisher, 'standby');
$publisher->wait_for_catchup($standby);
session_fails($standby, 25006, "SELECT reconcile.$_", "refuses $_") for
  q{attach_fence('later', 'fleet', 'id')}, q{detach_fence('device')}, q{override_fence('device', 'x')};
is(sql($standby, q{SELECT count(*) FROM reconcile.fence_triggers()}), 3, 'shows the guards');
is(sql($standby, q{SELECT status FROM reconcile.health WHERE check_name = 'guards'}), 'ok', 'which health looks at');
$standby->promote;
session_fails($standby, 'RC006', q{DELETE FROM device}, 'promoted, it is guarded');

finish();

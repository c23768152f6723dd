# Claims that a promotion loses (P5 for outside workers): the epoch that fences an
# attempt is not given to another one on the promoted server.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Its primary goes away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);

my $conf = "max_worker_processes = 16\n";
my $primary = new_node('primary', allows_streaming => 1, conf => $conf);
sql($primary, q{SELECT reconcile.create_loop('outside', default_requeue => NULL)});
my $standby = new_standby($primary, 'standby', conf => $conf);
my $claim = q{SELECT claim_epoch FROM reconcile.claim_work('outside', 'worker', ttl => '1 h')};

sub again
{
	my ($node, $epoch) = @_;
	sql($node, qq{SELECT reconcile.complete_work('outside', 'e', $epoch); SELECT reconcile.enqueue('outside', 'e')});
	return sql($node, $claim);
}

sql($primary, q{SELECT reconcile.enqueue('outside', 'e')});
my $known = sql($primary, $claim);
$primary->wait_for_catchup($standby);
sql($standby, q{ALTER SYSTEM SET primary_conninfo = ''});
$standby->reload;
ok($standby->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)}), 'the standby is cut off');

# more than the numbers that the server takes from a sequence at once
my $lost = $known;
$lost = again($primary, $lost) for 1 .. 40;
is($lost, $known + 40, 'claims follow that never arrive');
$primary->stop('immediate');
$standby->promote;

is(sql($standby, q{SELECT since IS NULL FROM reconcile.incarnation()}), 't', 'nothing was granted since');
session_fails($standby, 'RC017', qq{SELECT reconcile.complete_work('outside', 'e', $lost)}, 'a lost claim is none');
my $new = again($standby, $known);
cmp_ok($new, '>', $lost, 'the claim that arrived stands, and the next is above those that did not');
cmp_ok($new, '<', 2**53, 'which any JSON number can hold');
$new = again($standby, $new) while $new < $lost;
session_fails($standby, 'RC017', qq{SELECT reconcile.complete_work('outside', 'e', $lost)}, 'a lost claim does not report for another');
session_fails($standby, 'RC017', qq{SELECT reconcile.fail_work('outside', 'e', $lost, 'no')}, 'nor fail it');
is(sql($standby, qq{SELECT extended FROM reconcile.extend_work('outside', '{e}', '{$lost}')}), 'f', 'nor extend it');
is(sql($standby, $claim), '', 'the entity is claimed');
is(again($standby, $new), $new + 1, 'and goes on');

finish();

# pg_upgrade from PostgreSQL 15 (P5, P6): the new cluster has all rows and another
# system identifier; its timeline is 1 again, whatever the old one's was. Epochs of
# before are void, new ones are higher, and loops wait for resume_all(). Commands and
# their audit are there, and pollers begin anew.
#
# It needs the programs of 15 beside those of the version under test: scripts/test
# brings them where it runs 17.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use LostPast;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

if (!defined $ENV{RECONCILE_OLD_SERVER})
{
	pass('there is no older version beside this one');
	done_testing();
	exit;
}

my $conf = "max_worker_processes = 16\nrestart_after_crash = on\nlog_statement = none\n";
my $old = PostgreSQL::Test::Cluster->new('old', install_path => $ENV{RECONCILE_OLD_SERVER});
$old->init(extra => [ '--no-locale', '--encoding=UTF8' ], allows_streaming => 1);
# The extension is below the folder of these programs, where they look.
$old->append_conf('postgresql.conf', "shared_preload_libraries = 'reconcile'\n$conf");
watch_log($old);
$old->start;
is(sql($old, q{SELECT current_setting('server_version_num')::int / 10000}), 15, 'an old server runs');

# Its timeline is 2, as a standby was promoted.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);
sql($old, 'CREATE EXTENSION reconcile');
$old->backup('base');
my $promoted = PostgreSQL::Test::Cluster->new('promoted', install_path => $ENV{RECONCILE_OLD_SERVER});
$promoted->init_from_backup($old, 'base', has_streaming => 1);
watch_log($promoted);
$promoted->start;
$old->wait_for_catchup($promoted);
$old->stop('immediate');
$promoted->promote;

prepare($promoted);
make_loop($promoted, 'drive');
make_loop($promoted, 'led', options => q{lease_ttl => '1 hour'}, body => q{PERFORM reconcile.fenced_write(entity, '{}'); RETURN NULL;});
enqueue($promoted, 'led', 'a');
wait_for($promoted, q{EXISTS (SELECT FROM reconcile.resources WHERE reconciler_id = 'led')}, 'a leased loop runs on it');
wait_quiet($promoted, 'led');
sql($promoted, q{SELECT reconcile.enqueue(l, 'later', '1 h') FROM unnest('{drive,led}'::text[]) l});
my $known = grant($promoted, 'fleet', 'me');
is(sql($promoted, q{SELECT incarnation, timeline, reason FROM reconcile.incarnation()}), '1|2|the timeline changed', 'its incarnation is of timeline 2');
make_journal_roles($promoted);
make_journal($promoted);
my $journal = journal_rows($promoted);
my $head = kept_head($promoted, 'acme');
my ($position, $targets) = poll($promoted);
my $state = q{SELECT (SELECT count(*) FROM reconcile.mark), (SELECT string_agg(reconciler_id || epoch, ' ' ORDER BY reconciler_id) FROM reconcile.lease),
	(SELECT count(*) FROM reconcile.lease_term), (SELECT string_agg(loop_name, ' ') FROM reconcile.loop), (SELECT count(*) FROM app.run)};
my $before = sql($promoted, $state);
my $was_led = sql($promoted, q{SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'led'});
$promoted->stop;

# ----------------------------------------------------------------------
note 'pg_upgrade';

my $new = new_node('new', conf => $conf, start => 0);
chdir $PostgreSQL::Test::Utils::tmp_check or die;
command_ok([ 'pg_upgrade', '--no-sync', '--old-datadir', $promoted->data_dir, '--new-datadir', $new->data_dir,
		'--old-bindir', "$ENV{RECONCILE_OLD_SERVER}/bin", '--new-bindir', $new->config_data('--bindir'),
		'--socketdir', $new->host, '--old-port', $promoted->port, '--new-port', $new->port ], 'succeeds');

# The old cluster was copied: what it grants from here on is lost to the new one.
$promoted->start;
my $lost = grant($promoted, 'fleet', 'you');
my $first = grant($promoted, 'first', 'you');
cmp_ok($lost, '>', $known, 'the old server grants once more');
$promoted->stop;

$new->start;
is(sql($new, $state), $before, 'all rows are there');
is(journal_rows($new), $journal, 'those of commands, too');
is(verified($new, 'acme', $head), 'ok', 'the audit is that of the head that was kept');
is(polled($new, $position), $targets, 'a poller with a position of before is shown all');
is(sql($new, q{SELECT incarnation, timeline, since IS NULL, reason FROM reconcile.incarnation()}), '2|1|t|the system identifier changed',
	'the new server is another, on timeline 1');
# what is made there runs: then the dispatcher has seen all
make_loop($new, 'native');
dispatcher_looks($new, 'native');
is(sql($new, q{SELECT string_agg(loop_name, ' ' ORDER BY loop_name) FROM reconcile.loops WHERE paused}), 'commanded drive led', 'loops are paused');
is(runs($new, 'drive'), 0, 'and do not run');
refused($new, 'fleet', 'me', $known);
refused($new, 'fleet', 'you', $lost);
refused($new, 'first', 'you', $first);
refused($new, 'led', 'whoever', $was_led);
granted_above($new, 'fleet', $known, $lost);
granted_above($new, 'first', $first);
replays($new);
sql($new, 'SELECT reconcile.resume_all()');
wait_for($new, q{(SELECT count(*) FROM app.run WHERE entity_id = 'later') = 2}, 'resume_all() runs them, and they look again at what they remember');
cmp_ok(sql($new, q{SELECT epoch FROM app.run WHERE entity_id = 'later' AND loop_name = 'led'}), '>', $was_led, 'a leased one under a higher epoch');
is(sql($new, q{SELECT incarnation, since IS NULL FROM reconcile.incarnation()}), '2|f', 'one incarnation it is');

finish();

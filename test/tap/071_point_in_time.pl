# Time travel (P5, P6): two restores of one base backup to a point before a grant,
# which come up on the same timeline as they do not know of each other; a clone
# of a base backup; and what a copy without recovery cannot see.

use strict;
use warnings;

use LoopTest;
use LostPast;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $original = new_node('original', allows_streaming => 1, start => 0, conf => "max_worker_processes = 16\n");
$original->enable_archiving;
$original->start;
sql($original, 'CREATE EXTENSION reconcile');
sql($original, 'CREATE DATABASE untouched');
my $untouched = [ $original, 'untouched' ];
sql($untouched, 'CREATE EXTENSION reconcile');
prepare($original);
make_loop($original, 'drive');
sql($original, q{SELECT reconcile.enqueue('drive', 'later', '1 h')});
my $known = grant($original, 'fleet', 'me');
$original->backup('base');

# copy(NAME, CONF, restoring => 0, standby => 0): a running server from the base backup.  None archives,
# so that none learns of another's timeline.
sub copy
{
	my ($name, $conf, %option) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($original, 'base', has_restoring => $option{restoring} // 1, standby => $option{standby} // 0);
	$copy->append_conf('postgresql.conf', "archive_mode = off\n$conf");
	watch_log($copy);
	$copy->start;
	ok($copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()'), "$name is up") unless $option{standby};
	return $copy;
}

# What the point in time does not have: a term after another, the first of an id,
# and the first of a database.
sql($original, q{SELECT pg_create_restore_point('before')});
my $lost = grant($original, 'fleet', 'you');
my $first = grant($original, 'first', 'you');
my $very_first = grant($untouched, 'first', 'you');
is("$known $lost $first $very_first", '1 2 1 1', 'epochs are granted that will be lost');
my $segment = sql($original, 'SELECT pg_walfile_name(pg_switch_wal())');
ok($original->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver"), 'they are archived');

# ----------------------------------------------------------------------
note 'two restores';

my $target = "recovery_target_name = 'before'\nrecovery_target_action = promote\n";
my @new;
for my $name (qw(restored_1 restored_2))
{
	my $copy = copy($name, $target);

	is(sql($copy, q{SELECT timeline, since IS NULL, reason FROM reconcile.incarnation()}), '2|t|the timeline changed', 'on timeline 2');
	refused($copy, 'fleet', 'me', $known);
	refused($copy, 'fleet', 'you', $lost);
	refused($copy, 'first', 'you', $first);
	refused([ $copy, 'untouched' ], 'first', 'you', $very_first);
	push @new, granted_above($copy, 'fleet', $known, $lost, @new);
	granted_above($copy, 'first', $first);
	granted_above([ $copy, 'untouched' ], 'first', $very_first);
	is(sql($copy, q{SELECT paused FROM reconcile.loops}), 'f', 'its loop runs, as after a promotion');
	wait_for($copy, q{(SELECT count(*) FROM app.run) = 1}, 'and looks again at what it remembers');
}
is(sql($original, q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'fleet'}), "$lost|t", 'the original knows nothing of them');

# ----------------------------------------------------------------------
note 'a clone of the base backup, promoted';

my $clone = copy('clone', '', standby => 1);
ok($clone->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM reconcile.leases WHERE reconciler_id = 'first')}), 'it has followed the archive');
is(sql($clone, q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'fleet'}), "$lost|t", 'as a standby it shows the terms of the original');
$clone->promote;
refused($clone, 'fleet', 'you', $lost);
granted_above($clone, 'fleet', $known, $lost);

# ----------------------------------------------------------------------
note 'a copy without recovery, as a storage snapshot is one: nothing inside can see it';

my $snapshot = copy('snapshot', '', restoring => 0);
is(sql($snapshot, q{SELECT timeline, reason FROM reconcile.incarnation()}), '1|first grant', 'it takes itself for the original');
is(sql($snapshot, q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'fleet'}), "$known|t", 'the term of before is live');
cmp_ok(sql($snapshot, q{SELECT reconcile.bump_incarnation('storage of before the crash')}), '>', $new[1], 'until an operator says so');
is(sql($snapshot, q{SELECT timeline, reason FROM reconcile.incarnation()}), '1|storage of before the crash', 'which is stored');
refused($snapshot, 'fleet', 'me', $known);
refused($snapshot, 'fleet', 'you', $lost);
refused($snapshot, 'first', 'you', $first);
granted_above($snapshot, 'fleet', $known, $lost);
granted_above($snapshot, 'first', $first);
wait_for($snapshot, q{(SELECT count(*) FROM app.run) = 1}, 'its loop looks again at what it remembers');

finish();

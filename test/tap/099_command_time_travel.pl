# Commands after a recovery to a point in time: two restores of one base backup that do
# not know of each other, and a copy without recovery.  A position of any of them misses
# no change in another, though incarnations and transactions have the same numbers.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $original = new_node('original', allows_streaming => 1, start => 0, conf => "max_worker_processes = 16\n");
$original->enable_archiving;
$original->start;
sql($original, 'CREATE EXTENSION reconcile');
make_journal_roles($original);
prepare($original);
make_journal($original);
$original->backup('base');
my ($position, $targets) = poll($original);
my $head = kept_head($original, 'acme');

# What the restores do not have.
sql($original, q{SELECT pg_create_restore_point('before')});
is(accept_as($original, 'giver', 'lost one', 'terminate', 'worker', 'w1'), 'accepted pending', 'a command will be lost');
my ($lost) = poll($original);
my $lost_head = kept_head($original, 'acme');
my $segment = sql($original, 'SELECT pg_walfile_name(pg_switch_wal())');
ok($original->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver"), 'it is archived');

# copy(NAME, CONF, RESTORING): a running server from the base backup, which does not archive.
sub copy
{
	my ($name, $conf, $restoring) = @_;
	my $copy = PostgreSQL::Test::Cluster->new($name);

	$copy->init_from_backup($original, 'base', has_restoring => $restoring, standby => 0);
	$copy->append_conf('postgresql.conf', "archive_mode = off\n$conf");
	watch_log($copy);
	$copy->start;
	ok($copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()'), "$name is up");
	return $copy;
}

my %read = (original => $lost);
foreach my $name (qw(first second))
{
	my $copy = copy($name, "recovery_target_name = 'before'\nrecovery_target_action = promote\n", 1);

	is(polled($copy, $read{$_}), $targets, "a position of the $_ is shown all, before anything is changed") foreach sort keys %read;
	is(verified($copy, 'acme', $head), 'ok', 'the audit is that of the head of before');
	like(verified($copy, 'acme', $lost_head), qr/^cut /, 'and not of the one that is lost');
	replays($copy);
	is(accept_as($copy, 'giver', 'lost one', 'terminate', 'worker', 'w1'), 'accepted pending', 'a key that is lost is free');
	is(polled($copy, $read{$_}), $targets =~ s/w1 draining 1, (.*)/$1, w1 terminating 2/r, "and a position of the $_ is shown all, after a change")
	  foreach sort keys %read;
	is(sql($copy, q{SELECT incarnation, timeline FROM reconcile.incarnation()}), '2|2', 'the second incarnation it is, on timeline 2');
	like(verified($copy, 'acme', $lost_head), qr/^forked /, 'the audit is another one');
	# the other has fewer transactions
	accept_as($copy, 'giver', "more $_", 'drain', 'worker', "more$_") foreach $name eq 'first' ? (1 .. 5) : ();
	($read{$name}) = poll($copy);
	is((poll($copy, $read{$name}))[1], '', 'who has read all is shown nothing');
}

# ----------------------------------------------------------------------
note 'a copy without recovery takes itself for the original, until an operator says that it is none';

my $snapshot = copy('snapshot', '', 0);
is((poll($snapshot, $lost))[1], '', 'a position of what is lost is taken for its own');
sql($snapshot, q{SELECT reconcile.bump_incarnation('a storage snapshot')});
is(polled($snapshot, $_), $targets, 'then all is shown to whoever comes') foreach $lost, $position, values %read;

finish();

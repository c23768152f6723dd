# Nodes with the extension preloaded from the private install of this run, and
# a check of their logs:
#
#   use ReconcileTest;
#   my $node = new_node('main');
#   expect_log(qr/WARNING:  no free background worker slot/);
#   ...
#   finish();
#
# scripts/run-suites sets the environment:
#
#   RECONCILE_CONF        file with the settings by which a server finds and
#                         preloads the extension
#   RECONCILE_DESTDIR     where the extension is installed
#   RECONCILE_TESTPOINTS_CONF, RECONCILE_TESTPOINTS_DESTDIR
#                         the same for the library with test points
#   RECONCILE_SOURCE      the copy of the checkout
#   RECONCILE_PG_VERSION  15, 17 or 18

package ReconcileTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ServerLog;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(new_node new_standby begins watch_log expect_log finish);

my @nodes;
my @expected;

# new_node(NAME, OPTION => VALUE...): a running node of its own.
#
#   conf => TEXT           added to postgresql.conf, after all else
#   allows_streaming => 1  as in PostgreSQL::Test::Cluster::init
#   initdb => [OPTION...]  a cluster of its own, made with these options; others may be
#                          copies of one, and share its system identifier
#   test_points => 1       the library that TestPoints.pm can hold
#   preload => 0           the module is found but not preloaded
#   extension => 0         do not create the extension in database postgres
#   start => 0             leave it stopped (then there is no extension either)
sub new_node
{
	my ($name, %option) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my %init = (allows_streaming => $option{allows_streaming});

	local %ENV = %ENV;
	delete $ENV{INITDB_TEMPLATE} if $option{initdb};
	# A template has these already, and would go unused beside "extra".
	$init{extra} = [ '--no-locale', '--encoding=UTF8', @{ $option{initdb} // [] } ]
	  unless defined $ENV{INITDB_TEMPLATE};
	$node->init(%init);

	my $conf = slurp_file($option{test_points} ? $ENV{RECONCILE_TESTPOINTS_CONF} : $ENV{RECONCILE_CONF});
	$conf =~ s/^shared_preload_libraries.*\n//m
	  if defined $option{preload} && !$option{preload};
	$node->append_conf('postgresql.conf', $conf);
	# The test module turns these the other way round. A crash shows in the
	# log; statements would bury all else there.
	$node->append_conf('postgresql.conf',
		"restart_after_crash = on\nlog_statement = none\n");
	$node->append_conf('postgresql.conf', $option{conf}) if defined $option{conf};
	watch_log($node);

	return $node if defined $option{start} && !$option{start};
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION reconcile')
	  unless defined $option{extension} && !$option{extension};
	return $node;
}

# new_standby(PRIMARY, NAME, OPTION => VALUE...): a running streaming standby,
# caught up as far as the start of its base backup; conf as above.
sub new_standby
{
	my ($primary, $name, %option) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$primary->backup("for_$name");
	$standby->init_from_backup($primary, "for_$name", has_streaming => 1);
	$standby->append_conf('postgresql.conf', $option{conf}) if defined $option{conf};
	watch_log($standby);
	$standby->start;
	return $standby;
}

# begins(SESSION, STATEMENTS): the session begins them, and their end is not waited for.
sub begins
{
	my ($session, $statements) = @_;

	# a session that has died ends what is waited for, too
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($session->query_until(qr/begun/, "\\echo begun\n$statements\n"), qr/begun/, 'a session begins what it is told')
	  or die 'the session is gone';
	return;
}

# watch_log(NODE): have finish() check a node that was made otherwise.
sub watch_log
{
	my ($node) = @_;

	push @nodes, $node;
	return $node;
}

# expect_log(PATTERN...): lines that match are no failure. It holds for all
# nodes of the file, whenever the line came.
sub expect_log
{
	push @expected, @_;
	return;
}

# Sessions of a node. A query that asks for them would be one of them.
sub _sessions
{
	my ($postmaster) = @_;
	my @found;

	foreach my $stat (glob('/proc/[0-9]*/stat'))
	{
		open(my $in, '<', $stat) or next;
		my $line = <$in>;
		close $in;
		next unless defined $line && $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $postmaster;
		open($in, '<', "/proc/$1/cmdline") or next;
		my $title = <$in>;
		close $in;
		push @found, $1 if defined $title && $title =~ /\[local\]/;
	}
	return @found;
}

# A session whose client has left may not know it yet; a stop would end it with
# a FATAL.
sub _await_sessions
{
	my ($node) = @_;
	my $file = $node->data_dir . '/postmaster.pid';

	return unless -e $file;
	my ($postmaster) = slurp_file($file) =~ /^(\d+)/ or return;
	for my $try (1 .. 100)
	{
		return unless _sessions($postmaster);
		usleep(10_000);
	}
	return;
}

# Stops all nodes and checks their logs: a WARNING, FATAL or PANIC, and a
# process that died of a signal, must have been expected. Ends the test file.
sub finish
{
	_await_sessions($_) for @nodes;
	$_->stop('fast', fail_ok => 1) for reverse @nodes;
	foreach my $node (@nodes)
	{
		next unless -e $node->logfile;
		my @found = ServerLog::unexpected($node->logfile, @expected);
		is(join("\n", @found), '',
			'nothing unexpected in the log of ' . $node->name);
	}
	done_testing();
	return;
}

1;

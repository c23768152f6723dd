# What a server log must not hold. Used for the nodes of the TAP tests and for
# the cluster that the SQL suites share.

package ServerLog;

use strict;
use warnings;

# Lines begin as log_line_prefix = '%m [%p] %q%a ' makes them; the lines that
# follow a message, and statements that quote such words, do not match.
my $message = qr/^\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\.\d+\ \S+\ \[\d+\]\ .*?
	\b(DEBUG\d?|LOG|INFO|NOTICE|WARNING|ERROR|FATAL|PANIC
	  |DETAIL|HINT|CONTEXT|QUERY|STATEMENT|LOCATION|BACKTRACE):\ \ /x;

# Written straight to stderr by a failed assertion or a sanitizer.
my $raw = qr/^TRAP: |Sanitizer|: runtime error: /;

# Answers to clients that come while the server starts or stops, and how the
# server itself ends the process that feeds a standby.
my $always_expected = qr/FATAL:\ \ (?:
	the\ database\ system\ is\ (?:starting\ up|shutting\ down|in\ recovery\ mode
		|not\ yet\ accepting\ connections|not\ accepting\ connections)
	|terminating\ walreceiver\ process\ due\ to\ administrator\ command)/x;

# A process of ours that a fast shutdown meets in the midst of a transaction, and
# a session whose client has just gone.
my $expected_while_stopping =
  qr/FATAL:  terminating (?:background worker "reconcile [^"]*"|connection) due to administrator command/;

sub _suspicious
{
	my ($line) = @_;

	return 1 if $line =~ $raw;
	return 0 unless $line =~ $message;
	my $severity = $1;
	return 1 if $severity =~ /^(?:WARNING|FATAL|PANIC)$/;
	# A process that died of a signal is only worth a LOG to the server.
	return $severity eq 'LOG' && $line =~ /was terminated by signal/;
}

# unexpected(FILE, PATTERN...): the lines of the log that tell of trouble and
# match none of the patterns.
sub unexpected
{
	my ($file, @patterns) = @_;
	my @found;
	my $stopping = 0;

	open(my $log, '<', $file) or die "could not read $file: $!";
	while (my $line = <$log>)
	{
		$stopping = 1 if $line =~ /LOG:  received fast shutdown request/;
		$stopping = 0 if $line =~ /LOG:  starting PostgreSQL/;
		next unless _suspicious($line);
		next if $line =~ $always_expected;
		next if $stopping && $line =~ $expected_while_stopping;
		next if grep { $line =~ $_ } @patterns;
		chomp $line;
		push @found, $line;
	}
	close $log;
	return @found;
}

# report(FILE, LIST): prints what is unexpected by the patterns in the file
# LIST, one in a line with comments after '#' lines; returns an exit status.
sub report
{
	my ($file, $list) = @_;
	my @patterns;

	if (open(my $in, '<', $list))
	{
		while (my $line = <$in>)
		{
			chomp $line;
			push @patterns, qr/$line/ unless $line =~ /^\s*(?:#|$)/;
		}
		close $in;
	}
	my @found = unexpected($file, @patterns);
	print "---- unexpected in the server log:\n", map { "$_\n" } @found if @found;
	return @found ? 1 : 0;
}

1;

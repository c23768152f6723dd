# Holding a process of a node at a place that the library names (see
# src/core/testpoint.c); the node was made with test_points => 1.
#
#   use TestPoints;
#   arm($node, 'executor-before-commit');
#   ...
#   my $pid = reached($node, 'executor-before-commit');
#   release($node, 'executor-before-commit');
#
# A process that is held does not answer signals before it is released.

package TestPoints;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

our @EXPORT = qw(arm disarm reached release);

sub _file
{
	my ($node, $point) = @_;
	my $folder = $node->data_dir . '/reconcile_testpoints';

	mkdir $folder unless -d $folder;
	return "$folder/$point";
}

# arm(NODE, POINT, [PID]): the next process that comes by stops there, or the one
# of that pid.
sub arm
{
	my ($node, $point, $pid) = @_;
	append_to_file(_file($node, defined $pid ? "$point.$pid" : $point), '');
	return;
}

# disarm(NODE): nobody stops anywhere any more; whoever does goes on.
sub disarm
{
	my ($node) = @_;
	unlink glob(_file($node, '*'));
	return;
}

# reached(NODE, POINT): waits until a process has stopped there: its pid.
sub reached
{
	my ($node, $point) = @_;
	my $file = _file($node, "$point.reached");

	foreach my $try (1 .. 200 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $1 if -e $file && slurp_file($file) =~ /^(\d+)\n/;
		usleep(5_000);
	}
	die "no process has come by $point";
}

# release(NODE, POINT): it goes on.
sub release
{
	my ($node, $point) = @_;
	unlink _file($node, "$point.reached");
	return;
}

1;

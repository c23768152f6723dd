# Holding a process of a node at a place that the library names (see
# src/core/testpoint.c); the node was made with test_points => 1.
#
#   use TestPoints;
#   arm($node, 'executor-before-commit');
#   ...
#   my $pid = reached($node, 'executor-before-commit');
#   release($node, 'executor-before-commit');

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

# arm(NODE, POINT): the next process that comes by stops there.
sub arm
{
	my ($node, $point) = @_;
	append_to_file(_file($node, $point), '');
	return;
}

# disarm(NODE, POINT): nobody stops there any more; whoever does goes on.
sub disarm
{
	my ($node, $point) = @_;
	unlink _file($node, $point), _file($node, "$point.reached");
	return;
}

# reached(NODE, POINT): waits until a process has stopped there: its pid.
sub reached
{
	my ($node, $point) = @_;
	my $file = _file($node, "$point.reached");

	foreach my $try (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return slurp_file($file) + 0 if -e $file;
		usleep(10_000);
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

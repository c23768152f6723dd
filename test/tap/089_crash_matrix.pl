# The crash matrix, of one server: processes are cancelled, terminated and killed
# where they stand, and the server is stopped at once.  See CrashMatrix.pm.

use strict;
use warnings;

use CrashMatrix;
use ReconcileTest;
use Test::More;
use TestPoints;

my $node = new_node('main', test_points => 1, conf => matrix_conf());
expect_log(matrix_log());
matrix_prepare($node);

foreach my $cell (matrix_cells())
{
	my ($process, $stage) = @$cell;

	foreach my $signal (qw(INT TERM KILL))
	{
		my $held = matrix_hold($node, $process, $stage);

		matrix_end($node, $held, $signal);
		matrix_holds($node, $held, "$process, $stage, SIG$signal");
	}

	my $held = matrix_hold($node, $process, $stage);
	$node->stop('immediate');
	disarm($node);
	$node->start;
	matrix_holds($node, $held, "$process, $stage, immediate stop");
}

finish();

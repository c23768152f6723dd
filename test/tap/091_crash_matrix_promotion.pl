# The crash matrix, of fail-over: a process of the primary is held where it
# stands, the primary stops at once, and its standby is promoted.  The promises
# must hold of what the standby has.  Each promoted server is the next primary, so
# that the history of the leases goes on through all of them.  See CrashMatrix.pm.

use strict;
use warnings;

use CrashMatrix;
use ReconcileTest;
use Test::More;
use TestPoints;

# It is copied each time, so it is small.
my $primary = new_node('main', test_points => 1, allows_streaming => 1, initdb => ['--wal-segsize=1'],
	conf => matrix_conf() . "min_wal_size = 4MB\n");
expect_log(matrix_log());
$primary->safe_psql('postgres', <<~'EOS');
	UPDATE pg_database SET datistemplate = false;
	DROP DATABASE template0;
	DROP DATABASE template1;
	EOS
matrix_prepare($primary);

my $cells = 0;
foreach my $cell (matrix_cells())
{
	my ($process, $stage) = @$cell;
	my $standby = new_standby($primary, 'standby' . ++$cells);
	my $held = matrix_hold($primary, $process, $stage);

	$primary->wait_for_catchup($standby);
	$primary->stop('immediate');
	$primary->clean_node;
	$standby->promote;
	matrix_holds($standby, $held, "$process, $stage, promotion");
	$primary = $standby;
}

finish();

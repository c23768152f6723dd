# The library that is shipped has no test points, and the other one has.
use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

# exported(DESTDIR): the library's symbols, without those that are only used.
sub exported
{
	my ($destdir) = @_;
	my $library = qx(find '$destdir' -name reconcile.so);

	chomp $library;
	return qx(nm -D --defined-only '$library');
}

my $shipped = exported($ENV{RECONCILE_DESTDIR});
like($shipped, qr/ reconcile_executor_main$/m, 'the shipped library is read');
unlike($shipped, qr/test_?point/i, 'it has no test points');
like(exported($ENV{RECONCILE_TESTPOINTS_DESTDIR}), qr/ reconcile_test_point$/m, 'the other one has');

my $node = new_node('main', test_points => 1);
prepare($node);
make_loop($node, 'drive');
arm($node, 'executor-before-commit');
enqueue($node, 'drive', 'a');
my $pid = reached($node, 'executor-before-commit');
is(sql($node, "SELECT kind FROM reconcile.workers WHERE pid = $pid"), 'executor',
	'an executor stops before its commit');
is(runs($node, 'drive'), 0, 'so that nothing is seen of the run');
release($node, 'executor-before-commit');
wait_quiet($node, 'drive');
is(runs($node, 'drive'), 1, 'and goes on when it may');
finish();

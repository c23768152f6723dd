# A history of random clients on servers that crash and are promoted (P5, P6):
# the checker finds each fault in histories made by hand, and none in what 60
# seconds bring. scripts/soak does the same for longer.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

my $soak = "$ENV{RECONCILE_SOURCE}/test/soak";
my $folder = PostgreSQL::Test::Utils::tempdir();
my ($bindir) = split(/:/, $ENV{PATH});

command_ok([ '/usr/bin/python3', '-B', "$soak/checker_test.py" ], 'the checker finds what is wrong, and nothing else');

my ($out, $err);
my $done = IPC::Run::run(
	[ '/usr/bin/python3', '-B', "$soak/soak.py", '--bindir', $bindir, '--conf', $ENV{RECONCILE_CONF},
		'--folder', "$folder/run", '--seconds', '60' ],
	'>', \$out, '2>', \$err);
note $out;
ok($done, 'no rule is violated, and enough was done') or diag "$out$err";

done_testing();

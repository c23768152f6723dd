# A simulated fleet: 50 hosts with connections of their own, and 5,000 sessions with
# commands.  Hosts die between any two statements, lose answers, pause past their
# leases, refuse and drain.  The checker finds each fault in histories made by hand, and
# none in what this brings; scripts/soak does the same for longer, on a server that
# crashes.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

my $soak = "$ENV{RECONCILE_SOURCE}/test/soak";
my $folder = PostgreSQL::Test::Utils::tempdir();
my ($bindir) = split(/:/, $ENV{PATH});

command_ok([ '/usr/bin/python3', '-B', "$soak/fleet_checker_test.py" ], 'the checker finds what is wrong, and nothing else');

my ($out, $err);
my $done = IPC::Run::run(
	[ '/usr/bin/python3', '-B', "$soak/fleet.py", '--bindir', $bindir, '--conf', $ENV{RECONCILE_CONF},
		'--folder', "$folder/run", '--seconds', $ENV{RECONCILE_FLEET_SECONDS} // 45 ],
	'>', \$out, '2>', \$err);
note $out;
ok($done, 'no rule is violated, and enough was done') or diag "$out$err";

done_testing();

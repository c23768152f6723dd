# A history of random clients on servers that crash and are promoted (P5, P6):
# the checker finds each fault in histories made by hand, and none in what 60
# seconds bring. scripts/soak does the same for longer.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $soak = "$ENV{RECONCILE_SOURCE}/test/soak";
my $folder = PostgreSQL::Test::Utils::tempdir();
my ($bindir) = split(/:/, $ENV{PATH});

command_ok([ '/usr/bin/python3', '-B', "$soak/checker_test.py" ], 'the checker finds what is wrong, and nothing else');

# ----------------------------------------------------------------------
note 'what a history has shown: a crash loses an asynchronous renewal';

expect_log(qr/WARNING:  terminating connection because of crash/, qr/was terminated by signal 9/);
my $node = new_node('main', conf => "wal_writer_delay = '10 s'\n");
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(q{SELECT reconcile.acquire_lease(id, 'a', '10 s') FROM unnest('{renewed,refreshed}'::text[]) id});
$session->query_safe(q{SELECT reconcile.acquire_lease(id, 'a', '1 h') FROM unnest('{lapsed,released}'::text[]) id});
$session->query_safe(q{SELECT reconcile.renew_lease('lapsed', 'a', 1, '1 ms'), reconcile.release_lease('released', 'a', 1)});
$session->query_safe('SET synchronous_commit = off');
$session->query_safe(q{SELECT reconcile.acquire_lease('refreshed', 'a', '1 h')});
$session->query_safe(q{SELECT reconcile.renew_lease('renewed', 'a', 1, '1 h')});
kill('KILL', $session->query_safe('SELECT pg_backend_pid()'));
$session->{run}->finish;
$node->poll_query_until('postgres', 'SELECT true');
is($node->safe_psql('postgres', q{SELECT reconciler_id, epoch, expires_at - acquired_at > '30 min' FROM reconcile.leases WHERE reconciler_id LIKE 're%d' AND epoch = 1 AND live ORDER BY 1}),
	"refreshed|1|t\nrenewed|1|t", 'but not one that is longer than its grant');

ok($node->poll_query_until('postgres', q{SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'lapsed'}), 'a term has lapsed by its row');
is($node->safe_psql('postgres', q{SELECT epoch IS NULL FROM reconcile.try_acquire_lease('lapsed', 'b')}), 't',
	'but its holder may have been told of a renewal that the crash lost, so nobody else gets it');
is($node->safe_psql('postgres', q{SELECT epoch FROM reconcile.try_acquire_lease('released', 'b')}), '2', 'one that was released is free');

# ----------------------------------------------------------------------
note '60 seconds of history';

my ($out, $err);
my $done = IPC::Run::run(
	[ '/usr/bin/python3', '-B', "$soak/soak.py", '--bindir', $bindir, '--conf', $ENV{RECONCILE_CONF},
		'--folder', "$folder/run", '--seconds', '60' ],
	'>', \$out, '2>', \$err);
note $out;
ok($done, 'no rule is violated, and enough was done') or diag "$out$err";

finish();

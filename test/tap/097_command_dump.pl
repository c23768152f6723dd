# Commands in a dump: restored with all that is kept of them, its triggers in the way of
# nothing; keys stay used, the audit is the one whose head was kept, and pollers miss no
# change.  Where roles are missing nothing is let by.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $conf = "max_worker_processes = 24\n";
my $node = new_node('main', conf => $conf, extension => 0);
my $fresh = new_node('fresh', conf => $conf, extension => 0, initdb => []);
my $bare = new_node('bare', conf => $conf, extension => 0, initdb => []);
my $dump = $node->basedir . '/dump';

make_journal_roles($_) foreach $node, $fresh;
sql($node, 'CREATE DATABASE origin');
my $origin = [ $node, 'origin' ];
sql($origin, 'CREATE EXTENSION reconcile');
prepare($origin);
# its transactions are to have higher numbers than those of where it is restored
sql($origin, 'DO $$ BEGIN FOR i IN 1 .. 3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
make_journal($origin);
my $rows = journal_rows($origin);
my $triggers = journal_triggers($origin);
my $head = kept_head($origin, 'acme');
my ($position, $targets) = poll($origin);
is($targets, 'g1 draining 1, w2 draining 1, g3 paused 1, g2 paused 1, commanded paused 1, w1 draining 1, w3 none 2', 'a poller has read all');
my ($early) = poll($origin, undef, 2);
$node->command_ok([ 'pg_dump', '-Fc', '--file', "$dump.c", $node->connstr('origin') ], 'dumped');
$node->command_ok([ 'pg_dump', '-Fd', '--jobs', '3', '--file', "$dump.d", $node->connstr('origin') ], 'and by several');

# What the dump does not have: a poller has read it.
accept_as($origin, 'giver', 'lost later', 'terminate', 'worker', 'w1');
my ($lost) = poll($origin, $position);
my $lost_head = kept_head($origin, 'acme');

# ----------------------------------------------------------------------
foreach my $case (
	[ 'into a fresh cluster', $fresh, 'copy', "$dump.c" ],
	[ 'by several, into another database', $node, 'copy', '--jobs', '3', "$dump.d" ],
	[ 'over itself', $node, 'origin', '--clean', '--if-exists', "$dump.c" ])
{
	my ($name, $server, $database, @from) = @$case;
	my $copy = [ $server, $database ];

	note "restored $name";
	sql($server, "CREATE DATABASE $database") if $database ne 'origin';
	$server->command_ok([ 'pg_restore', '--exit-on-error', '--dbname', $server->connstr($database), @from ], 'restored without an error');
	is(journal_rows($copy), $rows, 'all rows are there');
	is(journal_triggers($copy), $triggers, 'all triggers and policies');
	is(verified($copy, 'acme', $head), 'ok', 'the audit is that of the head that was kept');
	like(verified($copy, 'acme', $lost_head), qr/^cut /, 'which is older than another');

	# before anything is changed there
	is(polled($copy, $_), $targets, 'a poller with a position of before is shown all') foreach $early, $position, $lost;
	my ($here) = poll($copy);
	is((poll($copy, $here))[1], '', 'and nothing twice to who has read it there');

	replays($copy);
	is(accept_as($copy, 'kept_off', 'denied', 'noted', 'note', 'n2'), 'denied', 'who was denied is');
	is(accept_as($copy, 'giver', 'forbidden', 'drain', 'worker', 'forbidden'), 'denied', 'the authorizer is asked');
	session_fails($copy, '55000', q{UPDATE reconcile.command SET reason = 'x' WHERE status = 'succeeded'}, 'what is over is kept');
	session_fails($copy, '55000', q{DELETE FROM reconcile.audit_event}, 'as are events');

	is(accept_as($copy, 'giver', 'new', 'resume', 'worker_group', 'g3'), 'accepted pending', 'it goes on');
	is(polled($copy, $_), $targets =~ s/g3 paused 1, (.*)/$1, g3 active 2/r, 'and with what is new') foreach $here, $lost;
	($here) = poll($copy);
	is(accept_as($copy, 'giver', 'newer', 'pause', 'worker_group', 'g3'), 'accepted pending', 'then the incarnation has begun');
	is(polled($copy, $here), 'g3 paused 3', 'and who has read in it is shown what is new alone');
	is(sql($copy, q{SET ROLE dispatcher; SELECT count(*) FROM reconcile.claim_commands('d', max_items => 10, ttl => '1 h')}), 3, 'what nobody has is claimed');
	is(sql($copy, q{SELECT reconcile.complete_command(tenant_id, command_id, claim_token, 'succeeded') FROM reconcile.command WHERE idempotency_key = 'held'}),
		'completed', 'a report of before counts');
	is(sql($copy, q{SELECT count(DISTINCT home) FROM reconcile.audit_event}), 2, 'events say where they were written');
	is(verified($copy, 'acme', $head), 'ok', 'the chain goes on');
}

# ----------------------------------------------------------------------
note 'where roles are missing';

my $copy = [ $bare, 'copy' ];
sql($bare, 'CREATE DATABASE copy');
$bare->command_checks_all([ 'pg_restore', '--dbname', $bare->connstr('copy'), "$dump.c" ], 1, [], [qr/role "boss" does not exist/], 'restored with errors');
is(sql($copy, q{SELECT count(*), (SELECT count(*) FROM reconcile.command) > 9 FROM reconcile.command_grant}), '0|t', 'no grant is there, but the commands');
is(verified($copy, 'acme', $head), 'ok', 'and the audit');
sql($copy, 'CREATE ROLE giver; CREATE ROLE kept_off; GRANT giver TO kept_off');
sql($copy, q{GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO giver});
is(accept_as($copy, 'giver', 'new', 'drain', 'worker', 'w9'), 'denied', 'who had them may nothing');
sql($copy, q{SELECT reconcile.grant_command('giver', 'acme', p) FROM unnest('{drain,noted}'::text[]) p});
is(accept_as($copy, 'giver', 'new', 'drain', 'worker', 'w9'), 'denied', 'nor with grants, as the role of the authorizer is missing');
is(accept_as($copy, 'postgres', 'local', 'noted', 'note', 'n9'), 'accepted failed dispatch_failed', 'an action whose role is missing does nothing');
sql($copy, 'CREATE ROLE boss SUPERUSER');
is(accept_as($copy, 'giver', 'new', 'drain', 'worker', 'w9'), 'accepted pending', 'when it is there it agrees');
is(verified($copy, 'acme', $head), 'ok', 'the chain goes on');

finish();

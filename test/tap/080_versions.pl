# The library of one version, the extension of another: it is served only where
# the library says so.  Else the engine idles, functions say what to do, health
# shows it; and ALTER EXTENSION UPDATE, within a second while workers run, brings
# it back with nothing lost (P13).

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(time);

# An install of its own, with versions that the library does not know.
my $install = PostgreSQL::Test::Utils::tempdir();
system_or_bail('cp', '-a', "$ENV{RECONCILE_DESTDIR}/.", $install);
my ($script) = split /\n/, `find '$install' -name 'reconcile--0.1.0.sql'`;
my $folder = $script =~ s{/[^/]*$}{}r;
my $conf = slurp_file($ENV{RECONCILE_CONF}) =~ s/\Q$ENV{RECONCILE_DESTDIR}\E/$install/gr;

# A change that needs tables for itself, as updates do; but for that of which all sessions hear.
my $change = join("\n", map { "ALTER TABLE reconcile.$_ ADD CONSTRAINT tested CHECK (true); ALTER TABLE reconcile.$_ DROP CONSTRAINT tested;" }
	  qw(entity lease mark_0 mark_1 mark_2 mark_3));
append_to_file("$folder/reconcile--$_.sql", "$change\n")
  for '0.1.0--0.2.0', '0.2.0--0.1.0', '0.1.0--0.0.9', '0.0.9--0.1.0', '0.1.0--broken';
append_to_file("$folder/reconcile--0.1.0--broken.sql", "SELECT 1 / 0;\n");

my $node = new_node('versions', start => 0, conf => $conf . <<~'EOC');
	max_worker_processes = 16
	reconcile.max_workers = 4
	EOC
expect_log(qr/WARNING:  the library reconcile is of version 0\.1\.0, and cannot serve the extension's version 0\.(?:2\.0|0\.9)/);
$node->start;
sql($node, q{CREATE EXTENSION reconcile; ALTER ROLE CURRENT_USER SET statement_timeout = '4 s'});
prepare($node);
make_loop($node, 'quick', options => q{default_requeue => '10 ms', concurrency => 2});
make_loop($node, 'slow', options => q{lease_ttl => '10 s'}, body => 'PERFORM pg_sleep(300); RETURN NULL;');
sql($node, 'CREATE TABLE app.device (id text PRIMARY KEY, n int)');
make_loop($node, 'watching');
sql($node, q{SELECT reconcile.watch('watching', 'app.device', 'id')});
enqueue($node, 'quick', 1 .. 4);
enqueue($node, 'slow', 1);

sql($node, <<~'EOS');
	CREATE FUNCTION app.sqlstate_of(query text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
	    EXECUTE query;
	    RETURN 'none';
	EXCEPTION WHEN OTHERS THEN
	    RETURN SQLSTATE;
	END $$;
	EOS

sub all_run
{
	my ($name) = @_;
	my $tries = tries($node, 'quick');

	wait_for($node, qq{(SELECT last_value FROM app.quick_tries) > $tries + 5
		AND EXISTS (SELECT FROM reconcile.running() WHERE loop_name = 'slow')}, $name);
	is(sql($node, 'SELECT count(*) FROM reconcile.entity'), 0, 'and no run was charged');
	return;
}

sub update_to
{
	my ($version, $name) = @_;
	my $started = time();

	sql($node, "ALTER EXTENSION reconcile UPDATE TO '$version'");
	note sprintf '%.2f s: to %s', time() - $started, $version;
	is(sql($node, q{SELECT extversion FROM pg_extension WHERE extname = 'reconcile'}), $version, $name);
	return;
}

# Nothing of ours works, and all of it says why.
sub idles_with
{
	my ($version) = @_;

	ok($node->poll_query_until('postgres', <<~'EOS'), "with $version only the launcher is there");
		SELECT string_agg(backend_type, ' ') = 'reconcile launcher' FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'
		EOS
	for my $call (q{reconcile.enqueue('quick', 'a')}, q{reconcile.acquire_lease('x', 'me')}, q{reconcile.claim_work('quick', 'me')}, q{reconcile.loops},
		q{reconcile.accept_command('acme', 'b', 'retry', 'failure', 'f', 'why')}, q{reconcile.desired_states_since('acme')}, q{reconcile.audit_verify('acme')})
	{
		my ($status, $out, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM $call");
		like($err, qr/ERROR:  55000: the library reconcile is of version 0\.1\.0, and cannot serve the extension's version $version\nHINT:  Run ALTER EXTENSION reconcile UPDATE/,
			"$call is refused with 55000");
	}
	session_fails($node, '55000', q{INSERT INTO app.device VALUES ('lost', 1)}, 'a change that would not be seen is refused');
	is(sql($node, 'SELECT check_name, status, detail FROM reconcile.health'),
		"version|crit|the library reconcile is of version 0.1.0, and cannot serve the extension's version $version", 'health says it, and no more');
	return;
}

all_run('loops run');

# ----------------------------------------------------------------------
note 'updates while workers run';

session_fails($node, '22012', q{ALTER EXTENSION reconcile UPDATE TO 'broken'}, 'an update that fails');
all_run('after it all goes on');

my $session = $node->background_psql('postgres');
is($session->query_safe(q{SELECT count(*) FROM reconcile.loops}), 3, 'a session knows the install');
$session->query_safe(q{BEGIN; ALTER EXTENSION reconcile UPDATE TO '0.2.0'; ROLLBACK});
all_run('after one that is rolled back, too');
is($session->query_safe(q{SELECT count(*) FROM reconcile.loops}), 3, 'and the session knows the install as before');
my $give = q{SELECT outcome FROM reconcile.accept_command('acme', 'a', 'retry', 'failure', 'f', 'why')};
session_fails($node, '55000', qq{BEGIN; $give; ALTER EXTENSION reconcile UPDATE TO '0.2.0'; COMMIT}, 'an update in the transaction of a command, whose event nobody could write');
is(sql($node, q{SELECT count(*) FROM reconcile.command}), 0, 'undoes both');
is(sql($node, $give), 'accepted', 'and the key is free');

update_to('0.2.0', 'an update to a version that the library does not know');
idles_with('0.2.0');
is($session->query_safe(q{SELECT app.sqlstate_of('SELECT FROM reconcile.loops')}), '55000', 'a session that knew the install before learns of it');
$session->quit;

update_to('0.1.0', 'back to one that it knows');
all_run('the loops go on');

# ----------------------------------------------------------------------
note 'the package is updated before the extension';

update_to('0.0.9', 'an extension of an older version');
idles_with('0.0.9');
$node->restart;
idles_with('0.0.9');
my $started = time();
sql($node, 'ALTER EXTENSION reconcile UPDATE');
note sprintf '%.2f s', time() - $started;
all_run('after ALTER EXTENSION UPDATE the loops go on');
sql($node, q{INSERT INTO app.device VALUES ('seen', 1)});
wait_tries($node, 'watching', 1);
is(runs($node, 'watching', 'seen'), 1, 'and changes are seen');
is(sql($node, qq{$give; SELECT outcome FROM reconcile.audit_verify('acme')}), "replayed\nok", 'commands are those of before');

finish();

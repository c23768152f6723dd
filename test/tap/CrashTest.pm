# What the tests of crashes share: a function that ends its process, and servers
# that come back.
#
#   use CrashTest;
#   make_crash($node);                      # app.crash(how text), see test/modules/crash
#   make_loop($node, 'drive', body => crash_body('drive'));
#   will($node, 'drive', 'a', 'segv');      # what its runs do from now on
#   provoke($node, 'drive', 'a');
#   wait_back($node);                       # after the crash

package CrashTest;

use strict;
use warnings;

use Exporter 'import';
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(make_crash crash_body will provoke entity_row entity_is wait_entity wait_back wait_gone crashes_since postmaster_pid expect_crashes);

# A crash is a LOG of the server, and a WARNING or FATAL in whoever else is there.
sub expect_crashes
{
	expect_log(qr/was terminated by signal \d+/,
		qr/WARNING:  terminating connection because of crash of another server process/,
		qr/FATAL:  the database system is in recovery mode/,
		qr/FATAL:  the database system is starting up/);
	return;
}

sub _build
{
	my ($to) = @_;
	my $bin = "/usr/lib/postgresql/$ENV{RECONCILE_PG_VERSION}/bin/pg_config";
	my $include = `$bin --includedir-server`;

	chomp $include;
	system_or_bail('gcc', '-O1', '-shared', '-fPIC', "-I$include", '-o', $to, "$ENV{RECONCILE_SOURCE}/test/modules/crash/crash.c");
	return;
}

# After prepare(): app.crash(how), and app.will(loop_name, entity_id, how).
sub make_crash
{
	my ($node) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . '/crash.so';

	_build($library);
	sql($node, qq{
		CREATE FUNCTION app.crash(how text) RETURNS int STRICT LANGUAGE c AS '$library', 'crash';
		CREATE TABLE app.will (loop_name text, entity_id text, how text, PRIMARY KEY (loop_name, entity_id));
		-- an executor that is gone, and the dispatcher with it, has left this
		CREATE VIEW app.remembered AS SELECT loop_name, entity_id,
			concat_ws(' ', failures, crashes, coalesce(died_of, 'lives'), last_sqlstate) AS row FROM reconcile.entity WHERE failures <> 0});
	return;
}

# The body of a loop's function that does what will() said.
sub crash_body
{
	my ($loop) = @_;
	return qq{
		PERFORM app.crash((SELECT w.how FROM app.will w WHERE w.loop_name = '$loop' AND w.entity_id = entity));
		RETURN NULL;};
}

sub will
{
	my ($node, $loop, $entity, $how) = @_;
	sql($node, "INSERT INTO app.will VALUES ('$loop', '$entity', '$how')
		ON CONFLICT (loop_name, entity_id) DO UPDATE SET how = EXCLUDED.how");
	return;
}

# Triggers entities, at once.  The session may be gone before it hears of its COMMIT.
sub provoke
{
	my ($node, $loop, @entities) = @_;
	my $ids = join(', ', map { "'$_'" } @entities);
	$node->psql('postgres', "SELECT reconcile.enqueue_many('$loop', ARRAY[$ids])", stdout => \my $out, stderr => \my $err);
	return;
}

# What is remembered: "failures crashes died_of sqlstate"; '' = nothing.
sub entity_row
{
	my ($node, $loop, $entity) = @_;
	return sql($node, "SELECT row FROM app.remembered WHERE loop_name = '$loop' AND entity_id = '$entity'");
}

sub entity_is
{
	my ($node, $loop, $entity, $row, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(entity_row($node, $loop, $entity), $row, $name);
}

# Until that is remembered.  The server may crash meanwhile.
sub wait_entity
{
	my ($node, $loop, $entity, $row, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($node->poll_query_until('postgres',
			"SELECT EXISTS (SELECT FROM app.remembered WHERE loop_name = '$loop' AND entity_id = '$entity' AND row = '$row')"), $name)
	  or die 'gave up, with this: ' . sql($node, 'SELECT string_agg(concat_ws(\' \', loop_name, entity_id, row), \', \') FROM app.remembered');
	return;
}

sub postmaster_pid
{
	my ($node) = @_;
	my ($pid) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return $pid;
}

# crashes_since(NODE, OFFSET): how often the server has crashed since that place in its log.
sub crashes_since
{
	my ($node, $offset) = @_;
	my $crashes = () = substr(slurp_file($node->logfile), $offset) =~ /all server processes terminated; reinitializing/g;
	return $crashes;
}

# wait_back(NODE, OFFSET): until the server has come back from a crash that began after
# that place in its log, and its dispatcher serves the database.
sub wait_back
{
	my ($node, $offset) = @_;

	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	$node->poll_query_until('postgres',
		q{SELECT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running' AND database = current_database())})
	  or die 'the server does not come back';
	return;
}

# wait_gone(PID): until the process has ended.
sub wait_gone
{
	my ($pid) = @_;

	foreach my $try (1 .. 200 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return unless kill(0, $pid);
		usleep(5_000);
	}
	die "process $pid does not end";
}

1;

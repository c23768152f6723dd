# What the tests of loops share: loops whose runs can be counted, held and told
# what to do.
#
#   use LoopTest;
#   prepare($node);
#   make_loop($node, 'drive', body => 'RETURN NULL;', options => 'concurrency => 2');
#   my $gate = close_gate($node, 'drive');
#   enqueue($node, 'drive', 'a');
#   wait_held($node, 'drive', 1);
#   $gate->open;
#   wait_quiet($node, 'drive');
#   is(tries($node, 'drive'), 1, ...);
#
# The database may be given as "node, [database]": any function that takes a
# node takes [$node, $database] too.

package LoopTest;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(all_at_once prepare make_loop behave enqueue sql wait_for wait_quiet wait_tries wait_held
  tries runs close_gate runs_before_one dispatcher_pid dispatcher_looks session_fails);

# ([node, database]) or (node): the pair.
sub _where
{
	my ($where) = @_;
	return ref($where) eq 'ARRAY' ? @$where : ($where, 'postgres');
}

# sql(WHERE, QUERY): runs it, and returns what it prints.
sub sql
{
	my ($where, $query) = @_;
	my ($node, $database) = _where($where);
	return $node->safe_psql($database, $query);
}

# wait_for(WHERE, CONDITION, NAME): a test that the condition comes true.  If it
# does not, what follows has no sense, and would only wait as long.
sub wait_for
{
	my ($where, $condition, $name) = @_;
	my ($node, $database) = _where($where);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($node->poll_query_until($database, "SELECT ($condition) IS TRUE"), $name)
	  or die "gave up, with this work:\n" . sql($where, 'SELECT * FROM reconcile.work LIMIT 50');
	return;
}

# dispatcher_looks(WHERE, LOOP): when it returns, the dispatcher has taken in all
# that was committed before.  The loop is one that may run its entity 'a'.
sub dispatcher_looks
{
	my ($where, $loop) = @_;
	my $tries = tries($where, $loop) + 1;

	enqueue($where, $loop, 'a');
	wait_tries($where, $loop, $tries);
	wait_quiet($where, $loop);
	return;
}

# session_fails(WHERE, SQLSTATE, QUERY, NAME): a test that a query is refused so.
sub session_fails
{
	my ($where, $sqlstate, $query, $name, %params) = @_;
	my ($node, $database) = _where($where);
	my $stderr;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->psql($database, "\\set VERBOSITY verbose\n$query", stderr => \$stderr, %params);
	return like($stderr, qr/ERROR:  $sqlstate:/, $name);
}

# prepare(WHERE): what make_loop() needs, in the schema app.
sub prepare
{
	my ($where) = @_;

	sql($where, q{
		CREATE SCHEMA app;
		GRANT ALL ON SCHEMA app TO PUBLIC;
		CREATE TABLE app.run (
			n bigint GENERATED ALWAYS AS IDENTITY,
			loop_name text, entity_id text, attempt int, epoch bigint, deadline timestamptz,
			began timestamptz DEFAULT clock_timestamp(),
			pid int DEFAULT pg_backend_pid(),
			beside bigint,
			session_role name DEFAULT session_user, role name DEFAULT current_user);
		CREATE TABLE app.behaviour (loop_name text, entity_id text, act text, PRIMARY KEY (loop_name, entity_id));
		GRANT ALL ON app.run, app.behaviour TO PUBLIC;

		-- waits while the gate of this name is closed
		CREATE FUNCTION app.gate(name text) RETURNS void LANGUAGE sql AS
			'SELECT pg_advisory_xact_lock_shared(1, hashtext(name))';
		-- how many transactions have come by here and not ended, this one included
		CREATE FUNCTION app.beside(name text) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(2, hashtext(name));
			RETURN (SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND classid = 2 AND objid = hashtext(name)::oid AND granted);
		END $$;
		-- what the test last said that this entity should do
		CREATE FUNCTION app.behave(name text, entity text) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE
			what text := (SELECT b.act FROM app.behaviour b WHERE b.loop_name = name AND b.entity_id = entity);
		BEGIN
			IF what = 'fail' THEN
				RAISE EXCEPTION 'cannot drive %', entity USING ERRCODE = 'AP001';
			ELSIF what = 'permanent' THEN
				PERFORM reconcile.permanent_error('never will');
			END IF;
		END $$;
	});
	return;
}

# make_loop(WHERE, NAME, body => plpgsql, declare => ..., options => ..., role => ...):
# a loop of the given name whose function app.NAME(entity text) first counts the
# try (which survives its failure), notes the run in app.run, waits at the
# loop's gate, and does what behave() said; then the body.  It asks for no look.
sub make_loop
{
	my ($where, $name, %option) = @_;
	my $body = $option{body} // 'RETURN NULL;';
	my $declare = $option{declare} // '';
	my $options = $option{options} // '';
	my $role = defined $option{role} ? "SET ROLE $option{role};" : '';

	$options = "default_requeue => NULL" . ($options eq '' ? '' : ", $options")
	  unless $options =~ /default_requeue/;
	sql($where, qq{
		$role
		CREATE SEQUENCE app.${name}_tries;
		CREATE FUNCTION app.$name(entity text) RETURNS interval LANGUAGE plpgsql AS \$reconciler\$
		DECLARE
			try bigint := nextval('app.${name}_tries');
			$declare
		BEGIN
			INSERT INTO app.run (loop_name, entity_id, epoch, attempt, deadline, beside)
				SELECT r.*, app.beside('$name') FROM reconcile.current_run() r;
			PERFORM app.gate('$name');
			PERFORM app.behave('$name', entity);
			$body
		END \$reconciler\$;
		SELECT reconcile.create_loop('$name', 'app.$name', $options);
	});
	return;
}

# behave(WHERE, LOOP, ENTITY, ACT): fail, permanent, or anything else for success.
sub behave
{
	my ($where, $loop, $entity, $act) = @_;
	sql($where, "INSERT INTO app.behaviour VALUES ('$loop', '$entity', '$act')
		ON CONFLICT (loop_name, entity_id) DO UPDATE SET act = EXCLUDED.act");
	return;
}

# enqueue(WHERE, LOOP, ENTITY...): each in a transaction of its own.
sub enqueue
{
	my ($where, $loop, @entities) = @_;
	sql($where, join("\n", map { "SELECT reconcile.enqueue('$loop', '$_');" } @entities));
	return;
}

# wait_quiet(WHERE, LOOP): until nothing of it is due or runs, so that counts are final.
sub wait_quiet
{
	my ($where, $loop) = @_;
	my ($node, $database) = _where($where);

	$node->poll_query_until($database, "SELECT NOT EXISTS (SELECT FROM reconcile.work
		WHERE loop_name = '$loop' AND state IN ('ready', 'running'))")
	  or die "loop $loop does not come to rest";
	return;
}

# tries(WHERE, LOOP): how often its function was called, failures included.
sub tries
{
	my ($where, $loop) = @_;
	return sql($where, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM app.${loop}_tries");
}

# wait_tries(WHERE, LOOP, N): until its function was called that often.
sub wait_tries
{
	my ($where, $loop, $n) = @_;
	my ($node, $database) = _where($where);

	$node->poll_query_until($database, "SELECT is_called AND last_value >= $n FROM app.${loop}_tries")
	  or die "loop $loop was not tried $n times";
	return;
}

# runs(WHERE, LOOP, ENTITY): how many of its runs committed.
sub runs
{
	my ($where, $loop, $entity) = @_;
	return sql($where, "SELECT count(*) FROM app.run WHERE loop_name = '$loop'"
		. (defined $entity ? " AND entity_id = '$entity'" : ''));
}

# wait_held(WHERE, LOOP, N): until that many of its runs wait at its gate.
sub wait_held
{
	my ($where, $loop, $n) = @_;
	my ($node, $database) = _where($where);

	$node->poll_query_until($database, "SELECT count(*) = $n FROM pg_locks l
		WHERE l.locktype = 'advisory' AND l.classid = 1 AND l.objid = hashtext('$loop')::oid AND NOT l.granted
		AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())")
	  or die "there are not $n runs of $loop at the gate";
	return;
}

# runs_before_one(WHERE, GATE, LARGE, SMALL): all executors wait at the gate of a
# loop with much to do when one entity of another comes due.  Opens it, and says
# how many more runs of LARGE began before that one.
sub runs_before_one
{
	my ($where, $gate, $large, $small) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	enqueue($where, $small, 'only');
	wait_for($where, "(SELECT ready FROM reconcile.loops WHERE loop_name = '$small') = 1", 'it is due, and all executors are taken');
	my $before = tries($where, $large);
	$gate->open;
	wait_for($where, "EXISTS (SELECT FROM app.run WHERE loop_name = '$small' AND entity_id = 'only')", 'it runs');
	return sql($where, "SELECT count(*) FROM app.run l WHERE l.loop_name = '$large'
		AND l.n < (SELECT s.n FROM app.run s WHERE s.loop_name = '$small' AND s.entity_id = 'only')") - $before;
}

sub dispatcher_pid
{
	my ($where) = @_;
	return sql($where, "SELECT pid FROM reconcile.workers WHERE kind = 'dispatcher' AND database = current_database()");
}

# close_gate(WHERE, LOOP): runs of the loop wait until ->open is called on the result.
sub close_gate
{
	my ($where, $loop) = @_;
	my ($node, $database) = _where($where);
	my $self = { session => $node->background_psql($database), loop => $loop };

	$self->{session}->query_safe("SELECT pg_advisory_lock(1, hashtext('$loop'))");
	return bless $self, 'LoopTest::Gate';
}

# all_at_once(NODE, CLIENTS, FORM, SCRIPT): runs the script of pgbench once in so many
# clients, none of which begins before all are there; a test that it meets no error.
sub all_at_once
{
	my ($node, $clients, $form, $script) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/all_at_once.sql";
	my ($out, $err) = ('', '');
	my $gate = close_gate($node, 'all at once');

	CORE::open(my $handle, '>', $file) or die $!;
	print $handle "SELECT pg_advisory_xact_lock_shared(1, hashtext('all at once'));\n$script\n";
	close $handle;
	my $pgbench = IPC::Run::start(
		[
			'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2', '--transactions=1', "--file=$file",
			'--host=' . $node->host, '--port=' . $node->port, 'postgres'
		],
		'<' => \undef, '>' => \$out, '2>' => \$err);
	wait_held($node, 'all at once', $clients);
	$gate->open;
	ok($pgbench->finish, "$form: no client has failed") or diag($err);
	unlike($err, qr/ERROR|aborted/, "$form: and there is no error");
	return;
}

package LoopTest::Gate;

sub open    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self) = @_;
	$self->{session}->quit;
	return;
}

1;

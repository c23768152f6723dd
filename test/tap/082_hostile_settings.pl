# Settings of a role, a database or the server that would break a session of a
# user do not touch ours: the dispatcher, which connects as the bootstrap
# superuser, and executors, which connect as the owners of loops.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('hostile', conf => <<~'EOC');
	max_worker_processes = 16
	EOC
# The server may apply that one while a process connects, before we can say no; then
# it is tried again.
expect_log(qr/FATAL:  terminating connection due to transaction timeout/);
my $in_run = join ' || ', map { "' ' || current_setting('$_')" }
  qw(transaction_isolation transaction_read_only transaction_deferrable lock_timeout statement_timeout
  idle_in_transaction_session_timeout session_replication_role role);

sql($node, 'CREATE ROLE app LOGIN; CREATE ROLE nobody; GRANT nobody TO app');
prepare($node);
sql($node, qq{
	SELECT reconcile.grant_access('app', 'define');
	CREATE TABLE app.saw (loop_name text, entity_id text, settings text);
	CREATE TABLE app.device (id text PRIMARY KEY, n int);
	CREATE TABLE app.fired (id text);
	GRANT ALL ON app.saw, app.device, app.fired TO PUBLIC;
	CREATE FUNCTION app.fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO app.fired VALUES (NEW.entity_id); RETURN NULL; END';
	CREATE TRIGGER fire AFTER INSERT ON app.saw FOR EACH ROW EXECUTE FUNCTION app.fire()});

# Each has more than a millisecond's work, and is triggered by rows that it wrote itself.
sub make
{
	my ($name, $role, $options) = @_;

	make_loop($node, $name, role => $role, options => $options, body => qq{
		PERFORM pg_sleep(0.01);
		INSERT INTO app.saw VALUES ('$name', entity, $in_run);
		UPDATE app.device SET n = n + 1 WHERE id = 'next ' || entity;
		RETURN NULL;});
	sql($node, "SELECT reconcile.watch('$name', 'app.device', 'id')") if !defined $role;
	return;
}
make('ours', undef, q{backoff_base => '1 ms', backoff_max => '1 ms', max_attempts => 3});
make('theirs', 'app', q{backoff_base => '1 ms', backoff_max => '1 ms', max_attempts => 3});
make('led', 'app', q{lease_ttl => '5 s'});
sql($node, q{INSERT INTO app.device VALUES ('a', 1), ('next a', 1); SELECT reconcile.forget('ours', id) FROM app.device});
dispatcher_looks($node, $_) for qw(ours theirs led);
my $expected = sql($node, q{SELECT DISTINCT settings FROM app.saw});
is($expected, ' read committed off off 0 0 0 origin none', 'what a run sees');

my $superuser = sql($node, 'SELECT rolname FROM pg_roles WHERE oid = 10');

# The sessions of this test have the settings, too, but for these.
my $plain = join ' ', map { "-c $_" } 'role=none', 'search_path=public', 'default_transaction_read_only=off', 'default_transaction_isolation=read\\ committed',
  'statement_timeout=0', 'lock_timeout=0', 'idle_in_transaction_session_timeout=0', 'session_replication_role=origin', 'client_min_messages=notice',
  'session_preload_libraries=', 'local_preload_libraries=',
  $node->pg_version->major >= 17 ? 'transaction_timeout=0' : ();

# hostile(NAME, SET...): all of them, for the owner, the bootstrap superuser, the
# database and the server; then everything is started anew, and works.
sub hostile
{
	my ($name, @settings) = @_;

	note $name;
	local $ENV{PGOPTIONS} = $plain;
	sql($node, join "\n", map { my $set = $_; map { "ALTER $_ SET $set;" } 'ROLE app', "ROLE \"$superuser\"", 'DATABASE postgres', 'ROLE ALL' } @settings);
	# ended, so that what comes now has connected with them
	sql([ $node, 'template1' ], q{SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE backend_type = 'reconcile dispatcher'});
	return;
}

sub works
{
	my ($name) = @_;

	local $ENV{PGOPTIONS} = $plain;
	sql($node, 'TRUNCATE app.saw, app.fired');
	behave($node, 'theirs', 'dies', 'fail');
	enqueue($node, 'theirs', 'a', 'dies');
	enqueue($node, 'led', 'a');
	sql($node, q{UPDATE app.device SET n = 1 WHERE id = 'a'});
	wait_for($node, q{(SELECT count(DISTINCT loop_name) FROM app.saw WHERE entity_id = 'a') = 3}, "$name: loops run");
	wait_for($node, q{EXISTS (SELECT FROM app.saw WHERE loop_name = 'ours' AND entity_id = 'next a')}, 'and what a run writes triggers');
	is(sql($node, q{SELECT DISTINCT settings FROM app.saw}), $expected, 'with the settings that are promised');
	is(sql($node, q{SELECT (SELECT count(*) FROM app.saw) - (SELECT count(*) FROM app.fired)}), 0, q{users' triggers fire});
	wait_for($node, q{(SELECT dead FROM reconcile.loops WHERE loop_name = 'theirs') = 1}, 'what fails is dead, and counted');
	sql($node, q{SELECT reconcile.forget('theirs', 'dies')});
	wait_for($node, q{(SELECT dead FROM reconcile.loops WHERE loop_name = 'theirs') = 0}, 'and forgotten');
	return;
}

hostile('none');
works('none');
hostile('transactions', q{default_transaction_read_only = on}, q{default_transaction_isolation = 'serializable'}, q{default_transaction_deferrable = on});
works('serializable, read only, deferrable');
hostile('timeouts', q{default_transaction_isolation = 'repeatable read'}, q{statement_timeout = '1 ms'}, q{lock_timeout = '1 ms'}, q{idle_in_transaction_session_timeout = '1 ms'},
	$node->pg_version->major >= 17 ? q{transaction_timeout = '1 ms'} : ());
works('repeatable read, a millisecond for all');
hostile('paths and identities', q{search_path = evil, pg_temp}, q{session_preload_libraries = 'missing'}, q{local_preload_libraries = 'missing'}, q{role = nobody},
	q{session_replication_role = replica}, q{row_security = off}, q{client_min_messages = error}, q{work_mem = '64 kB'}, q{temp_tablespaces = nowhere},
	q{quote_all_identifiers = on}, q{datestyle = 'German'}, q{timezone = 'Pacific/Chatham'}, q{standard_conforming_strings = off},
	q{extra_float_digits = 0}, q{bytea_output = escape}, q{enable_indexscan = off}, q{plan_cache_mode = force_generic_plan});
works('another role, replica, no path');

finish();

# User code runs as the loop's owner, connected as it, in a session that is as
# new for each run (P11); what becomes of a loop whose owner may no longer
# connect or whose function is gone; owners that share few executors.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $version = $ENV{RECONCILE_PG_VERSION};
my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 2\n");
prepare($node);
sql($node, q{
	CREATE ROLE app LOGIN;
	CREATE ROLE other LOGIN;
	CREATE ROLE aside;
	GRANT aside TO app;
	SELECT reconcile.grant_access(r, 'define') FROM unnest(ARRAY['app', 'other']) r;
	ALTER ROLE app SET default_transaction_read_only = on;
	ALTER ROLE app SET default_transaction_isolation = 'serializable';
	ALTER ROLE app SET default_transaction_deferrable = on;
	ALTER ROLE app SET lock_timeout = '1 ms';
	ALTER ROLE app SET statement_timeout = '1 ms';
	ALTER ROLE app SET idle_in_transaction_session_timeout = '1 ms';
	ALTER ROLE app SET work_mem = '7 MB';
	ALTER ROLE app SET role = 'aside';
});

# Loops of the role app are made in a session that none of that hurts.
sub as_app
{
	my ($query) = @_;
	return sql($node, "SET SESSION AUTHORIZATION app; SET ROLE NONE; $query");
}

# ----------------------------------------------------------------------
note 'whose code it is';

sql($node, q{
	CREATE TABLE app.seen (n bigint GENERATED ALWAYS AS IDENTITY, step text, what text);
	CREATE TABLE app.deferred (id text);
	GRANT ALL ON app.seen, app.deferred TO PUBLIC;
	CREATE FUNCTION app.who() RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(' ', session_user, current_user, current_setting('is_superuser')) $$;
	CREATE FUNCTION app.deferred() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO app.seen (step, what) VALUES ('deferred', app.who()); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.deferred
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.deferred();
});
as_app(q{
	CREATE FUNCTION app.mine(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.seen (step, what) VALUES ('run', app.who());
		INSERT INTO app.seen (step, what) SELECT name, setting FROM pg_settings
			WHERE name IN ('transaction_isolation', 'transaction_read_only', 'statement_timeout', 'lock_timeout',
				'idle_in_transaction_session_timeout', 'work_mem');
		INSERT INTO app.deferred VALUES (entity);
		EXECUTE 'SET ROLE aside';
		EXECUTE 'RESET ROLE';
		EXECUTE 'RESET SESSION AUTHORIZATION';
		INSERT INTO app.seen (step, what) VALUES ('after reset', app.who());
		BEGIN
			EXECUTE 'SET SESSION AUTHORIZATION postgres';
		EXCEPTION WHEN insufficient_privilege THEN
			INSERT INTO app.seen (step, what) VALUES ('refused', app.who());
		END;
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('mine', 'app.mine', default_requeue => NULL);
	SELECT reconcile.enqueue('mine', 'a');
});
wait_for($node, q{EXISTS (SELECT FROM app.seen WHERE step = 'deferred')}, 'a loop of a plain role runs');
is(sql($node, q{SELECT what FROM app.seen WHERE step = 'run'}), 'app app off', 'as its owner, who is the session too');
is(sql($node, q{SELECT what FROM app.seen WHERE step = 'deferred'}), 'app app off', 'and so do deferred triggers at its COMMIT');
is(sql($node, q{SELECT what FROM app.seen WHERE step = 'after reset'}), 'app app off', 'RESET ROLE and RESET SESSION AUTHORIZATION lead nowhere');
is(sql($node, q{SELECT what FROM app.seen WHERE step = 'refused'}), 'app app off', 'nor does SET SESSION AUTHORIZATION');
is(sql($node, q{SELECT string_agg(step || ' ' || what, ', ' ORDER BY n) FROM app.seen WHERE step LIKE '%t%_iso%' OR step LIKE '%read_only' OR step LIKE '%timeout'}),
	'idle_in_transaction_session_timeout 0, lock_timeout 0, statement_timeout 0, transaction_isolation read committed, transaction_read_only off',
	q{the role's settings cannot make the run read-only, stricter or short of time});
is(sql($node, q{SELECT what FROM app.seen WHERE step = 'work_mem'}), '7168', 'its other settings count');

# ----------------------------------------------------------------------
note 'nothing that a run leaves in its session is there in the next';

sql($node, q{
	CREATE FUNCTION app.leftovers() RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(', ', app.who(), current_setting('work_mem'), current_setting('search_path'),
			nullif(current_setting('my.value', true), ''), current_setting('statement_timeout'),
			(SELECT 'temporary ' || string_agg(relname, ' ') FROM pg_class WHERE relnamespace = pg_my_temp_schema() HAVING count(*) > 0),
			(SELECT 'locks ' || count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' HAVING count(*) > 0),
			(SELECT 'listens ' || string_agg(c, ' ') FROM pg_listening_channels() c HAVING count(*) > 0),
			(SELECT 'statements ' || string_agg(name, ' ') FROM pg_prepared_statements HAVING count(*) > 0),
			(SELECT 'cursors ' || string_agg(name, ' ') FROM pg_cursors WHERE name = 'mine' HAVING count(*) > 0)) $$;
	CREATE TABLE app.left (entity text, pid int, before text, after text);
	GRANT ALL ON app.left TO PUBLIC;
});
as_app(q{
	CREATE FUNCTION app.untidy(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	DECLARE
		before text := app.leftovers();
	BEGIN
		PERFORM set_config('work_mem', '64kB', false), set_config('my.value', 'x', false),
			set_config('statement_timeout', '77 s', false), set_config('search_path', 'app', false),
			set_config('role', 'aside', false);
		CREATE TEMPORARY TABLE scratch (n int);
		PERFORM pg_advisory_lock(77);
		BEGIN
			EXECUTE 'LISTEN news';
		EXCEPTION WHEN feature_not_supported THEN	-- a background process cannot listen
		END;
		EXECUTE 'PREPARE mine AS SELECT 1';
		EXECUTE 'DECLARE mine CURSOR WITH HOLD FOR SELECT 1';
		INSERT INTO app.left VALUES (entity, pg_backend_pid(), before, app.leftovers());
		IF entity = 'fails' THEN RAISE 'on purpose'; END IF;
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('untidy', 'app.untidy', default_requeue => NULL, max_attempts => 1);
	SELECT reconcile.enqueue('untidy', e) FROM unnest(ARRAY['a', 'fails', 'b', 'c']) e;
});
wait_for($node, q{(SELECT count(*) FROM app.left) = 3 AND EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'untidy')},
	'untidy runs, one after the other, one of them failing');
is(sql($node, q{SELECT count(DISTINCT pid) FROM app.left}), 1, 'in one process');
is(sql($node, q{SELECT DISTINCT after FROM app.left}),
	'app aside off, 64kB, app, x, 77s, temporary scratch, locks 1, statements mine, cursors mine',
	'each sees what it left itself');
is(sql($node, q{SELECT DISTINCT before FROM app.left}), 'app app off, 7MB, "$user", public, 0', 'and nothing of the one before it');

# ----------------------------------------------------------------------
note 'an owner who cannot connect';

SKIP:
{
	skip 'roles without LOGIN can own loops here', 1 if $version >= 17;
	session_fails($node, '55000', q{
		CREATE ROLE mute;
		CREATE FUNCTION app.mute(entity text) RETURNS void LANGUAGE sql AS '';
		SELECT reconcile.create_loop('mute', 'app.mute', owner => 'mute')}, 'create_loop() refuses an owner without LOGIN');
}

# pid of a running executor of the role, ended: the next run needs a new one
expect_log(qr/FATAL:  terminating background worker "reconcile executor/);
sub end_executors
{
	my ($role) = @_;
	sql($node, qq{SELECT pg_terminate_backend(pid, 5000) FROM reconcile.workers WHERE kind = 'executor' AND owner = '$role'});
	return;
}

make_loop($node, 'locked_out', role => 'other', options => q{default_requeue => NULL});
enqueue($node, 'locked_out', 'before');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'locked_out')}, 'a loop runs');
my $lose = $version >= 17 ? 'REVOKE CONNECT ON DATABASE postgres FROM PUBLIC, other' : 'ALTER ROLE other NOLOGIN';
my $regain = $version >= 17 ? 'GRANT CONNECT ON DATABASE postgres TO PUBLIC' : 'ALTER ROLE other LOGIN';
my $refusal = qr/a loop of the role with OID \d+ cannot run: its owner /;
my $log_from = -s $node->logfile;
sql($node, $lose);
end_executors('other');
enqueue($node, 'locked_out', 'after');
ok($node->wait_for_log($refusal, $log_from), 'its owner loses the right to connect');
enqueue($node, 'locked_out', ('after') x 50);
enqueue($node, 'mine', 'b');
wait_for($node, q{(SELECT count(*) FROM app.seen WHERE step = 'run') = 2}, 'loops of others go on');
is(sql($node, q{SELECT concat_ws(' ', state, failures) FROM reconcile.work WHERE loop_name = 'locked_out'}), 'ready 0',
	'what waits is not failed');
my $refusals = () = slurp_file($node->logfile, $log_from) =~ /$refusal/g;
cmp_ok($refusals, '<=', 3, 'and the log is not filled');
sql($node, $regain);
wait_for($node, q{(SELECT count(*) FROM app.run WHERE loop_name = 'locked_out' AND entity_id = 'after') = 1},
	'it goes on by itself when the right is back');

# ----------------------------------------------------------------------
note 'a function that is gone';

make_loop($node, 'hollow', role => 'other', options => q{default_requeue => NULL});
enqueue($node, 'hollow', 'before');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'hollow')}, 'a loop runs');
$log_from = -s $node->logfile;
sql($node, q{ALTER FUNCTION app.hollow(text) RENAME TO hollow_away});
enqueue($node, 'hollow', qw(a b));
ok($node->wait_for_log(qr/loop "hollow" is suspended: its function "app.hollow\(text\)" is gone/, $log_from), 'its function goes');
enqueue($node, 'hollow', ('a', 'b') x 20);
sql($node, q{DO $$ BEGIN FOR i IN 1 .. 20 LOOP
		PERFORM reconcile.acquire_lease('unrelated' || i, 'me'); COMMIT; PERFORM pg_sleep(0.01);
	END LOOP; END $$});
is(sql($node, q{SELECT string_agg(concat_ws(' ', entity_id, state, failures), ', ' ORDER BY entity_id) FROM reconcile.work WHERE loop_name = 'hollow'}),
	'a ready 0, b ready 0', 'the loop stands still, and no entity is failed');
sql($node, q{ALTER FUNCTION app.hollow_away(text) RENAME TO hollow; SELECT reconcile.alter_loop('hollow', '{}')});
wait_for($node, q{(SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'hollow') = 3}, 'it goes on at once after alter_loop()');
wait_quiet($node, 'hollow');
my $suspensions = () = slurp_file($node->logfile, $log_from) =~ /is suspended/g;
is($suspensions, 1, 'the log said so once, however often leases changed meanwhile');

sql($node, q{REVOKE EXECUTE ON FUNCTION app.hollow(text) FROM PUBLIC, other});
enqueue($node, 'hollow', 'c');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'hollow' AND state = 'ready')}, 'one that the owner may not call counts as gone');
sql($node, q{GRANT EXECUTE ON FUNCTION app.hollow(text) TO PUBLIC});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'hollow' AND entity_id = 'c')}, 'and is found again without being told');

$log_from = -s $node->logfile;
sql($node, q{ALTER FUNCTION app.hollow(text) OWNER TO app});
enqueue($node, 'hollow', 'd');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'hollow' AND state = 'ready')}, 'so does one that belongs to somebody else');
ok($node->wait_for_log(qr/loop "hollow" is suspended/, $log_from), 'who could run anything as the owner');
is(runs($node, 'hollow', 'd'), 0, 'it is not called');
sql($node, q{ALTER FUNCTION app.hollow(text) OWNER TO other; SELECT reconcile.alter_loop('hollow', '{}')});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'hollow' AND entity_id = 'd')}, 'until it belongs to the owner again');

# ----------------------------------------------------------------------
note 'three owners share two executors';

make_loop($node, 'superuser', options => q{default_requeue => '1 ms'});
make_loop($node, 'plain', role => 'other', options => q{default_requeue => '1 ms'});
enqueue($node, 'superuser', 1 .. 3);
enqueue($node, 'plain', 1 .. 3);
wait_tries($node, 'superuser', 20);
wait_tries($node, 'plain', 20);
enqueue($node, 'mine', 'c');
wait_for($node, q{(SELECT count(*) FROM app.seen WHERE step = 'run') = 3}, 'a third owner gets its turn beside two that always have work');
my $tries = tries($node, 'superuser') + 50;
wait_tries($node, 'superuser', $tries);
pass('and they go on');
cmp_ok(sql($node, q{SELECT count(*) FROM reconcile.workers WHERE kind = 'executor'}), '<=', 2, 'with no more executors than max_workers');

finish();

# Resync: the ticker, the lister, their failures; under workers and in run_loop().

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 6\n");
prepare($node);
sql($node, q{
	CREATE TABLE app.thing (loop_name text, id text);
	-- one lister for each loop: it counts its calls, and fails on demand
	CREATE FUNCTION app.list(name text) RETURNS SETOF text LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM app.gate('list_' || name);
		PERFORM app.behave(name, '');
		RETURN QUERY SELECT t.id FROM app.thing t WHERE t.loop_name = name;
	END $$;
});

sub make_lister
{
	my ($loop) = @_;
	sql($node, "CREATE SEQUENCE app.list_${loop}_tries;
		CREATE FUNCTION app.list_$loop() RETURNS SETOF text LANGUAGE sql AS
			\$\$ SELECT nextval('app.list_${loop}_tries'); SELECT app.list('$loop') \$\$");
	return;
}

sub retry_of
{
	my ($loop) = @_;
	return sql($node, "SELECT concat_ws(' ', state, failures, last_sqlstate) FROM reconcile.work
		WHERE loop_name = '$loop' AND entity_id = ''");
}

# ----------------------------------------------------------------------
note 'the ticker without a lister marks the empty id: first at once, then in each interval';

make_loop($node, 'plain', options => q{resync_every => '1 hour'});
wait_tries($node, 'plain', 1);
wait_quiet($node, 'plain');
is(sql($node, q{SELECT quote_literal(entity_id) FROM app.run WHERE loop_name = 'plain'}), "''", 'the first tick comes at once');
sql($node, q{SELECT reconcile.alter_loop('plain', '{"resync_every": "20 ms"}')});
wait_tries($node, 'plain', 4);
pass('a shorter interval holds from when it is set');

sql($node, q{SELECT reconcile.pause_loop('plain')});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'plain' AND state = 'running')}, 'paused');
my $marks = sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'plain'});
my $tries = tries($node, 'plain');
make_loop($node, 'clock', options => q{resync_every => '20 ms'});
wait_tries($node, 'clock', 4);
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'plain'}), $marks, 'a paused loop does not tick');
is(tries($node, 'plain'), $tries, 'nor does it run');
sql($node, q{SELECT reconcile.alter_loop('plain', '{"resync_every": "1 hour"}'); SELECT reconcile.resume_loop('plain')});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'plain')}, 'resumed');
cmp_ok(tries($node, 'plain') - $tries, '<=', 1, 'ticks that it missed are one at most');

# ----------------------------------------------------------------------
note 'ticks that nobody answers are one mark';

my $gate = close_gate($node, 'clock');
wait_held($node, 'clock', 1);
wait_for($node, q{SELECT count(*) > 1 FROM reconcile.mark WHERE loop_name = 'clock' AND kind = 'r'}, 'a tick comes in while the last is answered');
make_loop($node, 'clock2', options => q{resync_every => '20 ms'});
wait_tries($node, 'clock2', 6);
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'clock' AND kind = 'r'}), '2', 'and is the only one');
sql($node, q{SELECT reconcile.alter_loop('clock', '{"resync_every": null}')});
$tries = tries($node, 'clock');
$gate->open;
wait_quiet($node, 'clock');
cmp_ok(tries($node, 'clock') - $tries, '<=', 1, 'one more run answers all that came meanwhile');
sql($node, q{SELECT reconcile.drop_loop('clock2')});

# ----------------------------------------------------------------------
note 'a lister: a resync marks each entity that it names';

make_lister('listed');
sql($node, q{INSERT INTO app.thing SELECT 'listed', 'e' || n FROM generate_series(1, 30) n;
	INSERT INTO app.thing VALUES ('listed', 'e1'), ('listed', '')});
make_loop($node, 'listed', options => q{lister => 'app.list_listed', resync_every => '1 hour', concurrency => 2});
wait_tries($node, 'listed', 30);
wait_quiet($node, 'listed');
is(runs($node, 'listed'), 30, 'each of them runs once, also the one that was named twice');
is(tries($node, 'list_listed'), 1, 'after one call of the lister');
is(runs($node, 'listed', ''), 0, 'and the reconciler never sees the empty id');
sql($node, q{INSERT INTO app.thing VALUES ('listed', 'new'); SELECT reconcile.enqueue('listed', '')});
wait_tries($node, 'listed', 61);
wait_quiet($node, 'listed');
is(runs($node, 'listed', 'new'), 1, 'enqueue of the empty id is a resync');

note 'it does not revive the dead';
behave($node, 'listed', 'e2', 'permanent');
enqueue($node, 'listed', 'e2');
wait_for($node, q{SELECT count(*) = 1 FROM reconcile.dead_letters WHERE loop_name = 'listed'}, 'one is dead');
behave($node, 'listed', 'e2', 'succeed');
$tries = tries($node, 'listed');
enqueue($node, 'listed', '');
wait_tries($node, 'listed', $tries + 30);
wait_quiet($node, 'listed');
is(sql($node, q{SELECT entity_id FROM reconcile.dead_letters WHERE loop_name = 'listed'}), 'e2', 'it is dead still');
is(tries($node, 'listed'), $tries + 30, 'all others ran');

note 'a lister that fails is tried again, however often, and keeps nobody from running';
sql($node, q{SELECT reconcile.alter_loop('listed', '{"max_attempts": 2, "backoff_base": "1 ms", "backoff_max": "20 ms"}')});
behave($node, 'listed', '', 'fail');
$tries = tries($node, 'list_listed');
enqueue($node, 'listed', '');
wait_tries($node, 'list_listed', $tries + 4);
like(retry_of('listed'), qr/^(retrying|ready|running) \d+ AP001$/, 'it is retried past the attempts of an entity');
$tries = tries($node, 'listed');
enqueue($node, 'listed', 'e3');
wait_tries($node, 'listed', $tries + 1);
pass('an entity runs meanwhile');
behave($node, 'listed', '', 'succeed');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'listed' AND entity_id = '')}, 'and it succeeds at last');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE loop_name = 'listed' AND entity_id = '' AND failures <> 0}), '0', 'its failures are forgotten');

note 'what a lister may not return fails the resync as a whole';
sql($node, q{SELECT reconcile.alter_loop('listed', '{"backoff_base": "1 hour", "backoff_max": "1 hour"}')});
for my $bad (['NULL', '22004'], [q{repeat('x', 513)}, '22023'])
{
	my ($value, $sqlstate) = @$bad;

	wait_quiet($node, 'listed');
	$tries = tries($node, 'listed');
	sql($node, "INSERT INTO app.thing VALUES ('listed', $value); SELECT reconcile.enqueue('listed', '')");
	wait_for($node, "SELECT last_sqlstate = '$sqlstate' FROM reconcile.work WHERE loop_name = 'listed' AND entity_id = ''", "$value: $sqlstate");
	is(tries($node, 'listed'), $tries, 'nobody was marked');
	sql($node, q{DELETE FROM app.thing WHERE id IS NULL OR length(id) > 512});
}

note 'a lister that is gone does not suspend the loop';
sql($node, q{DROP FUNCTION app.list_listed(); SELECT reconcile.enqueue('listed', '')});
$node->wait_for_log(qr/loop "listed" cannot resync/);
$tries = tries($node, 'listed');
enqueue($node, 'listed', 'e3');
wait_tries($node, 'listed', $tries + 1);
pass('its entities run');
sql($node, q{SELECT reconcile.drop_loop('listed')});

# ----------------------------------------------------------------------
note 'a leased loop ticks at its take-over, and lists under its term';

make_lister('led');
sql($node, q{INSERT INTO app.thing VALUES ('led', 'x');
	SELECT reconcile.acquire_lease('led', 'other', '1 hour')});
make_loop($node, 'led', options => q{lister => 'app.list_led', resync_every => '1 hour', lease_ttl => '10 s'});
make_loop($node, 'ticking', options => q{resync_every => '20 ms'});
wait_tries($node, 'ticking', 4);
is(tries($node, 'list_led'), 0, 'a follower does not tick');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'led'}), '0', 'nor leave marks');
sql($node, q{SELECT reconcile.release_lease('led', 'other', 1)});
wait_tries($node, 'led', 1);
is(sql($node, q{SELECT epoch FROM app.run WHERE loop_name = 'led'}), '2', 'the first tick comes with the term');
sql($node, q{SELECT reconcile.drop_loop('ticking')});

# ----------------------------------------------------------------------
note 'a loop for outside workers lists in the engine';

make_lister('outside');
sql($node, q{INSERT INTO app.thing SELECT 'outside', 'o' || n FROM generate_series(1, 3) n;
	SELECT reconcile.create_loop('outside', lister => 'app.list_outside', resync_every => '1 hour', lease_ttl => '10 s')});
wait_for($node, q{SELECT string_agg(entity_id, ' ' ORDER BY entity_id) = 'o1 o2 o3' FROM reconcile.work
	WHERE loop_name = 'outside' AND state = 'ready'}, 'its entities are marked, for who claims them');
is(sql($node, q{SELECT count(*) FROM reconcile.leases WHERE reconciler_id = 'outside'}), '0', 'its lease is left to them');

# ----------------------------------------------------------------------
note 'after a restart the first tick comes at once';

$tries = tries($node, 'plain');
$node->restart;
wait_tries($node, 'plain', $tries + 1);
pass('plain ticked');

# ----------------------------------------------------------------------
note 'without preload run_loop() ticks and lists';

my $bare = new_node('bare', preload => 0);
sql($bare, q{
	CREATE TABLE seen (id text);
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES (id)';
	CREATE FUNCTION list() RETURNS SETOF text LANGUAGE sql AS $$ SELECT 'e' || n FROM generate_series(1, 25000) n $$;
	SELECT reconcile.create_loop('swept', 'see', lister => 'list', resync_every => '1 hour', default_requeue => NULL);
	SELECT reconcile.create_loop('ticked', 'see', resync_every => '1 hour', default_requeue => NULL);
});
sql($bare, 'CALL reconcile.run_loop()');
is(sql($bare, q{SELECT count(*), count(*) FILTER (WHERE id = '') FROM seen}), '25001|1', 'the first call ticks, lists, and runs what was listed');
sql($bare, 'CALL reconcile.run_loop()');
is(sql($bare, 'SELECT count(*) FROM seen'), '25001', 'the next one finds no tick due');
sql($bare, q{SELECT reconcile.alter_loop('ticked', '{"resync_every": "1 ms"}')});
sql($bare, 'CALL reconcile.run_loop()');
is(sql($bare, 'SELECT count(*) FROM seen'), '25002', 'until the interval is over');
sql($bare, q{SELECT reconcile.pause_loop('ticked')});
sql($bare, 'CALL reconcile.run_loop()');
is(sql($bare, 'SELECT count(*) FROM seen'), '25002', 'and a paused loop does not tick');

finish();

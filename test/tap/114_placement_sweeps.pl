# Sweeps at size and beside others: 100,000 commands that nobody can settle hold up no
# live one for more passes than the budget says (F9, I22, I23); nor does a shard that
# cannot be swept, or a session that cannot be placed (F5); what is written between a
# page and its rows is left as it is (G1, I19, M7); while nothing is due nothing runs; and
# a crash, or another server, begins at the head.

use strict;
use warnings;

use LoopTest;
use POSIX qw(ceil);
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

use constant { SHARDS => 16, ROWS => 100_000, PAGE => 64, PAGES => 32 };

expect_log(qr/FATAL:  terminating connection due to/, qr/FATAL:  .*could not (?:send end-of-streaming message|connect) to (?:the )?primary/, qr/FATAL:  could not receive data from WAL stream/);
my $node = new_node('sweeps', test_points => 1, allows_streaming => 1,
	conf => "max_worker_processes = 16\nmax_connections = 60\nwal_writer_delay = '10 s'\n");

sql($node, q{
	CREATE SCHEMA t;
	CREATE FUNCTION t.session(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.create_session('t', s, 'agent', 'pooled', 'create', 'r') $$;
	-- a command that nobody was told of
	CREATE FUNCTION t.put(s text, c text, deadline interval, shard int DEFAULT NULL, claim interval DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
		INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest,
				payload_size, payload, accepted_at, apply_deadline, state, claim_epoch, claim_expires_at)
			SELECT 't', s, c, coalesce(shard, reconcile.control_shard_of('t', s, (SELECT control_shards FROM reconcile.placement_setting))),
				coalesce((SELECT max(accepted_order) FROM reconcile.session_command WHERE tenant_id = 't' AND session_id = s), 0) + 1,
				1, c, 'input', sha256('x'), 1, 'x', now() - interval '1 h', now() + deadline, CASE WHEN claim IS NULL THEN 'pending' ELSE 'claimed' END,
				CASE WHEN claim IS NOT NULL THEN 1 END, now() + claim $$;
	CREATE FUNCTION t.remove_commands() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		ALTER TABLE reconcile.session_command DISABLE TRIGGER session_command_truncated;
		TRUNCATE reconcile.session_command;
		ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_truncated;
		TRUNCATE reconcile.placement_cursor;
	END $$;
	CREATE FUNCTION t.host(h text, ttl interval, generation bigint DEFAULT 1, capacity int DEFAULT 10) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.publish_host_target(h, generation, 'agent', 'r', 'pooled', 'wss://h', 'cross_tenant_isolated', true, capacity, ttl) $$;
	CREATE FUNCTION t.lapse(h text) RETURNS void LANGUAGE sql AS $$
		UPDATE reconcile.host_target SET observed_at = now() - interval '1 min', expires_at = now() - interval '1 s' WHERE host_id = h $$;
	CREATE FUNCTION t.is_offered(s text) RETURNS boolean LANGUAGE sql AS $$
		SELECT EXISTS (SELECT FROM reconcile.session_offer WHERE tenant_id = 't' AND session_id = s) $$;
	CREATE FUNCTION t.is_marked(s text) RETURNS boolean LANGUAGE sql AS $$
		SELECT EXISTS (SELECT FROM reconcile.work w JOIN reconcile.session e ON e.number::text = w.entity_id WHERE w.loop_name = 'placement' AND e.session_id = s) $$;
	SELECT reconcile.set_placement('{}');
	SELECT reconcile.register_host(h, session_user) FROM unnest('{h1,h2,h3,h4}'::text[]) h;
	SELECT t.session(s) FROM unnest('{live,spread,bad,good1,good2,good3,x1,x2,x3}'::text[]) s;
});

sub pause
{
	sql($node, "SELECT reconcile.pause_loop('placement'), reconcile.pause_loop('placement_sweeps')");
	wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name LIKE 'placement%' AND state = 'running')}, 'both loops are at rest');
	return;
}

sub resume
{
	sql($node, "SELECT reconcile.resume_loop('$_')") for @_;
	return;
}

sub sweep_runs
{
	my ($sweep) = @_;
	return sql($node, "SELECT count(*) FROM reconcile.runs WHERE loop_name = 'placement_sweeps' AND entity_id = '$sweep'");
}

# ----------------------------------------------------------------------
note '100,000 rows ahead of one';

# claimed, their deadlines over and the claims not: nobody rejects them, nobody places them
sub crowd
{
	my ($shard) = @_;
	sql($node, qq{
		SELECT t.remove_commands();
		INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest,
				payload_size, payload, accepted_at, apply_deadline, state, claim_epoch, claim_expires_at)
			SELECT 't', 'crowd', 'c' || i, $shard, i, 1, 'c', 'input', sha256('x'), 1, 'x', now() - interval '1 h', now() - interval '1 min', 'claimed', 1, now() + interval '1 day'
			  FROM generate_series(1, @{[ROWS]}) i});
	return;
}

sub calls_until_marked
{
	my ($session, $most) = @_;
	return sql($node, qq{
		DO \$\$
		DECLARE n int := 0;
		BEGIN
			LOOP
				PERFORM * FROM reconcile.sweep_pending();
				COMMIT;
				n := n + 1;
				EXIT WHEN t.is_marked('$session') OR n > $most;
			END LOOP;
			PERFORM set_config('t.calls', n::text, false);
		END \$\$;
		SELECT current_setting('t.calls')});
}

pause();
is(sql($node, q{SELECT page_limit || ' ' || max_pages FROM reconcile.placement_setting}), PAGE . ' ' . PAGES, 'pages and budget are the defaults');
my $shard = sql($node, "SELECT reconcile.control_shard_of('t', 'live', @{[SHARDS]})");
crowd($shard);
sql($node, q{SELECT setval('reconcile.sweep_turn_pending', 0, false)});
sql($node, q{SELECT t.put('live', 'c', '1 day')});
my $implied = ceil((ROWS + 1) / (PAGE * PAGES));
my $calls = calls_until_marked('live', 2 * $implied);
note "all in one shard: $calls calls, and the budget implies $implied";
is($calls, $implied, 'all in one shard: as many calls as the budget implies');

my $spread = sql($node, "SELECT reconcile.control_shard_of('t', 'spread', @{[SHARDS]})");
my $of_shard = ROWS / SHARDS;
crowd('i % ' . SHARDS);
sql($node, q{SELECT t.put('spread', 'c', '1 day'); SELECT setval('reconcile.sweep_turn_pending', 0, false)});
# a shard has more than a call, so each call is of one, until what is left of each is less
my $rotations = int($of_shard / (PAGE * PAGES));
$implied = SHARDS * $rotations + ceil(($spread + 1) * (ceil(($of_shard + 1) / PAGE) - $rotations * PAGES) / PAGES);
$calls = calls_until_marked('spread', 2 * $implied);
note "in all shards: $calls calls, and the budget implies $implied";
is($calls, $implied, 'in all shards: as many calls as the budget implies');

# by the loop, a page a run; the turn of its shard is one in 16
sql($node, q{SELECT reconcile.forget('placement', number::text) FROM reconcile.session; TRUNCATE reconcile.placement_cursor;
	SELECT t.host('h1', '15 min'); SELECT setval('reconcile.sweep_turn_pending', 0, false);
	SELECT reconcile.enqueue('placement_sweeps', 'pending')});
my $before = sweep_runs('pending');
$implied = SHARDS * (ceil(($of_shard + 1) / PAGE) - 1) + $spread + 1;
resume('placement_sweeps');
wait_for($node, q{t.is_marked('spread')}, 'the loop finds it');
# those that had begun when it made the mark
my $runs = sql($node, q{SELECT count(*) FROM reconcile.runs WHERE loop_name = 'placement_sweeps' AND entity_id = 'pending'
	AND started_at <= (SELECT min(m.made_at) FROM reconcile.mark m JOIN reconcile.session s ON s.number::text = m.entity_id
		WHERE m.loop_name = 'placement' AND s.session_id = 'spread')}) - $before;
note "in all shards: $runs runs, and the pages imply $implied";
is($runs, $implied, 'in all shards: as many runs as the pages imply');
resume('placement');
wait_for($node, q{t.is_offered('spread')}, 'and it is placed');
pause();
sql($node, q{SELECT t.remove_commands()});

# ----------------------------------------------------------------------
note 'a shard that cannot be swept';

# of 4 shards; the update of one command does not come to its end, and is cancelled: a call by itself, or a run by its timeout
sql($node, q{
	UPDATE reconcile.placement_setting SET control_shards = 4;
	CREATE FUNCTION t.hangs() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_cancel_backend(pg_backend_pid()) WHERE current_setting('t.cancels', true) = 'on';
			PERFORM pg_sleep(60);
			RETURN NEW;
		END $$;
	CREATE TRIGGER hangs BEFORE UPDATE ON reconcile.session_command FOR EACH ROW WHEN (NEW.session_id = 'bad') EXECUTE FUNCTION t.hangs();
	SELECT t.put(s, 'c', '-1 min', n::int - 1) FROM unnest('{bad,good1,good2,good3}'::text[]) WITH ORDINALITY u (s, n);
	SELECT setval('reconcile.sweep_turn_deadlines', 2, false);
	INSERT INTO reconcile.placement_cursor (sweep, shard, turn) VALUES ('deadlines', -1, 1);
});
my @cancelled;
for my $call (1 .. 6)
{
	my $stderr;
	push @cancelled, $call if $node->psql('postgres', q{SET t.cancels = 'on'; SELECT * FROM reconcile.sweep_deadlines()}, stderr => \$stderr) != 0;
}
is(sql($node, q{SELECT string_agg(session_id, ' ' ORDER BY session_id) FROM reconcile.session_command WHERE state = 'rejected'}), 'good1 good2 good3',
	'the others are swept, though calls with it are undone');
# the last passes by all the others, which have none any more
is("@cancelled", '1 5 6', 'those of its turns alone');
# the same by the loop
sql($node, q{
	SELECT t.remove_commands();
	SELECT t.put(s, 'd', '-1 min', n::int - 1) FROM unnest('{bad,good1,good2,good3}'::text[]) WITH ORDINALITY u (s, n);
	SELECT setval('reconcile.sweep_turn_deadlines', 0, false);
	SELECT reconcile.alter_loop('placement_sweeps', '{"timeout": "1 s", "backoff_base": "10 ms", "backoff_max": "100 ms"}');
	SELECT reconcile.enqueue('placement_sweeps', 'deadlines')});
resume('placement_sweeps');
wait_for($node, q{(SELECT count(*) FROM reconcile.session_command WHERE state = 'rejected') = 3}, 'by the loop, too');
# more of them: the next round
sql($node, q{SELECT t.put(s, 'e', '-1 min', n::int - 1) FROM unnest('{bad,good1,good2,good3}'::text[]) WITH ORDINALITY u (s, n)});
wait_for($node, q{(SELECT count(*) FROM reconcile.session_command WHERE state = 'rejected') = 6}, 'and again');
sql($node, 'DROP TRIGGER hangs ON reconcile.session_command');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.session_command WHERE state <> 'rejected')}, 'then it as well');
sql($node, q{SELECT reconcile.alter_loop('placement_sweeps', '{"timeout": "5 min", "backoff_base": "1 s", "backoff_max": "1 min"}')});
pause();

# ----------------------------------------------------------------------
note 'F5: a session that cannot be placed';

sql($node, q{
	SELECT t.remove_commands();
	CREATE FUNCTION t.refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no offer'; END $$;
	CREATE TRIGGER refuses BEFORE INSERT ON reconcile.session_offer FOR EACH ROW WHEN (NEW.session_id = 'bad') EXECUTE FUNCTION t.refuses();
	SELECT t.host('h1', '15 min');
	SELECT t.put(s, 'f', '1 h') FROM unnest('{bad,good1,good2,good3}'::text[]) s;
	SELECT reconcile.enqueue('placement_sweeps', 'pending')});
resume('placement', 'placement_sweeps');
wait_for($node, q{t.is_offered('good1') AND t.is_offered('good2') AND t.is_offered('good3')}, 'the others are placed');
wait_for($node, q{EXISTS (SELECT FROM reconcile.runs r JOIN reconcile.session s ON s.number::text = r.entity_id
	WHERE r.loop_name = 'placement' AND s.session_id = 'bad' AND r.sqlstate = 'P0001')}, 'it has failed');
is(sql($node, q{SELECT t.is_offered('bad')}), 'f', 'and has no offer');
sql($node, 'DROP TRIGGER refuses ON reconcile.session_offer');
wait_for($node, q{t.is_offered('bad')}, 'until it can be');
pause();
sql($node, q{SELECT t.remove_commands()});

# ----------------------------------------------------------------------
note 'what is written between a page and its row';

my $sweeper = $node->background_psql('postgres');
sql($node, 'UPDATE reconcile.placement_setting SET control_shards = 1');

# A sweep that has read its page, during which "$meanwhile" is done: what it returns.
sub between
{
	my ($sweep, $meanwhile) = @_;
	arm($node, 'sweep-page-read');
	begins($sweeper, "CREATE TEMP TABLE swept AS $sweep;");
	reached($node, 'sweep-page-read');
	sql($node, $meanwhile);
	release($node, 'sweep-page-read');
	return $sweeper->query_safe('SELECT * FROM swept; DROP TABLE swept');
}

my $targets = 'SELECT scanned, withdrawn, still_live, contended FROM reconcile.sweep_host_targets()';
sql($node, q{SELECT t.host('h1', '15 min'), t.host('h2', '15 min'); SELECT t.lapse('h1'), t.lapse('h2')});
is(between($targets, q{SELECT t.host('h1', '15 min', 1, 7)}), '2|1|0|1', 'G1, I19: a heartbeat is not undone, and who is dead is withdrawn');
is(sql($node, q{SELECT host_id, capacity FROM reconcile.host_target WHERE expires_at IS NOT NULL}), 'h1|7', 'with the room that it said');
sql($node, q{SELECT t.host('h2', '15 min'); SELECT t.lapse('h1'), t.lapse('h2')});
is(between($targets, q{SELECT 1}), '2|2|0|0', 'without one both are');

sql($node, q{SELECT t.put('x1', 'm', '-1 min'), t.put('x2', 'm', '-1 min'), t.put('x3', 'm', '-1 min')});
is(between(q{SELECT due, rejected, deferred, contended FROM reconcile.sweep_deadlines()},
	q{SELECT outcome FROM reconcile.reject_session_command('t', 'x1', 'm', NULL, NULL, 1);
	  SELECT outcome FROM reconcile.acquire_claim('t', 'x2', 'somebody', '5 min')}), '3|1|1|1', 'M7: what was settled meanwhile is left, as is what is claimed');
is(sql($node, q{SELECT session_id, state, revision FROM reconcile.session_command ORDER BY 1}), "x1|rejected|2\nx2|pending|1\nx3|rejected|2", 'each is rejected once');
sql($node, q{SELECT t.remove_commands()});

sql($node, q{SELECT t.host('h1', '15 min', 1, 20); SELECT outcome FROM reconcile.place_session('t', 'x1');
	UPDATE reconcile.session_offer SET expires_at = now() WHERE session_id = 'x1' AND state = 'offered'});
is(between(q{SELECT examined >= 1 AS examined, expired, contended FROM reconcile.sweep_offers()}, q{SELECT outcome FROM reconcile.place_session('t', 'x1')}) =~ /^t\|\d+\|1$/, 1,
	'an offer that was replaced meanwhile is left');
$sweeper->quit;

# ----------------------------------------------------------------------
note 'many at once';

# I4, I28: 8 hosts' processes of one name, each of another generation, and sweeps beside them
sql($node, q{CREATE PROCEDURE t.beats(g bigint, rounds int) LANGUAGE plpgsql AS $$
	DECLARE o text;
	BEGIN
		FOR i IN 1 .. rounds LOOP
			o := t.host('h3', '15 min', g);
			COMMIT;
			EXIT WHEN o = 'generation';
			IF o <> 'published' THEN RAISE 'outcome %', o; END IF;
		END LOOP;
	END $$;
	CREATE PROCEDURE t.sweeps() LANGUAGE plpgsql AS $$
	BEGIN
		WHILE EXISTS (SELECT FROM reconcile.session_command WHERE state = 'pending') LOOP
			PERFORM * FROM reconcile.sweep_deadlines();
			COMMIT;
			PERFORM * FROM reconcile.sweep_host_targets();
			COMMIT;
		END LOOP;
	END $$;
	UPDATE reconcile.placement_setting SET page_limit = 5, max_pages = 2;
	SELECT t.session('many' || i) FROM generate_series(1, 20) i;
	SELECT t.put('many' || i % 20 + 1, 'c' || i, '-1 min') FROM generate_series(1, 300) i});
my @sessions = map { $node->background_psql('postgres') } 1 .. 16;
begins($sessions[$_], 'CALL t.beats(' . ($_ + 1) . ', 30);') for 0 .. 7;
begins($sessions[$_], 'CALL t.sweeps();') for 8 .. 15;
$_->query_safe('SELECT 1') for @sessions;
$_->quit for @sessions;
is(sql($node, q{SELECT host_generation, capacity FROM reconcile.host_target WHERE host_id = 'h3'}), '8|10', 'I4, I28: of 8 generations the highest is there, once');
is(sql($node, q{SELECT state, revision, count(*) FROM reconcile.session_command GROUP BY 1, 2}), 'rejected|2|300', '8 sweeps at once reject each command once');
sql($node, q{SELECT t.remove_commands(); SELECT reconcile.set_placement('{"page_limit": null, "max_pages": null}')});

# ----------------------------------------------------------------------
note 'subtransactions, and the disk';

SKIP:
{
	skip 'the server does not tell', 1 if $ENV{RECONCILE_PG_VERSION} < 16;
	sql($node, q{SELECT t.put('x1', 'c' || i, '-1 min') FROM generate_series(1, 64) i});
	is(sql($node, q{
		BEGIN;
		CREATE TEMP TABLE swept ON COMMIT DROP AS SELECT sum(rejected) AS n FROM reconcile.sweep_deadlines();
		SELECT (SELECT n FROM swept), s.subxact_overflowed FROM pg_stat_get_backend_idset() i, pg_stat_get_backend_subxact(i) s WHERE pg_stat_get_backend_pid(i) = pg_backend_pid();
		COMMIT}), '64|f', 'a page of 64 is no more than a snapshot knows');
	sql($node, q{SELECT t.remove_commands()});
}

# I22, I23: what is stuck fills the budget; who loses his place comes no further, who keeps it does
sql($node, q{
	UPDATE reconcile.placement_setting SET page_limit = 1, max_pages = 1;
	CREATE FUNCTION t.refuses_target() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
	CREATE TRIGGER refuses BEFORE UPDATE ON reconcile.host_target FOR EACH ROW WHEN (NEW.host_id IN ('h1', 'h2') AND NEW.expires_at IS NULL) EXECUTE FUNCTION t.refuses_target();
	SELECT t.host(h, '15 min', 9) FROM unnest('{h1,h2,h3}'::text[]) h;
	SELECT t.lapse('h1'); SELECT t.lapse('h2'); SELECT t.lapse('h3');
	SELECT t.put('x1', 'sync', '-1 min')});
my $stuck = 'SELECT scanned, withdrawn, failed, exhausted, resumed FROM reconcile.sweep_host_targets()';
is(sql($node, $stuck), '1|0|1|f|f', 'I22: a budget of one row is spent on one that is stuck');
is(sql($node, q{SET synchronous_commit = off; UPDATE reconcile.placement_setting SET page_limit = 64, max_pages = 32;
	SELECT sum(rejected) FROM reconcile.sweep_deadlines()}), '1', 'a command is rejected, by who does not wait for the disk');
$node->stop('immediate');
$node->start;
is(sql($node, q{SELECT state FROM reconcile.session_command WHERE command_id = 'sync'}), 'rejected', 'it is rejected after a crash');
sql($node, 'UPDATE reconcile.placement_setting SET page_limit = 1, max_pages = 1');
is(sql($node, 'SELECT count(*) FROM reconcile.placement_cursor'), '0', 'the places are gone with a crash');
is(sql($node, $stuck), '1|0|1|f|f', 'I23: it begins at the head');
my $bound = sql($node, q{SELECT bound FROM reconcile.placement_cursor WHERE sweep = 'host_targets' AND shard = 0});
is(sql($node, $stuck), '1|0|1|f|t', 'goes on');
is(sql($node, q{SELECT bound FROM reconcile.placement_cursor WHERE sweep = 'host_targets' AND shard = 0}), $bound, 'I24: with the bound that it began with');
# one whose time is over by now, and was not at the beginning
sql($node, q{SELECT t.host('h4', '15 min'); UPDATE reconcile.host_target SET observed_at = now() - interval '1 min', expires_at = now() WHERE host_id = 'h4'});
is(sql($node, $stuck), '1|1|0|f|t', 'and comes to the third');
is(sql($node, $stuck), '0|0|0|t|t', 'I24: the fourth is none of this walk, though the clock has gone on');
sql($node, q{UPDATE reconcile.placement_setting SET page_limit = 1, max_pages = 8});
is(sql($node, $stuck), '3|1|2|t|f', 'I22: with a budget for all it is of the next');
sql($node, q{DROP TRIGGER refuses ON reconcile.host_target; SELECT reconcile.set_placement('{"page_limit": null, "max_pages": null}')});
is(sql($node, $stuck), '2|2|0|t|f', 'then the stuck ones, too');

# ----------------------------------------------------------------------
note 'while nothing is due nothing runs';

prepare($node);
make_loop($node, 'looks');
sql($node, q{SELECT t.remove_commands(); SELECT reconcile.forget('placement_sweeps', s) FROM reconcile.sweep_names() s;
	SELECT reconcile.set_placement('{"interval": "100 ms"}')});
resume('placement_sweeps');
sql($node, q{SELECT t.host('h1', '15 min', 9)});
my $n = sweep_runs('host_targets');
wait_for($node, q{(SELECT wake_at BETWEEN now() + interval '10 min' AND now() + interval '20 min' FROM reconcile.placement_cursor WHERE sweep = 'host_targets' AND shard = -1)},
	'the first row wakes the sweep, which looks when it is due');
dispatcher_looks($node, 'looks');
# two, where one was at it while who made the row came to his end
cmp_ok(sweep_runs('host_targets') - $n, '<=', 2, 'by a run or two');
$n = sweep_runs('host_targets');
sql($node, q{SELECT t.host('h1', '15 min', 9), t.host('h2', '15 min', 9)}) for 1 .. 3;
dispatcher_looks($node, 'looks');
is(sweep_runs('host_targets'), $n, 'what is due later wakes nobody');
sql($node, q{SELECT t.host('h3', '2 s', 9)});
$n = sweep_runs('host_targets');
wait_for($node, q{(SELECT expires_at IS NULL FROM reconcile.host_target WHERE host_id = 'h3')}, 'what is due before that is withdrawn when it is due');
wait_for($node, q{(SELECT wake_at > now() + interval '10 min' FROM reconcile.placement_cursor WHERE sweep = 'host_targets' AND shard = -1)}, 'and the sweep rests again');
dispatcher_looks($node, 'looks');
cmp_ok(sweep_runs('host_targets') - $n, '<=', 3, 'by a run or two when it came, and one when it was due');
sql($node, q{SELECT outcome FROM reconcile.admit_session_command('t', 'x2', 'far', 'input', 'x', apply_deadline_in => '1 h')});
wait_for($node, q{(SELECT wake_at BETWEEN now() + interval '30 min' AND now() + interval '2 h' FROM reconcile.placement_cursor WHERE sweep = 'deadlines' AND shard = -1)}, 'a command wakes its sweep');
dispatcher_looks($node, 'looks');
$n = sweep_runs('deadlines');
sql($node, q{SELECT outcome FROM reconcile.admit_session_command('t', 'x2', 'farther', 'input', 'x', apply_deadline_in => '2 h')});
dispatcher_looks($node, 'looks');
is(sweep_runs('deadlines'), $n, 'one that is due later does not');
pause();

# ----------------------------------------------------------------------
note 'another server';

sql($node, q{SELECT t.put('x3', 'failover', '-1 min')});
my $standby = new_standby($node, 'standby');
$node->wait_for_catchup($standby);
session_fails($standby, '25006', 'SELECT reconcile.sweep_pending()', 'nobody sweeps on a standby');
$node->stop;
$standby->promote;
sql($standby, q{SELECT reconcile.resume_loop('placement_sweeps'); SELECT reconcile.enqueue('placement_sweeps', 'deadlines')});
wait_for($standby, q{(SELECT state FROM reconcile.session_command WHERE command_id = 'failover') = 'rejected'}, 'after its promotion the loop sweeps there');

finish();

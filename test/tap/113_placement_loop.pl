# The loop "placement" places sessions by itself: nobody here calls place_session(), and
# the sweeps are paused, so that what is found is found because somebody said so, or by
# the look that a run has asked for.  Hosts answer as the test has them do.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	reconcile.notify = on
	EOC

sql($node, q{
	CREATE SCHEMA app;
	CREATE FUNCTION app.host(h text, capacity int, target text, capabilities text[] DEFAULT '{}', placement text DEFAULT 'pooled') RETURNS text
	LANGUAGE sql AS $$
		SELECT reconcile.register_host(h, session_user);
		SELECT outcome FROM reconcile.publish_host_target(h, 1, 'bot', target, placement, 'wss://' || h,
			CASE placement WHEN 'pooled' THEN 'cross_tenant_isolated' ELSE 'tenant_exclusive' END, true, capacity, '15 min', capabilities)
	$$;
	-- a session of a target of its own, and a command for it
	CREATE FUNCTION app.session(s text, target text DEFAULT NULL, placement text DEFAULT 'pooled') RETURNS text
	LANGUAGE sql AS $$ SELECT outcome FROM reconcile.create_session('acme', s, 'bot', placement, 'made', coalesce(target, s), '1', 'image') $$;
	CREATE FUNCTION app.command(s text, c text DEFAULT 'c1', deadline interval DEFAULT '1 h') RETURNS text
	LANGUAGE sql AS $$ SELECT outcome FROM reconcile.admit_session_command('acme', s, c, 'input', 'x', apply_deadline_in => deadline) $$;
	CREATE FUNCTION app.open_offer(s text) RETURNS bigint
	LANGUAGE sql AS $$ SELECT offer_id FROM reconcile.session_offers WHERE tenant_id = 'acme' AND session_id = s AND state = 'offered' $$;
	-- whom it is offered to now
	CREATE FUNCTION app.asked(s text) RETURNS text
	LANGUAGE sql AS $$ SELECT host_id FROM reconcile.session_offers WHERE tenant_id = 'acme' AND session_id = s AND state = 'offered' $$;
	CREATE FUNCTION app.offers(s text) RETURNS text
	LANGUAGE sql AS $$ SELECT string_agg(concat_ws(' ', host_id, state, code), ', ' ORDER BY offer_id) FROM reconcile.session_offers WHERE tenant_id = 'acme' AND session_id = s $$;
	CREATE FUNCTION app.refuse(s text, code text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$ SELECT reconcile.refuse_offer(app.open_offer(s), code) $$;
	-- its host takes it, and says that it is there
	CREATE FUNCTION app.accept(s text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		h text := app.asked(s);
		a record;
	BEGIN
		SELECT * INTO a FROM reconcile.accept_offer(app.open_offer(s), (SELECT host_generation FROM reconcile.session_offers WHERE offer_id = app.open_offer(s)), 'token');
		IF a.outcome = 'accepted' THEN
			PERFORM reconcile.heartbeat_host(h, 1, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 'acme', 'session_id', s, 'epoch', a.epoch, 'token', 'token')));
		END IF;
		RETURN a.outcome;
	END $$;
	CREATE FUNCTION app.outcome(s text) RETURNS text
	LANGUAGE sql AS $$ SELECT placement_outcome FROM reconcile.sessions WHERE tenant_id = 'acme' AND session_id = s $$;
	CREATE FUNCTION app.number(s text) RETURNS text LANGUAGE sql AS $$ SELECT number::text FROM reconcile.sessions WHERE tenant_id = 'acme' AND session_id = s $$;
	SELECT reconcile.set_placement('{"control_shards": 1, "offer_ttl": "5 min", "session_ttl": "1 h", "interval": "1 s", "replace_backoff": "50 ms"}');
	SELECT reconcile.pause_loop('placement_sweeps');
});

# asked(SESSION, HOST, NAME): a test that it comes to be offered to that host.
sub asked
{
	my ($session, $host, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for($node, "app.asked('$session') = '$host'", $name);
	return;
}

sub outcome
{
	my ($session, $outcome, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for($node, "app.outcome('$session') = '$outcome'", $name);
	return;
}

sub setting
{
	my ($name, $value) = @_;

	sql($node, qq{SELECT reconcile.set_placement('{"$name": "$value"}')});
	return;
}

# ----------------------------------------------------------------
# a command, an offer, a host, its answer

sql($node, q{SELECT app.host('a1', 5, 'a'), app.host('a2', 4, 'a'), app.host('a3', 3, 'a'), app.session('a')});
sql($node, q{SELECT app.command('a')});
asked('a', 'a1', 'a command is admitted, and the best host is asked');
is(sql($node, q{SELECT app.refuse('a', 'not_admitting')}), 'refused', 'it refuses');
asked('a', 'a2', 'the next one is asked');
sql($node, q{SELECT reconcile.drain_host_target('a2', 1, 'bot', 'a', 'pooled')});
asked('a', 'a3', 'that one goes before it answers, and the next one is asked');
is(sql($node, q{SELECT app.accept('a')}), 'accepted', 'it takes it');
sql($node, q{SELECT app.command('a', 'c2')});
outcome('a', 'reuse_owner', 'with the next command it is found there');
is(sql($node, q{SELECT app.offers('a')}), 'a1 refused not_admitting, a2 expired, a3 accepted', 'and nobody else was asked');

sql($node, q{SELECT app.host('b1', 5, 'b'), app.host('b2', 4, 'b'), app.session('b')});
setting('offer_ttl', '500 ms');
sql($node, q{SELECT app.command('b')});
wait_for($node, q{app.offers('b') LIKE 'b1 expired, b2 %'}, 'who does not answer has lapsed, and the next one is asked');
setting('offer_ttl', '5 min');
wait_for($node, q{app.offers('b') LIKE 'b1 expired, b2 expired, b1 %'}, 'nor does that one: the same are asked again after a while');

# ----------------------------------------------------------------
# it is elsewhere

sql($node, q{SELECT app.host('e1', 5, 'e'), app.host('e2', 4, 'e'), app.session('e'), app.command('e')});
asked('e', 'e1', 'the best host is asked');
sql($node, q{SELECT app.refuse('e', 'epoch_mismatch')});
asked('e', 'e2', 'it says that another one has it, which nobody has: after a while another one is asked');
is(sql($node, q{SELECT app.accept('e')}), 'accepted', 'and takes it');
sql($node, q{SELECT app.command('e', 'c2')});
outcome('e', 'reuse_owner', 'there it is');

# ----------------------------------------------------------------
# room

sql($node, q{SELECT app.session('r'), app.command('r'), app.session('r2', 'r'), app.command('r2')});
outcome('r', 'no_capacity', 'there is no host');
outcome('r2', 'no_capacity', 'nor for another one');
sql($node, q{SELECT app.host('r1', 1, 'r')});
wait_for($node, q{num_nonnulls(app.asked('r'), app.asked('r2')) = 1}, 'one comes, with room for one');
my ($has, $waits) = sql($node, q{SELECT app.asked('r')}) eq 'r1' ? ('r', 'r2') : ('r2', 'r');
sql($node, qq{SELECT app.accept('$has')});
outcome($waits, 'no_capacity', 'the other one waits');
sql($node, qq{SELECT reconcile.release_session('acme', '$has', 1, 'token')});
wait_for($node, q{num_nonnulls(app.asked('r'), app.asked('r2')) = 1}, 'who lets go makes room for one again');

# room in a transaction that takes its time, longer than who begins to wait looks a second time
my $host = $node->background_psql('postgres');
$host->query_safe(q{BEGIN; SELECT app.host('slow1', 1, 'slow')});
sql($node, q{SELECT app.session('slow'), app.command('slow')});
outcome('slow', 'no_capacity', 'room that is not committed is none');
# so many looks that the second one is among them
sql($node, q{SELECT reconcile.enqueue('placement', app.number('slow'))}) for 1 .. 2;
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'placement' AND entity_id = app.number('slow') AND state = 'waiting'
	AND due_at > clock_timestamp())}, 'who waits looks again while it is on its way');
$host->query_safe('COMMIT');
$host->quit;
asked('slow', 'slow1', 'when it is, it is seen, though who brought it did not see who waits');

# ----------------------------------------------------------------
# what is wanted changes

sql($node, q{SELECT app.host('d1', 1, 'd'), app.host('d2', 1, 'd-2'), app.session('d'), app.command('d')});
asked('d', 'd1', 'it is offered');
sql($node, q{SELECT reconcile.update_desired_state('acme', 'd', 'k2', 1, 'pooled', 'd-2', '2', 'image')});
asked('d', 'd2', 'something else is wanted: another host is asked');
is(sql($node, q{SELECT app.offers('d')}), 'd1 withdrawn, d2 offered', 'and the first one no more');
sql($node, q{SELECT app.session('w'), app.command('w')});
outcome('w', 'no_capacity', 'one waits at a target without a host');
sql($node, q{SELECT reconcile.update_desired_state('acme', 'w', 'k2', 1, 'pooled', 'w-2', '2', 'image')});
wait_for($node, q{EXISTS (SELECT FROM reconcile.session_search WHERE session_id = 'w' AND runtime_compatibility_id = 'w-2')}, 'and then at another one');
wait_quiet($node, 'placement');
sql($node, q{SELECT app.host('w2', 1, 'w-2')});
asked('w', 'w2', 'room there is told to it');

# ----------------------------------------------------------------
# hosts that go

sql($node, q{SELECT app.host('g1', 5, 'g'), app.host('g2', 4, 'g'), app.session('g'), app.command('g')});
asked('g', 'g1', 'it is offered');
sql($node, q{SELECT reconcile.unregister_host('g1')});
asked('g', 'g2', 'to a host that is registered no more: the next one is asked');

setting('session_ttl', '2 s');
sql($node, q{SELECT app.host('x1', 5, 'x'), app.session('x'), app.command('x')});
asked('x', 'x1', 'it is offered');
is(sql($node, q{SELECT app.accept('x')}), 'accepted', 'its host takes it');
sql($node, q{SELECT app.command('x', 'c2'), app.host('x2', 4, 'x')});
sql($node, q{SELECT reconcile.drain_host_target('x1', 1, 'bot', 'x', 'pooled')});
asked('x', 'x2', 'it dies: the session is offered to another one when its lease is over, however far the deadline of its command is');
is(sql($node, q{SELECT app.accept('x')}), 'accepted', 'which has it then');
setting('session_ttl', '1 h');

# ----------------------------------------------------------------
# dedicated ones

sql($node, q{SELECT app.session('solo', placement => 'dedicated'), app.command('solo', deadline => '4 min')});
outcome('solo', 'no_controller', 'nobody makes workloads');
sql($node, q{SELECT reconcile.fetch_intents('controller', 100, '15 min')});
sql($node, q{SELECT reconcile.resume_loop('placement_sweeps')});
outcome('solo', 'reconcile_dedicated', 'until somebody does');
sql($node, q{SELECT reconcile.pause_loop('placement_sweeps')});
wait_quiet($node, 'placement');
is(sql($node, q{SELECT want, generation FROM reconcile.fetch_intents('controller', 100, '15 min') WHERE session_id = 'solo'}), 'ensure|1', 'it is told of it');
sql($node, q{SELECT app.host('pod', 1, 'solo', placement => 'dedicated'); SELECT reconcile.report_workload('acme', 'solo', 1, 'ready', 'pod', 1, 'wss://pod')});
asked('solo', 'pod', 'the workload is ready, and the host in it is asked');
is(sql($node, q{SELECT app.accept('solo')}), 'accepted', 'and takes it');
sql($node, q{SELECT app.command('solo', 'c2')});
outcome('solo', 'reuse_owner', 'there it is');

# ----------------------------------------------------------------
# one that fails, and one that somebody has, hold up no other

sql($node, q{
	CREATE FUNCTION app.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
	CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON reconcile.session_search FOR EACH ROW WHEN (NEW.session_id = 'fails') EXECUTE FUNCTION app.fail();
	SELECT app.host('f1', 100, 'f'), app.session('fails', 'f'), app.session('held', 'f');
	SELECT count(app.session('good' || i, 'f')) FROM generate_series(1, 20) i;
});
my $holder = $node->background_psql('postgres');
$holder->query_safe(q{BEGIN; SELECT outcome FROM reconcile.acquire_claim('acme', 'held', 'somebody', '1 min'); SAVEPOINT s});
sql($node, q{SELECT count(app.command(s)) FROM (SELECT 'good' || i FROM generate_series(1, 20) i) v (s)});
# an admission waits for who has the session: this one is told of by its mark
sql($node, q{SELECT reconcile.enqueue('placement', app.number('held'))});
sql($node, q{SELECT app.command('fails')});
wait_for($node, q{(SELECT count(*) FROM reconcile.session_offers WHERE session_id LIKE 'good%') = 20}, 'all others are placed');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'placement' AND entity_id = app.number('fails') AND failures > 0)}, 'the one fails');
is(sql($node, q{SELECT app.asked('held')}), '', 'the one that somebody has is left alone');
$holder->query_safe('ROLLBACK');
$holder->quit;
sql($node, q{SELECT app.command('held')});
asked('held', 'f1', 'and placed when he has it no more');
sql($node, q{DROP TRIGGER fail ON reconcile.session_search});
asked('fails', 'f1', 'so is the other one, when it fails no more');

# ----------------------------------------------------------------
# hosts are told that there is something for them

my $channel = sql($node, q{SELECT 'reconcile_' || left(encode(sha256('node-7'), 'hex'), 32)});
my $listener = $node->background_psql('postgres');
$listener->query_safe(qq{LISTEN "$channel"});

# heard([PAUSED]): how many messages since the last call, once the loop has come to
# rest; while it is paused, what becomes due waits for it.
sub heard
{
	my ($paused) = @_;

	wait_quiet($node, 'placement') unless $paused;
	my $output = $listener->query('SELECT 1');
	my $all = () = $output =~ /Asynchronous notification "/g;
	my $bare = () = $output =~ /Asynchronous notification "\Q$channel\E" received/g;

	is($bare, $all, 'a message names its channel and says nothing');
	return $all;
}

sql($node, q{SELECT app.host('node-7', 9, 'n'), app.session('n1', 'n'), app.session('n2', 'n'), app.session('n3', 'n'), app.session('n4', 'n')});
is(heard(), 0, 'there is nothing for a host, and nothing is told');
sql($node, q{SELECT app.command('n1')});
asked('n1', 'node-7', 'it is asked');
is(heard(), 1, 'and told');
sql($node, q{SELECT reconcile.pause_loop('placement')});
sql($node, q{BEGIN; SELECT outcome FROM reconcile.place_session('acme', 'n2'); SELECT outcome FROM reconcile.place_session('acme', 'n3'); COMMIT});
is(heard('paused'), 1, 'two offers of one transaction are one message');
sql($node, q{BEGIN; SELECT outcome FROM reconcile.place_session('acme', 'n4'); ROLLBACK});
is(heard('paused'), 0, 'what is rolled back never was');
sql($node, q{SELECT reconcile.resume_loop('placement')});
heard();
sql($node, q{SELECT app.accept('n1')});
heard();
sql($node, q{SELECT app.command('n1', 'c2')});
is(heard(), 1, 'who has a session is told of a command for it');
sql($node, q{SELECT app.host('other', 1, 'o'), app.session('o'), app.command('o')});
asked('o', 'other', 'another host is asked');
is(heard(), 0, 'which is no news to this one');
$node->append_conf('postgresql.conf', 'reconcile.notify = off');
$node->reload;
wait_for($node, q{current_setting('reconcile.notify') = 'off'}, 'it is turned off');
sql($node, q{SELECT outcome FROM reconcile.place_session('acme', 'n4')});
is(heard(), 0, 'and nothing is told');
sql($node, q{SELECT app.command('n1', 'c3')});
is(heard(), 0, 'by no run either');
$listener->quit;

expect_log(qr/not this one/);
finish();

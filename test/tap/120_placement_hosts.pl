# Hosts that answer at one moment (placement.md 11 J; 12.7): of twelve that take one offer
# one has it, whatever the others are told; one that is being withdrawn is taken or
# withdrawn, and never both; reports, letting go and taking over beside each other leave one
# holder, and no epoch twice. What a host was told is there after a crash, also with
# synchronous_commit off: who asks again with his token gets the same epoch.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $racers = 12;
my $node = new_node('hosts', conf => "max_connections = 60\nmax_worker_processes = 16\nmax_prepared_transactions = 5\nrestart_after_crash = on\n");

sql($node, q{
	CREATE TABLE told (form text, client int, outcome text, epoch bigint);
	CREATE FUNCTION make(session text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.create_session('t', session, 'agent', 'pooled', 'made', 'rt') $$;
	CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.place_session('t', session) $$;
	CREATE FUNCTION offer(session text) RETURNS bigint LANGUAGE sql AS $$
		SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = 't' AND session_id = session ORDER BY offer_id DESC LIMIT 1 $$;
	SELECT reconcile.register_host('h', current_user), reconcile.control_shards();
	UPDATE reconcile.placement_setting SET session_ttl_ms = 3600000, offer_ttl_ms = 300000;
	SELECT reconcile.publish_host_target('h', 1, 'agent', 'rt', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1000, '15 min');
});

sub accepts
{
	my ($form, $session, $token) = @_;
	return "INSERT INTO told SELECT '$form', :client_id, a.outcome, a.epoch FROM reconcile.accept_offer(offer('$session'), 1, $token) a;";
}

sub told
{
	my ($form) = @_;
	return sql($node, qq{SELECT string_agg(outcome || ' ' || n, ', ' ORDER BY outcome) FROM
		(SELECT outcome, count(*) AS n FROM told WHERE form = '$form' GROUP BY outcome) o});
}

sub owner
{
	my ($session) = @_;
	return sql($node, "SELECT outcome, epoch FROM reconcile.owner_of('t', '$session')");
}

# ----------------------------------------------------------------------
note 'one offer';

sql($node, "SELECT make(s), place(s) FROM unnest('{s1,s2}'::text[]) s");
all_at_once($node, $racers, 'apart', accepts('apart', 's1', q{'token ' || :client_id}));
is(told('apart'), 'accepted 1, taken 11', 'of twelve tokens one has it');
is(owner('s1'), 'live|1', 'under one epoch');
all_at_once($node, $racers, 'alike', accepts('alike', 's2', q{'token'}));
is(told('alike'), 'accepted 1, repeated 11', 'of twelve calls with one token one took it');
is(sql($node, q{SELECT DISTINCT epoch FROM told WHERE form = 'alike'}), '1', 'and all are told of the same epoch');
is(sql($node, q{SELECT count(*) FROM reconcile.lease_term WHERE reconciler_id LIKE 'session:%'}), '2', 'each is one term');

# Six take it while six want something else of the session.
my $withdrawn = 0;
for my $turn (1 .. 5)
{
	my $s = "w$turn";
	sql($node, "SELECT make('$s'), place('$s')");
	all_at_once($node, $racers, "withdraw $turn", "\\if :client_id % 2\n" . accepts("withdraw $turn", $s, q{'token ' || :client_id}) . qq{
\\else
SELECT FROM reconcile.update_desired_state('t', '$s', 'other', 1, 'pooled', 'elsewhere');
SELECT place('$s');
\\endif});
	my $state = sql($node, "SELECT state FROM reconcile.session_offer WHERE offer_id = offer('$s')");
	$withdrawn++ if $state eq 'withdrawn';
	is(sql($node, qq{SELECT count(*) FROM told WHERE form = 'withdraw $turn' AND outcome = 'accepted'}), $state eq 'accepted' ? 1 : 0,
		"turn $turn: whoever was told that he has it has it ($state)");
	is(owner($s), $state eq 'accepted' ? 'live|1' : 'not_found|', "turn $turn: and nobody else");
}
sql($node, q{SELECT make('gone'), place('gone');
	SELECT FROM reconcile.update_desired_state('t', 'gone', 'other', 1, 'pooled', 'elsewhere');
	SELECT place('gone')});
all_at_once($node, $racers, 'gone', accepts('gone', 'gone', q{'token ' || :client_id}));
is(told('gone'), 'withdrawn 12', 'one that is withdrawn is taken by nobody');
is(owner('gone'), 'not_found|', 'at any epoch');

# ----------------------------------------------------------------------
note 'reports, letting go, taking over (J11, J20)';

sql($node, q{
	SELECT make('j'), place('j');
	SELECT reconcile.accept_offer(offer('j'), 1, 'token');
	CREATE SEQUENCE beats;
	CREATE FUNCTION say(e bigint, token text) RETURNS text LANGUAGE sql AS $$
		SELECT string_agg(o.outcome || coalesce(' ' || o.session_id, ''), ', ') FROM reconcile.heartbeat_host('h', 1, '[]',
			jsonb_build_array(jsonb_build_object('tenant_id', 't', 'session_id', 'j', 'epoch', e, 'token', token))) o $$;
});
# a third reports under the epoch that there is, a third lets it go, a third has it placed and takes it
for my $turn (1 .. 5)
{
	my $e = sql($node, q{SELECT lease_epoch FROM reconcile.session_registration WHERE tenant_id = 't' AND session_id = 'j'});
	all_at_once($node, $racers, "turn $turn", qq{
\\set kind :client_id % 3
\\if :kind = 0
SELECT say($e, 'token');
\\elif :kind = 1
INSERT INTO told SELECT 'release $turn', :client_id, o.outcome, o.epoch FROM reconcile.release_session('t', 'j', $e, 'token') o;
\\else
SELECT place('j');
} . accepts("take $turn", 'j', q{'token'}) . "\n\\endif");
	my $released = sql($node, qq{SELECT count(*) FROM told WHERE form = 'release $turn' AND outcome = 'released'});
	is($released, 1, "turn $turn: it is let go once");
	cmp_ok(sql($node, qq{SELECT count(*) FROM told WHERE form = 'take $turn' AND outcome = 'accepted'}), '<=', 1, "turn $turn: and taken once at most");
	sql($node, q{SELECT place('j'); SELECT reconcile.accept_offer(offer('j'), 1, 'token')});
	is(owner('j'), 'live|' . ($e + 1), "turn $turn: under the next epoch");
	like(sql($node, "SELECT say($e, 'token')"), qr/^renewed, epoch j$/, "turn $turn: whoever is of the one before is told so");
}
is(sql($node, q{SELECT count(*) FROM (SELECT reconciler_id, epoch FROM reconcile.lease_term GROUP BY 1, 2 HAVING count(*) > 1) t}), '0', 'no epoch is granted twice');

# ----------------------------------------------------------------------
note 'transactions that are prepared';

sql($node, q{SELECT make('p'), place('p')});
session_fails($node, '0A000', q{BEGIN; SELECT reconcile.accept_offer(offer('p'), 1, 'token'); PREPARE TRANSACTION 'accept'}, 'an acceptance cannot be prepared');
is(owner('p'), 'not_found|', 'and nothing came of it');
session_fails($node, '0A000', q{BEGIN; SELECT say(6, 'token'); PREPARE TRANSACTION 'beat'}, 'nor can a renewal');
my $renewals = sql($node, q{SELECT renewals FROM reconcile.lease JOIN reconcile.session ON reconciler_id = 'session:' || number WHERE session_id = 'j'});
is($renewals, '0', 'which has renewed nothing');
sql($node, q{BEGIN; SELECT make('q'), place('q'); PREPARE TRANSACTION 'place'});
is(sql($node, q{SELECT count(*) FROM reconcile.fetch_offers(1000) WHERE session_id = 'q'}), '0', 'a placement can, and is nobody\'s');
sql($node, q{COMMIT PREPARED 'place'});
is(sql($node, q{SELECT count(*) FROM reconcile.fetch_offers(1000) WHERE session_id = 'q'}), '1', 'until it is committed');

# ----------------------------------------------------------------------
note 'a crash after COMMIT (J27, C7)';

expect_log(qr/FATAL:  the database system is (?:starting up|in recovery mode|not yet accepting connections)/);
my $client = $node->background_psql('postgres');
$client->query_safe('SET synchronous_commit = off');
like($client->query_safe(q{SELECT outcome || ' ' || epoch FROM reconcile.accept_offer(offer('p'), 1, 'token')}), qr/^accepted 1$/, 'a host that commits asynchronously takes a session');
$node->stop('immediate');
$client->{run}->finish;
$node->start;
is(owner('p'), 'live|1', 'it has it after a crash');
is(sql($node, q{SELECT outcome, epoch FROM reconcile.accept_offer(offer('p'), 1, 'token')}), 'repeated|1', 'and who did not get the answer is given the same epoch');
is(sql($node, q{SELECT outcome, epoch FROM reconcile.accept_offer(offer('p'), 1, 'other')}), 'taken|', 'which nobody else is');
$client = $node->background_psql('postgres');
$client->query_safe('SET synchronous_commit = off');
like($client->query_safe(q{SELECT outcome FROM reconcile.force_release_session('t', 'p', 1, 'gone')}), qr/^released$/, 'an operator takes it away');
$node->stop('immediate');
$client->{run}->finish;
$node->start;
is(owner('p'), 'released|1', 'which a crash does not give back');

finish();

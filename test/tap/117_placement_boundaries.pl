# Sessions, their hosts and commands across the boundaries of a database: dumped and
# restored, on a standby that is promoted, at a point in time, behind a subscription,
# without and with the extension again, and through a pooler.  No epoch is ever granted
# twice, also not one that was lost, and no acceptance that was kept is lost.

use strict;
use warnings;

use LoopTest;
use PoolerTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Primaries go away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/,
	qr/WARNING:  terminating connection due to immediate shutdown command/);

my $conf = "max_worker_processes = 24\n";
my @tables = qw(session session_observed session_claim host host_target session_registration session_offer session_search
  session_command session_pointer session_workload session_termination workload_controller placement_setting);

# make_sessions(WHERE): the extension, and a session in each state.  Nothing is placed by itself.
sub make_sessions
{
	my ($where, %option) = @_;

	sql($where, 'CREATE EXTENSION reconcile') if $option{extension};
	sql($where, q{
		CREATE SCHEMA app;
		CREATE TABLE app.told (step text, session_id text, outcome text, epoch bigint, pid int DEFAULT pg_backend_pid());
		CREATE FUNCTION app.make(s text) RETURNS void LANGUAGE sql AS $$
			SELECT FROM reconcile.create_session('t', s, 'agent', 'pooled', 'made', 'rt', 'v', 'w') $$;
		CREATE FUNCTION app.place(s text) RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.place_session('t', s) $$;
		CREATE FUNCTION app.offer(s text) RETURNS bigint LANGUAGE sql AS $$
			SELECT max(offer_id) FROM reconcile.session_offer WHERE session_id = s $$;
		CREATE FUNCTION app.accept(s text, token text) RETURNS text LANGUAGE sql AS $$
			SELECT concat_ws(' ', outcome, epoch) FROM reconcile.accept_offer(app.offer(s), 1, token) $$;
		CREATE FUNCTION app.epoch(s text) RETURNS bigint LANGUAGE sql AS $$
			SELECT lease_epoch FROM reconcile.session_registration WHERE session_id = s $$;
		CREATE FUNCTION app.take(s text) RETURNS text LANGUAGE sql AS $$
			SELECT app.make(s); SELECT app.place(s); SELECT app.accept(s, 'token') $$;
		CREATE FUNCTION app.beat(s text, epoch bigint) RETURNS text LANGUAGE sql AS $$
			SELECT string_agg(b.outcome, ' ') FROM reconcile.heartbeat_host('h', 1, '[]',
				jsonb_build_array(jsonb_build_object('tenant_id', 't', 'session_id', s, 'epoch', epoch, 'token', 'token'))) b $$;
		CREATE FUNCTION app.point(s text, epoch bigint, token text) RETURNS text LANGUAGE sql AS $$
			SELECT p.outcome FROM reconcile.set_pointer('t', s, 'active_continuation', epoch, token, epoch, 'there') p $$;
		CREATE FUNCTION app.publish() RETURNS text LANGUAGE sql AS $$
			SELECT outcome FROM reconcile.publish_host_target('h', 1, 'agent', 'rt', 'pooled', 'wss://h:1', 'cross_tenant_isolated', true, 1000, '15 min') $$;
		SELECT reconcile.set_placement('{"control_shards": 4, "session_ttl": "1 h", "offer_ttl": "5 min"}');
		SELECT reconcile.pause_loop(l) FROM unnest('{placement,placement_sweeps}'::text[]) l;
		SELECT reconcile.register_host(h, 'postgres') FROM unnest('{h,own}'::text[]) h});
	sql($where, q{SELECT app.publish(); SELECT app.take(s) FROM unnest('{held,released,working}'::text[]) s});
	sql($where, q{
		SELECT reconcile.release_session('t', 'released', 1, 'token');
		SELECT app.make('offered'), app.place('offered');
		SELECT app.make('asleep');
		SELECT reconcile.update_desired_state('t', 'asleep', 'more', 1, 'pooled', 'rt', 'v', 'more');
		SELECT reconcile.acquire_claim('t', 'asleep', 'factory', '5 min');
		SELECT app.point('held', 1, 'token'), reconcile.update_host_state('t', 'held', 1, 'token', 'running', 'resident', 3);
		SELECT reconcile.admit_session_command('t', 'working', c, 'input', 'x', apply_deadline_in => '1 h')
			FROM unnest('{pending,claimed,applying,applied,rejected}'::text[]) c;
		SELECT reconcile.reject_session_command('t', 'working', 'rejected', NULL, NULL, 1);
		SELECT reconcile.claim_session_command('t', 'working', c, 1, 'token', 1, '1 h') FROM unnest('{claimed,applying,applied}'::text[]) c;
		SELECT reconcile.begin_attempt('t', 'working', c, 1, 'token', 2, 'attempt of ' || c) FROM unnest('{applying,applied}'::text[]) c;
		SELECT reconcile.settle_attempt('t', 'working', 'applied', 1, 'token', 3, 'attempt of applied', 'applied');
		-- a workload that has ended
		SELECT reconcile.create_session('t', 'own', 'agent', 'dedicated', 'made', 'rt', 'v', 'w');
		SELECT reconcile.fetch_intents('controller', 1, '15 min');
		SELECT app.place('own');
		SELECT reconcile.report_workload('t', 'own', 1, 'exited');
		SELECT reconcile.may_delete_workload('t', 'own', 1);
		SELECT reconcile.record_termination('t', 'own', 1, 'forced', 'workload_terminated', 0)});
	is(sql($where, q{SELECT string_agg(state, ' ' ORDER BY command_id) FROM reconcile.session_command}), 'applied applying claimed pending rejected', 'commands in each state');
	is(sql($where, q{SELECT string_agg(DISTINCT state, ' ' ORDER BY state), (SELECT count(*) FROM reconcile.session_termination) FROM reconcile.session_offer}), 'accepted offered|1', 'and offers');
	return;
}

# rows(WHERE): all that there is, one line for each table.
sub rows
{
	my ($where) = @_;
	return sql($where, join(' UNION ALL ', map {
		"SELECT '$_: ' || count(*) || ' ' || md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE \"C\"), '')) FROM reconcile.$_ t"
	} @tables));
}

sub triggers
{
	my ($where) = @_;
	return sql($where, q{SELECT string_agg(concat_ws(' ', c.relname, t.tgname, t.tgenabled), E'\n' ORDER BY c.relname, t.tgname)
		FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE c.relnamespace = 'reconcile'::regnamespace AND p.proname = 'keep_marks'});
}

# lose(WHERE): what a copy from before does not have: epochs, of a session that had one and of another.
sub lose
{
	my ($where) = @_;

	is(sql($where, q{SELECT app.place('released'); SELECT app.accept('released', 'lost')}), "attach_pooled\naccepted 2", 'an epoch will be lost');
	is(sql($where, q{SELECT app.place('offered'); SELECT app.accept('offered', 'lost')}), "offered\naccepted 1", 'and the first one of a session');
	return;
}

# heir(WHERE, SESSION, LOST...): tests that the session comes to a host under an epoch above
# all that there were, and that whoever has one of those may do nothing.
sub heir
{
	my ($where, $session, @lost) = @_;
	my ($node, $database) = ref($where) eq 'ARRAY' ? @$where : ($where, 'postgres');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	subtest "an heir of $session" => sub {
		# whoever had it may act for so long, as far as anybody knows here
		ok($node->poll_query_until($database, "SELECT app.place('$session') IN ('attach_pooled', 'offered')"), 'it is offered');
		# its lease is short here: all at once
		my ($accepted, $acts, $again, $attempt) = split /\n/, sql($where, "SELECT app.accept('$session', 'the heir');
			SELECT app.point('$session', app.epoch('$session'), 'the heir'); SELECT app.accept('$session', 'the heir');
			SELECT c.outcome FROM reconcile.settle_attempt('t', '$session', 'applying', app.epoch('$session'), 'the heir', 3, 'attempt of applying', 'not_applied') c");
		my ($epoch) = $accepted =~ /^accepted (\d+)$/;
		like($accepted, qr/^accepted /, 'and accepted');
		cmp_ok($epoch // 0, '>', $_, "above epoch $_") foreach @lost;
		is($acts, 'written', 'its host may act');
		is($again, 'repeated ' . ($epoch // ''), 'a repetition is answered by it');
		is($attempt, $session eq 'working' ? 'settled' : 'not_found', 'who comes after says that an attempt has come to nothing');
		foreach my $token (qw(token lost))
		{
			like(sql($where, "SELECT app.point('$session', $_, '$token')"), qr/^(?:epoch|lease_lost|not_found)$/, "who has $_ by '$token' may not") foreach @lost;
		}
		is(sql($where, "SELECT count(*) - count(DISTINCT epoch) FROM reconcile.session_offer WHERE session_id = '$session' AND state = 'accepted'"), 0,
			'no epoch is there twice');
	};
	return;
}

# goes_on(COPY): tests of a copy from before lose(), or with all of it where nothing was lost.
sub goes_on
{
	my ($where, $released, $offered) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# hosts of before that nobody knows here are waited for so long
	sql($where, q{SELECT reconcile.set_placement('{"session_ttl": "5 s"}')});
	is(sql($where, q{SELECT app.beat('held', 1)}), 'renewed expired', 'a host of before is told to stop');
	is(sql($where, q{SELECT app.accept('held', 'token')}), 'expired', 'and its acceptance is known, but over');
	is(sql($where, q{SELECT o.outcome, o.epoch FROM reconcile.owner_of('t', 'released') o}) =~ s/\|.*//r, 'released', 'what was let go is free') if $released == 1;
	is(sql($where, q{SELECT outcome FROM reconcile.begin_attempt('t', 'working', 'claimed', 1, 'token', 2, 'late')}), 'lease_lost', 'what was claimed is not begun');
	# what is registered, or was lost, is over when its time is
	sql($where, q{UPDATE reconcile.lease SET expires_at = acquired_at, ttl_ms = 5000 WHERE reconciler_id LIKE 'session:%'});
	sql($where, q{SELECT app.publish()});
	heir($where, 'held', 1);
	heir($where, 'released', 1, $released);
	heir($where, 'offered', $offered);
	heir($where, 'working', 1);
	is(sql($where, q{SELECT outcome FROM reconcile.admit_session_command('t', 'working', 'applied', 'input', 'x')}), 'exists', 'a command that was given is known');
	is(sql($where, q{SELECT outcome FROM reconcile.record_termination('t', 'own', 1, 'forced', 'workload_terminated', 0)}), 'replayed', 'so is the end of a workload');
	is(sql($where, q{SELECT app.take('another'); SELECT count(*) = count(DISTINCT number) FROM reconcile.session}) =~ s/^accepted \d+\n//r, 't', 'new sessions have new numbers');
	is(sql($where, q{SELECT h.host_id, h.state FROM reconcile.host_targets h WHERE host_id = 'h'}), 'h|accepting', 'the host goes on');
	foreach my $change ('UPDATE reconcile.session_registration SET lease_epoch = lease_epoch - 1', 'DELETE FROM reconcile.session',
		'TRUNCATE reconcile.host_target', 'UPDATE reconcile.session_pointer SET sequence = sequence - 1')
	{
		session_fails($where, '55000', "SET session_replication_role = replica; $change", "marks are kept: $change");
	}
	return;
}

# ----------------------------------------------------------------------
note 'a dump';

my $node = new_node('main', conf => $conf, extension => 0);
my $fresh = new_node('fresh', conf => $conf, extension => 0, initdb => []);
my $dump = $node->basedir . '/dump';
sql($node, 'CREATE DATABASE origin');
my $origin = [ $node, 'origin' ];
make_sessions($origin, extension => 1);
my ($rows, $triggers) = (rows($origin), triggers($origin));
unlike($triggers, qr/ [^A]$/m, 'marks are kept from everybody');
$node->command_ok([ 'pg_dump', '-Fc', '--file', $dump, $node->connstr('origin') ], 'dumped');
lose($origin);
foreach my $case ([ 'into a fresh cluster', $fresh, 'copy' ], [ 'over itself', $node, 'origin', '--clean', '--if-exists' ])
{
	my ($name, $server, $database, @more) = @$case;
	my $copy = [ $server, $database ];

	note "restored $name";
	sql($server, "CREATE DATABASE $database") if $database ne 'origin';
	$server->command_ok([ 'pg_restore', '--exit-on-error', '--dbname', $server->connstr($database), @more, $dump ], 'restored without an error');
	is(rows($copy), $rows, 'all rows are there');
	is(triggers($copy), $triggers, 'and triggers');
	goes_on($copy, 2, 1);
}

# ----------------------------------------------------------------------
note 'the extension is dropped, and created again';

my $session = $fresh->background_psql('copy', on_error_stop => 0);
is($session->query_safe(q{SELECT app.take('dropped')}) =~ s/ \d+//r, 'accepted', 'a session places');
sql([ $fresh, 'copy' ], q{DROP EXTENSION reconcile; CREATE EXTENSION reconcile});
is($session->query_safe(q{SELECT outcome FROM reconcile.owner_of('t', 'dropped')}), 'not_found', 'nothing of it is there');
is($session->query_safe(q{SELECT reconcile.register_host('h', 'postgres'); SELECT app.publish(); SELECT app.take('dropped')}) =~ s/ \d+$//r,
	"registered\npublished\naccepted", 'and it places again');
is($session->query_safe(q{BEGIN; DROP EXTENSION reconcile; CREATE EXTENSION reconcile; SELECT reconcile.register_host('h', 'postgres');
	SELECT app.publish(); SELECT app.take('dropped'); COMMIT}) =~ s/ \d+$//r, "registered\npublished\naccepted", 'in the transaction in which that is done, too');
$session->quit;

# ----------------------------------------------------------------------
note 'a standby';

my $primary = new_node('primary', allows_streaming => 1, conf => $conf, start => 0);
$primary->enable_archiving;
$primary->start;
sql($primary, 'CREATE EXTENSION reconcile');
make_sessions($primary);
$primary->backup('base');
my $standby = new_standby($primary, 'standby', conf => $conf);
$primary->wait_for_catchup($standby);
is(rows($standby), rows($primary), 'has all rows');
is(sql($standby, q{SELECT o.outcome, o.epoch, o.host_id FROM reconcile.owner_of('t', 'held') o}), 'live|1|h', 'it tells where a session is');
foreach my $write (q{accept_offer(1, 1, 'token')}, q{heartbeat_host('h', 1)}, q{release_session('t', 'held', 1, 'token')}, q{place_session('t', 'held')},
	q{refuse_offer(1)}, q{create_session('t', 'n', 'agent', 'pooled', 'made', 'rt')}, q{admit_session_command('t', 'held', 'c', 'input', 'x')}, 'sweep_pending()')
{
	session_fails($standby, '25006', "SELECT * FROM reconcile.$write", "refused there: $write");
}

# What a point in time before does not have, and the standby has.
sql($primary, q{SELECT pg_create_restore_point('before')});
lose($primary);
my $segment = sql($primary, 'SELECT pg_walfile_name(pg_switch_wal())');
ok($primary->poll_query_until('postgres', "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver"), 'it is archived');
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$standby->promote;
is(sql($standby, q{SELECT string_agg(concat_ws(' ', session_id, lease_epoch, token), ', ' ORDER BY session_id) FROM reconcile.session_registration WHERE session_id IN ('released', 'offered')}),
	'offered 1 lost, released 2 lost', 'after its promotion each acceptance is there');
goes_on($standby, 2, 1);

# ----------------------------------------------------------------------
note 'a point in time';

my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($primary, 'base', has_restoring => 1, standby => 0);
$restored->append_conf('postgresql.conf', "archive_mode = off\nrecovery_target_name = 'before'\nrecovery_target_action = promote\n");
watch_log($restored);
$restored->start;
ok($restored->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()'), 'it is restored');
is(sql($restored, q{SELECT lease_epoch FROM reconcile.session_registration WHERE session_id = 'released'}), 1, 'to before an epoch was granted');
goes_on($restored, 2, 1);

# ----------------------------------------------------------------------
note 'a subscription';

my $publisher = new_node('publisher', allows_streaming => 'logical', conf => "wal_level = logical\n$conf");
my $subscriber = new_node('subscriber', initdb => [], conf => $conf);
make_sessions($publisher);
sql($publisher, q{CREATE PUBLICATION ours FOR TABLES IN SCHEMA reconcile});
command_ok([ 'bash', '-c', 'pg_dump --schema app "$0" | psql -X -q -v ON_ERROR_STOP=1 "$1"', $publisher->connstr('postgres'), $subscriber->connstr('postgres') ],
	'what the test made');
sql($subscriber, "CREATE SUBSCRIPTION ours CONNECTION '" . $publisher->connstr . " dbname=postgres' PUBLICATION ours");
$subscriber->wait_for_subscription_sync($publisher, 'ours');
is(rows($subscriber), rows($publisher), 'brings all rows');
lose($publisher);
$publisher->wait_for_catchup('ours');
is(rows($subscriber), rows($publisher), 'and each change, past what keeps the marks');
$publisher->stop('immediate');
sql($subscriber, $_) for 'ALTER SUBSCRIPTION ours DISABLE', 'ALTER SUBSCRIPTION ours SET (slot_name = NONE)', 'DROP SUBSCRIPTION ours';
# a subscription brings no sequences
sql($subscriber, q{SELECT setval('reconcile.session_number', (SELECT max(number) FROM reconcile.session)),
	setval('reconcile.offer_number', (SELECT max(offer_id) FROM reconcile.session_offer))});
goes_on($subscriber, 2, 1);

# ----------------------------------------------------------------------
note 'a pooler';

my $pooled = new_node('pooled', conf => $conf);
make_sessions($pooled);
begin_pooler($pooled, 'postgres');
pgbench_pooled('hosts', 16, 10, q{
SELECT quote_literal(gen_random_uuid()) AS s \gset
SELECT app.make(:s);
SELECT offer_id AS o FROM reconcile.place_session('t', :s) \gset
INSERT INTO app.told SELECT 'accept', :s, outcome, epoch FROM reconcile.accept_offer(:o, 1, 'token');
INSERT INTO app.told SELECT 'accept again', :s, outcome, epoch FROM reconcile.accept_offer(:o, 1, 'token');
INSERT INTO app.told SELECT 'beat', :s, app.beat(:s, 1);
INSERT INTO app.told SELECT 'release', :s, outcome, epoch FROM reconcile.release_session('t', :s, 1, 'token');
SELECT offer_id AS o FROM reconcile.place_session('t', :s) \gset
INSERT INTO app.told SELECT 'next', :s, outcome, epoch FROM reconcile.accept_offer(:o, 1, 'next');
});
is(sql($pooled, q{SELECT step, outcome, epoch, count(*) FROM app.told GROUP BY 1, 2, 3 ORDER BY 1, 2, 3}),
	"accept|accepted|1|160\naccept again|repeated|1|160\nbeat|renewed||160\nnext|accepted|2|160\nrelease|released|1|160", 'each call of a host counts, whichever session it comes by');
cmp_ok(sql($pooled, 'SELECT count(DISTINCT pid) FROM app.told'), '<=', 4, 'of four server sessions');
end_pooler();

finish();

# Sessions whose steps are acted on outside: what was answered is there after a crash, with
# commits that do not wait; each state of a command stands over a restart, and nothing is
# dispatched twice because of one; of many clients at one row one gets it; and what is left
# on a released session is rejected at its deadline, and placed nowhere.

use strict;
use warnings;

use CrashTest;
use IPC::Run;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nwal_writer_delay = 10s\nfsync = off\n");
expect_crashes();
expect_log(qr/FATAL:  the database system is not yet accepting connections/);
prepare($node);

# One shard: each pass of a sweep comes to all. By hand, until the end.
sql($node, q{
	SELECT reconcile.set_placement('{"control_shards": 1, "session_ttl": "1 h", "offer_ttl": "5 min"}');
	SELECT reconcile.drop_loop('placement'), reconcile.drop_loop('placement_sweeps');
	SELECT reconcile.register_host(h, current_user) FROM unnest('{pool,pod}'::text[]) h;
	SELECT reconcile.fetch_intents('controller', 1, '15 min');
	CREATE FUNCTION app.publish(host text, placement text, capacity int) RETURNS text LANGUAGE sql AS $$
		SELECT p.outcome FROM reconcile.publish_host_target(host, 1, 'agent', 'rt', placement, 'ws://host', 'cross_tenant_isolated', true, capacity, '15 min') p $$;
	-- a session that a host has, as of epoch 1 and the token "token"
	CREATE PROCEDURE app.have(s text, placement text) LANGUAGE plpgsql AS $$
	DECLARE
		host text := CASE placement WHEN 'pooled' THEN 'pool' ELSE 'pod' END;
	BEGIN
		PERFORM reconcile.create_session('t', s, 'agent', placement, 'made', 'rt', 'v', 'launch');
		PERFORM app.publish(host, placement, CASE placement WHEN 'pooled' THEN 1000 ELSE 1 END);
		COMMIT;
		IF placement = 'dedicated' THEN
			PERFORM reconcile.place_session('t', s);
			PERFORM reconcile.report_workload('t', s, 1, 'ready', host, 1, 'ws://host');
			COMMIT;
		END IF;
		PERFORM reconcile.place_session('t', s);
		COMMIT;
		PERFORM reconcile.accept_offer((SELECT offer_id FROM reconcile.session_offers WHERE session_id = s AND state = 'offered'), 1, 'token');
		COMMIT;
	END $$;
	-- a command of it that has come so far
	CREATE PROCEDURE app.command(s text, id text, state text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM reconcile.admit_session_command('t', s, id, 'input', 'payload', apply_deadline_in => '1 h');
		IF state IN ('claimed', 'applying', 'applied') THEN
			PERFORM reconcile.claim_session_command('t', s, id, 1, 'token', 1, '1 h');
		END IF;
		IF state IN ('applying', 'applied') THEN
			PERFORM reconcile.begin_attempt('t', s, id, 1, 'token', 2, 'try');
		END IF;
		IF state = 'applied' THEN
			PERFORM reconcile.settle_attempt('t', s, id, 1, 'token', 3, 'try', 'applied', 'event', 1);
		ELSIF state = 'rejected' THEN
			PERFORM reconcile.reject_session_command('t', s, id, NULL, NULL, 1);
		END IF;
	END $$;
	CREATE PROCEDURE app.too_late(s text) LANGUAGE plpgsql AS $$
	BEGIN
		ALTER TABLE reconcile.session_command DISABLE TRIGGER session_command_kept;
		UPDATE reconcile.session_command SET accepted_at = accepted_at - interval '2 h', apply_deadline = clock_timestamp() WHERE session_id = s;
		ALTER TABLE reconcile.session_command ENABLE ALWAYS TRIGGER session_command_kept;
	END $$;
	CREATE FUNCTION app.state_of(s text) RETURNS text LANGUAGE sql AS $$
		SELECT string_agg(concat_ws(' ', command_id, state, revision, attempt_id, outcome), ', ' ORDER BY accepted_order) FROM reconcile.session_command WHERE session_id = s $$;
	CREATE TABLE app.forgotten (step text);
	CREATE ROLE hasty SUPERUSER LOGIN;
	ALTER ROLE hasty SET synchronous_commit = off});

# ----------------------------------------------------------------------
note 'commits that do not wait: the server ends when the step was answered, with what nobody has written yet';

my @steps = (
	{
		name => 'begin', from => 'claimed',
		do => q{SELECT outcome FROM reconcile.begin_attempt('t', '%1$s', 'c', 1, 'token', 2, 'try')}, says => 'begun',
		stands => 'c applying 3 try'
	},
	{
		name => 'settle', from => 'applying',
		do => q{SELECT outcome FROM reconcile.settle_attempt('t', '%1$s', 'c', 1, 'token', 3, 'try', 'applied', 'event', 1)}, says => 'settled',
		stands => 'c applied 4 try applied'
	},
	{
		name => 'reject', from => 'pending',
		do => q{SELECT outcome FROM reconcile.reject_session_command('t', '%1$s', 'c', NULL, NULL, 1)}, says => 'rejected',
		stands => 'c rejected 2'
	},
	{
		name => 'sweep', from => 'pending', late => 1,
		do => q{SELECT sum(rejected) FROM reconcile.sweep_deadlines()}, says => '1',
		stands => 'c rejected 2'
	},
	{
		name => 'delete', from => 'pending', placement => 'dedicated',
		do => q{SELECT concat_ws(' ', outcome, kind, reason) FROM reconcile.may_delete_workload('t', '%1$s', 1)}, says => 'yes forced platform_deleted',
		stands => 'c pending 1 released platform_deleted'
	});
my %stands = (
	delete => q{SELECT app.state_of('%1$s') || ' ' || (SELECT outcome FROM reconcile.owner_of('t', '%1$s')) || ' ' || (SELECT decided_reason FROM reconcile.session_workload WHERE session_id = '%1$s')});

foreach my $step (@steps)
{
	my $s = $step->{name};

	sql($node, sprintf(q{CALL app.have('%s', '%s')}, $s, $step->{placement} // 'pooled'));
	sql($node, "CALL app.command('$s', 'c', '$step->{from}')");
	sql($node, "CALL app.too_late('$s')") if $step->{late};
	sql($node, "SELECT reconcile.report_workload('t', '$s', 1, 'terminating', 'pod', 1, 'ws://host')") if $s eq 'delete';

	my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'hasty' ]);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $writer = sql($node, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});

	kill('STOP', $writer) or die;
	is($session->query_safe(sprintf($step->{do}, $s)), $step->{says}, "$s is answered");
	$session->query_safe("INSERT INTO app.forgotten VALUES ('$s')");
	kill('KILL', $writer) or die;
	wait_gone($pid);
	eval { $session->quit };
	$node->poll_query_until('postgres', 'SELECT true') or die;
	is(sql($node, sprintf($stands{$s} // q{SELECT app.state_of('%1$s')}, $s)), $step->{stands}, 'and there after a crash');
	is(sql($node, "SELECT count(*) FROM app.forgotten WHERE step = '$s'"), 0, 'in which other rows of the session were lost');
}

# ----------------------------------------------------------------------
note 'L19, L21: a restart at each state';

sql($node, q{CALL app.have('restart', 'pooled')});
sql($node, "CALL app.command('restart', '$_', '$_')") foreach qw(pending claimed applying applied rejected);
sql($node, q{SELECT reconcile.admit_session_command('t', 'restart', 'referred', 'input', payload_reference => 'object/1', payload_digest => sha256('big'), payload_size => 3, apply_deadline_in => '1 h')});

my $rows = q{SELECT md5(string_agg(c::text, ' ' ORDER BY accepted_order)) FROM reconcile.session_command c WHERE session_id = 'restart'};
my $before = sql($node, $rows);

$node->restart;
is(sql($node, $rows), $before, 'every command is as it was');
is(sql($node, q{
	SELECT string_agg(concat_ws(' ', b.outcome, c.outcome, r.outcome), ', ' ORDER BY k.accepted_order)
	  FROM reconcile.session_command k, reconcile.begin_attempt('t', 'restart', k.command_id, 1, 'token', k.revision, 'other') b,
	       reconcile.claim_session_command('t', 'restart', k.command_id, 1, 'token', k.revision, repeats => k.claim_expires_at) c,
	       reconcile.reject_session_command('t', 'restart', k.command_id, NULL, NULL, k.revision) r
	 WHERE k.session_id = 'restart' AND k.state IN ('applying', 'applied', 'rejected')}),
	'state state state, terminal terminal terminal, terminal terminal repeated', 'what was begun or has ended is not begun, claimed or rejected again');
is(sql($node, q{
	SELECT string_agg(concat_ws(' ', a.outcome, a.accepted_order, a.runtime_command_id = k.runtime_command_id, a.apply_deadline = k.apply_deadline), ', ' ORDER BY k.accepted_order)
	  FROM reconcile.session_command k, reconcile.admit_session_command('t', 'restart', k.command_id, 'input', k.payload, k.payload_reference,
	       payload_digest => CASE WHEN k.payload IS NULL THEN k.payload_digest END, payload_size => CASE WHEN k.payload IS NULL THEN k.payload_size END) a
	 WHERE k.session_id = 'restart'}),
	join(', ', map { "exists $_ t t" } 1 .. 6), 'each is admitted once, with its ids and times, given itself or by reference');
is(sql($node, q{SELECT outcome || ' ' || field FROM reconcile.admit_session_command('t', 'restart', 'referred', 'input', payload_reference => 'object/1', payload_digest => sha256('other'), payload_size => 3)}),
	'command_mismatch payload_digest', 'and no other under its id');
is(sql($node, q{
	SELECT concat_ws(' ', b.outcome, s.outcome) FROM reconcile.begin_attempt('t', 'restart', 'claimed', 1, 'token', 2, 'try') b,
	       reconcile.settle_attempt('t', 'restart', 'applying', 1, 'token', 3, 'try', 'no_op') s}), 'begun settled', 'its host goes on where it was');

# ----------------------------------------------------------------------
note 'many clients at one row';

# Each call by a client of its own, when all of them wait for the session: what they say.
sub race
{
	my ($s, @calls) = @_;
	my $holder = $node->background_psql('postgres');
	my @clients;

	$holder->query_safe("BEGIN; SELECT 1 FROM reconcile.session WHERE session_id = '$s' FOR UPDATE");
	foreach my $call (@calls)
	{
		my %client = (out => '', err => '');

		$client{run} = IPC::Run::start([ 'psql', '-X', '-q', '-A', '-t', '-c', $call, $node->connstr('postgres') ], '<' => \undef, '>' => \$client{out}, '2>' => \$client{err});
		push @clients, \%client;
	}
	wait_for($node, 'SELECT count(*) = ' . @calls . q{ FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_type = 'client backend'}, 'all wait for the session');
	$holder->query_safe('COMMIT');
	$holder->quit;
	$_->{run}->finish foreach @clients;
	chomp($_->{out}) foreach @clients;
	return map { $_->{out} . $_->{err} } @clients;
}

# How often each is said.
sub counted
{
	my %n;

	$n{$_}++ foreach @_;
	return join(', ', map { "$n{$_} $_" } sort keys %n);
}

sql($node, q{CALL app.have('race', 'pooled')});
my @said = race('race', map { "SELECT outcome || ' ' || holder_id FROM reconcile.acquire_claim('t', 'race', 'replica $_', '5 min')" } 1 .. 8);
my ($winner) = map { /^acquired (.*)/ ? $1 : () } @said;
is(counted(@said), "1 acquired $winner, 7 held $winner", 'H12: of 8 replicas one gets a claim');
is(sql($node, q{SELECT holder_id FROM reconcile.session_claim WHERE session_id = 'race'}), $winner, 'and is its holder');
is(sql($node, "SELECT released FROM reconcile.sweep_claims('$winner')"), 1, 'which gives it back after a restart of its own');

@said = race('race', map { "SELECT outcome || ' ' || accepted_order || ' ' || runtime_command_id FROM reconcile.admit_session_command('t', 'race', 'c', 'input', 'x', apply_deadline_in => '1 h', runtime_command_id => 'rt $_')" } 1 .. 12);
($winner) = map { /^admitted (.*)/ ? $1 : () } @said;
is(counted(@said), "1 admitted $winner, 11 exists $winner", 'L21: of 12 that admit a command one does, and all go on with its id');
is(counted(race('race', map { "SELECT outcome || ' ' || revision FROM reconcile.claim_session_command('t', 'race', 'c', 1, 'token', 1, '1 h')" } 1 .. 12)),
	'1 claimed 2, 11 conflict 2', 'of 12 that claim it one does');
@said = race('race', map { "SELECT outcome || ' ' || revision FROM reconcile.begin_attempt('t', 'race', 'c', 1, 'token', 2, 'try $_')" } 1 .. 12);
is(counted(@said), '1 begun 3, 11 conflict 3', 'of 12 that begin an attempt one does');
is(counted(race('race', (map { "SELECT outcome || ' ' || state FROM reconcile.reject_session_command('t', 'race', 'c', NULL, NULL, 3)" } 1 .. 6),
		(map { "SELECT outcome || ' ' || state FROM reconcile.settle_attempt('t', 'race', 'c', 1, 'token', 3, (SELECT attempt_id FROM reconcile.session_command WHERE session_id = 'race'), 'applied')" } 1 .. 6))) =~
	s/\d+ (conflict applied|state applying)(, )?//gr =~ s/, $//r, '1 settled applied', 'and while others reject it, it is settled once');

@said = race('race', map { "SELECT outcome || ' ' || sequence FROM reconcile.set_pointer('t', 'race', 'workspace_checkpoint', 1, 'token', $_, 'object $_')" } 1 .. 8);
my @bad = grep { !/^(written|sequence) \d$/ } @said;

is("@bad", '', 'N4: of 8 writes of a pointer each is written, or told of a later one');
is(sql($node, q{SELECT outcome || ' ' || sequence || ' ' || target FROM reconcile.get_pointer('t', 'race', 'workspace_checkpoint')}), 'set 8 object 8', 'and the latest stands');

# K5: the next holder, and the one before, who does not know yet
sql($node, q{SELECT outcome FROM reconcile.update_host_state('t', 'race', 1, 'token', 'running', 'resident', 1)});
sql($node, q{SELECT outcome FROM reconcile.release_session('t', 'race', 1, 'token')});
sql($node, q{SELECT outcome FROM reconcile.place_session('t', 'race')});
sql($node, q{SELECT outcome FROM reconcile.accept_offer((SELECT offer_id FROM reconcile.session_offers WHERE session_id = 'race' AND state = 'offered'), 1, 'token')});
@said = race('race', map { "SELECT outcome || ' by ' || $_ FROM reconcile.update_host_state('t', 'race', $_, 'token', 'running', 'resident', 1)" } (1, 2) x 4);
is(counted(map { s/^(epoch|lease_lost) by 1/refused by 1/r } @said), '4 refused by 1, 4 written by 2', 'K5: of two epochs at once the later one writes');
is(sql($node, q{SELECT observed_epoch FROM reconcile.get_session('t', 'race')}), 2, 'and its mark stands');

# ----------------------------------------------------------------------
note 'what one transaction may accept';

sql($node, q{
	SELECT app.publish('pool', 'pooled', 3000);
	CREATE FUNCTION app.offer_of(s text) RETURNS bigint LANGUAGE sql AS $$
		SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = 'many' AND session_id = s AND state = 'offered' $$});
sql($node, q{SELECT count(*) FROM generate_series(1, 1001) g, reconcile.create_session('many', 's' || g, 'agent', 'pooled', 'made', 'rt')});
sql($node, q{SELECT count(*) FROM generate_series(1, 1001) g, reconcile.place_session('many', 's' || g)});
session_fails($node, '53400', q{SELECT count(*) FROM generate_series(1, 1001) g, reconcile.accept_offer(app.offer_of('s' || g), 1, 'token')}, 'a thousand leases, and no more');
is(sql($node, q{SELECT count(*) FROM generate_series(1, 1000) g, reconcile.accept_offer(app.offer_of('s' || g), 1, 'token') a WHERE a.outcome = 'accepted'}), 1000, 'so many are accepted');
is(sql($node, q{SELECT outcome FROM reconcile.accept_offer(app.offer_of('s1001'), 1, 'token')}), 'accepted', 'and the rest by the next one');

# ----------------------------------------------------------------------
note 'D20: what is left on a released session is rejected at its deadline, and placed nowhere';

sql($node, q{CALL app.have('gone', 'dedicated')});
sql($node, q{SELECT outcome FROM reconcile.update_desired_state('t', 'gone', 'release', 1, 'dedicated', 'rt')});
sql($node, q{SELECT outcome FROM reconcile.release_session('t', 'gone', 1, 'token')});
sql($node, q{SELECT reconcile.set_placement('{"interval": "200 ms"}')});
is(sql($node, q{SELECT outcome || ' ' || state FROM reconcile.admit_session_command('t', 'gone', 'late', 'input', 'x', apply_deadline_in => '1 s')}), 'admitted pending', 'it is admitted');
wait_for($node, q{SELECT state = 'rejected' FROM reconcile.session_command WHERE session_id = 'gone'}, 'and rejected');
is(sql($node, q{SELECT settled_at >= apply_deadline AND attempt_id IS NULL AND outcome IS NULL AND claim_epoch IS NULL FROM reconcile.session_command WHERE session_id = 'gone'}), 't', 'at its deadline, without an attempt');
is(sql($node, q{SELECT desired_generation || ' ' || released || ' ' || owner FROM reconcile.get_session('t', 'gone')}), '2 true released', 'the session stays released');
is(sql($node, q{SELECT count(*) FROM reconcile.session_offer WHERE session_id = 'gone' AND state <> 'accepted'}), 0, 'and nobody was asked');

finish();

# Commands, and what ends between two of their steps: at each boundary of a step its
# session is terminated, or its client is gone, or the server is stopped at once.  The
# row, the desired state and the audit are there together or not at all; whoever asks
# again is answered by what is there; nothing is given out twice; and a sweep brings
# all of it to an end.
#
# The last part is of sessions with synchronous_commit = off.
#
# What is left is read as "status | desired state | events | audit_verify".

use strict;
use warnings;

use CrashTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

my $node = new_node('main', test_points => 1, conf => "max_worker_processes = 16\nautovacuum = off\n");
expect_log(qr/FATAL:  terminating connection due to administrator command/,
	qr/WARNING:  terminating connection due to immediate shutdown command/,
	qr/FATAL:  connection to client lost/);
expect_crashes();
prepare($node);

# Times of commands are over when they begin: a report counts until somebody has
# settled the command, and who cannot be claimed any more is swept.
sql($node, q{
	CREATE FUNCTION app.stands(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(' | ',
			coalesce((SELECT concat_ws('/', status, failure) FROM reconcile.command c WHERE c.tenant_id = tenant), 'none'),
			coalesce((SELECT concat(coalesce(state, 'none'), ' ', revision) FROM reconcile.desired_state d WHERE d.tenant_id = tenant), 'none'),
			coalesce((SELECT string_agg(event, ' ' ORDER BY sequence) FROM reconcile.audit_event e WHERE e.tenant_id = tenant), 'none'),
			(SELECT outcome FROM reconcile.audit_verify(tenant)))
	$$;
	CREATE FUNCTION app.give(tenant text, deadline interval) RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(' ', outcome, status, failure) FROM reconcile.accept_command(tenant, 'key', 'move_' || tenant, 'worker', 'w', 'why', deadline_in => deadline)
	$$;
	CREATE FUNCTION app.pause(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(' ', outcome, status, failure) FROM reconcile.accept_command(tenant, 'key', 'pause_' || tenant, 'queue', 'q', 'why')
	$$;
	CREATE FUNCTION app.effect(command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.effects VALUES (command ->> 'tenant_id');
		RETURN '{"status": "succeeded"}';
	END $$;
	CREATE TABLE app.effects (tenant text);
	CREATE FUNCTION app.claim(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT count(*)::text FROM reconcile.claim_commands('dispatcher', ARRAY['move_' || tenant], ttl => '1 ms')
	$$;
	CREATE FUNCTION app.command(tenant text, OUT command_id text, OUT token text) LANGUAGE sql AS $$
		SELECT command_id, claim_token FROM reconcile.command c WHERE c.tenant_id = tenant
	$$;
	CREATE FUNCTION app.acknowledge(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT reconcile.acknowledge_command(tenant, c.command_id, c.token, 'worker', '1.0') FROM app.command(tenant) c
	$$;
	CREATE FUNCTION app.complete(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT reconcile.complete_command(tenant, c.command_id, c.token, 'partial', 'bulk_retry_partial', 'worker', '1.0') FROM app.command(tenant) c
	$$;
	CREATE FUNCTION app.cancel(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT reconcile.cancel_command(tenant, c.command_id, 'no need') FROM app.command(tenant) c
	$$;
	CREATE FUNCTION app.resolve(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT reconcile.resolve_command(tenant, c.command_id, 'not_executed', '{"seen": 1}', 'looked') FROM app.command(tenant) c
	$$;
	-- what is over is old, by a policy that no function would take
	CREATE FUNCTION app.keep_nothing(tenant text) RETURNS void LANGUAGE sql AS $$
		SELECT reconcile.set_command_retention(tenant, '1 hour');
		UPDATE reconcile.command_retention SET keep = '0' WHERE tenant_id = tenant
	$$;
	CREATE FUNCTION app.prune(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT concat_ws(' ', outcome, commands) FROM reconcile.prune_commands(tenant)
	$$;
	CREATE FUNCTION app.sweep(tenant text) RETURNS text LANGUAGE sql AS $$
		SELECT (canceled + lapsed)::text FROM reconcile.sweep_commands()
	$$});

# whose transaction begins the first incarnation keeps it from others
sql($node, q{
	SELECT reconcile.register_action('move_first', '{worker}', 'external', desired_state => 'draining');
	SELECT app.give('first', '1 ms'), app.sweep(NULL)});

my %stands = (
	none => 'none | none | none | ok',
	pending => 'pending | draining 1 | accepted | ok',
	dispatched => 'dispatched | draining 1 | accepted dispatched | ok',
	acknowledged => 'acknowledged | draining 1 | accepted dispatched acknowledged | ok',
	partial => 'partial/bulk_retry_partial | draining 1 | accepted dispatched acknowledged partial | ok',
	canceled => 'canceled/canceled | none 2 | accepted canceled | ok',
	expired => 'canceled/deadline_exceeded | none 2 | accepted canceled | ok',
	lapsed => 'unknown/outcome_unknown | draining 1 | accepted dispatched unknown | ok',
	lapsed_after => 'unknown/outcome_unknown | draining 1 | accepted dispatched acknowledged unknown | ok',
	resolved => 'unknown/outcome_unknown | draining 1 | accepted dispatched unknown resolved | ok',
	old => 'canceled/canceled | none 2 | accepted canceled retention_set | ok',
	pruned => 'none | none 2 | pruned | ok',
	succeeded => 'succeeded | paused 1 | accepted succeeded | ok');

# From where to where a step goes; what brings a command there, and what the step is; what
# is said to who asks again when it was not done, and when it was; and how all of it ends.
my @steps = (
	{ name => 'accept', from => 'none', to => 'pending', do => q{app.give('%s', '1 ms')},
		again => [ 'accepted pending', 'replayed pending' ], ends => 'expired', points => [qw(after-rights before-insert)] },
	{ name => 'local', from => 'none', to => 'succeeded', do => q{app.pause('%s')},
		again => [ 'accepted succeeded', 'replayed succeeded' ], ends => 'succeeded', points => [qw(after-rights before-insert)] },
	{ name => 'claim', from => 'pending', to => 'dispatched', do => q{app.claim('%s')},
		again => [ 1, 0 ], ends => 'lapsed', path => ['give'] },
	{ name => 'acknowledge', from => 'dispatched', to => 'acknowledged', do => q{app.acknowledge('%s')},
		again => [ 'acknowledged', 'repeated' ], ends => 'lapsed_after', path => [qw(give claim)] },
	{ name => 'complete', from => 'acknowledged', to => 'partial', do => q{app.complete('%s')},
		again => [ 'completed', 'repeated' ], ends => 'partial', path => [qw(give claim acknowledge)] },
	{ name => 'cancel', from => 'pending', to => 'canceled', do => q{app.cancel('%s')},
		again => [ 'canceled', 'terminal' ], ends => 'canceled', path => ['give'] },
	{ name => 'expire', from => 'pending', to => 'expired', do => q{app.sweep('%s')},
		again => [ 1, 0 ], ends => 'expired', path => ['give over'], alone => 1 },
	{ name => 'lapse', from => 'dispatched', to => 'lapsed', do => q{app.sweep('%s')},
		again => [ 1, 0 ], ends => 'lapsed', path => [qw(give claim)], alone => 1 },
	{ name => 'resolve', from => 'lapsed', to => 'resolved', do => q{app.resolve('%s')},
		again => [ 'resolved', 'repeated' ], ends => 'resolved', path => [qw(give claim sweep)], quiet => 1 },
	{ name => 'prune', from => 'old', to => 'pruned', do => q{app.prune('%s')},
		again => [ 'pruned 1', 'pruned 0' ], ends => 'pruned', path => [ 'give', 'cancel', 'keep nothing' ], quiet => 1 });

my %path = (
	'give' => q{app.give('%s', '5 min')},
	'give over' => q{app.give('%s', '1 ms')},
	claim => q{app.claim('%s')},
	acknowledge => q{app.acknowledge('%s')},
	cancel => q{app.cancel('%s')},
	# when the claim has lapsed
	sweep => q{app.sweep('%s') FROM pg_sleep(0.002)},
	'keep nothing' => q{app.keep_nothing('%s')});

# What is there when it ends at that point, by what ends it.  Between the events'
# places and the commit no interrupt is looked at: who is terminated there commits.
my %durable = (
	'after-rights' => { TERM => 'from', stop => 'from' },
	'before-insert' => { TERM => 'from', stop => 'from' },
	'before-audit' => { TERM => 'from', stop => 'from' },
	'before-commit' => { TERM => 'to', stop => 'from' },
	'after-commit' => { TERM => 'to', stop => 'to', gone => 'to' });

my $cells = 0;

# A tenant whose command is where the step begins.
sub begin_tenant
{
	my ($step, $tenant) = @_;

	sql($node, "SELECT reconcile.register_action('move_$tenant', '{worker}', 'external', desired_state => 'draining');
		SELECT reconcile.register_action('pause_$tenant', '{queue}', 'local', 'app.effect', desired_state => 'paused');
		" . join('', map { 'SELECT ' . sprintf($path{$_}, $tenant) . ';' } @{ $step->{path} // [] }));
	return;
}

# A session that does the step for a tenant of its own is held at the point.
sub hold
{
	my ($step, $point) = @_;
	my $tenant = 't' . ++$cells;
	my $cell = { tenant => $tenant, step => $step, point => $point, session => $node->background_psql('postgres', on_error_stop => 0) };

	begin_tenant($step, $tenant);
	$cell->{pid} = $cell->{session}->query_safe('SELECT pg_backend_pid()');
	arm($node, "command-$point", $cell->{pid});
	begins($cell->{session}, 'SELECT ' . sprintf($step->{do}, $tenant) . ';');
	is(reached($node, "command-$point"), $cell->{pid}, "$step->{name} is held $point");
	return $cell;
}

sub end_all
{
	my ($how, @held) = @_;

	if ($how eq 'stop')
	{
		$node->stop('immediate');
		disarm($node);
		$node->start;
		return;
	}
	foreach my $cell (@held)
	{
		kill('TERM', $cell->{pid}) or die if $how eq 'TERM';
		$cell->{session}{run}->kill_kill if $how eq 'gone';
	}
	disarm($node);
	wait_gone($_->{pid}) foreach @held;
	return;
}

sub check
{
	my ($how, @held) = @_;

	foreach my $cell (@held)
	{
		my ($step, $point, $tenant) = @$cell{qw(step point tenant)};
		my $durable = $durable{$point}{$how};
		my $stands = "SELECT app.stands('$tenant')";
		my $do = 'SELECT ' . sprintf($step->{do}, $tenant);

		# what was done is done, and what was not is done now; and nobody gets it once more
		is(sql($node, "$stands; $do; $stands; SELECT app.claim('$tenant') FROM pg_sleep(0.002)"),
			join("\n", $stands{ $step->{$durable} }, $step->{again}[ $durable eq 'to' ], $stands{ $step->{to} }, 0),
			"$step->{name}, $point, $how: $durable, and again");
	}
	sql($node, 'SELECT app.sweep(NULL)');
	foreach my $cell (@held)
	{
		is(sql($node, "SELECT app.stands('$cell->{tenant}'), (SELECT count(*) FROM app.effects WHERE tenant = '$cell->{tenant}')"),
			$stands{ $cell->{step}{ends} } . '|' . ($cell->{step}{name} eq 'local' ? 1 : 0), "$cell->{step}{name}, $cell->{point}, $how: its end");
		eval { $cell->{session}->quit };
	}
	return;
}

foreach my $how (qw(TERM stop gone))
{
	note "what ends it: $how";
	foreach my $step (@steps)
	{
		# a client leaves what it has been given
		my @points = $how eq 'gone' ? 'after-commit' : (@{ $step->{points} // [] }, qw(before-audit before-commit after-commit));

		# these two have several rows
		@points = grep { $_ ne 'before-audit' } @points if $step->{quiet};
		# of sweeps only one is at it
		foreach my $together ($step->{alone} ? map { [$_] } @points : \@points)
		{
			my @held = map { hold($step, $_) } @$together;

			end_all($how, @held);
			check($how, @held);
		}
	}
}

# ----------------------------------------------------------------------
note 'in the code of an application, that is called on the way';

sql($node, q{
	CREATE ROLE caller LOGIN;
	CREATE FUNCTION app.agrees(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM app.gate('authorizer');
		RETURN true;
	END $$;
	CREATE FUNCTION app.acts(command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.effects VALUES (command ->> 'tenant_id');
		PERFORM app.gate('action');
		RETURN '{"status": "succeeded"}';
	END $$;
	SELECT reconcile.register_action('act', '{thing}', 'local', 'app.acts');
	SELECT reconcile.set_authorizer('app.agrees')});
foreach my $where (qw(authorizer action))
{
	foreach my $how (qw(INT TERM stop))
	{
		my $tenant = 't' . ++$cells;
		my $give = "SELECT concat_ws(' ', outcome, status, failure) FROM reconcile.accept_command('$tenant', 'key', 'act', 'thing', 'x', 'why')";
		my $count = "SELECT count(*) FROM app.effects WHERE tenant = '$tenant'";

		sql($node, "SELECT reconcile.grant_command('caller', '$tenant', 'act')");
		my $gate = close_gate($node, $where);
		my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'caller' ]);
		my $pid = $session->query_safe('SELECT pg_backend_pid()');

		begins($session, "$give;");
		wait_held($node, $where, 1);
		if ($how eq 'stop')
		{
			$node->stop('immediate');
			$node->start;
		}
		else
		{
			kill($how, $pid) or die;
			wait_gone($pid) if $how eq 'TERM';
			like($session->query(q{SELECT 'still there'}) . $session->{stderr}, qr/still there[^|]*canceling statement/, 'it is canceled') if $how eq 'INT';
		}
		eval { $_->quit } foreach $session, $gate->{session};
		is(sql($node, "SELECT app.stands('$tenant'); $count"), "none | none | granted | ok\n0", "in the $where, $how: nothing is there");
		is(sql($node, "SET SESSION AUTHORIZATION caller; $give; RESET SESSION AUTHORIZATION; $count"), "accepted succeeded\n1", 'and the same call does it');
	}
}

# ----------------------------------------------------------------------
note 'commits that do not wait: the server ends when the step was answered, with what nobody has written yet';

sql($node, q{
	CREATE TABLE app.forgotten (tenant text);
	CREATE ROLE hasty SUPERUSER LOGIN;
	ALTER ROLE hasty SET synchronous_commit = off});
foreach my $step (@steps)
{
	my $tenant = 't' . ++$cells;

	begin_tenant($step, $tenant);
	my $session = $node->background_psql('postgres', on_error_stop => 0, extra_params => [ '-U', 'hasty' ]);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $writer = sql($node, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});

	kill('STOP', $writer) or die;
	is($session->query_safe('SELECT ' . sprintf($step->{do}, $tenant)), $step->{again}[0], "$step->{name} is answered");
	$session->query_safe("INSERT INTO app.forgotten VALUES ('$tenant')");
	kill('KILL', $writer) or die;
	wait_gone($pid);
	eval { $session->quit };
	$node->poll_query_until('postgres', 'SELECT true') or die;
	is(sql($node, "SELECT app.stands('$tenant')"), $stands{ $step->{to} }, 'and there after a crash');
	is(sql($node, "SELECT count(*) FROM app.forgotten WHERE tenant = '$tenant'"), 0, 'in which other rows of the session were lost');
	sql($node, 'SELECT app.sweep(NULL)');
}
is(sql($node, q{SELECT count(*) FROM reconcile.command WHERE completed_at IS NULL}), 0, 'no command is left without an end');

finish();

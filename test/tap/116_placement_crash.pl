# What becomes of a placement, an offer, a session and its commands when a process is
# ended at each step of each call: the backend is terminated, the server stopped at once,
# or the client is gone.  Each call has happened, or it has not; then all that belongs
# together agrees, and the same call again is answered as promised: as the first time, or
# as a repetition.

use strict;
use warnings;

use CrashTest qw(wait_gone);
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

my $node = new_node('main', test_points => 1, conf => "max_worker_processes = 16\nshared_buffers = 16MB\nsynchronous_commit = off\nwal_writer_delay = 10s\n");

expect_log(qr/FATAL:  (?:terminating connection due to administrator command|connection to client lost)/,
	qr/WARNING:  terminating connection due to immediate shutdown command/);

sql($node, q{
	CREATE SCHEMA app;
	SELECT reconcile.set_placement('{"control_shards": 1, "session_ttl": "1 h", "offer_ttl": "5 min"}');
	-- what is placed is placed by the test
	SELECT reconcile.pause_loop(l) FROM unnest('{placement,placement_sweeps}'::text[]) l;
	SELECT reconcile.register_host(h, 'postgres') FROM unnest('{pooled,own}'::text[]) h;

	CREATE FUNCTION app.make(s text, placement text DEFAULT 'pooled') RETURNS void LANGUAGE sql AS $$
		SELECT FROM reconcile.create_session('t', s, 'agent', placement, 'made', 'rt', 'v', 'w') $$;
	CREATE FUNCTION app.offer(s text) RETURNS bigint LANGUAGE sql AS $$
		SELECT max(offer_id) FROM reconcile.session_offer WHERE session_id = s $$;
	CREATE FUNCTION app.epoch(s text) RETURNS bigint LANGUAGE sql AS $$
		SELECT lease_epoch FROM reconcile.session_registration WHERE session_id = s $$;
	CREATE FUNCTION app.publish() RETURNS void LANGUAGE sql AS $$
		SELECT FROM reconcile.publish_host_target('pooled', 1, 'agent', 'rt', 'pooled', 'wss://pooled:1', 'cross_tenant_isolated', true, 1000000, '15 min') $$;
	CREATE FUNCTION app.place(s text) RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.place_session('t', s) $$;
	CREATE FUNCTION app.accept(s text) RETURNS text LANGUAGE sql AS $$ SELECT outcome FROM reconcile.accept_offer(app.offer(s), 1, 'token of ' || s) $$;
	CREATE FUNCTION app.placed(s text) RETURNS void LANGUAGE sql AS $$ SELECT FROM app.make(s), app.place(s); SELECT FROM app.accept(s) $$;
	CREATE FUNCTION app.admit(s text, deadline interval DEFAULT '1 h') RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.admit_session_command('t', s, 'c', 'input', 'x', apply_deadline_in => deadline) $$;
	-- by the revision that stands then
	CREATE FUNCTION app.revision(s text) RETURNS bigint LANGUAGE sql AS $$ SELECT revision FROM reconcile.session_command WHERE session_id = s $$;
	CREATE FUNCTION app.claimed_until(s text) RETURNS timestamptz LANGUAGE sql AS $$ SELECT claim_expires_at FROM reconcile.session_command WHERE session_id = s $$;
	CREATE FUNCTION app.claim(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.claim_session_command('t', s, 'c', app.epoch(s), 'token of ' || s, app.revision(s), '1 h', app.claimed_until(s)) $$;
	CREATE FUNCTION app.begin(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.begin_attempt('t', s, 'c', app.epoch(s), 'token of ' || s, app.revision(s), 'attempt') $$;
	CREATE FUNCTION app.settle(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.settle_attempt('t', s, 'c', app.epoch(s), 'token of ' || s, app.revision(s), 'attempt', 'applied') $$;
	CREATE FUNCTION app.reject(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.reject_session_command('t', s, 'c', NULL, NULL, app.revision(s)) $$;
	CREATE FUNCTION app.beat(s text) RETURNS text LANGUAGE sql AS $$
		SELECT string_agg(outcome, ' ') FROM reconcile.heartbeat_host('pooled', 1,
			'[{"agent_id": "agent", "runtime_compatibility_id": "rt", "placement": "pooled", "endpoint": "wss://pooled:1",
				"isolation_class": "cross_tenant_isolated", "available_capacity": 1000000}]',
			jsonb_build_array(jsonb_build_object('tenant_id', 't', 'session_id', s, 'epoch', app.epoch(s), 'token', 'token of ' || s)), '15 min') $$;
	CREATE FUNCTION app.release(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.release_session('t', s, app.epoch(s), 'token of ' || s) $$;
	-- a workload of its own, which is not wanted any more
	CREATE PROCEDURE app.dedicated(s text) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM reconcile.publish_host_target('own', 1, 'agent', 'rt', 'dedicated', 'wss://own:1', 'cross_tenant_isolated', true, 1, '15 min');
		PERFORM reconcile.fetch_intents('controller', 1, '15 min');
		PERFORM app.make(s, 'dedicated');
		COMMIT;
		PERFORM app.place(s);
		PERFORM reconcile.report_workload('t', s, 1, 'ready', 'own', 1, 'wss://own:1');
		COMMIT;
		PERFORM app.place(s);
		PERFORM app.accept(s);
		COMMIT;
		PERFORM reconcile.update_desired_state('t', s, 'gone', 1, 'dedicated', 'rt', NULL, NULL);
		PERFORM reconcile.report_workload('t', s, 1, 'exited', 'own', 1, 'wss://own:1');
	END $$;
	CREATE FUNCTION app.may_delete(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.may_delete_workload('t', s, 1) $$;
	CREATE FUNCTION app.record(s text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.record_termination('t', s, 1, 'forced', 'workload_terminated',
			app.epoch(s)) $$;

	CREATE VIEW app.lease AS SELECT substr(reconciler_id, 9)::bigint AS number, epoch, holder_id, expires_at > clock_timestamp() AS live
		FROM reconcile.lease WHERE reconciler_id LIKE 'session:%';
	-- what must never be
	CREATE VIEW app.broken AS
		SELECT format('%s of %s is reserved, for %s', t.reserved, t.host_id, count(o.offer_id)) AS what
			FROM reconcile.host_target t LEFT JOIN reconcile.session_offer o ON o.host_id = t.host_id AND o.counted
			GROUP BY t.host_id, t.reserved HAVING t.reserved <> count(o.offer_id)
		UNION ALL
		SELECT format('%s is registered under epoch %s, its lease has %s of %s', r.session_id, r.lease_epoch, l.epoch, l.holder_id)
			FROM reconcile.session_registration r JOIN reconcile.session s USING (tenant_id, session_id)
			LEFT JOIN app.lease l USING (number)
			WHERE r.lease_epoch IS DISTINCT FROM l.epoch OR (r.host_id IS NOT NULL AND (NOT l.live OR l.holder_id <> 'offer:' || r.offer_id))
		UNION ALL
		SELECT format('%s has a lease and no registration', s.session_id)
			FROM reconcile.session s JOIN app.lease l USING (number)
			LEFT JOIN reconcile.session_registration r USING (tenant_id, session_id)
			WHERE l.live AND r.lease_epoch IS DISTINCT FROM l.epoch
		UNION ALL
		SELECT format('%s was accepted %s times under epoch %s', session_id, count(*), epoch)
			FROM reconcile.session_offer WHERE state = 'accepted' GROUP BY session_id, epoch HAVING count(*) > 1
		UNION ALL
		SELECT format('%s was accepted under epoch %s, its registration has %s', o.session_id, o.epoch, r.lease_epoch)
			FROM reconcile.session_offer o LEFT JOIN reconcile.session_registration r USING (tenant_id, session_id)
			WHERE o.state = 'accepted' AND (r.lease_epoch IS NULL OR r.lease_epoch < o.epoch)
		UNION ALL
		SELECT format('the workload of %s may be deleted, and its host has it', w.session_id)
			FROM reconcile.session_workload w JOIN reconcile.session_registration r USING (tenant_id, session_id)
			WHERE w.decided IS NOT NULL AND r.host_id IS NOT NULL});

# name => before it, the call, where it is held, the answer to the first, and to a repetition,
# whether it has happened
my @ends = qw(transaction-before-commit transaction-after-commit);
my @cells = (
	[ 'a placement', q{SELECT app.make('S')}, q{app.place('S')}, [ 'place-reserved', 'place-offered', @ends ], 'attach_pooled', 'offered',
		q{app.offer('S') IS NOT NULL} ],
	[ 'an acceptance', q{SELECT app.make('S'), app.place('S')}, q{app.accept('S')}, [ 'accept-before-offer', @ends ], 'accepted', 'repeated',
		q{app.epoch('S') IS NOT NULL} ],
	[ 'a refusal', q{SELECT app.make('S'), app.place('S')}, q{reconcile.refuse_offer(app.offer('S'), 'no_capacity')}, [ 'offer-unreserved', @ends ],
		'refused', 'repeated', q{EXISTS (SELECT FROM reconcile.session_offer WHERE session_id = 'S' AND state = 'refused')} ],
	[ 'a heartbeat', q{SELECT app.placed('S')}, q{app.beat('S')}, [ 'heartbeat-renewed', @ends ], 'renewed', 'renewed',
		q{(SELECT residency = 'resident' FROM reconcile.session_registration WHERE session_id = 'S')} ],
	[ 'a release', q{SELECT app.placed('S')}, q{app.release('S')}, [ 'release-freed', @ends ], 'released', 'already',
		q{(SELECT host_id IS NULL FROM reconcile.session_registration WHERE session_id = 'S')} ],
	[ 'an admission', q{SELECT app.make('S')}, q{app.admit('S')}, \@ends, 'admitted', 'exists', q{app.revision('S') IS NOT NULL} ],
	[ 'a claim', q{SELECT app.placed('S'), app.admit('S')}, q{app.claim('S')}, [ 'session-command-written', @ends ], 'claimed', 'repeated',
		q{app.claimed_until('S') IS NOT NULL} ],
	[ 'an attempt', q{SELECT app.placed('S'), app.admit('S'); SELECT app.claim('S')}, q{app.begin('S')}, [ 'session-command-written', @ends ],
		'begun', 'state', q{(SELECT state = 'applying' FROM reconcile.session_command WHERE session_id = 'S')} ],
	[ 'an end', q{SELECT app.placed('S'), app.admit('S'); SELECT app.claim('S'); SELECT app.begin('S')}, q{app.settle('S')},
		[ 'session-command-written', @ends ], 'settled', 'repeated', q{(SELECT state = 'applied' FROM reconcile.session_command WHERE session_id = 'S')} ],
	[ 'a rejection', q{SELECT app.make('S'), app.admit('S')}, q{app.reject('S')}, [ 'session-command-written', @ends ], 'rejected', 'repeated',
		q{(SELECT state = 'rejected' FROM reconcile.session_command WHERE session_id = 'S')} ],
	[ 'a sweep of deadlines', q{SELECT app.make('S'), app.admit('S', '1 ms'); SELECT pg_sleep(0.002)},
		q{(SELECT sum(rejected) FROM reconcile.sweep_deadlines())}, [ 'deadline-rejected', @ends ], '1', '0',
		q{(SELECT state = 'rejected' FROM reconcile.session_command WHERE session_id = 'S')} ],
	[ 'a decision to delete', q{CALL app.dedicated('S')}, q{app.may_delete('S')}, [ 'removal-decided', @ends ], 'yes', 'yes',
		q{EXISTS (SELECT FROM reconcile.session_workload WHERE session_id = 'S' AND decided IS NOT NULL)} ],
	[ 'the end of a workload', q{CALL app.dedicated('S'); SELECT app.may_delete('S')}, q{app.record('S')}, \@ends, 'recorded', 'replayed',
		q{EXISTS (SELECT FROM reconcile.session_termination WHERE session_id = 'S')} ]);

my $sessions = 0;
# What a COMMIT that its client has not heard of makes sure of by itself: synchronous_commit is off.
my %durable = map { $_ => 1 } ('an acceptance', 'an attempt', 'an end');

sub backend_of
{
	my ($session) = @_;
	return $session->query_safe('SELECT pg_backend_pid()');
}

# Holds the call at the point, and ends it; has it happened?
sub end_at
{
	my ($call, $point, $end) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = backend_of($session);

	arm($node, $point, $pid);
	begins($session, "SELECT $call;");
	reached($node, $point);
	if ($end eq 'terminated')
	{
		kill('TERM', $pid) or die;
		release($node, $point);
		wait_gone($pid);
	}
	elsif ($end eq 'stopped')
	{
		$node->stop('immediate');
		disarm($node);
		$node->start;
	}
	else
	{
		$session->{run}->kill_kill;
		release($node, $point);
		wait_gone($pid);
	}
	eval { $session->quit } if $end ne 'left alone';
	return;
}

foreach my $cell (@cells)
{
	my ($name, $before, $call, $points, $first, $again, $happened) = @$cell;

	foreach my $point (@$points)
	{
		foreach my $end ('terminated', 'left alone', 'stopped')
		{
			my $session = 's' . ++$sessions;
			my ($b, $c, $h) = map { s/'S'/'$session'/gr } $before, $call, $happened;

			subtest "$name, $point, $end" => sub {
				sql($node, "SELECT app.publish(); $b");
				# but for what is forced, nothing of this is on the disk yet
				sql($node, 'SET synchronous_commit = on; CREATE TABLE app.flushed (); DROP TABLE app.flushed');
				end_at($c, $point, $end);
				my $is = sql($node, "SELECT $h");
				$is = $is eq 't';
				if ($end eq 'left alone' || ($point eq 'transaction-after-commit' && ($end eq 'terminated' || $durable{$name})))
				{
					ok($is, 'it has happened');
				}
				elsif ($point ne 'transaction-before-commit' && $point ne 'transaction-after-commit' || $end eq 'stopped' && $point ne 'transaction-after-commit')
				{
					ok(!$is, 'it has not happened');
				}
				is(sql($node, 'SELECT string_agg(what, E\'\n\') FROM app.broken'), '', 'all that belongs together agrees');
				is(sql($node, "SELECT $c"), $is ? $again : $first, 'the same call again is answered as promised');
				is(sql($node, "SELECT $h"), 't', 'and then it has happened');
				is(sql($node, "SELECT $c"), $again, 'once');
				is(sql($node, 'SELECT string_agg(what, E\'\n\') FROM app.broken'), '', 'all that belongs together agrees');
			};
		}
	}
}

finish();

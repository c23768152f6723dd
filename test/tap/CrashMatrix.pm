# The crash matrix: a process is held where it stands between two of its steps,
# something ends it, or the server, and then all promises must still hold.
#
#   use CrashMatrix;
#   matrix_prepare($node);
#   matrix_cell($node, $process, $stage, $end) for ...
#
# What is held, by the names of the test points (PROCESS-STAGE):
#
#              intent                 commit                  outcome
#   executor   the job is RUNNING     the run                 the job is DONE, and told
#   dispatcher the job is ASSIGNED    the grant of a term     the answer is taken in
#   launcher   a dispatcher is        it has looked whether   it has seen that a
#              registered             the database is there   dispatcher is gone
#   session    a mark is inserted     its enqueue()           the message is in the ring
#   runner     the run lock is taken  the run                 (of the next look, as session)
#
# The runner is a session in run_loop().  Beside the three there are "booking",
# the transaction that books a failed run (of the executor), and "loss", the same
# for a run whose executor is gone (of the dispatcher).

package CrashMatrix;

use strict;
use warnings;

use CrashTest qw(wait_gone);
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;
use Time::HiRes qw(usleep);

our @EXPORT = qw(matrix_conf matrix_log matrix_prepare matrix_cells matrix_hold matrix_end matrix_holds);

my @stages = map { ("before $_", "after $_") } qw(intent commit outcome);
my %stages = (
	executor => [ @stages, 'before booking', 'after booking' ],
	dispatcher => [ @stages, 'before loss', 'after loss' ],
	launcher => \@stages,
	session => \@stages,
	runner => \@stages);

my $asked = 0;

# Settings of the nodes.
sub matrix_conf
{
	return <<~'EOS';
		max_worker_processes = 16
		shared_buffers = 16MB
		track_commit_timestamp = on
		EOS
}

# What their logs may hold.
sub matrix_log
{
	return (
		qr/FATAL:  terminating (?:background worker "reconcile [^"]*"|connection) due to administrator command/,
		qr/WARNING:  terminating connection (?:because of crash of another server process|due to immediate shutdown command)/,
		qr/LOG:  (?:background worker "reconcile [^"]*"|server process) \(PID \d+\) was terminated by signal 9: Killed/,
		qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);
}

# matrix_cells(): [process, stage] of all.
sub matrix_cells
{
	my @cells;

	foreach my $process (qw(executor dispatcher launcher session runner))
	{
		push @cells, [ $process, $_ ] foreach @{ $stages{$process} };
	}
	return @cells;
}

# matrix_prepare(NODE): two loops, one of them leased.  Each entity that is asked
# for is run twice, by its trigger and by the next look that the first run asks
# for.
sub matrix_prepare
{
	my ($node) = @_;

	$node->safe_psql('postgres', <<~'EOS');
		CREATE SCHEMA app;
		CREATE TABLE app.asked (loop_name text, entity_id text, at timestamptz DEFAULT clock_timestamp(), fate text,
			PRIMARY KEY (loop_name, entity_id));
		CREATE TABLE app.effect (n bigint GENERATED ALWAYS AS IDENTITY, loop_name text, entity_id text, attempt int, epoch bigint,
			began timestamptz DEFAULT clock_timestamp(), sees timestamptz, beside bigint);

		-- how many transactions run the entity, this one included
		CREATE FUNCTION app.beside(entity text) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_advisory_xact_lock_shared(2, hashtext(entity));
			RETURN (SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND classid = 2 AND objid = hashtext(entity)::oid AND granted);
		END $$;

		CREATE FUNCTION app.act(entity text) RETURNS interval LANGUAGE plpgsql AS $$
		DECLARE
			run record;
			what app.asked;
		BEGIN
			SELECT * INTO run FROM reconcile.current_run();
			SELECT * INTO what FROM app.asked a WHERE a.loop_name = run.loop_name AND a.entity_id = entity;
			IF what.fate = 'fails' AND run.attempt = 1 AND NOT EXISTS (SELECT FROM app.effect e WHERE e.loop_name = run.loop_name AND e.entity_id = entity) THEN
				RAISE EXCEPTION 'as it was told';
			ELSIF what.fate = 'hangs' THEN
				PERFORM pg_sleep(600);
			END IF;
			INSERT INTO app.effect (loop_name, entity_id, attempt, epoch, sees, beside)
				VALUES (run.loop_name, entity, run.attempt, run.epoch, what.at, app.beside(run.loop_name || ' ' || entity));
			RETURN CASE (SELECT count(*) FROM app.effect e WHERE e.loop_name = run.loop_name AND e.entity_id = entity)
				WHEN 1 THEN interval '10 ms' END;
		END $$;

		CREATE FUNCTION app.ask(entity text, fate text, VARIADIC loops text[]) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE
			name text;
		BEGIN
			FOREACH name IN ARRAY loops LOOP
				INSERT INTO app.asked (loop_name, entity_id, fate) VALUES (name, entity, fate);
				PERFORM reconcile.enqueue(name, entity);
			END LOOP;
		END $$;

		SELECT reconcile.create_loop('plain', 'app.act', concurrency => 2, default_requeue => NULL);
		SELECT reconcile.create_loop('leased', 'app.act', concurrency => 2, default_requeue => NULL, lease_ttl => '1 h');
		SELECT reconcile.enqueue(l, 'later', '1 day') FROM unnest('{plain,leased}'::text[]) l;

		-- what comes right with time
		CREATE VIEW app.unsettled AS
			SELECT format('%s %s of %s', state, entity_id, loop_name) AS what FROM reconcile.work WHERE entity_id <> 'later'
			UNION ALL
			SELECT format('%s of %s is not run', entity_id, loop_name) FROM app.asked a
				WHERE NOT EXISTS (SELECT FROM app.effect e WHERE (e.loop_name, e.entity_id) = (a.loop_name, a.entity_id))
			UNION ALL
			SELECT 'no ' || kind FROM unnest('{launcher,dispatcher}'::text[]) kind
				WHERE NOT EXISTS (SELECT FROM reconcile.workers w WHERE w.kind = kind.kind AND w.state = 'running')
			UNION ALL
			SELECT format('health: %s %s', check_name, detail) FROM reconcile.health WHERE status = 'crit';

		-- what must never be
		CREATE VIEW app.broken AS
			SELECT format('P1, P3: %s of %s was run %s times', a.entity_id, a.loop_name, count(e)) AS what
				FROM app.asked a LEFT JOIN app.effect e USING (loop_name, entity_id) GROUP BY a.loop_name, a.entity_id HAVING count(e) <> 2
			UNION ALL
			SELECT format('P1: a run of %s, %s does not see what was asked', loop_name, entity_id) FROM app.effect
				WHERE (sees IS NULL OR began < sees) AND entity_id <> 'later'
			UNION ALL
			SELECT format('P3: marks of %s of %s', entity_id, loop_name) FROM reconcile.mark
				WHERE entity_id <> 'later' GROUP BY loop_name, entity_id
			UNION ALL
			-- after a promotion it is looked at before its time, too
			SELECT 'P3: what was to come later is not there once'
				WHERE (SELECT array_agg(loop_name ORDER BY loop_name) FROM reconcile.mark WHERE entity_id = 'later' AND kind = 't')
					IS DISTINCT FROM '{leased,plain}'::text[]
			UNION ALL
			SELECT format('P2: %s runs of %s of %s at once', beside, entity_id, loop_name) FROM app.effect WHERE beside <> 1
			UNION ALL
			SELECT format('P5: epochs %s of %s', string_agg(epoch::text, ',' ORDER BY acquired_at), reconciler_id) FROM reconcile.lease_history
				GROUP BY reconciler_id
				HAVING array_agg(epoch ORDER BY acquired_at) <> array_agg(epoch ORDER BY epoch) OR count(*) <> count(DISTINCT epoch)
			UNION ALL
			SELECT format('P6: epoch %s after %s', epoch, before)
				FROM (SELECT epoch, max(epoch) OVER (PARTITION BY loop_name ORDER BY n) AS before FROM app.effect) e WHERE epoch < before
			UNION ALL
			SELECT format('P6: %s of %s with epoch %s, which was not live then', e.entity_id, e.loop_name, e.epoch)
				FROM app.effect e JOIN reconcile.loop l USING (loop_name)
				LEFT JOIN reconcile.lease_history h ON h.reconciler_id = e.loop_name AND h.epoch = e.epoch
				WHERE l.lease_ttl_ms IS NOT NULL AND (h.epoch IS NULL OR e.began < h.acquired_at
					OR pg_xact_commit_timestamp(e.xmin) > h.ended_at)
			UNION ALL
			-- one failure that was made, and one end of a process
			SELECT format('P9: attempt %s of %s of %s', max(attempt), entity_id, loop_name)
				FROM app.effect JOIN app.asked USING (loop_name, entity_id)
				GROUP BY loop_name, entity_id, fate HAVING max(attempt) > CASE WHEN fate IS NULL THEN 2 ELSE 3 END
			UNION ALL
			SELECT format('P9: %s failures of %s of %s are left', failures, entity_id, loop_name) FROM reconcile.entity WHERE failures <> 0;

		CREATE PROCEDURE app.settle(INOUT problem text) LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN 1 .. 2000 LOOP
				SELECT string_agg(what, E'\n') INTO problem FROM app.unsettled;
				EXIT WHEN problem IS NULL;
				COMMIT;
				PERFORM pg_sleep(0.01);
			END LOOP;
			COMMIT;
			SELECT string_agg(what, E'\n') INTO problem FROM (TABLE app.broken UNION ALL TABLE app.unsettled) all_of_it;
		END $$;
		EOS
	return;
}

sub _point
{
	my ($process, $stage) = @_;
	my $point = "$process-$stage";

	# it tells of its next look as any session does
	$point =~ s/^runner/session/ if $stage =~ /outcome/;
	return $point =~ tr/ /-/r;
}

sub _pid_of
{
	my ($node, $kind) = @_;
	return $node->safe_psql('postgres', "SELECT pid FROM reconcile.workers WHERE kind = '$kind' AND state = 'running'");
}

# Begins a statement in a session of its own that will be held at the point.
sub _session
{
	my ($node, $point, $statement) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	arm($node, $point, $session->query_safe('SELECT pg_backend_pid()'));
	begins($session, "$statement;");
	return $session;
}

# matrix_hold(NODE, PROCESS, STAGE): makes work in which the process comes to the
# stage, and holds it there.
sub matrix_hold
{
	my ($node, $process, $stage) = @_;
	my $cell = { process => $process, point => _point($process, $stage) };
	my $entity = 'asked ' . ++$asked;
	my $fate = $stage =~ /booking/ ? 'fails' : $stage =~ /loss/ ? 'hangs' : '';
	my $ask = "SELECT app.ask('$entity', NULLIF('$fate', ''), 'plain', 'leased')";

	if ($process eq 'session')
	{
		$cell->{session} = _session($node, $cell->{point}, $ask);
	}
	elsif ($process eq 'runner')
	{
		# it gets ahead of the executors; then one of them is given the same entity,
		# and is done with it
		arm($node, 'dispatcher-before-intent');
		$node->safe_psql('postgres', $ask =~ s/, 'leased'//r);
		reached($node, 'dispatcher-before-intent');
		$cell->{session} = _session($node, $cell->{point}, "CALL reconcile.run_loop('plain')");
		$cell->{pid} = reached($node, $cell->{point});
		arm($node, 'dispatcher-after-outcome');
		release($node, 'dispatcher-before-intent');
		reached($node, 'dispatcher-after-outcome');
		release($node, 'dispatcher-after-outcome');
		$node->safe_psql('postgres', $ask =~ s/'plain', //r);
	}
	elsif ($process eq 'launcher')
	{
		arm($node, $cell->{point});
		kill('TERM', _pid_of($node, 'dispatcher')) or die;
		$cell->{pid} = reached($node, $cell->{point});
		$node->safe_psql('postgres', $ask);
	}
	elsif ($stage =~ /loss/)
	{
		$node->safe_psql('postgres', $ask);
		$node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'PgSleep'}) or die;
		$node->safe_psql('postgres', "UPDATE app.asked SET fate = 'hung' WHERE fate = 'hangs'");
		arm($node, $cell->{point});
		$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM reconcile.running()});
	}
	else
	{
		arm($node, $cell->{point});
		# a loop that is new has no term yet
		$ask = "SELECT reconcile.create_loop('leased_$asked', 'app.act', default_requeue => NULL, lease_ttl => '1 h');
			SELECT app.ask('$entity', NULL, 'plain', 'leased', 'leased_$asked')"
		  if "$process $stage" =~ /dispatcher .* commit/;
		$node->safe_psql('postgres', $ask);
	}
	$cell->{pid} //= reached($node, $cell->{point});
	return $cell;
}

# matrix_end(NODE, CELL, SIGNAL): sends the signal to the process that is held, and
# lets it go on.
sub matrix_end
{
	my ($node, $cell, $signal) = @_;

	kill($signal, $cell->{pid}) or die "process $cell->{pid} is gone";
	disarm($node);
	wait_gone($cell->{pid}) unless $signal eq 'INT';
	return;
}

# matrix_holds(NODE, CELL, NAME): a test that all comes right, and no promise is broken.
sub matrix_holds
{
	my ($node, $cell, $name) = @_;
	my ($status, $out, $err);

	eval { $cell->{session}->quit } if defined $cell->{session};
	# a server that starts refuses at first
	foreach my $try (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		($status, $out, $err) = $node->psql('postgres', 'CALL app.settle(NULL)');
		last if $status == 0;
		usleep(50_000);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is("$out$err", '', $name);
}

1;

# The whole way of commands under load: 2, 8 and 16 clients give, claim, report, cancel,
# sweep, resolve, prune and read commands of one tenant, and now and then of several. There is no error at all, no
# command is given out twice, each end that was taken is there, and the audit is whole.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $transactions = 1600;
my $node = new_node('traffic', conf => "max_worker_processes = 16\nmax_connections = 60\n");

sql($node, q{
	-- what each step was answered
	CREATE UNLOGGED TABLE answer (step text, answer text);
	-- once for each key that was admitted, and each command that was given out: the keys make sure of it
	CREATE TABLE admitted (key text PRIMARY KEY);
	CREATE TABLE given_out (command_id text PRIMARY KEY, tenant text NOT NULL, token text NOT NULL);
	-- ends that were taken
	CREATE TABLE ended (command_id text PRIMARY KEY, status text NOT NULL);

	-- mostly new keys, some used before, for the same and for something else; few targets
	CREATE PROCEDURE give() LANGUAGE plpgsql AS $$
	DECLARE
		n int := (random() * 7)::int;
		key text := CASE WHEN random() < 0.2 THEN 'key ' || (random() * 50)::int ELSE gen_random_uuid()::text END;
		got text;
	BEGIN
		SELECT a.outcome INTO got
		  FROM reconcile.accept_command('t', key, CASE n WHEN 0 THEN 'drain' WHEN 1 THEN 'pause' WHEN 2 THEN 'resume' ELSE 'retry' END,
				CASE WHEN n = 0 THEN 'worker' WHEN n IN (1, 2) THEN 'worker_group' ELSE 'failure' END, 'target ' || (random() * 5)::int, 'test',
				deadline_in => CASE WHEN random() < 0.3 THEN interval '3 ms' ELSE '1 s' END,
				expected_revision => CASE WHEN n = 1 AND random() < 0.3 THEN (random() * 100)::int END) a;
		INSERT INTO answer VALUES ('give', got);
		IF got = 'accepted' THEN
			INSERT INTO admitted VALUES (key);
		END IF;
	END $$;

	-- claims, and reports in another transaction: at once, or too late, twice, or not at all;
	-- or each step for sure, to an unknown end
	CREATE PROCEDURE work(sure boolean DEFAULT false) LANGUAGE plpgsql AS $$
	DECLARE
		ids text[];
		tenants text[];
		tokens text[];
		end_status text;
		worker_at timestamptz;
		got text;
	BEGIN
		WITH k AS (
			INSERT INTO given_out SELECT k.command_id, k.tenant_id, k.claim_token
			  FROM reconcile.claim_commands('w', NULL, 1 + (random() * 3)::int, CASE WHEN sure THEN '5 min' WHEN random() < 0.3 THEN interval '2 ms' ELSE '1 s' END) k
			RETURNING *)
		SELECT array_agg(k.command_id), array_agg(k.tenant), array_agg(k.token) INTO ids, tenants, tokens FROM k;
		COMMIT;
		FOR i IN 1 .. COALESCE(cardinality(ids), 0) LOOP
			IF sure OR random() < 0.3 THEN
				INSERT INTO answer SELECT 'acknowledge', reconcile.acknowledge_command(tenants[i], ids[i], tokens[i], 'w', '1.0');
				COMMIT;
			END IF;
			CONTINUE WHEN NOT sure AND random() < 0.1;
			end_status := CASE WHEN sure THEN 'unknown' ELSE (ARRAY['succeeded', 'succeeded', 'failed', 'unsupported', 'timed_out', 'partial', 'unknown'])[1 + (random() * 6)::int] END;
			worker_at := now() + (random() - 0.5) * interval '1 h';
			FOR n IN 1 .. 2 LOOP
				got := reconcile.complete_command(tenants[i], ids[i], tokens[i], end_status, CASE WHEN end_status <> 'succeeded' THEN 'no' END,
					worker_completed_at => worker_at);
				INSERT INTO answer VALUES ('complete', got);
				IF got = 'completed' THEN
					INSERT INTO ended VALUES (ids[i], end_status);
				END IF;
				COMMIT;
				EXIT WHEN random() < 0.8;
			END LOOP;
		END LOOP;
	END $$;

	-- several tenants in one transaction, in any order
	CREATE PROCEDURE give_all() LANGUAGE sql AS $$
		INSERT INTO answer SELECT 'give all', a.outcome
		  FROM (SELECT t FROM unnest(ARRAY['t', 'u', 'v', 'w']) t ORDER BY random()) o,
			reconcile.accept_command(o.t, gen_random_uuid()::text, 'retry', 'failure', 'all', 'test', deadline_in => '1 s') a $$;
	CREATE PROCEDURE cancel() LANGUAGE sql AS $$
		INSERT INTO answer SELECT 'cancel', reconcile.cancel_command('t', c.command_id, 'test')
		  FROM (SELECT k.command_id FROM reconcile.commands k WHERE k.tenant_id = 't' ORDER BY k.accepted_at DESC LIMIT 1) c $$;
	CREATE PROCEDURE resolve() LANGUAGE sql AS $$
		INSERT INTO answer SELECT 'resolve', reconcile.resolve_command('t', c.command_id, 'failed', '{"seen": true}', 'test')
		  FROM (SELECT k.command_id FROM reconcile.commands k WHERE k.tenant_id = 't' AND k.status = 'unknown' ORDER BY random() LIMIT 1) c $$;
	CREATE PROCEDURE sweep() LANGUAGE sql AS $$
		INSERT INTO answer SELECT 'sweep', CASE WHEN s.failed > 0 THEN 'failed' WHEN s.canceled + s.lapsed > 0 THEN 'settled' ELSE 'nothing' END
		  FROM reconcile.sweep_commands(20) s $$;
	CREATE PROCEDURE prune() LANGUAGE sql AS $$ INSERT INTO answer SELECT 'prune', p.outcome FROM reconcile.prune_commands('t', 50) p $$;
	-- a whole chain at any moment, and a poller who passes over nothing that has committed
	CREATE PROCEDURE read() LANGUAGE sql AS $$
		INSERT INTO answer SELECT 'verify', v.outcome FROM reconcile.audit_verify('t') v;
		INSERT INTO answer SELECT 'poll', CASE WHEN count(*) > 0 THEN 'states' ELSE 'nothing' END FROM reconcile.desired_states_since('t') $$;

	SELECT reconcile.set_command_retention('t', '1 h');
	-- shorter than anybody could wait for
	UPDATE reconcile.command_retention SET keep = '0';
});

my %weight = (give => 10, give_all => 5, work => 10, cancel => 2, sweep => 1, resolve => 2, prune => 1, read => 1);
my @scripts;
for my $procedure (sort keys %weight)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$procedure.sql";
	open my $handle, '>', $file or die $!;
	print $handle "CALL $procedure();\n";
	close $handle;
	push @scripts, "--file=$file\@$weight{$procedure}";
}

my %answers = (
	give => 'accepted, conflict, key_spent, replayed, stale_revision',
	'give all' => 'accepted',
	acknowledge => 'acknowledged, terminal, not_found',
	complete => 'completed, repeated, terminal, not_found',
	cancel => 'canceled, terminal, too_late, not_found',
	resolve => 'not_found, repeated, resolved',
	sweep => 'nothing, settled',
	prune => 'pruned',
	verify => 'ok',
	poll => 'nothing, states');

# each step once, with something there for it
sql($node, $_) for (
	q{INSERT INTO answer SELECT 'give', outcome FROM reconcile.accept_command('t', 'sure', 'drain', 'worker', 'sure', 'test', deadline_in => '5 min')},
	'CALL work(true)', map { "CALL $_()" } qw(give_all cancel resolve sweep prune read));

for my $clients (2, 8, 16)
{
	my ($out, $err) = ('', '');
	my $ran = IPC::Run::run(
		[
			'pgbench', '--no-vacuum', "--client=$clients", '--jobs=2', '--transactions=' . $transactions / $clients, @scripts,
			'--host=' . $node->host, '--port=' . $node->port, 'postgres'
		],
		'<' => \undef, '>' => \$out, '2>' => \$err);
	ok($ran && $err !~ /ERROR|aborted/, "$clients clients: no step has failed") or diag($err);

	# all that is left comes to an end
	wait_for($node, q{(SELECT count(*) >= 0 FROM reconcile.sweep_commands(10000))
		AND NOT EXISTS (SELECT FROM reconcile.commands WHERE completed_at IS NULL)}, "$clients clients: a sweep brings all that is left to an end");
	is(sql($node, q{SELECT e.command_id, e.status, c.status FROM ended e LEFT JOIN LATERAL
			(SELECT k.status FROM reconcile.command k WHERE k.command_id = e.command_id
			 UNION ALL SELECT t.status FROM reconcile.command_tombstone t WHERE t.command_id = e.command_id) c ON true
		 WHERE c.status IS DISTINCT FROM e.status LIMIT 5}), '', "$clients clients: each end that was taken is there");
	is(sql($node, q{SELECT (SELECT count(*) FROM reconcile.command) + (SELECT count(*) FROM reconcile.command_tombstone)
			= (SELECT count(*) FROM answer WHERE step LIKE 'give%' AND answer = 'accepted')}), 't', "$clients clients: and each command that was accepted");
	is(sql($node, q{SELECT outcome FROM reconcile.audit_verify('t')}), 'ok', "$clients clients: the audit is whole");
	is(sql($node, q{SELECT string_agg(v.outcome, ' ') FROM unnest(ARRAY['u', 'v', 'w']) t, reconcile.audit_verify(t) v}), 'ok ok ok', "$clients clients: that of the others, too");
	note(sql($node, q{SELECT step, answer, count(*) FROM answer GROUP BY 1, 2 ORDER BY 1, 2}));
	note("$clients clients: $1 transactions a second") if $out =~ /tps = ([\d.]+)/;
}

for my $step (sort keys %answers)
{
	my $known = join(', ', map { "'$_'" } split(/, /, $answers{$step}));
	is(sql($node, "SELECT DISTINCT answer FROM answer WHERE step = '$step' AND answer NOT IN ($known)"), '', "$step is answered by what it may be");
	isnt(sql($node, "SELECT count(*) FROM answer WHERE step = '$step'"), '0', "$step was asked for");
}
is(sql($node, q{SELECT count(*) FROM answer WHERE step = 'complete' AND answer = 'completed'}), sql($node, 'SELECT count(*) FROM ended'),
	'each end was taken once');

finish();

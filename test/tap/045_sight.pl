# What is counted: runs by result, also those that fail, are skipped or end with
# their process; who is dead; the counts of "loops" against what the tables say;
# the last runs; and that none of it scans a table that grows with the work.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	max_prepared_transactions = 5
	reconcile.max_workers = 3
	reconcile.databases = 'postgres, many'
	EOC
prepare($node);

# metric(WHERE, NAME, LOOP, LABELS): its value; labels as jsonb without the loop.
sub metric
{
	my ($where, $name, $loop, $labels) = @_;
	$labels //= '{}';
	return sql($where, "SELECT value FROM reconcile.metrics() WHERE name = '$name'
		AND labels = '$labels'::jsonb || '{\"reconciler\": \"$loop\"}'");
}

# results(WHERE, LOOP): success, transient, permanent, skipped.
sub results
{
	my ($where, $loop) = @_;
	return sql($where, "SELECT string_agg(value::text, ' ' ORDER BY array_position('{success,transient,permanent,skipped}', labels->>'result'))
		FROM reconcile.metrics() WHERE name = 'reconcile_total' AND labels->>'reconciler' = '$loop'");
}

# The states of a loop's entities, as "loops" and as the tables have them.  An
# entity that is dead and was triggered again would be in both; here is none.
sub agree
{
	my ($where, $name) = @_;
	my $told = sql($where, 'SELECT loop_name, ready, running, waiting, retrying, dead FROM reconcile.loops ORDER BY 1');
	my $found = sql($where, q{SELECT l.loop_name, count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE state = 'running'),
		count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'retrying'), count(*) FILTER (WHERE state = 'dead')
		FROM reconcile.loops l LEFT JOIN reconcile.work w USING (loop_name) GROUP BY 1 ORDER BY 1});

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($told, $found, $name);
}

# ----------------------------------------------------------------------
note 'runs are counted by result, each once';

make_loop($node, 'count', options => q{concurrency => 2, backoff_base => '1 h', backoff_max => '2 h'});
behave($node, 'count', 'bad', 'fail');
behave($node, 'count', 'worse', 'permanent');
enqueue($node, 'count', qw(a b c d e bad worse));
wait_quiet($node, 'count');
is(results($node, 'count'), '5 1 1 0', 'successes, a transient and a permanent failure');
is(metric($node, 'reconcile_duration_seconds_count', 'count'), 7, 'each has a duration');
is(metric($node, 'reconcile_duration_seconds_bucket', 'count', '{"le": "+Inf"}'), 7, 'which is in a bucket');
is(metric($node, 'reconcile_queue_seconds_count', 'count'), 7, 'and a time before it');
is(sql($node, q{SELECT loop_name, entity_id, result, sqlstate, attempt, epoch, queue_ms >= 0, run_ms > 0, started_at < now() FROM reconcile.runs ORDER BY 2}),
	join("\n", (map { "count|$_|success||1|0|t|t|t" } qw(a)), 'count|b|success||1|0|t|t|t', 'count|bad|transient|AP001|1|0|t|t|t',
		(map { "count|$_|success||1|0|t|t|t" } qw(c d e)), 'count|worse|permanent|RC004|1|0|t|t|t'),
	'the last runs have what became of each');
is(sql($node, q{SELECT count(*) FROM reconcile.runs r JOIN app.run a ON a.entity_id = r.entity_id AND a.pid = r.pid}), 5, 'and the process that ran it');
agree($node, 'the loop has what the tables say');
is(sql($node, q{SELECT ready, running, waiting, retrying, dead FROM reconcile.loops}), '0|0|0|1|1', 'one to retry, one dead');

my $gate = close_gate($node, 'count');
enqueue($node, 'count', 'slow');
wait_held($node, 'count', 1);
enqueue($node, 'count', ('slow') x 3);
is(metric($node, 'reconcile_in_flight', 'count'), 1, 'a run in flight');
is(sql($node, q{SELECT ready, running FROM reconcile.loops}), '0|1', 'which the loop shows');
agree($node, 'as do the tables');
$gate->open;
wait_quiet($node, 'count');
is(results($node, 'count'), '7 1 1 3', 'triggers that came meanwhile were skipped, and caused one more run');
is(metric($node, 'reconcile_in_flight', 'count'), 0, 'nothing is in flight');
agree($node, 'all agree again');

$gate = close_gate($node, 'count');
enqueue($node, 'count', 'doomed');
wait_held($node, 'count', 1);
sql($node, q{SELECT pg_terminate_backend(pid) FROM reconcile.running()});
wait_for($node, q{SELECT failures = 1 FROM reconcile.work WHERE entity_id = 'doomed'}, 'a run ends with its process');
expect_log(qr/FATAL:  terminating background worker "reconcile executor/);
$gate->open;
wait_quiet($node, 'count');
is(results($node, 'count'), '7 2 1 3', 'that is a transient failure');
is(sql($node, q{SELECT result, sqlstate, pid > 0 FROM reconcile.runs WHERE entity_id = 'doomed'}), 'transient|57P01|t', 'among the last runs, with its process');
is(metric($node, 'reconcile_in_flight', 'count'), 0, 'nothing is in flight after that either');

# A run of another's transaction is that of a session, committed or not.
sql($node, 'CREATE DATABASE sessions');
my $sessions = [ $node, 'sessions' ];
sql($sessions, 'CREATE EXTENSION reconcile');
prepare($sessions);
sql($sessions, 'CREATE TABLE app.late (id text UNIQUE DEFERRABLE INITIALLY DEFERRED)');
make_loop($sessions, 'here', options => q{backoff_base => '1 h', backoff_max => '2 h'}, body => q{INSERT INTO app.late VALUES (left(entity, 1)); RETURN NULL;});
behave($sessions, 'here', 'c', 'fail');
enqueue($sessions, 'here', qw(a b1));
$node->safe_psql('sessions', q{CALL reconcile.run_loop('here')});
enqueue($sessions, 'here', qw(b2 c));
$node->safe_psql('sessions', q{CALL reconcile.run_loop('here')});
is(results($sessions, 'here'), '2 2 0 0', 'runs in a session are counted when they have committed: one failed at that');
is(metric($sessions, 'reconcile_in_flight', 'here'), 0, 'none of them is in flight');
is(sql($sessions, q{SELECT count(*) FROM reconcile.metrics() WHERE name = 'reconcile_work' AND labels->>'state' <> 'dead'}), 0, 'without a dispatcher the work is not known');
is(sql($sessions, q{SELECT ready, running, waiting, retrying, dead FROM reconcile.loops}), '0|0|0|2|0', 'the view reads the tables then');

# ----------------------------------------------------------------------
note 'who is dead is counted without a scan, whatever changes it';

make_loop($node, 'mortal', options => 'max_attempts => 1');
behave($node, 'mortal', $_, 'fail') for map { "m$_" } 1 .. 8;
enqueue($node, 'mortal', map { "m$_" } 1 .. 8);
wait_quiet($node, 'mortal');

sub dead
{
	my ($expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_quiet($node, 'mortal');
	# until the dispatcher has counted them once, they are looked up in the table
	$node->poll_query_until('postgres', q{BEGIN; DO $$ BEGIN PERFORM reconcile.metrics_text(); END $$;
		SELECT COALESCE(seq_scan, 0) + COALESCE(idx_scan, 0) = 0 FROM pg_stat_xact_user_tables WHERE schemaname = 'reconcile' AND relname = 'entity';
		COMMIT}, "BEGIN\nDO\nt\nCOMMIT") or die 'the dead are not counted';
	is(sql($node, q{SELECT (SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_work' AND labels = '{"reconciler": "mortal", "state": "dead"}'),
		(SELECT dead FROM reconcile.loops WHERE loop_name = 'mortal'), (SELECT count(*) FROM reconcile.dead_letters WHERE loop_name = 'mortal')}),
		"$expected|$expected|$expected", $name);
	return;
}
dead(8, 'all are dead');
behave($node, 'mortal', 'm1', 'live');
sql($node, q{SELECT reconcile.revive('mortal', 'm1')});
dead(7, 'one is revived, and lives');
sql($node, q{SELECT reconcile.revive('mortal', 'm2')});
dead(7, 'one is revived, and dies again');
enqueue($node, 'mortal', 'm3');
dead(7, 'one is triggered, and dies again');
sql($node, q{SELECT reconcile.forget('mortal', 'm4')});
dead(6, 'one is forgotten');
sql($node, q{BEGIN; SELECT reconcile.forget('mortal', 'm5'); ROLLBACK});
dead(6, 'that is rolled back');
sql($node, q{BEGIN; SAVEPOINT s; SELECT reconcile.forget('mortal', 'm5'); ROLLBACK TO s; SELECT reconcile.forget('mortal', 'm6'); RELEASE s; COMMIT});
dead(5, 'or rolled back to a savepoint, and another is not');
sql($node, q{BEGIN; SELECT reconcile.forget('mortal', 'm5'); PREPARE TRANSACTION 'p'});
dead(5, 'one prepared transaction would forget one');
my $dispatcher = dispatcher_pid($node);
sql($node, "SELECT pg_terminate_backend($dispatcher)");
wait_for($node, "SELECT pid <> $dispatcher FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running' AND database = 'postgres'", 'another dispatcher starts');
dead(5, 'the new dispatcher does not count it either');
sql($node, q{COMMIT PREPARED 'p'});
wait_for($node, q{SELECT dead = 4 FROM reconcile.loops WHERE loop_name = 'mortal'}, 'it is forgotten when that commits');
dead(4, 'by all');
is(results($node, 'count'), '7 2 1 3', 'counters outlive the dispatcher');
cmp_ok(sql($node, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_worker_restarts_total'}), '>=', 2, 'its restart is counted, and the executor\'s');
sql($node, q{BEGIN; SELECT reconcile.drop_loop('mortal'); SELECT reconcile.create_loop('mortal', 'app.mortal', default_requeue => NULL); COMMIT});
dead(0, 'none of a loop that is dropped and made anew');
sql($node, q{INSERT INTO reconcile.entity VALUES ('mortal', 'x', 1, 'permanent', 'RC004', '', now()), ('mortal', 'y', 1, NULL, 'RC004', '', now())});
dead(1, 'rows that come past our functions count');
sql($node, q{SET session_replication_role = replica; UPDATE reconcile.entity SET died_of = 'attempts' WHERE entity_id = 'y'});
dead(2, 'also where triggers are not to fire');

# ----------------------------------------------------------------------
note 'what is forgotten or moved is not counted any more';

sql($node, q{SELECT reconcile.create_loop('outside', default_requeue => NULL)});
sql($node, q{SELECT reconcile.enqueue_many('outside', ARRAY(SELECT 'o' || n FROM generate_series(1, 10) n)), reconcile.enqueue('outside', 'later', '1 h')});
is(sql($node, q{SELECT ready, waiting, oldest_due_age > '0' FROM reconcile.loops WHERE loop_name = 'outside'}), '10|1|t', 'work that nobody does');
sql($node, q{SELECT reconcile.forget('outside', 'o3'), reconcile.forget('outside', 'later')});
agree($node, 'is not there once it is forgotten');
sql($node, q{SELECT reconcile.pause_loop('outside')});
agree($node, 'and is there while it is paused');
is(metric($node, 'reconcile_leader', 'outside') . metric($node, 'reconcile_paused', 'outside'), '01', 'a paused loop without a lease does not lead');
is(metric($node, 'reconcile_leader', 'count') . metric($node, 'reconcile_paused', 'count'), '10', 'one that may run does');

# ----------------------------------------------------------------------
note 'outside workers: what they claim runs, what they report is counted when it commits';

sql($node, q{SELECT reconcile.create_loop('claims', default_requeue => NULL, backoff_base => '1 h', backoff_max => '2 h', max_attempts => 2)});
my %epoch;
sub claim
{
	my ($n, $ttl) = @_;
	my $claims = sql($node, "SELECT entity_id, claim_epoch FROM reconcile.claim_work('claims', 'worker', $n, '$ttl')");
	$epoch{$1} = $2 while $claims =~ /^(\w+)\|(\d+)$/mg;
	return;
}
enqueue($node, 'claims', qw(x y z));
claim(3, '1 h');
is(join(' ', sort keys %epoch), 'x y z', 'three are claimed');
agree($node, 'and run');
is(metric($node, 'reconcile_in_flight', 'claims'), 3, 'all of them are in flight');
enqueue($node, 'claims', 'x');
is(metric($node, 'reconcile_total', 'claims', '{"result": "skipped"}'), 1, 'a trigger of one that is claimed is skipped');
sql($node, "BEGIN; SELECT reconcile.complete_work('claims', 'x', $epoch{x}); ROLLBACK");
is(results($node, 'claims'), '0 0 0 1', 'a report that is rolled back is none');
sql($node, "BEGIN; SAVEPOINT s; SELECT reconcile.complete_work('claims', 'y', $epoch{y}); ROLLBACK TO s;
	SELECT reconcile.complete_work('claims', 'x', $epoch{x}); COMMIT");
is(results($node, 'claims'), '1 0 0 1', 'nor one that is rolled back to a savepoint');
sql($node, "SELECT reconcile.complete_work('claims', 'y', $epoch{y}); SELECT reconcile.fail_work('claims', 'z', $epoch{z}, 'no')");
is(results($node, 'claims'), '2 1 0 1', 'a success and a failure');
agree($node, 'one is left to be claimed again, and one to be tried again');
is(sql($node, q{SELECT entity_id, queue_ms, run_ms > 0, result, sqlstate, attempt, pid > 0 FROM reconcile.runs WHERE loop_name = 'claims' ORDER BY 1}),
	"x||t|success||1|t\ny||t|success||1|t\nz||t|transient|P0001|1|t", 'all are among the last runs');
claim(1, '100 ms');
wait_for($node, q{SELECT state = 'ready' FROM reconcile.work WHERE loop_name = 'claims' AND entity_id = 'x'}, 'a claim runs out');
agree($node, 'and its entity is ready');
claim(1, '100 ms');
is(results($node, 'claims'), '2 2 0 1', 'that was a failure, as the next claim finds');
wait_for($node, q{SELECT state = 'ready' FROM reconcile.work WHERE loop_name = 'claims' AND entity_id = 'x'}, 'that claim runs out too');
claim(1, '1 h');
is(results($node, 'claims'), '2 2 1 1', 'which was the last attempt');
agree($node, 'and it is dead');

# ----------------------------------------------------------------------
note 'events';

sql($node, q{CREATE TABLE app.device (id text); SELECT reconcile.watch('writes', 'app.device', 'id')
	FROM reconcile.create_loop('writes'); SELECT reconcile.drop_loop('writes')});
make_loop($node, 'writes', body => q{UPDATE app.device SET id = id WHERE id = entity; RETURN NULL;});
sql($node, q{SELECT reconcile.watch('writes', 'app.device', 'id'); INSERT INTO app.device VALUES ('a'), ('b')});
wait_quiet($node, 'writes');
is(metric($node, 'reconcile_self_suppressed_total', 'writes'), 2, 'a run that writes its own row is told apart');
is(results($node, 'writes'), '2 0 0 0', 'and does not run again for it');
$node->psql('postgres', q{INSERT INTO app.device VALUES (repeat('x', 600))}, stderr => \my $stderr);
expect_log(qr/WARNING:  a value of column "id" of "device" is no entity id/);
is(metric($node, 'reconcile_bad_values_total', 'writes'), 1, 'a value that is no entity id is counted');
is(sql($node, q{SELECT status, substring(detail FROM '^[0-9]+ statements on tables that loop "[a-z]+"') FROM reconcile.health WHERE check_name = 'values'}),
	'warn|1 statements on tables that loop "writes"', 'and shown by health');
sql($node, q{SELECT reconcile.acquire_lease('mine', 'a', '1 h'); SELECT reconcile.release_lease('mine', 'a', 1); SELECT reconcile.acquire_lease('mine', 'b', '1 h')});
is(sql($node, q{SELECT reconcile.apply_fenced('mine', 'e', 2, '{}'), reconcile.apply_fenced('mine', 'e', 1, '{}')}), 't|f', 'a stale write is refused');
is(sql($node, q{SELECT string_agg(accepted::text, ' ') FROM reconcile.apply_fenced_many('mine', '{e,f}', 1, ARRAY['{}', '{}']::jsonb[])}), 'false false', 'so are two at once');
is(metric($node, 'reconcile_fence_rejections_total', 'mine'), 3, 'and counted');
is(metric($node, 'reconcile_lease_epoch', 'mine') . ' ' . metric($node, 'reconcile_leader', 'mine'), '2 1', 'with the epoch of the lease, which somebody holds');

# ----------------------------------------------------------------------
note 'the last 10,000 runs are kept, and no more';

sql($node, 'CREATE DATABASE many');
my $many = [ $node, 'many' ];
sql($many, 'CREATE EXTENSION reconcile');
sql($many, q{CREATE FUNCTION nothing(text) RETURNS void LANGUAGE sql AS '';
	SELECT reconcile.create_loop('many', 'nothing', default_requeue => NULL)});
sql($many, q{SELECT reconcile.enqueue_many('many', ARRAY(SELECT 'first' FROM generate_series(1, 1) n))});
wait_for($many, q{SELECT count(*) = 1 FROM reconcile.runs}, 'a run');
my $long = 'x' x 500;
sql($many, qq{SELECT reconcile.enqueue_many('many', ARRAY(SELECT '$long' || n FROM generate_series(1, 10000) n))});
wait_for($many, q{SELECT value = 10001 FROM reconcile.metrics() WHERE name = 'reconcile_total' AND labels->>'result' = 'success'}, 'and 10,000 more');
is(sql($many, q{SELECT count(*), count(DISTINCT entity_id), max(length(entity_id)), bool_or(entity_id = 'first') FROM reconcile.runs}), '10000|10000|505|f',
	'the oldest is gone, the others are whole');

# ----------------------------------------------------------------------
note 'nothing that looks scans a table that grows with the work (reports 42, 118)';

sql($many, q{SELECT reconcile.enqueue_many('many', ARRAY(SELECT 'w' || n FROM generate_series(1, 100000) n), '1 day')});
wait_for($many, q{SELECT waiting = 100000 FROM reconcile.loops}, '100,000 entities wait');
my $scans = q{SELECT sum(seq_scan), sum(seq_tup_read) FROM pg_stat_xact_user_tables
	WHERE schemaname = 'reconcile' AND (relname LIKE 'mark_%' OR relname IN ('entity', 'resource'))};
for my $look ('SELECT count(*) FROM reconcile.loops', 'SELECT count(*) FROM reconcile.metrics()', 'SELECT length(reconcile.metrics_text())',
	'SELECT count(*) FROM reconcile.health', 'SELECT count(*) FROM reconcile.runs', 'SELECT count(*) FROM reconcile.workers')
{
	like(sql($many, "BEGIN; $look; $scans"), qr/^0\|0$/m, "not so: $look");
}
like(sql($many, "BEGIN; SELECT count(*) FROM reconcile.work; $scans"), qr/^\d+\|1\d{5}$/m, 'the view work does, so it would have been seen');
# ----------------------------------------------------------------------
note 'a caller sees what he may observe';

sql($node, q{CREATE ROLE watcher; CREATE ROLE stranger; SELECT reconcile.grant_access('watcher', 'observe', 'count')});
is(sql($node, q{SET ROLE watcher; SELECT string_agg(DISTINCT labels->>'reconciler', ' ') FROM reconcile.metrics()}), 'count', 'the metrics of his loop');
unlike(sql($node, q{SET ROLE watcher; SELECT reconcile.metrics_text()}), qr/mortal|writes|mine/, 'and no others');
like(sql($node, q{SET ROLE watcher; SELECT reconcile.metrics_text()}), qr/^reconcile_workers_up [1-9]/m, 'with what is the server\'s');
is(sql($node, q{SET ROLE watcher; SELECT string_agg(DISTINCT loop_name, ' ') FROM reconcile.runs}), 'count', 'the runs of it');
is(sql($node, q{SET ROLE watcher; SELECT string_agg(check_name, ' ') FROM reconcile.health WHERE check_name = 'dead' AND detail LIKE '%mortal%'}), '', 'and its health');
is(sql($node, q{SET ROLE watcher; SELECT detail FROM reconcile.health WHERE check_name = 'dead'}), '1 entities of loop "count" are dead', 'which is his to see');
session_fails($node, '42501', 'SET ROLE stranger; SELECT reconcile.metrics_text()', 'others may not call it');
is(sql($node, q{SET ROLE stranger; SELECT (SELECT count(*) FROM reconcile.runs), (SELECT count(*) FROM reconcile.loops),
	(SELECT count(*) FROM reconcile.health WHERE detail ~ '"')}), '0|0|0', 'and see no loop');

# ----------------------------------------------------------------------
note 'the text is what Prometheus reads';

SKIP: {
	skip 'promtool is not installed', 1 unless -x '/usr/bin/promtool';
	my $file = $node->basedir . '/metrics';
	append_to_file($file, sql($node, 'SELECT reconcile.metrics_text()') . "\n");
	is(qx{promtool check metrics < $file 2>&1}, '', 'promtool has nothing to say');
}
my @names = split /\n/, sql($node, q{SELECT DISTINCT name FROM reconcile.metrics() ORDER BY 1});
my $text = sql($node, 'SELECT reconcile.metrics_text()');
is(join(' ', grep { $text !~ /^$_[ {]/m } @names), '', 'it has every name of metrics()');

finish();

# A poison entity stops alone (P9; loop contract 10.2.9, public reports I and J): a
# run that fails, passes its timeout, eats all memory, ends its process or takes the
# whole server down is counted; at its limit the entity is parked with the reason,
# and revived by revive() alone where it crashed; the others go on.

use strict;
use warnings;

use CrashTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 3\n");
expect_crashes();
expect_log(qr/FATAL:  terminating background worker "reconcile executor/, qr/FATAL:  as it was asked to/);
prepare($node);
make_crash($node);

my $quick = q{concurrency => 2, backoff_base => '1 ms', backoff_max => '20 ms'};

# ----------------------------------------------------------------------
note 'errors, and the timeout';

make_loop($node, 'errors', options => "$quick, max_attempts => 4", body => q{
	IF entity = 'fails' THEN RAISE 'never'; END IF; RETURN NULL;});
enqueue($node, 'errors', qw(fails lives));
wait_entity($node, 'errors', 'fails', '4 0 attempts P0001', 'an error is no crash: dead after max_attempts');

make_loop($node, 'slow', options => "$quick, max_attempts => 2, timeout => '100 ms'", body => q{
	IF entity = 'heeds' THEN PERFORM pg_sleep(60); END IF;
	IF entity = 'does not' THEN
		BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(60); END;
	END IF;
	RETURN NULL;});
enqueue($node, 'slow', 'heeds', 'does not');
wait_entity($node, 'slow', 'heeds', '2 0 attempts 57014', 'nor is a run that passes its timeout');
wait_entity($node, 'slow', 'does not', '2 0 attempts 57014', 'nor one that does not heed the first signal, and is ended by the second');

# ----------------------------------------------------------------------
note 'a run that eats all memory, where there is a limit';

make_loop($node, 'memory', options => "$quick, max_attempts => 3", body => q{
	IF entity = 'eats' THEN
		DECLARE eaten text[] := '{}'; BEGIN LOOP eaten := eaten || repeat('x', 20000000); END LOOP; END;
	END IF;
	RETURN NULL;});
my ($vm_size) = slurp_file('/proc/' . postmaster_pid($node) . '/status') =~ /^VmSize:\s+(\d+) kB/m;
my $limit = ($vm_size + 400_000) * 1024;
$node->stop;
{
	# the server has the limit that its parent has
	my $unlimited = `prlimit --pid $$ --as --noheadings --output SOFT`;
	chomp $unlimited;
	system_or_bail('prlimit', '--pid', $$, "--as=$limit:");
	$node->start;
	system_or_bail('prlimit', '--pid', $$, "--as=$unlimited:");
}
enqueue($node, 'memory', qw(eats lives));
wait_entity($node, 'memory', 'eats', '3 0 attempts 53200', 'it fails, and dies, with 53200');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'memory')}, 'its neighbour runs');
$node->restart;

# ----------------------------------------------------------------------
note 'a run that ends its process in order: no crash of the server';

make_loop($node, 'ends', options => $quick, body => q{
	IF entity = 'terminates' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); END IF;} . crash_body('ends'));
will($node, 'ends', 'raises', 'fatal');
will($node, 'ends', 'leaves', 'exit');
my $restarts = sql($node, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_worker_restarts_total'});
enqueue($node, 'ends', qw(terminates raises leaves lives));
foreach my $entity (qw(terminates raises leaves))
{
	wait_entity($node, 'ends', $entity, '3 3 crash 57P01', "'$entity': dead after three, without max_attempts");
}
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'ends')}, 'the neighbour runs');
is(tries($node, 'ends'), 10, 'nobody was tried more often');
cmp_ok(sql($node, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_worker_restarts_total'}) - $restarts, '>=', 9, 'each is counted as a lost worker');

# ----------------------------------------------------------------------
note 'a run that takes the server down';

make_loop($node, 'crashes', options => $quick, body => crash_body('crashes'));
enqueue($node, 'crashes', 'innocent');
wait_quiet($node, 'crashes');
foreach my $how (qw(segv abort _exit kill stack exit3))
{
	will($node, 'crashes', $how, $how);
	provoke($node, 'crashes', $how, "beside $how");
	wait_entity($node, 'crashes', $how, '3 3 crash 57P02', "'$how': dead after three");
	wait_for($node, qq{EXISTS (SELECT FROM app.run WHERE loop_name = 'crashes' AND entity_id = 'beside $how')}, 'its neighbour has run');
}
is(crashes_since($node, 0), 18, 'each took the server down three times, and no more');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE crashes > 0 AND died_of IS NULL}), 0, 'nobody else was blamed');
is(sql($node, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_worker_restarts_total'}), 1, 'the one that ended the last life of the server is counted in this one');

# ----------------------------------------------------------------------
note 'what is to be seen of it';

is(sql($node, q{SELECT concat_ws(', ', failures, last_error, last_sqlstate) FROM reconcile.dead_letters WHERE loop_name = 'crashes' AND entity_id = 'segv'}),
	'3, the server crashed while it ran, 57P02', 'dead_letters has the reason');
is(sql($node, q{SELECT concat_ws(', ', state, failures, last_error) FROM reconcile.work WHERE loop_name = 'crashes' AND entity_id = 'segv'}),
	'dead, 3, the server crashed while it ran', 'work has it');
is(sql($node, q{SELECT concat_ws(', ', state, reason, detail, hint) FROM reconcile.explain('crashes', 'segv')}),
	'dead, dead, It died of runs that ended their process, or the server: failure 3 in a row, SQLSTATE 57P02., Only reconcile.revive() makes it due.', 'explain says it');
like(sql($node, q{SELECT status || ' ' || detail FROM reconcile.health WHERE check_name = 'crashes' AND detail LIKE '%"crashes"%'}),
	qr/^warn 6 entities of loop "crashes" are parked, .*"_exit"/, 'health names them');
is(sql($node, q{SELECT string_agg(concat_ws(' ', attempt, result, sqlstate), ', ' ORDER BY started_at) FROM reconcile.runs WHERE loop_name = 'crashes' AND entity_id = 'exit3'}),
	'3 permanent 57P02', 'the run that was booked last is among the last runs');
like(slurp_file($node->logfile), qr/run of loop "crashes", entity "segv" failed: SQLSTATE 57P02, 3 in a row; it is dead now/, 'the log names loop, entity and attempt');

# ----------------------------------------------------------------------
note 'under a lease';

make_loop($node, 'led', options => "$quick, lease_ttl => '5 s', max_attempts => 2", body => crash_body('led'));
will($node, 'led', 'a', 'segv');
provoke($node, 'led', 'a', 'b');
wait_entity($node, 'led', 'a', '2 2 crash 57P02', 'it is counted, though its term has ended with the server');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'led' AND entity_id = 'b')}, 'its neighbour runs, in another term');

# ----------------------------------------------------------------------
note 'who is parked for crashes stays so';

will($node, 'crashes', 'segv', 'nothing');
enqueue($node, 'crashes', 'segv');
sql($node, q{SELECT reconcile.enqueue('crashes', 'segv', '10 ms')});
dispatcher_looks($node, 'crashes');
is(runs($node, 'crashes', 'segv'), 0, 'a fresh trigger does not revive it');
$node->restart;
dispatcher_looks($node, 'crashes');
is(runs($node, 'crashes', 'segv'), 0, 'nor after a restart');
cmp_ok(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'crashes' AND entity_id = 'segv' AND kind = 't'}), '>=', 2, 'the triggers are kept');
is(sql($node, q{SELECT reconcile.revive('crashes', 'segv')}), 't', 'revive() does');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'crashes' AND entity_id = 'segv')}, 'it runs');
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.mark WHERE loop_name = 'crashes' AND entity_id = 'segv')}, 'and has answered all of its triggers');
is(sql($node, q{SELECT string_agg(attempt::text, ' ') FROM app.run WHERE loop_name = 'crashes' AND entity_id = 'segv'}), '1', 'in one run, as a new series');

# ----------------------------------------------------------------------
note 'max_attempts';

sql($node, q{SELECT reconcile.alter_loop('crashes', '{"max_attempts": 1}')});
will($node, 'crashes', 'one', 'segv');
provoke($node, 'crashes', 'one');
wait_entity($node, 'crashes', 'one', '1 1 crash 57P02', 'one crash is enough where one attempt is allowed');
sql($node, q{SELECT reconcile.alter_loop('crashes', '{"max_attempts": 5}')});
will($node, 'crashes', 'five', 'kill');
provoke($node, 'crashes', 'five');
wait_entity($node, 'crashes', 'five', '5 5 crash 57P02', 'five are not, where five are');

note 'what succeeds in between begins a new series';
sql($node, q{SELECT reconcile.alter_loop('crashes', '{"max_attempts": null, "backoff_base": "1 h", "backoff_max": "1 h"}')});
will($node, 'crashes', 'series', 'segv');
foreach my $n (1, 2)
{
	provoke($node, 'crashes', 'series');
	wait_entity($node, 'crashes', 'series', "$n $n lives 57P02", "crash $n");
	is(sql($node, q{SELECT state FROM reconcile.work WHERE entity_id = 'series'}), 'retrying', 'it waits for its backoff');
}
will($node, 'crashes', 'series', 'nothing');
behave($node, 'crashes', 'series', 'fail');
enqueue($node, 'crashes', 'series');
wait_entity($node, 'crashes', 'series', '3 2 lives AP001', 'an error is no success');
behave($node, 'crashes', 'series', 'succeed');
enqueue($node, 'crashes', 'series');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'series' AND attempt = 4)}, 'it succeeds');
entity_is($node, 'crashes', 'series', '', 'and nothing is remembered');
will($node, 'crashes', 'series', 'segv');
provoke($node, 'crashes', 'series');
wait_entity($node, 'crashes', 'series', '1 1 lives 57P02', 'the next crash is the first again');

# ----------------------------------------------------------------------
note 'triggers that come while it crashes';

sql($node, q{SELECT reconcile.alter_loop('crashes', '{"max_attempts": 2, "backoff_base": "1 ms"}')});
will($node, 'crashes', 'triggered', 'segv');
my $gate = close_gate($node, 'crashes');
enqueue($node, 'crashes', 'triggered');
wait_held($node, 'crashes', 1);
enqueue($node, 'crashes', 'triggered');
sql($node, q{SELECT reconcile.enqueue('crashes', 'triggered', '1 h')});
$gate->open;
wait_entity($node, 'crashes', 'triggered', '2 2 crash 57P02', 'it dies');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE entity_id = 'triggered' AND due_at > now() + interval '30 min'}), 1, 'a trigger of later is kept');

finish();

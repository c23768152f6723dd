# What operators ask of runs: drain_loop() waits for the last run, wherever it
# is; wait_idle() for the work; cancel_run() ends one run, uncounted. While they
# wait they hold no snapshot.

use strict;
use warnings;

use IPC::Run;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 6\n");
prepare($node);

# begin(NODE, NAME, CALL): a call in a session of that application_name; ended()
# waits for it, and returns what it printed.
sub begin
{
	my ($where, $name, $call) = @_;
	my $self = { out => '', err => '' };

	$self->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $where->connstr('postgres') . " application_name=$name", '-c', $call ],
		'<', \undef, '>', \$self->{out}, '2>', \$self->{err});
	return $self;
}

sub ended
{
	my ($self) = @_;

	$self->{run}->finish;
	return $self->{out} . ($self->{err} =~ /ERROR:  (\w{5})/ ? $1 : $self->{err}) =~ s/\n\z//r;
}

sub result { return ended(@_) =~ s/\n\z//r; }

# Until the session waits between two looks: without a snapshot.
sub wait_waiting
{
	my ($where, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return wait_for($where, "EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '$name' AND state = 'active'
		AND wait_event_type IN ('Extension', 'IPC') AND backend_xmin IS NULL AND backend_xid IS NULL)", "$name waits, without a snapshot");
}

sub paused
{
	my ($where, $loop) = @_;
	return sql($where, "SELECT paused FROM reconcile.loops WHERE loop_name = '$loop'");
}

# ----------------------------------------------------------------------
note 'a run in a worker';

make_loop($node, 'drive');
my $gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'a');
wait_held($node, 'drive', 1);
is(sql($node, q{CALL reconcile.drain_loop('drive', '10 ms')}), 'f', 'while it lasts, drain_loop() gives up at its timeout');
is(paused($node, 'drive'), 't', 'and leaves the loop paused');
my $drain = begin($node, 'drain', q{CALL reconcile.drain_loop('drive', '3 min')});
wait_waiting($node, 'drain');
enqueue($node, 'drive', 'b');
$gate->open;
is(result($drain), 't', 'it is drained when the run is over');
is(tries($node, 'drive'), 1, 'and no other one began');
is(runs($node, 'drive', 'a'), 1, 'its last run has committed');
sql($node, q{SELECT reconcile.resume_loop('drive')});
wait_quiet($node, 'drive');
is(runs($node, 'drive', 'b'), 1, 'what came meanwhile runs when it is resumed');

# Many runs, drained again and again: none is in flight when the answer comes.
sql($node, q{SELECT reconcile.alter_loop('drive', '{"concurrency": 3}')});
sql($node, q{CREATE FUNCTION app.in_flight() RETURNS bigint LANGUAGE sql AS
	$$ SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'reconcile drive:%' AND state = 'active' $$});
my @late;
for my $round (1 .. 20)
{
	sql($node, q{SELECT reconcile.enqueue_many('drive', array_agg('e' || i)) FROM generate_series(1, 30) i; SELECT reconcile.resume_loop('drive')});
	my $seen = sql($node, q{CALL reconcile.drain_loop('drive'); SELECT app.in_flight(), nextval('app.drive_tries')});
	my $before = (split /\|/, (split /\n/, $seen)[1])[1];
	my $after = sql($node, q{SELECT nextval('app.drive_tries')});
	push @late, $seen unless $seen =~ /^t\n0\|/ && $after == $before + 1;
}
is(join("\n", @late), '', 'no run is in flight, and none begins, once it is drained');
sql($node, q{SELECT reconcile.resume_loop('drive')});
wait_quiet($node, 'drive');

# ----------------------------------------------------------------------
note 'what ends the waiting';

$gate = close_gate($node, 'drive');
enqueue($node, 'drive', 'a');
wait_held($node, 'drive', 1);
$drain = begin($node, 'drain', q{CALL reconcile.drain_loop('drive', '3 min')});
wait_waiting($node, 'drain');
sql($node, q{SELECT reconcile.resume_loop('drive')});
is(result($drain), 'f', 'somebody resumes the loop');

$drain = begin($node, 'drain', q{CALL reconcile.drain_loop('drive', '3 min')});
wait_waiting($node, 'drain');
sql($node, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'drain'});
is(result($drain), '57014', 'a cancel');
is(paused($node, 'drive'), 't', 'which leaves the loop paused');

$drain = begin($node, 'drain', q{CALL reconcile.drain_loop('drive', '3 min')});
wait_waiting($node, 'drain');
sql($node, q{SELECT pg_terminate_backend(pid) FROM reconcile.running() WHERE loop_name = 'drive'});
expect_log(qr/FATAL:  terminating background worker "reconcile executor" due to administrator command/);
is(result($drain), 't', 'the end of the process that runs');
is(sql($node, q{SELECT state, failures, last_sqlstate FROM reconcile.work WHERE loop_name = 'drive' AND entity_id = 'a'}), 'ready|1|57P01',
	'when its failure is booked');
$gate->open;
sql($node, q{SELECT reconcile.resume_loop('drive')});
wait_quiet($node, 'drive');

make_loop($node, 'dropped');
$gate = close_gate($node, 'dropped');
enqueue($node, 'dropped', 'a');
wait_held($node, 'dropped', 1);
$drain = begin($node, 'drain', q{CALL reconcile.drain_loop('dropped', '3 min')});
wait_waiting($node, 'drain');
sql($node, q{SELECT reconcile.drop_loop('dropped')});
is(result($drain), '42704', 'the loop is dropped');
$gate->open;

# ----------------------------------------------------------------------
note 'wait_idle()';

$gate = close_gate($node, 'drive');
enqueue($node, 'drive', 1 .. 5);
wait_held($node, 'drive', 3);
is(sql($node, q{CALL reconcile.wait_idle('drive', '0 s')}), 'f', 'a loop that runs is not idle');
my $idle = begin($node, 'idle', q{CALL reconcile.wait_idle('drive', '3 min')});
wait_waiting($node, 'idle');
enqueue($node, 'drive', 6 .. 9);
$gate->open;
is(result($idle), 't', 'it is when all is done');
is(sql($node, q{SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'drive' AND entity_id IN ('1', '2', '3', '4', '5', '6', '7', '8', '9')}), 9,
	'what was triggered before and meanwhile');
my @busy;
for my $round (1 .. 20)
{
	my $from = runs($node, 'drive');
	sql($node, q{SELECT reconcile.enqueue_many('drive', array_agg('w' || i)) FROM generate_series(1, 20) i});
	my $answer = sql($node, q{CALL reconcile.wait_idle('drive')});
	my $done = runs($node, 'drive') - $from;
	push @busy, "$answer $done" if $answer ne 't' || $done != 20;
}
is(join("\n", @busy), '', 'none of what was triggered before is left when it is idle');

# While it waits, VACUUM can remove what is deleted: nothing holds it up.
sql($node, q{SELECT reconcile.pause_loop('drive'); CREATE TABLE app.bloat AS SELECT i FROM generate_series(1, 1000) i});
enqueue($node, 'drive', 'due');
$idle = begin($node, 'idle', q{CALL reconcile.wait_idle('drive', '3 min')});
wait_waiting($node, 'idle');
sql($node, 'DELETE FROM app.bloat');
sql($node, 'VACUUM app.bloat');
is(sql($node, q{SELECT pg_relation_size('app.bloat')}), 0, 'a long wait keeps VACUUM from nothing');
is(sql($node, q{CALL reconcile.wait_idle('drive', '10 ms')}), 'f', 'what is due in a paused loop is not idle');
sql($node, q{SELECT reconcile.resume_loop('drive')});
is(result($idle), 't', 'until it is resumed');

# ----------------------------------------------------------------------
note 'cancel_run()';

$gate = close_gate($node, 'drive');
my $tries = tries($node, 'drive');
enqueue($node, 'drive', 'victim', 'bystander');
wait_held($node, 'drive', 2);
is(sql($node, q{SELECT reconcile.cancel_run('drive', 'other')}), 'f', 'there is no run of that entity');
is(sql($node, q{SELECT reconcile.cancel_run('drive', 'victim')}), 't', 'there is one of this');
wait_tries($node, 'drive', $tries + 3);
wait_held($node, 'drive', 2);
is(tries($node, 'drive'), $tries + 3, 'it comes again, and no other one was hit');
is(sql($node, q{SELECT state, failures FROM reconcile.work WHERE loop_name = 'drive' AND entity_id = 'victim'}), 'running|0', 'uncounted');
$gate->open;
wait_quiet($node, 'drive');
is(sql($node, q{SELECT entity_id, attempt FROM app.run WHERE loop_name = 'drive' AND entity_id IN ('victim', 'bystander') ORDER BY 1}),
	"bystander|1\nvictim|1", 'both have run once, at their first attempt');
is(sql($node, q{SELECT reconcile.cancel_run('drive', 'victim')}), 'f', 'it is over');

# ----------------------------------------------------------------------
note 'claims of outside workers';

sql($node, q{SELECT reconcile.create_loop('outside', default_requeue => NULL)});
enqueue($node, 'outside', 'a', 'b');
my $worker = $node->background_psql('postgres');
$worker->query_safe('BEGIN');
is($worker->query_safe(q{SELECT count(*) FROM reconcile.claim_work('outside', 'w', 2, '1 h')}), 2, 'a worker claims');
is(sql($node, q{CALL reconcile.drain_loop('outside', '10 ms')}), 'f', 'what is not committed may become a claim');
$worker->query_safe('COMMIT');
is(sql($node, q{CALL reconcile.drain_loop('outside', '10 ms')}), 'f', 'and is one');
is(sql($node, q{SELECT count(*) FROM reconcile.claim_work('outside', 'w', 2)}), 0, 'a loop that is drained gives no more');
my $epoch = sql($node, q{SELECT claim_epoch FROM reconcile.entity WHERE loop_name = 'outside' AND entity_id = 'a'});
is(sql($node, q{SELECT reconcile.cancel_run('outside', 'a')}), 't', 'cancel_run() takes a claim back');
is(sql($node, q{SELECT reconcile.cancel_run('outside', 'a')}), 'f', 'once');
session_fails($node, 'RC017', "SELECT reconcile.complete_work('outside', 'a', $epoch)", 'its worker is told when it reports');
is(sql($node, q{SELECT state, failures FROM reconcile.work WHERE loop_name = 'outside' AND entity_id = 'a'}), 'ready|0', 'the entity is due, uncounted');
$epoch = sql($node, q{SELECT claim_epoch FROM reconcile.entity WHERE loop_name = 'outside' AND entity_id = 'b'});
$drain = begin($node, 'drain', q{CALL reconcile.drain_loop('outside', '3 min')});
wait_waiting($node, 'drain');
sql($node, "SELECT reconcile.complete_work('outside', 'b', $epoch)");
is(result($drain), 't', 'a drained loop has no claim');
is(sql($node, q{CALL reconcile.wait_idle('outside', '0 s')}), 'f', 'what is due is not idle');
$worker->quit;

# ----------------------------------------------------------------------
note 'runs in sessions, where nothing is preloaded';

my $bare = new_node('bare', preload => 0, conf => "max_prepared_transactions = 2\n");
prepare($bare);
make_loop($bare, 'first');
make_loop($bare, 'second');
enqueue($bare, 'first', 'a');
enqueue($bare, 'second', 'a');
$gate = close_gate($bare, 'second');
my $run = begin($bare, 'run', 'CALL reconcile.run_loop()');
wait_held($bare, 'second', 1);
is(sql($bare, q{CALL reconcile.drain_loop('second', '10 ms')}), 'f', 'a run in a session is waited for');
is(sql($bare, q{CALL reconcile.drain_loop('first', '0 s')}), 't', 'a loop that the session has done with is drained');
is(sql($bare, q{SELECT reconcile.cancel_run('second', 'a')}), 'f', 'cancel_run() is for workers');
session_fails($bare, '55P03', q{SELECT * FROM reconcile.run_entity('second', 'a')}, 'run_entity() does not run what runs');
like(sql($bare, q{SELECT reason, detail FROM reconcile.explain('second', 'a')}), qr/^running\|Session \d+ runs it\.$/, 'explain() names the session');
$drain = begin($bare, 'drain', q{CALL reconcile.drain_loop('second', '3 min')});
wait_waiting($bare, 'drain');
$gate->open;
is(result($drain), 't', 'until it is over');
is(result($run), '', 'the call goes on');
sql($bare, q{SELECT reconcile.resume_all()});

my $by_hand = $bare->background_psql('postgres');
$by_hand->query_safe('BEGIN');
is($by_hand->query_safe(q{SELECT result FROM reconcile.run_entity('first', 'b')}), 'success', 'a run by hand');
session_fails($bare, '55P03', q{SELECT * FROM reconcile.run_entity('first', 'b')}, 'nobody runs it beside, before it is committed');
enqueue($bare, 'first', 'b');
sql($bare, q{CALL reconcile.run_loop('first')});
is(sql($bare, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'first' AND entity_id = 'b'}), 1, 'neither does run_loop()');
is(sql($bare, q{CALL reconcile.drain_loop('first', '10 ms')}), 'f', 'and drain_loop() waits for it');
$by_hand->query_safe('COMMIT');
is(sql($bare, q{CALL reconcile.drain_loop('first', '0 s')}), 't', 'no longer than that');
is(runs($bare, 'first', 'b'), 1, 'what it did is there');
is(sql($bare, q{CALL reconcile.wait_idle('first', '0 s')}), 'f', 'and its trigger too');
$by_hand->quit;

sql($bare, q{BEGIN; SELECT * FROM reconcile.run_entity('first', 'c'); PREPARE TRANSACTION 'by hand'});
is(sql($bare, q{CALL reconcile.drain_loop('first', '10 ms')}), 'f', 'a run by hand that is prepared is not over');
like(sql($bare, q{SELECT reason, detail FROM reconcile.explain('first', 'c')}), qr/^running\|A prepared transaction/, 'as explain() says');
sql($bare, q{COMMIT PREPARED 'by hand'});
is(sql($bare, q{CALL reconcile.drain_loop('first', '0 s')}), 't', 'before that is committed');

finish();

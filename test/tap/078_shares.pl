# P10: loops of one owner share its executors, and no database has them all.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $workers = 4;
my $node = new_node('main', conf => "max_worker_processes = 20\nreconcile.max_workers = $workers\n");
prepare($node);

# ----------------------------------------------------------------------
note 'one entity beside a loop that may have all executors, with much to do and short runs';

# long enough for the dispatcher to give each executor its next one meanwhile
make_loop($node, 'large', options => "concurrency => $workers", body => 'PERFORM pg_sleep(0.003); RETURN NULL;');
make_loop($node, 'small');
sql($node, q{SELECT reconcile.enqueue_many('large', ARRAY(SELECT 'before' || n FROM generate_series(1, 200) n))});
wait_quiet($node, 'large');

my $gate = close_gate($node, 'large');
sql($node, q{SELECT reconcile.enqueue_many('large', ARRAY(SELECT n::text FROM generate_series(1, 20000) n))});
wait_held($node, 'large', $workers);
my $further = runs_before_one($node, $gate, 'large', 'small');
note "$further runs of the other began before it";
cmp_ok($further, '<=', 2 * $workers, 'after no more further runs than there are executors, and the other may have');
sql($node, q{SELECT reconcile.drop_loop('large')});

# ----------------------------------------------------------------------
note 'loops that never come to rest, more than executors';

# Each has four entities that are due again as soon as they have run.
sub make_busy_loop
{
	my ($name, $concurrency) = @_;
	make_loop($node, $name, options => "concurrency => $concurrency",
		body => qq{PERFORM pg_sleep(0.003); PERFORM reconcile.enqueue('$name', entity); RETURN NULL;});
	enqueue($node, $name, map { "e$_" } 1 .. 2 * $workers);
	return;
}

make_busy_loop("busy_$_", $workers) for 1 .. 10;
wait_tries($node, "busy_$_", 1) for 1 .. 10;
sql($node, 'TRUNCATE app.run');
wait_for($node, q{(SELECT count(*) FROM app.run) > 1000}, 'they go on');
my $shares = sql($node, q{SELECT min(n) || ' ' || max(n) FROM (SELECT count(*) AS n FROM app.run GROUP BY loop_name) c HAVING count(*) = 10});
note "least and most runs of a loop: $shares";
my ($least, $most) = split / /, $shares;
cmp_ok($most, '<=', 2 * $least, 'each has about as many runs as another');
sql($node, qq{SELECT reconcile.drop_loop('busy_$_')}) for 3 .. 10;

note 'two loops, each of which could take all executors';
sql($node, 'TRUNCATE app.run');
wait_for($node, q{(SELECT count(*) FROM app.run) > 1000}, 'they go on');
($least, $most) = split / /, sql($node, q{SELECT min(n) || ' ' || max(n) FROM (SELECT count(*) AS n FROM app.run GROUP BY loop_name) c HAVING count(*) = 2});
note "runs: $least and $most";
cmp_ok($most, '<=', 2 * $least, 'they share them');
sql($node, qq{SELECT reconcile.drop_loop('busy_$_')}) for 1 .. 2;

# ----------------------------------------------------------------------
note 'a run that does not end, beside short ones, and another owner';

sql($node, q{CREATE ROLE owner LOGIN; SELECT reconcile.grant_access('owner', 'define')});
make_loop($node, 'others', role => 'owner');
make_loop($node, 'mixed', options => "concurrency => $workers", body => q{
	IF entity = 'held' THEN
		PERFORM app.gate('held');
	ELSE
		PERFORM pg_sleep(0.003), reconcile.enqueue('mixed', entity);
	END IF;
	RETURN NULL;});
$gate = close_gate($node, 'held');
enqueue($node, 'mixed', 'held');
wait_held($node, 'held', 1);
enqueue($node, 'mixed', 1 .. 2 * $workers);
wait_for($node, qq{(SELECT count(*) FROM reconcile.workers WHERE kind = 'executor') = $workers}, 'all executors are taken');
enqueue($node, 'others', 'a');
wait_tries($node, 'others', 1);
pass('the other owner gets one whose run ends');
$gate->open;
sql($node, q{SELECT reconcile.drop_loop('mixed')});

# ----------------------------------------------------------------------
note 'runs that never end, beside another database';

sql($node, 'CREATE DATABASE second');
my $second = [ $node, 'second' ];
sql($second, 'CREATE EXTENSION reconcile');
prepare($second);
make_loop($second, 'other', options => 'concurrency => 2');
make_loop($node, 'long', options => "concurrency => $workers");
enqueue($second, 'other', 'a');
wait_tries($second, 'other', 1);
# an executor that is idle already hears of it
$node->append_conf('postgresql.conf', q{reconcile.worker_idle_timeout = '1s'});
$node->reload;
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'executor' AND database = 'second')}, 'the other database has no executor');
$gate = close_gate($node, 'long');
enqueue($node, 'long', 1 .. 2 * $workers);
wait_held($node, 'long', $workers - 1);
enqueue($second, 'other', 'a');
wait_tries($second, 'other', 2);
pass('its loop runs, though no run here has ended');
wait_held($node, 'long', $workers - 1);
$gate->open;
wait_quiet($node, 'long');

finish();

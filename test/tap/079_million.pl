# P10: a million entities that wait, or are due, of one loop.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $million = 1_000_000;
my $workers = 4;
my $node = new_node('main', conf => "reconcile.max_workers = $workers\nshared_buffers = 128MB\nmax_wal_size = 4GB\n");
prepare($node);

# memory(PID): bytes that the process has to itself, and of shared memory.
sub memory
{
	my ($pid) = @_;
	my $status = slurp_file("/proc/$pid/status");
	my %kb = $status =~ /^(RssAnon|RssShmem):\s+(\d+) kB$/mg;
	return map { $kb{$_} * 1024 } qw(RssAnon RssShmem);
}

# Long runs: an executor that is given the other loop's one is not overtaken by many while it waits for a processor.
make_loop($node, 'large', options => "concurrency => $workers", body => 'PERFORM pg_sleep(0.05); RETURN NULL;');
make_loop($node, 'small');
enqueue($node, $_, 'a') for qw(large small);
wait_quiet($node, $_) for qw(large small);

note 'they are due, and the loop is paused';
sql($node, q{SELECT reconcile.pause_loop('large')});
my $dispatcher = dispatcher_pid($node);
my @before = memory($dispatcher);
sql($node, qq{SELECT reconcile.enqueue_many('large', ARRAY(SELECT 'device-' || to_char(n, 'FM0000000') FROM generate_series(1, $million) n))});
wait_for($node, qq{(SELECT ready FROM reconcile.loops WHERE loop_name = 'large') = $million}, 'the dispatcher knows them all');
my @after = memory($dispatcher);
my @grown = map { ($after[$_] - $before[$_]) / 1e6 } 0, 1;
note sprintf('it has grown by %.0f MB, and by %.0f MB of shared memory that it has touched', @grown);
cmp_ok($grown[0] + $grown[1], '<', 200, 'and has grown by less than 200 MB');

note 'they run, and one of another loop comes';
my $gate = close_gate($node, 'large');
sql($node, q{SELECT reconcile.resume_loop('large')});
wait_held($node, 'large', $workers);
my $further = runs_before_one($node, $gate, 'large', 'small');
note "$further runs of the other began before it";
cmp_ok($further, '<=', 2 * $workers, 'after no more further runs than there are executors, and the other may have');
is(dispatcher_pid($node), $dispatcher, 'the dispatcher is the same process');
sql($node, q{SELECT reconcile.drop_loop('large')});

finish();

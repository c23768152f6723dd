# Marks that wait cost little, however many there are: what comes and goes beside
# them does not move them again and again, by the dispatcher or by run_loop(), and
# the segments are emptied all the same.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $waiting = 60_000;
my $enough = 6 * 1024 * 1024;	# about what the marks that wait are

sub waiting_marks
{
	my ($node) = @_;
	sql($node, qq{
		CREATE FUNCTION app.note(entity text) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
		SELECT reconcile.create_loop('busy', 'app.note', default_requeue => NULL, concurrency => 2);
		SELECT reconcile.enqueue_many('busy', ARRAY(SELECT 'waits for an hour ' || n FROM generate_series(1, $waiting) n), '1 h')});
	return;
}

sub segments_size
{
	my ($node) = @_;
	return sql($node, q{SELECT sum(pg_relation_size('reconcile.mark_' || i)) FROM generate_series(0, 3) i});
}

sub wal
{
	my ($node, $from) = @_;
	return sql($node, 'SELECT pg_current_wal_insert_lsn()' . (defined $from ? " - '$from'" : ''));
}

sub all_wait
{
	my ($node) = @_;
	is(sql($node, q{SELECT count(*), count(DISTINCT number) FROM reconcile.mark WHERE due_at > now() + interval '30 min'}), "$waiting|$waiting", 'all that waits is there, once');
	return;
}

# ----------------------------------------------------------------------
note 'with a dispatcher';

my $node = new_node('main', conf => "max_worker_processes = 16\nautovacuum = off\ncheckpoint_timeout = '1 h'\n");
prepare($node);
waiting_marks($node);

# 2,500 entities come and go, $rounds times: each time the dispatcher has seen
# enough for a look at the sizes.
sub traffic
{
	my ($rounds) = @_;
	for (1 .. $rounds)
	{
		sql($node, q{SELECT reconcile.enqueue_many('busy', ARRAY(SELECT 'comes and goes ' || n FROM generate_series(1, 2500) n))});
		wait_quiet($node, 'busy');
	}
	return;
}

traffic(2);
my $from = wal($node);
traffic(4);
my $little = wal($node, $from);
$from = wal($node);
traffic(16);
my $wal = wal($node, $from);
note sprintf '%.1f MB of WAL for 10,000 runs, %.1f MB for 40,000 more', $little / 1e6, $wal / 1e6;
cmp_ok($wal, '<', 40_000 * 500, 'what comes and goes beside them does not move them each time');
all_wait($node);

my $size;
my $left = 0;
my $current = q{SELECT string_agg(sign(pg_relation_size('reconcile.mark_' || i))::text, '' ORDER BY i) FROM generate_series(0, 3) i};
my $before = sql($node, $current);
my $largest = 0;
for (1 .. 60)
{
	traffic(1);
	$size = segments_size($node);
	$largest = $size if $size > $largest;
	$left++, last if sql($node, $current) ne $before;
}
ok($left, 'when as much has come and gone as waits, the segment is left');
cmp_ok($largest, '<', 5 * $enough, 'before it has grown to a multiple');
all_wait($node);

# ----------------------------------------------------------------------
note 'with run_loop()';

my $plain = new_node('plain', preload => 0, conf => "autovacuum = off\ncheckpoint_timeout = '1 h'\n");
prepare($plain);
waiting_marks($plain);
sql($plain, q{SELECT reconcile.enqueue('busy', 'a'); CALL reconcile.run_loop('busy')}) for 1 .. 2;
$from = wal($plain);
sql($plain, q{SELECT reconcile.enqueue('busy', 'a'); CALL reconcile.run_loop('busy')}) for 1 .. 3;
$wal = wal($plain, $from);
note sprintf '%.1f MB of WAL for three runs', $wal / 1e6;
cmp_ok($wal, '<', 1_000_000, 'a call does not move what waits');
all_wait($plain);
$largest = 0;
for (1 .. 12)
{
	sql($plain, q{SELECT reconcile.enqueue_many('busy', ARRAY(SELECT 'comes and goes ' || n FROM generate_series(1, 20000) n)); CALL reconcile.run_loop('busy')});
	$size = segments_size($plain);
	$largest = $size if $size > $largest;
}
note sprintf 'largest size %.1f MB', $largest / 1e6;
cmp_ok($largest, '<', 5 * $enough, 'and when the dead outweigh it they are removed');
all_wait($plain);

finish();

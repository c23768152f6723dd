# The mark segments rotate: however much goes through them their size stays
# bounded, no mark that waits is lost or doubled, and nobody is blocked; also
# beside an old snapshot, and beside a session that has read the marks.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('rotation', conf => "max_worker_processes = 16\n");

$node->safe_psql('postgres', <<~'EOS');
	CREATE TABLE seen (id text, at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    IF id LIKE 'soon%' OR id LIKE 'last%' THEN INSERT INTO seen VALUES (id); END IF;
	END $$;
	SELECT reconcile.create_loop('cheap', 'see', default_requeue => NULL, concurrency => 2);
	SELECT reconcile.create_loop('asleep', 'see', default_requeue => NULL);
	SELECT reconcile.pause_loop('asleep');

	-- 10,000 marks of 500 entities, as 20 transactions
	CREATE PROCEDURE traffic(rounds int) LANGUAGE plpgsql AS $$
	BEGIN
	    FOR i IN 1 .. 20 * rounds LOOP
	        PERFORM reconcile.enqueue_many('cheap', ARRAY(SELECT 'noise' || n FROM generate_series(1, 500) n));
	        COMMIT;
	    END LOOP;
	END $$;
	CREATE FUNCTION segments_size() RETURNS bigint LANGUAGE sql AS $$
	    SELECT sum(pg_relation_size('reconcile.mark_' || i)) FROM generate_series(0, 3) i
	$$;
	CREATE VIEW waiting AS
	    SELECT number, due_at, made_at, kind, loop_name, entity_id FROM reconcile.mark WHERE entity_id NOT LIKE 'noise%' AND entity_id NOT LIKE 'soon%';
	EOS

# What waits: delayed marks, of which some come due while all the rest goes on,
# and the marks of a loop that is paused.
$node->safe_psql('postgres', <<~'EOS');
	SELECT reconcile.enqueue_many('cheap', ARRAY(SELECT 'later' || n FROM generate_series(1, 1000) n), '1 h');
	SELECT reconcile.enqueue_many('asleep', ARRAY(SELECT 'asleep' || n FROM generate_series(1, 1000) n));
	SELECT reconcile.enqueue_many('asleep', ARRAY(SELECT 'delayed' || n FROM generate_series(1, 1000) n), '1 h');
	SELECT reconcile.enqueue_many('cheap', ARRAY(SELECT 'soon' || n FROM generate_series(1, 20) n), '12 s');
	CREATE TABLE before AS TABLE waiting;
	EOS
my $soon_due = time() + 12;
my $small = $node->safe_psql('postgres', 'SELECT segments_size()');

sub idle
{
	my ($name) = @_;

	ok( $node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM reconcile.mark WHERE entity_id LIKE 'noise%')}), $name);
	return;
}

sub same_marks_wait
{
	my ($name) = @_;

	is( $node->safe_psql('postgres', '(TABLE waiting EXCEPT ALL TABLE before) UNION ALL (TABLE before EXCEPT ALL TABLE waiting) LIMIT 5'),
		'', $name);
	return;
}

# traffic(ROUNDS): the largest size seen meanwhile. A producer that
# would be blocked gives up.
sub traffic
{
	my ($rounds) = @_;
	my $largest = 0;

	for (1 .. $rounds)
	{
		my ($status, $out, $err) = $node->psql('postgres', "SET lock_timeout = '1 ms'; CALL traffic(1); RESET lock_timeout; SELECT segments_size()");
		return -1 if $status != 0;
		$largest = $out if $out > $largest;
	}
	return $largest;
}

# ---------------------------------------------------------------------------
# Traffic of many times the size of a segment

my $one_round = traffic(1) - $small;
cmp_ok($one_round, '>', 500_000, 'marks take room');
my $largest = traffic(30);
note sprintf 'largest size %.1f MB, a round takes %.1f MB', $largest / 1e6, $one_round / 1e6;
cmp_ok($largest, '>', 0, 'no producer was blocked');
cmp_ok($largest, '<', 15 * $one_round, 'the size stays far below that of all that went through');
idle('all of it runs');
same_marks_wait('the marks that wait are all there, once, as they were made');

is( $node->safe_psql('postgres', 'SELECT loop_name, waiting FROM reconcile.loops ORDER BY 1') =~ /asleep\|1000/ ? 1 : 0,
	1, 'and are counted as waiting');

# ---------------------------------------------------------------------------
# Beside an old snapshot

my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$largest = traffic(20);
note sprintf 'largest size %.1f MB', $largest / 1e6;
cmp_ok($largest, '>', 0, 'no producer was blocked beside an old snapshot');
cmp_ok($largest, '<', 15 * $one_round, 'nor does it let the segments grow');
idle('all of it runs');
same_marks_wait('the same marks wait');
$old->query_safe('COMMIT');

# ---------------------------------------------------------------------------
# Beside a session that has read the marks, and keeps its locks on them

$old->query_safe('BEGIN; SELECT count(*) FROM reconcile.mark');
is($old->query_safe(q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation::regclass::text ~ 'reconcile.mark_\d'}), '4',
	'a session keeps locks on all segments');
cmp_ok(traffic(12), '>', 0, 'no producer is blocked by it');
idle('all of it runs');
is($node->safe_psql('postgres', 'SELECT pid FROM pg_locks WHERE NOT granted'), '', 'nobody waits for a lock');
same_marks_wait('the same marks wait');
$old->query_safe('COMMIT');
$old->quit;

# What it kept from being emptied is emptied as the traffic goes on.
my $give_up = time() + 30;
my $size;
do
{
	traffic(1);
	$size = $node->safe_psql('postgres', 'SELECT segments_size()');
} while ($size > 8 * $one_round && time() < $give_up);
cmp_ok($size, '<=', 8 * $one_round, 'what it kept from being emptied is emptied afterwards');
idle('all of it runs');
same_marks_wait('the same marks wait');

# ---------------------------------------------------------------------------
# What waited comes when it is time

ok($node->poll_query_until('postgres', q{SELECT count(DISTINCT id) = 20 FROM seen WHERE id LIKE 'soon%'}),
	'the marks that came due ran');
is($node->safe_psql('postgres', q{SELECT count(*) FROM seen WHERE id LIKE 'soon%'}), '20', 'once each');
is( $node->safe_psql('postgres', qq{SELECT count(*) FROM seen WHERE id LIKE 'soon%' AND at < to_timestamp($soon_due) - interval '1 s'}),
	'0', 'and not before their time');

$node->safe_psql('postgres', <<~'EOS');
	SELECT reconcile.resume_loop('asleep');
	SELECT reconcile.enqueue('cheap', 'last');
	EOS
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2000 FROM reconcile.mark}), 'resumed, the paused loop runs what was due, and only that');
is($node->safe_psql('postgres', 'SELECT * FROM reconcile.entity'), '', 'no run failed');

finish();

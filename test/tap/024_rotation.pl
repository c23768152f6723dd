# The mark segments rotate: however much goes through them their size stays
# bounded, no mark that waits is lost or doubled, and nobody is blocked; also
# beside an old snapshot, and beside a session that has read the marks.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('rotation', conf => "max_worker_processes = 16\nlog_lock_waits = on\ndeadlock_timeout = '10 ms'\n");

$node->safe_psql('postgres', <<~'EOS');
	CREATE TABLE seen (id text, at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    IF id LIKE 'soon%' OR id LIKE 'unread%' OR id LIKE 'last%' THEN INSERT INTO seen VALUES (id); END IF;
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
	    SELECT number, due_at, made_at, kind, loop_name, entity_id FROM reconcile.mark WHERE entity_id !~ '^(noise|soon|unread)';
	EOS

# ---------------------------------------------------------------------------
# Marks that are moved before the dispatcher has read of them. It is stopped
# while a segment that is not the current one is filled, and reads its ring in
# parts: it moves the first blocks before it comes to the last message, which is
# of these.

$node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running')}) or die;
my $dispatcher = $node->safe_psql('postgres', q{SELECT pid FROM reconcile.workers WHERE kind = 'dispatcher'});
my $lock = $node->background_psql('postgres');
kill 'STOP', $dispatcher;
$lock->query_safe('BEGIN; LOCK TABLE reconcile.mark_0 IN ACCESS EXCLUSIVE MODE');
my $unread_due = time() + 8;
my $unread = $node->background_psql('postgres');
$unread->query_safe(q{BEGIN; SELECT reconcile.enqueue_many('cheap', ARRAY(SELECT 'unread' || n FROM generate_series(1, 2000) n), '8 s')});
$node->safe_psql('postgres', <<~'EOS');
	SELECT reconcile.enqueue_many('cheap', ARRAY(SELECT 'noise' || n FROM generate_series(1, 5000) n));
	DO $$ BEGIN
	    FOR i IN 1 .. 2000 LOOP
	        PERFORM reconcile.enqueue('cheap', 'noise');
	        COMMIT;
	    END LOOP;
	END $$;
	EOS
$unread->query_safe('COMMIT');
$unread->quit;
$lock->query_safe('COMMIT');
$lock->quit;
kill 'CONT', $dispatcher;
cmp_ok(time(), '<', $unread_due - 5, 'marks are written, due in more than some seconds');
ok($node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM reconcile.mark_1)}), 'they are moved');
is($node->safe_psql('postgres', q{SELECT count(*) FROM reconcile.mark WHERE entity_id LIKE 'unread%'}), '2000', 'none of them is lost');

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
		my ($status, $out, $err) = $node->psql('postgres', "SET lock_timeout = '100 ms'; CALL traffic(1); RESET lock_timeout; SELECT segments_size()");
		return -1 if $status != 0;
		$largest = $out if $out > $largest;
	}
	return $largest;
}

# ---------------------------------------------------------------------------
# Traffic of many times the size of a segment

my $one_round = 700_000;		# 10,000 marks of 70 bytes and more
my $largest = traffic(40);
note sprintf 'largest size %.1f MB', $largest / 1e6;
cmp_ok($largest, '>', 0, 'no producer was blocked');
cmp_ok($largest, '<', 25 * $one_round, 'the size stays far below that of all that went through');
idle('all of it runs');
same_marks_wait('the marks that wait are all there, once, as they were made');

is( $node->safe_psql('postgres', 'SELECT loop_name, waiting FROM reconcile.loops ORDER BY 1') =~ /asleep\|1000/ ? 1 : 0,
	1, 'and are counted as waiting');

# ---------------------------------------------------------------------------
# Beside an old snapshot

my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$largest = traffic(40);
note sprintf 'largest size %.1f MB', $largest / 1e6;
cmp_ok($largest, '>', 0, 'no producer was blocked beside an old snapshot');
cmp_ok($largest, '<', 25 * $one_round, 'nor does it let the segments grow');
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

ok($node->poll_query_until('postgres', q{SELECT count(DISTINCT id) = 2000 FROM seen WHERE id LIKE 'unread%'}),
	'the marks that were moved unread ran');
is($node->safe_psql('postgres', q{SELECT count(*) FROM seen WHERE id LIKE 'unread%'}), '2000', 'once each');
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
unlike(slurp_file($node->logfile), qr/still waiting for AccessExclusiveLock/, 'nobody ever queued for an exclusive lock, with others behind him');

finish();

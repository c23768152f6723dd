# P4: producers never wait: neither for another transaction that has enqueued
# the same entity and is not over, nor for the rotation of the segment that
# they write to.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('producers', conf => "max_worker_processes = 16\n");

$node->safe_psql('postgres', <<~'EOS');
	CREATE TABLE device (id text PRIMARY KEY, site text, version int NOT NULL DEFAULT 0);
	INSERT INTO device SELECT 'd' || i, 'x' FROM generate_series(1, 20) i;
	CREATE TABLE seen (id text, at timestamptz DEFAULT clock_timestamp());
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES (id)';
	SELECT reconcile.create_loop('see', 'see', default_requeue => NULL);
	SELECT reconcile.watch('see', 'device', 'site');
	SELECT reconcile.enqueue('see', 'first');
	EOS
$node->poll_query_until('postgres', 'SELECT EXISTS (SELECT FROM seen)') or die;

# A producer who waits at all fails: lock_timeout bounds each wait for a lock,
# statement_timeout all of it.
sub produces
{
	my ($sql, $name) = @_;
	my ($status, $out, $err) = $node->psql('postgres',
		"SET lock_timeout = '1 ms'; SET statement_timeout = '2 s'; $sql",
		extra_params => ['--set=ON_ERROR_STOP=1']);

	is("$status$err", '0', $name);
	return;
}

sub nobody_waits
{
	my ($name) = @_;

	is($node->safe_psql('postgres', 'SELECT pid, locktype, mode FROM pg_locks WHERE NOT granted'), '', $name);
	return;
}

# All ways to mark the entity 'x'.
my @ways = (
	[ 'enqueue', q{SELECT reconcile.enqueue('see', 'x')} ],
	[ 'enqueue with a delay', q{SELECT reconcile.enqueue('see', 'x', '1 h')} ],
	[ 'enqueue_many', q{SELECT reconcile.enqueue_many('see', '{x,x,y}')} ],
	[ 'a watched UPDATE', q{UPDATE device SET version = version + 1 WHERE id = 'd2'} ],
	[ 'a watched INSERT', q{INSERT INTO device VALUES ('new' || gen_random_uuid(), 'x')} ],
	[ 'a watched DELETE', q{DELETE FROM device WHERE id IN (SELECT id FROM device WHERE id > 'd3' LIMIT 1 FOR UPDATE SKIP LOCKED)} ]);

# ---------------------------------------------------------------------------
# Beside an open enqueue of the same entity

my $open = $node->background_psql('postgres');
$open->query_safe('BEGIN');
$open->query_safe(q{SELECT reconcile.enqueue('see', 'x')});
$open->query_safe(q{SELECT reconcile.enqueue_many('see', '{x,y}')});
$open->query_safe(q{UPDATE device SET version = version + 1 WHERE id = 'd1'});

produces($_->[1], "$_->[0] waits for nothing beside an open enqueue of the entity") for @ways;
ok($node->poll_query_until('postgres', q{SELECT EXISTS (SELECT FROM seen WHERE id = 'x')}),
	'the entity runs while that transaction is open');
nobody_waits('nobody waits for a lock');

# Two transactions that enqueue the same two entities in opposite order would
# deadlock if they waited for one another.
my $other = $node->background_psql('postgres');
$other->query_safe("SET lock_timeout = '1 ms'");
$other->query_safe('BEGIN');
$other->query_safe(q{SELECT reconcile.enqueue('see', 'a')});
$open->query_safe(q{SELECT reconcile.enqueue('see', 'b')});
$other->query_safe(q{SELECT reconcile.enqueue('see', 'b')});
$open->query_safe(q{SELECT reconcile.enqueue('see', 'a')});
nobody_waits('nor when they enqueue two entities in opposite order');
$other->query_safe('COMMIT');
ok($node->poll_query_until('postgres', q{SELECT count(DISTINCT id) = 2 FROM seen WHERE id IN ('a', 'b')}),
	'what one of them committed is run');
$open->query_safe('DELETE FROM seen');
$open->query_safe('COMMIT');
ok($node->poll_query_until('postgres', q{SELECT count(DISTINCT id) = 4 FROM seen WHERE id IN ('a', 'b', 'x', 'y')}),
	'and what the other committed afterwards is run again');

# ---------------------------------------------------------------------------
# During a rotation: whoever empties a segment holds it exclusively

for my $segment (0 .. 3)
{
	$open->query_safe("BEGIN; LOCK TABLE reconcile.mark_$segment IN ACCESS EXCLUSIVE MODE");
	produces($_->[1], "$_->[0] waits for nothing while segment $segment is being emptied") for @ways;
	# The engine may read that segment later than we are done; so it may wait.
	is( $node->safe_psql('postgres', <<~'EOS'), '', 'no session waits for a lock');
		SELECT a.pid, l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		 WHERE NOT l.granted AND a.backend_type = 'client backend'
		EOS
	$open->query_safe('COMMIT');
}

# ---------------------------------------------------------------------------
# Nor is an open producer in the way of a rotation that is under way: it would
# keep all others waiting behind it.

$open->query_safe('BEGIN');
$open->query_safe(q{SELECT reconcile.enqueue('see', 'x')});
$node->safe_psql('postgres', <<~'EOS');
	SELECT reconcile.enqueue_many('see', ARRAY(SELECT 'many' || n FROM generate_series(1, 10000) n)) FROM generate_series(1, 8)
	EOS
produces($_->[1], "$_->[0] waits for nothing while a segment cannot be emptied") for @ways;
ok($node->poll_query_until('postgres', q{SELECT count(DISTINCT id) = 10000 FROM seen WHERE id LIKE 'many%'}),
	'all that was enqueued is run');
nobody_waits('nobody waits for a lock');
$open->query_safe('ROLLBACK');

$open->quit;
$other->quit;
finish();

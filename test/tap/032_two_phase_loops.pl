# Loops that come up in a way that tells nobody at once: made in a prepared
# transaction, or written past the functions. They run (P1), rotation leaves their
# marks alone, and a prepared transaction that stays open costs little (P7).

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 5\nmax_worker_processes = 16\nautovacuum = off\n");
sql($node, 'CREATE DATABASE fresh');
my $fresh = [ $node, 'fresh' ];
sql($fresh, 'CREATE EXTENSION reconcile');
prepare($_) for $node, $fresh;
sql($_, q{
	CREATE FUNCTION app.note(entity text) RETURNS void LANGUAGE sql AS $$
		INSERT INTO app.run (loop_name, entity_id) SELECT r.loop_name, r.entity_id FROM reconcile.current_run() r
	$$;
}) for $node, $fresh;
make_loop($node, 'drive');
enqueue($node, 'drive', 'first');
wait_for($node, q{EXISTS (SELECT FROM app.run)}, 'a database has a loop, and its dispatcher');

# marks of the loop that wait, and have a row each however often they are moved
sub later
{
	my ($loop) = @_;
	return sql($node, "SELECT count(DISTINCT entity_id) FROM reconcile.mark WHERE loop_name = '$loop' AND entity_id LIKE 'later%'");
}

sub segment_blocks
{
	return sql($node, q{SELECT string_agg(sign(pg_relation_size('reconcile.mark_' || i))::text, '' ORDER BY i) FROM generate_series(0, 3) i});
}

# Fills the segment in use, most of it with rows that nobody sees, and waits
# until it is left and emptied.
sub rotate
{
	my $filled = segment_blocks();
	sql($node, q{
		BEGIN; SELECT reconcile.enqueue_many('drive', ARRAY(SELECT n || repeat('x', 480) FROM generate_series(1, 9000) n)); ROLLBACK;
		SELECT reconcile.enqueue_many('drive', ARRAY(SELECT 'slow' || n FROM generate_series(1, 2500) n), '1 hour');
	});
	wait_for($node, qq{(SELECT string_agg(sign(pg_relation_size('reconcile.mark_' || i))::text, '' ORDER BY i) FROM generate_series(0, 3) i) NOT IN ('0000', '$filled')
		AND (SELECT sum(sign(pg_relation_size('reconcile.mark_' || i))) FROM generate_series(0, 3) i) = 1}, 'the segment is left, and emptied');
	return;
}

# ----------------------------------------------------------------------
foreach my $where ($fresh, [ $node, 'postgres' ])
{
	note $where->[1] eq 'fresh' ? q{the database's first loop is made in a prepared transaction} : 'a loop more is';
	sql($where, q{
		BEGIN;
		SELECT reconcile.create_loop('two_phase', 'app.note', default_requeue => NULL);
		SELECT reconcile.enqueue('two_phase', 'within');
		SELECT reconcile.enqueue_many('two_phase', ARRAY(SELECT 'later' || n FROM generate_series(1, 100) n), '1 hour');
		PREPARE TRANSACTION 'two_phase'});
	is(sql($where, q{SELECT count(*) FROM reconcile.loop WHERE loop_name = 'two_phase'}), 0, 'prepared, it is not there');
	sql($where, q{COMMIT PREPARED 'two_phase'});
	wait_for($where, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'two_phase' AND entity_id = 'within')}, 'committed, what was enqueued with it runs');
	enqueue($where, 'two_phase', 'after');
	wait_for($where, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'two_phase' AND entity_id = 'after')}, 'and what is enqueued later');
}

# ----------------------------------------------------------------------
note 'rotation';

rotate();
is(later('two_phase'), 100, 'the marks that wait are still there');

note 'rotation, where nobody told the dispatcher of the loop';
sql($node, q{
	SET session_replication_role = replica;
	INSERT INTO reconcile.loop SELECT (jsonb_populate_record(l, '{"loop_name": "untold"}')).* FROM reconcile.loop l WHERE loop_name = 'two_phase'});
sql($node, q{
	SELECT reconcile.enqueue('untold', 'now');
	SELECT reconcile.enqueue_many('untold', ARRAY(SELECT 'later' || n FROM generate_series(1, 100) n), '1 hour')});
rotate();
is(later('untold'), 100, 'marks of a loop that it has not heard of are not deleted');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'untold' AND entity_id = 'now')}, 'and it hears of the loop, which runs');

# ----------------------------------------------------------------------
note 'an open prepared transaction beside many marks';

# Blocks of the segments that were looked at. Nobody else may read marks while they are counted.
sub blocks_read
{
	return sql($node, q{SELECT sum(heap_blks_hit + heap_blks_read) FROM pg_statio_all_tables WHERE schemaname = 'reconcile' AND relname ~ '^mark_\d$'});
}

sql($node, q{SELECT reconcile.enqueue_many('drive', ARRAY(SELECT 'far' || n FROM generate_series(1, 20000) n), '1 hour')});
sql($node, q{BEGIN; SELECT reconcile.enqueue('drive', 'open'); PREPARE TRANSACTION 'open'});
enqueue($node, 'drive', 'turn 0');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'turn 0')}, 'the dispatcher goes on');
my $blocks = blocks_read();
my $size = sql($node, q{SELECT sum(pg_relation_size('reconcile.mark_' || i)) / 8192 FROM generate_series(0, 3) i});
sql($node, q{
	DO $$ BEGIN
		FOR i IN 1 .. 200 LOOP
			PERFORM reconcile.enqueue('drive', 'turn ' || i);
			COMMIT;
			WHILE NOT EXISTS (SELECT FROM app.run WHERE entity_id = 'turn ' || i) LOOP
				PERFORM pg_sleep(0.001);
			END LOOP;
		END LOOP;
	END $$});
$blocks = blocks_read() - $blocks;
note sprintf '%d blocks, %.1f of all', $blocks, $blocks / $size;
# A run looks at some of its own: its mark is written, read, and deleted.
cmp_ok($blocks, '<', 50 * $size, 'not each of 200 turns reads all marks');
sql($node, q{COMMIT PREPARED 'open'});
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'open')}, 'what it enqueued runs');

finish();

# Outside workers (api 4), where a message to the dispatcher is lost or a mark is
# not where it was: whatever an entity waits for, it comes back; and nothing
# comes back that nobody asked for.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 4\nwal_writer_delay = 10s\n");
prepare($node);

sub make_outside
{
	my ($name, $options) = @_;
	sql($node, "SELECT reconcile.create_loop('$name', default_requeue => NULL" . ($options ? ", $options" : '') . ')');
	return;
}

# claim(LOOP, N, TTL): "entity attempt epoch" lines.
sub claim
{
	my ($loop, $n, $ttl) = @_;
	$n //= 1;
	$ttl //= '1 hour';
	return sql($node, "SELECT entity_id, attempt, claim_epoch FROM reconcile.claim_work('$loop', 'w', $n, '$ttl') ORDER BY 1");
}

sub epoch_of { return (split /\|/, $_[0])[2]; }

# Moves the deadlines of a loop, as rotation does, and makes them due at a time.
sub move_deadlines
{
	my ($loop, $due_at) = @_;
	sql($node, "CREATE TEMP TABLE moved AS TABLE reconcile.mark WITH NO DATA;
		DO \$\$ BEGIN FOR i IN 0 .. 3 LOOP
			EXECUTE format('WITH gone AS (DELETE FROM reconcile.mark_%s WHERE loop_name = ''$loop'' AND kind = ''c'' RETURNING *)
				INSERT INTO moved SELECT * FROM gone', i);
		END LOOP; END \$\$;
		INSERT INTO reconcile.mark_3 SELECT number, $due_at, made_at, kind, loop_name, entity_id FROM moved");
	return;
}

# ----------------------------------------------------------------------
note 'a report drops no mark but those of its own transaction';

make_outside('reuse');
enqueue($node, 'reuse', 'a');
my $held = claim('reuse');
sub vacuum { sql($node, "VACUUM reconcile.mark_$_") for 0 .. 3; return; }
vacuum();
my $session = $node->background_psql('postgres');
$session->query_safe(q{BEGIN; SAVEPOINT s; SELECT reconcile.enqueue('reuse', 'a')});
my $place = $session->query_safe(q{SELECT ctid FROM reconcile.mark_0 WHERE loop_name = 'reuse' AND kind = 't'});
$session->query_safe(q{ROLLBACK TO s});
vacuum();
enqueue($node, 'reuse', 'a');
is(sql($node, q{SELECT ctid FROM reconcile.mark_0 WHERE loop_name = 'reuse' AND kind = 't'}), $place, 'the place of a mark that was rolled back is used again');
$session->query_safe(q{SELECT reconcile.complete_work('reuse', 'a', } . epoch_of($held) . '); COMMIT');
like(claim('reuse'), qr/^a\|1\|/, 'the trigger of another that is there now asks for one more attempt');
$session->quit;
sql($node, q{SELECT reconcile.drop_loop('reuse')});

# ----------------------------------------------------------------------
note 'a deadline of a claim that was reported asks for nothing';

make_outside('moved');
enqueue($node, 'moved', 'a');
$held = claim('moved');
move_deadlines('moved', 'due_at');
sql($node, q{SELECT reconcile.complete_work('moved', 'a', } . epoch_of($held) . ')');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'moved'}), '1', 'that of a claim whose mark was moved stays for now');
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'moved'}), '0', 'it is no work');
move_deadlines('moved', 'clock_timestamp()');
is(claim('moved'), '', 'when it is due nobody gets the entity');
is(sql($node, q{SELECT count(*) FROM reconcile.mark WHERE loop_name = 'moved'}), '0', 'and it is dropped');

make_loop($node, 'ran');
sql($node, q{INSERT INTO reconcile.mark_1 VALUES (4711, clock_timestamp(), clock_timestamp(), 'c', 'ran', 'x')});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.mark WHERE loop_name = 'ran')}, 'an executor drops it, too');
is(tries($node, 'ran'), 0, 'without a run');

note 'a trigger that waits for a claim is found after it, though the deadline is not where it was';
make_outside('waits');
enqueue($node, 'waits', 'a');
$held = claim('waits');
move_deadlines('waits', 'due_at');
enqueue($node, 'waits', 'a');
is(claim('waits'), '', 'it waits');
sql($node, q{SELECT reconcile.complete_work('waits', 'a', } . epoch_of($held) . ')');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM reconcile.claim_work('waits', 'w', 1, '1 hour')}), 'and is found');

# ----------------------------------------------------------------------
note 'forget() takes a claim back: what comes after it is due at once';

make_outside('forgotten');
enqueue($node, 'forgotten', 'a');
claim('forgotten');
enqueue($node, 'forgotten', 'a');
is(claim('forgotten'), '', 'a trigger waits for the claim');
sql($node, q{SELECT reconcile.forget('forgotten', 'a'); SELECT reconcile.enqueue('forgotten', 'a')});
like(claim('forgotten'), qr/^a\|1\|/, 'that of afterwards does not');

# ----------------------------------------------------------------------
note 'triggers that waited for the claims of a large batch are due when it is reported';

make_outside('many');
my $all = q{SELECT reconcile.enqueue_many('many', ARRAY(SELECT 'e' || n FROM generate_series(1, 2000) n))};
sql($node, $all);
sql($node, q{CREATE TABLE app.many AS SELECT * FROM reconcile.claim_work('many', 'w', 1000, '1 hour');
	INSERT INTO app.many SELECT * FROM reconcile.claim_work('many', 'w', 1000, '1 hour')});
sql($node, $all);
is(claim('many', 1000), '', 'all wait');
sql($node, q{SELECT count(*) FROM reconcile.complete_works('many',
	(SELECT array_agg(entity_id ORDER BY claim_epoch) FROM app.many), (SELECT array_agg(claim_epoch ORDER BY claim_epoch) FROM app.many))});
is(join(' ', map { sql($node, q{SELECT count(*) FROM reconcile.claim_work('many', 'w', 1000, '1 hour')}) } 1 .. 2), '1000 1000', 'all are due');
sql($node, q{SELECT reconcile.drop_loop('many')});

# ----------------------------------------------------------------------
note 'however often a resync names an entity meanwhile, a trigger is a trigger';

make_outside('named');
enqueue($node, 'named', 'a');
$held = claim('named');
enqueue($node, 'named', 'a');
sql($node, q{INSERT INTO reconcile.mark_1 SELECT n, clock_timestamp(), clock_timestamp(), 'r', 'named', 'a' FROM generate_series(1, 100) n});
wait_for($node, q{SELECT count(*) < 65 FROM reconcile.mark WHERE loop_name = 'named'}, 'many marks are merged');
sql($node, q{SELECT reconcile.fail_work('named', 'a', } . epoch_of($held) . q{, 'no', permanent => true)});
like(claim('named'), qr/^a\|1\|/, 'it revives an entity that died meanwhile');

# ----------------------------------------------------------------------
note 'a run that a trigger asked for begins anew, whatever claims were lost before';

make_loop($node, 'mixed', options => q{max_attempts => 2, backoff_base => '1 ms', backoff_max => '1 ms', enabled => false});
behave($node, 'mixed', 'a', 'fail');
sql($node, q{SELECT reconcile.alter_loop('mixed', '{"reconciler": null, "enabled": true}')});
enqueue($node, 'mixed', 'a');
like(claim('mixed', 1, '1 ms'), qr/^a\|1\|/, 'a claim is lost');
wait_for($node, q{reconcile.next_due('mixed') = '0'}, 'it runs out');
like(claim('mixed', 1, '1 ms'), qr/^a\|2\|/, 'and the last one');
enqueue($node, 'mixed', 'a');
wait_for($node, q{(SELECT claim_expires_at < clock_timestamp() FROM reconcile.entity WHERE loop_name = 'mixed')}, 'it runs out, too');
sql($node, q{SELECT reconcile.alter_loop('mixed', '{"reconciler": "app.mixed"}')});
wait_for($node, q{SELECT count(*) = 1 FROM reconcile.dead_letters WHERE loop_name = 'mixed'}, 'the entity dies in the end');
is(tries($node, 'mixed'), 2, 'after as many runs as the loop allows');

# ----------------------------------------------------------------------
note 'a claim is durable, whatever synchronous_commit says';

make_outside('durable');
enqueue($node, 'durable', 'a');
is(sql($node, q{
	SET synchronous_commit = off;
	CREATE TEMP TABLE before AS SELECT pg_current_wal_insert_lsn() AS lsn;
	CREATE TEMP TABLE got AS SELECT 1;
	DO $$ BEGIN UPDATE before SET lsn = pg_current_wal_insert_lsn(); END $$;
	SELECT entity_id FROM reconcile.claim_work('durable', 'w', 1, '1 hour');
	SELECT pg_current_wal_flush_lsn() > lsn FROM before}), "a\nt", 'it is on disk when the worker has it');

finish();

# Through a pooler that gives each transaction another server session (public
# reports A16, A17, G59, G60): leases, fences, triggers and run_loop() keep nothing in
# the session. Four server sessions for twenty clients, and no startup parameter
# that the pooler would have to ignore.

use strict;
use warnings;

use LoopTest;
use PoolerTest;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
expect_log(qr/052_pooler.pl FATAL:  terminating connection due to administrator command/);
prepare($node);
make_loop($node, 'drive', options => 'concurrency => 2');
my $user = sql($node, 'SELECT current_user');
my $through = begin_pooler($node, $user, query_wait_timeout => 1);

# ----------------------------------------------------------------------
note 'leases and fences, a session for each statement';

sql($node, 'CREATE TABLE app.session (client int, step text, pid int DEFAULT pg_backend_pid())');
pgbench_pooled('acquire, renew, bind, write, release', 20, 10, q{
SELECT epoch FROM reconcile.acquire_lease('lease_' || :client_id, 'client', '1 h') \gset
INSERT INTO app.session VALUES (:client_id, 'acquired');
SELECT 1 / (epoch = :epoch)::int AS renewed FROM reconcile.renew_lease('lease_' || :client_id, 'client', :epoch);
INSERT INTO app.session VALUES (:client_id, 'renewed');
SELECT 1 / (reconcile.fenced_epoch() IS NULL)::int AS unbound;
BEGIN;
SELECT reconcile.bind_lease('lease_' || :client_id, 'client', :epoch);
SELECT reconcile.fenced_write('entity', '{"by": 1}');
INSERT INTO app.session VALUES (:client_id, 'bound');
COMMIT;
SELECT 1 / (reconcile.fenced_epoch() IS NULL)::int AS unbound_again;
SELECT 1 / reconcile.apply_fenced('lease_' || :client_id, 'entity', :epoch, '{"by": 2}')::int AS applied;
SELECT 1 / reconcile.release_lease('lease_' || :client_id, 'client', :epoch)::int AS released;
SELECT 1 / (NOT reconcile.apply_fenced('lease_' || :client_id, 'entity', :epoch, '{"by": 3}'))::int AS stale;
});
is(sql($node, q{SELECT count(*), count(*) FILTER (WHERE revision = 20 AND last_epoch = 10 AND state = '{"by": 2}') FROM reconcile.resources}), '20|20',
	'each wrote twice in each of ten terms');
cmp_ok(sql($node, q{SELECT count(DISTINCT pid) FROM app.session}), '<=', 4, 'with four server sessions');
cmp_ok(sql($node, q{SELECT count(*) FROM (SELECT FROM app.session GROUP BY client HAVING count(DISTINCT pid) > 1) c}), '>', 10,
	'most clients had several, one after the other');
is(sql($node, q{SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid FROM app.session) AND (locktype IN ('object', 'advisory') OR fastpath)}), 0, 'which keep no lock');

# ----------------------------------------------------------------------
note 'triggers, and run_loop()';

pgbench_pooled('enqueue', 20, 20, q{
\set n random(1, 50)
SELECT reconcile.enqueue('drive', (:n)::text);
SELECT reconcile.enqueue_many('drive', ARRAY['a', 'b'], spread => '10 ms');
});
wait_for($node, q{(SELECT count(DISTINCT entity_id) FROM app.run) > 40 AND NOT EXISTS (SELECT FROM reconcile.work)}, 'all is answered');
sql($node, q{SELECT reconcile.pause_loop('drive')});
make_loop($node, 'by_hand', options => 'enabled => true');
pgbench_pooled('run_loop', 6, 10, q{
SELECT reconcile.enqueue('by_hand', (:client_id)::text);
CALL reconcile.run_loop('by_hand');
});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.work WHERE loop_name = 'by_hand')}, 'run_loop() runs through it, beside the workers');
is(sql($node, q{SELECT count(*) FROM reconcile.entity}), 0, 'no run failed');

# ----------------------------------------------------------------------
note 'claims, of workers that share a name (B25, B28, D48)';

sql($node, q{
	SELECT reconcile.create_loop('claimed', default_requeue => NULL);
	SELECT reconcile.enqueue_many('claimed', ARRAY(SELECT n::text FROM generate_series(1, 400) n));
	CREATE TABLE app.done (entity text, epoch bigint);
	CREATE PROCEDURE app.work() LANGUAGE plpgsql AS $$
	DECLARE
		c record;
	BEGIN
		FOR c IN SELECT entity_id, claim_epoch FROM reconcile.claim_work('claimed', 'same', 5, '1 min') LOOP
			COMMIT;
			INSERT INTO app.done VALUES (c.entity_id, c.claim_epoch);
			PERFORM reconcile.complete_work('claimed', c.entity_id, c.claim_epoch);
		END LOOP;
		COMMIT;
	END $$});
my $claimed = pooled(q{SELECT entity_id, claim_epoch FROM reconcile.claim_work('claimed', 'same', 1, '1 min')});
my ($entity, $epoch) = split /\|/, $claimed;
is(pooled(qq{SELECT extended FROM reconcile.extend_work('claimed', ARRAY['$entity'], ARRAY[$epoch]::bigint[], '1 h')}), 't', 'a claim is extended from another session');
pgbench_pooled('claim and complete', 8, 15, 'CALL app.work();');
is(sql($node, q{SELECT count(*), count(DISTINCT entity) FROM app.done}), '399|399', 'each entity is done once');
is(sql($node, qq{SELECT count(*) FROM app.done WHERE entity = '$entity'}), 0, 'but the one that was claimed before them');
is(pooled(qq{BEGIN; INSERT INTO app.done VALUES ('$entity', $epoch); SELECT reconcile.complete_work('claimed', '$entity', $epoch); COMMIT}), '', 'which is completed from a third session');
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'claimed'}), 0, 'nothing is left');
is(sql($node, q{SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()}), 0, 'and nobody was in a deadlock');

# ----------------------------------------------------------------------
note 'the client goes, its server session stays (A16)';

is(pooled(q{SELECT epoch FROM reconcile.acquire_lease('orphan', 'gone', '500 ms')}), 1, 'a client acquires, and ends');
cmp_ok(sql($node, q{SELECT count(*) FROM pg_stat_activity WHERE pid IN (SELECT pid FROM app.session)}), '>', 0, 'the session that it had does not');
is(pooled(q{SELECT epoch FROM reconcile.acquire_lease('orphan', 'next', '1 min', wait => '20 s')}), 2, 'its lease ends with its ttl, for the next one');

# ----------------------------------------------------------------------
note 'the server is away for a part of the ttl (A17)';

is(pooled(q{SELECT epoch FROM reconcile.acquire_lease('kept', 'patient', '1 h')}), 1, 'a client acquires');
for my $mode (qw(fast immediate))
{
	$node->stop($mode);
	isnt($node->psql('postgres', q{SELECT reconcile.renew_lease('kept', 'patient', 1)}, connstr => $through, stdout => \my $out, stderr => \my $err), 0,
		"the server stops, -m $mode, and the client cannot renew");
	$node->start;
	wait_pooler();
	is(pooled(q{SELECT epoch IS NULL FROM reconcile.try_acquire_lease('kept', 'hasty')}), 't', 'when it is back nobody else gets the lease');
	is(pooled(q{SELECT epoch FROM reconcile.renew_lease('kept', 'patient', 1)}), 1, 'and its holder goes on with it');
}

end_pooler();
finish();

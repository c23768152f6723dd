# Without preload all but the engine works: enqueue, leases, fences, run_loop;
# the views show what the tables know, without an error, and no worker.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('bare', preload => 0);

sub query
{
	my ($sql) = @_;

	return $node->safe_psql('postgres', $sql);
}

is(query('SELECT setting FROM pg_settings WHERE name = $$shared_preload_libraries$$'), '', 'nothing is preloaded');

query(<<~'EOS');
	CREATE TABLE device (id text PRIMARY KEY, version int NOT NULL DEFAULT 0);
	INSERT INTO device SELECT 'd' || i FROM generate_series(1, 5) i;
	CREATE TABLE seen (id text, epoch bigint);
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    INSERT INTO seen VALUES (id, reconcile.fenced_epoch());
	    IF id = 'bad' THEN RAISE 'no'; END IF;
	END $$;
	SELECT reconcile.create_loop('plain', 'see', default_requeue => NULL, backoff_base => '1 h', backoff_max => '2 h');
	SELECT reconcile.create_loop('leased', 'see', default_requeue => NULL, lease_ttl => '5 s');
	SELECT reconcile.watch('plain', 'device', 'id');
	SELECT reconcile.enqueue('plain', 'one');
	SELECT reconcile.enqueue('plain', 'one');
	SELECT reconcile.enqueue('plain', 'bad');
	SELECT reconcile.enqueue('plain', 'later', '1 h');
	SELECT reconcile.enqueue_many('leased', '{l1,l2}');
	UPDATE device SET version = 1;
	EOS
is(query('SELECT count(*) FROM reconcile.mark'), '11', 'enqueue and a watched UPDATE mark');
is(query(q{SELECT state, count(*) FROM reconcile.work GROUP BY 1 ORDER BY 1}), "ready|9\nwaiting|1", 'the view work shows what waits');

query('CALL reconcile.run_loop()');
is(query(q{SELECT id, epoch FROM seen ORDER BY 1}), "d1|\nd2|\nd3|\nd4|\nd5|\nl1|1\nl2|1\none|", 'run_loop runs what is due, the leased loop under an epoch');
is(query(q{SELECT loop_name, entity_id, state, failures, last_error FROM reconcile.work ORDER BY 2}),
	"plain|bad|retrying|1|no\nplain|later|waiting|0|", 'what is left are a retry and a delay');
is(query(q{SELECT epoch, end_reason FROM reconcile.lease_history}), '1|released', 'the lease of the loop was given back');

is(query(q{SELECT epoch FROM reconcile.acquire_lease('mine', 'me', '1 min')}), '1', 'a lease is granted');
my ($status, $out, $err) = $node->psql('postgres', q{SELECT reconcile.acquire_lease('mine', 'you', wait => '300 ms')});
like($err, qr/lease "mine" is held/, 'and refused to another');
query(q{BEGIN; SELECT reconcile.bind_lease('mine', 'me', 1); SELECT reconcile.fenced_write('e', '{"a": 1}'); COMMIT});
is(query(q{SELECT reconcile.apply_fenced('mine', 'e', 1, '{"b": 2}')}), 't', 'a fenced write is accepted');
is(query(q{SELECT state FROM reconcile.resources}), '{"a": 1, "b": 2}', 'and kept');
is(query(q{SELECT reconcile.release_lease('mine', 'me', 1)}), 't', 'the lease is released');

# A run that ends the term of its own loop: no further run of that call has it.
query(<<~'EOS');
	CREATE FUNCTION quit(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    INSERT INTO seen VALUES ('quits ' || id, reconcile.fenced_epoch());
	    PERFORM reconcile.release_lease(l.reconciler_id, l.holder_id, l.epoch) FROM reconcile.leases l WHERE l.reconciler_id = 'quits';
	END $$;
	SELECT reconcile.create_loop('quits', 'quit', default_requeue => NULL, lease_ttl => '1 h');
	SELECT reconcile.enqueue('quits', 'a');
	SELECT reconcile.enqueue('quits', 'b');
	EOS
query(q{CALL reconcile.run_loop('quits')});
is(query(q{SELECT id, epoch FROM seen WHERE id LIKE 'quits%'}), 'quits a|1', 'run_loop runs nothing more when its term is over (P6)');
is(query(q{SELECT entity_id, state, failures FROM reconcile.work WHERE loop_name = 'quits'}), 'b|ready|0', 'and leaves it for the next term');
query(q{CALL reconcile.run_loop('quits')});
is(query(q{SELECT id, epoch FROM seen WHERE id LIKE 'quits%' ORDER BY 1}), "quits a|1\nquits b|2", 'which is of the next epoch');

# A transaction that waits is woken by looking again.
my $holder = $node->background_psql('postgres');
$holder->query_safe(q{SELECT reconcile.acquire_lease('mine', 'me', '500 ms')});
is(query(q{SELECT epoch FROM reconcile.acquire_lease('mine', 'you', wait => '20 s')}), '3', 'who waits for a lease gets it when it lapses');
$holder->quit;

for my $view (split /\n/, query(q{SELECT viewname FROM pg_views WHERE schemaname = 'reconcile' ORDER BY 1}))
{
	($status, $out, $err) = $node->psql('postgres', "SELECT * FROM reconcile.$view");
	is("$status$err", '0', "the view $view gives no error");
}
is(query('SELECT count(*) FROM reconcile.workers'), '0', 'there are no workers');
is(query('SELECT count(*) FROM reconcile.running()'), '0', 'and no runs');

is(query('DROP EXTENSION reconcile; CREATE EXTENSION reconcile; SELECT count(*) FROM reconcile.mark'), '0',
	'the extension can be dropped and created again');

# P11: what a run sets for its session ends with the run, whether it sets it for
# the transaction or not, and whether it succeeds or fails.
query(<<~'EOS');
	CREATE FUNCTION sets(id text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
	    PERFORM set_config('search_path', 'trap, pg_catalog', false), set_config('work_mem', '123kB', true);
	    IF id = 'bad' THEN RAISE 'no'; END IF;
	END $$;
	SELECT reconcile.create_loop('sets', 'sets', default_requeue => NULL);
	SELECT reconcile.enqueue_many('sets', '{good,bad}');
	EOS
my $settings = q{SELECT current_setting('search_path'), current_setting('work_mem')};
my $before = query($settings);
is($node->safe_psql('postgres', "CALL reconcile.run_loop('sets');\n$settings"), $before, 'a run leaves no setting in the session');

finish();

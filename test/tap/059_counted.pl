# What is counted is counted once, for what has committed, and shown to whom it
# concerns: a run that outlives its dispatcher, a loop that never was, the
# observer of one lease among many, a session with settings of its own.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	reconcile.max_workers = 2
	EOC
prepare($node);

# metric(NAME, LABELS): the sum of its values.
sub metric
{
	my ($name, $labels) = @_;
	return sql($node, "SELECT sum(value) FROM reconcile.metrics() WHERE name = '$name' AND labels \@> '$labels'");
}

# ----------------------------------------------------------------------
note 'a run that ends after its dispatcher is counted';

make_loop($node, 'orphan');
my $gate = close_gate($node, 'orphan');
enqueue($node, 'orphan', 'a');
wait_held($node, 'orphan', 1);
my $dispatcher = dispatcher_pid($node);
sql($node, "SELECT pg_terminate_backend($dispatcher)");
wait_for($node, "SELECT pid <> $dispatcher FROM reconcile.workers WHERE kind = 'dispatcher' AND state = 'running'", 'another dispatcher starts');
$gate->open;
wait_quiet($node, 'orphan');
is(tries($node, 'orphan'), 1, 'the run that was in progress was the only one');
wait_for($node, q{SELECT count(*) = 1 FROM reconcile.runs WHERE loop_name = 'orphan' AND result = 'success'}, 'it is among the last runs');
is(metric('reconcile_total', '{"reconciler": "orphan"}'), 1, 'and counted, once');
is(metric('reconcile_in_flight', '{"reconciler": "orphan"}'), 0, 'and not in flight any more');

# ----------------------------------------------------------------------
note 'loops that are rolled back, or dropped, keep no place among the counters';

sql($node, q{
	DO $$
	BEGIN
		FOR n IN 1 .. 1100 LOOP
			BEGIN
				PERFORM reconcile.create_loop('never' || n, 'app.orphan');
				PERFORM reconcile.run_entity('never' || n, 'x');
				INSERT INTO reconcile.entity VALUES ('never' || n, 'x', 1, 'permanent', 'RC004', '', now());
				RAISE EXCEPTION SQLSTATE 'AP001';
			EXCEPTION WHEN SQLSTATE 'AP001' THEN
			END;
		END LOOP;
	END $$});
make_loop($node, 'later');
enqueue($node, 'later', 'a');
wait_quiet($node, 'later');
is(metric('reconcile_total', '{"reconciler": "later"}'), 1, 'a loop that is made later is counted');
is(metric('reconcile_uncounted_total', '{}'), 0, 'and nothing was not');

# ----------------------------------------------------------------------
note 'a failure that is booked while somebody revives the entity is counted';

sql($node, q{
	CREATE FUNCTION app.never(entity text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'never'; END $$;
	SELECT reconcile.create_loop('revived', 'app.never', backoff_base => '1 h', backoff_max => '1 h');
	INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of) VALUES ('revived', 'a', 7, 'permanent')});
my $operator = $node->background_psql('postgres');
$operator->query_safe(q{BEGIN; SELECT reconcile.revive('revived', 'a')});
enqueue($node, 'revived', 'a');
wait_for($node, q{EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'reconcile executor' AND wait_event_type = 'Lock')}, 'it waits for him');
$operator->query_safe('COMMIT');
$operator->quit;
wait_for($node, q{(SELECT failures FROM reconcile.entity WHERE loop_name = 'revived') = 2}, 'it counts, as does that of the run which he asked for');

# ----------------------------------------------------------------------
note 'who may observe one lease sees it among any number of others';

sql($node, "SELECT count(reconcile.acquire_lease('$_' || n, 'me', '1 h')) FROM generate_series(1, 600) n") for qw(a b);
sql($node, q{
	SELECT reconcile.acquire_lease('z', 'me', '1 h');
	CREATE ROLE narrow; SELECT reconcile.grant_access('narrow', 'observe', 'z');
	CREATE ROLE member IN ROLE narrow;
	CREATE ROLE wide; SELECT reconcile.grant_access('wide', 'observe')});
my $leases = q{SELECT string_agg(labels->>'reconciler', ' ') FROM reconcile.metrics() WHERE name = 'reconcile_lease_epoch'};
is(sql($node, "SET ROLE narrow; $leases"), 'z', 'his lease, and no other');
is(sql($node, "SET ROLE member; $leases"), 'z', 'as does who has his role');
is(sql($node, q{SET ROLE wide; SELECT count(*) FROM reconcile.metrics() WHERE name = 'reconcile_lease_epoch'}), 1000, 'who may observe all gets the first of them');

# ----------------------------------------------------------------------
note 'the text is the same in every session';

is(sql($node, q{SET extra_float_digits = -15; SELECT string_agg(l[1], ' ')
	FROM regexp_matches(reconcile.metrics_text(), 'duration_seconds_bucket{reconciler="later",le="([^"]*)"}', 'g') l}),
	'0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 +Inf', 'whatever it says of digits');

finish();

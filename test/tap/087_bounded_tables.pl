# P8: each of our tables and indexes is bounded by what waits, and by what open
# transactions pin, however much goes through it; and what was pinned is used
# again, or given back, when they end.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	autovacuum_naptime = '1 s'
	autovacuum_vacuum_cost_delay = 0
	log_min_messages = warning
	EOC
# one may be at work when the server stops
expect_log(qr/FATAL:  terminating autovacuum process due to administrator command/);
my $session = $node->background_psql('postgres');
$session->set_query_timer_restart;

$session->query_safe(<<~'EOS');
	CREATE SCHEMA app;
	CREATE FUNCTION app.drive(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		IF entity LIKE 'fails%' THEN RAISE EXCEPTION 'out of reach'; END IF;
		PERFORM reconcile.apply_fenced('written', entity, 0, '{"seen": true}');
		RETURN NULL;
	END $$;
	SELECT reconcile.create_loop('drive', 'app.drive', default_requeue => NULL, concurrency => 2, backoff_base => '1 ms', backoff_max => '1 ms', max_attempts => 3);
	SELECT reconcile.create_loop('outside', default_requeue => NULL);
	-- 2,000 entities that succeed, 20 that fail three times and are dead, 100 claims
	-- of which one in ten fails, 100 terms of one lease, each renewed
	CREATE PROCEDURE app.traffic(rounds int) LANGUAGE plpgsql AS $$
	DECLARE
		c record;
		l record;
	BEGIN
		FOR round IN 1 .. rounds LOOP
			PERFORM reconcile.enqueue_many('drive', ARRAY(SELECT 'an entity with a name of some length, so that its marks are large, ' || n FROM generate_series(1, 2000) n));
			PERFORM reconcile.enqueue_many('drive', ARRAY(SELECT 'fails' || n FROM generate_series(1, 20) n));
			COMMIT;
			FOR n IN 1 .. 100 LOOP
				PERFORM reconcile.enqueue('outside', 'e' || n);
				COMMIT;
				FOR c IN SELECT * FROM reconcile.claim_work('outside', 'me', 10) LOOP
					COMMIT;
					IF n % 10 = 0 THEN
						PERFORM reconcile.fail_work('outside', c.entity_id, c.claim_epoch, 'no');
					ELSE
						PERFORM reconcile.complete_work('outside', c.entity_id, c.claim_epoch);
					END IF;
					COMMIT;
				END LOOP;
				SELECT * INTO l FROM reconcile.acquire_lease('led', 'me', '1 min');
				COMMIT;
				PERFORM reconcile.renew_lease('led', 'me', l.epoch);
				COMMIT;
				PERFORM reconcile.release_lease('led', 'me', l.epoch);
				COMMIT;
			END LOOP;
		END LOOP;
	END $$;
	EOS

my $sizes = q{
	SELECT string_agg(relname || ' ' || pg_relation_size(oid) + CASE WHEN reltoastrelid <> 0 THEN pg_relation_size(reltoastrelid) ELSE 0 END, ' ' ORDER BY relname)
	FROM pg_class WHERE relnamespace = 'reconcile'::regnamespace AND relkind IN ('r', 'i', 'm')};

sub sizes
{
	my %size = split / /, $session->query_safe($sizes);
	my $marks = 0;

	# of the segments the sum counts: which of them is used is chance
	$marks += delete $size{"mark_$_"} for 0 .. 3;
	$size{marks} = $marks;
	return \%size;
}

# traffic(ROUNDS): the largest size of each meanwhile, in kB.
sub traffic
{
	my ($rounds) = @_;
	my %largest;

	for my $round (1 .. $rounds)
	{
		$session->query_safe('CALL app.traffic(1)');
		my $now = sizes();
		for my $name (keys %$now)
		{
			my $kb = int($now->{$name} / 1024);
			$largest{$name} = $kb if $kb > ($largest{$name} // 0);
		}
		# what waits is not to grow where the workers get no processor
		wait_quiet($node, 'drive');
	}
	return \%largest;
}

# bounded(FOUND, LIMITS, NAME): no table or index is larger than its limit, in kB;
# one that has none of its own has that of 'others'.
sub bounded
{
	my ($found, $limits, $name) = @_;
	my @beyond;

	note "$name, kB: " . join(', ', map { "$_ $found->{$_}" } sort grep { $found->{$_} } keys %$found);
	for my $relation (sort keys %$found)
	{
		my $limit = $limits->{$relation} // $limits->{others};
		push @beyond, "$relation $found->{$relation} > $limit" if $found->{$relation} > $limit;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(join(', ', @beyond), '', $name);
}
# What the segments may come to: three of the 512 blocks at which one is left, as the
# one before may not be empty yet on a busy machine, and what comes until that is seen.
# Were none left, it would be 17 MB beside the old snapshot.
my $marks = 13 * 1024;

# ----------------------------------------------------------------------
note 'with vacuum, and no old snapshot';

my $found = traffic(30);
bounded($found, { marks => $marks, resource => 4096, resource_pkey => 1024, entity => 1024, lease_term => 1024, lease_term_pkey => 512, others => 256 },
	'70,000 runs leave tables of their own size');

# ----------------------------------------------------------------------
note 'the history of a lease';

is($session->query_safe(q{SELECT count(*) FROM reconcile.lease_term WHERE reconciler_id = 'led'}), '3000', 'all terms of the last 90 days are kept');
$session->query_safe(q{UPDATE reconcile.lease_term SET acquired_at = acquired_at - interval '91 days', ended_at = ended_at - interval '91 days'});
traffic(1);
is($session->query_safe(q{SELECT count(*), max(epoch) - min(epoch) FROM reconcile.lease_term WHERE reconciler_id = 'led'}), '1000|999', 'and of older ones the last 1,000');

# ----------------------------------------------------------------------
note 'beside an old snapshot';

my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$found = traffic(30);
# Versions that it keeps: of the rows that fenced writes, failures and claims, terms
# and renewals rewrite. None of the marks.
bounded($found, { marks => $marks, resource => 24 * 1024, resource_pkey => 4096, entity => 4096, entity_key => 1024, lease => 4096,
		lease_term => 2048, lease_term_pkey => 1024, others => 256 },
	'the marks do not grow, and the others by the rows that it keeps');
cmp_ok($found->{lease}, '>', 512, '(it does keep some)');
$old->query_safe('COMMIT');
$old->quit;

# ----------------------------------------------------------------------
note 'when it has ended';

# At once: how far it grows until autovacuum comes by is chance.
$session->query_safe('VACUUM reconcile.entity, reconcile.resource, reconcile.lease, reconcile.lease_term');
my %limits = map { $_ => $found->{$_} + 64 } keys %$found;
$found = traffic(10);
bounded($found, { %limits, marks => $marks }, 'what it kept is used again');

$session->quit;
finish();

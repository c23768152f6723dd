# P8: an old snapshot does not slow us.  By counts: what the last thousand runs
# cost in buffers beside a snapshot that was held for thousands of runs, against
# the thousand before it was taken.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	max_prepared_transactions = 2
	autovacuum = off
	checkpoint_timeout = '1 h'
	jit = off
	EOC

# Whoever looks is in another database: only the work counts.
$node->safe_psql('postgres', 'CREATE DATABASE aside');
my $aside = $node->background_psql('aside');
my $session = $node->background_psql('postgres');
$_->set_query_timer_restart for $aside, $session;

$session->query_safe(<<~'EOS');
	CREATE SCHEMA app;
	CREATE TABLE app.until (n bigint);
	INSERT INTO app.until VALUES (0);
	CREATE SEQUENCE app.tries;
	-- what it read is in the statistics when it is over
	CREATE FUNCTION app.more() RETURNS boolean LANGUAGE sql VOLATILE AS $$
		SELECT pg_stat_force_next_flush();
		SELECT nextval('app.tries') < (SELECT n FROM app.until);
	$$;
	CREATE FUNCTION app.again(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		RETURN CASE WHEN app.more() THEN interval '1 ms' END;
	END $$;
	CREATE FUNCTION app.once(entity text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM app.more();
	END $$;
	CREATE FUNCTION app.fails(entity text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF app.more() THEN RAISE EXCEPTION 'out of reach'; END IF;
	END $$;
	CREATE FUNCTION app.alternates(entity text) RETURNS interval LANGUAGE plpgsql AS $$
	BEGIN
		IF NOT app.more() THEN RETURN NULL; END IF;
		IF (SELECT attempt FROM reconcile.current_run()) = 1 THEN RAISE EXCEPTION 'not the first time'; END IF;
		RETURN interval '1 ms';
	END $$;
	SELECT reconcile.create_loop('hot', 'app.again', default_requeue => NULL);
	SELECT reconcile.create_loop('many', 'app.once', default_requeue => NULL);
	SELECT reconcile.create_loop('failing', 'app.fails', default_requeue => NULL, backoff_base => '1 ms', backoff_max => '1 ms');
	SELECT reconcile.create_loop('alternating', 'app.alternates', default_requeue => NULL, backoff_base => '1 ms', backoff_max => '1 ms');
	SELECT reconcile.create_loop('leased', 'app.again', default_requeue => NULL, lease_ttl => '1 h');
	SELECT reconcile.create_loop('outside', default_requeue => NULL);
	EOS

my $tries = 0;

# Runs of a loop whose entities are looked at again until that many were tried.
sub again
{
	my ($loop, $runs, $entities) = @_;

	$session->query_safe('UPDATE app.until SET n = ' . ($tries + $runs));
	$session->query_safe("SELECT reconcile.enqueue_many('$loop', ARRAY(SELECT 'e' || n FROM generate_series(1, $entities) n))");
	return;
}

sub hot { return again('hot', $_[0], 1) }
sub ten { return again('hot', $_[0], 10) }
sub failing { return again('failing', $_[0], 100) }
sub alternating { return again('alternating', $_[0], 10) }
sub leased { return again('leased', $_[0], 1) }

sub many
{
	my ($runs) = @_;
	$session->query_safe("SELECT reconcile.enqueue_many('many', ARRAY(SELECT 'e' || n FROM generate_series(1, $runs) n))");
	return;
}

sub renew
{
	my ($times) = @_;
	$session->query_safe(qq{DO \$\$
		BEGIN
			FOR n IN 1 .. $times LOOP
				PERFORM reconcile.renew_lease(reconciler_id, holder_id, epoch, '1 h') FROM reconcile.lease WHERE reconciler_id = 'leased';
				COMMIT;
			END LOOP;
		END \$\$});
	return;
}

sub renewed
{
	my ($runs) = @_;
	renew($runs);
	$session->query_safe("SELECT count(nextval('app.tries')) FROM generate_series(1, $runs)");
	return;
}

# Claims, each with its trigger, that end by REPORT; what is left at the end succeeds.
sub outside
{
	my ($runs, $entities, $report) = @_;
	my $complete = q{PERFORM reconcile.complete_work('outside', c.entity_id, c.claim_epoch)};
	$report //= $complete;
	$session->query_safe(qq{DO \$\$
		DECLARE
			c record;
		BEGIN
			FOR n IN 1 .. $runs LOOP
				PERFORM reconcile.enqueue('outside', 'e' || n % $entities);
				COMMIT;
				SELECT * INTO STRICT c FROM reconcile.claim_work('outside', 'me', 1);
				COMMIT;
				$report;
				COMMIT;
			END LOOP;
			WHILE EXISTS (SELECT FROM reconcile.mark WHERE loop_name = 'outside') LOOP
				FOR c IN SELECT * FROM reconcile.claim_work('outside', 'me', 1) LOOP
					COMMIT;
					$complete;
				END LOOP;
				COMMIT;
			END LOOP;
			PERFORM nextval('app.tries') FROM generate_series(1, $runs);
		END \$\$});
	return;
}
sub claims { return outside($_[0], 100) }
sub claims_of_one { return outside($_[0], 1) }
sub failed_claims { return outside($_[0], 10, q{PERFORM reconcile.fail_work('outside', c.entity_id, c.claim_epoch, 'no', retry_after => '1 ms')}) }

sub buffers
{
	$session->query_safe('SELECT pg_stat_force_next_flush()');
	return $aside->query_safe(q{SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = 'postgres'});
}

# Rows of ours that were rewritten or deleted.
sub dead
{
	return $session->query_safe(q{SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = 'reconcile'});
}

# Nothing is due, and all have said what they have done.
sub wait_rest
{
	my ($tries_then) = @_;
	$node->poll_query_until('aside', q{
		SELECT bool_and(wait_event_type = 'Extension') FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'}) or die;
	for (1 .. 1000)
	{
		last if $session->query_safe('SELECT last_value FROM app.tries') >= $tries_then
		  && $session->query_safe(q{SELECT NOT EXISTS (SELECT FROM reconcile.mark)}) eq 't';
		usleep(50_000);
	}
	$node->poll_query_until('aside', q{
		SELECT bool_and(wait_event_type = 'Extension') FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'}) or die;
	$tries = $session->query_safe('SELECT last_value FROM app.tries');
	return;
}

# cost(WORK, RUNS): buffers, and rows left dead, of a run.
sub cost
{
	my ($work, $runs) = @_;
	my ($buffers, $dead, $from) = (buffers(), dead(), $tries);

	$work->($runs);
	wait_rest($tries + $runs);
	$runs = $tries - $from;
	return [ (buffers() - $buffers) / $runs, (dead() - $dead) / $runs ];
}

# hold(HOW): what holds a snapshot, and a sub that lets it go.
sub hold
{
	my ($how) = @_;

	if ($how eq 'prepared')
	{
		$node->safe_psql('postgres', q{BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'old'});
		return sub { $node->safe_psql('postgres', q{ROLLBACK PREPARED 'old'}) };
	}
	my $old = $node->background_psql('postgres');
	$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	return sub { $old->query_safe('COMMIT'); $old->quit };
}

# beside(NAME, WORK, options): thousands of runs beside an old snapshot.
#
#   how => 'prepared'   a prepared transaction holds it
#   meanwhile => SUB    what is done besides, after it is taken
#   more => N           dead rows more a run, where a row that comes and goes is rewritten
#                       instead beside an old snapshot
#   times => N          the most that a run may cost of what it did before, instead of
#                       1.2, where a rewritten row has to go to another page each time
#   slope => N          the most buffers more for each run since it was taken,
#                       where runs get dearer: nobody promises P8 for these
sub beside
{
	my ($name, $work, %option) = @_;

	cost($work, 200);
	my $before = cost($work, 1000);
	my $release = hold($option{how} // '');
	$option{meanwhile}->() if defined $option{meanwhile};
	my @beside = map { cost($work, 1000) } 1 .. ($option{slope} ? 2 : 5);
	$release->();

	note sprintf '%s: %.1f buffers and %.2f dead rows a run; beside an old snapshot %s', $name, @$before,
	  join(', ', map { sprintf '%.1f and %.2f', @$_ } @beside);
	if ($option{slope})
	{
		cmp_ok($beside[-1][0] - $before->[0], '<=', 1500 * $option{slope}, "$name: $option{slope} buffers for each before it");
	}
	else
	{
		cmp_ok($beside[-1][0], '<=', ($option{times} // 1.2) * $before->[0], "$name: buffers a run");
		cmp_ok($beside[-1][0], '<=', 1.1 * $beside[1][0], "$name: no more than thousands of runs ago");
	}
	cmp_ok(abs($beside[-1][1] - $before->[1] - ($option{more} // 0)), '<', 0.1, "$name: dead rows a run");
	return;
}

# Plans are made for tables of one page, of which an old snapshot will make many:
# they must not be plans that scan them.
$session->query_safe(q{
	INSERT INTO reconcile.entity (loop_name, entity_id, failures, died_of) SELECT 'hot', 'dead' || n, 1, 'permanent' FROM generate_series(1, 5) n;
	ANALYZE reconcile.entity, reconcile.lease, reconcile.loop});
beside('one hot entity', \&hot);
beside('the same beside a prepared transaction', \&hot, how => 'prepared');
beside('ten hot entities', \&ten);
beside('many entities', \&many);
beside('entities that fail', \&failing, times => 1.4);
beside('entities that fail and succeed in turn', \&alternating, more => 0.5);
beside('entities beside which others have failed', \&hot, meanwhile => sub { cost(\&failing, 2000) });
beside('a leased loop', \&leased);
beside('a leased loop whose lease was renewed', \&leased, meanwhile => sub { renew(1000) });
beside('renewals of one lease', \&renewed, slope => 0.1);
beside('claims of a hundred entities', \&claims, more => 1);
beside('claims of one entity', \&claims_of_one, more => 1);
beside('claims that fail', \&failed_claims);

# What was left empty beside the snapshots goes when they have.
my $empty = q{SELECT count(*) FROM reconcile.entity WHERE failures = 0};
cmp_ok($session->query_safe($empty), '>', 0, 'rows were left with nothing in them');
is($session->query_safe(q{SELECT count(*) FROM reconcile.work WHERE loop_name <> 'hot'}), 0, 'which are no work');
$session->query_safe('VACUUM FULL reconcile.entity');
many(4000);
wait_rest($tries + 4000);
is($session->query_safe($empty), 0, 'they are swept');

$_->quit for $session, $aside;
finish();

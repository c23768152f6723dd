# What an administrator does to our tables while workers run: rewrites, which
# move every mark, reindexing, locks, dumps, a publication of all tables; and the
# reading of many marks, beside which a lease lasts.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('main', conf => <<~'EOC');
	max_worker_processes = 16
	wal_level = logical
	max_wal_senders = 4
	log_lock_waits = on
	deadlock_timeout = '100 ms'
	reconcile.ring_size = 64
	EOC
sql($node, q{ALTER ROLE CURRENT_USER SET statement_timeout = '4 s'});
prepare($node);
make_loop($node, 'drive', options => 'concurrency => 2');
make_loop($node, 'led', options => q{lease_ttl => '10 s'});

sub command
{
	my ($sql, $name) = @_;
	my $started = time();

	my ($status, $out, $err) = $node->psql('postgres', $sql, extra_params => ['--set=ON_ERROR_STOP=1']);
	note sprintf '%.2f s: %s', time() - $started, $sql =~ s/\s+/ /gr;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$status$err", '0', $name);
	return;
}

# ----------------------------------------------------------------------
note 'tables that are rewritten';

my @tables = split /\n/, sql($node, q{SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 'reconcile'::regnamespace AND relkind = 'r' ORDER BY 1});
my $gate = close_gate($node, 'drive');
my $n = 0;
my $moved = 0;
my $logged = 'ALTER TABLE reconcile.mark_0 SET UNLOGGED; ALTER TABLE reconcile.mark_0 SET LOGGED;';
foreach my $rewrite ('VACUUM FULL ' . join(', ', @tables), $logged, "DO \$\$ BEGIN $logged END \$\$", 'CLUSTER')
{
	$n++;
	# the first are deleted, so that the others move; few enough for the ring
	sql($node, qq{SELECT reconcile.enqueue('drive', 'gone ' || n, '1 hour') FROM generate_series(1, 20) n;
		SELECT reconcile.enqueue('drive', 'later $n', '3 s'), reconcile.enqueue('led', 'later $n', '3 s')});
	sql($node, q{SELECT count(reconcile.forget('drive', 'gone ' || n)) FROM generate_series(1, 20) n});
	my $places = q{SELECT string_agg(ctid::text, ' ' ORDER BY number) FROM reconcile.mark_0 WHERE entity_id LIKE 'later%'};
	my $place = sql($node, $places);
	command($rewrite, $rewrite);
	$moved++ if sql($node, $places) ne $place;
}
cmp_ok($moved, '>', 0, "marks have moved, $moved times");
like(sql($node, q{SELECT detail FROM reconcile.health WHERE check_name = 'ring'}), qr/^no overflow/, 'and only that has them read again');
$gate->open;
wait_for($node, qq{(SELECT count(*) FROM app.run WHERE entity_id LIKE 'later%') = 2 * $n}, 'what waited before runs when it is due');
wait_for($node, 'NOT EXISTS (SELECT FROM reconcile.work)', 'and nothing is left');

command("REINDEX TABLE $_", "REINDEX TABLE $_") for grep { !/mark_/ } @tables;
command('REINDEX DATABASE postgres', 'REINDEX DATABASE');
command('VACUUM (FREEZE, ANALYZE)', 'VACUUM FREEZE ANALYZE');
command("ALTER TABLE $_ SET (autovacuum_enabled = off); ALTER TABLE $_ RESET (autovacuum_enabled)", "ALTER TABLE $_") for grep { !/mark_/ } @tables;
enqueue($node, $_, 'after') for qw(drive led);
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id = 'after') = 2}, 'loops run');

# ----------------------------------------------------------------------
note 'locks';

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE ' . join(', ', map { "reconcile.mark_$_" } 0 .. 3) . ' IN ACCESS SHARE MODE');
my $waits = () = slurp_file($node->logfile) =~ /still waiting for/g;
sql($node, q{SELECT count(pg_terminate_backend(pid, 4000)) FROM reconcile.workers WHERE kind = 'dispatcher'});
enqueue($node, 'drive', 'dumped');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'dumped')}, 'a dispatcher starts beside the locks of a dump');
my $now = () = slurp_file($node->logfile) =~ /still waiting for/g;
is($now, $waits, 'and waits for none');
$locker->query_safe('ROLLBACK');

$locker->query_safe('BEGIN; LOCK TABLE reconcile.loop, reconcile.entity, reconcile.lease IN ACCESS EXCLUSIVE MODE');
sql($node, q{SELECT pg_sleep(1.5)});
$locker->query_safe('ROLLBACK');
enqueue($node, $_, 'locked') for qw(drive led);
wait_for($node, q{(SELECT count(*) FROM app.run WHERE entity_id = 'locked') = 2}, 'after an exclusive lock that lasted all goes on');
$locker->quit;
is(sql($node, 'SELECT count(*) FROM reconcile.entity'), 0, 'nothing was charged');

# ----------------------------------------------------------------------
note 'a dump, and a publication of all tables';

sql($node, q{SELECT reconcile.alter_loop('drive', '{"default_requeue": "5 ms"}')});
enqueue($node, 'drive', 'busy', 'busy too');
my $tries = tries($node, 'drive');
$node->command_ok([ 'pg_dump', '-f', $node->data_dir . '/../dump.sql', $node->connstr('postgres') ], 'pg_dump beside loops that run');
wait_tries($node, 'drive', $tries + 20);
is(sql($node, q{SELECT count(*) FROM pg_class c WHERE relnamespace = 'reconcile'::regnamespace AND relkind = 'r' AND relreplident <> 'f'
	AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)}), 0, 'each table says which row is which');
command('CREATE PUBLICATION everything FOR ALL TABLES', 'CREATE PUBLICATION … FOR ALL TABLES');
sql($node, q{SELECT pg_create_logical_replication_slot('everything', 'pgoutput')});
$tries = tries($node, 'drive');
wait_tries($node, 'drive', $tries + 20);
behave($node, 'led', 'fails', 'fail');
enqueue($node, 'led', 'fails');
wait_for($node, q{EXISTS (SELECT FROM reconcile.work WHERE entity_id = 'fails' AND state = 'retrying')}, 'failures are booked');
sql($node, q{SELECT reconcile.forget('led', 'fails'); SELECT reconcile.create_loop('brief', 'app.led'); SELECT reconcile.pause_loop('brief'); SELECT reconcile.drop_loop('brief')});
is(sql($node, q{SELECT renewed IS NOT NULL FROM reconcile.acquire_lease('client', 'me') l, reconcile.renew_lease('client', 'me', l.epoch) AS renewed}), 't', 'leases are granted and renewed');
cmp_ok(sql($node, q{SELECT count(*) FROM pg_logical_slot_peek_binary_changes('everything', NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')}), '>', 20,
	'and all of it is published');
sql($node, q{SELECT pg_drop_replication_slot('everything'); DROP PUBLICATION everything});

# ----------------------------------------------------------------------
note 'many marks, and a lease';

sql($node, q{SET statement_timeout = 0;
	SELECT reconcile.alter_loop('drive', '{"default_requeue": null}');
	SELECT reconcile.pause_loop('drive');
	SELECT count(reconcile.enqueue_many('drive', ARRAY(SELECT i || ' ' || n FROM generate_series(1, 100000) n), '1 hour')) FROM generate_series(1, 7) i});
enqueue($node, 'led', 'many');
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE entity_id = 'many')}, 'a loop under a lease runs beside 700,000 marks');

# More than the ring holds: all marks are read again before these run.
my $ring = q{SELECT detail FROM reconcile.health WHERE check_name = 'ring'};
sub overflow
{
	my ($turn) = @_;
	my $overflows = sql($node, $ring);
	my $started = time();

	sql($node, qq{SELECT reconcile.enqueue('led', 'o$turn ' || n) FROM generate_series(1, 200) n});
	wait_for($node, qq{(SELECT count(*) FROM app.run WHERE entity_id LIKE 'o$turn %') = 200}, 'it goes on after an overflow of the ring');
	isnt(sql($node, $ring), $overflows, 'that there was');
	return time() - $started;
}

# A term that is shorter than the reading takes on this machine.  Where that stood still
# for longer than the term, the reading took longer, too: then it is measured anew.
my $reading = overflow(1);
my $kept;
for my $try (1 .. 3)
{
	my $ttl = int(500 * $reading) > 1000 ? int(500 * $reading) : 1000;
	my $epoch = q{SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'led' AND live};
	my $before = sql($node, q{SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'led'});

	note sprintf 'the reading takes %.1f s, a term lasts %.1f s', $reading, $ttl / 1000;
	sql($node, qq{SELECT reconcile.alter_loop('led', '{"lease_ttl": "$ttl ms"}');
		SELECT reconcile.force_release_lease('led', epoch, 'a shorter term') FROM reconcile.leases WHERE reconciler_id = 'led'});
	wait_for($node, "($epoch) > $before", 'a new term');
	$epoch = sql($node, $epoch);
	for my $turn (1 .. 3)
	{
		my $took = overflow("$try$turn");

		$reading = $took if $took > $reading;
	}
	$kept = sql($node, q{SELECT epoch FROM reconcile.leases WHERE reconciler_id = 'led'}) == $epoch;
	last if $kept;
}
ok($kept, 'the term lasts, while all marks are read');

finish();

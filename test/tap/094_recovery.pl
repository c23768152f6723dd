# What a crash leaves half done (public reports H68 and H69): a claim is made or
# it is not, and a resync that is broken off again and again reaches its end.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;
use Time::HiRes qw(usleep);

my $node = new_node('main', test_points => 1);
# sessions that a crash of another one ends
expect_log(qr/WARNING:  terminating connection because of crash of another server process/,
	qr/was terminated by signal 9: Killed/);
prepare($node);

# ----------------------------------------------------------------------
note 'the server crashes at each step of a claim';

sql($node, q{SELECT reconcile.create_loop('jobs', default_requeue => NULL)});

# claim(): the entity, the attempt; empty if there is nothing to claim.
sub claim
{
	return sql($node, q{SELECT entity_id, attempt FROM reconcile.claim_work('jobs', 'next', 1, '1 h')});
}

my %attempt = (
	'session-before-intent' => 1, 'session-after-intent' => 1, 'session-before-commit' => 1,
	'session-after-commit' => 2, 'session-after-outcome' => 2);
foreach my $point (sort keys %attempt)
{
	enqueue($node, 'jobs', $point);
	my $session = $node->background_psql('postgres', on_error_die => 0);
	my ($pid) = $session->query('SELECT pg_backend_pid()') =~ /(\d+)/;
	arm($node, $point, $pid);
	$session->{stdin} .= "SELECT * FROM reconcile.claim_work('jobs', 'first', 1, '2 s');\n";
	$session->{run}->pump_nb;
	is(reached($node, $point), $pid, "$point: it is held");
	kill 'KILL', $pid;
	eval { $session->quit };
	$node->poll_query_until('postgres', qq{SELECT pg_postmaster_start_time() IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)})
	  or die 'the server does not come back';
	wait_for($node, qq{(SELECT state FROM reconcile.work WHERE entity_id = '$point') IN ('ready', 'running')}, 'it is ready, or claimed');
	is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE (claim_epoch IS NULL) <> (claim_expires_at IS NULL)
		OR (claim_epoch IS NULL) <> (claim_holder IS NULL)}), 0, 'nothing between');
	my $claimed;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if ($claimed = claim()) ne '';
		usleep(100_000);
	}
	is($claimed, "$point|$attempt{$point}", 'the next worker gets it');
	sql($node, q{SELECT reconcile.complete_work(loop_name, entity_id, claim_epoch) FROM reconcile.entity WHERE claim_holder = 'next'});
}
is(sql($node, q{SELECT count(*) FROM reconcile.work WHERE loop_name = 'jobs'}), 0, 'and all are done');

# ----------------------------------------------------------------------
note 'many contend after a promotion, and one begins the incarnation';

sql($node, q{SELECT reconcile.acquire_lease('first', 'before', '1 h')});
# as after a promotion
sql($node, q{UPDATE reconcile.incarnation SET timeline = timeline - 1; UPDATE reconcile.lease SET timeline = timeline - 1});

# The session asks for a lease, and will say when it has it.
sub ask
{
	my ($session, $arguments) = @_;
	begins($session, "SELECT 'granted ' || epoch FROM reconcile.acquire_lease($arguments);");
	return;
}

# A session that has asked, and waits.
sub waits
{
	my ($holder, $arguments) = @_;
	my $session = $node->background_psql('postgres');
	ask($session, $arguments);
	$node->poll_query_until('postgres', qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '$holder' AND wait_event_type IN ('IPC', 'Extension') AND pid <> pg_backend_pid()})
	  or die "$holder does not wait";
	return $session;
}

sub is_granted
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return like($session->query_until(qr/granted \d+/, ''), qr/granted \d+/, $name);
}

my $begins = $node->background_psql('postgres');
$begins->query_safe(q{SET statement_timeout = '4 s'});
arm($node, 'incarnation-locked', $begins->query_safe('SELECT pg_backend_pid()'));
ask($begins, q{'second', 'begins'});
reached($node, 'incarnation-locked');
my ($status, $out, $err) = $node->psql('postgres', q{SELECT reconcile.acquire_lease('fourth', 'gives up')});
like($err, qr/lease "fourth" is held\n.*no committed holder.*\nHINT:  A transaction that begins a new incarnation/, 'whoever asks meanwhile does not wait for ever');
is(sql($node, q{SELECT reconcile.try_acquire_lease('fourth', 'never waits') IS NULL}), 't', 'or not at all');
my $contends = waits('contends', q{'first', 'contends', wait => '1 min'});
my $first = waits('waits_for_nobody', q{'third', 'waits_for_nobody'});
release($node, 'incarnation-locked');
is_granted($begins, 'who begins it does not wait for who contends');
is_granted($contends, 'who gets his lease after it');
is_granted($first, 'nor is a lease refused that nobody has');
is(sql($node, q{SELECT bool_and(h.acquired_at >= i.since) FROM reconcile.lease_history h, reconcile.incarnation() i WHERE h.holder_id IN ('begins', 'contends', 'waits_for_nobody')}),
	't', 'no term begins before it');
$_->quit for $begins, $contends, $first;

# ----------------------------------------------------------------------
note 'twenty restarts during a resync';

my $keys = 300;
sql($node, qq{
	CREATE TABLE app.done (id text PRIMARY KEY);
	CREATE FUNCTION app.keys() RETURNS SETOF text LANGUAGE sql AS 'SELECT n::text FROM generate_series(1, $keys) n'});
make_loop($node, 'swept', options => q{concurrency => 2, lister => 'app.keys', resync_every => '1 h'}, body => q{
	PERFORM pg_sleep(0.01);
	INSERT INTO app.done VALUES (entity) ON CONFLICT DO NOTHING;
	RETURN NULL;});
for (1 .. 20)
{
	usleep(rand(300_000));
	$node->stop('immediate');
	$node->start;
}
wait_for($node, qq{(SELECT count(*) FROM app.done) = $keys}, 'every key is done');
wait_quiet($node, 'swept');
is(sql($node, q{SELECT count(*) FROM reconcile.entity WHERE loop_name = 'swept'}), 0, 'nobody is blamed');
is(sql($node, qq{SELECT count(*) FROM app.run WHERE loop_name = 'swept' GROUP BY entity_id ORDER BY 1 LIMIT 1}) > 0, 1, 'each has run');

finish();

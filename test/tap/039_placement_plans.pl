# N12: the pages that placement reads, first and middle, come from their index without a
# sort, and cost as much of a large table as of a small one: the statements of the code,
# as they are planned when its functions run, at 1,000, 10,000 and
# 100,000 rows. Offers of all hosts of a role are merged by a sort of what each has first.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('plans', conf => "max_worker_processes = 16\nautovacuum = off\n");

sql($node, q{
	CREATE SCHEMA t;
	SELECT reconcile.set_placement('{"control_shards": 4, "page_limit": 20, "max_pages": 1, "candidate_limit": 20}');
	SELECT reconcile.pause_loop('placement'), reconcile.pause_loop('placement_sweeps');
	CREATE ROLE host_role; CREATE ROLE others;
	SELECT reconcile.register_host('host', 'host_role');
	SELECT reconcile.grant_access('host_role', 'place');
	GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO host_role;
	-- n rows more of each, by hand
	CREATE FUNCTION t.fill(low int, high int) RETURNS void LANGUAGE sql AS $$
		INSERT INTO reconcile.session (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, desired_key, desired_generation, revision, created_at)
			SELECT 't', 's' || i, 'agent', 'r', CASE WHEN i % 2 = 0 THEN 'pooled' ELSE 'dedicated' END, 'k', 1, 1, now() FROM generate_series(low, high) i;
		INSERT INTO reconcile.session_observed (tenant_id, session_id, revision, lease_epoch, journal_seq, last_active_at)
			SELECT 't', 's' || i, 1, 0, 0, now() - i * interval '1 s' FROM generate_series(low, high) i;
		INSERT INTO reconcile.host (host_id, role, role_name, registered_at)
			SELECT 'h' || i, 'others'::regrole, 'others', now() FROM generate_series(low, high) i;
		INSERT INTO reconcile.host_target (agent_id, runtime_compatibility_id, placement, host_id, host_generation, revision, observed_at, endpoint, isolation_class,
				accepting, capacity, reserved, expires_at)
			SELECT 'agent', 'r', 'pooled', 'h' || i, 1, 1, now() - interval '1 h', 'wss://h', 'cross_tenant_isolated', true, i % 1000, 0,
				now() + CASE WHEN i % 2 = 0 THEN -1 ELSE 1 END * (1 + i * 0.01) * interval '1 s' FROM generate_series(low, high) i;
		INSERT INTO reconcile.session_command (tenant_id, session_id, command_id, shard, accepted_order, revision, runtime_command_id, kind, payload_digest,
				payload_size, payload, accepted_at, apply_deadline, state, claim_epoch, claim_expires_at)
			SELECT 't', CASE WHEN i % 2 = 0 THEN 'many' ELSE 's' || i END, 'c' || i, i % 4, i, 1, 'c', 'input', sha256('x'), 1, 'x', now() - interval '2 days',
				now() + CASE WHEN i % 2 = 0 THEN -1 ELSE 1 END * i * interval '1 s', 'claimed', 1, now() + interval '1 day' FROM generate_series(low, high) i;
		INSERT INTO reconcile.session_offer (tenant_id, session_id, agent_id, runtime_compatibility_id, placement, host_id, host_generation, desired_generation,
				mode, round, made_at, expires_at, state, counted)
			SELECT 't', 's' || i, 'agent', 'r', 'pooled', CASE WHEN i % 2 = 0 THEN 'host' ELSE 'h' || i END, 1, 1, 'create', 1, now(), now() + i * interval '1 s', 'offered', true
				FROM generate_series(low, high) i;
		INSERT INTO reconcile.session_workload (tenant_id, session_id, generation, name, state, reported_at)
			SELECT 't', 's' || i, 1, 'w' || i, 'absent', now() FROM generate_series(low, high) i;
		-- of three targets: who can have what a host brings, who cannot, and who was refused by it
		INSERT INTO reconcile.session_search (tenant_id, session_id, round, replacements, refusals, look_at, wanted, agent_id, runtime_compatibility_id,
				placement, waits_since, requires)
			SELECT 't', 's' || i, 1, 0, 1, CASE i % 4 WHEN 2 THEN timestamptz 'infinity' END, false, 'agent', CASE i % 4 WHEN 1 THEN 'needs' WHEN 2 THEN 'refused' ELSE 'waits' END,
				'pooled', now() - i * interval '1 s', CASE i % 4 WHEN 1 THEN '{rare}' ELSE '{}' END::text[] FROM generate_series(low, high) i $$;
	CREATE FUNCTION t.publish(runtime text, capacity int) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.publish_host_target('host', 1, 'agent', runtime, 'pooled', 'wss://h', 'cross_tenant_isolated', true, capacity) $$;
	GRANT USAGE ON SCHEMA t TO host_role;
	SELECT outcome FROM reconcile.create_session('t', 'many', 'agent', 'pooled', 'k', 'r');
});

# What is called, and for the statement that reads the page: a text in it, and its index.
# The place of a middle page is one that an earlier page gave out, or the cursor's.
my @pages = (
	{ name => 'ranking', call => q{SELECT count(*) FROM reconcile.compatible_hosts('agent', 'r', 'pooled', 20)}, statement => qr/FROM reconcile\.host_target t/, index => 'host_target_rank' },
	{ name => 'ranking, middle', before => q{SELECT position AS place FROM reconcile.compatible_hosts('agent', 'r', 'pooled', 500) OFFSET 499 \gset},
		call => q{SELECT count(*) FROM reconcile.compatible_hosts('agent', 'r', 'pooled', 20, :'place')}, statement => qr/FROM reconcile\.host_target t/, index => 'host_target_rank' },
	{ name => 'due commands', call => q{SELECT count(*) FROM reconcile.due_session_commands(1, '1 h', max_items => 20)}, statement => qr/FROM reconcile\.session_command c/, index => 'session_command_due' },
	{ name => 'pending sweep', call => q{SELECT count(*) FROM reconcile.sweep_pending()}, statement => qr/FROM reconcile\.session_command c.*LIMIT \$7/s, index => 'session_command_due', twice => 1 },
	{ name => 'its bound', call => q{TRUNCATE reconcile.placement_cursor; SELECT count(*) FROM reconcile.sweep_pending()}, statement => qr/apply_deadline DESC LIMIT 1/, index => 'session_command_due' },
	{ name => 'deadlines sweep', call => q{SELECT count(*) FROM reconcile.sweep_deadlines()}, statement => qr/FROM reconcile\.session_command c.*LIMIT \$7/s, index => 'session_command_due', twice => 1 },
	{ name => 'sweep of targets', call => q{SELECT count(*) FROM reconcile.sweep_host_targets()}, statement => qr/FROM reconcile\.host_target t.*LIMIT \$7/s, index => 'host_target_due', twice => 1 },
	{ name => 'sweep of offers', call => q{SELECT count(*) FROM reconcile.sweep_offers()}, statement => qr/FROM reconcile\.session_offer o WHERE o\.state.*LIMIT \$4/s, index => 'session_offer_due', twice => 1 },
	{ name => 'old offers', call => q{SELECT count(*) FROM reconcile.sweep_offers()}, statement => qr/FROM reconcile\.session_offer o WHERE o\.offer_id.*LIMIT \$2/s, index => 'session_offer_pkey' },
	{ name => 'commands of a session', call => q{SELECT count(*) FROM reconcile.session_commands('t', 'many', 0, 20)}, statement => qr/FROM reconcile\.session_command c/, index => 'session_command_tenant_id_session_id_accepted_order_key' },
	{ name => 'commands of a session, middle', call => q{SELECT count(*) FROM reconcile.session_commands('t', 'many', 500, 20)}, statement => qr/FROM reconcile\.session_command c/, index => 'session_command_tenant_id_session_id_accepted_order_key' },
	{ name => 'offers of a host', call => q{SET ROLE host_role; SELECT count(*) FROM reconcile.fetch_offers(20)}, statement => qr/FROM reconcile\.session_offer o/, index => 'session_offer_of_host', sort => 1 },
	(map { { name => "room: $_->[0]", before => qq{SET ROLE host_role; SELECT t.publish('$_->[1]', 0); RESET ROLE;}, call => qq{SET ROLE host_role; SELECT t.publish('$_->[1]', 20)},
		statement => qr/FROM reconcile\.session_search t/, index => 'session_search_waiting', most => $_->[2] } }
		[ 'they wait', 'waits' ], [ 'none can have it', 'needs', 1_500 ], [ 'all were refused', 'refused', 30_000 ]),
	{ name => 'intents', call => q{SELECT count(*) FROM reconcile.fetch_intents('controller', 20)}, statement => qr/session_workload.*LIMIT/s, index => 'session_workload_pkey', twice => 1 },
);

# The plans of the statements of a call, each with its text, as the server has them.
sub plans
{
	my ($before, $call) = @_;
	my ($stdout, $stderr);

	$node->psql('postgres', qq{
		SET client_min_messages = warning;
		$before
		LOAD 'auto_explain';
		SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on;
		SET auto_explain.log_analyze = on;
		SET auto_explain.log_buffers = on;
		SET auto_explain.log_timing = off;
		SET auto_explain.log_level = notice;
		SET client_min_messages = notice;
		$call}, stdout => \$stdout, stderr => \$stderr, on_error_stop => 1) == 0 or die $stderr;
	return split /^(?:psql:\S+ )?NOTICE:  /m, $stderr;
}

# The rows of the plan with its text: has it that index and no sort; how many buffers.
sub look_at
{
	my ($page, $size) = @_;
	my $times = $page->{twice} ? 2 : 1;
	my $buffers;

	for my $time (1 .. $times)
	{
		my $name = "$page->{name}" . ($time == 2 ? ', middle' : '') . " of $size";
		my @plans = grep { /$page->{statement}/ } plans($page->{before} // '', $page->{call});
		is(scalar(@plans) > 0, 1, "$name: the statement is there") or next;
		my $plan = $plans[0];
		unlike($plan, qr/\bSort\b/, "$name: no sort") or diag $plan unless $page->{sort};
		unlike($plan, qr/Seq Scan/, "$name: no table is read as a whole") or diag $plan;
		like($plan, qr/using $page->{index}\b/, "$name: $page->{index}") or diag $plan;
		my ($hit) = $plan =~ /Buffers: shared (.*)/;
		my $n = 0;
		$n += $1 while ($hit // '') =~ /(?:hit|read)=(\d+)/g;
		$buffers = $n if !defined $buffers || $n > $buffers;
	}
	return $buffers;
}

my %buffers;
my $low = 1;
for my $size (1_000, 10_000, 100_000)
{
	sql($node, "SELECT t.fill($low, $size); TRUNCATE reconcile.placement_cursor");
	$low = $size + 1;
	sql($node, join(';', map { "VACUUM ANALYZE reconcile.$_" } qw(session session_observed host host_target session_command session_offer session_search session_workload)) =~ s/;/;\n/gr);
	push @{ $buffers{ $_->{name} } }, look_at($_, $size) for @pages;
}
for my $page (@pages)
{
	my @of = @{ $buffers{ $page->{name} } };
	note "$page->{name}: buffers @of";
	# an index has a level more; who cannot have room is read past, 4,000 at most
	cmp_ok($of[2], '<=', $page->{most} // 2 * $of[1] + 100, "$page->{name}: a page of 100,000 rows costs no more than one of 10,000");
}

finish();

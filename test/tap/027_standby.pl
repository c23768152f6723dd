# On a hot standby no process of ours runs, what changes anything is refused
# with 25006, and views read; after a promotion the loops run, and the terms of
# the dispatcher before are followed by higher epochs.

use strict;
use warnings;

use ReconcileTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Its primary goes away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);

my $conf = "max_worker_processes = 16\n";
my $primary = new_node('primary', allows_streaming => 1, conf => $conf);

$primary->safe_psql('postgres', <<~'EOS');
	CREATE TABLE seen (id text, epoch bigint, system text DEFAULT current_setting('cluster_name'));
	CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS 'INSERT INTO seen VALUES (id, reconcile.fenced_epoch())';
	SELECT reconcile.create_loop('plain', 'see', default_requeue => '1 h', concurrency => 2);
	SELECT reconcile.create_loop('leased', 'see', default_requeue => '1 h', lease_ttl => '1 h');
	SELECT reconcile.enqueue_many(l, '{a,b}') FROM unnest('{plain,leased}'::text[]) l;
	SELECT reconcile.acquire_lease('mine', 'me', '1 h');
	SELECT reconcile.create_session('t', s, 'bot', 'pooled', 'made', 'x64') FROM unnest('{had,offered}'::text[]) s;
	SELECT reconcile.register_host('node', current_user);
	SELECT reconcile.publish_host_target('node', 1, 'bot', 'x64', 'pooled', 'ws://node', 'cross_tenant_isolated', true, 5);
	SELECT reconcile.place_session('t', 'had');
	SELECT reconcile.accept_offer(offer_id, 1, 'token') FROM reconcile.fetch_offers();
	SELECT reconcile.admit_session_command('t', 'had', 'do', 'input', 'x', apply_deadline_in => '1 h');
	SELECT reconcile.set_pointer('t', 'had', 'active_continuation', 1, 'token', 1, 'it');
	SELECT reconcile.acquire_claim('t', 'had', 'me', '5 min');
	UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000;
	SELECT reconcile.place_session('t', 'offered');
	EOS
$primary->poll_query_until('postgres', 'SELECT count(*) = 4 FROM seen') or die;

my $standby = new_standby($primary, 'standby', conf => $conf);
$primary->wait_for_catchup($standby);

# ---------------------------------------------------------------------------
# As a standby

my @views = split /\n/, $standby->safe_psql('postgres', q{SELECT viewname FROM pg_views WHERE schemaname = 'reconcile' ORDER BY 1});
for my $view (@views)
{
	my ($status, $out, $err) = $standby->psql('postgres', "SELECT * FROM reconcile.$view");
	is("$status$err", '0', "the view $view reads");
}
is($standby->safe_psql('postgres', 'SELECT loop_name, waiting FROM reconcile.loops ORDER BY 1'), "leased|2\nplain|2", 'with what the primary has');
is($standby->safe_psql('postgres', 'SELECT reconciler_id, epoch, live FROM reconcile.leases ORDER BY 1'), "leased|1|t\nmine|1|t", 'and its leases');

for my $call (
	q{reconcile.enqueue('plain', 'x')},
	q{reconcile.enqueue_many('plain', '{x}')},
	q{reconcile.create_loop('another', 'see')},
	q{reconcile.alter_loop('plain', '{"concurrency": 3}')},
	q{reconcile.drop_loop('plain')},
	q{reconcile.pause_loop('plain')},
	q{reconcile.resume_loop('plain')},
	q{reconcile.watch('plain', 'seen', 'id')},
	q{reconcile.unwatch('plain', 'seen')},
	q{reconcile.revive('plain', 'x')},
	q{reconcile.forget('plain', 'x')},
	q{reconcile.acquire_lease('other', 'me')},
	q{reconcile.try_acquire_lease('other', 'me')},
	q{reconcile.renew_lease('mine', 'me', 1)},
	q{reconcile.release_lease('mine', 'me', 1)},
	q{reconcile.bump_incarnation('why')},
	q{reconcile.resume_all()},
	q{reconcile.bind_lease('mine', 'me', 1)},
	q{reconcile.apply_fenced('mine', 'x', 1, '{}')},
	q{reconcile.fenced_write('x', '{}')},
	q{reconcile.create_session('t', 'had', 'bot', 'pooled', 'made')},
	q{reconcile.update_desired_state('t', 'had', 'other', 1, 'pooled')},
	q{reconcile.update_host_state('t', 'had', 1, 'token', 'running', 'resident', 1)},
	q{reconcile.acquire_claim('t', 'had', 'me', '1 min')},
	q{reconcile.release_claim('t', 'had', 'me', 'token')},
	q{reconcile.admit_session_command('t', 'had', 'more', 'input', 'x')},
	q{reconcile.claim_session_command('t', 'had', 'do', 1, 'token', 1)},
	q{reconcile.begin_attempt('t', 'had', 'do', 1, 'token', 1, 'try')},
	q{reconcile.settle_attempt('t', 'had', 'do', 1, 'token', 1, 'try', 'applied')},
	q{reconcile.reject_session_command('t', 'had', 'do', NULL, NULL, 1)},
	q{reconcile.set_pointer('t', 'had', 'active_continuation', 1, 'token', 2, 'that')},
	q{reconcile.clear_pointer('t', 'had', 'active_continuation', 1, 'token')},
	q{reconcile.register_host('node', current_user)},
	q{reconcile.unregister_host('node')},
	q{reconcile.publish_host_target('node', 1, 'bot', 'x64', 'pooled', 'ws://node', 'cross_tenant_isolated', true, 5)},
	q{reconcile.drain_host_target('node', 1, 'bot', 'x64', 'pooled')},
	q{reconcile.heartbeat_host('node', 1)},
	q{reconcile.accept_offer(2, 1, 'token')},
	q{reconcile.refuse_offer(2)},
	q{reconcile.release_session('t', 'had', 1, 'token')},
	q{reconcile.fetch_intents('platform')},
	q{reconcile.report_workload('t', 'had', 1, 'pending')},
	q{reconcile.request_drain('t', 'had', 1)},
	q{reconcile.report_drained('t', 'had', 1, 'node', 1)},
	q{reconcile.may_delete_workload('t', 'had', 1)},
	q{reconcile.record_termination('t', 'had', 1, 'forced', 'drain_timeout', 0)},
	q{reconcile.place_session('t', 'had')},
	q{reconcile.place_entity('1')},
	q{reconcile.control_shards()},
	q{reconcile.set_placement('{}')},
	q{reconcile.sweep_pending()},
	q{reconcile.sweep_deadlines()},
	q{reconcile.sweep_host_targets()},
	q{reconcile.sweep_offers()},
	q{reconcile.sweep_claims('me')},
	q{reconcile.sweep_entity('offers')})
{
	my ($status, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT $call");
	like($err, qr/ERROR:  25006/, "$call is refused with 25006");
}
my ($status, $out, $err) = $standby->psql('postgres', "\\set VERBOSITY sqlstate\nCALL reconcile.run_loop()");
like($err, qr/ERROR:  25006/, 'CALL reconcile.run_loop() is refused with 25006');

# What only reads answers.
is($standby->safe_psql('postgres', "SELECT $$_[0]"), $$_[1], "$$_[0] answers") foreach (
	[ q{outcome || ' ' || host_id FROM reconcile.owner_of('t', 'had')}, 'live node' ],
	[ q{owner FROM reconcile.get_session('t', 'had')}, 'live' ],
	[ q{generation FROM reconcile.placement_intent('t', 'had')}, 1 ],
	[ q{outcome FROM reconcile.get_claim('t', 'had')}, 'live' ],
	[ q{outcome FROM reconcile.get_pointer('t', 'had', 'active_continuation')}, 'set' ],
	[ q{outcome FROM reconcile.get_termination('t', 'had', 1)}, 'not_found' ],
	[ q{command_id FROM reconcile.session_commands('t', 'had')}, 'do' ],
	[ q{command_id FROM reconcile.due_session_commands(reconcile.control_shard_of('t', 'had', 16), '2 h')}, 'do' ],
	[ q{host_id FROM reconcile.compatible_hosts('bot', 'x64', 'pooled')}, 'node' ],
	[ q{session_id FROM reconcile.fetch_offers()}, 'offered' ],
	[ q{verdict FROM reconcile.explain_placement('t', 'had') WHERE step = 'outcome'}, 'deferred' ],
	[ q{verdict FROM reconcile.explain_placement('t', 'offered') WHERE step = 'outcome'}, 'offered' ],
	[ q{string_agg(session_id, ' ' ORDER BY session_id) FROM reconcile.sessions}, 'had offered' ]);

# What runs here can be seen only now, after all of the above.
is($standby->safe_psql('postgres', 'SELECT count(*) FROM reconcile.workers'), '0', 'no process of ours is there');
is($standby->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'reconcile%'}), '0', 'nor by another name');

# ---------------------------------------------------------------------------
# After the promotion

$primary->safe_psql('postgres', q{SELECT reconcile.enqueue('plain', 'waits', '1 h')});
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
$standby->promote;

$standby->safe_psql('postgres', q{SELECT reconcile.enqueue_many(l, '{a,c}') FROM unnest('{plain,leased}'::text[]) l});
ok( $standby->poll_query_until('postgres', <<~'EOS'), 'after the promotion the loops run, and look again at what they remember');
	SELECT array_agg(DISTINCT id || CASE WHEN epoch IS NULL THEN '' ELSE '*' END) = '{a,a*,b,b*,c,c*,waits}' FROM (SELECT * FROM seen OFFSET 4) s
	EOS
is($standby->safe_psql('postgres', q{SELECT count(DISTINCT s.epoch), bool_and(s.epoch > i.epoch_floor) FROM seen s, reconcile.incarnation() i WHERE s.epoch > 1}), '1|t',
	'under a higher epoch');
is($standby->safe_psql('postgres', q{SELECT epoch = 1, end_reason FROM reconcile.lease_history WHERE reconciler_id = 'leased' ORDER BY epoch}),
	"t|incarnation\nf|", 'granted at once, without waiting for the term before');
is($standby->safe_psql('postgres', q{SELECT epoch, live FROM reconcile.leases WHERE reconciler_id = 'mine'}), '1|f',
	'the term of a client is over, too');
is($standby->safe_psql('postgres', q{SELECT outcome FROM reconcile.owner_of('t', 'had')}), 'expired', 'and that of a host');
ok( $standby->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM reconcile.work WHERE state IN ('ready', 'running'))}), 'they come to rest');
is($standby->safe_psql('postgres', q{SELECT loop_name, entity_id, string_agg(kind::text, '' ORDER BY kind) FROM reconcile.mark GROUP BY 1, 2 ORDER BY 1, 2}),
	"leased|a|l\nleased|b|l\nleased|c|l\nplain|a|l\nplain|b|l\nplain|c|l\nplain|waits|lt",
	'each has one next look, and a delay of before is there');

finish();

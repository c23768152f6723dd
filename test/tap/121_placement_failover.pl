# Sessions whose hosts act outside, over a promotion and over bump_incarnation(): leases of
# before are void at once, and yet nobody has a session before the time is over that its
# host may have been told, also where the grant never arrived; epochs never repeat, and
# what was granted before stays refused. A change of incarnation waits for no host.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Their primary goes away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);

my $conf = "max_worker_processes = 16\n";
my $primary = new_node('primary', allows_streaming => 1, conf => $conf);

sql($primary, q{
	CREATE FUNCTION make(session text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.create_session('t', session, 'agent', 'pooled', 'made', 'rt') $$;
	CREATE FUNCTION place(session text) RETURNS text LANGUAGE sql AS $$
		SELECT outcome FROM reconcile.place_session('t', session) $$;
	CREATE FUNCTION offer(session text) RETURNS bigint LANGUAGE sql AS $$
		SELECT offer_id FROM reconcile.session_offer WHERE tenant_id = 't' AND session_id = session AND state = 'offered' $$;
	CREATE FUNCTION say(session text, e bigint) RETURNS text LANGUAGE sql AS $$
		SELECT string_agg(o.outcome || coalesce(' ' || o.session_id, ''), ', ') FROM reconcile.heartbeat_host('h', 1, '[]',
			jsonb_build_array(jsonb_build_object('tenant_id', 't', 'session_id', session, 'epoch', e, 'token', 'token'))) o $$;
	SELECT reconcile.register_host('h', current_user), reconcile.control_shards();
	UPDATE reconcile.placement_setting SET session_ttl_ms = 300000, offer_ttl_ms = 300000;
	SELECT reconcile.publish_host_target('h', 1, 'agent', 'rt', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1000, '15 min');
	SELECT make(s), place(s) FROM unnest('{a,b,never}'::text[]) s;
	SELECT reconcile.accept_offer(offer(s), 1, 'token') FROM unnest('{a,b}'::text[]) s;
	SELECT outcome FROM reconcile.release_session('t', 'b', 1, 'token');
});
my $standby = new_standby($primary, 'standby', conf => $conf);
$primary->wait_for_catchup($standby);

# What is granted from here on never arrives.
sql($standby, q{ALTER SYSTEM SET primary_conninfo = ''});
$standby->reload;
ok($standby->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)}), 'the standby is cut off');
is(sql($primary, q{SELECT outcome, epoch FROM reconcile.accept_offer(offer('never'), 1, 'token')}), 'accepted|1', 'a grant is lost');
is(sql($primary, q{SELECT say('a', 1)}), 'renewed', 'so is a renewal');
is(sql($primary, q{SELECT place('b')}), 'attach_pooled', 'and what follows a session that was let go');
$primary->stop('immediate');
$standby->promote;

is(sql($standby, q{SELECT verdict FROM reconcile.explain_placement('t', 'a') WHERE step IN ('lease', 'outcome') ORDER BY step}),
	"live\nlease_busy", 'a placement is explained');
is(sql($standby, q{SELECT count(*) FROM reconcile.incarnation WHERE reason = 'the timeline changed'}), '0', 'and begins no incarnation');
is(sql($standby, q{SELECT outcome, epoch FROM reconcile.owner_of('t', 'a')}), 'expired|1', 'after the promotion a lease is void');
is(sql($standby, q{SELECT owner FROM reconcile.sessions WHERE session_id = 'a'}), 'expired', 'as the view says');
is(sql($standby, q{SELECT say('a', 1)}), 'renewed, expired a', 'and its host is told so');
is(sql($standby, q{SELECT outcome FROM reconcile.set_pointer('t', 'a', 'active_continuation', 1, 'token', 1, 'x')}), 'lease_lost', 'and writes nothing');
sql($standby, q{SELECT reconcile.publish_host_target('h', 2, 'agent', 'rt', 'pooled', 'ws://h', 'cross_tenant_isolated', true, 1000, '15 min')});
is(sql($standby, qq{SELECT place('$_')}), 'lease_busy', "nobody has $_ while its host may have been told that it has it") for qw(a b);
is(sql($standby, q{SELECT place('never')}), 'offered', 'one whose grant never arrived is offered');
is(sql($standby, q{SELECT outcome, epoch, remaining > '4 min' AND remaining <= '5 min' FROM reconcile.accept_offer(offer('never'), 2, 'late')}), 'lease_busy||t',
	'and given to nobody, for as long as somebody may have been told of it');
is(sql($standby, q{SELECT reason FROM reconcile.incarnation()}), 'the timeline changed', 'placing has begun the incarnation');
is(sql($standby, q{SELECT make('new') || ' ' || place('new')}), 'created attach_pooled', 'one that was made since is nobody\'s');
is(sql($standby, q{SELECT outcome, epoch > (SELECT epoch_floor FROM reconcile.incarnation()) FROM reconcile.accept_offer(offer('new'), 2, 'token')}), 'accepted|t',
	'and has a host at once, above the floor');

# That time is over.
sub passes
{
	sql($standby, q{UPDATE reconcile.incarnation SET since = since - interval '2 h';
		UPDATE reconcile.lease SET expires_at = expires_at - interval '2 h', touched_at = touched_at - interval '2 h', acquired_at = acquired_at - interval '2 h'
		 WHERE epoch <= (SELECT epoch_floor FROM reconcile.incarnation())});
	return;
}
passes();
for my $s (qw(a b))
{
	is(sql($standby, qq{SELECT place('$s')}), 'attach_pooled', "$s is offered when it is");
	is(sql($standby, qq{SELECT outcome, epoch > (SELECT epoch_floor FROM reconcile.incarnation()) FROM reconcile.accept_offer(offer('$s'), 2, 'token')}), 'accepted|t',
		'and has its host, above the floor');
}
is(sql($standby, q{SELECT outcome FROM reconcile.accept_offer(offer('never'), 2, 'late')}), 'accepted', 'as has the one whose grant was lost');
like(sql($standby, q{SELECT say('a', 1)}), qr/generation|epoch a/, 'who had it before is told so');
is(sql($standby, q{SELECT outcome FROM reconcile.set_pointer('t', 'a', 'active_continuation', 1, 'token', 1, 'x')}), 'lease_lost', 'and is refused');

# ----------------------------------------------------------------------
note 'bump_incarnation()';

my $epoch = sql($standby, q{SELECT epoch FROM reconcile.owner_of('t', 'a')});
my $beat = qq{SELECT o.outcome, o.session_id FROM reconcile.heartbeat_host('h', 2, '[]', jsonb_build_array(jsonb_build_object('tenant_id', 't', 'session_id', 'a', 'epoch', $epoch, 'token', 'token'))) o};
my $host = $standby->background_psql('postgres');
$host->query_safe('BEGIN');
is($host->query_safe($beat), 'renewed|', 'a host renews, and hangs');
is(sql($standby, q{SET lock_timeout = '10 s'; SELECT reconcile.bump_incarnation('restored') > 0}), 't', 'a change of incarnation does not wait for it');
is(sql($standby, q{SELECT outcome FROM reconcile.owner_of('t', 'a')}), 'expired', 'its lease is void');
$host->query_safe('COMMIT');
$host->quit;
is(sql($standby, q{SELECT outcome FROM reconcile.owner_of('t', 'a')}), 'expired', 'also when that commits');
is(sql($standby, q{SELECT owner FROM reconcile.sessions WHERE session_id = 'a'}), 'expired', 'as the view says');
is(sql($standby, $beat), "renewed|\nexpired|a", 'its host is told so');
is(sql($standby, q{SELECT place('a')}), 'lease_busy', 'and is waited for');
passes();
is(sql($standby, q{SELECT place('a')}), 'attach_pooled', 'no longer than it was told');
is(sql($standby, qq{SELECT outcome, epoch > $epoch FROM reconcile.accept_offer(offer('a'), 2, 'token')}), 'accepted|t', 'the next holder has a later epoch');
is(sql($standby, qq{SELECT end_reason FROM reconcile.lease_term JOIN reconcile.session ON reconciler_id = 'session:' || number WHERE session_id = 'a' AND epoch = $epoch}), 'incarnation',
	'the history says what became of the one before');
is(sql($standby, q{SELECT count(*) FROM (SELECT reconciler_id, epoch FROM reconcile.lease_term GROUP BY 1, 2 HAVING count(*) > 1) t}), '0', 'no epoch was granted twice');

finish();

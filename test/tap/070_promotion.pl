# Promotion (P5, P6): on the promoted server everything that was granted before is
# void before anybody was granted a new term, also a grant that never arrived, and
# each new epoch is higher; loops run, and what was in flight is looked at again.

use strict;
use warnings;

use LoopTest;
use LostPast;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Their primaries go away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/);

my $conf = "max_worker_processes = 16\n";

sub floor_of
{
	my ($node) = @_;
	return sql($node, 'SELECT epoch_floor FROM reconcile.incarnation()');
}

# ----------------------------------------------------------------------
note 'a synchronous standby';

my $primary = new_node('primary', allows_streaming => 1, conf => $conf);
prepare($primary);
make_loop($primary, 'plain');
make_loop($primary, 'led', options => q{lease_ttl => '1 hour'},
	body => q{PERFORM reconcile.fenced_write(entity, '{}'); RETURN NULL;});
sql($primary, q{SELECT reconcile.create_loop('outside')});
my $standby = new_standby($primary, 'standby', conf => $conf);
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
$primary->reload;

is(sql($primary, q{SELECT epoch FROM reconcile.acquire_lease('mine', 'me', '1 h')}), 1, 'a client is granted a term');
is(sql($primary, q{SELECT reconcile.apply_fenced('mine', 'entity', 1, '{"by": "me"}')}), 't', 'and writes under its epoch');
enqueue($primary, 'led', 'a');
enqueue($primary, 'plain', 'a');
wait_quiet($primary, $_) for qw(led plain);
sql($primary, q{SELECT reconcile.enqueue(l, 'later', '1 h') FROM unnest('{plain,led,outside}'::text[]) l});
is(sql($standby, q{SELECT live FROM reconcile.leases WHERE reconciler_id = 'mine'}), 't', 'the standby shows the term as live');
my $stored = q{SELECT incarnation, timeline, epoch_floor, since IS NULL, reason FROM reconcile.incarnation()};
is(sql($primary, $stored), '1|1|0|f|first grant', 'the first life has floor 0');
is(sql($standby, $stored), '1|1|0|f|first grant', 'as the standby says');

# The session is there before, during and after the promotion.
my $session = $standby->background_psql('postgres');
is($session->query_safe(q{SELECT live FROM reconcile.leases WHERE reconciler_id = 'mine'}), 't', 'also to a session that stays');

my $at_promotion = sql($primary, q{SELECT floor(extract(epoch FROM clock_timestamp()))});
$primary->stop('immediate');
$standby->promote;

is($session->query_safe(q{SELECT live FROM reconcile.leases WHERE reconciler_id = 'mine'}), 'f', 'after the promotion it is void, to that session');
is($session->query_safe(q{SELECT reconcile.apply_fenced('mine', 'entity', 1, '{}')}), 'f', 'which cannot write with it either');
refused($standby, 'mine', 'me', $_) for 1, 2;
is(sql($standby, q{SELECT last_epoch, state FROM reconcile.resources WHERE reconciler_id = 'mine'}), '1|{"by": "me"}', 'nothing was written');

# The dispatcher has been granted its loop's lease, or will be.
wait_for($standby, q{EXISTS (SELECT FROM reconcile.leases WHERE reconciler_id = 'led' AND live)}, 'the leased loop is led again, without waiting for its term of before');
like(sql($standby, $stored), qr/^2\|2\|\d{16}\|f\|the timeline changed$/, 'its grant has begun another incarnation');
cmp_ok(floor_of($standby), '>=', $at_promotion * 2**20, 'with a floor by the clock');
cmp_ok(floor_of($standby), '<', 2**53, 'that any JSON number can hold');
is(sql($standby, q{SELECT reconciler_id, epoch, end_reason FROM reconcile.lease_history WHERE ended_at IS NOT NULL ORDER BY 1}),
	"led|1|incarnation\nmine|1|incarnation", 'the history of all terms of before is closed');
refused($standby, 'mine', 'me', 1);
granted_above($standby, 'mine', 1, 2);
refused($standby, 'mine', 'me', $_) for 1, 2;

wait_for($standby, q{(SELECT count(*) FROM app.run WHERE entity_id = 'later') = 2}, 'loops run, and what they remember is looked at again');
is(sql($standby, q{SELECT count(*) FROM app.run WHERE entity_id = 'a'}), 2, 'nothing else is');
is(sql($standby, q{SELECT r.epoch > i.epoch_floor FROM app.run r, reconcile.incarnation() i WHERE r.loop_name = 'led' AND r.entity_id = 'later'}), 't',
	'a leased one at an epoch above the floor');
is(sql($standby, q{SELECT last_epoch > 1 FROM reconcile.resources WHERE reconciler_id = 'led' AND entity_id = 'later'}), 't', 'under which it writes');
is(sql($standby, q{SELECT count(*) FROM reconcile.loops WHERE paused}), 0, 'none is paused');
is(sql($standby, q{SELECT entity_id FROM reconcile.claim_work('outside', 'w')}), 'later', 'also what outside workers remembered');
is(sql($standby, q{SELECT status FROM reconcile.health WHERE check_name = 'incarnation'}), 'ok', 'health is content');
$session->quit;
my $second_floor = floor_of($standby);

# ----------------------------------------------------------------------
note 'an asynchronous standby, whose last grants were lost';

$primary = $standby;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$primary->reload;
sql($primary, q{SELECT reconcile.drop_loop(loop_name) FROM reconcile.loops});
sql($primary, q{SELECT reconcile.release_lease(reconciler_id, holder_id, epoch) FROM reconcile.leases WHERE live});
my $known = grant($primary, 'mine', 'me');
my $third = new_standby($primary, 'third', conf => $conf);
$primary->wait_for_catchup($third);

# What is written from here on never arrives.
sql($third, q{ALTER SYSTEM SET primary_conninfo = ''});
$third->reload;
ok($third->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)}), 'the standby is cut off');
my $lost = grant($primary, 'mine', 'you');
is($lost, $known + 1, 'a grant is lost');
my $first = grant($primary, 'first', 'you');
cmp_ok($first, '>', $second_floor, 'so is the first one of an id');
is(sql($primary, qq{SELECT reconcile.apply_fenced('mine', 'entity', $lost, '{"by": "you"}')}), 't', 'a write under it, too');
$primary->stop('immediate');
$third->promote;

is(sql($third, q{SELECT timeline, since IS NULL, reason FROM reconcile.incarnation()}), '3|t|the timeline changed', 'nobody was granted anything since');
is(sql($third, q{SELECT status, detail FROM reconcile.health WHERE check_name = 'incarnation'}),
	'warn|the timeline changed: all leases that were granted before are void', 'as health says');
refused($third, 'mine', 'me', $known);
refused($third, 'mine', 'you', $lost);
refused($third, 'first', 'you', $first);
granted_above($third, 'mine', $known, $lost);
granted_above($third, 'first', $first);
refused($third, 'mine', 'you', $lost);
refused($third, 'first', 'you', $first);
is(sql($third, q{SELECT incarnation, timeline, reason FROM reconcile.incarnation()}), '3|3|the timeline changed', 'it is the third life');

finish();

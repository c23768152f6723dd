# Commands on a standby, and after a promotion, of a standby that has all and of one that
# has not: what is read there, and what is refused; keys stay used, the audit is the one
# whose head was kept, what was given out is not given out again, and pollers miss no
# change, not even one that takes back what they have read and is lost.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Their primaries go away.
expect_log(qr/FATAL:  .*could not (?:receive data from WAL stream|connect to the primary server)/,
	qr/WARNING:  terminating connection due to immediate shutdown command/);

my $conf = "max_worker_processes = 16\n";
my $primary = new_node('primary', allows_streaming => 1, conf => $conf);
make_journal_roles($primary);
prepare($primary);
make_journal($primary);
my $standby = new_standby($primary, 'standby', conf => $conf);
$primary->wait_for_catchup($standby);

# ----------------------------------------------------------------------
note 'a standby';

my $head = kept_head($primary, 'acme');
is(verified($standby, 'acme', $head), 'ok', 'the audit is verified there');
is(journal_rows($standby), journal_rows($primary), 'it has all rows');
foreach my $read (
	q{SELECT * FROM reconcile.commands ORDER BY command_id},
	q{SELECT * FROM reconcile.command_timeline ORDER BY sequence},
	q{SELECT * FROM reconcile.audit_events ORDER BY sequence},
	q{SELECT * FROM reconcile.desired_states ORDER BY target_name},
	q{SELECT * FROM reconcile.desired_drift ORDER BY target_name},
	q{SELECT * FROM reconcile.desired_states_since('acme')},
	q{SELECT * FROM reconcile.desired_state_of('acme', 'worker_group', 'g2')},
	q{SELECT * FROM reconcile.effective_state('acme', 'w2', 'g2')},
	q{SELECT e.* FROM reconcile.commands c, reconcile.explain_command('acme', c.command_id) e ORDER BY c.command_id},
	q{SELECT * FROM reconcile.audit_verify('acme')},
	q{SELECT * FROM reconcile.desired_state_of('other', 'worker_group', 'g2')},
	q{SELECT * FROM reconcile.next_desired_state('paused', 1, 'resume', 'queue')})
{
	my $there = sql($standby, "SET ROLE giver; $read");

	is($there, sql($primary, "SET ROLE giver; $read"), "as on the primary: $read");
	isnt($there, '', 'and something') if $read !~ /'other'/;
}
foreach my $write (
	q{accept_command('acme', 'standby', 'drain', 'worker', 'w', 'why')},
	q{accept_command('acme', 'done', 'pause', 'worker_group', 'g2', 'why')},
	q{cancel_command('acme', 'id', 'why')},
	q{resolve_command('acme', 'id', 'succeeded', '{"a": 1}', 'why')},
	q{claim_commands('d')},
	q{acknowledge_command('acme', 'id', 'token')},
	q{complete_command('acme', 'id', 'token', 'succeeded')},
	q{sweep_commands()},
	q{report_observed('acme', 'w', 'worker', 'w1', 1, 'paused')},
	q{register_action('another', '{note}', 'external')},
	q{grant_command('giver', 'acme', 'view')},
	q{revoke_command('giver', 'acme', 'view')},
	q{set_authorizer()},
	q{audit_access('acme', 'payload_view', 'failure', 'f1', 'why')},
	q{set_command_retention('acme', '1 day')},
	q{prune_commands('acme')})
{
	my $stderr;

	$standby->psql('postgres', "\\set VERBOSITY verbose\nSELECT * FROM reconcile.$write", stderr => \$stderr);
	like($stderr, qr/ERROR:  25006: cannot execute \w+\(\) during recovery/, "refused there: $write");
}

# A session keeps the grants of its role until they change, there too.
my $reader = $standby->background_psql('postgres');
isnt($reader->query_safe(q{SET ROLE giver; SELECT count(*) FROM reconcile.audit_events}), 0, 'a session reads');
sql($primary, q{SELECT reconcile.revoke_command('giver', 'acme', 'audit_view')});
$primary->wait_for_catchup($standby);
is($reader->query_safe(q{SELECT count(*) FROM reconcile.audit_events}), 0, 'until that is revoked');
sql($primary, q{SELECT reconcile.grant_command('giver', 'acme', 'audit_view')});
$primary->wait_for_catchup($standby);
isnt($reader->query_safe(q{SELECT count(*) FROM reconcile.audit_events}), 0, 'and when it is granted again');
$reader->quit;

my ($position) = poll($standby);
my $open = $primary->background_psql('postgres');
$open->query_safe(q{BEGIN; SELECT reconcile.accept_command('acme', 'open', 'drain', 'worker', 'open', 'why', deadline_in => '5 min')});
accept_as($primary, 'giver', 'after', 'drain', 'worker', 'after');
$primary->wait_for_catchup($standby);
is(sql($standby, q{SELECT state FROM reconcile.desired_states WHERE target_name = 'after'}), 'draining', 'a change has come');
is((poll_now($standby, $position))[1], '', 'a poller there is not shown it, as one before it may come');
$open->query_safe('COMMIT');
$open->quit;
$primary->wait_for_catchup($standby);
is((poll($standby, $position))[1], 'open draining 1, after draining 1', 'then it is shown both');

# ----------------------------------------------------------------------
note 'promotion of a synchronous standby';

$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
$primary->reload;
$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;
is(accept_as($primary, 'giver', 'last', 'resume', 'worker_group', 'g3'), 'accepted pending', 'a command is accepted');
$head = kept_head($primary, 'acme');
($position) = poll($primary);
my (undef, $targets) = poll($primary);
my $session = $standby->background_psql('postgres');
$session->query_safe(q{SELECT count(*) FROM reconcile.desired_states_since('acme')});
$primary->stop('immediate');
$standby->promote;
is(accept_as($standby, 'giver', 'last', 'resume', 'worker_group', 'g3'), 'replayed pending', 'it is there, and not accepted again');
is(verified($standby, 'acme', $head), 'ok', 'the audit is that of the head that was kept');
is($session->query_safe(qq{SELECT count(*) FROM reconcile.desired_states_since('acme', '$position')}), 9, 'a position of before begins anew, in a session of before too');
is(polled($standby, $position), $targets, 'page by page');
replays($standby);
is(sql($standby, q{SELECT reconcile.complete_command(tenant_id, command_id, claim_token, 'succeeded') FROM reconcile.command WHERE idempotency_key = 'given'}),
	'completed', 'who was given a command reports it');
is(sql($standby, q{SELECT skipped, failed FROM reconcile.sweep_commands()}), '0|0', 'a sweep begins');
$session->quit;

# ----------------------------------------------------------------------
note 'promotion of a standby that has not all';

$primary = $standby;
$primary->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$primary->reload;
my $third = new_standby($primary, 'third', conf => $conf);
$primary->wait_for_catchup($third);
(undef, $targets) = poll($third);
$head = kept_head($primary, 'acme');
sql($third, q{ALTER SYSTEM SET primary_conninfo = ''});
$third->reload;
ok($third->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)}), 'the standby is cut off');

# What it does not have: two desired states, of which one is the first of its target, a claim.
is(accept_as($primary, 'giver', 'lost one', 'terminate', 'worker', 'w1'), 'accepted pending', 'a command is lost');
is(accept_as($primary, 'giver', 'lost two', 'drain', 'worker', 'w9'), 'accepted pending', 'and another');
my $claim = sql($primary, q{SET ROLE dispatcher; SELECT command_id || ''', ''' || claim_token FROM reconcile.claim_commands('d', '{resume}', ttl => '1 h')});
my ($lost, $seen) = poll($primary);
like($seen, qr/w1 terminating 2, w9 draining 1$/, 'a poller has read them');
my $lost_head = kept_head($primary, 'acme');
$primary->stop('immediate');
$third->promote;

is(polled($third, $lost), $targets, 'it is shown what is true now');
like($targets, qr/w1 draining 1/, 'which is another');
is(verified($third, 'acme', $head), 'ok', 'the audit is that of the head of before');
like(verified($third, 'acme', $lost_head), qr/^cut /, 'and not of the one that is lost');
is(sql($third, "SET ROLE dispatcher; SELECT reconcile.complete_command('acme', '$claim', 'succeeded')"), 'stale_token', 'a claim that is lost is none');
is(accept_as($third, 'giver', 'new', 'drain', 'worker', 'w10'), 'accepted pending', 'a command is accepted');
is(polled($third, $lost), "$targets, w10 draining 1", 'and shown to a poller of before with all others');
my ($new) = poll($third, undef);
is(accept_as($third, 'giver', 'newer', 'terminate', 'worker', 'w1'), 'accepted pending', 'another one');
is((poll($third, $new))[1], 'w1 terminating 2', 'who has read here is shown what is new');
accept_as($third, 'giver', "more $_", 'drain', 'worker', 'w11') foreach 1 .. 3;
like(verified($third, 'acme', $lost_head), qr/^forked /, 'the audit has gone on without what was lost');

finish();

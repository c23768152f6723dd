# The tables of commands as the target of a subscription: it brings what is over, changed
# and pruned on the publisher past the triggers that keep such rows from everybody else;
# the audit is verified there; and who fails over to the subscriber has all of it.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $publisher = new_node('publisher', allows_streaming => 'logical', conf => "wal_level = logical\nmax_worker_processes = 16\n");
# a server of its own, not a copy
my $subscriber = new_node('subscriber', initdb => [], conf => "max_worker_processes = 16\n");
make_journal_roles($_) foreach $publisher, $subscriber;
prepare($_) foreach $publisher, $subscriber;
make_journal($publisher);
sql($publisher, q{CREATE PUBLICATION ours FOR TABLES IN SCHEMA reconcile});

# replicated(NAME): a test that the subscriber has what the publisher has.
sub replicated
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(journal_rows($subscriber), journal_rows($publisher), "$name: all rows are there");
	is(verified($subscriber, 'acme', kept_head($publisher, 'acme')), 'ok', 'and the audit is the same');
	return;
}

# The roles have other numbers there.
sql($subscriber, 'DROP ROLE giver, dispatcher, kept_off; CREATE ROLE other; CREATE ROLE kept_off; CREATE ROLE dispatcher; CREATE ROLE giver; GRANT giver TO kept_off');
my $connection = $publisher->connstr . ' dbname=postgres';
sql($subscriber, "CREATE SUBSCRIPTION ours CONNECTION '$connection' PUBLICATION ours");
$subscriber->wait_for_subscription_sync($publisher, 'ours');
replicated('the initial copy');

# ----------------------------------------------------------------------
note 'what the publisher does comes, whatever it is';

my $ends = q{SELECT reconcile.complete_command(tenant_id, command_id, claim_token, 'failed', 'target_mismatch') FROM reconcile.command WHERE idempotency_key IN ('held', 'given')};
is(sql($publisher, $ends), "completed\ncompleted", 'commands end');
is(accept_as($publisher, 'giver', 'new', 'resume', 'worker_group', 'g3'), 'accepted pending', 'another begins');
sql($publisher, q{SET ROLE boss;
	SELECT reconcile.register_action('noted', '{note,paper}', 'unavailable');
	SELECT reconcile.grant_command('giver', 'acme', 'drain', effect => 'deny');
	SELECT reconcile.revoke_command('dispatcher', 'acme', 'report')});
$publisher->wait_for_catchup('ours');
replicated('ends');
is(sql($publisher, q{UPDATE reconcile.command_retention SET keep = '0'; SELECT events > 0, commands > 0 FROM reconcile.prune_commands('acme')}), 't|t', 'what is old is pruned');
$publisher->wait_for_catchup('ours');
replicated('pruned');

# ----------------------------------------------------------------------
note 'nobody else may';

foreach my $as ('', 'SET session_replication_role = replica;', 'SET ROLE boss; SET session_replication_role = replica;')
{
	session_fails($subscriber, '55000', "$as UPDATE reconcile.audit_event SET reason = 'x'", "events are kept: $as");
	session_fails($subscriber, '55000', "$as DELETE FROM reconcile.command WHERE completed_at IS NOT NULL", "and what is over: $as");
	session_fails($subscriber, '55000', "$as DELETE FROM reconcile.command_tombstone", "and keys: $as");
}
# Privileges on the tables and functions do not come with a subscription.
session_fails($subscriber, '42501', q{SET ROLE giver; SELECT * FROM reconcile.audit_events}, 'nobody reads them yet');
session_fails($subscriber, '42501', q{SET ROLE giver; SELECT reconcile.audit_verify('acme')}, 'or calls a function');
sql($subscriber, q{GRANT SELECT ON ALL TABLES IN SCHEMA reconcile TO giver, other});
is(sql($subscriber, q{SET ROLE giver; SELECT count(*) > 3 FROM reconcile.audit_events}), 't', 'of who has the tables one that may read them there does here');
is(sql($subscriber, q{SET ROLE other; SELECT count(*) FROM reconcile.audit_events}), 0, 'and another sees no row');
is(sql($subscriber, q{SELECT count(*) FROM reconcile.command_action WHERE builtin}), sql($publisher, q{SELECT count(*) FROM reconcile.builtin_actions()}),
	'what is built in is there once');

# ----------------------------------------------------------------------
note 'fail-over to the subscriber';

my ($position, $targets) = poll($publisher);
my $head = kept_head($publisher, 'acme');
$publisher->wait_for_catchup('ours');
$publisher->stop('immediate');
sql($subscriber, $_) for 'ALTER SUBSCRIPTION ours DISABLE', 'ALTER SUBSCRIPTION ours SET (slot_name = NONE)', 'DROP SUBSCRIPTION ours';
is(polled($subscriber, $position), $targets, 'a position of the publisher is shown all');
sql($subscriber, q{SELECT reconcile.grant_command(role_name, tenant_id, permission, NULLIF(target_kind, ''), NULLIF(target_name, ''), effect)
	FROM reconcile.command_grant});
is(accept_as($subscriber, 'giver', 'new', 'resume', 'worker_group', 'g3'), 'denied', 'without the function of the authorizer nobody may anything');
sql($subscriber, q{CREATE FUNCTION app.agrees(request jsonb) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$; ALTER FUNCTION app.agrees OWNER TO boss});
is(accept_as($subscriber, 'giver', 'new', 'resume', 'worker_group', 'g3'), 'replayed pending', 'a key that was used there is used here');
is(accept_as($subscriber, 'giver', 'done', 'pause', 'worker_group', 'g2'), 'replayed succeeded', 'one that was pruned, too');
is(accept_as($subscriber, 'giver', 'drained', 'drain', 'worker', 'w5'), 'denied', 'who was denied is');
is(accept_as($subscriber, 'giver', 'newer', 'terminate', 'worker', 'w5'), 'accepted pending', 'it goes on');
is(polled($subscriber, $position), "$targets, w5 terminating 1", 'and pollers are shown it with the others');
is(sql($subscriber, q{SET ROLE dispatcher; SELECT count(*) FROM reconcile.claim_commands('d', max_items => 10, ttl => '1 h')}), 3, 'what nobody has is claimed');
is(verified($subscriber, 'acme', $head), 'ok', 'the audit goes on from the head that was kept');

finish();

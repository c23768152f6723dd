# What commands were about, or who gave them, goes: the extension, also in the transaction
# of a command and beside sessions that know it; loops, roles, functions.  What is kept of
# commands stays as it was, and nothing that is gone lets anybody by.

use strict;
use warnings;

use JournalTest;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
make_journal_roles($node);
prepare($node);
make_journal($node);
my $head = kept_head($node, 'acme');
my $count = 'SELECT (SELECT count(*) FROM reconcile.command), (SELECT count(*) FROM reconcile.audit_event)';

# give(KEY): of a superuser, for a tenant of its own.
sub give
{
	my ($key) = @_;
	return "SELECT outcome FROM reconcile.accept_command('own', '$key', 'drain', 'worker', 'w', 'why')";
}

# ----------------------------------------------------------------------
note 'a loop';

sql($node, q{SELECT reconcile.pause_loop('commanded'), reconcile.drop_loop('commanded')});
is(accept_as($node, 'giver', 'queue', 'pause', 'queue', 'commanded'), 'replayed succeeded', 'what was commanded of it is answered');
is(accept_as($node, 'giver', 'queue 2', 'resume', 'queue', 'commanded'), 'denied', 'it is no loop of a role any more, without a grant by its name');
is(accept_as($node, 'giver', 'queue 3', 'pause', 'queue', 'commanded'), 'accepted failed target_not_found', 'with one there is nothing to be done');
is(sql($node, q{SELECT state, revision FROM reconcile.desired_state_of('acme', 'queue', 'commanded')}), 'paused|1', 'and its desired state is as it was');
make_loop($node, 'commanded_2');
sql($node, q{SELECT reconcile.create_loop('commanded', 'app.commanded')});
is(accept_as($node, 'giver', 'queue 4', 'pause', 'queue', 'commanded'), 'accepted succeeded', 'another one of the name is commanded');
is(sql($node, q{SELECT paused FROM reconcile.loops WHERE loop_name = 'commanded'}), 't', 'it is paused');

# ----------------------------------------------------------------------
note 'functions, and the roles whose they are';

sql($node, 'ALTER FUNCTION app.note RENAME TO noted');
is(accept_as($node, 'giver', 'no function', 'noted', 'note', 'n5'), 'accepted failed dispatch_failed', 'an action whose function is gone fails');
is(accept_as($node, 'giver', 'no function', 'noted', 'note', 'n5'), 'replayed failed dispatch_failed', 'once and for all');
sql($node, 'ALTER FUNCTION app.noted RENAME TO note; ALTER ROLE boss RENAME TO chief');
is(accept_as($node, 'postgres', 'no role', 'noted', 'note', 'n6'), 'accepted failed dispatch_failed', 'so does one whose role is gone');
is(accept_as($node, 'giver', 'no role 2', 'drain', 'worker', 'w6'), 'denied', 'and its authorizer agrees to nothing');
sql($node, 'ALTER ROLE chief RENAME TO boss; ALTER FUNCTION app.agrees RENAME TO agreed');
is(accept_as($node, 'giver', 'no role 2', 'drain', 'worker', 'w6'), 'denied', 'one that is gone itself neither');
sql($node, 'ALTER FUNCTION app.agreed RENAME TO agrees');
is(accept_as($node, 'giver', 'no role 2', 'drain', 'worker', 'w6'), 'accepted pending', 'what is back counts');

# ----------------------------------------------------------------------
note 'roles with grants';

sql($node, 'ALTER ROLE giver RENAME TO sender');
is(accept_as($node, 'sender', 'renamed', 'drain', 'worker', 'w7'), 'denied', 'a role under another name has none');
sql($node, 'ALTER ROLE sender RENAME TO giver; ALTER ROLE kept_off RENAME TO held_off');
is(accept_as($node, 'held_off', 'renamed', 'noted', 'note', 'n7'), 'denied', 'but what it was denied');
sql($node, 'ALTER ROLE held_off RENAME TO kept_off');
session_fails($node, '2BP01', 'DROP ROLE giver', 'a role with grants is not dropped');
my $session = $node->background_psql('postgres');
is($session->query_safe(q{SET ROLE giver; SELECT count(*) FROM reconcile.commands}), sql($node, q{SELECT count(*) FROM reconcile.command WHERE tenant_id = 'acme'}), 'a session has its grants');
$session->query_safe('RESET ROLE');
sql($node, 'DROP OWNED BY giver, kept_off; DROP ROLE giver, kept_off; CREATE ROLE giver; CREATE ROLE kept_off');
is(sql($node, q{SELECT count(*) FROM reconcile.command_grant WHERE role_name = 'giver' AND role::oid IN (SELECT oid FROM pg_roles)}), 0, 'else they are left behind');
sql($node, 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO giver, kept_off; GRANT SELECT ON ALL TABLES IN SCHEMA reconcile TO giver');
is(accept_as($node, 'giver', 'anew', 'drain', 'worker', 'w8'), 'denied', 'and are not those of another role of the name');
is($session->query_safe(q{SET ROLE giver; SELECT count(*) FROM reconcile.commands}), 0, 'in the session of before neither');
$session->quit;
sql($node, q{SELECT reconcile.grant_command('kept_off', 'acme', 'noted')});
is(accept_as($node, 'kept_off', 'anew', 'noted', 'note', 'n8'), 'denied', 'only what it was denied is');
sql($node, q{SELECT reconcile.revoke_command(role_name, tenant_id, permission, NULLIF(target_kind, ''), NULLIF(target_name, ''))
	FROM reconcile.command_grant WHERE role_name IN ('giver', 'kept_off')});
is(sql($node, q{SELECT count(*) FROM reconcile.command_grant WHERE role_name IN ('giver', 'kept_off')}), 0, 'they can be revoked');
is(verified($node, 'acme', $head), 'ok', 'the audit is as it was, and has gone on');

# ----------------------------------------------------------------------
note 'the extension, in the transaction of a command';

my $before = sql($node, $count);
sql($node, 'BEGIN; ' . give('undone') . '; SAVEPOINT s; DROP EXTENSION reconcile; ROLLBACK TO s; ' . give('kept') . '; COMMIT');
is(sql($node, q{SELECT string_agg(idempotency_key, ' ' ORDER BY sequence) FROM reconcile.audit_event WHERE tenant_id = 'own'}), 'undone kept',
	'dropped in a savepoint that is rolled back, the audit has what was commanded before and after');
is(sql($node, 'BEGIN; ' . give('gone') . "; DROP EXTENSION reconcile; COMMIT; SELECT count(*) FROM pg_extension WHERE extname = 'reconcile'"), "accepted\n0", 'dropped with all its commands');
is(sql($node, q{SELECT count(*) FROM pg_namespace WHERE nspname = 'reconcile'}), 0, 'nothing of it is left');
sql($node, 'CREATE EXTENSION reconcile');
is(sql($node, $count), '0|0', 'created again it knows of none');
sql($node, 'BEGIN; ' . give('old') . '; DROP EXTENSION reconcile; CREATE EXTENSION reconcile; ' . give('new') . '; COMMIT');
is(sql($node, q{SELECT string_agg(concat_ws(' ', sequence, event, idempotency_key), ', ') FROM reconcile.audit_event}), '1 accepted new', 'created anew in that transaction it has what was commanded since');
is(verified($node, 'own'), 'ok', 'in a chain of its own');

# ----------------------------------------------------------------------
note 'the extension, beside sessions that know it';

my $user = $node->background_psql('postgres', on_error_stop => 0);
sql($node, q{SELECT reconcile.grant_command('giver', 'own', p) FROM unnest('{drain,view}'::text[]) p});
is($user->query_safe('SET ROLE giver; ' . give('by grant')), 'accepted', 'a session gives a command');
sql($node, 'DROP EXTENSION reconcile; CREATE EXTENSION reconcile');
like($user->query('\set VERBOSITY verbose' . "\n" . give('by grant')) . $user->{stderr}, qr/42501/, 'after it was created anew the grants of before are gone');
$user->{stderr} = '';
sql($node, 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA reconcile TO giver');
is($user->query_safe(give('by grant')), 'denied', 'who may call the functions may still do nothing');
sql($node, q{SELECT reconcile.grant_command('giver', 'own', p) FROM unnest('{drain,view}'::text[]) p});
is($user->query_safe(give('by grant')), 'accepted', 'and new ones count, for a key that is free again');

my $dropper = $node->background_psql('postgres', on_error_stop => 0);
my $drops = $dropper->query_safe('SELECT pg_backend_pid()');
is($user->query_safe('BEGIN; ' . give('open')), 'accepted', 'while a command is not committed');
begins($dropper, 'DROP EXTENSION reconcile;');
$node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $drops") or die;
is($user->query_safe(q{COMMIT; SELECT 'committed'}), 'committed', 'DROP EXTENSION waits for it');
is($dropper->query_safe(q{SELECT count(*) FROM pg_extension WHERE extname = 'reconcile'}), 0, 'and goes on');

sql($node, 'CREATE EXTENSION reconcile');
sql($node, q{SELECT reconcile.grant_command('giver', 'own', p) FROM unnest('{drain,view}'::text[]) p});
my $uses = $user->query_safe('SELECT pg_backend_pid()');
$dropper->query_safe('BEGIN; DROP EXTENSION reconcile');
begins($user, give('while it goes') . ';');
$node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $uses") or die;
$dropper->query_safe('COMMIT');
is($user->query(q{SELECT 'there'}), 'there', 'a command that waits for it is not accepted');
like($user->{stderr}, qr/ERROR/, 'it fails');
is(sql($node, q{SELECT count(*) FROM pg_extension WHERE extname = 'reconcile'}), 0, 'when it is gone');
$_->quit foreach $user, $dropper;

finish();

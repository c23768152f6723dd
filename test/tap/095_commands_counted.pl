# What becomes of commands is counted by action and outcome, once it has committed, and
# of tenants nothing is told; health says what nobody settles or resolves, and a gauge
# what is overdue. Without preload commands work as well, and nothing is counted; and in
# databases of other encodings.

use strict;
use warnings;

use LoopTest;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_prepared_transactions = 2\n");
my $where = $node;

# give(KEY, ACTION, OPTION => VALUE...): the call that gives a command of the tenant.
sub give
{
	my ($key, $action, %option) = @_;
	my %args = (kind => 'worker', name => 'w', more => '', deadline => '5 min', %option);

	return "SELECT outcome || coalesce(' ' || status, '') FROM reconcile.accept_command('acme secret', '$key', '$action', '$args{kind}', '$args{name}', 'why' $args{more}, deadline_in => '$args{deadline}')";
}

# counted(WHERE): what has come to how many commands, as "action outcome n", in the order of names.
sub counted
{
	return sql($_[0] // $where, q{SELECT coalesce(string_agg(concat_ws(' ', labels ->> 'action', labels ->> 'outcome', value), ', ' ORDER BY labels ->> 'action', labels ->> 'outcome'), '')
		FROM reconcile.metrics() WHERE name = 'reconcile_commands_total' AND value > 0});
}

# claim(ID, TTL): the token of a command that is claimed.
sub claim
{
	my ($id, $ttl) = @_;

	my ($claimed, $token) = split /\|/, sql($where, "SELECT command_id, claim_token FROM reconcile.claim_commands('d', NULL, 1, '$ttl')");
	is($claimed, $id, "$id is claimed");
	return $token;
}

# ----------------------------------------------------------------------
note 'each outcome';

my $samples = q{SELECT count(*), count(*) FILTER (WHERE value = 0) FROM reconcile.metrics() WHERE name = 'reconcile_commands_total'};
is(sql($where, $samples), '0|0', 'of what nobody commands there is no sample');
sql($where, give('k1', 'drain', more => ", command_id => 'c1'"));
is(counted(), 'drain accepted 1', 'one is accepted');
is(sql($where, $samples), '18|17', 'of its action there are all outcomes, to rise from 0');
is(sql($where, give('k1', 'drain') . ';' . give('k1', 'drain', name => 'other')), "replayed pending\nconflict", 'the same again, and another under its key');
sql($where, give('k2', 'drain', more => ', expected_revision => 7'));
is(counted(), 'drain accepted 1, drain conflict 1, drain replayed 1, drain stale_revision 1', 'are counted each');
my $token = claim('c1', '1 h');
sql($where, "SELECT reconcile.acknowledge_command('acme secret', 'c1', '$token', 'w', '1.0'); SELECT reconcile.complete_command('acme secret', 'c1', '$token', 'failed', 'no')");
sql($where, "SELECT reconcile.complete_command('acme secret', 'c1', '$token', 'failed', 'no')");
is(counted(), 'drain accepted 1, drain acknowledged 1, drain conflict 1, drain dispatched 1, drain failed 1, drain replayed 1, drain stale_revision 1', 'and so are its steps; a report that is repeated is none');

sql($where, give('k3', 'terminate', more => ", command_id => 'c3'"));
is(sql($where, give('k4', 'drain')), 'illegal_transition', 'what must not follow');
sql($where, "SELECT reconcile.cancel_command('acme secret', 'c3', 'no')");
sql($where, give('k5', 'scale', kind => 'workload', deadline => '1 ms', more => q{, '{"scale": {"replicas": 1}}', command_id => 'c5'}));
wait_for($where, q{SELECT deadline < clock_timestamp() FROM reconcile.command WHERE command_id = 'c5'}, 'nobody claims it');
sql($where, 'SELECT * FROM reconcile.sweep_commands()');
sql($where, give('k6', 'delete', kind => 'failure', more => ", command_id => 'c6'"));
$token = claim('c6', '1 ms');
wait_for($where, q{SELECT claim_expires_at < clock_timestamp() FROM reconcile.command WHERE command_id = 'c6'}, 'nobody reports');
sql($where, 'SELECT * FROM reconcile.sweep_commands()');
sql($where, "SELECT reconcile.complete_command('acme secret', 'c6', '$token', 'succeeded'); SELECT reconcile.resolve_command('acme secret', 'c6', 'succeeded', '{\"a\": 1}', 'seen')");
is(sql($where, give('k7', 'pause', kind => 'queue')), 'accepted failed', 'one that is at its end');
is( counted(),
	join(', ', 'delete accepted 1', 'delete dispatched 1', 'delete reported_late 1', 'delete resolved 1', 'delete unknown 1',
		'drain accepted 1', 'drain acknowledged 1', 'drain conflict 1', 'drain dispatched 1', 'drain failed 1', 'drain illegal_transition 1', 'drain replayed 1', 'drain stale_revision 1',
		'pause accepted 1', 'pause failed 1', 'scale accepted 1', 'scale canceled 1', 'terminate accepted 1', 'terminate canceled 1'),
	'all that came to them is counted');

sql($where, q{CREATE FUNCTION obey(command jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT '{"status": "succeeded"}'::jsonb$$;
	SELECT reconcile.register_action('secret_one', '{thing}', 'local', 'obey'); SELECT reconcile.register_action('secret_two', '{thing}', 'unavailable')});
sql($where, give('k8', 'secret_one', kind => 'thing') . ';' . give('k9', 'secret_two', kind => 'thing'));
like(counted(), qr/, other accepted 2, other failed 1, other succeeded 1, /, q{actions of the application are "other", all of them});
sql($where, q{CREATE ROLE stranger; GRANT EXECUTE ON FUNCTION reconcile.accept_command(text,text,text,text,text,text,jsonb,boolean,interval,bigint,text,text,text,timestamptz,text) TO stranger});
is(sql($where, 'SET ROLE stranger;' . give('k10', 'drain')), 'denied', 'a denial');
like(counted(), qr/drain denied 1/, 'is counted, too');
unlike(sql($where, 'SELECT reconcile.metrics_text()'), qr/secret|acme|c1|k1/, 'neither a tenant nor a key nor an action of his is a label');

# ----------------------------------------------------------------------
note 'what has committed, and that alone';

my $before = counted();
sql($where, 'BEGIN;' . give('r1', 'drain', name => 'r') . '; ROLLBACK');
sql($where, 'BEGIN; SAVEPOINT s;' . give('r1', 'drain', name => 'r') . '; ROLLBACK TO s; SAVEPOINT t;' . give('k1', 'drain', name => 'no') . '; ROLLBACK TO t; COMMIT');
sql($where, 'BEGIN;' . give('k1', 'drain') . "; PREPARE TRANSACTION 'p'");
sql($where, "ROLLBACK PREPARED 'p'");
is(counted(), $before, 'what was rolled back, or only prepared, is not');
sql($where, 'BEGIN; SAVEPOINT s;' . give('r2', 'retry', kind => 'failure') . '; RELEASE s; SAVEPOINT t;' . give('r3', 'retry', kind => 'failure') . '; ROLLBACK TO t; COMMIT');
like(counted(), qr/, retry accepted 1, /, 'of savepoints what was kept');
# of a session that has prepared one the next is as it is
my $session = $node->background_psql('postgres', on_error_stop => 1);
$session->query('BEGIN;' . give('k1', 'drain') . "; PREPARE TRANSACTION 'p'");
$session->query(give('r4', 'retry', kind => 'failure'));
$session->quit;
sql($where, "COMMIT PREPARED 'p'");
like(counted(), qr/, retry accepted 2, /, 'the next one of a session that has prepared one is counted');
like(counted(), qr/drain replayed 1/, 'for itself');

sql($where, 'CREATE DATABASE other');
my $other = [ $node, 'other' ];
sql($other, 'CREATE EXTENSION reconcile');
is(counted($other), '', 'another database has counts of its own');
sql($other, give('k1', 'resume', kind => 'worker_group'));
is(counted($other), 'resume accepted 1', 'one');
unlike(counted(), qr/resume/, 'which are not those of the first');

# ----------------------------------------------------------------------
note 'who is told';

sql($where, q{CREATE ROLE watcher; SELECT reconcile.grant_access('watcher', 'observe', 'one_loop')});
my $told = q{SET ROLE watcher; SELECT least(count(*) FILTER (WHERE name = 'reconcile_commands_total'), 10), count(*) FILTER (WHERE name = 'reconcile_commands_overdue')
	FROM reconcile.metrics() WHERE name LIKE 'reconcile_commands%'};
is(sql($where, $told), '0|0', 'who may observe a loop is not told of all tenants');
sql($where, q{SELECT reconcile.grant_access('watcher', 'observe')});
is(sql($where, $told), '10|1', 'who may observe all is');

# finding(WHERE, ROLE): the rows of the check.
sub finding
{
	my ($at, $role) = @_;
	return sql($at, ($role ? "SET ROLE $role;" : '') . q{SELECT status || ': ' || detail FROM reconcile.health WHERE check_name = 'commands' ORDER BY 1});
}

# is_found(WHERE, OVERDUE, FINDING, NAME): what health says, and the gauge.
sub is_found
{
	my ($at, $overdue, $finding, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(finding($at) . '; ' . sql($at, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_commands_overdue'}), "$finding; $overdue", $name);
	return;
}

sub health_of_commands
{
	my ($at) = @_;

	is_found($at, 0, 'ok: no command is overdue, and none is unknown', 'nothing is wrong with commands');
	sql($at, give("h$_", 'drain', name => "h$_", more => ", command_id => 'h$_'")) for 1 .. 3;
	sql($at, q{UPDATE reconcile.command SET deadline = clock_timestamp() - interval '30 s' WHERE command_id = 'h1'});
	is_found($at, 0, 'ok: no command is overdue, and none is unknown', 'nor with one that the next sweep finds');
	sql($at, q{UPDATE reconcile.command SET deadline = clock_timestamp() - interval '61 s' WHERE command_id IN ('h1', 'h2')});
	sql($at, q{UPDATE reconcile.command SET status = 'dispatched', claim_token = 't', dispatched_at = now(), claimant = 'd', claim_xid = '3', claim_expires_at = now() - interval '61 s' WHERE command_id = 'h3'});
	is_found($at, 3, 'warn: the time of 3 commands has been over for a minute, and nothing has settled them', 'with those that none has settled there is');
	sql($at, 'SELECT * FROM reconcile.sweep_commands()');
	is_found($at, 0, 'warn: the outcome of 1 commands is unknown, and nobody has resolved them', 'of which one is unknown');
	sql($at, q{SELECT reconcile.resolve_command('acme secret', 'h3', 'not_executed', '{"a": 1}', 'seen')});
	is_found($at, 0, 'ok: no command is overdue, and none is unknown', 'until somebody says what became of it');
	return;
}
health_of_commands($where);
sql($where, q{SELECT reconcile.revoke_access('watcher', 'observe')});
is(finding($where, 'watcher'), '', 'who may not observe all is told nothing, neither good nor bad');

# ----------------------------------------------------------------------
note 'after a restart, and without preload';

$node->restart;
is(counted(), '', 'counts begin anew with the server');
sql($where, give('n1', 'retry', kind => 'failure'));
is(counted(), 'retry accepted 1', 'and go on');

my $bare = new_node('bare', preload => 0);
sql($bare, q{CREATE FUNCTION see(id text) RETURNS void LANGUAGE sql AS ''; SELECT reconcile.create_loop('plain', 'see')});
is(sql($bare, give('k1', 'pause', kind => 'queue', name => 'plain')), 'accepted succeeded', 'a local command has its effect without preload');
is(sql($bare, 'SELECT paused FROM reconcile.loops'), 't', 'the loop is paused');
is(sql($bare, give('k2', 'drain')), 'accepted pending', 'an external one waits');
is(sql($bare, q{SELECT count(*) FROM reconcile.claim_commands('d')}), 1, 'and is claimed');
is(sql($bare, give('k2', 'drain')), 'replayed dispatched', 'a replay tells so');
is(sql($bare, q{SELECT count(*), max(outcome) FROM reconcile.desired_states d, reconcile.audit_verify(d.tenant_id) v}), '2|ok', 'states and audit are there');
is(counted($bare), '', 'nothing is counted');
health_of_commands($bare);

# ----------------------------------------------------------------------
note 'identities in other encodings';

# refused(ENCODING): of a space without break, a next line, two controls, as much as there may be, and one more.
sub refused
{
	my ($encoding) = @_;
	my $at = [ $bare, lc $encoding ];

	sql($bare, "CREATE DATABASE $at->[1] ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	sql($at, q{CREATE EXTENSION reconcile; CREATE FUNCTION refused(name text) RETURNS text LANGUAGE plpgsql AS $$
		DECLARE
			problem text;
		BEGIN
			PERFORM reconcile.explain_command('t', name);
			RETURN 'good';
		EXCEPTION WHEN invalid_parameter_value THEN
			GET STACKED DIAGNOSTICS problem = PG_EXCEPTION_DETAIL;
			RETURN problem;
		END $$});
	return sql($at, q{SELECT string_agg(refused(n), ', ' ORDER BY o) FROM unnest(ARRAY[chr(160), chr(133) || ' ', 'a' || chr(155), 'a' || chr(7), repeat(chr(233), 256), repeat(chr(233), 257)]) WITH ORDINALITY u (n, o)});
}
my $unseen = 'contains a character that cannot be seen';
is(refused('LATIN1'), "must not be blank, must not be blank, $unseen, $unseen, good, is too long", 'are read as what they are');
is(refused('WIN1252'), "must not be blank, good, good, $unseen, good, is too long", 'other characters, and bytes that are none, too');
is(refused('SQL_ASCII'), "good, good, good, $unseen, good, is too long", 'or as bytes, where nobody knows what they are');

finish();

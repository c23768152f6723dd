# Tenants, and what takes a server of its own: nothing of them is in the log; an
# authorizer that takes too long; a chain that is held; rights on all reconciler ids.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use TestPoints;

my $node = new_node('main', test_points => 1, conf => "log_min_messages = info\nlog_min_error_statement = panic\n");
sql($node, q{
	CREATE SCHEMA app;
	CREATE ROLE giver; CREATE ROLE stranger; CREATE ROLE sweeper; CREATE ROLE definer; CREATE ROLE narrow;
	SELECT reconcile.grant_command('giver', 'acme', p) FROM unnest('{drain,scale,view,audit_view}'::text[]) p;
	SELECT reconcile.grant_command('stranger', 'other', 'drain');
	SELECT reconcile.grant_access('sweeper', 'operate'); SELECT reconcile.grant_access('definer', 'define');
	SELECT reconcile.grant_access('narrow', 'operate', 'one'); SELECT reconcile.grant_access('narrow', 'define', 'one');
});

# accepts(ROLE, KEY, MORE): what the role gets to hear.
sub accepts
{
	my ($role, $key, $more) = @_;
	return sql($node, "SET ROLE $role; SELECT outcome FROM reconcile.accept_command('acme', '$key', 'drain', 'worker', 'w', 'a secret reason'" . ($more // '') . ')');
}

# ----------------------------------------------------------------------
note 'an authorizer that fails is a no, and its text stays with it';

sql($node, q{
	CREATE FUNCTION app.fails(request jsonb) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE 'a secret of % and %', request->>'actor', request->>'tenant_id'; END$$;
	CREATE FUNCTION app.sleeps(request jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT pg_sleep(600) IS NULL';
	SELECT reconcile.set_authorizer('app.fails');
});
is(accepts('giver', 'fails', ", actor => 'a secret actor'"), 'denied', 'its error is a no');
sql($node, q{SELECT reconcile.set_authorizer('app.sleeps')});
session_fails($node, '57014', q{SET ROLE giver; SET statement_timeout = '50ms'; SELECT * FROM reconcile.accept_command('acme', 'slow', 'drain', 'worker', 'w', 'why')},
	'that the statement was cancelled is no answer of it');
sql($node, q{SELECT reconcile.set_authorizer(NULL)});
is(accepts('giver', 'none', ", actor => 'a secret actor'"), 'accepted', 'there is none any more');
is(accepts('giver', 'none'), 'conflict', 'a conflict');
is(accepts('stranger', 'none'), 'denied', 'and a denial');
my $log = slurp_file($node->logfile);
like($log, qr/LOG:  the authorizer app\.fails\(jsonb\) has failed: SQLSTATE P0001; the command is denied\n/, 'the log has its SQLSTATE');
like($log, qr/LOG:  the authorizer of commands is app\.fails\(jsonb\)\n.*LOG:  the authorizer of commands is gone\n/s, 'and who was asked from when on');
unlike($log, qr/secret/, 'but no text of an authorizer, an actor or a reason');
unlike($log, qr/acme/, 'and no tenant');

# ----------------------------------------------------------------------
note 'rights on all reconciler ids';

for my $case (
	[ 'sweeper', q{SELECT * FROM reconcile.sweep_commands(1)}, '' ],
	[ 'narrow', q{SELECT * FROM reconcile.sweep_commands(1)}, '42501' ],
	[ 'giver', q{SELECT * FROM reconcile.sweep_commands(1)}, '42501' ],
	[ 'definer', q{SELECT reconcile.register_action('mine', '{region}', 'external')}, '' ],
	[ 'narrow', q{SELECT reconcile.register_action('ours', '{region}', 'external')}, '42501' ],
	[ 'sweeper', q{SELECT reconcile.register_action('ours', '{region}', 'external')}, '42501' ])
{
	my ($role, $call, $sqlstate) = @$case;
	if ($sqlstate ne '')
	{
		session_fails($node, $sqlstate, "SET ROLE $role; $call", "$role: $call");
	}
	else
	{
		ok(defined sql($node, "SET ROLE $role; $call"), "$role: $call");
	}
}

# ----------------------------------------------------------------------
note 'who prunes keeps nobody waiting';

sql($node, q{INSERT INTO reconcile.command_retention VALUES ('acme', '0', NULL, false)});
my $pruner = $node->background_psql('postgres');
$pruner->query_safe(q{BEGIN; SELECT outcome FROM reconcile.prune_commands('acme')});
is(sql($node, q{SET lock_timeout = '50ms'; SELECT outcome FROM reconcile.accept_command('acme', 'beside', 'drain', 'worker', 'w', 'why')}), 'accepted', 'its tenant goes on');
$pruner->query_safe('COMMIT');
$pruner->quit;
is(sql($node, q{SELECT outcome FROM reconcile.audit_verify('acme')}), 'ok', 'and its audit is whole, behind what was pruned');

# ----------------------------------------------------------------------
note 'who commits has the chain until that is over; who cannot wait for it has done nothing';

my $holder = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $holder->query_safe('SELECT pg_backend_pid()');
arm($node, 'command-before-commit', $pid);
begins($holder, q{SELECT outcome FROM reconcile.accept_command('acme', 'held', 'drain', 'worker', 'w', 'why');});
is(reached($node, 'command-before-commit'), $pid, 'it is held at its end');
session_fails($node, '55P03', q{SET lock_timeout = '50ms'; BEGIN; SELECT outcome FROM reconcile.accept_command('acme', 'waits', 'scale', 'workload', 'x', 'why', '{"scale": {"replicas": 1}}'); COMMIT},
	'COMMIT waits for it, as long as it may');
is(sql($node, q{SELECT count(*) FROM reconcile.command WHERE idempotency_key = 'waits'}), '0', 'and stores nothing');
is(sql($node, q{SELECT outcome FROM reconcile.accept_command('another', 'k', 'scale', 'workload', 'x', 'why', '{"scale": {"replicas": 1}}')}), 'accepted', 'the chain of another tenant goes on');
disarm($node);
$holder->quit;
is(sql($node, q{SELECT outcome FROM reconcile.audit_verify('acme')}), 'ok', 'and this one, when it is over');

finish();

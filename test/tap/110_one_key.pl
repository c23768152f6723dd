# A hundred sessions give a command under one key, at one moment: one of them is told
# that it was admitted, the others that they repeat it, or that theirs is another one;
# there is no error, one command, and one effect.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $sessions = 100;
my $node = new_node('one_key', conf => "max_connections = 120\nmax_worker_processes = 16\n");

sql($node, q{
	CREATE TABLE told (form text, outcome text, command_id text, created boolean, revision bigint);
	CREATE TABLE effect (command_id text);
	CREATE FUNCTION act(command jsonb) RETURNS jsonb LANGUAGE sql AS $$
		INSERT INTO effect VALUES (command ->> 'command_id');
		SELECT '{"status": "succeeded"}'::jsonb $$;
	SELECT reconcile.register_action('act', ARRAY['workload'], 'local', 'act(jsonb)');
	-- which begins the incarnation: later changes of desired states only share it
	SELECT FROM reconcile.accept_command('other', 'k', 'drain', 'worker', 'w', 'first');
});

# a session whose plans are made while there is nothing yet reads no more when there is much
my $n = 1000;
sql($node, qq{DO \$\$
	BEGIN
		FOR i IN 1 .. $n LOOP
			PERFORM FROM reconcile.accept_command('first', 'key ' || i, 'retry', 'failure', 'f', 'test', deadline_in => '5 min');
		END LOOP;
	END \$\$;
	SELECT pg_stat_force_next_flush()});
is(sql($node, qq{SELECT sum(idx_tup_read) >= $n, sum(idx_tup_read) < 5 * $n FROM pg_stat_user_indexes WHERE schemaname = 'reconcile' AND relname LIKE 'command%'}), 't|t',
	'each key is looked up by its own index, from the first on');

sub give
{
	my ($form, $action, $kind, $target) = @_;
	return qq{INSERT INTO told SELECT '$form', a.outcome, a.command_id, a.created, a.desired_revision
		FROM reconcile.accept_command('t', '$form', '$action', '$kind', '$target', 'test', deadline_in => '5 min') a;} =~ s/\s+/ /gr;
}

sub told
{
	my ($form) = @_;
	return sql($node, qq{SELECT string_agg(outcome || ' ' || n, ', ' ORDER BY outcome) FROM
		(SELECT outcome, count(*) AS n FROM told WHERE form = '$form' GROUP BY outcome) o});
}

sub is_one
{
	my ($form) = @_;
	is(sql($node, qq{SELECT count(*), (SELECT count(*) FROM reconcile.audit_events WHERE idempotency_key = '$form' AND event = 'accepted')
		FROM reconcile.commands WHERE idempotency_key = '$form'}), '1|1', "$form: one command, and one event of its admission");
	is(sql($node, qq{SELECT count(DISTINCT command_id) FROM told WHERE form = '$form' AND outcome IN ('accepted', 'replayed')}), '1',
		"$form: all are told of the same one");
	is(sql($node, qq{SELECT count(*) FROM told WHERE form = '$form' AND created IS DISTINCT FROM (outcome = 'accepted')}), '0',
		"$form: created is what was accepted");
	return;
}

# ---------------------------------------------------------------------------

all_at_once($node, $sessions, 'external', give('external', 'retry', 'failure', 'f'));
is(told('external'), 'accepted 1, replayed 99', 'external: one is admitted');
is_one('external');

all_at_once($node, $sessions, 'state', give('state', 'drain', 'worker', 'w'));
is(told('state'), 'accepted 1, replayed 99', 'state: one is admitted');
is(sql($node, q{SELECT DISTINCT revision FROM told WHERE form = 'state'}), '1', 'state: and all are told the same revision');
is(sql($node, q{SELECT revision FROM reconcile.desired_states WHERE tenant_id = 't' AND target_name = 'w'}), '1', 'state: which there is one of');
is_one('state');

all_at_once($node, $sessions, 'local', give('local', 'act', 'workload', 'x'));
is(told('local'), 'accepted 1, replayed 99', 'local: one is admitted');
is(sql($node, 'SELECT count(*) FROM effect'), '1', 'local: and has its effect once');
is_one('local');

# half of them mean something else by it
all_at_once($node, $sessions, 'mixed', "\\if :client_id % 2\n" . give('mixed', 'act', 'workload', 'y') . "\n\\else\n" . give('mixed', 'act', 'workload', 'z') . "\n\\endif");
is(told('mixed'), 'accepted 1, conflict 50, replayed 49', 'mixed: one is admitted, its like repeat it, and the others are told that they do not');
is(sql($node, 'SELECT count(*) FROM effect'), '2', 'mixed: it has its effect once');
is_one('mixed');

# three of four abort, whatever they were told
all_at_once($node, $sessions, 'aborting', "BEGIN;\n" . give('aborting', 'act', 'workload', 'x') . "\n\\if :client_id % 4\nROLLBACK;\n\\else\nCOMMIT;\n\\endif");
is(told('aborting'), 'accepted 1, replayed 24', 'aborting: of those that commit one is admitted');
is(sql($node, 'SELECT count(*) FROM effect'), '3', 'aborting: it has its effect once');
is_one('aborting');

# another key each: nobody is told of another's, and the targets' states are what the last one has said
all_at_once($node, $sessions, 'apart', give('apart', 'drain', 'worker', 'v') =~ s/, 'apart', 'drain'/, 'apart ' || :client_id, 'drain'/r);
is(told('apart'), 'accepted 100', 'apart: of a hundred keys all are admitted');
is(sql($node, q{SELECT revision FROM reconcile.desired_states WHERE tenant_id = 't' AND target_name = 'v'}), '1', 'apart: to the same state, which is one revision');

is(sql($node, q{SELECT outcome, events = (SELECT count(*) FROM reconcile.audit_events WHERE tenant_id = 't') FROM reconcile.audit_verify('t')}), 'ok|t', 'the audit is whole');

finish();

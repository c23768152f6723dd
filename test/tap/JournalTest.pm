# What tests of the command journal share: a database with a command in each state,
# and what must be true of a copy of it.
#
#   use JournalTest;
#   make_journal_roles($node);
#   make_journal($where);
#   my $rows = journal_rows($where);
#   my $kept = kept_head($where, 'acme');
#   is(verified($copy, 'acme', $kept), 'ok', ...);
#   replays($copy);
#
# WHERE is a node, or [node, database], as in LoopTest.

package JournalTest;

use strict;
use warnings;

use Exporter 'import';
use LoopTest;
use Test::More;

our @EXPORT = qw(make_journal_roles make_journal journal_rows journal_triggers kept_head verified accept_as replays poll poll_now polled);

# The roles that make_journal() needs, in a cluster: who gives commands, who carries
# them out, who is kept from some, and whose functions are called.
sub make_journal_roles
{
	my ($node) = @_;
	sql($node, 'CREATE ROLE giver; CREATE ROLE dispatcher; CREATE ROLE kept_off; GRANT giver TO kept_off; CREATE ROLE boss SUPERUSER');
	return;
}

# accept_as(WHERE, ROLE, KEY, ACTION, KIND, NAME, REST): "outcome status failure".
sub accept_as
{
	my ($where, $role, $key, $action, $kind, $name, $rest) = @_;
	$rest = defined $rest ? ", $rest" : '';
	return sql($where, "SET ROLE $role; SELECT concat_ws(' ', outcome, status, failure)
		FROM reconcile.accept_command('acme', '$key', '$action', '$kind', '$name', 'why', deadline_in => '5 min'$rest)");
}

# Each key with what its command is, and what is answered to who asks again.
my %commands = (
	pruned => [ 'noted', 'note', 'n0' ],
	waits => [ 'drain', 'worker', 'w1' ],
	given => [ 'drain', 'worker', 'w2' ],
	held => [ 'drain', 'worker_group', 'g1' ],
	done => [ 'pause', 'worker_group', 'g2' ],
	failed => [ 'scale', 'workload', 'l1', q{options => '{"scale": {"replicas": 3}}'} ],
	lost => [ 'retry', 'failure', 'f1' ],
	back => [ 'terminate', 'worker', 'w3' ],
	over => [ 'pause', 'worker_group', 'g3' ],
	own => [ 'noted', 'note', 'n1' ],
	queue => [ 'pause', 'queue', 'commanded' ]);
my %answers = (
	pruned => 'succeeded',
	waits => 'pending',
	given => 'dispatched',
	held => 'acknowledged',
	done => 'succeeded',
	failed => 'failed target_mismatch',
	lost => 'unknown outcome_unknown',
	back => 'canceled canceled',
	over => 'succeeded',
	own => 'succeeded',
	queue => 'succeeded');

sub _give
{
	my ($where, $key) = @_;
	my $status = accept_as($where, 'giver', $key, @{ $commands{$key} });
	die "command $key: $status" unless $status =~ /^accepted/;
	return;
}

# Claims the command of a key, for so long: its token.
sub _claim
{
	my ($where, $key, $ttl) = @_;
	return sql($where, "SET ROLE dispatcher; SELECT claim_token FROM reconcile.claim_commands('d', '{$commands{$key}[0]}', ttl => '$ttl')");
}

sub _id
{
	my ($where, $key) = @_;
	return sql($where, "SELECT command_id FROM reconcile.command WHERE idempotency_key = '$key'");
}

# make_journal(WHERE): after prepare() and CREATE EXTENSION, with the roles.
sub make_journal
{
	my ($where) = @_;

	make_loop($where, 'commanded');
	sql($where, q{
		CREATE TABLE app.noted (name text);
		CREATE FUNCTION app.note(command jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO app.noted VALUES (command ->> 'target_name');
			RETURN '{"status": "succeeded"}';
		END $$;
		CREATE FUNCTION app.agrees(request jsonb) RETURNS boolean LANGUAGE sql AS $$ SELECT request ->> 'target_name' IS DISTINCT FROM 'forbidden' $$;
		GRANT ALL ON ALL TABLES IN SCHEMA app TO boss;
		ALTER FUNCTION app.note OWNER TO boss;
		ALTER FUNCTION app.agrees OWNER TO boss;
		SET ROLE boss;
		SELECT reconcile.register_action('noted', '{note}', 'local', 'app.note');
		SELECT reconcile.register_action('later', '{note}', 'unavailable');
		SELECT reconcile.set_authorizer('app.agrees');
		SELECT reconcile.grant_command('giver', 'acme', p)
			FROM unnest('{pause,resume,drain,terminate,retry,scale,noted,later,view,audit_view,resolve,retention_configure}'::text[]) p;
		SELECT reconcile.grant_command('giver', 'acme', 'pause', 'queue', 'commanded');
		SELECT reconcile.grant_command('dispatcher', 'acme', p) FROM unnest('{dispatch,report,view}'::text[]) p;
		SELECT reconcile.grant_command('kept_off', 'acme', 'noted', effect => 'deny');
		SELECT reconcile.set_command_retention('acme', '1 hour')});

	# what is over now is old by a policy that no function would take
	_give($where, 'pruned');
	sql($where, q{UPDATE reconcile.command_retention SET keep = '0'; SELECT reconcile.prune_commands('acme');
		UPDATE reconcile.command_retention SET keep = '1 hour'});
	die 'nothing was pruned' unless sql($where, q{SELECT count(*) FROM reconcile.command_tombstone t, reconcile.audit_head h
		WHERE h.tenant_id = 'acme' AND h.anchor_sequence > 0}) == 1;

	foreach my $key (qw(held given))
	{
		_give($where, $key);
		my $token = _claim($where, $key, '1 h');
		sql($where, "SET ROLE dispatcher; SELECT reconcile.acknowledge_command('acme', '" . _id($where, $key) . "', '$token', 'w', '1.2')") if $key eq 'held';
	}
	foreach my $key (qw(over done failed lost))
	{
		_give($where, $key);
		my $token = _claim($where, $key, '1 ms');
		my $end = $key eq 'failed' ? "'failed', 'target_mismatch'" : "'succeeded'";
		sql($where, "SET ROLE dispatcher; SELECT reconcile.complete_command('acme', '" . _id($where, $key) . "', '$token', $end)") if $key ne 'lost';
	}
	sql($where, 'SELECT reconcile.sweep_commands()');
	sql($where, "SET ROLE giver; SELECT reconcile.resolve_command('acme', '" . _id($where, 'lost') . q{', 'not_executed', '{"seen": 1}', 'looked')});
	_give($where, $_) foreach qw(own queue back waits);
	sql($where, "SET ROLE giver; SELECT reconcile.cancel_command('acme', '" . _id($where, 'back') . q{', 'no')});
	sql($where, q{SET ROLE dispatcher; SELECT reconcile.report_observed('acme', 'w', 'worker_group', 'g2', 1, 'paused')});
	accept_as($where, 'kept_off', 'denied', 'noted', 'note', 'n2');
	accept_as($where, 'giver', 'forbidden', 'drain', 'worker', 'forbidden');
	die 'journal' unless sql($where, q{SELECT string_agg(DISTINCT outcome, ' ') FROM reconcile.audit_verify('acme')}) eq 'ok';
	return;
}

# journal_rows(WHERE): all that is in the tables of commands, one line for each table.
sub journal_rows
{
	my ($where) = @_;
	return sql($where, join(' UNION ALL ', map {
		"SELECT '$_: ' || count(*) || ' ' || md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text COLLATE \"C\"), '')) FROM reconcile.$_ t"
	} qw(command command_resolution command_tombstone command_action command_grant command_authorizer command_retention
		desired_state desired_intent observed_state audit_event audit_head)));
}

# journal_triggers(WHERE): how those of the tables fire, who is let at which rows.
sub journal_triggers
{
	my ($where) = @_;
	return sql($where, q{
		SELECT concat_ws(' ', t.tgname, t.tgenabled) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
			WHERE c.relnamespace = 'reconcile'::regnamespace AND t.tgname ~ '^(command|resolution|tombstone|event)_'
		UNION ALL SELECT c.relname || ' ' || c.relrowsecurity FROM pg_class c
			WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relname ~ '^(command|desired|observed|audit)' AND c.relkind = 'r'
		UNION ALL SELECT p.tablename || ' ' || p.policyname || ' ' || p.qual FROM pg_policies p WHERE p.schemaname = 'reconcile'
		ORDER BY 1});
}

# kept_head(WHERE, TENANT): the head of an audit, to be kept elsewhere.
sub kept_head
{
	my ($where, $tenant) = @_;
	return sql($where, "SELECT head_sequence || ', ' || quote_literal(head_hash) FROM reconcile.audit_verify('$tenant')");
}

# verified(WHERE, TENANT, [HEAD]): what audit_verify() says, by a head that was kept.
sub verified
{
	my ($where, $tenant, $head) = @_;
	$head = defined $head ? ", $head" : '';
	return sql($where, "SELECT concat_ws(' ', outcome, bad_sequence, detail) FROM reconcile.audit_verify('$tenant'$head)");
}

# replays(WHERE): a test that each key that was used is answered with what became of its
# command, nothing is done, and another command gets none of them.
sub replays
{
	my ($where) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	subtest 'keys that were used' => sub {
		foreach my $key (sort keys %commands)
		{
			my ($action, $kind, $name, $rest) = @{ $commands{$key} };

			is(accept_as($where, 'giver', $key, @{ $commands{$key} }), "replayed $answers{$key}", "$key is replayed");
			is(accept_as($where, 'giver', $key, $action, $kind, "${name}x", $rest), $key eq 'pruned' ? 'key_spent' : 'conflict', 'and is no other\'s')
			  if $key ne 'queue';
		}
		is(sql($where, q{SELECT string_agg(name, ' ' ORDER BY name) FROM app.noted}), 'n0 n1', 'nothing was done anew');
	};
	return;
}

# Whatever has a transaction id in the cluster, an autovacuum, too, holds back the changes
# since it began: until nothing holds one back.
sub _wait_shown
{
	my ($where) = @_;
	wait_for($where, q{NOT EXISTS (SELECT FROM reconcile.desired_state d, reconcile.incarnation() i
		WHERE d.change_floor >= i.epoch_floor AND d.change_xid >= pg_snapshot_xmin(pg_current_snapshot()))}, 'no change is held back');
	return;
}

# poll_now(WHERE, [AFTER], [MAX]): a page of what is behind the position, as far as it is
# shown at this moment: the position of its last row, and "name state revision, ...".
sub poll_now
{
	my ($where, $after, $max) = @_;
	my @rows = split /\n/, sql($where, q{SELECT "position", concat_ws(' ', target_name, coalesce(state, 'none'), revision)
		FROM reconcile.desired_states_since('acme', } . (defined $after ? "'$after'" : 'NULL') . ', ' . ($max // 1000) . ')');
	my ($position) = @rows ? $rows[-1] =~ /^([^|]*)/ : $after;

	s/^.*\|// foreach @rows;
	return ($position, join(', ', @rows));
}

# poll(WHERE, [AFTER], [MAX]): the same, when all that has committed is shown.
sub poll
{
	my ($where, $after, $max) = @_;

	_wait_shown($where);
	return poll_now($where, $after, $max);
}

# polled(WHERE, AFTER): the same, by pages of two rows.
sub polled
{
	my ($where, $after) = @_;
	my ($all, $rows) = ('', '');

	_wait_shown($where);
	do
	{
		($after, $rows) = poll_now($where, $after, 2);
		$all .= ($all ne '' && $rows ne '' ? ', ' : '') . $rows;
	} while ($rows =~ /,/);
	return $all;
}

1;

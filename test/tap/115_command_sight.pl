# What monitoring sees of commands: counters by action and outcome, and what
# nothing settles or nobody resolves; of all tenants, for who may observe all.

use strict;
use warnings;

use LoopTest;
use ReconcileTest;
use Test::More;

my $node = new_node('main');

sql($node, q{
	CREATE ROLE sees_all; CREATE ROLE sees_one;
	SELECT reconcile.grant_access('sees_all', 'observe'), reconcile.grant_access('sees_one', 'observe', 'l');
	SELECT reconcile.register_action('retire', '{region}', 'external');
});

sub counted
{
	my ($action) = @_;

	return sql($node, qq{
		SELECT string_agg(labels->>'outcome' || ' ' || value, ', ' ORDER BY labels->>'outcome' COLLATE "C") FROM reconcile.metrics()
		 WHERE name = 'reconcile_commands_total' AND labels->>'action' = '$action' AND value > 0});
}

sub overdue
{
	return sql($node, q{SELECT value FROM reconcile.metrics() WHERE name = 'reconcile_commands_overdue'});
}

sub health
{
	return sql($node, q{SELECT status || ': ' || detail FROM reconcile.health WHERE check_name = 'commands'});
}

# ----------------------------------------------------------------------
note 'counters';

is(sql($node, q{SELECT count(*) FROM reconcile.metrics() WHERE name = 'reconcile_commands_total'}), 0, 'of what nobody commands there is no sample');
sql($node, q{
	SELECT outcome FROM reconcile.accept_command('t', 'k1', 'drain', 'worker', 'w', 'why', deadline_in => '5 min', command_id => 'c1');
	SELECT outcome FROM reconcile.accept_command('t', 'k1', 'drain', 'worker', 'w', 'why', deadline_in => '5 min');
	SELECT outcome FROM reconcile.accept_command('t', 'k1', 'drain', 'worker', 'w', 'another');
	SELECT outcome FROM reconcile.accept_command('u', 'k1', 'retire', 'region', 'r', 'why', command_id => 'c1');
	BEGIN; SELECT outcome FROM reconcile.accept_command('t', 'k2', 'drain', 'worker', 'w', 'why'); ROLLBACK;
	BEGIN; SAVEPOINT s; SELECT outcome FROM reconcile.accept_command('t', 'k2', 'drain', 'worker', 'w', 'why'); ROLLBACK TO s; COMMIT;
});
is(counted('drain'), 'accepted 1, conflict 1, replayed 1', 'what has committed is counted once');
is(counted('other'), 'accepted 1', 'an action of the application is one of the others');
is(sql($node, q{SELECT count(*), count(*) FILTER (WHERE value = 0) FROM reconcile.metrics() WHERE labels->>'action' = 'drain'}), '18|15',
	'of an action that is commanded there are all outcomes, to rise from 0');
is(sql($node, q{SELECT count(*) FROM reconcile.metrics() WHERE labels ? 'tenant_id' OR labels::text LIKE '%"t"%'}), 0, 'tenants are no label');

# ----------------------------------------------------------------------
note 'what nothing settles';

is(overdue(), 0, 'nothing is overdue');
like(health(), qr/^ok: /, 'nor unhealthy');
# pending rows are not final
sql($node, q{UPDATE reconcile.command SET deadline = now() - interval '50 s' WHERE command_id = 'c1' AND tenant_id = 'u'});
is(overdue(), 0, 'nor is what is over for less than a minute');
sql($node, q{UPDATE reconcile.command SET deadline = now() - interval '61 s' WHERE command_id = 'c1' AND tenant_id = 'u'});
is(overdue(), 1, 'nobody claimed it, and nothing sweeps');
like(health(), qr/^warn: the time of 1 commands has been over for a minute/, 'which is unhealthy');
sql($node, q{
	SELECT count(*) FROM reconcile.claim_commands('d', '{drain}', ttl => '1 ms');
	UPDATE reconcile.command SET claim_expires_at = now() - interval '61 s' WHERE command_id = 'c1' AND tenant_id = 't'});
is(overdue(), 2, 'nobody reported it, and nothing sweeps');
is(sql($node, 'SELECT canceled, lapsed FROM reconcile.sweep_commands()'), '1|1', 'a sweep');
is(overdue(), 0, 'settles them');
is(counted('drain') . '; ' . counted('other'), 'accepted 1, conflict 1, dispatched 1, replayed 1, unknown 1; accepted 1, canceled 1', 'each end is counted');

# ----------------------------------------------------------------------
note 'what nobody resolves';

like(health(), qr/^warn: the outcome of 1 commands is unknown/, 'an unknown outcome is unhealthy');
sql($node, q{SELECT reconcile.resolve_command('t', 'c1', 'not_executed', '{"looked at": "w"}', 'no trace of it')});
like(health(), qr/^ok: /, 'until it is resolved');
is(counted('drain'), 'accepted 1, conflict 1, dispatched 1, replayed 1, resolved 1, unknown 1', 'which is counted, too');

# ----------------------------------------------------------------------
note 'for whom';

my $seen = q{SELECT (SELECT count(*) FROM reconcile.metrics() WHERE name LIKE 'reconcile_commands%') || ', ' ||
	(SELECT count(*) FROM reconcile.health WHERE check_name = 'commands')};
is(sql($node, "SET ROLE sees_all; $seen"), '37, 1', 'who observes all sees it');
is(sql($node, "SET ROLE sees_one; $seen"), '0, 0', 'who observes one id does not');

finish();

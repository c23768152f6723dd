# Of n commands whose time is over each is settled within n / b + 1 sweeps of a budget
# of b, though another session has the first b of them in hand: while the first sweep
# runs, or all the time, and then it is those that nobody has. No sweep waits, and who
# sweeps for as long as there is more comes to an end.

use strict;
use warnings;

use LoopTest;
use POSIX qw(ceil);
use ReconcileTest;
use Test::More;

my $node = new_node('bound', conf => "max_worker_processes = 16\n");

sql($node, q{
	CREATE PROCEDURE make(tenant text, n int) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM a.outcome FROM generate_series(1, n) i, LATERAL reconcile.accept_command(tenant, 'k' || i, 'retry', 'failure', 'f', 'test',
			deadline_in => '5 min', command_id => 'c' || i) a;
		COMMIT;
		-- every other one is claimed, for a moment
		PERFORM * FROM reconcile.claim_commands('w', NULL, (n + 1) / 2, '1 ms');
		COMMIT;
		UPDATE reconcile.command SET deadline = now() WHERE tenant_id = tenant AND status = 'pending';
		COMMIT;
		PERFORM pg_sleep(0.002);
	END $$;
	CREATE VIEW place AS SELECT tenant_id, command_id, row_number() OVER (PARTITION BY tenant_id ORDER BY at, command_id COLLATE "C") AS n
		FROM (SELECT *, CASE WHEN status = 'pending' THEN deadline ELSE claim_expires_at END AS at FROM reconcile.command WHERE completed_at IS NULL) c;
});

my $holder = $node->background_psql('postgres');

sub hold_first
{
	my ($tenant, $b) = @_;
	$holder->query_safe('BEGIN');
	$holder->query_safe(qq{SELECT count(*) FROM (SELECT FROM reconcile.command WHERE (tenant_id, command_id) IN
		(SELECT tenant_id, command_id FROM place WHERE tenant_id = '$tenant' AND n <= $b) FOR UPDATE) c});
	return;
}

# One sweep, which waits for nothing at all: is there more?
sub sweep
{
	my ($b) = @_;
	return sql($node, "SET lock_timeout = '2 s'; SELECT more FROM reconcile.sweep_commands($b)") eq 't';
}

sub left_over
{
	my ($tenant) = @_;
	return sql($node, "SELECT count(*) FROM reconcile.command WHERE tenant_id = '$tenant' AND completed_at IS NULL");
}

for my $case ([ 1, 1 ], [ 2, 1 ], [ 4, 2 ], [ 5, 2 ], [ 6, 3 ], [ 7, 3 ], [ 9, 4 ], [ 12, 5 ], [ 3, 10 ])
{
	my ($n, $b) = @$case;
	my $first = $b < $n ? $b : $n;
	my $bound = ceil($n / $b) + 1;
	my $tenant;

	# while the first sweep runs
	$tenant = "once $n $b";
	sql($node, "CALL make('$tenant', $n)");
	hold_first($tenant, $first);
	sweep($b);
	is(left_over($tenant), $n, "$n by $b: the first sweep has met what is held");
	$holder->query_safe('ROLLBACK');
	sweep($b) for 2 .. $bound;
	is(left_over($tenant), '0', "$n by $b: all is settled after $bound");

	# all the time
	$tenant = "always $n $b";
	sql($node, "CALL make('$tenant', $n)");
	hold_first($tenant, $first);
	sweep($b) for 1 .. $bound;
	is(left_over($tenant), $first, "$n by $b: what nobody has is settled after $bound");
	my $more = 0;
	while ($more <= 2 * $bound && sweep($b)) { $more++; }
	ok($more <= 2 * $bound, "$n by $b: there is an end of it, though something is left");
	$holder->query_safe('COMMIT');
	sweep($b) for 1 .. ceil($first / $b) + 1;
	is(left_over($tenant), '0', "$n by $b: and it is settled when it is free");
}
is(sql($node, q{SELECT DISTINCT status, failure FROM reconcile.command ORDER BY 1}), "canceled|deadline_exceeded\nunknown|outcome_unknown",
	'what was pending is canceled, what was claimed is unknown');
$holder->quit;

finish();

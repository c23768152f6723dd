# What tests of lost pasts share: leases, in each of which an epoch was granted
# that the server under test does not know, and what must be true of them.
#
#   use LostPast;
#   my $known = grant($where, 'fleet', 'me');       # before the backup or dump
#   my $lost = grant($where, 'fleet', 'you');       # after it
#   refused($copy, 'fleet', 'you', $lost);          # before anything was granted there
#   granted_above($copy, 'fleet', $known, $lost);
#
# WHERE is a node, or [node, database], as in LoopTest.

package LostPast;

use strict;
use warnings;

use Exporter 'import';
use LoopTest;
use Test::More;

our @EXPORT = qw(grant refused granted_above);

# grant(WHERE, ID, HOLDER): the epoch of a new term of an hour, whoever had the one before.
sub grant
{
	my ($where, $id, $holder) = @_;

	sql($where, "SELECT reconcile.release_lease(reconciler_id, holder_id, epoch) FROM reconcile.leases
		WHERE reconciler_id = '$id' AND live");
	return sql($where, "SELECT epoch FROM reconcile.acquire_lease('$id', '$holder', '1 h')");
}

# refused(WHERE, ID, HOLDER, EPOCH): a test that no fence lets the epoch write.
sub refused
{
	my ($where, $id, $holder, $epoch) = @_;
	my $live = "SELECT count(*) FROM reconcile.leases WHERE reconciler_id = '$id' AND epoch = $epoch AND live";

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	subtest "epoch $epoch of $id is refused" => sub {
		is(sql($where, $live), 0, 'it is not live');
		is(sql($where, qq{SELECT reconcile.apply_fenced('$id', 'entity', $epoch, '{"by": "the past"}')}), 'f', 'apply_fenced');
		is(sql($where, qq{SELECT accepted FROM reconcile.apply_fenced_many('$id', '{entity}', $epoch, ARRAY['{}'::jsonb])}),
			'f', 'apply_fenced_many');
		session_fails($where, 'RC002', qq{SELECT reconcile.bind_lease('$id', '$holder', $epoch)}, 'bind_lease');
		session_fails($where, 'RC002', qq{SELECT reconcile.renew_lease('$id', '$holder', $epoch)}, 'renew_lease');
		is(sql($where, qq{SELECT renewed FROM reconcile.renew_leases('$holder', '{$id}', '{$epoch}')}), 'f', 'renew_leases');
		is(sql($where, qq{SELECT reconcile.release_lease('$id', '$holder', $epoch)}), 'f', 'release_lease');
		is(sql($where, qq{SELECT reconcile.force_release_lease('$id', $epoch, 'why')}), 'f', 'force_release_lease');
		is(sql($where, qq{SELECT count(*) FROM reconcile.resources WHERE reconciler_id = '$id' AND state ->> 'by' = 'the past'}),
			0, 'nothing was written');
	};
	return;
}

# granted_above(WHERE, ID, EPOCH...): tests that a new term is above these and the
# floor, and that under it, and no other, writes are accepted; returns its epoch.
sub granted_above
{
	my ($where, $id, @epochs) = @_;
	my $new;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	subtest "a new term of $id" => sub {
		$new = grant($where, $id, 'the heir');
		cmp_ok($new, '>', $_, "is above $_") for @epochs;
		cmp_ok($new, '>', sql($where, 'SELECT epoch_floor FROM reconcile.incarnation()'), 'and above the floor');
		cmp_ok($new, '<', 2**53, 'which any JSON number can hold');
		is(sql($where, qq{SELECT reconcile.apply_fenced('$id', 'entity', $new, '{"by": "the heir"}')}), 't', 'it may write');
		session_fails($where, 'RC005', qq{SELECT reconcile.apply_fenced('$id', 'entity', $new + 1, '{}')}, 'the epoch after it was never granted');
		is(sql($where, qq{SELECT reconcile.apply_fenced('$id', 'entity', $_, '{}')}), 'f', "still refused: $_") for @epochs;
		is(sql($where, qq{SELECT count(*) FROM reconcile.lease_history WHERE ended_at IS NULL AND reconciler_id = '$id'}), 1,
			'the terms of before have ended');
	};
	return $new;
}

1;

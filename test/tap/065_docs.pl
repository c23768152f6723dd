# The examples of doc/reference.md, as they stand there: each runs in a fresh
# copy of one database, and does what the text says. All functions are in it, and
# the functions that doc/internals.md has broken are where it says.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# Without workers nothing but the example happens. A database that is copied has no other guest.
my $node = new_node('main', preload => 0, extension => 0, conf => "autovacuum = off\n");

# What the examples take for granted: the table and the function that
# "Conventions" names, the rest of the schema app, and who holds which lease.
sql($node, q{CREATE DATABASE world; CREATE ROLE dashboard; CREATE ROLE api; CREATE ROLE metrics});
my $world = [ $node, 'world' ];
sql($world, q{
	CREATE EXTENSION reconcile;
	CREATE SCHEMA app;
	CREATE FUNCTION app.drive_device(entity_id text) RETURNS interval LANGUAGE sql AS 'SELECT NULL::interval';
	CREATE TABLE app.invoice (id int, sent boolean);
	CREATE TABLE app.audit (invoice int, epoch bigint);
});
sql($world, q{SELECT reconcile.create_loop('fleet', 'app.drive_device')});
foreach my $lease ([ 'billing', 2 ], [ 'mail', 7 ])
{
	my ($id, $epoch) = @$lease;

	foreach my $term (1 .. $epoch)
	{
		sql($world, qq{SELECT * FROM reconcile.acquire_lease('$id', 'worker-b', '1 h')});
		sql($world, qq{SELECT reconcile.release_lease('$id', 'worker-b', $term)}) if $term < $epoch;
	}
}

my $release = q{SELECT reconcile.release_lease('billing', 'worker-b', 2)};
my $lend = q{
	SELECT reconcile.alter_loop('fleet', '{"reconciler": null}');
	ALTER SEQUENCE reconcile.claim_epoch RESTART 4711;
	SELECT reconcile.enqueue('fleet', 'd1');
};
my $claim = $lend . q{
	SELECT reconcile.enqueue('fleet', 'd2');
	SELECT reconcile.enqueue('fleet', 'd3');
	SELECT * FROM reconcile.claim_work('fleet', 'worker-7', 3);
};
my $failing = q{
	CREATE OR REPLACE FUNCTION app.drive_device(entity_id text) RETURNS interval LANGUAGE plpgsql AS
		$$BEGIN RAISE 'no answer' USING ERRCODE = '08006'; END$$;
	SELECT reconcile.enqueue('fleet', 'd1');
};
my $dead = qq{
	$failing
	SELECT reconcile.alter_loop('fleet', '{"max_attempts": 1}');
	CALL reconcile.run_loop('fleet');
};
my $guarded = q{
	ALTER TABLE app.invoice ADD last_epoch bigint NOT NULL DEFAULT 0;
	INSERT INTO app.invoice VALUES (17, true);
	SELECT reconcile.attach_fence('app.invoice', 'billing', 'id');
};
my $overridden = $guarded . q{
	BEGIN; SELECT reconcile.override_fence('app.invoice', 'again'); UPDATE app.invoice SET sent = false; COMMIT;
};
my $retried = qq{
	$failing
	SELECT reconcile.alter_loop('fleet', '{"backoff_base": "10 min"}');
	CALL reconcile.run_loop('fleet');
};

my $command = q{
	SELECT reconcile.accept_command('acme', 'req-1', 'drain', 'worker_group', 'payments', 'deploy', command_id => '01jdyq2v7n5r8w3t6x9z4k1m0c');
};
my $unknown = $command . q{
	SELECT reconcile.claim_commands('dispatcher-1', ttl => '1 ms');
	SELECT pg_sleep(0.01);
	SELECT reconcile.sweep_commands();
};

my $session = q{
	SELECT reconcile.create_session('acme', 'support-17', 'support-bot', 'pooled', 'create-17', 'linux-x64/3');
	SELECT reconcile.admit_session_command('acme', 'support-17', 'msg-1', 'input', 'hello');
};
my $held = $session . q{
	SELECT reconcile.register_host('node-7', current_user);
	SELECT reconcile.publish_host_target('node-7', 1, 'support-bot', 'linux-x64/3', 'pooled', 'ws://node-7:8080', 'cross_tenant_isolated', true, 4);
	SELECT reconcile.place_session('acme', 'support-17');
	SELECT reconcile.accept_offer(offer_id, 1, 'b0c1d2') FROM reconcile.fetch_offers();
};
my $begun = $held . q{
	SELECT reconcile.claim_session_command('acme', 'support-17', 'msg-1', 1, 'b0c1d2', 1);
	SELECT reconcile.begin_attempt('acme', 'support-17', 'msg-1', 1, 'b0c1d2', 2, 'try-1');
};
my $dedicated = q{
	SELECT reconcile.create_session('acme', 'solo-1', 'support-bot', 'dedicated', 'create-1', 'linux-x64/3', 'v2', 'image');
	SELECT reconcile.fetch_intents('platform-1');
	SELECT reconcile.place_session('acme', 'solo-1');
};
my $unwanted = $dedicated . q{
	SELECT reconcile.report_workload('acme', 'solo-1', 1, 'ready', 'pod-1', 1, 'ws://pod-1:8080');
	SELECT reconcile.update_desired_state('acme', 'solo-1', 'delete-1', 1, 'dedicated', 'linux-x64/3');
};
my $offered = $held =~ s/\n[^\n]*accept_offer[^\n]*//r;
my $claimed = $session . q{
	SELECT reconcile.acquire_claim('acme', 'support-17', 'factory-2/placement', '30 s');
	UPDATE reconcile.session_claim SET claim_token = '01jdyq2v7n5r8w3t6x9z4k1m0c';
};

# By heading: what is done before its example, the SQLSTATE that the example
# fails with, and what it prints.
my %example = (
	'A first placement' => { prints => qr/^offer\|node-7\|open\noutcome\|\|offered\nsupport-17\|create\|accepted\|1\nrenewed\|\|.*\nmsg-1\|input\|.*\nclaimed\nbegun\nsettled\|applied\nlive\|node-7\|ws:.*\nreleased$/m },
	'create_loop' => { before => q{SELECT reconcile.drop_loop('fleet')} },
	'unwatch' => { before => q{SELECT reconcile.watch('fleet', 'app.device', 'device_id')} },
	'enqueue_many' => { prints => qr/^2$/ },
	'watch_problems' => { prints => qr/^$/ },
	'current_run' => { prints => qr/^$/ },
	'permanent_error' => { fails => 'RC004' },
	'revive' => { before => $dead, prints => qr/^t$/ },
	'revive_all' => { before => $dead, prints => qr/^1$/ },
	'forget' => { before => q{SELECT reconcile.enqueue('fleet', 'ed-eu-west-00042')}, prints => qr/^t$/ },
	'drain_loop' => { prints => qr/^t$/ },
	'wait_idle' => { prints => qr/^t$/ },
	'cancel_run' => { prints => qr/^f$/ },
	'run_entity' => { prints => qr/^success\|00:00:30\|\|$/ },
	'explain' => { prints => qr/^idle\|/ },
	# tap/056_cron has it where pg_cron is loaded
	'schedule_loops, unschedule_loops' => { fails => '55000' },
	'Outside workers' => { before => $lend, prints => qr/^d1\|4711$/m },
	'claim_work' => { before => $lend, prints => qr/^d1\|4711\|\|1\|/ },
	'extend_work' => { before => $claim, prints => qr/^1\|d1\|t\|.*\n2\|d2\|t\|/ },
	'complete_work, complete_works' => { before => $claim, prints => qr/^$/ },
	'fail_work' => { before => $claim },
	'next_due' => { before => $lend, prints => qr/^00:00:00$/ },
	'acquire_lease' => { before => $release, prints => qr/^billing\|minted\/.*\|3\|/ },
	'try_acquire_lease' => { before => $release, prints => qr/^3$/ },
	'renew_leases' => { prints => qr/^$/ },
	'release_lease' => { prints => qr/^t$/ },
	'force_release_lease' => { prints => qr/^t$/ },
	'incarnation' => { prints => qr/^1\|0\|first grant$/ },
	'bump_incarnation' => { prints => qr/^\d{16}$/ },
	'apply_fenced' => { prints => qr/^t$/ },
	'apply_fenced_many' => { prints => qr/^$/ },
	'Repositories' => { before => q{SELECT reconcile.alter_loop('fleet', '{"lease_ttl": "15 s"}')} },
	'attach_fence' => { fails => 'RC006', prints => qr/^p1\|down\|down\|2$/m },
	'detach_fence' => { before => $guarded },
	'override_fence' => { before => $guarded },
	'fence_problems' => { prints => qr/^$/ },
	'fence_overrides' => { before => $overridden, prints => qr/\|postgres\|app\.invoice\|1\|again$/ },
	'json_merge_patch' => { prints => qr/^\{"a": 1, "c": 3\}$/ },
	'loops' => { prints => qr/^fleet\|0\|0\|0\|0\|00:00:00$/ },
	'work' => { before => $retried, prints => qr/^d1\|[^|]+\|1\|no answer$/ },
	'dead_letters' => { before => $dead, prints => qr/^fleet\|08006\|1$/ },
	'leases' => { prints => qr/^billing\|worker-b\|2\|/m },
	'lease_history' => { prints => qr/^1\|worker-b\|[^|]+\|released\|\|\n2\|worker-b\|\|\|\|$/ },
	'resources' => { before => q{SELECT reconcile.apply_fenced('billing', 'invoices', 2, '{"a": 1}')}, prints => qr/^\{"a": 1\}\|2$/ },
	'accept_command' => { prints => qr/^accepted\|(\w{26})\|pending\|t\|\|1\nreplayed\|\1\|pending\|f\|\|1\naccepted\|succeeded$/ },
	'claim_commands' => { before => $command, prints => qr/^01jdyq2v7n5r8w3t6x9z4k1m0c\|drain\|payments\|\{\}$/ },
	'acknowledge_command' => { before => $command, prints => qr/^acknowledged$/ },
	'complete_command' => { before => $command, prints => qr/^completed$/ },
	'cancel_command' => { before => $command, prints => qr/^canceled$/ },
	'resolve_command' => { before => $unknown, prints => qr/^resolved$/ },
	'sweep_commands' => { prints => qr/^0\|0\|f$/ },
	'explain_command' => { before => $command, prints => qr/^pending\|no_dispatcher\|/ },
	'desired_state_of' => { before => $command, prints => qr/^draining\|1$/ },
	'desired_states_since' => { before => $command },
	'report_observed' => { before => $command, prints => qr/^stored$/ },
	'effective_state' => { before => $command, prints => qr/^draining\|worker_group$/ },
	'next_desired_state' => { prints => qr/^planned\|active\|4$/ },
	'register_action' => { prints => qr/^succeeded\|$/m },
	'audit_verify' => { before => $command, prints => qr/^ok\|1\|1\|\\x[0-9a-f]{64}$/ },
	'audit_access' => { prints => qr/^\d+$/ },
	'prune_commands' => { prints => qr/^no_policy\|0\|0\|0\|f$/ },
	'commands' => { before => $command, prints => qr/^01jdyq2v7n5r8w3t6x9z4k1m0c\|drain\|payments\|pending\|$/ },
	'command_timeline' => { before => $command, prints => qr/^accepted\|/ },
	'desired_states' => { before => $command, prints => qr/^worker_group\|payments\|draining\|1$/ },
	'desired_drift' => { before => $command, prints => qr/^payments\|\|unreported$/ },
	'create_session' => { prints => qr/^created\|1\|1\|t$/ },
	'get_session' => { before => $session, prints => qr/^\|\|\|1$/ },
	'update_desired_state' => { before => $session, prints => qr/^applied\|2\|2$/ },
	'update_host_state' => { before => $held, prints => qr/^written$/ },
	'placement_intent' => { before => $session, prints => qr/^acme\|support-17\|support-bot\|linux-x64\/3\|pooled\|\|\|1$/ },
	'workload_identity, placement_key, revive_key, control_shard_of' => { prints => qr/^lrw-[0-9a-f]{56}\|\d+\|placement-[0-9a-f]{64}\|revive-[0-9a-f]{64}$/ },
	'acquire_claim' => { before => $session, prints => qr/^acquired\|\w{26}\|00:00:30$/ },
	'release_claim' => { before => $claimed, prints => qr/^released$/ },
	'get_claim' => { before => $claimed, prints => qr/^live\|factory-2\/placement\|/ },
	'admit_session_command' => { before => $session =~ s/msg-1/msg-0/r, prints => qr/^admitted\|2$/ },
	'claim_session_command' => { before => $held, prints => qr/^claimed\|2\|/ },
	'begin_attempt' => { before => $begun =~ s/\n[^\n]*begin_attempt[^\n]*//r, prints => qr/^begun\|3$/ },
	'settle_attempt' => { before => $begun, prints => qr/^settled\|applied$/ },
	'reject_session_command' => { before => $session, prints => qr/^rejected$/ },
	'session_commands' => { before => $session, prints => qr/^$/ },
	'due_session_commands' => { before => $session },
	'set_pointer, clear_pointer' => { before => $held, prints => qr/^written\ncleared\|1\|42$/ },
	'get_pointer' => { before => $held, prints => qr/^not_found\|$/ },
	'set_placement' => { prints => qr/^"5000 ms"$/ },
	'control_shards' => { prints => qr/^16$/ },
	'decide' => { prints => qr/^attach_pooled\|3$/ },
	'place_session' => { before => $session, prints => qr/^no_capacity\|\|/ },
	'explain_placement' => { before => $held =~ s/\n[^\n]*place_session.*//sr, prints => qr/^node-7\|chosen\|4 free\n\|attach_pooled\|/ },
	'sweep_pending' => { before => $session, prints => qr/^\d+\|\d+\|0\|f$/ },
	'sweep_deadlines' => { before => $session, prints => qr/^0\|0\|0$/ },
	'sweep_host_targets' => { before => $held, prints => qr/^0\|0\|t$/ },
	'sweep_offers' => { prints => qr/^0\|0$/ },
	'sweep_claims' => { before => $claimed, prints => qr/^1\|f$/ },
	'schedule_sweeps, unschedule_sweeps' => { fails => '55000' },
	'sessions' => { before => $held, prints => qr/^support-17\|\|live\|node-7\|1$/ },
	'register_host, unregister_host' => { prints => qr/^registered\nunregistered$/ },
	'publish_host_target' => { before => $held, prints => qr/^published\|2$/ },
	'drain_host_target' => { before => $held, prints => qr/^drained$/ },
	'heartbeat_host' => { before => $held, prints => qr/^renewed\|\|\|\|1\|00:0(?:0:5|1:00)/ },
	'compatible_hosts' => { before => $held, prints => qr/^node-7\|3$/ },
	'owner_of' => { before => $held, prints => qr/^live\|1\|ws:\/\/node-7:8080\|f$/ },
	'fetch_offers' => { before => $offered, prints => qr/^1\|support-17\|create\|[0-9a-f]{64}$/ },
	'accept_offer' => { before => $offered, prints => qr/^accepted\|1\|00:0/ },
	'refuse_offer' => { before => $offered, prints => qr/^refused$/ },
	'release_session' => { before => $held, prints => qr/^released\|1$/ },
	'force_release_session' => { before => $held, prints => qr/^released\|1$/ },
	'fetch_intents' => { before => $dedicated, prints => qr/^ensure\|solo-1\|1\|lrw-[0-9a-f]{56}\|absent$/ },
	'report_workload' => { before => $dedicated, prints => qr/^reported$/ },
	'request_drain' => { before => $unwanted, prints => qr/^requested\|pod-1\|$/ },
	'report_drained' => { before => $unwanted . q{SELECT reconcile.request_drain('acme', 'solo-1', 1)}, prints => qr/^recorded$/ },
	'may_delete_workload' => { before => $unwanted, prints => qr/^yes\|forced\|drain_refused\|0$/ },
	'record_termination' => { before => $unwanted, prints => qr/^recorded\|1$/ },
	'get_termination' => { before => $unwanted, prints => qr/^not_found\|\|$/ },
	'hosts' => { before => $held, prints => qr/^node-7\|postgres$/ },
	'host_targets' => { before => $held, prints => qr/^node-7\|accepting\|3\|1$/ },
	'session_offers' => { before => $held, prints => qr/^support-17\|node-7\|accepted\|$/ },
	'command_grants' => { before => q{SELECT reconcile.grant_command('api', 'acme', 'drain', 'worker_group')}, prints => qr/^api\|drain\|worker_group\|\|allow$/ },
	'retention_policies' => { before => q{SELECT reconcile.set_command_retention('acme', '90 days')}, prints => qr/^90 days\|\|f$/ },
	'health' => { prints => qr/^preload\|warn\|/m },
	'metrics, metrics_text' => { before => $dead, prints => qr/^permanent\|/m },
);

# ----------------------------------------------------------------------
note 'the text';

my $reference = slurp_file("$ENV{RECONCILE_SOURCE}/doc/reference.md");

# [heading, line, SQL] of each block
my @blocks;
{
	my ($heading, $line, $block) = ('', 0);

	foreach my $text (split /\n/, $reference)
	{
		$line++;
		if (defined $block)
		{
			$text eq '```' ? push(@blocks, [ @$block ]) : ($block->[2] .= "$text\n");
			undef $block if $text eq '```';
		}
		elsif ($text eq '```sql') { $block = [ $heading, $line, '' ]; }
		elsif ($text =~ /^##+ (.*)/) { $heading = $1; }
	}
}
my %seen = map { $_->[0] => 1 } @blocks;
is(join(', ', grep { !$seen{$_} } sort keys %example), '', 'each of these headings has an example');

# Every function that users call, and every view that they may read, is in one.
my $examples = join('', map { $_->[2] } @blocks);
my @offered = split /\n/, sql($world, q{
	SELECT DISTINCT p.proname FROM pg_proc p
	 WHERE p.pronamespace = 'reconcile'::regnamespace AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
	   AND p.proname NOT IN ('may_observe', 'may_see_errors', 'running', 'worker_list', 'loop_counts', 'recent_runs', 'health_checks',
	                         'watch_triggers', 'fence_triggers', 'capability_functions', 'here', 'may_read_command', 'journal_relations', 'builtin_actions',
	                         'may_place', 'my_hosts', 'place_entity', 'sweep_entity', 'sweep_names')
	UNION ALL
	SELECT c.relname FROM pg_class c
	 WHERE c.relnamespace = 'reconcile'::regnamespace AND c.relkind = 'v' AND has_table_privilege('public', c.oid, 'SELECT')});
is(join(', ', sort grep { $examples !~ /\breconcile\.$_\b/ } @offered), '', 'each function and each view is in an example');

# Triggers' functions, which nobody calls, are where all parts are named, with what their caller is told.
my ($errors) = $reference =~ /^(\| `39P01`, .*)$/m;
my ($parts) = $reference =~ /^## Parts that are not for calling\n(.*?)^## /ms;
foreach my $function (split /\n/, sql($world, q{
	SELECT p.proname FROM pg_proc p
	 WHERE p.pronamespace = 'reconcile'::regnamespace AND p.prorettype IN ('trigger'::regtype, 'event_trigger'::regtype) ORDER BY 1}))
{
	like($errors, qr/`$function`/, "$function is among those that are not called otherwise");
	like($parts, qr/`$function\(\)`/, "$function is among the parts");
}

# ----------------------------------------------------------------------
note 'what was broken';

# `name`, ... (`file`) in the rows of the table
{
	my ($table) = slurp_file("$ENV{RECONCILE_SOURCE}/doc/internals.md") =~ /^### What fails when the code is broken\n(.*?)^##/ms;
	my (%text, @gone);
	my $names = 0;

	foreach my $row (grep { /^\|/ } split /\n/, $table)
	{
		while ($row =~ /(.*?)\(`([\w\/]+\.\w+)`\)/g)
		{
			my ($before, $file) = ($1, $2);
			my $path = "$ENV{RECONCILE_SOURCE}/src/$file";

			$text{$file} //= -f $path ? slurp_file($path) : '';
			foreach my $name ($before =~ /`(\w+)`/g)
			{
				$names++;
				push @gone, "$name ($file)" if $text{$file} !~ /\b(?:reconcile_)?$name\b/;
			}
		}
	}
	is(join(', ', @gone), '', 'is in the file that is named');
	cmp_ok($names, '>', 300, 'of all of the table');
}

# ----------------------------------------------------------------------
note 'scenarios of placement';

# Each of the contract's has a row, and what is in italics there a reason.
{
	my %last = (A => 9, B => 22, C => 27, D => 21, E => 3, F => 17, G => 11, H => 23, I => 34, J => 27, K => 17, L => 22, M => 16, N => 13);
	my ($listed) = slurp_file("$ENV{RECONCILE_SOURCE}/doc/scenarios.md") =~ /^## Placement\n(.*?)^## /ms;
	my ($excused) = slurp_file("$ENV{RECONCILE_SOURCE}/doc/internals.md") =~ /^And of placement:\n(.*?)^## /ms;
	my $of = sub {
		my %found;

		foreach my $cell (@_)
		{
			while ($cell =~ /\b([A-N])(\d+)(?: to [A-N]?(\d+))?/g) { $found{"$1$_"} = 1 foreach $2 .. $3 // $2; }
		}
		return \%found;
	};
	my @first = map { (split /\|/)[1] } grep { /^\|/ } split /\n/, $listed;
	my ($there, $left_out) = ($of->(@first), $of->(grep { /^ \*/ } @first));
	my $reasons = $of->(map { (split /\|/)[1] } grep { /^\|/ } split /\n/, $excused);

	is(join(' ', sort map { my $group = $_; grep { !delete $there->{$_} } map { "$group$_" } 1 .. $last{$group} } keys %last), '', 'each has a row');
	is(join(' ', sort keys %$there), '', 'there are no others');
	is(join(' ', sort grep { !$reasons->{$_} } keys %$left_out), '', 'each that is left out has a reason');
}

# ----------------------------------------------------------------------
note 'the examples';

my ($conventions) = grep { $_->[0] eq 'Conventions' } @blocks;
sql($world, $conventions->[2] . q{INSERT INTO app.device VALUES ('d1', 'eu-west', '4'), ('d2', 'eu-west', '4')});

foreach my $block (@blocks)
{
	my ($heading, $line, $sql) = @$block;
	my $example = $example{$heading} // {};
	my $copy = [ $node, "line_$line" ];
	my ($stdout, $stderr);

	next if $block == $conventions;
	sql($node, "CREATE DATABASE line_$line TEMPLATE world");
	# this clone is to take itself for the original
	sql($copy, join(' ', map { "UPDATE reconcile.$_ SET home = h.home FROM reconcile.here() h;" } qw(incarnation lease loop)));
	sql($copy, $example->{before}) if defined $example->{before};
	$node->psql("line_$line", "\\set VERBOSITY verbose\n$sql", stdout => \$stdout, stderr => \$stderr);
	my ($sqlstate) = $stderr =~ /ERROR:  (\w{5}):/;
	is($sqlstate // 'none', $example->{fails} // 'none', "$heading (line $line): errors") or diag($stderr);
	like($stdout, $example->{prints}, "$heading (line $line): results") if defined $example->{prints};
	sql($node, "DROP DATABASE line_$line");
}

# ----------------------------------------------------------------------
note 'what README shows';

# Each block of SQL of a chapter, and what the block after it says that psql prints. What a
# role needs is made before that is shown.
foreach my $chapter ([ 'A command journal', qr/^(?=SET ROLE api;)/m ], [ 'Sessions, placed on hosts', qr/^(?=SELECT outcome FROM reconcile.publish)/m ])
{
	my ($heading, $begin) = @$chapter;
	my ($text) = slurp_file("$ENV{RECONCILE_SOURCE}/README.md") =~ /^## \Q$heading\E\n(.*?)^## /ms;
	my $shows = '';
	my $sql = '';

	while ($text =~ /^```(sql)?\n(.*?)^```\n/msg)
	{
		$1 ? ($sql .= $2) : ($shows .= $2);
	}
	sql($node, 'DROP ROLE IF EXISTS api; CREATE DATABASE readme TEMPLATE world');
	# this clone is to take itself for the original
	sql([ $node, 'readme' ], join(' ', map { "UPDATE reconcile.$_ SET home = h.home FROM reconcile.here() h;" } qw(incarnation lease loop)));
	$sql =~ s/$begin/\\o\n\\set QUIET off\n/;
	my ($stdout, $stderr);
	IPC::Run::run([ 'psql', '-XqP', 'pager=off', '-d', $node->connstr('readme') ], '<', \"\\o /dev/null\n$sql", '>', \$stdout, '2>&1');
	# trailing spaces, and the lines between the blocks
	s/ +$//mg, s/\n\n+/\n/g, s/^psql:[^:]*:\d+: //mg foreach $stdout, $shows;
	is($stdout, $shows, "$heading: is what it prints");
	sql($node, 'DROP DATABASE readme');
}

finish();

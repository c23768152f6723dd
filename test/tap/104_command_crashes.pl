# A tenant with many who give commands and carry them out, on a server that crashes again
# and again, with commits that do not wait: what was answered is there, each key was used
# once, nothing was given out twice, and the audit is whole, from each head that was read.

use strict;
use warnings;

use CrashTest;
use IPC::Run;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('main', conf => "max_worker_processes = 16\nsynchronous_commit = off\nwal_writer_delay = 10s\nfsync = off\n");
expect_crashes();
prepare($node);

# They say what they were answered when it has committed, and go on until the server is
# gone, or there is nothing to do.
sql($node, q{
	CREATE PROCEDURE app.give(client text, first int, last int) LANGUAGE plpgsql AS $$
	DECLARE
		said record;
	BEGIN
		FOR n IN first .. last LOOP
			SELECT * INTO said FROM reconcile.accept_command('acme', format('%s %s', client, n), 'drain', 'worker', 'w' || n % 20, 'why', deadline_in => '5 min');
			COMMIT;
			RAISE NOTICE 'given % % % %', client, n, said.outcome, said.command_id;
		END LOOP;
	END $$;
	CREATE PROCEDURE app.work(stay boolean) LANGUAGE plpgsql AS $$
	DECLARE
		mine record;
		said text;
	BEGIN
		LOOP
			SELECT * INTO mine FROM reconcile.claim_commands('worker', ttl => '1 ms');
			COMMIT;
			EXIT WHEN mine IS NULL AND NOT stay;
			CONTINUE WHEN mine IS NULL;
			RAISE NOTICE 'claimed %', mine.command_id;
			said := reconcile.complete_command('acme', mine.command_id, mine.claim_token, 'succeeded');
			COMMIT;
			RAISE NOTICE '% %', said, mine.command_id;
		END LOOP;
	END $$;
	CREATE PROCEDURE app.read() LANGUAGE plpgsql AS $$
	DECLARE
		head record;
	BEGIN
		LOOP
			SELECT sequence, hash INTO head FROM reconcile.audit_head WHERE tenant_id = 'acme';
			COMMIT;
			RAISE NOTICE 'head % %', head.sequence, head.hash;
			PERFORM pg_sleep(0.01);
		END LOOP;
	END $$});

my @said;
my %clients;

# What a client has said so far.
sub listen_to
{
	my ($name) = @_;
	my @lines = map { /NOTICE:  (.*)/ ? $1 : () } split /\n/, slurp_file($clients{$name}{file});

	# the last line may not be whole
	pop @lines if @lines && slurp_file($clients{$name}{file}) !~ /\n\z/;
	return @lines;
}

sub begin_client
{
	my ($name, $call) = @_;
	my $file = $node->basedir . "/$name." . scalar(@said);

	$clients{$name} = { file => $file, run => IPC::Run::start([ 'psql', '-X', '-q', '-c', "CALL app.$call", $node->connstr('postgres') ],
			'<' => \undef, '>' => '/dev/null', '2>' => $file) };
	return;
}

sub end_clients
{
	foreach my $name (sort keys %clients)
	{
		$clients{$name}{run}->finish;
		push @said, map { [ $name, $_ ] } listen_to($name);
	}
	return;
}

# How many keys were answered in this round.
sub answered
{
	my $n = 0;

	$n += grep { /^given/ } listen_to($_) foreach keys %clients;
	return $n;
}

my %next = (a => 1, b => 1, c => 1);
my $crashes = 3;

foreach my $round (1 .. $crashes)
{
	my $offset = -s $node->logfile;

	begin_client($_, "give('$_', $next{$_}, 1000000)") foreach sort keys %next;
	begin_client("worker$_", 'work(true)') foreach 1, 2;
	begin_client('reader', 'read()');
	foreach my $try (1 .. 200 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if answered() > 60;
		usleep(5_000);
	}
	kill('KILL', sql($node, q{SELECT pid FROM pg_stat_activity WHERE query ~ 'app.give' AND pid <> pg_backend_pid() LIMIT 1})) or die;
	end_clients();
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
	$node->poll_query_until('postgres', 'SELECT true') or die;

	# who was not answered asks again
	foreach my $name (sort keys %next)
	{
		my @numbers = map { $_->[1] =~ /^given \w (\d+)/ ? $1 : () } grep { $_->[0] eq $name } @said;
		$next{$name} = $numbers[-1] + 1 if @numbers;
	}
}
%clients = ();
begin_client($_, "give('$_', $next{$_}, $next{$_})") foreach sort keys %next;
end_clients();
%clients = ();
begin_client("worker$_", 'work(false)') foreach 1, 2;
end_clients();
sql($node, 'SELECT reconcile.sweep_commands(10000)');

# ----------------------------------------------------------------------
note 'what they have heard';

my (%given, %claimed, %ended, %replayed, %head);
foreach my $said (map { $_->[1] } @said)
{
	if (my ($key, $outcome, $id) = $said =~ /^given (\w \d+) (\w+) (\w+)$/)
	{
		fail("$key is asked twice") if exists $given{$key};
		fail("$key is answered $outcome") if $outcome !~ /^(?:accepted|replayed)$/;
		$given{$key} = $id;
		$replayed{$key} = 1 if $outcome eq 'replayed';
	}
	$claimed{$1}++ if $said =~ /^claimed (\w+)$/;
	$ended{$1} = 1 if $said =~ /^completed (\w+)$/;
	fail("an end is answered: $said") if $said =~ /^(?:repeated|stale_token|terminal|not_found)/;
	$head{$1} = $2 if $said =~ /^head (\d+) (\S+)$/;
}
cmp_ok(scalar(keys %given), '>', 60 * $crashes, 'many commands were given');
cmp_ok(scalar(keys %ended), '>', 10, 'and carried out');
cmp_ok(scalar(keys %replayed), '<=', 3 * $crashes, 'at most one of each client had its answer taken by a crash');
is(join(' ', grep { $claimed{$_} > 1 } sort keys %claimed), '', 'none was given out twice');

my %stored = map { split /\|/ } split /\n/, sql($node, q{SELECT idempotency_key, command_id FROM reconcile.command});
my %status = map { split /\|/ } split /\n/, sql($node, q{SELECT command_id, status FROM reconcile.command});
is(join(', ', grep { ($stored{$_} // '') ne $given{$_} } sort keys %given), '', 'each that was answered is there');
is(scalar(grep { !exists $given{$_} } keys %stored), 0, 'and no other');
is(join(', ', grep { ($status{$_} // '') ne 'succeeded' } sort keys %ended), '', 'each that was completed has succeeded');
is(join(', ', grep { ($status{$_} // '') !~ /^(?:succeeded|unknown)$/ } sort keys %claimed), '', 'of the others that were claimed the end is known or unknown');
is(sql($node, q{SELECT string_agg(DISTINCT status, ' ') FROM reconcile.command WHERE status NOT IN ('succeeded', 'unknown')}), '', 'and all are at their end');
cmp_ok(sql($node, q{SELECT count(*) FROM reconcile.command WHERE status = 'unknown'}), '<=', 2 * $crashes, 'of each worker one in a crash is unknown');
is(sql($node, q{SELECT outcome FROM reconcile.audit_verify('acme')}), 'ok', 'the audit is whole');
is(sql($node, 'SELECT count(*) FROM (VALUES ' . join(', ', map { "($_, '$head{$_}'::bytea)" } keys %head) . ') h (sequence, hash)
	JOIN reconcile.audit_event e ON (e.tenant_id, e.sequence, e.hash) = (\'acme\', h.sequence, h.hash)'), scalar(keys %head), 'and has each head that was read');

finish();

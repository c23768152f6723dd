# Guarded tables (P6) and what works with them: the run of a leased loop writes
# by plain SQL, wherever it runs; that of a loop without a lease does not. A
# refusal is counted, and logged once a minute for all sessions together. A
# leader that is held up by a row does not write once it was ended.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.fence_grace = 0\n");
prepare($node);

sql($node, q{
	CREATE TABLE app.device (id text PRIMARY KEY, desired text, reported text, last_epoch bigint NOT NULL DEFAULT 0);
	INSERT INTO app.device SELECT id, 'v1' FROM unnest('{a,b,c}'::text[]) id;
});

# ----------------------------------------------------------------------
note 'the run of a leased loop';

my $drive = q{
	UPDATE app.device SET reported = desired WHERE id = entity;
	IF entity = 'b' THEN
		INSERT INTO app.device VALUES ('made by b', 'v1', 'v1');
		DELETE FROM app.device WHERE id = 'c';
	END IF;
	RETURN NULL;
};
make_loop($node, 'fleet', body => $drive, options => q{lease_ttl => '1 h'});
sql($node, q{SELECT reconcile.attach_fence('app.device', 'fleet', 'id', columns => '{reported}')});
sql($node, q{SELECT reconcile.watch('fleet', 'app.device', 'id', columns => '{desired}')});
sql($node, q{UPDATE app.device SET desired = 'v2'});
wait_for($node, q{(SELECT count(*) FROM app.device WHERE reported = 'v2') = 2}, 'writes by plain SQL what another session had asked for');
wait_quiet($node, 'fleet');
is(sql($node, q{SELECT string_agg(concat_ws(' ', id, reported, last_epoch), ', ' ORDER BY id) FROM app.device}),
	'a v2 1, b v2 1, made by b v1 1', 'and its rows have the epoch of the term');
is(sql($node, q{SELECT count(*) FROM reconcile.dead_letters}), 0, 'no run of it failed');
is(sql($node, q{SELECT reconcile.fenced_epoch() IS NULL}), 't', 'the session has none');
session_fails($node, 'RC006', q{UPDATE app.device SET reported = 'v3'}, 'nor may it write');

# ----------------------------------------------------------------------
note 'the run of a loop without a lease';

make_loop($node, 'plain', body => q{UPDATE app.device SET reported = 'plain' WHERE id = entity; RETURN NULL;}, options => 'max_attempts => 1');
enqueue($node, 'plain', 'a');
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'plain' AND last_sqlstate = 'RC006')}, 'is refused with RC006');
# of another lease, too
make_loop($node, 'other', body => q{UPDATE app.device SET reported = 'other' WHERE id = entity; RETURN NULL;}, options => q{max_attempts => 1, lease_ttl => '1 h'});
enqueue($node, 'other', 'a');
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'other' AND last_sqlstate = 'RC006')}, 'so is that of another lease');

# ----------------------------------------------------------------------
note 'refusals are counted, and logged once a minute';

sub rejections
{
	return sql($node, q{SELECT coalesce(sum(value), 0) FROM reconcile.metrics()
		WHERE name = 'reconcile_fence_rejections_total' AND labels ->> 'reconciler' = 'fleet'});
}
sub logged
{
	my $log = slurp_file($node->logfile);
	my $lines = () = $log =~ /LOG:  refused a write to table "device", which lease "fleet" guards/g;
	return $lines;
}
my $before = rejections();
is($before, 3, 'each of those was counted');
session_fails($node, 'RC006', $_, "refused: $_")
  for q{UPDATE app.device SET reported = 'x'}, q{DELETE FROM app.device}, q{TRUNCATE app.device}, q{INSERT INTO app.device VALUES ('x')};
is(rejections(), $before + 4, 'each is counted');
sql($node, q{
	DO $$
	BEGIN
		UPDATE app.device SET reported = 'x';
	EXCEPTION WHEN SQLSTATE 'RC006' THEN
		NULL;
	END $$;
});
is(rejections(), $before + 5, 'also one that nobody sees');
is(logged(), 1, 'sessions and workers have logged one line');
like(slurp_file($node->logfile), qr/DETAIL:  It came from role "postgres"\. For this lease no other is logged for a minute; all are counted\./, 'with who it was');
sql($node, q{CREATE TABLE app.aside (id text, last_epoch bigint NOT NULL DEFAULT 0); SELECT reconcile.attach_fence('app.aside', 'aside', 'id')});
session_fails($node, 'RC006', q{INSERT INTO app.aside VALUES ('x')}, 'another lease');
like(slurp_file($node->logfile), qr/LOG:  refused a write to table "aside", which lease "aside" guards/, 'has its own line');

# ----------------------------------------------------------------------
note 'a leader that waits for a row past its term and the grace';

sql($node, q{CREATE TABLE app.held (id text PRIMARY KEY, have text, last_epoch bigint NOT NULL DEFAULT 0); INSERT INTO app.held VALUES ('d', 'first');
	SELECT reconcile.attach_fence('app.held', 'held', 'id')});
expect_log(qr/FATAL:  terminating connection due to administrator command/);
my $row = $node->background_psql('postgres');
$row->query_safe(q{BEGIN; SELECT id FROM app.held FOR UPDATE});
my $old = $node->background_psql('postgres', on_error_stop => 0);
$old->query_safe(q{SELECT reconcile.acquire_lease('held', 'old', '500 ms')});
my $pid = $old->query_safe('SELECT pg_backend_pid()');
$old->query_safe(q{BEGIN; SELECT reconcile.bind_lease('held', 'old', 1)});
begins($old, q{UPDATE app.held SET have = 'of the old leader'; COMMIT;});
wait_for($node, qq{(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid)}, 'it waits for the row');
wait_for($node, q{(SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'held')}, 'its term is over');
is(sql($node, q{SELECT epoch FROM reconcile.acquire_lease('held', 'new', '1 h', wait => '30 s')}), 2, 'it is ended for the next term');
$row->query_safe('COMMIT');
$row->quit;
sql($node, q{BEGIN; SELECT reconcile.bind_lease('held', 'new', 2); UPDATE app.held SET have = 'of the new leader'; COMMIT});
is(sql($node, q{SELECT have || ' ' || last_epoch FROM app.held}), 'of the new leader 2', 'and has written nothing');
$old->{run}->finish;

# ----------------------------------------------------------------------
note 'without preloading: a session runs the loop, and logs its own refusals';

my $bare = new_node('bare', preload => 0);
prepare($bare);
sql($bare, q{
	CREATE TABLE app.device (id text PRIMARY KEY, desired text, reported text, last_epoch bigint NOT NULL DEFAULT 0);
	INSERT INTO app.device VALUES ('a', 'v1');
	SELECT reconcile.attach_fence('app.device', 'fleet', 'id');
});
make_loop($bare, 'fleet', body => q{UPDATE app.device SET reported = desired WHERE id = entity; RETURN NULL;}, options => q{lease_ttl => '1 h'});
enqueue($bare, 'fleet', 'a');
sql($bare, q{CALL reconcile.run_loop('fleet')});
is(sql($bare, q{SELECT reported || ' ' || last_epoch FROM app.device}), 'v1 1', 'run_loop() writes by plain SQL');
is(sql($bare, q{SELECT result FROM reconcile.run_entity('fleet', 'a')}), 'transient', 'run_entity() without the lease does not');
is(sql($bare, q{SELECT sqlstate FROM reconcile.run_entity('fleet', 'a')}), 'RC006', 'as nothing is bound');
session_fails($bare, 'RC006', q{DELETE FROM app.device; DELETE FROM app.device}, 'refused');
session_fails($bare, 'RC006', q{DELETE FROM app.device}, 'refused in another session');
my $lines = () = slurp_file($bare->logfile) =~ /LOG:  refused a write/g;
cmp_ok($lines, '>=', 2, 'each session logs a line of its own');
is(sql($bare, q{SELECT status FROM reconcile.health WHERE check_name = 'guards'}), 'ok', 'health looks at guards');

finish();

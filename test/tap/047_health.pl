# The view "health": each check is provoked, and says what is wrong to whom it
# concerns; without preload, and on a standby, nothing of it is an error.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', allows_streaming => 1, conf => <<~'EOC');
	max_worker_processes = 8
	reconcile.max_workers = 2
	reconcile.ring_size = 64
	reconcile.fence_grace = 1s
	EOC
prepare($node);

# finding(CHECK, WHERE): status and detail of its rows.
sub finding
{
	my ($check, $where) = @_;
	return sql($where // $node, "SELECT status || ': ' || detail FROM reconcile.health WHERE check_name = '$check' ORDER BY 1");
}

is(sql($node, q{SELECT string_agg(DISTINCT status, ' '), count(*) = count(DISTINCT check_name) FROM reconcile.health}), 'ok|t', 'where nothing is wrong each check says so, once');
my @checks = split /\n/, sql($node, q{SELECT check_name FROM reconcile.health ORDER BY 1});

# ----------------------------------------------------------------------
note 'loops that cannot run';

make_loop($node, 'plain');
make_loop($node, 'broken');
sql($node, 'DROP FUNCTION app.broken(text)');
like(finding('loops'), qr/^crit: loop "broken" cannot run: its function app.broken\(text\) is gone/, 'a function is gone');
sql($node, q{SELECT reconcile.alter_loop('broken', '{"enabled": false}')});
like(finding('loops'), qr/^ok:/, 'which is no trouble while the loop is disabled');
sql($node, q{CREATE ROLE locked LOGIN; GRANT CREATE ON SCHEMA app TO locked; SELECT reconcile.grant_access('locked', 'define')});
make_loop($node, 'exile', role => 'locked');
like(finding('loops'), qr/^ok:/, 'an owner who can connect is none');
sql($node, q{REVOKE CONNECT ON DATABASE postgres FROM PUBLIC});
like(finding('loops'), qr/^crit: loop "exile" cannot run: its owner may not connect to this database$/, 'one who cannot is');
sql($node, q{GRANT CONNECT ON DATABASE postgres TO PUBLIC; SELECT reconcile.drop_loop('exile')});

sql($node, q{CREATE TABLE app.device (id text); SELECT reconcile.watch('plain', 'app.device', 'id')});
like(finding('watches'), qr/^ok:/, 'a watched table');
sql($node, q{ALTER TABLE app.device DISABLE TRIGGER reconcile_plain_upd});
like(finding('watches'), qr/^warn: loop "plain" on table app.device: its trigger "reconcile_plain_upd" is not enabled/, 'with a trigger that is disabled');
sql($node, q{DROP TABLE app.device});

# ----------------------------------------------------------------------
note 'work that does not go on';

behave($node, 'plain', 'bad', 'permanent');
enqueue($node, 'plain', 'bad');
wait_quiet($node, 'plain');
is(finding('dead'), 'warn: 1 entities of loop "plain" are dead', 'a dead entity');

my $gate = close_gate($node, 'plain');
enqueue($node, 'plain', 'first');
wait_held($node, 'plain', 1);
sql($node, q{INSERT INTO reconcile.mark_0 VALUES (1, now() - interval '2 min', now(), 't', 'plain', 'second')});
like(finding('overdue'), qr/^warn: an entity of loop "plain" has been due for 1[2-9]\d s, and 1 are ready$/, 'one that has been due for long');
sql($node, q{SELECT reconcile.pause_loop('plain')});
like(finding('overdue'), qr/^ok:/, 'which is meant so in a paused loop');
sql($node, q{SELECT reconcile.resume_loop('plain')});

# Both slots are taken by runs of one role, and another waits.
make_loop($node, 'plenty');
my $other = close_gate($node, 'plenty');
enqueue($node, 'plenty', 'x');
wait_held($node, 'plenty', 1);
make_loop($node, 'third', role => 'locked');
enqueue($node, 'third', 'y');
like(finding('workers'), qr/^warn: all 2 executors of the server are taken/, 'no worker is left for another role');
$gate->open;
$other->open;
wait_quiet($node, $_) for qw(plain plenty third);
like(finding('workers'), qr/^ok:/, 'later there is');

# ----------------------------------------------------------------------
note 'a dispatcher that stands still, and a leader who is gone';

make_loop($node, 'led', options => q{lease_ttl => '2 s'});
enqueue($node, 'led', 'a');
wait_quiet($node, 'led');
like(finding('leaders'), qr/^ok:/, 'a loop has its leader');
my $dispatcher = dispatcher_pid($node);
my $held = close_gate($node, 'led');
enqueue($node, 'led', 'b');
wait_held($node, 'led', 1);
my $looker = $node->background_psql('postgres');
my $watcher = $node->background_psql('postgres');
sql($node, q{SELECT reconcile.create_loop('counted')});
is(sql($node, q{SELECT ready FROM reconcile.loops WHERE loop_name = 'counted'}), 0, 'the dispatcher knows a loop');
kill 'STOP', $dispatcher;
enqueue($node, 'counted', 'c');
begins($looker, q{SELECT 'ready: ' || ready FROM reconcile.loops WHERE loop_name = 'counted';});
$watcher->query_safe(q{SET statement_timeout = '30 s'; DO $$ BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%ready: %' AND pid <> pg_backend_pid() AND wait_event_type = 'Extension') LOOP
		PERFORM pg_sleep(0.005), pg_stat_clear_snapshot();
	END LOOP;
END $$});
kill 'CONT', $dispatcher;
like($looker->query('SELECT 1'), qr/^ready: 1$/m, 'who looks waits until the dispatcher has taken in what was committed');
$_->quit for $looker, $watcher;
kill 'STOP', $dispatcher;
enqueue($node, 'plain', map { "r$_" } 1 .. 70);
like(finding('ring'), qr/^warn: the ring of this database has overflowed/, 'the ring has overflowed');
wait_for($node, q{SELECT NOT live FROM reconcile.leases WHERE reconciler_id = 'led'}, 'the lease lapses');
like(finding('fences'), qr/^warn: process \d+ still uses the term of lease "led", which ended \d s ago$/, 'while a run still uses it');
wait_for($node, q{SELECT status = 'crit' FROM reconcile.health WHERE check_name = 'leaders'}, 'nobody leads the loop');
like(finding('leaders'), qr/^crit: nobody has held the lease of loop "led" for \d+ s$/, 'as is said');
wait_for($node, q{SELECT status = 'crit' FROM reconcile.health WHERE check_name = 'fences'}, 'nobody ends the run either');
kill 'CONT', $dispatcher;
wait_for($node, q{SELECT status = 'ok' FROM reconcile.health WHERE check_name = 'leaders'}, 'the dispatcher goes on, and leads');
like(finding('fences'), qr/^ok:/, 'after the run of the old term was cancelled');
$held->open;
expect_log(qr/reconcile executor/);

# ----------------------------------------------------------------------
note 'settings, versions, databases';

sql($node, q{UPDATE pg_extension SET extversion = '0.0' WHERE extname = 'reconcile'});
like(finding('version'), qr{^crit: the library reconcile is of version 0\.1\.0, and cannot serve the extension's version 0\.0$}, 'an extension of another version');
sql($node, q{UPDATE pg_extension SET extversion = '0.1.0' WHERE extname = 'reconcile'});

# A standby knows what the tables know.
my $standby = new_standby($node, 'standby');
$node->wait_for_catchup($standby);
is(sql($standby, q{SELECT status || ': ' || detail FROM reconcile.health WHERE check_name = 'dispatcher'}),
	'warn: this is a standby: nothing runs here until it is promoted', 'a standby runs nothing');
is(sql($standby, q{SELECT string_agg(check_name, ' ' ORDER BY check_name) FROM reconcile.health WHERE status = 'crit'}), '', 'which is not critical');
cmp_ok(sql($standby, 'SELECT count(*) FROM reconcile.metrics()'), '>', 0, 'it has metrics');
is(sql($standby, 'SELECT count(*) FROM reconcile.runs'), 0, 'and no runs');
# a session whose client has left may not know it yet
expect_log(qr/FATAL:  terminating connection due to administrator command/);
$standby->stop;

$node->append_conf('postgresql.conf', "reconcile.databases = 'elsewhere'\nreconcile.max_workers = 7\n");
$node->restart;
like(finding('settings'), qr/^warn: max_worker_processes is 8; the launcher, 1 dispatchers and 7 executors need 9/, 'too few worker processes');
like(finding('dispatcher'), qr/^crit: no dispatcher runs for this database$/, 'a database that is not to be served');
is(sql($node, q{SELECT hint LIKE '%reconcile.databases%' FROM reconcile.health WHERE check_name = 'dispatcher'}), 't', 'with what to look at');

# ----------------------------------------------------------------------
note 'without preload';

my $bare = new_node('bare', preload => 0);
prepare($bare);
make_loop($bare, 'free', options => 'max_attempts => 1');
make_loop($bare, 'led', options => q{lease_ttl => '2 s'});
behave($bare, 'free', 'bad', 'fail');
enqueue($bare, 'free', qw(a bad));
enqueue($bare, 'led', 'a');
sql($bare, 'CALL reconcile.run_loop()');
is(sql($bare, q{SELECT string_agg(check_name || ' ' || status, ', ' ORDER BY check_name) FROM reconcile.health WHERE status <> 'ok'}), 'dead warn, preload warn',
	'only that, and what the tables know');
is(sql($bare, q{SELECT string_agg(check_name, ' ' ORDER BY check_name) FROM reconcile.health}), join(' ', @checks), 'with all checks');
is(sql($bare, q{SELECT name, labels->>'reconciler', labels->>'state', value FROM reconcile.metrics()
	WHERE name IN ('reconcile_leader', 'reconcile_lease_epoch', 'reconcile_work', 'reconcile_workers_up') ORDER BY 1, 2}),
	join("\n", 'reconcile_leader|free||1', 'reconcile_leader|led||0', 'reconcile_lease_epoch|led||1', 'reconcile_work|free|dead|1', 'reconcile_work|led|dead|0', 'reconcile_workers_up|||0'),
	'metrics are what the tables know');
is(sql($bare, q{SELECT loop_name, ready, dead FROM reconcile.loops ORDER BY 1}), "free|0|1\nled|0|0", 'so are the counts');
is(sql($bare, 'SELECT count(*) FROM reconcile.runs'), 0, 'there are no runs');
sql($bare, 'SELECT reconcile.metrics_text()');

finish();

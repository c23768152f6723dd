# schedule_loops() with the real pg_cron: where it alone is preloaded it runs the
# loops, as their owners; beside our own workers it does no harm.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

# how pg_cron ends with its server
expect_log(qr/FATAL:  terminating background worker "pg_cron launcher" due to administrator command/);

my $cron_conf = "max_worker_processes = 20\ncron.database_name = 'postgres'\ncron.use_background_workers = on\n";
my $node = new_node('cron', preload => 0, conf => "shared_preload_libraries = 'pg_cron'\n$cron_conf");
my $both = new_node('both', conf => "shared_preload_libraries = 'reconcile,pg_cron'\n$cron_conf");

sub jobs
{
	my ($where) = @_;
	return sql($where, q{SELECT jobname, username, database, schedule, command FROM cron.job WHERE jobname LIKE 'reconcile: %' ORDER BY 1});
}

sub job
{
	my ($loop, $owner) = @_;
	return "reconcile: $loop|$owner|postgres|* * * * *|CALL reconcile.run_loop('$loop')";
}

# ----------------------------------------------------------------------
note 'jobs';

session_fails($node, '55000', 'SELECT reconcile.schedule_loops()', 'not without the extension');
sql($node, 'CREATE SCHEMA cron; CREATE FUNCTION cron.schedule_in_database(text, text, text, text, text, boolean) RETURNS bigint LANGUAGE sql AS $$ SELECT 1 $$');
session_fails($node, '55000', 'SELECT reconcile.schedule_loops()', 'nor with a namesake of its function');
sql($node, 'DROP SCHEMA cron CASCADE');
for my $where ($node, $both)
{
	sql($where, q{
		CREATE EXTENSION pg_cron;
		CREATE ROLE owner_1 LOGIN; CREATE ROLE owner_2 LOGIN;
		SELECT reconcile.grant_access('owner_1', 'define'), reconcile.grant_access('owner_2', 'define');
	});
	prepare($where);
	make_loop($where, 'one', role => 'owner_1');
	make_loop($where, 'two', role => 'owner_2');
	make_loop($where, 'broken', role => 'owner_2', body => q{RAISE 'no';}, options => q{max_attempts => 1});
	sql($where, q{SELECT reconcile.create_loop('outside'); SELECT cron.schedule('mine', '0 0 1 1 *', 'SELECT 1')});
}
is(sql($node, 'SELECT reconcile.schedule_loops()'), 3, 'each loop with a function gets a job');
is(jobs($node), join("\n", job('broken', 'owner_2'), job('one', 'owner_1'), job('two', 'owner_2')), 'as its owner, each minute');
my $ids = sql($node, 'SELECT jobid, jobname FROM cron.job ORDER BY 1');
is(sql($node, 'SELECT reconcile.schedule_loops()'), 3, 'called again');
is(sql($node, 'SELECT jobid, jobname FROM cron.job ORDER BY 1'), $ids, 'it changes nothing');
sql($node, q{SELECT reconcile.alter_loop('two', '{"owner": "owner_1", "reconciler": "app.one"}'); UPDATE cron.job SET schedule = '1 1 1 1 *' WHERE jobname = 'reconcile: one'});
is(sql($node, 'SELECT reconcile.schedule_loops()'), 3, 'called after an owner has changed, and a job by hand');
is(jobs($node), join("\n", job('broken', 'owner_2'), job('one', 'owner_1'), job('two', 'owner_1')), 'it brings them up to date');
sql($node, q{SET ROLE owner_1; SELECT reconcile.drop_loop('two')});
is(jobs($node), join("\n", job('broken', 'owner_2'), job('one', 'owner_1')), 'the job of a loop goes with it');
sql($node, q{SELECT reconcile.alter_loop('broken', '{"reconciler": null}'); SELECT reconcile.schedule_loops()});
is(jobs($node), job('one', 'owner_1'), 'that of one that has no function any more with the next call');
sql($node, q{SELECT reconcile.alter_loop('broken', '{"reconciler": "app.broken"}'); SELECT reconcile.schedule_loops()});

session_fails($node, '42501', 'SET ROLE owner_1; SELECT reconcile.schedule_loops()', 'the owner of a loop may not');
sql($node, 'GRANT EXECUTE ON FUNCTION reconcile.schedule_loops, reconcile.unschedule_loops TO owner_1');
session_fails($node, '42501', 'SET ROLE owner_1; SELECT reconcile.schedule_loops()', 'also with EXECUTE');
session_fails($node, '42501', 'SET ROLE owner_1; SELECT reconcile.unschedule_loops()', 'nor remove them');
sql($node, 'CREATE DATABASE other');
sql([ $node, 'other' ], 'CREATE EXTENSION reconcile');
my ($status, $out, $err) = $node->psql('other', 'SELECT reconcile.schedule_loops()');
like($err, qr/is not in this database.*cron\.database_name, now "postgres"/s, 'another database is told which one can have jobs');

# ----------------------------------------------------------------------
note 'pg_cron runs them, at the next minute';

is(sql($both, 'SELECT reconcile.schedule_loops()'), 3, 'also beside our workers');
wait_for($both, q{EXISTS (SELECT FROM reconcile.workers WHERE kind = 'dispatcher')}, 'which are there');
enqueue($_, 'one', 'a') for $node, $both;
enqueue($_, 'broken', 'b') for $node, $both;
wait_for($node, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'one')}, 'where nothing else would run it');
is(sql($node, q{SELECT entity_id, session_role, role FROM app.run}), 'a|owner_1|owner_1', 'a run as the owner');
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE loop_name = 'broken' AND entity_id = 'b')}, 'a failure is booked');
wait_for($_, q{(SELECT count(DISTINCT j.jobname) FROM cron.job j JOIN cron.job_run_details d USING (jobid)
	WHERE j.jobname LIKE 'reconcile: %' AND d.status = 'succeeded') = (SELECT count(*) FROM cron.job WHERE jobname LIKE 'reconcile: %')}, 'all jobs have succeeded')
  for $node, $both;
is(sql($both, q{SELECT entity_id, count(*) FROM app.run WHERE loop_name = 'one' GROUP BY 1}), 'a|1', 'beside workers an entity still runs once');

is(sql($node, 'SELECT reconcile.unschedule_loops()'), 2, 'the jobs are removed');
is(sql($node, q{SELECT jobname FROM cron.job}), 'mine', 'and no others');
is(sql($node, 'SELECT reconcile.unschedule_loops()'), 0, 'there are none');

# ----------------------------------------------------------------------
note 'sweeps of sessions and hosts';

my $seconds = sql($node, q{SELECT extversion !~ '^1\.[0-4]([^0-9]|$)' FROM pg_extension WHERE extname = 'pg_cron'}) eq 't';

sub sweep_jobs
{
	my ($where) = @_;
	return sql($where, q{SELECT string_agg(split_part(jobname, ': ', 2), ' ' ORDER BY jobname), string_agg(DISTINCT username::text, ' '), string_agg(DISTINCT schedule, ' ')
		FROM cron.job WHERE jobname LIKE 'reconcile sweep: %'});
}

my $four = 'deadlines host_targets offers pending';
session_fails($node, '55000', 'SELECT reconcile.schedule_sweeps()', 'not without the loop');
for my $where ($node, $both)
{
	# pg_cron takes up to 59 seconds
	sql($where, q{SELECT reconcile.set_placement('{"interval": "59.5 s", "claim_ttl": "2 min"}'); SELECT reconcile.register_host('h', session_user)});
	is(sql($where, 'SELECT reconcile.schedule_sweeps()'), 4, 'a job for each sweep');
	is(sweep_jobs($where), "$four|postgres|* * * * *", 'as the owner of their loop, each minute');
	is(sql($where, q{SELECT paused FROM reconcile.loops WHERE loop_name = 'placement_sweeps'}), 't', 'which is paused');
}
sql($both, q{UPDATE cron.job SET username = 'owner_1' WHERE jobname = 'reconcile sweep: pending'; SELECT reconcile.schedule_sweeps()});
is(sweep_jobs($both), "$four|postgres|* * * * *", 'those of another owner are replaced');
sql($both, q{SELECT reconcile.set_placement('{"interval": "1500 ms"}'); SELECT reconcile.schedule_sweeps()});
is(sweep_jobs($both), "$four|postgres|" . ($seconds ? '2 seconds' : '* * * * *'), 'the interval in whole seconds, where it knows them');
# the loop beside them
sql($both, q{SELECT reconcile.resume_loop('placement_sweeps')});
for my $where ($node, $both)
{
	sql($where, q{SELECT outcome FROM reconcile.publish_host_target('h', 1, 'agent', 'r', 'pooled', 'wss://h', 'cross_tenant_isolated', true, 1, '1 s')});
	wait_for($where, q{(SELECT expires_at IS NULL AND revision = 2 FROM reconcile.host_target WHERE host_id = 'h')}, 'what its host has ceased to offer is withdrawn, once');
	wait_for($where, q{(SELECT count(DISTINCT j.jobname) FROM cron.job j JOIN cron.job_run_details d USING (jobid) WHERE j.jobname LIKE 'reconcile sweep: %' AND d.status = 'succeeded') = 4},
		'all jobs have succeeded');
}
is(sql($node, 'SELECT reconcile.unschedule_sweeps()'), 4, 'the jobs are removed');
is(sweep_jobs($node), '||', 'all of them');
is(sql($node, q{SELECT paused FROM reconcile.loops WHERE loop_name = 'placement_sweeps'}), 'f', 'and the loop goes on');
is(sql($node, 'SELECT reconcile.unschedule_sweeps()'), 0, 'there are none');
sql($both, 'DROP EXTENSION reconcile CASCADE');
is(sql($both, q{SELECT count(*) FROM cron.job WHERE jobname LIKE 'reconcile sweep: %'}), 4, 'who drops the extension with its jobs has them, and they fail');

finish();

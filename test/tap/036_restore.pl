# Rows that come past our functions (P1): a dump that is restored into another
# database of a server that runs, and COPY by a superuser.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nautovacuum = off\n");
my $dump = $node->basedir . '/dump.sql';
prepare($node);
make_loop($node, 'drive');
sql($node, 'CREATE DATABASE restored; CREATE DATABASE copied');
my ($restored, $copied) = map { [ $node, $_ ] } qw(restored copied);

# The gate is of this database: in another it is open.
my $gate = close_gate($node, 'drive');
enqueue($node, 'drive', 1 .. 5);
sql($node, q{SELECT reconcile.enqueue('drive', 'delayed', '1 hour')});
wait_held($node, 'drive', 1);

# ----------------------------------------------------------------------
note 'a dump is restored beside the server that it is of';

$node->command_ok([ 'pg_dump', '--file', $dump, $node->connstr('postgres') ], 'a database with a loop and marks is dumped');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '--file', $dump, $node->connstr('restored') ], 'and restored');
# What runs in its place tells when the dispatcher there has seen all.
make_loop($restored, 'native');
dispatcher_looks($restored, 'native');
is(runs($restored, 'drive'), 0, 'its loop is paused there');
is(sql($restored, q{SELECT reason, hint FROM reconcile.explain('drive', '1')}), 'paused|When it is to run here, reconcile.resume_all() resumes it.',
	'explain() says what to do');
sql($restored, 'SELECT reconcile.resume_all()');
wait_for($restored, q{(SELECT count(DISTINCT entity_id) FROM app.run WHERE loop_name = 'drive') = 6}, 'then all that it remembers runs there');
is(sql($restored, q{SELECT string_agg(entity_id, ' ') FROM reconcile.work WHERE state = 'waiting'}), 'delayed', 'what was delayed waits there');
is(sql($node, q{SELECT count(*) FROM app.run}), 0, 'nothing of that is taken here');
$gate->open;
wait_for($node, q{(SELECT count(DISTINCT entity_id) FROM app.run) = 5}, 'here it runs as well');

# ----------------------------------------------------------------------
note 'rows are copied';

sub copy_in
{
	my ($table, $row) = @_;
	sql($copied, "COPY reconcile.$table FROM stdin WITH (FORMAT csv);\n$row\n\\.\n");
	return;
}

sub mark_row
{
	my ($loop, $entity) = @_;
	return "4711,2020-01-01 00:00:00+00,2020-01-01 00:00:00+00,t,$loop,$entity";
}

sql($copied, 'CREATE EXTENSION reconcile');
prepare($copied);
# Their owner makes the functions of loops that are to come.
make_loop($copied, $_) for qw(first second);
my @rows = split /\n/, sql($copied, q{COPY (SELECT * FROM reconcile.loop ORDER BY loop_name) TO stdout WITH (FORMAT csv)});
sql($copied, qq{SELECT reconcile.drop_loop('$_')}) for qw(first second);
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE database = 'copied')}, 'without a loop nobody of ours is there');

copy_in('loop', $rows[0]);
copy_in('mark_2', mark_row('first', 'a'));
wait_for($copied, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'first')}, 'a loop that is copied brings a dispatcher, and runs');
copy_in('mark_0', mark_row('first', 'b'));
wait_for($copied, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'first' AND entity_id = 'b')}, 'a mark that is copied runs');
copy_in('mark_0', mark_row('second', 'c'));
copy_in('loop', $rows[1]);
wait_for($copied, q{EXISTS (SELECT FROM app.run WHERE loop_name = 'second' AND entity_id = 'c')}, 'so does a mark that comes before its loop');
sql($copied, q{DELETE FROM reconcile.loop});
wait_for($node, q{NOT EXISTS (SELECT FROM reconcile.workers WHERE database = 'copied')}, 'and when all rows are deleted, all of ours leave');

finish();

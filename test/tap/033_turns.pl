# P10: where there are more owners, or databases, with work than executors they
# take turns, though nobody ever runs out of work.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\nreconcile.max_workers = 1\n");
sql($node, 'CREATE ROLE one LOGIN; CREATE ROLE other LOGIN; CREATE DATABASE second');
my $second = [ $node, 'second' ];
sql($second, 'CREATE EXTENSION reconcile');
prepare($_) for $node, $second;

# A loop with four entities, each of which is due again as soon as it has run.
sub make_busy_loop
{
	my ($where, $name, $role) = @_;
	sql($where, "SELECT reconcile.grant_access('$role', 'define')");
	make_loop($where, $name, role => $role, body => qq{PERFORM reconcile.enqueue('$name', entity); RETURN NULL;});
	enqueue($where, $name, 1 .. 4);
	return;
}

sub goes_on
{
	my ($where, $name, $what) = @_;
	my $n = runs($where, $name);
	wait_for($where, "(SELECT count(*) FROM app.run WHERE loop_name = '$name') > $n", $what);
	return;
}

note 'two owners, and one executor';
make_busy_loop($node, 'ones', 'one');
goes_on($node, 'ones', 'the first gets runs');
make_busy_loop($node, 'others', 'other');
goes_on($node, 'others', 'the second gets runs');
goes_on($node, 'ones', 'the first again');
goes_on($node, 'others', 'and the second');
sql($node, q{SELECT reconcile.drop_loop('others')});

note 'two databases, and one executor';
make_busy_loop($second, 'ones', 'one');
goes_on($second, 'ones', 'the second gets runs');
goes_on($node, 'ones', 'the first again');
goes_on($second, 'ones', 'and the second');

sql($_, q{SELECT reconcile.drop_loop('ones')}) for $node, $second;
finish();

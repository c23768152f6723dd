# What follows from a run, as tables (P9; scenarios 58 to 76 of the loop
# contract): the length of the backoff after each failure, which error is final,
# what is remembered of it. Without workers, so that each entity is run once and
# all can be looked at.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', preload => 0);
prepare($node);

# sql_table(QUERY): what it prints, one row in a line, columns with blanks between.
sub sql_table
{
	my ($query) = @_;
	my $out = sql($node, $query);
	$out =~ tr/|/ /;
	return $out;
}

# ----------------------------------------------------------------------
note 'backoff after n failures';

sql($node, q{
	CREATE FUNCTION app.fails(entity text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
	SELECT reconcile.create_loop('defaults', 'app.fails');
	SELECT reconcile.create_loop('seconds', 'app.fails', backoff_base => '1 s', backoff_max => '366 days');
	SELECT reconcile.create_loop('odd', 'app.fails', backoff_base => '7 s', backoff_max => '100 s');
	SELECT reconcile.create_loop('flat', 'app.fails', backoff_base => '9 s', backoff_max => '9 s');
	SELECT reconcile.create_loop('shaken', 'app.fails', backoff_base => '100 s', backoff_max => '100 s', backoff_jitter => 0.4);
	SELECT reconcile.create_loop('shaken_to_nothing', 'app.fails', backoff_base => '100 s', backoff_max => '100 s', backoff_jitter => 1);
});

# after_failures(LOOP, N...): lets an entity of each number of failures fail once
# more; [failures, pause in ms] afterwards. Of three entities for each number the
# longest pause counts, since it is measured from a clock that is read later.
sub after_failures
{
	my ($loop, @n) = @_;
	my $n = join ', ', @n;

	sql($node, qq{
		INSERT INTO reconcile.entity SELECT '$loop', n || '/' || i, n, NULL, 'P0001', 'no', now() FROM unnest(ARRAY[$n]) n, generate_series(1, 3) i WHERE n > 0;
		SELECT reconcile.enqueue_many('$loop', ARRAY(SELECT n || '/' || i FROM unnest(ARRAY[$n]) n, generate_series(1, 3) i));
		CALL reconcile.run_loop('$loop')});
	return sql_table(qq{
		SELECT max(e.failures), round(max(extract(epoch FROM m.due_at - m.made_at)) * 1000)
		  FROM reconcile.mark m JOIN reconcile.entity e USING (loop_name, entity_id)
		 WHERE m.loop_name = '$loop' AND m.kind <> 't' GROUP BY split_part(m.entity_id, '/', 1)::bigint ORDER BY split_part(m.entity_id, '/', 1)::bigint});
}

is(after_failures('defaults', 0 .. 20, 63, 64, 199, 1000000, 2147483646),
	join("\n", (map { ($_ + 1) . ' ' . 5 * 2**$_ } 0 .. 17), map { "$_ 1000000" } 19, 20, 21, 64, 65, 200, 1000001, 2147483647),
	'5 ms doubles to 1000 s, which the 19th failure in a row reaches, and stays (58 to 62); none is the last (E51)');
is(after_failures('seconds', 0, 1, 24, 25, 62, 63, 64, 2147483647),
	"1 1000\n2 2000\n25 16777216000\n26 31622400000\n63 31622400000\n64 31622400000\n65 31622400000\n2147483647 31622400000",
	'64 doublings of a second do not overflow (63), nor does the count');
is(after_failures('odd', 0 .. 5), "1 7000\n2 14000\n3 28000\n4 56000\n5 100000\n6 100000", 'a cap that is no power of the base is reached, and not passed');
is(after_failures('flat', 0, 1, 9), "1 9000\n2 9000\n10 9000", 'base = maximum is a fixed pause');

sub pauses
{
	my ($loop) = @_;
	sql($node, qq{
		SELECT reconcile.enqueue_many('$loop', ARRAY(SELECT n::text FROM generate_series(1, 300) n));
		CALL reconcile.run_loop('$loop')});
	return split / /, sql_table(qq{SELECT floor(min(p)), floor(max(p)), count(DISTINCT round(p)) FROM
		(SELECT extract(epoch FROM due_at - made_at) FROM reconcile.mark WHERE loop_name = '$loop') m (p)});
}

my ($least, $most, $different) = pauses('shaken');
ok(60 - 1 <= $least && $least < 65, "jitter 0.4 shortens pauses, to 0.6 of them at the least ($least s)");
ok(95 < $most && $most <= 100, "and lengthens none ($most s)");
cmp_ok($different, '>', 20, 'each by chance');
($least, $most, $different) = pauses('shaken_to_nothing');
ok(0 <= $least && $least < 10 && 90 < $most && $most <= 100, 'jitter 1 may leave nothing of a pause');

# ----------------------------------------------------------------------
note 'which error is final';

my @errors = (
	# entity, what the function does, state, SQLSTATE
	[ 'nothing', q{NULL}, '', '' ],                                                                  # 66
	[ 'plain', q{RAISE 'no'}, 'retrying', 'P0001' ],                                                 # 67
	[ 'division', q{PERFORM 1 / 0}, 'retrying', '22012' ],
	[ 'assertion', q{ASSERT false}, 'retrying', 'P0004' ],                                           # 75, 76
	[ 'internal', q{RAISE 'bug' USING ERRCODE = 'XX000'}, 'retrying', 'XX000' ],
	[ 'missing', q{PERFORM no_such_function()}, 'retrying', '42883' ],
	[ 'serialization', q{RAISE 'again' USING ERRCODE = '40001'}, 'retrying', '40001' ],
	[ 'deadlock', q{RAISE 'again' USING ERRCODE = '40P01'}, 'retrying', '40P01' ],
	[ 'final', q{PERFORM reconcile.permanent_error('never')}, 'dead', 'RC004' ],                     # 65, 71
	[ 'nested', q{PERFORM app.deep(3)}, 'dead', 'RC004' ],                                           # 68, 72
	[ 'passed_on', q{BEGIN PERFORM app.deep(0); EXCEPTION WHEN OTHERS THEN RAISE; END}, 'dead', 'RC004' ],
	[ 'by_its_code', q{RAISE 'never' USING ERRCODE = 'RC004'}, 'dead', 'RC004' ],
	[ 'caught', q{BEGIN PERFORM app.deep(0); EXCEPTION WHEN OTHERS THEN NULL; END}, '', '' ],
	[ 'renamed', q{BEGIN PERFORM app.deep(0); EXCEPTION WHEN OTHERS THEN RAISE 'other: %', SQLERRM; END}, 'retrying', 'P0001' ],
	[ 'pretends', q{RAISE 'RC004' USING HINT = 'RC004', DETAIL = 'RC004'}, 'retrying', 'P0001' ],    # 70
	[ 'neighbour', q{RAISE 'no' USING ERRCODE = 'RC000'}, 'retrying', 'RC000' ],
	[ 'held', q{RAISE 'no' USING ERRCODE = 'RC001'}, 'retrying', 'RC001' ],
	[ 'lost', q{RAISE 'no' USING ERRCODE = 'RC002'}, 'retrying', 'RC002' ],
	[ 'stale', q{RAISE 'no' USING ERRCODE = 'RC003'}, 'dead', 'RC003' ],                             # 73, 74
	[ 'no_null_text', q{PERFORM reconcile.permanent_error(NULL)}, 'retrying', '22004' ]);

my $cases = join "\n", map { "WHEN '$_->[0]' THEN $_->[1];" } @errors;
sql($node, qq{
	CREATE FUNCTION app.deep(n int) RETURNS void LANGUAGE plpgsql AS
		\$\$ BEGIN IF n > 0 THEN PERFORM app.deep(n - 1); ELSE PERFORM reconcile.permanent_error('never'); END IF; END \$\$;
	CREATE TABLE app.effect (entity text);
	CREATE FUNCTION app.errs(entity text) RETURNS interval LANGUAGE plpgsql AS \$\$
	BEGIN
		INSERT INTO app.effect VALUES (entity);
		CASE entity
			$cases
		END CASE;
		RETURN NULL;
	END \$\$;
	SELECT reconcile.create_loop('errors', 'app.errs', default_requeue => NULL, backoff_base => '1 h', backoff_max => '1 h')});
sql($node, qq{SELECT reconcile.enqueue('errors', '$_->[0]')}) for @errors;
sql($node, q{CALL reconcile.run_loop('errors')});
foreach my $case (@errors)
{
	my ($entity, $does, $state, $code) = @$case;
	is(sql($node, qq{SELECT concat_ws(' ', w.state, w.last_sqlstate, w.failures) FROM reconcile.work w WHERE w.loop_name = 'errors' AND w.entity_id = '$entity'}),
		$state eq '' ? '' : "$state $code 1", "$entity: " . ($state eq '' ? 'a success' : $state));
}
is(sql($node, q{SELECT string_agg(entity, ' ' ORDER BY entity) FROM app.effect}), 'caught nothing', 'who failed left nothing, whatever stood before and behind him in the queue (77)');
is(sql($node, q{SELECT count(*) FROM reconcile.mark m JOIN reconcile.dead_letters d USING (loop_name, entity_id)}), 0, 'a dead entity has no next look (55)');
is(sql($node, q{SELECT count(*) FROM reconcile.mark m WHERE m.entity_id IN ('nothing', 'caught')}), 0, 'nor has a success that asks for nothing (57)');
my $log = slurp_file($node->logfile);
like($log, qr/LOG:  run of loop "errors", entity "division" failed: SQLSTATE 22012, 1 in a row/, 'a failure is logged with loop, entity, SQLSTATE and count (78)');
like($log, qr/LOG:  run of loop "errors", entity "final" failed: SQLSTATE RC004, 1 in a row.*$/m, 'so is a final one');
unlike($log, qr/division by zero|other: never/, 'but never with its message (79)');

# ----------------------------------------------------------------------
note 'results';

my %results = (
	null => [ 'NULL', 3600 ], zero => [ q{'0'}, 3600 ], negative => [ q{'-5 min'}, 3600 ], very_negative => [ q{'-400 days'}, 3600 ],
	positive => [ q{'5 min'}, 300 ], day => [ q{'1 day'}, 86400 ], longest => [ q{'366 days'}, 31622400 ],
	month => [ q{'1 month'}, undef ], mixed => [ q{'1 month -30 days'}, undef ], too_long => [ q{'367 days'}, undef ], too_short => [ q{'10 us'}, undef ]);
sql($node, q{CREATE FUNCTION app.returns(entity text) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN RETURN CASE entity }
	. join(' ', map { "WHEN '$_' THEN $results{$_}[0]::interval" } sort keys %results)
	. q{ END; END $$;
	SELECT reconcile.create_loop('results', 'app.returns', default_requeue => '1 h', backoff_base => '1 day', backoff_max => '1 day')});
sql($node, qq{SELECT reconcile.enqueue('results', '$_')}) for sort keys %results;
sql($node, q{CALL reconcile.run_loop('results')});
foreach my $entity (sort keys %results)
{
	my ($returns, $seconds) = @{ $results{$entity} };
	is(sql_table(qq{SELECT w.state, w.last_sqlstate, round(extract(epoch FROM m.due_at - m.made_at)) FROM reconcile.work w JOIN reconcile.mark m USING (loop_name, entity_id)
			WHERE w.loop_name = 'results' AND w.entity_id = '$entity'}),
		defined $seconds ? "waiting  $seconds" : 'retrying 22023 86400', "$returns: " . (defined $seconds ? "again after $seconds s (29, 31)" : 'a failure'));
}

# ----------------------------------------------------------------------
note 'a success that asks for a time forgets the failures';

make_loop($node, 'forgets', options => q{backoff_base => '1 h', backoff_max => '1 day'}, body => q{RETURN '5 s';});
foreach my $act (qw(fail fail fail succeed fail))
{
	behave($node, 'forgets', 'a', $act);
	enqueue($node, 'forgets', 'a');
	sql($node, q{CALL reconcile.run_loop('forgets')});
}
is(sql_table(q{SELECT w.state, w.failures, round(extract(epoch FROM m.due_at - m.made_at)) FROM reconcile.work w JOIN reconcile.mark m USING (loop_name, entity_id)
		WHERE w.loop_name = 'forgets' AND m.made_at = (SELECT max(made_at) FROM reconcile.mark WHERE loop_name = 'forgets')}),
	'retrying 1 3600', 'the failure after it backs off from the base (E49)');

# ----------------------------------------------------------------------
note 'what is kept of an error (L90)';

sql($node, q{
	CREATE FUNCTION app.tells(entity text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		RAISE '%', CASE entity WHEN 'long' THEN 'x' || repeat('é', 500000) WHEN 'emoji' THEN repeat('🛰', 2000) WHEN 'empty' THEN ''
			WHEN 'percent' THEN '%s %n %' WHEN 'control' THEN E'a\u0001\u0007\nb' END;
	END $$;
	SELECT reconcile.create_loop('tells', 'app.tells', backoff_base => '1 h', backoff_max => '1 h');
	SELECT reconcile.enqueue_many('tells', '{long,emoji,empty,percent,control}');
	CALL reconcile.run_loop('tells')});
is(sql_table(q{SELECT entity_id, octet_length(last_error), char_length(last_error) FROM reconcile.work WHERE loop_name = 'tells' ORDER BY 1}),
	"control 5 5\nemoji 4096 1024\nempty 0 0\nlong 4095 2048\npercent 7 7", 'a message is cut between characters, at 4,096 bytes, and otherwise kept as it is');

finish();

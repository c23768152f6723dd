# A loop's repository under the engine: the writes of a run go to it, as the
# loop's owner and with the run, or not at all; also where the run is in a
# session, and where another role writes beside the loop.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
prepare($node);

# The role that keeps, its table and its function.
sub keeper
{
	return q{
	CREATE ROLE keeper LOGIN;
	CREATE ROLE writer LOGIN;
	SELECT reconcile.grant_access('keeper', 'define');
	SET SESSION AUTHORIZATION keeper;
	CREATE TABLE app.kept (entity text PRIMARY KEY, mutation jsonb, as_role name DEFAULT current_user);
	CREATE TABLE app.deferred (as_role name);
	CREATE FUNCTION app.note_deferred() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO app.deferred VALUES (current_user); RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON app.kept DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.entity = 'deferred') EXECUTE FUNCTION app.note_deferred();
	CREATE FUNCTION app.keep(entity_id text, mutation jsonb) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.kept VALUES (entity_id, mutation) ON CONFLICT (entity) DO UPDATE SET mutation = EXCLUDED.mutation, as_role = current_user;
		IF mutation ? 'refuse' THEN RAISE 'not kept' USING ERRCODE = 'AP002'; END IF;
	END $$;
	};
}

my $write = q{PERFORM reconcile.fenced_write(entity, jsonb_build_object(CASE entity WHEN 'bad' THEN 'refuse' ELSE 'try' END, try)); RETURN NULL;};
sql($node, keeper());

sub kept
{
	return sql($node, q{SELECT string_agg(concat_ws(' ', entity, mutation, as_role), ', ' ORDER BY entity) FROM app.kept});
}

sub seen
{
	my ($loop) = @_;
	return sql($node, "SELECT string_agg(concat_ws(' ', entity_id, last_epoch, revision, state), ', ' ORDER BY entity_id) FROM reconcile.resources WHERE reconciler_id = '$loop'");
}

# ----------------------------------------------------------------------
note 'runs of a worker';

make_loop($node, 'keeping', role => 'keeper', options => q{lease_ttl => '1 hour', repository => 'app.keep', backoff_base => '1 hour', backoff_max => '1 hour'},
	body => $write);
enqueue($node, 'keeping', 'a');
wait_for($node, q{EXISTS (SELECT FROM app.kept)}, 'what a run writes goes to the repository');
is(kept(), 'a {"try": 1} keeper', 'as the owner of the loop');
is(seen('keeping'), 'a 1 1 {}', 'and its epoch is recorded');

enqueue($node, 'keeping', 'deferred');
wait_for($node, q{EXISTS (SELECT FROM app.deferred)}, 'what it defers comes at the commit of the run');
is(sql($node, 'SELECT as_role FROM app.deferred'), 'keeper', 'as the owner of the loop, whose session it is');
sql($node, q{DELETE FROM app.kept WHERE entity = 'deferred'; DELETE FROM reconcile.resource WHERE entity_id = 'deferred'});

enqueue($node, 'keeping', 'bad');
wait_for($node, q{(SELECT state = 'retrying' FROM reconcile.work WHERE entity_id = 'bad')}, 'a run whose write is not kept fails');
is(sql($node, q{SELECT last_sqlstate FROM reconcile.work WHERE entity_id = 'bad'}), 'AP002', q{with the repository's error});
is(kept(), 'a {"try": 1} keeper', 'and leaves nothing in its table');
is(seen('keeping'), 'a 1 1 {}', 'or in ours');

behave($node, 'keeping', 'late', 'fail');
enqueue($node, 'keeping', 'late');
wait_for($node, q{(SELECT state = 'retrying' FROM reconcile.work WHERE entity_id = 'late')}, 'a run that fails by itself');
enqueue($node, 'keeping', 'b');
wait_for($node, q{EXISTS (SELECT FROM app.kept WHERE entity = 'b')}, 'hinders no other');

# A stale write is not tried again: it is no use (scenario 73).
sql($node, q{INSERT INTO reconcile.resource VALUES ('keeping', 'stale', 1000, 1, '{}', now())});
enqueue($node, 'keeping', 'stale');
wait_for($node, q{EXISTS (SELECT FROM reconcile.dead_letters WHERE entity_id = 'stale' AND last_sqlstate = 'RC003' AND failures = 1)}, 'an entity whose write is stale is dead at once');
is(sql($node, q{SELECT count(*) FROM app.kept WHERE entity = 'stale'}), 0, 'and its repository was not called');

# ----------------------------------------------------------------------
note 'another role that has the epoch';

sql($node, q{SELECT reconcile.grant_access('writer', 'fence', 'keeping')});
is(sql($node, q{SET SESSION AUTHORIZATION writer; SELECT reconcile.apply_fenced('keeping', 'c', 1, '{"by": "writer"}'), reconcile.apply_fenced('keeping', 'c', 0, '{"by": "nobody"}')}),
	't|f', 'a role with "fence" writes at the epoch of the loop');
is(sql($node, q{SELECT mutation, as_role FROM app.kept WHERE entity = 'c'}), '{"by": "writer"}|keeper', q{as the loop's owner, whose table it cannot touch itself});
session_fails($node, '42501', q{SET SESSION AUTHORIZATION writer; SELECT * FROM app.kept}, 'indeed');

# A term that is over writes nothing more, to the repository either.
is(sql($node, q{SELECT reconcile.force_release_lease('keeping', 1, 'test')}), 't', 'the term is ended');
is(sql($node, q{SET SESSION AUTHORIZATION writer; SELECT reconcile.apply_fenced('keeping', 'c', 1, '{"by": "a stale writer"}')}), 'f', 'a late write is refused');
is(sql($node, q{SELECT mutation FROM app.kept WHERE entity = 'c'}), '{"by": "writer"}', 'and not kept');

# ----------------------------------------------------------------------
note 'a function that is gone when the loop runs';

sql($node, q{ALTER FUNCTION app.keep(text, jsonb) RENAME TO kept_away});
enqueue($node, 'keeping', 'd');
wait_for($node, q{(SELECT state = 'retrying' FROM reconcile.work WHERE entity_id = 'd')}, 'the run fails');
is(sql($node, q{SELECT last_sqlstate, last_error FROM reconcile.work WHERE entity_id = 'd'}), '42883|function app.keep(text,jsonb) does not exist', 'and says why');
sql($node, q{ALTER FUNCTION app.kept_away(text, jsonb) RENAME TO keep});
enqueue($node, 'keeping', 'd');
wait_for($node, q{EXISTS (SELECT FROM app.kept WHERE entity = 'd')}, 'it is found again when it is there again');

# ----------------------------------------------------------------------
note 'runs in a session';

my $bare = new_node('bare', preload => 0);
prepare($bare);
sql($bare, keeper());
make_loop($bare, 'keeping', role => 'keeper', options => q{lease_ttl => '1 hour', repository => 'app.keep'}, body => $write);
sql($bare, q{SELECT reconcile.enqueue_many('keeping', '{a,b,bad}')});
sql($bare, q{SET ROLE keeper; SET search_path = pg_catalog; CALL reconcile.run_loop('keeping'); SELECT current_user, current_setting('search_path')});
is(sql($bare, q{SELECT string_agg(concat_ws(' ', entity, as_role), ', ' ORDER BY entity) FROM app.kept}), 'a keeper, b keeper', 'their writes go to it, too');
is(sql($bare, q{SELECT entity_id, failures, last_sqlstate FROM reconcile.work}), 'bad|1|AP002', 'and one that it refuses is a failure');

finish();

# What a function leaves for the commit of run_entity()'s caller gets at no more
# than the function: deferred triggers, and cursors that are held.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => 'max_prepared_transactions = 5');
prepare($node);
sql($node, q{CREATE ROLE alice LOGIN; GRANT CREATE ON SCHEMA app TO alice; SELECT reconcile.grant_access('alice', 'define')});
sql($node, q{
	SET ROLE alice;
	CREATE TABLE app.late (what text);
	CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.what = 'deferred' THEN
			SET LOCAL ROLE postgres;
		END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.late DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION app.late();
	CREATE FUNCTION app.leave(what text) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.late VALUES (what);
		IF what = 'held' THEN
			EXECUTE $c$DECLARE c CURSOR WITH HOLD FOR SELECT set_config('role', 'postgres', false)$c$;
		END IF;
	END $$;
	SELECT reconcile.create_loop('leave', 'app.leave', enabled => false)});

my $refused = qr/cannot set parameter "role" within security-definer function/;
for my $what (qw(deferred held))
{
	my ($status, $out, $err) = $node->psql('postgres',
		"SET ROLE alice; BEGIN; SELECT result FROM reconcile.run_entity('leave', '$what'); COMMIT");
	like($err, $refused, "at the commit, too: $what");
}

# run(COMMANDS): what it prints, and then who the session may be.
sub run
{
	my ($commands) = @_;
	my ($status, $out, $err) = $node->psql('postgres', "SET ROLE alice; $commands; RESET ROLE; SELECT current_user", on_error_stop => 0);
	return $out;
}
my $call = q{SELECT result FROM reconcile.run_entity('leave', 'plain')};
is(run($call), "success\npostgres", 'after a call of its own the session is what it was');
is(run("BEGIN; $call; $call; COMMIT"), "success\nsuccess\npostgres", 'after two in a transaction');
is(run("BEGIN; $call; ROLLBACK"), "success\npostgres", 'after a rollback');
is(run("BEGIN; $call; SAVEPOINT s; SELECT reconcile.run_entity('none', 'x'); ROLLBACK TO s; COMMIT"), "success\npostgres", 'after one that was refused');
is(run("BEGIN; SAVEPOINT s; $call; ROLLBACK TO s; $call; COMMIT"), "success\nsuccess\npostgres", 'after one that was rolled back to a savepoint');
is(run("BEGIN; $call; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'"), "success\npostgres", 'after PREPARE TRANSACTION');

finish();

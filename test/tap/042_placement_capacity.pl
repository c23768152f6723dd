# 64 clients place 64 sessions at once on 10 hosts with room for 5 each: 50 are offered,
# and 14 are told that there is no room, whoever comes first and however slow the
# machine is.  Each client is a connection of its own; who finds the hosts busy asks again.

use strict;
use warnings;

use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

use constant {
	ROUNDS => 3,
	CLIENTS => 64
};

my $node = new_node('main', conf => 'max_connections = 100');

sql($node, q{
	CREATE SCHEMA app;
	CREATE TABLE app.answer (round int, client int, outcome text, asked_again int);
	CREATE FUNCTION app.place(round int, client int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		p record;
		again int := -1;
	BEGIN
		LOOP
			SELECT * INTO p FROM reconcile.place_session('acme', format('r%s-%s', round, client));
			again := again + 1;
			EXIT WHEN p.outcome <> 'contended';
		END LOOP;
		INSERT INTO app.answer VALUES (round, client, p.outcome, again);
	END $$;
	SELECT reconcile.control_shards();
	UPDATE reconcile.placement_setting SET offer_ttl_ms = 300000;
});

for my $round (1 .. ROUNDS)
{
	sql($node, qq{
		SELECT count(reconcile.register_host('r$round-' || h, session_user)) FROM generate_series(1, 10) h;
		SELECT count(p.outcome) FROM generate_series(1, 10) h, reconcile.publish_host_target('r$round-' || h, 1, 'bot', 'r$round', 'pooled', 'wss://h',
			'cross_tenant_isolated', true, 5, '15 min') p;
		SELECT count(c.outcome) FROM generate_series(1, @{[CLIENTS]}) i, reconcile.create_session('acme', 'r$round-' || i, 'bot', 'pooled', 'made', 'r$round') c;
	});

	all_at_once($node, CLIENTS, "round $round", "SELECT app.place($round, :client_id + 1);");
	is(sql($node, "SELECT outcome, count(*) FROM app.answer WHERE round = $round GROUP BY 1 ORDER BY 1"),
		"attach_pooled|50\nno_capacity|14", 'as many as there is room for are asked, and no more');
	is(sql($node, "SELECT count(*), min(reserved), max(reserved) FROM reconcile.host_target WHERE runtime_compatibility_id = 'r$round'"),
		'10|5|5', 'each host has what it offered');
	is(sql($node, "SELECT count(DISTINCT session_id), count(*) FROM reconcile.session_offer WHERE runtime_compatibility_id = 'r$round'"),
		'50|50', 'and each session one offer');
}

finish();

# Commands through a pooler that gives each transaction another server session: whose
# tenant it is comes from the role of the transaction, whatever the session was before,
# and whatever anybody sets; a key is used once, by whichever session.

use strict;
use warnings;

use LoopTest;
use PoolerTest;
use ReconcileTest;
use Test::More;

my $node = new_node('main', conf => "max_worker_processes = 16\n");
prepare($node);
# Who connects is a member of each tenant's role, and has none of their rights himself.
sql($node, q{
	CREATE ROLE pool LOGIN NOINHERIT;
	CREATE ROLE red; CREATE ROLE blue; CREATE ROLE worker;
	GRANT red, blue, worker TO pool;
	GRANT USAGE ON SCHEMA app TO pool;
	SELECT reconcile.grant_command(r, r, p) FROM unnest('{red,blue}'::name[]) r, unnest('{drain,retry,view,audit_view}'::text[]) p;
	SELECT reconcile.grant_command('worker', t, 'dispatch') FROM unnest('{red,blue}'::text[]) t;
	CREATE TABLE app.said (client int, who text, what text, pid int DEFAULT pg_backend_pid());
	GRANT ALL ON app.said TO PUBLIC});

my $through = begin_pooler($node, 'pool');

# ----------------------------------------------------------------------
note 'roles of transactions';

# Each client has a role; it commands its own tenant, and the other one under its role.
pgbench_pooled('give', 16, 10, q{
SELECT CASE WHEN :client_id % 2 = 1 THEN '''red''' ELSE '''blue''' END AS mine, CASE WHEN :client_id % 2 = 1 THEN '''blue''' ELSE '''red''' END AS other \gset
BEGIN;
SELECT set_config('role', :mine, true), set_config('app.tenant', :other, false);
INSERT INTO app.said (client, who, what) SELECT :client_id, current_user, tenant || ' ' || outcome FROM unnest(ARRAY['red', 'blue']) tenant,
	reconcile.accept_command(tenant, 'key ' || :client_id, 'drain', 'worker', 'w' || :client_id, 'why', deadline_in => '5 min');
COMMIT;
BEGIN;
SELECT set_config('role', :mine, true);
INSERT INTO app.said (client, who, what) SELECT DISTINCT :client_id, current_user, tenant_id || ' read' FROM reconcile.commands;
COMMIT;
});
is(sql($node, q{SELECT who, what, count(*), count(DISTINCT client) FROM app.said GROUP BY 1, 2 ORDER BY 1, 2}),
	"blue|blue accepted|8|8\nblue|blue read|80|8\nblue|blue replayed|72|8\nblue|red denied|80|8\n" .
	"red|blue denied|80|8\nred|red accepted|8|8\nred|red read|80|8\nred|red replayed|72|8", 'each role commands its own tenant, once with each key, and reads no other');
cmp_ok(sql($node, q{SELECT count(DISTINCT pid) FROM app.said}), '<=', 4, 'with four server sessions');
cmp_ok(sql($node, q{SELECT count(*) FROM (SELECT FROM app.said GROUP BY pid HAVING count(DISTINCT who) = 2) s}), '>', 0, 'which have had both roles');
is(sql($node, q{SELECT count(*) FROM reconcile.command WHERE role_name <> tenant_id OR actor <> tenant_id}), 0, 'each is of its tenant');
is(sql($node, q{SELECT string_agg(DISTINCT session_role, ' ') FROM reconcile.audit_event WHERE event = 'accepted'}), 'pool', 'whose session it was is in the audit');
is(pooled(q{SELECT outcome FROM unnest('{red,blue}'::text[]) t, reconcile.accept_command(t, 'none', 'drain', 'worker', 'w', 'why')} =~ s/^/BEGIN; SET LOCAL ROLE worker; /r . '; COMMIT'),
	"denied\ndenied", 'a role of neither commands neither');
my $stderr;
$node->psql('postgres', q{SELECT reconcile.accept_command('red', 'none', 'drain', 'worker', 'w', 'why')}, connstr => $through, stderr => \$stderr);
like($stderr, qr/permission denied for function accept_command/, 'and without a role nobody does');
$node->psql('postgres', q{SET ROLE red; SELECT reconcile.accept_command('red', 'by set role', 'drain', 'worker', 'w', 'why'); RESET ROLE}, connstr => $through, stderr => \$stderr);
is($stderr, '', 'SET ROLE serves, where the client keeps its session to the end');

# ----------------------------------------------------------------------
note 'grants that change while sessions have them';

pooled(q{BEGIN; SET LOCAL ROLE red; SELECT outcome FROM reconcile.accept_command('red', 'before', 'retry', 'failure', 'f', 'why'); COMMIT}) for 1 .. 4;
sql($node, q{SELECT reconcile.revoke_command('red', 'red', 'retry')});
is(pooled(q{BEGIN; SET LOCAL ROLE red; SELECT outcome FROM reconcile.accept_command('red', 'before', 'retry', 'failure', 'f', 'why'); COMMIT}), 'denied',
	'what is revoked counts for no session, for a replay neither') for 1 .. 4;

# ----------------------------------------------------------------------
note 'claims and reports, each from another session';

sql($node, q{CREATE TABLE app.done (command_id text, answer text); GRANT ALL ON app.done TO PUBLIC});
pgbench_pooled('claim and report', 8, 6, q{
BEGIN;
SET LOCAL ROLE worker;
SELECT count(*) AS n, quote_literal(min(tenant_id)) AS tenant, quote_literal(min(command_id)) AS id, quote_literal(min(claim_token)) AS token FROM reconcile.claim_commands('w' || :client_id, ttl => '1 h') \gset
COMMIT;
\if :n
BEGIN;
SET LOCAL ROLE worker;
INSERT INTO app.done SELECT :id, reconcile.acknowledge_command(:tenant, :id, :token, 'w' || :client_id, '1.0');
COMMIT;
BEGIN;
SET LOCAL ROLE worker;
INSERT INTO app.done SELECT :id, reconcile.complete_command(:tenant, :id, :token, 'succeeded');
COMMIT;
\endif
});
is(sql($node, q{SELECT status, count(*) FROM reconcile.command GROUP BY 1}), 'succeeded|18', 'all are carried out');
is(sql($node, q{SELECT answer, count(*), count(DISTINCT command_id) FROM app.done GROUP BY 1 ORDER BY 1}), "acknowledged|18|18\ncompleted|18|18", 'each by one');
foreach my $tenant (qw(red blue))
{
	is(sql($node, "SELECT outcome FROM reconcile.audit_verify('$tenant')"), 'ok', "the audit of $tenant is whole");
	is(sql($node, "SELECT count(*) FROM reconcile.audit_event WHERE tenant_id = '$tenant' AND event = 'denied'"), 80 + 1 + ($tenant eq 'red' ? 4 : 0), 'with all denials');
}
is(sql($node, q{SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()}), 0, 'nobody was in a deadlock');

end_pooler();
finish();

# The files for Prometheus and Grafana: the alert rules are valid, fire where
# they should and keep silent beside it; the dashboard's queries are valid; and
# no metric is named in either that the extension does not have.

use strict;
use warnings;

use JSON::PP;
use LoopTest;
use PostgreSQL::Test::Utils;
use ReconcileTest;
use Test::More;

my $source = $ENV{RECONCILE_SOURCE};
my $alerts = slurp_file("$source/doc/alerts.yml");
my $dashboard = JSON::PP->new->decode(slurp_file("$source/doc/dashboard.json"));
my @queries = map { $_->{expr} } map { @{ $_->{targets} } } @{ $dashboard->{panels} };

cmp_ok(scalar @queries, '>=', 20, 'the dashboard has queries');
my %ids = map { $_->{id} => 1 } @{ $dashboard->{panels} };
is(scalar keys %ids, scalar @{ $dashboard->{panels} }, 'each panel has an id of its own');

SKIP: {
	skip 'promtool is not installed', 3 unless -x '/usr/bin/promtool';
	my ($out, $err);

	like(qx{promtool check rules $source/doc/alerts.yml 2>&1}, qr/SUCCESS: 16 rules found/, 'the alert rules are valid');
	is(system("promtool test rules $source/test/prometheus/alerts_test.yml > $ENV{TESTLOGDIR}/alerts 2>&1"), 0, 'they fire where they should')
	  or diag(slurp_file("$ENV{TESTLOGDIR}/alerts"));
	# Grafana fills in its variables; promtool reads queries in rules only.
	my $n = 0;
	my $rules = "groups:\n- name: dashboard\n  rules:\n";
	foreach my $query (@queries)
	{
		$query =~ s/\$__rate_interval/1m/g;
		$query =~ s/\$reconciler/.*/g;
		$rules .= '  - record: query_' . $n++ . "\n    expr: |\n      $query\n";
	}
	my $file = "$ENV{TESTDATADIR}/dashboard_rules.yml";
	append_to_file($file, $rules);
	like(qx{promtool check rules $file 2>&1}, qr/SUCCESS: $n rules found/, 'the dashboard\'s queries are valid');
}

my $node = new_node('main');
prepare($node);
make_loop($node, 'led', options => q{lease_ttl => '5 s'});
enqueue($node, 'led', 'a');
wait_quiet($node, 'led');
sql($node, q{SELECT outcome FROM reconcile.accept_command('t', 'k', 'drain', 'worker', 'w', 'why')});
my %there = map { $_ => 1 } split /\n/, sql($node, 'SELECT DISTINCT name FROM reconcile.metrics()');
my %named;
$named{$_} = 1 for "$alerts @queries" =~ /\b(reconcile_[a-z_]+)\b/g;
is(join(' ', grep { !$there{$_} } sort keys %named), '', 'every metric that is named is there');
is(join(' ', grep { !$named{$_} && !/_(?:sum|count)$/ && !/self_suppressed|bad_values|uncounted/ } sort keys %there), '', 'nearly all are made use of');

# Every metric is described.
my $reference = slurp_file("$source/doc/reference.md");
my @families = split /\n/, sql($node, q{SELECT DISTINCT regexp_replace(name, '_(bucket|sum|count)$', '') FROM reconcile.metrics()});
is(join(' ', grep { $reference !~ /`$_`/ } sort @families), '', 'each has a row in the reference');

finish();

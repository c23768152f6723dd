# PoolerTest.pm: a pooler in front of a node, which gives each transaction another
# server session.

package PoolerTest;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(begin_pooler wait_pooler pooled pgbench_pooled end_pooler);

my ($node, $pooler, $through);

# begin_pooler(NODE, USER, SETTING => VALUE, ...): four server sessions of that user, for
# as many clients as come; a test that it serves. Returns the connection string.
sub begin_pooler
{
	my ($user, %settings);
	($node, $user, %settings) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $config = $node->basedir . '/pgbouncer.ini';

	append_to_file($config, <<~"EOC" . join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
		[databases]
		postgres = host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres user=$user
		[pgbouncer]
		listen_port = $port
		unix_socket_dir = @{[ $node->host ]}
		auth_type = any
		pool_mode = transaction
		default_pool_size = 4
		max_client_conn = 100
		server_login_retry = 1
		EOC
	$pooler = IPC::Run::start([ '/usr/sbin/pgbouncer', '--quiet', $config ], '<' => \undef, '>' => "$config.log", '2>' => "$config.err");
	$through = "host=@{[ $node->host ]} port=$port dbname=postgres user=$user";

	wait_pooler();
	is(pooled('SELECT 1'), 1, 'the pooler serves');
	return $through;
}

# Until there is a socket, and somebody behind it.
sub wait_pooler
{
	for my $try (1 .. 1000)
	{
		last if $node->psql('postgres', 'SELECT 1', connstr => $through, stdout => \my $out, stderr => \my $err) == 0;
		select undef, undef, undef, 0.02;
	}
	return;
}

# pooled(QUERY): what a client of the pooler gets.
sub pooled
{
	my ($query) = @_;
	return $node->safe_psql('postgres', $query, connstr => $through);
}

# pgbench_pooled(NAME, CLIENTS, TRANSACTIONS, SCRIPT): a test that all of them are processed.
sub pgbench_pooled
{
	my ($name, $clients, $transactions, $script) = @_;
	my $file = $node->basedir . "/$name.sql";
	my ($out, $err) = ('', '');

	append_to_file($file, $script);
	IPC::Run::run([ 'pgbench', '-n', '-c', $clients, '-j', 2, '-t', $transactions, '-f', $file, $through ], '<' => \undef, '>' => \$out, '2>' => \$err);
	like($out, qr/processed: @{[ $clients * $transactions ]}\//, "$clients clients: $name") or diag $err;
	return;
}

# Before the node stops.
sub end_pooler
{
	$pooler->signal('TERM');
	$pooler->finish;
	return;
}

1;

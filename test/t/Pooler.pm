# A PgBouncer for the tests, on a port of the loopback interface.
#
#	use Pooler;
#
#	plan skip_all => 'there is no pgbouncer' unless find_pooler();
#	set_up_pooler($node, pool => 'pool_size=3');
#	my $one = pooled('one', 'pool');
#	kill_pooler();
#	start_pooler();
#
# What it calls databases are pools.

package Pooler;

use strict;
use warnings;

use Exporter qw(import);
use IPC::Run;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(find_pooler kill_pooler pooled pooler_port set_up_pooler
  start_pooler);

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}),
  '/usr/sbin';

my ($node, $conf, $port, $pooler, $pid, $default);

END
{
	local $?;
	kill('KILL', $pid) if $pid;
}

sub find_pooler { return $program; }

sub pooler_port { return $port; }

# Starts it in front of a server. Pools: names and settings, the default one
# first. They pool transactions unless pool_mode says otherwise. What is given for
# '[pgbouncer]' are settings of its own.
sub set_up_pooler
{
	my ($server, %pools) = @_;
	my $own = delete $pools{'[pgbouncer]'} // '';
	my $conninfo = 'host=' . $server->host . ' port=' . $server->port
	  . ' dbname=postgres user='
	  . $server->safe_psql('postgres', 'SELECT current_user');

	($node, $default) = @_;
	$port = PostgreSQL::Test::Cluster::get_free_port();
	$conf = $node->basedir . '/pgbouncer.ini';
	append_to_file($conf, join '', "[databases]\n",
		map({ "$_ = $conninfo $pools{$_}\n" } sort keys %pools), qq(
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
$own
));
	start_pooler();
	return;
}

# A session through it.
sub pooled
{
	my ($name, $pool) = @_;

	return session(
		$node,
		name => $name,
		dbname => $pool // $default,
		host => '127.0.0.1',
		port => $port);
}

# It does not outlive this test, even if that is killed.
sub start_pooler
{
	my ($test) = $0 =~ m{(\d+_\w+)\.pl$};

	$pooler = IPC::Run::start(
		[ qw(setpriv --pdeathsig KILL), $program, $conf ],
		'<' => \'',
		'>>' => "${PostgreSQL::Test::Utils::log_path}/${test}_pgbouncer.log",
		'2>&1');
	$pid = $pooler->{KIDS}[0]{PID};
	wait_until(
		sub {
			return eval { pooled('probe')->finish; 1 };
		},
		'the pooler');
	return;
}

sub kill_pooler
{
	kill('KILL', $pid);
	eval { $pooler->finish };
	$pid = undef;
	return;
}

1;

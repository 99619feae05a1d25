# The network of the conformance suite. The runner and the servers are one host,
# and all subjects another one: a network namespace behind a veth pair.
#
#	open_network();
#	my $host = address_of(3);        # where subject 3 finds the servers
#	exec on_host('program');         # start it on the other host
#	cut(3, 7);                       # lose every packet of 3 and 7, both ways
#	mend(3, 7);
#	forget(3);                       # lose the connections that 3 has now
#	remember();                      # no longer
#	connections(3);                  # its ports on the other host, and server processes
#	name_addresses('cluster', $path) # a name with two addresses
#
# Each subject has an address of the servers for itself, so that each can be cut
# off alone. A cut is a route to a neighbour that does not exist: neither end is
# told anything, as with a host that has lost its power. The address for the
# work, $WORK_HOST, is never cut: a worker is not to stop only because its writes
# hang. To forget connections is what a firewall does that has restarted: nobody
# is told, what was sent is lost for ever, and new connections work.
#
# Without namespaces, all is on the loopback interface, and nothing can be cut.

package Network;

use strict;
use warnings;

use Exporter qw(import);
use POSIX ();

our @EXPORT = qw(address_of can_cut close_network connections cut forget mend
  name_addresses on_host open_network remember @NAMED $WORK_HOST);

our $WORK_HOST = '127.0.0.1';

# Two more addresses of the servers: what sorts addresses by how near they are has
# the first one first.
our @NAMED = ('192.0.2.2', '192.0.2.250');

my $ADDRESSES = 200;
my $NOBODY = '192.0.2.254';
my $NO_MAC = '02:00:00:00:00:ff';
my ($host, @on_host);

# Runs commands of ip, here or on the other host.
sub ip
{
	my ($there, @commands) = @_;

	open my $ip, '|-', ($there ? @on_host : ()), qw(ip -batch -)
	  or die "ip: $!";
	print $ip map { "$_\n" } @commands;
	close $ip or die "ip failed: @commands";
	return;
}

# To be called in a network namespace of one's own, with the right to change it.
sub open_network
{
	pipe my $up, my $said or die "pipe: $!";
	$host = fork // die "fork: $!";
	if ($host == 0)
	{
		close $up;
		open STDOUT, '>&', $said;
		exec qw(setpriv --pdeathsig KILL unshare --net),
		  'sh', '-c', 'echo up; exec sleep infinity'
		  or POSIX::_exit(127);
	}
	close $said;
	<$up> // die 'no network namespace can be made';
	@on_host = ('nsenter', "--net=/proc/$host/ns/net");

	ip(0, 'link set lo up',
		"link add name server type veth peer name client netns $host",
		'address add 198.51.100.1/24 dev server',
		(map { "address add $_/24 dev server" } @NAMED, map { address_of($_) } 1 .. $ADDRESSES),
		'link set server up',
		"neighbour replace $NOBODY lladdr $NO_MAC dev server nud permanent",
		"route add default via $NOBODY dev server table 66");
	ip(1, 'link set lo up', 'address add 192.0.2.1/24 dev client',
		'address add 198.51.100.2/24 dev client', 'link set client up',
		"neighbour replace $NOBODY lladdr $NO_MAC dev client nud permanent",
		"route add default via $NOBODY dev client table 66");
	$WORK_HOST = '198.51.100.1';
	return;
}

sub close_network
{
	kill 'KILL', $host if $host;
	return;
}

# Gives both of @NAMED one name. The file system is one's own, too.
sub name_addresses
{
	my ($name, $path) = @_;

	open my $file, '>', $path or die $!;
	print $file "127.0.0.1 localhost\n", map { "$_ $name\n" } @NAMED;
	close $file or die $!;
	system('mount', '--bind', $path, '/etc/hosts') == 0 or die "cannot have names\n";
	return;
}

sub can_cut { return defined $host; }

sub address_of
{
	my ($n) = @_;

	return ($host ? '192.0.2.' : '127.0.1.') . ($n + 10);
}

sub on_host { return (@on_host, @_); }

# What loses the packets of addresses, or of connections: rules of either host
sub rules
{
	my ($do, @addresses) = @_;

	ip(1, map { "rule $do to $_ table 66" } @addresses);
	ip(0, map { "rule $do from $_ table 66" } @addresses);
	return;
}

sub cut { rules('add', map { address_of($_) } @_); return; }

sub mend { rules('del', map { address_of($_) } @_); return; }

# [ ADDRESS, PORT, PID ] of each connection to these addresses. PID is that of the server
# process: connections to different addresses may have the same port.
sub connections
{
	my %ours = map { address_of($_) => 1 } @_;

	return grep { $ours{ $_->[0] } }
	  map { /\s([\d.]+):\d+\s+\S+:(\d+)\s.*?pid=(\d+)/ ? [ $1, $2, $3 ] : () } qx(ss -Htnp state established);
}

my @forgotten;

sub forget_rules
{
	my ($do, @connections) = @_;

	ip(1, map { "rule $do to $_->[0] ipproto tcp sport $_->[1] table 66" } @connections);
	ip(0, map { "rule $do from $_->[0] ipproto tcp dport $_->[1] table 66" } @connections);
	return;
}

sub forget
{
	my @connections = connections(@_);

	forget_rules('add', @connections);
	push @forgotten, @connections;
	return;
}

sub remember
{
	forget_rules('del', @forgotten);
	@forgotten = ();
	return;
}

1;

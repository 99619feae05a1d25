# The hosts of a cluster: network namespaces on one bridge.
#
#	open_hosts('node1', 'east');       192.0.2.1, 192.0.2.2; this one is 192.0.2.250
#	address_of('node1');
#	exec on_host('node1', 'program');
#	cut('node1', 'node2');             what node1 sends to node2 is lost
#	mend('node1', 'node2');            as often as it was cut
#	processes_on('node1');
#
# Who is cut off is told nothing, as in ../clients/Network.pm: the way leads to a
# neighbour that does not exist. This host reaches all of them, always.

package Hosts;

use strict;
use warnings;

use Exporter qw(import);
use POSIX ();

our @EXPORT = qw(address_of cut mend on_host open_hosts processes_on);

my $NOBODY = '192.0.2.254';
my $NO_MAC = '02:00:00:00:00:ff';
my (%host, %cuts);

# Runs commands of ip, here or on a host.
sub ip
{
	my ($name, @commands) = @_;

	open my $ip, '|-', ($name ? on_host($name) : ()), qw(ip -batch -) or die "ip: $!";
	print $ip map { "$_\n" } @commands;
	close $ip or die "ip failed: @commands";
	return;
}

# A process that has a network of its own, and lives as long as this one
sub own_network
{
	pipe my $up, my $said or die "pipe: $!";
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		close $up;
		open STDOUT, '>&', $said;
		exec qw(setpriv --pdeathsig KILL unshare --net), 'sh', '-c', 'echo up; exec sleep infinity'
		  or POSIX::_exit(127);
	}
	close $said;
	<$up> // die 'no network namespace can be made';
	return $pid;
}

# To be called in a network namespace of one's own, with the right to change it.
sub open_hosts
{
	my (@names) = @_;

	ip(undef, 'link set lo up', 'link add bridge type bridge', 'link set bridge up',
		'address add 192.0.2.250/24 dev bridge');
	foreach my $i (0 .. $#names)
	{
		my ($name, $pid) = ($names[$i], own_network());

		$host{$name} = { pid => $pid, address => '192.0.2.' . ($i + 1) };
		ip(undef, "link add name to$i type veth peer name eth0 netns $pid",
			"link set to$i master bridge up");
		ip($name, 'link set lo up', "address add $host{$name}{address}/24 dev eth0", 'link set eth0 up',
			"neighbour replace $NOBODY lladdr $NO_MAC dev eth0 nud permanent",
			"route add default via $NOBODY dev eth0 table 66");
	}
	return;
}

sub address_of { return $host{ $_[0] }{address}; }
sub on_host { my ($name, @command) = @_; return ('nsenter', "--net=/proc/$host{$name}{pid}/ns/net", @command); }

# Cuts may overlap: what two have cut, two have to mend.
sub cut
{
	my ($from, $to) = @_;

	ip($from, 'rule add to ' . address_of($to) . ' table 66') if $cuts{"$from $to"}++ == 0;
	return;
}

sub mend
{
	my ($from, $to) = @_;

	ip($from, 'rule del to ' . address_of($to) . ' table 66') if --$cuts{"$from $to"} == 0;
	return;
}

# All of a host but the one that keeps its network
sub processes_on
{
	my ($name) = @_;
	my $network = readlink "/proc/$host{$name}{pid}/ns/net" // die "no host $name";

	return grep { $_ != $host{$name}{pid} && (readlink("/proc/$_/ns/net") // '') eq $network }
	  map { m{(\d+)} } glob '/proc/[0-9]*';
}

1;

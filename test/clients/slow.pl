# A slow network: passes TCP connections on, each way with a delay.
#
#	perl slow.pl [ADDRESS:]PORT TARGET_PORT MILLISECONDS
#
# An end of a connection is passed on like data, after what was sent before.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

my ($port, $target, $delay) = @ARGV;
my $listener = IO::Socket::INET->new(
	LocalAddr => $port =~ /:/ ? $port : ":$port", Listen => 100, ReuseAddr => 1)
  or die "port $port: $!";
my $sockets = IO::Select->new($listener);
my %other;
my @late;    # [ when, from, data ], in order: the delay is the same for all

$SIG{PIPE} = 'IGNORE';

sub connect_pair
{
	my $client = $listener->accept or return;
	my $server = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1', PeerPort => $target) or return;

	$_->autoflush(1) foreach $client, $server;
	@other{ $client, $server } = ($server, $client);
	$sockets->add($client, $server);
	return;
}

sub read_from
{
	my ($socket) = @_;
	my $length = sysread($socket, my $data, 65536);

	$sockets->remove($socket) unless $length;
	push @late,
	  [ clock_gettime(CLOCK_MONOTONIC) + $delay / 1000, $socket,
		$length ? $data : '' ];
	return;
}

sub pass_on
{
	my (undef, $from, $data) = @{ shift @late };
	my $to = $other{$from};

	if ($data ne '')
	{
		print $to $data;
		return;
	}
	$to->shutdown(1);
	delete $other{$from};
	return;
}

while (1)
{
	my $now = clock_gettime(CLOCK_MONOTONIC);

	pass_on() while @late && $late[0][0] <= $now;
	foreach my $socket (
		$sockets->can_read(@late ? $late[0][0] - $now : undef))
	{
		$socket == $listener ? connect_pair() : read_from($socket);
	}
}

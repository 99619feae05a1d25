# What listens on a server's port, and is no server:
#
#	perl impostor.pl PORT reset    ends each connection, with a reset
#	perl impostor.pl PORT hangup   lets everybody log in, and hangs up at the first query
#	perl impostor.pl PORT silent   takes each connection, and says nothing
#
# The second is what a pool sees that hands out connections of a server that died.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use Socket qw(SOL_SOCKET SO_LINGER);

my ($port, $mode) = @ARGV;
my $listener = IO::Socket::INET->new(
	LocalPort => $port, Listen => 100, ReuseAddr => 1) or die "port $port: $!";
my $sockets = IO::Select->new($listener);
my %said;

$SIG{PIPE} = 'IGNORE';

sub message
{
	my ($type, $body) = @_;

	return $type . pack('N', 4 + length $body) . $body;
}

# Authentication, what drivers want to know, a key, and ready
my $welcome = join '', message('R', pack 'N', 0),
  (map { message('S', "$_\0") } "server_version\0" . '15.0', "server_encoding\0UTF8",
	"client_encoding\0UTF8", "DateStyle\0ISO, MDY", "TimeZone\0UTC",
	"integer_datetimes\0on", "standard_conforming_strings\0on"),
  message('K', pack 'NN', $$, 1), message('Z', 'I');

sub hang_up
{
	my ($socket) = @_;

	$sockets->remove($socket);
	delete $said{$socket};
	setsockopt $socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0) if $mode eq 'reset';
	close $socket;
	return;
}

# The first message has no type; those that ask for encryption are refused.
sub answer
{
	my ($socket) = @_;

	return hang_up($socket) unless sysread $socket, my $data, 65536;
	return if $mode eq 'silent';
	my ($length, $code) = unpack 'NN', $data;

	return hang_up($socket) if $said{$socket};
	return syswrite $socket, 'N' if $length == 8 && $code != 196608;
	$said{$socket} = 1;
	return syswrite $socket, $welcome;
}

while (1)
{
	foreach my $socket ($sockets->can_read)
	{
		if ($socket != $listener)
		{
			answer($socket);
		}
		elsif (my $client = $listener->accept)
		{
			$sockets->add($client);
			hang_up($client) if $mode eq 'reset';
		}
	}
}

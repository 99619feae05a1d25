# Who knocks how often: prints the address and the port that each new connection is
# asked for, whether anything listens there or not. Needs a network of its own.
#
#	perl knocks.pl

use strict;
use warnings;

use Socket qw(inet_ntoa SOCK_DGRAM);

my $AF_PACKET = 17;
my $IPV4 = 0x0800;
my $TCP = 6;
my ($SYN, $ACK) = (0x02, 0x10);

socket my $wire, $AF_PACKET, SOCK_DGRAM, unpack('S', pack 'n', $IPV4) or die "socket: $!";
$| = 1;
print "listening\n";
while (1)
{
	recv $wire, my $packet, 128, 0 or next;
	my ($version, $protocol, $to) = unpack 'C x8 C x6 a4', $packet;
	my (undef, $port, $flags) = unpack 'n n x9 C', substr $packet, 4 * ($version & 15);

	next if $protocol != $TCP || ($flags & ($SYN | $ACK)) != $SYN;
	print inet_ntoa($to), " $port\n";
}

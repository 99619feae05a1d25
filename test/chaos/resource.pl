# The outside resource of the chaos run: it keeps the highest term of each
# election, and refuses requests with a smaller one.
#
#	perl resource.pl SOCKET LOG
#
# A line of the log: a (accepted) or d (denied), election, term, candidate, when
# it was sent, when it was received.

use strict;
use warnings;

use IO::Handle;
use IO::Socket::UNIX;
use Socket;
use Time::HiRes qw(clock_gettime CLOCK_BOOTTIME);

my ($path, $log_path) = @ARGV;
my $socket = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $path)
  or die "$path: $!";
my %highest;

open my $log, '>>', $log_path or die "$log_path: $!";
$log->autoflush(1);
while (1)
{
	defined $socket->recv(my $message, 1000) or next;
	my ($election, $term, $candidate, $sent) = split / /, $message;
	my $before = $highest{$election} // 0;
	my $accepted = $term >= $before;

	$highest{$election} = $term if $accepted;
	print $log join(' ', $accepted ? 'a' : 'd',
		$election, $term, $candidate, $sent, int(clock_gettime(CLOCK_BOOTTIME) * 1_000_000)), "\n";
}

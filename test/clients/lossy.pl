# A network that loses what matters most: passes TCP connections on, but where the
# server answers a call of acquire() or acquire_any() with a grant, it ends that
# connection instead, on both sides. The same question, asked again, is answered.
#
#	perl lossy.pl PORT TARGET_PORT
#
# Prints a line for each answer that was lost: "lost QUESTION".

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;

my ($port, $target) = @ARGV;
my $listener = IO::Socket::INET->new(
	LocalPort => $port, Listen => 100, ReuseAddr => 1) or die "port $port: $!";
my $sockets = IO::Select->new($listener);
my (%other, %question, %is_client, %lost);

$SIG{PIPE} = 'IGNORE';
STDOUT->autoflush;

sub connect_pair
{
	my $client = $listener->accept or return;
	my $server = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1', PeerPort => $target) or return;

	$_->autoflush(1) foreach $client, $server;
	@other{ $client, $server } = ($server, $client);
	$is_client{$client} = 1;
	$question{$client} = '';
	$sockets->add($client, $server);
	return;
}

sub end_pair
{
	my ($socket) = @_;
	my $other = delete $other{$socket} or return;

	foreach ($socket, $other)
	{
		delete $other{$_};
		delete $question{$_};
		delete $is_client{$_};
		$sockets->remove($_);
		close $_;
	}
	return;
}

# Is that a row, as the tag of its command tells, that the client has asked for?
sub is_grant
{
	my ($question, $answer) = @_;

	return $question =~ /leader_election\.acquire(_any)?\(/ && $answer =~ /(SELECT|COPY) [1-9]\d*\0/;
}

sub pass_on
{
	my ($socket) = @_;
	my $other = $other{$socket} or return;

	return end_pair($socket) unless sysread($socket, my $data, 65536);
	if ($is_client{$socket})
	{
		$question{$socket} .= $data;
	}
	elsif (is_grant($question{$other}, $data) && !$lost{ $question{$other} }++)
	{
		print 'lost ', $question{$other} =~ s/[^ -~]+/ /gr, "\n";
		return end_pair($socket);
	}
	else
	{
		$question{$other} = '' if $data =~ /Z\0\0\0\x05.\z/s;    # it is ready for the next one
	}
	print $other $data;
	return;
}

while (1)
{
	$_ == $listener ? connect_pair() : pass_on($_) foreach $sockets->can_read;
}

# Clients of pg_leader stand, for the TAP tests.
#
#	my $port = http_port();
#	my $one = sidecar($node, '-e', 'e', '-n', 'one', "--http=$port");
#	wait_for_leader($port);
#	my $reply = get($port, '/leader');
#
# A reply is undef, if there was none, or has its status, headers (in lower
# case), body, and the times at which the request was sent and the reply had
# come.

package Sidecar;

use strict;
use warnings;

use Exporter qw(import);
use IO::Socket::INET;
use LeaderElection;
use PgLeader;
use PostgreSQL::Test::Cluster;
use Socket qw(SOL_SOCKET SO_RCVTIMEO);
use Time::HiRes qw(sleep time);

our @EXPORT = qw(connect_http get http_port no_http read_more read_reply send_request
  wait_for_leader wait_for_reply);

sub http_port { return PostgreSQL::Test::Cluster::get_free_port(); }

# Why there are no sidecars here, if so
sub no_http
{
	my ($node) = @_;
	my $one = sidecar('host=/no-such-place', '-e', 'e', '--http=' . http_port());

	sleep(0.01) until $one->ended || $one->output =~ /no-such-place/;
	$one->signal('KILL') unless $one->ended;
	return $one->output =~ /built without HTTP/ ? 'pg_leader was built without HTTP' : undef;
}

sub connect_http
{
	my ($port) = @_;

	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 30);

	# A sidecar that never replies makes a test fail, and not hang.
	setsockopt($socket, SOL_SOCKET, SO_RCVTIMEO, pack('l!l!', 60, 0)) if $socket;
	return $socket;
}

# Sends a request, and returns when that began.
sub send_request
{
	my ($socket, $path, $method) = @_;
	my $sent = time;
	local $SIG{PIPE} = 'IGNORE';

	syswrite($socket, ($method // 'GET') . " $path HTTP/1.1\r\nHost: sidecar\r\n\r\n");
	return $sent;
}

# Adds what has come to $$buffer; false at the end. A child that is continued interrupts
# a read: PostgreSQL::Test::Utils has a handler of SIGCHLD.
sub read_more
{
	my ($socket, $buffer) = @_;
	my $came;

	do { $came = sysread($socket, $$buffer, 65536, length $$buffer) } until defined $came || !$!{EINTR};
	return $came;
}

# Reads one reply. What comes after it stays in $$buffer.
sub read_reply
{
	my ($socket, $buffer, $is_head) = @_;
	my %reply;

	$$buffer //= '';
	until ($$buffer =~ /\r\n\r\n/)
	{
		read_more($socket, $buffer) or return undef;
	}
	(my $head, $$buffer) = split(/\r\n\r\n/, $$buffer, 2);
	($reply{status}) = $head =~ m{^HTTP/1\.1 (\d+)};
	$reply{headers} = { map { /^([\w-]+): (.*)$/ ? (lc $1 => $2) : () } split(/\r\n/, $head) };
	my $length = $is_head ? 0 : $reply{headers}{'content-length'};
	while (length $$buffer < $length)
	{
		read_more($socket, $buffer) or return undef;
	}
	$reply{body} = substr($$buffer, 0, $length, '');
	$reply{came} = time;
	return \%reply;
}

# Asks once, over a connection of its own.
sub get
{
	my ($port, $path, $method) = @_;
	my $socket = connect_http($port) or return undef;
	my $sent = send_request($socket, $path, $method);
	my $reply = read_reply($socket, \my $buffer, ($method // '') eq 'HEAD');

	$reply->{sent} = $sent if $reply;
	return $reply;
}

# Waits until /leader is answered with this status, and body if that is given. In the
# reply, before is when the last one was asked for that was another.
sub wait_for_reply
{
	my ($port, $status, $body) = @_;
	my ($reply, $before);

	wait_until(
		sub {
			$before = $reply->{sent} if $reply;
			$reply = get($port, '/leader');
			return $reply && $reply->{status} == $status
			  && (!defined $body || $reply->{body} eq "$body\n");
		},
		sub { "$status at port $port; last: " . ($reply ? "$reply->{status} $reply->{body}" : 'none') });
	$reply->{before} = $before;
	return $reply;
}

sub wait_for_leader { return wait_for_reply($_[0], 200); }

1;

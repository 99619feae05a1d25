# Nonsense to what pg_leader stand listens on: requests that are broken, cut off,
# endless, in pieces or in other protocols. Whatever comes, it replies in good
# HTTP or hangs up, repeats nothing of what was sent, says that it leads to none
# that did not ask for /leader, and serves others as before: in the same term,
# with no more memory or descriptors. 068_sidecar.pl is about slow and many
# clients that ask for what there is.
#
# From the environment: HTTP_SEED (1) and HTTP_CALLS (1000), of random requests.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use Errno;
use JSON::PP;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Sidecar;
use Socket qw(SOL_SOCKET SO_LINGER);
use Test::More;
use Time::HiRes qw(time);

plan skip_all => no_http() if no_http();

my $SEED = $ENV{HTTP_SEED} // 1;
my $CALLS = $ENV{HTTP_CALLS} // 1000;

my $MUCH = 10_000_000;

# Less than the connections that there may be to two of them
my $AT_ONCE = 250;

# Seconds until a connection without a reply is closed: 10, and some for a machine
# that is busy
my $PATIENCE = 30;

# What must not come back
my $MARK = "NoNsEnSe\e[2J";

# What it may say to nonsense
my $REFUSED = qr/^(400|405|411|413|414|417|431|501|505)$/;

$SIG{PIPE} = 'IGNORE';
srand($SEED);
note("HTTP_SEED=$SEED HTTP_CALLS=$CALLS");

my $node = new_server(
	config => q(
leader_election.lease_duration = '30s'
client_min_messages = warning
));
my ($port, $port_two) = (http_port(), http_port());
my $leads = sidecar($node, '-e', 'e', '-n', 'leads', "--http=$port");
my $term = wait_for_leader($port)->{headers}{'x-leader-term'};
my $stands = sidecar($node, '-e', 'e', '-n', 'stands', "--http=$port_two");
wait_for_reply($port_two, 503, 'standing');

#
# Sending and receiving
#

# Sends all that it is given, [ port, bytes, how ] each over a connection of its own:
# all at once, or piece by piece, with so many seconds between. Reads meanwhile,
# and goes on reading until the other end hangs up. Returns what has come to each;
# undef, if the other end never hung up.
sub exchange
{
	my @all = map { { to => $_->[0], bytes => $_->[1], pieces => $_->[2] // 0, sent => 0, next => 0, got => '' } } @_;
	my ($began, $start) = (time, machine_time());
	my @open = @all;

	foreach my $one (@all)
	{
		$one->{socket} = connect_http($one->{to}) or return map { undef } @_;
		$one->{socket}->blocking(0);
		shutdown($one->{socket}, 1) if $one->{bytes} eq '';
	}
	while (@open
		&& machine_time() - $start < $PATIENCE
		&& time - $began < $PostgreSQL::Test::Utils::timeout_default)
	{
		my ($can_read, $can_write) = ('', '');

		foreach my $one (@open)
		{
			vec($can_read, fileno $one->{socket}, 1) = 1;
			vec($can_write, fileno $one->{socket}, 1) = 1 if $one->{sent} < length $one->{bytes} && time >= $one->{next};
		}
		next if select($can_read, $can_write, undef, 0.01) <= 0;
		foreach my $one (@open)
		{
			send_some($one) if vec($can_write, fileno $one->{socket}, 1);
			receive_some($one) if vec($can_read, fileno $one->{socket}, 1);
		}
		@open = grep { !$_->{ended} } @open;
	}
	return map { $_->{ended} ? $_->{got} : undef } @all;
}

sub is_later { return $!{EAGAIN} || $!{EINTR}; }

sub send_some
{
	my ($one) = @_;
	my $n = syswrite($one->{socket}, $one->{bytes}, $one->{pieces} ? 1 : 65536, $one->{sent});

	return if !defined $n && is_later();
	# What was refused is not sent to its end.
	$one->{sent} = defined $n ? $one->{sent} + $n : length $one->{bytes};
	$one->{next} = time + $one->{pieces};
	shutdown($one->{socket}, 1) if $one->{sent} >= length $one->{bytes};
	return;
}

sub receive_some
{
	my ($one) = @_;
	my $n = sysread($one->{socket}, $one->{got}, 65536, length $one->{got});

	$one->{ended} = 1 unless $n || !defined $n && is_later();
	return;
}

# The replies in what has come: status, headers as they are, and body. What is no
# reply dies. (Version 0.9.75 of the library writes the head of some of its own
# refusals twice.)
sub replies_of
{
	my ($text) = @_;
	my @replies;

	$text =~ s{\A(HTTP/1\.[01] 4\d\d (?:[\x20-\x7e]*\r\n)+\r\n)\1}{$1};
	while ($text ne '')
	{
		$text =~ s{\AHTTP/1\.[01] (\d{3}) [\x20-\x7e]*\r\n((?:[\w-]+:[\x20-\x7e]*\r\n)*)\r\n}{}
		  or die 'no reply: ' . substr($text, 0, 200) . "\n";
		my %reply = (status => $1, headers => $2, body => '');

		# To HEAD, there is no body.
		if ($reply{headers} =~ /^Content-Length: *(\d+)/mi && $text !~ m{\A(HTTP/1|\z)})
		{
			die "a body that is cut off: $text\n" if length $text < $1;
			$reply{body} = substr($text, 0, $1, '');
		}
		push @replies, \%reply;
	}
	return @replies;
}

# What is wrong with what has come to a request. It leads or it does not; and how
# many replies there may be, with which statuses.
sub wrongs_of
{
	my ($is_leading, $got, $statuses, $most) = @_;
	my @replies = eval { replies_of($got) };
	my @wrong = $@ ? ($@) : ();

	push @wrong, 'it comes back' if $got =~ /\Q$MARK\E|\e/;
	push @wrong, scalar(@replies) . ' replies' if @replies > $most;
	foreach my $r (@replies)
	{
		my ($says) = $r->{headers} =~ /^X-Leader-Term: (\d+)/m;

		push @wrong, "status $r->{status}" if $r->{status} !~ $statuses;
		push @wrong, "leading, in term $says" if defined $says && (!$is_leading || $says != $term || $r->{status} != 200);
		push @wrong, 'leading' if $r->{body} eq "leading\n" && !defined $says;
		push @wrong, 'no length' if $r->{status} != 100 && $r->{headers} !~ /^Content-Length:/mi;
	}
	return @wrong;
}

# The process serves others, and is what it was.
sub serves
{
	my $reply = get($port, '/leader');
	my $standing = get($port_two, '/leader');

	return $reply && $reply->{status} == 200 && $reply->{headers}{'x-leader-term'} == $term
	  && $standing && $standing->{status} == 503 && !$leads->ended && !$stands->ended;
}

sub memory { return (slurp_file('/proc/' . $leads->pid . '/status') =~ /^VmRSS:\s+(\d+)/m)[0]; }
sub open_files { return scalar(() = glob('/proc/' . $leads->pid . '/fd/*')); }

#
# Requests, each with the statuses that it may have, of one reply unless it says
# how many
#

my $CLOSE = "Host: x\r\nConnection: close\r\n";
my $GET = "GET /leader HTTP/1.1\r\n$CLOSE\r\n";
my $OR_503 = qr/^(200|503)$/;
my $NONE = qr/^none$/;
my $NOT_FOUND = qr/^(404|400|405|501)$/;

# Where nobody said what is right, as long as it is no nonsense
my $ANY = qr/^(200|503|404|400|405|411|413|414|417|431|501|505)$/;

my @REQUESTS = (
	[ 'as it should be', $GET, $OR_503 ],
	[ 'nothing', '', $NONE ],
	[ 'empty lines', "\r\n\r\n\n\n", $REFUSED ],
	[ 'a NUL byte', "\0", $REFUSED ],
	[ 'NUL bytes', "\0" x 5000, $REFUSED ],
	(map { [ "cut off after $_ bytes", substr($GET, 0, $_), $REFUSED ] } 1 .. length($GET) - 1),
	[ 'no version', "GET /leader\r\n\r\n", $ANY ],
	(map { [ "version $_", "GET /leader $_\r\n$CLOSE\r\n", $ANY ] } 'HTTP/0.9', 'HTTP/2.0', 'HTTP/9.9', 'HTTP/1.10', 'HTTP/1.', 'HTTP/', 'http/1.1', 'RTSP/1.0', $MARK, "HTTP/1.1 HTTP/1.1"),
	[ 'no host', "GET /leader HTTP/1.1\r\nConnection: close\r\n\r\n", $ANY ],
	[ 'two hosts', "GET /leader HTTP/1.1\r\nHost: $MARK\r\n$CLOSE\r\n", $ANY ],
	[ 'lines that end in LF', "GET /leader HTTP/1.1\nHost: x\nConnection: close\n\n", $ANY ],
	[ 'lines that end in CR', "GET /leader HTTP/1.1\rHost: x\r\r", $ANY ],
	[ 'a line that is folded', "GET /leader HTTP/1.1\r\n$CLOSE" . "X-A: a\r\n $MARK\r\n\r\n", $ANY ],
	[ 'a line without a colon', "GET /leader HTTP/1.1\r\n$CLOSE$MARK\r\n\r\n", $ANY ],
	[ 'a line without a name', "GET /leader HTTP/1.1\r\n$CLOSE: $MARK\r\n\r\n", $ANY ],
	[ 'a space before the colon', "GET /leader HTTP/1.1\r\n$CLOSE" . "X-A : $MARK\r\n\r\n", $ANY ],
	[ 'a line that begins with a space', "GET /leader HTTP/1.1\r\n $MARK: a\r\n$CLOSE\r\n", $ANY ],
	(
		map { my ($what, $line) = @$_; [ "a NUL byte in $what", $line, $ANY ] }
		  [ 'the method', "G\0ET /leader HTTP/1.1\r\n$CLOSE\r\n" ],
		[ 'the path', "GET /leader\0$MARK HTTP/1.1\r\n$CLOSE\r\n" ],
		[ 'the version', "GET /leader HTTP/1.\0001\r\n$CLOSE\r\n" ],
		[ 'a name', "GET /leader HTTP/1.1\r\n${CLOSE}X-\0A: a\r\n\r\n" ],
		[ 'a value', "GET /leader HTTP/1.1\r\n${CLOSE}X-A: a\0$MARK\r\n\r\n" ]),
	(map { [ "method $_", "$_ /leader HTTP/1.1\r\n$CLOSE\r\n", $REFUSED ] } 'get', 'GETGET', '', ' ', "\xff", $MARK, 'PRI', 'CONNECT', 'M' x 300),
	(map { [ "path $_", "GET $_ HTTP/1.1\r\n$CLOSE\r\n", $NOT_FOUND ] }
		  '', '*', '.', '/', '//leader', '/leader/', '/leader/..', '/./leader', '/../leader', '/LEADER', '/leaderx', '/leade', "/$MARK", '/%1b%5B2J', '/%', '/%2', '/%zz',
		'/..%2f..%2fetc%2fpasswd', '/leader%20', '/leader%0d%0aX-Leader-Term:%201', '/leader;x', '/leader#x', 'http://x/leader', 'x:1', '/%s%n%1000000s', "/\xc3\xa9\xff"),
	# The library ends a path at what it decodes to NUL.
	(map { [ "path $_", "GET $_ HTTP/1.1\r\n$CLOSE\r\n", $ANY ] }
		  '/%6Ceader', "/leader%00$MARK", '/leader?', '/leader?' . ('a&' x 1000), '/leader?%00=%zz&=&', '/leader a', '/lead er', "/leader\t"),
	(map { [ "length $_", "GET /leader HTTP/1.1\r\n${CLOSE}Content-Length: $_\r\n\r\nbody", $REFUSED ] }
		  4, 5, '-1', '+4', '4 4', '4, 4', '0x4', '', 'x', '18446744073709551615', '18446744073709551616', '9' x 400, "4\r\nContent-Length: 5", "4\r\nTransfer-Encoding: chunked"),
	(map { [ "chunks: " . substr($_, 0, 40) =~ s/\r\n/ /gr, "GET /leader HTTP/1.1\r\n${CLOSE}Transfer-Encoding: chunked\r\n\r\n$_", $ANY ] }
		  "0\r\n\r\n", "4\r\nbody\r\n0\r\n\r\n", "-1\r\nx", 'FFFFFFFFFFFFFFFF' . "\r\nx", 'FFFFFFFFFFFFFFFFF' . "\r\nx", "4;$MARK\r\nbody\r\n0\r\n\r\n", "x\r\n", '0' x 9000, "0\r\nX-A: $MARK\r\n\r\n", "4\r\nbodyx\r\n"),
	(map { [ "coding $_", "GET /leader HTTP/1.1\r\n${CLOSE}Transfer-Encoding: $_\r\n\r\n0\r\n\r\n", $ANY, 2 ] } 'gzip', 'chunked, chunked', "\x0bchunked", 'identity', $MARK),
	# A request within the body of another one is no request.
	[ 'a request in a body', "POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: " . length($GET) . "\r\n\r\n$GET", $REFUSED ],
	[ 'a request in chunks', "POST /status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" . sprintf('%x', length $GET) . "\r\n$GET\r\n0\r\n\r\n", $REFUSED ],
	[ 'a body that is announced', "GET /leader HTTP/1.1\r\n${CLOSE}Expect: 100-continue\r\nContent-Length: 4\r\n\r\nbody", qr/^(100|400|405|413|417)$/, 2 ],
	(map { [ "line $_", "GET /leader HTTP/1.1\r\n$CLOSE$_\r\n\r\n", $ANY ] }
		  'Upgrade: h2c', 'Connection: Upgrade, close', 'Connection: ' . $MARK, 'Range: bytes=0-0,-1', 'Cookie: ' . 'a=b; ' x 500, 'Cookie: =;=;;=', "Cookie: $MARK", 'Authorization: Digest ' . $MARK, 'Authorization: Basic ====', 'If-None-Match: *',
		'Accept-Encoding: gzip', "X-Leader-Term: 99", ('Host: y') x 2),
	[ 'a greeting of TLS', "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" . "\x55" x 500, $REFUSED ],
	[ 'the preface of HTTP/2', "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" . "\0\0\0\4\0\0\0\0\0", $REFUSED ],
	[ "a start of PostgreSQL's protocol", pack('NN', 8, 196608) . "user\0x\0\0", $REFUSED ],
	[ 'another protocol', "EHLO x\r\nMAIL FROM:<x>\r\n", $REFUSED ],
	[ 'many requests', $GET =~ s/Connection: close\r\n//r x 1000, $OR_503, 1000 ],
	[ 'a request, and nonsense', $GET =~ s/Connection: close\r\n//r . "$MARK\r\n\r\n", $ANY, 2 ],
	# 10 MB
	[ 'a method without an end', 'G' x $MUCH, $REFUSED ],
	[ 'a path without an end', 'GET /' . 'x' x $MUCH, $REFUSED ],
	[ 'a query without an end', 'GET /leader?' . 'x=y&' x ($MUCH / 4), $REFUSED ],
	[ 'a version without an end', 'GET /leader HTTP/1.' . '1' x $MUCH, $REFUSED ],
	[ 'a line without an end', "GET /leader HTTP/1.1\r\nX-A: " . 'x' x $MUCH, $REFUSED ],
	[ 'a name without an end', "GET /leader HTTP/1.1\r\nX-" . 'x' x $MUCH, $REFUSED ],
	[ 'lines without an end', "GET /leader HTTP/1.1\r\n" . "X-A: $MARK\r\n" x ($MUCH / 20), $REFUSED ],
	[ 'empty lines without an end', "\r\n" x ($MUCH / 2), $REFUSED ],
	[ 'NUL bytes without an end', "\0" x $MUCH, $REFUSED ],
	[ 'spaces without an end', 'GET ' . ' ' x $MUCH, $REFUSED ],
	[ 'a body without an end', "POST /leader HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" . 'x' x $MUCH, $REFUSED ],
	[ 'chunks without an end', "POST /leader HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" . "1\r\nx\r\n" x ($MUCH / 6), $REFUSED ]);

my $memory = 0;
my $files = open_files();

# Asks a number of them at a time; the check gets the port, the request, and what
# has come.
sub ask_all
{
	my ($check, @all) = @_;

	while (my @some = splice(@all, 0, $AT_ONCE))
	{
		my @got = exchange(map { [ $_->{to}, $_->{bytes} ] } @some);

		$check->($some[$_], $got[$_]) foreach 0 .. $#some;
		ok(serves(), scalar(@some) . ' requests, and others are served');
	}
	return;
}

# Twice: whatever the first time needs once is no leak.
foreach my $time (1, 2)
{
	ask_all(
		sub {
			my ($one, $got) = @_;
			my ($what, undef, $statuses, $most) = @{ $one->{request} };
			my $name = $what =~ s/([^\x20-\x7e])/sprintf('\\x%02x', ord $1)/ger;
			my @wrong = defined $got ? wrongs_of($one->{to} == $port, $got, $statuses, $most // 1) : 'it never hung up';

			is(join("\n", @wrong), '', substr($name, 0, 100));
		},
		map { my $request = $_; map { { to => $_, bytes => $request->[1], request => $request } } $port, $port_two } @REQUESTS);
	$memory = memory() if $time == 1;
}

# In pieces of one byte it is the same request.
{
	my ($got) = exchange([ $port, $GET, 0.002 ]);

	is_deeply([ map { "$_->{status} $_->{body}" } replies_of($got // '') ], ["200 leading\n"], 'a request in single bytes');
}

#
# Any change of a request that is good, and any bytes
#

sub any_of { return $_[ rand @_ ]; }

# Bytes to put in
my @PIECES = (
	"\0", "\r", "\n", "\r\n", "\r\n\r\n", ' ', "\t", ':', '%', '%00', '?', '/', 'HTTP/1.1', 'GET ', 'HEAD ', "\x80", "\xff",
	'Content-Length: ', 'Transfer-Encoding: chunked', "Connection: close\r\n", "Connection: keep-alive\r\n", 'Expect: 100-continue',
	'0', '9' x 30, '-1', 'x' x 9000, $MARK, $GET);

sub any_request
{
	return join('', map { chr rand 256 } 1 .. 1 + rand 300) if rand() < 0.1;

	my $request = any_of('GET', 'GET', 'HEAD', 'POST') . any_of(' /leader', ' /status', ' /metrics', ' /x')
	  . " HTTP/1.1\r\nHost: x\r\n" . any_of('', "Connection: close\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n") . "\r\n";
	$request x= 1 + rand 3;
	foreach (0 .. rand 4)
	{
		my $at = rand length $request;
		my $dice = rand();

		if ($dice < 0.4) { substr($request, $at, 0, any_of(@PIECES)); }
		elsif ($dice < 0.6) { substr($request, $at, 1, chr rand 256); }
		elsif ($dice < 0.8) { substr($request, $at, 1 + rand 10, ''); }
		else { $request = substr($request, 0, $at) . any_of('', substr($request, rand $at)); }
		$request = 'x' if $request eq '';
	}
	return $request;
}

my (@wrong, %statuses);

ask_all(
	sub {
		my ($one, $got) = @_;
		my @wrongs = defined $got ? wrongs_of($one->{to} == $port, $got, qr/^100$|$ANY/, 20) : 'it never hung up';

		$statuses{$_}++ foreach ($got // '') =~ m{^HTTP/1\.[01] (\d+)}mg;
		push @wrong, join(', ', @wrongs) . ' to ' . unpack('H*', substr($one->{bytes}, 0, 1000)) if @wrongs;
	},
	map { { to => any_of($port, $port_two), bytes => any_request() } } 1 .. $CALLS);
is(join("\n", @wrong), '', "$CALLS random requests");
note(join(', ', map { "$_: $statuses{$_}" } sort keys %statuses));

#
# Clients that are gone at any moment, that say nothing, and very many
#

# Closes a connection without a goodbye: what is under way is thrown away.
sub reset_connection
{
	my ($socket) = @_;

	setsockopt($socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
	close($socket);
	return;
}

@wrong = ();
my @silent = map { connect_http($port) } 1 .. 50;
my $began = machine_time();
syswrite($silent[$_], substr("GET /leader HTTP/1.1\r\nHost: x\r\n", 0, $_)) foreach 1 .. $#silent;

foreach my $n (0 .. length $GET)
{
	my $socket = connect_http($port);

	syswrite($socket, substr($GET, 0, $n));
	reset_connection($socket);
}
ok(serves(), 'clients that are gone after each byte');
foreach (1 .. 20)
{
	my @many = grep { defined } map { connect_http($port) } 1 .. 50;

	syswrite($_, $GET x (rand 200)) foreach @many;
	reset_connection($_) foreach @many;
}
ok(serves(), '1,000 clients that read no reply');

# Those that say nothing are sent away, and nothing is left of any.
wait_until(sub { open_files() <= $files }, 'descriptors to be closed');
cmp_ok(machine_time() - $began, '<', $PATIENCE, 'clients that say no more are sent away');
foreach my $socket (@silent)
{
	my $got = '';

	while (sysread($socket, $got, 65536, length $got)) { }
	push @wrong, wrongs_of(1, $got, $REFUSED, 1);
}
is(join("\n", @wrong), '', 'with good HTTP, if with anything');

SKIP:
{
	skip 'a sanitizer keeps what is freed', 1 if ($ENV{ASAN_OPTIONS} // '') =~ /log_path/;
	cmp_ok(memory(), '<', $memory + 4000, 'no memory is left');
}

# All is counted, and nothing that was sent is in the numbers.
my $metrics = get($port, '/metrics')->{body};
is(join('', grep { !/^(#.*|\w+\{election="e",candidate="leads"(,code="\d+")?\} [\d.]+)$/ } split(/\n/, $metrics)), '', 'metrics: nothing else');
is(decode_json(get($port, '/status')->{body})->{term}, $term, 'it has led all the time');

foreach my $one ($leads, $stands)
{
	$one->signal('TERM');
	is($one->exit_code, 143, 'the end');
	unlike($one->output, qr/Sanitizer|runtime error|\Q$MARK\E/, 'and nothing was written');
}
$node->stop;
done_testing();

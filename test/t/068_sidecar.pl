# pg_leader stand: what it listens on, what it replies and when, how it ends, and
# that neither a stuck server nor many or slow clients are in its way.
# 069_sidecar_terms.pl has two of them, and looks for two leaders.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IO::Socket::IP;
use JSON::PP;
use LeaderElection;
use MachineTime;
use PgLeader;
use POSIX ();
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;
use Time::HiRes qw(sleep time);

plan skip_all => no_http() if no_http();

# In seconds; a slow machine renews later.
my $LEASE = 3 * slowness();

my $node = new_server(
	config => qq(
leader_election.lease_duration = '${LEASE}s'
client_min_messages = warning
));
my $sql = session($node, name => 'observer');
my $port = http_port();

# Where a port is listened on, as the kernel writes addresses
sub listens_on
{
	my ($one, $listened) = @_;
	my $port_hex = sprintf('%04X', $listened);
	my @found;

	wait_until(
		sub {
			@found = map { my $lines = eval { slurp_file($_) } // ''; $lines =~ /^ *\d+: (\w+):$port_hex \w+:0000 0A /mg }
			  qw(/proc/net/tcp /proc/net/tcp6);
			return @found || $one->ended;
		},
		'a socket that listens');
	return "@found";
}

sub ended_terms
{
	my ($election) = @_;

	return scalar $sql->query("SELECT count(*) FROM leader_election.history
		WHERE election = '$election' AND ended_at IS NOT NULL");
}

sub open_files { return scalar(() = glob("/proc/$_[0]/fd/*")); }

# --- the command line

foreach my $address ('', ':', 'x', '0', '65536', ' 4040', '+4040', '127.0.0.1', '127.1:4040', '::1:4040',
	'[127.0.0.1]:4040', '[::1]', '[::1]4040', 'example.com:4040', '[' . ':' x 100 . ']:4040')
{
	my $one = sidecar($node, '-e', 'e', "--http=$address");

	is($one->exit_code, 125, "no address: \"$address\"");
	like($one->output, qr/invalid value .* --http\n.*hint: It is PORT/, 'and says so');
}
foreach my $case ([ qr/no address/, '-e', 'e' ], [ qr/no election/, "--http=$port" ],
	[ qr/too many/, '-e', 'e', "--http=$port", 'true' ],
	[ qr/does not have the option/, '-e', 'e', '--mode=session', "--http=$port" ],
	[ qr/does not fit into the lease .* $LEASE s/, '-e', 'e', '--grace=' . (500 * $LEASE + 1) . 'ms', "--http=$port" ])
{
	my ($message, @args) = @$case;
	my $one = sidecar($node, @args);

	is($one->exit_code, 125, "wrong usage: @args");
	like($one->output, $message, 'and says so');
}
is(run_pg_leader($node, '-e', 'e', "--http=$port", '--', 'true'), 125, 'run has no --http');
is(sidecar($node->connstr('template1'), '-e', 'e', "--http=$port")->exit_code, 124, 'no extension');

# --- where it listens

foreach my $case ([ '', '0100007F' ], [ ':', '0100007F' ], [ 'localhost:', '0100007F' ],
	[ '0.0.0.0:', '00000000' ], [ '[::1]:', '0' x 24 . '01000000' ], [ '[::]:', '0' x 32 ])
{
	my ($host, $expected) = @$case;

	SKIP:
	{
		skip 'needs /proc', 1 unless -e '/proc/net/tcp';
		my $one = sidecar('host=/no-such-place', '-e', 'e', "--http=$host$port");
		my $found = listens_on($one, $port);

		$expected = '' if $host =~ /\[/ && $one->ended && $one->output =~ /could not listen/;
		is($found, $expected, "--http=${host}PORT: listens there, and nowhere else");
		next if $one->ended;
		if ($host eq '[::1]:')
		{
			my $socket = IO::Socket::IP->new(PeerAddr => '::1', PeerPort => $port);

			send_request($socket, '/leader');
			is(read_reply($socket, \my $buffer)->{status}, 503, '... and replies there');
		}
		$one->signal('TERM');
		is($one->exit_code, 143, 'ended while it stands');
	}
}

# A name that is no UTF-8, as metrics have to be
{
	my $one = sidecar('host=/no-such-place', '-e', 'e', '-n', "caf\xE9!", "--http=$port");

	wait_for_reply($port, 503);
	like(get($port, '/metrics')->{body}, qr/^pg_leader_leading\{election="e",candidate="caf\?!"\} 0$/m, 'bytes that are no UTF-8');
	$one->signal('TERM');
	$one->exit_code;
}

# --- replies

# The grace is longer than a machine is held up: what is said in it has to be seen.
$sql->query("SELECT leader_election.create_election('e \"1\"', lease_duration => '30 s')");
my $one = sidecar($node, '-e', 'e "1"', '-n', "one\t\\", "--http=$port", '--grace=3s');
my $leader = wait_for_leader($port);
is($leader->{body}, "leading\n", '/leader');
is($leader->{headers}{'x-leader-term'}, 1, 'with its term');
cmp_ok($leader->{headers}{'x-leader-remaining-ms'}, '<=', 3000, 'no more is told to remain than the grace');
cmp_ok($leader->{headers}{'x-leader-remaining-ms'}, '>', 2900, 'nor less');
is($leader->{headers}{'cache-control'}, 'no-store', 'not to be kept');
is(get($port, '/leader?x=1')->{status}, 200, 'with a query');

my $head = get($port, '/leader', 'HEAD');
is($head->{status}, 200, 'HEAD');
is($head->{headers}{'x-leader-term'}, 1, 'with its term');

my $status = decode_json(get($port, '/status')->{body});
my $remaining = delete $status->{remaining_ms};
cmp_ok($remaining, '<=', 3000, '/status: what remains');
is_deeply($status, { election => 'e "1"', candidate => "one\t\\", leading => JSON::PP::true,
		not_leading => undef, term => 1, connected => JSON::PP::true }, '/status');

my $metrics = get($port, '/metrics');
is($metrics->{headers}{'content-type'}, 'text/plain; version=0.0.4', '/metrics');
my $labels = qr/election="e \\"1\\"",candidate="one\t\\\\"/;
like($metrics->{body}, qr/^pg_leader_leading\{$labels\} 1$/m, 'whether it leads');
like($metrics->{body}, qr/^pg_leader_term\{$labels\} 1$/m, 'in which term');
like($metrics->{body}, qr/^pg_leader_http_requests_total\{$labels,code="200"\} [4-9]$/m, 'replies');
is(join('', grep { !/^(#.*|\w+\{$labels(,code="\d+")?\} [\d.]+)$/ } split(/\n/, $metrics->{body})),
	'', 'nothing else');

is(get($port, $_)->{status}, 404, "no such page: $_") foreach '/', '/leader/', '/leaders', '*', '/../status';
foreach my $method (qw(POST PUT DELETE OPTIONS TRACE get))
{
	my $reply = get($port, '/leader', $method);

	is($reply->{status}, 405, "not allowed: $method");
	is($reply->{headers}{allow}, 'GET, HEAD', 'and says what is');
}
{
	my $socket = connect_http($port);

	syswrite($socket, "GET /leader HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx");
	is(read_reply($socket, \my $buffer), undef, 'no reply to a request with a body');
	$socket = connect_http($port);
	syswrite($socket, 'GET /' . 'x' x 20000 . " HTTP/1.1\r\n\r\n");
	cmp_ok((read_reply($socket, \$buffer) // { status => 400 })->{status}, '>=', 400, 'nor to a head without end');
}
my $other = sidecar($node, '-e', 'e', "--http=$port");
is($other->exit_code, 125, 'the port is in use');
like($other->output, qr/could not listen on 127\.0\.0\.1:$port: Address already in use/, 'and says so');

# --- another one stands

my $port_two = http_port();
my $two = sidecar($node, '-e', 'e "1"', '-n', 'two', "--http=$port_two", '--grace=2s');
my $standing = wait_for_reply($port_two, 503, 'standing');
is($standing->{headers}{'x-leader-term'}, undef, 'who stands says no term');
is($standing->{headers}{'x-leader-remaining-ms'}, undef, 'nor what remains');
is($standing->{headers}{'cache-control'}, 'no-store', 'and that is not to be kept');
$status = decode_json(get($port_two, '/status')->{body});
is_deeply([ @$status{qw(leading not_leading term remaining_ms)} ], [ JSON::PP::false, 'standing', undef, 0 ],
	'/status of who stands');

# --- asked to yield, and ended: 503, then a pause, then the lease is given back

wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'e \"1\"' AND alive");
my ($began, $asked) = (time, machine_time());
$sql->query("SELECT leader_election.request_yield('e \"1\"')");
my $yielding = wait_for_reply($port, 503, 'yielding');
is(ended_terms('e "1"'), '0', 'it says 503 before it gives the lease back');
wait_for_leader($port_two);
cmp_ok(time - ($yielding->{before} // $began), '>=', 3.0, 'another one leads when what was told is over');
cmp_ok(machine_time() - $asked, '<', 10, 'and not only when the lease is over');
is($sql->query("SELECT reason FROM leader_election.history WHERE election = 'e \"1\"' AND term = 1"),
	'yielded', 'it has given it back');
wait_for_reply($port, 503, 'standing');

$began = time;
$two->signal('TERM');
wait_for_reply($port_two, 503, 'ending');
is(ended_terms('e "1"'), '1', 'ended: 503 before it gives the lease back');
is($two->exit_code, 143, 'its exit code');
cmp_ok(time - $began, '>=', 2.0, 'its own grace');
is(wait_for_leader($port)->{headers}{'x-leader-term'}, 3, 'the first one leads again');
is($sql->query("SELECT string_agg(reason, ' ' ORDER BY term) FROM leader_election.history WHERE election = 'e \"1\"'"),
	'yielded resigned', 'it has given it back, too');
is($sql->query("SELECT count(*) FROM leader_election.candidates WHERE election = 'e \"1\"' AND alive"), '1', 'and left');

# A second signal: clients may still count on what they were told.
$one->signal('TERM');
wait_for_reply($port, 503, 'ending');
$one->signal('TERM');
is($one->exit_code, 143, 'a second signal ends it at once');
like($one->output, qr/not given back/, 'and it says so');
is(ended_terms('e "1"'), '2', 'the lease runs out by itself');

# --- the server does not answer: no reply asks it, and the lease ends here first

$one = sidecar($node, '-e', 'stuck', '-n', 'one', "--http=$port");
wait_for_leader($port);
wait_for($node, "SELECT renewed_at > since FROM leader_election.status WHERE election = 'stuck'");
my @stuck = (split(/\n/, slurp_file($node->data_dir . '/postmaster.pid')))[0];
push @stuck, $sql->query("SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_leader'");
my $socket = connect_http($port);
my ($buffer, @usual, @remain) = ('');
foreach (1 .. 100)
{
	my $sent = send_request($socket, '/leader');
	my $reply = read_reply($socket, \$buffer);

	push @usual, $reply->{came} - $sent;
	push @remain, $reply->{headers}{'x-leader-remaining-ms'} // 0;
}
@remain = sort { $b <=> $a } @remain;
cmp_ok($remain[0], '<=', 1000, 'a grace of a second, unless it is given');
cmp_ok($remain[0], '>', 900, 'and no less');
stop_process($_) foreach @stuck;
my ($deadline) = $sql->lease('stuck', "extract(epoch FROM renewed_at + '$LEASE s')");
my ($last_led, $answer, @took, @leading);

while (1)
{
	my $sent = send_request($socket, '/leader');
	my $reply = read_reply($socket, \$buffer) or die 'no reply';

	push @took, $reply->{came} - $sent;
	$answer = $reply->{status};
	last if $answer != 200 || time > $deadline + 1;
	$last_led = $sent;
	push @leading, $sent + $reply->{headers}{'x-leader-remaining-ms'} / 1000;
}
@took = sort { $a <=> $b } @took;
@usual = sort { $a <=> $b } @usual;
note(sprintf('%d replies, median %.6f s, usually %.6f s', scalar @took, $took[ @took / 2 ], $usual[ @usual / 2 ]));
cmp_ok(scalar @took, '>', 100, 'many replies while the server does not answer');
cmp_ok($took[ @took / 2 ], '<', 0.001 + 3 * $usual[ @usual / 2 ], 'each as soon as usual');
cmp_ok((sort { $b <=> $a } @leading)[0], '<', $deadline - 0.29, 'what remains ends a margin before the lease does (G3)');
is($answer, 503, '503 comes by itself');
cmp_ok($last_led, '<', $deadline - 0.29, 'and answers each request from that margin on');
like(get($port, '/leader')->{body}, qr/^(late|standing|no connection)$/, 'and says why');
resume_process($_) foreach @stuck;
wait_for_leader($port);

# --- the server is down

$node->stop('immediate');
wait_for_reply($port, 503, 'no connection');
is(decode_json(get($port, '/status')->{body})->{connected}, JSON::PP::false, '/status says so, too');
$node->start;
wait_for_leader($port);
$sql = session($node, name => 'observer');

# --- many requests

# Sends so many requests, a hundred at a time, over four connections: how many
# replies were good.
sub storm
{
	my ($n) = @_;
	my @sockets = map { connect_http($port) } 1 .. 4;
	my @buffers = ('') x 4;
	my $requests = "GET /leader HTTP/1.1\r\nHost: x\r\n\r\n" x 100;
	my $good = 0;

	for (my $sent = 0; $sent < $n; $sent += 400)
	{
		syswrite($_, $requests) foreach @sockets;
		foreach my $i (0 .. 3)
		{
			# All of them are alike, but for their digits: the last one has come
			# when there are a hundred bodies.
			my $came = 0;
			while ($came < 100)
			{
				read_more($sockets[$i], \$buffers[$i]) or return $good;
				$came = () = $buffers[$i] =~ /\r\n\r\nleading\n/g;
			}
			$good += () = $buffers[$i] =~ m{^HTTP/1\.1 200 }mg;
			$buffers[$i] = '';
		}
	}
	return $good;
}

my $term = get($port, '/leader')->{headers}{'x-leader-term'};
my $files = open_files($one->pid);
storm(4000);
my $memory = (slurp_file('/proc/' . $one->pid . '/status') =~ /^VmRSS:\s+(\d+)/m)[0];

is(storm(10000), 10000, "all 10,000 requests of storm $_ have a reply") foreach 1 .. 3;
is(get($port, '/leader')->{headers}{'x-leader-term'}, $term, 'the lease was renewed meanwhile');
wait_until(sub { open_files($one->pid) <= $files }, 'descriptors to be closed');
pass('no descriptor is left');
SKIP:
{
	skip 'a sanitizer keeps what is freed', 1 if ($ENV{ASAN_OPTIONS} // '') =~ /log_path/;
	cmp_ok((slurp_file('/proc/' . $one->pid . '/status') =~ /^VmRSS:\s+(\d+)/m)[0], '<', $memory + 2000, 'no memory either');
}

# --- slow clients

# More than there may be, which send a byte now and then, or nothing at all, or
# read nothing: the last ones, and others, get a reply.
my @slow = map { connect_http($port) } 1 .. 300;
$began = machine_time();
my $round = 0;

is(scalar(grep { defined } @slow), 300, '300 slow clients');
$_->blocking(0) foreach @slow;
syswrite($_, "GET /leader HTTP/1.1\r\nHost: x\r\n\r\n" x 10000) foreach @slow[ 280 .. 299 ];
my $served = fork // die;
if ($served == 0)
{
	my $reply = get($port, '/leader');

	POSIX::_exit($reply && $reply->{status} == 200 ? 0 : 1);
}
{
	local $SIG{PIPE} = 'IGNORE';
	my $dribble = "GET /leader HTTP/1.1\r\nX-Slow: " . 'x' x 10000;

	wait_until(
		sub {
			syswrite($_, substr($dribble, $round, 1)) foreach @slow[ 0 .. 200 ];
			$round++;
			sleep(0.05);
			return waitpid($served, POSIX::WNOHANG()) == $served;
		},
		'a reply beside slow clients');
}
is($?, 0, 'another client gets its reply beside 300 slow ones');
note(sprintf('after %.1f s', machine_time() - $began));
cmp_ok(machine_time() - $began, '<', 10, 'soon');
cmp_ok(open_files($one->pid), '<', $files + 260, 'the number of connections is bounded');
wait_until(
	sub {
		local $SIG{PIPE} = 'IGNORE';
		syswrite($_, 'x') foreach @slow[ 0 .. 200 ];
		return open_files($one->pid) <= $files;
	},
	'slow clients to be closed');
pass('slow clients are sent away, although bytes come in');
is(get($port, '/leader')->{headers}{'x-leader-term'}, $term, 'the lease was renewed meanwhile');

# All connections are taken, and then closed at once: it listens again. (It replies 503
# if it was stopped until its lease was over, and the server is slow to grant another.)
# (A connection that says nothing is closed after a while: on a slow machine, the first
# ones before the last ones are taken.)
@slow = ();
wait_until(
	sub {
		push @slow, map { connect_http($port) } 1 .. 250;
		return open_files($one->pid) >= $files + 190;
	},
	'all connections to be taken');
stop_process($one->pid);
close($_) foreach grep { defined } @slow;
resume_process($one->pid);
{
	local $! = 0;
	my $reply = get($port, '/leader');

	like($reply ? $reply->{status} : "none: $!", qr/^(?:200|503)$/,
		"a reply after all @{[ scalar @slow ]} connections were closed at once");
}

$one->signal('TERM');
is($one->exit_code, 143, 'the end');
$sql->finish;
done_testing();

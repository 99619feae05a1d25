# pg_leader stand beside a crowd: whatever other clients do, a probe over a
# connection of its own is answered within a second. And what it says of an election
# in which it cannot be elected. 068_sidecar.pl has slow clients,
# 109_http_nonsense.pl those that talk nonsense.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IO::Socket::INET;
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

my $GET = "GET /leader HTTP/1.1\r\nHost: x\r\n\r\n";
my $PROBES = 15;

# No probe waits for longer than this, with which it has failed.
my $LONGEST = 20;

$SIG{PIPE} = 'IGNORE';

my $node = new_server(config => "leader_election.lease_duration = '60s'\n");
my $port = http_port();
my $one = sidecar($node, '-e', 'e', '-n', 'one', "--http=$port");
wait_for_leader($port);

my @crowd;

END
{
	my $status = $?;

	kill('KILL', @crowd);
	$? = $status;
}

# A connection from an address of this machine. All of 127.0.0.0/8 are.
sub connect_from
{
	my ($from) = @_;

	return IO::Socket::INET->new(LocalAddr => $from, PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 5);
}

# Is it over? Reads whatever has come meanwhile.
sub is_closed
{
	my ($socket) = @_;
	my $n;

	1 while ($n = sysread($socket, my $bytes, 65536));
	return defined $n || !$!{EAGAIN};
}

# A process of the crowd: keeps so many connections, and connects again where one
# was closed. Calls what they do with each, again and again.
sub start_crowd
{
	my ($n, $from, $pause, $do) = @_;
	my $pid = fork // die;

	if ($pid)
	{
		push @crowd, $pid;
		return;
	}
	my @sockets;
	for (;;)
	{
		foreach my $i (0 .. $n - 1)
		{
			if (!$sockets[$i] || is_closed($sockets[$i]))
			{
				$sockets[$i] = connect_from($from) or next;
				$sockets[$i]->blocking(0);
			}
			$do->(\$sockets[$i]);
		}
		sleep($pause);
	}
}

sub end_crowd
{
	kill('KILL', @crowd);
	waitpid($_, 0) foreach @crowd;
	@crowd = ();
	return;
}

# How long a reply took, or undef
sub probe
{
	my ($path) = @_;
	my $began = machine_time();
	my $took = eval {
		local $SIG{ALRM} = sub { die "late\n" };
		alarm($LONGEST);
		my $reply = get($port, $path);
		alarm(0);
		$reply && $reply->{status} == 200 ? machine_time() - $began : undef;
	};
	alarm(0);
	return $took;
}

sub connections { return scalar(() = glob('/proc/' . $one->pid . '/fd/*')); }

# Probes, while a crowd of two processes does something.
sub probe_beside
{
	my ($what, $n, $pause, $do) = @_;
	my (@took, @late);

	start_crowd($n / 2, '127.0.0.1', $pause, $do) foreach 1 .. 2;
	wait_until(sub { connections() >= 190 }, 'a crowd');
	foreach my $i (1 .. $PROBES)
	{
		my $took = probe($i % 2 ? '/leader' : '/status');

		push @took, $took // $LONGEST;
		push @late, $i unless defined $took;
		last if @late == 2;
		sleep(0.1);
	}
	cmp_ok(connections(), '<', 270, "$what: the number of connections is bounded");
	end_crowd();
	@took = sort { $a <=> $b } @took;
	note(sprintf('%s: median %.4f s, longest %.4f s', $what, $took[ @took / 2 ], $took[-1]));
	is("@late", '', "$what: each probe has its reply");

	# One of them may be late because the machine is.
	cmp_ok($took[ @took / 2 ], '<', 1, "$what: within a second");
	return;
}

# --- whatever others do

my $ask = sub { syswrite(${ $_[0] }, $GET); };

probe_beside('kept connections that ask all the time', 300, 0.2, $ask);
probe_beside('silent connections', 600, 0.05, sub { });
probe_beside('requests that never end', 600, 0.05, sub { syswrite(${ $_[0] }, 'G'); });
probe_beside('many requests at once, and no reply is read', 300, 0.02, sub { syswrite(${ $_[0] }, $GET x 200); });
probe_beside('connections that are always new', 300, 0,
	sub { my ($socket) = @_; syswrite($$socket, $GET); sysread($$socket, my $bytes, 1000) and undef $$socket; });

# --- each address has its share

# A client that keeps its connection and asks now and then keeps it, while another
# address takes all that it can have.
my $kept = connect_http($port);
my $buffer = '';
my $asked = 0;
start_crowd(300, '127.0.0.2', 0.2, $ask) foreach 1 .. 2;
wait_until(sub { connections() >= 190 }, 'a crowd');
foreach (1 .. 20)
{
	send_request($kept, '/leader');
	my $reply = read_reply($kept, \$buffer) or last;

	$asked++ if $reply->{status} == 200;
	sleep(0.1);
}
end_crowd();
is($asked, 20, 'a crowd of one address closes no connection of another');

# --- and nothing is left of them

wait_until(sub { connections() <= 20 }, 'connections to be closed');
is(get($port, '/leader')->{headers}{'x-leader-term'}, 1, 'it has led all the time');

# --- why a candidate that stands is not elected

my $port_two = http_port();
my $two = sidecar($node, '-e', 'e', '-n', 'two', "--http=$port_two");
my $sql = session($node, name => 'admin');

# Nobody is elected after the present leader.
foreach my $case (
	[ paused => q(pause_election('e')), q(resume_election('e')) ],
	[ paused => 'pause_all()', 'resume_all()' ],
	[ drained => q(drain_candidate('two', 'e')), q(undrain_candidate('two', 'e')) ],
	[ drained => q(drain_candidate('t*')), q(undrain_candidate('t*')) ])
{
	my ($why, $begin, $end) = @$case;

	wait_for_reply($port_two, 503, 'standing');
	$sql->query("SELECT leader_election.$begin");
	wait_for_reply($port_two, 503, $why);
	is(decode_json(get($port_two, '/status')->{body})->{not_leading}, $why, "$begin: /status says $why, too");
	$sql->query("SELECT leader_election.$end");
}
wait_for_reply($port_two, 503, 'standing');

# Nobody leads.
$sql->query("SELECT leader_election.pause_election('e')");
$one->signal('TERM');
is($one->exit_code, 143, 'the leader has ended');
wait_for_reply($port_two, 503, 'paused');
is($sql->query("SELECT state || ' ' || waiting_for FROM leader_election.status WHERE election = 'e'"),
	'vacant paused', 'as the server says');
$sql->query("SELECT leader_election.resume_election('e')");
wait_for_leader($port_two);
$sql->query("SELECT leader_election.pause_election('e')");
is(get($port_two, '/leader')->{status}, 200, 'a leader leads on while the election is paused');

$two->signal('TERM');
is($two->exit_code, 143, 'the end');
$sql->finish;
$node->stop;
done_testing();

# Two pg_leader stand, and an independent checker: what a client is told to
# remain, counted from when it sent its request, never reaches into the term of
# another leader. Sidecars, the server and its processes are stopped, killed,
# asked to yield and started again meanwhile.
#
# The checker's clients ask all the time, over a connection for each request,
# and read some replies late. When another leader's term began, the history
# says. All of it is on one machine, whose clock is not set meanwhile.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use List::Util qw(shuffle);
use PgLeader;
use POSIX ();
use PostgreSQL::Test::Utils;
use Sidecar;
use Test::More;
use Time::HiRes qw(sleep time);

plan skip_all => no_http() if no_http();

my $ROUNDS = 3;
my $CLIENTS = 3;    # of each sidecar

my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = new_server(
	config => q(
leader_election.lease_duration = '1500ms'
client_min_messages = warning
));
my @names = qw(one two);
my %port = map { $_ => http_port() } @names;
my %sidecar = map { $_ => start_sidecar($_) } @names;
my @clients;

END
{
	my $status = $?;

	kill('KILL', @clients);
	$? = $status;
}

sub start_sidecar
{
	my ($name) = @_;

	return sidecar($node->connstr('postgres') . " application_name=$name",
		'-e', 'e', '-n', $name, "--http=$port{$name}", '--grace=400ms');
}

# --- the checker

# A client asks one sidecar until it is killed, and notes each 200: when it sent
# the request, the term, and what was told to remain.
sub start_asking
{
	my ($name, $number) = @_;
	my $pid = fork // die;

	return $pid if $pid;
	open(my $file, '>', "$dir/$name.$number") or POSIX::_exit(1);
	srand($number);
	for (;;)
	{
		my $socket = connect_http($port{$name});

		if ($socket)
		{
			my $sent = send_request($socket, '/leader');

			sleep(rand(0.5)) if rand() < 0.1;
			my $reply = read_reply($socket, \my $buffer);
			syswrite($file, sprintf("%.6f %s %s\n", $sent, @{ $reply->{headers} }{qw(x-leader-term x-leader-remaining-ms)}))
			  if $reply && $reply->{status} == 200;
		}
		sleep(0.002 + rand(0.01));
	}
}

# What they noted: [ name, sent, term, remaining, in seconds ]
sub notes
{
	return map {
		my ($name) = m{([^/]+)\.\d+$};
		map { my ($sent, $term, $ms) = split; [ $name, $sent, $term, $ms / 1000 ] } split(/\n/, slurp_file($_))
	} map { glob("$dir/$_.*") } @names;
}

# Waits until a sidecar says that it leads: its name.
sub leader
{
	my $name;

	wait_until(
		sub {
			($name) = grep { my $reply = get($port{$_}, '/leader'); $reply && $reply->{status} == 200 } @names;
			return defined $name;
		},
		'a leader');
	return $name;
}

# --- what goes wrong

my %trouble = (
	'is stopped for longer than its lease' => sub {
		my ($name) = @_;
		stop_process($sidecar{$name}->pid);
		wait_for($node, "SELECT leader_election.leader('e') <> '$name'");
		resume_process($sidecar{$name}->pid);
	},
	'is stopped for less' => sub {
		my ($name) = @_;
		stop_process($sidecar{$name}->pid);
		sleep(0.2 + rand(0.5));
		resume_process($sidecar{$name}->pid);
	},
	'is stopped while it ends' => sub {
		my ($name) = @_;
		$sidecar{$name}->signal('TERM');
		sleep(rand(0.3));
		unless ($sidecar{$name}->ended)
		{
			stop_process($sidecar{$name}->pid);
			sleep(0.2 + rand(0.5));
			resume_process($sidecar{$name}->pid);
		}
		$sidecar{$name}->exit_code;
		$sidecar{$name} = start_sidecar($name);
	},
	'is ended' => sub {
		my ($name) = @_;
		$sidecar{$name}->signal('TERM');
		is($sidecar{$name}->exit_code, 143, "$name is ended");
		$sidecar{$name} = start_sidecar($name);
	},
	'is ended twice' => sub {
		my ($name) = @_;
		$sidecar{$name}->signal('TERM');
		sleep(rand(0.3));
		$sidecar{$name}->signal('TERM') unless $sidecar{$name}->ended;
		$sidecar{$name}->exit_code;
		$sidecar{$name} = start_sidecar($name);
	},
	'is killed' => sub {
		my ($name) = @_;
		$sidecar{$name}->signal('KILL');
		$sidecar{$name}->exit_code;
		$sidecar{$name} = start_sidecar($name);
	},
	'is asked to yield' => sub {
		my ($name) = @_;
		wait_for($node, "SELECT count(*) = 2 FROM leader_election.candidates WHERE election = 'e' AND alive");
		$node->safe_psql('postgres', "SELECT leader_election.request_yield('e')");
		wait_for($node, "SELECT leader_election.leader('e') <> '$name'");
	},
	'is cut off' => sub {
		my ($name) = @_;
		my $sql = session($node, name => 'observer');
		my $idle = "SELECT pid FROM pg_stat_activity WHERE application_name = '$name' AND state = 'idle'";
		my ($postmaster) = split(/\n/, slurp_file($node->data_dir . '/postmaster.pid'));
		my $pid;

		# The server may have been started just now.
		my ($other) = grep { $_ ne $name } @names;
		wait_until(sub { $sql->query("SELECT 1 FROM pg_stat_activity WHERE application_name = '$other'") },
			"a connection of $other");

		# Its process at the server stops, but not in the middle of a call: what is
		# locked there would keep others from being elected. Then no other can be
		# started.
		wait_until(
			sub {
				resume_process($pid) if $pid;
				$pid = $sql->query($idle) or return 0;
				stop_process($pid);
				return $sql->query($idle) eq $pid;
			},
			'an idle process');
		stop_process($postmaster);
		wait_until(sub { $sql->query("SELECT leader_election.leader('e') <> '$name'") eq 't' }, 'another leader');
		$sql->finish;
		resume_process($_) foreach $pid, $postmaster;
	},
	'loses its server' => sub {
		$node->stop('immediate');
		$node->start;
	},
	'loses its server for longer than its lease' => sub {
		$node->stop('fast');
		wait_for_reply($port{ $_[0] }, 503);
		$node->start;
	});

leader();
foreach my $name (@names)
{
	push @clients, map { start_asking($name, $_) } 1 .. $CLIENTS;
}
foreach my $round (1 .. $ROUNDS)
{
	foreach my $what (shuffle(keys %trouble))
	{
		my $name = leader();
		my $noted = notes();

		note("$name $what");
		wait_until(sub { notes() > $noted + 10 }, 'replies that are noted');

		# At any moment between two renewals
		sleep(rand(0.5));
		$trouble{$what}->($name);
	}
}
leader();
kill('KILL', @clients);
waitpid($_, 0) foreach @clients;
@clients = ();

# --- what was told, and what the history says

my $sql = session($node, name => 'observer');
my %term = map { my ($term, @of) = split(/\|/); $term => \@of }
  $sql->query("SELECT term, leader, extract(epoch FROM acquired_at) FROM leader_election.history WHERE election = 'e'");
my @notes = notes();
my ($least, @wrong, %told) = (9);

foreach my $note (@notes)
{
	my ($name, $sent, $term, $remaining) = @$note;

	$told{$term}++;
	push @wrong, "@$note: not its term" unless ($term{$term} // ['nobody'])->[0] eq $name;
	foreach my $later (grep { $_ > $term && $term{$_}[0] ne $name } keys %term)
	{
		my $left = $term{$later}[1] - $sent - $remaining;

		$least = $left if $left < $least;
		push @wrong, "@$note: $left s before term $later, of $term{$later}[0]" if $left < 0;
	}
}
note(sprintf('%d replies in %d of %d terms; the nearest to another term: %.3f s before it',
	scalar @notes, scalar keys %told, scalar keys %term, $least));
is(join("\n", splice(@wrong, 0, 20)), '', 'what remains, from the request on, reaches into no other term (G3)');
cmp_ok(scalar keys %told, '>', 2 * $ROUNDS, '... and it was told in many terms');

foreach my $name (@names)
{
	$sidecar{$name}->signal('TERM');
	is($sidecar{$name}->exit_code, 143, "$name: the end");
}
$sql->finish;
done_testing();

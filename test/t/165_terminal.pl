# pg_leader run in the foreground of a terminal, in a shell with job control: the
# command has the terminal while it runs, Ctrl-C reaches it, Ctrl-Z does not stop
# it, and afterwards the shell has its terminal, whoever has ended what.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use IPC::Run;
use LeaderElection;
use MachineTime;
use PgLeader;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server(config => "client_min_messages = warning\n");
my $super = session($node, name => 'super');
my $LEASE = 2 * slowness();
my $connstr = $node->connstr('postgres');

$super->query("SELECT leader_election.create_election('e', lease_duration => '1 min'),
	leader_election.create_election('short', lease_duration => '$LEASE s')");
my $election = 'e';

# What runs in the background of a script ignores these, and so would the command.
$SIG{$_} = 'DEFAULT' foreach qw(INT QUIT);
my ($in, $out) = ('', '');
my $shell = IPC::Run::start([qw(env PS1=prompt> TERM=dumb bash --norc --noprofile -i)],
	'<pty<', \$in, '>pty>', \$out);
my $shell_pid = $shell->{KIDS}[0]{PID};

my $shown = '';

# Waits until the terminal shows that, and forgets what was before its end: what is
# in parentheses.
sub shows
{
	my ($regexp) = @_;

	wait_until(sub { $shell->pump_nb; $out =~ /$regexp/ }, sub { "$regexp on the terminal: $out" });
	$out =~ s/^(.*?$regexp)//s or die;
	$shown .= $1;
	return $2;
}

# Group and foreground group of a process, as its terminal has them
sub groups { return (split ' ', slurp_file("/proc/$_[0]/stat") =~ s/.*\) \S+ //sr)[ 1, 4 ]; }

sub has_terminal
{
	my ($pid) = @_;
	my ($group, $foreground) = groups($pid);

	return $group == $foreground;
}

# Has the shell run it in the foreground: pg_leader and its guardian.
sub start_in_foreground
{
	my ($script, @options) = @_;
	my ($pid, $guardian);

	$script //= "echo ru''ns; exec sleep 1000";
	$in .= "pg_leader run -d '$connstr' -e $election -n c @options -- sh -c '$script'\n";
	shows(qr/runs/);
	($pid) = grep { slurp_file("/proc/$_/comm") eq "pg_leader\n" } descendants($shell_pid);
	($guardian) = grep { slurp_file("/proc/$_/comm") eq "leader_guardian\n" } descendants($pid);
	return ($pid, $guardian);
}

# The shell goes on, and says how its last job has ended.
sub shell_says
{
	my ($status, $title) = @_;

	$in .= "echo st''atus \$?.\n";
	my $got = shows(qr/status (\d+)\./);
	is($got, $status, $title) if defined $status;
	ok(has_terminal($shell_pid), "$title: the shell has its terminal");
	return;
}

shows(qr/prompt>/);
$in .= "ulimit -c 0\n";    # Ctrl-\ leaves no core
shows(qr/prompt>/);

# --- keys

my ($leader) = start_in_foreground();
ok(!has_terminal($shell_pid) && !has_terminal($leader), 'the command has the terminal');
$in .= "\cC";
shell_says(130, 'Ctrl-C ends the command');

# A script that is just starting a process cannot be stopped, but the process can.
start_in_foreground("trap \"echo con''tinued\" USR1; echo pid \$\$; echo ru''ns; while :; do env true; done");
my ($script) = $shown =~ /^pid (\d+)/m or die;
foreach (1 .. 300)
{
	$in .= "\cZ";
	shows(qr/\^Z/);
	kill('USR1', $script);
	shows(qr/continued/);
}
$in .= "\cC";
shell_says(130, 'Ctrl-Z does not stop it');

# A program that has itself stopped by Ctrl-Z
start_in_foreground(q{exec perl -e "\$|=1; \$SIG{TSTP}=DEFAULT; \$SIG{CONT}=sub{print qq(cont).qq(inued)}; } .
	q{print qq(ru).qq(ns); sleep 1 while 1"});
$in .= "\cZ";
shows(qr/\^Z.*continued/s);
$in .= "\cC";
shell_says(130, 'nor what sets SIGTSTP to its default');

# Ctrl-C and Ctrl-\ reach the command alone, and yet nothing is started once more.
foreach my $key ([ "\cC", 130, 'Ctrl-C' ], [ "\c\\", 131, 'Ctrl-\\' ])
{
	start_in_foreground(undef, '--forever');
	$in .= $key->[0];
	shell_says($key->[1], "$key->[2] ends --forever, too");
}

# SIGSTOP stops it, and it stays so until it is told to end.
($leader, my $guardian) = start_in_foreground();
stop_process($_) foreach descendants($guardian);
kill('TERM', $leader);
shell_says(143, 'a command that is stopped');

# A command that ends otherwise is started once more.
($leader, $guardian) = start_in_foreground(undef, '--forever');
kill('KILL', descendants($guardian));
shows(qr/runs/);
$in .= "\cC";
shell_says(130, 'until Ctrl-C');

# --- the ends of others

($leader, $guardian) = start_in_foreground();
kill('KILL', $guardian);
shell_says(121, 'the guardian is killed');

# From here on it is waited for that the lease has run out.
$election = 'short';
($leader) = start_in_foreground();
kill('KILL', $leader);
shell_says(137, 'pg_leader is killed');
wait_for($node, "SELECT leader_election.leader('short') IS NULL");

# The shell takes the terminal when pg_leader is stopped. Then the command is ended.
($leader, $guardian) = start_in_foreground();
stop_process($leader);
shows(qr/Stopped.*prompt>/s);
ok(has_terminal($shell_pid), 'pg_leader is stopped: the shell has its terminal');
wait_until(sub { !is_running($guardian) }, 'the end of the command');
shell_says(undef, 'then its command is ended');
unlike($shown, qr/stopped jobs/, '... and has not read the end of its input');
resume_process($leader);
wait_until(sub { !is_running($leader) }, 'the end of pg_leader');
shell_says(undef, 'it goes on, in the background');

$in .= "exit\n";
$shell->finish;
done_testing();

# Subjects of the conformance suite: how each is started, and what its processes
# say. A process is a hash:
#
#	subject, kind, election, candidate, n (its address, see Network)
#	pid       of the process; for pg_leader its own, not that of its command
#	events    [ [ WORD, VALUE, NS, TEXT, ASKED ] ] of its lines, in order
#	leads     the term, if its last event of "elected" and "lost" is "elected"
#	quiet     it says nothing when it loses
#	exit      its status as of a shell, once it has ended and all was read
#
# A line that is not of the protocol is kept as event "odd".

package Subjects;

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use IO::Select;
use Network;
use POSIX ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(await can_do ended ended_itself hear last_event leads now_ns pause send_line
  send_signal start_meter start_subject stood_still stop_subject subjects wait_for_line was_late
  $programs $TIMEOUT);

our $programs;    # the folder of what was compiled

# The one limit of every wait, in seconds. Waits end when what they wait for has
# come: this says only when to give up.
our $TIMEOUT = $ENV{LE_TEST_TIMEOUT} || 300;

my $here = dirname(abs_path(__FILE__));
my $drivers = "$here/drivers";

# How each is started, with the arguments of a driver and the environment.
my %COMMAND = (
	python => sub { ('/usr/bin/python3', "$drivers/python.py", @{ $_[0] }) },
	asyncpg => sub { ('/usr/bin/python3', "$drivers/asyncpg.py", @{ $_[0] }) },
	node => sub { ('node', "$drivers/node.js", @{ $_[0] }) },
	java => sub {
		(qw(java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp),
			"$programs/java:/usr/share/java/postgresql.jar", 'Driver', @{ $_[0] });
	},
	go => sub { ("$programs/go-driver", @{ $_[0] }) },
	pg_leader => \&pg_leader,
	ruby => sub { ('ruby', "$drivers/loop.rb", "$programs/loop.rb", @{ $_[0] }) },
	php => sub { ('php', "$drivers/loop.php", "$programs/loop.php", @{ $_[0] }) },
	rust => sub { ("$programs/rust-driver", @{ $_[0] }) },
	fake => sub { ($^X, "$here/fake.pl") },
);

# What subjects can do of what stands and faults need:
#
#	session, detached, bare  stand so
#	lost     say when they lose, and why
#	terse    say a trouble in a few lines of log, not in one for each attempt
#	resign, say, yield       do so: a command, a command, a handler
#	hang     stand still by a command, and lose the lease by it
#	long     do a piece of work by a command that takes longer than the lease
#	alarm    end themselves where a call or the work hangs, to be started anew
my $CLIENT = 'session detached bare lost terse resign say yield hang';
my $LOOP = 'detached hang long';
my %CAN = (
	(map { $_ => $CLIENT } qw(python asyncpg node java go)),
	pg_leader => 'session detached bare terse',
	ruby => $LOOP,
	php => "$LOOP alarm",
	rust => $LOOP,
	fake => 'session',
);

# The same without a client: what a client is compared with, see README.md.
my %BARE = (
	python => sub { ('/usr/bin/python3', "$drivers/bare.py", @{ $_[0] }) },
	asyncpg => sub { ('/usr/bin/python3', "$drivers/bare_async.py", @{ $_[0] }) },
	node => sub { ('node', "$drivers/bare.js", @{ $_[0] }) },
	java => sub {
		(qw(java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp),
			"$programs/java:/usr/share/java/postgresql.jar", 'Bare', @{ $_[0] });
	},
	go => $COMMAND{go},
	pg_leader => sub {
		("$programs/worker", conninfo(@{ $_[1] }{qw(PGHOST PGPORT)}), $_[0][1]);
	},
);

my $select = IO::Select->new;
my %process_of;    # by file descriptor
my %children;      # by process id

END
{
	local $?;
	kill 'KILL', keys %children;
}

sub can_do
{
	my ($subject, @needs) = @_;

	return !grep { my $need = $_; !grep { $_ eq $need } split / /, $CAN{$subject} } @needs;
}

sub now_ns { return int(clock_gettime(CLOCK_MONOTONIC) * 1e9); }

# All but the fake one
sub subjects { return grep { $_ ne 'fake' } sort keys %COMMAND; }

sub conninfo
{
	my ($hosts, $ports, $database) = @_;

	return "host=$hosts port=$ports user=app dbname=" . ($database // 'postgres') . ' connect_timeout=2 '
	  . 'target_session_attrs=read-write';
}

# The command that pg_leader runs is given where to write to.
sub pg_leader
{
	my ($arguments, $env) = @_;
	my ($kind, $election, $candidate) = @$arguments;

	return ('pg_leader', 'run', '-e', $election, '-n', $candidate,
		"--mode=$kind", '--grace=200ms',
		split(' ', $env->{PG_LEADER_OPTIONS} // '--forever'),
		$env->{POOLER} ? "--pooler=$env->{POOLER}" : (),
		defined $env->{REFUSAL_TIMEOUT} ? "--refusal-timeout=$env->{REFUSAL_TIMEOUT}s" : (), '--',
		"$programs/worker", conninfo(@$env{qw(WORKHOST WORKPORT PGDATABASE)}));
}

# Starts a process. Options: subject, kind, election, candidate, n, env, log
# (where its standard error goes), under (a command that starts it).
sub start_subject
{
	my (%process) = @_;
	my $env = delete $process{env};
	my $log = delete $process{log};

	pipe my $read, my $out or die "pipe: $!";
	pipe my $in, my $write or die "pipe: $!";
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		my @command = on_host(qw(setpriv --pdeathsig KILL), @{ $process{under} // [] },
			($process{kind} eq 'bare' ? \%BARE : \%COMMAND)->{ $process{subject} }
			->([ @process{qw(kind election candidate)} ], $env));

		# Poolers are asked for the protocol that lib.sh wants.
		delete @ENV{ grep { /^PG/ && $_ ne 'PGMAXPROTOCOLVERSION' } keys %ENV };
		$ENV{$_} = $env->{$_} foreach keys %$env;
		$ENV{PGOPTIONS} = $env->{PG_LEADER_PGOPTIONS}
		  if $process{subject} eq 'pg_leader' && $env->{PG_LEADER_PGOPTIONS};
		open STDIN, '<&', $in;
		open STDOUT, '>&', $out;
		open STDERR, '>>', $log;
		close $_ foreach $read, $write;
		exec @command or POSIX::_exit(127);
	}
	close $_ foreach $in, $out;
	$write->autoflush(1);
	$read->blocking(0);
	%process = (%process, pid => $pid, in => $write, out => $read,
		text => '', events => [], log => $log,
		quiet => $process{kind} ne 'bare' && !can_do($process{subject}, 'lost'));
	$children{$pid} = 1;
	$process_of{ fileno $read } = \%process;
	$select->add($read);
	return \%process;
}

# --- what they say

sub note_line
{
	my ($process, $line) = @_;
	my ($word, @rest) = split ' ', $line;
	my $ns = $word eq 'error' ? now_ns() : pop @rest;

	if ($line !~ /^(?:(?:ready|closed)|(?:elected|wrote|yield)\ \d+
		  |working\ \d+\ \d+|(?:lost|state)\ \S.*|refused\ \d+\ \S+
		  |(?:name|told)\ \S+|forked\ \w+\ \S+)\ \d+$
		  |^error\ \S+\ .*/x)
	{
		($word, $ns, @rest) = ('odd', now_ns(), $line);
	}
	push @{ $process->{events} }, [ $word, $rest[0], $ns, "@rest", $rest[1] ];
	$process->{leads} = $rest[0] if $word eq 'elected';
	$process->{leads} = undef if $word eq 'lost';
	return;
}

sub reap
{
	my ($process) = @_;

	return if defined $process->{exit} || waitpid($process->{pid}, POSIX::WNOHANG()) <= 0;
	$process->{exit} = $? & 127 ? 128 + ($? & 127) : $? >> 8;
	delete $children{ $process->{pid} };
	return;
}

# Reads what there is, waiting for so many seconds at most.
sub hear
{
	my ($seconds) = @_;

	foreach my $file ($select->can_read($seconds))
	{
		my $process = $process_of{ fileno $file };
		my $length = sysread $file, $process->{text}, 65536,
		  length $process->{text};

		next if !defined $length;
		note_line($process, $1) while $process->{text} =~ s/^(.*)\n//;
		next if $length > 0;
		$select->remove($file);
		delete $process_of{ fileno $file };
		$process->{leads} = undef;
		$process->{read} = 1;
		close $file;
	}
	return;
}

# Waits until code returns true, and returns that; undef after the limit, or so
# many seconds.
sub await
{
	my ($code, $seconds) = @_;
	my $end = clock_gettime(CLOCK_MONOTONIC) + ($seconds // $TIMEOUT);
	my $result;

	until ($result = $code->())
	{
		return if clock_gettime(CLOCK_MONOTONIC) > $end;
		hear(0.02);
	}
	return $result;
}

# Listens for so long: for what is not to happen.
sub pause
{
	my ($seconds) = @_;

	await(sub { 0 }, $seconds);
	return;
}

# The last event of these words at or after a time, or undef
sub last_event
{
	my ($process, $words, $since) = @_;

	foreach my $event (reverse @{ $process->{events} })
	{
		next if $event->[0] !~ /^(?:$words)$/;
		return $event->[2] >= ($since // 0) ? $event : undef;
	}
	return;
}

# Waits for the next line with this word.
sub wait_for_line
{
	my ($process, $word) = @_;
	my $known = @{ $process->{events} };

	return await(sub {
		return grep { $_->[0] eq $word }
		  @{ $process->{events} }[ $known .. $#{ $process->{events} } ];
	});
}

# Whether it leads, by what it says. What is quiet, like the worker of pg_leader, which
# is killed, leads as long as it works, which is each 20 ms, if it is not late.
sub leads
{
	my ($process) = @_;
	my $silence = 0.25 + 2 * was_late(now_ns() - 2e9);

	return defined $process->{leads}
	  && (!$process->{quiet}
		|| last_event($process, 'working', now_ns() - $silence * 1e9));
}

# --- how late this machine is

my $BEAT = 0.05;    # seconds: worker.c's turn where it is bare
my $meter;

# A bare process that nothing is done to: each turn is a pause and a round trip.
sub start_meter
{
	my ($env, $log) = @_;

	$meter = start_subject(subject => 'pg_leader', kind => 'bare', election => 'meter',
		candidate => 'meter', n => 0, env => $env, log => $log);
	return $meter;
}

# By how many seconds a pause with a round trip was longer than it should be since
# a time, at worst: what the machine adds to one step of any process. A server that
# is down is not the machine's lateness.
sub was_late
{
	my ($since) = @_;
	my $end = now_ns();
	my $worst = 0;

	foreach my $event (reverse @{ $meter ? $meter->{events} : [] })
	{
		my $gap = $end - ($event->[2] > $since ? $event->[2] : $since);

		$worst = $gap if $gap > $worst && $event->[0] =~ /^(?:working|elected)$/;
		$end = $event->[2];
		last if $end <= $since;
	}
	$worst = $worst / 1e9 - $BEAT;
	return $worst > 0 ? $worst : 0;
}

# How long the work of a process stood still at worst, in seconds, in its terms. That is a
# loop with the bare driver: a line each 20 ms, and fenced writes, for the first of which
# it connects. Where processors are short, the meter, which needs little of them, is in
# time, and a program that has just been started is not.
sub stood_still
{
	my ($process) = @_;
	my $worst = 0;
	my $last;

	foreach my $event (@{ $process->{events} })
	{
		next unless $event->[0] =~ /^(?:elected|working|wrote|refused|lost)$/;
		$worst = $event->[2] - $last if defined $last && $event->[2] - $last > $worst;
		$last = $event->[0] eq 'lost' ? undef : $event->[2];
	}
	return $worst / 1e9;
}

# --- what is done to them

# Whether it has ended, with all that it has started.
sub ended
{
	my ($process) = @_;

	reap($process);
	return defined $process->{exit} && $process->{read};
}

sub send_signal
{
	my ($process, $signal) = @_;

	reap($process);
	kill $signal, $process->{pid} unless defined $process->{exit};
	return;
}

# Whether it has done what those do that have an alarm
sub ended_itself
{
	my ($process) = @_;

	return can_do($process->{subject}, 'alarm') && ended($process)
	  && $process->{exit} == 128 + POSIX::SIGALRM;
}

# Sends a line to its standard input.
sub send_line
{
	my ($process, $line) = @_;

	local $SIG{PIPE} = 'IGNORE';
	print { $process->{in} } "$line\n";
	return;
}

# Ends it, gently if it goes so.
sub stop_subject
{
	my ($process, $seconds) = @_;

	send_signal($process, 'CONT');
	send_signal($process, 'TERM');
	return 1 if await(sub { ended($process) }, $seconds);
	send_signal($process, 'KILL');
	await(sub { ended($process) });
	return 0;
}

1;

# Processes of pg_leader run, for the TAP tests, and a command for them to run.
#
#	my $one = pg_leader($node, '-e', 'e', '--', 'sleep', '10');
#	wait_until(sub { $one->output =~ /started/ }, 'its start');
#	$one->signal('TERM');
#	is($one->exit_code, 143, 'ended by the signal');
#
# worker(...) is a command that proves that nothing of another one of its
# election is left when it starts: it takes a lock on a file, and whatever it
# starts inherits that. The kernel frees it when the last of them is gone.

package PgLeader;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use IPC::Run;
use LeaderElection;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(ask descendants holding_proxy is_running pg_leader preload
  run_pg_leader sidecar start_client wait_for_output worker);

# PostgreSQL::Test::Utils names every client after the test: pg_leader is to have
# its own name, by which its sessions are found.
delete $ENV{PGAPPNAME};

# What starts pg_leader, if not the shell; it has to become pg_leader (exec).
our @ON_HOST;

my $WORKER = <<'END';
use strict;
use warnings;
use Fcntl qw(:flock F_SETFD);
use Time::HiRes qw(sleep time);

my ($log, $lock_file, @options) = @ARGV;
my %is = map { $_ => 1 } @options;
my $name = "$ENV{PG_LEADER_CANDIDATE} $ENV{PG_LEADER_TERM}";

sub note
{
	open(my $file, '>>', $log) or die;
	syswrite($file, sprintf("%.6f %d %s %s\n", time, $$, $name, $_[0]));
	close($file);
}

open(my $lock, '>>', $lock_file) or die;
fcntl($lock, F_SETFD, 0);
$SIG{TERM} = 'IGNORE' if $is{stubborn};
$SIG{TERM} = sub { note('terminated'); exit 0 } if $is{polite};
note(flock($lock, LOCK_EX | LOCK_NB) ? 'started' : 'OVERLAP');
if ($is{family})
{
	# A child, and a grandchild that has left the session and has no parent.
	fork or do { sleep 1 while 1 };
	fork or do { fork and exit; require POSIX; POSIX::setsid(); sleep 1 while 1 };
	wait;
	note('family');
}
exit 0 if $is{short};
sleep 0.1 while getppid > 1;
END

my $worker_file;

# Not before PostgreSQL::Test::Utils, in its INIT, has a folder for temporary ones: it would
# make this one among the sources, where 089_release sees it come and go.
INIT
{
	$worker_file = PostgreSQL::Test::Utils::tempdir() . '/worker.pl';
	PostgreSQL::Test::Utils::append_to_file($worker_file, $WORKER);
}

my %processes;
my @started;
my @clients;

push @LeaderElection::REPORTS,
  sub { join('', map { $_->describe } grep { !defined $_->{status} } @started) };

# None outlives its test: guardians end what pg_leader leaves.
END
{
	my $status = $?;

	kill('KILL', keys %processes);
	$_->kill_kill foreach @clients;
	waitpid($_, 0) for keys %processes;
	$? = $status;
}

# Starts pg_leader run with these arguments. $node may be a connection string.
sub pg_leader
{
	return _start('run', @_);
}

# The same for pg_leader stand.
sub sidecar
{
	return _start('stand', @_);
}

sub _start
{
	my ($subcommand, $node, @args) = @_;
	my $connstr = ref $node ? $node->connstr('postgres') : $node;
	my $output = PostgreSQL::Test::Utils::tempdir() . '/output';
	my @signals = qw(HUP INT QUIT TERM PIPE);
	my $all = POSIX::SigSet->new(map { POSIX->can("SIG$_")->() } @signals);
	my $mask = POSIX::SigSet->new;

	# A signal that comes before pg_leader does would end a copy of the test,
	# which would stop its server.
	POSIX::sigprocmask(POSIX::SIG_BLOCK(), $all, $mask);
	my $pid = fork // croak "cannot fork: $!";

	if ($pid == 0)
	{
		# What belongs to the test is not for the command.
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>', $output);
		open(STDERR, '>&', \*STDOUT);
		POSIX::close($_) for 3 .. 63;
		$SIG{$_} = 'DEFAULT' foreach @signals;
		POSIX::sigprocmask(POSIX::SIG_SETMASK(), $mask);
		exec(@ON_HOST, 'pg_leader', $subcommand, '-d', $connstr, @args)
		  or POSIX::_exit(127);
	}
	POSIX::sigprocmask(POSIX::SIG_SETMASK(), $mask);
	$processes{$pid} = 1;
	my $self = bless { pid => $pid, args => "@args", output => $output }, 'PgLeader';
	push @started, $self;
	return $self;
}

# Runs it to its end: exit code and output.
sub run_pg_leader
{
	my $one = pg_leader(@_);
	my $code = $one->exit_code;

	return wantarray ? ($code, $one->output) : $code;
}

# Compiles NAME.c, which is beside this file, into a library: what LD_PRELOAD is to be,
# with what it is already.
sub preload
{
	my ($name) = @_;
	my $library = PostgreSQL::Test::Utils::tempdir() . "/$name.so";

	compile('-shared', '-fPIC', '-o', $library, dirname(abs_path(__FILE__)) . "/$name.c", '-ldl');
	return join(' ', $library, $ENV{LD_PRELOAD} // ());
}

# Runs another subcommand to its end: exit code (128 and the signal's number if
# one ended it), output and errors; or, as a scalar, the output. $node may be a
# connection string.
sub ask
{
	my ($node, $subcommand, @args) = @_;
	my $connstr = ref $node ? $node->connstr('postgres') : $node;
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[ 'pg_leader', $subcommand, '-d', $connstr, @args ],
		'<' => \undef,
		'>' => \$out,
		'2>' => \$err,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	note($err) if $err;
	return $out unless wantarray;
	return ($? & 127 ? 128 + ($? & 127) : $? >> 8, $out, $err);
}

# Starts another subcommand: its IPC::Run, its output and its errors, which grow.
sub start_client
{
	my ($node, $subcommand, @args) = @_;
	my $connstr = ref $node ? $node->connstr('postgres') : $node;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start([ 'pg_leader', $subcommand, '-d', $connstr, @args ],
		'<' => \undef,
		'>' => \$out,
		'2>' => \$err);

	push @clients, $run;
	return [ $run, \$out, \$err ];
}

# Waits until its output, or its errors, match.
sub wait_for_output
{
	my ($client, $regexp) = @_;
	my ($run, $out, $err) = @$client;

	return wait_until(
		sub { $run->pump_nb; "$$out$$err" =~ $regexp },
		sub { "$regexp in: $$out$$err" });
}

# A proxy to the server at a port of this host: its process, and a file that is
# there when it holds something. When a client first sends what matches, the
# proxy holds that ('question'), or the answer to it ('answer'), or reads nothing
# more of anybody ('all'), until SIGUSR1.
sub holding_proxy
{
	my ($node, $port, $regexp, $what) = @_;
	my $listener = IO::Socket::INET->new(
		LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 10, ReuseAddr => 1) or croak "no proxy: $@";
	my $file = PostgreSQL::Test::Utils::tempdir() . '/held';
	my ($released, $holds, %peer, %is_server, @held) = (0, 0);

	local $SIG{USR1} = sub { $released = 1; };
	my $pid = fork // croak "cannot fork: $!";
	if ($pid)
	{
		$processes{$pid} = 1;
		return ($pid, $file);
	}
	my $select = IO::Select->new($listener);
	while (getppid > 1)
	{
		if ($released)
		{
			$holds = 0;
			syswrite($_->[0], $_->[1]) foreach splice @held;
		}
		foreach my $from ($select->can_read(0.05))
		{
			if ($from == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::UNIX->new($node->host . '/.s.PGSQL.' . $node->port) or next;

				@peer{ $client, $server } = ($server, $client);
				$is_server{$server} = 1;
				$select->add($client, $server);
				next;
			}
			if ($holds && ($is_server{$from} || $what eq 'all'))
			{
				sleep(0.005);
				next;
			}
			my $to = $peer{$from} or next;
			my $data;
			if (sysread($from, $data, 65536))
			{
				my $matches = !$released && !$is_server{$from} && $data =~ $regexp;

				$holds = 1 if $matches;
				PostgreSQL::Test::Utils::append_to_file($file, '') if $matches;
				push @held, [ $to, $data ] if $matches && $what ne 'answer';
				next if ($matches && $what ne 'answer') || defined syswrite($to, $data);
			}
			$select->remove($from, $to);
			delete @peer{ $from, $to };
			close($_) for $from, $to;
		}
	}
	POSIX::_exit(0);
}

# The command: where it logs, what it locks, and options
#	stubborn  it ignores SIGTERM, with all its family
#	polite    it ends with 0 when it gets SIGTERM
#	family    it has a child, and a grandchild in another session
#	short     it ends at once
sub worker
{
	my ($file, @options) = @_;

	return ('--', $^X, $worker_file, "$file.log", "$file.lock", @options);
}

sub pid { return $_[0]{pid}; }

sub output { return -e $_[0]{output} ? slurp_file($_[0]{output}) : ''; }

sub signal
{
	my ($self, $signal) = @_;

	kill($signal, $self->{pid}) or croak "cannot signal $self->{pid}: $!";
	return;
}

# Whether it has ended, without waiting for that.
sub ended
{
	my ($self) = @_;

	unless (defined $self->{status})
	{
		return 0 unless waitpid($self->{pid}, POSIX::WNOHANG()) == $self->{pid};
		$self->{status} = $?;
		delete $processes{ $self->{pid} };
	}
	return 1;
}

# Waits for its end: the exit code, or 128 and the signal's number.
sub exit_code
{
	my ($self) = @_;

	wait_until(sub { $self->ended }, sub { "the end of pg_leader: " . $self->output });
	my $signal = $self->{status} & 127;
	return $signal ? 128 + $signal : $self->{status} >> 8;
}

# Its state and output, for the message of a wait that has timed out.
sub describe
{
	my ($self) = @_;
	my $pid = $self->{pid};
	my @state;

	if ($self->ended)
	{
		@state = sprintf("it has ended: exit code %d, signal %d\n",
			$self->{status} >> 8, $self->{status} & 127);
	}
	else
	{
		# Process, command, state; and whatever it has started
		@state = map { /^(\d+ \(.*\) \S)/ ? "it runs: $1\n" : () }
		  map { eval { slurp_file("/proc/$_/stat") } // '' } $pid, descendants($pid);
	}
	return join('', "== pg_leader $pid ($self->{args})\n", @state, $self->output);
}

# The guardian's process.
sub guardian
{
	my ($self) = @_;

	return (_children($self->{pid}))[0];
}

sub _children
{
	my ($pid) = @_;
	my @children;

	foreach my $file (glob("/proc/$pid/task/*/children"))
	{
		open(my $handle, '<', $file) or next;
		push @children, split(' ', <$handle> // '');
		close($handle);
	}
	return @children;
}

# All processes that descend from one.
sub descendants
{
	my ($pid) = @_;

	return map { ($_, descendants($_)) } _children($pid);
}

# Whether a process is there and more than a zombie.
sub is_running
{
	my ($pid) = @_;

	# Its name, in parentheses, may have anything in it: lines, too.
	open(my $file, '<', "/proc/$pid/stat") or return 0;
	my $stat = join('', <$file>);
	close($file);
	return $stat =~ /.*\) [^ZX]/s ? 1 : 0;
}

1;

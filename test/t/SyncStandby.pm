# Helpers for the tests with a synchronous standby.
#
#	use SyncStandby;
#
#	my $pair = SyncStandby->new(config => "...");
#	my $frozen = $pair->catch_at_commit(sub { [ $session, $sql ] });
#	$pair->{standby}->promote;
#
# The two servers talk over a line, a process in between that can be stopped,
# resumed, cut, and slowed down on the way from the primary to the standby: then
# each commit on the primary waits for so long, and can be caught there, before
# the standby knows of it.

package SyncStandby;

use strict;
use warnings;

use Carp;
use IO::Select;
use IO::Socket::UNIX;
use LeaderElection;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;
use Time::HiRes qw(sleep time);
use Worker;

# How long a commit is under way to the standby, in seconds
my $DELAY = 0.4;
my $TRIES = 20;

# The lines' processes. None outlives its test.
my %lines;

END
{
	local $?;
	CORE::kill('KILL', keys %lines);
}

# A primary and a standby that follows it, both running. Options:
#	config  lines for the postgresql.conf of both
sub new
{
	my ($class, %opts) = @_;
	my $self = bless {}, $class;

	$self->{primary} = new_server(
		name => 'primary',
		streaming => 1,
		config => "wal_sender_timeout = 0\nwal_receiver_timeout = 0\n"
		  . ($opts{config} // ''));
	$self->{line} = _start_line($self->{primary});
	$self->{primary}->backup('backup');
	$self->{standby} = PostgreSQL::Test::Cluster->new('standby');
	$self->{standby}->init_from_backup($self->{primary}, 'backup',
		has_streaming => 1);
	$self->{standby}->append_conf('postgresql.conf',
		"primary_conninfo = 'host=$self->{line}{host} "
		  . "port=@{[ $self->{primary}->port ]} application_name=standby'\n");
	$self->{standby}->start;
	$self->{observer} = session($self->{primary}, name => 'observer');
	$self->be_synchronous('*');
	return $self;
}

# Sets synchronous_standby_names on the primary, and waits until it counts.
sub be_synchronous
{
	my ($self, $names) = @_;

	$self->{primary}
	  ->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$self->{primary}->reload;
	wait_for($self->{primary},
		"SELECT current_setting('synchronous_standby_names') = '$names'
			AND (SELECT sync_state = CASE '$names' WHEN '' THEN 'async' ELSE 'sync' END
				FROM pg_stat_replication)");
	return;
}

# The servers' monotonic clock, which is the same for both.
sub clock
{
	return $_[0]{observer}->query('SELECT leader_election._monotonic_clock()');
}

# What a process of the primary waits for.
sub wait_event
{
	my ($self, $pid) = @_;

	return $self->{observer}->query(
		"SELECT wait_event FROM pg_stat_activity WHERE pid = $pid");
}

sub worker_pid { return $_[0]{observer}->query($WORKER_PID); }

# Nothing arrives on the other side any more, and both think that it may.
sub stop_line { return stop_process($_[0]{line}{pid}); }
sub resume_line { return resume_process($_[0]{line}{pid}); }

# Both sides lose their connection, for good.
sub cut_line
{
	my ($self) = @_;

	CORE::kill('KILL', $self->{line}{pid});
	waitpid($self->{line}{pid}, 0);
	delete $lines{ $self->{line}{pid} };
	return;
}

# How long what the primary sends is under way.
sub delay_line
{
	my ($self, $seconds) = @_;

	syswrite($self->{line}{control}, "$seconds\n");
	sysread($self->{line}{control}, my $answer, 1);
	return;
}

# Runs statements, a list of [session, SQL], one for each session, and stops the
# line when the commit of each waits for the standby, and what waits_too (pids)
# as well. $try makes the statements for each try; it is told how many there
# were before. Returns the time at which the line was stopped for certain.
sub catch_at_commit
{
	my ($self, $try, @waits_too) = @_;

	$self->delay_line($DELAY);
	foreach my $n (1 .. $TRIES)
	{
		my @statements = $try->($n);
		my @pids = (@waits_too, map { $_->[0]->backend_pid } @statements);
		my $all = "SELECT count(*) = @{[ scalar @pids ]} FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND pid IN (" . join(',', @pids) . ')';
		my $caught;
		my $over = time + 5;

		$_->[0]->query_async($_->[1]) foreach @statements;
		until ($caught || time > $over
			|| grep { $_->[0]->finished } @statements)
		{
			$caught = $self->{observer}->query($all) eq 't';
		}
		if ($caught)
		{
			$self->stop_line;
			my $now = $self->clock;

			# What was under way has arrived by now, or never will.
			sleep(0.05);
			return $now
			  if $self->{observer}->query($all) eq 't';
			$self->resume_line;
		}
		note("not caught: try $n");
		$_->[0]->result foreach @statements;
	}
	croak 'no commit was caught while it waited for the standby';
}

# A session of the primary whose commit waits for the standby waits no longer.
sub cancel
{
	my ($self, $session) = @_;

	$self->{observer}->query(
		'SELECT pg_cancel_backend(' . $session->backend_pid . ')');
	return $session->result;
}

# The line to a server, as long as this test. It speaks no protocol: it passes on
# what it gets.
sub _start_line
{
	my ($node) = @_;
	my $host = PostgreSQL::Test::Utils::tempdir_short();
	my $port = $node->port;
	my $listener = IO::Socket::UNIX->new(
		Local => "$host/.s.PGSQL.$port",
		Listen => 5) or croak "cannot listen in $host: $!";

	socketpair(my $control, my $child, AF_UNIX, SOCK_STREAM, PF_UNSPEC)
	  or croak "socketpair: $!";
	my $pid = fork() // croak "fork: $!";
	if ($pid == 0)
	{
		close $control;
		open(STDOUT, '>', '/dev/null');
		eval { _run_line($listener, $child, $node->host . "/.s.PGSQL.$port") };
		POSIX::_exit(1);
	}
	close $child;
	close $listener;
	$lines{$pid} = 1;
	return { pid => $pid, host => $host, control => $control };
}

sub _run_line
{
	my ($listener, $control, $server) = @_;
	my $select = IO::Select->new($listener, $control);
	my $delay = 0;
	my %peer;
	my %slow;      # sockets whose data is delayed
	my @queue;     # [when, to, data]; '' at the end of file

	local $SIG{PIPE} = 'IGNORE';
	while (1)
	{
		foreach my $from ($select->can_read(@queue ? 0.005 : undef))
		{
			if ($from == $listener)
			{
				my $client = $listener->accept or next;
				my $upstream = IO::Socket::UNIX->new(Peer => $server)
				  or next;

				$peer{$client} = $upstream;
				$peer{$upstream} = $client;
				$slow{$upstream} = 1;
				$select->add($client, $upstream);
				next;
			}
			my $n = sysread($from, my $data, 65536);

			if ($from == $control)
			{
				return unless $n;
				chomp($delay = $data);
				syswrite($control, '.');
				next;
			}
			$select->remove($from) unless $n;
			push @queue,
			  [ time + ($slow{$from} ? $delay : 0), $peer{$from}, $n ? $data : '' ];
		}

		# One way may overtake the other, but nothing overtakes on the same way.
		my $now = time;
		my %held_up;
		my @later;

		foreach my $item (@queue)
		{
			my ($when, $to, $data) = @$item;

			if ($when > $now || $held_up{$to})
			{
				$held_up{$to} = 1;
				push @later, $item;
				next;
			}
			shutdown($to, 1) if $data eq '';
			while ($data ne '')
			{
				my $written = syswrite($to, $data) // last;

				substr($data, 0, $written) = '';
			}
		}
		@queue = @later;
	}
	return;
}

1;
